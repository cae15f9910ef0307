//! Tables of 80 columns, whose last column is a name of any length.

use std::fmt::Write as _;
use std::io::{self, Write};

use crate::show::colours::Colours;

/// What a line fits in.
pub const WIDTH: usize = 80;

/// So many rows decide how wide columns are that are fitted to them.
const ROWS_MEASURED: usize = 1000;

/// Rows, of which the first are held back until it is known how wide columns must be.
pub struct Held<const N: usize> {
    titles: [&'static str; N],
    /// Wider than this, columns are cut.
    widest: [usize; N],
    colours: Colours,
    rows: Vec<([String; N], String)>,
    widths: Option<[usize; N]>,
}

impl<const N: usize> Held<N> {
    /// No rows yet, under these titles. A column in which no row has anything is left out.
    pub fn new(titles: [&'static str; N], widest: [usize; N], colours: Colours) -> Self {
        Held { titles, widest, colours, rows: Vec::new(), widths: None }
    }

    /// Prints a row and its name, or holds it back.
    pub fn add(&mut self, columns: [String; N], name: String, out: &mut dyn Write) -> io::Result<()> {
        self.rows.push((columns, name));
        if self.widths.is_some() || self.rows.len() >= ROWS_MEASURED { self.print(out) } else { Ok(()) }
    }

    /// Prints what is held back.
    pub fn print(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let widths = match self.widths {
            Some(widths) => widths,
            None => {
                let longest = widths(self.rows.iter().map(|(columns, _)| &columns[..]), N);
                let widths = std::array::from_fn(|column| match longest[column] {
                    0 => 0,
                    longest => longest.max(self.titles[column].len()).min(self.widest[column]),
                });
                let titles = line(&self.titles.map(str::to_owned), &widths, "NAME");
                writeln!(out, "{}", self.colours.faint(titles.trim_end()))?;
                *self.widths.insert(widths)
            }
        };
        self.rows.drain(..).try_for_each(|(columns, name)| out.write_all(line(&columns, &widths, &name).as_bytes()))
    }
}

/// The widths of columns, in characters, that fit the longest cell of each.
pub fn widths<'a>(rows: impl Iterator<Item = &'a [String]> + Clone, columns: usize) -> Vec<usize> {
    let longest = |column: usize| rows.clone().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
    (0..columns).map(longest).collect()
}

/// A row of a table with columns of these widths; what has no width is left out.
pub fn line(cells: &[String], widths: &[usize], name: &str) -> String {
    let columns = cells.iter().cloned().zip(widths.iter().copied()).filter(|(_, width)| *width > 0);
    row(&columns.collect::<Vec<_>>(), name)
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

/// At most `width` characters, the last of them a mark if some are missing.
fn cut(text: &str, width: usize) -> String {
    match text.chars().count() {
        len if len <= width => text.to_owned(),
        _ => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
    }
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
    fn fits_columns_to_their_cells() {
        let rows = [vec!["a".to_owned(), String::new()], vec!["bcd".to_owned(), String::new()]];
        let widths = widths(rows.iter().map(Vec::as_slice), 2);
        assert_eq!(widths, [3, 0]);
        assert_eq!(line(&rows[0], &widths, "name"), "a    name\n");
    }
}
