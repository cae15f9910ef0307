//! The file `.tensorfs/metrics`: what there is to count of a pool and its mount, as OpenMetrics text.

use std::borrow::Cow;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use tensorfs_layout::pool::READ_ONLY_HOST;
use tensorfs_layout::segment::TierState;

use super::info::Info;
use crate::file::Files;
use crate::handover::has_left;
use crate::store::Latencies;

/// What all names begin with.
const PREFIX: &str = "tensorfs";

/// No example of a request is kept.
type NoExample<'a> = Option<&'a Exemplar<[(&'static str, &'static str); 0], u64>>;

/// What is told, as it was at one moment.
#[derive(Debug)]
struct Snapshot {
    info: Info,
    latencies: Vec<(&'static str, Latencies)>,
    /// Seconds since the last round of the background commit was over.
    lag: f64,
    /// Transactions that a power loss would undo.
    uncommitted: u64,
}

/// The text.
pub(super) fn text(files: &Files) -> Result<String, fmt::Error> {
    let store = files.store();
    let pool = store.pool();
    let lag = store.bells().rounds().since().as_secs_f64();
    let info = Info::gather(files, false);
    let label = |path: &std::path::Path| Cow::from(path.to_string_lossy().into_owned());
    let mount = info.mountpoint.as_deref().map(label).unwrap_or_default();
    let labels = [("mount".into(), mount), ("pool".into(), label(&info.pool))];
    let snapshot = Snapshot {
        latencies: store.counters().latencies(),
        lag,
        uncommitted: pool.newest().0.saturating_sub(pool.horizon().0),
        info,
    };
    let mut registry = Registry::with_prefix_and_labels(PREFIX, labels.into_iter());
    registry.register_collector(Box::new(snapshot));
    let mut said = String::new();
    text::encode(&mut said, &registry)?;
    Ok(said)
}

/// What is said, one family of metrics after the other.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    /// A size or a number of things.
    fn size(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn sizes<'l>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl IntoIterator<Item = (&'l str, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        values.into_iter().try_for_each(|(of, value)| family.encode_family(&[(label, of)])?.encode_gauge(&value))
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut counter = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        counter.encode_counter(&value, NoExample::None)
    }

    fn counters<'l>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl IntoIterator<Item = (&'l str, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        values
            .into_iter()
            .try_for_each(|(of, value)| family.encode_family(&[(label, of)])?.encode_counter(&value, NoExample::None))
    }

    fn latencies(&mut self, name: &str, help: &str, kinds: &[(&'static str, Latencies)]) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (kind, took) in kinds {
            let answered = took.buckets.iter().map(|(_, count)| count).sum();
            let labels = [("kind", *kind)];
            let mut histogram = family.encode_family(&labels)?;
            let none = None::<&std::collections::HashMap<usize, Exemplar<[(&str, &str); 0], f64>>>;
            histogram.encode_histogram(took.seconds, answered, &took.buckets, none)?;
        }
        Ok(())
    }
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        self.server(&mut page)?;
        self.requests(&mut page)?;
        self.durability(&mut page)?;
        self.space(&mut page)?;
        self.health(&mut page)?;
        self.second_copy(&mut page)
    }
}

impl Snapshot {
    fn server(&self, page: &mut Page<'_>) -> fmt::Result {
        let info = &self.info;
        page.sizes("build_info", "The server's version", "version", [(&*info.version, 1)])?;
        page.size("passthrough", "1 if the kernel moves the bytes of files", info.passthrough.into())?;
        let at_fault = info.read_only.as_ref().is_some_and(|reason| reason != READ_ONLY_HOST);
        page.size("read_only", "1 if the pool takes no changes, and not as its host takes none", at_fault.into())?;
        page.counter("unsafe_shutdowns", "Openings of the pool after it had not been closed", info.unsafe_shutdowns)?;
        let takeovers = info.keeper.as_ref().map_or(0, |keeper| keeper.takeovers.into());
        page.counter("takeovers", "Servers that took the place of one that died or left, since the mount", takeovers)?;
        if let Some(keeper) = &info.keeper {
            page.size("keeper_up", "1 if the mount's keeper lives", keeper.pid.is_some().into())?;
            let died = keeper.reason.as_deref().is_some_and(|reason| !has_left(reason));
            page.size("server_died", "1 if the server before this one died, and has not left", died.into())?;
        }
        let readers = &info.readers;
        let ended = [("failed", readers.failed), ("not_wanted", readers.given_up)];
        page.counter("readers_started", "Processes started to look into files", readers.started)?;
        page.counters("readers_killed", "Such processes that failed, or were ended early", "reason", ended)
    }

    fn requests(&self, page: &mut Page<'_>) -> fmt::Result {
        let counts = &self.info.counters;
        page.counters("requests", "Requests of the kernel that have come", "kind", counts.requests())?;
        let help = "Time from the arrival of a request to its answer";
        page.latencies("request_duration_seconds", help, &self.latencies)?;
        page.counter("read_bytes", "Bytes of files read through the server", counts.read_bytes)?;
        page.counter("written_bytes", "Bytes of files written through the server", counts.write_bytes)?;
        page.counter("copied_bytes", "Bytes copied by copy_file_range", counts.copied_bytes)?;
        let opens = [("passthrough", counts.opened_passthrough), ("server", counts.opened_server)];
        page.counters("opens", "Files opened, by who moves their bytes", "by", opens)?;
        page.counter("panics", "Requests that ended in a panic and were answered with an I/O error", counts.panics)
    }

