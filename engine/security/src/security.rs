//! The log of security, and the state that follows from it.
//!
//! Invariants:
//! - An entry is appended and applied under one lock, on a thread that a caller cannot abandon: the
//!   state is always that of a whole log.
//! - A snapshot is the state after all entries before it. Nothing comes between the two, for the
//!   same lock.
//! - Each change names the last snapshot before it. So a moment is read from one snapshot and the
//!   entries behind it, however long the log is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine_core::numbering::{KIND_SECURITY, SECURITY_LOG};
use engine_core::{AuditLog, AuditSubject, EngineCore, EngineError, SeekError, WaitPolicy};
use hlc::{Cut, Hlc, SysTime};
use parking_lot::{RwLock, RwLockReadGuard};
use storage::{Log, Offset};

use crate::authorizer::AuthorizerOptions;
use crate::entry::{Actor, SecurityChange, SecurityEntry};
use crate::error::SecurityError;
use crate::logins::Logins;
use crate::name_key::NameKey;
use crate::state::SecurityState;
use crate::token::TokenKey;

#[derive(Clone, Debug)]
pub struct SecurityOptions {
    pub authorizer: AuthorizerOptions,
    /// The key of delegation tokens; `None` if there are none.
    pub token_key: Option<TokenKey>,
    /// The key that keyed hashes of names follow from; `None` for one of this process.
    pub name_key: Option<NameKey>,
    /// The approximate bytes that users, access control lists and quotas may take.
    pub bytes_max: usize,
    /// No snapshot is written before so many bytes of changes came, nor before as many as the last
    /// one has.
    pub snapshot_bytes_min: usize,
}

impl Default for SecurityOptions {
    fn default() -> SecurityOptions {
        SecurityOptions {
            authorizer: AuthorizerOptions::default(),
            token_key: None,
            name_key: None,
            bytes_max: 64 << 20,
            snapshot_bytes_min: 64 << 10,
        }
    }
}

/// A change: its time, its author, and its content.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeLogEntry {
    /// Its offset in the log.
    pub offset: Offset,
    pub stamp: Hlc,
    pub by: Actor,
    pub changes: Vec<SecurityChange>,
}

/// Some entries of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeLogPage {
    /// The moment that was read.
    pub until: Cut,
    pub frontier: Hlc,
    pub entries: Vec<ChangeLogEntry>,
    /// The offset to go on at, if there are more.
    pub next: Option<Offset>,
}

/// The newest snapshot, and the bytes of entries since: they decide when the next one is due.
#[derive(Clone, Copy, Debug, Default)]
struct SnapshotProgress {
    snapshot: Option<Offset>,
    snapshot_bytes: usize,
    bytes_since: usize,
}

impl SnapshotProgress {
    fn is_due(&self, bytes_min: usize) -> bool {
        self.bytes_since >= self.snapshot_bytes.max(bytes_min)
    }
}

/// The most bytes of entries on one page of the log; the last entry may exceed them.
const CHANGE_LOG_BYTES: usize = 4 << 20;

/// Users, access control lists and quotas, now and as of any moment.
pub struct Security {
    core: Arc<EngineCore>,
    log: Arc<Log>,
    options: SecurityOptions,
    name_key: NameKey,
    logins: Logins,
    state: RwLock<SecurityState>,
    /// Another number after each change of quotas, and 0 while there are none.
    quota_version: AtomicU64,
    /// Another number after each change.
    version: AtomicU64,
    /// Held while a state of the past is read.
    reading: Arc<tokio::sync::Mutex<()>>,
    /// Held from the decision to a change until it is applied.
    changing: Arc<tokio::sync::Mutex<SnapshotProgress>>,
}

