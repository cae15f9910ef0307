//! Everybody on one processor: how long a request takes when no processor must be woken for it.

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::error::Result;
use crate::target::Target;

/// This thread, and every thread of the servers, on processor 0 until this is dropped.
pub struct Pinned<'a>(&'a [&'a Target]);

impl<'a> Pinned<'a> {
    pub fn new(targets: &'a [&'a Target]) -> Result<Pinned<'a>> {
        let pinned = Pinned(targets);
        pinned.allow(1)?;
        Ok(pinned)
    }

    fn allow(&self, processors: usize) -> Result<()> {
        let mut set = CpuSet::new();
        (0..processors).try_for_each(|processor| set.set(processor))?;
        for pid in self.0.iter().filter_map(|target| target.pid()) {
            for thread in std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
                if let Ok(thread) = thread.file_name().to_string_lossy().parse() {
                    // It may have ended meanwhile.
                    let _ = sched_setaffinity(Pid::from_raw(thread), &set);
                }
            }
        }
        Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let online = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).ok().flatten().unwrap_or(1);
        let _ = self.allow(online as usize);
    }
}
