//! What is to be known until the machine is started anew, although the disk of a pool may take nothing any more.
//!
//! It is written in two places: on a filesystem in memory that the machine gives to whoever runs the server, and
//! beside the log, where other servers find it that do not share the first one, as in another container. There it need
//! not be durable: that the host has it in memory will do. A server that gives up its rights holds the first one open
//! from before: it could not open it when it is needed.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use nix::fcntl::{FcntlArg, fcntl};
use nix::unistd::geteuid;

use crate::medium::dir::Dir;
use crate::medium::file_lock::{exclusive, shared};

/// The name beside the log, and while it is written.
pub(crate) const FAILED: &str = "failed";
pub(crate) const NEW_FAILED: &str = "failed.new";
/// The name of the directory in the machine's memory.
const DIRECTORY: &str = "tensorfs";
/// No note is longer.
const MOST: u64 = 64 << 20;
/// In the machine's memory none is longer than this, and there are no more than so many.
const MOST_IN_MEMORY: usize = 1 << 20;
const NOTES: usize = 256;
/// How the name of one ends that is being written.
const NEW: &str = ".new";

/// A note on a pool, which counts during one boot.
#[derive(Debug)]
pub(crate) struct BootNote<'a> {
    /// The first line: what it is about, and in which boot.
    head: String,
    pool: &'a Dir,
    /// The name in memory.
    name: String,
    /// What has that name, open.
    held: Option<&'a File>,
}

impl<'a> BootNote<'a> {
    /// Of two directories with the same name, as a pool and its copy have, each has its own.
    pub fn on(pool: &'a Dir, name: &str, boot: [u8; 16]) -> Self {
        let boot: String = boot.iter().map(|byte| format!("{byte:02x}")).collect();
        let which = pool.stat_self().map_or(0, |found| found.st_ino);
        Self { head: format!("{name} {boot}\n"), pool, name: format!("{name}-{which}"), held: None }
    }

    /// Where what is in the machine's memory is held open.
    #[must_use]
    pub fn held(mut self, file: Option<&'a File>) -> Self {
        self.held = file;
        self
    }

