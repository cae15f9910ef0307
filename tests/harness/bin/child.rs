//! A helper process of the integration tests.
//!
//! `tensorfs-test-child do` does what each line of its input says and answers with a line:
//!
//! ```text
//! open ID FLAGS PATH          flags: r w rw, then c (create) t (truncate) x (exclusive) a (append) d (direct) s (sync)
//! close ID
//! write ID OFFSET SEED LEN    the bytes of that pattern, by pwrite; `append ID SEED OFFSET LEN` by write
//! same ID OFFSET SEED LEN     by pread
//! size ID
//! fsync ID | truncate ID SIZE
//! map ID NAME LEN r|w         a shared mapping, which outlives the file descriptor
//! unmap NAME
//! store NAME OFFSET SEED LEN | check NAME OFFSET SEED LEN
//! page NAME OFFSET            the number of the physical page (root)
//! churn ID NAME               loads each page again and again until it is killed, and keeps none in the cache
//! memory NAME                 Rss and Pss of the mapping in KiB
//! flock ID sh|ex|un           without waiting
//! lock ID r|w|u START LEN     a POSIX record lock, without waiting
//! ```
//!
//! The concurrency test looks at whole files, block by block. All bytes of a block are the same: the number of who
//! wrote it.
//!
//! ```text
//! put ID BLOCK COUNT BYTE     by pwrite, from an aligned buffer; `add ID BYTE` writes a block by write
//! put-at-once ID COUNT BYTE   by asynchronous writes, one for each block
//! see ID                      by pread: `16*1 2*4` is 16 blocks of 1, then two of 4; `empty`; `torn`, `foreign`:
//!                             mixed, or none of ours
//! poke NAME BLOCK BYTE        by a store through a mapping; `glance NAME` by loads: `F` for a block that is SIGBUS
//! same-file ID PATH           whether a descriptor is of the file that has the name: yes, no, none
//! unlink PATH | replace PATH BYTE BLOCKS
//! forget                      closes and unmaps everything
//! loop ROLE COUNT BYTE PATH   does again and again what a role of the concurrency test does, see `Role`; `in vain` if
//!                             the file was not there one time or other (or was, for one that makes it)
//! ```
//!
//! Answers are `ok`, values, `differs at N`, or `error ERRNO`.
//!
//! `tensorfs-test-child locked WHAT` locks itself in as a reader is, and tries WHAT; see `locked`.
//!
//! `tensorfs-test-child confined POOL WHAT` gives up its rights as a server of this pool does, and tries WHAT; see
//! `confined`.
//!
//! `tensorfs-test-child write LEDGER DIR SEED` is a writer for the kill test; see `contract/kill.rs`.

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use tensorfs_tests::Pattern;
use tensorfs_tests::random::Random;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["do"] => interpret(),
        ["locked", what] => locked(what),
        ["confined", pool, what] => confined(pool.as_ref(), what),
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

impl Mapping {
    fn new(file: &File, len: usize, write: bool) -> io::Result<Mapping> {
        let protection = if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a fresh mapping, reached only through the result.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { address: address.cast(), len })
    }

    fn unmap(self) -> io::Result<String> {
        // SAFETY: it was mapped with this length, and nothing refers to it any more.
        check(unsafe { libc::munmap(self.address.cast(), self.len) })
    }

    /// Copies a block into or out of the mapping as a load or store would, but an access that would raise SIGBUS is an
    /// error instead.
    fn copy(&self, block: usize, bytes: &mut [u8; blocks::BLOCK], out: bool) -> bool {
        assert!((block + 1) * blocks::BLOCK <= self.len);
        let ours = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: inside the mapping.
        let base = unsafe { self.address.add(block * blocks::BLOCK) };
        let theirs = libc::iovec { iov_base: base.cast(), iov_len: blocks::BLOCK };
        // SAFETY: both vectors name memory of this process that lives as long as the call.
        let done = unsafe {
            let pid = std::process::id() as libc::pid_t;
            if out {
                libc::process_vm_readv(pid, &ours, 1, &theirs, 1, 0)
            } else {
                libc::process_vm_writev(pid, &ours, 1, &theirs, 1, 0)
            }
        };
        done == blocks::BLOCK as isize
    }

    fn poke(&self, block: u64, byte: u8) -> io::Result<String> {
        let stored = self.copy(block as usize, &mut [byte; blocks::BLOCK], false);
        Ok(if stored { "ok" } else { "F" }.to_owned())
    }

    fn glance(&self) -> String {
        let look = |block| {
            let mut bytes = [0; blocks::BLOCK];
            if self.copy(block, &mut bytes, true) { blocks::word(&bytes) } else { "F".to_owned() }
        };
        blocks::runs((0..self.len / blocks::BLOCK).map(look))
    }
}

