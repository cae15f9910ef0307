//! GGUF, the format of llama.cpp: a header, what the file says about itself, the list of tensors, and their bytes.
//!
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>

use std::collections::HashSet;

use crate::cursor::Cursor;
use crate::dtype::Dtype;
use crate::fault::{Result, malformed, short, too_much};
use crate::format::Format;
use crate::found::Out;
use crate::limits::{TENSORS_MAX, excerpt};
use crate::source::Source;
use crate::tensor::{Location, Tensor, elements};

pub(crate) const MAGIC: &[u8] = b"GGUF";

/// The most that is said about the file, in pairs, and what is kept of it.
const PAIRS_MAX: u64 = 65_536;
const METADATA_MAX: usize = 1 << 20;
/// The longest key and name, as the format has them, and the longest text that is kept.
const KEY_MAX: u64 = 65_535;
const TEXT_MAX: u64 = 4096;
/// The most dimensions. ggml has four.
const DIMENSIONS_MAX: u32 = 4;
/// The most texts and arrays in arrays: vocabularies have some hundred thousand. Each may be empty, and its length
/// stand in a hole.
const ITEMS_MAX: u64 = 1 << 22;
/// Arrays in arrays.
const DEPTH_MAX: usize = 4;
/// Where tensors begin, if the file does not say.
const ALIGNMENT: u64 = 32;

/// Whether a file begins as one of the versions that are known, in either byte order.
pub(crate) fn starts(head: &[u8]) -> bool {
    head.starts_with(MAGIC) && matches!(head.get(4..8), Some([2 | 3, 0, 0, 0] | [0, 0, 0, 3]))
}

/// A type of ggml: its name, elements in a block, bytes of a block, and what its elements are if they are plain.
struct Type(u32, &'static str, u64, u64, Option<Dtype>);

/// <https://github.com/ggml-org/ggml/blob/master/include/ggml.h>, `enum ggml_type`; sizes of blocks as `ggml-common.h`
/// has them.
const TYPES: &[Type] = &[
    Type(0, "F32", 1, 4, Some(Dtype::F32)),
    Type(1, "F16", 1, 2, Some(Dtype::F16)),
    Type(2, "Q4_0", 32, 18, None),
    Type(3, "Q4_1", 32, 20, None),
    Type(6, "Q5_0", 32, 22, None),
    Type(7, "Q5_1", 32, 24, None),
    Type(8, "Q8_0", 32, 34, None),
    Type(9, "Q8_1", 32, 40, None),
    Type(10, "Q2_K", 256, 84, None),
    Type(11, "Q3_K", 256, 110, None),
    Type(12, "Q4_K", 256, 144, None),
    Type(13, "Q5_K", 256, 176, None),
    Type(14, "Q6_K", 256, 210, None),
    Type(15, "Q8_K", 256, 292, None),
    Type(16, "IQ2_XXS", 256, 66, None),
    Type(17, "IQ2_XS", 256, 74, None),
    Type(18, "IQ3_XXS", 256, 98, None),
    Type(19, "IQ1_S", 256, 50, None),
    Type(20, "IQ4_NL", 32, 18, None),
    Type(21, "IQ3_S", 256, 110, None),
    Type(22, "IQ2_S", 256, 82, None),
    Type(23, "IQ4_XS", 256, 136, None),
    Type(24, "I8", 1, 1, Some(Dtype::I8)),
    Type(25, "I16", 1, 2, Some(Dtype::I16)),
    Type(26, "I32", 1, 4, Some(Dtype::I32)),
    Type(27, "I64", 1, 8, Some(Dtype::I64)),
    Type(28, "F64", 1, 8, Some(Dtype::F64)),
    Type(29, "IQ1_M", 256, 56, None),
    Type(30, "BF16", 1, 2, Some(Dtype::Bf16)),
    Type(34, "TQ1_0", 256, 54, None),
    Type(35, "TQ2_0", 256, 66, None),
    Type(39, "MXFP4", 32, 17, None),
];

pub(crate) fn recognise(source: &dyn Source, out: &mut Out<'_, '_>) -> Result<()> {
    let size = source.size()?;
    let mut file = Header { cursor: Cursor::new(source, 0, size)?, is_big: false, items: 0 };
    let read = file.tensors(out);
    let (tensors, data) = match read {
        Ok(read) => read,
        Err(fault) => {
            out.found.cut = matches!(fault, crate::fault::Fault::Short(_));
            return Err(fault);
        }
    };
    let mut end = data;
    let mut at = 0;
    for tensor in &tensors {
        // As the format's own library writes and reads them: one behind the other.
        if tensor.offset < at {
            return malformed("GGUF tensors that overlap");
        }
        at = tensor.offset + tensor.len;
        end = data + at;
    }
    if end > size {
        out.found.cut = true;
        return short(format!("a GGUF file that is to have {end} bytes, of which {size} are there"));
    }
    out.found.format = Format::Gguf;
    out.found.end = end;
    tensors.into_iter().try_for_each(|found| out.tensor(found.tensor(data, file.is_big)))
}

/// A tensor as the list has it.
struct Listed {
    name: Vec<u8>,
    of: &'static Type,
    shape: Vec<u64>,
    /// From where tensors begin.
    offset: u64,
    len: u64,
}

impl Listed {
    fn tensor(self, data: u64, is_big: bool) -> Tensor {
        let (offset, len) = (data + self.offset, self.len);
        let Type(_, name, _, _, plain) = *self.of;
        let mut tensor = match plain {
            Some(dtype) => Tensor::new(self.name, dtype, self.shape, Location::Raw { offset, len }),
            None => {
                let location = Location::Encoded { offset, len };
                let mut tensor = Tensor::new(self.name, Dtype::Other, self.shape, location);
                tensor.descr = Some(name.to_owned());
                tensor
            }
        };
        tensor.big_endian = is_big && tensor.item_size > 1;
        tensor
    }
}

struct Header<'s> {
    cursor: Cursor<'s>,
    is_big: bool,
    /// So many there were in arrays so far.
    items: u64,
}

