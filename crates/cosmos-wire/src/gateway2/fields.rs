//! Which token stands for which header, and how its value is written.

use std::borrow::Cow;

use super::Field;
use super::token::Value;
use crate::header;

/// One header that frames carry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) id: u16,
    pub(super) form: Form,
    pub(super) header: &'static str,
}

/// How the text of a header is written as a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A text whose length has one byte.
    Small,
    /// A text whose length has two bytes.
    Text,
    ULong,
    LongLong,
    Double,
    /// `True` or `False`.
    Flag,
    /// A number of items, or -1.
    PageSize,
    /// The one preference that frames know: `return=minimal`.
    Preference,
    /// A list of names of formats, each of which is a bit.
    Formats,
    Level,
    Strategy,
}

const fn known(id: u16, form: Form, header: &'static str) -> Known {
    Known { id, form, header }
}

/// The precondition of a request: `if-none-match` of what only reads, `if-match` of all else.
pub(super) const MATCH: u16 = 0x0008;

/// Headers of requests, in the order in which they are written: the first two are among what endpoints route by.
pub(super) const REQUEST: [Known; 20] = [
    known(0x0001, Form::Text, header::AUTHORIZATION),
    known(0x0003, Form::Small, header::X_DATE),
    known(0x002B, Form::Text, header::PARTITION_KEY),
    known(0x002C, Form::Text, header::PARTITION_KEY_RANGE_ID),
    known(0x0066, Form::Flag, header::ALLOW_TENTATIVE_WRITES),
    known(0x0082, Form::Preference, header::PREFER),
    known(0x00FF, Form::Text, header::SUPPORTED_QUERY_FEATURES),
    known(0x0100, Form::Small, header::QUERY_VERSION),
    known(0x00C4, Form::Formats, header::SUPPORTED_SERIALIZATION_FORMATS),
    known(0x0010, Form::Level, header::CONSISTENCY_LEVEL),
    known(0x00FE, Form::Strategy, header::READ_CONSISTENCY_STRATEGY),
    known(0x00A2, Form::ULong, header::SDK_SUPPORTED_CAPABILITIES),
    known(0x0006, Form::Text, header::CONTINUATION),
    known(0x0005, Form::Text, header::SESSION_TOKEN),
    known(0x0004, Form::PageSize, header::MAX_ITEM_COUNT),
    known(0x0047, Form::Text, header::IF_MODIFIED_SINCE),
    known(0x003F, Form::Text, header::A_IM),
    known(0x00B2, Form::Text, header::CHANGE_FEED_WIRE_FORMAT_VERSION),
    known(0x0073, Form::Flag, header::BATCH_ATOMIC),
    known(0x0074, Form::Flag, header::BATCH_CONTINUE_ON_ERROR),
];

/// Headers of answers.
pub(super) const RESPONSE: [Known; 28] = [
    known(0x0002, Form::Small, header::LAST_STATE_CHANGE_UTC),
    known(0x0003, Form::Text, header::CONTINUATION),
    known(0x0004, Form::Text, header::ETAG),
    known(0x000C, Form::ULong, header::RETRY_AFTER_MS),
    known(0x000E, Form::Text, header::RESOURCE_QUOTA),
    known(0x000F, Form::Text, header::RESOURCE_USAGE),
    known(0x0010, Form::Small, header::SCHEMA_VERSION),
    known(0x0013, Form::LongLong, header::LSN),
    known(0x0014, Form::ULong, header::ITEM_COUNT),
    known(0x0015, Form::Double, header::REQUEST_CHARGE),
    known(0x0017, Form::Text, header::ALT_CONTENT_PATH),
    known(0x0018, Form::Text, header::CONTENT_PATH),
    known(0x001A, Form::LongLong, header::QUORUM_ACKED_LSN),
    known(0x001C, Form::ULong, header::SUBSTATUS),
    known(0x001E, Form::ULong, header::CURRENT_WRITE_QUORUM),
    known(0x001F, Form::ULong, header::CURRENT_REPLICA_SET_SIZE),
    known(0x0021, Form::Text, header::PARTITION_KEY_RANGE_ID),
    known(0x0028, Form::Text, header::QUERY_METRICS),
    known(0x0029, Form::LongLong, header::GLOBAL_COMMITTED_LSN),
    known(0x0030, Form::ULong, header::NUMBER_OF_READ_REGIONS),
    known(0x0032, Form::LongLong, header::ITEM_LSN),
    known(0x0035, Form::ULong, header::TRANSPORT_REQUEST_ID),
    known(0x003A, Form::LongLong, header::LOCAL_LSN),
    known(0x003C, Form::LongLong, header::ITEM_LOCAL_LSN),
    known(0x003E, Form::Text, header::SESSION_TOKEN),
    known(0x0044, Form::Text, header::INDEX_UTILIZATION),
    known(0x0051, Form::Double, header::REQUEST_DURATION_MS),
    known(0x0063, Form::Text, header::PHYSICAL_PARTITION_ID),
];

/// The headers of requests that frames carry.
pub fn request_headers() -> impl Iterator<Item = &'static str> {
    REQUEST.iter().map(|known| known.header).chain([header::IF_MATCH, header::IF_NONE_MATCH])
}

