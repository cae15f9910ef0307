//! Times tensorfs beside the bare filesystem and other filesystems in user space, all in one run.
//!
//! A measure ([`measures`]) runs on targets ([`target`]) that lie on backings ([`backing`]); [`run`] takes them in
//! turn, round by round, and [`report`] makes text, JSON, Markdown and plots of the medians. Everything lies in one
//! [`room`], which is swept however the run ends. `tensorfs-bench --help` says what can be chosen, docs/BENCHMARKS.md
//! what the numbers mean.

mod backing;
mod cli;
mod clients;
mod error;
mod measure;
mod measures;
mod outcome;
mod pin;
mod process;
mod report;
mod room;
mod run;
mod server;
mod statistics;
mod target;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::Parser;

use cli::Cli;
use error::Result;
use report::Report;
use room::Room;
use target::Programs;

fn main() -> ExitCode {
    match real_main(&Cli::parse()) {
        Ok(_) if room::stopped() => ExitCode::from(130),
        Ok(failed) => ExitCode::from(u8::from(failed)),
        Err(error) => {
            eprintln!("tensorfs-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether anything failed.
fn real_main(cli: &Cli) -> Result<bool> {
    if cli.list {
        cli.print_measures();
        return Ok(false);
    }
    let report = match &cli.from {
        Some(file) => Report::load(file)?,
        None => measure(cli)?,
    };
    print!("{}", report::text(&report));
    if let Some(file) = &cli.json {
        save(file, &report::json(&report)?)?;
    }
    if let Some(file) = &cli.markdown {
        save(file, &report::markdown(&report, None))?;
    }
    if let Some(directory) = &cli.docs {
        std::fs::create_dir_all(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        save(&directory.join("results.json"), &report::json(&report)?)?;
        let plots = report::plots(&report);
        for (name, plot) in &plots {
            save(&directory.join(name), plot)?;
        }
        save(&directory.join("RESULTS.md"), &report::markdown(&report, Some(&plots)))?;
    }
    Ok(report.left.iter().any(|left| left.failed))
}

fn measure(cli: &Cli) -> Result<Report> {
    if !nix::unistd::geteuid().is_root() {
        return Err("needs root: to mount, and for passthrough".into());
    }
    let plan = cli.plan()?;
    room::end_on_signals()?;
    let room = Room::new(&cli.dir)?;
    let programs = programs(cli, room.path())?;
    let cx = measure::Context { scale: cli.scale(), pythons: clients::Pythons::new(&cli.venv, room.path())? };
    let machine = report::machine(&programs.tensorfs)?;
    let start = Instant::now();
    let outcome = plan.run(&cx, room.path(), &programs);
    Ok(Report {
        machine,
        command: cli.choices(std::env::args().skip(1)),
        seconds: start.elapsed().as_secs_f64(),
        scale: cx.scale,
        figures: outcome.figures,
        left: outcome.left,
    })
}

/// Finds `tensorfs`, and builds the ancestor.
fn programs(cli: &Cli, room: &Path) -> Result<Programs> {
    let tensorfs = cli.tensorfs()?;
    let help = process::run(Command::new(&tensorfs).args(["mount", "--help"]))?;
    let ancestor = room.join("ancestor");
    let source = room.join("ancestor.c");
    std::fs::write(&source, include_str!("../ancestor/ancestor.c"))?;
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-o"]).arg(&ancestor).arg(&source).arg("-lpmemobj");
    let ancestor = process::run(&mut cc).map(|_| ancestor).map_err(|_| "it takes cc and libpmemobj-dev".to_owned());
    Ok(Programs { latency: help.contains("--latency"), tensorfs, ancestor })
}

fn save(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()).into())
}
