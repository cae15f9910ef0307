//! `tensorfs diff`: which tensors differ between two files, and by how much.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tensorfs_formats::{Location, Mode, Order, Tensor, TensorReader};

use crate::cli::Diff;
use crate::failure::{At, Failure};
use crate::numbers::{Decoder, Number};
use crate::place::Place;
use crate::selection::Contents;
use crate::text::{self, Colours};
use crate::{output, selection};

/// As diff(1) has them.
const DIFFERENT: u8 = 1;
const TROUBLE: u8 = 2;
/// What is compared at a time. All sizes of elements that are numbers divide it.
const PIECE: usize = 1 << 20;

/// Runs the command. What cannot be compared at all is said on standard error.
pub fn run(arguments: &Diff) -> ExitCode {
    match diff(arguments) {
        Ok(code) => code,
        Err(failure) => {
            output::complain(failure);
            ExitCode::from(TROUBLE)
        }
    }
}

/// What tells a tensor from the others in its file: name, step, mode, and how many of that name, step and mode came
/// before.
type Key = (Vec<u8>, Option<i64>, Option<&'static str>, u64);

struct Side {
    file: File,
    tensors: BTreeMap<Key, Numbered>,
}

/// A tensor, its place in the file's order, and the checksums of its bytes, if the file is sealed: lengths and checksums.
struct Numbered {
    order: u64,
    tensor: Tensor,
    checksums: Vec<(u64, u32)>,
}

impl Side {
    fn open(path: &Path) -> Result<Side, Failure> {
        let contents = Contents::open(&Place::of(path)?)?;
        let (mut tensors, mut seen, mut order) = (BTreeMap::new(), BTreeMap::new(), 0);
        let found = contents.tensors(&mut |tensor, checksums| {
            let name = (tensor.name.clone(), tensor.step, tensor.mode.map(Mode::name));
            let count: &mut u64 = seen.entry(name.clone()).or_default();
            tensors.insert((name.0, name.1, name.2, *count), Numbered { order, tensor, checksums });
            *count += 1;
            order += 1;
            ControlFlow::Continue(())
        });
        match selection::failure(path, &found) {
            Some(failure) => Err(failure),
            None => Ok(Side { file: contents.file, tensors }),
        }
    }
}

/// How a tensor of one file is in the other.
#[derive(Debug, PartialEq)]
enum Change {
    Same,
    Added,
    Removed,
    /// Another type or shape.
    Kind {
        from: String,
        to: String,
    },
    /// The same type and shape.
    Values(Distance),
    /// Other bytes, of elements that are no numbers; or bytes that cannot be compared.
    Bytes,
}

/// How far two tensors are from each other.
#[derive(Debug, Default, PartialEq)]
struct Distance {
    /// Elements that differ. NaN is the same as NaN.
    elements: u64,
    /// The largest difference of finite elements.
    absolute: f64,
    /// The largest difference, relative to the larger one of both elements.
    relative: f64,
    nan: [u64; 2],
    infinite: [u64; 2],
}

impl Distance {
    fn add(&mut self, a: Number, b: Number) {
        for (side, number) in [a, b].into_iter().enumerate() {
            self.nan[side] += u64::from(number.is_nan());
            self.infinite[side] += u64::from(number.is_infinite());
        }
        if a == b || a.is_nan() && b.is_nan() {
            return;
        }
        self.elements += 1;
        if a.is_finite() && b.is_finite() {
            let distance = a.distance(b);
            self.absolute = self.absolute.max(distance);
            let scale = a.real().abs().max(b.real().abs());
            if scale > 0.0 {
                self.relative = self.relative.max(distance / scale);
            }
        }
    }
}

fn diff(arguments: &Diff) -> Result<ExitCode, Failure> {
    let (a, b) = (Side::open(&arguments.old)?, Side::open(&arguments.new)?);
    // In the order of the old file, then what is only in the new one.
    let mut old: Vec<_> = a.tensors.iter().collect();
    old.sort_by_key(|(_, found)| found.order);
    let mut new: Vec<_> = b.tensors.iter().filter(|(key, _)| !a.tensors.contains_key(*key)).collect();
    new.sort_by_key(|(_, found)| found.order);
    let mut report = Report::new(arguments.json);
    for (key, found) in old {
        let tensor = &found.tensor;
        let change = match b.tensors.get(key) {
            None => Change::Removed,
            Some(other) if !arguments.bytes && have_equal_checksums(found, other) => Change::Same,
            Some(other) => compare((&arguments.old, &a.file, tensor), (&arguments.new, &b.file, &other.tensor))?,
        };
        report.add(tensor, &change)?;
    }
    for (_, found) in new {
        report.add(&found.tensor, &Change::Added)?;
    }
    report.end()?;
    Ok(if report.different > 0 { ExitCode::from(DIFFERENT) } else { ExitCode::SUCCESS })
}

/// True if two tensors of sealed files are the same in all that tells how bytes are read, and their bytes had the same
/// checksums, part by part.
fn have_equal_checksums(a: &Numbered, b: &Numbered) -> bool {
    let how = |tensor: &Tensor| {
        let raw = matches!(tensor.location, Location::Raw { .. });
        raw.then(|| (tensor.dtype, tensor.descr.clone(), tensor.shape.clone(), tensor.order.clone(), tensor.big_endian))
    };
    !a.checksums.is_empty()
        && a.checksums == b.checksums
        && how(&a.tensor).is_some_and(|a| how(&b.tensor).is_some_and(|b| a == b))
}

type Part<'a> = (&'a Path, &'a File, &'a Tensor);

