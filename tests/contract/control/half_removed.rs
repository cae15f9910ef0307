//! Checkpoints of trainers of which a part was removed: what a run cannot go on from is not called whole.

use std::fs;
use std::path::Path;

use tensorfs_tests::{Setup, on_mounts, safetensors, samples};

use super::{attribute, wait_until};

on_mounts!(
    a_trainers_checkpoint_without_weights_is_not_complete,
    weights_are_what_has_tensors_and_is_nothing_else_by_its_name,
    numbered_weights_of_a_trainer_need_their_index,
    what_nothing_names_may_be_removed,
);

/// Files by their names.
type Files<'a> = &'a [(&'a str, &'a [u8])];

const STATE: &[u8] = b"{\"global_step\": 5}\n";

fn sample(name: &str) -> Vec<u8> {
    fs::read(samples().join(name)).unwrap()
}

fn weights() -> Vec<u8> {
    safetensors(&[("a", &[1; 5000]), ("b", &[2; 10])])
}

fn write(dir: &Path, files: Files) {
    for (name, bytes) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
    }
}

/// Writes files into a directory, and waits until it is known that nobody has them open to write.
fn fill(dir: &Path, files: Files) {
    write(dir, files);
    wait_for(dir, files);
}

fn wait_for(dir: &Path, files: Files) {
    for (name, _) in files {
        wait_until("closed", || attribute(&dir.join(name), "state").unwrap() != "open");
    }
}

fn said(dir: &Path) -> String {
    attribute(dir, "complete").unwrap()
}

