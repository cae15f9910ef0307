//! How arrays of hierarchies are printed: zarr 2 and 3, n5.

use std::io::{self, Write};
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::show::colours::Colours;
use crate::show::table::Held;
use crate::show::{size, text};
use crate::tensors::chunks::{Chunks, text_of};
use crate::tensors::hierarchy::{Stored, Sum};

const TITLES: [&str; 6] = ["DTYPE", "SHAPE", "CHUNK", "THERE", "SIZE", "CODECS"];
/// Wider than this, columns are cut. All fit in a line.
const WIDEST: [usize; 6] = [10, 14, 12, 11, 9, 12];

/// Rows of hierarchies, each of which has a table of its own.
pub struct Arrays {
    json: bool,
    colours: Colours,
    /// By their roots: those that are not at their end, each in the one before.
    tables: Vec<(PathBuf, Held<6>)>,
}

impl Arrays {
    /// No rows yet.
    pub fn new(json: bool) -> Self {
        Arrays { json, colours: Colours::of_stdout(), tables: Vec::new() }
    }

    /// Prints a row, or holds it back.
    pub fn add(&mut self, stored: &Stored, out: &mut dyn Write) -> io::Result<()> {
        if self.json {
            return writeln!(out, "{}", describe(stored));
        }
        let array = stored.array();
        let tensor = array.tensor(stored.name().into());
        let columns = [
            text::plain(&tensor.dtype_text()),
            text::dimensions(&array.shape),
            array.chunk.as_ref().map_or_else(|| "?".to_owned(), |chunk| text::dimensions(chunk)),
            text_of(stored.chunks()),
            array.bytes().map_or_else(|| "?".to_owned(), size::humane),
            text::plain(&array.codecs.join("+")),
        ];
        let at = match self.tables.iter().rposition(|(root, _)| root == stored.root()) {
            Some(at) => at,
            None => {
                self.tables.push((stored.root().to_owned(), Held::new(TITLES, WIDEST, self.colours)));
                self.tables.len() - 1
            }
        };
        self.tables[at].1.add(columns, text::plain(stored.name()), out)
    }

    /// Prints what is held back of a hierarchy, and what it has in all.
    pub fn end(&mut self, sum: &Sum, out: &mut dyn Write) -> io::Result<()> {
        if let Some((_, mut table)) = self.tables.pop_if(|(root, _)| root == sum.path()) {
            table.print(out)?;
        }
        if self.json { Ok(()) } else { writeln!(out, "{}\n", summary(sum, true)) }
    }
}

/// What a hierarchy has in all, in print; or part of it.
pub fn summary(sum: &Sum, is_all: bool) -> String {
    let path = text::plain(&sum.path().to_string_lossy());
    let Some(arrays) = sum.arrays() else {
        let why = text::plain(sum.unknown().unwrap_or_default());
        return format!("{path}: {}, a database of TensorStore's that is not looked into: {why}", sum.format());
    };
    let (there, of) = sum.chunks();
    let missing = match of.saturating_sub(there) {
        0 => "",
        _ if !is_all => "",
        _ if sum.strange() > 0 => " (not all others are the fill value)",
        1 => " (the other one is the fill value)",
        _ => " (the others are the fill value)",
    };
    let (arrays, of) = (text::count(arrays, "array", "arrays"), text::count(of, "chunk", "chunks"));
    let others = match sum.others() {
        0 => String::new(),
        count => format!(", and {} of no array", text::count(count, "key", "keys")),
    };
    let more = if is_all { "" } else { ", and more that is not looked at here" };
    let bytes = size::humane(sum.bytes());
    format!("{path}: {}, {arrays}, {there} of {of}{missing}, {bytes}{others}{more}", sum.format())
}

/// A line of JSON of what a hierarchy has in all, or part of it.
pub fn describe_sum(sum: &Sum, is_all: bool) -> Value {
    let arrays = sum.arrays();
    let (there, of) = sum.chunks();
    let line = json!({
        "kind": if arrays.is_some() { "arrays" } else { "database" },
        "format": sum.format(),
        "arrays": arrays,
        "chunks": arrays.map(|_| of),
        "chunks_there": arrays.map(|_| there),
        "stored": arrays.map(|_| sum.bytes()),
        "all": is_all,
    });
    text::with_path(line, sum.path())
}

/// A line of JSON, with the fields that other tensors have.
fn describe(stored: &Stored) -> Value {
    let array = stored.array();
    let tensor = array.tensor(stored.name().into());
    let of = |get: fn(&Chunks) -> u64| stored.chunks().map(get);
    let line = json!({
        "name": stored.name(),
        "dtype": tensor.dtype.name(),
        "descr": tensor.descr,
        "big_endian": array.big_endian,
        "shape": array.shape,
        "order": if array.column_major { "column-major" } else { "row-major" },
        "kind": tensor.kind.name(),
        "step": null,
        "mode": null,
        "bytes": array.bytes(),
        "crc32c": null,
        "place": "chunks",
        "offset": null,
        "len": null,
        "format": stored.format(),
        "chunk": array.chunk,
        "codecs": array.codecs,
        "chunks": of(Chunks::most),
        "chunks_there": of(Chunks::there),
        "stored": of(Chunks::bytes),
    });
    text::with_path(line, stored.root())
}
