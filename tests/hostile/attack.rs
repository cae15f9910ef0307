//! An attacker who does all that he can think of, beside a victim who saves checkpoints.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tensorfs_tests::{Mount, Setup, is_root, on_mounts, run_ok, samples};

on_mounts!(a_victim_saves_beside_an_attacker, a_victim_saves_beside_an_attacker_with_a_keeper);

const VICTIM: u32 = 65_532;
/// Two users attack, of whom neither trusts the other, with two processes each.
const ATTACKER: u32 = 65_533;
const OTHER: u32 = 65_531;
const ATTACKERS: usize = 4;
/// What each process has open at most: see attacker.py.
const OPEN: u64 = 500 + 200 + 550 + 10_000 + 2 * 2_000;
const MIB: u64 = 1 << 20;

/// Of a long run: in each minute the victim is alone for a while, and then beside attackers, as what else the machine
/// does comes and goes. Minutes are the clock's, so that of two runs side by side none attacks while the other's victim
/// is alone.
const MINUTE: u64 = 60;
const ALONE: u64 = 9;
/// What attackers leave behind, as files to seal, is no victim's alone.
const SETTLES: u64 = 2;

/// What names and records may take, in MiB: an owner has half of it, and the victim's are beside the attackers'.
const NAMES: u64 = 96;

/// What docs/SECURITY.md says that the server takes: its own, for names and records, for each file that is open, for
/// the attributes of each owner who fills them, for texts, for what is known of tensors, for plans of checkpoints, for
/// blocks of decoded tensors, and for what is remembered. Nobody looks at requests, and no file is so slow that writes
/// wait for it.
fn most(owners: u64, open: u64) -> u64 {
    80 * MIB + NAMES * MIB + open * 2048 + owners * 256 * MIB + (16 + 125 + 512 + 112 + 64) * MIB
}

/// `python3 attacker.py ...`, ended with the test.
struct Running(Option<Child>);

impl Running {
    fn start(python: &Path, directory: &Path, arguments: &[&str]) -> Self {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("hostile/attacker.py");
        let mut command = Command::new(python);
        command.arg(program).args(arguments).current_dir(directory).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Some(command.spawn().unwrap()))
    }

    /// What it printed, each line as JSON.
    fn finish(mut self) -> Vec<Value> {
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}: {said}{errors}", output.status);
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// How long each save of a victim took, in seconds.
#[derive(Default)]
struct Saved {
    took: Vec<f64>,
}

impl Saved {
    /// What it was `promised`, names with the sums of what is there under them, takes the place of what it was before.
    fn add(&mut self, lines: &[Value], promised: &mut BTreeMap<String, String>) {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        promised.extend(lines.iter().map(|line| (text(&line[0]), text(&line[1]))));
        self.took.extend(lines.iter().map(|line| line[2].as_f64().unwrap()));
    }

    fn row(&self) -> String {
        let mut took = self.took.clone();
        took.sort_by(f64::total_cmp);
        let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize] * 1000.0;
        format!("{} saves; median {:.1}, p99 {:.1}, worst {:.1} ms", self.took.len(), at(0.5), at(0.99), at(1.0))
    }
}

/// A number that the kernel tells of a process, in bytes; none of one that has ended.
fn memory(pid: i32, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim_matches([':', '\t', ' ']).split(' ').next()?.parse::<u64>().ok()? << 10)
}

/// Seconds on the clock.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// When it began.
fn wait_for_the_minute() -> u64 {
    while now() % MINUTE > 1 {
        std::thread::sleep(Duration::from_millis(100));
    }
    now()
}

fn directory(mount: &Mount, name: &str, uid: u32, mode: u32) -> PathBuf {
    let path = mount.at(name);
    std::fs::create_dir(&path).unwrap();
    chown(&path, Some(uid), Some(uid)).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    path
}

/// `TENSORFS_ATTACK` is how many seconds it lasts, `TENSORFS_PRINT_TABLE` prints what it costs the victim.
///
/// Proves A6, B12, T11.
fn a_victim_saves_beside_an_attacker(setup: Setup) {
    saves_beside_attackers(setup, "names=96M");
}

/// So it is where the server has given up its rights, and asks its keeper, and where it is killed in the middle.
///
/// Proves A6, K1, P5, T11.
fn a_victim_saves_beside_an_attacker_with_a_keeper(setup: Setup) {
    saves_beside_attackers(setup, "names=96M,keeper");
}