/// As a Trainer's rotation leaves it that was killed, and as Accelerate's does.
///
/// Proves T13.
fn a_trainers_checkpoint_without_weights_is_not_complete(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let run = mount.at("run");
    let (torch, weights) = (sample("torch2-tensor.pt"), weights());
    for (last, beside) in [
        ("trainer_state.json", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"]),
        ("random_states_0.pkl", ["optimizer.bin", "scheduler.bin", "sampler.bin", "scaler.pt"]),
    ] {
        for step in ["checkpoint-5", "checkpoint-6"] {
            write(&run.join(step), &[("model.safetensors", &weights), ("config.json", b"{}")]);
            write(&run.join(step), &beside.map(|name| (name, &torch[..])));
            fill(&run.join(step), &[(last, STATE)]);
            assert_eq!(said(&run.join(step)), "complete");
        }
        let newest = run.join("checkpoint-6");
        let latest = || mount.tensorfs_ok(["latest", run.to_str().unwrap()]).trim_end().to_owned();
        assert_eq!(Path::new(&latest()), newest);
        fs::remove_file(newest.join("model.safetensors")).unwrap();
        assert_eq!(said(&newest), "incomplete", "{last}");
        assert_eq!(Path::new(&latest()), run.join("checkpoint-5"), "{last}");
        mount.tensorfs_ok(["seal", newest.to_str().unwrap()]);
        assert_eq!(said(&newest), "incomplete", "{last}, sealed");
        let verified = mount.tensorfs(["verify", newest.to_str().unwrap()]);
        let text = String::from_utf8(verified.stdout).unwrap();
        assert!(verified.status.code() == Some(5) && text.contains("or the weights are not there"), "{text}");
        // An empty file is none, and what comes back is.
        fill(&newest, &[("pytorch_model.bin", b"")]);
        assert_eq!(said(&newest), "incomplete", "{last}, empty");
        fs::remove_file(newest.join("pytorch_model.bin")).unwrap();
        fill(&newest, &[("model.safetensors", &weights)]);
        assert_eq!(said(&newest), "complete", "{last}");
        fs::remove_dir_all(&run).unwrap();
    }
}

/// Proves T13.
fn weights_are_what_has_tensors_and_is_nothing_else_by_its_name(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let (torch, part, plan) = (sample("torch2-tensor.pt"), sample("torch2-dcp.distcp"), sample("torch2-dcp.metadata"));
    let weights = weights();
    let cases: [(Files, &str); 14] = [
        (&[], "incomplete"),
        (&[("adapter_model.safetensors", &weights)], "complete"),
        (&[("other/adapter_model.bin", &torch)], "complete"),
        (&[("1_Dense/model.safetensors", &weights)], "complete"),
        (&[("mm_projector.bin", &torch)], "complete"),
        (&[("pytorch_model.bin", b"of a kind that nobody knows")], "complete"),
        (&[("flax_model.msgpack", b"of a kind that nobody knows")], "complete"),
        (&[("vocab.txt", b"of a kind that nobody knows"), ("tokenizer.json", b"{}")], "incomplete"),
        (&[("model.safetensors", b"no tensors at all")], "incomplete"),
        (&[("optimizer_0/__0_0.distcp", &part), ("optimizer_0/.metadata", &plan)], "incomplete"),
        (&[("pytorch_model_fsdp_0/__0_0.distcp", &part), ("pytorch_model_fsdp_0/.metadata", &plan)], "complete"),
        (&[("global_step5/mp_rank_00_model_states.pt", &torch)], "complete"),
        (&[("global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt", &torch)], "incomplete"),
        (&[("checkpoint-3/model.safetensors", &weights), ("checkpoint-3/trainer_state.json", STATE)], "incomplete"),
    ];
    let beside = [("optimizer.pt", &torch[..]), ("rng_state.pth", &torch), ("trainer_state.json", STATE)];
    for (n, (files, _)) in cases.iter().enumerate() {
        let dir = mount.at(format!("run-{n}/checkpoint-7"));
        write(&dir, files);
        write(&dir, &beside);
    }
    for (n, (files, expected)) in cases.iter().enumerate() {
        let dir = mount.at(format!("run-{n}/checkpoint-7"));
        wait_for(&dir, files);
        wait_for(&dir, &beside);
        let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
        assert_eq!(said(&dir), *expected, "{names:?}");
    }
    // The first one has none yet, and a link is none.
    let dir = mount.at("run-0/checkpoint-7");
    let elsewhere = mount.at("run-1/checkpoint-7/adapter_model.safetensors");
    std::os::unix::fs::symlink(elsewhere, dir.join("adapter_model.safetensors")).unwrap();
    assert_eq!(said(&dir), "incomplete");
    fs::write(dir.join("model.safetensors"), &weights).unwrap();
    wait_until("closed", || said(&dir) == "complete");
}

/// Proves T13.
fn numbered_weights_of_a_trainer_need_their_index(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let (torch, weights) = (sample("torch2-tensor.pt"), weights());
    let kinds = [("model", "safetensors", &weights), ("pytorch_model", "bin", &torch)];
    for (stem, ending, bytes) in kinds {
        let dir = mount.at(format!("run/{stem}/checkpoint-7"));
        let parts = [1, 2].map(|n| format!("{stem}-0000{n}-of-00002.{ending}"));
        let index = format!("{stem}.{ending}.index.json");
        let named = format!("{{\"weight_map\":{{\"a\":\"{}\",\"b\":\"{}\"}}}}", parts[0], parts[1]);
        parts.iter().for_each(|part| write(&dir, &[(part, bytes)]));
        fill(&dir, &[("optimizer.pt", &torch), ("trainer_state.json", STATE)]);
        assert_eq!(said(&dir), "incomplete", "{ending}");
        fill(&dir, &[(&index, named.as_bytes())]);
        assert_eq!(said(&dir), "complete", "{ending}");
        fs::remove_file(dir.join(&parts[1])).unwrap();
        assert_eq!(said(&dir), "incomplete", "{ending}");
        fs::remove_file(dir.join(&index)).unwrap();
        assert_eq!(said(&dir), "incomplete", "{ending}");
    }
}

/// Who makes room removes what he does not need; and notes come and go.
///
/// Proves T13.
fn what_nothing_names_may_be_removed(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let torch = sample("torch2-tensor.pt");
    let dir = mount.at("run/checkpoint-7");
    fill(&dir, &[("model.safetensors", &weights()), ("optimizer.pt", &torch), ("trainer_state.json", STATE)]);
    fill(&dir, &[("README.md", b"notes")]);
    assert_eq!(said(&dir), "complete");
    fs::rename(dir.join("README.md"), dir.join("notes.md")).unwrap();
    assert_eq!(said(&dir), "complete");
    fs::remove_file(dir.join("notes.md")).unwrap();
    fs::remove_file(dir.join("optimizer.pt")).unwrap();
    assert_eq!(said(&dir), "complete");
}
