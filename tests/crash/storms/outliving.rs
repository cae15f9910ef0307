//! Storms in which programs go on with the files that they have open while the server is killed, while its successor
//! recovers, and while that is killed in turn: they append, write in place, store through mappings, and close, at any
//! moment. With passthrough the kernel needs no server for that, and all of it has to be there.
//!
//! The variables are those of `kills`. A round kills a server, and up to twelve that recover after it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use tensorfs_tests::random::Random;
use tensorfs_tests::{Mount, Passthrough, Pattern, Setup, on_mounts, wait_until};

use crate::kills::from_environment;

on_mounts!(
    programs_outlive_servers_with_durability_write,
    programs_outlive_servers_with_durability_close,
    programs_outlive_servers_with_durability_fsync
);

fn programs_outlive_servers_with_durability_write(setup: Setup) {
    programs_outlive_servers(setup, "write");
}

fn programs_outlive_servers_with_durability_close(setup: Setup) {
    programs_outlive_servers(setup, "close");
}

fn programs_outlive_servers_with_durability_fsync(setup: Setup) {
    programs_outlive_servers(setup, "fsync");
}

const FILES: usize = 128;
const PROGRAMS: usize = 3;
/// No file grows beyond this.
const LARGEST: u64 = 40_000;
/// What is written in place, and what is stored through mappings; pattern follows.
const COUNTERS: [u64; 2] = [0, 4096];
const HEAD: u64 = 8192;

/// A number that only grows, of which the newest accepted and the newest tried are known.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    accepted: u64,
    tried: u64,
}

impl Known {
    fn of(accepted: u64) -> Known {
        Known { accepted, tried: accepted }
    }

    fn allows(&self, found: u64) -> bool {
        (self.accepted..=self.tried).contains(&found)
    }
}

/// A page of a file, mapped to store into.
struct Mapped(*mut u8);

// SAFETY: memory that only its owner reaches.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(file: &File) -> io::Result<Mapped> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (fd, at) = (file.as_raw_fd(), COUNTERS[1] as i64);
        // SAFETY: a fresh mapping, reached only through the result.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, fd, at) };
        if map == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Mapped(map.cast())) }
    }

    fn store(&self, number: u64) {
        // SAFETY: within the mapping, which is aligned and backed by a host file that nobody makes shorter.
        unsafe { self.0.cast::<u64>().write_volatile(number) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.cast(), 4096) };
    }
}

/// A file, what a program has of it, and what it must hold.
struct Held {
    path: PathBuf,
    seed: u64,
    file: Option<File>,
    appends: bool,
    map: Option<Mapped>,
    /// Through which of the mounts it was opened.
    opened: u64,
    /// When it is closed, right behind a last write. Many are to be while some server recovers.
    until: Instant,
    len: Known,
    counters: [Known; 2],
}

impl Held {
    fn new(path: PathBuf, seed: u64) -> Held {
        let mut bytes = Pattern(seed).bytes(0, HEAD as usize);
        COUNTERS.iter().for_each(|at| bytes[*at as usize..][..8].fill(0));
        std::fs::write(&path, bytes).unwrap();
        let (len, counters) = (Known::of(HEAD), [Known::default(); 2]);
        Held { path, seed, file: None, appends: false, map: None, opened: 0, until: Instant::now(), len, counters }
    }

    /// Does a little of something. What fails ends with the descriptor.
    fn act(&mut self, random: &mut Random, mount: u64, maps: bool) {
        let done = match (self.file.is_some(), random.below(100)) {
            (false, 0..=69) => self.open(random, mount, maps),
            (true, 0..=39) => self.append(random),
            (true, 40..=59) if !self.appends => self.count(),
            (true, 85..=99) if self.until <= Instant::now() => {
                let done = self.append(random);
                self.file = None;
                done
            }
            (_, 60..=84) => {
                self.store(random);
                Ok(())
            }
            _ => Ok(()),
        };
        if done.is_err() {
            self.file = None;
        }
    }

