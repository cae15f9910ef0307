//! The sources of one crate, as a tree of modules.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::{fmt, fs, io};

use syn::{Attribute, Item};

/// The number of a module in [`Crate::modules`]; the root is 0.
pub type ModuleId = usize;

/// The text of files by their paths.
#[derive(Clone, Debug, Default)]
pub struct Files(BTreeMap<PathBuf, String>);

impl Files {
    /// Reads every Rust file below a directory. Paths are relative to `root`. Build output and hidden directories are
    /// left out.
    ///
    /// # Errors
    ///
    /// What the host says of a directory or file that cannot be read.
    pub fn read(root: &Path, directory: &Path) -> io::Result<Self> {
        let mut files = Self::default();
        files.gather(root, &root.join(directory))?;
        Ok(files)
    }

    /// A made-up tree: pairs of path and text.
    pub fn made_up(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect())
    }

    fn gather(&mut self, root: &Path, directory: &Path) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with('.') || name == "target" {
                continue;
            }
            if path.is_dir() && !path.is_symlink() {
                self.gather(root, &path)?;
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path)?;
                self.0.insert(path.strip_prefix(root).unwrap_or(&path).to_owned(), text);
            }
        }
        Ok(())
    }

    /// The files, by path.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.0.iter().map(|(path, text)| (path.as_path(), text.as_str()))
    }

    fn get(&self, path: &Path) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }
}

/// A module: a file, or a `mod x { }` within one.
pub struct Module {
    /// Its name from the crate's root, which has none.
    pub path: Vec<String>,
    /// Where its text is.
    pub file: PathBuf,
    /// The module that declares it; `None` for the root.
    pub parent: Option<ModuleId>,
    /// What it defines, without the modules in it and without what only tests see.
    pub items: Vec<Item>,
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str("crate") } else { f.write_str(&self.path.join("::")) }
    }
}

/// A crate: one program or library.
pub struct Crate {
    /// What to call it.
    pub name: String,
    /// The root comes first, each module before those in it.
    pub modules: Vec<Module>,
}

/// Why a crate could not be read.
#[derive(Debug)]
pub struct Unreadable(String);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreadable {}

impl Crate {
    /// Follows the modules of a crate from its root file.
    ///
    /// # Errors
    ///
    /// A file that is declared and not there, or that is not Rust.
    pub fn read(name: &str, files: &Files, root: &Path) -> Result<Self, Unreadable> {
        let mut reader = Reader { files, modules: Vec::new() };
        let directory = root.parent().unwrap_or(Path::new("")).to_owned();
        reader.file(None, Vec::new(), root, &directory)?;
        Ok(Self { name: name.to_owned(), modules: reader.modules })
    }
}

struct Reader<'a> {
    files: &'a Files,
    modules: Vec<Module>,
}

impl Reader<'_> {
    /// Reads a module's file. Its own modules are looked for in `directory`.
    fn file(
        &mut self,
        parent: Option<ModuleId>,
        path: Vec<String>,
        file: &Path,
        directory: &Path,
    ) -> Result<(), Unreadable> {
        let text = self.files.get(file).ok_or_else(|| Unreadable(format!("{}: not there", file.display())))?;
        let parsed = syn::parse_file(text)
            .map_err(|error| Unreadable(format!("{}:{}: {error}", file.display(), error.span().start().line)))?;
        self.module(parent, path, file, directory, parsed.items)
    }

    fn module(
        &mut self,
        parent: Option<ModuleId>,
        path: Vec<String>,
        file: &Path,
        directory: &Path,
        items: Vec<Item>,
    ) -> Result<(), Unreadable> {
        let (below, items): (Vec<_>, Vec<_>) = items
            .into_iter()
            .filter(|item| !is_for_tests(attributes(item)))
            .partition(|item| matches!(item, Item::Mod(_)));
        let id = self.modules.len();
        self.modules.push(Module { path: path.clone(), file: file.to_owned(), parent, items });
        for item in below {
            let Item::Mod(item) = item else { continue };
            let name = plain(&item.ident);
            let mut path = path.clone();
            path.push(name.clone());
            let directory = directory.join(&name);
            if let Some((_, items)) = item.content {
                self.module(Some(id), path, file, &directory, items)?;
                continue;
            }
            let found = match path_attribute(&item.attrs) {
                Some(given) => joined(file.parent().unwrap_or(Path::new("")), Path::new(&given)),
                None => self.find(&directory).ok_or_else(|| {
                    let line = item.ident.span().start().line;
                    Unreadable(format!("{}:{line}: no file for module {name}", file.display()))
                })?,
            };
            self.file(Some(id), path, &found, &directory)?;
        }
        Ok(())
    }

    /// The file of the module whose own modules are in a directory.
    fn find(&self, directory: &Path) -> Option<PathBuf> {
        [directory.with_extension("rs"), directory.join("mod.rs")]
            .into_iter()
            .find(|path| self.files.get(path).is_some())
    }
}

/// A name without the mark that lets it be a keyword.
pub fn plain(ident: &proc_macro2::Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map(str::to_owned).unwrap_or(text)
}

/// The line on which something begins, from 1.
pub fn line(of: &proc_macro2::Ident) -> usize {
    of.span().start().line
}

/// A path that is relative to a directory, without steps up: files are known by one name each.
fn joined(directory: &Path, path: &Path) -> PathBuf {
    let mut joined = directory.to_owned();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                joined.pop();
            }
            part => joined.push(part),
        }
    }
    joined
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find(|attribute| attribute.path().is_ident("path")).and_then(|attribute| {
        let syn::Meta::NameValue(meta) = &attribute.meta else { return None };
        let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &meta.value else { return None };
        Some(text.value())
    })
}

/// True if only tests see what has these attributes.
pub fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let text = list.tokens.to_string();
            text == "test" || text.starts_with("all (test") || text.starts_with("all(test")
        }
        syn::Meta::Path(path) => path.is_ident("test"),
        _ => false,
    })
}

/// The attributes of an item.
pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
