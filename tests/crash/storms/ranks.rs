//! Two processes that save distributed checkpoints, of which one, both, or the server is killed, again and again.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use tensorfs_tests::{Setup, client, on_mounts};

use super::kills::from_environment;

on_mounts!(no_torn_checkpoint_of_two_processes_is_called_whole);

/// `TENSORFS_KILLS` of them, or a few, at moments that `TENSORFS_KILL_SEED` says.
///
/// Proves T12, T13.
fn no_torn_checkpoint_of_two_processes_is_called_whole(setup: Setup) {
    let Some(python) = setup.python("torch") else { return };
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let directory = mount.at("run");
    std::fs::create_dir(&directory).unwrap();
    let (kills, seed) = (from_environment("TENSORFS_KILLS", 6), from_environment("TENSORFS_KILL_SEED", 1));
    let mut command = client(&python, "ranks_client.py");
    command.arg(&directory).args([kills, seed].map(|number| number.to_string()));
    command.arg(tensorfs_tests::tensorfs().get_program()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = command.spawn().unwrap();
    let (mut tell, hear) = (program.stdin.take().unwrap(), BufReader::new(program.stdout.take().unwrap()));
    let mut told = false;
    for line in hear.lines().map(Result::unwrap) {
        if line == "kill the server" {
            mount.kill9();
            mount.mount();
            writeln!(tell, "served").unwrap();
        } else {
            println!("{line}");
            told |= line.starts_with("told:");
        }
    }
    assert!(program.wait().unwrap().success() && told);
}