impl Security {
    /// Reads the state from the log.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn open(core: Arc<EngineCore>, options: SecurityOptions) -> Result<Security, EngineError> {
        let log = core.store().log(SECURITY_LOG)?;
        let (state, progress) = read_until(&log, log.end())?;
        let quota_version = AtomicU64::new(quota_version(&state, &log));
        let (state, changing) = (RwLock::new(state), Arc::new(tokio::sync::Mutex::new(progress)));
        let name_key = options.name_key.clone().unwrap_or_else(NameKey::random);
        let logins = Logins::new(&name_key, core.budgets());
        let (reading, version) = (Arc::default(), AtomicU64::new(0));
        let security = Security {
            core,
            log,
            options,
            name_key,
            logins,
            state,
            quota_version,
            version,
            reading,
            changing,
        };
        Ok(security)
    }

    pub fn options(&self) -> &SecurityOptions {
        &self.options
    }

    /// The key that keyed hashes of names follow from.
    pub fn name_key(&self) -> &NameKey {
        &self.name_key
    }

    /// State that all logins share.
    pub fn logins(&self) -> &Logins {
        &self.logins
    }

    /// The audit log.
    pub fn audit(&self) -> &AuditLog {
        self.core.audit()
    }

    /// The reading of the wall clock.
    pub(crate) fn wall_now(&self) -> SysTime {
        self.core.wall_now()
    }

    /// The state now. Nothing changes while the guard is held.
    pub fn state(&self) -> RwLockReadGuard<'_, SecurityState> {
        self.state.read()
    }

    /// Another number after each change. An authorization while it was the same still holds.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Another number after each change of quotas, and 0 while there are none.
    pub fn quota_version(&self) -> u64 {
        self.quota_version.load(Ordering::Acquire)
    }

    /// Makes the changes that `decide` returns, all at once; returns what else it returns. The
    /// state that it sees is the one that is changed.
    ///
    /// # Errors
    /// There would be too much, or the disk fails.
    pub async fn change<T: Send + 'static>(
        self: &Arc<Security>,
        by: Actor,
        decide: impl FnOnce(&SecurityState) -> (Vec<SecurityChange>, T) + Send + 'static,
    ) -> Result<T, SecurityError> {
        let changing = Arc::clone(&self.changing).lock_owned().await;
        let security = Arc::clone(self);
        let change = self.core.spawn_blocking(move || {
            let mut progress = changing;
            Ok(security.change_blocking(&mut progress, by, decide))
        });
        change.await?
    }

    fn change_blocking<T>(
        &self,
        progress: &mut SnapshotProgress,
        by: Actor,
        decide: impl FnOnce(&SecurityState) -> (Vec<SecurityChange>, T),
    ) -> Result<T, SecurityError> {
        let (changes, result) = decide(&self.state.read());
        if changes.is_empty() {
            return Ok(result);
        }
        self.check_size(&changes)?;
        let snapshot = progress.snapshot.map(|offset| offset.0);
        let entry = SecurityEntry::Changed { snapshot, by, changes };
        progress.bytes_since += self.append(&entry)?.0;
        let SecurityEntry::Changed { by, changes, .. } = &entry else { unreachable!("it is one") };
        let subject = AuditSubject { principal: &by.principal, address: &by.from };
        for change in changes {
            self.audit().record_change(subject, change.operation(), change);
        }
        {
            let mut state = self.state.write();
            changes.iter().for_each(|change| state.apply(change));
            if changes.iter().any(|change| matches!(change, SecurityChange::QuotasSet { .. })) {
                self.quota_version.store(quota_version(&state, &self.log), Ordering::Release);
            }
            self.version.fetch_add(1, Ordering::Release);
        }
        if progress.is_due(self.options.snapshot_bytes_min) {
            let snapshot = SecurityEntry::Snapshot(self.state.read().changes());
            // The change is made. Without a snapshot, the next change tries again.
            match self.append(&snapshot) {
                Ok((bytes, offset)) => {
                    *progress = SnapshotProgress {
                        snapshot: Some(offset),
                        snapshot_bytes: bytes,
                        bytes_since: 0,
                    };
                }
                Err(error) => {
                    tracing::warn!(%error, "no snapshot of users and access control lists")
                }
            }
        }
        Ok(result)
    }

    /// Refuses changes that would make the state too large. Changes that make it smaller are
    /// accepted in any case.
    fn check_size(&self, changes: &[SecurityChange]) -> Result<(), SecurityError> {
        let before = self.state.read().bytes();
        let mut added = SecurityState::default();
        changes.iter().for_each(|change| added.apply(change));
        let max = self.options.bytes_max;
        if added.bytes() == 0 || before + added.bytes() <= max {
            return Ok(());
        }
        // Replaced and removed values make room.
        let mut after = self.state.read().clone();
        changes.iter().for_each(|change| after.apply(change));
        let bytes = after.bytes();
        if bytes <= max.max(before) {
            return Ok(());
        }
        Err(SecurityError::TooMuch { bytes, max })
    }

    fn append(&self, entry: &SecurityEntry) -> Result<(usize, Offset), EngineError> {
        let payload = entry.encode();
        let bytes = payload.len();
        let receipt = self.core.append_event_blocking(SECURITY_LOG, KIND_SECURITY, payload)?;
        Ok((bytes, receipt.base))
    }

    /// The state as of `cut`; returns the cut that was read, and the frontier.
    /// One is read at a time: each takes as much memory as all that there was.
    ///
    /// # Errors
    /// The moment cannot be read.
    pub async fn at(
        &self,
        cut: Cut,
        when: WaitPolicy,
    ) -> Result<(Cut, Hlc, SecurityState), SeekError> {
        let (at, frontier) = self.core.wait_until_closed(cut, when).await?;
        let reading = Arc::clone(&self.reading).lock_owned().await;
        let log = Arc::clone(&self.log);
        let state = self.core.spawn_blocking(move || {
            let _reading = reading;
            let end = log.tip_at(at)?.end;
            Ok(read_until(&log, end)?.0)
        });
        Ok((at, frontier, state.await?))
    }

    /// The entries from the log's offset `from` on that `until` admits, until they have `count`
    /// changes, or 4 MiB.
    ///
    /// # Errors
    /// The moment cannot be read.
    pub async fn change_log(
        &self,
        from: Offset,
        until: Cut,
        when: WaitPolicy,
        count: usize,
    ) -> Result<ChangeLogPage, SeekError> {
        let (until, frontier) = self.core.wait_until_closed(until, when).await?;
        let reading = Arc::clone(&self.reading).lock_owned().await;
        let log = Arc::clone(&self.log);
        let read = self.core.spawn_blocking(move || {
            let _reading = reading;
            let end = log.tip_at(until)?.end;
            let (mut offset, mut entries) = (from.max(log.start()), Vec::new());
            let (mut read, mut bytes) = (0, 0);
            while offset < end && read < count && bytes < CHANGE_LOG_BYTES {
                let (entry, stamp) = read_entry(&log, offset)?;
                bytes += entry.encode().len();
                if let SecurityEntry::Changed { by, changes, .. } = entry {
                    read += changes.len();
                    entries.push(ChangeLogEntry { offset, stamp, by, changes });
                }
                offset = Offset(offset.0 + 1);
            }
            let next = (offset < end).then_some(offset);
            Ok(ChangeLogPage { until, frontier, entries, next })
        });
        Ok(read.await?)
    }

    /// The first offset of the log whose entry `cut` does not admit.
    ///
    /// # Errors
    /// An index cannot be read.
    pub async fn offset_at(&self, cut: Cut, when: WaitPolicy) -> Result<Offset, SeekError> {
        let (at, _) = self.core.wait_until_closed(cut, when).await?;
        let log = Arc::clone(&self.log);
        Ok(self.core.spawn_blocking(move || Ok(log.tip_at(at)?.end)).await?)
    }
}

