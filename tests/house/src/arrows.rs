//! Which module names what another one defines.
//!
//! An arrow leads to the module that *defines* a name, whatever modules hand it on. Naming a module is no arrow; what
//! is reached through it is. A parent that only hands on what its children define does not point at them, but what
//! hands on a name from elsewhere does.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::names::{Names, Target};
use crate::source::{ModuleId, attributes, is_for_tests, plain};

/// A name of one module in the code of another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrow {
    /// Who names it.
    pub from: ModuleId,
    /// Who defines it.
    pub to: ModuleId,
    /// Line in the file of `from`, from 1.
    pub line: usize,
    /// The name as it is written there.
    pub written: String,
    /// The file of `from`.
    pub file: PathBuf,
    /// A module that hands on a name which one of the modules in it defines.
    pub signpost: bool,
}

impl fmt::Display for Arrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.written)
    }
}

/// A path in code that leads to another crate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Foreign {
    /// Who names it.
    pub from: ModuleId,
    /// The file of `from`.
    pub file: PathBuf,
    /// Line in it, from 1.
    pub line: usize,
    /// The path as it is written; of an imported name, as it is imported.
    pub path: Vec<String>,
}

/// What the code of a crate names.
#[derive(Debug, Default)]
pub struct Arrows {
    /// Within the crate.
    pub own: Vec<Arrow>,
    /// Of other crates.
    pub foreign: Vec<Foreign>,
}

impl Arrows {
    /// Finds all arrows of a crate.
    pub fn of(names: &Names<'_>) -> Self {
        let mut finder = Finder { names, module: 0, own: BTreeSet::new(), foreign: BTreeSet::new() };
        for import in &names.imports {
            finder.module = import.module;
            let mut written = import.path.join("::");
            if import.name.is_none() {
                written.push_str("::*");
            }
            for target in names.resolve(import.module, &import.path) {
                finder.note(target, &written, import.line, import.handed_on);
            }
        }
        for (id, module) in names.of.modules.iter().enumerate() {
            finder.module = id;
            module.items.iter().for_each(|item| finder.visit_item(item));
        }
        Self { own: finder.own.into_iter().collect(), foreign: finder.foreign.into_iter().collect() }
    }
}

struct Finder<'a> {
    names: &'a Names<'a>,
    module: ModuleId,
    own: BTreeSet<Arrow>,
    foreign: BTreeSet<Foreign>,
}

impl Finder<'_> {
    fn note(&mut self, target: Target, written: &str, line: usize, handed_on: bool) {
        let from = self.module;
        let modules = &self.names.of.modules;
        let file = modules[from].file.clone();
        match target {
            Target::Item { module: to, .. } if to != from => {
                let below = modules[to].path.starts_with(&modules[from].path);
                let signpost = handed_on && below;
                self.own.insert(Arrow { from, to, line, written: written.to_owned(), file, signpost });
            }
            Target::Item { .. } | Target::Module(_) => {}
            Target::Foreign(path) => {
                self.foreign.insert(Foreign { from, file, line, path });
            }
        }
    }

    fn path(&mut self, path: &[String], line: usize) {
        // What was imported counts where it is imported.
        let by_name = path.len() == 1;
        let targets = if by_name {
            self.names.through_globs(self.module, &path[0])
        } else {
            let mut targets = self.names.resolve(self.module, path);
            let roots = ["crate", "self", "super"];
            if !roots.contains(&path[0].as_str()) && self.names.knows(self.module, &path[0]) {
                targets.retain(|target| !matches!(target, Target::Foreign(_)));
            }
            targets
        };
        for target in targets {
            self.note(target, &path.join("::"), line, false);
        }
    }

    /// Finds paths in what a macro is given.
    fn tokens(&mut self, tokens: TokenStream) {
        for (path, line) in paths_in(tokens) {
            self.path(&path, line);
        }
    }

    fn syn_path(&mut self, path: &syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|segment| plain(&segment.ident)).collect();
        if let Some(first) = path.segments.first() {
            self.path(&names, first.ident.span().start().line);
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    // Names that are brought were gathered before.
    fn visit_item_use(&mut self, _: &'ast syn::ItemUse) {}

    // Who may see something says nothing of who uses what.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.syn_path(path);
        visit::visit_path(self, path);
    }

    fn visit_expr_path(&mut self, expression: &'ast syn::ExprPath) {
        // A lone name in small letters is a variable. If it is called, see below.
        let lone = expression.path.get_ident().is_some_and(|name| name.to_string().starts_with(char::is_lowercase));
        if !lone {
            visit::visit_expr_path(self, expression);
        }
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(function) = &*call.func {
            self.syn_path(&function.path);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.syn_path(&call.path);
        self.tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        match &attribute.meta {
            syn::Meta::List(list) if !list.path.is_ident("derive") => self.tokens(list.tokens.clone()),
            // The value may be any expression, but a comment is text.
            syn::Meta::NameValue(pair) if !pair.path.is_ident("doc") => self.visit_expr(&pair.value),
            _ => {}
        }
    }
}

/// The paths in a heap of tokens, each with its line. Of lone names, those that are called or begin with a capital
/// letter.
pub fn paths_in(tokens: TokenStream) -> Vec<(Vec<String>, usize)> {
    let mut found = Vec::new();
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => found.extend(paths_in(group.stream())),
            TokenTree::Ident(ident) if !follows_dot(&tokens, at) => {
                let mut path = vec![plain(ident)];
                let line = ident.span().start().line;
                while let Some(next) = after_colons(&tokens, at) {
                    path.push(plain(next));
                    at += 3;
                }
                let called = match tokens.get(at + 1) {
                    Some(TokenTree::Group(group)) => group.delimiter() == Delimiter::Parenthesis,
                    _ => false,
                };
                if path.len() > 1 || called || path[0].starts_with(char::is_uppercase) {
                    found.push((path, line));
                }
            }
            _ => {}
        }
        at += 1;
    }
    found
}

fn is_punct(token: Option<&TokenTree>, character: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == character)
}

/// `x.name` is a field or a method; `..name` is a range.
fn follows_dot(tokens: &[TokenTree], at: usize) -> bool {
    let dot = |back: usize| at.checked_sub(back).is_some_and(|at| is_punct(tokens.get(at), '.'));
    dot(1) && !dot(2)
}

fn after_colons(tokens: &[TokenTree], at: usize) -> Option<&proc_macro2::Ident> {
    match tokens.get(at + 3) {
        Some(TokenTree::Ident(ident)) if is_punct(tokens.get(at + 1), ':') && is_punct(tokens.get(at + 2), ':') => {
            Some(ident)
        }
        _ => None,
    }
}
