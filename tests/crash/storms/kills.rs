//! Storms: the server is killed at random instants, again and again, while several writers do a little of everything;
//! then what is there is compared with what each of them was told, to the byte.
//!
//! | variable | meaning |
//! |---|---|
//! | `TENSORFS_STORM` | rounds of each of the six storms; a round kills the server one to a few times (default 4) |
//! | `TENSORFS_STORM_SEED` | which storms (default 1) |
//!
//! A campaign: `TENSORFS_STORM=300 TENSORFS_STORM_SEED=$RANDOM cargo test -p tensorfs-tests --test storms kills`.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tensorfs_tests::random::Random;
use tensorfs_tests::storm::{self, Crash, Durability, Ledger, Plan, Writer};
use tensorfs_tests::{Mount, Passthrough, Setup, Tree, assert_same_tree, on_mounts, program};

on_mounts!(
    storm_of_kills_with_durability_write,
    storm_of_kills_with_durability_close,
    storm_of_kills_with_durability_fsync
);

fn storm_of_kills_with_durability_write(setup: Setup) {
    storm_of_kills(setup, Durability::Write);
}

fn storm_of_kills_with_durability_close(setup: Setup) {
    storm_of_kills(setup, Durability::Close);
}

fn storm_of_kills_with_durability_fsync(setup: Setup) {
    storm_of_kills(setup, Durability::Fsync);
}

pub(crate) fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: {text:?}")))
}

/// A writer that runs.
struct Running {
    seed: u64,
    ledger: PathBuf,
    process: std::process::Child,
}

impl Running {
    fn start(seed: u64, mount: &Mount) -> Running {
        let ledger = mount.host().join(format!("ledger-{seed}"));
        let process = program("tensorfs-test-storm")
            .arg("write")
            .arg(seed.to_string())
            .arg(mount.path())
            .arg(&ledger)
            .arg("1000000")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start tensorfs-test-storm");
        Running { seed, ledger, process }
    }

    /// True once it has made its directory.
    fn is_under_way(&mut self) -> bool {
        assert_eq!(self.process.try_wait().unwrap(), None, "writer {} ended before it began", self.seed);
        std::fs::metadata(&self.ledger).is_ok_and(|meta| meta.len() > 0)
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
    }

    /// Waits for its end; `errors` are those that may have ended it.
    fn end(mut self, errors: &[i32]) -> Writer {
        let status = self.process.wait().unwrap();
        // SIGBUS is what a store into a page gives that no server provides any more.
        let by_signal = matches!(status.signal(), Some(libc::SIGKILL | libc::SIGBUS));
        assert!(status.success() || by_signal, "writer {}: {status}", self.seed);
        let ledger = Ledger::read(&self.ledger).unwrap();
        if let Some(error) = ledger.error {
            let text = std::io::Error::from_raw_os_error(error);
            assert!(errors.contains(&error), "writer {} after {} steps: {text}", self.seed, ledger.steps.len());
        }
        Writer::new(Plan::new(self.seed), ledger)
    }
}

/// What a dead mount says.
const DEAD: [i32; 4] = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECONNREFUSED, libc::EIO];

/// And what a writer hears that asks between the dead mount and the next.
const BETWEEN: [i32; 5] = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECONNREFUSED, libc::EIO, libc::ENOENT];

struct Storm {
    mount: Mount,
    random: Random,
    /// The tree as it was after the last round; its files are left alone.
    settled: Tree,
    kills: usize,
    steps: usize,
    files: usize,
    checks: usize,
}

fn storm_of_kills(setup: Setup, durability: Durability) {
    let rounds = from_environment("TENSORFS_STORM", 4);
    let seed = from_environment("TENSORFS_STORM_SEED", 1);
    let mount = setup.mount_with(["--durability", durability.word(), "--commit", "0.05"]).mount();
    if mount.is_plain() {
        return;
    }
    let settled = Tree::read(mount.path()).without_times();
    let random = Random::new(seed << 8 | (durability as u64) << 1 | u64::from(mount.passthrough() == Passthrough::On));
    let mut storm = Storm { mount, random, settled, kills: 0, steps: 0, files: 0, checks: 0 };
    for round in 0..rounds {
        storm.round(seed, round, rounds);
    }
    let Storm { kills, steps, files, checks, .. } = storm;
    eprintln!(
        "storm: durability {}: {rounds} rounds, {kills} kills, {steps} steps that had returned, {files} files \
        compared, {checks} times `tensorfs check --data`",
        durability.word()
    );
    assert!(steps > 0 && files > 0, "nothing happened");
}

