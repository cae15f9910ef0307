//! What a site installs beside the program: manual pages, completions, packages.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use tensorfs_tests::{is_root, needs_mount, run, run_ok, skip};

use super::{Room, said};

/// The commands that `--help` lists.
fn commands(room: &Room) -> Vec<String> {
    let help = room.ok(["--help"]);
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
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
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
    run_ok(Command::new("bash").args(["-c", script]).arg(source.join(".ci/tarball")).current_dir(room.at("")));
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

/// A Debian package is installed, used and removed in a system that has nothing else.
#[test]
fn a_package_is_installed_used_and_removed_in_a_clean_system() {
    needs_mount!();
    let name = "cli::a_package_is_installed_used_and_removed_in_a_clean_system";
    if std::env::var_os("TENSORFS_PACKAGES").is_none() {
        return skip(name, "makes packages and a system: TENSORFS_PACKAGES=1");
    }
    if !is_root() {
        return skip(name, "only root can make a system");
    }
    for (program, arguments) in [("debootstrap", &["--version"][..]), ("cargo", &["deb", "--version"])] {
        if !Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success()) {
            return skip(name, &format!("no {program} {}", arguments[0]));
        }
    }
    let room = Room::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let out = room.at("out");
    run_ok(Command::new(source.join(".ci/packages")).arg(&out).current_dir(source));
    let made: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path()).collect();
    let with = |end: &str| made.iter().find(|path| path.to_str().unwrap().ends_with(end)).unwrap();
    let listed = run_ok(Command::new("tar").arg("-tzf").arg(with(".tar.gz")));
    for part in ["usr/bin/tensorfs", "usr/sbin/mount.tensorfs", "usr/share/man/man8/tensorfs-mount.8"] {
        assert!(listed.lines().any(|line| line == part), "{listed}");
    }
    for (mode, name) in packed(with(".tar.gz")) {
        let expected: &[&str] = match &mode[..1] {
            "d" => &["drwxr-xr-x"],
            "l" => &["lrwxr-xr-x", "lrwxrwxrwx"],
            _ => &["-rwxr-xr-x", "-rw-r--r--"],
        };
        assert!(expected.contains(&&*mode), "{mode} {name}");
    }
    let system = room.at("system");
    run_ok(Command::new("debootstrap").args(["--variant=minbase", "bookworm"]).arg(&system).stdout(Stdio::null()));
    fs::copy(with(".deb"), system.join("tensorfs.deb")).unwrap();
    let script = r#"
        set -e
        mount --bind /dev "$1/dev"
        mount -t proc proc "$1/proc"
        exec chroot "$1" sh -ec '
            export DEBIAN_FRONTEND=noninteractive
            find / -xdev | sort > /before
            dpkg -i /tensorfs.deb
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
            dpkg -r tensorfs
            find / -xdev | grep -v -e ^/pool -e ^/var -e ^/before -e ^/mnt/tensors -e ^/after | sort > /after
            grep -v -e ^/var -e ^/before /before | diff - /after
            echo removed without a trace
        '
    "#;
    let output = run(Command::new("unshare").args(["--mount", "sh", "-c", script, "sh"]).arg(&system));
    let said = said(&output);
    assert!(output.status.success() && said.contains("removed without a trace"), "{said}");
}
