//! Unmodified programs of the machine-learning world: each writes through the mount, checks what
//! it wrote, and checks it again from a new process after unmount and mount.

use std::process::Command;
use tensorfs_tests::s3::{keys, s3};
use tensorfs_tests::{Mount, Passthrough, Setup, on_mounts, run_ok, skip, venv};

use super::{client, pool_of};

on_mounts!(
    smdebug,
    numpy,
    numpy_arrays_in_one_file,
    safetensors,
    h5py,
    hdf5_data_sets,
    arrays_in_chunks,
    tensorboard,
    checkpoints_moved_by_cp_and_read_in_place,
    shelf,
    shelf_in_memory_once,
    smdebug_torch_hook,
    torch,
    shelf_torch,
    killed_savers,
    distributed_checkpoints,
    orbax,
    a_job_of_four_machines_is_one_mount,
);

fn run_client(setup: Setup, environment: &str, name: &str) {
    let Some(python) = setup.python(environment) else { return };
    let mut mount = setup.mount();
    let directory = mount.at(name);
    run_ok(&mut client(&python, name, &directory, "write"));
    run_ok(&mut client(&python, name, &directory, "verify"));
    mount.remount();
    run_ok(&mut client(&python, name, &directory, "verify"));
    mount.kill9();
    mount.mount();
    run_ok(&mut client(&python, name, &directory, "verify"));
}

fn smdebug(setup: Setup) {
    run_client(setup, "small", "smdebug");
}

fn numpy(setup: Setup) {
    run_client(setup, "small", "numpy");
}

/// `np.save` to an open file appends: each array of the file is a tensor, also after another mount.
fn numpy_arrays_in_one_file(setup: Setup) {
    let Some(python) = setup.python("small") else { return };
    let mut mount = setup.mount();
    let directory = mount.at("numpy");
    run_ok(&mut client(&python, "numpy", &directory, "write"));
    run_ok(&mut client(&python, "numpy", &directory, "tree"));
    mount.remount();
    run_ok(&mut client(&python, "numpy", &directory, "tree"));
}

fn safetensors(setup: Setup) {
    run_client(setup, "small", "safetensors");
}

fn h5py(setup: Setup) {
    run_client(setup, "small", "h5py");
}

/// Data sets of plain bytes are tensors, each a file of its own, also after another mount.
fn hdf5_data_sets(setup: Setup) {
    let Some(python) = setup.python("small") else { return };
    let mut mount = setup.mount();
    let directory = mount.at("h5py");
    run_ok(&mut client(&python, "h5py", &directory, "write"));
    run_ok(&mut client(&python, "h5py", &directory, "tree"));
    mount.remount();
    run_ok(&mut client(&python, "h5py", &directory, "tree"));
}

/// Proves T14, T15.
fn arrays_in_chunks(setup: Setup) {
    if !setup.clone().mount().is_plain() {
        run_client(setup, "small", "chunks");
    }
}

/// What Orbax saves by default is listed without its library, and told to be complete.
///
/// Proves T13.
fn orbax(setup: Setup) {
    if !setup.clone().mount().is_plain() {
        run_client(setup, "orbax", "orbax");
    }
}

fn tensorboard(setup: Setup) {
    run_client(setup, "small", "tensorboard");
}

/// examples/shelf: what PyMM's users do.
fn shelf(setup: Setup) {
    run_client(setup.clone(), "small", "shelf");
    if let Some(python) = venv("small") {
        let mount = setup.mount();
        run_ok(&mut client(&python, "shelf", &mount.at("shelf"), "kill"));
    }
}

/// An array has one set of physical pages, in several processes, and in the pool's own file.
fn shelf_in_memory_once(setup: Setup) {
    let Some(python) = setup.python("small") else { return };
    let mount = setup.mount();
    run_ok(client(&python, "shelf", &mount.at("shelf"), "memory").args(pool_of(&mount)));
}

fn shelf_torch(setup: Setup) {
    run_client(setup, "torch", "shelf_torch");
}

fn smdebug_torch_hook(setup: Setup) {
    run_client(setup, "large", "smdebug_torch");
}

fn torch(setup: Setup) {
    run_client(setup, "torch", "torch");
}

/// What a client wrote elsewhere is the same after it was copied in, and copied out again.
fn checkpoints_moved_by_cp_and_read_in_place(setup: Setup) {
    let Some(python) = setup.python("small") else { return };
    let mount: Mount = setup.mount();
    let outside = mount.host().join("outside");
    run_ok(&mut client(&python, "safetensors", &outside, "write"));
    run_ok(Command::new("cp").arg("-a").arg(&outside).arg(mount.at("in")));
    run_ok(&mut client(&python, "safetensors", &mount.at("in"), "verify"));
    let back = mount.host().join("back");
    run_ok(Command::new("cp").arg("-r").arg(mount.at("in")).arg(&back));
    run_ok(&mut client(&python, "safetensors", &back, "verify"));
}

