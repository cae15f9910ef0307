//! The programs of examples/ (the shelf's are in clients.rs): what their users had is there, and works on the mount.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use tensorfs_tests::{Mount, Mounted, Setup, built, client_file, is_root, on_mounts, run_ok};

use super::{client, pool_of};

on_mounts!(
    kernels_of_several_libraries_share_arrays_by_key,
    kernels_are_operators_of_torch,
    what_a_kernel_saves_is_in_memory_once,
    a_key_has_its_old_array_after_a_kill,
    a_chain_is_appended_from_c,
    five_languages_share_one_array,
    five_languages_have_an_array_in_memory_once,
    placement_by_an_agent,
    placement_in_tiers_of_a_pool,
    placement_of_a_torch_model,
    weights_in_memory_are_lost_at_a_reboot_and_kept_ones_are_not,
);

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

/// The C++ operators, a library each, and the Rust ones.
fn kernels() -> &'static [PathBuf; 2] {
    static BUILT: OnceLock<[PathBuf; 2]> = OnceLock::new();
    BUILT.get_or_init(|| [make("kernels"), built("tensorfs-example-kernels", "libtensorfs_example_kernels.so")])
}

fn kernels_client(python: &Path, directory: &Path, action: &str) -> Command {
    let [cpp, rust] = kernels();
    let mut command = client(python, "kernels", directory, action);
    command.env("LIBRARIES", format!("{}:{}", cpp.display(), rust.display()));
    command
}

/// Makes an example's programs. One test at a time: else one would start a program that another is just writing.
fn make(example: &str) -> PathBuf {
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(example);
    let mut out = OsString::from("OUT=");
    out.push(&directory);
    run_ok(Command::new("make").arg("-C").arg(format!("{EXAMPLES}/{example}")).arg(out));
    directory
}

fn kernels_of_several_libraries_share_arrays_by_key(setup: Setup) {
    let Some(python) = setup.python("small") else { return };
    let mut mount = setup.mount();
    let directory = mount.at("store");
    run_ok(&mut kernels_client(&python, &directory, "write"));
    run_ok(&mut kernels_client(&python, &directory, "verify"));
    mount.kill9();
    mount.mount();
    run_ok(&mut kernels_client(&python, &directory, "verify"));
}

fn what_a_kernel_saves_is_in_memory_once(setup: Setup) {
    let Some(python) = setup.python("small") else { return };
    let mount = setup.mount();
    run_ok(kernels_client(&python, &mount.at("store"), "memory").args(pool_of(&mount)));
}

fn a_key_has_its_old_array_after_a_kill(setup: Setup) {
    let Some(python) = setup.python("small") else { return };
    let mount = setup.mount();
    run_ok(&mut kernels_client(&python, &mount.at("store"), "kill"));
}

fn kernels_are_operators_of_torch(setup: Setup) {
    let Some(python) = setup.python("torch") else { return };
    let mount = setup.mount();
    run_ok(&mut kernels_client(&python, &mount.at("store"), "torch"));
}

/// examples/placement without PyTorch: the server and its agents, the tiers, bad days, and that the bandit's maps are
/// better than chance.
fn placement_by_an_agent(setup: Setup) {
    let Some(python) = setup.python("small") else { return };
    let mount = setup.mount();
    run_ok(&mut client(&python, "placement", &mount.at("run"), "write"));
    run_ok(&mut client(&python, "placement", &mount.at("run"), "verify"));
}

/// A pool with two more tiers, both in memory: `dram`, and `small`, which holds 8 MiB.
struct Tiers {
    /// First, so that it goes first: whoever has the pool open still has it.
    small: Mounted,
    mount: Mount,
    memory: tempfile::TempDir,
}

impl Tiers {
    fn new(setup: Setup) -> Option<Self> {
        if setup.mount_is_plain() {
            return None;
        }
        let memory = setup.in_memory()?;
        if !is_root() {
            setup.skip("needs root, to mount a small tmpfs");
            return None;
        }
        let mount = setup.mount();
        let small = memory.path().join("small");
        std::fs::create_dir(&small).unwrap();
        let mut tiers = Self { small: Mounted::tmpfs(&small, Some(8)).unwrap(), mount, memory };
        tiers.mount.umount();
        for (name, directory) in [("dram", tiers.dram()), ("small", tiers.small().join("tier"))] {
            tiers.mount.add_tier(name, &directory);
        }
        tiers.mount.mount();
        Some(tiers)
    }

    fn dram(&self) -> PathBuf {
        self.memory.path().join("dram")
    }

    fn small(&self) -> &Path {
        self.small.path()
    }
}

/// What is placed in a tier has its bytes there, and a full tier says so instead of ending the program.
fn placement_in_tiers_of_a_pool(setup: Setup) {
    let Some(python) = setup.python("small") else { return };
    let Some(tiers) = Tiers::new(setup) else { return };
    run_ok(client(&python, "placement", &tiers.mount.at("run"), "tiers").arg(tiers.dram()));
}

fn weights_in_memory_are_lost_at_a_reboot_and_kept_ones_are_not(setup: Setup) {
    let Some(python) = setup.python("torch") else { return };
    let Some(mut tiers) = Tiers::new(setup) else { return };
    let directory = tiers.mount.at("run");
    run_ok(&mut client(&python, "placement_torch", &directory, "before"));
    for action in ["after", "again"] {
        tiers.mount.power_loss();
        std::fs::remove_dir_all(tiers.dram()).unwrap();
        tiers.mount.mount();
        run_ok(&mut client(&python, "placement_torch", &directory, action));
    }
}

