//! What a function's body calls.

use std::collections::{BTreeSet, HashMap};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::{Block, Expr, FnArg, Pat, Stmt, Token};

use super::functions::{FnId, Functions};
use super::types::{Scope, Ty, field_of};
use crate::names::Target;
use crate::source::{is_for_tests, plain};

/// Methods that take a lock if they have no argument.
const LOCKING: [&str; 7] = ["lock", "read", "write", "try_lock", "try_read", "try_write", "upgradable_read"];

/// Those that are locking also where they are a type's of the crate itself.
const OWN_LOCKING: [&str; 2] = ["lock", "try_lock"];

/// What one function does.
pub(super) struct Body<'a> {
    functions: &'a Functions<'a>,
    scope: Scope<'a>,
    variables: HashMap<String, Ty>,
    pub calls: BTreeSet<FnId>,
    /// Locks that it takes, as they are written.
    pub locks: Vec<String>,
    /// Method calls that count for all methods of the name.
    pub guessed: usize,
    /// All method calls.
    pub methods: usize,
}

impl<'a> Body<'a> {
    pub fn read(functions: &'a Functions<'a>, id: FnId) -> Self {
        let mut body = Self {
            functions,
            scope: functions.scope(id),
            variables: HashMap::new(),
            calls: BTreeSet::new(),
            locks: Vec::new(),
            guessed: 0,
            methods: 0,
        };
        let known = &functions.all[id];
        if let Some(of) = &known.of {
            body.variables.insert("self".to_owned(), of.clone());
        }
        for input in &known.signature.inputs {
            if let FnArg::Typed(argument) = input {
                let of = functions.types.convert(&argument.ty, &body.scope);
                body.bind(&argument.pat, of);
            }
        }
        if let Some(block) = known.block {
            body.block(block);
        }
        body
    }

    /// Gives a pattern's variables their types.
    fn bind(&mut self, pattern: &Pat, of: Ty) {
        match pattern {
            Pat::Ident(name) => {
                if let Some((_, inner)) = &name.subpat {
                    self.bind(inner, of.clone());
                }
                self.variables.insert(plain(&name.ident), of);
            }
            Pat::Reference(reference) => self.bind(&reference.pat, of),
            Pat::Paren(paren) => self.bind(&paren.pat, of),
            Pat::Type(typed) => {
                let told = self.functions.types.convert(&typed.ty, &self.scope);
                // `Vec<_>` says less than what is there.
                self.bind(&typed.pat, if told == Ty::Unknown { of } else { told });
            }
            Pat::Or(cases) => cases.cases.iter().for_each(|case| self.bind(case, of.clone())),
            Pat::Slice(slice) => slice.elems.iter().for_each(|pattern| self.bind(pattern, of.element())),
            Pat::Tuple(tuple) => {
                let parts = match of.peeled() {
                    Ty::Tuple(parts) if parts.len() == tuple.elems.len() => parts.clone(),
                    other => vec![other.opaque(); tuple.elems.len()],
                };
                tuple.elems.iter().zip(parts).for_each(|(pattern, of)| self.bind(pattern, of));
            }
            Pat::TupleStruct(tuple) => {
                let parts = self.parts(&tuple.path, &of);
                for (at, pattern) in tuple.elems.iter().enumerate() {
                    self.bind(pattern, parts(self, &at.to_string()));
                }
            }
            Pat::Struct(of_struct) => {
                let parts = self.parts(&of_struct.path, &of);
                for field in &of_struct.fields {
                    let name = match &field.member {
                        syn::Member::Named(name) => plain(name),
                        syn::Member::Unnamed(at) => at.index.to_string(),
                    };
                    self.bind(&field.pat, parts(self, &name));
                }
            }
            _ => {}
        }
    }

