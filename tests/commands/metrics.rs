//! `.tensorfs/metrics` and `tensorfs metrics`: numbers for Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tensorfs_tests::{Call, HostCalls, Mount, Mounted, Rule, Setup, is_root, on_mounts, run_ok, venv, wait_until};

on_mounts!(
    requests_are_counted_with_how_long_they_took,
    space_damage_and_the_last_scrub_are_there,
    a_textfile_has_all_mounts_and_is_replaced_in_one_step,
    a_mount_has_one_name_in_its_metrics,
    alerts_are_about_what_is_told,
    what_is_said_is_understood_by_prometheus_own_parser,
    a_server_that_died_is_told_apart_from_one_that_left,
    a_mount_in_several_places_is_told_of_once_by_the_name_it_was_asked_by,
    whatever_a_mount_is_called_its_metrics_are_whole,
    each_tier_and_what_is_set_aside_are_counted,
    the_lag_grows_while_commits_are_held_up,
);

/// Samples by their name and labels, those of the mount and the pool left out.
pub(crate) type Samples = BTreeMap<String, f64>;

/// Reads what a server says, and fails on whatever is not as OpenMetrics has it: a family is told once, with its kind
/// and meaning before its samples, these are called as their kind wants it, no sample is told twice, and the text ends
/// with `# EOF`.
#[track_caller]
fn parsed(text: &str) -> Samples {
    let text = text.strip_suffix("# EOF\n").expect("it has an end");
    let (mut samples, mut kinds, mut helped) = (Samples::new(), BTreeMap::new(), BTreeSet::new());
    let mut family = String::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split(' ').next().unwrap().to_owned();
            assert!(helped.insert(family.clone()), "{line}: told twice");
            continue;
        }
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, family, "{line}");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{line}: told twice");
            continue;
        }
        let (name, rest) = line.split_once('{').unwrap_or_else(|| panic!("{line}: no labels"));
        let (labels, value) = rest.rsplit_once("} ").unwrap_or_else(|| panic!("{line}: no value"));
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'), "{line}");
        let suffix = name.strip_prefix(&*family).unwrap_or_else(|| panic!("{line}: not of {family}"));
        let suffixes: &[&str] = match &*kinds[&family] {
            "counter" => &["_total"],
            "gauge" => &[""],
            _ => &["_bucket", "_sum", "_count"],
        };
        assert!(suffixes.contains(&suffix), "{line}");
        let own = labels.split("\",").filter(|label| !label.starts_with("mount=") && !label.starts_with("pool="));
        let own: Vec<String> = own.map(|label| label.trim_end_matches('"').replace('"', "")).collect();
        let key = format!(
            "{}{}",
            name.strip_prefix("tensorfs_").unwrap(),
            own.iter().map(|l| format!(" {l}")).collect::<String>()
        );
        assert!(samples.insert(key, value.parse().unwrap()).is_none(), "{line}: told twice");
    }
    samples
}

pub(crate) fn read(mount: &Mount) -> Samples {
    parsed(&fs::read_to_string(mount.at(".tensorfs/metrics")).unwrap())
}

/// So many requests of a kind took at most so long, in seconds.
#[track_caller]
fn at_most(samples: &Samples, kind: &str, bound: &str) -> f64 {
    samples[&format!("request_duration_seconds_bucket le={bound} kind={kind}")]
}

