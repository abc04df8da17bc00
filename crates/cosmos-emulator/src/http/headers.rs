//! Request headers, read as what they mean.

use cosmos_wire::header;
#[cfg(test)]
use http::HeaderMap;
use http::HeaderName;

use crate::engine::PageSize;
use crate::failure::Failure;
use crate::server::head::{Fields, Head};

/// Names of request headers, made once: finding a header by text means parsing the text first.
pub(crate) mod name {
    macro_rules! names {
        ($($name:ident),+ $(,)?) => {
            $(pub(crate) const $name: http::HeaderName =
                http::HeaderName::from_static(cosmos_wire::header::$name);)+
        };
    }
    names!(
        ACTIVITY_ID,
        AUTHORIZATION,
        A_IM,
        BATCH_ATOMIC,
        BATCH_CONTINUE_ON_ERROR,
        CHANGE_FEED_WIRE_FORMAT_VERSION,
        CONSISTENCY_LEVEL,
        CONTENT_SERIALIZATION_FORMAT,
        CONTENT_TYPE,
        CONTINUATION,
        DATE,
        END_EPK,
        IF_MATCH,
        IF_MODIFIED_SINCE,
        IF_NONE_MATCH,
        INTENDED_COLLECTION_RID,
        IS_BATCH_REQUEST,
        IS_QUERY,
        IS_QUERY_GO,
        IS_QUERY_PLAN_REQUEST,
        IS_UPSERT,
        MAX_ITEM_COUNT,
        MIGRATE_OFFER_TO_AUTOPILOT,
        MIGRATE_OFFER_TO_MANUAL,
        OFFER_AUTOPILOT_SETTINGS,
        OFFER_THROUGHPUT,
        PARTITION_KEY,
        PARTITION_KEY_RANGE_ID,
        POPULATE_CONTENT_RESPONSE_ON_WRITE,
        POPULATE_INDEX_METRICS,
        POPULATE_PARTITION_KEY_RANGE_STATISTICS,
        POPULATE_PARTITION_STATISTICS,
        POPULATE_QUERY_METRICS,
        POPULATE_QUOTA_INFO,
        POST_TRIGGER_INCLUDE,
        PREFER,
        PRE_TRIGGER_INCLUDE,
        QUERY_ENABLE_CROSS_PARTITION,
        QUERY_IS_CONTINUATION_EXPECTED,
        QUERY_PARALLELIZE_CROSS_PARTITION,
        READ_CONSISTENCY_STRATEGY,
        READ_KEY_TYPE,
        RESOURCE_TOKEN_EXPIRY,
        SCRIPT_ENABLE_LOGGING,
        SESSION_TOKEN,
        START_EPK,
        SUPPORTED_QUERY_FEATURES,
        SUPPORTED_SERIALIZATION_FORMATS,
        THINCLIENT_USE,
        VERSION,
        X_DATE,
    );
}

/// The headers of one request.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    fields: Fields<'a>,
}

impl<'a> Asked<'a> {
    pub(crate) fn of(head: &'a Head) -> Self {
        Self { fields: head.fields() }
    }

    #[cfg(test)]
    pub(crate) fn new(map: &'a HeaderMap) -> Self {
        Self { fields: Fields::Map(map) }
    }

