//! `carry`: one pass, or one after the other.

use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use serde::Serialize;

use crate::carry::{Carrier, Outcome, Passed, Tails, Way};
use crate::commands::cli;
use crate::commands::show;
use crate::error::{Error, Result};
use crate::fetching::Fetching;
use crate::gc::Keep;
use crate::heal::Healer;
use crate::outside::Outside;
use crate::relief::Relief;

/// Between two looks while files are about to come to rest.
const SOON: Duration = Duration::from_secs(1);
/// Before the first of them: what has come to rest, but is not committed yet, is so when the pool is looked at again.
const AT_ONCE: Duration = Duration::from_millis(10);
/// So often in a row a remote may look damaged to a carrier, before it is.
const DAMAGED: u32 = 2;
/// For so long garbage is removed between two batches.
const COLLECTING: Duration = Duration::from_secs(600);
/// The longest pause after a failure.
const PAUSE_MAX: Duration = Duration::from_secs(60);

#[derive(Serialize)]
struct Told {
    batch: u64,
    transaction: u64,
    read_bytes: u64,
    put_bytes: u64,
    incomplete_files: u64,
    left_out_files: u64,
    left_out_bytes: u64,
}

pub fn run(arguments: &cli::Carry) -> Result<()> {
    // Who waits for a file does not make way.
    let fetching = arguments.watch.then(|| Fetching::new(&arguments.pool)).transpose()?;
    // Nor does who sees when way is to be made.
    let way = Way::new()?;
    lowest_priority();
    let mends = arguments.watch && !arguments.no_mend;
    let outside = mends.then(|| Outside::start(&arguments.pool)).transpose()?;
    let mut pause = SOON;
    let (mut carrier, mut healer, mut relief) = (None, None, None);
    let mut damaged = 0;
    let mut wait = AT_ONCE;
    loop {
        let passed = pass(arguments, &mut carrier, &way);
        if let (Some(carrier), Some(outside)) = (&mut carrier, &outside) {
            // What is carried does not need it.
            let healed = heal(arguments, carrier, (&mut healer, outside));
            healed.unwrap_or_else(|error| log::error!("what came of mending is not noted: {error}"));
        }
        if let (Some(carrier), Some(fetching)) = (&carrier, &fetching) {
            let relieved = relieve(arguments, carrier, (&mut relief, fetching));
            relieved.unwrap_or_else(|error| log::error!("no file leaves by itself: {error}"));
        }
        let next = match passed {
            Ok(outcome) => {
                (pause, damaged) = (SOON, 0);
                let soon = std::mem::replace(&mut wait, AT_ONCE);
                match outcome {
                    Outcome::Waiting(_) => {
                        wait = SOON;
                        soon
                    }
                    _ if !arguments.watch => return Ok(()),
                    _ => Duration::from_secs(arguments.interval),
                }
            }
            Err(error) if !arguments.watch => return Err(error),
            // It may be the way to the store that is.
            Err(error @ Error::Damaged { .. }) if damaged == DAMAGED => return Err(error),
            Err(error) if !matches!(error, Error::Damaged { .. }) && is_final(&error, carrier.is_some()) => {
                return Err(error);
            }
            Err(error) => {
                damaged += u32::from(matches!(error, Error::Damaged { .. }));
                log::error!("{error}; trying again in {} seconds", pause.as_secs());
                let next = (pause * 2).min(PAUSE_MAX);
                std::mem::replace(&mut pause, next)
            }
        };
        sleep(next);
    }
}

/// From the first pass on, files of the mount are mended beside; what came of that is noted between two passes.
fn heal(
    arguments: &cli::Carry,
    carrier: &mut Carrier,
    (healer, outside): (&mut Option<Healer>, &Outside),
) -> Result<()> {
    let healer = match healer {
        Some(healer) => healer,
        None => {
            let every = Duration::from_secs(arguments.interval.max(1));
            healer.insert(Healer::start(&arguments.pool, every, carrier.note(), outside.clone())?)
        }
    };
    carrier.note_healing(healer.healing())
}