fn requests_are_counted_with_how_long_they_took(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let before = read(&mount);
    for n in 0..20 {
        fs::create_dir(mount.at(format!("d{n}"))).unwrap();
    }
    let slow = calls.add(Rule::of_any([Call::Fdatasync, Call::Fsync]).delay(Duration::from_millis(300)));
    let file = File::create(mount.at("f")).unwrap();
    file.sync_all().unwrap();
    drop(slow);
    let after = read(&mount);
    let grown = |name: &str| after[name] - before[name];
    assert_eq!(grown("requests_total kind=mkdir"), 20.0);
    assert_eq!(grown("request_duration_seconds_count kind=mkdir"), 20.0);
    // What a request waits for is in its time.
    assert_eq!((at_most(&after, "fsync", "0.25"), at_most(&after, "fsync", "+Inf")), (0.0, 1.0));
    assert!(after["request_duration_seconds_sum kind=fsync"] >= 0.3);
    assert!(grown("commits_total by=client") >= 1.0 && grown("flushes_total of=log") >= 1.0);
    assert_eq!((after["commit_interval_seconds"], after["commit_failures_total"]), (1.0, 0.0));
    assert!(after["commit_lag_seconds"] >= 0.0 && after["commit_lag_max_seconds"] >= after["commit_lag_seconds"]);
    // Every histogram grows from one bound to the next, and ends with all.
    let kinds: Vec<&str> =
        after.keys().filter_map(|key| key.strip_prefix("request_duration_seconds_count kind=")).collect();
    assert!(kinds.len() > 30, "{kinds:?}");
    for kind in kinds {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (key, count) in &after {
            let Some(rest) = key.strip_prefix("request_duration_seconds_bucket le=") else { continue };
            let (bound, of) = rest.split_once(" kind=").unwrap();
            if of == kind {
                buckets.push((bound.parse().unwrap_or(f64::INFINITY), *count));
            }
        }
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert!(buckets.is_sorted_by(|one, other| one.1 <= other.1), "{kind}: {buckets:?}");
        let all = after[&format!("request_duration_seconds_count kind={kind}")];
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, all)), "{kind}");
    }
}

fn space_damage_and_the_last_scrub_are_there(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::write(mount.at("f"), [7; 100_000]).unwrap();
    mount.tensorfs_ok(["seal".as_ref(), mount.at("f").as_os_str()]);
    let before = read(&mount);
    assert!(!before.contains_key("last_scrub_timestamp_seconds"));
    mount.tensorfs_ok(["scrub".as_ref(), mount.path().as_os_str()]);
    let (after, info) = (read(&mount), mount.info());
    assert_eq!(after["last_scrub_timestamp_seconds"].floor(), info["last_scrub"]["time"]["sec"].as_f64().unwrap());
    assert_eq!(after["last_scrub_verified_bytes"], 100_000.0);
    let told = [
        ("files", &info["files"]),
        ("directories", &info["directories"]),
        ("capacity_bytes", &info["capacity"]),
        ("log_bytes", &info["log_bytes"]),
        ("tier_files tier=pm", &info["tiers"][0]["files"]),
        ("tier_used_bytes tier=pm", &info["tiers"][0]["used"]),
        ("sealed_files_total", &info["counters"]["sealed"]),
    ];
    for (name, value) in told {
        assert_eq!(after[name], value.as_f64().unwrap(), "{name}");
    }
    for name in ["damaged_files", "damaged_places", "quarantine_bytes", "takeovers_total", "read_only", "panics_total"]
    {
        assert_eq!(after[name], 0.0, "{name}");
    }
    assert_eq!((after["tier_up tier=pm"], after["readers_killed_total reason=failed"]), (1.0, 0.0));
    // Who may not look into files sees the same numbers.
    assert_eq!(
        fs::metadata(mount.at(".tensorfs/metrics")).unwrap().permissions(),
        fs::metadata(mount.at(".tensorfs/info")).unwrap().permissions()
    );
}

