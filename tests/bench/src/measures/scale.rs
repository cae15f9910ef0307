//! Many files, many writers, large files.

use std::fs::File;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::Command;

use memmap2::MmapMut;
use nix::mount::{MntFlags, umount2};

use super::files::{self, Random};
use crate::backing::{ALL, Backing};
use crate::error::Result;
use crate::measure::{Context, Family, Goal, Measure, Must, Place, Row, Sample, Unit, nothing, seconds};
use crate::process::run;
use crate::target::Kind::{Bindfs, Mergerfs, Native, Server, Tensorfs};

const SCALE: Measure = Measure {
    id: "",
    family: Family::Scale,
    how: "",
    rows: &[],
    targets: &[Native, Tensorfs, Server, Bindfs, Mergerfs],
    backings: &[Backing::Ext4, Backing::Tmpfs],
    latency: false,
    rounds: 5,
    prepare: nothing,
    round: |_, _| Sample::of(vec![]),
};

pub const MEASURES: &[Measure] = &[
    Measure {
        id: "writers-64",
        how: "64 threads write a file of 8 MiB each, in calls of 64 KiB, at the same time.",
        rows: &[Row { id: "write", title: "64 concurrent writers", unit: Unit::Rate, goals: &[] }],
        round: writers,
        ..SCALE
    },
    Measure {
        id: "names",
        how: "One directory: 20,000 empty files are created (1,000,000 with --full), 5000 of them looked up at random, \
            all listed.",
        rows: &[
            Row { id: "create", title: "create an empty file in a large directory", unit: Unit::Time, goals: &[] },
            Row { id: "stat", title: "stat of one of them", unit: Unit::Time, goals: &[] },
            Row { id: "list", title: "list a large directory, per name", unit: Unit::Time, goals: &[] },
        ],
        targets: &[Native, Tensorfs],
        rounds: 1,
        round: names,
        ..SCALE
    },
    Measure {
        id: "sparse",
        how: "A new file of 1 TiB, all of it a hole: made, mapped, a byte stored at each end, unmapped, closed.",
        rows: &[Row { id: "touch", title: "1 TiB sparse, mapped, both ends touched", unit: Unit::Time, goals: &[] }],
        targets: &[Native, Tensorfs],
        backings: ALL,
        round: sparse,
        ..SCALE
    },
    Measure {
        id: "mount",
        how: "A pool of 30,000 files (1,000,000 with --full) with five records each is mounted and unmounted; memory \
            of the server after the mount.",
        rows: &[
            Row {
                id: "mount",
                title: "mount a pool with many files",
                unit: Unit::Time,
                goals: &[Goal { target: Tensorfs, on: ALL, must: Must::AtMostFull(3.0) }],
            },
            Row {
                id: "memory",
                title: "server's memory after it",
                unit: Unit::Memory,
                goals: &[Goal { target: Tensorfs, on: ALL, must: Must::AtMostFull(1024.0 * 1024.0 * 1024.0) }],
            },
            Row { id: "umount", title: "umount", unit: Unit::Time, goals: &[] },
        ],
        targets: &[Tensorfs],
        backings: &[Backing::Host, Backing::Tmpfs],
        rounds: 3,
        prepare: fill_pool,
        round: mount,
        ..SCALE
    },
];

