//! Prints the sum of an array, and the element at a row and column: `read_array FILE.npy ROW COLUMN`

use std::error::Error;
use std::fs::File;
use std::ops::ControlFlow;

use memmap2::Mmap;
use tensorfs_formats::{Dtype, Location, Order, recognise};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, path, row, column] = &arguments[..] else { return Err("usage: read_array FILE.npy ROW COLUMN".into()) };
    let file = File::open(path)?;
    let mut found = None;
    recognise(&file, &mut |tensor| {
        found = Some(tensor);
        ControlFlow::Break(())
    });
    let tensor = found.filter(|tensor| tensor.dtype == Dtype::F64).ok_or("no array of doubles")?;
    let (Location::Raw { offset, len }, [rows, columns]) = (&tensor.location, &tensor.shape[..]) else {
        return Err("no matrix".into());
    };
    // SAFETY: others may change the bytes meanwhile; any bytes are doubles, and nobody shortens the file.
    let map = unsafe { Mmap::map(&file) }?;
    let bytes = map.get(*offset as usize..(offset + len) as usize).ok_or("cut short")?;
    let (rows, columns) = (*rows as usize, *columns as usize);
    let strides = if tensor.order == Order::ColumnMajor { (1, rows) } else { (columns, 1) };
    let element = |row: usize, column: usize| -> Option<f64> {
        let at = 8 * (row * strides.0 + column * strides.1);
        Some(f64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
    };
    let every = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    let sum: f64 = every.filter_map(|(row, column)| element(row, column)).sum();
    println!("{sum:.1} {:.1}", element(row.parse()?, column.parse()?).ok_or("no such element")?);
    Ok(())
}
