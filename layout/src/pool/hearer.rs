//! Who hears of the transactions that are stored: of which objects they speak, and which names they give.

use std::fmt;
use std::sync::OnceLock;

use crate::ids::TxId;
use crate::log::record::Record;
use crate::tree::view::View;

/// Hears of each transaction, with the view as it is before, and before anybody sees it as it is behind. Waits for
/// nothing.
pub type WhenStored = Box<dyn Fn(&View, &[Record], TxId) + Send + Sync>;

/// Who hears of them, if somebody does.
#[derive(Default)]
pub(super) struct Hearer(OnceLock<WhenStored>);

impl fmt::Debug for Hearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hearer").field(&self.0.get().is_some()).finish()
    }
}

impl Hearer {
    /// Who it is. The first one stays.
    pub fn is(&self, when: WhenStored) {
        let _ = self.0.set(when);
    }

    /// A transaction is about to become part of the view.
    pub fn hears(&self, view: &View, records: &[Record], id: TxId) {
        if let Some(when) = self.0.get() {
            when(view, records, id);
        }
    }
}
