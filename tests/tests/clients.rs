//! Unmodified programs of the machine-learning world: each writes through the mount, checks what
//! it wrote, and checks it again from a new process after unmount and mount.

use std::path::{Path, PathBuf};
use std::process::Command;
use tensorfs_tests::{Mount, Passthrough, Setup, on_mounts, run_ok, venv};

on_mounts!(
    smdebug,
    numpy,
    safetensors,
    h5py,
    tensorboard,
    checkpoints_moved_by_cp_and_read_in_place,
    shelf,
    shelf_in_memory_once,
    smdebug_torch_hook,
    torch,
    shelf_torch,
);

fn script(client: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("clients/{client}_client.py"))
}

/// smdebug waits for ever for files that do not come, so no client runs without `timeout`. An
/// hour is no measure of speed: the slowest takes seconds.
fn client(python: &Path, client: &str, directory: &Path, action: &str) {
    run_ok(
        Command::new("timeout")
            .args(["--signal=KILL", "3600"])
            .arg(python)
            .arg(script(client))
            .arg(directory)
            .arg(action)
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    );
}

fn run_client(setup: Setup, environment: &str, name: &str) {
    let Some(python) = venv(environment) else {
        return setup.skip("no Python environment: tests/run makes one");
    };
    let mut mount = setup.mount();
    let directory = mount.at(name);
    client(&python, name, &directory, "write");
    client(&python, name, &directory, "verify");
    mount.remount();
    client(&python, name, &directory, "verify");
    mount.kill9();
    mount.mount();
    client(&python, name, &directory, "verify");
}

fn large(setup: Setup, environment: &str, name: &str) {
    if std::env::var("TENSORFS_LARGE").as_deref() != Ok("1") {
        return setup.skip("needs gigabytes of packages: TENSORFS_LARGE=1");
    }
    run_client(setup, environment, name);
}

fn smdebug(setup: Setup) {
    run_client(setup, "small", "smdebug");
}

fn numpy(setup: Setup) {
    run_client(setup, "small", "numpy");
}

fn safetensors(setup: Setup) {
    run_client(setup, "small", "safetensors");
}

fn h5py(setup: Setup) {
    run_client(setup, "small", "h5py");
}

fn tensorboard(setup: Setup) {
    run_client(setup, "small", "tensorboard");
}

/// examples/shelf: what PyMM's users do.
fn shelf(setup: Setup) {
    run_client(setup.clone(), "small", "shelf");
    if let Some(python) = venv("small") {
        let mount = setup.mount();
        client(&python, "shelf", &mount.at("shelf"), "kill");
    }
}

/// The same physical pages in several processes, and in the pool's own file.
fn shelf_in_memory_once(setup: Setup) {
    let Some(python) = venv("small") else {
        return setup.skip("no Python environment: tests/run makes one");
    };
    let mount = setup.mount();
    let mode = if mount.passthrough() == Passthrough::On { "on" } else { "off" };
    run_ok(
        Command::new("timeout")
            .args(["--signal=KILL", "3600"])
            .arg(python)
            .arg(script("shelf"))
            .args([mount.at("shelf").as_os_str(), "memory".as_ref(), mount.pool().as_os_str(), mode.as_ref()])
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    );
}

fn shelf_torch(setup: Setup) {
    large(setup, "torch", "shelf_torch");
}

fn smdebug_torch_hook(setup: Setup) {
    large(setup, "large", "smdebug_torch");
}

fn torch(setup: Setup) {
    large(setup, "torch", "torch");
}

/// What a client wrote elsewhere is the same after it was copied in, and copied out again.
fn checkpoints_moved_by_cp_and_read_in_place(setup: Setup) {
    let Some(python) = venv("small") else {
        return setup.skip("no Python environment: tests/run makes one");
    };
    let mount: Mount = setup.mount();
    let outside = mount.host().join("outside");
    client(&python, "safetensors", &outside, "write");
    run_ok(Command::new("cp").arg("-a").arg(&outside).arg(mount.at("in")));
    client(&python, "safetensors", &mount.at("in"), "verify");
    let back = mount.host().join("back");
    run_ok(Command::new("cp").arg("-r").arg(mount.at("in")).arg(&back));
    client(&python, "safetensors", &back, "verify");
}
