//! The alerts and the dashboard of examples/prometheus, in a real Prometheus that scrapes a real node exporter.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tensorfs_tests::{Mount, Passthrough, Pattern, Setup, on_mounts, run_ok, skip, wait_until};

use crate::healing::carry;

on_mounts!(filled_damaged_and_killed_it_is_told,);

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/prometheus");

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|run| run.status.success())
}

/// By Prometheus' own rules, with made-up series: each of them, and not too early.
#[test]
fn each_alert_fires_when_it_should() {
    if !is_there("promtool") {
        return skip("alerts::each_alert_fires_when_it_should", "no promtool (Debian: prometheus)");
    }
    let tests = ["alerts_test.yml", "weeks_test.yml"];
    run_ok(Command::new("promtool").args(["test", "rules"]).args(tests).current_dir(EXAMPLES));
    let names = |file: &str, word: &str| {
        let text = fs::read_to_string(Path::new(EXAMPLES).join(file)).unwrap();
        let words: Vec<&str> = text.split([' ', ',', '\n']).collect();
        let pairs = words.windows(2).filter(|pair| pair[0] == word);
        pairs.map(|pair| pair[1].to_owned()).collect::<BTreeSet<String>>()
    };
    let tested = tests.iter().flat_map(|file| names(file, "alertname:")).collect();
    assert_eq!(names("alerts.yml", "alert:"), tested);
}

/// A program that serves at a port, and ends with the test.
struct Daemon(Child);

impl Daemon {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What an address says, if it answers.
fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut said = String::new();
    stream.read_to_string(&mut said).ok()?;
    Some(said.split_once("\r\n\r\n")?.1.to_owned())
}

/// Prometheus, with the rules as they are but for their pauses.
struct Prometheus {
    port: u16,
    textfile: PathBuf,
    _daemons: [Daemon; 2],
}

impl Prometheus {
    fn start(dir: &Path) -> Self {
        let (textfile, exporter, port) = (dir.join("textfile"), free_port(), free_port());
        fs::create_dir(&textfile).unwrap();
        let rules = fs::read_to_string(Path::new(EXAMPLES).join("alerts.yml")).unwrap();
        let at_once = rules.lines().filter(|line| !line.trim_start().starts_with("for: "));
        fs::write(dir.join("alerts.yml"), at_once.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [alerts.yml]\nscrape_configs:\n\
             - {{job_name: node, static_configs: [{{targets: ['127.0.0.1:{exporter}']}}]}}\n"
        );
        fs::write(dir.join("prometheus.yml"), config).unwrap();
        let node = Daemon::start(
            Command::new("prometheus-node-exporter")
                .args(["--collector.disable-defaults", "--collector.textfile"])
                .arg(format!("--collector.textfile.directory={}", textfile.display()))
                .arg(format!("--web.listen-address=127.0.0.1:{exporter}")),
        );
        let server = Daemon::start(
            Command::new("prometheus")
                .current_dir(dir)
                .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
                .arg(format!("--web.listen-address=127.0.0.1:{port}")),
        );
        let prometheus = Self { port, textfile, _daemons: [node, server] };
        wait_until("Prometheus is ready", || get(port, "/-/ready").is_some_and(|said| said.contains("Ready")));
        prometheus
    }

    /// Writes the numbers of a mount again and again until the alert fires.
    #[track_caller]
    fn wait_for(&self, mount: &Mount, alert: &str) {
        wait_until(alert, || {
            // Of a mount that does not answer it says so, and fails.
            let _ = mount.program().arg("metrics").arg(mount.path()).arg("--textfile").arg(&self.textfile).output();
            self.firing().iter().any(|name| name == alert)
        });
    }

