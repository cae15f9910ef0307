//! Which tree of a remote is meant: that after a batch, or the one that it had at a time.

use chrono::{DateTime, FixedOffset, Local, LocalResult, NaiveDate, NaiveDateTime, TimeZone};

use crate::commands::show;
use crate::error::{Error, Result};
use crate::repository::{Newest, Repository};

/// An older tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// After the batch of this number.
    Batch(u64),
    /// After the newest batch of this time or before it, in seconds since 1970.
    Time(i64),
}

/// Digits alone are a batch's number; else it is a time, of which a day is enough. Without an offset it is a local one.
pub fn parse(text: &str) -> std::result::Result<At, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map(At::Batch).map_err(|_| "there is no batch of such a number".to_owned());
    }
    time(text, &Local).map(At::Time)
}

/// A time in a zone, if it has no offset itself.
fn time<Z: TimeZone>(text: &str, zone: &Z) -> std::result::Result<i64, String> {
    let none = || "neither a batch's number nor a time such as 2026-11-27T10:00, with Z or +01:00 behind it".to_owned();
    let is_day = |day: &[u8]| {
        day.iter().enumerate().all(|(n, byte)| match n {
            4 | 7 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        })
    };
    let (day, rest) = text.split_at_checked(10).filter(|(day, _)| is_day(day.as_bytes())).ok_or_else(none)?;
    let day: NaiveDate = day.parse().map_err(|_| format!("there is no day {day}"))?;
    let (hour, offset) = split_offset(rest);
    let offset = offset.map(|offset| offset_of(offset).ok_or_else(none)).transpose()?;
    let local: NaiveDateTime = match hour.strip_prefix(['T', 't', ' ']) {
        None if hour.is_empty() => day.and_time(chrono::NaiveTime::MIN),
        None => return Err(none()),
        Some(hour) => ["%H:%M:%S%.f", "%H:%M"]
            .iter()
            .find_map(|how| chrono::NaiveTime::parse_from_str(hour, how).ok())
            .map(|hour| day.and_time(hour))
            .ok_or_else(none)?,
    };
    let found = match offset {
        Some(offset) => offset.from_local_datetime(&local).map(|time| time.timestamp()),
        None => zone.from_local_datetime(&local).map(|time| time.timestamp()),
    };
    match found {
        LocalResult::Single(time) => Ok(time),
        LocalResult::Ambiguous(..) => {
            Err("clocks were put back, so that it was twice; say which, such as with Z".into())
        }
        LocalResult::None => Err("clocks were put forward, so that it never was; say which, such as with Z".into()),
    }
}

/// What is behind the hour, if anything is.
fn split_offset(rest: &str) -> (&str, Option<&str>) {
    for utc in ["Z", "z", " UTC"] {
        if let Some(hour) = rest.strip_suffix(utc) {
            return (hour, Some("+00:00"));
        }
    }
    match rest.rfind(['+', '-']) {
        Some(at) => (rest[..at].trim_end_matches(' '), Some(&rest[at..])),
        None => (rest, None),
    }
}

/// `+01:00` or `+0100`.
fn offset_of(text: &str) -> Option<FixedOffset> {
    let time = DateTime::parse_from_str(&format!("2000-01-01 00:00 {text}"), "%Y-%m-%d %H:%M %z").ok()?;
    let is_plain = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b':');
    text.bytes().all(is_plain).then(|| *time.offset())
}

/// The newest tree, or an older one if one is meant.
pub fn tree(repository: &Repository, at: Option<At>) -> Result<Newest> {
    let time = match at {
        None => return repository.newest(),
        Some(At::Batch(number)) => return repository.tree_at(Some(number)),
        Some(At::Time(time)) => time,
    };
    let (mut found, mut oldest) = (None, None);
    repository.heads(|head| {
        oldest = Some((head.number, head.time));
        found = Some(head.number).filter(|_| head.time <= time);
        found.is_none()
    })?;
    match (found, oldest) {
        (None, None) => repository.newest(),
        (Some(number), _) => repository.tree_at(Some(number)),
        (None, Some((number, of))) => {
            let (shown, wanted, of) = (repository.place().shown(), show::time(time), show::time(of));
            let what =
                format!("nothing there is as old as {wanted}; the oldest tree is that after batch {number}, of {of}");
            Err(Error::Refused(format!("{shown}: {what}")))
        }
    }
}

