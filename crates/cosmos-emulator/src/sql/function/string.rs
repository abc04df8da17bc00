//! String functions. Positions count characters.

use serde_json::Value;

use super::{Arguments, Function, MANY};
use crate::sql::eval::Context;

/// Longest string a function builds; larger results are undefined.
const TEXT_BYTES_MAX: usize = 4 << 20;
/// Most repetitions REPLICATE makes.
const REPLICATE_MAX: i64 = 10_000;
/// Most matches RegexExtractAll yields.
const REGEX_MATCHES_MAX: usize = 100_000;

pub(super) const FUNCTIONS: &[Function] = &[
    Function::pure("CONCAT", 2, MANY, |a| {
        let mut text = String::new();
        for at in 0..a.len() {
            text.push_str(a.text(at)?);
        }
        Some(text.into())
    }),
    Function::pure("CONTAINS", 2, 3, |a| test(a, |text, part| text.contains(part))),
    Function::pure("STARTSWITH", 2, 3, |a| test(a, |text, part| text.starts_with(part))),
    Function::pure("ENDSWITH", 2, 3, |a| test(a, |text, part| text.ends_with(part))),
    Function::pure("STRINGEQUALS", 2, 3, |a| test(a, |text, part| text == part)),
    Function::pure("CONTAINS_ALL_CI", 2, MANY, |a| contains_many(a, true, |found| !found)),
    Function::pure("CONTAINS_ALL_CS", 2, MANY, |a| contains_many(a, false, |found| !found)),
    Function::pure("CONTAINS_ANY_CI", 2, MANY, |a| contains_many(a, true, |found| found)),
    Function::pure("CONTAINS_ANY_CS", 2, MANY, |a| contains_many(a, false, |found| found)),
    Function::pure("INDEX_OF", 2, 3, index_of),
    Function::pure("LEFT", 2, 2, |a| Some(substring(a.text(0)?, 0, a.integer(1)?).into())),
    Function::pure("RIGHT", 2, 2, |a| {
        let (text, count) = (a.text(0)?, a.integer(1)?.max(0));
        let length = i64::try_from(text.chars().count()).ok()?;
        Some(substring(text, (length - count).max(0), count).into())
    }),
    Function::pure("LENGTH", 1, 1, |a| Some(a.text(0)?.chars().count().into())),
    Function::pure("LOWER", 1, 2, |a| Some(a.text(0)?.to_lowercase().into())),
    Function::pure("UPPER", 1, 2, |a| Some(a.text(0)?.to_uppercase().into())),
    Function::pure("LTRIM", 1, 2, |a| trim(a, |text, cut| text.trim_start_matches(cut))),
    Function::pure("RTRIM", 1, 2, |a| trim(a, |text, cut| text.trim_end_matches(cut))),
    Function::pure("TRIM", 1, 2, |a| trim(a, |text, cut| text.trim_start_matches(cut).trim_end_matches(cut))),
    Function::pure("REPLACE", 3, 3, replace),
    Function::pure("REPLICATE", 2, 2, |a| {
        let (text, count) = (a.text(0)?, a.integer(1)?);
        let count = usize::try_from(count).ok().filter(|_| count <= REPLICATE_MAX)?;
        (text.len().checked_mul(count)? <= TEXT_BYTES_MAX).then(|| text.repeat(count).into())
    }),
    Function::pure("REVERSE", 1, 1, |a| Some(a.text(0)?.chars().rev().collect::<String>().into())),
    Function::pure("SUBSTRING", 3, 3, |a| Some(substring(a.text(0)?, a.integer(1)?, a.integer(2)?).into())),
    Function::pure("SUBSTRINGAFTER", 2, 2, |a| Some(a.text(0)?.split_once(a.text(1)?)?.1.into())),
    Function::pure("SUBSTRINGBEFORE", 2, 2, |a| Some(a.text(0)?.split_once(a.text(1)?)?.0.into())),
    Function::pure("LASTSUBSTRINGAFTER", 2, 2, |a| Some(a.text(0)?.rsplit_once(a.text(1)?)?.1.into())),
    Function::pure("LASTSUBSTRINGBEFORE", 2, 2, |a| Some(a.text(0)?.rsplit_once(a.text(1)?)?.0.into())),
    Function::pure("StringJoin", 2, 2, |a| {
        let parts: Vec<&str> = a.array(0)?.iter().map(Value::as_str).collect::<Option<_>>()?;
        Some(parts.join(a.text(1)?).into())
    }),
    Function::pure("StringSplit", 2, 2, |a| {
        let (text, separator) = (a.text(0)?, a.text(1)?);
        if separator.is_empty() {
            return Some(vec![Value::from(text)].into());
        }
        Some(text.split(separator).map(Value::from).collect())
    }),
    Function::pure("StringToArray", 1, 1, |a| parsed(a).filter(Value::is_array)),
    Function::pure("StringToBoolean", 1, 1, |a| parsed(a).filter(Value::is_boolean)),
    Function::pure("StringToNull", 1, 1, |a| parsed(a).filter(Value::is_null)),
    Function::pure("StringToNumber", 1, 1, |a| match parsed(a)? {
        Value::Number(number) if number.is_i64() => Some(number.into()),
        Value::Number(number) => crate::sql::value::number(number.as_f64()?),
        _ => None,
    }),
    Function::pure("StringToObject", 1, 1, |a| parsed(a).filter(Value::is_object)),
    Function::pure("ToString", 1, 1, |a| match a.value(0)? {
        Value::String(text) => Some(text.clone().into()),
        other => Some(other.to_string().into()),
    }),
    Function::contextual("RegexMatch", 2, 3, regex_match),
    Function::contextual("RegexExtract", 2, 3, |a, context| regex_extract(a, context, 1)?.into_iter().next()),
    Function::contextual("RegexExtractAll", 2, 3, |a, context| {
        Some(regex_extract(a, context, REGEX_MATCHES_MAX)?.into())
    }),
    Function::pure("LastIndexOf", 2, 2, |a| {
        let (text, part) = (a.text(0)?, a.text(1)?);
        Some(text.rfind(part).map_or(Value::from(-1), |at| text[..at].chars().count().into()))
    }),
];

