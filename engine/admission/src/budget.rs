//! A limit that all clients share, with an account for each holder.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::holder::Holder;
use crate::registry::{BudgetSource, BudgetUsage, LargestHolder};

/// The part of a limit that is for privileged holders and for those that hold nothing.
const RESERVE_DIVISOR: u64 = 32;
/// A holder in a budget of the kind [`BudgetKind::Kept`] may have at most this many times the
/// amount that stays free.
const FREE_MULTIPLE: u64 = 3;
/// A smaller limit has neither reserve nor shares: an operator who sets it wants that many.
const SHARED_LIMIT_MIN: u64 = 16;

/// The kind of a budget: its holders can be made to give way, or cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetKind {
    /// A holder keeps its grants, even if others need room.
    Kept,
    /// The holder with the most gives way when there is no room.
    Yielding,
}

/// The fixed properties of a budget.
#[derive(Clone, Copy, Debug)]
pub struct BudgetSpec {
    /// The name, as metrics and commands show it: `connections`, `znode-bytes`.
    pub name: &'static str,
    /// The plural of what is counted.
    pub unit: &'static str,
    /// The setting that changes the limit, if there is one.
    pub setting: Option<&'static str>,
    pub kind: BudgetKind,
}

/// A refusal, with what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{holder} holds {held} of {limit} {unit}{}{}", how_full(self), what_to_do(self))]
pub struct BudgetError {
    pub unit: &'static str,
    pub setting: Option<&'static str>,
    pub limit: u64,
    /// The holder that was refused, and what it has.
    pub holder: String,
    pub held: u64,
    /// The amount that it wanted in addition.
    pub wanted: u64,
    /// All that is held.
    pub used: u64,
    /// The holder that gives way if the caller makes it: the largest, counting the wanted amount.
    /// It may be the refused holder. `None` in budgets where nobody gives way.
    pub yields: Option<Holder>,
}

fn how_full(error: &BudgetError) -> String {
    if error.used >= error.limit {
        ", and all are taken".to_owned()
    } else if error.used.saturating_add(error.wanted) > error.limit {
        format!(", {} are taken, and {} more do not fit", error.used, error.wanted)
    } else {
        format!(", {} are taken, and the rest is for others", error.used)
    }
}

fn what_to_do(error: &BudgetError) -> String {
    match error.setting {
        Some(setting) => format!("; free some, or raise {setting}"),
        None => "; try again when some are free".to_owned(),
    }
}

#[derive(Debug, Default)]
struct Accounts {
    used: u64,
    by_holder: HashMap<Arc<str>, u64>,
    /// The same accounts, ordered by amount.
    by_held: BTreeSet<(u64, Arc<str>)>,
}

/// A limit that all clients share.
#[derive(Debug)]
pub struct Budget {
    spec: BudgetSpec,
    limit: AtomicU64,
    accounts: Mutex<Accounts>,
    refused: AtomicU64,
}

impl Budget {
    pub fn new(spec: BudgetSpec, limit: u64) -> Arc<Budget> {
        let (accounts, refused) = Default::default();
        Arc::new(Budget { spec, limit: AtomicU64::new(limit), accounts, refused })
    }

    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. A smaller one takes nothing from anybody.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Returns true if the limit is large enough for shares and a reserve. A smaller one is for the
    /// first to come.
    pub fn has_shares(&self) -> bool {
        self.limit() >= SHARED_LIMIT_MIN
    }

    /// All that is held.
    pub fn used(&self) -> u64 {
        self.accounts.lock().used
    }

    /// The part that a holder has.
    pub fn held(&self, holder: &Holder) -> u64 {
        self.accounts.lock().held(holder)
    }

    /// The most that can be charged to a holder now.
    pub fn room(&self, holder: &Holder) -> u64 {
        self.room_in(&self.accounts.lock(), holder)
    }

