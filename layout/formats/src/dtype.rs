//! Types of elements.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The type of a tensor's elements. The log holds its number: new ones go behind the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Dtype {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 64-bit integer.
    I64,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an [`F32`](Dtype::F32).
    Bf16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
    /// Two [`F16`](Dtype::F16): real and imaginary part.
    C32,
    /// Two [`F32`](Dtype::F32): real and imaginary part.
    C64,
    /// Two [`F64`](Dtype::F64): real and imaginary part.
    C128,
    /// 8-bit float, 4 bits of exponent, finite (OCP E4M3, "fn").
    F8E4M3,
    /// 8-bit float, 5 bits of exponent (OCP E5M2).
    F8E5M2,
    /// As E4M3, with one NaN in the place of negative zero, and a bias of 8.
    F8E4M3Fnuz,
    /// As E5M2, with one NaN in the place of negative zero, and a bias of 16.
    F8E5M2Fnuz,
    /// An exponent alone (OCP E8M0).
    F8E8M0,
    /// 6-bit float, 2 bits of exponent; four take three bytes.
    F6E2M3,
    /// 6-bit float, 3 bits of exponent; four take three bytes.
    F6E3M2,
    /// 4-bit float, 2 bits of exponent; two take a byte.
    F4,
    /// Text or bytes.
    String,
    /// Python objects, pickled: not raw bytes, and never unpickled here.
    Object,
    /// Records with fields, as the tensor's `descr` says.
    Structured,
    /// Something else with elements of a fixed size, as the tensor's `descr` says.
    Other,
}

struct Row {
    dtype: Dtype,
    bits: u32,
    /// NumPy's name, or the one of its extension `ml_dtypes`.
    name: &'static str,
    short: &'static str,
    /// NumPy's code in a `.npy` header. Types that NumPy has no code for go as void ("V") of the same size.
    numpy: &'static str,
    safetensors: &'static str,
    /// The class of a typed storage of torch.
    storage: &'static str,
    /// The number in TensorFlow's types.proto.
    tensorflow: u64,
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    row(Dtype::Bool, 8, "bool", "bool", "b1", "BOOL", "BoolStorage", 10),
    row(Dtype::U8, 8, "uint8", "u8", "u1", "U8", "ByteStorage", 4),
    row(Dtype::I8, 8, "int8", "i8", "i1", "I8", "CharStorage", 6),
    row(Dtype::U16, 16, "uint16", "u16", "u2", "U16", "", 17),
    row(Dtype::I16, 16, "int16", "i16", "i2", "I16", "ShortStorage", 5),
    row(Dtype::U32, 32, "uint32", "u32", "u4", "U32", "", 22),
    row(Dtype::I32, 32, "int32", "i32", "i4", "I32", "IntStorage", 3),
    row(Dtype::U64, 64, "uint64", "u64", "u8", "U64", "", 23),
    row(Dtype::I64, 64, "int64", "i64", "i8", "I64", "LongStorage", 9),
    row(Dtype::F16, 16, "float16", "f16", "f2", "F16", "HalfStorage", 19),
    row(Dtype::Bf16, 16, "bfloat16", "bf16", "V2", "BF16", "BFloat16Storage", 14),
    row(Dtype::F32, 32, "float32", "f32", "f4", "F32", "FloatStorage", 1),
    row(Dtype::F64, 64, "float64", "f64", "f8", "F64", "DoubleStorage", 2),
    row(Dtype::C32, 32, "complex32", "c32", "V4", "", "", 0),
    row(Dtype::C64, 64, "complex64", "c64", "c8", "C64", "ComplexFloatStorage", 8),
    row(Dtype::C128, 128, "complex128", "c128", "c16", "", "ComplexDoubleStorage", 18),
    row(Dtype::F8E4M3, 8, "float8_e4m3fn", "f8e4m3", "V1", "F8_E4M3", "", 25),
    row(Dtype::F8E5M2, 8, "float8_e5m2", "f8e5m2", "V1", "F8_E5M2", "", 24),
    row(Dtype::F8E4M3Fnuz, 8, "float8_e4m3fnuz", "f8e4m3fnuz", "V1", "F8_E4M3FNUZ", "", 26),
    row(Dtype::F8E5M2Fnuz, 8, "float8_e5m2fnuz", "f8e5m2fnuz", "V1", "F8_E5M2FNUZ", "", 28),
    row(Dtype::F8E8M0, 8, "float8_e8m0fnu", "f8e8m0", "V1", "F8_E8M0", "", 0),
    row(Dtype::F6E2M3, 6, "float6_e2m3fn", "f6e2m3", "", "F6_E2M3", "", 0),
    row(Dtype::F6E3M2, 6, "float6_e3m2fn", "f6e3m2", "", "F6_E3M2", "", 0),
    row(Dtype::F4, 4, "float4_e2m1fn", "f4e2m1", "", "F4", "", 0),
    row(Dtype::String, 0, "string", "str", "", "", "", 7),
    row(Dtype::Object, 0, "object", "obj", "", "", "", 0),
    row(Dtype::Structured, 0, "structured", "struct", "", "", "", 0),
    row(Dtype::Other, 0, "other", "void", "", "", "", 0),
];