/// A checkpoint is told to be whole if it loads, whenever its writer was killed.
///
/// Proves T12, T13.
fn killed_savers(setup: Setup) {
    let kills = std::env::var("TENSORFS_KILLS").unwrap_or_else(|_| "30".to_owned());
    for (environment, kind) in [("small", "safetensors"), ("torch", "torch"), ("trainers", "trainer")] {
        let Some(python) = setup.python(environment) else { continue };
        let mount = setup.clone().mount();
        if mount.is_plain() {
            return;
        }
        let program = tensorfs_tests::tensorfs().get_program().to_owned();
        let directory = mount.at("run");
        std::fs::create_dir(&directory).unwrap();
        let mut command = tensorfs_tests::client(&python, "checkpoints_client.py");
        let said = run_ok(command.arg(&directory).arg(kind).arg(&kills).arg(program));
        println!("{kind}: {said}");
    }
}

/// A distributed checkpoint is told to be whole if all is there that its plan names, and not by anything less.
///
/// Proves T13.
fn distributed_checkpoints(setup: Setup) {
    let Some(python) = setup.python("torch") else { return };
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let program = tensorfs_tests::tensorfs().get_program().to_owned();
    let directory = mount.at("run");
    std::fs::create_dir(&directory).unwrap();
    let mut command = tensorfs_tests::client(&python, "distributed_client.py");
    println!("{}", run_ok(command.arg(&directory).arg(program)));
}

/// Four machines save their parts of one checkpoint, each to its own mount, and a fifth has all of it: from a
/// directory, and from an S3 store that keeps its objects on disk.
///
/// Proves T13, E29.
fn a_job_of_four_machines_is_one_mount(setup: Setup) {
    let Some(python) = setup.python("torch") else { return };
    let passthrough = if setup.passthrough() == Passthrough::On { "on" } else { "off" };
    let mut mounts: Vec<Mount> = (0..4).map(|_| setup.clone().mount()).collect();
    if mounts[0].is_plain() {
        return;
    }
    let client = |arguments: &[&str]| {
        let mut command = tensorfs_tests::client(&python, "union_client.py");
        run_ok(command.args(arguments))
    };
    let ok = |arguments: &[&str]| run_ok(tensorfs_tests::tensorfs().envs(keys()).args(arguments));
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let tops: Vec<String> = mounts.iter().map(|mount| text(mount.path())).collect();
    client(&[&["save"][..], &tops.iter().map(String::as_str).collect::<Vec<_>>()].concat());
    let base = mounts[0].pool().parent().unwrap().to_owned();
    let mut stores = vec![(format!("file://{}", base.join("job").display()), None)];
    match s3() {
        Ok(store) => stores.push((store.new_place(), Some(store.endpoint()))),
        Err(why) => skip("a_job_of_four_machines_is_one_mount (S3)", &why),
    }
    for mount in &mounts {
        mount.tensorfs_ok(["seal", &text(mount.path())]);
    }
    for (number, (url, endpoint)) in stores.iter().enumerate() {
        let reach: Vec<&str> = endpoint.iter().flat_map(|endpoint| ["--endpoint", endpoint]).collect();
        for (n, mount) in mounts.iter().enumerate() {
            let pool = text(mount.pool());
            if number > 0 {
                ok(&["remote", "off", &pool]);
            }
            ok(&[&["remote", "set", &pool, &format!("{url}/machine-{n}")], &reach[..]].concat());
            ok(&["remote", "carry", &pool]);
        }
    }
    mounts.iter_mut().for_each(Mount::umount);
    for (number, (url, endpoint)) in stores.iter().enumerate() {
        let [pool, at, log] = ["fifth", "at", "log"].map(|name| base.join(format!("{name}-{number}")));
        std::fs::create_dir(&at).unwrap();
        let reach: Vec<&str> = endpoint.iter().flat_map(|endpoint| ["--endpoint", endpoint]).collect();
        let how = ["--log", &text(&log), "--passthrough", passthrough];
        ok(&[&["mount", "--from", url, &text(&pool), &text(&at)], &how[..], &reach].concat());
        let mounted = tensorfs_tests::Mounted::adopt(&at);
        // While its bytes are on their way.
        for ranks in ["4", "2"] {
            client(&["load", &text(&at), ranks]);
        }
        let is_here = || {
            let info: serde_json::Value = serde_json::from_str(&ok(&["info", &text(&pool), "--json"])).unwrap();
            info["tiers"].as_array().unwrap().iter().any(|tier| tier["name"] == "remote" && tier["files"] == 0)
        };
        tensorfs_tests::wait_until("all files", is_here);
        let step = at.join("step-40");
        let latest = ok(&["latest", &text(&at)]);
        assert!(latest.contains(&text(&step)), "{latest}");
        assert_eq!(tensorfs_tests::xattr::get(&step, "user.tensorfs.complete").unwrap(), b"complete");
        let logs = (0..4).map(|n| at.join(format!("rank.log.machine-{n}"))).filter(|log| log.exists()).count();
        assert_eq!((logs, at.join("rank.log").exists()), (3, true));
        drop(mounted);
    }
}
