//! The headers of a request.

use cosmos_wire::header;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderName, IF_MATCH, IF_NONE_MATCH, USER_AGENT};
use http::{HeaderMap, HeaderValue};
use uuid::Uuid;

use crate::driver::Core;
use crate::options::{Consistency, ReadConsistencyStrategy};
use crate::request::{Kind, Operation, Target};

/// What differs between attempts of one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) activity: &'a HeaderValue,
    pub(crate) session: Option<&'a HeaderValue>,
    /// Range to address, for operations that are sent to one range by id.
    pub(crate) range: Option<&'a HeaderValue>,
    /// Only part of that range is meant.
    pub(crate) is_part_of_range: bool,
    pub(crate) is_tentative_write: bool,
    /// What a read asks for.
    pub(crate) consistency: Ask,
}

/// What a read asks for, in one of the two headers that the service knows for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// What the account promises.
    Nothing,
    Level(Consistency),
    Strategy(ReadConsistencyStrategy),
}

macro_rules! names {
    ($($name:ident = $text:expr;)*) => { $(static $name: HeaderName = HeaderName::from_static($text);)* };
}

names! {
    VERSION = header::VERSION;
    ACTIVITY_ID = header::ACTIVITY_ID;
    SESSION_TOKEN = header::SESSION_TOKEN;
    CONSISTENCY = header::CONSISTENCY_LEVEL;
    READ_STRATEGY = header::READ_CONSISTENCY_STRATEGY;
    PARTITION_KEY = header::PARTITION_KEY;
    RANGE_ID = header::PARTITION_KEY_RANGE_ID;
    INTENDED_RID = header::INTENDED_COLLECTION_RID;
    TENTATIVE = header::ALLOW_TENTATIVE_WRITES;
    IS_UPSERT = header::IS_UPSERT;
    PREFER = header::PREFER;
    IS_QUERY = header::IS_QUERY;
    IS_PLAN = header::IS_QUERY_PLAN_REQUEST;
    PLAN_FEATURES = header::SUPPORTED_QUERY_FEATURES;
    PLAN_VERSION = header::QUERY_VERSION;
    CROSS_PARTITION = header::QUERY_ENABLE_CROSS_PARTITION;
    IS_BATCH = header::IS_BATCH_REQUEST;
    BATCH_ATOMIC = header::BATCH_ATOMIC;
    BATCH_CONTINUE = header::BATCH_CONTINUE_ON_ERROR;
    A_IM = header::A_IM;
    START_EPK = header::START_EPK;
    END_EPK = header::END_EPK;
    READ_KEY_TYPE = header::READ_KEY_TYPE;
    USE_THINCLIENT = header::THINCLIENT_USE;
}

/// All headers but date and authorization.
pub(crate) fn headers(core: &Core, operation: &Operation, message: &Message<'_>) -> HeaderMap {
    // Sized so that the map is allocated once, also with what signing and HTTP/1.1 add.
    let mut headers = HeaderMap::with_capacity(24);
    headers.insert(USER_AGENT, core.user_agent.clone());
    headers.insert(ACCEPT, JSON);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(&VERSION, HeaderValue::from_static(cosmos_wire::API_VERSION));
    headers.insert(&ACTIVITY_ID, message.activity.clone());
    kind_headers(operation.kind, &mut headers);
    target_headers(operation, message, &mut headers);
    if let Some(container) = &operation.container {
        headers.insert(&INTENDED_RID, container.rid_header.clone());
    }
    if let Some(token) = message.session {
        headers.insert(&SESSION_TOKEN, token.clone());
    }
    if message.is_tentative_write {
        headers.insert(&TENTATIVE, TRUE);
    }
    match message.consistency {
        Ask::Nothing => {}
        Ask::Level(level) => {
            headers.insert(&CONSISTENCY, HeaderValue::from_static(level.as_str()));
        }
        Ask::Strategy(strategy) => {
            headers.insert(&READ_STRATEGY, HeaderValue::from_static(strategy.as_str()));
        }
    }
    if operation.is_minimal {
        headers.insert(&PREFER, HeaderValue::from_static("return=minimal"));
    }
    if let Some(etag) = &operation.if_match {
        headers.insert(IF_MATCH, etag.clone());
    }
    if let Some(etag) = &operation.if_none_match {
        headers.insert(IF_NONE_MATCH, etag.clone());
    }
    for (name, value) in &operation.headers {
        headers.insert(name, value.clone());
    }
    headers
}