fn compare(a: Part<'_>, b: Part<'_>) -> Result<Change, Failure> {
    let (from, to) = (kind(a.2), kind(b.2));
    if from != to {
        return Ok(Change::Kind { from, to });
    }
    let ((path_a, file_a, _), (path_b, file_b, _)) = (a, b);
    let (tensor_a, tensor_b) = if a.2.order == b.2.order || readable_order(a.2, b.2) {
        (a.2.clone(), b.2.clone())
    } else {
        (by_rows(a.2), by_rows(b.2))
    };
    let comparable = readable_order(&tensor_a, &tensor_b);
    let (Ok(mut reader_a), Ok(mut reader_b)) =
        (TensorReader::new(file_a, &tensor_a), TensorReader::new(file_b, &tensor_b))
    else {
        return encoded(a, b);
    };
    if !comparable || reader_a.len() != reader_b.len() {
        return Ok(Change::Bytes);
    }
    // First the bytes, up to the first that differs; then, if there is one, what they mean.
    let mut equal = tensor_a.big_endian == tensor_b.big_endian;
    let mut pieces = Pieces::default();
    while equal && pieces.next((path_a, &mut reader_a), (path_b, &mut reader_b))? {
        equal = pieces.a == pieces.b;
    }
    if equal {
        return Ok(Change::Same);
    }
    let Some((decoder_a, decoder_b)) = Decoder::of(&tensor_a).zip(Decoder::of(&tensor_b)) else {
        return Ok(Change::Bytes);
    };
    let mut distance = Distance::default();
    let mut numbers = Vec::new();
    pieces = Pieces::default();
    while pieces.next((path_a, &mut reader_a), (path_b, &mut reader_b))? {
        numbers.clear();
        decoder_a.each(&pieces.a, |number| numbers.push(number));
        let mut others = numbers.iter();
        decoder_b.each(&pieces.b, |number| {
            if let Some(&other) = others.next() {
                distance.add(other, number);
            }
        });
    }
    // Other bytes for the same numbers: byte order, the sign of a zero, another NaN.
    Ok(if distance.elements == 0 { Change::Same } else { Change::Values(distance) })
}

/// The same piece of two tensors.
#[derive(Default)]
struct Pieces {
    at: u64,
    a: Vec<u8>,
    b: Vec<u8>,
}

impl Pieces {
    /// Reads the next piece, if there is one.
    fn next(&mut self, a: (&Path, &mut TensorReader), b: (&Path, &mut TensorReader)) -> Result<bool, Failure> {
        fill(a, self.at, &mut self.a)?;
        fill(b, self.at, &mut self.b)?;
        self.at += self.a.len() as u64;
        Ok(!self.a.is_empty())
    }
}

fn fill((path, reader): (&Path, &mut TensorReader), at: u64, piece: &mut Vec<u8>) -> Result<(), Failure> {
    piece.resize(PIECE, 0);
    let count = reader.read_at(at, piece).at(path)?;
    piece.truncate(count);
    Ok(())
}

/// Whether readers give the elements of both in the same order.
fn readable_order(a: &Tensor, b: &Tensor) -> bool {
    (a.order == Order::ColumnMajor) == (b.order == Order::ColumnMajor)
}

/// The tensor, to be read in row-major order, if it can be.
fn by_rows(tensor: &Tensor) -> Tensor {
    let mut tensor = tensor.clone();
    if tensor.order == Order::ColumnMajor && matches!(tensor.location, Location::Raw { .. }) {
        let steps = tensor.shape.iter().scan(1_u64, |stride, &size| {
            let this = *stride;
            *stride = stride.saturating_mul(size);
            Some(this)
        });
        tensor.order = Order::Strides(steps.collect());
    }
    tensor
}

