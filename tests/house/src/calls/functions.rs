//! The functions of a crate.

use std::collections::HashMap;
use std::path::PathBuf;

use syn::{FnArg, Generics, ImplItem, Item, Signature, TraitItem, Type};

use super::types::{Scope, Ty, TypeId, Types, items};
use crate::names::Names;
use crate::source::{ModuleId, is_for_tests, line, plain};

/// The number of a function.
pub type FnId = usize;

/// A function or method.
#[derive(Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The type or trait whose method it is.
    pub owner: Option<String>,
    /// Its file.
    pub file: PathBuf,
    /// Its line there, from 1.
    pub line: usize,
    /// False for a method that a trait asks for.
    pub has_body: bool,
}

impl std::fmt::Display for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(owner) = &self.owner {
            write!(f, "{owner}::")?;
        }
        write!(f, "{} {}:{}", self.name, self.file.display(), self.line)
    }
}

/// A function as its callers see it.
pub(super) struct Known<'a> {
    pub shown: Function,
    pub module: ModuleId,
    pub signature: &'a Signature,
    pub block: Option<&'a syn::Block>,
    /// What `Self` is.
    pub of: Option<Ty>,
    /// Of the `impl` or trait around it.
    pub generics: Option<&'a Generics>,
    /// The trait that it is part of.
    pub of_trait: Option<TypeId>,
}

impl Known<'_> {
    /// Arguments without the receiver.
    pub fn arguments(&self) -> usize {
        self.signature.inputs.iter().filter(|input| matches!(input, FnArg::Typed(_))).count()
    }

    pub fn is_method(&self) -> bool {
        self.signature.receiver().is_some()
    }
}

/// Everything that calls are resolved by.
pub(super) struct Functions<'a> {
    pub types: Types<'a>,
    pub all: Vec<Known<'a>>,
    by_name: HashMap<String, Vec<FnId>>,
}

impl<'a> Functions<'a> {
    pub fn new(names: &'a Names<'a>) -> Self {
        let mut of = Self { types: Types::new(names), all: Vec::new(), by_name: HashMap::new() };
        for (module, item) in items(names) {
            of.note_functions(module, item);
        }
        for (id, known) in of.all.iter().enumerate() {
            of.by_name.entry(known.shown.name.clone()).or_default().push(id);
        }
        of
    }