    /// The text of a header; absent, empty and not-text are all nothing.
    pub(crate) fn text(&self, name: HeaderName) -> Option<&'a str> {
        let value = self.fields.get(name)?;
        let is_text = !value.is_empty() && value.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
        std::str::from_utf8(value).ok().filter(|_| is_text)
    }

    /// The text of a header that may carry UTF-8, as partition keys do with some clients.
    pub(crate) fn utf8(&self, name: HeaderName) -> Option<&'a str> {
        std::str::from_utf8(self.fields.get(name)?).ok().filter(|text| !text.is_empty())
    }

    fn flag(&self, name: HeaderName) -> bool {
        self.text(name).is_some_and(header::is_true)
    }

    fn media_type(&self) -> &'a str {
        let text = self.text(name::CONTENT_TYPE).unwrap_or_default();
        text.split(';').next().unwrap_or_default().trim()
    }

    pub(crate) fn is_query(&self) -> bool {
        self.flag(name::IS_QUERY)
            || self.flag(name::IS_QUERY_GO)
            || self.media_type().eq_ignore_ascii_case(header::value::QUERY_JSON)
            || self.is_sql_text()
    }

    /// Whether the body is bare SQL.
    pub(crate) fn is_sql_text(&self) -> bool {
        self.media_type().eq_ignore_ascii_case(header::value::SQL)
    }

    pub(crate) fn is_query_plan(&self) -> bool {
        self.flag(name::IS_QUERY_PLAN_REQUEST)
    }

    pub(crate) fn is_batch(&self) -> bool {
        self.flag(name::IS_BATCH_REQUEST)
    }

    pub(crate) fn is_atomic(&self) -> bool {
        self.flag(name::BATCH_ATOMIC)
    }

    pub(crate) fn continues_on_error(&self) -> bool {
        self.flag(name::BATCH_CONTINUE_ON_ERROR)
    }

    pub(crate) fn is_upsert(&self) -> bool {
        self.flag(name::IS_UPSERT)
    }

    pub(crate) fn is_change_feed(&self) -> bool {
        self.text(name::A_IM).is_some()
    }

    pub(crate) fn is_full_fidelity(&self) -> bool {
        self.text(name::A_IM)
            .is_some_and(|feed| feed.trim().eq_ignore_ascii_case(header::value::FULL_FIDELITY_FEED))
    }

    pub(crate) fn wants_minimal(&self) -> bool {
        self.text(name::PREFER).is_some_and(|prefer| {
            prefer
                .split([',', ';'])
                .any(|part| part.trim().eq_ignore_ascii_case(header::value::RETURN_MINIMAL))
        }) || self
            .text(name::POPULATE_CONTENT_RESPONSE_ON_WRITE)
            .is_some_and(|wanted| wanted.trim().eq_ignore_ascii_case("false"))
    }

    pub(crate) fn allows_cross_partition(&self) -> bool {
        self.flag(name::QUERY_ENABLE_CROSS_PARTITION)
    }

    pub(crate) fn wants_parallel_query(&self) -> bool {
        self.flag(name::QUERY_PARALLELIZE_CROSS_PARTITION)
    }

    pub(crate) fn expects_continuation(&self) -> bool {
        self.flag(name::QUERY_IS_CONTINUATION_EXPECTED)
    }

    pub(crate) fn wants_gateway2(&self) -> bool {
        self.flag(name::THINCLIENT_USE)
    }

    /// Whether a client takes items in Cosmos binary and in nothing else. One that takes text as well gets text.
    pub(crate) fn takes_binary_only(&self) -> bool {
        [name::SUPPORTED_SERIALIZATION_FORMATS, name::CONTENT_SERIALIZATION_FORMAT].into_iter().any(|name| {
            self.text(name)
                .is_some_and(|formats| formats.trim().eq_ignore_ascii_case(header::value::COSMOS_BINARY))
        })
    }

    pub(crate) fn wants_query_metrics(&self) -> bool {
        self.flag(name::POPULATE_QUERY_METRICS)
    }

    pub(crate) fn wants_index_metrics(&self) -> bool {
        self.flag(name::POPULATE_INDEX_METRICS)
    }

    /// The page size asked for.
    pub(crate) fn page_size(&self) -> Result<PageSize, Failure> {
        match self.text(name::MAX_ITEM_COUNT).map(|text| text.trim().parse::<i64>()) {
            None | Some(Ok(0)) => Ok(PageSize::DEFAULT),
            Some(Ok(-1)) => Ok(PageSize::Dynamic),
            Some(Ok(count)) if count > 0 => {
                Ok(PageSize::AtMost(usize::try_from(count).unwrap_or(usize::MAX)))
            }
            Some(Ok(_) | Err(_)) => Err(Failure::bad_request(
                "Invalid value of header x-ms-max-item-count: it must be a positive number, or -1 for a dynamic page size.",
            )),
        }
    }

    /// The two bounds of an effective-partition-key range, where the request names one.
    pub(crate) fn epk_range(&self) -> Result<Option<(&'a str, &'a str)>, Failure> {
        let (start, end) = (self.text(name::START_EPK), self.text(name::END_EPK));
        if start.is_none() && end.is_none() {
            return Ok(None);
        }
        let kind = self.text(name::READ_KEY_TYPE);
        if !kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case(header::value::EPK_RANGE)) {
            return Err(Failure::bad_request(
                "x-ms-start-epk and x-ms-end-epk need x-ms-read-key-type: EffectivePartitionKeyRange.",
            ));
        }
        Ok(Some((start.unwrap_or_default(), end.unwrap_or("FF"))))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn with(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        headers.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn page_sizes_follow_the_service() {
        let size = |value: &'static str| Asked::new(&with(&[("x-ms-max-item-count", value)])).page_size();
        assert_eq!(Asked::new(&HeaderMap::new()).page_size(), Ok(PageSize::AtMost(1000)));
        assert_eq!(size("0"), Ok(PageSize::AtMost(1000)));
        assert_eq!(size("-1"), Ok(PageSize::Dynamic));
        assert_eq!(size("7"), Ok(PageSize::AtMost(7)));
        assert_eq!(size("many").unwrap_err().status, 400);
        assert_eq!(size("-2").unwrap_err().status, 400);
    }

    #[test]
    fn epk_bounds_need_their_key_type() {
        assert_eq!(Asked::new(&HeaderMap::new()).epk_range(), Ok(None));
        let bare = with(&[("x-ms-start-epk", "05")]);
        assert_eq!(Asked::new(&bare).epk_range().unwrap_err().status, 400);
        let typed = with(&[("x-ms-start-epk", "05"), ("x-ms-read-key-type", "EffectivePartitionKeyRange")]);
        assert_eq!(Asked::new(&typed).epk_range(), Ok(Some(("05", "FF"))));
    }

    #[test]
    fn minimal_answers_are_asked_for_in_two_ways() {
        assert!(Asked::new(&with(&[("prefer", "return=minimal")])).wants_minimal());
        assert!(
            Asked::new(&with(&[("x-ms-cosmos-populate-content-response-on-write", "False")])).wants_minimal()
        );
        assert!(!Asked::new(&with(&[("prefer", "return=representation")])).wants_minimal());
    }
}
