//! The rules of user time in force at the journal position of the writer's thread.

use std::collections::HashMap;
use std::sync::Arc;

use hlc::{Hlc, UserTime};
use parking_lot::Mutex;
use storage::LogId;

use crate::error::EngineError;
use crate::user_time::UserTimeRule;

/// The effect of a change of the namespace on rules. It is known before the change has a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleChange {
    /// The logs get a new rule, from the stamp of the change on.
    FromStamp,
    /// The logs get a rule that already holds.
    Since(Hlc),
    /// The logs get no rule.
    Removed,
}

/// The rules in force at the journal position of the writer's thread.
///
/// Only that thread changes it, so its decisions follow the order of appends.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActiveRules(Arc<Mutex<ActiveRulesState>>);

#[derive(Debug, Default)]
struct ActiveRulesState {
    /// The stamp from which a log's rule holds. Logs without a rule are absent.
    rules: HashMap<LogId, Hlc>,
    /// The largest user time of logs with strict rules, including staged batches that are not
    /// visible yet.
    user_time_max: HashMap<LogId, UserTime>,
    /// The values to restore if the group of appends is rolled back.
    undo: Vec<RuleUndo>,
}

#[derive(Debug)]
enum RuleUndo {
    Rule(LogId, Option<Hlc>),
    UserTimeMax(LogId, Option<UserTime>),
}

impl ActiveRules {
    /// Restores a rule that was in force when the journal was opened.
    pub(crate) fn restore(&self, log: LogId, rule: &UserTimeRule) {
        self.0.lock().rules.insert(log, rule.since);
    }

    /// Applies a change of rules at its position in the journal.
    pub(crate) fn change(&self, logs: &[LogId], change: RuleChange, stamp: Hlc) {
        let ActiveRulesState { rules, user_time_max: peaks, undo } = &mut *self.0.lock();
        for log in logs {
            let before = match change {
                RuleChange::FromStamp => rules.insert(*log, stamp),
                RuleChange::Since(since) => rules.insert(*log, since),
                RuleChange::Removed => rules.remove(log),
            };
            undo.push(RuleUndo::Rule(*log, before));
            // A batch under the new rule finds earlier times in the log itself.
            if let Some(peak) = peaks.remove(log) {
                undo.push(RuleUndo::UserTimeMax(*log, Some(peak)));
            }
        }
    }

    /// Checks that a batch was accepted by the rule in force.
    pub(crate) fn check(&self, log: LogId, rule: Hlc) -> Result<(), EngineError> {
        let in_force = self.0.lock().rules.get(&log).copied().unwrap_or(Hlc::ZERO);
        if rule == in_force { Ok(()) } else { Err(EngineError::UserTimeChanged) }
    }

    /// Stages a batch of a strict topic with these user times, unless they are below the largest so
    /// far. `max_seen` is the largest that was visible when the batch was queued.
    pub(crate) fn advance_user_time_max(
        &self,
        log: LogId,
        max_seen: UserTime,
        least: UserTime,
        max: UserTime,
    ) -> Result<(), EngineError> {
        let ActiveRulesState { user_time_max: peaks, undo, .. } = &mut *self.0.lock();
        let previous = peaks.get(&log).copied();
        let last = previous.map_or(max_seen, |previous| previous.max(max_seen));
        if least < last {
            return Err(EngineError::UserTimeOutOfOrder { least, last });
        }
        undo.push(RuleUndo::UserTimeMax(log, previous));
        peaks.insert(log, last.max(max));
        Ok(())
    }

    /// The staged appends are visible.
    pub(crate) fn commit(&self) {
        self.0.lock().undo.clear();
    }

    /// The staged appends are discarded.
    pub(crate) fn rollback(&self) {
        let ActiveRulesState { rules, user_time_max: peaks, undo } = &mut *self.0.lock();
        for undo in undo.drain(..).rev() {
            match undo {
                RuleUndo::Rule(log, Some(since)) => drop(rules.insert(log, since)),
                RuleUndo::Rule(log, None) => drop(rules.remove(&log)),
                RuleUndo::UserTimeMax(log, Some(peak)) => drop(peaks.insert(log, peak)),
                RuleUndo::UserTimeMax(log, None) => drop(peaks.remove(&log)),
            }
        }
    }
}
