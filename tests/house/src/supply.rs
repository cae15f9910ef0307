//! What the programs are made of that others wrote: whether its licences and sources are those that `deny.toml` allows,
//! and a bill of materials.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::{env, fs, io};

use serde_json::{Value, json};

/// A package of the workspace, or one that a package of it depends on.
#[derive(Clone, Debug)]
pub struct Supplied {
    /// Its name for cargo.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The licences that it says it has, as an expression.
    pub licence: String,
    /// Where it comes from; nowhere, if it is a member of the workspace.
    pub source: Option<String>,
    /// Of the file in which it comes, as the lock file has it.
    pub checksum: Option<String>,
    id: String,
    /// The packages that it depends on when it runs, by their ids.
    needs: Vec<String>,
}

/// What may be used.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Licences.
    pub licences: Vec<String>,
    /// Packages that are not to be used.
    pub banned: Vec<String>,
}

impl Policy {
    /// Reads as much of `deny.toml` as is needed here: lists of texts.
    pub fn parse(text: &str) -> Self {
        let (mut section, mut list) = (String::new(), None);
        let mut policy = Self::default();
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            if let Some(name) =
                line.strip_prefix('[').and_then(|line| line.strip_suffix(']')).filter(|_| list.is_none())
            {
                section = name.to_owned();
                continue;
            }
            let values = match line.split_once('=') {
                Some((key, value)) if list.is_none() && value.trim_start().starts_with('[') => {
                    list = Some(format!("{section}.{}", key.trim()));
                    value
                }
                _ => line,
            };
            let texts = values.split('"').skip(1).step_by(2).map(str::to_owned);
            match list.as_deref() {
                Some("licenses.allow") => policy.licences.extend(texts),
                Some("bans.deny") => policy.banned.extend(texts),
                _ => {}
            }
            if values.contains(']') {
                list = None;
            }
        }
        policy
    }

    /// What is against it.
    pub fn against(&self, all: &[Supplied]) -> Vec<String> {
        let mut found = Vec::new();
        let mut sources = BTreeSet::new();
        for one in all {
            let name = format!("{} {}", one.name, one.version);
            if self.banned.contains(&one.name) {
                found.push(format!("{name} is not to be used"));
            }
            if !allowed(&one.licence, &self.licences) {
                found.push(format!("{name} has the licence \"{}\"", one.licence));
            }
            let Some(source) = &one.source else { continue };
            if !source.starts_with("registry+") || one.checksum.is_none() {
                found.push(format!("{name} comes from {source}, with no checksum that is known"));
            }
            sources.insert(source);
        }
        if sources.len() > 1 {
            found.push(format!("packages come from several registries: {sources:?}"));
        }
        found
    }
}

/// A licence expression, word by word.
fn words(expression: &str) -> Vec<String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words: Vec<String> = Vec::new();
    for word in spaced.split_whitespace() {
        match words.last_mut() {
            Some(last) if word == "WITH" || last.ends_with(" WITH") => *last = format!("{last} {word}"),
            _ => words.push(word.to_owned()),
        }
    }
    words
}

/// Whether a licence expression leaves a choice that is allowed.
pub fn allowed(expression: &str, licences: &[String]) -> bool {
    let words = words(expression);
    let mut rest = &words[..];
    any(&mut rest, licences) && rest.is_empty()
}

fn any(rest: &mut &[String], licences: &[String]) -> bool {
    let mut found = all(rest, licences);
    while rest.first().is_some_and(|word| word == "OR") {
        *rest = &rest[1..];
        found |= all(rest, licences);
    }
    found
}

fn all(rest: &mut &[String], licences: &[String]) -> bool {
    let mut found = one(rest, licences);
    while rest.first().is_some_and(|word| word == "AND") {
        *rest = &rest[1..];
        found &= one(rest, licences);
    }
    found
}

fn one(rest: &mut &[String], licences: &[String]) -> bool {
    let Some((word, behind)) = rest.split_first() else { return false };
    *rest = behind;
    if word != "(" {
        return licences.contains(word);
    }
    let found = any(rest, licences);
    let closed = rest.first().is_some_and(|word| word == ")");
    *rest = rest.get(1..).unwrap_or_default();
    found && closed
}

