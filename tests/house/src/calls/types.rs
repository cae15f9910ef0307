//! Types, as far as they matter for telling methods apart.

use std::collections::HashMap;

use syn::{Fields, GenericArgument, GenericParam, Generics, ImplItem, Item, PathArguments, Type, TypeParamBound};

use crate::names::{Names, Target};
use crate::source::{ModuleId, plain};

/// A type or trait of the crate: where it is defined, and its name.
pub(super) type TypeId = (ModuleId, String);

/// A type.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ty {
    /// It cannot be told.
    Unknown,
    /// A type or trait of this crate.
    Own(TypeId),
    /// One of another crate, with its arguments. Has no methods of this crate, but of its traits.
    Foreign(String, Vec<Ty>),
    /// Several things.
    Tuple(Vec<Ty>),
    /// Something to call.
    Callable(Vec<Ty>, Box<Ty>),
}

/// Those that lend out what they hold, as if they were that.
const LENDING: [&str; 17] = [
    "Arc",
    "Rc",
    "Box",
    "Cow",
    "Pin",
    "ManuallyDrop",
    "LazyLock",
    "MutexGuard",
    "RwLockReadGuard",
    "RwLockWriteGuard",
    "RwLockUpgradableReadGuard",
    "MappedMutexGuard",
    "MappedRwLockReadGuard",
    "MappedRwLockWriteGuard",
    "Ref",
    "RefMut",
    "Guard",
];

/// Where a type is written.
pub(super) struct Scope<'a> {
    pub module: ModuleId,
    /// What `Self` is.
    pub of: Option<Ty>,
    pub generics: Vec<&'a Generics>,
}

impl Ty {
    pub fn nothing() -> Self {
        Self::Tuple(Vec::new())
    }

    pub fn foreign(name: &str, arguments: impl Into<Vec<Ty>>) -> Self {
        Self::Foreign(name.to_owned(), arguments.into())
    }

    /// What it lends out, if that is all that it is good for.
    pub fn lent(&self) -> Option<&Ty> {
        match self {
            Self::Foreign(name, arguments) if LENDING.contains(&name.as_str()) => arguments.last(),
            _ => None,
        }
    }

    /// Without what only lends.
    pub fn peeled(&self) -> &Ty {
        self.lent().map_or(self, Ty::peeled)
    }

    /// True if something of this crate, or something that cannot be told, may come out of it.
    fn may_hold(&self) -> bool {
        match self {
            Self::Unknown | Self::Own(_) | Self::Callable(..) => true,
            Self::Foreign(_, parts) | Self::Tuple(parts) => parts.iter().any(Ty::may_hold),
        }
    }

    /// What comes out of something foreign in a way that is not known here.
    pub fn opaque(&self) -> Ty {
        if self.may_hold() { Ty::Unknown } else { Ty::foreign("?", []) }
    }

    /// The first argument: what is in an `Option` or comes out of an iterator.
    pub fn first(&self) -> Ty {
        match self.peeled() {
            Self::Foreign(_, arguments) => arguments.first().cloned().unwrap_or_else(|| self.opaque()),
            Self::Unknown => Ty::Unknown,
            other => other.clone(),
        }
    }

    /// What comes out of it, element by element.
    pub fn element(&self) -> Ty {
        match self.peeled() {
            Self::Foreign(name, arguments) if name.ends_with("Map") && arguments.len() >= 2 => {
                Self::Tuple(arguments[..2].to_vec())
            }
            _ => self.first(),
        }
    }
}

/// What is known of a crate's types.
pub(super) struct Types<'a> {
    pub names: &'a Names<'a>,
    pub structs: HashMap<TypeId, (&'a Fields, &'a Generics)>,
    /// Fields of each variant.
    pub variants: HashMap<(TypeId, String), &'a Fields>,
    pub aliases: HashMap<TypeId, (&'a Type, &'a Generics)>,
    /// Types of constants and statics.
    pub constants: HashMap<TypeId, &'a Type>,
    /// What a type of this crate lends itself out as.
    derefs: HashMap<TypeId, (ModuleId, &'a Type)>,
}

/// All items of a crate, each with its module.
pub(super) fn items<'a>(names: &'a Names<'a>) -> impl Iterator<Item = (ModuleId, &'a Item)> {
    let modules = names.of.modules.iter().enumerate();
    modules.flat_map(|(id, module)| module.items.iter().map(move |item| (id, item)))
}

impl<'a> Types<'a> {
    pub fn new(names: &'a Names<'a>) -> Self {
        let mut of = Self {
            names,
            structs: HashMap::new(),
            variants: HashMap::new(),
            aliases: HashMap::new(),
            constants: HashMap::new(),
            derefs: HashMap::new(),
        };
        items(names).for_each(|(module, item)| of.note_type(module, item));
        items(names).for_each(|(module, item)| of.note_deref(module, item));
        of
    }

