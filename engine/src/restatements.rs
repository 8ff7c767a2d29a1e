//! Restatements in a copy as of a moment.
//!
//! When the log start of topics or of groups advances, the server first restates at the log's end
//! what the removed entries said. A copy as of an earlier moment has the log start and lacks that
//! end. So it gets the restatement, which says only what was true at the log start, below the
//! moment.

use std::convert::Infallible;
use std::sync::{Arc, mpsc};

use engine_core::log_history::earliest_bound;
use engine_core::namespace::event;
use engine_core::numbering::{GROUPS_LOG, NAMESPACE_LOG};
use hlc::{Hlc, WallClock};
use storage::backup::{AsOfError, CopyPlan, StoredLogEntry, entries_after};
use storage::disk::Disk;
use storage::journal::RecoverError;
use storage::{
    AppendStage, Durability, GroupNumber, LogAppend, LogId, Offset, OpenError, Options, Payload,
    ReplayHandler, ReplayedEntry, Store,
};

/// The reason a copy does not get its restatements.
#[derive(Debug, thiserror::Error)]
pub enum CarryError {
    #[error(transparent)]
    Source(#[from] AsOfError),
    /// An event of the source cannot be decoded.
    #[error("an event of log {} cannot be read: {why}", log.0)]
    Event { log: LogId, why: String },
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The copy does not take an entry.
    #[error("write the restatement: {0}")]
    Append(String),
}

/// Appends to `target`, the copy that was made by `plan` as of a moment, the restatements that `source` has
/// after that moment. Returns how many events those are.
///
/// # Errors
/// [`CarryError`].
pub fn carry_restatements(
    source: &dyn Disk,
    target: Arc<dyn Disk>,
    plan: &CopyPlan,
    wall: Arc<dyn WallClock>,
    salt: u64,
) -> Result<usize, CarryError> {
    let horizon = |log| plan.manifest.horizon(log);
    let logs = [NAMESPACE_LOG, GROUPS_LOG].into_iter();
    let logs: Vec<LogId> = logs.filter(|log| horizon(*log).start > Offset(0)).collect();
    if logs.is_empty() {
        return Ok(0);
    }
    let (mut restated, mut failed) = (Vec::new(), None);
    entries_after(source, plan.last, &logs, &mut |entry| {
        let bound = match entry.log {
            NAMESPACE_LOG => event::restated_bound(&entry.payload),
            _ => engine_groups::restated_bound(&entry.payload),
        };
        match bound {
            Ok(Some(bound)) if bound == earliest_bound(&horizon(entry.log)) => restated.push(entry),
            Ok(_) => {}
            Err(why) => failed = Some(CarryError::Event { log: entry.log, why }),
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    let count = restated.len();
    if count > 0 {
        append(target, restated, wall, salt)?;
    }
    Ok(count)
}

/// Appends entries as they are, without a meaning.
fn append(
    disk: Arc<dyn Disk>,
    entries: Vec<StoredLogEntry>,
    wall: Arc<dyn WallClock>,
    salt: u64,
) -> Result<(), CarryError> {
    // Nothing is indexed, so the stage's state is never stored.
    let options =
        Options { manual_maintenance: true, manual_stepping: true, salt, ..Options::default() };
    let store = Store::open(disk, options, wall, &mut NoReplay, |_| NoStage, || {})?;
    for entry in entries {
        let append = LogAppend {
            log: entry.log,
            kind: entry.kind,
            epoch: entry.epoch,
            count: entry.count,
            user: entry.user,
            payload: Payload::without_header(entry.payload),
            crc_from: None,
            note: (),
        };
        let (sender, results) = mpsc::channel();
        store.append(vec![append], Durability::Synced, move |results| {
            let _ = sender.send(results);
        });
        while store.step() {}
        let results = results.recv().unwrap_or_default();
        for result in results {
            result.map_err(|error| CarryError::Append(error.to_string()))?;
        }
    }
    store.close();
    Ok(())
}

struct NoStage;

impl AppendStage for NoStage {
    type Note = ();
    type Refusal = Infallible;

    fn stage(&mut self, _: &mut LogAppend<()>, _: Offset, _: Hlc) -> Result<(), Infallible> {
        Ok(())
    }

    fn begin(&mut self, _: GroupNumber) {}

    fn commit(&mut self, _: GroupNumber) {}

    fn replay(&mut self, _: &ReplayedEntry<'_>) {}

    fn rollback(&mut self, _: GroupNumber) {}

    fn state(&self) -> Vec<u8> {
        Vec::new()
    }
}

struct NoReplay;

impl ReplayHandler for NoReplay {
    fn restore(&mut self, _: &[u8]) -> Result<(), RecoverError> {
        Ok(())
    }

    fn entry(&mut self, _: &ReplayedEntry<'_>) -> Result<(), RecoverError> {
        Ok(())
    }

    fn state(&self) -> Vec<u8> {
        Vec::new()
    }
}