fn kind_headers(kind: Kind, headers: &mut HeaderMap) {
    match kind {
        Kind::CreateItem
        | Kind::ReplaceItem
        | Kind::CreateDatabase
        | Kind::CreateContainer
        | Kind::ReplaceOffer
        | Kind::ReplaceContainer => {
            headers.insert(CONTENT_TYPE, JSON);
        }
        Kind::UpsertItem => {
            headers.insert(CONTENT_TYPE, JSON);
            headers.insert(&IS_UPSERT, TRUE);
        }
        Kind::PatchItem => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json_patch+json"));
        }
        Kind::Batch => {
            headers.insert(CONTENT_TYPE, JSON);
            headers.insert(&IS_BATCH, TRUE);
            headers.insert(&BATCH_ATOMIC, TRUE);
            headers.insert(&BATCH_CONTINUE, HeaderValue::from_static("False"));
        }
        Kind::Bulk => {
            headers.insert(CONTENT_TYPE, JSON);
            headers.insert(&IS_BATCH, TRUE);
            headers.insert(&BATCH_ATOMIC, HeaderValue::from_static("False"));
            headers.insert(&BATCH_CONTINUE, TRUE);
        }
        Kind::QueryOffers => {
            headers.insert(CONTENT_TYPE, QUERY_JSON);
            headers.insert(&IS_QUERY, TRUE);
        }
        Kind::Query => {
            headers.insert(CONTENT_TYPE, QUERY_JSON);
            headers.insert(&IS_QUERY, TRUE);
            headers.insert(&CROSS_PARTITION, TRUE);
        }
        Kind::QueryPlan => {
            headers.insert(CONTENT_TYPE, QUERY_JSON);
            headers.insert(&IS_PLAN, TRUE);
            headers.insert(&CROSS_PARTITION, TRUE);
            headers.insert(&PLAN_FEATURES, HeaderValue::from_static(SUPPORTED_FEATURES));
            headers.insert(&PLAN_VERSION, HeaderValue::from_static("1.4"));
        }
        Kind::ChangeFeed | Kind::ReadRanges => {
            headers.insert(&A_IM, HeaderValue::from_static("Incremental Feed"));
        }
        // Without it the service does not say whether it has Gateway 2.0 endpoints.
        Kind::ReadAccount => {
            headers.insert(&USE_THINCLIENT, HeaderValue::from_static("true"));
        }
        Kind::ReadDatabase
        | Kind::ListDatabases
        | Kind::DeleteDatabase
        | Kind::ReadContainer
        | Kind::ListContainers
        | Kind::DeleteContainer
        | Kind::ReadItem
        | Kind::DeleteItem => {}
    }
}

fn target_headers(operation: &Operation, message: &Message<'_>, headers: &mut HeaderMap) {
    match &operation.target {
        Target::None => {}
        Target::Key { header, .. } => {
            headers.insert(&PARTITION_KEY, header.clone());
        }
        Target::Range { bounds: (min, max), .. } => {
            if let Some(range) = message.range {
                headers.insert(&RANGE_ID, range.clone());
            }
            if message.is_part_of_range {
                headers.insert(&START_EPK, min.clone());
                headers.insert(&END_EPK, max.clone());
                headers.insert(&READ_KEY_TYPE, HeaderValue::from_static("EffectivePartitionKeyRange"));
            }
        }
    }
}

/// A fresh activity id.
pub(crate) fn activity(core: &Core) -> HeaderValue {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&core.clock.random().to_le_bytes());
    bytes[8..].copy_from_slice(&core.clock.random().to_le_bytes());
    let mut text = [0; 36];
    uuid::Builder::from_random_bytes(bytes).into_uuid().hyphenated().encode_lower(&mut text);
    HeaderValue::from_bytes(&text).expect("an id is plain ASCII")
}

/// The id as text, for errors.
pub(crate) fn activity_text(activity: &HeaderValue) -> Option<String> {
    activity.to_str().ok().map(str::to_owned).filter(|text| Uuid::parse_str(text).is_ok())
}

#[allow(clippy::declare_interior_mutable_const)] // A header value from static text has nothing to mutate.
const TRUE: HeaderValue = HeaderValue::from_static("True");
#[allow(clippy::declare_interior_mutable_const)] // As above.
const JSON: HeaderValue = HeaderValue::from_static("application/json");
#[allow(clippy::declare_interior_mutable_const)] // As above.
const QUERY_JSON: HeaderValue = HeaderValue::from_static("application/query+json");

/// What this driver can do with a plan.
const SUPPORTED_FEATURES: &str = "Aggregate,CompositeAggregate,Distinct,GroupBy,MultipleAggregates,MultipleOrderBy,\
                                  NonValueAggregate,OffsetAndLimit,OrderBy,Top";
