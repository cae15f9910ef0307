//! What the server logs, and where.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;

use nix::sys::stat::fstat;
use tensorfs_tests::{is_root, needs_mount, skip, wait_for_end, wait_until};

use super::{Room, kill, said};

/// logrotate gives the file another name, and tells the server.
#[test]
fn a_log_that_was_given_another_name_is_opened_again() {
    needs_mount!();
    let room = Room::mounted();
    let server = room.pid("pool");
    let first = room.log();
    let options = first.lines().find(|line| line.contains("options: ")).unwrap_or_else(|| panic!("{first}"));
    assert!(options.contains("tensorfs 0."), "{options}");
    fs::rename(room.at("server.log"), room.at("server.log.1")).unwrap();
    kill(server, libc::SIGHUP);
    wait_until("the log is there again", || room.at("server.log").exists() && room.log().contains("opened again"));
    for log in ["server.log", "server.log.1"] {
        let mode = fs::metadata(room.at(log)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640, "{log} {mode:o}");
    }
    room.ok(["umount", "mnt"]);
    assert!(room.log().contains("closed"), "{}", room.log());
    assert_eq!(fs::read_to_string(room.at("server.log.1")).unwrap(), first, "nothing comes behind that");
}

/// The lines of a keeper go to the same file: that a server died, and another one takes over.
#[test]
fn a_log_that_was_given_another_name_is_opened_again_by_keeper_and_server() {
    needs_mount!();
    if !is_root() {
        return skip("a_log_that_was_given_another_name_is_opened_again_by_keeper_and_server", "a keeper needs root");
    }
    let room = Room::with_pool();
    room.ok(["mount", "pool", "mnt", "--log", "server.log", "-o", "keeper"]);
    fs::rename(room.at("server.log"), room.at("server.log.1")).unwrap();
    let info: serde_json::Value = serde_json::from_str(&room.ok(["info", "--json", "mnt"])).unwrap();
    kill(info["keeper"]["pid"].as_i64().unwrap() as i32, libc::SIGHUP);
    let opened = || fs::read_to_string(room.at("server.log")).unwrap_or_default().matches("opened again").count();
    wait_until("both have the new one", || opened() >= 2);
    kill(info["pid"].as_i64().unwrap() as i32, libc::SIGKILL);
    wait_until("the keeper's line is in the new one", || room.log().contains("the server died"));
    room.ok(["umount", "mnt"]);
}

