//! The deadlines of members, and of issued member ids.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// One deadline per name. Every name in `at` is in `in_order` once, at the same time.
#[derive(Debug, Clone, Default)]
pub(super) struct DeadlineQueue {
    at: HashMap<String, Duration>,
    in_order: BTreeSet<(Duration, String)>,
}

impl DeadlineQueue {
    pub(super) fn set(&mut self, name: &str, at: Duration) {
        self.cancel(name);
        self.at.insert(name.to_owned(), at);
        self.in_order.insert((at, name.to_owned()));
    }

    pub(super) fn cancel(&mut self, name: &str) {
        if let Some((name, at)) = self.at.remove_entry(name) {
            self.in_order.remove(&(at, name));
        }
    }

    pub(super) fn clear(&mut self) {
        self.at.clear();
        self.in_order.clear();
    }

    pub(super) fn first(&self) -> Option<(Duration, &str)> {
        self.in_order.first().map(|(at, name)| (*at, name.as_str()))
    }

    #[cfg(test)]
    pub(super) fn contains(&self, name: &str) -> bool {
        self.at.contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_a_name_again_moves_its_one_deadline() {
        let mut deadlines = DeadlineQueue::default();
        deadlines.set("a", Duration::from_secs(1));
        deadlines.set("b", Duration::from_secs(2));
        deadlines.set("a", Duration::from_secs(3));
        assert_eq!(deadlines.first(), Some((Duration::from_secs(2), "b")));
        deadlines.cancel("b");
        assert_eq!(deadlines.first(), Some((Duration::from_secs(3), "a")));
        deadlines.cancel("a");
        assert_eq!(deadlines.first(), None);
    }
}