fn writers(cx: &Context, place: &Place) -> Result<Sample> {
    let each = cx.scale.bulk.min(512 << 20) / 64;
    let paths: Vec<_> = (0..64).map(|n| place.at(n.to_string())).collect();
    let took = seconds(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = paths
                .iter()
                .map(|path| {
                    scope.spawn(move || {
                        let file = File::create(path).map_err(|e| e.to_string());
                        file.and_then(|mut file| files::write(&mut file, each, 64 << 10).map_err(|e| e.to_string()))
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a writer"))
        })?;
        Ok(())
    })?;
    for path in &paths {
        std::fs::remove_file(path)?;
    }
    Sample::of(vec![(64 * each) as f64 / took])
}

fn names(cx: &Context, place: &Place) -> Result<Sample> {
    let count = cx.scale.names;
    let directory = place.at("names");
    std::fs::create_dir(&directory)?;
    let path = |n: u64| directory.join(format!("some-longer-name-{n:09}"));
    let create = seconds(|| (0..count).try_for_each(|n| File::create(path(n)).map(drop)).map_err(Into::into))?;
    let mut random = Random(7);
    let looks = 5000;
    let mut look = || path(random.next() % count).symlink_metadata().map(drop);
    let stat = seconds(|| (0..looks).try_for_each(|_| look()).map_err(Into::into))?;
    let mut listed = 0;
    let list = seconds(|| {
        listed = std::fs::read_dir(&directory)?.count() as u64;
        Ok(())
    })?;
    if listed != count {
        return Err(format!("{listed} of {count} names were listed").into());
    }
    std::fs::remove_dir_all(&directory)?;
    Sample::of(vec![create / count as f64, stat / looks as f64, list / count as f64])
}

fn sparse(_: &Context, place: &Place) -> Result<Sample> {
    let path = place.at("sparse");
    let took = seconds(|| {
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        file.set_len(1 << 40)?;
        // SAFETY: nobody else knows the file.
        let mut map = unsafe { MmapMut::map_mut(&file)? };
        let last = map.len() - 1;
        map[0] = 1;
        map[last] = 2;
        black_box((map[0], map[last]));
        Ok(())
    })?;
    std::fs::remove_file(path)?;
    Sample::of(vec![took])
}

/// Where the pool and its mount are: on the backing, beside the targets.
fn own_pool(place: &Place) -> (PathBuf, PathBuf) {
    let backing = place.target.host.parent().expect("a backing");
    (backing.join("many.pool"), backing.join("many.mnt"))
}

fn fill_pool(cx: &Context, place: &Place) -> Result<()> {
    let tensorfs = || Command::new(&place.target.programs.tensorfs);
    let (pool, mountpoint) = own_pool(place);
    std::fs::create_dir(&mountpoint)?;
    run(tensorfs().arg("create").arg(&pool))?;
    let mounted = OwnMount::new(place)?;
    for n in 0..cx.scale.mounted {
        let directory = mountpoint.join(format!("directory-{:04}", n / 1000));
        if n % 1000 == 0 {
            std::fs::create_dir(&directory)?;
        }
        let path = directory.join(format!("file-{n:08}"));
        let file = File::create(&path)?;
        // Attributes and the name are two records, and each of these is one.
        for name in [c"user.one", c"user.two", c"user.three"] {
            set_attribute(&file, name, b"value")?;
        }
    }
    mounted.end()
}

fn set_attribute(file: &File, name: &std::ffi::CStr, value: &[u8]) -> Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: a system call with an open descriptor, a string that ends, and bytes of that length.
    let set = unsafe { libc::fsetxattr(file.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}

fn mount(cx: &Context, place: &Place) -> Result<Sample> {
    let mut mounted = None;
    let mounting = seconds(|| {
        mounted = Some(OwnMount::new(place)?);
        Ok(())
    })?;
    let mounted = mounted.expect("mounted above");
    let info: serde_json::Value = serde_json::from_str(&run(Command::new(&place.target.programs.tensorfs)
        .arg("info")
        .arg(own_pool(place).0)
        .arg("--json"))?)
    .map_err(|e| format!("info --json: {e}"))?;
    let (records, files) = (info["records"].as_u64().unwrap_or(0), info["files"].as_u64().unwrap_or(0));
    if files != cx.scale.mounted || records < 4 * files {
        return Err(format!("the pool has {files} files and {records} records").into());
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", info["pid"]))?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    let kibibytes: f64 = resident.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(f64::NAN);
    let umounting = seconds(|| mounted.end())?;
    Sample::of(vec![mounting, kibibytes * 1024.0, umounting])
}

/// A pool mounted as users do it, by a server that is no child of ours; unmounted whatever happens.
struct OwnMount<'a>(&'a Place<'a>);

impl<'a> OwnMount<'a> {
    fn new(place: &'a Place<'a>) -> Result<OwnMount<'a>> {
        let (pool, mountpoint) = own_pool(place);
        let mounted = OwnMount(place);
        run(Command::new(&place.target.programs.tensorfs).arg("mount").arg(pool).arg(mountpoint))?;
        Ok(mounted)
    }

    fn end(self) -> Result<()> {
        run(Command::new(&self.0.target.programs.tensorfs).arg("umount").arg(own_pool(self.0).1)).map(drop)
    }
}

impl Drop for OwnMount<'_> {
    fn drop(&mut self) {
        let _ = umount2(&own_pool(self.0).1, MntFlags::MNT_DETACH);
    }
}
