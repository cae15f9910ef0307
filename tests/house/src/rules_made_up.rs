//! Each rule on small made-up trees: it finds what is against it, where it is, and nothing else.

use std::path::{Path, PathBuf};

use crate::rooms::Rooms;
use crate::rules::*;
use crate::source::{Crate, Files};
use crate::workspace::Package;

fn of(files: &[(&str, &str)]) -> Crate {
    Crate::read("made-up", &Files::made_up(files), Path::new("src/lib.rs")).unwrap()
}

const ROOMS: Rooms = Rooms { of: "made-up", levels: &["top", "left right", "low"], also: &["left -> right"] };

/// The crate of [`ROOMS`], with some text in place of its files' own.
fn house(changed: &[(&str, &str)]) -> Crate {
    let mut files = vec![
        ("src/lib.rs", "mod top; mod left; mod right; mod low; pub use top::Top;"),
        ("src/top/mod.rs", "mod inner; pub use inner::Top; use crate::low::Low; fn f(_: Low) { crate::left::go() }"),
        ("src/top/inner.rs", "use crate::right::Right; pub struct Top(Right);"),
        ("src/left.rs", "use crate::right::Right; pub fn go() {} pub struct Left(Right);"),
        ("src/right.rs", "use super::low; pub struct Right(low::Low); #[cfg(test)] mod tests { use crate::top::Top; }"),
        ("src/low.rs", "pub struct Low;"),
    ];
    for (path, text) in changed {
        match files.iter_mut().find(|(known, _)| known == path) {
            Some(file) => file.1 = text,
            None => files.push((path, text)),
        }
    }
    of(&files)
}

#[test]
fn what_goes_down_is_in_order() {
    assert_eq!(against_order(&house(&[]), &ROOMS), [""; 0]);
}

#[test]
fn what_goes_up_is_found_however_it_is_written() {
    let upward = |text| against_order(&house(&[("src/low.rs", text)]), &ROOMS);
    let ways = [
        ("pub struct Low;\nuse crate::top::Top;", "crate::top::Top"),
        ("pub struct Low;\nuse super::top::Top as T;", "super::top::Top"),
        ("pub struct Low;\nuse crate::{top::{Top, self}};", "crate::top::Top"),
        // Through the root, which only hands it on.
        ("pub struct Low;\nuse crate::Top;", "crate::Top"),
        ("pub struct Low;\nfn f(_: crate::top::Top) {}", "crate::top::Top"),
        ("use crate::top; pub struct Low;\nfn f(_: top::Top) {}", "top::Top"),
        ("use super::top::*; pub struct Low;\nfn f(_: Top) {}", "Top"),
        ("pub struct Low;\nfn f() { assert!(crate::top::Top::new().is_fine()) }", "crate::top::Top::new"),
        ("pub struct Low; fn f() {\nuse crate::top::Top; }", "crate::top::Top"),
        ("pub struct Low; mod inner {\nuse super::super::top::Top; }", "super::super::top::Top"),
    ];
    for (text, written) in ways {
        assert_eq!(upward(text), [format!("src/low.rs:2: {written}: low -> top")], "{text}");
    }
    let innocent = [
        "/// Not [`crate::top::Top`].\npub struct Low;",
        "pub struct Low; fn f() -> &'static str { \"crate::top::Top\" }",
        "pub struct Low; #[cfg(test)] mod tests { use crate::top::Top; }",
        "pub struct Low; fn f(top: Low) { let _ = top; }",
        "pub struct Low; pub(in crate) fn f(_: std::top::Top) {}",
    ];
    for text in innocent {
        assert_eq!(upward(text), [""; 0], "{text}");
    }
}

#[test]
fn a_room_that_hands_on_what_is_above_it_is_found() {
    let found = against_order(&house(&[("src/low.rs", "pub struct Low; pub use crate::top::Top;")]), &ROOMS);
    assert_eq!(found, ["src/low.rs:1: crate::top::Top: low -> top"]);
}

