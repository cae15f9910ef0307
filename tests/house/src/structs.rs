//! Structs: how large they are, who sees their fields, and whether they are state.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use syn::{FnArg, ImplItem, Item, Type, Visibility};

use crate::names::{Names, Target};
use crate::source::{Module, ModuleId, is_for_tests, line, plain};

/// Types that are changed through a shared reference. Who holds one has state.
const CELLS: [&str; 12] = [
    "Mutex",
    "RwLock",
    "Condvar",
    "OnceLock",
    "OnceCell",
    "LazyLock",
    "RefCell",
    "Cell",
    "ReentrantMutex",
    "Sender",
    "Receiver",
    "Once",
];

/// Types behind which something else's state may be.
const SHARED: [&str; 3] = ["Arc", "Weak", "Rc"];

/// A struct.
#[derive(Debug)]
pub struct Struct {
    /// Its name.
    pub name: String,
    /// The module that defines it.
    pub module: ModuleId,
    /// Its file.
    pub file: PathBuf,
    /// Its line there, from 1.
    pub line: usize,
    /// Its fields, with the module within which each is seen; `None` for those that other crates see, too.
    pub fields: Vec<(String, Option<Vec<String>>)>,
    /// Its methods.
    pub methods: usize,
    /// Files with its methods.
    pub impl_files: BTreeSet<PathBuf>,
    /// Why it is state. `None` for plain data.
    pub state: Option<State>,
}

/// What makes a struct state and not plain data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// A field can be changed through a shared reference.
    Cell(String),
    /// A field holds a struct with such a field.
    Holds(String),
    /// A lock guards it.
    Guarded,
    /// A method changes it.
    Method(String),
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cell(field) => write!(f, "{field} changes while it is shared"),
            Self::Holds(field) => write!(f, "{field} holds what changes while it is shared"),
            Self::Guarded => f.write_str("a lock guards it"),
            Self::Method(method) => write!(f, "{method} changes it"),
        }
    }
}

type Key = (ModuleId, String);

impl Struct {
    /// Fields that are seen outside of a module and what is in it.
    pub fn shown_beyond(&self, module: &[String]) -> Vec<&str> {
        let beyond = |seen: &Option<Vec<String>>| seen.as_ref().is_none_or(|seen| !seen.starts_with(module));
        self.fields.iter().filter(|(_, seen)| beyond(seen)).map(|(name, _)| name.as_str()).collect()
    }
}

/// The module within which something is seen that a module declares with a visibility; `None` for `pub`.
fn seen_within(module: &Module, visibility: &Visibility) -> Option<Vec<String>> {
    let parent = || module.path[..module.path.len().saturating_sub(1)].to_vec();
    match visibility {
        Visibility::Inherited => Some(module.path.clone()),
        Visibility::Public(_) => None,
        Visibility::Restricted(restricted) => {
            let mut segments = restricted.path.segments.iter().map(|segment| plain(&segment.ident)).peekable();
            let mut path = match segments.next().as_deref() {
                Some("self") => module.path.clone(),
                Some("super") => parent(),
                _ => Vec::new(),
            };
            for segment in segments {
                if segment == "super" {
                    path.pop();
                } else {
                    path.push(segment);
                }
            }
            Some(path)
        }
    }
}

/// The narrower one.
fn within_both(one: Option<Vec<String>>, other: &Option<Vec<String>>) -> Option<Vec<String>> {
    match (one, other) {
        (Some(one), Some(other)) if !one.starts_with(other) => Some(other.clone()),
        (one @ Some(_), _) => one,
        (None, other) => other.clone(),
    }
}

