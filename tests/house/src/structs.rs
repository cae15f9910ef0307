//! Structs: how large they are, who sees their fields, and whether they are state.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use syn::{FnArg, ImplItem, Item, Type, Visibility};

use crate::names::{Names, Target};
use crate::source::{Module, ModuleId, is_for_tests, line, plain};

/// Types that are changed through a shared reference. Who holds one has state.
const CELLS: [&str; 12] = [
    "Mutex", "RwLock", "Condvar", "OnceLock", "OnceCell", "LazyLock", "RefCell", "Cell", "ReentrantMutex", "Sender",
    "Receiver", "Once",
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
    /// Its fields, with how far each may be seen: the path of a module, which is empty for the whole crate and beyond.
    pub fields: Vec<(String, Vec<String>)>,
    /// Its methods.
    pub methods: usize,
    /// Files with its methods.
    pub impl_files: BTreeSet<PathBuf>,
    /// Why it is state and not plain data: a method that changes it, or a field that is changed when it is shared.
    pub state: Option<String>,
}

impl Struct {
    /// Fields that are seen outside of a module and what is in it.
    pub fn shown_beyond(&self, module: &[String]) -> Vec<&str> {
        self.fields.iter().filter(|(_, seen)| !seen.starts_with(module)).map(|(name, _)| name.as_str()).collect()
    }
}

/// The module from which a thing is seen that is declared in a module with a visibility. `pub` and `pub(crate)` are the same
/// here: the root.
fn seen_from(module: &Module, visibility: &Visibility) -> Vec<String> {
    let parent = || module.path[..module.path.len().saturating_sub(1)].to_vec();
    match visibility {
        Visibility::Inherited => module.path.clone(),
        Visibility::Public(_) => Vec::new(),
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
            path
        }
    }
}

/// All structs of a crate.
pub fn structs(names: &Names<'_>) -> Vec<Struct> {
    let mut found: BTreeMap<(ModuleId, String), Struct> = BTreeMap::new();
    // What each field's type names, for those that are plain by themselves.
    let mut holds: BTreeMap<(ModuleId, String), Vec<(String, (ModuleId, String))>> = BTreeMap::new();
    for (id, module) in names.of.modules.iter().enumerate() {
        for item in &module.items {
            let Item::Struct(item) = item else { continue };
            let own = seen_from(module, &item.vis);
            let mut state = None;
            let mut parts = Vec::new();
            let mut fields = Vec::new();
            for (number, field) in item.fields.iter().enumerate() {
                let name = field.ident.as_ref().map_or_else(|| number.to_string(), plain);
                let seen = seen_from(module, &field.vis);
                fields.push((name.clone(), if seen.starts_with(&own) { seen } else { own.clone() }));
                for word in names_in(&field.ty) {
                    let last = word.last().map(String::as_str).unwrap_or_default();
                    if CELLS.contains(&last) || last.starts_with("Atomic") {
                        state.get_or_insert_with(|| format!("{name} is changed when it is shared"));
                    }
                    for target in names.resolve(id, &word) {
                        if let Target::Item { module, name: of, rest } = target
                            && rest.is_empty()
                        {
                            parts.push((name.clone(), (module, of)));
                        }
                    }
                }
            }
            let key = (id, plain(&item.ident));
            holds.insert(key.clone(), parts);
            let (name, file, line) = (key.1.clone(), module.file.clone(), line(&item.ident));
            let (methods, impl_files) = (0, BTreeSet::new());
            found.insert(key, Struct { name, module: id, file, line, fields, methods, impl_files, state });
        }
    }
    count_methods(names, &mut found);
    // Who holds state is state.
    loop {
        let mut more = Vec::new();
        for (key, of) in &found {
            let inner = |part: &&(String, (ModuleId, String))| {
                found.get(&part.1).and_then(|held| held.state.as_ref()).is_some_and(|why| why.contains("shared"))
            };
            if of.state.is_none()
                && let Some((field, _)) = holds[key].iter().find(inner)
            {
                more.push((key.clone(), format!("{field} holds what is changed when it is shared")));
            }
        }
        if more.is_empty() {
            break;
        }
        for (key, why) in more {
            if let Some(of) = found.get_mut(&key) {
                of.state = Some(why);
            }
        }
    }
    found.into_values().collect()
}

fn count_methods(names: &Names<'_>, structs: &mut BTreeMap<(ModuleId, String), Struct>) {
    for (id, module) in names.of.modules.iter().enumerate() {
        for item in &module.items {
            let Item::Impl(item) = item else { continue };
            let Type::Path(path) = &*item.self_ty else { continue };
            let path: Vec<_> = path.path.segments.iter().map(|segment| plain(&segment.ident)).collect();
            let key = names.resolve(id, &path).into_iter().find_map(|target| match target {
                Target::Item { module, name, rest } if rest.is_empty() => Some((module, name)),
                _ => None,
            });
            let Some(of) = key.and_then(|key| structs.get_mut(&key)) else { continue };
            let of_trait = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last()).map(|last| plain(&last.ident));
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
                    of.state.get_or_insert_with(|| format!("{} changes it", plain(&method.sig.ident)));
                }
            }
        }
    }
}

/// The paths in a type, without what is only referred to.
fn names_in(of: &Type) -> Vec<Vec<String>> {
    let mut finder = TypeNames::default();
    finder.look(of);
    finder.0
}

#[derive(Default)]
struct TypeNames(Vec<Vec<String>>);

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
                self.0.push(names);
                let Some(last) = path.path.segments.last().filter(|_| !shared) else { return };
                let syn::PathArguments::AngleBracketed(arguments) = &last.arguments else { return };
                for argument in &arguments.args {
                    if let syn::GenericArgument::Type(of) = argument {
                        self.look(of);
                    }
                }
            }
            _ => {}
        }
    }
}
