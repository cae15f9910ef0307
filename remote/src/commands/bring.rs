//! `bring`: the files of a mount whose bytes are in a remote yet. Whoever mounts starts it.

use crate::bring::bring_all;
use crate::commands::{cli, watched};
use crate::error::Result;

pub fn run(arguments: &cli::Bring) -> Result<()> {
    if !arguments.watched {
        return watched::bring(arguments);
    }
    bring_all(&arguments.pool, &arguments.mountpoint, arguments.follow)
}