    fn firing(&self) -> Vec<String> {
        let said = get(self.port, "/api/v1/alerts").unwrap_or_default();
        let said: Value = serde_json::from_str(&said).unwrap_or_default();
        let alerts = said["data"]["alerts"].as_array().cloned().unwrap_or_default();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        firing.map(|alert| alert["labels"]["alertname"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// What an expression comes to now: a value for each series.
    #[track_caller]
    fn series(&self, query: &str) -> Vec<Value> {
        let query: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let said = get(self.port, &format!("/api/v1/query?query={query}")).unwrap();
        let said: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(said["status"], "success", "{said}");
        said["data"]["result"].as_array().unwrap().clone()
    }

    fn value(&self, query: &str) -> Option<f64> {
        self.series(query).first()?["value"][1].as_str()?.parse().ok()
    }
}

fn can_be_watched(setup: &Setup) -> bool {
    let there = ["prometheus", "prometheus-node-exporter"].iter().all(|program| is_there(program));
    if !there {
        setup.skip("no Prometheus (Debian: prometheus, prometheus-node-exporter)");
    }
    there
}

/// Of a mount with a keeper and a second copy, which was scrubbed, and is in use: each expression has a series, with
/// the labels that its legend names.
#[test]
fn every_panel_of_the_dashboard_has_something_to_show() {
    Setup::run(concat!(module_path!(), "::dashboard"), Passthrough::Off, shown);
}

fn shown(setup: Setup) {
    if !can_be_watched(&setup) {
        return;
    }
    let mount = setup.mount_with(["-o", "keeper"]).mount();
    if mount.is_plain() {
        return;
    }
    fs::write(mount.at("file"), Pattern(1).bytes(0, 1 << 20)).unwrap();
    carry(&mount, &[]);
    mount.tensorfs_ok(["scrub".as_ref(), mount.path().as_os_str()]);
    let dashboard = fs::read_to_string(Path::new(EXAMPLES).join("dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut left: Vec<(&str, &str, &str)> = Vec::new();
    for panel in panels {
        for target in panel["targets"].as_array().unwrap() {
            let text = |value: &str| target[value].as_str().unwrap_or_default();
            left.push((panel["title"].as_str().unwrap(), text("expr"), text("legendFormat")));
        }
    }
    assert!(left.len() > 20, "{left:?}");
    let prometheus = Prometheus::start(&mount.host());
    for round in 0..2000_usize {
        // Rates want numbers that change.
        fs::write(mount.at(format!("of-round-{}", round % 8)), Pattern(round as u64).bytes(0, 5000)).unwrap();
        mount.tensorfs_ok([
            "metrics".as_ref(),
            mount.path().as_os_str(),
            "--textfile".as_ref(),
            prometheus.textfile.as_os_str(),
        ]);
        left.retain(|(_, expression, legend)| {
            let series = prometheus.series(&expression.replace("$mount", ".*").replace("$__rate_interval", "1m"));
            let mut labels = legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
            series.is_empty() || labels.any(|label| series.iter().any(|one| one["metric"][label.trim()].is_null()))
        });
        if left.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(left, [], "nothing to show, or not what the legend names");
    // What the choice of mounts is made of.
    let variable = &dashboard["templating"]["list"][1]["query"]["query"];
    assert_eq!(variable, "label_values(tensorfs_up, mount)");
    let said = get(prometheus.port, "/api/v1/label/mount/values?match[]=tensorfs_up").unwrap();
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["data"], serde_json::json!([mount.path().to_str().unwrap()]));
}

fn filled_damaged_and_killed_it_is_told(setup: Setup) {
    if !can_be_watched(&setup) {
        return;
    }
    let mut mount = setup.create(["--size", "64M"]).mount_with(["-o", "keeper"]).mount();
    if mount.is_plain() {
        return;
    }
    let prometheus = Prometheus::start(&mount.host());
    wait_until("the numbers have come", || {
        mount.tensorfs_ok([
            "metrics".as_ref(),
            mount.path().as_os_str(),
            "--textfile".as_ref(),
            prometheus.textfile.as_os_str(),
        ]);
        prometheus.value("tensorfs_up") == Some(1.0)
    });
    // At first there was nothing to be told of.
    wait_until("all is well", || prometheus.firing().is_empty());
    // Fill it.
    let file = Pattern(2).bytes(0, 1 << 20);
    fs::write(mount.at("file"), &file).unwrap();
    mount.tensorfs_ok(["seal".as_ref(), mount.at("file").as_os_str()]);
    fs::write(mount.at("large"), Pattern(1).bytes(0, 57 << 20)).unwrap();
    prometheus.wait_for(&mount, "TensorfsNearlyFull");
    fs::remove_file(mount.at("large")).unwrap();
    // Kill it: another server takes over.
    mount.kill_server();
    prometheus.wait_for(&mount, "TensorfsServerDied");
    // Damage it.
    let segments = fs::read_dir(mount.pool().join("segments")).unwrap();
    let mut segments =
        segments.flat_map(|dir| fs::read_dir(dir.unwrap().path()).unwrap()).map(|entry| entry.unwrap().path());
    let segment = segments.find(|path| fs::read(path).is_ok_and(|bytes| bytes == file)).unwrap();
    let mut spoiled = file;
    spoiled[500_000] ^= 1;
    fs::write(segment, spoiled).unwrap();
    mount.tensorfs(["scrub".as_ref(), mount.path().as_os_str()]);
    prometheus.wait_for(&mount, "TensorfsDamage");
    // Kill it for good.
    mount.adopt();
    mount.kill_keeper();
    mount.kill9();
    prometheus.wait_for(&mount, "TensorfsDown");
}
