//! Names of tensors as paths of the control tree, and back.
//!
//! A tensor's name may be any bytes; a file's name may not. The rule, which docs/TENSORS.md and the tree's own README
//! explain to users:
//!
//! * `/` separates parts; all but the last are directories. From the 32nd on it is written `%2F`.
//! * `%`, `@`, bytes below 0x20, 0x7F and bytes that are no UTF-8 are written `%` and two hexadecimal digits.
//! * An empty part is `%`. The parts `.` and `..` are `%2E` and `%2E%2E`. The end `.npy` of a directory is `%2Enpy`.
//! * A part longer than 200 bytes is cut into pieces; all but the last end in `%` and are directories.
//! * The last part is followed by `@` and the step if the tensor has one, and by `.npy`. Where that does not tell a
//!   tensor from an earlier one of the file, `@` and its mode stand in front of `.npy`, or if that does not either,
//!   `@#` and how many there were.
//!
//! So no two tensors of a file share a path, no file has the name of a directory, a tensor's path does not change when
//! the file grows, and the name can be read back from it.

use std::fmt::Write;

use tensorfs_formats::Mode;

/// Longer parts are cut.
const PIECE: usize = 200;
/// So many parts become directories and a file; what is behind stays in one part.
const PARTS: usize = 32;
/// What every tensor's file name ends in.
const END: &[u8] = b".npy";

/// A tensor's place in its file's directory: the directories, and the name in the last of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub directories: Vec<Vec<u8>>,
    /// Without what [`Leaf`] adds.
    pub base: Vec<u8>,
}

/// Where the tensor of that name is.
pub(super) fn place(name: &[u8]) -> Place {
    let mut directories = Vec::new();
    let mut parts = name.splitn(PARTS, |&byte| byte == b'/').peekable();
    while let Some(part) = parts.next() {
        let last = parts.peek().is_none();
        let mut pieces = escape(part, last);
        let base = pieces.pop().unwrap_or_default();
        for mut piece in pieces {
            piece.push(b'%');
            directories.push(piece);
        }
        if last {
            return Place { directories, base };
        }
        directories.push(base);
    }
    // Splitting gives one part at least.
    Place { directories, base: Vec::new() }
}

/// A part in pieces that are names of files. The file itself, `last`, gets an end of its own.
fn escape(part: &[u8], last: bool) -> Vec<Vec<u8>> {
    match part {
        b"" => return vec![b"%".to_vec()],
        b"." => return vec![b"%2E".to_vec()],
        b".." => return vec![b"%2E%2E".to_vec()],
        _ => {}
    }
    let end = part.len() - if !last && part.ends_with(END) { END.len() } else { 0 };
    let mut pieces = vec![Vec::new()];
    let mut put = |unit: &[u8]| {
        if pieces.last().is_none_or(|piece| piece.len() + unit.len() > PIECE) {
            pieces.push(Vec::new());
        }
        if let Some(piece) = pieces.last_mut() {
            piece.extend_from_slice(unit);
        }
    };
    for chunk in part[..end].utf8_chunks() {
        let mut buffer = [0; 4];
        for character in chunk.valid().chars() {
            match character {
                '\0'..='\x1f' | '\x7f' | '%' | '@' | '/' => put(&hex(character as u8)),
                _ => put(character.encode_utf8(&mut buffer).as_bytes()),
            }
        }
        chunk.invalid().iter().for_each(|&byte| put(&hex(byte)));
    }
    if end < part.len() {
        put(&[&hex(b'.')[..], &END[1..]].concat());
    }
    pieces
}

fn hex(byte: u8) -> [u8; 3] {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    [b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]
}

/// The name of a tensor's file: its base, and what tells it from others of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaf<'a> {
    pub base: &'a [u8],
    pub step: Option<i64>,
    /// The mode, where an earlier tensor has the name and the step, but another mode.
    pub mode: Option<Option<Mode>>,
    /// Its number among those that are alike, from 1.
    pub nth: u32,
}

/// The mode of a tensor that has none, among those that have.
const NO_MODE: &str = "NONE";

impl<'a> Leaf<'a> {
    pub fn name(&self) -> Vec<u8> {
        let mut rest = String::new();
        // Writing to a string does not fail.
        if let Some(step) = self.step {
            let _ = write!(rest, "@{step}");
        }
        if let Some(mode) = self.mode {
            let _ = write!(rest, "@{}", mode.map_or(NO_MODE, Mode::name));
        }
        if self.nth > 1 {
            let _ = write!(rest, "@#{}", self.nth);
        }
        [self.base, rest.as_bytes(), END].concat()
    }

    /// Reads a file name. None if no tensor can have it.
    pub fn parse(name: &'a [u8]) -> Option<Self> {
        let mut fields = name.strip_suffix(END)?.split(|&byte| byte == b'@');
        let mut leaf = Leaf { base: fields.next()?, step: None, mode: None, nth: 1 };
        for field in fields {
            let text = std::str::from_utf8(field).ok()?;
            if let Some(number) = text.strip_prefix('#') {
                leaf.nth = number.parse().ok().filter(|&nth| nth > 1)?;
            } else if text.bytes().all(|byte| byte.is_ascii_uppercase()) {
                leaf.mode = Some(mode(text)?);
            } else {
                leaf.step = Some(text.parse().ok()?);
            }
        }
        // One tensor has one name: no other order, and no other way of writing a number.
        (leaf.name() == name).then_some(leaf)
    }
}