    /// Charges `amount` to a holder. The caller gives it back with [`Budget::release`].
    ///
    /// # Errors
    /// The holder has its share, or there is no room. Nothing is charged.
    pub fn charge(&self, holder: &Holder, amount: u64) -> Result<(), BudgetError> {
        let mut accounts = self.accounts.lock();
        if self.has_room(&accounts, holder, amount) {
            accounts.add(holder, amount);
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(self.refusal(&accounts, holder, amount))
    }

    /// Checks that [`Budget::charge`] would succeed.
    ///
    /// # Errors
    /// As there. It is counted as a refusal.
    pub fn check(&self, holder: &Holder, amount: u64) -> Result<(), BudgetError> {
        let accounts = self.accounts.lock();
        if self.has_room(&accounts, holder, amount) {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(self.refusal(&accounts, holder, amount))
    }

    /// [`Budget::charge`] for a holder that waits otherwise: it is not refused.
    pub(crate) fn charge_if_room(&self, holder: &Holder, amount: u64) -> bool {
        let mut accounts = self.accounts.lock();
        let has_room = self.has_room(&accounts, holder, amount);
        if has_room {
            accounts.add(holder, amount);
        }
        has_room
    }

    /// Charges `amount` whatever the limit says: for what is there already.
    pub fn charge_always(&self, holder: &Holder, amount: u64) {
        self.accounts.lock().add(holder, amount);
    }

    /// Gives back what was charged.
    pub fn release(&self, holder: &Holder, amount: u64) {
        self.accounts.lock().remove(holder, amount);
    }

    /// Charges `amount` until the grant is dropped.
    ///
    /// # Errors
    /// As [`Budget::charge`].
    pub fn take(
        self: &Arc<Budget>,
        holder: &Holder,
        amount: u64,
    ) -> Result<BudgetGrant, BudgetError> {
        let mut accounts = self.accounts.lock();
        if self.has_room(&accounts, holder, amount) {
            return Ok(self.grant(&mut accounts, holder, amount));
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(self.refusal(&accounts, holder, amount))
    }

    /// [`Budget::take`], with `evict`, which ends something of the holder that gives way, and
    /// returns true if it did. An eviction makes room up to the limit: the reserve is not restored.
    ///
    /// # Errors
    /// Nothing was evicted.
    pub fn take_evicting(
        self: &Arc<Budget>,
        holder: &Holder,
        amount: u64,
        mut evict: impl FnMut(&BudgetError) -> bool,
    ) -> Result<BudgetGrant, BudgetError> {
        let mut has_evicted = false;
        loop {
            let refusal = {
                let mut accounts = self.accounts.lock();
                let is_free = accounts.used.saturating_add(amount) <= self.limit();
                if (has_evicted && is_free) || self.has_room(&accounts, holder, amount) {
                    return Ok(self.grant(&mut accounts, holder, amount));
                }
                self.refusal(&accounts, holder, amount)
            };
            if !has_evicted {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
            if !evict(&refusal) {
                return Err(refusal);
            }
            has_evicted = true;
        }
    }

    /// [`Budget::charge_always`] until the grant is dropped.
    pub fn take_always(self: &Arc<Budget>, holder: &Holder, amount: u64) -> BudgetGrant {
        self.grant(&mut self.accounts.lock(), holder, amount)
    }

    /// Charges a grant. The grants of a holder share its name's memory.
    fn grant(
        self: &Arc<Budget>,
        accounts: &mut Accounts,
        holder: &Holder,
        amount: u64,
    ) -> BudgetGrant {
        accounts.add(holder, amount);
        BudgetGrant { budget: Arc::clone(self), holder: accounts.shared(holder), amount }
    }

    fn has_room(&self, accounts: &Accounts, holder: &Holder, amount: u64) -> bool {
        amount == 0 || amount <= self.room_in(accounts, holder)
    }

    fn room_in(&self, accounts: &Accounts, holder: &Holder) -> u64 {
        let limit = self.limit();
        let room = limit.saturating_sub(accounts.used);
        if holder.is_privileged() || !self.has_shares() {
            return room;
        }
        let held_by_holder = accounts.held(holder);
        let reserve = if held_by_holder == 0 { 0 } else { limit / RESERVE_DIVISOR };
        let room = room.saturating_sub(reserve);
        match self.spec.kind {
            BudgetKind::Yielding => room,
            BudgetKind::Kept => {
                let shared = room.saturating_mul(FREE_MULTIPLE).saturating_sub(held_by_holder);
                room.min(shared / (FREE_MULTIPLE + 1))
            }
        }
    }

    fn refusal(&self, accounts: &Accounts, holder: &Holder, amount: u64) -> BudgetError {
        let held = accounts.held(holder);
        let largest = match self.spec.kind {
            // A small limit is for whoever comes first.
            BudgetKind::Yielding if self.has_shares() => accounts.by_held.last(),
            BudgetKind::Yielding | BudgetKind::Kept => None,
        };
        let yields = largest.map(|(largest_amount, name)| {
            let would_hold = held.saturating_add(amount);
            // One that holds nothing may be as large as the largest.
            let is_larger =
                *largest_amount < would_hold || (*largest_amount == would_hold && held > 0);
            if is_larger { holder.clone() } else { Holder::principal(name, false) }
        });
        BudgetError {
            unit: self.spec.unit,
            setting: self.spec.setting,
            limit: self.limit(),
            holder: holder.name().to_owned(),
            held,
            wanted: amount,
            used: accounts.used,
            yields,
        }
    }
}

impl BudgetSource for Budget {
    fn usage(&self) -> BudgetUsage {
        let accounts = self.accounts.lock();
        let largest = accounts.by_held.last();
        let BudgetSpec { name, unit, setting, .. } = self.spec;
        BudgetUsage {
            name,
            unit,
            setting,
            limit: self.limit(),
            used: accounts.used,
            holders: accounts.by_holder.len(),
            largest: largest
                .map(|(used, name)| LargestHolder { name: name.to_string(), used: *used }),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

impl Accounts {
    fn held(&self, holder: &Holder) -> u64 {
        self.by_holder.get(holder.name()).copied().unwrap_or(0)
    }

    /// The holder, with the memory of the name in its account.
    fn shared(&self, holder: &Holder) -> Holder {
        match self.by_holder.get_key_value(holder.name()) {
            Some((name, _)) => holder.with_shared_name(name),
            None => holder.clone(),
        }
    }

    fn add(&mut self, holder: &Holder, amount: u64) {
        if amount == 0 {
            return;
        }
        self.used += amount;
        match self.by_holder.entry(Arc::clone(holder.shared_name())) {
            Entry::Vacant(entry) => {
                self.by_held.insert((amount, Arc::clone(entry.key())));
                entry.insert(amount);
            }
            Entry::Occupied(mut entry) => {
                let before = *entry.get();
                self.by_held.remove(&(before, Arc::clone(entry.key())));
                *entry.get_mut() = before + amount;
                self.by_held.insert((before + amount, Arc::clone(entry.key())));
            }
        }
    }

    fn remove(&mut self, holder: &Holder, amount: u64) {
        if amount == 0 {
            return;
        }
        let Entry::Occupied(mut entry) = self.by_holder.entry(Arc::clone(holder.shared_name()))
        else {
            panic!("a holder gives back what it was never charged")
        };
        let before = *entry.get();
        let after = before.checked_sub(amount).expect("a holder gives back no more than it holds");
        self.used -= amount;
        self.by_held.remove(&(before, Arc::clone(entry.key())));
        if after == 0 {
            entry.remove();
        } else {
            *entry.get_mut() = after;
            self.by_held.insert((after, Arc::clone(entry.key())));
        }
    }
}

/// A part of a budget, until it is dropped.
#[derive(Debug)]
pub struct BudgetGrant {
    budget: Arc<Budget>,
    holder: Holder,
    amount: u64,
}

impl BudgetGrant {
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Returns true if it holds what a restart found.
    pub fn is_restored(&self) -> bool {
        self.holder.is_restored()
    }

    /// Makes another holder the one that is charged, whatever its share is.
    pub fn hand_over(&mut self, holder: &Holder) {
        let mut accounts = self.budget.accounts.lock();
        if self.holder != *holder {
            accounts.remove(&self.holder, self.amount);
            accounts.add(holder, self.amount);
        }
        self.holder = accounts.shared(holder);
    }

    /// Adds another grant of the same budget to this one, for the holder of this one.
    ///
    /// # Panics
    /// It is of another budget.
    pub fn absorb(&mut self, mut other: BudgetGrant) {
        assert!(Arc::ptr_eq(&self.budget, &other.budget), "grants of one budget add up");
        other.hand_over(&self.holder);
        self.amount += std::mem::take(&mut other.amount);
    }

    /// Changes the amount.
    ///
    /// # Errors
    /// As [`Budget::charge`], for what is added. Then the grant stays as it is.
    pub fn resize(&mut self, amount: u64) -> Result<(), BudgetError> {
        if amount > self.amount {
            self.budget.charge(&self.holder, amount - self.amount)?;
        } else {
            self.budget.release(&self.holder, self.amount - amount);
        }
        self.amount = amount;
        Ok(())
    }

    /// Changes the amount, whatever the limit says: others were made to give way.
    pub fn resize_always(&mut self, amount: u64) {
        self.budget.charge_always(&self.holder, amount.saturating_sub(self.amount));
        self.budget.release(&self.holder, self.amount.saturating_sub(amount));
        self.amount = amount;
    }
}

impl Drop for BudgetGrant {
    fn drop(&mut self) {
        self.budget.release(&self.holder, self.amount);
    }
}

#[cfg(test)]
mod tests;
