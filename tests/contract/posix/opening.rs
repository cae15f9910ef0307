//! Opening: its flags, many at once, programs that run, and handles that outlive the server.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use tensorfs_tests::{Pattern, Setup, c_path, copy_program, is_root, on_mounts, xattr};

use super::{errno, kind};

on_mounts!(
    truncating_through_a_descriptor_that_can_only_read_lasts,
    open_exclusive,
    open_truncate,
    open_append_by_many,
    many_open_files,
    a_program_that_runs_is_not_emptied,
    file_handles_outlive_the_server,
);

fn open_exclusive(setup: Setup) {
    let mount = setup.mount();
    let claim = |name: &str| OpenOptions::new().write(true).create_new(true).open(mount.at(name));
    claim("f").unwrap();
    assert_eq!(kind(claim("f")), Errno::EEXIST);
    symlink("nowhere", mount.at("link")).unwrap();
    assert_eq!(kind(claim("link")), Errno::EEXIST);
    std::fs::create_dir(mount.at("d")).unwrap();
    assert_eq!(kind(claim("d")), Errno::EEXIST);
    // Of many that try at once, one wins, every time.
    let directory = mount.path().to_owned();
    let wins: Vec<usize> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    (0..200)
                        .filter(|n| {
                            let path = directory.join(format!("claim-{n}"));
                            OpenOptions::new().write(true).create_new(true).open(path).is_ok()
                        })
                        .count()
                })
            })
            .collect();
        racers.into_iter().map(|racer| racer.join().unwrap()).collect()
    });
    assert_eq!(wins.iter().sum::<usize>(), 200, "{wins:?}");
}

fn open_truncate(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("f");
    for (round, len) in [(1, 5_000_000), (2, 10), (3, 0), (4, 300_000), (5, 300_000)] {
        let mut file = File::create(&path).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        let ino = file.metadata().unwrap().ino();
        file.write_all(&Pattern(round).bytes(0, len)).unwrap();
        assert_eq!(file.metadata().unwrap().len(), len as u64);
        drop(file);
        assert_eq!(std::fs::read(&path).unwrap(), Pattern(round).bytes(0, len));
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), ino);
        if round % 2 == 0 {
            mount.remount();
            assert_eq!(std::fs::read(&path).unwrap(), Pattern(round).bytes(0, len));
        }
    }
    // Through another open file, which goes on.
    let reader = File::open(&path).unwrap();
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    drop(File::create(&path).unwrap());
    assert_eq!(reader.metadata().unwrap().len(), 0);
    writer.write_all_at(b"again", 0).unwrap();
    let mut bytes = [0; 5];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"again");
    // Back to back, many times: releases lag behind closes.
    for n in 0..200u64 {
        std::fs::write(mount.at("often"), Pattern(n).bytes(0, (n as usize * 37) % 5000)).unwrap();
    }
    assert_eq!(std::fs::read(mount.at("often")).unwrap(), Pattern(199).bytes(0, 199 * 37 % 5000));
}

fn open_append_by_many(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("log");
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let path = &path;
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
                for n in 0..300 {
                    file.write_all(format!("{writer} {n:04} {}\n", "x".repeat(n % 90)).as_bytes()).unwrap();
                }
            });
        }
    });
    for _ in 0..2 {
        let text = std::fs::read_to_string(&path).unwrap();
        let mut next = [0; 8];
        for line in text.lines() {
            let (writer, n): (usize, usize) = (line[..1].parse().unwrap(), line[2..6].parse().unwrap());
            assert_eq!(n, next[writer], "writer {writer}'s lines are out of order");
            assert_eq!(line.len(), 7 + n % 90, "a torn line: {line:?}");
            next[writer] += 1;
        }
        assert_eq!(next, [300; 8]);
        mount.remount();
    }
    // O_APPEND ignores where it stands; pwrite on it appends, too (Linux).
    let file = OpenOptions::new().append(true).open(&path).unwrap();
    let before = file.metadata().unwrap().len();
    file.write_at(b"end", 0).unwrap();
    assert_eq!(file.metadata().unwrap().len(), before + 3);
}

fn many_open_files(setup: Setup) {
    let mount = setup.mount();
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    // The other tests need some, too.
    let count = (limit.0 / 4).min(800) as usize;
    let files: Vec<File> = (0..count)
        .map(|n| {
            let mut file =
                OpenOptions::new().read(true).write(true).create_new(true).open(mount.at(format!("f{n}"))).unwrap();
            file.write_all(&Pattern(n as u64).bytes(0, 100)).unwrap();
            file
        })
        .collect();
    // All of them closed and opened once more: nothing is leaked per inode.
    for n in 0..3000 {
        let path = mount.at(format!("g{}", n % 1500));
        std::fs::write(path, Pattern(n).bytes(0, 10)).unwrap();
    }
    for (n, file) in files.iter().enumerate() {
        file.write_all_at(&Pattern(n as u64).bytes(100, 100), 100).unwrap();
        let mut bytes = [0; 200];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(Pattern(n as u64).mismatch(0, &bytes), None);
    }
}

