//! A service, whoever manages it.

use tensorfs_tests::Mount;

/// Who starts, stops and kills what serves a mount.
pub trait Service {
    /// The main process.
    fn main(&self) -> i32;
    /// How many descriptors are kept.
    fn kept(&self) -> usize;
    /// Starts it, and waits until it is ready.
    fn start(&mut self, mount: &Mount, options: &[&str]);
    /// Starts it again: what `ExecStop=` said.
    fn restart(&mut self, mount: &Mount, options: &[&str]) -> String;
    /// Kills all of it; it is started again.
    fn kill_and_start(&mut self, mount: &Mount, options: &[&str]);
    /// Stops it.
    fn stop(&mut self, mount: &Mount);
}
