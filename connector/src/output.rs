//! What commands print: for people, or with `--json` one JSON value a line.
use serde::Serialize;
use std::io::{IsTerminal, Write};

#[derive(Debug, Clone, Copy)]
pub struct Output {
    pub json: bool,
}

impl Output {
    #[allow(clippy::unused_self)] // It reads as the rest.
    /// A closed pipe ends the program quietly, as with every filter.
    pub fn line(self, text: &str) {
        if writeln!(std::io::stdout(), "{text}").is_err() {
            std::process::exit(0);
        }
    }

    pub fn value(self, value: &impl Serialize) {
        self.line(&serde_json::to_string(value).unwrap_or_default());
    }

    /// The one or the other.
    pub fn say(self, text: &str, value: &impl Serialize) {
        if self.json { self.value(value) } else { self.line(text) }
    }

    pub fn shows_progress(self) -> bool {
        !self.json && std::io::stderr().is_terminal()
    }
}

/// Text of others for a terminal: nothing in it may move the cursor or colour the screen.
pub fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c })
        .collect()
}

/// `2026-03-09 08:12`, in UTC.
pub fn time(at_ms: i64) -> String {
    let minutes = at_ms.div_euclid(60_000);
    let days = minutes.div_euclid(24 * 60);
    // Civil from days, by Howard Hinnant's algorithm.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let of_era = z.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (minutes.rem_euclid(24 * 60) / 60, minutes.rem_euclid(60));
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(time(0), "1970-01-01 00:00");
        assert_eq!(time(1_709_210_096_000), "2024-02-29 12:34");
        assert_eq!(time(1_772_323_199_999), "2026-02-28 23:59");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(plain("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\n");
    }
}
