//! `get`: the bytes of one file.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::AT_FDCWD;
use nix::unistd::{LinkatFlags, linkat};

use crate::commands::cli;
use crate::commands::mount;
use crate::commands::place::{note_of, repository, with_key};
use crate::commands::{show, when};
use crate::crypt::Id;
use crate::error::{Error, Result};
use crate::fetch::{Fetcher, Target};
use crate::repository::{Entry, Newest, Repository, State, text_of};

/// The file that is meant, in the remote.
struct Wanted {
    repository: Repository,
    newest: Newest,
    ino: u64,
    /// As it is on the mount.
    here: Option<File>,
}

/// False if the remote has not all of it.
pub fn run(arguments: &cli::Get) -> Result<bool> {
    let wanted = match &arguments.path {
        Some(path) => in_remote(arguments, path)?,
        None => on_mount(arguments, Path::new(&arguments.remote))?,
    };
    let name = arguments.path.as_deref().unwrap_or(&arguments.remote).display();
    let file = wanted.newest.tree.entry(wanted.ino).filter(|entry| entry.is_file());
    let content = file.and_then(|entry: &Entry| entry.file.as_ref());
    let content = content.ok_or_else(|| Error::Refused(format!("{name}: not a file in the remote")))?;
    let have = content.parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.len()));
    let bar = show::Bar::new("fetched", show::Unit::Bytes);
    let mut done = 0;
    let each = |len| {
        done += len;
        bar.show(done, have);
    };
    let mut fetcher = Fetcher::new(&wanted.repository);
    write(arguments.to.as_deref(), |target, path| {
        fetcher.file(content, wanted.here.as_ref(), (target, path), each).map(drop)
    })?;
    drop(bar);
    let (is_all, batch) = (have >= content.size, wanted.newest.number());
    let (have, size) = (show::bytes(have), show::bytes(content.size));
    let what = match content.state {
        State::Whole if is_all => return Ok(true),
        State::Whole => format!("the remote has the first {have} of its {size}"),
        // Whoever knows the number has the checksums of what he looks for.
        _ if is_all && arguments.ino.is_some() => return Ok(true),
        State::Open if content.tail > 0 => format!(
            "was open to write when batch {batch} was carried, with {size}; these are {have}, the last {} of them as \
             they were found then",
            show::bytes(content.tail)
        ),
        State::Open => format!(
            "was open to write when batch {batch} was carried, with {size}; these are {have}, as far as it was sealed, \
             or as it was when it was last at rest"
        ),
        State::Damaged => {
            format!("was damaged when batch {batch} was carried, with {size}; these are {have} from before that")
        }
    };
    Err(Error::Refused(format!("{name}: {what}")))
}

/// A path from the root of a remote on.
fn in_remote(arguments: &cli::Get, path: &OsStr) -> Result<Wanted> {
    let (repository, at) = repository(&arguments.remote, &arguments.reach, arguments.at)?;
    let newest = when::tree(&repository, at)?;
    // The store has said which one it is.
    if let (Some(cipher), None, Some(head)) = (repository.place().cipher(), known_id(arguments), &newest.head) {
        let id = cipher.id().text();
        eprintln!("{}", show::plain(&format!("from the remote {id} of pool {}; --id has it be that one", head.pool)));
    }
    // As it is on the mount, or as the remote writes it.
    let written = path.to_str().map(str::to_owned);
    let text = text_of(path.as_bytes());
    let ino = newest.tree.resolve(&text).or_else(|| newest.tree.resolve(written.as_deref()?));
    let ino = ino.ok_or_else(|| nowhere(&written.unwrap_or(text), &newest))?;
    Ok(Wanted { repository, newest, ino, here: None })
}

/// Which remote it is, if that is said, or a pool knows it.
fn known_id(arguments: &cli::Get) -> Option<Id> {
    let is_pool = arguments.remote.to_str().is_none_or(|text| !text.contains("://"));
    let of_pool = || note_of(Path::new(&arguments.remote)).ok()?.settings.id;
    arguments.reach.id.or_else(|| is_pool.then(of_pool).flatten())
}