/// The kernel asks whether a program runs from a file before it opens it for writing, but after it has opened it with
/// `O_RDONLY | O_TRUNC`: that gave `ETXTBSY`, and emptied the file.
///
/// Proves R6.
fn a_program_that_runs_is_not_emptied(setup: Setup) {
    let mount = setup.mount();
    let program = mount.at("program");
    copy_program("/bin/cat", &program);
    let bytes = std::fs::read(&program).unwrap();
    // CAP_NET_RAW, which goes with a program's content.
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    if is_root() {
        xattr::set(&program, "security.capability", &capability, 0).unwrap();
    }
    // Ends when nobody holds the other end of its input.
    let mut running = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let empty = |access| open(&program, access | OFlag::O_TRUNC, Mode::empty()).map(drop);
    // The last one opens for `ioctl` alone.
    for access in [OFlag::O_RDONLY, OFlag::O_WRONLY, OFlag::O_RDWR, OFlag::O_ACCMODE] {
        assert_eq!(empty(access), Err(Errno::ETXTBSY), "{access:?}");
        assert!(std::fs::read(&program).unwrap() == bytes, "{access:?}");
    }
    assert!(running.try_wait().unwrap().is_none());
    if is_root() {
        assert_eq!(xattr::get(&program, "security.capability").unwrap(), capability);
    }
    drop(running.stdin.take());
    assert!(running.wait().unwrap().success());
    // It is a file as any other again, once the kernel has told the server.
    let told = (0..1000).any(|_| {
        let emptied = empty(OFlag::O_RDONLY) != Err(Errno::ETXTBSY);
        if !emptied {
            std::thread::sleep(Duration::from_millis(10));
        }
        emptied
    });
    assert!(told && std::fs::metadata(&program).unwrap().len() == 0);
}

/// A file handle, as NFS servers and backup programs keep it, and its type.
fn handle_of(path: &Path) -> Result<Vec<u8>, Errno> {
    let path = c_path(path);
    let mut handle = vec![0u8; size_of::<libc::file_handle>() + 128];
    handle[..4].copy_from_slice(&128u32.to_ne_bytes());
    let mut mount_id = 0;
    // SAFETY: the buffer has room for as many bytes as it says.
    let done =
        unsafe { libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), handle.as_mut_ptr().cast(), &mut mount_id, 0) };
    errno(done).map(|()| handle)
}

fn open_handle(on: &File, handle: &[u8]) -> Result<File, Errno> {
    let mut handle = handle.to_vec();
    // SAFETY: the handle is as the kernel gave it; the new descriptor is ours.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let fd = libc::open_by_handle_at(on.as_raw_fd(), handle.as_mut_ptr().cast(), flags);
        Errno::result(fd).map(|fd| std::os::fd::FromRawFd::from_raw_fd(fd))
    }
}

/// Proves N8.
fn file_handles_outlive_the_server(setup: Setup) {
    let may = handle_of(Path::new("/")).and_then(|handle| open_handle(&File::open("/").unwrap(), &handle));
    if matches!(may, Err(Errno::EPERM)) {
        return setup.skip("only root opens files by their handles");
    }
    let mut mount = setup.mount();
    std::fs::create_dir_all(mount.at("a/b")).unwrap();
    std::fs::write(mount.at("a/b/file"), "bytes").unwrap();
    std::fs::write(mount.at("a/b/removed"), "bytes").unwrap();
    let names = ["a/b/file", "a/b", "a", ""];
    let handles = names.map(|name| handle_of(&mount.at(name)).unwrap());
    let removed = handle_of(&mount.at("a/b/removed")).unwrap();
    mount.remount();
    std::fs::remove_file(mount.at("a/b/removed")).unwrap();
    std::fs::rename(mount.at("a/b"), mount.at("c")).unwrap();
    // Nothing of them is in the kernel's memory then.
    mount.remount();
    let root = File::open(mount.path()).unwrap();
    let opened = handles.map(|handle| open_handle(&root, &handle).unwrap());
    let ino = |name: &str| std::fs::metadata(mount.at(name)).unwrap().ino();
    let found = opened.each_ref().map(|file| file.metadata().unwrap().ino());
    assert_eq!(found, ["c/file", "c", "a", ""].map(ino));
    let mut text = String::new();
    (&opened[0]).read_to_string(&mut text).unwrap();
    assert_eq!(text, "bytes");
    let parent = std::fs::read_link(format!("/proc/self/fd/{}", opened[1].as_raw_fd())).unwrap();
    assert_eq!(parent, mount.at("c"));
    assert_eq!(open_handle(&root, &removed).map(drop), Err(Errno::ESTALE));
}

/// `open(O_RDONLY | O_TRUNC)` truncates, too: the new, empty content stands.
fn truncating_through_a_descriptor_that_can_only_read_lasts(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("f");
    for round in 0..3 {
        std::fs::write(&path, Pattern(1).bytes(0, 10_000)).unwrap();
        let c = c_path(&path);
        // SAFETY: a NUL-terminated path.
        let fd = Errno::result(unsafe { libc::open(c.as_ptr(), libc::O_RDONLY | libc::O_TRUNC) }).unwrap();
        // SAFETY: the descriptor is ours.
        let file = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
        assert_eq!(file.metadata().unwrap().len(), 0);
        if round == 1 {
            file.sync_all().unwrap();
        }
        drop(file);
        // The release may still be under way.
        let _ = File::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0, "round {round}");
        assert_eq!(std::fs::read(&path).unwrap().len(), 0, "round {round}");
        if round == 2 {
            mount.remount();
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        }
    }
}
