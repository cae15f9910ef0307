//! Bytes in and out of large files.

use std::fs::File;
use std::hint::black_box;
use std::io::{Seek, Write};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Instant;

use memmap2::Mmap;
use serde_json::json;

use super::files::{self, Random};
use crate::backing::{ALL, Backing, DISKS, compact_memory};
use crate::error::Result;
use crate::measure::{Context, Family, Goal, Measure, Must, Place, Row, Sample, Unit, nothing, seconds};
use crate::process::run;
use crate::target::Kind::{self, Bindfs, Mergerfs, Native, Server, Tensorfs};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const MOVERS: &[Kind] = &[Native, Tensorfs, Server, Bindfs, Mergerfs];

const SOME: &[Backing] = &[Backing::Host, Backing::Ext4, Backing::Tmpfs];

const fn native(ratio: f64) -> Goal {
    Goal { target: Tensorfs, on: ALL, must: Must::Native(ratio) }
}
const SERVER_PATH: Goal = Goal { target: Server, on: ALL, must: Must::Peer(1.0) };

const DATA: Measure = Measure {
    id: "",
    family: Family::Data,
    how: "",
    rows: &[],
    targets: MOVERS,
    backings: ALL,
    latency: false,
    rounds: 9,
    prepare: nothing,
    round: |_, _| Sample::of(vec![]),
};

pub const MEASURES: &[Measure] = &[
    Measure {
        id: "write-1m",
        how: "1 GiB into a new file in calls of 1 MiB (256 MiB where a server copies it), and its close.",
        rows: &[
            Row { id: "write", title: "write, 1 MiB calls", unit: Unit::Rate, goals: &[native(0.95), SERVER_PATH] },
            Row {
                id: "close",
                title: "close after writing 1 GiB",
                unit: Unit::Time,
                goals: &[Goal { target: Tensorfs, on: ALL, must: Must::Above(1e-3) }],
            },
        ],
        round: write::<MIB>,
        ..DATA
    },
    Measure {
        id: "write-64k",
        how: "The same in calls of 64 KiB.",
        rows: &[Row { id: "write", title: "write, 64 KiB calls", unit: Unit::Rate, goals: &[native(0.95)] }],
        round: write::<{ 64 * KIB }>,
        backings: SOME,
        ..DATA
    },
    Measure {
        id: "write-4k",
        how: "The same in calls of 4 KiB.",
        rows: &[Row { id: "write", title: "write, 4 KiB calls", unit: Unit::Rate, goals: &[native(0.85)] }],
        round: write::<{ 4 * KIB }>,
        backings: SOME,
        ..DATA
    },
    Measure {
        id: "read",
        how: "A file of 1 GiB (256 MiB where a server copies it) in the page cache: from its start in calls of 1 MiB; \
            256 MiB of it in calls of 4 KiB at random places; then a new mapping, one byte of each page read, and \
            again (for 1 GiB in any case); and how much of it the processor's tables map by huge pages.",
        rows: &[
            Row { id: "read", title: "read warm, 1 MiB calls", unit: Unit::Rate, goals: &[native(0.95), SERVER_PATH] },
            Row { id: "random", title: "read warm, random 4 KiB", unit: Unit::Rate, goals: &[native(0.95)] },
            Row { id: "first", title: "mmap 1 GiB, first touch", unit: Unit::Time, goals: &[native(0.97)] },
            Row { id: "second", title: "mmap 1 GiB, second touch", unit: Unit::Time, goals: &[native(0.97)] },
            Row {
                id: "huge",
                title: "mapped by huge pages",
                unit: Unit::Huge,
                goals: &[Goal { target: Tensorfs, on: &[Backing::TmpfsHuge], must: Must::Native(0.97) }],
            },
        ],
        prepare: large_file,
        round: read_warm,
        ..DATA
    },
    Measure {
        id: "read-cold",
        how: "The same file from its start in calls of 1 MiB, after its pages were thrown out of memory, on the mount \
            and behind it.",
        rows: &[Row { id: "read", title: "read cold, 1 MiB calls", unit: Unit::Rate, goals: &[native(0.95)] }],
        backings: DISKS,
        rounds: 5,
        prepare: large_file,
        round: read_cold,
        ..DATA
    },
    Measure {
        id: "cp",
        how: "The program cp, of a file of 1 GiB, both on the target; whole process. On XFS, cp asks for a reflink.",
        rows: &[Row {
            id: "cp",
            title: "cp of a 1 GiB checkpoint",
            unit: Unit::Time,
            goals: &[
                Goal { target: Tensorfs, on: SOME, must: Must::Native(1.0) },
                Goal { target: Tensorfs, on: &[Backing::Xfs], must: Must::AtMost(0.02) },
            ],
        }],
        targets: &[Native, Tensorfs, Server],
        backings: &[Backing::Host, Backing::Ext4, Backing::Xfs, Backing::Tmpfs],
        rounds: 5,
        prepare: |cx, place| {
            files::make(&place.at("large"), cx.scale.bulk)?;
            place.target.quiet()
        },
        round: copy,
        ..DATA
    },
    Measure {
        id: "listing",
        how: "A safetensors file of 64 tensors of 16 MiB is written and closed; then `tensorfs tensors` lists it, \
            whole process; and then it is sealed, that is checksummed: a second after its close at the earliest.",
        rows: &[
            Row { id: "listed", title: "tensors listed, after the close", unit: Unit::Time, goals: &[] },
            Row { id: "sealed", title: "sealed, after the close", unit: Unit::Time, goals: &[] },
        ],
        targets: &[Tensorfs],
        backings: &[Backing::Host, Backing::Tmpfs],
        rounds: 3,
        round: listing,
        ..DATA
    },
    Measure {
        id: "server-cpu",
        how: "Processor time of the server while 10 GiB are written through the mount in calls of 1 MiB, over the same \
            1 GiB again and again (2.5 GiB, times four, where a server copies them).",
        rows: &[Row {
            id: "cpu",
            title: "server's CPU for 10 GiB",
            unit: Unit::Time,
            goals: &[Goal { target: Tensorfs, on: ALL, must: Must::AtMost(0.02) }],
        }],
        targets: &[Tensorfs, Server, Bindfs, Mergerfs],
        backings: &[Backing::Tmpfs],
        rounds: 1,
        prepare: large_file,
        round: through,
        ..DATA
    },
];