    /// What the fields of a variant or struct are, given the type of the whole.
    fn parts<'p>(&self, path: &'p syn::Path, of: &Ty) -> impl Fn(&Self, &str) -> Ty + use<'a, 'p> {
        let last = path.segments.last().map(|last| plain(&last.ident)).unwrap_or_default();
        let of = of.clone();
        move |body, field| {
            let peeled = of.peeled();
            match (peeled, last.as_str()) {
                (Ty::Foreign(_, arguments), "Some" | "Ok" | "Break" | "Continue" | "Ready" | "Borrowed" | "Owned") => {
                    arguments.first().cloned().unwrap_or_else(|| peeled.opaque())
                }
                (Ty::Foreign(_, arguments), "Err") => arguments.get(1).cloned().unwrap_or(Ty::foreign("?", [])),
                (Ty::Foreign(..), _) => peeled.opaque(),
                _ => body.variant_field(path, field).unwrap_or_else(|| body.functions.types.field(&of, field)),
            }
        }
    }

    fn segments(path: &syn::Path) -> Vec<String> {
        path.segments.iter().map(|segment| plain(&segment.ident)).collect()
    }

    fn variant_field(&self, path: &syn::Path, field: &str) -> Option<Ty> {
        self.targets(&Self::segments(path)).into_iter().find_map(|target| {
            let Target::Item { module, name, rest } = target else { return None };
            let id = (module, name);
            let found = match rest.as_slice() {
                [] => self.functions.types.structs.get(&id).map(|(fields, _)| *fields),
                [variant] => self.functions.types.variants.get(&(id.clone(), variant.clone())).copied(),
                _ => None,
            };
            let scope = Scope { module, of: Some(Ty::Own(id)), generics: Vec::new() };
            found.and_then(|fields| field_of(fields, field)).map(|of| self.functions.types.convert(of, &scope))
        })
    }

    /// Where a path leads, `Self` included.
    fn targets(&self, path: &[String]) -> Vec<Target> {
        if path.first().is_some_and(|first| first == "Self") {
            return match &self.scope.of {
                Some(Ty::Own((module, name))) => {
                    vec![Target::Item { module: *module, name: name.clone(), rest: path[1..].to_vec() }]
                }
                _ => Vec::new(),
            };
        }
        self.functions.types.names.resolve(self.scope.module, path)
    }

    /// Reads a block with variables of its own.
    fn block(&mut self, block: &Block) -> Ty {
        let before = self.variables.clone();
        let mut last = Ty::nothing();
        for statement in &block.stmts {
            last = Ty::nothing();
            match statement {
                Stmt::Local(local) => {
                    let of = local.init.as_ref().map_or(Ty::Unknown, |init| {
                        let of = self.expr(&init.expr);
                        if let Some((_, other)) = &init.diverge {
                            self.expr(other);
                        }
                        of
                    });
                    self.bind(&local.pat, of);
                }
                Stmt::Expr(expression, semicolon) => {
                    let of = self.expr(expression);
                    if semicolon.is_none() {
                        last = of;
                    }
                }
                Stmt::Macro(statement) => last = self.macro_call(&statement.mac),
                // A function within a function is part of it.
                Stmt::Item(syn::Item::Fn(item)) if !is_for_tests(&item.attrs) => {
                    self.block(&item.block);
                }
                Stmt::Item(_) => {}
            }
        }
        self.variables = before;
        last
    }

    fn exprs<'e>(&mut self, all: impl IntoIterator<Item = &'e Expr>) -> Vec<Ty> {
        all.into_iter().map(|one| self.expr(one)).collect()
    }

    fn optional(&mut self, expression: Option<&Expr>) -> Ty {
        expression.map_or(Ty::nothing(), |expression| self.expr(expression))
    }

    /// Reads an expression, and says what it is.
    fn expr(&mut self, expression: &Expr) -> Ty {
        match expression {
            Expr::Array(array) => {
                let parts = self.exprs(&array.elems);
                Ty::foreign("[]", [parts.into_iter().next().unwrap_or(Ty::Unknown)])
            }
            Expr::Assign(assign) => {
                self.expr(&assign.left);
                self.expr(&assign.right);
                Ty::nothing()
            }
            Expr::Binary(binary) => {
                let left = self.expr(&binary.left);
                self.expr(&binary.right);
                left.opaque_unless_own()
            }
            Expr::Block(block) => self.block(&block.block),
            Expr::Unsafe(block) => self.block(&block.block),
            Expr::Const(block) => self.block(&block.block),
            Expr::Break(of) => {
                self.optional(of.expr.as_deref());
                Ty::foreign("!", [])
            }
            Expr::Call(call) => self.call(call),
            Expr::Cast(cast) => {
                self.expr(&cast.expr);
                self.functions.types.convert(&cast.ty, &self.scope)
            }
            Expr::Closure(closure) => self.closure(closure, &[]),
            Expr::Continue(_) => Ty::foreign("!", []),
            Expr::Field(field) => {
                let base = self.expr(&field.base);
                let name = match &field.member {
                    syn::Member::Named(name) => plain(name),
                    syn::Member::Unnamed(at) => at.index.to_string(),
                };
                self.functions.types.field(&base, &name)
            }
            Expr::ForLoop(of) => {
                let element = self.expr(&of.expr).element();
                let before = self.variables.clone();
                self.bind(&of.pat, element);
                self.block(&of.body);
                self.variables = before;
                Ty::nothing()
            }
            Expr::Group(group) => self.expr(&group.expr),
            Expr::If(of) => {
                let before = self.variables.clone();
                self.expr(&of.cond);
                let then = self.block(&of.then_branch);
                self.variables = before;
                let other = of.else_branch.as_ref().map(|(_, other)| self.expr(other));
                either(then, other)
            }
            Expr::Index(index) => {
                let base = self.expr(&index.expr);
                let range = matches!(&*index.index, Expr::Range(_));
                self.expr(&index.index);
                if range {
                    return base;
                }
                match base.element() {
                    Ty::Tuple(mut pair) if pair.len() == 2 => pair.remove(1),
                    other => other,
                }
            }
            Expr::Let(of) => {
                let value = self.expr(&of.expr);
                self.bind(&of.pat, value);
                Ty::foreign("bool", [])
            }
            Expr::Lit(_) => Ty::foreign("literal", []),
            Expr::Loop(of) => {
                self.block(&of.body);
                Ty::Unknown
            }
            Expr::Macro(call) => self.macro_call(&call.mac),
            Expr::Match(of) => {
                let value = self.expr(&of.expr);
                let mut result = None;
                for arm in &of.arms {
                    let before = self.variables.clone();
                    self.bind(&arm.pat, value.clone());
                    if let Some((_, guard)) = &arm.guard {
                        self.expr(guard);
                    }
                    let of = self.expr(&arm.body);
                    self.variables = before;
                    result = Some(match result {
                        Some(before) => either(before, Some(of)),
                        None => of,
                    });
                }
                result.unwrap_or(Ty::Unknown)
            }
            Expr::MethodCall(call) => self.method(call),
            Expr::Paren(paren) => self.expr(&paren.expr),
            Expr::Path(path) => self.path(path),
            Expr::Range(range) => {
                let start = self.optional(range.start.as_deref());
                self.optional(range.end.as_deref());
                Ty::foreign("Range", [start.opaque()])
            }
            Expr::Reference(reference) => self.expr(&reference.expr),
            Expr::RawAddr(address) => self.expr(&address.expr),
            Expr::Repeat(repeat) => {
                let of = self.expr(&repeat.expr);
                self.expr(&repeat.len);
                Ty::foreign("[]", [of])
            }
            Expr::Return(of) => {
                self.optional(of.expr.as_deref());
                Ty::foreign("!", [])
            }
            Expr::Struct(of) => {
                for field in &of.fields {
                    self.expr(&field.expr);
                }
                self.optional(of.rest.as_deref());
                match self.targets(&Self::segments(&of.path)).into_iter().next() {
                    Some(Target::Item { module, name, .. }) => Ty::Own((module, name)),
                    Some(Target::Foreign(_)) => Ty::foreign("?", []),
                    _ => Ty::Unknown,
                }
            }
            Expr::Try(of) => self.expr(&of.expr).first(),
            Expr::Tuple(tuple) => Ty::Tuple(self.exprs(&tuple.elems)),
            Expr::Unary(unary) => {
                let of = self.expr(&unary.expr);
                match unary.op {
                    syn::UnOp::Deref(_) => of.lent().cloned().unwrap_or(of),
                    _ => of,
                }
            }
            Expr::While(of) => {
                let before = self.variables.clone();
                self.expr(&of.cond);
                self.block(&of.body);
                self.variables = before;
                Ty::nothing()
            }
            _ => Ty::Unknown,
        }
    }

    /// Reads a closure. Its arguments are what they say, or else what it is given.
    fn closure(&mut self, closure: &syn::ExprClosure, given: &[Ty]) -> Ty {
        let before = self.variables.clone();
        let mut arguments = Vec::new();
        for (at, pattern) in closure.inputs.iter().enumerate() {
            let of = given.get(at).cloned().unwrap_or(Ty::Unknown);
            arguments.push(of.clone());
            self.bind(pattern, of);
        }
        let result = self.expr(&closure.body);
        self.variables = before;
        Ty::Callable(arguments, Box::new(result))
    }

    /// Reads what a function is given; closures by what it will give them.
    fn arguments<'e>(&mut self, given: impl IntoIterator<Item = &'e Expr>, wanted: &[Ty]) -> Vec<Ty> {
        let mut all = Vec::new();
        for (at, argument) in given.into_iter().enumerate() {
            all.push(match (argument, wanted.get(at).map(Ty::peeled)) {
                (Expr::Closure(closure), Some(Ty::Callable(given, _))) => self.closure(closure, given),
                (argument, _) => self.expr(argument),
            });
        }
        all
    }

    /// What functions that a call may mean want and return, as far as they agree.
    fn wanted(&self, called: &[FnId]) -> (Vec<Ty>, Ty) {
        let Some((first, others)) = called.split_first() else { return (Vec::new(), Ty::Unknown) };
        let (mut parameters, mut result) = (self.functions.parameters(*first), self.functions.result(*first));
        for other in others {
            if self.functions.parameters(*other) != parameters {
                parameters.clear();
            }
            if self.functions.result(*other) != result {
                result = Ty::Unknown;
            }
        }
        (parameters, result)
    }

    fn call(&mut self, call: &syn::ExprCall) -> Ty {
        let Expr::Path(function) = &*call.func else {
            let of = self.expr(&call.func);
            self.arguments(&call.args, &[]);
            return match of.peeled() {
                Ty::Callable(_, result) => (**result).clone(),
                other => other.opaque(),
            };
        };
        if let Some(name) = function.path.get_ident().map(plain)
            && let Some(of) = self.variables.get(&name).cloned()
        {
            self.arguments(&call.args, &[]);
            return match of.peeled() {
                Ty::Callable(_, result) => (**result).clone(),
                other => other.opaque(),
            };
        }
        let path = Self::segments(&function.path);
        let (called, made) = self.meant(&path, Some(call.args.len()));
        self.calls.extend(&called);
        let (mut wanted, result) = self.wanted(&called);
        // `Type::method(receiver, ..)`
        if wanted.len() + 1 == call.args.len() {
            wanted.insert(0, Ty::Unknown);
        }
        let given = self.arguments(&call.args, &wanted);
        if !called.is_empty() {
            return result;
        }
        match made {
            Some(made) => made,
            None => foreign_call(&path, given),
        }
    }

    /// The functions that a path may mean, or else what it makes.
    fn meant(&self, path: &[String], arguments: Option<usize>) -> (Vec<FnId>, Option<Ty>) {
        let mut called = Vec::new();
        let mut made = None;
        for target in self.targets(path) {
            let Target::Item { module, name, rest } = target else { continue };
            let id = (module, name);
            match rest.as_slice() {
                [] => match self.functions.free(module, &id.1) {
                    Some(function) => called.push(function),
                    None if self.functions.types.structs.contains_key(&id) => made = Some(Ty::Own(id)),
                    None => {}
                },
                [method] => {
                    let of = match self.functions.types.aliases.get(&id) {
                        Some((of, _)) => {
                            self.functions.types.convert(of, &Scope { module, of: None, generics: Vec::new() })
                        }
                        None => Ty::Own(id.clone()),
                    };
                    let Ty::Own(of) = of.peeled().clone() else { continue };
                    let found = self.functions.associated(&of, method, None);
                    // As a method, it has its receiver among its arguments.
                    let fits = |function: &FnId| {
                        let known = &self.functions.all[*function];
                        arguments.is_none_or(|count| known.arguments() + usize::from(known.is_method()) == count)
                    };
                    let found: Vec<_> = found.into_iter().filter(fits).collect();
                    if found.is_empty() {
                        made = Some(Ty::Own(of));
                    }
                    called.extend(found);
                }
                _ => {}
            }
        }
        (called, made)
    }

    fn path(&mut self, expression: &syn::ExprPath) -> Ty {
        let path = Self::segments(&expression.path);
        if let [name] = path.as_slice()
            && let Some(of) = self.variables.get(name)
        {
            return of.clone();
        }
        let (called, made) = self.meant(&path, None);
        if !called.is_empty() {
            self.calls.extend(&called);
            let (parameters, result) = self.wanted(&called);
            return Ty::Callable(parameters, Box::new(result));
        }
        for target in self.targets(&path) {
            if let Target::Item { module, name, rest } = &target
                && rest.is_empty()
                && let Some(of) = self.functions.types.constants.get(&(*module, name.clone()))
            {
                return self.functions.types.convert(of, &Scope { module: *module, of: None, generics: Vec::new() });
            }
        }
        if let [name] = path.as_slice()
            && name == "None"
        {
            return Ty::foreign("Option", [Ty::Unknown]);
        }
        made.unwrap_or(Ty::Unknown)
    }

    fn method(&mut self, call: &syn::ExprMethodCall) -> Ty {
        let receiver = self.expr(&call.receiver);
        let name = plain(&call.method);
        self.methods += 1;
        let called = self.functions.methods(&receiver, &name, call.args.len());
        if receiver.peeled() == &Ty::Unknown && !called.is_empty() {
            self.guessed += 1;
        }
        let own = matches!(receiver.peeled(), Ty::Own(_));
        let locking: &[&str] = if own { &OWN_LOCKING } else { &LOCKING };
        if call.args.is_empty() && locking.contains(&name.as_str()) {
            self.locks.push(format!("{}.{name}()", shown(&call.receiver)));
        }
        self.calls.extend(&called);
        let foreign = called.is_empty() || receiver.peeled() == &Ty::Unknown;
        let (wanted, result) = self.wanted(&called);
        if called.is_empty() {
            let element = match name.as_str() {
                "map" | "and_then" | "is_some_and" | "is_none_or" | "is_ok_and" | "map_or" | "map_or_else"
                | "filter" | "inspect" | "take_if" | "unwrap_or_else"
                    if matches!(receiver.peeled(), Ty::Foreign(name, _) if name == "Option" || name == "Result") =>
                {
                    receiver.first()
                }
                "map_err" | "or_else" => match receiver.peeled() {
                    Ty::Foreign(_, arguments) => arguments.get(1).cloned().unwrap_or(Ty::foreign("?", [])),
                    other => other.opaque(),
                },
                _ => receiver.element(),
            };
            let pair = match (name.as_str(), &element) {
                ("retain" | "extract_if" | "retain_mut", Ty::Tuple(parts)) if parts.len() == 2 => parts.clone(),
                ("fold" | "try_fold", _) => vec![Ty::Unknown, element],
                _ => vec![element.clone(), element],
            };
            let wanted = vec![Ty::Callable(pair, Box::new(Ty::Unknown)); call.args.len()];
            let given = self.arguments(&call.args, &wanted);
            return foreign_method(&receiver, &name, &given);
        }
        self.arguments(&call.args, &wanted);
        if foreign { Ty::Unknown } else { result }
    }

    fn macro_call(&mut self, call: &syn::Macro) -> Ty {
        let name = call.path.segments.last().map(|last| plain(&last.ident)).unwrap_or_default();
        let read =
            |tokens: TokenStream| syn::parse::Parser::parse2(Punctuated::<Expr, Token![,]>::parse_terminated, tokens);
        if let Ok(arguments) = read(call.tokens.clone()) {
            let given = self.exprs(&arguments);
            return match name.as_str() {
                "vec" => Ty::foreign("Vec", [given.into_iter().next().unwrap_or(Ty::Unknown)]),
                "format" | "concat" | "include_str" | "include_bytes" | "matches" | "env" => Ty::foreign("?", []),
                "panic" | "unreachable" | "todo" | "unimplemented" => Ty::foreign("!", []),
                _ => Ty::Unknown,
            };
        }
        // `matches!(expression, pattern)`, and whatever else is no expression.
        self.tokens(call.tokens.clone());
        Ty::Unknown
    }

    /// Every name that a bracket follows.
    fn tokens(&mut self, tokens: TokenStream) {
        for (path, _) in crate::arrows::paths_in(tokens.clone()) {
            let (called, _) = self.meant(&path, None);
            self.calls.extend(called);
        }
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            if let TokenTree::Group(group) = token {
                self.tokens(group.stream());
            }
            let called = match tokens.get(at..at + 3) {
                Some([TokenTree::Punct(dot), TokenTree::Ident(name), TokenTree::Group(group)])
                    if dot.as_char() == '.' && group.delimiter() == Delimiter::Parenthesis =>
                {
                    plain(name)
                }
                _ => continue,
            };
            self.methods += 1;
            let named = self.functions.named(&called).iter().copied();
            let before = self.calls.len();
            self.calls.extend(named.filter(|id| self.functions.all[*id].is_method()));
            self.guessed += usize::from(self.calls.len() > before);
        }
    }
}

