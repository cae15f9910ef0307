//! The host's `rename`, which none of the operations of the matrix makes: commands, a scrub and a mount put a new file
//! in place of an old one by it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use tensorfs_tests::{Call, HostCalls, Mount, Pattern, Rule, Setup, on_mounts, run, scratch, tensorfs};

use crate::errors::fault::{FAULTS, Fault};

on_mounts!(what_was_to_be_put_in_place_of_another_is_there_or_the_other_is);

const ALL: [Putting; 6] =
    [Putting::Tier, Putting::VolatileTier, Putting::Log, Putting::Foreign, Putting::Remote, Putting::Scrubbed];

/// What is put in place by a `rename`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Putting {
    /// `tier add`: the note that makes a directory a tier.
    Tier,
    /// The note of a volatile tier that is made anew when the pool is mounted.
    VolatileTier,
    /// `check --repair`: a log.
    Log,
    /// `check --repair`: a file in the pool that is none of its own, in quarantine.
    Foreign,
    /// `remote set`: the note of where the pool is carried.
    Remote,
    /// The end of a `scrub`: what it came to.
    Scrubbed,
}

impl Putting {
    /// What a line of the server's log names.
    fn name(self) -> &'static str {
        if self == Putting::Scrubbed { "scrubbed" } else { "/tier" }
    }

    /// The status of its command when it could not be put there.
    fn failure(self) -> i32 {
        if matches!(self, Putting::Log | Putting::Foreign) { 8 } else { 1 }
    }

    fn success(self) -> i32 {
        i32::from(matches!(self, Putting::Log | Putting::Foreign))
    }
}

struct Stage {
    calls: HostCalls,
    mount: Mount,
    room: tempfile::TempDir,
}

impl Stage {
    /// `None` where there is no memory for a volatile tier.
    fn new(setup: &Setup, putting: Putting) -> Option<Stage> {
        let room = if putting == Putting::VolatileTier { setup.in_memory()? } else { scratch() };
        let calls = HostCalls::new();
        let mut stage = Stage { mount: setup.clone().host_calls(&calls).mount(), calls, room };
        fs::write(stage.mount.at("file"), Pattern(1).bytes(0, 50_000)).unwrap();
        stage.mount.sync();
        match putting {
            Putting::Scrubbed => stage.mount.tensorfs_ok(["scrub".as_ref(), stage.mount.path().as_os_str()]),
            _ => String::new(),
        };
        if putting != Putting::Scrubbed {
            stage.mount.umount();
        }
        match putting {
            Putting::VolatileTier => {
                stage.command(Putting::Tier).status().unwrap();
                fs::remove_dir_all(stage.tier()).unwrap();
            }
            Putting::Log => {
                let log = File::options().write(true).open(stage.log()).unwrap();
                log.write_all_at(&[0xff; 64], (2 << 20) + 200).unwrap();
            }
            Putting::Foreign => fs::write(stage.foreign(), b"somebody else's").unwrap(),
            _ => {}
        }
        Some(stage)
    }

    fn tier(&self) -> PathBuf {
        self.room.path().join("tier")
    }

    fn log(&self) -> PathBuf {
        self.mount.pool().join("log")
    }

    fn foreign(&self) -> PathBuf {
        self.mount.pool().join("segments/readme")
    }

    /// What has it put in place.
    fn command(&self, putting: Putting) -> Command {
        let pool = self.mount.pool();
        let mut command = tensorfs();
        match putting {
            Putting::VolatileTier => {
                command = self.mount.mounting();
                &mut command
            }
            Putting::Tier => command.args(["tier", "add"]).arg(pool).arg("tier").arg(self.tier()),
            Putting::Log | Putting::Foreign => command.args(["check", "--repair"]).arg(pool),
            Putting::Remote => {
                let url = format!("file://{}", self.room.path().join("store").display());
                command.args(["remote", "set"]).arg(pool).arg(url)
            }
            Putting::Scrubbed => command.arg("scrub").arg(self.mount.path()),
        };
        self.calls.preload(&mut command);
        command
    }

