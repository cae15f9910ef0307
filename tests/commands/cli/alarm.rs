//! `tensorfs alarm`, and the mount option `on-damage`: damage tells somebody.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use tensorfs_tests::{
    Call, HostCalls, Pattern, Rule, is_root, needs_mount, run_ok, skip, unmounting, wait_for_end, wait_until,
    write_program,
};

use super::mount::ReadOnlyBind;
use super::{Room, kill, said, servers_of};

/// A program that writes down what it is told; it fails the first time.
fn teller(room: &Room) -> String {
    let (program, told) = (room.at("tell"), room.at("told"));
    let script = format!(
        "#!/bin/sh\nif [ ! -e {0}.failed ]; then touch {0}.failed; exit 1; fi\n\
         {{ echo \"$1 $TENSORFS_MOUNTPOINT $TENSORFS_POOL\"; cat; echo end; }} >> {0}\n",
        told.display()
    );
    write_program(&program, script.as_bytes());
    program.to_str().unwrap().to_owned()
}

/// The server has given up its rights, and could run nothing.
#[test]
fn damage_that_is_found_is_told_once_by_whoever_mounted() {
    needs_mount!();
    let room = Room::with_pool();
    let program = teller(&room);
    room.mount("pool", "mnt");
    let file = Pattern(2).bytes(0, 1 << 20);
    fs::write(room.at("mnt/file"), &file).unwrap();
    room.ok(["seal", "mnt/file"]);
    room.ok(["umount", "mnt"]);
    spoil(&room, file);
    room.ok(["mount", "pool", "mnt", "--log", "server.log", "-o", &format!("keeper,on-damage={program}")]);
    // One that is just being executed has no command line yet, and a child of its that is not has the same.
    wait_until("it was started with the mount", || alarms(&room).len() == 1);
    // One that asks more often than each ten seconds.
    let mut often = {
        let _unmounting = unmounting();
        room.command().args(["alarm", "--every", "0.05", "--run", &program, "mnt"]).spawn().unwrap()
    };
    let told = || fs::read_to_string(room.at("told")).unwrap_or_default();
    assert_eq!(told(), "", "nobody has looked");
    assert_eq!(room.run(["scrub", "mnt"]).status.code(), Some(4));
    wait_until("it is told, though the program failed at first", || told().contains("end\n"));
    // Both tell of it, each once.
    wait_until("so is the one of the mount", || told().matches("end\n").count() == 2);
    let (mnt, pool) = (room.at("mnt"), room.at("pool"));
    let first = format!("{0} {0} {1}\ndamage: /file: ", mnt.display(), pool.display());
    assert!(told().starts_with(&first), "{}", told());
    room.ok(["umount", "mnt"]);
    assert!(often.wait().unwrap().success());
    wait_until("it ends with the mount", || alarms(&room).is_empty());
    assert_eq!(told().matches("end\n").count(), 2, "{}", told());
    // The one of the mount says so where the server does.
    let said = format!("{}: {program}: was told of damage (1 line), and ended with status 0", mnt.display());
    wait_until("it is in the log", || room.log().contains(&said));
    assert!(servers_of(room.dir.path()).is_empty());
}

/// Another byte in the segment that has these bytes.
fn spoil(room: &Room, mut bytes: Vec<u8>) {
    let shards = fs::read_dir(room.at("pool/segments")).unwrap();
    let segments = shards.flat_map(|dir| fs::read_dir(dir.unwrap().path()).unwrap());
    let segment = segments.map(|entry| entry.unwrap().path()).find(|path| fs::read(path).unwrap() == bytes).unwrap();
    bytes[500_000] ^= 1;
    fs::write(segment, bytes).unwrap();
}

/// Alarms of the room's mounts that a mount has started.
fn alarms(room: &Room) -> Vec<String> {
    let lines =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
    let named = room.at("mnt").display().to_string();
    lines.filter(|line| line.contains("\0alarm\0--detached\0") && line.contains(&named)).collect()
}

#[test]
fn a_program_is_named_by_its_whole_path() {
    needs_mount!();
    let room = Room::with_pool();
    let line = room.fails(["mount", "pool", "mnt", "-o", "on-damage=tell"]);
    assert!(line.contains("must be a path that begins with /"), "{line}");
}

/// Nor where it logs, if it was told of neither.
#[test]
fn a_remount_does_not_change_who_is_told() {
    needs_mount!();
    if !is_root() {
        return;
    }
    let room = Room::with_pool();
    room.ok(["mount", "--create", "pool", "mnt"]);
    let program = teller(&room);
    for (name, option) in [("on-damage", format!("on-damage={program}")), ("log", "log=/none".to_owned())] {
        let line = room.fails(["mount", "pool", "mnt", "-o", &format!("remount,{option}")]);
        assert!(line.contains(&format!("a remount cannot change: {name};")), "{line}");
    }
    room.ok(["umount", "mnt"]);
    // In quotes it may have commas.
    let option = format!("keeper,on-damage=\"{program},ro\"");
    room.ok(["mount", "pool", "mnt", "--log", "server.log", "-o", &option]);
    room.ok(["mount", "pool", "mnt", "-o", &format!("remount,{option}")]);
    fs::write(room.at("mnt/file"), "text").unwrap();
    room.ok(["umount", "mnt"]);
}

