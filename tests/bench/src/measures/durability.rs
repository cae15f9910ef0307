//! fsync, close, and what survives.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::files;
use crate::backing::{ALL, Backing, MEMORY};
use crate::error::Result;
use crate::measure::{Context, Family, Goal, Measure, Must, Place, Row, Sample, Unit, nothing, seconds};
use crate::process::run;
use crate::statistics::middle;
use crate::target::Kind::{
    self, Ancestor, Bindfs, Close, LatencyOff, Mergerfs, Native, Server, Tensorfs, Write as Durable,
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// The disk that every ratio of a durable write is about: its `fsync` commits a journal.
const JOURNAL: &[Backing] = &[Backing::Ext4];
const PLACES: &[Backing] = &[Backing::Host, Backing::Ext4, Backing::Xfs, Backing::Tmpfs];

const DURABILITY: Measure = Measure {
    id: "",
    family: Family::Durability,
    how: "",
    rows: &[],
    targets: &[Native, Tensorfs, Server, Bindfs, Mergerfs],
    backings: PLACES,
    latency: false,
    rounds: 5,
    prepare: nothing,
    round: |_, _| Sample::of(vec![]),
};

/// A row of appended tensors, with the goals that all of them have.
const fn appended(title: &'static str) -> Row {
    Row {
        id: "append",
        title,
        unit: Unit::Time,
        goals: &[
            Goal { target: Tensorfs, on: MEMORY, must: Must::Ancestor(1.0) },
            Goal { target: Tensorfs, on: &[Backing::Host, Backing::Ext4], must: Must::Ancestor(3.0) },
        ],
    }
}

const TENSORS: Measure = Measure {
    how: "A tensor is appended to a file and made durable, again and again; the median. tensorfs and native: write, \
        fsync. The program over libpmemobj: zalloc of a list's element, memcpy_persist, by msync as the backing is no \
        persistent memory.",
    targets: &[Native, Tensorfs, Ancestor],
    backings: &[Backing::Host, Backing::Ext4, Backing::Tmpfs],
    rounds: 3,
    ..DURABILITY
};

pub const MEASURES: &[Measure] = &[
    Measure {
        id: "append",
        how: "One program appends 4 KiB to a file and calls fsync, 120 times; the median.",
        rows: &[Row {
            id: "append",
            title: "append 4 KiB + fsync, 1 writer",
            unit: Unit::Time,
            goals: &[
                Goal { target: Tensorfs, on: JOURNAL, must: Must::Native(0.7) },
                Goal { target: Tensorfs, on: MEMORY, must: Must::AtMost(25e-6) },
            ],
        }],
        targets: &[Native, Tensorfs, LatencyOff, Server, Bindfs, Mergerfs],
        latency: true,
        round: append,
        ..DURABILITY
    },
    Measure {
        id: "append-16",
        how: "16 threads do the same, each with a file of its own that has 4 KiB, and then one that has 1 MiB, 128 \
            times in all; the time divided by 128.",
        rows: &[
            Row {
                id: "append",
                title: "append 4 KiB + fsync, 16 writers",
                unit: Unit::Time,
                goals: &[Goal { target: Tensorfs, on: JOURNAL, must: Must::Native(0.9) }],
            },
            Row {
                id: "append-large",
                title: "append 4 KiB + fsync, 16 writers, to 1 MiB",
                unit: Unit::Time,
                goals: &[Goal { target: Tensorfs, on: JOURNAL, must: Must::Native(0.9) }],
            },
        ],
        round: append_16,
        ..DURABILITY
    },
    Measure {
        id: "small-files",
        how: "A new file, 4 KiB, fsync, close; the median of 120. Then a replacement as editors do it: a temporary \
            file, 4 KiB, fsync, close, rename over the file, fsync of the directory.",
        rows: &[
            Row {
                id: "new",
                title: "new file of 4 KiB, fsync",
                unit: Unit::Time,
                goals: &[Goal { target: Tensorfs, on: JOURNAL, must: Must::Native(1.2) }],
            },
            Row {
                id: "replace",
                title: "4 KiB file, fsync, rename, fsync of directory",
                unit: Unit::Time,
                goals: &[Goal { target: Tensorfs, on: JOURNAL, must: Must::Native(1.2) }],
            },
        ],
        round: small_files,
        ..DURABILITY
    },
    Measure {
        id: "smdebug-step",
        how: "What smdebug does in a step: a new directory, an event file of 10 tensors of 64 KiB written under a \
            temporary name and renamed, then its index likewise; the median of the steps. Natively with fsync of each \
            file and of each directory; with durability=close as smdebug is.",
        rows: &[Row {
            id: "step",
            title: "smdebug step, durable",
            unit: Unit::Time,
            goals: &[Goal { target: Close, on: JOURNAL, must: Must::Native(1.2) }],
        }],
        targets: &[Native, Close],
        round: smdebug_steps,
        ..DURABILITY
    },
    Measure {
        id: "tensors-64k",
        rows: &[appended("append a tensor of 64 KiB, durable")],
        round: append_tensors::<{ 64 * KIB }, 100>,
        ..TENSORS
    },
    Measure {
        id: "tensors-1m",
        rows: &[appended("append a tensor of 1 MiB, durable")],
        round: append_tensors::<MIB, 50>,
        ..TENSORS
    },
    Measure {
        id: "tensors-16m",
        rows: &[appended("append a tensor of 16 MiB, durable")],
        round: append_tensors::<{ 16 * MIB }, 8>,
        ..TENSORS
    },
    Measure {
        id: "beside-bulk",
        how: "4 KiB are appended to a file and fsync called, 30 times, while another thread writes 512 MiB again and \
            again, without fsync; the median.",
        rows: &[Row { id: "append", title: "append 4 KiB + fsync beside a bulk writer", unit: Unit::Time, goals: &[] }],
        targets: &[Native, Tensorfs],
        backings: &[Backing::Host, Backing::Ext4, Backing::Xfs],
        rounds: 3,
        round: beside_bulk,
        ..DURABILITY
    },
    Measure {
        id: "durable-bulk",
        how: "256 MiB in calls of 1 MiB until they are durable: natively and with durability=fsync one fsync at the \
            end and the close; with durability=close the close; with durability=write the writes. And the same in \
            calls that are durable one by one: natively with O_DSYNC.",
        rows: &[
            Row { id: "end", title: "write 256 MiB, durable at its end", unit: Unit::Rate, goals: &[] },
            Row { id: "each", title: "write 1 MiB calls, each durable", unit: Unit::Rate, goals: &[] },
        ],
        targets: &[Native, Tensorfs, Close, Durable],
        backings: ALL,
        rounds: 3,
        round: durable_bulk,
        ..DURABILITY
    },
];

/// The times of so many appends with fsync.
fn appends(path: &Path, len: usize, count: u64) -> Result<Vec<f64>> {
    let mut file = files::append(path)?;
    let mut once = || {
        seconds(|| {
            file.write_all(files::bytes(len))?;
            Ok(file.sync_all()?)
        })
    };
    once()?;
    (0..count).map(|_| once()).collect()
}

fn append(cx: &Context, place: &Place) -> Result<Sample> {
    let path = place.at("log");
    let times = appends(&path, 4096, cx.scale.syncs)?;
    std::fs::remove_file(path)?;
    Ok(Sample { values: vec![middle(times)], operations: cx.scale.syncs + 1 })
}

fn append_16(cx: &Context, place: &Place) -> Result<Sample> {
    let each = cx.scale.syncs.div_ceil(16);
    let writers: Vec<_> = (0..16).map(|n| place.at(format!("log-{n}"))).collect();
    let values = [4096, MIB].into_iter().map(|len| {
        for path in &writers {
            files::make(path, len as u64)?;
        }
        place.target.settle()?;
        let took = seconds(|| {
            std::thread::scope(|scope| {
                let threads: Vec<_> = writers
                    .iter()
                    .map(|path| scope.spawn(|| appends(path, 4096, each - 1).map(drop).map_err(|e| e.to_string())))
                    .collect();
                threads.into_iter().try_for_each(|thread| thread.join().expect("a writer"))
            })?;
            Ok(())
        })?;
        for path in &writers {
            std::fs::remove_file(path)?;
        }
        Ok(took / (each * 16) as f64)
    });
    Ok(Sample { values: values.collect::<Result<_>>()?, operations: 2 * each * 16 })
}

fn small_files(cx: &Context, place: &Place) -> Result<Sample> {
    let write = |path: &Path| -> Result<()> {
        let mut file = File::create(path)?;
        file.write_all(files::bytes(4096))?;
        Ok(file.sync_all()?)
    };
    let count = cx.scale.syncs;
    let new = (0..count).map(|n| seconds(|| write(&place.at(n.to_string())))).collect::<Result<Vec<_>>>()?;
    let replaced = (0..count)
        .map(|n| {
            seconds(|| {
                let temporary = place.at("temporary");
                write(&temporary)?;
                std::fs::rename(&temporary, place.at(n.to_string()))?;
                files::sync_directory(&place.dir)
            })
        })
        .collect::<Result<Vec<_>>>()?;
    for n in 0..count {
        std::fs::remove_file(place.at(n.to_string()))?;
    }
    Ok(Sample { values: vec![middle(new), middle(replaced)], operations: 2 * count })
}

fn smdebug_steps(cx: &Context, place: &Place) -> Result<Sample> {
    let steps = cx.scale.syncs / 4;
    let durable = place.kind() == Native;
    let (events, index) = (place.at("events"), place.at("index/000000000"));
    for directory in [&events, &place.at("index"), &index] {
        std::fs::create_dir(directory)?;
    }
    let times = (0..steps).map(|step| seconds(|| smdebug_step(&events, &index, step, durable)));
    let times = times.collect::<Result<Vec<_>>>()?;
    std::fs::remove_dir_all(&events)?;
    std::fs::remove_dir_all(place.at("index"))?;
    Ok(Sample { values: vec![middle(times)], operations: steps })
}

/// The name under which smdebug writes a file.
fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}

