//! `tensorfs scrub`: reads every sealed file of a mount again, at a pace, and compares it with its checksums.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use tensorfs_fs::{Damaged, Reply, Request, Work};
use tensorfs_layout::Ino;
use tensorfs_layout::check::Finding;

use crate::ask::question::{request, unknown};
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
    if arguments.known {
        return known(target.whole()?.mount_point()).map(|()| ExitCode::SUCCESS);
    }
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

/// Lists the files that the server knows to be damaged, a line each.
fn known(root: &Path) -> Result<(), Failure> {
    let mut last = Ino(0);
    loop {
        let Reply::Damaged(pool, files) = request(root, &Request::Damaged(last))? else { return Err(unknown(root)) };
        match files.last() {
            // Whatever the server is, this comes to an end.
            Some(file) if file.ino > last => last = file.ino,
            _ => return Ok(()),
        }
        for Damaged { ino, path, what } in files {
            let path = Path::new(OsStr::from_bytes(&path));
            let line = json!({"pool": pool, "ino": ino.0, "name": path.to_string_lossy(), "what": what});
            output::print(&format!("{}\n", text::with_path(line, &on_mount(root, path))))?;
        }
    }
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
    mending::mend(&on_mount(root, path), ino)?;
    Ok(format!("{} is mended", path.display()))
}

fn on_mount(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}
