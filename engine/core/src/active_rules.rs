//! The rules of user time in force at the journal position of the writer's thread.

use std::collections::HashMap;
use std::sync::Arc;

use hlc::{Hlc, UserTime};
use parking_lot::Mutex;
use storage::{GroupNumber, LogId, UndoLog};

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
    undo: UndoLog<RuleUndo>,
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

    /// Begins a group: later changes belong to it.
    pub(crate) fn begin(&self, group: GroupNumber) {
        self.0.lock().undo.begin(group);
    }

    /// The groups up to `group` are visible.
    pub(crate) fn commit(&self, group: GroupNumber) {
        self.0.lock().undo.commit(group).for_each(drop);
    }

    /// The groups from `from` on are dropped.
    pub(crate) fn rollback(&self, from: GroupNumber) {
        let ActiveRulesState { rules, user_time_max: peaks, undo } = &mut *self.0.lock();
        while let Some(step) = undo.pop(from) {
            match step {
                RuleUndo::Rule(log, Some(since)) => drop(rules.insert(log, since)),
                RuleUndo::Rule(log, None) => drop(rules.remove(&log)),
                RuleUndo::UserTimeMax(log, Some(peak)) => drop(peaks.insert(log, peak)),
                RuleUndo::UserTimeMax(log, None) => drop(peaks.remove(&log)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hlc::SysTime;

    use super::*;

    const LOG: LogId = LogId(7);

    fn group(rules: &ActiveRules, number: u64, act: impl FnOnce(&ActiveRules)) {
        rules.begin(GroupNumber(number));
        act(rules);
    }

    fn in_force(rules: &ActiveRules) -> Hlc {
        let state = rules.0.lock();
        state.rules.get(&LOG).copied().unwrap_or(Hlc::ZERO)
    }

    #[test]
    fn rules_and_largest_times_of_dropped_groups_are_taken_back_and_of_others_stay() {
        let at = |ms| Hlc::at(SysTime(ms));
        let time = |ms| UserTime(ms);
        let rules = ActiveRules::default();
        group(&rules, 1, |rules| rules.change(&[LOG], RuleChange::FromStamp, at(10)));
        group(&rules, 2, |rules| {
            rules.advance_user_time_max(LOG, time(0), time(5), time(50)).unwrap();
        });
        group(&rules, 3, |rules| {
            rules.change(&[LOG], RuleChange::Removed, at(30));
            rules.advance_user_time_max(LOG, time(0), time(1), time(2)).unwrap();
        });
        assert_eq!(in_force(&rules), Hlc::ZERO);
        rules.commit(GroupNumber(1));
        rules.rollback(GroupNumber(3));
        assert_eq!(in_force(&rules), at(10));
        // The second group's largest time holds again.
        rules.begin(GroupNumber(3));
        let refused = rules.advance_user_time_max(LOG, time(0), time(49), time(60));
        assert!(matches!(refused, Err(EngineError::UserTimeOutOfOrder { .. })));
        rules.rollback(GroupNumber(2));
        rules.begin(GroupNumber(2));
        rules.advance_user_time_max(LOG, time(0), time(3), time(4)).unwrap();
        assert_eq!(in_force(&rules), at(10), "what is committed stays");
        rules.commit(GroupNumber(2));
        rules.rollback(GroupNumber(0));
        assert_eq!(in_force(&rules), at(10));
    }
}
