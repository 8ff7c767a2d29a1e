//! The deadlines of members, and of issued member ids.

use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Duration;

/// One deadline per name. Every name in `at` is in `in_order` once, at the same time.
#[derive(Debug, Clone)]
pub(super) struct DeadlineQueue<K> {
    at: HashMap<K, Duration>,
    in_order: BTreeSet<(Duration, K)>,
}

impl<K> Default for DeadlineQueue<K> {
    fn default() -> DeadlineQueue<K> {
        DeadlineQueue { at: HashMap::new(), in_order: BTreeSet::new() }
    }
}

impl<K: Clone + Ord + Hash> DeadlineQueue<K> {
    pub(super) fn set(&mut self, name: impl Into<K>, at: Duration) {
        let name = name.into();
        self.cancel(&name);
        self.at.insert(name.clone(), at);
        self.in_order.insert((at, name));
    }

    pub(super) fn cancel<Q: Hash + Eq + ?Sized>(&mut self, name: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some((name, at)) = self.at.remove_entry(name) {
            self.in_order.remove(&(at, name));
        }
    }

    pub(super) fn clear(&mut self) {
        self.at.clear();
        self.in_order.clear();
    }

    pub(super) fn first(&self) -> Option<(Duration, &K)> {
        self.in_order.first().map(|(at, name)| (*at, name))
    }

    /// The deadline of a name.
    pub(super) fn at<Q: Hash + Eq + ?Sized>(&self, name: &Q) -> Option<Duration>
    where
        K: Borrow<Q>,
    {
        self.at.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_a_name_again_moves_its_one_deadline() {
        let mut deadlines = DeadlineQueue::<String>::default();
        deadlines.set("a", Duration::from_secs(1));
        deadlines.set("b", Duration::from_secs(2));
        deadlines.set("a", Duration::from_secs(3));
        assert_eq!(deadlines.first(), Some((Duration::from_secs(2), &"b".to_owned())));
        deadlines.cancel("b");
        assert_eq!(deadlines.first(), Some((Duration::from_secs(3), &"a".to_owned())));
        assert_eq!(deadlines.at("b"), None);
        deadlines.cancel("a");
        assert_eq!(deadlines.first(), None);
    }
}