#[test]
fn rooms_on_one_level_ask_the_table() {
    let right = "pub struct Right; use crate::left::go;";
    let found = against_order(&house(&[("src/right.rs", right)]), &ROOMS);
    assert_eq!(found, ["src/right.rs:1: crate::left::go: right -> left"]);
}

#[test]
fn nobody_imports_from_the_root() {
    let low = "pub struct Low; fn f() -> u32 { crate::ANSWER }";
    let root = "mod top; mod left; mod right; mod low; const ANSWER: u32 = 42;";
    let found = against_order(&house(&[("src/low.rs", low), ("src/lib.rs", root)]), &ROOMS);
    assert_eq!(found, ["src/low.rs:1: crate::ANSWER: low -> crate"]);
}

#[test]
fn a_module_without_a_room_and_a_room_without_a_module_are_found() {
    let root = "mod top; mod left; mod right; mod low; mod shed;";
    let found = against_order(&house(&[("src/lib.rs", root), ("src/shed.rs", "")]), &ROOMS);
    assert_eq!(found, ["src/shed.rs: shed: in no room of the table"]);
    let rooms = Rooms { levels: &["top", "left right", "low", "cellar"], ..ROOMS };
    assert_eq!(against_order(&house(&[]), &rooms), ["room cellar of the table is not there"]);
}

#[test]
fn a_room_within_a_room() {
    let rooms = Rooms { of: "made-up", levels: &["a/x", "a b"], also: &[] };
    let tree =
        |b| of(&[("src/lib.rs", "mod a { pub mod x { pub fn f() { crate::b::f() } } } mod b;"), ("src/b.rs", b)]);
    assert_eq!(against_order(&tree("pub fn f() {}"), &rooms), [""; 0]);
    let found = against_order(&tree("pub fn f() { crate::a::x::f() }"), &rooms);
    assert_eq!(found, ["src/b.rs:1: crate::a::x::f: b -> a/x"]);
}

#[test]
fn a_circle_is_told_with_all_its_arrows() {
    let files = [
        ("src/lib.rs", "mod a; mod b; mod c; mod d;"),
        ("src/a.rs", "use crate::b::B;\npub struct A(B);"),
        ("src/b.rs", "\nuse crate::c::C;\npub struct B(C);"),
        ("src/c.rs", "pub struct C; fn f() {\n\ncrate::a::A::new() }"),
        ("src/d.rs", "use crate::a::A;"),
    ];
    let found = circles(&of(&files));
    assert_eq!(found.len(), 1, "{found:?}");
    let arrows = ["src/a.rs:1: crate::b::B", "src/b.rs:2: crate::c::C", "src/c.rs:3: crate::a::A::new"];
    assert!(arrows.iter().all(|arrow| found[0].contains(arrow)), "{}", found[0]);
    assert!(found[0].starts_with("3 files in circles"), "{}", found[0]);
}

#[test]
fn a_child_that_uses_what_its_parent_defines_makes_a_circle_if_the_parent_uses_it() {
    let tree = |parent, child| of(&[("src/lib.rs", "mod a;"), ("src/a/mod.rs", parent), ("src/a/child.rs", child)]);
    let child = "use super::X; pub fn f(_: X) {}";
    assert_eq!(circles(&tree("mod child; pub struct X; fn g() { child::f(X) }", child)).len(), 1);
    assert_eq!(circles(&tree("mod child; use child::f; pub struct X;", child)).len(), 1);
    assert_eq!(circles(&tree("mod child; pub struct X; fn g() { self::child::f(X) }", child)).len(), 1);
    // The parent does not use the child, but only hands it on.
    assert_eq!(circles(&tree("mod child; pub use child::f; pub struct X;", child)), [""; 0]);
    // The child uses what is the parent's, but in tests alone.
    let tested = "pub fn f() {} #[cfg(test)] mod tests { use super::super::X; }";
    assert_eq!(circles(&tree("mod child; pub struct X; fn g() { child::f() }", tested)), [""; 0]);
}

