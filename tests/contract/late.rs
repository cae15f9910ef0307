//! How long others take while the host is late: the table in docs/RELIABILITY.md.
//!
//! `TENSORFS_PRINT_TABLE=1` prints it. So that one figure can be looked at, a part of it can be had again and again:
//!
//! | variable | is |
//! |---|---|
//! | `TENSORFS_TABLE_KIND` | `Plain`, `NearLimit`, `Kept`: what is mounted; several with commas |
//! | `TENSORFS_TABLE_ROWS` | rows whose names contain this; several with commas |
//! | `TENSORFS_TABLE_TIMES` | so often each row |
//! | `TENSORFS_TABLE_BOUND` | by so many milliseconds something may take longer (default: 1000, for any machine) |

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tensorfs_tests::{Call, HostCalls, Injected, Mount, Rule, Setup, on_mounts, wait_until, xattr};

use crate::waiting::{CASES, CREATE, Case, Kind, MANY, SIZE, others, wait_for_held, wait_for_spares, writer};

on_mounts!(others_hardly_take_longer_while_calls_of_the_host_are_late);

/// A row of the table: what is late, and who makes it so.
struct Row {
    name: &'static str,
    call: Call,
    about: About,
    /// Where the files are that it is about, if it is not the pool itself.
    tier: Option<&'static str>,
    /// So many calls are late at one time.
    most: usize,
    /// The server makes the call of itself, when the files are written.
    by_itself: bool,
    /// What becomes of the files before.
    prepare: fn(&Mount, &[PathBuf]),
    act: Act,
    /// Those who act do not wait for what is late, either.
    at_once: bool,
}