/// All structs of a crate.
pub fn structs(names: &Names<'_>) -> Vec<Struct> {
    let mut found: BTreeMap<Key, Struct> = BTreeMap::new();
    // The crate's own types in each field, and those in a lock.
    let mut parts: Vec<(Key, String, Key)> = Vec::new();
    let mut guarded: Vec<Key> = Vec::new();
    for (id, module) in names.of.modules.iter().enumerate() {
        for item in &module.items {
            let key = (id, item_name(item));
            for (field, of) in field_types(item) {
                let mut words = TypeNames::default();
                words.look(of);
                parts.extend(
                    words
                        .all
                        .iter()
                        .flat_map(|word| own(names, id, word))
                        .map(|part| (key.clone(), field.clone(), part)),
                );
                guarded.extend(words.guarded.iter().flat_map(|word| own(names, id, word)));
            }
            let Item::Struct(item) = item else { continue };
            found.insert(key, describe(id, module, item));
        }
    }
    count_methods(names, &mut found);
    for key in guarded {
        if let Some(of) = found.get_mut(&key) {
            of.state.get_or_insert(State::Guarded);
        }
    }
    // Who holds what changes while it is shared changes while it is shared.
    loop {
        let changes =
            |key: &Key| found.get(key).is_some_and(|held| matches!(held.state, Some(State::Cell(_) | State::Holds(_))));
        let more: Vec<_> = parts.iter().filter(|(key, _, part)| changes(part) && !changes(key)).cloned().collect();
        let mut changed = false;
        for (key, field, _) in more {
            if let Some(of) = found.get_mut(&key) {
                of.state = Some(State::Holds(field));
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    found.into_values().collect()
}

fn item_name(item: &Item) -> String {
    match item {
        Item::Struct(item) => plain(&item.ident),
        Item::Type(item) => plain(&item.ident),
        _ => String::new(),
    }
}

/// The types of a struct's fields, and what an alias stands for: `type Shard = Mutex<..>` may be in a field.
fn field_types(item: &Item) -> Vec<(String, &Type)> {
    match item {
        Item::Struct(item) => {
            let fields = item.fields.iter().enumerate();
            fields.map(|(number, field)| (field_name(number, field), &field.ty)).collect()
        }
        Item::Type(item) => vec![(String::new(), &*item.ty)],
        _ => Vec::new(),
    }
}

fn field_name(number: usize, field: &syn::Field) -> String {
    field.ident.as_ref().map_or_else(|| number.to_string(), plain)
}

/// What this crate defines under a path.
fn own(names: &Names<'_>, from: ModuleId, path: &[String]) -> Vec<Key> {
    let targets = names.resolve(from, path).into_iter();
    targets
        .filter_map(|target| match target {
            Target::Item { module, name, rest } if rest.is_empty() => Some((module, name)),
            _ => None,
        })
        .collect()
}

fn describe(id: ModuleId, module: &Module, item: &syn::ItemStruct) -> Struct {
    let limit = seen_within(module, &item.vis);
    let mut fields = Vec::new();
    let mut state = None;
    for (number, field) in item.fields.iter().enumerate() {
        let name = field_name(number, field);
        let mut words = TypeNames::default();
        words.look(&field.ty);
        if words.all.iter().any(|word| word.last().is_some_and(|last| is_cell(last))) {
            state.get_or_insert(State::Cell(name.clone()));
        }
        // A field is seen no further than its struct.
        fields.push((name, within_both(seen_within(module, &field.vis), &limit)));
    }
    Struct {
        name: plain(&item.ident),
        module: id,
        file: module.file.clone(),
        line: line(&item.ident),
        fields,
        methods: 0,
        impl_files: BTreeSet::new(),
        state,
    }
}

fn is_cell(name: &str) -> bool {
    CELLS.contains(&name) || name.starts_with("Atomic")
}

fn count_methods(names: &Names<'_>, structs: &mut BTreeMap<Key, Struct>) {
    for (id, module) in names.of.modules.iter().enumerate() {
        for item in &module.items {
            let Item::Impl(item) = item else { continue };
            let Type::Path(path) = &*item.self_ty else { continue };
            let path: Vec<_> = path.path.segments.iter().map(|segment| plain(&segment.ident)).collect();
            let key = own(names, id, &path).into_iter().find(|key| structs.contains_key(key));
            let Some(of) = key.and_then(|key| structs.get_mut(&key)) else { continue };
            let of_trait =
                item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last()).map(|last| plain(&last.ident));
            for method in &item.items {
                let ImplItem::Fn(method) = method else { continue };
                if is_for_tests(&method.attrs) {
                    continue;
                }
                of.methods += 1;
                of.impl_files.insert(module.file.clone());
                let changes = matches!(method.sig.inputs.first(), Some(FnArg::Receiver(receiver))
                    if receiver.mutability.is_some() && receiver.reference.is_some());
                if changes && of_trait.as_deref() != Some("Drop") {
                    of.state.get_or_insert_with(|| State::Method(plain(&method.sig.ident)));
                }
            }
        }
    }
}

/// The paths in a type, without what is only referred to.
#[derive(Default)]
struct TypeNames {
    all: Vec<Vec<String>>,
    /// Those directly in a lock.
    guarded: Vec<Vec<String>>,
}

impl TypeNames {
    fn look(&mut self, of: &Type) {
        match of {
            Type::Array(array) => self.look(&array.elem),
            Type::Group(group) => self.look(&group.elem),
            Type::Paren(paren) => self.look(&paren.elem),
            Type::Slice(slice) => self.look(&slice.elem),
            Type::Tuple(tuple) => tuple.elems.iter().for_each(|of| self.look(of)),
            Type::Path(path) => {
                let names: Vec<_> = path.path.segments.iter().map(|segment| plain(&segment.ident)).collect();
                let shared = names.last().is_some_and(|last| SHARED.contains(&last.as_str()));
                let locks = names.last().is_some_and(|last| matches!(last.as_str(), "Mutex" | "RwLock"));
                self.all.push(names);
                let Some(last) = path.path.segments.last().filter(|_| !shared) else { return };
                let syn::PathArguments::AngleBracketed(arguments) = &last.arguments else { return };
                for argument in &arguments.args {
                    if let syn::GenericArgument::Type(of) = argument {
                        let at = self.all.len();
                        self.look(of);
                        if locks {
                            self.guarded.extend(self.all.get(at).cloned());
                        }
                    }
                }
            }
            _ => {}
        }
    }
}
