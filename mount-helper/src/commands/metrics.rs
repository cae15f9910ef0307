//! `tensorfs metrics`: what there is to count of mounts, for Prometheus.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;

use crate::ask::about;
use crate::cli::Metrics;
use crate::mounting::target::Target;
use crate::show::failure::{At, Failure};
use crate::show::metrics::Families;
use crate::show::output;

/// The file that node exporter finds in its directory.
const NAME: &str = "tensorfs.prom";

/// Runs the command. A mount that does not answer keeps nobody from hearing of the others.
pub fn run(arguments: &Metrics) -> Result<ExitCode, Failure> {
    let (mut all, mut up) = (Families::default(), Vec::new());
    for target in &arguments.targets {
        match of(target) {
            Ok((mount, text)) => {
                all.add(&text);
                up.push((mount, true));
            }
            Err(failure) => {
                output::complain(failure);
                up.push((target.to_string_lossy().into_owned(), false));
            }
        }
    }
    all.add_up(up.iter().map(|(mount, up)| (mount.as_str(), *up)));
    match &arguments.textfile {
        Some(directory) => write(directory, &all.prometheus())?,
        None => output::print(&all.open_metrics())?,
    }
    Ok(if up.iter().all(|(_, up)| *up) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where it is mounted, and what its server says.
fn of(target: &Path) -> Result<(String, String), Failure> {
    let mount = Target::of(target)?.mount()?;
    if mount.is_dead() {
        return Err(Failure::new(about::gone(&mount)));
    }
    Ok((mount.mount_point().to_string_lossy().into_owned(), about::metrics(&mount)?))
}

/// Whoever reads the file finds all of it, or all of what was there before.
fn write(directory: &Path, text: &str) -> Result<(), Failure> {
    let (path, new) = (directory.join(NAME), directory.join(format!(".{NAME}.{}", std::process::id())));
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o644);
    // One of a process of that number that was killed.
    let _ = fs::remove_file(&new);
    let written = options.open(&new).and_then(|mut file| file.write_all(text.as_bytes()));
    written.and_then(|()| fs::rename(&new, &path)).inspect_err(|_| drop(fs::remove_file(&new))).at(&path)
}
