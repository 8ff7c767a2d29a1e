//! Taking staged appends back, by group.

use std::collections::VecDeque;

/// The number of a group of appends. Groups are staged, published and dropped in its order; a number
/// is used again if its group was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupNumber(pub u64);

impl GroupNumber {
    /// The number of the group after this one.
    #[must_use]
    pub fn next(self) -> GroupNumber {
        GroupNumber(self.0 + 1)
    }
}

/// The steps that take back what the groups in flight have changed.
///
/// A part of an [`AppendStage`](super::AppendStage) pushes a step for each change that it makes ahead
/// of publication. A published group needs its steps no longer; a dropped one has them taken, newest
/// first, with those of all later groups.
#[derive(Debug)]
pub struct UndoLog<T> {
    steps: VecDeque<(GroupNumber, T)>,
    staging: GroupNumber,
}

impl<T> Default for UndoLog<T> {
    fn default() -> UndoLog<T> {
        UndoLog { steps: VecDeque::new(), staging: GroupNumber::default() }
    }
}

impl<T> UndoLog<T> {
    /// The steps that follow belong to `group`.
    ///
    /// # Panics
    /// If a later group is in flight.
    pub fn begin(&mut self, group: GroupNumber) {
        let newest = self.steps.back().map_or(group, |(newest, _)| *newest);
        assert!(newest <= group, "groups are staged in order: {group:?} after {newest:?}");
        self.staging = group;
    }

    pub fn push(&mut self, step: T) {
        self.steps.push_back((self.staging, step));
    }

    /// Forgets the steps of the groups up to `group`, which are published. Returns them, oldest
    /// first.
    pub fn commit(&mut self, group: GroupNumber) -> impl Iterator<Item = T> {
        let count = self.steps.partition_point(|(of, _)| *of <= group);
        self.steps.drain(..count).map(|(_, step)| step)
    }

    /// Takes the newest step, if it belongs to `from` or to a later group. To drop these groups, all
    /// of them are taken.
    pub fn pop(&mut self, from: GroupNumber) -> Option<T> {
        self.steps.pop_back_if(|(of, _)| *of >= from).map(|(_, step)| step)
    }

    /// The steps of the groups in flight, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.steps.iter().map(|(_, step)| step)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A change of a map, a published group, or dropped groups, by how many.
    #[derive(Clone, Debug)]
    enum Action {
        Stage(Vec<(u8, u8)>),
        Publish,
        Drop(u64),
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            4 => prop::collection::vec((0..6_u8, any::<u8>()), 0..5).prop_map(Action::Stage),
            2 => Just(Action::Publish),
            1 => (1..4_u64).prop_map(Action::Drop),
        ]
    }

    proptest! {
        /// What is left is what a map has that never saw the dropped groups.
        #[test]
        fn dropped_groups_leave_no_trace(actions in prop::collection::vec(action(), 0..60)) {
            let mut map = [None; 6];
            let mut undo = UndoLog::default();
            let (mut next, mut published) = (GroupNumber(0), GroupNumber(0));
            // The map before each group in flight.
            let mut before = VecDeque::new();
            for action in actions {
                match action {
                    Action::Stage(changes) => {
                        undo.begin(next);
                        before.push_back(map);
                        for (key, value) in changes {
                            undo.push((key, map[usize::from(key)].replace(value)));
                        }
                        next = next.next();
                    }
                    Action::Publish if published < next => {
                        let steps = undo.commit(published).count();
                        let first = before.pop_front().unwrap();
                        prop_assert!(steps > 0 || first == before.front().copied().unwrap_or(map));
                        published = published.next();
                    }
                    Action::Publish => {}
                    Action::Drop(count) => {
                        let from = GroupNumber(next.0.saturating_sub(count)).max(published);
                        while let Some((key, value)) = undo.pop(from) {
                            map[usize::from(key)] = value;
                        }
                        if from < next {
                            let kept = (from.0 - published.0) as usize;
                            prop_assert_eq!(map, before[kept]);
                            before.truncate(kept);
                        }
                        next = from;
                    }
                }
                let in_flight = before.len() as u64;
                prop_assert_eq!(next.0 - published.0, in_flight);
                prop_assert!(in_flight > 0 || undo.iter().count() == 0);
            }
        }
    }

    #[test]
    #[should_panic(expected = "groups are staged in order")]
    fn a_group_is_not_staged_behind_a_later_one() {
        let mut undo = UndoLog::default();
        undo.begin(GroupNumber(2));
        undo.push(());
        undo.begin(GroupNumber(1));
    }
}