impl Storm {
    fn round(&mut self, seed: u64, round: u64, rounds: u64) {
        let first = (seed << 16 | round) << 4;
        let mut running: Vec<Running> =
            (0..2 + self.random.below(5)).map(|n| Running::start(first + n, &self.mount)).collect();
        while !running.iter_mut().all(Running::is_under_way) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.wait();
        let writers = match self.random.below(4) {
            // The server comes back while they still write: those that need it only later do not notice.
            0 => {
                for _ in 0..1 + self.random.below(3) {
                    self.kill();
                    self.mount.mount();
                    self.wait();
                }
                self.kill();
                running.iter_mut().for_each(Running::kill);
                running.into_iter().map(|one| one.end(&BETWEEN)).collect()
            }
            // Everything is to be made durable at this moment.
            1 => {
                let mut sync =
                    self.mount.program().arg("sync").arg(self.mount.path()).stderr(Stdio::null()).spawn().unwrap();
                std::thread::sleep(Duration::from_micros(self.random.below(20_000)));
                self.kill();
                let _ = sync.wait();
                running.into_iter().map(|one| one.end(&DEAD)).collect()
            }
            _ => {
                self.kill();
                running.into_iter().map(|one: Running| one.end(&DEAD)).collect::<Vec<Writer>>()
            }
        };
        // Killed again while it recovers.
        for _ in 0..self.random.below(3) {
            self.kill_while_mounting();
        }
        self.mount.mount();
        self.compare(writers, round);
        if round % 5 == 4 || round + 1 == rounds {
            self.mount.umount();
            let output = self.mount.tensorfs(["check".as_ref(), "--data".as_ref(), self.mount.pool().as_os_str()]);
            assert!(output.status.success(), "round {round}: check --data: {output:?}");
            self.checks += 1;
            self.mount.mount();
            assert_same_tree(&Tree::read(self.mount.path()).without_times(), &self.settled);
        }
        // Enough to see that old files stay as they are, and not more.
        if round % 8 == 7 {
            for entry in std::fs::read_dir(self.mount.path()).unwrap() {
                std::fs::remove_dir_all(entry.unwrap().path()).unwrap();
            }
            self.settled = Tree::read(self.mount.path()).without_times();
        }
    }

    /// For a moment, more often a short one.
    fn wait(&mut self) {
        let longest = 1 << self.random.below(11);
        std::thread::sleep(Duration::from_micros(self.random.below(longest * 1000)));
    }

    fn kill(&mut self) {
        self.mount.kill9();
        self.kills += 1;
    }

    fn kill_while_mounting(&mut self) {
        let passthrough = if self.mount.passthrough() == Passthrough::On { "on" } else { "off" };
        let mut server = self
            .mount
            .program()
            .args(["mount", "-f", "--passthrough", passthrough])
            .args([self.mount.pool(), self.mount.path()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(self.random.below(60_000)));
        server.kill().unwrap();
        server.wait().unwrap();
        self.kills += 1;
    }

    fn compare(&mut self, mut writers: Vec<Writer>, round: u64) {
        match storm::check(&mut writers, self.mount.path(), Crash::ServerKilled) {
            Ok(outcome) => {
                self.steps += outcome.steps;
                self.files += outcome.files;
            }
            Err(reason) => panic!("round {round}: {reason}\n{}", self.mount.log()),
        }
        let info = self.mount.info();
        assert_eq!(info["damaged_files"], serde_json::json!([]), "{info}");
        assert_eq!(info["read_only"], serde_json::Value::Null, "{info}");
        // Nobody touches what earlier rounds left.
        let now = Tree::read(self.mount.path()).without_times();
        let mut before = now.clone();
        for writer in &writers {
            before = before.without(&writer.plan.directory());
        }
        assert_same_tree(&before, &self.settled);
        self.settled = now;
    }
}
