//! Unmodified Python clients, as whole processes.

use std::time::Instant;

use crate::backing::{ALL, Backing};
use crate::error::Result;
use crate::measure::{Context, Family, Goal, Measure, Must, Place, Row, Sample, Unit};
use crate::target::Kind::{Close, Native, Tensorfs};

const GOALS: &[Goal] = &[Goal { target: Tensorfs, on: ALL, must: Must::Native(0.95) }];

const fn row(id: &'static str, title: &'static str, goals: &'static [Goal]) -> Row {
    Row { id, title, unit: Unit::Time, goals }
}

const CLIENT: Measure = Measure {
    id: "",
    family: Family::Clients,
    how: "",
    rows: &[],
    targets: &[Native, Tensorfs],
    backings: &[Backing::Host, Backing::Tmpfs],
    latency: false,
    rounds: 5,
    prepare: |_, _| Ok(()),
    round: |_, _| Sample::of(vec![]),
};

pub const MEASURES: &[Measure] = &[
    Measure {
        id: "safetensors",
        how: "safetensors, 64 tensors of 16 MiB, by a new Python process each time: save_file, load_file, and \
            safe_open tensor by tensor. The process from its start to its end; `call` is the library's call alone, \
            with the sum of what was loaded.",
        rows: &[
            row("save", "safetensors save, process", GOALS),
            row("save-call", "safetensors save, call", &[]),
            row("load", "safetensors load, process", GOALS),
            row("load-call", "safetensors load, call", &[]),
            row("map", "safetensors safe_open, process", GOALS),
            row("map-call", "safetensors safe_open, call", &[]),
        ],
        prepare: |cx, place| prepare(cx, place, "safetensors", SAFETENSORS),
        round: |cx, place| round(cx, place, "safetensors", SAFETENSORS),
        ..CLIENT
    },
    Measure {
        id: "numpy",
        how: "np.save of one array of 1 GiB, np.load, and np.load(mmap_mode=\"r\"), likewise.",
        rows: &[
            row("save", "np.save, process", GOALS),
            row("save-call", "np.save, call", &[]),
            row("load", "np.load, process", GOALS),
            row("load-call", "np.load, call", &[]),
            row("map", "np.load mmap, process", GOALS),
            row("map-call", "np.load mmap, call", &[]),
        ],
        prepare: |cx, place| prepare(cx, place, "numpy", NUMPY),
        round: |cx, place| round(cx, place, "numpy", NUMPY),
        ..CLIENT
    },
    Measure {
        id: "torch",
        how: "torch.save of 64 tensors of 16 MiB, torch.load, and torch.load(mmap=True), likewise.",
        rows: &[
            row("save", "torch.save, process", GOALS),
            row("save-call", "torch.save, call", &[]),
            row("load", "torch.load, process", GOALS),
            row("load-call", "torch.load, call", &[]),
            row("map", "torch.load mmap, process", GOALS),
            row("map-call", "torch.load mmap, call", &[]),
        ],
        backings: &[Backing::Tmpfs],
        rounds: 3,
        prepare: |cx, place| prepare(cx, place, "torch", TORCH),
        round: |cx, place| round(cx, place, "torch", TORCH),
        ..CLIENT
    },
    Measure {
        id: "smdebug",
        how: "40 steps of smdebug's own FileWriter, each with 10 tensors of 64 KiB; the median of the steps. smdebug \
            syncs nothing: natively, and with durability=fsync, a step is not durable when it is over; with \
            durability=close its files are.",
        rows: &[row("step", "smdebug FileWriter, a step", &[])],
        targets: &[Native, Tensorfs, Close],
        backings: &[Backing::Ext4, Backing::Tmpfs],
        rounds: 3,
        prepare: |cx, _| cx.pythons.with(SMDEBUG).map(drop),
        round: |cx, place| {
            let directory = place.at("trial");
            std::fs::create_dir(&directory)?;
            let steps = 40.min(cx.scale.syncs);
            let step = cx.pythons.run(cx.pythons.with(SMDEBUG)?, "smdebug", "steps", &directory, steps)?;
            std::fs::remove_dir_all(directory)?;
            Sample::of(vec![step])
        },
        ..CLIENT
    },
];

/// What each client needs, and of what major version at least.
type Packages = &'static [(&'static str, u32)];
const SAFETENSORS: Packages = &[("safetensors", 0), ("numpy", 1)];
const NUMPY: Packages = &[("numpy", 1)];
const SMDEBUG: Packages = &[("smdebug", 1), ("numpy", 1)];
/// Torch 1 cannot map.
const TORCH: Packages = &[("torch", 2)];

/// The checkpoint that is loaded.
fn prepare(cx: &Context, place: &Place, library: &str, packages: Packages) -> Result<()> {
    let python = cx.pythons.with(packages)?;
    cx.pythons.run(python, library, "save", &place.at("kept.npy"), cx.scale.bulk)?;
    place.target.quiet()
}

fn round(cx: &Context, place: &Place, library: &str, packages: Packages) -> Result<Sample> {
    let python = cx.pythons.with(packages)?;
    let mut values = Vec::new();
    for (action, name) in [("save", "saved.npy"), ("load", "kept.npy"), ("map", "kept.npy")] {
        let start = Instant::now();
        let call = cx.pythons.run(python, library, action, &place.at(name), cx.scale.bulk)?;
        values.extend([start.elapsed().as_secs_f64(), call]);
        if action == "save" {
            std::fs::remove_file(place.at(name))?;
            place.target.settle()?;
        }
    }
    Sample::of(values)
}