/// A URL, and which tree is meant behind it: what follows the last `@` says so, if it can be read as that. `is_remote`
/// is asked whether there is a remote that has all of it as its name.
pub fn of_url(text: &str, is_remote: impl Fn(&str) -> Result<bool>) -> Result<(String, Option<At>)> {
    let split = text.rsplit_once('@').and_then(|(url, at)| Some((url, parse(at).ok()?)));
    let behind_host = |url: &str| url.split_once("://").is_some_and(|(_, rest)| !rest.is_empty());
    match split.filter(|(url, _)| behind_host(url) && !has_password(url)) {
        Some((url, at)) if !is_remote(text)? => Ok((url.to_owned(), Some(at))),
        _ => Ok((text.to_owned(), None)),
    }
}

/// True of what ends where a password does: that is no store, and is told to nobody.
fn has_password(url: &str) -> bool {
    url.split_once("://").is_some_and(|(_, rest)| !rest.contains('/') && rest.contains(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves E15.
    #[test]
    fn a_batch_is_a_number_and_a_time_has_dashes() {
        let zone = FixedOffset::east_opt(3600).unwrap();
        for (text, seconds) in [
            ("1970-01-01", -3600),
            ("1970-01-01T01:00", 0),
            ("1970-01-01 01:00", 0),
            ("1970-01-01 01:00:09.9", 9),
            ("1970-01-01T00:00Z", 0),
            ("1970-01-01t00:00:00z", 0),
            ("1970-01-01 00:00:00 UTC", 0),
            ("1970-01-01Z", 0),
            ("1970-01-01T00:00:00-00:30", 1800),
            ("1970-01-01T02:00:00+0200", 0),
            ("1970-01-01 02:00 +02:00", 0),
            ("2026-11-27T10:00:00.123456789+01:00", 1_795_770_000),
        ] {
            assert_eq!(time(text, &zone), Ok(seconds), "{text}");
        }
        for text in [
            "",
            "now",
            "-1",
            "+1",
            "1970-1-1",
            "1970-02-30",
            "1970-01-01T",
            "1970-01-01T24:00",
            "1970-01-01T1",
            "1970-01-01T00:00+",
            "1970-01-01T00:00+25:00",
            "1970-01-01T00:00 CET",
            "1970-01-01x",
            "1970-01-01T00:00ZZ",
            "\u{661}970-01-01",
            "197\u{20ac}-01-01",
            "+1970-01-01",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parse("42"), Ok(At::Batch(42)));
        assert_eq!(parse("000042"), Ok(At::Batch(42)));
        assert!(parse("99999999999999999999").is_err());
        assert_eq!(parse("1970-01-01T00:00Z"), Ok(At::Time(0)));
    }

    /// Proves E24.
    #[test]
    fn what_is_behind_an_at_sign_need_not_be_a_time() {
        for (text, url, at) in [
            ("s3://b/run", "s3://b/run", None),
            ("s3://b/run@7", "s3://b/run", Some(At::Batch(7))),
            ("s3://b/run@1970-01-01T00:00:00Z", "s3://b/run", Some(At::Time(0))),
            ("s3://bucket@7", "s3://bucket", Some(At::Batch(7))),
            ("file:///a@b", "file:///a@b", None),
            ("file:///a@b@7", "file:///a@b", Some(At::Batch(7))),
            ("file:///there@7", "file:///there@7", None),
            ("file:///there@7@8", "file:///there@7", Some(At::Batch(8))),
            ("az://user@host/x", "az://user@host/x", None),
            ("s3://key:secret@7", "s3://key:secret@7", None),
            ("s3://key:secret@7/x", "s3://key:secret@7/x", None),
            ("s3://@7", "s3://@7", None),
            ("/a/pool@7", "/a/pool@7", None),
        ] {
            let found = of_url(text, |url| Ok(url == "file:///there@7")).unwrap();
            assert_eq!(found, (url.to_owned(), at), "{text}");
        }
    }
}