/// The mode of that name, which may be none.
fn mode(text: &str) -> Option<Option<Mode>> {
    let known = Mode::ALL.into_iter().find(|mode| mode.name() == text);
    (known.is_some() || text == NO_MODE).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule backwards, as a user would write it.
    fn unescape(place: &Place) -> Vec<u8> {
        let mut name = Vec::new();
        let parts = place.directories.iter().chain([&place.base]);
        let mut joined = true;
        for part in parts {
            if !joined {
                name.push(b'/');
            }
            joined = false;
            let mut rest = &part[..];
            while let Some((&byte, behind)) = rest.split_first() {
                match (byte, behind) {
                    (b'%', [a, b, ..]) => {
                        let digits = [*a, *b];
                        name.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
                        rest = &behind[2..];
                    }
                    (b'%', _) => {
                        joined = part.len() > 1;
                        rest = behind;
                    }
                    _ => {
                        name.push(byte);
                        rest = behind;
                    }
                }
            }
        }
        name
    }

    fn path(name: &[u8]) -> String {
        let place = place(name);
        let parts: Vec<_> = place.directories.iter().chain([&place.base]).map(|p| String::from_utf8_lossy(p)).collect();
        parts.join("/")
    }

    #[test]
    fn plain_names_stay_and_nested_ones_become_directories() {
        for name in ["weight", "layer1/weight", "model.0.bias", "ä b/c+d", ".hidden", "a.npy", "...", "x:0"] {
            assert_eq!(path(name.as_bytes()), name);
        }
    }

    #[test]
    fn awkward_names_are_escaped() {
        for (name, want) in [
            (&b""[..], "%"),
            (b"/", "%/%"),
            (b"/a//b/", "%/a/%/b/%"),
            (b".", "%2E"),
            (b"../..", "%2E%2E/%2E%2E"),
            (b"a.npy/b", "a%2Enpy/b"),
            (b".npy/b", "%2Enpy/b"),
            (b"100%@3", "100%25%403"),
            (b"a\0b\n\x7f", "a%00b%0A%7F"),
            (b"\xff\xc3\xa4\xc3", "%FFä%C3"),
        ] {
            assert_eq!(path(name), want);
            assert_eq!(unescape(&place(name)), name);
        }
    }

    #[test]
    fn every_part_is_a_file_name_and_leads_back() {
        let long: Vec<u8> = (0..3000_u32).flat_map(|n| [b'a' + (n % 26) as u8, b'%', 0xc3, 0xa4]).collect();
        let mut names = vec![b"/".repeat(100), b"a/".repeat(65_535 / 2), vec![0xff; 65_535], long, vec![b'x'; 200]];
        names.push([&[b'x'; 199][..], "ä/".as_bytes(), &[b'y'; 198][..], b".npy/z"].concat());
        // Any bytes at all.
        let mut state = 1_u32;
        for len in 0..400 {
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                b"/.%@#n\x00\xc3\xa4\xe2\x82py"[(state >> 16) as usize % 13]
            };
            names.push((0..len).map(|_| next()).collect());
        }
        for name in names {
            let place = place(&name);
            for directory in &place.directories {
                assert!(!directory.is_empty() && directory.len() <= 255 && !directory.ends_with(END), "{directory:?}");
                assert!(!directory.contains(&b'/') && ![&b"."[..], b".."].contains(&&directory[..]));
                assert!(std::str::from_utf8(directory).is_ok());
            }
            let longest =
                Leaf { base: &place.base, step: Some(i64::MIN), mode: Some(Some(Mode::Predict)), nth: u32::MAX };
            assert!(longest.name().len() <= 255 && !place.base.contains(&b'/'));
            assert_eq!(unescape(&place), name);
        }
    }

    #[test]
    fn a_leaf_has_one_name() {
        for (name, step, mode, nth) in [
            ("w.npy", None, None, 1),
            ("w@0.npy", Some(0), None, 1),
            ("w@-5.npy", Some(-5), None, 1),
            ("w@7@EVAL.npy", Some(7), Some(Some(Mode::Eval)), 1),
            ("w@7@NONE@#3.npy", Some(7), Some(None), 3),
            ("w@#2.npy", None, None, 2),
            (".npy", None, None, 1),
        ] {
            let leaf = Leaf::parse(name.as_bytes()).unwrap();
            assert_eq!((leaf.step, leaf.mode, leaf.nth), (step, mode, nth), "{name}");
            assert_eq!(leaf.name(), name.as_bytes());
        }
        for name in [
            "w",
            "w.npyx",
            "w@.npy",
            "w@05.npy",
            "w@+5.npy",
            "w@x.npy",
            "w@#1.npy",
            "w@#02.npy",
            "w@TRAINS.npy",
            "w@EVAL@7.npy",
            "w@7@7.npy",
            "w@99999999999999999999.npy",
            "w@7@#2@EVAL.npy",
            "w@-0.npy",
        ] {
            assert_eq!(Leaf::parse(name.as_bytes()), None, "{name}");
        }
    }
}
