//! Elements of tensors as numbers.

use tensorfs_formats::{Dtype, Tensor};

/// One element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Int(i128),
    Real(f64),
    Complex(f64, f64),
}

impl Number {
    /// The number, or the absolute value of a complex one.
    pub fn real(self) -> f64 {
        match self {
            Number::Int(n) => n as f64,
            Number::Real(x) => x,
            Number::Complex(re, im) => re.hypot(im),
        }
    }

    /// Whether it, or a part of it, is not a number.
    pub fn is_nan(self) -> bool {
        match self {
            Number::Int(_) => false,
            Number::Real(x) => x.is_nan(),
            Number::Complex(re, im) => re.is_nan() || im.is_nan(),
        }
    }

    /// Whether it, or a part of it, is infinite, and none is NaN.
    pub fn is_infinite(self) -> bool {
        match self {
            Number::Int(_) => false,
            Number::Real(x) => x.is_infinite(),
            Number::Complex(re, im) => !self.is_nan() && (re.is_infinite() || im.is_infinite()),
        }
    }

    /// Whether it is neither infinite nor NaN.
    pub fn is_finite(self) -> bool {
        !self.is_nan() && !self.is_infinite()
    }

    /// How far it is from another one.
    pub fn distance(self, other: Number) -> f64 {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => (a - b).unsigned_abs() as f64,
            (Number::Complex(a, b), Number::Complex(c, d)) => (a - c).hypot(b - d),
            (a, b) => (a.real() - b.real()).abs(),
        }
    }
}

/// How the bytes of a tensor's elements are numbers.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    dtype: Dtype,
    big_endian: bool,
    /// Bytes of an element.
    size: usize,
}

impl Decoder {
    /// None for strings, structured types and the like, and for floats that share bytes.
    pub fn of(tensor: &Tensor) -> Option<Decoder> {
        let size = usize::try_from(tensor.dtype.size()?).ok()?;
        Some(Decoder { dtype: tensor.dtype, big_endian: tensor.big_endian, size })
    }

    /// Whether elements have two parts.
    pub fn is_complex(self) -> bool {
        matches!(self.dtype, Dtype::C32 | Dtype::C64 | Dtype::C128)
    }

    /// Calls `visit` for each whole element in `bytes`.
    pub fn each(self, bytes: &[u8], mut visit: impl FnMut(Number)) {
        let half = |bits: u64| small(bits, 5, 10, 15, Specials::Ieee);
        let real = |x: f64| Number::Real(x);
        match self.dtype {
            Dtype::Bool => self.words(bytes, 1, |n| visit(Number::Int((n != 0).into()))),
            Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => {
                self.words(bytes, self.size, |n| visit(Number::Int(n.into())));
            }
            Dtype::I8 => self.words(bytes, 1, |n| visit(Number::Int((n as i8).into()))),
            Dtype::I16 => self.words(bytes, 2, |n| visit(Number::Int((n as i16).into()))),
            Dtype::I32 => self.words(bytes, 4, |n| visit(Number::Int((n as i32).into()))),
            Dtype::I64 => self.words(bytes, 8, |n| visit(Number::Int((n as i64).into()))),
            Dtype::F16 => self.words(bytes, 2, |n| visit(real(half(n)))),
            Dtype::Bf16 => self.words(bytes, 2, |n| visit(real(f32::from_bits((n as u32) << 16).into()))),
            Dtype::F32 => self.words(bytes, 4, |n| visit(real(f32::from_bits(n as u32).into()))),
            Dtype::F64 => self.words(bytes, 8, |n| visit(real(f64::from_bits(n)))),
            Dtype::F8E4M3 => self.words(bytes, 1, |n| visit(real(small(n, 4, 3, 7, Specials::OnesAreNan)))),
            Dtype::F8E5M2 => self.words(bytes, 1, |n| visit(real(small(n, 5, 2, 15, Specials::Ieee)))),
            Dtype::F8E4M3Fnuz => self.words(bytes, 1, |n| visit(real(small(n, 4, 3, 8, Specials::MinusZeroIsNan)))),
            Dtype::F8E5M2Fnuz => self.words(bytes, 1, |n| visit(real(small(n, 5, 2, 16, Specials::MinusZeroIsNan)))),
            Dtype::F8E8M0 => self.words(bytes, 1, |n| {
                visit(real(if n == 0xff { f64::NAN } else { 2_f64.powi(n as i32 - 127) }));
            }),
            Dtype::C32 => self.pairs(bytes, half, visit),
            Dtype::C64 => self.pairs(bytes, |n| f32::from_bits(n as u32).into(), visit),
            Dtype::C128 => self.pairs(bytes, f64::from_bits, visit),
            _ => {}
        }
    }

