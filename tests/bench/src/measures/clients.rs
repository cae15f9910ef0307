//! Unmodified Python clients, as whole processes.

use std::time::Instant;

use crate::Result;
use crate::backing::{ALL, Backing};
use crate::measure::{Context, Family, Goal, Measure, Must, Place, Row, Sample, Unit};
use crate::target::Kind::{Native, Tensorfs};

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
    backings: &[Backing::Host, Backing::Ext4, Backing::Tmpfs],
    latency: false,
    rounds: 5,
    prepare: |_, _| Ok(()),
    round: |_, _| Sample::of(vec![]),
};

pub const MEASURES: &[Measure] = &[
    Measure {
        id: "safetensors",
        how: "safetensors, 64 tensors of 16 MiB, by a new Python process each time: save_file, load_file, and safe_open tensor by tensor. The process \
            from its start to its end; `call` is the library's call alone, with the sum of what was loaded.",
        rows: &[
            row("save", "safetensors save, process", GOALS),
            row("save-call", "safetensors save, call", &[]),
            row("load", "safetensors load, process", GOALS),
            row("load-call", "safetensors load, call", &[]),
            row("map", "safetensors safe_open, process", GOALS),
            row("map-call", "safetensors safe_open, call", &[]),
        ],
        prepare: |cx, place| prepare(cx, place, "safetensors", &["safetensors.numpy"]),
        round: |cx, place| round(cx, place, "safetensors", &["safetensors.numpy"]),
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
        prepare: |cx, place| prepare(cx, place, "numpy", &["numpy"]),
        round: |cx, place| round(cx, place, "numpy", &["numpy"]),
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
];

/// torch, of a version that can map.
const TORCH: &[&str] = &["torch", "torch.nn.attention"];

/// The checkpoint that is loaded.
fn prepare(cx: &Context, place: &Place, library: &str, modules: &[&str]) -> Result<()> {
    let python = cx.pythons.with(modules)?;
    cx.pythons.run(python, library, "save", &place.at("kept.npy"), cx.scale.bulk)?;
    place.target.quiet()
}

fn round(cx: &Context, place: &Place, library: &str, modules: &[&str]) -> Result<Sample> {
    let python = cx.pythons.with(modules)?;
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
