//! RFC 3339 in UTC, both ways, without a calendar crate.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: i64 = 86_400;

/// `2024-02-29T12:00:00.123456789Z`, without trailing zeroes of the fraction.
pub(crate) fn format(seconds: i64, nanoseconds: u32) -> String {
    let (year, month, day) = date(seconds.div_euclid(DAY));
    let second = seconds.rem_euclid(DAY);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let mut text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    if nanoseconds > 0 {
        let fraction = format!("{nanoseconds:09}");
        text.push('.');
        text.push_str(fraction.trim_end_matches('0'));
    }
    text.push('Z');
    text
}

/// Nanoseconds since 1970; `None` when it is not RFC 3339.
pub(crate) fn parse(text: &str) -> Option<i128> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 {
        return None;
    }
    let rest = text.get(19..)?;
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?),
        None => ("", rest),
    };
    let nanoseconds = format!("{fraction:0<9}").get(..9)?.parse::<i128>().ok()?;
    let seconds = days(year, month, day) * DAY + hour * 3600 + minute * 60 + second - offset(zone)?;
    Some(i128::from(seconds) * 1_000_000_000 + nanoseconds)
}

/// Seconds since 1970, now.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

fn offset(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = match zone.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let hours: i64 = zone.get(1..3)?.parse().ok()?;
    let minutes: i64 = zone.get(4..6)?.parse().ok()?;
    Some(sign * (hours * 3600 + minutes * 60))
}

/// Days since 1970 of a date (Howard Hinnant's `days_from_civil`).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The inverse (`civil_from_days`).
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(seconds: i64, nanoseconds: u32, text: &str) {
        assert_eq!(format(seconds, nanoseconds), text);
        let expected = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
        assert_eq!(parse(text), Some(expected));
    }

    #[test]
    fn times_are_written_and_read() {
        check(0, 0, "1970-01-01T00:00:00Z");
        check(1_709_208_000, 120_000_000, "2024-02-29T12:00:00.12Z");
        check(4_102_444_799, 1, "2099-12-31T23:59:59.000000001Z");
        check(-1, 0, "1969-12-31T23:59:59Z");
    }

    #[test]
    fn zones_are_understood_and_nonsense_is_not() {
        assert_eq!(parse("1970-01-01T02:00:00+02:00"), Some(0));
        assert_eq!(parse("1970-01-01T00:00:00"), None);
        assert_eq!(parse("yesterday"), None);
        assert_eq!(parse(""), None);
    }
}
