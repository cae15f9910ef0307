//! Times as people read them.

/// Seconds since 1970 as `2025-11-20 06:15:00 UTC`.
pub fn utc(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Seconds since 1970 as the time of that day, `06:15:00.123456`, in UTC.
pub fn time_of_day(seconds: f64) -> String {
    let (whole, micros) = (seconds.floor() as i64, (seconds.fract() * 1e6) as u32);
    let rest = whole.rem_euclid(86_400);
    format!("{:02}:{:02}:{:02}.{micros:06}", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Counts in eras of 400 years from the first of March, so that leap days come last.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (-1, "1969-12-31 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_763_619_300, "2025-11-20 06:15:00 UTC"),
            (4_102_444_799, "2099-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(utc(seconds), text);
        }
        assert_eq!(time_of_day(1_763_619_300.25), "06:15:00.250000");
    }
}
