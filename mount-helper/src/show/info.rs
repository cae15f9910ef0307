//! `tensorfs info` for people: labels on the left, what fits 80 columns on the right.

use std::fmt::Display;

use tensorfs_fs::{Info, KeeperInfo, State};
use tensorfs_layout::log::Shutdown;
use tensorfs_layout::pool::Recovery;
use tensorfs_layout::segment::{TierInfo, TierState};

use crate::show::following;
use crate::show::report::last_scrub;
use crate::show::second_copy;
use crate::show::size::humane;
use crate::show::table::WIDTH;
use crate::show::text::{self, count};

/// What is wrong where a keeper has died.
pub const UNWATCHED: &str =
    "its keeper has died: nobody keeps watch over the server; tensorfs upgrade starts another one";

/// Columns of the labels.
const LABELS: usize = 15;

/// The table. `has_left`: the server before this one left to it, which the keeper's line says, and is no fault.
pub fn table(info: &Info, has_left: bool) -> String {
    let mut rows = Rows(String::new());
    rows.add("pool", info.pool.display());
    rows.add("uuid", &info.uuid);
    rows.add("layout", &info.layout);
    rows.add("state", state(info));
    if let Some(kept) = &info.keeper {
        rows.add("keeper", keeper(kept));
    }
    rows.some("mounted at", info.mountpoint.as_ref().map(|path| path.display()));
    rows.some(
        "",
        info.mount_namespace_of.map(|pid| format!("in the mount namespace of process {pid}, not in this one")),
    );
    rows.some("read-only", info.read_only.as_ref());
    rows.some("domain", info.domain);
    rows.some("durability", durability(info));
    if info.state == State::Mounted {
        rows.add("passthrough", passthrough(info));
        rows.add("latency", latency(info));
    }
    rows.add("used", used(info));
    if info.tiers.len() > 1 {
        rows.list("tiers", &info.tiers.iter().map(tier).collect::<Vec<_>>());
    }
    rows.add("files", format!("{} in {}", info.files, count(info.directories, "directory", "directories")));
    if info.pending_removals > 0 {
        rows.add("deleted", format!("{} still to be removed from the host", info.pending_removals));
    }
    if info.refused_removals > 0 {
        rows.add("not deleted", format!("{} that the host would not remove; it is asked again", info.refused_removals));
    }
    rows.add("log", format!("{} with {} live records", humane(info.log_bytes), info.records));
    let apart = info.longest_commit_seconds.map(|seconds| format!("in the background, at most {seconds:.1} s apart"));
    rows.some("commits", apart);
    rows.some("requests", requests(info));
    rows.some("flushes", flushes(info));
    rows.some("readers", readers(info));
    let is_damaged = !info.damaged_files.is_empty();
    rows.some("recovery", info.recovery.as_ref().and_then(|found| recovery(found, is_damaged, has_left)));
    if info.unsafe_shutdowns > 0 {
        rows.add("shutdowns", format!("{} without closing the pool", info.unsafe_shutdowns));
    }
    rows.list("still open", &info.open_segments);
    rows.list("damaged", &info.damaged_files);
    let found = info.damage_found.iter().map(|finding| {
        let path = finding.path.as_deref().unwrap_or(&finding.host_file);
        let tensors =
            if finding.tensors.is_empty() { String::new() } else { format!("; {}", finding.tensors.join(", ")) };
        format!("{}: {}{}", path.escape_debug(), finding.what, tensors.escape_debug())
    });
    rows.list("found damaged", &found.collect::<Vec<_>>());
    rows.some("last scrub", info.last_scrub.as_ref().map(last_scrub));
    let copy = info.second_copy.iter().flat_map(|copy| [second_copy::lines(copy), second_copy::problems(copy)]);
    rows.list("second copy", &copy.flatten().collect::<Vec<_>>());
    rows.list("follows", &info.following.as_ref().map(following::lines).unwrap_or_default());
    if !info.quarantine.is_empty() {
        let entries = count(info.quarantine.len() as u64, "entry", "entries");
        let bytes = humane(info.quarantine.iter().map(|entry| entry.bytes).sum());
        rows.add("quarantine", format!("{entries}, {bytes}; `tensorfs restore` brings one back, or drops it"));
        let named = info.quarantine.iter().map(|entry| {
            let path = entry.note.as_ref().and_then(|note| note.path.as_deref()).unwrap_or("nobody knows where from");
            format!("{}: {path}, {}", entry.name, humane(entry.bytes))
        });
        rows.list("", &named.collect::<Vec<_>>());
    }
    rows.0
}

