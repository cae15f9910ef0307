//! Work that the server of a mount does, seen from outside: it is begun, asked how far it has come, and ended when this
//! program is interrupted.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use tensorfs_fs::{Event, Reply, Request, Work};
use tensorfs_layout::check::{Finding, Report};

use crate::ask::question::{request, request_about_work, unknown};
use crate::mounting::signals;
use crate::show::failure::Failure;
use crate::show::progress::Bar;

/// How often to ask.
const INTERVAL: Duration = Duration::from_millis(50);

/// What came of it.
pub struct Outcome {
    report: Report,
    busy: u64,
    interrupted: bool,
}

impl Outcome {
    /// What was counted and found; without the end of it, if it was interrupted.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Files that were written again and again, and so not verified.
    pub fn busy(&self) -> u64 {
        self.busy
    }

    /// Whether this program was told by a signal to end it early.
    pub fn was_interrupted(&self) -> bool {
        self.interrupted
    }
}

/// Has the server of a mount do the work, and waits for it.
pub fn run(mount: &Path, work: Work, bar: &Bar) -> Result<Outcome, Failure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    signals::block(&[Signal::SIGTERM, Signal::SIGINT])?;
    let told = interrupted.clone();
    signals::watch(&signals::TO_END, None, move |_| told.store(true, Ordering::Relaxed))?;
    let start = || match request(mount, &Request::Start(work.clone()))? {
        Reply::Started(job) => Ok(job),
        _ => Err(unknown(mount)),
    };
    let mut job = start()?;
    let mut heard = Heard::default();
    let mut cancelled = false;
    loop {
        if interrupted.load(Ordering::Relaxed) && !cancelled {
            request_about_work(mount, mount, &Request::Cancel { job })?;
            cancelled = true;
        }
        let output = match request_about_work(mount, mount, &Request::Poll { job, at: heard.at })? {
            Some(Reply::Output(output)) => output,
            Some(_) => return Err(unknown(mount)),
            None if cancelled => break,
            // The server has died or was exchanged: the next one begins anew.
            None => {
                log::info!("{}: another server has taken over, which begins anew", mount.display());
                (job, heard) = (start()?, Heard::default());
                continue;
            }
        };
        bar.show(&output.what, output.done, output.total);
        let silent = output.text.is_empty();
        heard.add(&output.text).map_err(|_| unknown(mount))?;
        if output.ended {
            break;
        }
        if silent {
            thread::sleep(INTERVAL);
        }
    }
    match heard.failed {
        Some(_) if cancelled => {}
        Some(reason) => return Err(Failure::at(mount, reason)),
        None => {}
    }
    let report = Report { findings: heard.findings, ..heard.report };
    Ok(Outcome { report, busy: heard.busy, interrupted: cancelled })
}

/// What was heard.
#[derive(Default)]
struct Heard {
    at: u64,
    /// A line whose end is still to come.
    line: Vec<u8>,
    findings: Vec<Finding>,
    report: Report,
    busy: u64,
    failed: Option<String>,
}

impl Heard {
    fn add(&mut self, text: &[u8]) -> Result<(), serde_json::Error> {
        self.at += text.len() as u64;
        self.line.extend_from_slice(text);
        while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            match serde_json::from_slice(&line)? {
                Event::Finding(finding) => self.findings.push(finding),
                Event::Report(report) => self.report = report,
                Event::Busy(count) => self.busy = count,
                Event::Failed(reason) => self.failed = Some(reason),
            }
        }
        Ok(())
    }
}
