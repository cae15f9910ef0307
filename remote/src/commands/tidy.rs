//! `check` and `gc`: whether a remote is whole, and removing what it does not need.

use std::time::Duration;

use crate::carry::Carrier;
use crate::check;
use crate::commands::cli;
use crate::commands::place::repository;
use crate::commands::show;
use crate::error::{Error, Result};
use crate::gc::Keep;

/// So many days are kept if nothing else is asked for.
const WEEK: u32 = 7;

/// False if anything is wrong.
pub fn check(arguments: &cli::Check) -> Result<bool> {
    let (repository, at) = repository(&arguments.remote, &arguments.reach, None)?;
    if at.is_some() {
        return Err(Error::Refused(format!("{}: what is checked is the newest tree", arguments.remote)));
    }
    let bar = show::Bar::new("checking", show::Unit::Objects);
    let report = check::check(&repository, arguments.data, &|done, total| bar.show(done, total))?;
    drop(bar);
    let sound = report.findings.is_empty();
    if arguments.json {
        show::json(&report);
        return Ok(sound);
    }
    report.findings.iter().for_each(|finding| show::line(finding));
    let (files, objects, bytes) = (report.files, report.objects, show::bytes(report.bytes));
    show::line(&format!("batch {}: {files} files in {objects} objects with {bytes}", report.batch));
    if report.incomplete > 0 {
        show::line(&format!("{} files were open or damaged when they were carried", report.incomplete));
    }
    Ok(sound)
}

pub fn gc(arguments: &cli::Gc) -> Result<()> {
    // As long as this is the carrier, nobody else puts anything.
    let mut carrier = Carrier::new(&arguments.pool, Duration::ZERO)?;
    let keep = Keep::asked(arguments.keep, arguments.keep_last).unwrap_or(Keep::days(WEEK));
    let bar = show::Bar::new("removing", show::Unit::Objects);
    let removed = carrier.collect(keep, arguments.dry_run, &|done, total| bar.show(done, total))?;
    drop(bar);
    if arguments.json {
        show::json(&removed);
    } else {
        let (verb, bytes) = (if arguments.dry_run { "would remove" } else { "removed" }, show::bytes(removed.bytes));
        show::line(&format!(
            "{verb} {} bases and batches, and {} objects with {bytes}",
            removed.trees, removed.objects
        ));
    }
    Ok(())
}
