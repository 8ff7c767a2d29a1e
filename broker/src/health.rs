//! The health of the server, for `freezeframe doctor` and `GET /v1/health`: findings with advice.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use engine::Engine;
use history_api::ServerHealth;
use history_documents::{HealthFinding, HealthResponse};
use rustix::process::{Resource, getrlimit};
use storage::disk::VolumeBytes;

use crate::control::{BACKUP_LONG, ClockStatus};
use crate::dynamic_settings::NamedTls;
use crate::process;
use crate::status::{ServerParts, ServerStatus};

/// Below this share of the disk, the operator should make room; below the second, soon nothing can
/// be written.
const FREE_PERCENT_LOW: u128 = 10;
const FREE_PERCENT_LEAST: u128 = 3;
/// A disk that takes longer for a durable write delays every producer that waits for it.
const SYNC_SLOW: Duration = Duration::from_millis(20);
/// From this share of a limit on, the operator should look.
const MUCH_PERCENT: u64 = 90;
/// A certificate that ends within this many days is a warning; within the second number, an error.
const CERTIFICATE_SOON_DAYS: u64 = 30;
const CERTIFICATE_NOW_DAYS: u64 = 3;

/// Warnings about listeners that let strangers do something, as the start found them.
#[derive(Debug, Default)]
pub(crate) struct ListenerWarnings(Vec<String>);

impl ListenerWarnings {
    /// Logs a warning, and keeps it for the doctor.
    pub(crate) fn warn(&mut self, warning: String) {
        tracing::warn!("{warning}; docs/SECURITY.md says how to lock it down");
        self.0.push(warning);
    }
}

/// Looks at the parts of the server.
pub(crate) struct BrokerHealth {
    /// The status has the parts, and one of them has this.
    status: Weak<ServerStatus>,
    started: Instant,
    data_dir: PathBuf,
    warnings: ListenerWarnings,
    tls: Vec<NamedTls>,
}

impl BrokerHealth {
    pub(crate) fn new(
        status: &Arc<ServerStatus>,
        data_dir: PathBuf,
        warnings: ListenerWarnings,
        tls: Vec<NamedTls>,
    ) -> BrokerHealth {
        let started = Instant::now();
        BrokerHealth { status: Arc::downgrade(status), started, data_dir, warnings, tls }
    }
}

impl ServerHealth for BrokerHealth {
    fn look(&self) -> HealthResponse {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let mut findings = Vec::new();
        if let Some(status) = self.status.upgrade() {
            findings.push(readiness(&status, self.started.elapsed()));
            if let Some(server) = status.parts() {
                findings.push(clock(&ClockStatus::of(server.engine.timekeeper()), &self.data_dir));
                findings.push(disk(&self.data_dir, &server.engine));
                findings.extend(contents(server));
            }
        }
        findings.push(directory_finding(&self.data_dir));
        findings.push(descriptors(process::open_files(), getrlimit(Resource::Nofile).current));
        findings.extend(listeners(&self.warnings));
        findings.extend(self.tls.iter().map(|(name, tls)| match tls.certificates_end() {
            Ok(end) => certificate(name, end, SystemTime::now()),
            Err(error) => HealthFinding::warning(
                "certificate",
                format!("{name}: {error}; the last that could be read is in use"),
                "mend the file: it is read again when it changes",
            ),
        }));
        HealthResponse { version, findings }
    }
}

fn readiness(status: &ServerStatus, running: Duration) -> HealthFinding {
    match status.readiness() {
        Ok(_) => {
            HealthFinding::ok("server", format!("takes writes, {} after its start", span(running)))
        }
        Err(reason) => HealthFinding::error(
            "server",
            reason,
            "look into its log; a fenced clock is confirmed below",
        ),
    }
}

fn clock(status: &ClockStatus, data_dir: &Path) -> HealthFinding {
    let confirm = || {
        format!("check `date`, then: freezeframe clock confirm --data-dir {}", data_dir.display())
    };
    if let Some(reason) = &status.fenced {
        return HealthFinding::error("clock", format!("writes are fenced: {reason}"), confirm());
    }
    if let Some(reason) = &status.unconfirmed {
        return HealthFinding::warning("clock", reason.clone(), confirm());
    }
    if status.ahead_ms > status.skew_ms {
        let finding = format!("stamps are {} ms ahead of the wall clock", status.ahead_ms);
        return HealthFinding::warning("clock", finding, "wait until it has caught up, or mend it");
    }
    if status.clock_synchronised {
        let finding = format!("synchronised, and right within {} ms", status.clock_error_ms);
        return HealthFinding::ok("clock", finding);
    }
    HealthFinding::warning(
        "clock",
        format!("nothing synchronises it, and it is trusted within {} ms", status.skew_ms),
        "run chrony, ntpd or systemd-timesyncd on the server's machine",
    )
}

