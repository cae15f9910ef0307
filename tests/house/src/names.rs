//! What a path means: the module or item that it leads to, also through imports, re-exports and globs.

use std::collections::{HashMap, HashSet};

use syn::visit::Visit;
use syn::{Item, ItemUse, UseTree, Visibility};

use crate::source::{Crate, ModuleId, attributes, is_for_tests, line, plain};

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A module of this crate.
    Module(ModuleId),
    /// Something that a module of this crate defines, and what follows in the path (a method, a variant).
    Item {
        /// The module that defines it, not one that hands it on.
        module: ModuleId,
        /// Its name there.
        name: String,
        /// What follows.
        rest: Vec<String>,
    },
    /// Something of another crate, or that the language brings; the whole path.
    Foreign(Vec<String>),
}

/// One name that a `use` brings.
#[derive(Clone, Debug)]
pub struct Import {
    /// The module with the `use`.
    pub module: ModuleId,
    /// The path as it is written.
    pub path: Vec<String>,
    /// The name that it gets; `None` for a glob.
    pub name: Option<String>,
    /// True if others can get at the name through this module, too.
    pub handed_on: bool,
    /// Line of the name in the module's file, from 1.
    pub line: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Binding {
    Module(ModuleId),
    Item,
    Import(usize),
}

/// All names of a crate.
pub struct Names<'a> {
    /// The crate.
    pub of: &'a Crate,
    /// All imports, also those within functions.
    pub imports: Vec<Import>,
    tables: Vec<HashMap<String, Vec<Binding>>>,
    globs: Vec<Vec<usize>>,
}

impl<'a> Names<'a> {
    /// Gathers the names of a crate.
    pub fn new(of: &'a Crate) -> Self {
        let empty = of.modules.iter().map(|_| HashMap::new()).collect();
        let mut names = Self { of, imports: Vec::new(), tables: empty, globs: vec![Vec::new(); of.modules.len()] };
        for (id, module) in of.modules.iter().enumerate() {
            if let (Some(parent), Some(name)) = (module.parent, module.path.last()) {
                names.bind(parent, name.clone(), Binding::Module(id));
            }
            for item in &module.items {
                names.define(id, item);
            }
        }
        names
    }

    fn bind(&mut self, module: ModuleId, name: String, binding: Binding) {
        self.tables[module].entry(name).or_default().push(binding);
    }

    fn define(&mut self, module: ModuleId, item: &Item) {
        if let Some(name) = defined(item) {
            self.bind(module, name, Binding::Item);
        }
        let mut uses = Uses { module, found: Vec::new() };
        uses.visit_item(item);
        for import in uses.found {
            let number = self.imports.len();
            match &import.name {
                Some(name) => self.bind(module, name.clone(), Binding::Import(number)),
                None => self.globs[module].push(number),
            }
            self.imports.push(import);
        }
    }

    /// Where a path leads that is written in a module. More than one place if a name stands for several things (a
    /// module and a function, say).
    pub fn resolve(&self, from: ModuleId, path: &[String]) -> Vec<Target> {
        self.walk(from, path, &mut HashSet::new())
    }

    /// Where a single name leads that only a glob can have brought into a module.
    pub fn through_globs(&self, from: ModuleId, name: &str) -> Vec<Target> {
        if self.tables[from].contains_key(name) {
            return Vec::new();
        }
        let mut found = self.look_up(from, name, &mut HashSet::new());
        found.retain(|target| !matches!(target, Target::Foreign(_)));
        found
    }

    /// True if the module itself gives the name a meaning.
    pub fn knows(&self, module: ModuleId, name: &str) -> bool {
        self.tables[module].contains_key(name)
    }

