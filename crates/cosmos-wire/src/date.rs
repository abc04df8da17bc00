//! RFC 1123 dates, as `x-ms-date`, `if-modified-since` and `date` carry them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `Thu, 27 Apr 2017 00:51:12 GMT`. Times before 1970 are written as its first second.
#[must_use]
pub fn format(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (days, of_day) = (seconds / SECONDS_PER_DAY, seconds % SECONDS_PER_DAY);
    let (year, month, day) = civil_from_days(days);
    format!(
        "{}, {day:02} {} {year:04} {:02}:{:02}:{:02} GMT",
        WEEKDAYS[(days % 7) as usize],
        MONTHS[month - 1],
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    )
}

/// Reads an RFC 1123 date in any letter case. `None` when it is not one or lies before 1970.
#[must_use]
pub fn parse(text: &str) -> Option<SystemTime> {
    let (_weekday, rest) = text.trim().split_once(',')?;
    let mut fields = rest.split_ascii_whitespace();
    let day: u64 = fields.next()?.parse().ok()?;
    let month_name = fields.next()?;
    let month = MONTHS.iter().position(|name| name.eq_ignore_ascii_case(month_name))? + 1;
    let year: u64 = fields.next()?.parse().ok()?;
    let mut clock = fields.next()?.splitn(3, ':').map(str::parse::<u64>);
    let (hour, minute, second) = (clock.next()?.ok()?, clock.next()?.ok()?, clock.next()?.ok()?);
    let zone = fields.next()?;
    let zone_is_utc = zone.eq_ignore_ascii_case("gmt") || zone.eq_ignore_ascii_case("utc");
    if !zone_is_utc || fields.next().is_some() || !(1970..=9999).contains(&year) {
        return None;
    }
    // A leap second reads as the second after.
    if !(1..=days_in_month(year, month)).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let days = days_from_civil(year, month, day);
    let seconds = days * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second;
    Some(UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Days since 1970-01-01 of a date in the proleptic Gregorian calendar.
fn days_from_civil(year: u64, month: usize, day: u64) -> u64 {
    let leap_days_before = |year: u64| year / 4 - year / 100 + year / 400;
    let years = (year - 1970) * 365 + leap_days_before(year - 1) - leap_days_before(1969);
    let months: u64 = (1..month).map(|month| days_in_month(year, month)).sum();
    years + months + day - 1
}

/// Year, month (1 to 12) and day of a day count since 1970-01-01.
fn civil_from_days(days: u64) -> (u64, usize, u64) {
    // 400 years are 146097 days: the estimate is at most one year off.
    let mut year = 1970 + days * 400 / 146_097;
    while days_from_civil(year + 1, 1, 1) <= days {
        year += 1;
    }
    while days_from_civil(year, 1, 1) > days {
        year -= 1;
    }
    let mut left = days - days_from_civil(year, 1, 1);
    let mut month = 1;
    while left >= days_in_month(year, month) {
        left -= days_in_month(year, month);
        month += 1;
    }
    (year, month, left + 1)
}

fn days_in_month(year: u64, month: usize) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

const SECONDS_PER_DAY: u64 = 86_400;

/// 1970-01-01 was a Thursday.
const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds and text from GNU `date -u -R -d @N`.
    const VECTORS: [(u64, &str); 8] = [
        (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
        (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
        (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
        (1_493_254_272, "Thu, 27 Apr 2017 00:51:12 GMT"),
        (1_704_067_199, "Sun, 31 Dec 2023 23:59:59 GMT"),
        (1_709_164_800, "Thu, 29 Feb 2024 00:00:00 GMT"),
        (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        (253_402_300_799, "Fri, 31 Dec 9999 23:59:59 GMT"),
    ];

    #[test]
    fn dates_are_written_and_read_as_gnu_date_does() {
        for (seconds, text) in VECTORS {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(format(time), text);
            assert_eq!(parse(text), Some(time), "{text}");
            assert_eq!(parse(&text.to_ascii_lowercase()), Some(time), "{text}");
        }
    }

    #[test]
    fn text_that_is_no_date_is_refused() {
        let cases = [
            "",
            "Thu",
            "Thu, 32 Apr 2017 00:51:12 GMT",
            "Thu, 30 Feb 2017 00:51:12 GMT",
            "Thu, 27 Foo 2017 00:51:12 GMT",
            "Thu, 27 Apr 2017 24:51:12 GMT",
            "Thu, 27 Apr 2017 00:51 GMT",
            "Thu, 27 Apr 2017 00:51:12 CET",
            "Thu, 27 Apr 1917 00:51:12 GMT",
            "2017-04-27T00:51:12Z",
            "Thu, 27 Apr 99999999999999999 00:51:12 GMT",
        ];
        for text in cases {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