    fn words(self, bytes: &[u8], size: usize, mut visit: impl FnMut(u64)) {
        for chunk in bytes.chunks_exact(size) {
            let mut word = [0; 8];
            word[..size].copy_from_slice(chunk);
            if self.big_endian {
                word[..size].reverse();
            }
            visit(u64::from_le_bytes(word));
        }
    }

    fn pairs(self, bytes: &[u8], part: impl Fn(u64) -> f64, mut visit: impl FnMut(Number)) {
        let mut first = None;
        self.words(bytes, self.size / 2, |word| match first.take() {
            None => first = Some(part(word)),
            Some(re) => visit(Number::Complex(re, part(word))),
        });
    }
}

/// What a small float has beside numbers.
#[derive(Clone, Copy, PartialEq)]
enum Specials {
    /// The highest exponent is infinity and NaN.
    Ieee,
    /// All ones are NaN, and there is no infinity.
    OnesAreNan,
    /// What would be minus zero is NaN, and there is no infinity.
    MinusZeroIsNan,
}

fn small(bits: u64, exponent_bits: u32, mantissa_bits: u32, bias: i32, specials: Specials) -> f64 {
    let mantissa = bits & ((1 << mantissa_bits) - 1);
    let exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    let negative = bits >> (mantissa_bits + exponent_bits) & 1 == 1;
    let highest = exponent == (1 << exponent_bits) - 1;
    let size = match specials {
        Specials::Ieee if highest && mantissa == 0 => f64::INFINITY,
        Specials::Ieee if highest => f64::NAN,
        Specials::OnesAreNan if highest && mantissa == (1 << mantissa_bits) - 1 => f64::NAN,
        Specials::MinusZeroIsNan if negative && exponent == 0 && mantissa == 0 => f64::NAN,
        _ if exponent == 0 => mantissa as f64 * 2_f64.powi(1 - bias - mantissa_bits as i32),
        _ => (mantissa | 1 << mantissa_bits) as f64 * 2_f64.powi(exponent as i32 - bias - mantissa_bits as i32),
    };
    if negative { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(dtype: Dtype, big_endian: bool, bytes: &[u8]) -> Vec<Number> {
        let decoder = Decoder { dtype, big_endian, size: dtype.size().unwrap() as usize };
        let mut numbers = Vec::new();
        decoder.each(bytes, |number| numbers.push(number));
        numbers
    }

    #[test]
    fn decodes() {
        use Number::{Complex, Int, Real};
        assert_eq!(all(Dtype::I16, false, &[0xff, 0xff, 1, 0]), [Int(-1), Int(1)]);
        assert_eq!(all(Dtype::I16, true, &[0, 1]), [Int(1)]);
        assert_eq!(all(Dtype::U64, false, &[0xff; 8]), [Int(u64::MAX.into())]);
        assert_eq!(all(Dtype::F32, true, &1.5_f32.to_be_bytes()), [Real(1.5)]);
        assert_eq!(all(Dtype::C64, false, &[0, 0, 0x80, 0x3f, 0, 0, 0, 0x40]), [Complex(1.0, 2.0)]);
        assert_eq!(all(Dtype::Bf16, false, &[0x80, 0x3f]), [Real(1.0)]);
        // The values are those of ml_dtypes.
        assert_eq!(
            all(Dtype::F16, false, &[0, 0x3c, 1, 0, 0xff, 0x7b, 0, 0xfc]),
            [Real(1.0), Real(2_f64.powi(-24)), Real(65504.0), Real(f64::NEG_INFINITY)]
        );
        assert_eq!(
            all(Dtype::F8E4M3, false, &[0x38, 0x7e, 0x01, 0xb8]),
            [Real(1.0), Real(448.0), Real(2_f64.powi(-9)), Real(-1.0)]
        );
        assert_eq!(all(Dtype::F8E5M2, false, &[0x3c, 0x7b, 0x7c]), [Real(1.0), Real(57344.0), Real(f64::INFINITY)]);
        assert_eq!(all(Dtype::F8E4M3Fnuz, false, &[0x40, 0x7f]), [Real(1.0), Real(240.0)]);
        assert_eq!(all(Dtype::F8E5M2Fnuz, false, &[0x40, 0x7f]), [Real(1.0), Real(57344.0)]);
        assert_eq!(all(Dtype::F8E8M0, false, &[127, 128]), [Real(1.0), Real(2.0)]);
        for (dtype, byte) in [
            (Dtype::F8E4M3, 0x7f),
            (Dtype::F8E5M2, 0x7d),
            (Dtype::F8E4M3Fnuz, 0x80),
            (Dtype::F8E5M2Fnuz, 0x80),
            (Dtype::F8E8M0, 0xff),
        ] {
            assert!(all(dtype, false, &[byte])[0].is_nan());
        }
    }
}
