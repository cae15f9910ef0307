//! One cell of the matrix, on a mount of its own: an operation while a call of the host fails, and what came of it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tensorfs_tests::{HostCalls, Injected, Mount, Passthrough, Pattern, Setup, run, run_ok, scratch, tensorfs, xattr};

use super::fault::{Fault, Files, Known, SECONDS, Target};
use super::operation::{Content, FILE, Operation, Prepared, There, heard, look, word};

/// Long after it should have been done: only a test that has failed waits for it.
const HANGS: Duration = Duration::from_secs(60);

/// In which others must be answered while a call of the host is late, and how long that call is then kept.
const LATE: Duration = Duration::from_secs(5);

/// How the server ends after the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    Orderly,
    Killed,
}

/// One experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    pub operation: Operation,
    pub target: Target,
    pub fault: Fault,
    pub passthrough: bool,
    /// Files of this size.
    pub len: usize,
    pub end: End,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// How many calls of the kind came.
    pub reached: u64,
    /// What the program heard.
    pub heard: Result<(), i32>,
    /// It heard that only once the host had answered.
    pub late: bool,
    /// What the file holds after the server was started again.
    pub there: There,
    /// `check` calls it damaged.
    pub damaged: bool,
    /// The pool took no change any more until it was mounted again.
    pub read_only: bool,
    /// What is against the contract.
    pub wrong: Vec<String>,
}

/// A pool with a tier and some files, its server, and the means to disturb it.
struct Stage {
    calls: HostCalls,
    mount: Mount,
    room: tempfile::TempDir,
    content: Content,
    prepared: Option<Prepared>,
}

fn passthrough(on: bool) -> Passthrough {
    if on { Passthrough::On } else { Passthrough::Off }
}

const BYSTANDER: usize = 70_000;

impl Stage {
    fn new(operation: Operation, passthrough_on: bool, len: usize) -> Stage {
        let room = scratch();
        let (pool, tier) = (room.path().join("pool"), room.path().join("tier"));
        run_ok(tensorfs().arg("create").arg(&pool));
        run_ok(tensorfs().args(["tier", "add"]).arg(&pool).arg("tier").arg(&tier));
        let calls = HostCalls::new();
        let setup = Setup::new("errors", passthrough(passthrough_on)).pool_at(&pool).host_calls(&calls);
        let mount = setup.mount_with(operation.options()).mount();
        let content = operation.content(len);
        fs::write(mount.at("bystander"), Pattern(9).bytes(0, BYSTANDER)).unwrap();
        // What is sealed later is recorded in the log, and may be what meets the fault. Sealing makes all durable that
        // is there by then, so it comes before what is to meet the fault is written.
        mount.tensorfs_ok(["seal".as_ref(), mount.at("bystander").as_os_str()]);
        let prepared = Some(operation.prepare(&mount, &content));
        Stage { calls, mount, room, content, prepared }
    }

    /// Begins the operation in a thread, which ends when the operation does.
    fn begin(&mut self, operation: Operation) -> Receiver<(io::Result<()>, Prepared)> {
        let (tell, told) = channel();
        let (path, content, prepared) = (self.mount.path().to_owned(), self.content.clone(), self.prepared.take());
        std::thread::spawn(move || tell.send(operation.act(&path, &content, prepared.unwrap_or_default())));
        told
    }
}

/// Whether kernels here can move the bytes.
pub fn has_passthrough() -> bool {
    Setup::can(Passthrough::On)
}

/// Which calls an operation makes when nothing goes wrong.
pub fn reached(operation: Operation, passthrough_on: bool, len: usize) -> Vec<Target> {
    let mut stage = Stage::new(operation, passthrough_on, len);
    let room = stage.room.path().to_owned();
    if operation == Operation::Recover {
        stage.mount.kill9();
    }
    let counting: Vec<(Target, Injected)> =
        Target::all().map(|target| (target, stage.calls.add(target.rule().below(&room)))).collect();
    if operation == Operation::Recover {
        stage.mount.mount();
    } else {
        let (done, _kept) = stage.begin(operation).recv().unwrap();
        done.unwrap();
    }
    counting.iter().filter(|(_, rule)| rule.arrived() > 0).map(|(target, _)| *target).collect()
}