impl Header<'_> {
    /// The list of tensors, in the order of their bytes, and where these begin.
    fn tensors(&mut self, out: &mut Out<'_, '_>) -> Result<(Vec<Listed>, u64)> {
        self.cursor.skip(4)?;
        let version = self.cursor.u32()?;
        self.is_big = version > 0xffff;
        let (count, pairs) = (self.u64()?, self.u64()?);
        if count > TENSORS_MAX as u64 || pairs > PAIRS_MAX {
            return too_much("a GGUF file of too many tensors, or that says too much about itself");
        }
        let (mut alignment, mut kept) = (ALIGNMENT, 0);
        for _ in 0..pairs {
            let key = self.text(KEY_MAX)?;
            let kind = self.u32()?;
            let value = self.value(kind, 0)?;
            if key == b"general.alignment" {
                alignment = match value.as_ref().and_then(|value| value.parse().ok()) {
                    Some(alignment @ 1..=0x1_0000) => alignment,
                    _ => return malformed("a GGUF file with an alignment that cannot be"),
                };
            }
            if let (Ok(key), Some(value)) = (String::from_utf8(key), value) {
                kept += key.len() + value.len();
                if kept <= METADATA_MAX {
                    out.found.metadata.push((key, value));
                }
            }
        }
        let mut tensors = Vec::new();
        let mut names = HashSet::new();
        let mut taken = 0;
        for _ in 0..count {
            let tensor = self.tensor(alignment)?;
            taken += tensor.name.len() * 2 + 192;
            if taken > crate::limits::MEMORY / 2 {
                return too_much("a GGUF file with a list of tensors that is too long");
            }
            if !names.insert(tensor.name.clone()) {
                return malformed("GGUF tensors of one name");
            }
            tensors.push(tensor);
        }
        tensors.sort_by_key(|tensor| (tensor.offset, tensor.len));
        let Some(data) = self.cursor.at().checked_next_multiple_of(alignment) else {
            return malformed("a GGUF file that is too long");
        };
        let fits = |tensor: &Listed| data.checked_add(tensor.offset)?.checked_add(tensor.len);
        if !tensors.iter().all(|tensor| fits(tensor).is_some()) {
            return malformed("a GGUF tensor where none can be");
        }
        Ok((tensors, data))
    }

    fn tensor(&mut self, alignment: u64) -> Result<Listed> {
        let name = self.text(KEY_MAX)?;
        let dimensions = self.u32()?;
        if dimensions > DIMENSIONS_MAX {
            return malformed(format!("a GGUF tensor of {dimensions} dimensions"));
        }
        // The first dimension runs fastest.
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            shape.push(self.u64()?);
        }
        let row = shape.first().copied().unwrap_or(1);
        shape.reverse();
        let number = self.u32()?;
        let Some(of @ &Type(_, _, block, bytes, _)) = TYPES.iter().find(|of| of.0 == number) else {
            return malformed(format!("a GGUF tensor of the unknown type {number}"));
        };
        let len = elements(&shape).filter(|_| row % block == 0).and_then(|count| (count / block).checked_mul(bytes));
        let offset = self.u64()?;
        match len {
            Some(len) if offset % alignment == 0 => Ok(Listed { name, of, shape, offset, len }),
            _ => malformed(format!("the GGUF tensor {:?} cannot be", excerpt(&String::from_utf8_lossy(&name)))),
        }
    }

    /// What is said about the file: in print, if it is one thing and not long.
    fn value(&mut self, kind: u32, depth: usize) -> Result<Option<String>> {
        let some = |text: String| Ok(Some(text));
        match kind {
            0 => some(self.cursor.u8()?.to_string()),
            1 => some((self.cursor.u8()? as i8).to_string()),
            2 => some((self.bytes::<2>().map(u16::from_le_bytes)?).to_string()),
            3 => some((self.bytes::<2>().map(i16::from_le_bytes)?).to_string()),
            4 => some(self.u32()?.to_string()),
            5 => some((self.u32()? as i32).to_string()),
            6 => some(f32::from_bits(self.u32()?).to_string()),
            7 => some((self.cursor.u8()? != 0).to_string()),
            8 => self.long_text(),
            9 => self.array(depth).map(|()| None),
            10 => some(self.u64()?.to_string()),
            11 => some((self.u64()? as i64).to_string()),
            12 => some(f64::from_bits(self.u64()?).to_string()),
            _ => malformed(format!("a GGUF value of the unknown kind {kind}")),
        }
    }

    fn array(&mut self, depth: usize) -> Result<()> {
        let (kind, count) = (self.u32()?, self.u64()?);
        let width = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            8 | 9 => 0,
            _ => return malformed(format!("a GGUF value of the unknown kind {kind}")),
        };
        if width > 0 {
            let Some(len) = count.checked_mul(width) else { return malformed("a GGUF array that is too long") };
            return self.cursor.skip(len);
        }
        if depth >= DEPTH_MAX {
            return too_much("GGUF arrays nested too deep");
        }
        self.items = self.items.saturating_add(count);
        if self.items > ITEMS_MAX {
            return too_much("a GGUF file that says too much about itself");
        }
        for _ in 0..count {
            if kind == 8 {
                let len = self.u64()?;
                self.cursor.skip(len)?;
            } else {
                self.array(depth + 1)?;
            }
        }
        Ok(())
    }

    fn long_text(&mut self) -> Result<Option<String>> {
        let len = self.u64()?;
        if len > TEXT_MAX {
            return self.cursor.skip(len).map(|()| None);
        }
        Ok(String::from_utf8(self.cursor.take(len as usize)?.to_vec()).ok())
    }

    fn text(&mut self, longest: u64) -> Result<Vec<u8>> {
        let len = self.u64()?;
        if len > longest {
            return malformed("a GGUF name that is too long");
        }
        let mut text = Vec::new();
        let mut left = len as usize;
        while left > 0 {
            let piece = left.min(TEXT_MAX as usize);
            text.extend_from_slice(self.cursor.take(piece)?);
            left -= piece;
        }
        Ok(text)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes: [u8; N] = self.cursor.array()?;
        if self.is_big {
            bytes.reverse();
        }
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.bytes().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use crate::found::Recognised;
    use crate::gguf::ITEMS_MAX;
    use crate::recognise::recognise;
    use crate::tensor::Tensor;

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }

    fn tensor(name: &str, shape: &[u64], kind: u32, offset: u64) -> Vec<u8> {
        let sizes: Vec<u8> = shape.iter().flat_map(|size| size.to_le_bytes()).collect();
        let dimensions = shape.len() as u32;
        [&text(name)[..], &dimensions.to_le_bytes(), &sizes, &kind.to_le_bytes(), &offset.to_le_bytes()].concat()
    }

    /// A file of these pairs and tensors, with 256 bytes behind them.
    fn file(pairs: &[Vec<u8>], tensors: &[Vec<u8>]) -> Vec<u8> {
        let counts = [tensors.len() as u64, pairs.len() as u64].map(u64::to_le_bytes).concat();
        let mut file = [&b"GGUF\x03\0\0\0"[..], &counts, &pairs.concat(), &tensors.concat()].concat();
        file.resize(file.len().next_multiple_of(32) + 256, 7);
        file
    }

    fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
        [&text(key)[..], &kind.to_le_bytes(), value].concat()
    }

    fn list(bytes: &[u8]) -> (Recognised, Vec<Tensor>) {
        let mut all = Vec::new();
        let found = recognise(&bytes, &mut |tensor| {
            all.push(tensor);
            ControlFlow::Continue(())
        });
        (found, all)
    }

    #[test]
    fn files_that_end_early_are_cut_short() {
        let whole = file(&[pair("a", 4, &[1, 0, 0, 0])], &[tensor("w", &[4, 2], 0, 0), tensor("v", &[32], 8, 32)]);
        let (found, all) = list(&whole);
        assert_eq!((found.cut, found.reason, all.len()), (false, None, 2));
        assert_eq!((&all[0].shape, all[1].dtype_text()), (&vec![2, 4], "Q8_0".into()));
        let end = found.end as usize;
        assert_eq!(end, whole.len() - 256 + 32 + 34);
        assert!(list(&whole[..end]).0.reason.is_none());
        for end in (8..end).step_by(5).chain([end - 1]) {
            let (found, all) = list(&whole[..end]);
            assert!(found.cut && all.is_empty(), "{end}: {:?}", found.reason);
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = tensor("w", &[4], 0, 0);
        assert_eq!(list(&file(&[], std::slice::from_ref(&good))).1.len(), 1);
        let array = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
        let nested = pair("a", 9, &array(9, 1).repeat(9));
        let refused = [
            file(&[], &[good.clone(), good.clone()]),
            file(&[], &[good.clone(), tensor("v", &[4], 0, 0)]),
            file(&[], &[tensor("w", &[4], 0, 5)]),
            file(&[], &[tensor("w", &[4; 5], 0, 0)]),
            file(&[], &[tensor("w", &[u64::MAX, 2], 0, 0)]),
            file(&[], &[tensor("w", &[1 << 60], 0, 0)]),
            file(&[], &[tensor("w", &[4], 0, u64::MAX - 31)]),
            file(&[], &[tensor("w", &[4], 99, 0)]),
            file(&[], &[tensor("w", &[33], 8, 0)]),
            file(&[pair("general.alignment", 4, &[0; 4])], std::slice::from_ref(&good)),
            file(&[pair("a", 13, &[0; 4])], std::slice::from_ref(&good)),
            file(&[pair("a", 9, &array(0, u64::MAX))], std::slice::from_ref(&good)),
            file(&[pair("a", 9, &array(10, u64::MAX))], std::slice::from_ref(&good)),
            file(&[nested], std::slice::from_ref(&good)),
            file(&[pair("a", 9, &array(8, ITEMS_MAX + 1))], std::slice::from_ref(&good)),
            file(&[pair("a", 9, &array(9, u64::MAX))], std::slice::from_ref(&good)),
        ];
        for (n, bytes) in refused.iter().enumerate() {
            let (found, all) = list(bytes);
            assert!(found.reason.is_some() && all.is_empty() && found.metadata.is_empty(), "{n}");
        }
        // As many as can be said, and no more.
        let mut many = file(&[], &[]);
        many[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(list(&many).0.reason.unwrap().contains("too many"));
    }
}
