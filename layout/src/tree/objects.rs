//! All objects, by number.

use rustc_hash::FxHashMap;

use crate::ids::Ino;
use crate::tree::object::Object;

/// The objects of a view. The numbers are this program's own, so that a fast hash will do; the objects lie apart from
/// the table, which has room for up to twice as many.
#[derive(Debug, Default)]
pub(crate) struct Objects(FxHashMap<Ino, Box<Object>>);

impl Objects {
    pub fn get(&self, ino: &Ino) -> Option<&Object> {
        self.0.get(ino).map(|object| &**object)
    }
    pub fn get_mut(&mut self, ino: &Ino) -> Option<&mut Object> {
        self.0.get_mut(ino).map(|object| &mut **object)
    }
    pub fn contains_key(&self, ino: &Ino) -> bool {
        self.0.contains_key(ino)
    }
    pub fn insert(&mut self, ino: Ino, object: Object) {
        self.0.insert(ino, Box::new(object));
    }
    pub fn remove(&mut self, ino: &Ino) -> Option<Box<Object>> {
        self.0.remove(ino)
    }
    pub fn iter(&self) -> impl Iterator<Item = (Ino, &Object)> {
        self.0.iter().map(|(ino, object)| (*ino, &**object))
    }
}
