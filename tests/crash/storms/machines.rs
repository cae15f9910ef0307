//! Crashes of a whole machine: a QEMU guest with emulated persistent memory that is killed while it writes, and a block
//! device of a guest as power losses would have left it at hundreds of moments. See tests/crash/vm/README.md.
//!
//! Skipped unless `tests/crash/vm/prepare` was run before, which downloads a kernel.
//!
//! | variable | meaning |
//! |---|---|
//! | `TENSORFS_VM` | what `prepare` made (default: `vm` in cargo's target directory) |
//! | `TENSORFS_VM_CRASHES` | how often the guest with persistent memory is killed (default 3) |
//! | `TENSORFS_VM_POINTS` | moments of a power loss, on each of two runs (default 15); `all` for each flush |
//! | `TENSORFS_VM_SEED` | which storms (default 1) |

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tensorfs_tests::random::Random;
use tensorfs_tests::storm::log_writes::WriteLog;
use tensorfs_tests::storm::{self, Crash, Durability, Ledger, Plan, Writer};
use tensorfs_tests::{is_root, run, run_ok, scratch, skip, tensorfs};

use crate::guest::{BEGIN, Guest, MEMORY, prepared};

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: {text:?}")))
}

#[test]
fn persistent_memory_is_recognised_in_a_guest_and_mounted_from_fstab() {
    let prepared = match prepared() {
        Ok(prepared) => prepared,
        Err(reason) => return skip("machines::persistent_memory", &reason),
    };
    let script = format!(
        r#"{BEGIN}{MEMORY}
tensorfs create /pool/p >/share/create
ln -s /bin/tensorfs /sbin/mount.tensorfs
echo '/pool/p /mnt tensorfs noauto,nofail 0 0' >/etc/fstab
/sbin/mount /mnt
echo $? >/share/mounted
tensorfs info --json /mnt >/share/info
echo "a file" >/mnt/f
/sbin/mount -o remount,ro /mnt && ! echo x >/mnt/x && /sbin/mount -o remount,rw /mnt
echo $? >/share/remounted
tensorfs-test-storm map-sync /pool/native >/share/sync-native
tensorfs-test-storm map-sync /mnt/f2 >/share/sync-mounted
/sbin/umount /mnt
echo $? >/share/unmounted
tensorfs check --data --json /pool/p >/share/check
echo $? >/share/checked
tensorfs info --json /pool/p >/share/closed
"#
    );
    let guest = Guest::new(prepared, &script).with_memory();
    guest.boot().wait();
    let read = |name: &str| guest.read(name).trim().to_owned();
    let console = guest.console();
    assert!(read("create").contains("domain dax"), "{}\n{console}", read("create"));
    assert_eq!((&*read("mounted"), &*read("unmounted"), &*read("checked")), ("0", "0", "0"), "{console}");
    assert_eq!(read("remounted"), "0", "{console}");
    let json = |name: &str| -> Value {
        serde_json::from_str(&read(name)).unwrap_or_else(|e| panic!("{name}: {e}\n{console}"))
    };
    let info = json("info");
    assert_eq!((&info["domain"], &info["durability"]), (&"dax".into(), &"close".into()), "{info}");
    assert_eq!(info["passthrough"], true, "{info}");
    let closed = json("closed");
    assert_eq!((&closed["domain"], &closed["state"]), (&"dax".into(), &"clean".into()), "{closed}");
    assert_eq!(closed["files"], 2, "{closed}");
    // The log is kept with cache lines because this is granted; a mapping of a file of the mount is not.
    assert_eq!((&*read("sync-native"), &*read("sync-mounted")), ("granted", "error 95"));
}

