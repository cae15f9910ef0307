//! A helper process of the integration tests.
//!
//! `tensorfs-test-child do` does what each line of its input says and answers with a line:
//!
//! ```text
//! open ID FLAGS PATH          flags: r w rw, then c (create) t (truncate) x (exclusive) a (append)
//! close ID
//! write ID OFFSET SEED LEN    the bytes of that pattern, by pwrite; `append ID SEED OFFSET LEN` by write
//! same ID OFFSET SEED LEN     by pread
//! size ID
//! fsync ID | truncate ID SIZE
//! map ID NAME LEN r|w         a shared mapping, which outlives the file descriptor
//! unmap NAME
//! store NAME OFFSET SEED LEN | check NAME OFFSET SEED LEN
//! page NAME OFFSET            the number of the physical page (root)
//! memory NAME                 Rss and Pss of the mapping in KiB
//! flock ID sh|ex|un           without waiting
//! lock ID r|w|u START LEN     a POSIX record lock, without waiting
//! ```
//!
//! Answers are `ok`, values, `differs at N`, or `error ERRNO`.
//!
//! `tensorfs-test-child write LEDGER DIR SEED` is a writer for the kill test; see `kill.rs`.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use tensorfs_tests::Pattern;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["do"] => interpret(),
        ["write", ledger, directory, seed] => {
            let error = write(ledger.as_ref(), directory.as_ref(), seed.parse().unwrap());
            // What a dead mount says; anything else is a fault of the filesystem.
            let dead = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECONNREFUSED, libc::EIO];
            if !dead.contains(&error.raw_os_error().unwrap_or(0)) {
                panic!("writer {seed} ended: {error}");
            }
        }
        _ => panic!("see the source for usage: {arguments:?}"),
    }
}

struct Mapping {
    address: *mut u8,
    len: usize,
}

#[derive(Default)]
struct State {
    files: HashMap<String, File>,
    maps: HashMap<String, Mapping>,
}

fn interpret() {
    let mut state = State::default();
    for line in io::stdin().lock().lines() {
        let line = line.unwrap();
        let answer = match state.run(&line.split(' ').collect::<Vec<_>>()) {
            Ok(answer) => answer,
            Err(error) => match error.raw_os_error() {
                Some(number) => format!("error {number}"),
                None => format!("error {error}"),
            },
        };
        println!("{answer}");
    }
}

fn same(seed: &str, offset: &str, bytes: &[u8]) -> String {
    match Pattern(number(seed)).mismatch(number(offset), bytes) {
        None => "ok".to_owned(),
        Some(at) => format!("differs at {at}"),
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("number: {text:?}"))
}

fn check(result: libc::c_int) -> io::Result<String> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok("ok".to_owned()) }
}