/// Calls on what.
#[derive(Clone, Copy)]
enum About {
    /// In the pool, with this in its path.
    Pool(&'static str),
    /// In the tier, with this in its path.
    Tier(&'static str),
}

enum Act {
    /// Eight programs, each with a file of its own.
    Each(fn(&Path, usize)),
    /// One that goes on until a call is late.
    Until(fn(&Path, u64)),
}

impl Row {
    fn of(case: &Case) -> Self {
        Self::new(case.name, case.call, About::Pool(case.on), case.act)
    }

    fn new(name: &'static str, call: Call, about: About, act: fn(&Path, usize)) -> Self {
        let (tier, prepare, act) = (None, |_: &Mount, _: &[PathBuf]| (), Act::Each(act));
        Self { name, call, about, tier, most: MANY, by_itself: false, prepare, act, at_once: false }
    }
}

/// Tiers beside the pool: what is set aside in the first gets a second name there; in the other one's place for that
/// stands something else, so that it is copied.
const TIER: &str = "ssd";
const TIER_TO_COPY: &str = "odd";

fn rows() -> Vec<Row> {
    let in_tier = |row: Row, tier| Row { tier: Some(tier), ..row };
    let seal = |mount: &Mount, paths: &[PathBuf]| {
        let paths = paths.iter().map(|path| path.as_os_str());
        mount.tensorfs_ok(std::iter::once("seal".as_ref()).chain(paths));
    };
    let change = |path: &Path, _| writer(path).write_all_at(b"changed", 0).unwrap();
    // A program that is killed in the middle of a replace.
    let killed = |path: &Path, _| {
        let script = r#"exec 3>"$1"; echo half >&3; kill -9 $$"#;
        assert!(!Command::new("sh").args(["-c", script, "sh"]).arg(path).status().unwrap().success());
    };
    let remove_or_rename_over = |path: &Path, who: usize| {
        if who.is_multiple_of(2) {
            fs::remove_file(path).unwrap();
        } else {
            fs::write(path.with_file_name("new"), "new").unwrap();
            fs::rename(path.with_file_name("new"), path).unwrap();
        }
    };
    let fill = |dir: &Path, n: u64| {
        let dir = dir.join(n.to_string());
        fs::create_dir(&dir).unwrap();
        // Near its limit the pool has no room for all of them.
        let _ = xattr::set(&dir, "user.a", &[7; 60_000], 0);
    };
    let moved = |path: &Path, _| xattr::set(path, "user.tensorfs.tier", TIER.as_bytes(), 0).unwrap();
    let of_cases = CASES.iter().map(Row::of);
    let more = [
        Row {
            most: 1,
            prepare: seal,
            ..Row::new("open a sealed file and write it", Call::Fdatasync, About::Pool("/log"), change)
        },
        in_tier(Row::new("replace of a file on a tier", Call::Link, About::Tier("/quarantine"), killed), TIER),
        in_tier(
            Row::new("replace of a file on a tier, by a copy", Call::Write, About::Pool("/quarantine/"), killed),
            TIER_TO_COPY,
        ),
        Row {
            most: 1,
            by_itself: true,
            at_once: true,
            ..Row::new("seal, and remove or rename over", Call::Read, About::Pool("/segments/"), remove_or_rename_over)
        },
        Row {
            most: 1,
            act: Act::Until(fill),
            ..Row::new("the log gets longer", Call::Fsync, About::Pool("/log"), |_, _| ())
        },
        Row::new("move to a tier", Call::Copy, About::Tier(""), moved),
    ];
    of_cases.chain(more).collect()
}

/// What somebody does, and its name. He notes when he comes how far.
type Named = (&'static str, Box<dyn Fn(&mut Steps)>);
type Steps = Vec<(&'static str, Instant)>;

/// What others do, each on files of their own.
fn each_other(mount: &Mount) -> Vec<Named> {
    let dir = mount.at("others");
    let at = |name: &str| dir.join(name);
    let (made, read, new, newer) = (at("made"), at("read"), at("new"), at("newer"));
    let (open, written, root) = (writer(&at("written")), read.clone(), mount.path().to_owned());
    vec![
        (
            "mkdir, rmdir",
            Box::new(move |steps| {
                fs::create_dir(&made).unwrap();
                steps.push(("mkdir", Instant::now()));
                fs::remove_dir(&made).unwrap();
            }),
        ),
        ("stat", Box::new(move |_| assert_eq!(fs::metadata(&written).unwrap().len(), SIZE as u64))),
        ("open and read", Box::new(move |_| assert_eq!(fs::read(&read).unwrap().len(), SIZE))),
        ("write", Box::new(move |_| open.write_all_at(b"more", 0).unwrap())),
        (
            "create, rename, remove",
            Box::new(move |steps| {
                let file = File::create(&new).unwrap();
                steps.push(("create", Instant::now()));
                file.write_all_at(b"new", 0).unwrap();
                steps.push(("write", Instant::now()));
                drop(file);
                steps.push(("close", Instant::now()));
                fs::rename(&new, &newer).unwrap();
                steps.push(("rename", Instant::now()));
                fs::remove_file(&newer).unwrap();
            }),
        ),
        ("list", Box::new(move |_| assert!(fs::read_dir(&root).unwrap().flatten().count() > 0))),
    ]
}

/// What somebody's doings took, in milliseconds.
struct Figures {
    median: f64,
    longest: f64,
    /// When the longest began, after what is timed did, and what it consisted of.
    of_longest: String,
}

/// Does each of them for a while, with so much `rest` in between.
fn timed(others: &[Named], rest: Duration) -> Vec<Figures> {
    let mut took = vec![Vec::new(); others.len()];
    let mut longest = vec![(0.0, String::new()); others.len()];
    let all = Instant::now();
    let ms = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1000.0;
    while all.elapsed() < Duration::from_secs(2) {
        for (((_, act), took), longest) in others.iter().zip(&mut took).zip(&mut longest) {
            let (begun, mut steps) = (Instant::now(), Steps::new());
            act(&mut steps);
            let over = Instant::now();
            took.push(ms(begun, over));
            if ms(begun, over) > longest.0 {
                steps.push(("the rest", over));
                let mut last = begun;
                let steps =
                    steps.iter().map(|(name, at)| format!("{name} {:.1}", ms(std::mem::replace(&mut last, *at), *at)));
                let steps: Vec<String> = steps.collect();
                *longest = (ms(begun, over), format!("begun after {:.0} ms: {}", ms(all, begun), steps.join(", ")));
            }
        }
        thread::sleep(rest);
    }
    let figures = took.into_iter().zip(longest).map(|(mut took, (longest, of_longest))| {
        took.sort_by(f64::total_cmp);
        Figures { median: took[took.len() / 2], longest, of_longest }
    });
    figures.collect()
}

/// What a variable says, or what holds without it.
fn set<T: std::str::FromStr>(variable: &str, without: T) -> T {
    let value = |text: String| text.parse().unwrap_or_else(|_| panic!("{variable}: {text}: not a number"));
    std::env::var(variable).map_or(without, value)
}

/// The words of a variable that names some of several things; all are meant if it is not set.
fn chosen(variable: &str) -> impl Fn(&str) -> bool {
    let words: Option<Vec<String>> = std::env::var(variable)
        .ok()
        .map(|words| words.split(',').map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect());
    move |name| words.as_ref().is_none_or(|words| words.iter().any(|word| name.contains(word)))
}

/// What others do takes two seconds here, within the five that the calls of eight programs are late.
///
/// Proves W1.
fn others_hardly_take_longer_while_calls_of_the_host_are_late(setup: Setup) {
    if std::env::var_os("TENSORFS_PRINT_TABLE").is_none() {
        return setup.skip("TENSORFS_PRINT_TABLE is not set: it takes minutes");
    }
    let kinds = [Kind::Plain, Kind::NearLimit, Kind::Kept];
    let is_chosen = chosen("TENSORFS_TABLE_KIND");
    let mut too_long = Vec::new();
    for kind in kinds.into_iter().filter(|kind| is_chosen(&format!("{kind:?}"))) {
        too_long.extend(Table::print(kind, setup.clone()));
    }
    assert!(too_long.is_empty(), "others took longer:\n{}", too_long.join("\n"));
}

struct Table {
    mount: Mount,
    calls: HostCalls,
    others: Vec<Named>,
    /// Near the limit, who makes and removes files without any soon has to wait for a commit (S3).
    rest: Duration,
}

impl Table {
    /// Prints it; returns what took longer than it may.
    fn print(kind: Kind, setup: Setup) -> Vec<String> {
        let (calls, passthrough) = (HostCalls::new(), setup.passthrough());
        let mut mount = kind.mount(setup.host_calls(&calls));
        if mount.is_plain() {
            return Vec::new();
        }
        mount.umount();
        for tier in [TIER, TIER_TO_COPY] {
            mount.add_tier(tier, &mount.host().join(tier));
        }
        let no_place = mount.host().join(TIER_TO_COPY).join("quarantine");
        let _ = fs::remove_dir(&no_place);
        fs::write(no_place, "something else").unwrap();
        mount.mount();
        drop(others(&mount));
        let rest = if kind == Kind::NearLimit { Duration::from_millis(1) } else { Duration::ZERO };
        let table = Self { others: each_other(&mount), mount, calls, rest };
        let names: Vec<&str> = table.others.iter().map(|(name, _)| *name).collect();
        println!("passthrough={passthrough:?} {kind:?}\n| late | call | {} |", names.join(" | "));
        let before = timed(&table.others, table.rest);
        print_row("nothing", "-", &before);
        let (is_chosen, bound) = (chosen("TENSORFS_TABLE_ROWS"), set("TENSORFS_TABLE_BOUND", 1000.0));
        let only = |name: &str| CASES.iter().find(|case| case.name == name).and_then(|case| case.only);
        let rows = rows().into_iter().filter(|row| only(row.name).is_none_or(|only| only == passthrough));
        let (mut too_long, mut printed) = (Vec::new(), 0);
        for row in rows.filter(|row| is_chosen(row.name)) {
            for time in 0..set("TENSORFS_TABLE_TIMES", 1) {
                let figures = table.measure(&row, printed);
                printed += 1;
                print_row(row.name, &format!("{:?}", row.call), &figures);
                for ((name, now), before) in names.iter().zip(figures).zip(&before) {
                    if now.longest > before.longest + bound {
                        let (beside, place) = (row.name, format!("{passthrough:?}, {kind:?}, time {time}"));
                        let what = format!(
                            "{name} beside {beside} ({place}): {:.1} ms beside {:.1}, {}",
                            now.longest, before.longest, now.of_longest
                        );
                        println!("{what}");
                        too_long.push(what);
                    }
                }
            }
        }
        assert!(printed > 0, "TENSORFS_TABLE_ROWS: no row is called so");
        too_long
    }

    fn files(&self, row: &Row, number: usize) -> Vec<PathBuf> {
        let make = |who: usize| {
            let dir = self.mount.at(format!("row-{number}-{who}"));
            fs::create_dir(&dir).unwrap();
            if let Some(tier) = row.tier {
                xattr::set(&dir, "user.tensorfs.tier", tier.as_bytes(), 0).unwrap();
            }
            fs::write(dir.join("f"), vec![7; SIZE]).unwrap();
            dir.join("f")
        };
        let files = (0..MANY).map(make).collect();
        self.mount.sync();
        files
    }

    fn rule(&self, row: &Row) -> Injected {
        let rule = match row.about {
            About::Pool(part) => Rule::of(row.call).on(part),
            About::Tier(part) => Rule::of(row.call).below(&self.mount.host().join(TIER)).on(part),
        };
        self.calls.add(rule.times(row.most as u64).delay(Duration::from_secs(5)))
    }

    /// What others take while it is late.
    fn measure(&self, row: &Row, number: usize) -> Vec<Figures> {
        let early = row.by_itself.then(|| self.rule(row));
        let paths = self.files(row, number);
        (row.prepare)(&self.mount, &paths);
        if row.name == CREATE {
            wait_for_spares(&self.mount);
        }
        let late = early.unwrap_or_else(|| self.rule(row));
        if row.by_itself {
            late.wait_for_waiting(1);
        }
        let actors = self.start(row, &paths, &late);
        wait_for_held(&late, row.most);
        let figures = timed(&self.others, self.rest);
        let longest = || figures.iter().map(|of| &*of.of_longest).collect::<Vec<_>>().join("\n");
        assert!(late.waiting() > 0, "{}: it was over too early. The longest:\n{}", row.name, longest());
        if row.at_once {
            let waiting = actors.iter().filter(|actor| !actor.is_finished()).count();
            assert_eq!(waiting, 0, "{}: so many wait for it", row.name);
        }
        actors.into_iter().for_each(|actor| actor.join().unwrap());
        drop(late);
        self.tidy(row, &paths);
        figures
    }

    fn start(&self, row: &Row, paths: &[PathBuf], late: &Injected) -> Vec<thread::JoinHandle<()>> {
        match row.act {
            Act::Each(act) => {
                let start = |(who, path): (usize, &PathBuf)| {
                    let path = path.clone();
                    thread::spawn(move || act(&path, who))
                };
                paths.iter().enumerate().map(start).collect()
            }
            Act::Until(act) => {
                let (dir, stop) = (paths[0].parent().unwrap().to_owned(), Arc::new(AtomicBool::new(false)));
                let told = stop.clone();
                let actor = thread::spawn(move || {
                    for n in (0..).take_while(|_| !told.load(Ordering::SeqCst)) {
                        act(&dir, n);
                        // The log writes zeroes first: who goes on meanwhile leaves no room, for which everybody waits.
                        thread::sleep(Duration::from_millis(200));
                    }
                });
                late.wait_for_waiting(1);
                stop.store(true, Ordering::SeqCst);
                vec![actor]
            }
        }
    }

    fn tidy(&self, row: &Row, paths: &[PathBuf]) {
        // Of a file that is removed before, nothing is set aside.
        if row.tier.is_some() {
            wait_until("the old versions are in quarantine", || self.mount.quarantine().len() >= MANY);
        }
        for entry in self.mount.quarantine() {
            let name = entry["name"].as_str().unwrap().to_owned();
            let mount = self.mount.path().as_os_str();
            self.mount.tensorfs_ok(["restore".as_ref(), mount, name.as_ref(), "--discard".as_ref()]);
        }
        for path in paths {
            fs::remove_dir_all(path.parent().unwrap()).unwrap();
        }
    }
}

fn print_row(name: &str, call: &str, figures: &[Figures]) {
    let cells: Vec<String> = figures.iter().map(|of| format!("{:.2} / {:.1}", of.median, of.longest)).collect();
    println!("| {name} | {call} | {} |", cells.join(" | "));
}
