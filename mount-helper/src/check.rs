//! `tensorfs check`: whether a pool is whole, and, asked to, making it so.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use serde::Serialize;
use tensorfs_layout::{Depth, Finding, Report};

use crate::cli::Check;
use crate::failure::{At, Failure};
use crate::output;
use crate::target::Target;
use crate::text;

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
    let pool = Target::of(&arguments.pool)?.pool().to_owned();
    let bar = Bar::new(arguments.json);
    let progress = |what: &'static str, done, total| bar.show(what, done, total);
    let mut actions = None;
    let mut repaired = false;
    if arguments.repair {
        let repair = tensorfs_layout::repair(&pool, std::time::SystemTime::now().into(), &progress)?;
        repaired = !repair.actions.is_empty();
        actions = Some(repair.actions);
    }
    let depth = if arguments.data { Depth::Data } else { Depth::Metadata };
    let report = tensorfs_layout::check(&pool, depth, &progress)?;
    bar.clear();
    if arguments.json {
        let output = Output { pool: pool.display().to_string(), report: &report, actions: actions.as_deref() };
        let text = serde_json::to_string_pretty(&output).map_err(io::Error::from).at(&pool)?;
        output::print(&format!("{text}\n"))?;
    } else {
        output::print(&describe(&pool.display().to_string(), &report, actions.as_deref().unwrap_or_default()))?;
    }
    Ok(match (report.findings.is_empty(), repaired) {
        (false, _) => ExitCode::from(LEFT_AS_IT_IS),
        (true, true) => ExitCode::from(REPAIRED),
        (true, false) => ExitCode::SUCCESS,
    })
}

fn describe(pool: &str, report: &Report, actions: &[String]) -> String {
    let mut text = String::new();
    for action in actions {
        let _ = writeln!(text, "{pool}: {action}");
    }
    for finding in &report.findings {
        let _ = writeln!(text, "{pool}: {}\n    {}", line(finding), finding.meaning);
        if !finding.tensors.is_empty() {
            let names: Vec<String> = finding.tensors.iter().map(|name| text::plain(name)).collect();
            let _ = writeln!(text, "    tensors: {}", names.join(", "));
        }
    }
    let verdict = match report.findings.len() {
        0 if report.unclean => "whole; it was not closed, and is recovered when it is mounted next".to_owned(),
        0 => "whole".to_owned(),
        1 => "1 fault".to_owned(),
        many => format!("{many} faults"),
    };
    let _ = writeln!(
        text,
        "{pool}: {verdict}: {} frames, {} records, {} objects, {} segments",
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

/// Where, and what is wrong.
fn line(finding: &Finding) -> String {
    let offset = finding.offset.map(|offset| format!(" at {offset}")).unwrap_or_default();
    match &finding.path {
        Some(path) => format!("{} ({}{offset}): {}", path.escape_debug(), finding.host_file, finding.what),
        None => format!("{}{offset}: {}", finding.host_file, finding.what),
    }
}

/// A progress bar on a terminal, and nothing elsewhere.
struct Bar(Option<ProgressBar>);

impl Bar {
    fn new(quiet: bool) -> Self {
        let shown = !quiet && io::stderr().is_terminal();
        Self(shown.then(|| {
            let style = ProgressStyle::with_template("{msg:>8} {bar:40} {percent}%");
            ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        }))
    }

    fn show(&self, what: &'static str, done: u64, total: u64) {
        if let Some(bar) = &self.0 {
            bar.set_message(what);
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