fn a_textfile_has_all_mounts_and_is_replaced_in_one_step(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let (directory, gone) = (mount.host().join("textfile"), mount.host().join("gone"));
    fs::create_dir(&directory).unwrap();
    let file = directory.join("tensorfs.prom");
    let run = |targets: &[&std::path::Path]| {
        mount.program().arg("metrics").args(targets).arg("--textfile").arg(&directory).output().unwrap()
    };
    assert!(run(&[mount.path()]).status.success());
    // Whoever has the file open goes on reading what was there.
    let first = File::open(&file).unwrap();
    let output = run(&[mount.path(), &gone]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.lines().count() == 1 && said.contains("gone"), "{said}");
    let (old, new) = (std::io::read_to_string(first).unwrap(), fs::read_to_string(&file).unwrap());
    let up = |text: &str| {
        text.lines().filter(|line| line.starts_with("tensorfs_up{")).map(str::to_owned).collect::<Vec<_>>()
    };
    let line = |path: &std::path::Path, up: u8| format!("tensorfs_up{{mount=\"{}\"}} {up}", path.display());
    assert_eq!(up(&old), [line(mount.path(), 1)]);
    assert_eq!(up(&new), [line(mount.path(), 1), line(&gone, 0)]);
    // A mount that is named in two ways is told of once.
    assert!(run(&[mount.path(), mount.pool(), mount.path()]).status.success());
    let twice = fs::read_to_string(&file).unwrap();
    assert_eq!(up(&twice), [line(mount.path(), 1)]);
    assert_eq!(twice.lines().filter(|line| line.starts_with("tensorfs_files{")).count(), 1, "{twice}");
    // As node exporter wants it, and nothing else is left in its directory.
    assert!(new.contains("# TYPE tensorfs_requests_total counter\n") && !new.contains("# EOF"), "{new}");
    let names: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["tensorfs.prom"]);
    // A directory that is not there is said.
    fs::remove_dir_all(&directory).unwrap();
    assert_eq!(run(&[mount.path()]).status.code(), Some(1));
}

/// However it is named, and whether it answers or not.
fn a_mount_has_one_name_in_its_metrics(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let (above, name) = (mount.path().parent().unwrap().to_owned(), mount.path().file_name().unwrap().to_owned());
    let slash = format!("{}/", mount.path().display());
    let up = |mount: &Mount| {
        let mut told = Vec::new();
        for target in
            [name.as_ref(), "./mnt/.".as_ref(), slash.as_ref(), mount.path().as_os_str(), mount.pool().as_os_str()]
        {
            let output = mount.program().current_dir(&above).arg("metrics").arg(target).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            told.extend(text.lines().filter(|line| line.starts_with("tensorfs_up{")).map(str::to_owned));
        }
        told
    };
    let expected = |mount: &Mount, up| vec![format!("tensorfs_up{{mount=\"{}\"}} {up}", mount.path().display()); 5];
    assert_eq!(up(&mount), expected(&mount, 1));
    mount.kill9();
    assert_eq!(up(&mount), expected(&mount, 0));
    mount.mount();
}

/// Each name in examples/prometheus is one that is told, once there was a scrub, of a mount that has a keeper.
fn alerts_are_about_what_is_told(setup: Setup) {
    let mount = setup.mount_with(["-o", "keeper"]).mount();
    if mount.is_plain() {
        return;
    }
    mount.tensorfs_ok(["scrub".as_ref(), mount.path().as_os_str()]);
    let url = format!("file://{}", mount.pool().with_file_name("remote").display());
    mount.tensorfs_ok(["remote", "set", mount.pool().to_str().unwrap(), &url]);
    mount.tensorfs_ok(["remote", "carry", mount.pool().to_str().unwrap()]);
    let told = mount.tensorfs_ok(["metrics".as_ref(), mount.path().as_os_str()]);
    let told: BTreeSet<&str> = told.lines().filter_map(|line| line.split_once('{')).map(|(name, _)| name).collect();
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/prometheus");
    let alerts = fs::read_to_string(examples.join("alerts.yml")).unwrap();
    let dashboard = fs::read_to_string(examples.join("dashboard.json")).unwrap();
    let panels: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    assert!(panels["panels"].as_array().unwrap().len() > 10);
    let shown = dashboard.lines().filter_map(|line| line.trim().strip_prefix("\"expr\": "));
    let expressions = alerts.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).chain(shown);
    let words = expressions.flat_map(|line| line.split(|char: char| !char.is_ascii_lowercase() && char != '_'));
    let names: BTreeSet<&str> = words.filter(|word| word.starts_with("tensorfs_")).collect();
    assert!(names.len() > 10 && names.is_subset(&told), "{:?}", names.difference(&told));
}

