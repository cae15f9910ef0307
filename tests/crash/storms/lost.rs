//! Machines that are lost with all that they have, one after the other: a training goes on from what the last one had
//! carried. A machine is a network, processes and mounts of its own; all of its processes are killed at once, and its
//! pool is removed. The store is in none of them.
//!
//! | variable | meaning |
//! |---|---|
//! | `TENSORFS_MACHINES` | how many are lost (default 2) |
//! | `TENSORFS_MACHINES_SEED` | at which moments (default 1) |

use std::fs;
use std::io::BufRead;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tensorfs_tests::random::Random;
use tensorfs_tests::s3::{S3, keys};
use tensorfs_tests::{client, is_root, nobody_unmounts, run, run_ok, scratch, skip, tensorfs, venv, wait_until};

use super::kills::from_environment;

/// What a machine does until it is killed: the pool is made or comes from the store, is carried, and is trained in.
const MACHINE: &str = r#"set -e
from=$1 to=$2 pool=$3 mnt=$4; shift 4
mapfile -t mounts < /proc/self/mounts
for line in "${mounts[@]}"; do
    read -r _ at kind _ <<< "$line"
    case $kind in fuse*) umount -l "$(printf %b "$at")" ;; esac
done
> "$RECORDS/alone-$NUMBER"
mount -t tmpfs tmpfs "$mnt"
mkdir "$mnt/m"
if [ -n "$from" ]; then
    "$TENSORFS" mount --from "$from" --endpoint "$ENDPOINT" --log "$pool.log" "$pool" "$mnt/m" \
        2> "$RECORDS/mount-$NUMBER"
else
    > "$RECORDS/mount-$NUMBER"
    "$TENSORFS" create "$pool"
    "$TENSORFS" mount --log "$pool.log" "$pool" "$mnt/m"
fi
"$TENSORFS" remote set "$pool" "$to" --endpoint "$ENDPOINT"
"$TENSORFS" remote carry --watch --interval 1 --patience "$PATIENCE" "$pool" --progress=none &
"$@" "$mnt/m" "$RECORDS" "$NUMBER" "$TENSORFS"
"#;
/// So long a machine may take for what it has to do.
const PATIENCE: Duration = Duration::from_secs(300);

/// Two networks, and the one between them, where the store is.
struct Networks {
    name: String,
    net: String,
}

impl Networks {
    fn new() -> Result<Self, String> {
        let pid = std::process::id();
        // Addresses that are for such tests.
        let this = Self { name: format!("tfs{pid}"), net: format!("198.18.{}", pid % 256) };
        let (name, net) = (&this.name, &this.net);
        let script = format!(
            "ip link add {name} type bridge && ip addr add {net}.1/24 dev {name} && ip link set {name} up || exit 1
            for n in 0 1; do
                ip netns add {name}-$n && ip link add {name}v$n type veth peer name eth0 netns {name}-$n || exit 1
                ip link set {name}v$n master {name} up || exit 1
                ip -n {name}-$n addr add {net}.$((n + 2))/24 dev eth0 && ip -n {name}-$n link set eth0 up || exit 1
                ip -n {name}-$n link set lo up || exit 1
            done"
        );
        let made = run(Command::new("sh").args(["-c", &script]));
        match made.status.success() {
            true => Ok(this),
            false => Err(format!("no networks can be made: {}", String::from_utf8_lossy(&made.stderr).trim())),
        }
    }

    fn of(&self, machine: u64) -> String {
        format!("{}-{}", self.name, machine % 2)
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        let name = &self.name;
        let script = format!("ip link del {name}; ip netns del {name}-0; ip netns del {name}-1");
        run(Command::new("sh").args(["-c", &script]));
    }
}

/// What all machines share: the store, and what they have said.
struct World {
    networks: Networks,
    store: S3,
    python: PathBuf,
    base: PathBuf,
}

impl World {
    fn records(&self) -> PathBuf {
        self.base.join("records")
    }

    fn url(&self, machine: u64) -> String {
        format!("s3://tensorfs/machine-{machine}")
    }

    /// Nobody unmounts while its mounts are copies of those of other tests.
    fn start(&self, number: u64, from: Option<u64>, patience: u64) -> Machine {
        let pool = self.base.join(format!("pool-{number}"));
        let mnt = self.base.join("mnt");
        let source = from.map_or_else(|| "-1".to_owned(), |from| from.to_string());
        fs::write(self.records().join("from"), source).unwrap();
        let training = client(&self.python, "machines_client.py");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.networks.of(number)]);
        command.args([
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child=KILL",
            "--mount-proc",
            "bash",
            "-c",
            MACHINE,
        ]);
        command.arg("machine").arg(from.map(|from| self.url(from)).unwrap_or_default()).arg(self.url(number));
        command.arg(&pool).arg(&mnt).arg(training.get_program()).args(training.get_args()).arg("train");
        let told = fs::File::create(self.base.join(format!("told-{number}"))).unwrap();
        command.env("TENSORFS", tensorfs().get_program()).env("ENDPOINT", self.store.endpoint());
        command.env("RECORDS", self.records()).env("NUMBER", number.to_string()).env("HOME", &self.base);
        command.env("PATIENCE", patience.to_string()).env("PYTHONDONTWRITEBYTECODE", "1").envs(keys());
        command.stdin(Stdio::null()).stdout(told.try_clone().unwrap()).stderr(told);
        let (network, told) = (self.networks.of(number), self.said(number));
        let unmounting = nobody_unmounts();
        let mut machine = Machine { number, child: command.spawn().unwrap(), network, pool, told };
        let alone = self.records().join(format!("alone-{number}"));
        machine.wait_for("mounts of its own", self, |_| alone.exists());
        drop(unmounting);
        machine
    }

    fn said(&self, number: u64) -> PathBuf {
        self.base.join(format!("told-{number}"))
    }

    /// What a machine has said.
    fn lines(&self, number: u64) -> Vec<Value> {
        let Ok(bytes) = fs::read(self.records().join(format!("doing-{number}"))) else { return Vec::new() };
        // The last one may be cut.
        bytes.lines().map_while(|line| serde_json::from_str(&line.ok()?).ok()).collect()
    }

    /// True if another machine could go on with what this one has carried.
    fn has_carried(&self, number: u64) -> bool {
        let mut list = tensorfs();
        list.args(["remote", "list", &self.url(number), "--endpoint", &self.store.endpoint()]).envs(keys());
        let listed = run(&mut list);
        listed.status.success() && !String::from_utf8_lossy(&listed.stdout).trim().is_empty()
    }
}

