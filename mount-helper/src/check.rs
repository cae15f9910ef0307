//! `tensorfs check`: whether a pool is whole, and, asked to, making it so. A pool that is in use is checked by its server.

use std::fmt::Write;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;
use tensorfs_fs::Work;
use tensorfs_layout::{Depth, Error, Finding, Report};

use crate::cli::Check;
use crate::failure::{At, Failure};
use crate::progress::Bar;
use crate::target::Target;
use crate::{job, output, text};

/// As fsck(8) has them.
const REPAIRED: u8 = 1;
const LEFT_AS_IT_IS: u8 = 4;
const NOT_CHECKED: u8 = 8;

/// What `--json` prints.
#[derive(Serialize)]
struct Output<'a> {
    pool: String,
    #[serde(flatten)]
    report: &'a Report,
    /// What was done, with --repair.
    #[serde(skip_serializing_if = "Option::is_none")]
    actions: Option<&'a [String]>,
}

/// Runs the command. A pool that cannot be checked at all is said on standard error.
pub fn run(arguments: &Check) -> ExitCode {
    match check(arguments) {
        Ok(code) => code,
        Err(failure) => {
            output::complain(failure);
            ExitCode::from(NOT_CHECKED)
        }
    }
}

fn check(arguments: &Check) -> Result<ExitCode, Failure> {
    let target = Target::of(&arguments.pool)?;
    let pool = target.pool().to_owned();
    let bar = Bar::new(arguments.json);
    let is_mounted = match &target {
        Target::Mount(mount) => !mount.is_dead(),
        Target::Pool(pool) => is_served(pool)?,
    };
    if is_mounted {
        if arguments.repair {
            return Err(Failure::at(&arguments.pool, "mounted; unmount it to have it repaired"));
        }
        let mount = target.mount()?;
        let outcome = job::run(&mount.mount_point, Work { structure: true, data: arguments.data, rate: None }, &bar)?;
        if outcome.interrupted {
            return Err(Failure::at(&arguments.pool, "interrupted"));
        }
        complain_of_busy(&mount.mount_point.display().to_string(), outcome.busy);
        return report(arguments, &pool, &outcome.report, None, &bar);
    }
    let progress = |what: &'static str, done, total| bar.show(what, done, total);
    let mut actions = None;
    if arguments.repair {
        let repair = tensorfs_layout::repair(&pool, std::time::SystemTime::now().into(), &progress)?;
        actions = Some(repair.actions);
    }
    let depth = if arguments.data { Depth::Data } else { Depth::Metadata };
    let found = tensorfs_layout::check(&pool, depth, &progress)?;
    report(arguments, &pool, &found, actions.as_deref(), &bar)
}

/// True if a pool is in use, and mounted where this process can see it.
fn is_served(pool: &Path) -> Result<bool, Failure> {
    match tensorfs_layout::holder(pool) {
        Ok(None) | Err(Error::Io { .. }) => Ok(false),
        Ok(Some(_)) => match Target::Pool(pool.to_owned()).mount() {
            Ok(mount) => Ok(!mount.is_dead()),
            // What follows says by whom.
            Err(_) => Ok(false),
        },
        Err(error) => Err(error.into()),
    }
}

fn report(
    arguments: &Check,
    pool: &Path,
    report: &Report,
    actions: Option<&[String]>,
    bar: &Bar,
) -> Result<ExitCode, Failure> {
    bar.clear();
    let name = pool.display().to_string();
    if arguments.json {
        print_json(&name, report, actions)?;
    } else {
        output::print(&describe(&name, report, actions.unwrap_or_default()))?;
    }
    let repaired = actions.is_some_and(|actions| !actions.is_empty());
    Ok(match (report.findings.is_empty(), repaired) {
        (false, _) => ExitCode::from(LEFT_AS_IT_IS),
        (true, true) => ExitCode::from(REPAIRED),
        (true, false) => ExitCode::SUCCESS,
    })
}

/// Prints a report as JSON.
pub fn print_json(pool: &str, report: &Report, actions: Option<&[String]>) -> Result<(), Failure> {
    let output = Output { pool: pool.to_owned(), report, actions };
    let text = serde_json::to_string_pretty(&output).map_err(io::Error::from).at(Path::new(pool))?;
    output::print(&format!("{text}\n"))
}

/// Says that files could not be verified, if there were any.
pub fn complain_of_busy(name: &str, busy: u64) {
    if busy > 0 {
        let files = if busy == 1 { "1 file was".to_owned() } else { format!("{busy} files were") };
        output::complain(format!("{name}: {files} written meanwhile, and not verified"));
    }
}

fn describe(pool: &str, report: &Report, actions: &[String]) -> String {
    let mut text = String::new();
    for action in actions {
        let _ = writeln!(text, "{pool}: {action}");
    }
    text += &findings(pool, report);
    let _ = writeln!(
        text,
        "{pool}: {}: {} frames, {} records, {} objects, {} segments",
        verdict(report),
        HumanCount(report.frames),
        HumanCount(report.records),
        HumanCount(report.objects),
        HumanCount(report.segments),
    );
    if report.verified_bytes + report.unsealed_bytes > 0 {
        let (verified, without) = (HumanBytes(report.verified_bytes), HumanBytes(report.unsealed_bytes));
        let _ = writeln!(text, "{pool}: {verified} of data verified, {without} have no checksum");
    }
    text
}

/// What verifying the bytes of files alone found.
pub fn describe_data(name: &str, report: &Report) -> String {
    let (verified, without) = (HumanBytes(report.verified_bytes), HumanBytes(report.unsealed_bytes));
    let verdict = verdict(report);
    findings(name, report) + &format!("{name}: {verdict}: {verified} of data verified, {without} have no checksum\n")
}

fn verdict(report: &Report) -> String {
    match report.findings.len() {
        0 if report.unclean => "whole; it was not closed, and is recovered when it is mounted next".to_owned(),
        0 => "whole".to_owned(),
        1 => "1 fault".to_owned(),
        many => format!("{many} faults"),
    }
}

fn findings(pool: &str, report: &Report) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let _ = writeln!(text, "{pool}: {}\n    {}", line(finding), finding.meaning);
        if !finding.tensors.is_empty() {
            let names: Vec<String> = finding.tensors.iter().map(|name| text::plain(name)).collect();
            let _ = writeln!(text, "    tensors: {}", names.join(", "));
        }
    }
    text
}

/// Where, and what is wrong.
fn line(finding: &Finding) -> String {
    let offset = finding.offset.map(|offset| format!(" at {offset}")).unwrap_or_default();
    match &finding.path {
        Some(path) => format!("{} ({}{offset}): {}", path.escape_debug(), finding.host_file, finding.what),
        None => format!("{}{offset}: {}", finding.host_file, finding.what),
    }
}