impl Ty {
    /// Of a sum or comparison.
    fn opaque_unless_own(self) -> Ty {
        match self {
            Ty::Own(_) => self,
            other => other.opaque(),
        }
    }
}

/// What two branches are: what one says that the other does not.
fn either(one: Ty, other: Option<Ty>) -> Ty {
    let never = |of: &Ty| matches!(of, Ty::Foreign(name, _) if name == "!");
    match other {
        Some(other) if one == Ty::Unknown || never(&one) => other,
        // `None`, and `Some` of something.
        Some(other) if is_less(&one, &other) => other,
        _ => one,
    }
}

fn is_less(one: &Ty, other: &Ty) -> bool {
    match (one, other) {
        (Ty::Foreign(name, parts), Ty::Foreign(other, _)) => name == other && parts.contains(&Ty::Unknown),
        _ => false,
    }
}

/// What a function of another crate makes of what it is given.
fn foreign_call(path: &[String], given: Vec<Ty>) -> Ty {
    let last = path.last().map_or("", String::as_str);
    let owner = path.len().checked_sub(2).map_or("", |at| path[at].as_str());
    let first = given.first().cloned();
    match (owner, last) {
        ("", "Some") => Ty::foreign("Option", given),
        ("", "Ok") => Ty::foreign("Result", [first.unwrap_or(Ty::Unknown), Ty::Unknown]),
        ("", "Err") => Ty::foreign("Result", [Ty::Unknown, first.unwrap_or(Ty::Unknown)]),
        ("Arc" | "Rc", "clone") | (_, "take" | "replace" | "drop" | "identity" | "max" | "min") => {
            first.unwrap_or(Ty::Unknown)
        }
        (name, "new" | "from") if !name.is_empty() => Ty::foreign(name, given),
        _ if given.iter().any(|of| of.opaque() == Ty::Unknown) => Ty::Unknown,
        _ if path.len() == 1 => Ty::Unknown,
        _ => Ty::foreign(if owner.is_empty() { "?" } else { owner }, []),
    }
}