/// From the first pass on, files of the mount that are to leave it do so beside.
fn relieve(
    arguments: &cli::Carry,
    carrier: &Carrier,
    (relief, fetching): (&mut Option<Relief>, &Fetching),
) -> Result<()> {
    if relief.is_none() {
        let every = Duration::from_secs(arguments.interval.max(1));
        *relief = Some(Relief::start(&arguments.pool, every, carrier.note(), fetching)?);
    }
    Ok(())
}

/// True of what waiting does not mend. When a machine starts, its store may come later than this, and the server that
/// recovers the pool; a carrier that is at work ends for fewer reasons.
fn is_final(error: &Error, is_at_work: bool) -> bool {
    match is_at_work {
        true => matches!(error, Error::Fenced { .. } | Error::RolledBack { .. } | Error::LockedIn(_)),
        false => !error.may_pass(),
    }
}

/// One pass, and what has to be done once a day.
fn pass(arguments: &cli::Carry, carrier: &mut Option<Carrier>, way: &Way) -> Result<Outcome> {
    let carrier = match carrier {
        Some(carrier) => carrier,
        None => {
            let patience = Duration::from_secs(arguments.patience);
            let new = carrier.insert(Carrier::locked_in(&arguments.pool, patience, way)?);
            match Duration::from_secs(arguments.open_every) {
                Duration::ZERO => {}
                every if arguments.watch => new.tell_of_tails(Tails::every(every)),
                every => new.tell_of_tails(Tails::at_once(every)),
            }
            new
        }
    };
    let bar = Arc::new(show::Bar::new("read", show::Unit::BytesOfMany));
    let own = bar.clone();
    carrier.hear(Some(Box::new(move |read| own.show(read, 0))));
    let passed = carrier.pass();
    carrier.hear(None);
    drop(bar);
    let passed = passed?;
    tell(arguments, carrier, passed);
    let keep = Keep::asked(arguments.keep, arguments.keep_last);
    if let Some(keep) = keep.filter(|_| !matches!(passed.outcome, Outcome::Waiting(_)))
        && carrier.wants_collection()
    {
        match carrier.collect_for((keep, Some(COLLECTING)), false, &|_, _| {}) {
            Ok(removed) => log::info!("removed {} bases and batches, and {} objects", removed.trees, removed.objects),
            Err(error @ (Error::Fenced { .. } | Error::RolledBack { .. })) => return Err(error),
            // What is carried does not need it.
            Err(error) => log::error!("nothing was removed from the remote: {error}; trying again in an hour"),
        }
    }
    Ok(passed.outcome)
}

fn tell(arguments: &cli::Carry, carrier: &Carrier, passed: Passed) {
    let batch = carrier.note().number;
    let Passed { outcome, transaction, read, put, incomplete, left_out } = passed;
    let told = Told {
        batch,
        transaction,
        read_bytes: read,
        put_bytes: put,
        incomplete_files: incomplete,
        left_out_files: left_out.files,
        left_out_bytes: left_out.bytes,
    };
    match outcome {
        Outcome::Waiting(_) => {}
        Outcome::Nothing if arguments.watch => {}
        _ if arguments.json => show::json(&told),
        Outcome::Nothing => show::line("nothing to carry"),
        Outcome::Carried => {
            let (read, put) = (show::bytes(read), show::bytes(put));
            let open = if incomplete > 0 { format!(", {incomplete} files are open or damaged") } else { String::new() };
            let out = if left_out.files > 0 { format!(", {} are left out", left_out.files) } else { String::new() };
            show::line(&format!("batch {batch}: {read} read, {put} put{open}{out}"));
        }
    }
}

/// Everybody else comes first, for the processor and for the disk.
fn lowest_priority() {
    const IDLE: libc::c_int = 3 << 13;
    // SAFETY: setpriority takes integers and touches no memory of ours; who may not do it goes on as before.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
    // SAFETY: as above; 1 is this process, by its number 0.
    unsafe { libc::syscall(libc::SYS_ioprio_set, 1, 0, IDLE) };
}