struct Machine {
    number: u64,
    child: Child,
    network: String,
    pool: PathBuf,
    told: PathBuf,
}

impl Machine {
    /// Waits until it has said something, which is no reason to end by itself.
    fn wait_for(&mut self, what: &str, world: &World, mut said: impl FnMut(&[Value]) -> bool) {
        let begun = Instant::now();
        while !said(&world.lines(self.number)) {
            let ended = self.child.try_wait().unwrap();
            let told = || fs::read_to_string(&self.told).unwrap_or_default();
            assert!(ended.is_none(), "machine {} ended by itself, {ended:?}: {}", self.number, told());
            assert!(begun.elapsed() < PATIENCE, "machine {}: no {what}: {}", self.number, told());
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Machine {
    /// All of its processes at once, and all that it had.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let network = self.network.clone();
        let is_empty = || run_ok(Command::new("ip").args(["netns", "pids", &network])).trim().is_empty();
        wait_until("all processes of a machine have ended", is_empty);
        let _ = fs::remove_dir_all(&self.pool);
    }
}

fn promises(lines: &[Value]) -> usize {
    lines.iter().filter(|line| line.get("promised").is_some()).count()
}

/// `TENSORFS_MACHINES` of them, or two. The one after the last looks at what it finds, too.
///
/// Proves E1, E2, E8, E20, E21, E22.
#[test]
fn a_training_goes_on_where_a_machine_was_lost() {
    let name = "lost::a_training_goes_on";
    if !is_root() {
        return skip(name, "needs root");
    }
    if std::env::var("TENSORFS_LARGE").as_deref() != Ok("1") {
        return skip(name, "needs gigabytes of packages: TENSORFS_LARGE=1");
    }
    let Some(python) = venv("large") else { return skip(name, "no Python environment: tests/run makes one") };
    let networks = match Networks::new() {
        Ok(networks) => networks,
        Err(why) => return skip(name, &why),
    };
    let store = match S3::start_on(&format!("{}.1", networks.net)) {
        Ok(store) => store,
        Err(why) => return skip(name, &why),
    };
    let scratch = scratch();
    let world = World { networks, store, python, base: scratch.path().to_owned() };
    fs::create_dir(world.records()).unwrap();
    fs::create_dir(world.base.join("mnt")).unwrap();
    let rounds = from_environment("TENSORFS_MACHINES", 2);
    let mut random = Random::new(from_environment("TENSORFS_MACHINES_SEED", 1));
    let (mut from, mut held, mut early) = (None, 0, 0);
    for number in 0..=rounds {
        let mut machine = world.start(number, from, *random.pick(&[1, 5, 12]));
        machine
            .wait_for("look at what it finds", &world, |lines| lines.iter().any(|line| line.get("begins").is_some()));
        if number == rounds {
            break;
        }
        // At any moment, or just when something was promised.
        let wanted = random.below(4) as usize;
        if wanted > 0 || from.is_none() {
            machine.wait_for("promise", &world, |lines| promises(lines) >= wanted.max(1));
            sleep(Duration::from_millis(random.below(2) * random.below(400)));
        } else {
            sleep(Duration::from_millis(random.below(12_000)));
        }
        drop(machine);
        let promised = promises(&world.lines(number));
        let carried = world.has_carried(number);
        assert!(carried || promised == 0, "machine {number} was promised {promised}, and its remote has nothing");
        held += promised;
        if carried {
            from = Some(number);
        } else {
            early += 1;
        }
    }
    let seen = fs::read_to_string(world.records().join("seen")).unwrap();
    let mut prove = client(&world.python, "machines_client.py");
    let proved = run_ok(prove.arg("prove").arg(world.records()));
    let lost = |line: &str| {
        let line: Value = serde_json::from_str(line).ok()?;
        Some(line["last"].as_u64()? - line["unit"].as_u64()?)
    };
    let lost: Vec<u64> = seen.lines().filter_map(lost).collect();
    let most = lost.iter().max().copied().unwrap_or(0);
    println!(
        "{rounds} machines lost, {early} before anything was carried; {held} promises kept; at most {most} changes not \
         carried yet; {}",
        proved.trim()
    );
}