    fn note_functions(&mut self, module: ModuleId, item: &'a Item) {
        match item {
            Item::Fn(item) => self.add(module, &item.sig, Some(&item.block), None, None, None, None),
            Item::Impl(item) => {
                let scope = Scope { module, of: None, generics: vec![&item.generics] };
                let of = self.types.convert(&item.self_ty, &scope);
                let owner = type_name(&item.self_ty);
                let path = item.trait_.as_ref().map(|(_, path, _)| path);
                let of_trait = path.and_then(|path| self.types.own(module, path));
                for method in &item.items {
                    let ImplItem::Fn(method) = method else { continue };
                    if !is_for_tests(&method.attrs) {
                        let (of, generics) = (Some(of.clone()), Some(&item.generics));
                        let body = Some(&method.block);
                        self.add(module, &method.sig, body, owner.clone(), of, generics, of_trait.clone());
                    }
                }
            }
            Item::Trait(item) => {
                let name = plain(&item.ident);
                let id = (module, name.clone());
                for method in &item.items {
                    let TraitItem::Fn(method) = method else { continue };
                    let (of, generics) = (Some(Ty::Own(id.clone())), Some(&item.generics));
                    let body = method.default.as_ref();
                    self.add(module, &method.sig, body, Some(name.clone()), of, generics, Some(id.clone()));
                }
            }
            _ => {}
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one for each thing that is known of a function")]
    fn add(
        &mut self,
        module: ModuleId,
        signature: &'a Signature,
        block: Option<&'a syn::Block>,
        owner: Option<String>,
        of: Option<Ty>,
        generics: Option<&'a Generics>,
        of_trait: Option<TypeId>,
    ) {
        let shown = Function {
            name: plain(&signature.ident),
            owner,
            file: self.types.names.of.modules[module].file.clone(),
            line: line(&signature.ident),
            has_body: block.is_some(),
        };
        self.all.push(Known { shown, module, signature, block, of, generics, of_trait });
    }

    /// All functions of a name.
    pub fn named(&self, name: &str) -> &[FnId] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// The free function that a module defines under a name.
    pub fn free(&self, module: ModuleId, name: &str) -> Option<FnId> {
        self.named(name).iter().copied().find(|id| self.all[*id].of.is_none() && self.all[*id].module == module)
    }

    /// A type's functions of a name, those of its traits too. `arguments` without the receiver; `None` if unknown.
    pub fn associated(&self, of: &TypeId, name: &str, arguments: Option<usize>) -> Vec<FnId> {
        let fits = |id: &FnId| arguments.is_none_or(|arguments| self.all[*id].arguments() == arguments);
        let of_type: Vec<FnId> = self
            .named(name)
            .iter()
            .copied()
            .filter(fits)
            .filter(|id| {
                let known = &self.all[*id];
                // Through a trait of this crate: whoever implements it.
                known.of == Some(Ty::Own(of.clone())) || known.of_trait.as_ref() == Some(of)
            })
            .collect();
        if !of_type.is_empty() {
            return of_type;
        }
        // What a trait of this crate gives to all who implement it.
        let implemented = self.all.iter().filter(|known| known.of == Some(Ty::Own(of.clone())));
        let traits: Vec<_> = implemented.filter_map(|known| known.of_trait.clone()).collect();
        self.named(name)
            .iter()
            .copied()
            .filter(fits)
            .filter(|id| {
                let known = &self.all[*id];
                let given = known
                    .of_trait
                    .as_ref()
                    .is_some_and(|of| known.of == Some(Ty::Own(of.clone())) && traits.contains(of));
                given || self.is_for_others(*id)
            })
            .collect()
    }

    /// A method of a trait of this crate for what is not this crate's type: `impl Host for Result`, or for any `T`.
    fn is_for_others(&self, id: FnId) -> bool {
        let known = &self.all[id];
        known.of_trait.is_some() && !matches!(known.of, Some(Ty::Own(_)))
    }

    /// What a method call may mean.
    pub fn methods(&self, receiver: &Ty, name: &str, arguments: usize) -> Vec<FnId> {
        let fits = |id: &FnId| self.all[*id].is_method() && self.all[*id].arguments() == arguments;
        let mut receiver = receiver.clone();
        // As many layers as anybody would put around a thing.
        for _ in 0..8 {
            match &receiver {
                Ty::Unknown => return self.named(name).iter().copied().filter(fits).collect(),
                Ty::Own(id) => {
                    let found: Vec<_> = self.associated(id, name, Some(arguments)).into_iter().filter(fits).collect();
                    if !found.is_empty() {
                        return found;
                    }
                    match self.types.lent(id) {
                        Some(inner) => receiver = inner,
                        None => return Vec::new(),
                    }
                }
                other => match other.lent() {
                    Some(inner) => receiver = inner.clone(),
                    None => {
                        let others = self.named(name).iter().copied();
                        return others.filter(fits).filter(|id| self.is_for_others(*id)).collect();
                    }
                },
            }
        }
        Vec::new()
    }

    /// The scope in which a function's signature is read.
    pub fn scope(&self, id: FnId) -> Scope<'a> {
        let known = &self.all[id];
        let mut generics = vec![&known.signature.generics];
        generics.extend(known.generics);
        Scope { module: known.module, of: known.of.clone(), generics }
    }

    /// What a function returns.
    pub fn result(&self, id: FnId) -> Ty {
        match &self.all[id].signature.output {
            syn::ReturnType::Default => Ty::nothing(),
            syn::ReturnType::Type(_, of) => self.types.convert(of, &self.scope(id)),
        }
    }

    /// The types of a function's arguments, without the receiver.
    pub fn parameters(&self, id: FnId) -> Vec<Ty> {
        let scope = self.scope(id);
        let inputs = self.all[id].signature.inputs.iter();
        inputs
            .filter_map(|input| match input {
                FnArg::Typed(argument) => Some(self.types.convert(&argument.ty, &scope)),
                FnArg::Receiver(_) => None,
            })
            .collect()
    }
}

fn type_name(of: &Type) -> Option<String> {
    match of {
        Type::Path(path) => path.path.segments.last().map(|last| plain(&last.ident)),
        Type::Reference(reference) => type_name(&reference.elem),
        Type::Paren(paren) => type_name(&paren.elem),
        _ => Some("_".to_owned()),
    }
}