#[test]
fn an_alarm_says_where_nothing_is_mounted_and_what_it_cannot_run() {
    needs_mount!();
    let room = Room::mounted();
    let program = teller(&room);
    fs::create_dir(room.at("mnt/below")).unwrap();
    let line = room.fails(["alarm", "--run", &program, "mnt/below"]);
    assert!(line.contains("inside a mount, not its root"), "{line}");
    let none = room.at("none").to_str().unwrap().to_owned();
    assert_eq!(room.fails(["alarm", "--run", &none, "mnt"]), format!("{none}: No such file or directory"));
    room.ok(["umount", "mnt"]);
    let mut waits = {
        let _unmounting = unmounting();
        let mut command = room.command();
        command.args(["alarm", "--every", "0.05", "--run", &program, "mnt"]).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut line = String::new();
    BufReader::new(waits.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("no tensorfs is mounted here; waiting"), "{line}");
    waits.kill().unwrap();
    waits.wait().unwrap();
    // A mount is more than the program that is told of it.
    let option = format!("on-damage={none}");
    let output = room.run(["mount", "pool", "mnt", "--log", "server.log", "-o", &option]);
    assert!(output.status.success() && said(&output).contains("option \"on-damage\": "), "{}", said(&output));
    if is_root() {
        let same = room.run(["mount", "pool", "mnt", "-o", &format!("remount,{option}")]);
        assert!(same.status.success() && !said(&same).contains("on-damage"), "{}", said(&same));
        let other = room.run(["mount", "pool", "mnt", "-o", &format!("remount,on-damage={program}")]);
        let expected = "a remount cannot change: on-damage";
        assert!(!other.status.success() && said(&other).contains(expected), "{}", said(&other));
    }
    room.ok(["umount", "mnt"]);
}

/// A pool whose file has lost its end on the host, and is mounted again: nobody has scrubbed it.
fn with_lost_bytes(options: &[&str]) -> Room {
    let room = Room::mounted();
    fs::write(room.at("mnt/lost"), vec![7; 100_000]).unwrap();
    room.ok(["sync", "mnt"]);
    kill(room.pid("mnt"), libc::SIGKILL);
    let shards = fs::read_dir(room.at("pool/segments")).unwrap();
    for segment in shards.flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap()) {
        let segment = File::options().write(true).open(segment.unwrap().path()).unwrap();
        if segment.metadata().unwrap().len() == 100_000 {
            segment.set_len(60_000).unwrap();
        }
    }
    room.ok([&["mount", "pool", "mnt", "--log", "server.log"], options].concat());
    room
}

/// An alarm that asks often, and logs to `alarm.log`.
fn often(room: &Room, program: &str, more: &[&str]) -> Child {
    let _unmounting = unmounting();
    let mut command = room.command();
    command.args(["alarm", "--every", "0.05", "--log", "alarm.log", "--run", program]).args(more).arg("mnt");
    command.spawn().unwrap()
}

fn log_of(room: &Room) -> String {
    fs::read_to_string(room.at("alarm.log")).unwrap_or_default()
}

/// Ends with the room, if it has not by itself.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// It neither reads nor ends at SIGTERM, and what it has started does not, either: it is ended all the same, and told
/// again, with what has come meanwhile.
#[test]
fn a_program_that_hangs_is_ended_and_the_next_damage_is_told() {
    needs_mount!();
    let room = with_lost_bytes(&[]);
    let (program, told, pids) = (room.at("tell"), room.at("told"), room.at("pids"));
    let script = format!(
        "#!/bin/sh\necho here I am; echo and here >&2\nif [ ! -e {told}.go ]; then trap '' TERM; sleep 1000 & \
         echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait; wait; fi\n{{ cat; echo end; }} >> {told}\n",
        told = told.display(),
        pids = pids.display()
    );
    write_program(&program, script.as_bytes());
    let told = || fs::read_to_string(room.at("told")).unwrap_or_default();
    let _alarm = Ending(often(&room, program.to_str().unwrap(), &["--timeout", "0.3"]));
    wait_until("it hangs", || pids.exists());
    let started: Vec<i32> =
        fs::read_to_string(&pids).unwrap().split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    wait_until("it is ended", || log_of(&room).contains("tell: it did not end within 0.3 s, and was killed"));
    started.into_iter().for_each(wait_for_end);
    assert!(log_of(&room).contains("tell: says: here I am\n") && log_of(&room).contains("tell: says: and here\n"));
    assert_eq!(told(), "");
    // The log has another name by now, and there is more damage.
    fs::rename(room.at("alarm.log"), room.at("alarm.log.1")).unwrap();
    let file = Pattern(2).bytes(0, 1 << 20);
    fs::write(room.at("mnt/file"), &file).unwrap();
    room.ok(["seal", "mnt/file"]);
    spoil(&room, file);
    assert_eq!(room.run(["scrub", "mnt"]).status.code(), Some(4));
    fs::write(room.at("told.go"), "").unwrap();
    wait_until("it is told of all", || told().contains("damage: /lost: may have lost bytes\n"));
    wait_until("of the next, too", || told().contains("damage: /file: "));
    wait_until("it is said", || log_of(&room).contains("and ended with status 0"));
    let all = told();
    assert_eq!(all.matches("/lost").count(), 1, "{all}");
    room.ok(["umount", "mnt"]);
}

