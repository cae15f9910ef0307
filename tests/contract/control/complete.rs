//! Which checkpoints are all there.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use tensorfs_tests::databases::{MANIFEST, wrapped};
use tensorfs_tests::{Call, HostCalls, Mount, Rule, Setup, on_mounts, safetensors, samples};

use super::attribute;

on_mounts!(
    a_directory_of_many_names_is_not_taken_for_a_checkpoint,
    a_directory_is_complete_when_all_of_it_is_there,
    a_distributed_checkpoint_is_complete_when_all_that_is_planned_is_there,
    parts_of_a_save_over_another_are_not_complete_before_its_plan_is_written,
    tensors_of_a_trainers_save_over_another_are_not_complete_before_its_state_is_written,
    an_index_may_name_more_tensors_than_its_parts_have,
    a_part_that_is_a_link_is_none_for_whatever_looks_at_it,
    what_lies_deep_below_a_checkpoint_is_part_of_it,
    a_plan_below_a_checkpoint_is_part_of_it,
    what_is_more_than_is_looked_at_is_not_called_incomplete,
    what_its_library_loads_is_not_incomplete,
    a_checkpoint_of_orbax_is_complete_when_it_has_its_name,
    a_checkpoint_of_orbax_has_all_that_it_names,
    a_directory_of_lightnings_is_complete_with_what_it_writes_last,
    a_checkpoint_of_several_processes_is_complete_when_the_main_one_says_so,
    the_latest_is_the_newest_that_is_complete,
    the_latest_is_no_part_of_a_checkpoint,
    the_latest_may_be_called_as_that_of_a_run_is,
    a_checkpoint_that_is_not_complete_is_named_by_whatever_looks_at_it,
    all_that_is_complete_is_listed_and_no_part_of_what_is_not,
    of_a_newer_one_that_nobody_can_judge_something_is_said,
    the_latest_is_nothing_of_a_directory_that_cannot_be_judged,
    the_latest_is_what_a_trainer_goes_on_from_and_no_export_of_weights,
);

fn weights() -> Vec<u8> {
    safetensors(&[("a", &[1; 5000]), ("b", &[2; 10])])
}

/// So long whoever asks waits for a close that has returned, and of which the kernel has not told yet.
const CLOSE_WAIT: Duration = Duration::from_millis(200);

/// Writes a file, and asks about it until it is known that nobody writes it any more: what somebody writes is
/// incomplete. What is cut short is, too, but that is said at once.
#[track_caller]
fn put(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    fs::write(&path, bytes).unwrap();
    let is_heard_of = |_| {
        let begun = Instant::now();
        attribute(path.as_ref(), "complete") != Ok("incomplete".to_owned()) || begun.elapsed() < CLOSE_WAIT
    };
    let _ = (0..20).any(is_heard_of);
}

#[track_caller]
fn is_none_yet(dir: &Path, when: &str) {
    let said = attribute(dir, "complete");
    assert!(said == Ok("incomplete".to_owned()) || said == Err(Errno::ENODATA), "{when}: {said:?}");
}

/// Writes a checkpoint step by step: after each step but the last it is not complete, and then it is.
#[track_caller]
fn grows(dir: &Path, steps: &[(&str, Vec<u8>)]) {
    for (name, bytes) in steps {
        is_none_yet(dir, &format!("before {name}"));
        fs::create_dir_all(dir.join(name).parent().unwrap()).unwrap();
        put(dir.join(name), &bytes[..bytes.len() - 1]);
        is_none_yet(dir, &format!("part of {name}"));
        put(dir.join(name), bytes);
    }
    assert_eq!(attribute(dir, "complete").unwrap(), "complete", "{}", dir.display());
    // Something else that is not whole.
    put(dir.join("more.safetensors"), &weights()[..20]);
    assert_eq!(attribute(dir, "complete").unwrap(), "incomplete");
    fs::remove_file(dir.join("more.safetensors")).unwrap();
}