/// A path on a mount, which need not be there any more. A file that is there is known by its number, whatever it is
/// called in the remote.
fn on_mount(arguments: &cli::Get, path: &Path) -> Result<Wanted> {
    let shown = path.display();
    let host = |source| Error::Host { path: shown.to_string(), what: "find", source };
    let name = path.file_name().ok_or_else(|| Error::Refused(format!("{shown}: not a file")))?;
    let path = fs::canonicalize(above(path)).map_err(host)?.join(name);
    let no_mount = || Error::Refused(format!("{shown}: not on a tensorfs mount; name the remote, and the path in it"));
    let mount::OnMount { pool, within, .. } = mount::on_mount(&path).ok_or_else(no_mount)?;
    let note = note_of(&pool)?;
    let repository = Repository::new(with_key(&note, &arguments.reach).open()?);
    let newest = when::tree(&repository, arguments.at)?;
    // In the tree of another pool, which had this remote before, the number is another file's.
    let is_ours = newest.head.as_ref().is_none_or(|head| head.pool == note.pool);
    let known = arguments.ino.or_else(|| fs::symlink_metadata(&path).ok().map(|found| found.ino()));
    let known = known.filter(|ino| is_ours && newest.tree.entry(*ino).is_some_and(Entry::is_file));
    let named = || newest.tree.resolve(&text_of(within.as_os_str().as_bytes()));
    let ino = known.or_else(|| named().filter(|_| arguments.ino.is_none() || !is_ours));
    let ino = ino.ok_or_else(|| nowhere(&shown.to_string(), &newest))?;
    let here = known.and_then(|_| open(&path).ok());
    Ok(Wanted { repository, newest, ino, here })
}

fn open(path: &PathBuf) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

fn nowhere(path: &str, newest: &Newest) -> Error {
    Error::Refused(format!("{path}: not in the remote's tree after batch {}", newest.number()))
}

/// Hands on where the bytes are to go: a new file, or standard output.
fn write(to: Option<&Path>, write: impl FnOnce(&mut Target<'_>, &str) -> Result<()>) -> Result<()> {
    if let Some(to) = to {
        let path = to.display().to_string();
        let host = |what| move |source| Error::Host { path: to.display().to_string(), what, source };
        let (file, is_named) = make(to).map_err(host("make"))?;
        let written = write(&mut Target::File(&file), &path);
        let written = written.and_then(|()| file.sync_all().map_err(host("sync")));
        if !is_named {
            return written.and_then(|()| name(&file, to).map_err(host("give its name to")));
        }
        if written.is_err() {
            // Whoever tries again is not told that it is there.
            let _ = fs::remove_file(to);
        }
        return written;
    }
    let host = |source| Error::Host { path: "standard output".into(), what: "write", source };
    let out = io::stdout().as_fd().try_clone_to_owned().map(File::from).map_err(host)?;
    match is_empty_file(&out).map_err(host)? {
        true => write(&mut Target::File(&out), "standard output"),
        false => write(&mut Target::Stream(&mut &out), "standard output"),
    }
}

/// A new file, and whether it has its name yet: where the host can do it, whoever is killed leaves nothing. Without
/// /proc no name could be given later.
fn make(to: &Path) -> io::Result<(File, bool)> {
    if fs::symlink_metadata(to).is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let mut options = File::options();
    match options.read(true).write(true).custom_flags(libc::O_TMPFILE).open(above(to)) {
        Ok(file) if fs::symlink_metadata(own(&file)).is_ok() => Ok((file, false)),
        Ok(_) => File::create_new(to).map(|file| (file, true)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => {
            File::create_new(to).map(|file| (file, true))
        }
        Err(error) => Err(error),
    }
}

/// Gives a file its name, durably, if nobody has it.
fn name(file: &File, to: &Path) -> io::Result<()> {
    linkat(AT_FDCWD, own(file).as_str(), AT_FDCWD, to, LinkatFlags::AT_SYMLINK_FOLLOW)?;
    match File::open(above(to)) {
        // Who may make names in a directory need not be one who may read it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(nix::unistd::syncfs(file)?),
        directory => directory?.sync_all(),
    }
}

/// What leads to an open file, whatever its name is.
fn own(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn above(path: &Path) -> &Path {
    path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whatever is behind other bytes, or may be put there by somebody else, is written as it comes.
fn is_empty_file(out: &File) -> io::Result<bool> {
    let found = out.metadata()?;
    if !found.is_file() || found.len() > 0 {
        return Ok(false);
    }
    let flags = nix::fcntl::fcntl(out, nix::fcntl::FcntlArg::F_GETFL)?;
    let mut place = out;
    Ok(flags & libc::O_APPEND == 0 && place.stream_position()? == 0)
}
