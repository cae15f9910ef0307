//! Names and attributes.

use std::fs::File;
use std::io::Write;
use std::process::Command;
use std::time::Instant;

use super::files;
use crate::backing::{ALL, Backing, MEMORY};
use crate::error::Result;
use crate::measure::{Context, Family, Goal, Measure, Must, Place, Row, Sample, Unit, nothing, seconds};
use crate::process::run;
use crate::target::Kind::{self, Bindfs, LatencyOff, Mergerfs, Native, Server, Tensorfs};

const EVERYBODY: &[Kind] = &[Native, Tensorfs, LatencyOff, Server, Bindfs, Mergerfs];

const METADATA: Measure = Measure {
    id: "",
    family: Family::Metadata,
    how: "",
    rows: &[],
    targets: EVERYBODY,
    backings: ALL,
    latency: true,
    rounds: 5,
    prepare: nothing,
    round: |_, _| Sample::of(vec![]),
};

pub const MEASURES: &[Measure] = &[
    Measure {
        id: "stat",
        how: "A directory of 10,000 files that were looked up before: stat of each, in one thread; and the program ls \
            -l, whole process.",
        rows: &[
            Row {
                id: "stat",
                title: "stat of a warm file",
                unit: Unit::Time,
                goals: &[Goal { target: Tensorfs, on: ALL, must: Must::Native(0.9) }],
            },
            Row {
                id: "ls",
                title: "ls -l of 10,000 files",
                unit: Unit::Time,
                goals: &[Goal { target: Tensorfs, on: ALL, must: Must::Native(0.7) }],
            },
        ],
        targets: &[Native, Tensorfs, Server, Bindfs, Mergerfs],
        backings: &[Backing::Ext4, Backing::Tmpfs],
        rounds: 9,
        prepare: many_files,
        round: stat,
        ..METADATA
    },
    Measure {
        id: "create",
        how: "1000 times in one directory: create a file under a temporary name, write 4 KiB, close, rename; for each. \
            Then all are removed.",
        rows: &[
            Row {
                id: "create",
                title: "create, write 4 KiB, close, rename",
                unit: Unit::Time,
                goals: &[
                    Goal { target: Tensorfs, on: ALL, must: Must::Peer(3.0) },
                    Goal { target: Tensorfs, on: &[Backing::Ext4], must: Must::Native(0.6) },
                    Goal { target: Tensorfs, on: MEMORY, must: Must::AtMost(65e-6) },
                ],
            },
            Row { id: "remove", title: "remove", unit: Unit::Time, goals: &[] },
        ],
        // Not on the host: some, ext4 without a journal among them, create files ever more slowly after many were
        // removed.
        backings: &[Backing::Ext4, Backing::Xfs, Backing::Tmpfs],
        round: create,
        ..METADATA
    },
];

fn many_files(cx: &Context, place: &Place) -> Result<()> {
    for n in 0..cx.scale.files {
        File::create(place.at(format!("file-{n:05}")))?;
    }
    place.target.quiet()
}

fn stat(cx: &Context, place: &Place) -> Result<Sample> {
    let paths: Vec<_> = (0..cx.scale.files).map(|n| place.at(format!("file-{n:05}"))).collect();
    let all = || paths.iter().try_for_each(|path| path.symlink_metadata().map(drop)).map_err(Into::into);
    all()?;
    // Several times, as one run is over in milliseconds.
    let times = 5;
    let stat = seconds(|| (0..times).try_for_each(|_| all()))?;
    let ls = seconds(|| run(Command::new("ls").arg("-l").arg(&place.dir)))?;
    Ok(Sample { values: vec![stat / (times * paths.len()) as f64, ls], operations: cx.scale.files })
}

fn create(cx: &Context, place: &Place) -> Result<Sample> {
    let count = cx.scale.created;
    let names: Vec<_> = (0..count).map(|n| (place.at(format!("{n}.tmp")), place.at(format!("{n}")))).collect();
    let start = Instant::now();
    for (temporary, name) in &names {
        let mut file = File::create_new(temporary)?;
        file.write_all(files::bytes(4096))?;
        drop(file);
        std::fs::rename(temporary, name)?;
    }
    let created = start.elapsed().as_secs_f64();
    place.target.settle()?;
    let removed = seconds(|| names.iter().try_for_each(|(_, name)| std::fs::remove_file(name)).map_err(Into::into))?;
    Ok(Sample { values: vec![created / count as f64, removed / count as f64], operations: count })
}