fn state(info: &Info) -> String {
    match (info.state, info.pid) {
        (State::Mounted, Some(pid)) => format!("mounted by process {pid}, tensorfs {}", info.version),
        (State::Mounted, None) => "mounted".to_owned(),
        (State::Detached, pid) => format!(
            "not mounted; {} closes it, or serves files that are still open",
            pid.map_or_else(|| "a server".to_owned(), |pid| format!("process {pid}"))
        ),
        (State::Clean, _) => "not mounted, closed in order".to_owned(),
        (State::UnsafeShutdown, _) => "not mounted; its server did not close it, the next mount recovers it".to_owned(),
    }
}

fn keeper(keeper: &KeeperInfo) -> String {
    let watched = match keeper.pid {
        Some(pid) => format!("process {pid} keeps watch over the server"),
        None => "it has died: nobody keeps watch over the server".to_owned(),
    };
    match (&keeper.reason, keeper.takeovers) {
        (_, 0) => watched,
        (Some(reason), times) => format!("{watched}; taken over {}, last after {reason}", often(times)),
        (None, times) => format!("{watched}; taken over {}", often(times)),
    }
}

fn often(times: u32) -> String {
    if times == 1 { "once".to_owned() } else { format!("{times} times") }
}

fn durability(info: &Info) -> Option<String> {
    let when = info.durability?;
    Some(match info.commit_seconds {
        Some(seconds) => format!("when {when} returns; the rest within {seconds} s"),
        None => format!("when {when} returns"),
    })
}

fn passthrough(info: &Info) -> String {
    match &info.passthrough_reason {
        _ if info.passthrough => "yes, the kernel moves the bytes".to_owned(),
        Some(reason) => format!("no: {reason}"),
        None => "no".to_owned(),
    }
}

fn latency(info: &Info) -> String {
    match &info.latency_reason {
        _ if info.latency => "auto, processors sleep lightly while requests arrive".to_owned(),
        Some(reason) => format!("processors sleep as they like: {reason}"),
        None => "processors sleep as they like".to_owned(),
    }
}

/// The kinds of request that came most often.
fn requests(info: &Info) -> Option<String> {
    const MOST: usize = 8;
    let mut kinds = info.counters.requests();
    let total: u64 = kinds.iter().map(|(_, count)| count).sum();
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let named = kinds.iter().filter(|(_, count)| *count > 0).take(MOST).map(|(kind, count)| format!("{count} {kind}"));
    let named: Vec<String> = named.collect();
    (total > 0).then(|| format!("{total}: {}", named.join(", ")))
}

fn used(info: &Info) -> String {
    let percent = info.used as f64 / info.capacity.max(1) as f64 * 100.0;
    let whose = if info.limit.is_some() { "its limit" } else { "the host; no limit" };
    let available = info.available.map_or_else(String::new, |available| format!("; {} available", humane(available)));
    format!("{} of {} ({percent:.1} %), {whose}{available}", humane(info.used), humane(info.capacity))
}

fn tier(tier: &TierInfo) -> String {
    let mut text = format!("{}: {} in {}", tier.name, humane(tier.used), count(tier.files, "file", "files"));
    if tier.volatile {
        text.push_str(", volatile");
    }
    if tier.lost > 0 {
        text.push_str(&format!(", {} lost", tier.lost));
    }
    match tier.state {
        TierState::Ready => text.push_str(&format!(", {} free", humane(tier.free))),
        TierState::Missing => text.push_str(&format!(", missing: {}", tier.reason.as_deref().unwrap_or_default())),
        TierState::Away if tier.files == 0 => text.push_str(", all of its files are here"),
        TierState::Away => text
            .push_str(&format!(", away: {} that come when they are opened, or in the background", humane(tier.bytes))),
        TierState::Lost => text.push_str(", lost with the last boot of the machine"),
    }
    if tier.passthrough == Some(false) && tier.state == TierState::Ready {
        text.push_str(", no passthrough");
    }
    format!("{text} ({})", tier.directory)
}