/// The headers of answers that frames carry.
pub fn response_headers() -> impl Iterator<Item = &'static str> {
    RESPONSE.iter().map(|known| known.header)
}

/// Whether a request with this header can be written as a frame without losing it.
#[must_use]
pub fn carries(header: &str) -> bool {
    request_headers().any(|known| known == header)
}

/// The text of a header, which is neither of one that is not there nor empty.
pub(super) fn text_of<'f>(fields: &'f [Field<'_>], header: &str) -> Option<&'f str> {
    fields.iter().find(|(name, _)| *name == header).map(|(_, text)| &**text).filter(|text| !text.is_empty())
}

const LEVELS: [&str; 5] = ["Strong", "BoundedStaleness", "Session", "Eventual", "ConsistentPrefix"];
const STRATEGIES: [&str; 4] = ["Eventual", "Session", "LatestCommitted", "GlobalStrong"];
const FORMATS: [&str; 3] = [header::value::JSON_TEXT, header::value::COSMOS_BINARY, "HybridRow"];
/// A page as large as the server likes.
const ANY_PAGE: u32 = u32::MAX;

impl Form {
    /// The value of a text; none if it says nothing that a value could say.
    pub(super) fn value(self, text: &str) -> Option<Value<'_>> {
        let index = |names: &[&str]| names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let byte = |index: usize| u8::try_from(index).ok().map(Value::Byte);
        match self {
            Self::Small => Some(Value::SmallText(text)),
            Self::Text => Some(Value::Text(text)),
            Self::ULong => text.trim().parse().ok().map(Value::ULong),
            Self::LongLong => text.trim().parse().ok().map(Value::LongLong),
            Self::Double => {
                text.trim().parse().ok().filter(|value: &f64| value.is_finite()).map(Value::Double)
            }
            Self::Flag => Some(Value::Byte(header::is_true(text).into())),
            Self::PageSize => match text.trim().parse::<i64>().ok()? {
                size @ ..=-1 => (size == -1).then_some(Value::ULong(ANY_PAGE)),
                size => u32::try_from(size).ok().filter(|size| *size != ANY_PAGE).map(Value::ULong),
            },
            Self::Preference => {
                let is_minimal = text
                    .split([',', ';'])
                    .any(|part| part.trim().eq_ignore_ascii_case(header::value::RETURN_MINIMAL));
                is_minimal.then_some(Value::Byte(1))
            }
            Self::Formats => {
                let bits = text.split(',').fold(0, |bits, name| {
                    let name = name.trim().split('+').next().unwrap_or_default();
                    FORMATS
                        .iter()
                        .position(|known| known.eq_ignore_ascii_case(name))
                        .map_or(bits, |bit| bits | (1 << bit))
                });
                (bits != 0).then_some(Value::Byte(bits))
            }
            Self::Level => index(&LEVELS).and_then(byte),
            Self::Strategy => index(&STRATEGIES).and_then(|index| byte(index + 1)),
        }
    }

    /// The text of a value; the outer none if it has none of this form, the inner if it says what is said without it.
    pub(super) fn text<'a>(self, value: &Value<'a>) -> Option<Option<Cow<'a, str>>> {
        let named =
            |names: &[&'static str], index: usize| names.get(index).map(|name| Some(Cow::Borrowed(*name)));
        match self {
            Self::Small | Self::Text => {
                let is_plain =
                    |text: &&str| text.bytes().all(|byte| (byte >= b' ' && byte != 127) || byte == b'\t');
                value.text().filter(is_plain).map(|text| Some(Cow::Borrowed(text)))
            }
            Self::ULong => {
                let whole = u32::try_from(value.whole()?).ok()?;
                Some(Some(Cow::Owned(whole.to_string())))
            }
            // Some numbers are -1 where the server does not know them.
            Self::LongLong => {
                let whole = i64::try_from(value.whole()?).ok()?;
                Some((whole >= 0).then(|| Cow::Owned(whole.to_string())))
            }
            Self::Double => value.fraction().map(|value| Some(Cow::Owned(value.to_string()))),
            Self::Flag => {
                value.byte().map(|byte| Some(Cow::Borrowed(if byte == 0 { "False" } else { "True" })))
            }
            Self::PageSize => {
                let size = u32::try_from(value.whole()?).ok()?;
                Some(Some(if size == ANY_PAGE { Cow::Borrowed("-1") } else { Cow::Owned(size.to_string()) }))
            }
            Self::Preference => {
                value.byte().map(|byte| (byte != 0).then_some(Cow::Borrowed(header::value::RETURN_MINIMAL)))
            }
            Self::Formats => {
                let bits = value.byte()?;
                let names = FORMATS.iter().enumerate().filter(|(bit, _)| bits & (1 << bit) != 0);
                let names: Vec<&str> = names.map(|(_, name)| *name).collect();
                Some((!names.is_empty()).then(|| Cow::Owned(names.join(","))))
            }
            Self::Level => named(&LEVELS, value.byte()?.into()),
            Self::Strategy => named(&STRATEGIES, usize::from(value.byte()?).checked_sub(1)?),
        }
    }
}