impl std::fmt::Debug for Security {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Security").finish_non_exhaustive()
    }
}

/// The version of the quotas at the end of the log, which only grows: none comes again.
fn quota_version(state: &SecurityState, log: &Log) -> u64 {
    if state.quotas().is_empty() { 0 } else { log.end().0 }
}

fn read_entry(log: &Log, offset: Offset) -> Result<(SecurityEntry, Hlc), EngineError> {
    let corrupt = |why: &str| {
        let at = offset.0;
        EngineError::Corrupt(format!(
            "the entry of users and access control lists at offset {at} cannot be read: {why}"
        ))
    };
    let payload = log.payload_at(offset)?.ok_or_else(|| corrupt("it is not there"))?;
    let entry = SecurityEntry::decode(&payload.read()?).map_err(|why| corrupt(&why))?;
    Ok((entry, payload.entry.stamp))
}

/// The state after the entries in front of `end`.
fn read_until(log: &Log, end: Offset) -> Result<(SecurityState, SnapshotProgress), EngineError> {
    let (mut state, mut progress) = (SecurityState::default(), SnapshotProgress::default());
    let Some(last) = end.0.checked_sub(1).map(Offset).filter(|last| *last >= log.start()) else {
        return Ok((state, progress));
    };
    let first = match read_entry(log, last)?.0 {
        SecurityEntry::Changed { snapshot, .. } => snapshot.map_or(log.start(), Offset),
        SecurityEntry::Snapshot(_) => last,
    };
    for offset in first.0..end.0 {
        let (entry, _) = read_entry(log, Offset(offset))?;
        let bytes = entry.encode().len();
        let changes = match entry {
            SecurityEntry::Changed { changes, .. } => {
                progress.bytes_since += bytes;
                changes
            }
            SecurityEntry::Snapshot(changes) => {
                state = SecurityState::default();
                let snapshot = Some(Offset(offset));
                progress = SnapshotProgress { snapshot, snapshot_bytes: bytes, bytes_since: 0 };
                changes
            }
        };
        changes.iter().for_each(|change| state.apply(change));
    }
    Ok((state, progress))
}
