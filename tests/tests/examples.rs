//! The programs of examples/ that are compiled: what their users had is there, and works on the mount.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tensorfs_tests::{Setup, built, on_mounts, run_ok, venv};

on_mounts!(kernels_of_several_libraries_share_arrays_by_key, kernels_are_operators_of_torch);

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

/// The C++ operators, a library each, and the Rust ones.
fn kernels() -> &'static [PathBuf; 2] {
    static BUILT: OnceLock<[PathBuf; 2]> = OnceLock::new();
    BUILT.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
        let mut out = std::ffi::OsString::from("OUT=");
        out.push(&directory);
        run_ok(Command::new("make").arg("-C").arg(format!("{EXAMPLES}/kernels")).arg(out));
        [directory, built("tensorfs-example-kernels", "libtensorfs_example_kernels.so")]
    })
}

fn client(python: &Path, directory: &Path, action: &str) {
    let [cpp, rust] = kernels();
    run_ok(
        Command::new("timeout")
            .args(["--signal=KILL", "3600"])
            .arg(python)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/kernels_client.py"))
            .args([directory.as_os_str(), action.as_ref()])
            .env("LIBRARIES", format!("{}:{}", cpp.display(), rust.display()))
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    );
}

fn kernels_of_several_libraries_share_arrays_by_key(setup: Setup) {
    let Some(python) = venv("small") else {
        return setup.skip("no Python environment: tests/run makes one");
    };
    let mut mount = setup.mount();
    let directory = mount.at("store");
    client(&python, &directory, "write");
    client(&python, &directory, "verify");
    mount.kill9();
    mount.mount();
    client(&python, &directory, "verify");
}

fn kernels_are_operators_of_torch(setup: Setup) {
    if std::env::var("TENSORFS_LARGE").as_deref() != Ok("1") {
        return setup.skip("needs gigabytes of packages: TENSORFS_LARGE=1");
    }
    let Some(python) = venv("torch") else {
        return setup.skip("no Python environment: tests/run makes one");
    };
    let mount = setup.mount();
    client(&python, &mount.at("store"), "torch");
}
