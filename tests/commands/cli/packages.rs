//! What a site installs beside the program: manual pages, completions, packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use tempfile::TempDir;
use tensorfs_tests::{is_root, needs_mount, run, run_ok, scratch, shell, skip, tensorfs};

use super::{Room, said};

/// The commands that `--help` lists.
fn commands(room: &Room) -> Vec<String> {
    listed(&room.ok(["--help"]))
}

/// The commands that such a text lists.
fn listed(help: &str) -> Vec<String> {
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let lines = commands.lines().take_while(|line| !line.is_empty());
    let names = lines.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn every_command_has_a_manual_page() {
    let room = Room::new();
    room.ok(["manual", "man"]);
    let names = commands(&room);
    assert!(names.len() > 15, "{names:?}");
    for name in names.iter().map(|name| format!("tensorfs-{name}")) {
        let page = fs::read_to_string(room.at(&format!("man/{name}.8"))).unwrap();
        let title = page.lines().find(|line| line.starts_with(".TH")).unwrap();
        assert!(title.starts_with(&format!(".TH {name} 8")) && title.contains("tensorfs 0."), "{title}");
        assert!(page.contains(".SH SYNOPSIS"), "{page}");
    }
    for name in ["tensorfs", "mount.tensorfs", "tensorfs-tier-move"] {
        assert!(room.at(&format!("man/{name}.8")).exists(), "{name}");
    }
}

#[test]
fn shells_complete_commands() {
    let room = Room::new();
    for shell in ["bash", "zsh", "fish"] {
        let text = room.ok(["completions", shell]);
        assert!(commands(&room).iter().all(|name| text.contains(name.as_str())), "{shell}: {text}");
        fs::write(room.at(shell), text).unwrap();
    }
    let script = "source ./bash; COMP_WORDS=(tensorfs ver); COMP_CWORD=1; _tensorfs tensorfs ver tensorfs; \
                  echo \"${COMPREPLY[@]}\"";
    let output = run(Command::new("bash").args(["-c", script]).current_dir(room.at("")));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "verify", "{}", said(&output));
    assert_eq!(room.run(["completions", "sh"]).status.code(), Some(2));
}

/// What `tensorfs remote` does is another program's, and had neither pages nor completions.
#[test]
fn what_the_carrier_does_has_manual_pages_and_is_completed() {
    let room = Room::with_pool();
    let carrier = tensorfs().get_program().to_owned();
    let carrier = Path::new(&carrier).with_file_name("tensorfs-carrier");
    run_ok(Command::new(&carrier).args(["manual", "man"]).current_dir(room.at("")));
    let names = listed(&room.ok(["remote", "--help"]));
    assert!(names.len() > 8, "{names:?}");
    for name in names.iter().map(|name| format!("tensorfs-remote-{name}")).chain(["tensorfs-carrier".to_owned()]) {
        let page = fs::read_to_string(room.at(&format!("man/{name}.8"))).unwrap();
        let title = page.lines().find(|line| line.starts_with(".TH")).unwrap();
        assert!(title.starts_with(&format!(".TH {name} 8")) && title.contains("tensorfs 0."), "{title}");
    }
    // Help names what was called.
    let carrier_says = run_ok(Command::new(&carrier).args(["carry", "--help"]));
    assert!(carrier_says.contains("Usage: tensorfs-carrier carry "), "{carrier_says}");
    for name in &names {
        let help = room.ok(["remote", name, "--help"]);
        assert!(help.contains(&format!("Usage: tensorfs remote {name} ")), "{help}");
    }
    let wrong = room.run(["remote", "gc"]);
    assert!(wrong.status.code() == Some(2) && said(&wrong).contains("tensorfs remote gc "), "{}", said(&wrong));
    let page = fs::read_to_string(room.at("man/tensorfs-remote-set.8")).unwrap();
    assert!(page.contains("exclude"), "{page}");
    fs::write(room.at("bash"), room.ok(["completions", "bash"])).unwrap();
    let script = "source ./bash; COMP_WORDS=(tensorfs remote \"$0\"); COMP_CWORD=2; _tensorfs tensorfs \"$0\" remote; \
                  echo \"${COMPREPLY[@]}\"";
    for name in &names {
        let output = run(Command::new("bash").args(["-c", script, name]).current_dir(room.at("")));
        let completed = String::from_utf8_lossy(&output.stdout);
        assert!(completed.split_whitespace().any(|word| word == name), "{name}: {}", said(&output));
    }
    for shell in ["bash", "zsh", "fish"] {
        let text = run_ok(Command::new(&carrier).args(["completions", shell]));
        assert!(names.iter().all(|name| text.contains(name.as_str())), "{shell}: {text}");
    }
}