fn test(arguments: &Arguments<'_>, test: fn(&str, &str) -> bool) -> Option<Value> {
    let (text, part) = (arguments.text(0)?, arguments.text(1)?);
    let ignore_case = arguments.optional(2, false, Arguments::flag)?;
    let found = if ignore_case { test(&text.to_lowercase(), &part.to_lowercase()) } else { test(text, part) };
    Some(found.into())
}

/// AND or OR over CONTAINS, in three-valued logic: a decisive part decides, else a part that is no text leaves the
/// result undefined.
fn contains_many(
    arguments: &Arguments<'_>,
    ignore_case: bool,
    is_decisive: fn(bool) -> bool,
) -> Option<Value> {
    let fold = |text: &str| if ignore_case { text.to_lowercase() } else { text.to_owned() };
    let text = fold(arguments.text(0)?);
    let mut is_known = true;
    for at in 1..arguments.len() {
        match arguments.text(at) {
            Some(part) => {
                let found = text.contains(&fold(part));
                if is_decisive(found) {
                    return Some(found.into());
                }
            }
            None => is_known = false,
        }
    }
    // Nothing decided: every part was the opposite of a decisive one.
    is_known.then(|| Value::from(!is_decisive(true)))
}

fn index_of(arguments: &Arguments<'_>) -> Option<Value> {
    let (text, part) = (arguments.text(0)?, arguments.text(1)?);
    let start = usize::try_from(arguments.optional(2, 0, Arguments::integer)?).ok()?;
    let from = text.char_indices().nth(start).map_or(text.len(), |(at, _)| at);
    let found = text[from..].find(part).map(|at| text[..from + at].chars().count());
    Some(found.map_or(Value::from(-1), Value::from))
}

/// Out-of-range bounds are cut, not refused.
fn substring(text: &str, start: i64, count: i64) -> String {
    let start = usize::try_from(start.max(0)).unwrap_or(usize::MAX);
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    text.chars().skip(start).take(count).collect()
}

fn trim(
    arguments: &Arguments<'_>,
    trim: for<'t> fn(&'t str, &dyn Fn(char) -> bool) -> &'t str,
) -> Option<Value> {
    let text = arguments.text(0)?;
    if arguments.len() == 1 {
        return Some(trim(text, &char::is_whitespace).into());
    }
    let cut = arguments.text(1)?;
    Some(trim(text, &|c| cut.contains(c)).into())
}

fn replace(arguments: &Arguments<'_>) -> Option<Value> {
    let (text, from, to) = (arguments.text(0)?, arguments.text(1)?, arguments.text(2)?);
    if from.is_empty() {
        return Some(text.into());
    }
    let growth = text.matches(from).count().checked_mul(to.len())?;
    (text.len().checked_add(growth)? <= TEXT_BYTES_MAX).then(|| text.replace(from, to).into())
}

fn parsed(arguments: &Arguments<'_>) -> Option<Value> {
    serde_json::from_str(arguments.text(0)?.trim()).ok()
}

fn regex_match(arguments: &Arguments<'_>, context: &Context) -> Option<Value> {
    context.matches(&pattern_of(arguments)?, arguments.text(0)?).map(Value::from)
}

/// The first matches of a pattern.
fn regex_extract(arguments: &Arguments<'_>, context: &Context, matches_max: usize) -> Option<Vec<Value>> {
    context.extract(&pattern_of(arguments)?, arguments.text(0)?, matches_max)
}

/// The pattern of a call, with its modifiers.
fn pattern_of(arguments: &Arguments<'_>) -> Option<String> {
    let pattern = arguments.text(1)?;
    let flags = arguments.optional(2, "", |a, at| a.0.get(at)?.as_ref()?.as_str())?;
    if flags.chars().any(|flag| !"imsx".contains(flag)) {
        return None;
    }
    Some(if flags.is_empty() { pattern.to_owned() } else { format!("(?{flags}){pattern}") })
}
