//! What chunks are full of that are not there.

use serde_json::Value;

use crate::dtype::Dtype;

/// The bytes of an element of a value, where both are understood.
pub(super) fn fill(dtype: Dtype, big_endian: bool, value: &Value) -> Option<Vec<u8>> {
    let size = usize::try_from(dtype.size()?).ok()?;
    let mut bytes = match dtype {
        Dtype::Bool => vec![u8::from(value.as_bool().or_else(|| Some(value.as_u64()? != 0))?)],
        Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => {
            let bytes = value.as_u64()?.to_le_bytes();
            bytes[size..].iter().all(|byte| *byte == 0).then(|| bytes[..size].to_vec())?
        }
        Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => {
            let number = value.as_i64()?;
            let least = i64::MIN >> (64 - 8 * size);
            (least..=!least).contains(&number).then(|| number.to_le_bytes()[..size].to_vec())?
        }
        Dtype::F32 => (number(value)? as f32).to_le_bytes().to_vec(),
        Dtype::F64 => number(value)?.to_le_bytes().to_vec(),
        // Of others a zero, which is what they mostly are.
        _ => (number(value)? == 0.0 && !number(value)?.is_sign_negative()).then(|| vec![0; size])?,
    };
    if big_endian {
        bytes.reverse();
    }
    Some(bytes)
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::String(word) => match word.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        // Of complex numbers both parts.
        Value::Array(parts) if parts.iter().all(|part| number(part) == Some(0.0)) => Some(0.0),
        value => value.as_f64(),
    }
}
