//! For tests of this and other crates: what a real bad day does to a pool, done on purpose.

use std::path::Path;
use std::sync::Arc;

use crate::domain::{self, Medium};
use crate::error::{Error, Result};
use crate::lock::{Holder, PoolLock};
use crate::pool::open_log;
use crate::superblock::Superblock;

/// Makes the next open of a pool that is not in use believe that the machine was started anew since.
pub fn change_boot_id(pool: &Path) -> Result<()> {
    let _lock = PoolLock::take(pool, false, &Holder::default())?;
    let io = |error| Error::io(pool.join("log"), "write", error);
    let medium: Arc<dyn Medium> = domain::open(open_log(pool, true)?).map_err(io)?.into();
    let (mut superblock, _) = Superblock::read(pool, &*medium)?;
    superblock.boot_id = superblock.boot_id.map(|byte| !byte);
    superblock.write(&*medium).map_err(io)
}
