//! Words for people: names that cannot play with the terminal, shapes, numbers.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::Value;
use tensorfs_formats::Tensor;

/// A name without control characters, which a file could have put there.
pub fn plain(name: &str) -> String {
    name.chars().flat_map(|char| if char.is_control() { char.escape_default().collect() } else { vec![char] }).collect()
}

/// A path as a name that others do not have: what is no text of it is told by its bytes, as `\xff`.
pub fn named(path: &Path) -> String {
    let mut name = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        name.push_str(chunk.valid());
        name.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    name
}

/// The bytes of a path that is no text.
pub fn no_text(path: &Path) -> Option<Vec<u8>> {
    path.to_str().is_none().then(|| path.as_os_str().as_bytes().to_vec())
}

/// A line of JSON with a path in it: as text, and if it is none, its bytes, too.
pub fn with_path(mut line: Value, path: &Path) -> Value {
    if let Some(fields) = line.as_object_mut() {
        fields.insert("path".to_owned(), path.to_string_lossy().into());
        if let Some(bytes) = no_text(path) {
            fields.insert("path_bytes".to_owned(), bytes.into());
        }
    }
    line
}

/// A path that is told as text, and if it is none by its bytes, too: nothing if these are not of that text.
pub fn told_path<'a>(text: Option<&'a str>, bytes: Option<&'a [u8]>) -> Option<&'a Path> {
    match (text, bytes) {
        (text, None) => text.map(Path::new),
        (Some(text), Some(bytes)) if std::str::from_utf8(bytes).is_err() && String::from_utf8_lossy(bytes) == text => {
            Some(Path::new(OsStr::from_bytes(bytes)))
        }
        _ => None,
    }
}

/// `3x4`, or `()` for a single number.
pub fn shape(tensor: &Tensor) -> String {
    dimensions(&tensor.shape)
}

/// `3x4`, or `()` where there are none.
pub fn dimensions(sizes: &[u64]) -> String {
    match sizes {
        [] => "()".to_owned(),
        sizes => sizes.iter().map(u64::to_string).collect::<Vec<_>>().join("x"),
    }
}

/// A number in at most 12 characters.
pub fn number(x: f64) -> String {
    let plain = format!("{x}");
    match plain.len() {
        ..=10 => plain,
        _ if (1e-3..1e6).contains(&x.abs()) => format!("{x:.5}"),
        _ => format!("{x:.4e}"),
    }
}

/// A time, such as `7us`, `1.2ms`, `3.45s`.
pub fn duration(seconds: f64) -> String {
    match seconds {
        _ if seconds < 0.000_999_5 => format!("{:.0}us", seconds * 1e6),
        _ if seconds < 0.999_5 => format!("{:.1}ms", seconds * 1e3),
        _ => format!("{seconds:.2}s"),
    }
}

/// `1 file`, `2 files`: a number of things, in the form of the word that goes with it.
pub fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn disarms_names() {
        assert_eq!(plain("a\x1b[2Jb\nc ä"), "a\\u{1b}[2Jb\\nc ä");
    }

    #[test]
    fn bytes_of_a_path_are_of_its_text() {
        let path = |text: Option<&'static str>, bytes: Option<&'static [u8]>| told_path(text, bytes);
        assert_eq!(path(Some("/a"), None), Some(Path::new("/a")));
        assert_eq!(path(Some("/\u{fffd}"), Some(b"/\xff")).unwrap().as_os_str().as_bytes(), b"/\xff");
        for (text, bytes) in
            [(Some("/mine"), &b"/victim"[..]), (Some("/a"), b"/a"), (Some("/x"), b"/\xff"), (None, b"/\xff")]
        {
            assert_eq!(path(text, Some(bytes)), None);
        }
    }

    #[test]
    fn tells_the_bytes_of_names_that_are_no_text() {
        let path = |bytes| Path::new(std::ffi::OsStr::from_bytes(bytes));
        assert_eq!(with_path(json!({"a": 1}), path(b"/x")), json!({"a": 1, "path": "/x"}));
        let told = json!({"path": "/x\u{fffd}", "path_bytes": [47, 120, 255]});
        assert_eq!(with_path(json!({}), path(b"/x\xff")), told);
    }

    #[test]
    fn writes_times() {
        let said: Vec<_> = [0.0, 7.2e-6, 0.001_23, 0.25, 3.456].into_iter().map(duration).collect();
        assert_eq!(said, ["0us", "7us", "1.2ms", "250.0ms", "3.46s"]);
    }

    #[test]
    fn writes_numbers() {
        for (x, text) in [
            (0.0, "0"),
            (1.5, "1.5"),
            (-0.1, "-0.1"),
            (1.0 / 3.0, "0.33333"),
            (1e300, "1.0000e300"),
            (-1.23456789e-9, "-1.2346e-9"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(number(x), text);
        }
    }
}
