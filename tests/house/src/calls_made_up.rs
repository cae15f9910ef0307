//! Calls in small made-up crates.

use std::path::Path;

use crate::calls::Calls;
use crate::names::Names;
use crate::source::{Crate, Files};

/// What `start` reaches in a crate of one file, sorted, without itself.
fn reached(text: &str) -> Vec<String> {
    let of = Crate::read("made-up", &Files::made_up(&[("src/lib.rs", text)]), Path::new("src/lib.rs")).unwrap();
    let calls = Calls::of(&Names::new(&of));
    let start = calls.find("start")[0];
    let reach = calls.reach(start).by.into_keys().filter(|id| *id != start);
    let name = |id: usize| match &calls.functions[id].owner {
        Some(owner) => format!("{owner}::{}", calls.functions[id].name),
        None => calls.functions[id].name.clone(),
    };
    let mut names: Vec<_> = reach.map(name).collect();
    names.sort();
    names
}

const TYPES: &str = "
    struct A { b: Arc<Mutex<B>>, list: Vec<B>, map: HashMap<u32, B>, lent: Lent }
    struct B; impl B { fn go(&self) { end() } fn get(&self) {} }
    struct C; impl C { fn go(&self) {} fn get(&self, _: u32) {} fn new() -> Self { C } }
    struct Lent; impl Deref for Lent { type Target = B; fn deref(&self) -> &B { loop {} } }
    enum Either { Left(B), Right { c: C } }
    trait Walk { fn walk(&self); fn run(&self) { self.walk() } }
    impl Walk for B { fn walk(&self) { end() } }
    impl Walk for C { fn walk(&self) {} }
    fn end() {}
    fn with(f: impl FnOnce(&B) -> u32) {}
    fn made() -> io::Result<Option<B>> { loop {} }
";

#[test]
fn a_method_is_that_of_the_receivers_type_where_that_can_be_told() {
    let ways = [
        "fn start(b: &B) { b.go() }",
        "fn start(b: &mut Arc<B>) { b.clone().go() }",
        "impl A { fn start(&self) { self.b.lock().go() } }",
        "impl A { fn start(&self) { self.list.iter().for_each(|b| b.go()) } }",
        "impl A { fn start(&self) { for b in &self.list { b.go() } } }",
        "impl A { fn start(&self) { self.map.retain(|_, b| b.go()) } }",
        "impl A { fn start(&self) { if let Some(b) = self.map.get(&3) { b.go() } } }",
        "impl A { fn start(&self) { self.lent.go() } }",
        "impl B { fn start(&self) { Self::go(self) } }",
        "fn start(of: Either) { match of { Either::Left(b) => b.go(), Either::Right { c } => loop {} } }",
        "fn start((_, b): (C, B)) { b.go() }",
        "fn start(list: &[B]) { list[0].go(); list.iter().for_each(B::go) }",
        "fn start(b: &B) { assert!(b.go(), \"{}\", 3) }",
        "fn start(b: &B) { thread::spawn(move || b.go()) }",
        "fn start(b: &B) { let b = b; { let b = C; } b.go() }",
    ];
    for way in ways {
        let found: Vec<_> =
            reached(&format!("{TYPES} {way}")).into_iter().filter(|name| name != "Lent::deref").collect();
        assert_eq!(found, ["B::go", "end"], "{way}");
    }
    assert_eq!(reached(&format!("{TYPES} fn start() {{ C::new().go() }}")), ["C::go", "C::new"]);
    assert_eq!(reached(&format!("{TYPES} fn start() {{ with(|b| b.go()) }}")), ["B::go", "end", "with"]);
    let result = format!("{TYPES} fn start() -> io::Result<()> {{ made()?.unwrap().go(); Ok(()) }}");
    assert_eq!(reached(&result), ["B::go", "end", "made"]);
}

#[test]
fn a_method_of_what_cannot_be_told_is_any_of_that_name_and_number_of_arguments() {
    assert_eq!(reached(&format!("{TYPES} fn start<T>(t: T) {{ t.go() }}")), ["B::go", "C::go", "end"]);
    assert_eq!(reached(&format!("{TYPES} fn start<T>(t: T) {{ t.get() }}")), ["B::get"]);
}

#[test]
fn a_method_of_another_crates_type_is_none_of_this_one() {
    let none = [
        "use other::Other; fn start(of: &Other) { of.get(); of.part().go() }",
        "fn start(of: &HashMap<u32, B>) { of.get(&3); }",
        "fn start() { String::new().go() }",
    ];
    for way in none {
        assert_eq!(reached(&format!("{TYPES} {way}")), [""; 0], "{way}");
    }
}

#[test]
fn a_trait_stands_for_all_who_implement_it() {
    let all = ["B::walk", "C::walk", "Walk::run", "end"];
    assert_eq!(reached(&format!("{TYPES} fn start(of: &dyn Walk) {{ of.run() }}")), all);
    assert_eq!(reached(&format!("{TYPES} fn start<W: Walk>(of: W) {{ of.run() }}")), all);
}

#[test]
fn locks_are_found() {
    let text = format!("{TYPES} impl A {{ fn start(&self) {{ self.b.lock(); self.b.write(3); self.list.len(); }} }}");
    let of = Crate::read("made-up", &Files::made_up(&[("src/lib.rs", &text)]), Path::new("src/lib.rs")).unwrap();
    let calls = Calls::of(&Names::new(&of));
    assert_eq!(calls.locks(calls.find("A::start")[0]), ["self.b.lock()"]);
    assert_eq!(calls.find("B::start"), [0; 0]);
}
