//! Transactions of recovery itself.

use crate::error::{Error, Result};
use crate::log::blocks::Reserve;
use crate::log::transaction::Transaction;
use crate::pool::opened::Pool;

pub(super) fn store(pool: &Pool, transaction: Transaction) -> Result<()> {
    let store = |transaction, reserve| pool.edit().store_with(transaction, reserve).map(drop);
    match store(transaction.clone(), Reserve::Deletion) {
        Err(Error::NoSpace { .. }) => {
            // Before the last block is taken, as cleaning may need it.
            pool.clean_for_room()?;
            store(transaction, Reserve::Cleaning)
        }
        other => other,
    }
}