fn disk(data_dir: &Path, engine: &Engine) -> HealthFinding {
    let help = match engine.pins().all().len() {
        0 => "shorten retention, delete topics, or enlarge the disk".to_owned(),
        pins => format!(
            "shorten retention, remove some of {pins} pins (freezeframe pins), or enlarge the disk"
        ),
    };
    disk_finding(data_dir, &help)
}

/// Looks at the room on the disk of a data directory; `help` makes more. It may wait for the disk.
pub fn disk_finding(data_dir: &Path, help: &str) -> HealthFinding {
    match storage::disk::volume_bytes(data_dir) {
        Ok(volume) => room(volume, help),
        Err(error) => disk_failure("disk", &error),
    }
}

fn room(VolumeBytes { total, usable }: VolumeBytes, help: &str) -> HealthFinding {
    if total == 0 {
        return HealthFinding::ok("disk", "its file system does not say how large it is");
    }
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let finding = format!("{} of {} are free", gib(usable), gib(total));
    match u128::from(usable) * 100 / u128::from(total) {
        ..FREE_PERCENT_LEAST => HealthFinding::error("disk", finding, help),
        FREE_PERCENT_LEAST..FREE_PERCENT_LOW => HealthFinding::warning("disk", finding, help),
        _ => HealthFinding::ok("disk", finding),
    }
}

/// A disk that fails.
pub fn disk_failure(subject: &str, error: &io::Error) -> HealthFinding {
    HealthFinding::error(subject, error.to_string(), "look at the disk, and at the kernel's log")
}

/// Looks for other users who can open a data directory.
pub fn directory_finding(data_dir: &Path) -> HealthFinding {
    let subject = "data directory";
    match storage::is_open_to_others(data_dir) {
        Ok(false) => {
            HealthFinding::ok(subject, format!("{}, open to its owner alone", data_dir.display()))
        }
        Ok(true) => HealthFinding::warning(
            subject,
            "other users of its machine can open it",
            format!("chmod go-rwx {}", data_dir.display()),
        ),
        Err(error) => disk_failure(subject, &error),
    }
}

/// The findings about the store, the pins and the budgets.
fn contents(server: &ServerParts) -> Vec<HealthFinding> {
    let stats = server.engine.stats();
    let now = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    let mut findings = Vec::new();
    findings.push(writes(
        now(&stats.syncs),
        stats.sync_latency.counts().sum(),
        Duration::from_micros(now(&stats.sync_micros_max)),
    ));
    let corrupt = now(&server.kafka.metrics().corrupt_reads);
    if corrupt > 0 {
        findings.push(HealthFinding::error(
            "store",
            format!("the checksum of batches read from disk did not match {corrupt} times"),
            "stop the server, and run: freezeframe check DATA-DIR",
        ));
    }
    let (rebuilds, is_in_memory) = server.engine.catalog_rebuilds();
    if is_in_memory {
        findings.push(HealthFinding::warning(
            "catalog",
            format!("it lies in memory, for its disk failed ({rebuilds} times)"),
            "make room on the disk, and start the server again",
        ));
    }
    findings.push(pins(&server.engine));
    let maintenance = server.engine.core().maintenance();
    findings.extend(backup(maintenance.backup_age(), || maintenance.backup_held_bytes()));
    findings.extend(budgets(&server.engine));
    findings
}

fn writes(count: u64, total: Duration, longest: Duration) -> HealthFinding {
    let micros = u64::try_from(total.as_micros()).unwrap_or(u64::MAX);
    let Some(mean) = micros.checked_div(count).map(Duration::from_micros) else {
        return HealthFinding::ok("durable writes", "none yet");
    };
    let finding =
        format!("{} on average, {} at most, of {count}", milliseconds(mean), milliseconds(longest));
    writes_finding(mean, finding)
}

/// Judges the mean time of a write until it is on stable storage.
pub fn writes_finding(mean: Duration, finding: String) -> HealthFinding {
    if mean < SYNC_SLOW {
        return HealthFinding::ok("durable writes", finding);
    }
    let help =
        "producers wait for each: use a faster disk, or one whose cache survives a power cut";
    HealthFinding::warning("durable writes", finding, help)
}

