//! The audit log: who changed what, who was denied what, and which logins failed.
//!
//! Its events are events of `tracing` with a target of their own, so that a filter or a collector
//! can tell them from everything else. Every change is logged. Denials and failed logins are logged
//! at once, and then once a minute: a client may cause thousands a second. All are counted.

use std::fmt::{self, Display, Write};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use storage::LogThrottles;
use tokio::time::Instant;

/// The target of the events.
pub const AUDIT_TARGET: &str = "freezeframe::audit";

/// The most characters of a name in an event. Clients choose names.
const TEXT_CHARS_MAX: usize = 500;

/// The requester of an operation.
#[derive(Clone, Copy, Debug)]
pub struct AuditSubject<'a> {
    /// `User:alice`; for a client of ZooKeeper its ids.
    pub principal: &'a str,
    /// The address of the client, or what it came through.
    pub address: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditOutcome {
    /// A change was made.
    Success,
    /// The requester may not do what it asked for.
    Denied,
    /// A login failed.
    Failure,
}

impl AuditOutcome {
    pub const ALL: [AuditOutcome; 3] =
        [AuditOutcome::Success, AuditOutcome::Denied, AuditOutcome::Failure];

    pub fn as_str(self) -> &'static str {
        match self {
            AuditOutcome::Success => "success",
            AuditOutcome::Denied => "denied",
            AuditOutcome::Failure => "failure",
        }
    }
}

#[derive(Debug)]
pub struct AuditLog {
    begun: Instant,
    counts: [AtomicU64; AuditOutcome::ALL.len()],
    /// By hashes, so that long names take no memory.
    throttles: Mutex<LogThrottles<u64>>,
    hasher: RandomState,
}

impl AuditLog {
    pub(crate) fn new() -> AuditLog {
        let (counts, throttles) = Default::default();
        AuditLog { begun: Instant::now(), counts, throttles, hasher: RandomState::new() }
    }

    /// The number of events with this outcome, those that were not logged too.
    pub fn count(&self, outcome: AuditOutcome) -> u64 {
        self.counts[outcome as usize].load(Ordering::Relaxed)
    }

    /// Records a change that was made.
    pub fn record_change(
        &self,
        by: AuditSubject<'_>,
        operation: impl Display,
        resource: impl Display,
    ) {
        self.add(AuditOutcome::Success);
        tracing::info!(
            target: AUDIT_TARGET,
            principal = %OneLine(by.principal),
            address = %OneLine(by.address),
            %operation,
            resource = %OneLine(resource),
            outcome = AuditOutcome::Success.as_str(),
            "changed"
        );
    }

    /// Records a request that no rule allows.
    pub fn record_denial(
        &self,
        by: AuditSubject<'_>,
        operation: impl Display,
        resource: impl Display,
    ) {
        self.add(AuditOutcome::Denied);
        let (operation, resource) = (operation.to_string(), resource.to_string());
        if let Some(times) = self.unreported((by.principal, &operation, &resource)) {
            tracing::warn!(
                target: AUDIT_TARGET,
                principal = %OneLine(by.principal),
                address = %OneLine(by.address),
                operation,
                resource = %OneLine(resource),
                outcome = AuditOutcome::Denied.as_str(),
                times,
                "denied"
            );
        }
    }

    /// Records a login that failed. `way` is how the client wanted to log in. The name that it gave
    /// is left out, because people type their password there.
    pub fn record_login_failure(&self, address: &str, way: impl Display, why: &str) {
        self.add(AuditOutcome::Failure);
        let way = way.to_string();
        if let Some(times) = self.unreported((address, &way)) {
            tracing::warn!(
                target: AUDIT_TARGET,
                principal = "",
                address,
                operation = "Login",
                resource = %OneLine(way),
                outcome = AuditOutcome::Failure.as_str(),
                why = %OneLine(why),
                times,
                "a login failed"
            );
        }
    }

    fn add(&self, outcome: AuditOutcome) {
        self.counts[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The number of such events since the last one that was logged, if another one is due.
    fn unreported(&self, event: impl Hash) -> Option<u64> {
        let key = self.hasher.hash_one(event);
        self.throttles.lock().record_failure(key, self.begun.elapsed())
    }
}

/// A text without control characters, and not too long.
struct OneLine<T>(T);

impl<T: Display> Display for OneLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = OneLineWriter { out: f, left: TEXT_CHARS_MAX };
        write!(text, "{}", self.0)
    }
}

struct OneLineWriter<'a, 'b> {
    out: &'a mut fmt::Formatter<'b>,
    left: usize,
}

impl Write for OneLineWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match self.left {
                0 => return Ok(()),
                1 => self.out.write_char('…')?,
                _ if character.is_control() => write!(self.out, "{}", character.escape_default())?,
                _ => self.out.write_char(character)?,
            }
            self.left -= 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_is_counted() {
        let audit = AuditLog::new();
        let alice = AuditSubject { principal: "User:alice", address: "10.0.0.1" };
        for _ in 0..3 {
            audit.record_denial(alice, "READ", "TOPIC orders");
        }
        audit.record_change(alice, "CreateTopics", "TOPIC orders");
        audit.record_login_failure(alice.address, "PLAIN", "the password is wrong");
        audit.record_login_failure(alice.address, "PLAIN", "the password is wrong");
        assert_eq!(AuditOutcome::ALL.map(|outcome| audit.count(outcome)), [1, 3, 2]);
    }

    #[test]
    fn what_a_principal_is_denied_is_reported_once_and_every_other_denial_too() {
        let audit = AuditLog::new();
        let reports = |event: (&str, &str)| {
            (0..100).filter_map(|_| audit.unreported(event)).collect::<Vec<_>>()
        };
        assert_eq!(reports(("User:alice", "orders")), [1]);
        assert_eq!(reports(("User:alice", "payments")), [1]);
        assert_eq!(reports(("User:bob", "orders")), [1]);
        assert!(reports(("User:alice", "orders")).is_empty());
    }

    #[test]
    fn a_name_cannot_forge_a_line_or_fill_the_log() {
        assert_eq!(OneLine("a\nWARN \u{1b}[31mb").to_string(), "a\\nWARN \\u{1b}[31mb");
        let long = OneLine("x".repeat(100_000)).to_string();
        assert_eq!(long.chars().count(), TEXT_CHARS_MAX);
        assert!(long.ends_with("x…"));
        assert_eq!(OneLine("é".repeat(499)).to_string(), "é".repeat(499));
    }
}
