//! Names and what they stand for: arbitrary bytes, links, objects of every kind, inode numbers, and what is answered
//! where an object is of the wrong kind.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;

use nix::errno::Errno;
use tensorfs_tests::{Setup, c_path, is_root, on_mounts, shell};

use super::{errno, kind, names};

on_mounts!(
    names_of_255_arbitrary_bytes,
    symlinks,
    hard_links,
    nodes_of_every_kind,
    errors_for_wrong_objects,
    inode_numbers_are_not_used_again,
    what_is_not_there,
    what_the_kernel_answers_of_its_own,
);

/// Proves N1.
fn names_of_255_arbitrary_bytes(setup: Setup) {
    let mut mount = setup.mount();
    let mut want = BTreeSet::new();
    // Every byte that a name may hold, in names as long as they may be.
    let bytes: Vec<u8> = (1..=255).filter(|&b| b != b'/').collect();
    for shift in 0..16 {
        let mut name = bytes.clone();
        name.rotate_left(shift * 16);
        name.push(b'x');
        assert_eq!(name.len(), 255);
        want.insert(OsString::from_vec(name));
    }
    for name in ["...", " ", "-", "\n", "tensorfs", ".tensorfs2", "log", "segments"] {
        want.insert(name.into());
    }
    for name in &want {
        std::fs::write(mount.at(name), name.as_bytes()).unwrap();
    }
    assert_eq!(names(mount.path()), want);
    for length in [256, 1000] {
        let name = "n".repeat(length);
        assert_eq!(kind(File::create(mount.at(name))), Errno::ENAMETOOLONG);
    }
    mount.remount();
    assert_eq!(names(mount.path()), want);
    for name in &want {
        assert_eq!(std::fs::read(mount.at(name)).unwrap(), name.as_bytes());
        std::fs::remove_file(mount.at(name)).unwrap();
    }
    assert_eq!(names(mount.path()), BTreeSet::new());
}

fn symlinks(setup: Setup) {
    let mut mount = setup.mount();
    let long = "t".repeat(4000);
    for (name, target) in [("a", "file"), ("b", "/no/where"), ("long", &long), ("loop", "loop")] {
        symlink(target, mount.at(name)).unwrap();
    }
    std::fs::write(mount.at("file"), "content").unwrap();
    mount.remount();
    assert_eq!(std::fs::read_to_string(mount.at("a")).unwrap(), "content");
    assert_eq!(std::fs::read_link(mount.at("long")).unwrap(), Path::new(&long));
    assert_eq!(std::fs::symlink_metadata(mount.at("long")).unwrap().size(), 4000);
    assert_eq!(kind(File::open(mount.at("loop"))), Errno::ELOOP);
    assert_eq!(kind(symlink("x", mount.at("a"))), Errno::EEXIST);
}

/// Proves N5.
fn hard_links(setup: Setup) {
    let mut mount = setup.mount();
    std::fs::write(mount.at("a"), "one").unwrap();
    std::fs::create_dir(mount.at("d")).unwrap();
    std::fs::hard_link(mount.at("a"), mount.at("d/b")).unwrap();
    std::fs::hard_link(mount.at("d/b"), mount.at("c")).unwrap();
    assert_eq!(kind(std::fs::hard_link(mount.at("a"), mount.at("c"))), Errno::EEXIST);
    assert_eq!(kind(std::fs::hard_link(mount.at("d"), mount.at("e"))), Errno::EPERM);
    let mut file = OpenOptions::new().append(true).open(mount.at("c")).unwrap();
    file.write_all(b" two").unwrap();
    for name in ["a", "d/b", "c"] {
        assert_eq!(std::fs::read_to_string(mount.at(name)).unwrap(), "one two");
        assert_eq!(std::fs::metadata(mount.at(name)).unwrap().nlink(), 3);
    }
    drop(file);
    std::fs::remove_file(mount.at("a")).unwrap();
    mount.remount();
    let (b, c) = (std::fs::metadata(mount.at("d/b")).unwrap(), std::fs::metadata(mount.at("c")).unwrap());
    assert_eq!((b.ino(), b.nlink()), (c.ino(), 2));
    // Renaming one name of a file onto another of the same file does nothing.
    std::fs::rename(mount.at("c"), mount.at("d/b")).unwrap();
    assert!(mount.at("c").exists() && mount.at("d/b").exists());
    std::fs::remove_file(mount.at("c")).unwrap();
    assert_eq!(std::fs::read_to_string(mount.at("d/b")).unwrap(), "one two");
    assert_eq!(std::fs::metadata(mount.at("d/b")).unwrap().nlink(), 1);
    assert_eq!(std::fs::metadata(mount.path()).unwrap().nlink(), 3);
    // A thousand names.
    for n in 0..1000 {
        std::fs::hard_link(mount.at("d/b"), mount.at(format!("d/{n}"))).unwrap();
    }
    assert_eq!(std::fs::metadata(mount.at("d/7")).unwrap().nlink(), 1001);
    mount.remount();
    assert_eq!(std::fs::metadata(mount.at("d/7")).unwrap().nlink(), 1001);
}

