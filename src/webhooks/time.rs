//! Moments as other people write them.
use crate::limits::{DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// Days in the 400 years after which the calendar repeats.
const ERA_DAYS: i64 = 146_097;
/// From 1 March of the year 0 to 1 January 1970.
const EPOCH_DAYS: i64 = 719_468;

/// ISO 8601 in UTC, with milliseconds: `2026-01-31T23:59:59.000Z`.
pub fn iso_8601(ms: i64) -> String {
    let (days, in_day) = (ms.div_euclid(DAY_MS), ms.rem_euclid(DAY_MS));
    let (year, month, day) = date(days);
    let (hour, minute) = (in_day / HOUR_MS, in_day % HOUR_MS / MINUTE_MS);
    let (second, millis) = (in_day % MINUTE_MS / SECOND_MS, in_day % SECOND_MS);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// HTTP's date: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub fn http_date_ms(text: &str) -> Option<i64> {
    let (_, rest) = text.split_once(", ")?;
    let mut parts = rest.split(' ');
    let day: i64 = number(parts.next()?, 2)?;
    let month = parts.next()?;
    let month = MONTHS.iter().position(|name| *name == month)?;
    let year = number(parts.next()?, 4)?;
    let mut clock = parts.next()?.split(':');
    let (hour, minute, second) =
        (number(clock.next()?, 2)?, number(clock.next()?, 2)?, number(clock.next()?, 2)?);
    let whole = parts.next() == Some("GMT") && parts.next().is_none() && clock.next().is_none();
    let fits = (1..=31).contains(&day) && hour < 24 && minute < 60 && second <= 60;
    let month = i64::try_from(month).ok()? + 1;
    (whole && fits).then(|| {
        days(year, month, day) * DAY_MS + hour * HOUR_MS + minute * MINUTE_MS + second * SECOND_MS
    })
}

fn number(text: &str, digits: usize) -> Option<i64> {
    let plain = text.len() == digits && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

/// Year, month and day. Years are counted from March, so that a leap day ends one.
fn date(days_since_1970: i64) -> (i64, i64, i64) {
    let days = days_since_1970 + EPOCH_DAYS;
    let (era, day) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// Days since 1970: the inverse of `date`.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    let month = if month > 2 { month - 3 } else { month + 9 };
    let day = (153 * month + 2) / 5 + day - 1;
    era * ERA_DAYS + year * 365 + year / 4 - year / 100 + day - EPOCH_DAYS
}