fn pins(engine: &Engine) -> HealthFinding {
    let pins = engine.pins().all();
    let Some(oldest) = pins.iter().min_by_key(|pin| pin.at) else {
        return HealthFinding::ok("pins", "none holds anything back");
    };
    let now = engine.wall_now().0;
    let time_left = span(Duration::from_millis(oldest.expires.0.saturating_sub(now)));
    let past = span(Duration::from_millis(now.saturating_sub(oldest.at.bound().time().0)));
    let count = match pins.len() {
        1 => "1".to_owned(),
        count => format!("{count}; the oldest"),
    };
    let finding =
        format!("{count}: {} holds what was there {past} ago, for {time_left} more", oldest.name);
    HealthFinding::ok("pins", finding)
}

/// A backup that has run for long, or hangs. `held_bytes` looks at the disk.
fn backup(age: Option<Duration>, held_bytes: impl FnOnce() -> u64) -> Option<HealthFinding> {
    let age = age.filter(|age| *age >= BACKUP_LONG)?;
    let finding = format!(
        "one has run for {}, and keeps {} MiB that would be free",
        span(age),
        held_bytes() >> 20
    );
    let help = "wait for it, or end `freezeframe backup`: until then, no space is reclaimed";
    Some(HealthFinding::warning("backup", finding, help))
}

/// Budgets that an operator can raise and that are nearly full. The others come and go with what
/// clients do.
fn budgets(engine: &Engine) -> Vec<HealthFinding> {
    let mut findings = Vec::new();
    for usage in engine.budgets().usages() {
        let is_full = usage.used.saturating_mul(100) >= usage.limit.saturating_mul(MUCH_PERCENT);
        if is_full
            && usage.used > 0
            && let Some(setting) = usage.setting
        {
            let finding = format!("{}: {} of {} are taken", usage.name, usage.used, usage.limit);
            let help = format!("see who holds it (freezeframe budgets), or raise {setting}");
            findings.push(HealthFinding::warning("budget", finding, help));
        }
    }
    if findings.is_empty() {
        findings.push(HealthFinding::ok("budgets", "none is nearly full"));
    }
    findings
}

fn descriptors(open: Option<u64>, limit: Option<u64>) -> HealthFinding {
    let subject = "open files";
    match (open, limit) {
        (Some(open), Some(limit)) => {
            let finding = format!("{open} of {limit}, sockets with them");
            if open.saturating_mul(100) < limit.saturating_mul(MUCH_PERCENT) {
                return HealthFinding::ok(subject, finding);
            }
            let help = "raise the limit (LimitNOFILE=, ulimit -Hn), or lower max.connections";
            HealthFinding::warning(subject, finding, help)
        }
        (Some(open), None) => HealthFinding::ok(subject, format!("{open}, without a limit")),
        (None, _) => HealthFinding::ok(subject, "not known: there is no /proc"),
    }
}

fn listeners(warnings: &ListenerWarnings) -> Vec<HealthFinding> {
    if warnings.0.is_empty() {
        let finding = "all listen on localhost, or require authentication";
        return vec![HealthFinding::ok("listeners", finding)];
    }
    let help = "see docs/SECURITY.md on how to lock it down";
    warnings.0.iter().map(|warning| HealthFinding::warning("listener", warning, help)).collect()
}

/// Compares a certificate's end with a time; `None` is an end that cannot be read.
fn certificate(listener: &str, end: Option<SystemTime>, now: SystemTime) -> HealthFinding {
    let subject = "certificate";
    let help = "put a new one in its place: the server reads it within a second";
    let Some(end) = end else {
        let finding = format!("{listener}: its expiry date cannot be read");
        return HealthFinding::warning(subject, finding, help);
    };
    match end.duration_since(now) {
        Err(past) => {
            let finding = format!("{listener}: it ended {} ago", span(past.duration()));
            HealthFinding::error(subject, finding, help)
        }
        Ok(time_left) => {
            let finding = format!("{listener}: it ends in {}", span(time_left));
            match time_left.as_secs() / 86_400 {
                ..CERTIFICATE_NOW_DAYS => HealthFinding::error(subject, finding, help),
                CERTIFICATE_NOW_DAYS..CERTIFICATE_SOON_DAYS => {
                    HealthFinding::warning(subject, finding, help)
                }
                _ => HealthFinding::ok(subject, finding),
            }
        }
    }
}

