//! `tensorfs scrub`: reads every sealed file of a mount again, at a pace, and compares it with its checksums.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use tensorfs_fs::Work;
use tensorfs_layout::Ino;
use tensorfs_layout::check::Finding;

use crate::ask::{job, mending};
use crate::cli::Scrub;
use crate::commands::status::DAMAGED;
use crate::mounting::target::Target;
use crate::show::failure::Failure;
use crate::show::progress::Bar;
use crate::show::{output, report, text};

/// Ended by a signal, as the shell has it for SIGINT.
const INTERRUPTED: u8 = 130;

/// Runs the command.
pub fn run(arguments: &Scrub) -> Result<ExitCode, Failure> {
    let target = Target::of(&arguments.target)?;
    // What is damaged is mended where it is, which may be anywhere in the pool.
    let mount = if arguments.mend { target.whole()? } else { target.mount()? };
    let bar = Bar::new(arguments.json);
    let rate = (!arguments.no_limit).then_some(arguments.rate);
    let outcome =
        job::run(mount.mount_point(), Work { structure: false, data: true, rate, resume: arguments.resume }, &bar)?;
    bar.clear();
    let name = mount.mount_point().display().to_string();
    let findings = &outcome.report().findings;
    let (mended, left) =
        if arguments.mend { mend(mount.mount_point(), findings) } else { (Vec::new(), findings.len()) };
    if arguments.json {
        report::print_json(&name, outcome.report(), arguments.mend.then_some(&*mended))?;
    } else {
        let mended: String = mended.iter().map(|what| format!("{name}: {}\n", text::plain(what))).collect();
        output::print(&(report::describe_data(&name, outcome.report()) + &mended))?;
    }
    report::complain_of_busy(&name, outcome.busy());
    if outcome.was_interrupted() {
        output::complain(format!("{name}: interrupted; what was not read yet is not known to be whole"));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(if left == 0 { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) })
}

/// Mends the files that something was found about. What was done, and what was found about files that are as they were.
fn mend(root: &Path, findings: &[Finding]) -> (Vec<String>, usize) {
    let mut damaged: BTreeMap<Option<Ino>, Vec<&Finding>> = BTreeMap::new();
    findings.iter().for_each(|finding| damaged.entry(finding.ino).or_default().push(finding));
    let (mut mended, mut left) = (Vec::new(), 0);
    for (ino, findings) in damaged {
        let path = findings.first().and_then(|first| path_of(first));
        match ino.zip(path).map(|(ino, path)| mend_file(root, path, ino)) {
            Some(Ok(done)) => mended.push(done),
            Some(Err(failure)) => {
                output::complain(failure);
                left += findings.len();
            }
            None => left += findings.len(),
        }
    }
    (mended, left)
}

fn path_of(finding: &Finding) -> Option<&Path> {
    text::told_path(finding.path.as_deref(), finding.path_bytes.as_deref())
}

fn mend_file(root: &Path, path: &Path, ino: Ino) -> Result<String, Failure> {
    mending::mend(&root.join(path.strip_prefix("/").unwrap_or(path)), ino)?;
    Ok(format!("{} is mended", path.display()))
}