#[test]
fn handing_on_makes_no_circle() {
    let files = [
        ("src/lib.rs", "mod a; mod check; pub use a::{X, Y}; pub use check::check;"),
        ("src/a/mod.rs", "mod x; mod y; pub use x::X; pub(crate) use y::*;"),
        ("src/a/x.rs", "use super::Y; pub struct X(Y);"),
        ("src/a/y.rs", "pub struct Y;"),
        // A module and a function of one name.
        ("src/check.rs", "use crate::X; pub fn check(_: X) {}"),
    ];
    assert_eq!(circles(&of(&files)), [""; 0]);
    // But a name is found through any number of modules that hand it on.
    let mut files = files;
    files[3].1 = "use crate::check; pub struct Y; fn f() { check::check() }";
    assert_eq!(circles(&of(&files)).len(), 1);
}

#[test]
fn a_file_is_no_circle_by_itself() {
    let files =
        [("src/lib.rs", "mod a { use super::b::B; pub struct A(B); } mod b { use super::a::A; pub struct B; }")];
    assert_eq!(circles(&of(&files)), [""; 0]);
}

#[test]
fn fuser_is_found_outside_of_its_room() {
    let tree = |elsewhere| {
        let files = [
            ("src/lib.rs", "mod kernel; mod elsewhere;"),
            ("src/kernel.rs", "use fuser::Request; fn f(_: fuser::Reply) {}"),
            ("src/elsewhere.rs", elsewhere),
        ];
        foreign_outside(&of(&files), "fuser", "src/kernel.rs")
    };
    assert_eq!(tree("use fuser::{Reply, Request};").len(), 2);
    assert_eq!(tree("use fuser;"), ["src/elsewhere.rs:1: fuser"]);
    assert_eq!(tree("use ::fuser::Reply as R;"), ["src/elsewhere.rs:1: fuser::Reply"]);
    assert_eq!(tree("fn f() { log::warn!(\"{}\", fuser::A) }"), ["src/elsewhere.rs:1: fuser::A"]);
    // A word in a comment or a string, and a variable.
    assert_eq!(tree("//! fuser::Reply\nfn f(fuser: &str) { let _ = (\"fuser::Reply\", fuser); }"), [""; 0]);
}

#[test]
fn what_is_not_listed_is_found_outside_of_its_room() {
    let tree = |elsewhere| {
        let files = [
            ("src/lib.rs", "mod reader; mod elsewhere;"),
            ("src/reader.rs", "use formats::parse; fn f() { parse() }"),
            ("src/elsewhere.rs", elsewhere),
        ];
        unlisted_outside(&of(&files), "formats", &["Tensor", "crc"], &["src/reader.rs"])
    };
    assert_eq!(tree("use formats::{Tensor, crc}; fn f(_: formats::Tensor) { formats::crc() }"), [""; 0]);
    let found = ["src/elsewhere.rs:1: formats::parse"];
    assert_eq!(tree("use formats::{Tensor, parse};"), found);
    assert_eq!(tree("use formats::parse as crc;"), found);
    assert_eq!(tree("fn f() { formats::parse() }"), found);
    assert_eq!(tree("fn f() { vec![formats::parse()] }"), found);
    for whole in ["use formats::{self as it, Tensor};", "use formats as it;", "use formats::*;", "pub use formats;"] {
        assert_eq!(tree(whole), ["src/elsewhere.rs:1: formats"], "{whole}");
    }
    assert_eq!(tree("#[cfg(test)] mod tests { use formats::parse; }"), [""; 0]);
}

fn package(name: &str, dependencies: &[&str]) -> Package {
    let dependencies = dependencies.iter().map(|name| (*name).to_owned()).collect();
    Package { name: name.to_owned(), directory: PathBuf::from(name), targets: Vec::new(), dependencies }
}