    fn durability(&self, page: &mut Page<'_>) -> fmt::Result {
        let (info, counts) = (&self.info, &self.info.counters);
        let by = [("client", counts.commits_waited), ("background", counts.commits_background)];
        page.counters("commits", "Commits, by who asked for them", "by", by)?;
        page.counter("commit_failures", "Commits that failed", counts.commits_failed)?;
        page.gauge(
            "commit_interval_seconds",
            "Time between commits in the background",
            info.commit_seconds.unwrap_or(0.0),
        )?;
        page.gauge("commit_lag_seconds", "Time since the background commit was last done with everything", self.lag)?;
        let longest = info.longest_commit_seconds.unwrap_or(0.0);
        page.gauge("commit_lag_max_seconds", "The longest such time since this server began", longest)?;
        page.size("uncommitted_transactions", "Transactions that a power loss would undo", self.uncommitted)?;
        let made = &info.flushes;
        let of = [("log", made.log), ("segment", made.segments), ("directory", made.directories), ("host", made.host)];
        page.counters("flushes", "Flushes that the host was asked for", "of", of)
    }

    fn space(&self, page: &mut Page<'_>) -> fmt::Result {
        let info = &self.info;
        page.size("capacity_bytes", "What the pool can hold: its limit, or the host's filesystem", info.capacity)?;
        page.size("available_bytes", "What may still be written", info.available.unwrap_or(0))?;
        page.size("used_bytes", "What the pool takes of the host", info.used)?;
        page.size("log_bytes", "Size of the log", info.log_bytes)?;
        page.size("files", "Regular files", info.files)?;
        page.size("directories", "Directories", info.directories)?;
        let tiers = || info.tiers.iter();
        page.sizes(
            "tier_used_bytes",
            "Bytes of files in a tier",
            "tier",
            tiers().map(|tier| (&*tier.name, tier.used)),
        )?;
        let sizes = tiers().map(|tier| (&*tier.name, tier.total));
        page.sizes("tier_size_bytes", "Size of the filesystem that a tier is on", "tier", sizes)?;
        let free = tiers().map(|tier| (&*tier.name, tier.free));
        page.sizes("tier_free_bytes", "What is free of that filesystem", "tier", free)?;
        page.sizes("tier_files", "Regular files in a tier", "tier", tiers().map(|tier| (&*tier.name, tier.files)))?;
        let bytes = tiers().map(|tier| (&*tier.name, tier.bytes));
        page.sizes("tier_file_bytes", "Sizes of the files in a tier together", "tier", bytes)?;
        let ready =
            tiers().map(|tier| (&*tier.name, u64::from(matches!(tier.state, TierState::Ready | TierState::Away))));
        page.sizes("tier_up", "1 if a tier can be used", "tier", ready)?;
        page.size("pending_removals", "Deleted files whose bytes the host still holds", info.pending_removals)?;
        page.size("refused_removals", "Deleted files whose bytes the host would not remove", info.refused_removals)?;
        page.size("quarantine_entries", "Entries in quarantine", info.quarantine.len() as u64)?;
        let quarantined = info.quarantine.iter().map(|entry| entry.bytes).sum();
        page.size("quarantine_bytes", "Bytes in quarantine", quarantined)
    }

    fn health(&self, page: &mut Page<'_>) -> fmt::Result {
        let info = &self.info;
        page.size("damaged_files", "Files that may have lost bytes", info.damaged_files.len() as u64)?;
        page.size("damaged_places", "Places that a scrub found damaged", info.damage_found.len() as u64)?;
        page.size("unsealed_files", "Files that wait for their checksums", info.unsealed_files)?;
        page.counter("sealed_files", "Files that got their checksums since this server began", info.counters.sealed)?;
        let Some(scrub) = &info.last_scrub else { return Ok(()) };
        let ended = scrub.time.sec as f64 + f64::from(scrub.time.nsec) / 1e9;
        page.gauge("last_scrub_timestamp_seconds", "When the last scrub ended, since 1970", ended)?;
        page.size("last_scrub_verified_bytes", "Bytes that the last scrub verified", scrub.verified_bytes)?;
        page.size("last_scrub_damaged_places", "Damaged places that were known when it ended", scrub.findings)
    }

    fn second_copy(&self, page: &mut Page<'_>) -> fmt::Result {
        let Some(copy) = &self.info.second_copy else { return Ok(()) };
        page.size("remote_carrier_up", "1 if a carrier is at work", copy.carrier.into())?;
        page.size("remote_failed", "1 if a carrier failed, and none has succeeded since", copy.error.is_some().into())?;
        if let Some(carried) = copy.carried {
            page.gauge("remote_carried_timestamp_seconds", "When it was as the pool was last", carried as f64)?;
        }
        if let Some(seconds) = copy.seconds_behind {
            page.size("remote_lag_seconds", "For how long the second copy has not been as the pool is", seconds)?;
        }
        let transactions = copy.transactions_behind;
        page.size("remote_behind_transactions", "Durable transactions that the second copy has not", transactions)?;
        page.size("remote_behind_files", "Files of which it has not all bytes", copy.files_behind)?;
        page.size("remote_behind_bytes", "Bytes of these that are to be looked at", copy.bytes_behind)?;
        page.size("remote_incomplete_files", "Files of it that were open, or are damaged", copy.incomplete_files)?;
        page.counter("remote_put_bytes", "Bytes that were put since it was set", copy.put_bytes)?;
        page.counter("remote_mended_files", "Damaged files that were mended with it", copy.mended_files)?;
        page.size("remote_unmended_files", "Damaged files that could not be mended with it", copy.unmended_files)
    }
}
