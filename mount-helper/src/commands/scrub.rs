//! `tensorfs scrub`: reads every sealed file of a mount again, at a pace, and compares it with its checksums.

use std::process::ExitCode;

use tensorfs_fs::Work;

use crate::ask::job;
use crate::cli::Scrub;
use crate::commands::status::DAMAGED;
use crate::mounting::target::Target;
use crate::show::failure::Failure;
use crate::show::progress::Bar;
use crate::show::{output, report};

/// Ended by a signal, as the shell has it for SIGINT.
const INTERRUPTED: u8 = 130;

/// Runs the command.
pub fn run(arguments: &Scrub) -> Result<ExitCode, Failure> {
    let mount = Target::of(&arguments.target)?.mount()?;
    let bar = Bar::new(arguments.json);
    let rate = (!arguments.no_limit).then_some(arguments.rate);
    let outcome =
        job::run(mount.mount_point(), Work { structure: false, data: true, rate, resume: arguments.resume }, &bar)?;
    bar.clear();
    let name = mount.mount_point().display().to_string();
    if arguments.json {
        report::print_json(&name, outcome.report(), None)?;
    } else {
        output::print(&report::describe_data(&name, outcome.report()))?;
    }
    report::complain_of_busy(&name, outcome.busy());
    if outcome.was_interrupted() {
        output::complain(format!("{name}: interrupted; what was not read yet is not known to be whole"));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(if outcome.report().findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) })
}