/// Files made of blocks, and what the roles of the concurrency test do with them.
mod blocks {
    use super::Mapping;
    use std::fs::{File, OpenOptions};
    use std::io::{self, Write};
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    use std::path::Path;

    pub const BLOCK: usize = 4096;
    const MOST: usize = 1 << 20;

    /// Memory that O_DIRECT takes.
    fn aligned(len: usize) -> (Vec<u8>, usize) {
        let buffer = vec![0; len + BLOCK];
        let start = buffer.as_ptr().align_offset(BLOCK);
        (buffer, start)
    }

    pub fn put(file: &File, block: u64, count: u64, byte: u8) -> io::Result<()> {
        let len = count as usize * BLOCK;
        let (mut buffer, start) = aligned(len);
        buffer[start..start + len].fill(byte);
        file.write_all_at(&buffer[start..start + len], block * BLOCK as u64)
    }

    /// As [`put`], by asynchronous writes of a block each.
    pub fn put_at_once(file: &File, count: u64, byte: u8) -> io::Result<()> {
        let (mut buffer, start) = aligned(count as usize * BLOCK);
        buffer[start..start + count as usize * BLOCK].fill(byte);
        let blocks = buffer[start..start + count as usize * BLOCK].chunks(BLOCK);
        let writes: Vec<_> = blocks.enumerate().map(|(n, block)| ((n * BLOCK) as u64, block)).collect();
        tensorfs_tests::aio::write_at_once(file, &writes)
    }

    /// What a block holds, in a word. Nobody writes a byte above 9.
    pub fn word(bytes: &[u8]) -> String {
        if bytes.iter().any(|byte| *byte > 9) {
            "foreign".to_owned()
        } else if bytes.iter().any(|byte| *byte != bytes[0]) {
            "torn".to_owned()
        } else {
            bytes[0].to_string()
        }
    }

    fn ours(seen: String) -> io::Result<()> {
        if seen.contains("foreign") {
            Err(io::Error::other(format!("bytes that nobody wrote: {seen}")))
        } else {
            Ok(())
        }
    }

    pub fn runs(words: impl Iterator<Item = String>) -> String {
        let mut runs: Vec<(usize, String)> = Vec::new();
        for word in words {
            match runs.last_mut() {
                Some((count, last)) if *last == word => *count += 1,
                _ => runs.push((1, word)),
            }
        }
        if runs.is_empty() {
            return "empty".to_owned();
        }
        runs.iter().map(|(count, word)| format!("{count}*{word}")).collect::<Vec<_>>().join(" ")
    }

    pub fn see(file: &File) -> io::Result<String> {
        let (mut buffer, start) = aligned(MOST);
        let mut len = 0;
        loop {
            match file.read_at(&mut buffer[start + len..start + MOST], len as u64)? {
                0 => break,
                read => len += read,
            }
        }
        Ok(runs(buffer[start..start + len].chunks(BLOCK).map(word)))
    }

