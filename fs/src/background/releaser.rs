//! Letting go of what was removed while a program had it mapped, once that is over; and of what a newer tree of a
//! remote has no more, where somebody is to be waited for.

use std::sync::Arc;

use crate::file::Files;
use crate::store::{Bell, Bells};

use super::chore::Chore;
use super::follower;

/// Lets go of it.
pub(super) struct Releaser;

impl Chore for Releaser {
    const THREAD: &'static str = "tensorfs-letgo";
    const NAME: &'static str = "letting go of what was mapped";

    fn bell(bells: &Bells) -> &Bell {
        bells.let_go()
    }

    fn work(&mut self, files: &Arc<Files>) {
        if files.let_go_of_unmapped() {
            files.store().bells().unlink().ring();
        }
        follower::do_what_was_left(files);
    }
}