/// The calls of one step of smdebug 1.0.34, with what makes it durable natively if that is asked for.
fn smdebug_step(events: &Path, index: &Path, step: u64, durable: bool) -> Result<()> {
    let finish = |mut file: File, last: &[u8], path: &Path| -> Result<()> {
        file.write_all(last)?;
        if durable {
            file.sync_all()?;
        }
        drop(file);
        std::fs::rename(temporary(path), path)?;
        if durable { files::sync_directory(path.parent().expect("a directory")) } else { Ok(()) }
    };
    let directory = events.join(format!("{step:012}"));
    std::fs::create_dir(&directory)?;
    if durable {
        files::sync_directory(events)?;
    }
    let path = directory.join(format!("{step:012}_worker_0.tfevents"));
    let mut file = File::create(temporary(&path))?;
    for _ in 0..10 {
        // Header, event with its tensor, footer.
        file.write_all(files::bytes(12 + 64 * KIB + 180))?;
    }
    finish(file, files::bytes(4), &path)?;
    let path = index.join(format!("{step:012}_worker_0.json"));
    let file = File::options().append(true).create(true).open(temporary(&path))?;
    finish(file, files::bytes(1500), &path)
}

fn append_tensors<const LEN: usize, const COUNT: u64>(cx: &Context, place: &Place) -> Result<Sample> {
    let count = COUNT.min(cx.scale.syncs);
    let path = place.at("tensors");
    let times = if let (Kind::Ancestor, Ok(program)) = (place.kind(), &place.target.programs.ancestor) {
        // Room for all, and as much again for what the allocator rounds up.
        let size = (2 * LEN as u64 * (count + 2)).max(64 << 20);
        let mut command = Command::new(program);
        command.arg(&path).args([size, LEN as u64, count].map(|n| n.to_string()));
        let text = run(command.env("PMEM_IS_PMEM_FORCE", "0"))?;
        text.lines().map(|line| line.parse::<f64>().map_err(|_| format!("ancestor: {line}").into())).collect()
    } else {
        appends(&path, LEN, count)
    };
    std::fs::remove_file(&path)?;
    Ok(Sample { values: vec![middle(times?)], operations: 0 })
}