/// examples/placement with an unmodified PyTorch: a residual network computes the same, wherever its weights and
/// activations are.
fn placement_of_a_torch_model(setup: Setup) {
    let Some(python) = setup.python("torch") else { return };
    let mut mount = setup.mount();
    let directory = mount.at("run");
    run_ok(&mut client(&python, "placement_torch", &directory, "write"));
    run_ok(&mut client(&python, "placement_torch", &directory, "verify"));
    mount.kill9();
    mount.mount();
    run_ok(&mut client(&python, "placement_torch", &directory, "verify"));
}

/// Where the programs in C, C++ and Fortran are, and the one in Rust.
fn languages() -> &'static (PathBuf, PathBuf) {
    static BUILT: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    BUILT.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--example", "read_array"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        run_ok(&mut build);
        let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
        let rust = Path::new(env!("CARGO_TARGET_TMPDIR")).join("..").join(profile).join("examples/read_array");
        (make("languages"), rust)
    })
}

/// An array has one set of physical pages, in all five languages, and in the pool's own file.
fn five_languages_have_an_array_in_memory_once(setup: Setup) {
    let Some(python) = setup.python("small") else { return };
    if Command::new("gfortran").arg("--version").output().is_err() {
        return setup.skip("no gfortran: tests/run installs it");
    }
    let (programs, rust) = languages();
    let mount = setup.mount();
    let preloaded = mount.host().join("stop_at_munmap.so");
    let source = client_file("stop_at_munmap.c");
    run_ok(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&preloaded).arg(source));
    let files = [mount.at("column.npy"), mount.at("row.npy")];
    run_ok(Command::new(programs.join("write_array")).args(&files).args(["2000", "1000"]));
    let at = |name: &str| programs.join(name).display().to_string();
    for file in &files {
        run_ok(
            client(&python, "languages", file, "memory")
                .args(pool_of(&mount))
                .arg(&preloaded)
                .arg(format!("{} FILE 1000", at("update_array")))
                .arg(format!("{} FILE 2", at("scale_array")))
                .arg(format!("{} FILE 2 4", rust.display())),
        );
    }
    // Fortran's program makes the file that it maps.
    run_ok(client(&python, "languages", &files[0], "fortran").arg(&preloaded).arg(format!(
        "{} FILE {} 2000 1000",
        at("write_array"),
        mount.at("other.npy").display()
    )));
}

/// examples/languages: what Fortran wrote, C and C++ change while Python has it mapped, and Rust reads.
fn five_languages_share_one_array(setup: Setup) {
    let Some(python) = setup.python("small") else { return };
    if Command::new("gfortran").arg("--version").output().is_err() {
        return setup.skip("no gfortran: tests/run installs it");
    }
    let (programs, rust) = languages();
    let mut mount = setup.mount();
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
    // What was stored through mappings, and never synced, outlives the server.
    let reads = |file: &Path| run_ok(Command::new(rust).arg(file).args(["2", "4"]));
    let before = files.each_ref().map(|file| reads(file));
    mount.kill9();
    mount.mount();
    assert_eq!(files.each_ref().map(|file| reads(file)), before);
}

/// examples/chain: what a program in C was told is durable is there whole after kills, each call a record of its own.
fn a_chain_is_appended_from_c(setup: Setup) {
    let program = make("chain").join("chain");
    let mount = setup.mount();
    let file = mount.at("chain");
    let run = |action: &str| {
        let mut command = Command::new(&program);
        command.arg(action).arg(&file).stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    };
    let append = |lines: &str| {
        let mut child = run("append").spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        assert!(child.wait_with_output().unwrap().status.success());
    };
    append("one\ntwo\n\n");
    assert_eq!(run_ok(&mut run("list")), "3 one\n3 two\n0 \n");
    if !mount.is_plain() {
        let records = run_ok(mount.program().args(["records", "--json"]).arg(&file));
        let lens: Vec<u64> = records
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["len"].as_u64().unwrap())
            .collect();
        assert_eq!(lens, [19, 19, 16], "{records}");
    }
    let mut promised = 3;
    for _ in 0..5 {
        let mut child = run("append").spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let feed = std::thread::spawn(move || {
            let line = [vec![b'x'; 300_000], vec![b'\n']].concat();
            while input.write_all(&line).is_ok() {}
        });
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        said.by_ref().take(3).for_each(|line| drop(line.unwrap()));
        child.kill().unwrap();
        promised += 3 + said.count();
        child.wait().unwrap();
        feed.join().unwrap();
        let listed = run_ok(&mut run("list"));
        assert!((promised..=promised + 1).contains(&listed.lines().count()), "{promised} were promised: {listed}");
        assert!(listed.lines().skip(3).all(|line| line.starts_with("300000 xxxx")), "{listed}");
        promised = listed.lines().count();
    }
    append("last\n");
    let listed = run_ok(&mut run("list"));
    assert_eq!((listed.lines().count(), listed.lines().last()), (promised + 1, Some("4 last")));
    std::os::unix::fs::FileExt::write_at(&std::fs::File::options().write(true).open(&file).unwrap(), b"?", 13).unwrap();
    assert!(!run("list").status().unwrap().success(), "a byte is not what it was");
}