/// Whoever looks which build serves sees it, wherever he looks.
#[test]
fn the_version_is_the_same_everywhere() {
    needs_mount!();
    let room = Room::mounted();
    let version = room.ok(["--version"]).trim().strip_prefix("tensorfs ").unwrap().to_owned();
    for target in ["mnt", "pool"] {
        assert_eq!(room.info(target)["version"], *version, "{target}");
    }
    let metrics = room.ok(["metrics", "mnt"]);
    assert!(metrics.contains(&format!(",version=\"{version}\"}} 1\n")), "{metrics}");
    room.ok(["umount", "mnt"]);
    assert_eq!(room.info("pool")["version"], *version);
    room.ok(["manual", "man"]);
    let page = fs::read_to_string(room.at("man/tensorfs-mount.8")).unwrap();
    let title = page.lines().find(|line| line.starts_with(".TH")).unwrap();
    assert!(title.contains(&version), "{title}");
    // Of whichever commit it was built.
    let carrier = room.ok(["remote", "--version"]);
    assert_eq!(carrier.contains('('), version.contains('('), "{carrier}");
}

/// What units call, and name as an example, is what packages have, in the place that they say.
#[test]
fn packages_have_what_their_units_name() {
    let room = Room::new();
    let programs = Path::new(tensorfs().get_program()).parent().unwrap().to_owned();
    run_ok(Command::new(source().join(".ci/lay-out")).arg(&programs).arg(room.at("root")));
    let units = room.at("root/usr/lib/systemd/system");
    let mut named = 0;
    for unit in fs::read_dir(&units).unwrap().map(|unit| unit.unwrap().path()) {
        let text = fs::read_to_string(&unit).unwrap();
        let words = text.split(|char: char| char.is_whitespace() || "=,;:\"'`()".contains(char));
        for path in words.map(|word| word.trim_start_matches('-').trim_end_matches('.')) {
            // What a site writes itself is in a directory that is there.
            let path = if path.starts_with("/etc/") { path.rsplit_once('/').unwrap().0 } else { path };
            if path.starts_with("/usr/") || path.starts_with("/etc/") {
                assert!(room.at("root").join(&path[1..]).exists(), "{}: {path}", unit.display());
                named += 1;
            }
        }
        for page in text.lines().filter_map(|line| line.strip_prefix("Documentation=man:")) {
            let page = page.replace("(8)", ".8");
            assert!(room.at("root/usr/share/man/man8").join(&page).exists(), "{}: {page}", unit.display());
        }
    }
    assert!(named > 8, "{named}");
    assert!(fs::read_to_string(room.at("root/etc/tensorfs/README")).unwrap().contains("POOL=/"));
    for made_by in [".ci/tensorfs.spec", "mount-helper/Cargo.toml"] {
        assert!(fs::read_to_string(source().join(made_by)).unwrap().contains("etc/tensorfs"), "{made_by}");
    }
    for file in ["tensorfs-mail", "prometheus/alerts.yml", "prometheus/dashboard.json"] {
        assert!(room.at("root/usr/share/tensorfs").join(file).exists(), "{file}");
    }
    if !run_quietly(Command::new("systemd-analyze").arg("--version")) {
        return skip("cli::packages_have_what_their_units_name", "no systemd-analyze");
    }
    // What it calls is looked for, too.
    for name in ["tensorfs@", "tensorfs-alarm@", "tensorfs-carrier@", "tensorfs-scrub@"] {
        for kind in ["service", "timer"] {
            let (unit, instance) = (units.join(format!("{name}.{kind}")), units.join(format!("{name}x.{kind}")));
            let Ok(text) = fs::read_to_string(unit) else { continue };
            let here = room.at("root/usr/bin/");
            fs::write(&instance, text.replace("/usr/bin/", here.to_str().unwrap())).unwrap();
        }
    }
    let instances = fs::read_dir(&units).unwrap().map(|unit| unit.unwrap().path());
    let instances: Vec<PathBuf> = instances.filter(|path| path.to_str().unwrap().contains("@x.")).collect();
    assert_eq!(instances.len(), 5);
    let judged = run(Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&instances));
    let about = |line: &&str| line.contains("tensorfs");
    let said = String::from_utf8_lossy(&judged.stderr).into_owned();
    assert!(judged.status.success() && said.lines().find(about).is_none(), "{said}");
}