    pub fn replace(path: &Path, byte: u8, count: u64) -> io::Result<()> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{byte}"));
        put(&File::create(&name)?, 0, count, byte)?;
        std::fs::rename(name, path)
    }

    /// What a role does in the `n`th turn, from open to close.
    pub fn act(role: &str, path: &Path, byte: u8, n: u64) -> io::Result<()> {
        let update = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        let block = n * 7 % 16;
        match role {
            "read" => ours(see(&File::open(path)?)?),
            "map" => {
                let map = Mapping::new(&File::open(path)?, 16 * BLOCK, false)?;
                ours(map.glance())?;
                map.unmap().map(drop)
            }
            "hold" => {
                let file = File::open(path)?;
                let map = Mapping::new(&file, 16 * BLOCK, false)?;
                ours(map.glance())?;
                ours(see(&file)?)?;
                map.unmap().map(drop)
            }
            "append" => {
                let mut file = OpenOptions::new().append(true).create(true).open(path)?;
                // No longer than what is looked at.
                if file.metadata()?.len() < 100 * BLOCK as u64 { file.write_all(&[byte; BLOCK]) } else { Ok(()) }
            }
            // In place, for writing only, everything.
            "write-only" => put(&OpenOptions::new().write(true).open(path)?, 0, 16, (n % 9) as u8 + 1),
            "rewrite" => put(&File::create(path)?, 0, 16, byte),
            "pwrite" if n.is_multiple_of(2) => put(&OpenOptions::new().write(true).open(path)?, block, 1, byte),
            "pwrite" => put(&update(0)?, block, 1, byte),
            "store" => {
                let map = Mapping::new(&update(0)?, 16 * BLOCK, true)?;
                map.poke(block, byte)?;
                map.unmap().map(drop)
            }
            "unlink" => {
                std::fs::remove_file(path)?;
                put(&OpenOptions::new().write(true).create_new(true).open(path)?, 0, 16, byte)
            }
            "rename" => replace(path, byte, 16),
            "direct" => {
                let file = update(libc::O_DIRECT)?;
                put(&file, block, 1, byte)?;
                ours(see(&file)?)
            }
            "sync" => {
                let file = update(libc::O_SYNC)?;
                put(&file, block, 1, byte)?;
                ours(see(&file)?)
            }
            _ => panic!("role {role:?}"),
        }
    }
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
                let custom = [('x', libc::O_EXCL), ('d', libc::O_DIRECT), ('s', libc::O_SYNC)];
                let custom = custom.into_iter().filter(|(letter, _)| flags.contains(*letter));
                options.custom_flags(custom.fold(0, |all, (_, flag)| all | flag));
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
                let map = Mapping::new(&self.files[id], number(len) as usize, mode == "w")?;
                self.maps.insert(name.to_owned(), map);
                ok()
            }
            ["unmap", name] => self.maps.remove(name).unwrap().unmap(),
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
            // Loads each page again and again, and keeps none in the cache.
            ["churn", id, name] => loop {
                posix_fadvise(&self.files[id], 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
                for page in 0..self.maps[name].len / 4096 {
                    self.load(name, page * 4096, 1);
                }
            },
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
            ["put", id, block, count, byte] => {
                blocks::put(&self.files[id], number(block), number(count), number(byte) as u8).and_then(|()| ok())
            }
            ["put-at-once", id, count, byte] => {
                blocks::put_at_once(&self.files[id], number(count), number(byte) as u8).and_then(|()| ok())
            }
            ["add", id, byte] => (&self.files[id]).write_all(&[number(byte) as u8; blocks::BLOCK]).and_then(|()| ok()),
            ["see", id] => blocks::see(&self.files[id]),
            ["poke", name, block, byte] => self.maps[name].poke(number(block), number(byte) as u8),
            ["glance", name] => Ok(self.maps[name].glance()),
            ["same-file", id, path] => match std::fs::metadata(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok("none".to_owned()),
                there => {
                    let same = there?.ino() == self.files[id].metadata()?.ino();
                    Ok(if same { "yes" } else { "no" }.to_owned())
                }
            },
            ["forget"] => {
                self.files.clear();
                for (_, map) in self.maps.drain() {
                    map.unmap()?;
                }
                ok()
            }
            ["unlink", path] => std::fs::remove_file(path).and_then(|()| ok()),
            ["replace", path, byte, count] => {
                blocks::replace(Path::new(path), number(byte) as u8, number(count)).and_then(|()| ok())
            }
            ["loop", role, count, byte, path] => {
                // Somebody may have removed it, and somebody may have made it again.
                let in_vain =
                    [io::ErrorKind::NotFound, io::ErrorKind::AlreadyExists, io::ErrorKind::StaleNetworkFileHandle];
                let mut answer = "ok";
                for n in 0..number(count) {
                    match blocks::act(role, Path::new(path), number(byte) as u8, n) {
                        Ok(()) => {}
                        Err(error) if in_vain.contains(&error.kind()) => answer = "in vain",
                        Err(error) => return Ok(format!("{role} {n}: {error}")),
                    }
                }
                Ok(answer.to_owned())
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
/// returned, so whatever it says was accepted. See `contract/kill.rs` for how it is read.
fn write(ledger: &Path, directory: &Path, seed: u64) -> io::Error {
    let mut ledger = OpenOptions::new().create(true).append(true).open(ledger).unwrap();
    let mut enter = |line: String| ledger.write_all((line + "\n").as_bytes()).unwrap();
    let mut run = || -> io::Result<()> {
        let mut random = Random::new(seed);
        let mut next = move |below: u64| random.below(below);
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

/// Tries what a reader that is taken over would try. Ends with 0 if it could, else with the error number, if the kernel
/// lets it end by itself.
fn locked(what: &str) {
    let parent = nix::unistd::getppid().as_raw();
    let secret = File::open("/etc/passwd").expect("a file");
    let mount = File::open("/").expect("a directory");
    let passwd = c"/etc/passwd".as_ptr();
    let word = [0_u64; 16];
    let memory = word.as_ptr();
    let (none, file) = (std::ptr::null::<u8>(), secret.as_raw_fd());
    let missing = tensorfs_fs::testing::lock_in();
    let call = |number: libc::c_long, arguments: [libc::c_long; 6]| {
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: every pointer among the arguments is to what lives as long as this function, and is large enough.
        unsafe { libc::syscall(number, a, b, c, d, e, f) }
    };
    let (zero, path) = (0 as libc::c_long, passwd as libc::c_long);
    let (at, word) = (libc::c_long::from(libc::AT_FDCWD), memory as libc::c_long);
    let exec = libc::c_long::from(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
    let fresh = libc::c_long::from(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let private = libc::c_long::from(libc::MAP_PRIVATE);
    let read = libc::c_long::from(libc::PROT_READ);
    let done = match what {
        "nothing" => 0,
        "what is missing" => missing.len() as libc::c_long,
        "32 MiB of memory" => {
            let bytes = vec![1_u8; 32 << 20];
            i64::from(bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>() != 32 << 20)
        }
        "128 MiB of memory" => {
            call(libc::SYS_mmap, [zero, 128 << 20, read | i64::from(libc::PROT_WRITE), fresh, -1, 0]).min(0)
        }
        "192 MiB of memory" => {
            call(libc::SYS_mmap, [zero, 192 << 20, read | i64::from(libc::PROT_WRITE), fresh, -1, 0]).min(0)
        }
        "4 GiB of memory" => call(libc::SYS_mmap, [zero, 4 << 30, read, fresh, -1, 0]).min(0),
        "a word to the server" => call(libc::SYS_write, [0, word, 1, 0, 0, 0]).min(0),
        "open" => call(libc::SYS_openat, [at, path, zero, 0, 0, 0]),
        "openat2" => call(libc::SYS_openat2, [at, path, word, 24, 0, 0]),
        "open by handle" => call(libc::SYS_open_by_handle_at, [mount.as_raw_fd().into(), word, 0, 0, 0, 0]),
        "own memory as a file" => call(libc::SYS_openat, [at, c"/proc/self/mem".as_ptr() as _, 2, 0, 0, 0]),
        "a descriptor from before" => call(libc::SYS_pread64, [file.into(), word, 8, 0, 0, 0]),
        "reading what is no socket" => call(libc::SYS_read, [file.into(), word, 8, 0, 0, 0]),
        "writing to a file" => call(libc::SYS_pwrite64, [file.into(), word, 8, 0, 0, 0]),
        "writing elsewhere" => call(libc::SYS_write, [1, word, 8, 0, 0, 0]),
        "a file in memory" => call(libc::SYS_memfd_create, [path, 0, 0, 0, 0, 0]),
        "mapping a file" => call(libc::SYS_mmap, [zero, 4096, read, private, file.into(), 0]),
        "memory to execute" => call(libc::SYS_mmap, [zero, 4096, exec, fresh, -1, 0]),
        "making memory executable" => call(libc::SYS_mprotect, [word & !4095, 4096, exec, 0, 0, 0]),
        "socket" => call(libc::SYS_socket, [libc::AF_INET.into(), libc::SOCK_STREAM.into(), 0, 0, 0, 0]),
        "connect" => call(libc::SYS_connect, [0, word, 16, 0, 0, 0]),
        "sendmsg" => call(libc::SYS_sendmsg, [0, word, 0, 0, 0, 0]),
        "recvmsg" => call(libc::SYS_recvmsg, [0, word, 0, 0, 0, 0]),
        "ptrace" => call(libc::SYS_ptrace, [16, parent.into(), 0, 0, 0, 0]),
        "memory of the server" => call(libc::SYS_process_vm_readv, [parent.into(), word, 1, word, 1, 0]),
        "pidfd_open" => call(libc::SYS_pidfd_open, [parent.into(), 0, 0, 0, 0, 0]),
        "kill" => call(libc::SYS_kill, [parent.into(), 0, 0, 0, 0, 0]),
        "tgkill" => call(libc::SYS_tgkill, [parent.into(), parent.into(), 0, 0, 0, 0]),
        "fork" => call(libc::SYS_clone, [libc::SIGCHLD.into(), 0, 0, 0, 0, 0]),
        "clone3" => call(libc::SYS_clone3, [word, 64, 0, 0, 0, 0]),
        "exec" => call(libc::SYS_execve, [c"/bin/true".as_ptr() as _, none as _, none as _, 0, 0, 0]),
        "execveat" => call(libc::SYS_execveat, [at, c"/bin/true".as_ptr() as _, none as _, none as _, 0, 0]),
        "io_uring" => call(libc::SYS_io_uring_setup, [1, word, 0, 0, 0, 0]),
        "bpf" => call(libc::SYS_bpf, [0, word, 64, 0, 0, 0]),
        "userfaultfd" => call(libc::SYS_userfaultfd, [0, 0, 0, 0, 0, 0]),
        "perf_event_open" => call(libc::SYS_perf_event_open, [word, 0, -1, -1, 0, 0]),
        "add_key" => call(libc::SYS_add_key, [path, path, word, 8, -3, 0]),
        "setuid" => call(libc::SYS_setuid, [0, 0, 0, 0, 0, 0]),
        "capset" => call(libc::SYS_capset, [word, word, 0, 0, 0, 0]),
        "mount" => call(libc::SYS_mount, [path, path, path, 0, 0, 0]),
        "unshare" => call(libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0, 0, 0, 0]),
        "setns" => call(libc::SYS_setns, [0, 0, 0, 0, 0, 0]),
        "chroot" => call(libc::SYS_chroot, [c"/".as_ptr() as _, 0, 0, 0, 0, 0]),
        "ioctl" => call(libc::SYS_ioctl, [0, 0x5412, word, 0, 0, 0]),
        "prctl" => call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE.into(), 1, 0, 0, 0, 0]),
        "larger limits" => call(libc::SYS_prlimit64, [0, libc::RLIMIT_AS as _, word, 0, 0, 0]),
        "unlink" => call(libc::SYS_unlinkat, [at, path, 0, 0, 0, 0]),
        "names of files" => call(libc::SYS_getdents64, [file.into(), word, 64, 0, 0, 0]),
        "shared memory" => call(libc::SYS_shmget, [0, 4096, 0o1600, 0, 0, 0]),
        "a message queue" => call(libc::SYS_msgget, [0, 0o1600, 0, 0, 0, 0]),
        "the log of the kernel" => call(libc::SYS_syslog, [3, word, 8, 0, 0, 0]),
        "a clock that is set" => call(libc::SYS_clock_settime, [0, word, 0, 0, 0, 0]),
        "a 32 bit call" => call(0x4000_0000 | libc::SYS_getpid, [0, 0, 0, 0, 0, 0]),
        _ => panic!("nobody knows how to try {what}"),
    };
    let code = if done < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(255) } else { done as i32 };
    // SAFETY: nothing of this process is needed any more.
    unsafe { libc::_exit(code) }
}

/// Tries what a server that is taken over could: ends with status 0 if it is done, with the error number if it is not,
/// and with 255 if rights could not be given up.
fn confined(pool: &Path, what: &str) {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    use std::os::fd::OwnedFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let parent = nix::unistd::getppid();
    let directory: OwnedFd = File::open(pool).expect("a directory").into();
    let found = std::fs::metadata(pool).expect("a directory");
    let outside = Path::new(what.split_once(' ').map_or("/etc/passwd", |(_, path)| path));
    let owner = (found.uid(), found.gid());
    let missing = tensorfs_fs::confine(tensorfs_fs::Confinement { owner, directories: &[directory] });
    if !missing.as_ref().is_ok_and(Vec::is_empty) {
        eprintln!("{missing:?}");
        std::process::exit(255);
    }
    let file = || std::ffi::CString::new(outside.as_os_str().as_encoded_bytes()).expect("a path");
    let call = |number: libc::c_long, arguments: [libc::c_long; 5]| -> io::Result<()> {
        let [a, b, c, d, e] = arguments;
        // SAFETY: every pointer among the arguments is to what lives until the end of this call.
        let done = unsafe { libc::syscall(number, a, b, c, d, e) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    let at = libc::c_long::from(libc::AT_FDCWD);
    let new_socket = |family, kind| socket(family, kind, SockFlag::empty(), None).map(drop).map_err(io::Error::from);
    let done = match what.split(' ').next().unwrap_or_default() {
        "pool" => std::fs::write(pool.join("new"), "text").and_then(|()| std::fs::remove_file(pool.join("new"))),
        "process" => std::process::Command::new("/proc/self/exe").arg("nothing").status().map(drop),
        "thread" => std::thread::Builder::new().spawn(|| {}).map(drop),
        "read" => std::fs::read(outside).map(drop),
        "write" => OpenOptions::new().write(true).open(outside).map(drop),
        "make" => File::create_new(outside.with_extension("new")).map(drop),
        "remove" => std::fs::remove_file(outside),
        "rename" => std::fs::rename(outside, pool.join("moved")),
        "link" => std::fs::hard_link(outside, pool.join("linked")),
        "chmod" => call(libc::SYS_fchmodat, [at, file().as_ptr() as _, 0o666, 0, 0]),
        // What it may read to start a reader is open to it, and is the same user's.
        "chmod_open" => {
            let open = File::open("/proc/self/exe").expect("this program");
            call(libc::SYS_fchmod, [open.as_raw_fd().into(), 0o755, 0, 0, 0])
        }
        "chmod2" => call(452, [at, file().as_ptr() as _, 0o666, 0, 0]),
        "chown" => call(libc::SYS_fchownat, [at, file().as_ptr() as _, 1, 1, 0]),
        "utimes" => call(libc::SYS_utimensat, [at, file().as_ptr() as _, 0, 0, 0]),
        "setxattr" => call(libc::SYS_setxattr, [file().as_ptr() as _, c"user.x".as_ptr() as _, at, 0, 0]),
        "list" => std::fs::read_dir(outside.parent().unwrap_or(outside)).map(drop),
        "exec" => std::process::Command::new("/bin/true").status().map(drop),
        "setuid" => call(libc::SYS_setuid, [0, 0, 0, 0, 0]),
        "kill" => nix::sys::signal::kill(parent, nix::sys::signal::Signal::SIGWINCH).map_err(io::Error::from),
        "ptrace" => call(libc::SYS_ptrace, [16, parent.as_raw().into(), 0, 0, 0]),
        "memory" => std::fs::read(format!("/proc/{parent}/mem")).map(drop),
        "environment" => std::fs::read(format!("/proc/{parent}/environ")).map(drop),
        "copy" => call(libc::SYS_pidfd_getfd, [0, 0, 0, 0, 0]),
        "limit" => call(libc::SYS_prlimit64, [parent.as_raw().into(), libc::RLIMIT_CPU as _, 0, 0, 0]),
        "tcp" => new_socket(AddressFamily::Inet, SockType::Stream),
        "udp" => new_socket(AddressFamily::Inet, SockType::Datagram),
        "netlink" => new_socket(AddressFamily::Netlink, SockType::Raw),
        "stream" => new_socket(AddressFamily::Unix, SockType::Stream),
        "abstract" => {
            let others = SocketAddr::from_abstract_name(outside.as_os_str().as_encoded_bytes()).expect("a name");
            UnixDatagram::unbound().and_then(|socket| socket.connect_addr(&others))
        }
        "mount" => call(libc::SYS_mount, [c"none".as_ptr() as _, file().as_ptr() as _, c"tmpfs".as_ptr() as _, 0, 0]),
        "unmount" => call(libc::SYS_umount2, [file().as_ptr() as _, 0, 0, 0, 0]),
        "namespace" => call(libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0, 0, 0]),
        "clone" => {
            let flags = libc::c_long::from(libc::CLONE_NEWUSER | libc::SIGCHLD);
            call(libc::SYS_clone, [flags, 0, 0, 0, 0])
        }
        "clone3" => call(libc::SYS_clone3, [0, 0, 0, 0, 0]),
        "bpf" => call(libc::SYS_bpf, [0, 0, 0, 0, 0]),
        "io_uring" => call(libc::SYS_io_uring_setup, [1, 0, 0, 0, 0]),
        "module" => call(libc::SYS_init_module, [0, 0, 0, 0, 0]),
        "chroot" => call(libc::SYS_chroot, [c"/".as_ptr() as _, 0, 0, 0, 0]),
        "handle" => call(libc::SYS_open_by_handle_at, [0, 0, 0, 0, 0]),
        "kernel" => OpenOptions::new().write(true).open("/proc/sys/kernel/core_pattern").map(drop),
        "device" => OpenOptions::new().read(true).write(true).open("/dev/fuse").map(drop),
        // It is none; what is allowed says so.
        "terminal" => call(libc::SYS_ioctl, [2, libc::TIOCSTI as _, c"\n".as_ptr() as _, 0, 0]),
        _ => panic!("nobody knows how to try {what}"),
    };
    std::process::exit(done.map_or_else(|error| error.raw_os_error().unwrap_or(254), |()| 0));
}