    fn walk(&self, from: ModuleId, path: &[String], seen: &mut HashSet<usize>) -> Vec<Target> {
        let Some((first, rest)) = path.split_first() else { return Vec::new() };
        let mut now = match first.as_str() {
            "crate" => vec![Target::Module(0)],
            "self" => vec![Target::Module(from)],
            "super" => vec![Target::Module(self.of.modules[from].parent.unwrap_or(0))],
            name => self.look_up(from, name, seen),
        };
        if now.is_empty() {
            return vec![Target::Foreign(path.to_vec())];
        }
        for segment in rest {
            // A module and a function may have one name; what follows it is meant of the module.
            if now.iter().any(|target| matches!(target, Target::Module(_))) {
                now.retain(|target| matches!(target, Target::Module(_)));
            }
            now = now.into_iter().flat_map(|target| self.step(target, segment, seen)).collect();
        }
        let mut unique = Vec::new();
        for target in now {
            if !unique.contains(&target) {
                unique.push(target);
            }
        }
        unique
    }

    fn step(&self, target: Target, segment: &str, seen: &mut HashSet<usize>) -> Vec<Target> {
        match target {
            Target::Module(module) if segment == "super" => {
                vec![Target::Module(self.of.modules[module].parent.unwrap_or(0))]
            }
            Target::Module(module) => match self.look_up(module, segment, seen) {
                // Made by a macro, it may be.
                none if none.is_empty() => vec![Target::Item { module, name: segment.to_owned(), rest: Vec::new() }],
                found => found,
            },
            Target::Item { module, name, mut rest } => {
                rest.push(segment.to_owned());
                vec![Target::Item { module, name, rest }]
            }
            Target::Foreign(mut path) => {
                path.push(segment.to_owned());
                vec![Target::Foreign(path)]
            }
        }
    }

    fn look_up(&self, module: ModuleId, name: &str, seen: &mut HashSet<usize>) -> Vec<Target> {
        let mut found = Vec::new();
        for binding in self.tables[module].get(name).into_iter().flatten() {
            match *binding {
                Binding::Module(id) => found.push(Target::Module(id)),
                Binding::Item => found.push(Target::Item { module, name: name.to_owned(), rest: Vec::new() }),
                Binding::Import(number) => {
                    let Some(targets) = self.follow(number, seen) else { continue };
                    found.extend(targets);
                }
            }
        }
        if found.is_empty() {
            for &number in &self.globs[module] {
                let Some(targets) = self.follow(number, seen) else { continue };
                seen.insert(number);
                for target in targets {
                    if let Target::Module(id) = target {
                        found.extend(self.look_up(id, name, seen));
                    }
                }
                seen.remove(&number);
            }
        }
        found
    }

    /// Where an import leads. `None` for one that is being followed already: `use check::check` in the module that has
    /// `mod check`, or globs in a circle.
    fn follow(&self, number: usize, seen: &mut HashSet<usize>) -> Option<Vec<Target>> {
        if !seen.insert(number) {
            return None;
        }
        let import = &self.imports[number];
        let targets = self.walk(import.module, &import.path, seen);
        seen.remove(&number);
        Some(targets)
    }
}

fn defined(item: &Item) -> Option<String> {
    Some(plain(match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    }))
}

struct Uses {
    module: ModuleId,
    found: Vec<Import>,
}

impl Uses {
    fn tree(&mut self, tree: &UseTree, before: &[String], handed_on: bool) {
        match tree {
            UseTree::Path(path) => {
                let mut before = before.to_vec();
                before.push(plain(&path.ident));
                self.tree(&path.tree, &before, handed_on);
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(tree, before, handed_on)),
            UseTree::Name(name) => self.leaf(before, &name.ident, &name.ident, handed_on),
            UseTree::Rename(rename) => self.leaf(before, &rename.ident, &rename.rename, handed_on),
            UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                self.found.push(Import { module: self.module, path: before.to_vec(), name: None, handed_on, line });
            }
        }
    }

    fn leaf(&mut self, before: &[String], of: &proc_macro2::Ident, to: &proc_macro2::Ident, handed_on: bool) {
        let mut path = before.to_vec();
        let mut name = plain(to);
        // `use a::b::{self}` brings `b`.
        if of == "self" && !path.is_empty() {
            if to == "self" {
                name = path.last().cloned().unwrap_or_default();
            }
        } else {
            path.push(plain(of));
        }
        self.found.push(Import { module: self.module, path, name: Some(name), handed_on, line: line(of) });
    }
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let handed_on = !matches!(item.vis, Visibility::Inherited);
        self.tree(&item.tree, &[], handed_on);
    }
}