#[test]
fn the_version_names_the_commit() {
    let room = Room::new();
    let version = room.ok(["--version"]);
    let git = Command::new("git").args(["rev-parse", "--git-dir"]).stderr(Stdio::null()).output();
    if !git.is_ok_and(|output| output.status.success()) {
        return skip("cli::the_version_names_the_commit", "this is no git repository");
    }
    let commit = version.trim().split_once(" (").and_then(|(_, commit)| commit.strip_suffix(')'));
    assert!(commit.is_some_and(|commit| commit.len() >= 12), "{version}");
}

/// The modes and names in a tarball.
fn packed(tarball: &Path) -> Vec<(String, String)> {
    let listed = run_ok(Command::new("tar").arg("-tvzf").arg(tarball));
    let fields = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields.map(|fields| (fields[0].to_owned(), fields[5].to_owned())).collect()
}

/// Whoever unpacks it as root may not take `/usr` away from everybody.
#[test]
fn a_tarball_is_the_same_whatever_the_umask_of_whoever_makes_it() {
    let room = Room::new();
    let script = r#"
        set -e
        umask 077
        mkdir -p root/usr/bin root/usr/share
        echo program > root/usr/bin/tensorfs
        chmod 700 root/usr/bin/tensorfs
        ln -s tensorfs root/usr/bin/mount.tensorfs
        echo text > root/usr/share/README.md
        "$0" root out.tar.gz
    "#;
    run_ok(Command::new("bash").args(["-c", script]).arg(source().join(".ci/tarball")).current_dir(room.at("")));
    let expected = [
        ("drwxr-xr-x", "usr/"),
        ("drwxr-xr-x", "usr/bin/"),
        ("lrwxr-xr-x", "usr/bin/mount.tensorfs"),
        ("-rwxr-xr-x", "usr/bin/tensorfs"),
        ("drwxr-xr-x", "usr/share/"),
        ("-rw-r--r--", "usr/share/README.md"),
    ];
    let found = packed(&room.at("out.tar.gz"));
    assert_eq!(found, expected.map(|(mode, name)| (mode.to_owned(), name.to_owned())));
}

/// What is used of each, whoever installed it: a pool, a mount by mount(8), one by /etc/fstab, and a second copy.
const USED: &str = r#"
    tensorfs --version
    tensorfs create /pool --size 64M
    mkdir /mnt/tensors
    mount -t tensorfs /pool /mnt/tensors
    echo text > /mnt/tensors/file
    umount /mnt/tensors
    echo "/pool /mnt/tensors tensorfs defaults 0 0" >> /etc/fstab
    mount -a
    test "$(cat /mnt/tensors/file)" = text
    tensorfs umount /mnt/tensors
    tensorfs remote set /pool file:///mnt/second
    tensorfs remote carry /pool
    tensorfs remote restore file:///mnt/second /mnt/restored
    tensorfs ls /mnt/restored | grep -w file
"#;

/// Why packages are not tried here, if they are not.
fn untried(needed: &[(&str, &str)]) -> Option<String> {
    if std::env::var_os("TENSORFS_PACKAGES").is_none() {
        return Some("makes packages and a system: TENSORFS_PACKAGES=1".to_owned());
    }
    if !is_root() {
        return Some("only root can make a system".to_owned());
    }
    let there = |(program, argument): &(&str, &str)| {
        let arguments = [argument, "--version"].into_iter().filter(|argument| !argument.is_empty());
        run_quietly(Command::new(program).args(arguments))
    };
    let missing = needed.iter().find(|needed| !there(needed));
    missing.map(|(program, argument)| format!("no {program} {argument}").trim_end().to_owned())
}

