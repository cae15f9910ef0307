//! Sizes as people write and read them.

use std::str::FromStr;

/// Parses `10G`, `512MiB`, `1.5T`, `4096`: one letter or `..iB` counts in 1024s, `KB`, `MB`, ... in 1000s.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor =
        factor(unit.trim_start()).ok_or_else(|| format!("unknown unit {:?} (try 512M, 10GiB, 1.5T)", unit.trim()))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return Err("not a size (try 512M, 10GiB, 1.5T)".to_owned());
    }
    bytes(whole, fraction, factor).ok_or_else(|| "larger than 2^64 bytes".to_owned())
}

fn factor(unit: &str) -> Option<u128> {
    let unit = unit.to_ascii_uppercase();
    if unit.is_empty() || unit == "B" {
        return Some(1);
    }
    let power = 1 + "KMGTPE".find(unit.chars().next()?)? as u32;
    match &unit[1..] {
        "" | "IB" => Some(1024u128.pow(power)),
        "B" => Some(1000u128.pow(power)),
        _ => None,
    }
}

/// Whole numbers all the way: a size is never off by a rounding of floats. Digits far behind the point are dropped.
fn bytes(whole: &str, fraction: &str, factor: u128) -> Option<u64> {
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction = &fraction[..fraction.len().min(12)];
    let scale = 10u128.pow(fraction.len() as u32);
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let bytes = whole.checked_mul(factor)?.checked_add(part * factor / scale)?;
    u64::try_from(bytes).ok()
}

/// A size limit in bytes, or none; written as a size or `none`.
#[derive(Clone, Copy, Debug)]
pub struct Limit(Option<u64>);

impl Limit {
    /// Bytes; `None` is no limit.
    pub fn bytes(self) -> Option<u64> {
        self.0
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" { Ok(Limit(None)) } else { parse(text).map(|bytes| Limit(Some(bytes))) }
    }
}

/// `0 B`, `17 B`, `1.5 KiB`, `12.0 GiB`.
pub fn humane(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would print as 1024.0
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("17B", 17),
            ("10G", 10 << 30),
            ("10g", 10 << 30),
            ("512MiB", 512 << 20),
            ("512 MiB", 512 << 20),
            ("1.5T", 3 << 39),
            (".5K", 512),
            ("1.K", 1024),
            ("1kB", 1000),
            ("2MB", 2_000_000),
            ("15E", 15 << 60),
            ("18446744073709551615", u64::MAX),
            ("0.1K", 102),
            ("1.00000000000000000000000000000000000000001K", 1024),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest() {
        for text in [
            "",
            " ",
            "G",
            ".",
            ".G",
            "1.2.3G",
            "-1",
            "10X",
            "10Gi",
            "10GG",
            "1e9",
            "16E",
            "∞",
            "1µ",
            "18446744073709551616",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn prints_what_people_read() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (10 << 30, "10.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(humane(bytes), text);
        }
    }
}