    fn open(&mut self, random: &mut Random, mount: u64, maps: bool) -> io::Result<()> {
        self.appends = random.below(2) == 0;
        let flags = if self.appends { libc::O_APPEND } else { 0 };
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&self.path)?;
        if maps && self.map.is_none() && random.below(4) == 0 {
            self.map = Some(Mapped::new(&file)?);
        }
        (self.file, self.opened) = (Some(file), mount);
        self.until = Instant::now() + Duration::from_micros(random.below(500_000));
        Ok(())
    }

    fn append(&mut self, random: &mut Random) -> io::Result<()> {
        let longest = *random.pick(&[100, 100, 100, 3000]);
        let len = 1 + random.below(longest);
        let (file, at) = (self.file.as_ref().expect("open"), self.len.accepted);
        if self.len.accepted != self.len.tried || at + len > LARGEST {
            return Ok(());
        }
        self.len.tried += len;
        let bytes = Pattern(self.seed).bytes(at, len as usize);
        if self.appends {
            io::Write::write_all(&mut &*file, &bytes)?;
        } else {
            file.write_all_at(&bytes, at)?;
        }
        self.len.accepted = self.len.tried;
        Ok(())
    }

    fn count(&mut self) -> io::Result<()> {
        let counter = &mut self.counters[0];
        counter.tried += 1;
        self.file.as_ref().expect("open").write_all_at(&counter.tried.to_le_bytes(), COUNTERS[0])?;
        counter.accepted = counter.tried;
        Ok(())
    }

    /// The mapping may outlive the descriptor.
    fn store(&mut self, random: &mut Random) {
        let Some(map) = &self.map else { return };
        let counter = &mut self.counters[1];
        counter.tried += 1;
        map.store(counter.tried);
        counter.accepted = counter.tried;
        if random.below(4) == 0 {
            self.map = None;
        }
    }

    /// Says in words what is wrong, if something is.
    fn compare(&mut self) -> Result<(), String> {
        let wrong = |what: String| Err(format!("{}: {what}", self.path.display()));
        let size = std::fs::metadata(&self.path).map_err(|error| error.to_string())?.len();
        let bytes = std::fs::read(&self.path).map_err(|error| error.to_string())?;
        if size != bytes.len() as u64 || !self.len.allows(size) {
            return wrong(format!(
                "stat says {size} bytes, reading gives {}, written were {:?}",
                bytes.len(),
                self.len
            ));
        }
        let mut masked = bytes.clone();
        for (at, counter) in COUNTERS.iter().zip(&self.counters) {
            let at = *at as usize;
            let found = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
            if !counter.allows(found) {
                return wrong(format!("at {at} is {found}, written was {counter:?}"));
            }
            masked[at..at + 8].copy_from_slice(&Pattern(self.seed).bytes(at as u64, 8));
        }
        if let Some(at) = Pattern(self.seed).mismatch(0, &masked) {
            return wrong(format!("byte {at} of {size} is none that was written there"));
        }
        // What was under way when its server went is settled now.
        self.len = Known::of(size);
        let found = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        self.counters[0] = Known::of(found);
        Ok(())
    }
}

/// What the programs and who kills the servers share.
struct Shared {
    files: Vec<Mutex<Held>>,
    /// The programs hold it to read; who wants them to be still, to write.
    still: RwLock<()>,
    mounts: AtomicU64,
    done: AtomicBool,
    steps: AtomicU64,
}

impl Shared {
    fn run(&self, seed: u64, maps: bool) {
        let mut random = Random::new(seed);
        while !self.done.load(Ordering::Relaxed) {
            {
                let _going = self.still.read().unwrap();
                let held = &self.files[random.below(FILES as u64) as usize];
                if let Ok(mut held) = held.try_lock() {
                    held.act(&mut random, self.mounts.load(Ordering::Relaxed), maps);
                    self.steps.fetch_add(1, Ordering::Relaxed);
                }
            }
            if random.below(8) == 0 {
                std::thread::sleep(Duration::from_micros(random.below(300)));
            }
        }
    }
}