#[test]
fn a_kernel_that_crashes_on_persistent_memory_keeps_every_promise() {
    let prepared = match prepared() {
        Ok(prepared) => prepared,
        Err(reason) => return skip("machines::kernel_crashes", &reason),
    };
    let script = format!(
        r#"{BEGIN}{MEMORY}
if [ ! -e /share/made ]; then
    tensorfs create /pool/p || exit 1
    touch /share/made
fi
. /share/settings
mounted() {{
    tensorfs mount /pool/p /mnt --log /share/log --commit 0.2 --passthrough "$passthrough" --durability "$durability"
}}
mounted || exit 1
tensorfs info --json /mnt >/share/info
if [ -d /share/last ]; then
    tensorfs-test-storm check power-loss "$last" /mnt /share/last >/share/verdict
    tensorfs umount /mnt || exit 1
    tensorfs check --data /pool/p >/share/check
    echo $? >/share/checked
    mounted || exit 1
    tensorfs-test-storm check power-loss "$last" /mnt /share/last >>/share/verdict
    rm -rf /mnt/*
fi
for seed in $seeds; do
    tensorfs-test-storm write $seed /mnt /share/ledgers/ledger-$seed 1000000 &
done
echo >/share/ready
wait
"#
    );
    let guest = Guest::new(prepared, &script).with_memory();
    let crashes = from_environment("TENSORFS_VM_CRASHES", 3);
    let seed = from_environment("TENSORFS_VM_SEED", 1);
    let mut random = Random::new(seed);
    let mut last = "fsync";
    let mut verdicts = Vec::new();
    for round in 0..=crashes {
        let durability = random.pick(&Durability::ALL).word();
        let passthrough = random.pick(&["on", "on", "off"]);
        let first = (seed << 16 | round) << 4;
        let seeds: Vec<u64> = (0..if round == crashes { 0 } else { 2 + random.below(3) }).map(|n| first + n).collect();
        let words: Vec<String> = seeds.iter().map(u64::to_string).collect();
        let settings =
            format!("durability={durability}\npassthrough={passthrough}\nlast={last}\nseeds='{}'\n", words.join(" "));
        for name in ["ready", "verdict", "check", "checked", "info", "log"] {
            let _ = std::fs::remove_file(guest.share().join(name));
        }
        std::fs::write(guest.share().join("settings"), settings).unwrap();
        let mut qemu = guest.boot();
        let ledger = |seed: &u64| guest.share().join(format!("ledgers/ledger-{seed}"));
        let under_way = || {
            let begun = |seed: &u64| std::fs::metadata(ledger(seed)).is_ok_and(|meta| meta.len() > 0);
            guest.share().join("ready").exists() && seeds.iter().all(begun)
        };
        while !under_way() && !qemu.has_ended() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let story = || format!("round {round}: {}\n{}\n{}", guest.read("settings"), guest.console(), guest.read("log"));
        if round > 0 {
            let verdict = guest.read("verdict");
            assert_eq!(verdict.matches(" undone, ").count(), 2, "{verdict}\n{}", story());
            assert_eq!(guest.read("checked").trim(), "0", "{}\n{}", guest.read("check"), story());
            let info: Value = serde_json::from_str(&guest.read("info")).unwrap_or_else(|e| panic!("{e}: {}", story()));
            assert_eq!(info["domain"], "dax", "{info}");
            assert_eq!(info["recovery"]["kind"], "power-loss", "{info}");
            assert_eq!(info["damaged_files"], serde_json::json!([]), "{info}\n{}", story());
            assert_eq!(info["read_only"], Value::Null, "{info}");
            let verdict = verdict.lines().next().unwrap_or_default().to_owned();
            eprintln!("crash {round}, durability {last}: {verdict}");
            verdicts.push(verdict);
        }
        if round == crashes {
            qemu.wait();
            break;
        }
        assert!(!qemu.has_ended(), "the guest ended of itself: {}", story());
        let longest = 128 << random.below(7);
        std::thread::sleep(Duration::from_millis(random.below(longest)));
        qemu.kill();
        let (ledgers, old) = (guest.share().join("ledgers"), guest.share().join("last"));
        let _ = std::fs::remove_dir_all(&old);
        std::fs::rename(&ledgers, &old).unwrap();
        std::fs::create_dir(&ledgers).unwrap();
        last = durability;
    }
    assert_eq!(verdicts.len() as u64, crashes);
}

/// A directory on an image, mounted through a loop device for as long as this lives.
struct Loop(PathBuf);

impl Loop {
    fn mount(image: &Path, at: &Path) -> Loop {
        run_ok(Command::new("mount").args(["-t", "ext4", "-o", "loop"]).arg(image).arg(at));
        Loop(at.to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let done = run(Command::new("umount").arg(&self.0));
        if !done.status.success() && !std::thread::panicking() {
            panic!("umount {}: {done:?}", self.0.display());
        }
    }
}

#[test]
fn a_block_device_that_loses_power_keeps_every_promise() {
    let prepared = match prepared() {
        Ok(prepared) => prepared,
        Err(reason) => return skip("machines::power_losses", &reason),
    };
    if !is_root() {
        return skip("machines::power_losses", "loop mounts need root");
    }
    let seed = from_environment("TENSORFS_VM_SEED", 1);
    let mut total = 0;
    // Twice, so that each mode is met; which durability follows from the seed.
    for (turn, passthrough) in ["on", "off"].into_iter().enumerate() {
        let durability = Durability::ALL[(seed as usize + turn) % 3];
        total += power_losses(&prepared, seed << 1 | turn as u64, passthrough, durability);
    }
    assert!(total > 0);
}

/// Lets writers write in a guest whose disk keeps a log of all writes; then has that disk lose power again and again.
/// Returns how often.
fn power_losses(prepared: &Path, seed: u64, passthrough: &str, durability: Durability) -> usize {
    let mut random = Random::new(seed);
    let seeds: Vec<u64> = (0..3).map(|n| (seed << 8 | n) + 1).collect();
    let words: Vec<String> = seeds.iter().map(u64::to_string).collect();
    let steps = 120;
    let script = format!(
        r#"{BEGIN}
modprobe virtio_blk
modprobe dm-mod
modprobe dm-log-writes
until [ -b /dev/vdb ]; do sleep 0.1; done
dmsetup create tensors --noudevsync --table "0 $(cat /sys/block/vda/size) log-writes /dev/vda /dev/vdb" || exit 1
mount -t ext4 /dev/dm-0 /pool || exit 1
tensorfs mount /pool/p /mnt --log /share/log --commit 0.3 --passthrough {passthrough} --durability {} || exit 1
for seed in {}; do
    tensorfs-test-storm write $seed /mnt /share/ledgers/ledger-$seed {steps} tensors &
done
wait
dmsetup message tensors 0 mark end
tensorfs info --json /mnt >/share/info
sleep 1
"#,
        durability.word(),
        words.join(" ")
    );
    let base = scratch();
    let path = |name: &str| base.path().join(name);
    // The disk as it is before: an ext4 with a journal, and on it a new pool.
    let image = File::create_new(path("disk")).unwrap();
    image.set_len(64 << 20).unwrap();
    run_ok(Command::new("mkfs.ext4").args(["-q", "-E", "lazy_itable_init=0"]).arg(path("disk")));
    std::fs::create_dir(path("host")).unwrap();
    let host = Loop::mount(&path("disk"), &path("host"));
    run_ok(tensorfs().arg("create").arg(path("host/p")));
    drop(host);
    std::fs::copy(path("disk"), path("now")).unwrap();
    File::create_new(path("log")).unwrap().set_len(4 << 30).unwrap();
    let guest = Guest::new(prepared.to_owned(), &script).with_disk(&path("disk")).with_disk(&path("log"));
    guest.boot().wait();
    let ledgers: Vec<Ledger> =
        seeds.iter().map(|seed| Ledger::read(&guest.share().join(format!("ledgers/ledger-{seed}"))).unwrap()).collect();
    for ledger in &ledgers {
        assert_eq!((ledger.steps.len(), ledger.error), (steps, None), "{}\n{}", guest.console(), guest.read("log"));
    }
    let info: Value = serde_json::from_str(&guest.read("info")).unwrap();
    let log = WriteLog::open(&path("log")).unwrap();
    assert!(log.entries.iter().any(|entry| entry.mark.as_deref() == Some("end")), "the log is cut short");

    // Each flush is a moment that a power loss can leave; so is any mix of the writes between two of them.
    let flushes: Vec<usize> = (0..log.entries.len()).filter(|n| log.entries[*n].is_boundary()).collect();
    let wanted = match std::env::var("TENSORFS_VM_POINTS") {
        Ok(text) if text == "all" => flushes.len(),
        _ => from_environment("TENSORFS_VM_POINTS", 15) as usize,
    };
    let mut points: Vec<usize> = flushes.clone();
    while points.len() > wanted {
        points.swap_remove(random.below(points.len() as u64) as usize);
    }
    points.sort_unstable();
    let now = File::options().read(true).write(true).open(path("now")).unwrap();
    std::fs::create_dir(path("mnt")).unwrap();
    let mut acked: BTreeMap<String, usize> = BTreeMap::new();
    let mut replayed = 0;
    let (mut undone, mut steps_seen, mut files) = (0, 0, 0);
    for (done, point) in points.iter().enumerate() {
        if done > 0 && done.is_multiple_of(100) {
            eprintln!("power losses: {done} of {}", points.len());
        }
        while replayed <= *point {
            log.apply(replayed, &now).unwrap();
            if let Some((seed, steps)) = log.entries[replayed].mark.as_deref().and_then(|mark| mark.split_once(':')) {
                acked.insert(seed.to_owned(), steps.parse().unwrap());
            }
            replayed += 1;
        }
        run_ok(Command::new("cp").args(["--sparse=always", "--reflink=auto"]).arg(path("now")).arg(path("lost")));
        // What no flush has followed yet may have reached the disk, or not, or in part.
        let lost = File::options().write(true).open(path("lost")).unwrap();
        let mut mixed = 0;
        if random.below(2) == 0 {
            for (n, _) in log.entries.iter().enumerate().skip(replayed).take_while(|(_, entry)| entry.is_volatile()) {
                match random.below(5) {
                    0..=1 => log.apply(n, &lost).unwrap(),
                    2 => log.apply_torn(n, &lost, &mut random).unwrap(),
                    _ => continue,
                }
                mixed += 1;
            }
        }
        drop(lost);
        let mut writers: Vec<Writer> = seeds
            .iter()
            .zip(&ledgers)
            .map(|(seed, ledger)| {
                let steps = acked.get(&seed.to_string()).copied().unwrap_or(0);
                Writer::new(Plan::new(*seed), ledger.cut(steps))
            })
            .collect();
        let story = |text: String| {
            format!(
                "entry {point} of {} and {mixed} more, passthrough {passthrough}, durability {}, acknowledged \
                {acked:?}: {text}\n{}\n{info}",
                log.entries.len(),
                durability.word(),
                std::fs::read_to_string(path("server.log")).unwrap_or_default()
            )
        };
        let host = Loop::mount(&path("lost"), &path("host"));
        let pool = path("host/p");
        let _ = std::fs::remove_file(path("server.log"));
        let mount = || {
            let output = run(tensorfs().arg("mount").arg(&pool).arg(path("mnt")).arg("--log").arg(path("server.log")));
            assert!(output.status.success(), "{}", story(format!("{output:?}")));
        };
        mount();
        let checked = storm::check(&mut writers, &path("mnt"), Crash::PowerLoss(durability));
        let found = run_ok(tensorfs().args(["info", "--json"]).arg(&pool));
        run_ok(tensorfs().arg("umount").arg(path("mnt")));
        let data = run(tensorfs().args(["check", "--data"]).arg(&pool));
        // And nothing changes when it is mounted once more.
        mount();
        let again = storm::check(&mut writers, &path("mnt"), Crash::PowerLoss(durability));
        run_ok(tensorfs().arg("umount").arg(path("mnt")));
        drop(host);
        let outcome = checked.unwrap_or_else(|reason| panic!("{}", story(reason)));
        assert_eq!(Ok(outcome), again, "{}", story("mounted again".to_owned()));
        assert!(data.status.success(), "{}", story(format!("check --data: {data:?}")));
        let found: Value = serde_json::from_str(&found).unwrap();
        assert_eq!(found["damaged_files"], serde_json::json!([]), "{}", story(found.to_string()));
        assert_eq!(found["read_only"], Value::Null, "{found}");
        undone += outcome.undone;
        steps_seen += outcome.steps;
        files += outcome.files;
    }
    eprintln!(
        "power losses, passthrough {passthrough}, durability {}: {} moments of {} in a log of {} entries, {steps_seen} \
        acknowledged steps, of which {undone} undone, {files} files compared",
        durability.word(),
        points.len(),
        flushes.len(),
        log.entries.len()
    );
    points.len()
}