#[test]
fn crates_that_depend_upwards_are_found() {
    let order = ["top", "low"];
    let good = [package("top", &["low", "libc"]), package("low", &["libc"]), package("tests", &["low", "top"])];
    assert_eq!(crates_against_order(&good, &order), [""; 0]);
    let bad = [package("top", &[]), package("low", &["top", "tests"]), package("tests", &[])];
    assert_eq!(crates_against_order(&bad, &order), ["low/Cargo.toml: low -> top", "low/Cargo.toml: low -> tests"]);
}

#[test]
fn a_network_is_found_however_far_away() {
    let lock = r#"
[[package]]
name = "fs"
dependencies = [
 "libc",
 "web 1.0.2",
]

[[package]]
name = "web"
version = "1.0.2"
dependencies = [
 "tokio",
]

[[package]]
name = "remote"
dependencies = [
 "web",
]

[[package]]
name = "mount"
dependencies = [
 "remote",
]
"#;
    let members = [package("fs", &[]), package("mount", &[]), package("remote", &[])];
    let found = brings(lock, &members, &["tokio", "rustls"], "remote");
    assert_eq!(found, ["Cargo.lock: fs is built with tokio, because web is"]);
}

#[test]
fn large_structs_are_found() {
    let tree = of(&[("src/lib.rs", "mod a;"), ("src/a.rs", "struct S { a: u8, b: u8, c: u8 }\nstruct T(u8, u8);")]);
    assert_eq!(large_structs(&tree, 3, &[]), [""; 0]);
    assert_eq!(large_structs(&tree, 2, &[]), ["src/a.rs:1: S has 3 fields"]);
    assert_eq!(large_structs(&tree, 2, &[("a::S", "a reason")]), [""; 0]);
    assert_eq!(large_structs(&tree, 2, &[("b::S", "of another module")]).len(), 1);
    let found = large_structs(&tree, 2, &[]);
    assert_eq!(needless(&[("a::S", "a reason")], &found), [""; 0]);
    assert_eq!(needless(&[("a::T", "a reason")], &found), ["a::T needs no exception"]);
}

#[test]
fn state_that_others_see_is_found() {
    let rooms = Rooms { of: "made-up", levels: &["room"], also: &[] };
    let shown = |text| {
        let files = [("src/lib.rs", "mod room;"), ("src/room/mod.rs", "mod a;"), ("src/room/a.rs", text)];
        !shown_state(&of(&files), Some(&rooms), &[]).is_empty()
    };
    let bad = [
        "pub struct S { pub a: u8 } impl S { fn set(&mut self) {} }",
        "pub struct S { a: Mutex<u8>, pub(crate) b: u8 }",
        "pub struct S { pub a: std::sync::atomic::AtomicU64 }",
        "pub struct S { pub a: HashMap<u8, Mutex<u8>> }",
        "pub struct S(pub Inner); struct Inner { a: RwLock<u8> }",
        "pub struct S { pub a: u8 } struct T(Mutex<S>);",
        "pub struct S { pub a: u8 } impl Iterator for S { fn next(&mut self) {} }",
    ];
    let good = [
        // Plain data.
        "pub struct S { pub a: u8 } impl S { fn get(&self) -> u8 { self.a } fn made(mut self) -> Self { self } }",
        // State that keeps to itself, or to its room.
        "pub struct S { a: Mutex<u8> }",
        "pub struct S { pub(super) a: Mutex<u8>, pub(in crate::room) b: u8, pub(self) c: u8 }",
        "struct S { pub a: Mutex<u8> }",
        "pub(super) struct S { pub a: Mutex<u8> }",
        // It has something else's state at hand.
        "pub struct S { pub a: Arc<Inner> } struct Inner { a: RwLock<u8> }",
        "pub struct S<'a> { pub a: &'a Inner } struct Inner { a: RwLock<u8> }",
        // Nothing but its end changes it.
        "pub struct S { pub a: u8 } impl Drop for S { fn drop(&mut self) {} }",
    ];
    for text in bad {
        assert!(shown(text), "{text}");
    }
    for text in good {
        assert!(!shown(text), "{text}");
    }
    let bad = [("src/lib.rs", "mod a;"), ("src/a.rs", "\npub struct S { pub a: Mutex<u8>, b: u8 }")];
    let found = shown_state(&of(&bad), None, &[]);
    assert_eq!(found, ["src/a.rs:2: S shows a beyond its room, and is state: a changes while it is shared"]);
    // A crate without rooms is one.
    let good = [("src/lib.rs", "mod a;"), ("src/a.rs", "pub struct S { pub(crate) a: Mutex<u8> }")];
    assert_eq!(shown_state(&of(&good), None, &[]), [""; 0]);
    assert_eq!(shown_state(&of(&good), Some(&rooms), &[]).len(), 1);
}