/// An operation that was waited for.
struct Waited<T> {
    done: Option<T>,
    late: bool,
    reached: u64,
    /// The fault, if it stays for good.
    stays: Option<Injected>,
}

impl Cell {
    /// Does it.
    pub fn run(self) -> Outcome {
        let mut stage = Stage::new(self.operation, self.passthrough, self.len);
        let mut wrong = Vec::new();
        let rule = self.fault.on(self.target.rule().below(stage.room.path()));
        let (waited, done) = match self.operation {
            Operation::Recover => {
                stage.mount.kill9();
                let rule = stage.calls.add(rule);
                let (tell, told) = channel();
                let mut mounting = stage.mount.mounting();
                std::thread::spawn(move || tell.send(run(&mut mounting)));
                let waited = self.wait(rule, &told, || Ok(()), &mut wrong);
                let mounted = waited.done.as_ref().is_some_and(|output| output.status.success());
                if mounted {
                    stage.mount.adopt();
                }
                let kept = stage.prepared.take().unwrap_or_default();
                let done = waited.done.is_some().then_some(kept);
                let waited = Waited { done, late: waited.late, reached: waited.reached, stays: waited.stays };
                (waited, mounted.then_some(()).ok_or(libc::EIO))
            }
            operation => {
                let rule = stage.calls.add(rule);
                let begun = stage.begin(operation);
                let waited = self.wait(rule, &begun, || self.others(stage.mount.path()), &mut wrong);
                let (result, kept) = waited.done.map_or((Ok(()), None), |(result, kept)| (result, Some(kept)));
                (Waited { done: kept, late: waited.late, reached: waited.reached, stays: waited.stays }, heard(&result))
            }
        };
        if waited.done.is_none() {
            wrong.push("the operation hangs".into());
        }
        let mut read_only = false;
        let mut promised = (done.is_ok() && self.operation.promises_durability()).then_some(There::New);
        if stage.mount.pid().is_some() {
            // The program goes on.
            read_only = stage.mount.info()["read_only"].is_string();
            if waited.stays.is_none() && !read_only {
                go_on(&stage.mount, &mut wrong);
            }
            let now = look(&stage.mount.at(FILE), &stage.content);
            let told = (waited.stays.is_some() || done.is_err()) && matches!(now, There::Error(_));
            if !told && !self.operation.may_be(done, false).contains(&now) {
                wrong.push(format!("after {} the file is {now:?}", word(done)));
            }
            if let Some(file) = waited.done.as_ref().and_then(|kept| kept.file.as_ref())
                && file.sync_all().is_ok()
                && !told
            {
                promised = Some(now);
            }
            match self.end {
                End::Killed => stage.mount.kill9(),
                End::Orderly => {
                    drop(waited.done);
                    if !stage.mount.end() {
                        wrong.push("the server does not end".into());
                        stage.mount.kill9();
                    }
                }
            }
        }
        drop(waited.stays);
        stage.mount.mount();
        let there = look(&stage.mount.at(FILE), &stage.content);
        let quarantined = !stage.mount.quarantine().is_empty();
        let state = xattr::get(&stage.mount.at(FILE), "user.tensorfs.state").unwrap_or_default();
        let damaged = state == b"damaged";
        let may_be = promised.clone().map_or_else(|| self.operation.may_be(done, quarantined), |one| vec![one]);
        if !may_be.contains(&there) {
            wrong.push(format!("after {} (promised: {promised:?}) the file comes back {there:?}", word(done)));
        }
        if let Err(other) = self.operation.others(&stage.mount, &there, &stage.content) {
            wrong.push(other);
        }
        if fs::read(stage.mount.at("bystander")).ok() != Some(Pattern(9).bytes(0, BYSTANDER)) {
            wrong.push("another file has other bytes".into());
        }
        if !stage.mount.end() {
            wrong.push("the next server does not end".into());
            stage.mount.kill9();
        }
        let check = run(stage.mount.program().args(["check", "--data"]).arg(stage.mount.pool()));
        if check.status.success() == damaged {
            let said = String::from_utf8_lossy(&check.stdout).into_owned();
            wrong.push(format!("damaged: {damaged}, and check says {}: {said}", check.status));
        }
        if !wrong.is_empty() {
            wrong.push(format!("server's log:\n{}", stage.mount.log()));
        }
        Outcome { reached: waited.reached, heard: done, late: waited.late, there, damaged, read_only, wrong }
    }