fn run_quietly(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

fn source() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Makes all packages, once, and says where the one is whose name ends so.
fn package(end: &str) -> PathBuf {
    static OUT: LazyLock<TempDir> = LazyLock::new(|| {
        let out = scratch();
        run_ok(Command::new(source().join(".ci/packages")).arg(out.path()).current_dir(source()));
        out
    });
    let mut made = fs::read_dir(OUT.path()).unwrap().map(|entry| entry.unwrap().path());
    made.find(|path| path.to_str().unwrap().ends_with(end)).unwrap()
}

/// Makes a system, copies a package into it, and installs, uses and removes it there, which must leave nothing behind.
/// `before` is what the system gets first.
fn in_a_clean_system(suite: &str, package: &Path, before: &str, install: &str, remove: &str) {
    let room = Room::new();
    let system = room.at("system");
    run_ok(Command::new("debootstrap").args(["--variant=minbase", suite]).arg(&system).stdout(Stdio::null()));
    fs::copy(package, system.join("root").join(package.file_name().unwrap())).unwrap();
    fs::copy("/etc/resolv.conf", system.join("etc/resolv.conf")).unwrap();
    let name = package.file_name().unwrap().to_str().unwrap();
    let inside = format!(
        r#"
        export DEBIAN_FRONTEND=noninteractive PACKAGE=/root/{name}
        {before}
        find / -xdev | sort > /before
        {install}
        {USED}
        {remove}
        find / -xdev | grep -v -e ^/pool -e ^/var -e ^/before -e ^/mnt/ -e ^/after | sort > /after
        grep -v -e ^/var -e ^/before /before | diff - /after
        echo removed without a trace
        "#
    );
    let script = r#"
        set -e
        mount --bind /dev "$1/dev"
        mount -t proc proc "$1/proc"
        exec chroot "$1" sh -ec "$2"
    "#;
    let output = run(Command::new("unshare").args(["--mount", "sh", "-c", script, "sh"]).arg(&system).arg(inside));
    let said = said(&output);
    assert!(output.status.success() && said.contains("removed without a trace"), "{said}");
}

/// The newest version of the C library that a program of a package asks for.
fn c_library(tarball: &Path) -> (u32, u32) {
    let name = tarball.file_name().unwrap().to_str().unwrap();
    let (_, version) = name.strip_suffix(".tar.gz").unwrap().split_once("-glibc").unwrap();
    let (major, minor) = version.split_once('.').unwrap();
    (major.parse().unwrap(), minor.parse().unwrap())
}

#[test]
fn a_debian_package_is_installed_used_and_removed_in_a_clean_system() {
    needs_mount!();
    if let Some(why) = untried(&[("debootstrap", ""), ("cargo", "deb")]) {
        return skip("cli::a_debian_package_is_installed_used_and_removed_in_a_clean_system", &why);
    }
    let is_old = run_quietly(Command::new("cargo-zigbuild").arg("--version"));
    let suite = if is_old { "bullseye" } else { "bookworm" };
    in_a_clean_system(suite, &package(".deb"), "", "dpkg -i $PACKAGE", "dpkg -P tensorfs");
}

/// By the rpm of a Debian system, whose own packages are none that rpm knows of: so what it needs is looked at apart.
#[test]
fn an_rpm_is_installed_used_and_removed_in_a_clean_system() {
    needs_mount!();
    if let Some(why) = untried(&[("debootstrap", ""), ("rpmbuild", "")]) {
        return skip("cli::an_rpm_is_installed_used_and_removed_in_a_clean_system", &why);
    }
    let rpm = package(".rpm");
    let needs = run_ok(Command::new("rpm").args(["-qp", "--requires"]).arg(&rpm));
    let known = [
        "libc.so.6(",
        "libm.so.6(",
        "libpthread.so.0(",
        "libdl.so.2(",
        "ld-linux-x86-64.so.2(",
        "libgcc_s.so.1(",
        "rpmlib(",
        // Of tensorfs-mail, a script.
        "/bin/sh",
    ];
    assert!(needs.lines().all(|line| known.iter().any(|known| line.starts_with(known))), "{needs}");
    assert!(needs.contains("libc.so.6(GLIBC_"), "{needs}");
    let before = "apt-get -q update && apt-get -q -y install --no-install-recommends rpm && rpm --initdb";
    in_a_clean_system(
        "bookworm",
        &rpm,
        before,
        "rpm -i --nodeps $PACKAGE; rpm -V --nodeps tensorfs",
        "rpm -e tensorfs",
    );
}

/// In a system of 2021, whose C library is older than that of most systems on which it is built.
#[test]
fn a_tarball_runs_where_the_c_library_is_old() {
    needs_mount!();
    let name = "cli::a_tarball_runs_where_the_c_library_is_old";
    if let Some(why) = untried(&[("debootstrap", "")]) {
        return skip(name, &why);
    }
    let tarball = package(".tar.gz");
    for (mode, name) in packed(&tarball) {
        let expected: &[&str] = match &mode[..1] {
            "d" => &["drwxr-xr-x"],
            "l" => &["lrwxr-xr-x", "lrwxrwxrwx"],
            _ => &["-rwxr-xr-x", "-rw-r--r--"],
        };
        assert!(expected.contains(&&*mode), "{mode} {name}");
    }
    let listed = run_ok(Command::new("tar").arg("-tzf").arg(&tarball));
    for part in [
        "usr/bin/tensorfs",
        "usr/sbin/mount.tensorfs",
        "usr/share/man/man8/tensorfs-mount.8",
        "usr/share/man/man8/tensorfs-remote-set.8",
        "usr/share/tensorfs/tensorfs-mail",
    ] {
        assert!(listed.lines().any(|line| line == part), "{listed}");
    }
    if !run_quietly(Command::new("cargo-zigbuild").arg("--version")) {
        return skip(name, "no cargo zigbuild");
    }
    assert_eq!(c_library(&tarball), (2, 28));
    let remove = r#"
        tar -tzf $PACKAGE | grep -v "/$" | (cd / && xargs rm)
        rmdir /usr/share/doc/tensorfs
        tar -tzf $PACKAGE | grep "/$" | sort -r | (cd / && xargs rmdir --ignore-fail-on-non-empty 2>/dev/null || true)
    "#;
    in_a_clean_system("bullseye", &tarball, "ldd --version | grep 2.31", "tar -C / -xzf $PACKAGE", remove);
}

#[test]
fn a_wheel_is_installed_used_and_removed_in_a_clean_system() {
    needs_mount!();
    if let Some(why) = untried(&[("debootstrap", ""), ("python3", ""), ("cargo-zigbuild", "")]) {
        return skip("cli::a_wheel_is_installed_used_and_removed_in_a_clean_system", &why);
    }
    let before = "apt-get -q update && apt-get -q -y install --no-install-recommends python3-venv";
    // mount(8) looks for its helpers in one place alone.
    let install = r#"
        python3 -m venv /opt/tensors
        /opt/tensors/bin/pip --disable-pip-version-check install --no-index $PACKAGE
        ls /opt/tensors/share/man/man8/tensorfs.8 /opt/tensors/share/bash-completion/completions/tensorfs
        ln -s /opt/tensors/bin/tensorfs /sbin/mount.tensorfs
        PATH=$PATH:/opt/tensors/bin
    "#;
    let remove = r#"
        /opt/tensors/bin/pip uninstall -y tensorfs
        find /opt/tensors ! -type d | grep -i tensorfs && exit 1
        rm -r /opt/tensors /sbin/mount.tensorfs
    "#;
    in_a_clean_system("bullseye", &package(".whl"), before, install, remove);
}

/// `cargo install` of both programs gives what works by itself. Without optimization, which is built sooner.
#[test]
fn cargo_installs_what_works() {
    needs_mount!();
    if let Some(why) = untried(&[("cargo", "")]) {
        return skip("cli::cargo_installs_what_works", &why);
    }
    let room = Room::new();
    for part in ["mount-helper", "remote"] {
        let mut cargo = Command::new("cargo");
        cargo.args(["install", "--quiet", "--debug", "--locked", "--path", part, "--root"]).arg(room.at("installed"));
        run_ok(cargo.current_dir(source()));
    }
    let script = r#"
        PATH=$PWD/installed/bin:$PATH
        test "$(command -v tensorfs)" = "$PWD/installed/bin/tensorfs"
        tensorfs create pool
        tensorfs mount pool mnt
        echo text > mnt/file
        tensorfs umount mnt
        tensorfs remote set pool "file://$PWD/second"
        tensorfs remote carry pool
        tensorfs remote restore "file://$PWD/second" restored
        tensorfs ls restored | grep -w file
    "#;
    shell(&room.at(""), script);
}