/// What a method of another crate's type returns.
fn foreign_method(receiver: &Ty, name: &str, given: &[Ty]) -> Ty {
    let of = receiver.peeled();
    let result = |at: usize| match given.get(at) {
        Some(Ty::Callable(_, result)) => (**result).clone(),
        Some(other) => other.clone(),
        None => Ty::Unknown,
    };
    let known = match of {
        Ty::Foreign(known, _) => known.as_str(),
        _ => "",
    };
    // Of another crate's result it is not known what it is; most often it is one of these.
    let wraps = matches!(known, "Option" | "Result" | "?");
    match name {
        "borrow" | "borrow_mut" if known == "RefCell" => of.first(),
        "clone" | "to_owned" | "borrow" | "borrow_mut" | "as_ref" | "as_mut" | "as_deref" | "as_deref_mut"
        | "by_ref" | "cloned" | "copied" | "filter" | "inspect" | "rev" | "skip" | "step_by" | "chain" | "peekable"
        | "fuse" | "skip_while" | "take_while" | "or" | "or_else" | "xor" | "take_if" | "ok_or" | "ok_or_else"
        | "map_err" | "context" | "insert_entry" | "as_slice" | "as_mut_slice" | "into_boxed_slice" | "to_vec"
        | "into_inner_arc" => match (name, of) {
            ("ok_or" | "ok_or_else", of) => Ty::foreign("Result", [of.first(), Ty::foreign("?", [])]),
            (_, of) => of.clone(),
        },
        "take" if wraps || !given.is_empty() => of.clone(),
        "replace" if wraps => of.clone(),
        "lock" | "write" | "read" | "upgradable_read" if given.is_empty() => Ty::foreign("Guard", [of.first()]),
        "try_lock" | "try_write" | "try_read" | "try_lock_for" => {
            Ty::foreign("Option", [Ty::foreign("Guard", [of.first()])])
        }
        "unwrap" | "expect" | "unwrap_or" | "unwrap_or_default" | "unwrap_or_else" | "get_or_insert_with"
        | "get_or_init" | "into_inner" | "get_or_insert" | "insert"
            if wraps || matches!(known, "OnceLock" | "OnceCell" | "Mutex" | "RwLock") =>
        {
            of.first()
        }
        "ok" | "err" if wraps => Ty::foreign("Option", [of.first()]),
        "map_or" if wraps => result(0),
        "map_or_else" if wraps => result(0),
        "map" if known == "?" => Ty::foreign("Option", [result(0)]),
        "map" if wraps => match of {
            Ty::Foreign(known, arguments) => {
                let error = arguments.get(1).cloned();
                Ty::Foreign(known.clone(), [result(0)].into_iter().chain(error).collect())
            }
            _ => Ty::Unknown,
        },
        "and_then" | "then" | "then_some" if wraps || !name.starts_with("and") => match name {
            "and_then" => result(0),
            _ => Ty::foreign("Option", [result(0)]),
        },
        "iter" | "iter_mut" | "into_iter" | "drain" | "extract_if" | "range" => Ty::foreign("Iter", [of.element()]),
        "values" | "values_mut" | "into_values" => Ty::foreign("Iter", [second(of)]),
        "keys" | "into_keys" => Ty::foreign("Iter", [of.first()]),
        "map" => Ty::foreign("Iter", [result(0)]),
        "filter_map" | "map_while" | "flat_map" => Ty::foreign("Iter", [result(0).first()]),
        "find_map" => result(0),
        "enumerate" => Ty::foreign("Iter", [Ty::Tuple(vec![Ty::foreign("usize", []), of.first()])]),
        "zip" => Ty::foreign("Iter", [Ty::Tuple(vec![of.first(), given.first().map_or(Ty::Unknown, Ty::element)])]),
        "next" | "last" | "first" | "find" | "nth" | "max_by_key" | "min_by_key" | "max" | "min" | "peek"
        | "next_back" | "pop" | "pop_front" | "pop_back" | "front" | "back" | "first_mut" | "last_mut" | "reduce" => {
            Ty::foreign("Option", [of.element()])
        }
        "get" | "get_mut" if matches!(known, "OnceLock" | "OnceCell") => Ty::foreign("Option", [of.first()]),
        "get" | "get_mut" | "remove" | "insert" | "upgrade" => match (name, known) {
            ("upgrade", _) => Ty::foreign("Option", [of.first()]),
            ("remove", "Vec") => of.first(),
            _ => Ty::foreign("Option", [second(of)]),
        },
        "or_insert_with" | "or_default" | "or_insert" => of.first(),
        "entry" => Ty::foreign("Entry", [second(of)]),
        // A function that is handed in may have made what comes out.
        _ if given.iter().any(|of| matches!(of, Ty::Callable(_, made) if made.opaque() == Ty::Unknown)) => Ty::Unknown,
        _ => of.opaque(),
    }
}

/// The value of a map, the element of anything else.
fn second(of: &Ty) -> Ty {
    match of.element() {
        Ty::Tuple(mut pair) if pair.len() == 2 => pair.remove(1),
        other => other,
    }
}

/// An expression as it is written, where it is short.
fn shown(expression: &Expr) -> String {
    match expression {
        Expr::Path(path) => Body::segments(&path.path).join("::"),
        Expr::Field(field) => {
            let name = match &field.member {
                syn::Member::Named(name) => plain(name),
                syn::Member::Unnamed(at) => at.index.to_string(),
            };
            format!("{}.{name}", shown(&field.base))
        }
        Expr::MethodCall(call) => format!("{}.{}(..)", shown(&call.receiver), call.method),
        Expr::Reference(of) => shown(&of.expr),
        Expr::Paren(of) => shown(&of.expr),
        Expr::Unary(of) => shown(&of.expr),
        Expr::Index(of) => format!("{}[..]", shown(&of.expr)),
        Expr::Call(call) => format!("{}(..)", shown(&call.func)),
        _ => "..".to_owned(),
    }
}
