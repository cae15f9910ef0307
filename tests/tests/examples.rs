//! The programs of examples/ that are compiled: what their users had is there, and works on the mount.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use tensorfs_tests::{Setup, built, on_mounts, run_ok, venv};

on_mounts!(
    kernels_of_several_libraries_share_arrays_by_key,
    kernels_are_operators_of_torch,
    five_languages_share_one_array,
);

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

/// examples/languages: what Fortran wrote, C and C++ change while Python has it mapped, and Rust reads.
fn five_languages_share_one_array(setup: Setup) {
    let Some(python) = venv("small") else {
        return setup.skip("no Python environment: tests/run makes one");
    };
    if Command::new("gfortran").arg("--version").output().is_err() {
        return setup.skip("no gfortran: tests/run installs it");
    }
    static BUILT: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    let (programs, rust) = BUILT.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("languages");
        let mut out = std::ffi::OsString::from("OUT=");
        out.push(&directory);
        run_ok(Command::new("make").arg("-C").arg(format!("{EXAMPLES}/languages")).arg(out));
        let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--example", "read_array"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        run_ok(&mut build);
        let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
        (directory, Path::new(env!("CARGO_TARGET_TMPDIR")).join("..").join(profile).join("examples/read_array"))
    });
    let mount = setup.mount();
    let files = [mount.at("column.npy"), mount.at("row.npy")];
    run_ok(Command::new(programs.join("write_array")).args(&files).args(["300", "200"]));
    let mut reader = Command::new("timeout")
        .args(["--signal=KILL", "3600"])
        .arg(&python)
        .args([&format!("{EXAMPLES}/languages/read_array.py"), "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut ask, mut answers) = (reader.stdin.take().unwrap(), BufReader::new(reader.stdout.take().unwrap()).lines());
    // The sum of 100 i + j + `added`, times `factor`, and the element at (2, 4).
    let mut expect = |added: f64, factor: f64| {
        let sum = (100.0 * 200.0 * (299.0 * 300.0 / 2.0) + 300.0 * (199.0 * 200.0 / 2.0) + 60_000.0 * added) * factor;
        let expected = format!("{sum:.1} {:.1}", (204.0 + added) * factor);
        for file in &files {
            writeln!(ask, "{} 2 4", file.display()).unwrap();
            assert_eq!(answers.next().unwrap().unwrap(), expected, "Python, mapped from the first question on");
            let found = run_ok(Command::new(rust).arg(file).args(["2", "4"]));
            assert_eq!(found.trim(), expected, "Rust");
        }
    };
    expect(0.0, 1.0);
    for file in &files {
        run_ok(Command::new(programs.join("update_array")).arg(file).arg("1000"));
    }
    expect(1000.0, 1.0);
    for file in &files {
        run_ok(Command::new(programs.join("scale_array")).arg(file).arg("2"));
    }
    expect(1000.0, 2.0);
    drop(ask);
    assert!(reader.wait().unwrap().success());
}