/// Proves N6.
fn nodes_of_every_kind(setup: Setup) {
    let mut mount = setup.mount();
    let node = |name: &str, mode: u32, device: u64| {
        let path = c_path(&mount.at(name));
        // SAFETY: plain system call.
        errno(unsafe { libc::mknod(path.as_ptr(), mode, device) })
    };
    node("fifo", libc::S_IFIFO | 0o640, 0).unwrap();
    node("regular", libc::S_IFREG | 0o600, 0).unwrap();
    drop(std::os::unix::net::UnixListener::bind(mount.at("socket")).unwrap());
    let devices = is_root();
    if devices {
        node("null", libc::S_IFCHR | 0o666, libc::makedev(1, 3)).unwrap();
        node("loop", libc::S_IFBLK | 0o660, libc::makedev(7, 300)).unwrap();
    }
    assert_eq!(node("fifo", libc::S_IFIFO | 0o600, 0), Err(Errno::EEXIST));
    mount.remount();
    let kind = |name: &str| std::fs::symlink_metadata(mount.at(name)).unwrap().file_type();
    assert!(kind("fifo").is_fifo());
    assert!(kind("socket").is_socket());
    assert!(kind("regular").is_file());
    if devices {
        assert!(kind("null").is_char_device());
        assert!(kind("loop").is_block_device());
        let rdev = std::fs::metadata(mount.at("loop")).unwrap().rdev();
        assert_eq!((libc::major(rdev), libc::minor(rdev)), (7, 300));
    }
    if devices && !mount.is_plain() {
        assert_eq!(File::open(mount.at("null")).unwrap_err().raw_os_error(), Some(libc::EACCES), "the mount is nodev");
    }
    // They work: two processes meet in the FIFO and at the socket.
    assert_eq!(shell(mount.path(), "echo through > fifo & cat fifo; wait"), "through\n");
    std::fs::remove_file(mount.at("socket")).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(mount.at("socket")).unwrap();
    let path = mount.at("socket");
    let client = std::thread::spawn(move || {
        std::os::unix::net::UnixStream::connect(path).unwrap().write_all(b"hello").unwrap();
    });
    let mut text = String::new();
    listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
    client.join().unwrap();
    assert_eq!(text, "hello");
}

fn errors_for_wrong_objects(setup: Setup) {
    let mount = setup.mount();
    shell(mount.path(), "echo f > f; mkdir -p d/sub");
    assert_eq!(kind(File::open(mount.at("none"))), Errno::ENOENT);
    assert_eq!(kind(File::open(mount.at("f/x"))), Errno::ENOTDIR);
    assert_eq!(kind(OpenOptions::new().write(true).open(mount.at("d"))), Errno::EISDIR);
    assert_eq!(kind(std::fs::create_dir(mount.at("d"))), Errno::EEXIST);
    assert_eq!(kind(std::fs::remove_dir(mount.at("d"))), Errno::ENOTEMPTY);
    assert_eq!(kind(std::fs::remove_dir(mount.at("f"))), Errno::ENOTDIR);
    assert_eq!(kind(std::fs::remove_file(mount.at("d"))), Errno::EISDIR);
    assert_eq!(kind(std::fs::read_link(mount.at("f"))), Errno::EINVAL);
    assert_eq!(kind(std::fs::read_dir(mount.at("f"))), Errno::ENOTDIR);
    let nofollow = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(mount.at("f"));
    assert_eq!(kind(nofollow), Errno::ENOTDIR);
    assert_eq!(kind((&File::open(mount.at("f")).unwrap()).write_all(b"x")), Errno::EBADF);
    if is_root() {
        shell(mount.path(), "mv d e; rmdir e/sub e; rm f");
    }
}

