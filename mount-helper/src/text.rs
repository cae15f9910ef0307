//! Text for people: names that cannot play with the terminal, shapes, colours, tables of 80 columns.

use std::fmt::Write;
use std::io::{self, IsTerminal};

use tensorfs_formats::Tensor;

/// What a line fits in.
pub const WIDTH: usize = 80;

/// A name without control characters, which a file could have put there.
pub fn plain(name: &str) -> String {
    name.chars().flat_map(|char| if char.is_control() { char.escape_default().collect() } else { vec![char] }).collect()
}

/// `3x4`, or `()` for a single number.
pub fn shape(tensor: &Tensor) -> String {
    match tensor.shape.as_slice() {
        [] => "()".to_owned(),
        shape => shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x"),
    }
}

/// At most `width` characters, the last of them a mark if some are missing.
pub fn cut(text: &str, width: usize) -> String {
    match text.chars().count() {
        len if len <= width => text.to_owned(),
        _ => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
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

/// Colours, on a terminal only, and not with NO_COLOR.
#[derive(Clone, Copy)]
pub struct Colours(bool);

impl Colours {
    pub fn of_stdout() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Colours(io::stdout().is_terminal() && !unwanted)
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub fn faint(self, text: &str) -> String {
        self.paint("2", text)
    }

    pub fn red(self, text: &str) -> String {
        self.paint("31", text)
    }

    pub fn green(self, text: &str) -> String {
        self.paint("32", text)
    }

    pub fn yellow(self, text: &str) -> String {
        self.paint("33", text)
    }
}

/// A row: columns, then a name of any length. A name that does not fit goes to lines of its own.
pub fn row(columns: &[(String, usize)], name: &str) -> String {
    let mut line = String::new();
    for (text, width) in columns {
        let _ = write!(line, "{:<width$}  ", cut(text, *width));
    }
    if line.chars().count() + name.chars().count() <= WIDTH {
        return format!("{}\n", (line + name).trim_end());
    }
    line.truncate(line.trim_end().len());
    line.push('\n');
    let name: Vec<char> = name.chars().collect();
    for part in name.chunks(WIDTH - 4) {
        let _ = writeln!(line, "    {}", part.iter().collect::<String>());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_lines_short() {
        let columns = [("float32".to_owned(), 9), ("x".repeat(50), 20)];
        assert_eq!(row(&columns, "name"), format!("float32    {}…  name\n", "x".repeat(19)));
        let long = row(&columns, &"n".repeat(200));
        assert!(long.lines().all(|line| line.chars().count() <= WIDTH));
        assert_eq!(long.matches('n').count(), 200);
    }

    #[test]
    fn disarms_names() {
        assert_eq!(plain("a\x1b[2Jb\nc ä"), "a\\u{1b}[2Jb\\nc ä");
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
