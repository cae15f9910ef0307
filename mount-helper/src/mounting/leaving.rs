//! A service that is about to be started again leaves what it has to its manager, so that nobody notices; one that is
//! stopped for good does not.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::mounting::keeper::exchange::{self, Watch};
use crate::mounting::mountinfo::Table;
use crate::mounting::paths::{self, Leads};
use crate::mounting::request::MountRequest;
use crate::show::failure::{At, Failure};

/// So many descriptors are kept for a mount.
const KEPT: u32 = 3;
/// Jobs after which a unit runs again.
const AGAIN: [&str; 2] = ["restart", "try-restart"];

/// If the manager is about to start a unit again, has keeper and server of the mount leave, as it was asked for: what
/// is started then goes on. Fails if that cannot be; the service is to be stopped then, and unmounts.
pub fn run(request: &MountRequest, unit: &str) -> Result<(), Failure> {
    if !is_restarting(unit)? {
        return Ok(());
    }
    let pool = paths::real(request.pool())?;
    let table = Table::here()?;
    let leads = |at: &Path| matches!(paths::leads_into(request.mountpoint(), &[at]), Ok(Some((_, Leads::Root))));
    let found = table.of_pool(&pool).find(|mount| leads(mount.mount_point()));
    let mount = found.ok_or_else(|| Failure::at(request.mountpoint(), "the pool is not mounted here"))?;
    let failed = |why: String| Failure::at(mount.mount_point(), format!("it is unmounted, and mounted again: {why}"));
    if let Some(option) = request.options().of_the_kernel(mount) {
        return Err(failed(format!("it is to be mounted otherwise ({option})")));
    }
    if kept_for(unit)? < KEPT {
        return Err(failed(format!("the service manager has not kept what it needs (FileDescriptorStoreMax={KEPT})")));
    }
    match Watch::over(mount)? {
        Watch::By(keeper) if request.is_to_be_kept() => {
            let own = Path::new("/proc/self/exe");
            let program = exchange::program(own).at(own)?;
            let options = request.options().to_list();
            exchange::ask_to_leave(keeper, &program, &options).map_err(|why| failed(why.to_string()))
        }
        Watch::By(_) => Err(failed("it is to be without a keeper".to_owned())),
        Watch::NoMore(_) | Watch::Never => Err(failed("it has no keeper".to_owned())),
    }
}

fn is_restarting(unit: &str) -> Result<bool, Failure> {
    let jobs = ask(&["list-jobs", "--plain", "--full", "--no-legend", "--no-pager", "--", unit])?;
    Ok(is_to_run_again(&jobs, unit))
}

/// Whether of the jobs of a manager, a line each, one has a unit run again.
fn is_to_run_again(jobs: &str, unit: &str) -> bool {
    let of_unit = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some(unit) && words.next().is_some_and(|kind| AGAIN.contains(&kind))
    };
    jobs.lines().any(of_unit)
}

/// How many descriptors the manager has kept for a unit.
fn kept_for(unit: &str) -> Result<u32, Failure> {
    let said = ask(&["show", "--property=NFileDescriptorStore", "--", unit])?;
    Ok(said.trim().strip_prefix("NFileDescriptorStore=").and_then(|count| count.parse().ok()).unwrap_or(0))
}

fn ask(arguments: &[&str]) -> Result<String, Failure> {
    let name = Path::new("systemctl");
    let mut command = Command::new(name);
    // Of a user's own manager's units.
    command.args(std::env::var_os("MANAGERPID").map(|_| "--user"));
    let said = command.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit()).output().at(name)?;
    if !said.status.success() {
        return Err(Failure::at(name, format!("{}: {}", arguments[0], said.status)));
    }
    Ok(String::from_utf8_lossy(&said.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_is_told_from_a_stop() {
        let jobs = "812 other.service restart running\n  813 tensorfs@a.service KIND waiting\n";
        for (kind, again) in [("restart", true), ("try-restart", true), ("stop", false), ("start", false), ("", false)]
        {
            assert_eq!(is_to_run_again(&jobs.replace("KIND", kind), "tensorfs@a.service"), again, "{kind}");
        }
        for jobs in ["", "1", "No jobs running.", "1 a.service restart"] {
            assert!(!is_to_run_again(jobs, "tensorfs@a.service"));
        }
    }
}
