//! What a remount makes of each option: it changes it, refuses it in one line, or says that it stays; none is ignored.

use std::fs;
use std::process::Output;

use tensorfs_tests::{Mount, Passthrough, Setup, is_root, on_mounts};

on_mounts!(each_option_is_changed_refused_or_said_to_stay);

#[derive(Clone, Copy, PartialEq, Debug)]
enum Comes {
    /// The kernel has it from then on, and the server goes on.
    Kernel,
    /// Another server has it.
    Exchanged,
    Refused,
    /// It stays, and that is said.
    Told,
    /// It is so already, or of no meaning for what is mounted.
    Nothing,
}

use Comes::{Exchanged, Kernel, Nothing, Refused, Told};

/// Each option: by what name it is refused, with a value that is not the mount's; and what comes of it with a keeper,
/// and without one.
const OPTIONS: &[(&str, &str, Comes, Comes)] = &[
    ("ro", "ro", Kernel, Kernel),
    ("noexec", "noexec", Kernel, Kernel),
    ("nosymfollow", "nosymfollow", Kernel, Kernel),
    ("noatime", "noatime", Refused, Refused),
    ("nodiratime", "nodiratime", Refused, Refused),
    ("relatime", "relatime", Nothing, Nothing),
    ("strictatime", "strictatime", Nothing, Nothing),
    ("allow_other", "allow_other", Nothing, Nothing),
    ("create", "create", Nothing, Nothing),
    ("size", "size=1G", Told, Told),
    ("layout", "layout=other", Refused, Refused),
    ("durability", "durability=write", Exchanged, Told),
    ("commit", "commit=7", Exchanged, Refused),
    ("replace", "replace=7", Exchanged, Refused),
    ("latency", "latency=off", Exchanged, Refused),
    ("threads", "threads=3", Exchanged, Refused),
    ("names", "names=100M", Exchanged, Told),
    ("evict-at", "evict-at=90", Exchanged, Refused),
    ("follow", "follow=7", Refused, Refused),
    ("carry", "carry=7", Refused, Refused),
    ("passthrough", "passthrough=OTHER", Refused, Refused),
    ("log", "log=/var/log/other", Refused, Refused),
    ("on-damage", "on-damage=/bin/true", Refused, Refused),
    ("watchdog", "watchdog=60", Refused, Refused),
    ("privileged", "privileged", Refused, Refused),
    ("keeper", "KEEPER", Refused, Refused),
];

/// The names in the table of mount options of OPERATIONS.md.
fn documented() -> Vec<String> {
    let text = include_str!("../../docs/OPERATIONS.md");
    let table = text.split("| option | in `-o` | meaning |").nth(1).unwrap();
    let lines = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let column = lines.map(|line| line.split(" | ").nth(1).unwrap().trim());
    column.flat_map(|names| names.split('`').skip(1).step_by(2)).map(|name| name.replace('=', "")).collect()
}

fn remount(mount: &Mount, options: &str) -> Output {
    let mut command = mount.program();
    command.args(["mount", "-o", &format!("remount,{options}")]).arg(mount.pool()).arg(mount.path());
    command.output().unwrap()
}

fn flags(mount: &Mount) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(mount.path().to_str().unwrap())).unwrap();
    line.split(' ').nth(5).unwrap().split(',').map(str::to_owned).collect()
}

/// Proves K7.
fn each_option_is_changed_refused_or_said_to_stay(setup: Setup) {
    if !is_root() {
        return setup.skip("only root can remount");
    }
    let documented = documented();
    assert!(documented.len() >= 15, "{documented:?}");
    for name in &documented {
        assert!(OPTIONS.iter().any(|(known, ..)| known == name), "{name} is in the table of options, and not here");
    }
    let other = if setup.passthrough() == Passthrough::On { "off" } else { "on" };
    for kept in [true, false] {
        let setup = if kept { setup.clone().mount_with(["-o", "keeper"]) } else { setup.clone() };
        let mut mount = setup.mount();
        if mount.is_plain() {
            return;
        }
        for (name, option, with, without) in OPTIONS {
            let option = option.replace("OTHER", other).replace("KEEPER", if kept { "nokeeper" } else { "keeper" });
            let name = if option == "nokeeper" { &*option } else { name };
            let (before, comes) = (mount.info(), if kept { *with } else { *without });
            let done = remount(&mount, &option);
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            let info = mount.info();
            let what = format!("{option}, keeper: {kept}: {said}");
            assert_eq!(done.status.success(), comes != Refused, "{what}");
            assert_eq!(said.lines().count(), usize::from([Refused, Told].contains(&comes)), "{what}");
            match comes {
                Refused => assert!(said.contains(&format!("a remount cannot change: {name}; ")), "{what}"),
                Told => assert!(said.ends_with(&format!("not changed by a remount: {name}\n")), "{what}"),
                Kernel => {
                    assert!(flags(&mount).contains(&option), "{what}");
                    assert!(remount(&mount, "rw,exec,symfollow").status.success(), "{what}");
                    assert!(!flags(&mount).contains(&option), "{what}");
                }
                Exchanged | Nothing => {}
            }
            assert_eq!(info["pid"] != before["pid"], comes == Exchanged, "{what}");
            // Asked for again, it is so already.
            if comes == Exchanged {
                assert!(remount(&mount, &option).stderr.is_empty(), "{what}");
                assert_eq!(mount.info()["pid"], info["pid"], "{what}");
            }
        }
        mount.adopt();
        mount.umount();
    }
}
