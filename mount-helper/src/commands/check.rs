//! `tensorfs check`: whether a pool is whole, and, asked to, making it so.
//!
//! A pool that is in use is checked by its server.

use std::path::Path;
use std::process::ExitCode;

use tensorfs_fs::Work;
use tensorfs_layout::Error;
use tensorfs_layout::check::{Depth, Report};

use crate::ask::job;
use crate::cli::Check;
use crate::mounting::in_use::explained;
use crate::mounting::target::Target;
use crate::mounting::{foreign, sight};
use crate::show::failure::Failure;
use crate::show::progress::Bar;
use crate::show::{output, report};

/// As fsck(8) has them.
const REPAIRED: u8 = 1;
const LEFT_AS_IT_IS: u8 = 4;
const NOT_CHECKED: u8 = 8;

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
    foreign::check(&arguments.pool)?;
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
        let root = mount.mount_point();
        let outcome = job::run(root, Work { structure: true, data: arguments.data, rate: None, resume: false }, &bar)?;
        if outcome.was_interrupted() {
            return Err(Failure::at(&arguments.pool, "interrupted"));
        }
        report::complain_of_busy(&root.display().to_string(), outcome.busy());
        return conclude(arguments, &pool, outcome.report(), None, &bar);
    }
    let progress = |what: &'static str, done, total| bar.show(what, done, total);
    let mut actions = None;
    if arguments.repair {
        let repair =
            tensorfs_layout::check::repair(&pool, std::time::SystemTime::now().into(), &progress).map_err(explained)?;
        actions = Some(repair.actions);
    }
    let depth = if arguments.data { Depth::Data } else { Depth::Metadata };
    let found = tensorfs_layout::check::check(&pool, depth, &progress).map_err(explained)?;
    conclude(arguments, &pool, &found, actions.as_deref(), &bar)
}

/// True if a pool is in use, and mounted where this process can see it.
fn is_served(pool: &Path) -> Result<bool, Failure> {
    match tensorfs_layout::pool::holder(pool) {
        Ok(None) | Err(Error::Io { .. }) => Ok(false),
        // Where it is mounted nowhere, what follows says by whom it is in use.
        Ok(Some(_)) => Ok(sight::of_pool(pool)?.is_some_and(|mount| !mount.is_dead())),
        Err(error) => Err(error.into()),
    }
}

/// Prints what was found, and says so by the exit status.
fn conclude(
    arguments: &Check,
    pool: &Path,
    report: &Report,
    actions: Option<&[String]>,
    bar: &Bar,
) -> Result<ExitCode, Failure> {
    bar.clear();
    let name = pool.display().to_string();
    if arguments.json {
        report::print_json(&name, report, actions)?;
    } else {
        output::print(&report::describe(&name, report, actions.unwrap_or_default()))?;
    }
    let repaired = actions.is_some_and(|actions| !actions.is_empty());
    Ok(match (report.findings.is_empty(), repaired) {
        (false, _) => ExitCode::from(LEFT_AS_IT_IS),
        (true, true) => ExitCode::from(REPAIRED),
        (true, false) => ExitCode::SUCCESS,
    })
}