#[test]
fn wide_lines_are_found() {
    let files = Files::made_up(&[("a.rs", "// 34567890\n// ä4567890\n// 345678901\n")]);
    assert_eq!(wide_lines(&files, 11), ["a.rs:3: 12 characters"]);
}

#[test]
fn what_reaches_a_file_by_its_path_is_found() {
    let found = |text: &str| paths(&Files::made_up(&[("rooms/a.rs", text)]), "rooms", &[]).len();
    for bad in [
        "fn f() { std::fs::read_to_string(path) }",
        "let file = File::open(&path)?;",
        "let real = dir.canonicalize()?;",
        "let log = pool.join(\"log\");",
        "let log = pool.join(LOG);",
        "if path.exists() {",
    ] {
        assert_eq!(found(bad), 1, "{bad}");
        assert_eq!(found(&format!("#[cfg(test)]\nmod tests {{\n{bad}\n}}")), 0, "{bad}");
        assert_eq!(found(&format!("// {bad}")), 0, "{bad}");
        let excepted = [("rooms/a.rs", "it is allowed to")];
        assert_eq!(paths(&Files::made_up(&[("rooms/a.rs", bad)]), "rooms", &excepted), [""; 0]);
        assert_eq!(paths(&Files::made_up(&[("a.rs", bad)]), "rooms", &[]), [""; 0]);
    }
    for good in ["names.join(\", \")", "thread.join().unwrap()", "dir.open_file(LOG, flags)", "use std::fs::File;"] {
        assert_eq!(found(good), 0, "{good}");
    }
}

#[test]
fn words_that_a_room_does_not_say_are_found() {
    let files = Files::made_up(&[("a/b.rs", "// \"x\"\nlet x = \"x\";\n#[cfg(test)]\nmod tests { \"x\" }")]);
    assert_eq!(says(&files, "a", &["\"x\""]), ["a/b.rs:2: let x = \"x\";"]);
    assert_eq!(says(&files, "b", &["\"x\""]), [""; 0]);
}

#[test]
fn comments_that_lean_are_found() {
    let found = |text: &str| leaning_comments(&Files::made_up(&[("a.rs", text)]), &["The same"]).len();
    let mark = "//";
    for begin in ["The same", "The same.", "The same for a file, but not"] {
        assert_eq!(found(&format!("{mark}/ {begin}\nfn f() {{}}")), 1);
        assert_eq!(found(&format!("{mark}! {begin}\nfn f() {{}}")), 1);
        assert_eq!(found(&format!("fn f() {{\n    {mark} {begin}\n}}")), 1);
        assert_eq!(found(&format!("fn f() {{}} {mark} {begin}")), 1);
    }
    assert_eq!(found(&format!("{mark} Both are\n{mark} The same for all.\nfn f() {{}}")), 0);
    assert_eq!(found(&format!("fn f() -> &'static str {{ \"{mark} The same\" }}")), 0);
    assert_eq!(found(&format!("const C: &str = r#\"\n{mark} The same\n\"#;")), 0);
    assert_eq!(found(&format!("{mark} The sameness\n")), 0);
}