fn saves_beside_attackers(setup: Setup, options: &str) {
    if !is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    if setup.mount_is_plain() {
        return;
    }
    let Some(python) = setup.python("small") else { return };
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let seconds = number("TENSORFS_ATTACK", 4);
    let mut mount = setup.mount_with(["-o", options]).mount();
    // Files can be moved to and fro.
    mount.umount();
    mount.add_tier("other", &mount.host().join("other"));
    mount.mount();
    let victims = directory(&mount, "victim", VICTIM, 0o700);
    let attackers = [("attacker", ATTACKER), ("other-attacker", OTHER)];
    let attackers = attackers.map(|(name, uid)| (directory(&mount, name, uid, 0o755), uid));
    let is_kept = options.contains("keeper");
    let mut server = mount.pid().unwrap();
    let victim = |seconds: u64| {
        let (uid, seconds) = (VICTIM.to_string(), seconds.to_string());
        let words = ["save", &uid, &seconds, "killed"];
        Running::start(&python, &victims, if is_kept { &words } else { &words[..3] })
    };
    let (mut alone, mut beside, mut promised) = (Saved::default(), Saved::default(), BTreeMap::new());
    let (mut kinds, mut kills) = (BTreeMap::new(), 0);
    // Of each minute: what the server had without attackers, and the most that it had beside them.
    let mut memories: Vec<(u64, u64)> = Vec::new();
    let mut seed = number("TENSORFS_STORM_SEED", 1) as usize;
    let mut left = seconds;
    while left > 0 {
        let until = if seconds > MINUTE { wait_for_the_minute() + MINUTE } else { 0 };
        alone.add(&victim(if seconds > MINUTE { ALONE } else { 3 }).finish(), &mut promised);
        let quiet = memory(server, "RssAnon").unwrap();
        let lasts = left.min(if until > 0 { until - SETTLES - now() } else { seconds });
        let attack: Vec<Running> = (seed..seed + ATTACKERS)
            .map(|seed| {
                let (directory, uid) = &attackers[seed % 2];
                let (seed, uid, seconds, samples) = (seed.to_string(), uid.to_string(), lasts.to_string(), samples());
                let arguments = ["attack", &seed, &uid, &seconds, samples.to_str().unwrap()];
                Running::start(&python, directory, &arguments)
            })
            .collect();
        let saving = victim(lasts);
        let mut highest = quiet;
        for tenth in 0..lasts * 10 {
            highest = highest.max(memory(server, "RssAnon").unwrap_or(0));
            std::thread::sleep(Duration::from_millis(100));
            // In the middle of all that they do.
            if is_kept && tenth == lasts * 5 {
                mount.kill_server();
                (server, kills) = (mount.pid().unwrap(), kills + 1);
            }
        }
        memories.push((quiet, highest));
        beside.add(&saving.finish(), &mut promised);
        for counts in attack.into_iter().flat_map(Running::finish) {
            for (kind, count) in counts.as_object().unwrap() {
                *kinds.entry(kind.clone()).or_insert(0) += count.as_u64().unwrap();
            }
        }
        seed += ATTACKERS;
        left -= lasts;
    }
    let info = mount.info();
    assert_eq!(info["pid"].as_i64(), Some(i64::from(server)), "all the time it has served, or the one after it");
    assert!(!kinds.is_empty(), "each ended by itself");
    let highest = memories.iter().map(|(_, highest)| *highest).max().unwrap();
    let bound = most(attackers.len() as u64, ATTACKERS as u64 * OPEN);
    if std::env::var_os("TENSORFS_PRINT_TABLE").is_some() {
        println!("passthrough {:?}, {options}, {seconds} s, {ATTACKERS} attackers: {kinds:?}", mount.passthrough(),);
        println!("  victim alone:  {}\n  beside them:   {}", alone.row(), beside.row());
        println!("  server: {} MiB at most, of {} MiB; killed {kills} times", highest / MIB, bound / MIB);
        let each: Vec<String> =
            memories.iter().map(|(quiet, most)| format!("{}/{}", quiet / MIB, most / MIB)).collect();
        println!("  without them and at most beside them, each minute, MiB: {}", each.join(" "));
        println!("  readers: {}", info["readers"]);
    }
    assert!(highest < bound, "{} of {} MiB", highest / MIB, bound / MIB);
    assert!(beside.took.len() > 1, "the victim was kept from saving");
    // Nothing is lost, and whoever attacked keeps nothing from ending.
    let look = |mount: &Mount| {
        for (name, sum) in &promised {
            let found = run_ok(Command::new("sha256sum").arg(mount.at("victim").join(name)));
            assert_eq!(found.split(' ').next().unwrap(), sum, "{name}");
        }
    };
    look(&mount);
    mount.remount();
    look(&mount);
    mount.umount();
    run_ok(mount.program().arg("check").arg(mount.pool()));
}
