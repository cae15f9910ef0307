//! Reports of checks: what was looked at, and what is wrong.

use std::fmt::Write;
use std::io;
use std::path::Path;

use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;
use tensorfs_layout::check::{Finding, LastScrub, Report};

use crate::show::failure::{At, Failure};
use crate::show::{clock, output, text};

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

/// Prints a report as JSON.
pub fn print_json(pool: &str, report: &Report, actions: Option<&[String]>) -> Result<(), Failure> {
    let output = Output { pool: pool.to_owned(), report, actions };
    let text = serde_json::to_string_pretty(&output).map_err(io::Error::from).at(Path::new(pool))?;
    output::print(&format!("{text}\n"))
}

/// Says that files could not be verified, if there were any.
pub fn complain_of_busy(name: &str, busy: u64) {
    if busy > 0 {
        let files = text::count(busy, "file was", "files were");
        output::complain(format!("{name}: {files} written meanwhile, and not verified"));
    }
}

/// What checking a pool found, and what was done about it.
pub fn describe(pool: &str, report: &Report, actions: &[String]) -> String {
    let mut text = String::new();
    for action in actions {
        let _ = writeln!(text, "{pool}: {}", text::plain(action));
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
    if let Some(scrub) = &report.last_scrub {
        let _ = writeln!(text, "{pool}: last scrub {}", last_scrub(scrub));
    }
    text
}

/// When the last scrub ended, and what it came to.
pub fn last_scrub(scrub: &LastScrub) -> String {
    let found = match scrub.findings {
        0 => "no damage".to_owned(),
        findings => format!("damage in {}", text::count(findings, "place", "places")),
    };
    let mut line = format!("{}: {found}, {} verified", clock::utc(scrub.time.sec), HumanBytes(scrub.verified_bytes));
    if scrub.busy_files > 0 {
        let files = text::count(scrub.busy_files, "file was", "files were");
        line.push_str(&format!("; {files} written meanwhile, and not verified"));
    }
    line
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
    let what = text::plain(&finding.what);
    match &finding.path {
        Some(path) => format!("{} ({}{offset}): {what}", path.escape_debug(), finding.host_file),
        None => format!("{}{offset}: {what}", text::plain(&finding.host_file)),
    }
}