    fn note_type(&mut self, module: ModuleId, item: &'a Item) {
        match item {
            Item::Struct(item) => {
                self.structs.insert((module, plain(&item.ident)), (&item.fields, &item.generics));
            }
            Item::Enum(item) => {
                let id = (module, plain(&item.ident));
                for variant in &item.variants {
                    self.variants.insert((id.clone(), plain(&variant.ident)), &variant.fields);
                }
            }
            Item::Type(item) => {
                self.aliases.insert((module, plain(&item.ident)), (&item.ty, &item.generics));
            }
            Item::Const(item) => {
                self.constants.insert((module, plain(&item.ident)), &item.ty);
            }
            Item::Static(item) => {
                self.constants.insert((module, plain(&item.ident)), &item.ty);
            }
            _ => {}
        }
    }

    fn note_deref(&mut self, module: ModuleId, item: &'a Item) {
        let Item::Impl(item) = item else { return };
        let last = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        if last.is_none_or(|last| last.ident != "Deref") {
            return;
        }
        let scope = Scope { module, of: None, generics: vec![&item.generics] };
        let Ty::Own(id) = self.convert(&item.self_ty, &scope) else { return };
        for item in &item.items {
            if let ImplItem::Type(item) = item
                && item.ident == "Target"
            {
                self.derefs.insert(id.clone(), (module, &item.ty));
            }
        }
    }

    /// The type or trait of this crate that a path names.
    pub fn own(&self, module: ModuleId, path: &syn::Path) -> Option<TypeId> {
        let path: Vec<_> = path.segments.iter().map(|segment| plain(&segment.ident)).collect();
        self.names.resolve(module, &path).into_iter().find_map(|target| match target {
            Target::Item { module, name, rest } if rest.is_empty() => Some((module, name)),
            _ => None,
        })
    }

    /// What a type of this crate lends itself out as.
    pub fn lent(&self, of: &TypeId) -> Option<Ty> {
        let (module, target) = self.derefs.get(of)?;
        Some(self.convert(target, &Scope { module: *module, of: Some(Ty::Own(of.clone())), generics: Vec::new() }))
    }

    /// The type of a field.
    pub fn field(&self, of: &Ty, name: &str) -> Ty {
        let mut of = of.clone();
        for _ in 0..8 {
            match &of {
                Ty::Own(id) => {
                    if let Some((fields, generics)) = self.structs.get(id)
                        && let Some(found) = field_of(fields, name)
                    {
                        let scope = Scope { module: id.0, of: Some(of.clone()), generics: vec![generics] };
                        return self.convert(found, &scope);
                    }
                    match self.lent(id) {
                        Some(inner) => of = inner,
                        None => return Ty::Unknown,
                    }
                }
                Ty::Tuple(parts) => {
                    return name.parse().ok().and_then(|at: usize| parts.get(at)).cloned().unwrap_or(Ty::Unknown);
                }
                Ty::Unknown => return Ty::Unknown,
                other => match other.lent() {
                    Some(inner) => of = inner.clone(),
                    None => return other.opaque(),
                },
            }
        }
        Ty::Unknown
    }

    /// Reads a type.
    pub fn convert(&self, of: &Type, scope: &Scope<'_>) -> Ty {
        match of {
            Type::Reference(reference) => self.convert(&reference.elem, scope),
            Type::Ptr(pointer) => self.convert(&pointer.elem, scope),
            Type::Group(group) => self.convert(&group.elem, scope),
            Type::Paren(paren) => self.convert(&paren.elem, scope),
            Type::Array(array) => Ty::foreign("[]", [self.convert(&array.elem, scope)]),
            Type::Slice(slice) => Ty::foreign("[]", [self.convert(&slice.elem, scope)]),
            Type::Tuple(tuple) => Ty::Tuple(tuple.elems.iter().map(|of| self.convert(of, scope)).collect()),
            Type::ImplTrait(of) => self.bounds(of.bounds.iter(), scope),
            Type::TraitObject(of) => self.bounds(of.bounds.iter(), scope),
            Type::BareFn(of) => {
                let arguments = of.inputs.iter().map(|input| self.convert(&input.ty, scope)).collect();
                Ty::Callable(arguments, Box::new(self.output(&of.output, scope)))
            }
            Type::Never(_) => Ty::foreign("!", []),
            Type::Path(path) if path.qself.is_none() => self.path(&path.path, scope),
            _ => Ty::Unknown,
        }
    }

    fn output(&self, of: &syn::ReturnType, scope: &Scope<'_>) -> Ty {
        match of {
            syn::ReturnType::Default => Ty::nothing(),
            syn::ReturnType::Type(_, of) => self.convert(of, scope),
        }
    }

