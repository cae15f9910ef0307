//! How far a second copy is behind, wherever that is told.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tensorfs_tests::{Mount, Pattern, Setup, as_user, is_root, on_mounts, run_ok, wait_until};

use crate::healing::{Watching, carry};
use crate::metrics;
use crate::verify::seal;

on_mounts!(how_far_a_second_copy_is_behind_is_told_everywhere, a_file_that_has_grown_lacks_what_it_grew_by,);

const MIB: u64 = 1 << 20;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// As the server tells it, or else the program.
fn copy(mount: &Mount) -> Value {
    let said = fs::read_to_string(mount.at(".tensorfs/info"));
    let info = said.map_or_else(|_| mount.info(), |said| serde_json::from_str(&said).unwrap());
    info["second_copy"].clone()
}

/// A store that takes nothing, until this is dropped: what is in the place of its objects is no directory.
struct Refusing(PathBuf);

impl Refusing {
    fn start(mount: &Mount) -> Self {
        let objects = mount.pool().with_file_name("remote").join("objects");
        fs::rename(&objects, objects.with_extension("away")).unwrap();
        fs::write(&objects, "").unwrap();
        Self(objects)
    }
}

impl Drop for Refusing {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
        fs::rename(self.0.with_extension("away"), &self.0).unwrap();
    }
}

/// Files, bytes and transactions that it lacks.
fn lacks(copy: &Value) -> (u64, u64, u64) {
    let number = |name: &str| copy[name].as_u64().unwrap();
    (number("files_behind"), number("bytes_behind"), number("transactions_behind"))
}

/// Proves E14.
fn how_far_a_second_copy_is_behind_is_told_everywhere(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    assert_eq!(mount.info()["second_copy"], Value::Null);
    assert!(!metrics::read(&mount).keys().any(|name| name.starts_with("remote_")));
    fs::write(mount.at("first"), Pattern(1).bytes(0, MIB as usize)).unwrap();
    carry(&mount, &[]);
    let remote = mount.pool().with_file_name("remote");
    let first = copy(&mount);
    assert_eq!(first["url"], format!("file://{}", remote.display()));
    assert_eq!((lacks(&first).0, lacks(&first).1, first["carrier"].clone()), (0, 0, false.into()));
    assert!(first["put_bytes"].as_u64().unwrap() >= MIB && first["put_bytes_per_second"].as_u64().unwrap() > 0);

    // The store takes nothing, and there is more by now.
    let watching = Watching::start(&mount, &[]);
    wait_until("a carrier has looked", || copy(&mount)["carrier"] == true && lacks(&copy(&mount)).2 == 0);
    assert_eq!(copy(&mount)["seconds_behind"], 0);
    let refusing = Refusing::start(&mount);
    for name in ["second", "third"] {
        fs::write(mount.at(name), Pattern(2).bytes(0, 2 * MIB as usize)).unwrap();
    }
    seal(&mount, mount.path());
    mount.sync();
    wait_until("the store is away", || lacks(&copy(&mount)).0 == 2 && copy(&mount)["error"].is_string());
    wait_until("some time has gone by", || copy(&mount)["seconds_behind"].as_u64().unwrap() >= 2);
    let behind = copy(&mount);
    assert_eq!(lacks(&behind).1, 4 * MIB);
    assert!(lacks(&behind).2 > 0, "{behind}");
    let output = mount.tensorfs(["remote", "status", "--json", text(mount.pool())]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), lacks(&status)), (Some(1), lacks(&behind)));
    let told = mount.tensorfs_ok(["info", text(mount.path())]);
    assert!(told.contains("it lacks 4.0 MiB of 2 files") && told.contains("a carrier is at work"), "{told}");
    let samples = metrics::read(&mount);
    let says = |name: &str| samples[&format!("remote_{name}")];
    assert_eq!((says("carrier_up"), says("failed"), says("unmended_files")), (1.0, 1.0, 0.0));
    assert_eq!((says("behind_files"), says("behind_bytes")), (2.0, (4 * MIB) as f64));
    assert!(says("lag_seconds") >= 2.0 && says("behind_transactions") > 0.0);
    assert!(says("carried_timestamp_seconds") > 1e9 && says("put_bytes_total") >= MIB as f64);

    // Others are told how far it is, and not where.
    if is_root() {
        let info = mount.at(".tensorfs/info");
        let said: Value = serde_json::from_str(&run_ok(as_user(65534, 65534).arg("cat").arg(&info))).unwrap();
        let theirs = &said["second_copy"];
        assert_eq!((lacks(theirs), theirs["url"].clone()), (lacks(&behind), Value::Null));
        assert!(theirs["error"].is_string() && !said.to_string().contains(text(&remote)), "{said}");
    }

    drop(refusing);
    wait_until("all is carried", || lacks(&copy(&mount)) == (0, 0, 0) && copy(&mount)["error"].is_null());
    assert!(copy(&mount)["put_bytes"].as_u64().unwrap() >= 3 * MIB, "what both files have is put once");
    drop(watching);
    assert_eq!(copy(&mount)["carrier"], false);

    // Of a pool that is not mounted, its own program tells.
    let after = copy(&mount);
    mount.umount();
    let before = copy(&mount);
    assert_eq!((&before["put_bytes"], &before["batch"]), (&after["put_bytes"], &after["batch"]));
}

/// And not all of it.
///
/// Proves E14.
fn a_file_that_has_grown_lacks_what_it_grew_by(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at("f");
    fs::write(&path, Pattern(1).bytes(0, 3 * MIB as usize)).unwrap();
    carry(&mount, &[]);
    let append = |bytes: u64| {
        let script = format!("head -c {bytes} /dev/urandom >> {}", text(&path));
        run_ok(Command::new("sh").args(["-c", &script]));
    };
    append(MIB);
    seal(&mount, mount.path());
    mount.sync();
    // It looks, and cannot put.
    let watching = Watching::start(&mount, &[]);
    wait_until("a carrier has looked", || lacks(&copy(&mount)).2 == 0);
    let refusing = Refusing::start(&mount);
    append(MIB);
    seal(&mount, mount.path());
    mount.sync();
    wait_until("a carrier cannot put", || copy(&mount)["error"].is_string());
    wait_until("and knows what", || lacks(&copy(&mount)).0 == 1 && lacks(&copy(&mount)).1 == MIB);
    drop(refusing);
    wait_until("all is carried", || lacks(&copy(&mount)) == (0, 0, 0));
    drop(watching);
}
