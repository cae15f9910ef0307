//! The bytes of a file as the server itself reads them, to see what tensors they hold.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use tensorfs_formats::{Source, hole_of};
use tensorfs_layout::SegmentId;

use crate::error::{Fault, Host};
use crate::file::{Files, Reading, Version};
use crate::store::host;

/// The bytes of a version of a file. The segment is opened when it is first read, and closed by
/// [`SegmentBytes::close`].
pub(super) struct SegmentBytes {
    files: Arc<Files>,
    segment: SegmentId,
    size: u64,
    open: Mutex<Option<Arc<Reading>>>,
    stop: Arc<AtomicBool>,
}

impl SegmentBytes {
    /// The bytes of a version, until reading is stopped.
    pub fn new(files: Arc<Files>, version: &Version, stop: Arc<AtomicBool>) -> Self {
        Self { files, segment: version.segment, size: version.size, open: Mutex::default(), stop }
    }

    fn reading(&self) -> io::Result<Arc<Reading>> {
        let readings = self.files.readings();
        let mut open = self.open.lock();
        if readings.is_claimed(self.segment) {
            *open = None;
        }
        if let Some(reading) = &*open {
            return Ok(reading.clone());
        }
        let reading = Arc::new(readings.open(self.files.store().pool(), self.segment)?);
        *open = Some(reading.clone());
        Ok(reading)
    }

    /// Closes the segment until it is read again.
    pub fn close(&self) {
        let reading = self.open.lock().take();
        drop(reading);
    }
}

impl Source for SegmentBytes {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.load(Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ESHUTDOWN));
        }
        let want = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        Ok(host::read_at(&*self.reading()?, &mut buffer[..want], offset)?)
    }

    fn hole(&self, offset: u64) -> io::Result<u64> {
        Ok(hole_of(&*self.reading()?, offset).min(self.size.saturating_sub(offset)))
    }
}

/// What a client gets for it. What is wrong with the bytes of a file is no fault of the host.
pub(super) fn fault(error: io::Error) -> Fault {
    match error.raw_os_error() {
        None => Fault::new(libc::EIO),
        Some(libc::ESTALE) => Fault::new(libc::ESTALE),
        Some(_) => Err::<(), _>(error).host("reading a segment").err().unwrap_or(Fault::new(libc::EIO)),
    }
}