/// The text that is printed, and the file for node exporter.
fn what_is_said_is_understood_by_prometheus_own_parser(setup: Setup) {
    let Some(python) = venv("small") else { return setup.skip("no Python environment") };
    if !Command::new(&python).args(["-c", "import prometheus_client"]).output().is_ok_and(|run| run.status.success()) {
        return setup.skip("its Python environment is an old one, without prometheus_client");
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let text = mount.host().join("metrics");
    fs::write(&text, mount.tensorfs_ok(["metrics".as_ref(), mount.path().as_os_str()])).unwrap();
    mount.tensorfs_ok(["metrics".as_ref(), mount.path().as_os_str(), "--textfile".as_ref(), mount.host().as_os_str()]);
    let script = "import sys\n\
        from prometheus_client import openmetrics, parser\n\
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as strict\n\
        one = {family.name: family.type for family in strict(open(sys.argv[1]).read())}\n\
        other = list(parser.text_string_to_metric_families(open(sys.argv[2]).read()))\n\
        assert one == {family.name: family.type for family in other}, (one, other)\n\
        assert len(one) > 40 and not {'unknown', 'untyped'} & set(one.values()), one\n";
    run_ok(Command::new(&python).args(["-c", script]).arg(&text).arg(mount.host().join("tensorfs.prom")));
}

fn each_tier_and_what_is_set_aside_are_counted(setup: Setup) {
    if setup.mount_is_plain() {
        return;
    }
    let Some(memory) = setup.in_memory() else { return };
    let mut mount = setup.mount();
    mount.umount();
    mount.add_tier("dram", &memory.path().join("tier"));
    mount.mount();
    for (name, len) in [("here", 100_000), ("there", 200_000), ("replaced", 30_000)] {
        fs::write(mount.at(name), vec![7; len]).unwrap();
    }
    mount.sync();
    wait_until("nobody has it open", || {
        mount.tensorfs(["tier", "move", mount.at("there").to_str().unwrap(), "dram"]).status.success()
    });
    // Who replaces a file is killed: the version before is set aside.
    let script = "exec 3>\"$1\"; printf new >&3; kill -9 $$";
    Command::new("bash").args(["-c", script, "bash"]).arg(mount.at("replaced")).status().unwrap();
    wait_until("it is set aside", || !mount.quarantine().is_empty());
    let (told, info) = (read(&mount), mount.info());
    assert_eq!((told["tier_up tier=pm"], told["tier_up tier=dram"]), (1.0, 1.0));
    assert_eq!((told["tier_files tier=pm"], told["tier_files tier=dram"]), (2.0, 1.0));
    let dram = info["tiers"].as_array().unwrap().iter().find(|tier| tier["name"] == "dram").unwrap();
    for (name, key) in [("tier_used_bytes", "used"), ("tier_size_bytes", "total")] {
        assert_eq!(told[&format!("{name} tier=dram")], dram[key].as_f64().unwrap(), "{name}");
    }
    assert!(told["tier_used_bytes tier=dram"] >= 200_000.0 && told["tier_free_bytes tier=dram"] > 0.0);
    assert_eq!((told["quarantine_entries"], told["quarantine_bytes"]), (1.0, 30_000.0));
    let name = mount.quarantine()[0]["name"].as_str().unwrap().to_owned();
    mount.tensorfs_ok(["restore", mount.path().to_str().unwrap(), &name, "--discard"]);
    let told = read(&mount);
    assert_eq!((told["quarantine_entries"], told["quarantine_bytes"]), (0.0, 0.0));
}

/// Proves D3.
fn the_lag_grows_while_commits_are_held_up(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    mount.sync();
    let held = calls.add(Rule::of_any([Call::Fdatasync, Call::Fsync]).on("/log").held());
    fs::create_dir(mount.at("d")).unwrap();
    held.wait_for_waiting(1);
    let lag = || read(&mount)["commit_lag_seconds"];
    let first = lag();
    wait_until("it grows", || lag() >= first + 1.5);
    let late = read(&mount);
    assert!(late["uncommitted_transactions"] >= 1.0 && late["commit_lag_max_seconds"] >= 1.5, "{late:?}");
    drop(held);
    wait_until("all is durable", || read(&mount)["uncommitted_transactions"] == 0.0 && lag() < 1.5);
    assert!(read(&mount)["commit_lag_max_seconds"] >= late["commit_lag_max_seconds"]);
}

/// An upgrade is nothing to be woken up for.
fn a_server_that_died_is_told_apart_from_one_that_left(setup: Setup) {
    let mut mount = setup.mount_with(["-o", "keeper"]).mount();
    if mount.is_plain() {
        return;
    }
    let takeovers = |mount: &Mount| {
        let told = read(mount);
        (told["takeovers_total"], told["server_died"])
    };
    assert_eq!(takeovers(&mount), (0.0, 0.0));
    mount.tensorfs_ok(["upgrade".as_ref(), mount.path().as_os_str()]);
    assert_eq!(takeovers(&mount), (1.0, 0.0));
    mount.adopt();
    mount.kill_server();
    wait_until("another server", || takeovers(&mount).0 == 2.0);
    assert_eq!(takeovers(&mount), (2.0, 1.0));
}

/// The values of the label `mount` in what `tensorfs metrics` says of some mounts.
fn names_told(mount: &Mount, targets: &[&Path]) -> BTreeSet<String> {
    let text = mount.tensorfs_ok(["metrics".as_ref()].into_iter().chain(targets.iter().map(|path| path.as_os_str())));
    // Neither sample nor family twice.
    parsed(&text);
    let label = |line: &str| Some(line.split_once("{mount=\"")?.1.split_once('"')?.0.to_owned());
    text.lines().filter_map(label).collect()
}

/// The server went on to call it as it was first, and what was bound was told of twice, which Prometheus refuses.
fn a_mount_in_several_places_is_told_of_once_by_the_name_it_was_asked_by(setup: Setup) {
    if !is_root() {
        return setup.skip("only root makes bind mounts");
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let (bind, below) = (mount.host().join("bind"), mount.host().join("below"));
    fs::create_dir(mount.at("d")).unwrap();
    let bound = [(&bind, mount.path().to_owned()), (&below, mount.at("d"))].map(|(place, what)| {
        fs::create_dir(place).unwrap();
        Mounted::new(Command::new("mount").arg("--bind").arg(what), place).unwrap()
    });
    let one = |path: &Path| BTreeSet::from([path.to_str().unwrap().to_owned()]);
    for place in [mount.path(), &*bind, &*below] {
        assert_eq!(names_told(&mount, &[place]), one(place));
    }
    assert_eq!(names_told(&mount, &[&bind, mount.path(), &below, mount.pool()]), one(&bind));
    drop(bound);
}

/// So long that each of many hundred lines is, with what has to be written otherwise in a label, and no text.
fn whatever_a_mount_is_called_its_metrics_are_whole(setup: Setup) {
    if !is_root() {
        return setup.skip("only root makes bind mounts");
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let long = "\"".repeat(240);
    let long = (0..7).fold(mount.host(), |path, _| path.join(&long));
    let odd = mount.host().join(OsStr::from_bytes(b"a\"b\\c\n\xff"));
    let other = mount.host().join(OsStr::from_bytes(b"a\"b\\c\n\xfe"));
    let host = mount.host().display().to_string();
    let expected = [format!("{host}/a\\\"b\\\\c\\n\\\\xff"), format!("{host}/a\\\"b\\\\c\\n\\\\xfe")];
    for (place, name) in [(&odd, Some(&expected[0])), (&other, Some(&expected[1])), (&long, None)] {
        fs::create_dir_all(place).unwrap();
        let pool = mount.host().join("another");
        mount.tensorfs_ok(["create".as_ref(), "--force".as_ref(), pool.as_os_str()]);
        let log = mount.host().join("another.log");
        mount.tensorfs_ok(["mount".as_ref(), "--log".as_ref(), log.as_os_str(), pool.as_os_str(), place.as_os_str()]);
        let text = mount.tensorfs_ok(["metrics".as_ref(), place.as_os_str()]);
        mount.tensorfs_ok(["umount".as_ref(), place.as_os_str()]);
        assert_eq!(parsed(&text)["files"], 0.0);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(lines.len() > 500, "{}", lines.len());
        let Some(name) = name else { continue };
        let label = format!("{{mount=\"{name}\"");
        assert!(lines.iter().all(|line| line.contains(&label)), "{label}: {}", lines[0]);
    }
}
