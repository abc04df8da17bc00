//! Date and time functions. A moment is a number of ticks of 100 ns since 1970; texts are ISO 8601 in UTC.

use std::time::SystemTime;

use serde_json::Value;

use super::{Arguments, Function};
use crate::sql::eval::Context;

pub(super) const FUNCTIONS: &[Function] = &[
    Function::contextual("GetCurrentDateTime", 0, 0, |_, context| format(now(context))),
    Function::contextual("GetCurrentDateTimeStatic", 0, 0, |_, context| format(now(context))),
    Function::contextual("GetCurrentTicks", 0, 0, |_, context| Some(now(context).into())),
    Function::contextual("GetCurrentTicksStatic", 0, 0, |_, context| Some(now(context).into())),
    Function::contextual("GetCurrentTimestamp", 0, 0, |_, context| Some((now(context) / MILLISECOND).into())),
    Function::contextual("GetCurrentTimestampStatic", 0, 0, |_, context| {
        Some((now(context) / MILLISECOND).into())
    }),
    Function::pure("DateTimeToTicks", 1, 1, |a| Some(parse(a.text(0)?)?.into())),
    Function::pure("DateTimeToTimestamp", 1, 1, |a| Some(parse(a.text(0)?)?.div_euclid(MILLISECOND).into())),
    Function::pure("TicksToDateTime", 1, 1, |a| format(a.integer(0)?)),
    Function::pure("TimestampToDateTime", 1, 1, |a| format(a.integer(0)?.checked_mul(MILLISECOND)?)),
    Function::pure("DateTimeAdd", 3, 3, |a| {
        format(add(Part::by_name(a.text(0)?)?, a.integer(1)?, parse(a.text(2)?)?)?)
    }),
    Function::pure("DateTimeDiff", 3, 3, |a| {
        let (part, start, end) = (Part::by_name(a.text(0)?)?, parse(a.text(1)?)?, parse(a.text(2)?)?);
        Some(part.ordinal(end).checked_sub(part.ordinal(start))?.into())
    }),
    Function::pure("DateTimePart", 2, 2, |a| date_part(Part::by_name(a.text(0)?)?, parse(a.text(1)?)?)),
    Function::pure("Year", 1, 1, |a| date_part(Part::by_name("year")?, parse(a.text(0)?)?)),
    Function::pure("Month", 1, 1, |a| date_part(Part::by_name("month")?, parse(a.text(0)?)?)),
    Function::pure("Day", 1, 1, |a| date_part(Part::by_name("day")?, parse(a.text(0)?)?)),
    Function::contextual("Ago", 2, 2, |a, context| {
        format(add(Part::by_name(a.text(0)?)?, a.integer(1)?.checked_neg()?, now(context))?)
    }),
    Function::pure("DateTimeFormat", 2, 2, |a| {
        Some(formatted(parse(&a.text(0)?.replacen(' ', "T", 1))?, a.text(1)?).into())
    }),
    Function::contextual("Now", 0, 0, |_, context| format(now(context))),
    Function::pure("DateTimeBin", 2, 4, bin),
    Function::pure("DateTimeFromParts", 3, 7, from_parts),
];

const MICROSECOND: i64 = 10;
const MILLISECOND: i64 = 10_000;
const SECOND: i64 = 10_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Year,
    Month,
    /// Nanoseconds are finer than a tick.
    Nanosecond,
    /// Ticks of one unit, and the units in the next larger one.
    Fixed(i64, i64),
}

impl Part {
    fn by_name(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "year" | "yyyy" | "yy" => Part::Year,
            "month" | "mm" | "m" => Part::Month,
            "day" | "dd" | "d" => Part::Fixed(DAY, 0),
            "hour" | "hh" => Part::Fixed(HOUR, 24),
            "minute" | "mi" | "n" => Part::Fixed(MINUTE, 60),
            "second" | "ss" | "s" => Part::Fixed(SECOND, 60),
            "millisecond" | "ms" => Part::Fixed(MILLISECOND, 1000),
            "microsecond" | "mcs" => Part::Fixed(MICROSECOND, 1_000_000),
            "nanosecond" | "ns" => Part::Nanosecond,
            _ => return None,
        })
    }

    /// How many of this part lie before the moment; the difference of two counts boundaries between them.
    fn ordinal(self, ticks: i64) -> i64 {
        let date = Date::of(ticks);
        match self {
            Part::Year => date.year,
            Part::Month => date.year * 12 + date.month - 1,
            Part::Nanosecond => ticks.saturating_mul(100),
            Part::Fixed(unit, _) => ticks.div_euclid(unit),
        }
    }
}