impl State {
    fn run(&mut self, words: &[&str]) -> io::Result<String> {
        let ok = || Ok("ok".to_owned());
        match *words {
            ["open", id, flags, path] => {
                let mut options = OpenOptions::new();
                let append = flags.contains('a');
                options
                    .read(flags.contains('r'))
                    .write(flags.contains('w') && !append)
                    .append(append)
                    .create(flags.contains('c'))
                    .truncate(flags.contains('t'));
                if flags.contains('x') {
                    options.custom_flags(libc::O_EXCL);
                }
                self.files.insert(id.to_owned(), options.open(path)?);
                ok()
            }
            ["close", id] => {
                self.files.remove(id).unwrap();
                ok()
            }
            ["write", id, offset, seed, len] => {
                let bytes = Pattern(number(seed)).bytes(number(offset), number(len) as usize);
                self.files[id].write_all_at(&bytes, number(offset))?;
                ok()
            }
            ["append", id, seed, offset, len] => {
                let bytes = Pattern(number(seed)).bytes(number(offset), number(len) as usize);
                (&self.files[id]).write_all(&bytes)?;
                ok()
            }
            ["same", id, offset, seed, len] => {
                let mut bytes = vec![0; number(len) as usize];
                self.files[id].read_exact_at(&mut bytes, number(offset))?;
                Ok(same(seed, offset, &bytes))
            }
            ["size", id] => Ok(self.files[id].metadata()?.len().to_string()),
            ["fsync", id] => self.files[id].sync_all().and_then(|()| ok()),
            ["truncate", id, size] => self.files[id].set_len(number(size)).and_then(|()| ok()),
            ["map", id, name, len, mode] => {
                let len = number(len) as usize;
                let protection = match mode {
                    "w" => libc::PROT_READ | libc::PROT_WRITE,
                    _ => libc::PROT_READ,
                };
                // SAFETY: a fresh mapping, reached only through `maps`.
                let address = unsafe {
                    libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, self.files[id].as_raw_fd(), 0)
                };
                if address == libc::MAP_FAILED {
                    return Err(io::Error::last_os_error());
                }
                let address = address.cast();
                self.maps.insert(name.to_owned(), Mapping { address, len });
                ok()
            }
            ["unmap", name] => {
                let map = self.maps.remove(name).unwrap();
                // SAFETY: it was mapped with this length, and nothing refers to it any more.
                check(unsafe { libc::munmap(map.address.cast(), map.len) })
            }
            ["store", name, offset, seed, len] => {
                let bytes = Pattern(number(seed)).bytes(number(offset), number(len) as usize);
                let map = &self.maps[name];
                let offset = number(offset) as usize;
                assert!(offset + bytes.len() <= map.len);
                for (n, byte) in bytes.into_iter().enumerate() {
                    // SAFETY: inside the mapping; volatile, since others look at it meanwhile.
                    unsafe { map.address.add(offset + n).write_volatile(byte) };
                }
                ok()
            }
            ["check", name, offset, seed, len] => {
                let bytes = self.load(name, number(offset) as usize, number(len) as usize);
                Ok(same(seed, offset, &bytes))
            }
            ["page", name, offset] => {
                let offset = number(offset) as usize;
                self.load(name, offset, 1);
                let address = self.maps[name].address as usize + offset;
                let mut entry = [0; 8];
                File::open("/proc/self/pagemap")?.read_exact_at(&mut entry, (address / 4096 * 8) as u64)?;
                Ok((u64::from_le_bytes(entry) & ((1 << 55) - 1)).to_string())
            }
            ["memory", name] => self.memory(name),
            ["flock", id, mode] => {
                let mode = match mode {
                    "sh" => libc::LOCK_SH,
                    "ex" => libc::LOCK_EX,
                    _ => libc::LOCK_UN,
                };
                // SAFETY: plain system call on an open descriptor.
                check(unsafe { libc::flock(self.files[id].as_raw_fd(), mode | libc::LOCK_NB) })
            }
            ["lock", id, kind, start, len] => {
                let kind = match kind {
                    "r" => libc::F_RDLCK,
                    "w" => libc::F_WRLCK,
                    _ => libc::F_UNLCK,
                };
                // SAFETY: all zeroes is a valid `flock`.
                let mut lock: libc::flock = unsafe { std::mem::zeroed() };
                lock.l_type = kind as i16;
                lock.l_start = number(start) as i64;
                lock.l_len = number(len) as i64;
                // SAFETY: plain system call on an open descriptor.
                check(unsafe { libc::fcntl(self.files[id].as_raw_fd(), libc::F_SETLK, &lock) })
            }
            _ => panic!("unknown: {words:?}"),
        }
    }

    fn load(&self, name: &str, offset: usize, len: usize) -> Vec<u8> {
        let map = &self.maps[name];
        assert!(offset + len <= map.len);
        (0..len)
            // SAFETY: inside the mapping; volatile, since others change it meanwhile.
            .map(|n| unsafe { map.address.add(offset + n).read_volatile() })
            .collect()
    }

    fn memory(&self, name: &str) -> io::Result<String> {
        let start = format!("{:x}-", self.maps[name].address as usize);
        let smaps = std::fs::read_to_string("/proc/self/smaps")?;
        let lines = smaps.lines().skip_while(|line| !line.starts_with(&start));
        let value = |key: &str| {
            lines
                .clone()
                .find_map(|line| line.strip_prefix(key))
                .and_then(|rest| rest.split_whitespace().next())
                .map(str::to_owned)
                .unwrap_or_else(|| panic!("no {key} in smaps"))
        };
        Ok(format!("{} {}", value("Rss:"), value("Pss:")))
    }
}

/// Writes files until something fails, and enters each step into the ledger once it is done.
///
/// The ledger is on another filesystem. Each line is written after the call it stands for has
/// returned, so whatever it says was accepted. See `tests/kill.rs` for how it is read.
fn write(ledger: &Path, directory: &Path, seed: u64) -> io::Error {
    let mut ledger = OpenOptions::new().create(true).append(true).open(ledger).unwrap();
    let mut enter = |line: String| ledger.write_all((line + "\n").as_bytes()).unwrap();
    let mut run = || -> io::Result<()> {
        let mut random = seed;
        let mut next = move |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for n in 0.. {
            let name = format!("w{seed}-{n}");
            let temporary = directory.join(format!("{name}.tmp"));
            let pattern = Pattern(seed << 32 | n);
            let mut options = OpenOptions::new();
            options.write(true).create(true);
            match next(3) {
                0 => options.read(true).truncate(true),
                1 => options.append(true),
                _ => options.create_new(true),
            };
            let mut file = options.open(&temporary)?;
            enter(format!("create {name}"));
            let mut offset = 0;
            for _ in 0..next(12) {
                let len = match next(4) {
                    0 => 1 + next(64),
                    1 => 4096,
                    2 => 1 + next(9000),
                    _ => 1 + next(200_000),
                };
                file.write_all(&pattern.bytes(offset, len as usize))?;
                offset += len;
                enter(format!("size {name} {offset}"));
            }
            if next(8) == 0 {
                file.sync_all()?;
            }
            match next(4) {
                // Renamed while open, written on under its new name.
                0 => {
                    std::fs::rename(&temporary, directory.join(&name))?;
                    enter(format!("rename {name}"));
                    file.write_all(&pattern.bytes(offset, 5000))?;
                    enter(format!("size {name} {}", offset + 5000));
                }
                1 => {
                    drop(file);
                    enter(format!("removing {name}"));
                    std::fs::remove_file(&temporary)?;
                    enter(format!("remove {name}"));
                }
                _ => {
                    drop(file);
                    std::fs::rename(&temporary, directory.join(&name))?;
                    enter(format!("rename {name}"));
                }
            }
        }
        Ok(())
    };
    run().expect_err("the server was killed")
}