fn large_file(cx: &Context, place: &Place) -> Result<()> {
    if cx.scale.steady {
        compact_memory();
    }
    files::make(&place.at("large"), cx.scale.bulk(place.kind()))?;
    place.target.quiet()
}

fn write<const CALL: usize>(cx: &Context, place: &Place) -> Result<Sample> {
    let path = place.at("new");
    let len = cx.scale.bulk(place.kind());
    let mut file = File::create_new(&path)?;
    let writing = seconds(|| files::write(&mut file, len, CALL))?;
    let closing = seconds(|| {
        drop(file);
        Ok(())
    })?;
    std::fs::remove_file(&path)?;
    Sample::of(if CALL == MIB { vec![len as f64 / writing, closing] } else { vec![len as f64 / writing] })
}

fn read_warm(cx: &Context, place: &Place) -> Result<Sample> {
    let mut file = File::open(place.at("large"))?;
    // Once untimed: what the last measure pushed out is back.
    let len = files::read(&mut file, MIB)?;
    file.rewind()?;
    let sequential = seconds(|| files::read(&mut file, MIB))?;
    let count = cx.scale.copied / 4096;
    let mut random = Random(42);
    let mut buffer = [0; 4096];
    let scattered = seconds(|| {
        for _ in 0..count {
            file.read_exact_at(&mut buffer, random.next() % (len / 4096) * 4096)?;
        }
        Ok(())
    })?;
    // SAFETY: nobody changes the file while it is mapped.
    let map = unsafe { Mmap::map(&file)? };
    let touch = || seconds(|| Ok(black_box((0..map.len()).step_by(4096).map(|at| u64::from(map[at])).sum::<u64>())));
    let (first, second) = (touch()?, touch()?);
    let share = cx.scale.bulk as f64 / len as f64;
    let rates = [len as f64 / sequential, (count * 4096) as f64 / scattered];
    Sample::of(vec![rates[0], rates[1], first * share, second * share, huge(&map)?])
}