#[allow(clippy::too_many_arguments)]
const fn row(
    dtype: Dtype,
    bits: u32,
    name: &'static str,
    short: &'static str,
    numpy: &'static str,
    safetensors: &'static str,
    storage: &'static str,
    tensorflow: u64,
) -> Row {
    Row { dtype, bits, name, short, numpy, safetensors, storage, tensorflow }
}

impl Dtype {
    fn row(self) -> &'static Row {
        // The table has a row for each, in order; a test says so.
        &ROWS[self as usize]
    }

    fn find(is: impl Fn(&Row) -> bool) -> Option<Dtype> {
        ROWS.iter().find(|row| is(row)).map(|row| row.dtype)
    }

    /// Every type.
    pub fn all() -> impl Iterator<Item = Dtype> {
        ROWS.iter().map(|row| row.dtype)
    }

    /// NumPy's name of it (`ml_dtypes`' for those that NumPy does not know).
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// A name of a few letters: `f32`, `bf16`, `u8`.
    pub fn short_name(self) -> &'static str {
        self.row().short
    }

    /// Bits of an element, where the type alone says it.
    pub fn bits(self) -> Option<u32> {
        Some(self.row().bits).filter(|&bits| bits > 0)
    }

    /// Bytes of an element, where the type alone says it and elements do not share bytes.
    pub fn size(self) -> Option<u64> {
        self.bits().filter(|bits| bits % 8 == 0).map(|bits| u64::from(bits / 8))
    }

    /// NumPy's code, without the byte order.
    pub(crate) fn numpy(self) -> Option<&'static str> {
        Some(self.row().numpy).filter(|code| !code.is_empty())
    }

    pub(crate) fn of_numpy(code: &str) -> Option<Dtype> {
        Dtype::find(|row| row.numpy == code && !code.starts_with('V'))
    }

    pub(crate) fn of_safetensors(name: &str) -> Option<Dtype> {
        Dtype::find(|row| !name.is_empty() && row.safetensors == name)
    }

    pub(crate) fn of_storage(class: &[u8]) -> Option<Dtype> {
        Dtype::find(|row| !class.is_empty() && row.storage.as_bytes() == class)
    }

    /// An attribute of the module torch: `float32`, or in old files its other name, `float`.
    pub(crate) fn of_torch(name: &[u8]) -> Option<Dtype> {
        let other = match name {
            b"half" => "float16",
            b"float" => "float32",
            b"double" => "float64",
            b"short" => "int16",
            b"int" => "int32",
            b"long" => "int64",
            b"cfloat" => "complex64",
            b"cdouble" => "complex128",
            b"chalf" => "complex32",
            _ => "",
        };
        let whole = |row: &Row| row.bits > 0 && row.bits.is_multiple_of(8);
        Dtype::find(|row| whole(row) && (row.name.as_bytes() == name || row.name == other))
    }

    pub(crate) fn of_tensorflow(number: u64) -> Option<Dtype> {
        match number {
            // Quantized integers are integers with a scale kept elsewhere.
            11 => Some(Dtype::I8),
            12 => Some(Dtype::U8),
            13 => Some(Dtype::I32),
            15 => Some(Dtype::I16),
            16 => Some(Dtype::U16),
            _ => Dtype::find(|row| number != 0 && row.tensorflow == number),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Dtype {
    type Err = String;

    /// Understands the names of NumPy, torch and safetensors, and the short ones.
    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = text.trim().trim_start_matches("torch.");
        Dtype::find(|row| {
            [row.name, row.short, row.safetensors]
                .iter()
                .any(|name| !name.is_empty() && name.eq_ignore_ascii_case(wanted))
        })
        .or_else(|| Dtype::of_torch(wanted.as_bytes()))
        .ok_or_else(|| format!("{text:?} is no type of elements; try float32, bf16, int64, uint8, bool, ..."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order() {
        for (index, row) in ROWS.iter().enumerate() {
            assert_eq!(row.dtype as usize, index);
            assert_eq!(row.name.parse(), Ok(row.dtype));
            assert_eq!(row.short.parse(), Ok(row.dtype));
        }
        assert_eq!(ROWS.len(), Dtype::Other as usize + 1);
    }

    #[test]
    fn knows_names() {
        assert_eq!("torch.float32".parse(), Ok(Dtype::F32));
        assert_eq!("long".parse(), Ok(Dtype::I64));
        assert_eq!("F8_E4M3".parse(), Ok(Dtype::F8E4M3));
        assert!("".parse::<Dtype>().is_err() && "float33".parse::<Dtype>().is_err());
        assert_eq!(Dtype::of_torch(b"float8_e5m2"), Some(Dtype::F8E5M2));
        assert_eq!(Dtype::of_torch(b"qint8"), None);
        assert_eq!(Dtype::of_numpy("V2"), None);
        assert_eq!(Dtype::of_storage(b""), None);
        assert_eq!(Dtype::of_tensorflow(0), None);
    }
}