/// Proves T13.
fn a_directory_is_complete_when_all_of_it_is_there(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let torch = fs::read(samples().join("torch2-tensor.pt")).unwrap();
    let state = b"{\"global_step\": 5, \"log_history\": [{\"loss\": NaN, \"max\": -Infinity}]}".to_vec();
    let dir = |name: &str| {
        fs::create_dir(mount.at(name)).unwrap();
        mount.at(name)
    };
    let index = br#"{"metadata":{},"weight_map":{"a":"m1.safetensors","b":"m2.safetensors"}}"#.to_vec();
    let sharded = dir("sharded");
    grows(
        &sharded,
        &[("x.safetensors.index.json", index.clone()), ("m1.safetensors", weights()), ("m2.safetensors", weights())],
    );
    fs::rename(sharded.join("m1.safetensors"), sharded.join("m3.safetensors")).unwrap();
    assert_eq!(attribute(&sharded, "complete").unwrap(), "incomplete");
    let trainer = [("model.safetensors", weights()), ("optimizer.pt", torch.clone()), ("trainer_state.json", state)];
    grows(&dir("checkpoint-12"), &trainer);
    // A directory of a trainer's in it is its own.
    fs::create_dir(mount.at("checkpoint-12/checkpoint-1")).unwrap();
    assert_eq!(attribute(&mount.at("checkpoint-12"), "complete").unwrap(), "complete");
    assert_eq!(attribute(&mount.at("checkpoint-12/checkpoint-1"), "complete").unwrap(), "incomplete");
    // A part that somebody writes, a name that leads elsewhere, and what is no checkpoint.
    let held = fs::File::options().append(true).open(mount.at("checkpoint-12/optimizer.pt")).unwrap();
    assert_eq!(attribute(&mount.at("checkpoint-12"), "complete").unwrap(), "incomplete");
    drop(held);
    let away = dir("away");
    put(away.join("a.bin.index.json"), r#"{"weight_map":{"a":"../checkpoint-12/model.safetensors"}}"#);
    assert_eq!(attribute(&away, "complete").unwrap(), "incomplete");
    put(dir("text").join("notes.txt"), "nothing");
    assert_eq!(attribute(&mount.at("text"), "complete"), Err(Errno::ENODATA));
    assert_eq!(attribute(&mount.at("text/notes.txt"), "complete"), Err(Errno::ENODATA));
    assert_eq!(attribute(&mount.at("checkpoint-12/model.safetensors"), "complete").unwrap(), "complete");
    for path in [mount.at("text"), mount.at("checkpoint-12/model.safetensors")] {
        assert_eq!(tensorfs_tests::xattr::set(&path, "user.tensorfs.complete", b"complete", 0), Err(Errno::EPERM));
    }
}

/// Proves T13.
fn a_distributed_checkpoint_is_complete_when_all_that_is_planned_is_there(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let sample = |name: &str| fs::read(samples().join(name)).unwrap();
    let (part, plan) = (sample("torch2-dcp.distcp"), sample("torch2-dcp.metadata"));
    let dir = mount.at("step-1");
    fs::create_dir(&dir).unwrap();
    grows(&dir, &[(".metadata", plan.clone()), ("__0_0.distcp", part.clone())]);
    let is_whole = || attribute(&dir, "complete");
    let with = |name: &str, bytes: &[u8]| {
        put(dir.join(name), bytes);
        is_whole().unwrap()
    };
    for end in (0..plan.len()).step_by(97) {
        assert_eq!(with(".metadata", &plan[..end]), "incomplete", "{end}");
    }
    let empty: &[u8] = b"\x80\x02}.";
    for other in [empty, &vec![0; plan.len()], &part] {
        assert_eq!(with(".metadata", other), "incomplete");
    }
    // As torch reads it, which does not look behind the pickle.
    assert_eq!(with(".metadata", &[&plan[..], b"anything"].concat()), "complete");
    let at = plan.windows(12).position(|name| name == b"__0_0.distcp").unwrap();
    for name in [b"__1_0.distcp", b"../0_.distcp", b"/_0_0.distcp", b"a/b_0.distcp", b"__0_0\0distcp"] {
        assert_eq!(with(".metadata", &[&plan[..at], name, &plan[at + 12..]].concat()), "incomplete", "{name:?}");
    }
    assert_eq!(with(".metadata", &plan), "complete");
    // Its archives begin at these places.
    let archives: Vec<usize> =
        (1..part.len()).filter(|at| part[*at..].starts_with(b"PK\x03\x04\0\0\x08\x08")).collect();
    for end in archives.into_iter().chain((0..part.len()).step_by(331)) {
        assert_eq!(with("__0_0.distcp", &part[..end]), "incomplete", "{end}");
    }
    let middle = part.len() / 2;
    assert_eq!(with("__0_0.distcp", &[&part[..middle], &vec![0; middle]].concat()), "incomplete");
    assert_eq!(with("__0_0.distcp", &vec![0; part.len()]), "incomplete");
    // torch may be told to write in a way that is not known here.
    assert_eq!(with("__0_0.distcp", &vec![0x28; part.len()]), "complete");
    assert_eq!(with("__0_0.distcp", &vec![0x28; part.len() - 1]), "incomplete");
    fs::remove_file(dir.join("__0_0.distcp")).unwrap();
    fs::create_dir(dir.join("__0_0.distcp")).unwrap();
    assert_eq!(attribute(&dir, "complete").unwrap(), "incomplete");
    fs::remove_dir(dir.join("__0_0.distcp")).unwrap();
    put(mount.at("elsewhere"), &part);
    std::os::unix::fs::symlink(mount.at("elsewhere"), dir.join("__0_0.distcp")).unwrap();
    assert_eq!(attribute(&dir, "complete").unwrap(), "incomplete");
}

/// Writes a file as who renames it into place.
fn put_in_place(path: &Path, bytes: &[u8]) {
    let temporary = path.with_extension("tmp");
    fs::write(&temporary, bytes).unwrap();
    fs::rename(&temporary, path).unwrap();
    let _ = (0..20).any(|_| attribute(path, "complete") != Ok("incomplete".to_owned()));
}

/// As torch saves: parts are emptied and written, and then the plan is made beside the old one and renamed.
///
/// Proves T13.
fn parts_of_a_save_over_another_are_not_complete_before_its_plan_is_written(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let sample = |name: &str| fs::read(samples().join(name)).unwrap();
    let (part, plan) = (sample("torch2-dcp.distcp"), sample("torch2-dcp.metadata"));
    let run = mount.at("run");
    let dir = run.join("step-1");
    fs::create_dir_all(&dir).unwrap();
    let (part_at, plan_at) = (dir.join("__0_0.distcp"), dir.join(".metadata"));
    let said = || attribute(&dir, "complete").unwrap();
    put(&part_at, &part);
    put_in_place(&plan_at, &plan);
    assert_eq!(said(), "complete");
    // Also where a reader has it open, so that it is emptied in place.
    for is_read in [false, true] {
        let reader = is_read.then(|| fs::File::open(&part_at).unwrap());
        put(&part_at, &part);
        assert_eq!(said(), "incomplete", "read: {is_read}");
        drop(reader);
        assert_eq!(mount.tensorfs(["verify", dir.to_str().unwrap()]).status.code(), Some(5));
        assert_eq!(mount.tensorfs(["latest", run.to_str().unwrap()]).status.code(), Some(1));
        put_in_place(&plan_at, &plan);
        assert_eq!(said(), "complete", "read: {is_read}");
    }
    // In the order in which they are found, and in the other one; with the times of before, too.
    let times = nix::sys::time::TimeSpec::new(1_000_000_000, 0);
    for (number, order) in [[&part_at, &plan_at], [&plan_at, &part_at]].into_iter().enumerate() {
        let copy = run.join(format!("copy-{number}"));
        fs::create_dir(&copy).unwrap();
        for path in order {
            let to = copy.join(path.file_name().unwrap());
            put(&to, fs::read(path).unwrap());
            nix::sys::stat::utimensat(
                nix::fcntl::AT_FDCWD,
                &to,
                &times,
                &times,
                nix::sys::stat::UtimensatFlags::FollowSymlink,
            )
            .unwrap();
        }
        assert_eq!(attribute(&copy, "complete").unwrap(), "complete", "{number}");
        // Who replaces a part by another file does not save over it, as far as anybody knows.
        put_in_place(&copy.join("__0_0.distcp"), &part);
        assert_eq!(attribute(&copy, "complete").unwrap(), "complete", "{number}");
    }
    // What is longer is not what the plan speaks of.
    put(&part_at, [&part[..], b"more"].concat());
    put_in_place(&plan_at, &plan);
    assert_eq!(said(), "incomplete");
    put(&part_at, &part);
    put_in_place(&plan_at, &plan);
    assert_eq!(said(), "complete");
    put(&part_at, &part);
    let again = |mount: &Mount, when: &str| {
        assert_eq!(attribute(&dir, "complete").unwrap(), "incomplete", "{when}");
        mount.tensorfs_ok(["seal", dir.to_str().unwrap()]);
        assert_eq!(attribute(&dir, "complete").unwrap(), "incomplete", "{when}, sealed");
    };
    again(&mount, "at once");
    mount.remount();
    again(&mount, "mounted again");
    put_in_place(&plan_at, &plan);
    put(&part_at, &part);
    mount.kill9();
    mount.mount();
    again(&mount, "after a kill");
    put_in_place(&plan_at, &plan);
    assert_eq!(said(), "complete");
}

/// As Hugging Face's Trainer does, that begins anew where a run has been.
///
/// Proves T13.
fn tensors_of_a_trainers_save_over_another_are_not_complete_before_its_state_is_written(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let torch = fs::read(samples().join("torch1-checkpoint.pt")).unwrap();
    for (name, expected) in [("checkpoint-2", "incomplete"), ("final", "complete")] {
        let dir = mount.at("run").join(name);
        fs::create_dir_all(&dir).unwrap();
        let said = || attribute(&dir, "complete").unwrap();
        let write = |name: &str| match name {
            "model.safetensors" => put(dir.join(name), weights()),
            "config.json" | "trainer_state.json" => put(dir.join(name), "{}"),
            _ => put(dir.join(name), &torch),
        };
        for name in ["model.safetensors", "config.json", "optimizer.pt", "rng_state_1.pth", "trainer_state.json"] {
            write(name);
        }
        assert_eq!(said(), "complete");
        // Each process writes its own, when it comes to that; and who edits what describes a model does not save it.
        for name in ["config.json", "rng_state_1.pth"] {
            write(name);
            assert_eq!(said(), "complete", "{name}");
        }
        for name in ["optimizer.pt", "model.safetensors"] {
            write(name);
            assert_eq!(said(), expected, "{name}");
            write("trainer_state.json");
            assert_eq!(said(), "complete", "{name}");
        }
    }
}

/// As tools write that convert a model whose tensors share bytes.
///
/// Proves T13.
fn an_index_may_name_more_tensors_than_its_parts_have(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("run/step-5");
    fs::create_dir_all(&dir).unwrap();
    put(dir.join("m.safetensors"), weights());
    let verify = || mount.tensorfs(["verify", dir.to_str().unwrap()]).status.code();
    for is_sealed in [false, true] {
        if is_sealed {
            mount.tensorfs_ok(["seal", dir.to_str().unwrap()]);
        }
        for names in [&["a", "b"][..], &["a", "b", "c"]] {
            let map: Vec<String> = names.iter().map(|name| format!("\"{name}\":\"m.safetensors\"")).collect();
            let index = format!("{{\"weight_map\":{{{}}}}}", map.join(","));
            put(dir.join("m.safetensors.index.json"), index);
            assert_eq!(attribute(&dir, "complete").unwrap(), "complete", "{names:?}");
            assert_eq!(verify(), Some(0), "{names:?}");
        }
    }
}

/// The server follows no links, and neither does a command.
///
/// Proves T13.
fn a_part_that_is_a_link_is_none_for_whatever_looks_at_it(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("run/step-5");
    fs::create_dir_all(&dir).unwrap();
    put(mount.at("real"), weights());
    std::os::unix::fs::symlink("../../real", dir.join("m.safetensors")).unwrap();
    put(dir.join("m.safetensors.index.json"), r#"{"weight_map":{"a":"m.safetensors"}}"#);
    assert_eq!(attribute(&dir, "complete").unwrap(), "incomplete");
    for (command, status) in [("verify", 5), ("tensors", 1)] {
        let output = mount.tensorfs([command, dir.to_str().unwrap()]);
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("m.safetensors is a link, which is not followed"), "{command}: {said}");
        assert_eq!(output.status.code(), Some(status), "{command}: {said}");
    }
}

/// Proves T13.
fn what_lies_deep_below_a_checkpoint_is_part_of_it(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let checkpoint = mount.at("run/checkpoint_7");
    fs::create_dir_all(&checkpoint).unwrap();
    put(checkpoint.join("random_states_0.pkl"), "anything");
    put(checkpoint.join("model.safetensors"), weights());
    assert_eq!(attribute(&checkpoint, "complete").unwrap(), "complete");
    for below in ["1/2/3/4/5/6/x.safetensors", "checkpoint-best/x.safetensors", "checkpoint-/x.safetensors"] {
        let path = checkpoint.join(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        put(&path, &weights()[..20]);
        assert_eq!(attribute(&checkpoint, "complete").unwrap(), "incomplete", "{below}");
        put(&path, weights());
        assert_eq!(attribute(&checkpoint, "complete").unwrap(), "complete", "{below}");
    }
    fs::remove_file(checkpoint.join("random_states_0.pkl")).unwrap();
    assert_eq!(attribute(&checkpoint, "complete").unwrap(), "incomplete");
}

/// As the Trainer and Accelerate write it, where the parameters are on several devices.
///
/// Proves T13.
fn a_plan_below_a_checkpoint_is_part_of_it(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let sample = |name: &str| fs::read(samples().join(name)).unwrap();
    let index = br#"{"weight_map":{"a":"m.safetensors"}}"#.to_vec();
    let checkpoint = mount.at("run/checkpoint-7");
    let files = [
        ("pytorch_model_fsdp_0/__0_0.distcp", sample("torch2-dcp.distcp")),
        ("pytorch_model_fsdp_0/.metadata", sample("torch2-dcp.metadata")),
        ("1/2/3/m.safetensors", weights()),
        ("1/2/3/x.safetensors.index.json", index),
        ("1/2/trainer_state.json", b"{\"step\": 5}".to_vec()),
    ];
    for (name, bytes) in &files {
        fs::create_dir_all(checkpoint.join(name).parent().unwrap()).unwrap();
        put(checkpoint.join(name), bytes);
    }
    put(checkpoint.join("model.safetensors"), weights());
    put(checkpoint.join("trainer_state.json"), "{}\n");
    let named = (Some(0), checkpoint.to_str().unwrap().to_owned());
    let is_whole = || attribute(&checkpoint, "complete").unwrap();
    assert_eq!((is_whole(), latest(&mount, &mount.at("run"))), ("complete".to_owned(), named));
    for (name, bytes) in &files {
        let path = checkpoint.join(name);
        put(&path, &bytes[..bytes.len() - 1]);
        assert_eq!(is_whole(), "incomplete", "{name} is cut");
        if !name.ends_with(".json") {
            fs::remove_file(&path).unwrap();
            assert_eq!(is_whole(), "incomplete", "{name} is missing");
            assert_eq!(latest(&mount, &mount.at("run")).0, Some(1), "{name}");
        }
        put(&path, bytes);
        assert_eq!(is_whole(), "complete", "{name}");
    }
    // What a trainer's own lacks is not lacking here.
    fs::create_dir_all(checkpoint.join("1/checkpoint-3")).unwrap();
    put(checkpoint.join("1/checkpoint-3/.metadata"), "none");
    assert_eq!(is_whole(), "complete");
}

/// Proves T13.
fn what_is_more_than_is_looked_at_is_not_called_incomplete(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("model");
    let said = || attribute(&dir, "complete").as_deref().map(str::to_owned).map_err(|errno| *errno);
    let index = "model.safetensors.index.json";
    let many: Vec<String> = (0..4097).map(|n| format!("\"{n}\":\"{n}.safetensors\"")).collect();
    let many = format!("{{\"weight_map\":{{{}}}}}", many.join(","));
    let far = format!("{{\"weight_map\":{{\"a\":\"{}x\"}}}}", "x/".repeat(600));
    let one = "{\"weight_map\":{\"a\":\"1.safetensors\"}}";
    let header = format!("{{\"a\":{{\"dtype\":\"U8\",\"shape\":[{}1],\"data_offsets\":[0,1]}}}}", "1,".repeat(64));
    let part = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), b"x"].concat();
    for (files, expected) in [
        (&[(index, one.as_bytes()), ("1.safetensors", &weights())][..], Ok("complete")),
        (&[(index, many.as_bytes())], Err(Errno::EIO)),
        (&[(index, far.as_bytes())], Err(Errno::EIO)),
        // More dimensions than are looked at; nobody else is asked for them.
        (&[(index, one.as_bytes()), ("1.safetensors", &part)], Err(Errno::EIO)),
        (&[(index, one.as_bytes()), ("1.safetensors", b"no tensors at all")], Ok("incomplete")),
        (&[(index, one.as_bytes()), ("1.safetensors", &weights()), ("x.safetensors", &part)], Ok("complete")),
    ] {
        fs::create_dir(&dir).unwrap();
        files.iter().for_each(|(name, bytes)| put(dir.join(name), bytes));
        let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
        assert_eq!(said(), expected.map(str::to_owned), "{names:?}");
        // Sealed it is no other.
        for (name, _) in files {
            mount.tensorfs_ok(["seal", dir.join(name).to_str().unwrap()]);
        }
        assert_eq!(said(), expected.map(str::to_owned), "{names:?}, sealed");
        fs::remove_dir_all(&dir).unwrap();
    }
}