/// What is not plain bytes is the same if its encoding is.
fn encoded(a: Part<'_>, b: Part<'_>) -> Result<Change, Failure> {
    let bytes = |(path, file, tensor): Part<'_>| -> Result<_, Failure> {
        let Location::Encoded { offset, len } = tensor.location else { return Ok(None) };
        let mut crc = 0;
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while at < len {
            let count = usize::try_from(len - at).unwrap_or(PIECE).min(PIECE);
            std::os::unix::fs::FileExt::read_exact_at(file, &mut piece[..count], offset + at).at(path)?;
            crc = tensorfs_formats::crc32c_append(crc, &piece[..count]);
            at += count as u64;
        }
        Ok(Some((len, crc)))
    };
    Ok(match (bytes(a)?, bytes(b)?) {
        (Some(a), Some(b)) if a == b => Change::Same,
        _ => Change::Bytes,
    })
}

fn kind(tensor: &Tensor) -> String {
    format!("{} {}", text::plain(&tensor.dtype_text()), text::shape(tensor))
}

struct Report {
    json: bool,
    colours: Colours,
    out: BufWriter<io::Stdout>,
    same: u64,
    different: u64,
}

const COLUMNS: [(&str, usize); 5] =
    [("CHANGE", 7), ("MAX ABS", 11), ("MAX REL", 11), ("ELEMENTS", 10), ("NAN, INF", 12)];

impl Report {
    fn new(json: bool) -> Self {
        let out = BufWriter::new(io::stdout());
        Report { json, colours: Colours::of_stdout(), out, same: 0, different: 0 }
    }

    fn add(&mut self, tensor: &Tensor, change: &Change) -> Result<(), Failure> {
        if *change == Change::Same {
            self.same += 1;
            return Ok(());
        }
        self.different += 1;
        let line = if self.json { format!("{}\n", describe(tensor, change)) } else { self.row(tensor, change) };
        printed(self.out.write_all(line.as_bytes()))
    }

    fn row(&self, tensor: &Tensor, change: &Change) -> String {
        let mut name = text::plain(&tensor.name_text());
        if let Some(step) = tensor.step {
            name += &format!("@{step}");
        }
        let (what, columns) = match change {
            Change::Same => ("same", [const { String::new() }; 4]),
            Change::Added => ("added", [const { String::new() }; 4]),
            Change::Removed => ("removed", [const { String::new() }; 4]),
            Change::Bytes => ("bytes", [const { String::new() }; 4]),
            Change::Kind { from, to } => {
                name += &format!(": {from} -> {to}");
                ("type", [const { String::new() }; 4])
            }
            Change::Values(distance) => {
                let [nan_a, nan_b] = distance.nan;
                let [inf_a, inf_b] = distance.infinite;
                let odd = match [nan_a, nan_b, inf_a, inf_b] {
                    [0, 0, 0, 0] => String::new(),
                    _ => format!("{nan_a}>{nan_b}, {inf_a}>{inf_b}"),
                };
                let (abs, rel) = (text::number(distance.absolute), text::number(distance.relative));
                ("values", [abs, rel, distance.elements.to_string(), odd])
            }
        };
        let mut all = vec![(what.to_owned(), COLUMNS[0].1)];
        if columns.iter().any(|column| !column.is_empty()) {
            all.extend(columns.into_iter().zip(&COLUMNS[1..]).map(|(text, (_, width))| (text, *width)));
        }
        let titles = COLUMNS.map(|(title, width)| (title.to_owned(), width));
        let head = match self.different {
            1 => self.colours.faint(text::row(&titles, "TENSOR").trim_end()) + "\n",
            _ => String::new(),
        };
        let row = text::row(&all, &name);
        head + &match change {
            Change::Added => self.colours.green(&row),
            Change::Removed => self.colours.red(&row),
            _ => self.colours.yellow(&row),
        }
    }

    fn end(&mut self) -> Result<(), Failure> {
        if !self.json {
            let line = format!("{} different, {} the same\n", self.different, self.same);
            printed(self.out.write_all(line.as_bytes()))?;
        }
        printed(self.out.flush())
    }
}

fn printed(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::new(format!("cannot print: {error}"))),
        _ => Ok(()),
    }
}

/// A line of JSON.
fn describe(tensor: &Tensor, change: &Change) -> serde_json::Value {
    let mut line = json!({
        "name": tensor.name_text(),
        "step": tensor.step,
        "mode": tensor.mode.map(Mode::name),
    });
    let more = match change {
        Change::Same => json!({"change": "same"}),
        Change::Added => json!({"change": "added"}),
        Change::Removed => json!({"change": "removed"}),
        Change::Bytes => json!({"change": "bytes"}),
        Change::Kind { from, to } => json!({"change": "type", "from": from, "to": to}),
        Change::Values(distance) => json!({
            "change": "values",
            "max_abs": distance.absolute,
            "max_rel": distance.relative,
            "elements": distance.elements,
            "nan": distance.nan,
            "inf": distance.infinite,
        }),
    };
    if let (Some(line), serde_json::Value::Object(more)) = (line.as_object_mut(), more) {
        line.extend(more);
    }
    line
}