/// The processes that look into files, if there were any.
fn readers(info: &Info) -> Option<String> {
    let readers = &info.readers;
    let mut text = format!("{} started", readers.started);
    for (count, what) in [(readers.failed, "failed"), (readers.given_up, "not wanted any more")] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    if !readers.not_locked.is_empty() {
        text.push_str(&format!("; not locked in: {}", readers.not_locked.join("; ")));
    }
    (readers.started > 0).then_some(text)
}

fn flushes(info: &Info) -> Option<String> {
    let made = &info.flushes;
    (info.state == State::Mounted).then(|| {
        format!(
            "{} of the log, {} of segments, {} of directories, {} of the whole host since this server began",
            made.log, made.segments, made.directories, made.host
        )
    })
}

/// Of a pool in which files are damaged nobody knows what they have lost, and when.
fn recovery(recovery: &Recovery, is_damaged: bool, has_left: bool) -> Option<String> {
    let lost = if is_damaged { "" } else { "; nothing that was accepted is lost" };
    let mut text = match recovery.kind {
        Shutdown::Clean => return None,
        Shutdown::ServerKilled if recovery.outlived => {
            "programs of an earlier mount could still write when the one before this was unmounted".to_owned()
        }
        Shutdown::ServerKilled if recovery.left => {
            format!("the server before this one could not bring everything to order{lost}")
        }
        Shutdown::ServerKilled if recovery.unwritten => {
            "the disk failed before the server before this one ended".to_owned()
        }
        Shutdown::ServerKilled if has_left && recovery.dropped_transactions == 0 => return None,
        Shutdown::ServerKilled => {
            format!("the server before this one was killed, or its disk failed before it ended{lost}")
        }
        Shutdown::PowerLoss => "the machine went down before; back to the last commit".to_owned(),
    };
    if recovery.dropped_transactions > 0 {
        text.push_str(&format!(", {} newer operations undone", recovery.dropped_transactions));
    }
    Some(text)
}

struct Rows(String);

impl Rows {
    fn add(&mut self, label: &str, value: impl Display) {
        let value = text::plain(&value.to_string());
        for (n, line) in wrap(&value, WIDTH - LABELS).into_iter().enumerate() {
            let label = if n == 0 { label } else { "" };
            self.0.push_str(&format!("{label:LABELS$}{line}\n"));
        }
    }

    fn some(&mut self, label: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.add(label, value);
        }
    }

    /// One line each, and not too many.
    fn list(&mut self, label: &str, values: &[String]) {
        const MOST: usize = 5;
        for (n, value) in values.iter().take(MOST).enumerate() {
            self.add(if n == 0 { label } else { "" }, value);
        }
        if values.len() > MOST {
            self.add("", format!("and {} more", values.len() - MOST));
        }
    }
}

/// Breaks at spaces. A word that is too long, a path say, stays whole.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("never empty");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_at_spaces() {
        assert_eq!(wrap("a bb ccc", 4), ["a bb", "ccc"]);
        assert_eq!(wrap("/a/long/path x", 4), ["/a/long/path", "x"]);
        assert_eq!(wrap("", 4), [""]);
    }

    #[test]
    fn aligns_and_stays_narrow() {
        let mut rows = Rows(String::new());
        rows.add("state", "word ".repeat(40).trim_end());
        rows.list("damaged", &["a"; 7].map(str::to_owned));
        let lines: Vec<&str> = rows.0.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{}", rows.0);
        assert!(lines[1].starts_with("               word"));
        assert_eq!(lines.last(), Some(&"               and 2 more"));
    }
}