/// Proves T13.
fn a_directory_of_lightnings_is_complete_with_what_it_writes_last(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let sample = |name: &str| fs::read(samples().join(name)).unwrap();
    let planned = |name: &str| {
        let dir = mount.at(name);
        fs::create_dir_all(&dir).unwrap();
        put(dir.join("__0_0.distcp"), sample("torch2-dcp.distcp"));
        put(dir.join(".metadata"), sample("torch2-dcp.metadata"));
        dir
    };
    let meta = sample("torch2-tensor.pt");
    // By its name, and by what is beside it.
    for name in ["run/step=9.ckpt", "run/of-no-name"] {
        let dir = planned(name);
        assert_eq!(attribute(&dir, "complete").unwrap(), "incomplete", "{name}");
        for end in [0, 40, meta.len() / 2, meta.len() - 1] {
            put(dir.join("meta.pt"), &meta[..end]);
            assert_eq!(attribute(&dir, "complete").unwrap(), "incomplete", "{name} to {end}");
        }
        put(dir.join("meta.pt"), &meta);
        assert_eq!(attribute(&dir, "complete").unwrap(), "complete", "{name}");
    }
    assert_eq!(attribute(&planned("other/of-no-name"), "complete").unwrap(), "complete");
}

/// Writes a file, in directories that are made for it.
fn write(mount: &Mount, name: &str, bytes: &[u8]) {
    let path = mount.at(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    put(path, bytes);
}

/// Proves T13.
fn what_its_library_loads_is_not_incomplete(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let write = |name: &str, bytes: &[u8]| write(&mount, name, bytes);
    let is_whole = |name: &str| attribute(&mount.at(name), "complete");
    let status = |command: &str, name: &str| mount.tensorfs([command, mount.at(name).to_str().unwrap()]).status.code();
    // A model in two formats, of which one was fetched.
    let (safe, bin) = ("both/model.safetensors.index.json", "both/pytorch_model.bin.index.json");
    write(safe, br#"{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#);
    write(bin, br#"{"weight_map":{"a":"m-1.bin","b":"m-2.bin"}}"#);
    assert_eq!(is_whole("both").unwrap(), "incomplete");
    write("both/m-1.safetensors", &weights());
    assert_eq!(is_whole("both").unwrap(), "incomplete");
    write("both/m-2.safetensors", &weights());
    mount.tensorfs_ok(["seal", mount.at("both").to_str().unwrap()]);
    assert_eq!(is_whole("both").unwrap(), "complete");
    assert_eq!((status("tensors", "both"), status("verify", "both")), (Some(0), Some(0)));
    // One of its parts is there.
    write("both/m-1.bin", &fs::read(samples().join("torch2-tensor.pt")).unwrap());
    mount.tensorfs_ok(["seal", mount.at("both").to_str().unwrap()]);
    assert_eq!(is_whole("both").unwrap(), "incomplete");
    assert_eq!((status("tensors", "both"), status("verify", "both")), (Some(1), Some(5)));
    // The one that is looked for first was not fetched; the one that is looked for last, and that is one file.
    write("first/model.safetensors.index.json", br#"{"weight_map":{"a":"m-1.safetensors"}}"#);
    write("first/pytorch_model.bin.index.json", br#"{"weight_map":{"a":"m-1.bin"}}"#);
    write("first/m-1.bin", &fs::read(samples().join("torch2-tensor.pt")).unwrap());
    assert_eq!(is_whole("first").unwrap(), "incomplete");
    assert_eq!(status("tensors", "first"), Some(1));
    write("one/pytorch_model.bin.index.json", br#"{"weight_map":{"a":"m-1.bin"}}"#);
    assert_eq!(is_whole("one").unwrap(), "incomplete");
    write("one/model-00001-of-00002.safetensors", &weights());
    assert_eq!(is_whole("one").unwrap(), "incomplete", "a part");
    fs::remove_file(mount.at("one/model-00001-of-00002.safetensors")).unwrap();
    write("one/model.safetensors", &weights());
    mount.tensorfs_ok(["seal", mount.at("one").to_str().unwrap()]);
    assert_eq!(is_whole("one").unwrap(), "complete");
    assert_eq!((status("tensors", "one"), status("verify", "one")), (Some(0), Some(0)));
    // Events go on being written beside what is finished.
    write("checkpoint-4/model.safetensors", &weights());
    write("checkpoint-4/trainer_state.json", b"{}\n");
    let events = fs::read(samples().join("board.tfevents")).unwrap();
    write("checkpoint-4/runs/events.out.tfevents.1", &events[..events.len() - 1]);
    let held = fs::File::options().append(true).open(mount.at("checkpoint-4/runs/events.out.tfevents.1")).unwrap();
    assert_eq!(is_whole("checkpoint-4").unwrap(), "complete");
    drop(held);
    // Others call theirs as trainers do.
    let sample = |name: &str| fs::read(samples().join(name)).unwrap();
    for name in ["checkpoint_7", "megatron"] {
        write(&format!("{name}/__0_0.distcp"), &sample("torch2-dcp.distcp"));
        write(&format!("{name}/.metadata"), &sample("torch2-dcp.metadata"));
        assert_eq!(is_whole(name).unwrap(), "complete");
    }
    write("checkpoint_000003/model.pt", &sample("torch2-tensor.pt"));
    assert_eq!(is_whole("checkpoint_000003"), Err(Errno::ENODATA));
    // Megatron's is none before what it writes last.
    write("megatron/common.pt", &sample("torch2-tensor.pt"));
    assert_eq!(is_whole("megatron").unwrap(), "incomplete");
    write("megatron/metadata.json", b"{}");
    assert_eq!(is_whole("megatron").unwrap(), "complete");
    // Parts in directories.
    write("deep/model.safetensors.index.json", br#"{"weight_map":{"a":"1/x.safetensors","b":"1/2/y.safetensors"}}"#);
    write("deep/1/x.safetensors", &weights());
    assert_eq!(is_whole("deep").unwrap(), "incomplete");
    write("deep/1/2/y.safetensors", &weights());
    mount.tensorfs_ok(["seal", mount.at("deep").to_str().unwrap()]);
    assert_eq!(is_whole("deep").unwrap(), "complete");
    assert_eq!(status("verify", "deep"), Some(0));
    let listed = mount.tensorfs_ok(["tensors", mount.at("deep").to_str().unwrap()]);
    assert!(!listed.contains("1/x.safetensors:"), "{listed}");
    // Of HDF5 nobody knows where it ends.
    write("checkpoint-3/tf_model.h5", &fs::read(samples().join("plain.h5")).unwrap());
    assert_eq!(is_whole("checkpoint-3").unwrap(), "incomplete");
    write("checkpoint-3/trainer_state.json", b"{}\n");
    assert_eq!(is_whole("checkpoint-3"), Err(Errno::ENODATA));
    fs::remove_file(mount.at("checkpoint-3/tf_model.h5")).unwrap();
    assert_eq!(is_whole("checkpoint-3").unwrap(), "incomplete", "nothing has tensors");
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for path in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() { copy_all(&path, &to) } else { put(&to, fs::read(&path).unwrap()) }
    }
}

/// Proves T13.
fn a_checkpoint_of_orbax_is_complete_when_it_has_its_name(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let run = mount.at("run");
    let save = |name: &str| {
        let dir = run.join(name);
        copy_all(&samples().with_file_name("databases/database-merged"), &dir.join("default"));
        put(dir.join("default/_METADATA"), "anything");
        put(dir.join("_CHECKPOINT_METADATA"), "{\"item_handlers\": {}}");
        dir
    };
    save("1");
    let before = (Some(0), run.join("1").to_str().unwrap().to_owned());
    let being = save("2.orbax-checkpoint-tmp-1700000000");
    assert_eq!(attribute(&being, "complete").unwrap(), "incomplete");
    assert_eq!(latest(&mount, &run), before);
    fs::rename(&being, run.join("2")).unwrap();
    let dir = run.join("2");
    assert_eq!(attribute(&dir, "complete").unwrap(), "complete");
    assert_eq!(latest(&mount, &run), (Some(0), dir.to_str().unwrap().to_owned()));
    fs::rename(dir.join("default"), dir.join("default.orbax-checkpoint-tmp-1")).unwrap();
    assert_eq!(attribute(&dir, "complete").unwrap(), "incomplete");
    fs::rename(dir.join("default.orbax-checkpoint-tmp-1"), dir.join("default")).unwrap();
    // What is left of it by the processes is needed where it has values, and not what they made of that themselves.
    fs::remove_file(dir.join("default/ocdbt.process_0/manifest.ocdbt")).unwrap();
    assert_eq!(attribute(&dir, "complete").unwrap(), "complete");
    let manifest = fs::read(dir.join("default/manifest.ocdbt")).unwrap();
    for (bytes, said) in [
        (&b"anything"[..], Ok("incomplete")),
        (&wrapped(MANIFEST, 1, 0, b"of another version"), Err(Errno::EIO)),
        (&manifest[..manifest.len() - 1], Ok("incomplete")),
        (&manifest, Ok("complete")),
    ] {
        put(dir.join("default/manifest.ocdbt"), bytes);
        assert_eq!(attribute(&dir, "complete").as_deref().map_err(|errno| *errno), said);
    }
    let data = fs::read_dir(dir.join("default/ocdbt.process_1/d")).unwrap().map(|entry| entry.unwrap().path());
    let mut needed = 0;
    for file in data {
        let bytes = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        if attribute(&dir, "complete").unwrap() == "incomplete" {
            needed += 1;
            assert_eq!(latest(&mount, &run), before);
        }
        put(&file, bytes);
    }
    assert_eq!((needed, attribute(&dir, "complete").unwrap().as_str()), (3, "complete"));
    fs::remove_file(dir.join("default/manifest.ocdbt")).unwrap();
    assert_eq!(attribute(&dir, "complete").unwrap(), "incomplete");
    assert_eq!(latest(&mount, &run), before);
    put(run.join("1/_CHECKPOINT_METADATA"), "{\"item");
    assert_eq!(latest(&mount, &run).0, Some(1));
}

/// One of which a rotation had left its metadata alone was called complete.
///
/// Proves T13.
fn a_checkpoint_of_orbax_has_all_that_it_names(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let tree = |dir: &Path| {
        copy_all(&samples().with_file_name("databases/database-merged"), dir);
        put(dir.join("_METADATA"), "{\"tree_metadata\": {}, \"use_ocdbt\": true}");
    };
    let is = |dir: &Path, said: &str| assert_eq!(attribute(dir, "complete").unwrap(), said);
    // Of several items.
    let dir = mount.at("several");
    fs::create_dir(&dir).unwrap();
    let items = "{\"item_handlers\": {\"state\": \"a.StandardCheckpointHandler\", \"more\": \"a.JsonHandler\"}}";
    put(dir.join("_CHECKPOINT_METADATA"), items);
    is(&dir, "incomplete");
    tree(&dir.join("state"));
    is(&dir, "incomplete");
    fs::create_dir(dir.join("more")).unwrap();
    put(dir.join("more/commit_success.txt"), "done");
    is(&dir, "incomplete");
    put(dir.join("more/metadata"), "{}");
    is(&dir, "complete");
    fs::rename(dir.join("state/_METADATA"), mount.at("kept")).unwrap();
    is(&dir, "incomplete");
    fs::rename(mount.at("kept"), dir.join("state/_METADATA")).unwrap();
    is(&dir, "complete");
    fs::rename(dir.join("state/manifest.ocdbt"), mount.at("kept")).unwrap();
    for process in ["ocdbt.process_0", "ocdbt.process_1"] {
        fs::remove_dir_all(dir.join("state").join(process)).unwrap();
    }
    is(&dir, "incomplete");
    // Without a database there is none to be missed.
    put(dir.join("state/_METADATA"), "{\"tree_metadata\": {}, \"use_ocdbt\": false}");
    is(&dir, "complete");
    fs::remove_dir_all(dir.join("more")).unwrap();
    is(&dir, "incomplete");
    // Of one that is the directory itself.
    let dir = mount.at("one");
    tree(&dir);
    put(dir.join("_CHECKPOINT_METADATA"), "{\"item_handlers\": \"a.PyTreeCheckpointHandler\"}");
    is(&dir, "complete");
    fs::remove_file(dir.join("_METADATA")).unwrap();
    is(&dir, "incomplete");
    // Of which nothing is said, or by what is no item's name.
    let dir = mount.at("unsaid");
    fs::create_dir(&dir).unwrap();
    put(dir.join("_CHECKPOINT_METADATA"), "{\"item_handlers\": {\"../x\": null}}");
    put(dir.join("commit_success.txt"), "done");
    is(&dir, "incomplete");
    put(dir.join("anything"), "else");
    is(&dir, "complete");
}

/// Accelerate on two ranks: the second one has written its random states before the first one has written the model.
///
/// Proves T13.
fn a_checkpoint_of_several_processes_is_complete_when_the_main_one_says_so(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    for name in ["run/checkpoint_0", "run/state"] {
        let checkpoint = mount.at(name);
        let is_whole = || attribute(&checkpoint, "complete");
        fs::create_dir_all(&checkpoint).unwrap();
        for (name, bytes) in [
            ("random_states_1.pkl", b"anything".to_vec()),
            ("model.safetensors", weights()),
            ("optimizer.bin", fs::read(samples().join("torch2-tensor.pt")).unwrap()),
            ("random_states_0.pkl", Vec::new()),
        ] {
            put(checkpoint.join(name), bytes);
            assert_eq!(is_whole().unwrap(), "incomplete", "{name}");
            assert_eq!(latest(&mount, &checkpoint).0, Some(1), "{name}");
        }
        put(checkpoint.join("random_states_0.pkl"), "anything");
        assert_eq!(is_whole().unwrap(), "complete");
        fs::remove_file(checkpoint.join("random_states_1.pkl")).unwrap();
        assert_eq!(is_whole().unwrap(), "complete", "nothing says how many there were");
    }
}

/// What `latest` says: its exit status, and what it prints.
fn latest(mount: &Mount, dir: &Path) -> (Option<i32>, String) {
    let output = mount.tensorfs(["latest", dir.to_str().unwrap()]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors.lines().count(), usize::from(!output.status.success()), "{errors}");
    (output.status.code(), String::from_utf8(output.stdout).unwrap().trim_end().to_owned())
}

/// Proves T13.
fn the_latest_is_the_newest_that_is_complete(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let run = mount.at("run");
    fs::create_dir(&run).unwrap();
    assert_eq!(latest(&mount, &run), (Some(1), String::new()));
    let named = |path: &PathBuf| (Some(0), path.to_str().unwrap().to_owned());
    let mut last = None;
    for step in 0..12 {
        let path = run.join(format!("step-{step}.safetensors"));
        put(&path, &weights()[..30]);
        assert_eq!(latest(&mount, &run), last.as_ref().map_or((Some(1), String::new()), named), "{step}");
        put(&path, weights());
        assert_eq!(latest(&mount, &run), named(&path));
        last = Some(path);
    }
    // Of those that are as new as each other the one with the larger number, and those alone that are all there.
    tensorfs_tests::shell(&run, "touch -d 2020-01-01T00:00:00 step-*");
    assert_eq!(latest(&mount, &run), named(&run.join("step-11.safetensors")));
    fs::create_dir(run.join("tmp-checkpoint-3")).unwrap();
    put(run.join("tmp-checkpoint-3/model.safetensors"), weights());
    fs::create_dir(run.join("checkpoint-3")).unwrap();
    put(run.join("checkpoint-3/model.safetensors"), weights());
    assert_eq!(latest(&mount, &run), named(&run.join("step-11.safetensors")));
    let text = mount.tensorfs_ok(["latest", "--json", run.to_str().unwrap()]);
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["kind"], "file");
    assert_eq!(line["incomplete"][0], run.join("checkpoint-3").to_str().unwrap());
    put(run.join("checkpoint-3/trainer_state.json"), "{}\n");
    assert_eq!(latest(&mount, &run), named(&run.join("checkpoint-3")));
    put(run.join("cut.safetensors"), &weights()[..30]);
    let listed = mount.tensorfs_ok(["ls", "--complete", run.to_str().unwrap()]);
    assert!(listed.contains("checkpoint-3/") && listed.contains("step-0.safetensors"), "{listed}");
    assert!(!listed.contains("cut.safetensors") && !listed.contains("tmp-"), "{listed}");
    assert_eq!(latest(&mount, mount.pool()).0, Some(1));
}

/// Whoever saves a checkpoint of several files may be killed after any of them.
///
/// Proves T13.
fn the_latest_is_no_part_of_a_checkpoint(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let run = mount.at("run");
    fs::create_dir_all(run.join("step-400")).unwrap();
    let before = run.join("step-400/model.safetensors");
    put(&before, weights());
    let named = (Some(0), before.to_str().unwrap().to_owned());
    let saved = |dir: &str, names: &[&str]| {
        fs::create_dir(run.join(dir)).unwrap();
        for name in names {
            put(run.join(dir).join(name), weights());
        }
    };
    saved("step-500", &["model-00001-of-00002.safetensors"]);
    assert_eq!(latest(&mount, &run), named);
    saved("step-501", &["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "x.safetensors"]);
    saved("step-502", &["model.safetensors", "optimizer.safetensors"]);
    let said = mount.tensorfs(["latest", run.join("step-502").to_str().unwrap()]);
    assert!(String::from_utf8(said.stderr).unwrap().contains("cannot be told which are one"));
    saved("step-503", &["mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"]);
    saved("checkpoint_8", &["model.safetensors"]);
    assert_eq!(latest(&mount, &run), named);
    let index = r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    put(run.join("step-501/model.safetensors.index.json"), index);
    assert_eq!(latest(&mount, &run), (Some(0), run.join("step-501").to_str().unwrap().to_owned()));
}

/// What `Trainer.save_model()` and `save_state()` leave behind a run, and Accelerate's `save_model()`, in the places
/// that their scripts give them.
///
/// Proves T13.
fn the_latest_is_what_a_trainer_goes_on_from_and_no_export_of_weights(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let write = |name: &str, bytes: &[u8]| write(&mount, name, bytes);
    let named = |name: &str| (Some(0), mount.at(name).to_str().unwrap().to_owned());
    let torch = fs::read(samples().join("torch2-tensor.pt")).unwrap();
    let checkpoint = |dir: &str| {
        for name in ["config.json", "training_args.bin", "scheduler.pt", "rng_state.pth", "optimizer.pt"] {
            write(&format!("{dir}/{name}"), if name.contains("json") { b"{}" } else { &torch });
        }
        write(&format!("{dir}/model.safetensors"), &weights());
        write(&format!("{dir}/trainer_state.json"), b"{\"global_step\": 5}\n");
    };
    let index = br#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    let (shard, other) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    let exports: [&[(&str, &[u8])]; 6] = [
        &[("config.json", b"{}"), ("training_args.bin", &torch), ("model.safetensors", &weights())],
        &[("final/config.json", b"{}"), ("final/model.safetensors", &weights())],
        &[(shard, &weights()), (other, &weights()), ("model.safetensors.index.json", index)],
        &[("llama-3/tokenizer.json", b"{}"), ("llama-3/model.safetensors", &weights())],
        &[("model.safetensors", &weights()), ("trainer_state.json", b"{}")],
        &[(shard, &weights()), (other, &weights()), ("model.safetensors.index.json", index), ("logs/x", b"")],
    ];
    for (n, export) in exports.iter().enumerate() {
        let run = format!("run-{n}");
        checkpoint(&format!("{run}/checkpoint-15"));
        checkpoint(&format!("{run}/checkpoint-20"));
        assert_eq!(latest(&mount, &mount.at(&run)), named(&format!("{run}/checkpoint-20")));
        for (name, bytes) in *export {
            write(&format!("{run}/{name}"), bytes);
        }
        assert_eq!(latest(&mount, &mount.at(&run)), named(&format!("{run}/checkpoint-20")), "{n}");
        let text = mount.tensorfs_ok(["latest", "--json", mount.at(&run).to_str().unwrap()]);
        assert!(text.contains("\"incomplete\":[]"), "{text}");
        fs::remove_file(mount.at(&run).join("checkpoint-20/trainer_state.json")).unwrap();
        assert_eq!(latest(&mount, &mount.at(&run)), named(&format!("{run}/checkpoint-15")), "{n}");
        // It is there, and asked for by itself it is what there is; so it is if there is nothing else.
        let listed = mount.tensorfs_ok(["ls", "-R", "--complete", mount.at(&run).to_str().unwrap()]);
        assert!(listed.lines().count() > 1, "{listed}");
        fs::remove_file(mount.at(&run).join("checkpoint-15/trainer_state.json")).unwrap();
        let (status, path) = latest(&mount, &mount.at(&run));
        assert!(status == Some(0) && !path.contains("checkpoint-"), "{n}: {path}");
    }
    assert_eq!(latest(&mount, &mount.at("run-1/final")), named("run-1/final/model.safetensors"));
    // Accelerate's are one directory further down.
    write("acc/checkpoints/checkpoint_0/random_states_0.pkl", b"state");
    write("acc/checkpoints/checkpoint_0/model.safetensors", &weights());
    write("acc/model.safetensors", &weights());
    write("acc/final/model.safetensors", &weights());
    assert_eq!(latest(&mount, &mount.at("acc")), named("acc/checkpoints/checkpoint_0"));
    // What was exported into the run's directory may make that a checkpoint, too.
    for more in [&[("trainer_state.json", &b"{}"[..])][..], exports[2]] {
        more.iter().for_each(|(name, bytes)| write(&format!("acc/{name}"), bytes));
        assert_eq!(latest(&mount, &mount.at("acc")), named("acc/checkpoints/checkpoint_0"));
    }
    write("acc/checkpoints/final/model.safetensors", &weights());
    assert_eq!(latest(&mount, &mount.at("acc/checkpoints")), named("acc/checkpoints/checkpoint_0"));
    // A run whose directory is called so is none of Accelerate's.
    checkpoint("w/checkpoints/checkpoint-20");
    write("w/checkpoints/final/model.safetensors", &weights());
    assert_eq!(latest(&mount, &mount.at("w")), named("w/checkpoints/checkpoint-20"));
    assert_eq!(latest(&mount, &mount.at("w/checkpoints")), named("w/checkpoints/checkpoint-20"));
    write("w/run2/model.safetensors", &weights());
    assert_eq!(latest(&mount, &mount.at("w")), named("w/run2/model.safetensors"));
    // What has more than weights, or is of another run, is as good as a trainer's own.
    checkpoint("mixed/checkpoint-5");
    write("mixed/step-6.pt", &torch);
    assert_eq!(latest(&mount, &mount.at("mixed")), named("mixed/step-6.pt"));
    let whole: [&[(&str, &[u8])]; 8] = [
        &[("last.ckpt", &torch)],
        &[("latest.pt", &torch)],
        &[("checkpoint_last.pt", &torch)],
        &[("checkpoint.pth.tar", &torch)],
        &[("lightning/last.ckpt", &torch)],
        &[("step-400.safetensors", &weights())],
        &[
            ("epoch/optimizer.pt", &torch),
            ("epoch/model-00001-of-00002.safetensors", &weights()),
            ("epoch/model-00002-of-00002.safetensors", &weights()),
            ("epoch/model.safetensors.index.json", index),
        ],
        &[("best.pt", &torch)],
    ];
    for (n, files) in whole.into_iter().enumerate() {
        let run = format!("whole-{n}");
        checkpoint(&format!("{run}/checkpoint-5"));
        files.iter().for_each(|(name, bytes)| write(&format!("{run}/{name}"), bytes));
        let (status, path) = latest(&mount, &mount.at(&run));
        assert!(status == Some(0) && !path.contains("checkpoint-5"), "{n}: {path}");
    }
    checkpoint("runs/one/checkpoint-5");
    write("runs/two/model.safetensors", &weights());
    assert_eq!(latest(&mount, &mount.at("runs")), named("runs/two/model.safetensors"));
    checkpoint("runs/one/best");
    assert_eq!(latest(&mount, &mount.at("runs")), named("runs/one/best"));
}

/// Proves T13.
fn the_latest_is_nothing_of_a_directory_that_cannot_be_judged(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("run/step-1");
    fs::create_dir_all(&dir).unwrap();
    put(dir.join("model.safetensors"), weights());
    mount.tensorfs_ok(["seal", dir.join("model.safetensors").to_str().unwrap()]);
    put(dir.join("model.safetensors.index.json"), r#"{"weight_map":{"a":"model.safetensors"}}"#);
    let failing = calls.add(Rule::of(Call::Read).on("/segments/").error(nix::libc::EIO));
    assert_eq!(attribute(&dir, "complete"), Err(Errno::EIO));
    assert_eq!(attribute(&dir.join("model.safetensors"), "complete").unwrap(), "complete", "its seal says so");
    let output = mount.tensorfs(["latest", mount.at("run").to_str().unwrap()]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(1), Vec::new()));
    assert!(errors.contains("step-1") && errors.lines().count() == 2, "{errors}");
    drop(failing);
    assert_eq!(latest(&mount, &mount.at("run")), (Some(0), dir.to_str().unwrap().to_owned()));
}

/// Proves T13.
fn all_that_is_complete_is_listed_and_no_part_of_what_is_not(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let write = |name: &str, bytes: &[u8]| {
        let path = mount.at("run").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        put(path, bytes);
    };
    let index = br#"{"weight_map":{"a":"m1.safetensors","b":"m2.safetensors"}}"#;
    for dir in ["checkpoint-1", "checkpoint-2", "sharded", "checkpoint-2/checkpoint-3"] {
        write(&format!("{dir}/m1.safetensors"), &weights());
    }
    write("checkpoint-1/trainer_state.json", b"{}\n");
    write("checkpoint-2/checkpoint-3/trainer_state.json", b"{}\n");
    write("sharded/x.safetensors.index.json", index);
    write("steps/step-1.safetensors", &weights());
    write("steps/step-2.safetensors", &weights()[..40]);
    write("notes.txt", b"nothing");
    let listed = |path: &str| {
        let text = mount.tensorfs_ok(["ls", "-R", "--complete", "--json", mount.at(path).to_str().unwrap()]);
        let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
        let run = format!("{}/", mount.at("run").display());
        let path = |line: serde_json::Value| line["path"].as_str().unwrap().replace(&run, "");
        text.lines().map(line).map(path).collect::<Vec<_>>()
    };
    let all = ["checkpoint-1", "checkpoint-2/checkpoint-3", "steps/step-1.safetensors"];
    assert_eq!(listed("run"), all);
    write("sharded/m2.safetensors", &weights());
    assert_eq!(listed("run"), [all[0], all[1], "sharded", all[2]]);
    assert_eq!(listed("run/sharded"), ["sharded"]);
    assert_eq!(listed("run/checkpoint-2"), ["checkpoint-2/checkpoint-3"]);
    assert_eq!(listed("run/steps/step-1.safetensors"), [all[2]]);
}

/// Proves T13.
fn of_a_newer_one_that_nobody_can_judge_something_is_said(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let run = mount.at("run");
    let says = |command: &str| {
        let output = mount.tensorfs([command, run.to_str().unwrap()]);
        let (out, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        (output.status.code(), out, errors)
    };
    fs::create_dir(&run).unwrap();
    put(run.join("step-1.pt"), fs::read(samples().join("torch2-tensor.pt")).unwrap());
    assert_eq!(says("latest").2, "");
    put(run.join("step-0.pt"), "of no format that is known");
    tensorfs_tests::shell(&run, "touch -d 2020-01-01T00:00:00 step-0.pt");
    assert_eq!(says("latest").2, "", "it is older");
    put(run.join("step-2.pt"), "of no format that is known");
    fs::create_dir(run.join("checkpoint-3")).unwrap();
    put(run.join("checkpoint-3/tf_model.h5"), fs::read(samples().join("plain.h5")).unwrap());
    put(run.join("checkpoint-3/trainer_state.json"), "{}\n");
    let (status, out, errors) = says("latest");
    assert_eq!((status, out.trim_end()), (Some(0), run.join("step-1.pt").to_str().unwrap()));
    assert!(errors.contains("step-2.pt: whether") && errors.contains("checkpoint-3: whether"), "{errors}");
    assert_eq!(errors.lines().count(), 2, "{errors}");
    // It may be good: it is not set aside.
    let (status, out, _) = says("rollback");
    assert!(status == Some(1) && run.join("step-2.pt").exists() && run.join("checkpoint-3").exists(), "{out}");
}

/// As fairseq, Lightning and the examples of PyTorch call them.
///
/// Proves T13.
fn the_latest_may_be_called_as_that_of_a_run_is(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let torch = fs::read(samples().join("torch2-tensor.pt")).unwrap();
    let runs = [
        ["checkpoint3.pt", "checkpoint_best.pt", "checkpoint_last.pt"],
        ["epoch=0-step=9.ckpt", "last.ckpt", "last-v1.ckpt"],
        ["checkpoint.pth.tar", "notes.txt", "model_best.pth.tar"],
    ];
    for (n, names) in runs.into_iter().enumerate() {
        let run = mount.at(format!("run-{n}"));
        fs::create_dir(&run).unwrap();
        for name in names {
            put(run.join(name), &torch);
            if name.ends_with(".txt") {
                continue;
            }
            assert_eq!(latest(&mount, &run), (Some(0), run.join(name).to_str().unwrap().to_owned()), "{name}");
        }
    }
}

/// Proves T13.
fn a_directory_of_many_names_is_not_taken_for_a_checkpoint(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let run = mount.at("run");
    fs::create_dir_all(run.join("checkpoint-9")).unwrap();
    put(run.join("checkpoint-9/model.safetensors"), weights());
    put(run.join("checkpoint-9/model.safetensors.index.json"), r#"{"weight_map":{"a":"model.safetensors"}}"#);
    fs::create_dir(run.join("step-1")).unwrap();
    put(run.join("step-1/model.safetensors"), weights());
    for n in 0..65_540 {
        std::os::unix::fs::symlink("nowhere", run.join(format!("log-{n}"))).unwrap();
    }
    assert_eq!(attribute(&run, "complete"), Err(Errno::ENODATA));
    assert_eq!(latest(&mount, &run), (Some(0), run.join("step-1/model.safetensors").to_str().unwrap().to_owned()));
    // It is called as a trainer's, however many there are beside it.
    assert_eq!(attribute(&run.join("checkpoint-9"), "complete").unwrap(), "incomplete");
    put(run.join("checkpoint-9/trainer_state.json"), "{}\n");
    assert_eq!(attribute(&run.join("checkpoint-9"), "complete").unwrap(), "complete");
    put(run.join("trainer_state.json"), "{}\n");
    assert_eq!(attribute(&run, "complete"), Err(Errno::E2BIG));
}

/// Proves T13.
fn a_checkpoint_that_is_not_complete_is_named_by_whatever_looks_at_it(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("checkpoint-9");
    fs::create_dir(&dir).unwrap();
    put(dir.join("model.safetensors"), weights());
    let says = |command: &[&str]| {
        mount.tensorfs_ok(["seal", dir.to_str().unwrap()]);
        let output = mount.tensorfs(command.iter().copied().chain([dir.to_str().unwrap()]));
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (status, text) = says(&["verify"]);
    assert!(status == Some(5) && text.contains("checkpoint-9: incomplete: what is written last"), "{text}");
    let (status, text) = says(&["verify", "--json"]);
    let line: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((status, &line["kind"], &line["state"]), (Some(5), &"checkpoint".into(), &"incomplete".into()));
    let (status, text) = says(&["ls"]);
    assert!(status == Some(0) && text.contains("checkpoint-9: incomplete: what is written last"), "{text}");
    put(dir.join("trainer_state.json"), "{}\n");
    let (status, text) = says(&["verify"]);
    assert!(status == Some(0) && !text.contains("incomplete"), "{text}");
    assert!(!says(&["ls"]).1.contains("incomplete"));
    // What its index lacks is named once.
    put(dir.join("x.safetensors.index.json"), r#"{"weight_map":{"a":"model.safetensors","b":"n.safetensors"}}"#);
    let (status, text) = says(&["verify"]);
    assert!(status == Some(5) && text.contains("n.safetensors is missing") && !text.contains("written last"), "{text}");
}