fn programs_outlive_servers(setup: Setup, durability: &str) {
    let rounds = from_environment("TENSORFS_STORM", 4);
    let seed = from_environment("TENSORFS_STORM_SEED", 1);
    let mount = setup.mount_with(["--durability", durability, "--commit", "0.05"]).mount();
    if mount.is_plain() {
        return;
    }
    let passthrough = mount.passthrough() == Passthrough::On;
    let number = seed << 8 | u64::from(durability.as_bytes()[0]) << 1 | u64::from(passthrough);
    let held = |n| Mutex::new(Held::new(mount.at(format!("f{n}")), number << 16 | n as u64));
    let shared = Arc::new(Shared {
        files: (0..FILES).map(held).collect(),
        still: RwLock::new(()),
        mounts: AtomicU64::new(1),
        done: AtomicBool::new(false),
        steps: AtomicU64::new(0),
    });
    // A store into a page that nobody provides would end the test.
    let maps = passthrough && durability != "write";
    let start = |n: usize| {
        let shared = shared.clone();
        std::thread::spawn(move || shared.run(number << 8 | n as u64, maps))
    };
    let programs: Vec<_> = (0..PROGRAMS).map(start).collect();
    let mut storm = Storm { mount, shared, random: Random::new(number), recovery: Duration::from_millis(40), kills: 0 };
    // The programs end also when something is wrong.
    let result = (0..rounds).try_for_each(|round| storm.round(round, round % 32 == 31 || round + 1 == rounds));
    storm.shared.done.store(true, Ordering::Relaxed);
    programs.into_iter().for_each(|program| program.join().unwrap());
    storm.shared.files.iter().for_each(|held| {
        let mut held = held.lock().unwrap();
        (held.file, held.map) = (None, None);
    });
    let steps = storm.shared.steps.load(Ordering::Relaxed);
    result.unwrap_or_else(|wrong| panic!("{wrong}"));
    eprintln!(
        "storm of outliving programs: durability {durability}: {rounds} rounds, {} kills, {steps} steps",
        storm.kills
    );
}

struct Storm {
    mount: Mount,
    shared: Arc<Shared>,
    random: Random,
    /// So long did the last recovery take, with all that belongs to a mount.
    recovery: Duration,
    kills: usize,
}

impl Storm {
    fn round(&mut self, round: u64, orderly: bool) -> Result<(), String> {
        std::thread::sleep(Duration::from_micros(self.random.below(30_000)));
        self.mount.kill9();
        self.kills += 1;
        for _ in 0..self.random.below(13) {
            self.kill_while_mounting();
        }
        let begun = Instant::now();
        self.mount.mount();
        self.recovery = begun.elapsed().min(Duration::from_millis(500));
        self.shared.mounts.fetch_add(1, Ordering::Relaxed);
        let shared = self.shared.clone();
        let _still = shared.still.write().unwrap();
        self.compare(round)?;
        if orderly {
            // What was opened through the mount that ends now; what outlived others stays open.
            let newest = shared.mounts.load(Ordering::Relaxed);
            for held in &shared.files {
                let mut held = held.lock().unwrap();
                if held.opened + 1 >= newest {
                    (held.file, held.map) = (None, None);
                }
            }
            wait_until("nothing uses the mount", || self.mount.try_umount());
            let pool = self.mount.pool().as_os_str();
            let checked = self.mount.tensorfs(["check".as_ref(), "--data".as_ref(), pool]);
            if !checked.status.success() {
                return Err(format!("round {round}: check --data: {checked:?}"));
            }
            self.mount.mount();
            shared.mounts.fetch_add(1, Ordering::Relaxed);
            self.compare(round)?;
        }
        Ok(())
    }

    fn compare(&self, round: u64) -> Result<(), String> {
        let wrong = |held: &Mutex<Held>| held.lock().unwrap().compare().err();
        let wrong: Vec<String> = self.shared.files.iter().filter_map(wrong).collect();
        match wrong.first() {
            None => Ok(()),
            Some(first) => Err(format!("round {round}: {} of {FILES} files, the first: {first}", wrong.len())),
        }
    }

    fn kill_while_mounting(&mut self) {
        let mut server = mounting(&self.mount, self.mount.path());
        let longest = self.recovery.as_micros() as u64 * 5 / 4;
        std::thread::sleep(Duration::from_micros(self.random.below(longest.max(1))));
        server.kill().unwrap();
        server.wait().unwrap();
        self.kills += 1;
    }
}

fn mounting(mount: &Mount, at: &Path) -> std::process::Child {
    let passthrough = if mount.passthrough() == Passthrough::On { "on" } else { "off" };
    let mut command = mount.program();
    command.args(["mount", "-f", "--passthrough", passthrough]).args([mount.pool(), at]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}