/// What it says is bounded, whatever it does with what it is told; and nobody waits for what it has started.
#[test]
fn what_a_program_says_is_in_the_log_and_not_too_much() {
    needs_mount!();
    let room = with_lost_bytes(&[]);
    let program = room.at("tell");
    let script = "#!/bin/sh\nexec 0<&-\n[ -e started ] || { sleep 1000 & echo $! > started; }\n\
                  yes 0123456789 | head -c 300000\nexit 3\n";
    write_program(&program, script.as_bytes());
    let mut alarm = Ending(often(&room, program.to_str().unwrap(), &[]));
    wait_until("it failed", || log_of(&room).contains("tell: it failed: exit status: 3"));
    let log = log_of(&room);
    let before = log.split("it failed").next().unwrap();
    let said = before.matches("0123456789").count();
    assert!(said == 20 && before.contains("tell: says more than 20 lines"), "{log}");
    let started: i32 = fs::read_to_string(room.at("started")).unwrap().trim().parse().unwrap();
    // Where it fails it is told again.
    write_program(&room.at("new"), b"#!/bin/sh\ncat > all\n");
    fs::rename(room.at("new"), &program).unwrap();
    wait_until("it is told", || log_of(&room).contains("was told of damage (1 line), and ended with status 0"));
    assert_eq!(fs::read_to_string(room.at("all")).unwrap(), "damage: /lost: may have lost bytes\n");
    assert!(Path::new(&format!("/proc/{started}")).exists());
    kill(started, libc::SIGKILL);
    room.ok(["umount", "mnt"]);
    assert!(alarm.0.wait().unwrap().success());
}

/// But not of one that is on a filesystem that takes none, of which there is other news.
#[test]
fn a_pool_that_takes_no_changes_any_more_is_told() {
    needs_mount!();
    let room = Room::with_pool();
    let program = room.at("tell");
    write_program(&program, b"#!/bin/sh\ncat > new && cat new >> all && rm new\n");
    let all = || fs::read_to_string(room.at("all")).unwrap_or_default();
    let calls = HostCalls::new();
    calls.set_pool(&room.at("pool"));
    {
        let _unmounting = unmounting();
        let mut mount = room.command();
        mount.args(["mount", "pool", "mnt", "--log", "server.log"]);
        calls.preload(&mut mount);
        run_ok(&mut mount);
    }
    let file = Pattern(2).bytes(0, 1 << 20);
    fs::write(room.at("mnt/file"), &file).unwrap();
    room.ok(["seal", "mnt/file"]);
    let alarm = Ending(often(&room, program.to_str().unwrap(), &[]));
    let failing = calls.add(Rule::of_any([Call::Fdatasync, Call::Fsync]).on("/log").error(libc::EIO));
    fs::create_dir(room.at("mnt/d")).unwrap();
    room.run(["sync", "mnt"]);
    wait_until("it is told", || all().contains("the pool takes no changes: "));
    assert_eq!(all().lines().count(), 1, "{}", all());
    drop((alarm, failing));
    room.run(["umount", "mnt"]);
    wait_until("the server has ended", || servers_of(room.dir.path()).is_empty());
    if !is_root() {
        return skip("cli::a_pool_that_takes_no_changes_any_more_is_told", "only root makes a read-only mount");
    }
    room.mount("pool", "mnt");
    room.ok(["umount", "mnt"]);
    spoil(&room, file);
    fs::remove_file(room.at("all")).unwrap();
    fs::create_dir(room.at("ro")).unwrap();
    let host = ReadOnlyBind::new(&room.at("pool"), &room.at("ro"));
    room.ok(["mount", "ro", "mnt", "-o", "ro", "--log", "server.log"]);
    assert_eq!(room.run(["scrub", "mnt"]).status.code(), Some(4));
    let alarm = Ending(often(&room, program.to_str().unwrap(), &[]));
    wait_until("it is told", || all().ends_with('\n'));
    assert!(all().lines().count() == 1 && all().starts_with("damage: /file: "), "{}", all());
    drop(alarm);
    room.ok(["umount", "mnt"]);
    drop(host);
}