/// The thread that hears of signals would wait for somebody to read from it.
#[test]
fn a_log_whose_name_is_a_fifos_keeps_no_signal_waiting() {
    needs_mount!();
    let room = Room::mounted();
    let server = room.pid("pool");
    fs::rename(room.at("server.log"), room.at("server.log.1")).unwrap();
    nix::unistd::mkfifo(&room.at("server.log"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let logged = || fs::read_to_string(room.at("server.log.1")).unwrap();
    kill(server, libc::SIGHUP);
    kill(server, libc::SIGUSR1);
    wait_until("it has the log that it had, and hears signals", || logged().contains("of level DEBUG or worse"));
    kill(server, libc::SIGTERM);
    wait_until("it ends", || logged().contains("closed"));
    wait_for_end(server);
}

#[test]
fn the_level_of_a_log_changes_while_the_server_runs() {
    needs_mount!();
    let room = Room::mounted();
    let server = room.pid("pool");
    let has = |level: &str| room.log().contains(&format!("of level {level} or worse"));
    assert!(!room.log().contains(" DEBUG "), "{}", room.log());
    kill(server, libc::SIGUSR1);
    wait_until("it logs more", || has("DEBUG"));
    for level in ["INFO", "WARN", "ERROR"] {
        kill(server, libc::SIGUSR2);
        wait_until("it logs less", || has(level));
    }
    room.ok(["umount", "mnt"]);
    assert!(!room.log().contains("closed"), "{}", room.log());
}

/// systemd connects standard error with the journal, and says so.
#[test]
fn lines_for_the_journal_have_priorities() {
    needs_mount!();
    let room = Room::with_pool();
    let (reader, writer) = std::io::pipe().unwrap();
    let pipe = fstat(writer.as_fd()).unwrap();
    let mut command = room.command();
    command.args(["mount", "-f", "pool", "mnt"]).env("JOURNAL_STREAM", format!("{}:{}", pipe.st_dev, pipe.st_ino));
    let mut server = command.stderr(Stdio::from(writer)).spawn().unwrap();
    // Nobody but the server has the pipe's other end.
    drop(command);
    let mut lines = BufReader::new(reader).lines().map(|line| line.unwrap());
    let mounted = lines.find(|line| line.contains("mounted at")).unwrap();
    assert!(mounted.starts_with("<6>/"), "{mounted}");
    kill(server.id() as i32, libc::SIGTERM);
    let rest: Vec<String> = lines.collect();
    assert!(rest.iter().all(|line| line.starts_with('<')), "{rest:?}");
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

/// As the units start it: the keeper's lines have one, too, and those of the server that takes over, and of the program
/// that is run when damage is found. Before all others is said what was asked for.
#[test]
fn lines_of_keeper_and_servers_have_priorities_in_the_journal() {
    needs_mount!();
    if !is_root() {
        return skip("cli::lines_of_keeper_and_servers_have_priorities_in_the_journal", "a keeper needs root");
    }
    let room = Room::with_pool();
    let (reader, writer) = std::io::pipe().unwrap();
    let pipe = fstat(writer.as_fd()).unwrap();
    let mut command = room.command();
    command.args(["mount", "-f", "pool", "mnt", "-o", "keeper,commit=0.5,durability=write,noexec"]);
    command.env("JOURNAL_STREAM", format!("{}:{}", pipe.st_dev, pipe.st_ino));
    let mut keeper = command.stderr(Stdio::from(writer)).spawn().unwrap();
    drop(command);
    let mut lines = BufReader::new(reader).lines().map(|line| line.unwrap());
    let mut before = Vec::new();
    let mut until = |what: &str, before: &mut Vec<String>| {
        let found = lines.by_ref().find(|line| {
            before.push(line.clone());
            line.contains(what)
        });
        assert!(found.is_some(), "{what}: {before:#?}");
    };
    until("mounted at", &mut before);
    let begins = before.iter().find(|line| line.contains("options: ")).unwrap_or_else(|| panic!("{before:#?}"));
    for option in ["keeper", "commit=0.5", "durability=write", "noexec"] {
        assert!(begins.contains(option), "{option}: {begins}");
    }
    kill(room.pid("mnt"), libc::SIGKILL);
    until("the server died", &mut before);
    until("mounted at", &mut before);
    kill(keeper.id() as i32, libc::SIGTERM);
    before.extend(lines);
    assert_eq!(keeper.wait().unwrap().code(), Some(0));
    let levels = ["<3>", "<4>", "<5>", "<6>"];
    assert!(before.iter().all(|line| levels.iter().any(|level| line.starts_with(level))), "{before:#?}");
}

/// A start that fails says so in the journal's way, too.
#[test]
fn a_start_that_fails_has_a_priority_in_the_journal() {
    needs_mount!();
    let room = Room::new();
    for options in ["", "keeper"] {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let pipe = fstat(writer.as_fd()).unwrap();
        let mut command = room.command();
        command.args(["mount", "-f", "none", "mnt"]);
        command.args((!options.is_empty()).then_some(["-o", options]).into_iter().flatten());
        command.env("JOURNAL_STREAM", format!("{}:{}", pipe.st_dev, pipe.st_ino)).stderr(Stdio::from(writer));
        let status = command.status().unwrap();
        drop(command);
        let said = std::io::read_to_string(&mut reader).unwrap();
        assert!(!status.success() && said.lines().all(|line| line.starts_with("<3>")), "{options}: {said:?}");
    }
}

#[test]
fn who_mounts_hears_that_there_is_no_syslog() {
    needs_mount!();
    let room = Room::with_pool();
    let output = room.run(["mount", "pool", "mnt"]);
    assert!(output.status.success(), "{}", said(&output));
    let heard = UnixDatagram::unbound().unwrap().connect("/dev/log").is_ok();
    let note = String::from_utf8_lossy(&output.stderr).contains("there is no syslog");
    assert_eq!(note, !heard, "{}", said(&output));
    room.ok(["umount", "mnt"]);
    if is_root() {
        let output = room.run(["mount", "pool", "mnt", "-o", "keeper"]);
        assert_eq!(String::from_utf8_lossy(&output.stderr).contains("there is no syslog"), !heard, "{}", said(&output));
        room.ok(["umount", "mnt"]);
    }
    assert_eq!(said(&room.run(["mount", "pool", "mnt", "--log", "server.log"])), "exit status: 0\n");
}
