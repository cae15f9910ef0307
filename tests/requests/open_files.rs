//! What is asked of the host does not grow with the files that are open, nor with those that are due.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};

use tensorfs_tests::{Call, HostCalls, Mount, Passthrough, Rule, Setup, on_mounts};

on_mounts!(
    telling_of_the_pool_asks_for_no_files_but_those_that_the_kernel_writes,
    telling_of_the_pool_takes_as_long_however_many_files_there_are,
    a_sync_asks_no_more_of_the_host_the_more_files_are_open,
    a_commit_of_many_files_waits_for_nothing_else_on_the_host,
);

const TIMES: u64 = 10;

/// How much the server asks of its host while something is done ten times beside so many writers, of each call; the
/// first of them does it.
fn asked(setup: &Setup, writers: usize, act: fn(&Mount, &File, u64)) -> Vec<(Call, u64)> {
    let calls = HostCalls::new();
    let mount = setup.clone().mount_with(["--commit", "3600"]).host_calls(&calls).mount();
    let open = |n| {
        let file = File::create_new(mount.at(format!("open-{n}"))).unwrap();
        file.write_all_at(&[1; 50_000], 0).unwrap();
        file
    };
    let writers: Vec<File> = (0..writers).map(open).collect();
    mount.sync();
    // All of them are as something else may be found to be.
    writers.iter().for_each(|file| file.write_all_at(&[2; 100], 0).unwrap());
    // What is asked once is asked now.
    act(&mount, &writers[0], 0);
    let counted: Vec<_> = Call::ALL.into_iter().map(|call| (call, calls.add(Rule::of(call)))).collect();
    (1..=TIMES).for_each(|n| act(&mount, &writers[0], n));
    counted.iter().map(|(call, counted)| (*call, counted.arrived())).collect()
}

/// Beside 500 writers as much is asked as beside 10, and of each call so much for each writer.
fn as_much_with_many_writers(setup: Setup, of_each: fn(Call) -> u64, act: fn(&Mount, &File, u64)) -> Vec<(Call, u64)> {
    const MANY: u64 = 500;
    let (few, many) = (asked(&setup, 10, act), asked(&setup, MANY as usize, act));
    for ((call, few), (_, many)) in few.iter().zip(&many) {
        // Whatever the background does meanwhile may be among them, but not for each of the files.
        let most = few + 5 * TIMES + of_each(*call) * MANY * TIMES;
        assert!(*many <= most, "{call:?}: {few} times with 10 writers, and {many} times with {MANY}");
    }
    many
}

/// How much those take which the kernel writes only the host knows, who is asked once by `info` and once by `metrics`.
fn telling_of_the_pool_asks_for_no_files_but_those_that_the_kernel_writes(setup: Setup) {
    if setup.mount_is_plain() {
        return;
    }
    let of_each: fn(Call) -> u64 = match setup.passthrough() {
        Passthrough::On => |call| 2 * u64::from(call == Call::Fstat),
        Passthrough::Off => |_| 0,
    };
    as_much_with_many_writers(setup, of_each, |mount, _, _| {
        assert!(fs::read_to_string(mount.at(".tensorfs/info")).unwrap().contains("open"));
        assert!(!fs::read_to_string(mount.at(".tensorfs/metrics")).unwrap().is_empty());
    });
}

/// No file is looked at, either. Time of a processor is compared with the same server's, so that nothing depends on the
/// machine.
fn telling_of_the_pool_takes_as_long_however_many_files_there_are(setup: Setup) {
    const FILES: usize = 40_000;
    let mount = setup.mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    let least = |name: &str| {
        let look = || {
            let before = processor_time(&mount);
            (0..5).for_each(|_| assert!(!fs::read_to_string(mount.at(name)).unwrap().is_empty()));
            processor_time(&mount) - before
        };
        // What the server does in the background meanwhile is not in the least of many.
        (0..20).map(|_| look()).min().unwrap()
    };
    let names = [".tensorfs/info", ".tensorfs/metrics"];
    let few = names.map(least);
    let yardstick = few[0];
    for dir in 0..40 {
        let dir = mount.at(dir.to_string());
        fs::create_dir(&dir).unwrap();
        (0..FILES / 40).for_each(|n| symlink("nowhere", dir.join(n.to_string())).unwrap());
    }
    mount.sync();
    let many = names.map(least);
    for (name, (few, many)) in names.iter().zip(few.iter().zip(&many)) {
        // A walk would take some five times of what `info` takes in an empty pool.
        assert!(
            *many < few + 2 * yardstick,
            "{name}: {few} ns of the processor in an empty pool, {many} with {FILES} files"
        );
    }
}

/// Nanoseconds that all threads of the server had a processor for.
fn processor_time(mount: &Mount) -> u64 {
    let threads = fs::read_dir(format!("/proc/{}/task", mount.pid().unwrap())).unwrap();
    let of = |thread: std::io::Result<fs::DirEntry>| {
        let said = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        said.split(' ').next()?.parse::<u64>().ok()
    };
    threads.filter_map(of).sum()
}

/// Proves W1.
fn a_sync_asks_no_more_of_the_host_the_more_files_are_open(setup: Setup) {
    if setup.mount_is_plain() {
        return;
    }
    let asked = as_much_with_many_writers(
        setup,
        |_| 0,
        |_, file, n| {
            file.write_all_at(&[3; 100], n * 100).unwrap();
            file.sync_all().unwrap();
        },
    );
    let synced = asked.iter().find(|(call, _)| *call == Call::Fdatasync).unwrap();
    assert!(synced.1 >= TIMES, "{asked:?}");
}

/// However many of its files are due: `syncfs` would wait for whatever others have written to that disk.
///
/// Proves W1.
fn a_commit_of_many_files_waits_for_nothing_else_on_the_host(setup: Setup) {
    const FILES: u64 = 200;
    if setup.mount_is_plain() {
        return;
    }
    let calls = HostCalls::new();
    let mount = setup.mount_with(["--commit", "3600"]).host_calls(&calls).mount();
    let dir = mount.at("d");
    fs::create_dir(&dir).unwrap();
    let all = calls.add(Rule::of(Call::Syncfs));
    let each = calls.add(Rule::of(Call::Fdatasync).on("/segments/"));
    for turn in 1..=2 {
        // Too large for the log.
        (0..FILES).for_each(|n| fs::write(dir.join(format!("{turn}-{n}")), [7; 50_000]).unwrap());
        if turn == 1 {
            File::open(&dir).unwrap().sync_all().unwrap();
        } else {
            mount.sync();
        }
        assert_eq!((all.arrived(), each.arrived() >= turn * FILES), (0, true), "{} synced", each.arrived());
    }
}
