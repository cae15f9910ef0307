//! What a pickle has said that it will need again.

use crate::fault::{Result, malformed};
use crate::limits::push;

use super::heap::{Heap, Value};

/// How much further than the last one a number may be.
const GAP: usize = 4096;

/// Values by numbers.
pub(super) enum Memo {
    All(Vec<Value>),
    /// Of very many, most of which are soon without interest, those that are not: numbers and values, in order. Objects
    /// stand apart, as they are taken out again.
    Few {
        len: usize,
        objects: Vec<(u32, u32)>,
        others: Vec<(u32, Value)>,
    },
}

impl Memo {
    pub fn all() -> Self {
        Memo::All(Vec::new())
    }

    pub fn few() -> Self {
        Memo::Few { len: 0, objects: Vec::new(), others: Vec::new() }
    }

    pub fn len(&self) -> usize {
        match self {
            Memo::All(values) => values.len(),
            Memo::Few { len, .. } => *len,
        }
    }

    pub fn store(&mut self, index: usize, value: Value, heap: &mut Heap) -> Result<()> {
        let strange = || malformed("a pickle with a strange memo");
        if index >= self.len() + GAP {
            return strange();
        }
        match self {
            Memo::All(values) => {
                let more = (index + 1).saturating_sub(values.len());
                heap.charge(more * size_of::<Value>())?;
                (0..more).for_each(|_| push(values, Value::Dull));
                values[index] = value;
            }
            // Plans are written by Python itself, which counts.
            Memo::Few { len, .. } if index < *len => return strange(),
            Memo::Few { len, objects, others } => {
                let Ok(number) = u32::try_from(index) else { return strange() };
                *len = index + 1;
                match value {
                    Value::Dull => {}
                    Value::Object(object) => {
                        heap.charge(size_of::<(u32, u32)>())?;
                        push(objects, (number, object));
                    }
                    _ => {
                        heap.charge(size_of::<(u32, Value)>())?;
                        push(others, (number, value));
                    }
                }
            }
        }
        Ok(())
    }

    pub fn load(&self, index: usize) -> Option<Value> {
        match self {
            Memo::All(values) => values.get(index).copied(),
            Memo::Few { len, .. } if index >= *len => None,
            Memo::Few { objects, others, .. } => {
                let number = index as u32;
                let object = objects.binary_search_by_key(&number, |(number, _)| *number);
                let other = || others.binary_search_by_key(&number, |(number, _)| *number);
                Some(match object {
                    Ok(at) => Value::Object(objects[at].1),
                    Err(_) => other().map_or(Value::Dull, |at| others[at].1),
                })
            }
        }
    }

    /// Drops objects from one on that were the last to be stored.
    pub fn forget(&mut self, from: u32, heap: &mut Heap) {
        let Memo::Few { objects, .. } = self else { return };
        while objects.pop_if(|(_, object)| *object >= from).is_some() {
            heap.uncharge(size_of::<(u32, u32)>());
        }
    }
}