/// All packages, for the machine that this runs on. Nothing is compiled or downloaded.
///
/// # Errors
///
/// What cargo says if it cannot tell.
pub fn supplied(root: &Path) -> io::Result<Vec<Supplied>> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let platform = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let output = Command::new(cargo)
        .args(["metadata", "--offline", "--locked", "--format-version", "1", "--filter-platform", &platform])
        .arg("--manifest-path")
        .arg(root.join("Cargo.toml"))
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let told: Value = serde_json::from_slice(&output.stdout)?;
    let checksums = checksums(&fs::read_to_string(root.join("Cargo.lock"))?);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let runs = |dep: &&Value| list(&dep["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
    let needs: BTreeMap<String, Vec<String>> = list(&told["resolve"]["nodes"])
        .iter()
        .map(|node| (text(&node["id"]), list(&node["deps"]).iter().filter(runs).map(|dep| text(&dep["pkg"])).collect()))
        .collect();
    let mut all: Vec<Supplied> = list(&told["packages"])
        .iter()
        .map(|package| {
            let (name, version, id) = (text(&package["name"]), text(&package["version"]), text(&package["id"]));
            Supplied {
                licence: text(&package["license"]),
                source: package["source"].as_str().map(str::to_owned),
                checksum: checksums.get(&(name.clone(), version.clone())).cloned(),
                needs: needs.get(&id).cloned().unwrap_or_default(),
                name,
                version,
                id,
            }
        })
        .collect();
    all.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(all)
}

/// Name and version of each package of a lock file, with its checksum.
pub fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let field = |package: &str, key: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
        line.and_then(|value| value.strip_suffix('"')).map(str::to_owned)
    };
    let packages = lock.split("[[package]]").skip(1);
    packages
        .filter_map(|package| {
            Some(((field(package, "name")?, field(package, "version")?), field(package, "checksum")?))
        })
        .collect()
}

/// What a program of the workspace is made of: itself, and all that it needs when it runs.
pub fn parts<'a>(all: &'a [Supplied], program: &str) -> Vec<&'a Supplied> {
    let by_id: BTreeMap<&str, &Supplied> = all.iter().map(|one| (&*one.id, one)).collect();
    let mut found = BTreeSet::new();
    let mut left: Vec<&Supplied> = all.iter().filter(|one| one.name == program && one.source.is_none()).collect();
    while let Some(one) = left.pop() {
        if found.insert(&*one.id) {
            left.extend(one.needs.iter().filter_map(|id| by_id.get(&**id)));
        }
    }
    all.iter().filter(|one| found.contains(&*one.id)).collect()
}

fn reference(one: &Supplied) -> String {
    format!("pkg:cargo/{}@{}", one.name, one.version)
}

/// A bill of materials of a program, as CycloneDX 1.5 wants it.
pub fn bill(all: &[Supplied], program: &str) -> Value {
    let parts = parts(all, program);
    let component = |one: &Supplied| {
        let kind = if one.name == program { "application" } else { "library" };
        let mut told = json!({
            "type": kind,
            "bom-ref": reference(one),
            "name": one.name,
            "version": one.version,
            "purl": reference(one),
            "licenses": [{ "expression": one.licence.replace(" / ", "/").replace('/', " OR ") }],
        });
        if let Some(checksum) = &one.checksum {
            told["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        told
    };
    let by_id: BTreeMap<&str, &Supplied> = all.iter().map(|one| (&*one.id, one)).collect();
    let needs = |one: &Supplied| -> BTreeSet<String> {
        one.needs.iter().filter_map(|id| by_id.get(&**id)).map(|one| reference(one)).collect()
    };
    let itself = parts.iter().find(|one| one.name == program).map(|one| component(one));
    let components: Vec<Value> = parts.iter().filter(|one| one.name != program).map(|one| component(one)).collect();
    let dependencies: Vec<Value> =
        parts.iter().map(|one| json!({ "ref": reference(one), "dependsOn": needs(one) })).collect();
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": itself },
        "components": components,
        "dependencies": dependencies,
    })
}
