//! Fuzzing: what reads bytes that are not trusted, as functions of any bytes, which must neither panic nor hang.
//!
//! Two drivers share the [`TARGETS`]: `tests/hostile/mutants.rs` runs each of them over its seeds and over mutants of
//! these, on the stable toolchain and as part of the test run; `tests/hostile/cargo-fuzz` runs them under cargo-fuzz,
//! guided by coverage.

mod answers;
mod formats;
mod handover;
mod log;
mod mutate;

pub use mutate::Mutator;

/// One function under test.
pub struct Target {
    /// Its name, which is also that of its corpus.
    pub name: &'static str,
    /// Takes any bytes. Panics if something is wrong with what it tests.
    pub run: fn(&[u8]),
    /// Makes bytes that lead deep into it.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// How many runs take about as long as one of the cheapest target.
    pub cost: u32,
}

/// Everything that is fuzzed.
pub const TARGETS: [Target; 22] = [
    Target { name: "record", run: tensorfs_layout::testing::decode_record, seeds: log::records, cost: 1 },
    Target {
        name: "description",
        run: tensorfs_layout::testing::decode_description,
        seeds: log::descriptions,
        cost: 1,
    },
    Target { name: "block", run: log::block, seeds: log::blocks, cost: 1 },
    Target { name: "handover", run: handover::run, seeds: handover::seeds, cost: 60 },
    Target { name: "answers", run: answers::run, seeds: answers::seeds, cost: 4 },
    Target { name: "log", run: log::pool, seeds: log::pools, cost: 100 },
    Target { name: "tfrecord", run: formats::tfrecord, seeds: formats::tfrecords, cost: 2 },
    Target { name: "safetensors", run: formats::any, seeds: formats::safetensors, cost: 2 },
    Target { name: "npy", run: formats::any, seeds: formats::npy, cost: 2 },
    Target { name: "npz", run: formats::any, seeds: formats::npz, cost: 4 },
    Target { name: "shards", run: formats::named_shards, seeds: formats::indexes, cost: 1 },
    Target { name: "plan", run: formats::plan, seeds: formats::plans, cost: 1 },
    Target { name: "arrays", run: formats::arrays, seeds: formats::hierarchies, cost: 2 },
    Target { name: "ocdbt", run: formats::ocdbt, seeds: formats::databases, cost: 2 },
    Target { name: "ocdbt_bodies", run: formats::ocdbt_behind_checksums, seeds: formats::bodies, cost: 2 },
    Target { name: "gguf", run: formats::any, seeds: formats::gguf, cost: 2 },
    Target { name: "hdf5", run: formats::any, seeds: formats::hdf5, cost: 4 },
    Target { name: "arrow", run: formats::any, seeds: formats::arrow, cost: 3 },
    Target { name: "bare", run: formats::any, seeds: formats::bare, cost: 2 },
    Target { name: "ends", run: formats::ends, seeds: formats::with_ends, cost: 1 },
    Target { name: "torch", run: formats::any, seeds: formats::torch, cost: 4 },
    Target { name: "within", run: formats::any, seeds: formats::within, cost: 4 },
];
