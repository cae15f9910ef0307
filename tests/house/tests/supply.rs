//! Holds what others wrote to `deny.toml`, and the bill of materials to what the program is made of.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tensorfs_house::supply::{Policy, allowed, bill, checksums, parts, supplied};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn policy() -> Policy {
    Policy::parse(&fs::read_to_string(root().join("deny.toml")).unwrap())
}

#[test]
fn what_others_wrote_is_what_may_be_used() {
    let (policy, all) = (policy(), supplied(&root()).unwrap());
    assert!(all.len() > 50 && !policy.licences.is_empty() && !policy.banned.is_empty(), "{} packages", all.len());
    let found = policy.against(&all);
    assert!(found.is_empty(), "against deny.toml:\n{}", found.join("\n"));
    // Each rule is one.
    let mut other = all.iter().find(|one| one.source.is_some()).unwrap().clone();
    other.licence = "GPL-3.0-only".into();
    assert_eq!(policy.against(std::slice::from_ref(&other)).len(), 1);
    (other.licence, other.name) = ("MIT".into(), policy.banned[0].clone());
    assert_eq!(policy.against(std::slice::from_ref(&other)).len(), 1);
    (other.name, other.source) = ("x".into(), Some("git+https://example.org/x".into()));
    assert_eq!(policy.against(std::slice::from_ref(&other)).len(), 1);
}

#[test]
fn a_licence_must_leave_a_choice_that_is_allowed() {
    let licences = ["MIT", "Apache-2.0", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
    for expression in
        ["MIT", "Apache-2.0 OR GPL-2.0", "GPL-2.0/MIT", "(MIT OR X) AND Unicode-3.0", "Apache-2.0 WITH LLVM-exception"]
    {
        assert!(allowed(expression, &licences), "{expression}");
    }
    for expression in ["", "GPL-2.0", "MIT AND GPL-2.0", "(MIT OR X) AND Y", "MIT WITH X", "(MIT", "MIT Apache-2.0"] {
        assert!(!allowed(expression, &licences), "{expression}");
    }
}

#[test]
fn the_bill_of_materials_has_every_part_of_the_program() {
    let all = supplied(&root()).unwrap();
    let told = bill(&all, "tensorfs");
    assert_eq!((told["bomFormat"].as_str(), told["specVersion"].as_str()), (Some("CycloneDX"), Some("1.5")));
    assert_eq!(told["metadata"]["component"]["name"], "tensorfs");
    let components = told["components"].as_array().unwrap();
    let lock = checksums(&fs::read_to_string(root().join("Cargo.lock")).unwrap());
    let mut references = BTreeSet::new();
    for component in components {
        let text = |key: &str| component[key].as_str().unwrap().to_owned();
        let (name, version) = (text("name"), text("version"));
        assert_eq!(text("purl"), format!("pkg:cargo/{name}@{version}"));
        assert!(references.insert(text("bom-ref")), "{name} {version} is there twice");
        let licence = component["licenses"][0]["expression"].as_str().unwrap();
        assert!(allowed(licence, &policy().licences), "{name}: {licence}");
        if !name.starts_with("tensorfs") {
            let hash = &component["hashes"][0];
            assert_eq!(hash["alg"], "SHA-256");
            assert_eq!(hash["content"].as_str(), lock.get(&(name, version)).map(String::as_str));
        }
    }
    for name in ["tensorfs-fs", "tensorfs-layout", "tensorfs-formats", "fuser", "libc", "crc32c"] {
        assert!(components.iter().any(|component| component["name"] == name), "{name} is missing");
    }
    // What only tests need is no part of it.
    assert!(parts(&all, "tensorfs").len() < all.len());
    assert!(!components.iter().any(|component| component["name"] == "tensorfs-house"));
    for dependency in told["dependencies"].as_array().unwrap() {
        for on in dependency["dependsOn"].as_array().unwrap() {
            assert!(references.contains(on.as_str().unwrap()), "{on}");
        }
    }
}
