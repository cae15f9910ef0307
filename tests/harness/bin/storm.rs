//! The writer and the check of the crash storms, as a program: a writer has to be a process of its own, and inside a
//! guest no test runs.
//!
//! ```text
//! tensorfs-test-storm write SEED MOUNT LEDGER STEPS [MAPPED-DEVICE]
//! tensorfs-test-storm check server-killed|power-loss DURABILITY MOUNT LEDGERS
//! tensorfs-test-storm map-sync FILE
//! tensorfs-test-storm quota user|project NUMBER DEVICE BYTES
//! tensorfs-test-storm in-project NUMBER DIRECTORY
//! ```
//!
//! A writer ends when a call fails. `check` takes all files `ledger-SEED` in the directory LEDGERS. `map-sync` makes a
//! file, and says whether it may be mapped with `MAP_SYNC`. `quota` gives a user or a project one on a device, and
//! `in-project` has what is made in a directory belong to a project.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::ExitCode;

use tensorfs_tests::storm::{self, Crash, Durability, Ledger, Plan, Writer, log_writes::Marker};
use tensorfs_tests::{QuotaOf, put_in_project, set_quota};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", seed, mount, ledger, steps] => write(seed, mount, ledger, steps, None),
        ["write", seed, mount, ledger, steps, device] => write(seed, mount, ledger, steps, Some(device)),
        ["check", crash, durability, mount, ledgers] => check(crash, durability, mount.as_ref(), ledgers.as_ref()),
        ["map-sync", file] => map_sync(file.as_ref()),
        ["quota", whose, of, device, bytes] => quota(whose, of, device, bytes),
        ["in-project", project, directory] => in_project(project, directory.as_ref()),
        _ => Err(format!("see the source for usage: {arguments:?}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("not a number: {text:?}"))
}

fn write(seed: &str, mount: &str, ledger: &str, steps: &str, device: Option<&str>) -> Result<(), String> {
    let plan = Plan::new(number(seed)?);
    let marker = device.map(Marker::open).transpose().map_err(|error| format!("device mapper: {error}"))?;
    match storm::write(plan, mount.as_ref(), ledger.as_ref(), number(steps)? as usize, marker) {
        // What ended it is in the ledger, for whoever has to know whether it may.
        Ok(Some(error)) => {
            eprintln!("writer {seed} ended: {error}");
            Ok(())
        }
        Ok(None) => Ok(()),
        Err(error) => Err(format!("writer {seed}: {error}")),
    }
}

fn check(crash: &str, durability: &str, mount: &Path, ledgers: &Path) -> Result<(), String> {
    let durability = Durability::from_word(durability).ok_or(format!("not a durability: {durability:?}"))?;
    let crash = match crash {
        "server-killed" => Crash::ServerKilled,
        "power-loss" => Crash::PowerLoss(durability),
        _ => return Err(format!("not a crash: {crash:?}")),
    };
    let mut writers = Vec::new();
    for entry in std::fs::read_dir(ledgers).map_err(|error| format!("{}: {error}", ledgers.display()))? {
        let path = entry.map_err(|error| error.to_string())?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(seed) = name.strip_prefix("ledger-") else { continue };
        let ledger = Ledger::read(&path).map_err(|error| error.to_string())?;
        writers.push(Writer::new(Plan::new(number(seed)?), ledger));
    }
    if writers.is_empty() {
        return Err(format!("{}: no ledgers", ledgers.display()));
    }
    let outcome = storm::check(&mut writers, mount, crash)?;
    let storm::Outcome { steps, files, bytes, undone } = outcome;
    println!("{} writers, {steps} steps, {undone} undone, {files} files, {bytes} bytes", writers.len());
    Ok(())
}

fn quota(whose: &str, of: &str, device: &str, bytes: &str) -> Result<(), String> {
    let of = match whose {
        "user" => QuotaOf::User(number(of)? as u32),
        "project" => QuotaOf::Project(number(of)? as u32),
        _ => return Err(format!("not whose a quota can be: {whose:?}")),
    };
    set_quota(of, device.as_ref(), number(bytes)?).map_err(|error| format!("{device}: quota: {error}"))
}

fn in_project(project: &str, directory: &Path) -> Result<(), String> {
    put_in_project(directory, number(project)? as u32).map_err(|error| format!("{}: {error}", directory.display()))
}

fn map_sync(path: &Path) -> Result<(), String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = File::options().create(true).truncate(true).read(true).write(true).open(path).map_err(wrong)?;
    file.set_len(4096).map_err(wrong)?;
    let flags = libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping, which nothing uses.
    let map = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, file.as_raw_fd(), 0) };
    if map == libc::MAP_FAILED {
        println!("error {}", std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
    } else {
        println!("granted");
    }
    Ok(())
}