/// A time span in its largest unit: "12 days".
fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    let units = [(86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")];
    let fits = units.into_iter().find(|(length, _)| seconds >= *length);
    match fits {
        None => "0 seconds".to_owned(),
        Some((length, unit)) if seconds / length == 1 => format!("1 {unit}"),
        Some((length, unit)) => format!("{} {unit}s", seconds / length),
    }
}

fn milliseconds(span: Duration) -> String {
    format!("{:.1} ms", span.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use history_documents::HealthLevel::{Error, Ok as Well, Warning};

    use super::*;

    #[test]
    fn a_certificate_is_worse_the_sooner_it_ends() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_hours(24 * 365);
        let level = |end: Option<SystemTime>| certificate("SSL", end, now).level;
        let days = |days: u64| Duration::from_hours(24 * days);
        assert_eq!(level(Some(now + days(31))), Well);
        assert_eq!(level(Some(now + days(29))), Warning);
        assert_eq!(level(Some(now + days(2))), Error);
        assert_eq!(level(Some(now - days(1))), Error);
        assert_eq!(level(None), Warning);
        assert_eq!(certificate("SSL", Some(now - days(2)), now).found, "SSL: it ended 2 days ago");
    }

    #[test]
    fn a_backup_is_worth_a_look_once_it_has_run_for_an_hour() {
        let look = |minutes: u64| backup(Some(Duration::from_secs(60 * minutes)), || 7 << 20);
        assert_eq!(backup(None, || panic!("nobody asks the disk")), None);
        assert_eq!(look(59), None);
        let finding = look(125).unwrap();
        assert_eq!(finding.level, Warning);
        assert_eq!(finding.found, "one has run for 2 hours, and keeps 7 MiB that would be free");
    }

    #[test]
    fn a_disk_is_worse_the_less_is_free() {
        let level = |usable: u64| room(VolumeBytes { total: 1000, usable }, "make room").level;
        assert_eq!([29, 30, 99, 100].map(level), [Error, Warning, Warning, Well]);
        // A network's file system may say that it has no end.
        let endless = VolumeBytes { total: 1 << 63, usable: 1 << 63 };
        assert_eq!(room(endless, "").level, Well);
        // A file system in memory may not say.
        assert_eq!(room(VolumeBytes { total: 0, usable: 0 }, "").level, Well);
    }

    #[test]
    fn a_clock_that_is_fenced_is_worse_than_one_in_doubt() {
        let well = ClockStatus {
            wall_ms: 1,
            fenced: None,
            unconfirmed: None,
            ahead_ms: 0,
            clock_synchronised: true,
            clock_error_ms: 3,
            skew_ms: 500,
        };
        let look = |status: &ClockStatus| clock(status, Path::new("d")).level;
        assert_eq!(look(&well), Well);
        assert_eq!(look(&ClockStatus { clock_synchronised: false, ..well.clone() }), Warning);
        assert_eq!(look(&ClockStatus { ahead_ms: 501, ..well.clone() }), Warning);
        let doubted = ClockStatus { unconfirmed: Some("?".to_owned()), ..well };
        assert_eq!(look(&doubted), Warning);
        assert_eq!(look(&ClockStatus { fenced: Some("it jumped".to_owned()), ..doubted }), Error);
    }

    #[test]
    fn files_writes_and_spans_are_told_in_words() {
        assert_eq!(descriptors(Some(89), Some(100)).level, Well);
        assert_eq!(descriptors(Some(90), Some(100)).level, Warning);
        assert_eq!(descriptors(Some(90), None).level, Well);
        let quick = writes(2, Duration::from_millis(3), Duration::from_millis(2));
        assert_eq!(quick.found, "1.5 ms on average, 2.0 ms at most, of 2");
        let overflowing = u64::from(u32::MAX) + 1;
        assert_eq!(writes(overflowing, Duration::from_micros(overflowing), SYNC_SLOW).level, Well);
        assert_eq!(writes(0, Duration::ZERO, Duration::ZERO).level, Well);
        assert_eq!(writes(1, SYNC_SLOW, SYNC_SLOW).level, Warning);
        for (seconds, words) in [(0, "0 seconds"), (61, "1 minute"), (7200, "2 hours")] {
            assert_eq!(span(Duration::from_secs(seconds)), words);
        }
        assert_eq!(listeners(&ListenerWarnings::default())[0].level, Well);
        assert_eq!(listeners(&ListenerWarnings(vec!["open".to_owned()]))[0].level, Warning);
    }
}
