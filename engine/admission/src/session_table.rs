//! A table of sessions: what clients leave at the server between their requests.

use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use crate::{BudgetGrant, Holder};

/// Sessions by id. Each holds a grant of a budget and has a rank; the lowest rank makes room first.
/// The lowest of a holder is found without a scan.
#[derive(Debug)]
pub struct SessionTable<K, S, R> {
    by_id: HashMap<K, SessionEntry<S, R>>,
    /// Each session once, under the holder of its grant. No set is empty.
    by_holder: HashMap<Holder, BTreeSet<(R, K)>>,
}

#[derive(Debug)]
struct SessionEntry<S, R> {
    session: S,
    grant: BudgetGrant,
    rank: R,
}

impl<K, S, R> Default for SessionTable<K, S, R> {
    fn default() -> SessionTable<K, S, R> {
        SessionTable { by_id: HashMap::new(), by_holder: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash + Ord, S, R: Copy + Ord> SessionTable<K, S, R> {
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub fn contains<Q: Eq + Hash + ?Sized>(&self, id: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.by_id.contains_key(id)
    }

    pub fn get<Q: Eq + Hash + ?Sized>(&self, id: &Q) -> Option<&S>
    where
        K: Borrow<Q>,
    {
        Some(&self.by_id.get(id)?.session)
    }

    pub fn get_mut<Q: Eq + Hash + ?Sized>(&mut self, id: &Q) -> Option<&mut S>
    where
        K: Borrow<Q>,
    {
        Some(&mut self.by_id.get_mut(id)?.session)
    }

    pub fn rank<Q: Eq + Hash + ?Sized>(&self, id: &Q) -> Option<R>
    where
        K: Borrow<Q>,
    {
        Some(self.by_id.get(id)?.rank)
    }

    /// All sessions with their ranks, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &S, R)> {
        self.by_id.iter().map(|(id, entry)| (id, &entry.session, entry.rank))
    }

    /// The number of sessions of a holder.
    pub fn count_of(&self, holder: &Holder) -> usize {
        self.by_holder.get(holder).map_or(0, BTreeSet::len)
    }

    /// Inserts a session. It replaces one with the same id.
    pub fn insert(&mut self, id: K, session: S, grant: BudgetGrant, rank: R) {
        self.remove(&id);
        let ranks = self.by_holder.entry(grant.holder().clone()).or_default();
        ranks.insert((rank, id.clone()));
        self.by_id.insert(id, SessionEntry { session, grant, rank });
    }

    /// Takes a session out, with the holder that it was charged to.
    pub fn remove<Q: Eq + Hash + ?Sized>(&mut self, id: &Q) -> Option<(S, Holder)>
    where
        K: Borrow<Q>,
    {
        let (id, entry) = self.by_id.remove_entry(id)?;
        let holder = entry.grant.holder().clone();
        remove_rank(&mut self.by_holder, &holder, &(entry.rank, id));
        Some((entry.session, holder))
    }

    pub fn set_rank(&mut self, id: &K, rank: R) {
        let Some(entry) = self.by_id.get_mut(id) else { return };
        if let Some(ranks) = self.by_holder.get_mut(entry.grant.holder()) {
            ranks.remove(&(entry.rank, id.clone()));
            ranks.insert((rank, id.clone()));
        }
        entry.rank = rank;
    }

    /// Charges a session to another holder, which uses it from now on.
    pub fn hand_over(&mut self, id: &K, holder: &Holder) {
        let Some(entry) = self.by_id.get_mut(id) else { return };
        let key = (entry.rank, id.clone());
        remove_rank(&mut self.by_holder, entry.grant.holder(), &key);
        entry.grant.hand_over(holder);
        let holder = entry.grant.holder().clone();
        self.by_holder.entry(holder).or_default().insert(key);
    }

    /// Takes out the session of a holder with the lowest rank.
    pub fn remove_lowest_of(&mut self, holder: &Holder) -> Option<S> {
        let (_, id) = self.lowest_of(holder)?.clone();
        self.remove(&id).map(|(session, _)| session)
    }

    /// The session of a holder with the lowest rank.
    pub fn lowest_of(&self, holder: &Holder) -> Option<&(R, K)> {
        self.by_holder.get(holder)?.first()
    }

    /// The session with the lowest rank of all. It costs a step for each holder.
    pub fn lowest(&self) -> Option<&(R, K)> {
        self.by_holder.values().filter_map(BTreeSet::first).min()
    }
}

fn remove_rank<K: Ord, R: Ord>(
    by_holder: &mut HashMap<Holder, BTreeSet<(R, K)>>,
    holder: &Holder,
    key: &(R, K),
) {
    let Some(ranks) = by_holder.get_mut(holder) else { return };
    ranks.remove(key);
    if ranks.is_empty() {
        by_holder.remove(holder);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::{Budget, BudgetKind, BudgetSpec};

    fn budget() -> Arc<Budget> {
        let kind = BudgetKind::Yielding;
        Budget::new(BudgetSpec { name: "s", unit: "sessions", setting: None, kind }, 1000)
    }

    fn holder(nth: u8) -> Holder {
        Holder::principal(&format!("User:{nth}"), false)
    }

    proptest! {
        /// A map with the holder and the rank of each session says the same, and the budget is
        /// charged for the sessions that there are.
        #[test]
        fn the_table_is_a_map_with_holders_and_ranks(
            steps in prop::collection::vec((0_u8..6, 0_u8..12, 0_u8..3, 0_u32..6), 1..200),
        ) {
            let (budget, mut table) = (budget(), SessionTable::<u8, u8, u32>::default());
            let mut model = BTreeMap::<u8, (u8, u32)>::new();
            for (step, id, owner, rank) in steps {
                match step {
                    0 | 1 => {
                        table.insert(id, id, budget.take_always(&holder(owner), 1), rank);
                        model.insert(id, (owner, rank));
                    }
                    2 => {
                        let removed = table.remove(&id);
                        let expected = model.remove(&id).map(|(owner, _)| (id, holder(owner)));
                        prop_assert_eq!(removed, expected);
                    }
                    3 => {
                        table.set_rank(&id, rank);
                        model.entry(id).and_modify(|(_, before)| *before = rank);
                    }
                    4 => {
                        let of_owner = model.iter().filter(|(_, (of, _))| *of == owner);
                        let lowest = of_owner.map(|(id, (_, rank))| (*rank, *id)).min();
                        let expected = lowest.map(|(_, id)| id);
                        prop_assert_eq!(table.remove_lowest_of(&holder(owner)), expected);
                        expected.map(|id| model.remove(&id));
                    }
                    _ => {
                        table.hand_over(&id, &holder(owner));
                        model.entry(id).and_modify(|(before, _)| *before = owner);
                    }
                }
                let expected = model.get(&id);
                prop_assert_eq!(table.contains(&id), expected.is_some());
                prop_assert_eq!(table.rank(&id), expected.map(|(_, rank)| *rank));
                prop_assert_eq!(table.get(&id).copied(), expected.map(|_| id));
                prop_assert_eq!(table.get_mut(&id).map(|session| *session), expected.map(|_| id));
                let lowest = model.iter().map(|(id, (_, rank))| (*rank, *id)).min();
                prop_assert_eq!(table.lowest().copied(), lowest);
                prop_assert_eq!((table.len(), table.is_empty()), (model.len(), model.is_empty()));
                for owner in 0..3 {
                    let of_owner = model.iter().filter(|(_, (of, _))| *of == owner);
                    let count = of_owner.clone().count();
                    let lowest = of_owner.map(|(id, (_, rank))| (*rank, *id)).min();
                    prop_assert_eq!(table.lowest_of(&holder(owner)).copied(), lowest);
                    prop_assert_eq!(table.count_of(&holder(owner)), count);
                    prop_assert_eq!(budget.held(&holder(owner)), count as u64);
                }
                let ranks = |(id, _, rank): (&u8, &u8, u32)| (*id, rank);
                let listed: BTreeMap<u8, u32> = table.iter().map(ranks).collect();
                let expected = model.iter().map(|(id, (_, rank))| (*id, *rank)).collect();
                prop_assert_eq!(listed, expected);
            }
        }
    }
}