fn read_cold(_: &Context, place: &Place) -> Result<Sample> {
    place.target.evict()?;
    let mut file = File::open(place.at("large"))?;
    let start = Instant::now();
    let len = files::read(&mut file, MIB)?;
    Sample::of(vec![len as f64 / start.elapsed().as_secs_f64()])
}

/// How many bytes of a mapping are mapped by huge pages.
fn huge(map: &Mmap) -> Result<f64> {
    let smaps = std::fs::read_to_string("/proc/self/smaps")?;
    let start = map.as_ptr() as usize;
    let mut within = false;
    let mut kibibytes = 0.0;
    for line in smaps.lines() {
        if let Some((first, last)) = line.split(' ').next().and_then(|range| range.split_once('-')) {
            if let (Ok(first), Ok(last)) = (usize::from_str_radix(first, 16), usize::from_str_radix(last, 16)) {
                within = first >= start && last <= (start + map.len()).next_multiple_of(4096);
            }
        } else if within && (line.starts_with("ShmemPmdMapped:") || line.starts_with("FilePmdMapped:")) {
            kibibytes += line.split_whitespace().nth(1).and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0);
        }
    }
    Ok(kibibytes * 1024.0)
}

fn copy(_: &Context, place: &Place) -> Result<Sample> {
    let (from, to) = (place.at("large"), place.at("copy"));
    let took = seconds(|| run(Command::new("cp").arg(&from).arg(&to)))?;
    std::fs::remove_file(&to)?;
    Sample::of(vec![took])
}

fn listing(cx: &Context, place: &Place) -> Result<Sample> {
    let path = place.at("checkpoint.safetensors");
    let (count, len) = (64, cx.scale.bulk / 64);
    let mut entries = serde_json::Map::new();
    for n in 0..count {
        let tensor = json!({"dtype": "F32", "shape": [len / 4], "data_offsets": [n * len, (n + 1) * len]});
        entries.insert(format!("layers.{n}.weight"), tensor);
    }
    let mut header = serde_json::to_vec(&entries)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let sealed = || Ok::<_, Box<dyn std::error::Error>>(place.target.info()?["counters"]["sealed"].as_u64());
    let before = sealed()?;
    let mut file = File::create_new(&path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    files::write(&mut file, count * len, (len as usize).min(MIB))?;
    drop(file);
    let closed = Instant::now();
    let text = run(Command::new(&place.target.programs.tensorfs).args(["tensors", "--json"]).arg(&path))?;
    let listed = closed.elapsed().as_secs_f64();
    if text.lines().count() as u64 != count {
        return Err(format!("{} of {count} tensors were listed", text.lines().count()).into());
    }
    while sealed()? == before {
        if closed.elapsed().as_secs() > 60 {
            return Err("it is not sealed after a minute".into());
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let sealed = closed.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Sample::of(vec![listed, sealed])
}

fn through(cx: &Context, place: &Place) -> Result<Sample> {
    let size = cx.scale.bulk(place.kind());
    let share = if place.kind().copies() { 4 } else { 1 };
    let mut file = File::options().write(true).open(place.at("large"))?;
    let before = place.target.cpu()?;
    for _ in 0..cx.scale.through / share / size {
        file.rewind()?;
        files::write(&mut file, size, MIB)?;
    }
    let used = place.target.cpu()? - before;
    Sample::of(vec![used * share as f64])
}
