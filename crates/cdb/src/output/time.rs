//! Moments and spans as people write them.

use std::time::Duration;

/// A span in the two units that matter.
pub(crate) fn span(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{}.{} s", seconds, ms % 1000 / 100),
        60..3600 => format!("{} m {:02} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {:02} m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {:02} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// How long ago something was.
pub(crate) fn ago(then_ms: u64, now_ms: u64) -> String {
    match now_ms.checked_sub(then_ms) {
        None => format!("in {}", span(then_ms - now_ms)),
        Some(0..1000) => "now".to_owned(),
        Some(past) => format!("{} ago", span(past)),
    }
}

/// A moment in UTC: `2026-11-15 04:39:31`. Zero, which means "never written", is a dash.
pub(crate) fn utc(ms: u64) -> String {
    if ms == 0 {
        return "-".to_owned();
    }
    let seconds = ms / 1000;
    let (year, month, day) = civil(seconds / 86_400);
    let time = seconds % 86_400;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", time / 3600, time / 60 % 60, time % 60)
}

/// A moment as programs read it: `2026-11-15T04:39:31.042Z`.
pub(crate) fn rfc_3339(ms: u64) -> String {
    let seconds = ms / 1000;
    let (year, month, day) = civil(seconds / 86_400);
    let time = seconds % 86_400;
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

/// A span as it is typed: `90s`, `15m`, `2h`, `7d`, `500ms`.
pub(crate) fn parse_span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a span of time: write for example 500ms, 90s, 15m, 2h or 7d");
    let digits = text.find(|character: char| !character.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit_ms: u64 = match &text[digits..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(unit_ms).map(Duration::from_millis).ok_or_else(wrong)
}

/// A moment as it is typed: a span before now, a day, or `2026-11-15` or `2026-11-15T04:39:31Z`, or the same with an offset
/// from UTC. Milliseconds since 1970.
pub(crate) fn parse_moment(text: &str, now_ms: u64) -> Result<u64, String> {
    if let Ok(span) = parse_span(text) {
        return Ok(now_ms.saturating_sub(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)));
    }
    let day = |days_back: u64| (now_ms / DAY_MS).saturating_sub(days_back) * DAY_MS;
    match text {
        "now" => return Ok(now_ms),
        "today" => return Ok(day(0)),
        "yesterday" => return Ok(day(1)),
        _ => {}
    }
    parse_date(text).ok_or_else(|| {
        format!(
            "{text:?} is not a moment: write a span before now (2h, 7d), yesterday, or a date, in UTC \
             (2026-11-15T04:39:31Z) or with an offset (2026-11-15T04:39:31+02:00)"
        )
    })
}

/// The time and the offset from UTC in minutes, of a text that ends with one.
fn split_offset(text: &str) -> Option<(&str, i64)> {
    if let Some(text) = text.strip_suffix('Z') {
        return Some((text, 0));
    }
    // A date has dashes as well; an offset comes after the time.
    let time_at = text.find(['T', ' '])?;
    let Some(at) = text[time_at..].find(['+', '-']).map(|at| time_at + at) else { return Some((text, 0)) };
    let sign = if text[at..].starts_with('-') { -1 } else { 1 };
    let digits = text[at + 1..].replace(':', "");
    let (hours, minutes) = match digits.len() {
        2 => (digits.parse::<i64>().ok()?, 0),
        4 => (digits[..2].parse().ok()?, digits[2..].parse().ok()?),
        _ => return None,
    };
    (hours <= 14 && minutes < 60).then_some((&text[..at], sign * (hours * 60 + minutes)))
}

fn parse_date(text: &str) -> Option<u64> {
    let (text, offset_minutes) = if text.contains(['T', ' ']) { split_offset(text)? } else { (text, 0) };
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00:00"));
    let numbers = |text: &str, separator: char| -> Option<Vec<u64>> {
        text.split(separator).map(|part| part.parse().ok()).collect()
    };
    let [year, month, day] = numbers(date, '-')?[..] else { return None };
    let (hour, minute, second) = match numbers(time, ':')?[..] {
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return None,
    };
    let is_sound = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    let date = is_sound.then(|| days(year, month, day))?;
    // The 31st of February counts as a day of March.
    let local_ms = (civil(date) == (year, month, day))
        .then_some((date * 86_400 + hour * 3600 + minute * 60 + second) * 1000)?;
    local_ms.checked_add_signed(-offset_minutes * 60_000)
}

const DAY_MS: u64 = 86_400_000;

/// Year, month and day of a number of days since 1970 (the calendar repeats every 146 097 days).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// The reverse of [`civil`].
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year / 400;
    let of_era = year % 400;
    let of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_and_read_back() {
        for (ms, text) in [
            (951_782_400_000, "2000-02-29 00:00:00"),
            (1_794_717_571_000, "2026-11-15 04:39:31"),
            (4_102_444_799_000, "2099-12-31 23:59:59"),
        ] {
            assert_eq!(utc(ms), text);
            assert_eq!(parse_moment(&text.replace(' ', "T"), 0), Ok(ms));
        }
        assert_eq!(utc(0), "-");
        let at = |text: &str| parse_moment(text, 2 * DAY_MS + 5);
        assert_eq!(at("2026-11-15T06:39:31+02:00"), Ok(1_794_717_571_000));
        assert_eq!(at("2026-11-15T01:09:31-0330"), Ok(1_794_717_571_000));
        assert_eq!(at("2026-11-15T05:39+01"), Ok(1_794_717_540_000));
        assert_eq!(
            (at("yesterday"), at("today"), at("now")),
            (Ok(DAY_MS), Ok(2 * DAY_MS), Ok(2 * DAY_MS + 5))
        );
    }

    #[test]
    fn spans_are_read_and_wrong_ones_refused() {
        assert_eq!(parse_span("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_span("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(parse_moment("2s", 5000), Ok(3000));
        for wrong in [
            "",
            "s",
            "5",
            "5 s",
            "5w",
            "-5s",
            "99999999999999999999d",
            "2026-13-01",
            "2026-02-31",
            "2026-02-29",
            "2026-11-15T25:00",
            "2026-11-15T05:00+99:00",
            "2026-11-15T05:00+1",
            "2026-11-15+02:00",
        ] {
            assert!(parse_moment(wrong, 0).is_err(), "{wrong}");
        }
    }

    #[test]
    fn spans_have_the_units_that_matter() {
        let cases = [
            (7, "7 ms"),
            (1900, "1.9 s"),
            (61_000, "1 m 01 s"),
            (7_260_000, "2 h 01 m"),
            (90_000_000, "1 d 01 h"),
        ];
        for (ms, text) in cases {
            assert_eq!(span(ms), text);
        }
        assert_eq!(ago(1000, 1500), "now");
        assert_eq!(ago(1000, 4000), "3.0 s ago");
        assert_eq!(ago(4000, 1000), "in 3.0 s");
    }
}