struct Date {
    year: i64,
    month: i64,
    day: i64,
}

impl Date {
    fn of(ticks: i64) -> Self {
        // Days to civil date, in eras of 400 years that begin on 1 March.
        let days = ticks.div_euclid(DAY) + 719_468;
        let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted + 2) / 5 + 1;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        Self { year: year_of_era + era * 400 + i64::from(month <= 2), month, day }
    }

    fn ticks(&self) -> Option<i64> {
        if !(1..=9999).contains(&self.year) || !(1..=12).contains(&self.month) {
            return None;
        }
        if self.day < 1 || self.day > days_in(self.year, self.month) {
            return None;
        }
        let year = self.year - i64::from(self.month <= 2);
        let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let shifted = if self.month > 2 { self.month - 3 } else { self.month + 9 };
        let day_of_year = (153 * shifted + 2) / 5 + self.day - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        (era * 146_097 + day_of_era - 719_468).checked_mul(DAY)
    }
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn now(context: &Context) -> i64 {
    let since = context.now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos() / 100).unwrap_or(i64::MAX)
}

fn format(ticks: i64) -> Option<Value> {
    let date = Date::of(ticks);
    if !(1..=9999).contains(&date.year) {
        return None;
    }
    let time = ticks.rem_euclid(DAY);
    let (hour, minute, second) = (time / HOUR, time % HOUR / MINUTE, time % MINUTE / SECOND);
    let fraction = time % SECOND;
    let Date { year, month, day } = date;
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:07}Z").into())
}

/// A moment as a pattern says: runs of the letters `dfFhHmMsty` stand for its parts, a backslash for what follows it.
fn formatted(ticks: i64, pattern: &str) -> String {
    let Date { year, month, day } = Date::of(ticks);
    let time = ticks.rem_euclid(DAY);
    let (hour, minute, second) = (time / HOUR, time % HOUR / MINUTE, time % MINUTE / SECOND);
    let fraction = format!("{:07}", time % SECOND);
    let mut text = String::new();
    let mut letters = pattern.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == '\\' {
            text.extend(letters.next());
            continue;
        }
        let mut count = 1;
        while "dfFhHmMsty".contains(letter) && letters.next_if_eq(&letter).is_some() {
            count += 1;
        }
        let padded = |number: i64| format!("{number:0width$}", width = count.min(4));
        let digits = &fraction[..count.min(fraction.len())];
        match letter {
            'd' => text.push_str(&padded(day)),
            'M' => text.push_str(&padded(month)),
            'y' if count <= 2 => text.push_str(&padded(year % 100)),
            'y' => text.push_str(&padded(year)),
            'H' => text.push_str(&padded(hour)),
            'h' => text.push_str(&padded((hour + 11) % 12 + 1)),
            'm' => text.push_str(&padded(minute)),
            's' => text.push_str(&padded(second)),
            't' => text.push_str(&(if hour < 12 { "AM" } else { "PM" })[..count.min(2)]),
            'f' => text.push_str(digits),
            'F' => text.push_str(digits.trim_end_matches('0')),
            other => text.push(other),
        }
    }
    text
}

/// `YYYY-MM-DDThh:mm:ss.fffffffZ`; time and fraction may be missing.
fn parse(text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once('T').unwrap_or((text, ""));
    let mut fields = date.splitn(3, '-').map(|field| digits(field, if field.len() == 4 { 4 } else { 2 }));
    let date = Date { year: fields.next()??, month: fields.next()??, day: fields.next()?? };
    let midnight = date.ticks()?;
    if time.is_empty() {
        return Some(midnight);
    }
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut fields = clock.splitn(3, ':').map(|field| digits(field, 2));
    let (hour, minute) = (fields.next()??, fields.next()??);
    let second = fields.next().unwrap_or(Some(0))?;
    if hour > 23 || minute > 59 || second > 59 || fraction.is_empty() || fraction.len() > 7 {
        return None;
    }
    let scale = 10_i64.pow(u32::try_from(7 - fraction.len()).ok()?);
    let fraction = digits(fraction, fraction.len())? * scale;
    midnight.checked_add(hour * HOUR + minute * MINUTE + second * SECOND + fraction)
}