    fn rule(&self, putting: Putting) -> Rule {
        let rule = Rule::of(Call::Rename);
        match putting {
            Putting::Tier | Putting::VolatileTier => rule.below(self.room.path()).on("/tier.json"),
            Putting::Log => rule.on("/log"),
            Putting::Foreign => rule.on("/segments/readme"),
            Putting::Remote => rule.on("/remote"),
            Putting::Scrubbed => rule.on("/scrubbed"),
        }
    }

    /// What was there before, and is told by bytes.
    fn there(&self, putting: Putting) -> Option<Vec<u8>> {
        let path = match putting {
            Putting::Tier | Putting::VolatileTier => self.tier().join("tier.json"),
            Putting::Log => self.log(),
            Putting::Foreign => self.foreign(),
            Putting::Remote => self.mount.pool().join("remote"),
            Putting::Scrubbed => self.mount.pool().join("scrubbed"),
        };
        fs::read(path).ok()
    }
}

/// Whoever asked hears of it, or the log does where nobody asked: the server's own note of a scrub, and a tier that is
/// not there. What is in place is the old one, and the next try puts the new one there.
///
/// Proves D12.
fn what_was_to_be_put_in_place_of_another_is_there_or_the_other_is(setup: Setup) {
    if setup.mount_is_plain() {
        return;
    }
    // EIO for a while is to a command as for good.
    for (putting, fault) in ALL.iter().flat_map(|one| FAULTS.map(|fault| (*one, fault))) {
        let Some(mut stage) = Stage::new(&setup, putting) else { continue };
        let what = format!("{putting:?}, {}", fault.name());
        let before = stage.there(putting);
        let mut rule = Some(stage.calls.add(fault.on(stage.rule(putting))));
        let heard = std::thread::scope(|scope| {
            let running = scope.spawn(|| run(&mut stage.command(putting)));
            if fault == Fault::Late {
                rule.iter().for_each(|rule| rule.wait_for_waiting(1));
                assert_eq!(stage.there(putting), before, "{what}: before it is put there");
                rule.take();
            }
            running.join().unwrap()
        });
        if putting == Putting::VolatileTier {
            stage.mount.adopt();
        }
        let said = String::from_utf8_lossy(&heard.stderr).into_owned();
        if let Some(rule) = rule.take() {
            assert!(rule.hits() > 0, "{what}: it is not reached");
            assert_eq!(stage.there(putting), before, "{what}: {said}");
            match putting {
                Putting::VolatileTier | Putting::Scrubbed => {
                    assert!(heard.status.success(), "{what}: {said}");
                    let log = stage.mount.log();
                    let names = |line: &&str| !line.contains(" INFO ") && line.contains(putting.name());
                    assert!(log.lines().any(|line| names(&line)), "{what}: {log}");
                }
                _ => {
                    assert_eq!(heard.status.code(), Some(putting.failure()), "{what}: {said}");
                    assert_eq!(said.lines().count(), 1, "{what}: {said}");
                }
            }
            assert_eq!(fs::read_dir(stage.mount.pool()).unwrap().filter(is_new).count(), 0, "{what}");
            drop(rule);
            if putting == Putting::VolatileTier {
                stage.mount.umount();
            }
            let again = run(&mut stage.command(putting));
            if putting == Putting::VolatileTier {
                stage.mount.adopt();
            }
            let said = String::from_utf8_lossy(&again.stderr);
            assert_eq!(again.status.code(), Some(putting.success()), "{what}, again: {said}");
        } else {
            assert_eq!(heard.status.code(), Some(putting.success()), "{what}: {said}");
        }
        assert_ne!(stage.there(putting), before, "{what}");
    }
}

/// What was to be put somewhere, and is not wanted any more.
fn is_new(entry: &std::io::Result<fs::DirEntry>) -> bool {
    let name = entry.as_ref().unwrap().file_name();
    // The next repair writes it anew.
    name.to_string_lossy().ends_with(".new") && name != "log.new"
}
