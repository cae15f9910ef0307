//! Little-endian fields in byte slices, read without trust.

/// Records and frames start at multiples of this many bytes.
pub(crate) const ALIGN: usize = 8;

/// `len` rounded up to the alignment of records.
pub(crate) const fn padded(len: usize) -> usize {
    len.div_ceil(ALIGN) * ALIGN
}

pub(crate) struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out }
    }
    pub fn u8(&mut self, value: u8) {
        self.out.push(value);
    }
    pub fn u32(&mut self, value: u32) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }
    pub fn u64(&mut self, value: u64) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }
    /// A length in two bytes, then the bytes. Callers keep within 65,535.
    pub fn bytes16(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        self.bytes(bytes);
    }
    pub fn zeroes(&mut self, count: usize) {
        self.out.resize(self.out.len() + count, 0);
    }
    /// Zeroes up to the next record boundary. Callers start at one.
    pub fn pad(&mut self) {
        self.out.resize(padded(self.out.len()), 0);
    }
}

pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

const SHORT: &str = "cut short";

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(SHORT)?;
        self.rest = rest;
        Ok(taken)
    }
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
    pub fn skip(&mut self, count: usize) -> Result<(), &'static str> {
        self.take(count).map(drop)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(SHORT)?;
        self.rest = rest;
        Ok(*taken)
    }
    pub fn u8(&mut self) -> Result<u8, &'static str> {
        self.array::<1>().map(|[byte]| byte)
    }
    pub fn u16(&mut self) -> Result<u16, &'static str> {
        self.array().map(u16::from_le_bytes)
    }
    pub fn u32(&mut self) -> Result<u32, &'static str> {
        self.array().map(u32::from_le_bytes)
    }
    pub fn u64(&mut self) -> Result<u64, &'static str> {
        self.array().map(u64::from_le_bytes)
    }
    pub fn bytes16(&mut self) -> Result<&'a [u8], &'static str> {
        let len = self.u16()?;
        self.take(len.into())
    }
}