fn beside_bulk(cx: &Context, place: &Place) -> Result<Sample> {
    let (bulk, log) = (place.at("bulk"), place.at("log"));
    let len = cx.scale.bulk / 2;
    files::make(&bulk, len)?;
    place.target.settle()?;
    let done = AtomicBool::new(false);
    let times = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let mut file = File::options().write(true).open(&bulk).map_err(|e| e.to_string())?;
                let piece = files::bytes(MIB);
                for _ in 0..len / MIB as u64 {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    file.write_all(piece).map_err(|e| e.to_string())?;
                }
            }
            Ok::<_, String>(())
        });
        let times = appends(&log, 4096, 30.min(cx.scale.syncs));
        done.store(true, Ordering::Relaxed);
        writer.join().expect("the bulk writer")?;
        times
    });
    std::fs::remove_file(bulk)?;
    std::fs::remove_file(log)?;
    Sample::of(vec![middle(times?)])
}

fn durable_bulk(cx: &Context, place: &Place) -> Result<Sample> {
    let path = place.at("bulk");
    let len = cx.scale.copied;
    let start = Instant::now();
    let mut file = File::create(&path)?;
    files::write(&mut file, len, MIB)?;
    if matches!(place.kind(), Native | Tensorfs) {
        file.sync_all()?;
    }
    drop(file);
    let end = len as f64 / start.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    place.target.settle()?;
    let calls = len / 4;
    let each = if matches!(place.kind(), Native | Durable) {
        let mut file = if place.kind() == Native { files::synchronous(&path)? } else { File::create(&path)? };
        let each = calls as f64 / seconds(|| files::write(&mut file, calls, MIB))?;
        drop(file);
        std::fs::remove_file(&path)?;
        each
    } else {
        f64::NAN
    };
    Sample::of(vec![end, each])
}
