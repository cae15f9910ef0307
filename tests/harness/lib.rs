//! The harness of the integration tests: real mounts, killed servers, programs run on them.
//!
//! A test is a function of a [`Setup`]; [`on_mounts!`] runs it once with kernel passthrough and
//! once without, each time on a pool of its own. A machine that cannot mount, or whose kernel has
//! no passthrough, skips: the test prints `SKIPPED: reason` and adds a line to the file that
//! `TENSORFS_SKIP_LOG` names, so that skips are counted and never taken for passes.
//!
//! tests/README.md has the environment variables.

pub mod aio;
mod at_work;
mod built;
mod children;
pub mod databases;
mod disk;
pub mod fuzz;
mod hang;
mod host_calls;
pub mod killing;
pub mod model;
mod mount;
mod mounted;
mod other;
mod pattern;
pub mod proxy;
mod python;
mod quota;
pub mod random;
pub mod s3;
mod samples;
mod stat;
pub mod storm;
mod tree;
mod unmounting;
mod volatile;
pub mod xattr;

pub use at_work::at_work;
pub use built::built;
pub use children::{
    Child, as_user, c_path, child, copy_program, has_ended, program, run, run_ok, shell, start, wait_for_end,
    wait_until, write_program,
};
pub use disk::{Disk, FailingDisk};
pub use host_calls::{Call, HostCalls, Injected, Rule};
pub use killing::Killing;
pub use mount::{Mount, Passthrough, Setup, Started, is_root, scratch, skip, skip_all, tensorfs};
pub use mounted::Mounted;
pub use other::{other_program, place_of};
pub use pattern::Pattern;
pub use python::{client, client_file, venv};
pub use quota::{QuotaOf, put_in_project, set_quota};
pub use samples::{PlannedPiece, dcp_plan, npy, safetensors, samples};
pub use stat::asked_anew;
pub use tree::{Tree, assert_same_tree, assert_same_tree_but};
pub use unmounting::{LEAVE_MOUNTS, nobody_unmounts, unmounting};
pub use volatile::{EVERYTHING, Request, VolatileDisk, forget_cached_files};

/// Makes two tests, `passthrough_on` and `passthrough_off`, of each function of a [`Setup`].
#[macro_export]
macro_rules! on_mounts {
    ($($test:ident),+ $(,)?) => {$(
        mod $test {
            #[test]
            fn passthrough_on() {
                $crate::Setup::run(
                    concat!(module_path!(), "::on"), $crate::Passthrough::On, super::$test,
                );
            }
            #[test]
            fn passthrough_off() {
                $crate::Setup::run(
                    concat!(module_path!(), "::off"), $crate::Passthrough::Off, super::$test,
                );
            }
        }
    )+};
}

/// Returns from a test, and counts it as skipped, where nothing can be mounted: for tests that do not use
/// [`on_mounts!`].
#[macro_export]
macro_rules! needs_mount {
    () => {
        if $crate::skip_all(concat!(module_path!(), ":", line!())) {
            return;
        }
    };
}