    /// Something of which only traits are known: one of this crate, or something to call, or else foreign.
    fn bounds<'b>(&self, bounds: impl Iterator<Item = &'b TypeParamBound>, scope: &Scope<'_>) -> Ty {
        let mut found = Ty::foreign("?", []);
        for bound in bounds {
            let TypeParamBound::Trait(bound) = bound else { continue };
            let Some(last) = bound.path.segments.last() else { continue };
            if let PathArguments::Parenthesized(given) = &last.arguments {
                let arguments = given.inputs.iter().map(|of| self.convert(of, scope)).collect();
                return Ty::Callable(arguments, Box::new(self.output(&given.output, scope)));
            }
            if let Some(own) = self.own(scope.module, &bound.path) {
                return Ty::Own(own);
            }
            if let PathArguments::AngleBracketed(given) = &last.arguments {
                for argument in &given.args {
                    if let GenericArgument::AssocType(of) = argument
                        && of.ident == "Item"
                    {
                        found = Ty::foreign("Iter", [self.convert(&of.ty, scope)]);
                    }
                }
            }
            if matches!(last.ident.to_string().as_str(), "AsRef" | "Borrow" | "Into" | "Deref") {
                found = Ty::Unknown;
            }
        }
        found
    }

    fn parameter(&self, name: &str, scope: &Scope<'_>) -> Option<Ty> {
        for generics in &scope.generics {
            for parameter in &generics.params {
                let GenericParam::Type(parameter) = parameter else { continue };
                if parameter.ident != name {
                    continue;
                }
                let mut bounds: Vec<&TypeParamBound> = parameter.bounds.iter().collect();
                for predicate in generics.where_clause.iter().flat_map(|clause| &clause.predicates) {
                    if let syn::WherePredicate::Type(predicate) = predicate
                        && let Type::Path(of) = &predicate.bounded_ty
                        && of.path.is_ident(name)
                    {
                        bounds.extend(&predicate.bounds);
                    }
                }
                let known = self.bounds(bounds.into_iter(), scope);
                // Without a trait of this crate it may still be a type of this crate for the caller.
                return Some(if known == Ty::foreign("?", []) { Ty::Unknown } else { known });
            }
        }
        None
    }

    fn path(&self, path: &syn::Path, scope: &Scope<'_>) -> Ty {
        let names: Vec<_> = path.segments.iter().map(|segment| plain(&segment.ident)).collect();
        if names == ["Self"] {
            return scope.of.clone().unwrap_or(Ty::Unknown);
        }
        if names.len() == 1
            && let Some(parameter) = self.parameter(&names[0], scope)
        {
            return parameter;
        }
        if names[0] == "Self" {
            return Ty::Unknown;
        }
        let arguments: Vec<Ty> = match path.segments.last().map(|last| &last.arguments) {
            Some(PathArguments::AngleBracketed(given)) => {
                let types = given.args.iter().filter_map(|argument| match argument {
                    GenericArgument::Type(of) => Some(self.convert(of, scope)),
                    _ => None,
                });
                types.collect()
            }
            _ => Vec::new(),
        };
        for target in self.names.resolve(scope.module, &names) {
            match target {
                Target::Item { module, name, rest } if rest.is_empty() => {
                    let id = (module, name);
                    return match self.aliases.get(&id) {
                        Some((of, generics)) => {
                            let inner = Scope { module, of: None, generics: vec![generics] };
                            self.fill(self.convert(of, &inner), arguments)
                        }
                        None => Ty::Own(id),
                    };
                }
                Target::Foreign(path) => {
                    let name = path.last().cloned().unwrap_or_default();
                    return Ty::Foreign(name, arguments);
                }
                _ => {}
            }
        }
        Ty::Unknown
    }

    /// Puts an alias's arguments in the place of its parameters, which are the types that could not be told.
    fn fill(&self, of: Ty, arguments: Vec<Ty>) -> Ty {
        fn put(of: Ty, arguments: &mut impl Iterator<Item = Ty>) -> Ty {
            match of {
                Ty::Unknown => arguments.next().unwrap_or(Ty::Unknown),
                Ty::Foreign(name, parts) => {
                    Ty::Foreign(name, parts.into_iter().map(|part| put(part, arguments)).collect())
                }
                Ty::Tuple(parts) => Ty::Tuple(parts.into_iter().map(|part| put(part, arguments)).collect()),
                other => other,
            }
        }
        put(of, &mut arguments.into_iter())
    }
}

pub(super) fn field_of<'a>(fields: &'a Fields, name: &str) -> Option<&'a Type> {
    let mut all = fields.iter().enumerate();
    all.find(|(at, field)| match &field.ident {
        Some(ident) => ident == name,
        None => at.to_string() == name,
    })
    .map(|(_, field)| &field.ty)
}