    /// The file in the machine's memory, to be held open. It says nothing yet, unless it has said something before.
    pub fn hold(&self) -> io::Result<File> {
        let dir = in_memory(true)?;
        self.check_room(&dir, "")?;
        let read = dir.read(self.name.as_str(), MOST);
        if !read.is_ok_and(|text| text.starts_with(self.head.as_bytes())) {
            self.write_in(&dir, &self.name, &format!("{}{NEW}", self.name), "")?;
        }
        let held = dir.open_file(self.name.as_str(), libc::O_RDWR).map(File::from)?;
        // Somebody may look just now whether anybody has it, for a moment; then it is gone, and the one beside the log
        // is left.
        fcntl(&held, FcntlArg::F_OFD_SETLKW(&shared()))?;
        if dir.has(self.name.as_str()) { Ok(held) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Writes it, in the place of an older one. An error says that it is in no place.
    pub fn write(&self, text: &str) -> io::Result<()> {
        let beside = self.write_in(self.pool, FAILED, NEW_FAILED, text);
        let in_memory = match self.held {
            Some(held) => self.rewrite(held, text),
            None => in_memory(true).and_then(|dir| {
                self.check_room(&dir, text)?;
                let new = format!("{}{NEW}", self.name);
                self.write_in(&dir, &self.name, &new, text)
            }),
        };
        beside.or(in_memory)
    }

    /// As it is rewritten when there is more to say than before, whole lines of it are there at any moment.
    fn rewrite(&self, held: &File, text: &str) -> io::Result<()> {
        if text.len() > MOST_IN_MEMORY {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let whole = format!("{}{text}", self.head);
        held.write_all_at(whole.as_bytes(), 0)?;
        held.set_len(whole.len() as u64)
    }

    /// That a note may be written in the machine's memory. Where there are too many, those of earlier boots go, which
    /// count for nobody, and those that say nothing and that no server holds.
    fn check_room(&self, dir: &Dir, text: &str) -> io::Result<()> {
        if text.len() > MOST_IN_MEMORY {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let names = || -> io::Result<Vec<String>> {
            Ok(dir.entries()?.iter().filter_map(|entry| entry.text().map(str::to_owned)).collect())
        };
        let have = names()?;
        if have.len() < NOTES || have.contains(&self.name) {
            return Ok(());
        }
        let boot = self.head.split_once(' ').map_or("", |(_, boot)| boot);
        for name in have {
            let read = dir.read(name.as_str(), MOST);
            let of_this_boot = |text: &[u8]| {
                text.split_inclusive(|byte| *byte == b'\n').next().map(|head| head.ends_with(boot.as_bytes()))
            };
            let Ok(text) = read else { continue };
            let says_nothing = text.iter().position(|byte| *byte == b'\n') == text.len().checked_sub(1);
            // Locked until it is gone: nobody begins to hold it in between.
            let unheld = if says_nothing && !name.ends_with(NEW) { unheld(dir, &name) } else { None };
            if of_this_boot(&text) != Some(true) || unheld.is_some() {
                dir.unlink_if_there(name.as_str())?;
            }
        }
        if names()?.len() < NOTES { Ok(()) } else { Err(io::ErrorKind::QuotaExceeded.into()) }
    }

    fn write_in(&self, dir: &Dir, name: &str, new: &str, text: &str) -> io::Result<()> {
        dir.replace_note(name, new, |file| file.write_all(format!("{}{text}", self.head).as_bytes()))
    }

    /// What was written in this boot, if anything was.
    pub fn read(&self) -> Option<String> {
        let in_memory = in_memory(false).and_then(|dir| dir.read(self.name.as_str(), MOST));
        let texts = [in_memory, self.pool.read(FAILED, MOST)].into_iter().filter_map(|bytes| {
            let text = String::from_utf8(bytes.ok()?).ok()?;
            text.strip_prefix(&self.head).map(str::to_owned)
        });
        texts.reduce(|one, other| one + &other)
    }

    /// It does not count any more. An error says that it does all the same.
    pub fn remove(&self) -> io::Result<()> {
        if let Some(held) = self.held {
            held.set_len(self.head.len() as u64)?;
        } else if let Ok(dir) = in_memory(false) {
            dir.unlink_if_there(self.name.as_str())?;
        }
        let removed = self.pool.remove_note(FAILED);
        removed.map_err(|error| io::Error::new(error.kind(), format!("{FAILED}: {error}")))
    }
}

/// The note, locked, if no server holds it.
fn unheld(dir: &Dir, name: &str) -> Option<File> {
    let file = File::from(dir.open_file(name, libc::O_RDWR).ok()?);
    fcntl(&file, FcntlArg::F_OFD_SETLK(&exclusive())).ok().map(|_| file)
}

/// A directory in memory that nobody else can write to: others could say of a pool what is not so.
fn in_memory(make: bool) -> io::Result<Dir> {
    let user = geteuid();
    let path = if user.is_root() { PathBuf::from("/run") } else { PathBuf::from(format!("/run/user/{user}")) };
    let above = Dir::open(&path)?;
    let found = above.stat_self()?;
    if found.st_uid != user.as_raw() || found.st_mode & 0o022 != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    match above.below(DIRECTORY) {
        Err(error) if make && error.kind() == io::ErrorKind::NotFound => above.make_dir(DIRECTORY),
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_that_is_held_open_is_found_by_its_name() {
        let room = tempfile::tempdir().unwrap();
        let dir = Dir::open(room.path()).unwrap();
        let note = || BootNote::on(&dir, "held", [1; 16]);
        let Ok(file) = note().hold() else { return };
        assert_eq!(note().read().as_deref(), Some(""), "nothing is said yet");
        let held = note().held(Some(&file));
        held.write("one\ntwo\n").unwrap();
        held.write("two\n").unwrap();
        // What could not be written beside the log.
        dir.unlink(FAILED).unwrap();
        assert_eq!(note().read().as_deref(), Some("two\n"));
        // Whoever holds it next finds what was said.
        drop(note().hold().unwrap());
        assert_eq!(note().read().as_deref(), Some("two\n"));
        assert!(held.write(&"x".repeat(MOST_IN_MEMORY + 1)).is_ok(), "beside the log");
        assert_eq!(file.metadata().unwrap().len(), (note().head.len() + 4) as u64, "and not in memory");
        held.remove().unwrap();
        assert_eq!(note().read().as_deref(), Some(""));
        note().remove().unwrap();
        assert_eq!(note().read(), None);
    }

    #[test]
    fn a_note_counts_in_its_boot_and_until_it_is_removed() {
        let room = tempfile::tempdir().unwrap();
        let dir = Dir::open(room.path()).unwrap();
        let note = BootNote::on(&dir, "test", [1; 16]);
        assert_eq!(note.read(), None);
        note.write("one\n").unwrap();
        note.write("two\n").unwrap();
        assert!(note.read().unwrap().starts_with("two\n"));
        // One of the places is enough.
        if in_memory(false).is_ok() {
            dir.unlink(FAILED).unwrap();
            assert_eq!(BootNote::on(&dir, "test", [1; 16]).read().as_deref(), Some("two\n"));
        }
        note.write("two\n").unwrap();
        assert_eq!(BootNote::on(&dir, "test", [2; 16]).read(), None);
        assert_eq!(BootNote::on(&dir, "another", [1; 16]).read(), None);
        note.remove().unwrap();
        assert_eq!(note.read(), None);
        assert!(dir.is_empty().unwrap());
    }

    /// Proves B11.
    #[test]
    fn notes_in_the_machines_memory_have_a_bound() {
        let (room, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (pool, dir) = (Dir::open(room.path()).unwrap(), Dir::open(memory.path()).unwrap());
        let note = BootNote::on(&pool, "mine", [1; 16]);
        assert!(note.check_room(&dir, &"x".repeat(MOST_IN_MEMORY)).is_ok());
        assert!(note.check_room(&dir, &"x".repeat(MOST_IN_MEMORY + 1)).is_err(), "too long");
        let of = |name: &str, boot: u8| BootNote { name: name.to_owned(), ..BootNote::on(&pool, name, [boot; 16]) };
        let write = |name: &str, boot: u8| of(name, boot).write_in(&dir, name, "new", "text\n").unwrap();
        for n in 0..NOTES - 1 {
            write(&format!("n{n}"), 1);
        }
        assert!(note.check_room(&dir, "text").is_ok(), "the last one");
        write("last", 1);
        assert!(note.check_room(&dir, "text").is_err(), "one too many");
        assert!(of("n3", 1).check_room(&dir, "text").is_ok(), "it is there already");
        // So does what says nothing, unless somebody holds it.
        of("n7", 1).write_in(&dir, "n7", "new", "").unwrap();
        let held = dir.open_file("n7", libc::O_RDWR).unwrap();
        fcntl(&held, FcntlArg::F_OFD_SETLK(&shared())).unwrap();
        assert!(note.check_room(&dir, "text").is_err());
        drop(held);
        assert!(note.check_room(&dir, "text").is_ok());
        assert!(!dir.has("n7") && dir.has("n6"));
        write("n7", 1);
        // What an earlier boot has left makes room.
        write("n5", 9);
        assert!(note.check_room(&dir, "text").is_ok());
        assert!(!dir.has("n5") && dir.has("n6"));
    }
}