/// Proves N5.
fn inode_numbers_are_not_used_again(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let mut seen = BTreeSet::new();
    for round in 0..4 {
        for n in 0..200 {
            let path = mount.at(format!("{round}-{n}"));
            match n % 3 {
                0 => std::fs::create_dir(&path).unwrap(),
                1 => std::fs::write(&path, "x").unwrap(),
                _ => symlink("x", &path).unwrap(),
            }
            let ino = std::fs::symlink_metadata(&path).unwrap().ino();
            assert!(seen.insert(ino), "inode {ino} is used again");
            if n % 2 == 0 {
                shell(mount.path(), &format!("rm -d {round}-{n}"));
            }
        }
        match round {
            0 => mount.remount(),
            1 => {
                mount.kill9();
                mount.mount();
            }
            2 => {
                mount.sync();
                mount.power_loss();
                mount.mount();
            }
            _ => {}
        }
    }
    // The links of a directory: itself, its name, and the `..` of each subdirectory.
    let links = |name: &str| std::fs::metadata(mount.at(name)).unwrap().nlink();
    shell(mount.path(), "mkdir d; touch d/file; ln -s x d/link");
    assert_eq!(links("d"), 2);
    shell(mount.path(), "mkdir d/a d/b d/a/c");
    assert_eq!((links("d"), links("d/a")), (4, 3));
    shell(mount.path(), "mv d/a/c d/c; rmdir d/b");
    assert_eq!((links("d"), links("d/a")), (4, 2));
}

/// Proves X3.
fn what_is_not_there(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let unnamed = OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(mount.path());
    assert_eq!(kind(unnamed), Errno::EOPNOTSUPP);
    let file = File::create(mount.at("f")).unwrap();
    let mut flags: libc::c_int = 0x10; // FS_IMMUTABLE_FL
    // SAFETY: FS_IOC_SETFLAGS reads an int.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &mut flags) };
    assert_eq!((done, Errno::last()), (-1, Errno::ENOTTY));
    let mut attributes = [0u8; 28]; // struct fsxattr, of which project ids are a part
    const FS_IOC_FSGETXATTR: libc::c_ulong = 0x801c_581f;
    // SAFETY: FS_IOC_FSGETXATTR fills the struct, which is as long as its number says.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSGETXATTR, attributes.as_mut_ptr()) };
    assert_eq!((done, Errno::last()), (-1, Errno::ENOTTY));
}

/// Proves X7.
fn what_the_kernel_answers_of_its_own(setup: Setup) {
    let mount = setup.clone().mount();
    if mount.is_plain() {
        return;
    }
    let watch = nix::sys::inotify::Inotify::init(nix::sys::inotify::InitFlags::IN_NONBLOCK).unwrap();
    watch.add_watch(mount.path(), nix::sys::inotify::AddWatchFlags::IN_CREATE).unwrap();
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(mount.at("f")).unwrap();
    file.write_all(&[1; 8192]).unwrap();
    let heard: Vec<_> = watch.read_events().unwrap().into_iter().filter_map(|event| event.name).collect();
    assert_eq!(heard, ["f"]);

    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    epoll.add(&file, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT, 7)).unwrap();
    let mut ready = [EpollEvent::empty()];
    assert_eq!((epoll.wait(&mut ready, EpollTimeout::ZERO), ready[0].data()), (Ok(1), 7));

    let mut byte = [0u8];
    let to = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: one buffer of ours of one byte, to be filled.
    let done = unsafe { libc::preadv2(file.as_raw_fd(), &raw const to, 1, 0, libc::RWF_NOWAIT) };
    assert_eq!((done, Errno::last()), (-1, Errno::EOPNOTSUPP));
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC;
    // SAFETY: a new mapping, which is refused.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, flags, file.as_raw_fd(), 0) };
    assert_eq!((mapped, Errno::last()), (libc::MAP_FAILED, Errno::EOPNOTSUPP));
    assert!(std::fs::metadata(mount.at("f")).unwrap().created().is_err());
    const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
    let mut map = [0u64; 4]; // struct fiemap, with room for no extent
    // SAFETY: FS_IOC_FIEMAP fills the struct, which is as long as its number says.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, map.as_mut_ptr()) };
    assert_eq!((done, Errno::last()), (-1, Errno::EOPNOTSUPP));

    if !is_root() {
        return;
    }
    for part in ["upper", "work", "lower"] {
        std::fs::create_dir(mount.at(part)).unwrap();
    }
    File::create(mount.at("lower/seen")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let other = |part: &str| dir.path().join(part).display().to_string();
    for part in ["one", "two", "at"] {
        std::fs::create_dir(other(part)).unwrap();
    }
    // What is listed in it.
    let overlay = |options: String| {
        let mut command = std::process::Command::new("unshare");
        let script = "mount -t overlay -o \"$0\" overlay \"$1\" && ls \"$1\"";
        let output = command.args(["-m", "sh", "-c", script, &options, &other("at")]).output().unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    if overlay(format!("lowerdir={}:{}", other("one"), other("two"))).is_none() {
        return setup.skip("overlayfs cannot be mounted here");
    }
    let at = |part: &str| mount.at(part).display().to_string();
    assert_eq!(overlay(format!("lowerdir={}:{}", at("lower"), other("one"))).as_deref(), Some("seen\n"));
    assert_eq!(overlay(format!("lowerdir={},upperdir={},workdir={}", other("one"), at("upper"), at("work"))), None);
}