fn digits(text: &str, count: usize) -> Option<i64> {
    (text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

fn add(part: Part, count: i64, ticks: i64) -> Option<i64> {
    let months = match part {
        Part::Year => count.checked_mul(12)?,
        Part::Month => count,
        Part::Nanosecond => return ticks.checked_add(count / 100),
        Part::Fixed(unit, _) => return ticks.checked_add(count.checked_mul(unit)?),
    };
    let date = Date::of(ticks);
    let total = (date.year * 12 + date.month - 1).checked_add(months)?;
    let (year, month) = (total.div_euclid(12), total.rem_euclid(12) + 1);
    let day = date.day.min(days_in(year, month));
    Date { year, month, day }.ticks()?.checked_add(ticks.rem_euclid(DAY))
}

fn date_part(part: Part, ticks: i64) -> Option<Value> {
    let date = Date::of(ticks);
    Some(Value::from(match part {
        Part::Year => date.year,
        Part::Month => date.month,
        Part::Nanosecond => ticks.rem_euclid(SECOND) * 100,
        Part::Fixed(_, 0) => date.day,
        Part::Fixed(unit, count) => ticks.div_euclid(unit).rem_euclid(count),
    }))
}

/// Cuts a moment down to the start of its bin, counted from an origin.
fn bin(arguments: &Arguments<'_>) -> Option<Value> {
    let (ticks, part) = (parse(arguments.text(0)?)?, Part::by_name(arguments.text(1)?)?);
    let size = arguments.optional(2, 1, Arguments::integer)?;
    let origin = arguments.optional(3, 0, |a, at| parse(a.text(at)?))?;
    if size <= 0 {
        return None;
    }
    match part {
        Part::Year | Part::Month => {
            let start = part.ordinal(origin);
            let count = (part.ordinal(ticks) - start).div_euclid(size).checked_mul(size)?;
            format(add(part, count, origin)?)
        }
        Part::Nanosecond => bin_ticks(ticks, origin, (size / 100).max(1)),
        Part::Fixed(unit, _) => bin_ticks(ticks, origin, unit.checked_mul(size)?),
    }
}

fn bin_ticks(ticks: i64, origin: i64, width: i64) -> Option<Value> {
    let count = ticks.checked_sub(origin)?.div_euclid(width);
    format(origin.checked_add(count.checked_mul(width)?)?)
}

fn from_parts(arguments: &Arguments<'_>) -> Option<Value> {
    let date = Date { year: arguments.integer(0)?, month: arguments.integer(1)?, day: arguments.integer(2)? };
    let mut ticks = date.ticks()?;
    for (at, unit, count) in [(3, HOUR, 24), (4, MINUTE, 60), (5, SECOND, 60), (6, 1, SECOND)] {
        let field = arguments.optional(at, 0, Arguments::integer)?;
        if !(0..count).contains(&field) {
            return None;
        }
        ticks += field * unit;
    }
    format(ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_ticks_turn_into_each_other() {
        for (text, ticks) in [
            ("1970-01-01T00:00:00.0000000Z", 0),
            ("2020-07-09T23:20:13.4575530Z", 15_943_368_134_575_530),
            ("1969-12-31T23:59:59.9999999Z", -1),
            ("2000-02-29T12:00:00.0000000Z", 9_518_256_000_000_000),
        ] {
            assert_eq!(parse(text), Some(ticks));
            assert_eq!(format(ticks), Some(text.into()));
        }
        assert_eq!(parse("2021-02-29"), None);
        assert_eq!(parse("x"), None);
        assert_eq!(parse("2020-01-02T03:04:05Z"), Some(15_779_342_450_000_000));
    }

    #[test]
    fn months_end_where_they_end() {
        let january = parse("2021-01-31T00:00:00Z").unwrap();
        assert_eq!(
            format(add(Part::Month, 1, january).unwrap()),
            Some("2021-02-28T00:00:00.0000000Z".into())
        );
        assert_eq!(add(Part::Year, 100_000, january), None);
    }
}