    /// Waits for an operation under a fault. `others` must be answered while a call is late.
    fn wait<T>(
        self,
        rule: Injected,
        begun: &Receiver<T>,
        others: impl Fn() -> Result<(), String>,
        wrong: &mut Vec<String>,
    ) -> Waited<T> {
        let since = Instant::now();
        let mut done = None;
        match self.fault {
            Fault::Seconds => done = begun.recv_timeout(SECONDS).ok(),
            Fault::Late => {
                while done.is_none() && rule.waiting() == 0 && since.elapsed() < HANGS {
                    done = begun.recv_timeout(Duration::from_millis(5)).ok();
                }
                if rule.waiting() > 0 {
                    wrong.extend(others().err());
                    let patience = keep().saturating_sub(since.elapsed());
                    done = done.or_else(|| begun.recv_timeout(patience).ok());
                }
            }
            _ => done = begun.recv_timeout(HANGS).ok(),
        }
        let (late, reached) = (self.fault == Fault::Late && done.is_none(), rule.arrived());
        let stays = (self.fault == Fault::Good).then_some(rule);
        Waited { done: done.or_else(|| begun.recv_timeout(HANGS).ok()), late, reached, stays }
    }
}

/// Once the host works again: other files are read, made and synced as ever.
fn go_on(mount: &Mount, wrong: &mut Vec<String>) {
    if fs::read(mount.at("bystander")).ok() != Some(Pattern(9).bytes(0, BYSTANDER)) {
        wrong.push("another file cannot be read, or has other bytes".into());
    }
    let made = File::create(mount.at("later")).and_then(|file| {
        file.write_all_at(b"later", 0)?;
        file.sync_all()
    });
    if let Err(error) = made {
        wrong.push(format!("the host works again, and another file cannot be made: {error}"));
    }
}

/// How long a late call is kept.
fn keep() -> Duration {
    if super::fault::at_length() { LATE } else { LATE / 10 }
}

impl Cell {
    /// Whether others are answered while a call is late.
    fn others(self, mount: &Path) -> Result<(), String> {
        let records_wait = (self.target.call, self.target.on) == (Known::Write, Files::Log);
        others_are_answered(mount, self.operation == Operation::Close, records_wait)
    }
}

/// Others do what has nothing to do with the file. Where a close waits for the log, they close nothing they have
/// written; where records do, they make nothing.
fn others_are_answered(mount: &Path, closes_wait: bool, records_wait: bool) -> Result<(), String> {
    let (tell, told) = channel();
    let mount = mount.to_owned();
    std::thread::spawn(move || {
        let other = || -> io::Result<&'static str> {
            fs::metadata(mount.join("bystander"))?;
            tell.send("stat").ok();
            if !records_wait {
                fs::create_dir(mount.join("made"))?;
                tell.send("mkdir").ok();
            }
            if !closes_wait && !records_wait {
                fs::write(mount.join("made/file"), "x")?;
                tell.send("making a file").ok();
            }
            fs::read(mount.join("bystander"))?;
            Ok("reading a file")
        };
        let _ = tell.send(other().unwrap_or("all of it, with an error"));
    });
    let mut last = "nothing";
    let since = Instant::now();
    while !["reading a file", "all of it, with an error"].contains(&last) {
        match told.recv_timeout(LATE.saturating_sub(since.elapsed())) {
            Ok(answered) => last = answered,
            Err(_) => return Err(format!("others wait for this file: answered until then was {last}")),
        }
    }
    Ok(())
}
