//! Transactional ids in the catalog, and the offsets of their open transactions.

use std::collections::HashMap;

use engine_core::EngineError;
use hlc::{Cut, Hlc};
use serde::{Deserialize, Serialize};
use storage::catalog::{CatalogError, CatalogWriteBatch, escape, unescape};

use super::restatement::VALUE_BYTES;
use super::{
    GroupCatalog, PENDING, SEPARATOR, TRANSACTION_OFFSETS, TRANSACTIONS, split_at_separator,
};
use crate::event::{GroupEvent, OffsetCommit, RestatedTransaction, RestatedTransactionOffset};
use crate::stored_transaction::{StoredTransaction, StoredTransactionOffset};
use crate::transaction_state::{StoredDecision, TransactionState};
use crate::transactions::GroupedOffsets;

/// The value of a transactional id: its state; and the bits of the stamp of its last decision, with
/// the decision.
#[derive(Debug, Serialize, Deserialize)]
struct TransactionValue {
    state: TransactionState,
    decided: Option<(u64, StoredDecision)>,
}

/// The value of an offset of an open transaction that something later has superseded: the
/// transaction is still open.
const SUPERSEDED: &[u8] = &[];

/// A commit or removal that ends older pending offsets.
#[derive(Clone, Copy, Debug)]
struct Supersession {
    /// The place of the commit or removal among other commits. For the offset of a transaction,
    /// when it was added.
    accepted: Hlc,
    /// The stamp of the event that is applied.
    stamp: Hlc,
}

pub(super) fn transaction_key(id: &str) -> Vec<u8> {
    let mut key = vec![TRANSACTIONS];
    escape(id, &mut key);
    key
}

fn transaction_offsets_prefix(id: &str) -> Vec<u8> {
    let mut key = vec![TRANSACTION_OFFSETS];
    escape(id, &mut key);
    key.extend_from_slice(SEPARATOR);
    key
}

fn transaction_offset_key(id: &str, group: &str, topic: &str, partition: u32) -> Vec<u8> {
    let mut key = transaction_offsets_prefix(id);
    escape(group, &mut key);
    key.extend_from_slice(SEPARATOR);
    escape(topic, &mut key);
    key.extend_from_slice(SEPARATOR);
    key.extend_from_slice(format!("{partition:08x}").as_bytes());
    key
}

/// The transactional id and the group of a key of [`transaction_offset_key`].
fn parse_transaction_offset_key(key: &[u8]) -> Option<(String, String)> {
    let (id, rest) = split_at_separator(key.strip_prefix(&[TRANSACTION_OFFSETS])?)?;
    let (group, _) = split_at_separator(rest)?;
    Some((unescape(id), unescape(group)))
}

/// The prefix of the keys of all pending offsets of a group.
fn pending_prefix(group: &str) -> Vec<u8> {
    let mut key = vec![PENDING];
    escape(group, &mut key);
    key.extend_from_slice(SEPARATOR);
    key
}

fn pending_partition_prefix(group: &str, topic: &str, partition: u32) -> Vec<u8> {
    let mut key = pending_prefix(group);
    escape(topic, &mut key);
    key.extend_from_slice(SEPARATOR);
    key.extend_from_slice(format!("{partition:08x}").as_bytes());
    key.extend_from_slice(SEPARATOR);
    key
}

fn pending_key(id: &str, group: &str, topic: &str, partition: u32) -> Vec<u8> {
    let mut key = pending_partition_prefix(group, topic, partition);
    escape(id, &mut key);
    key
}

/// The key of the transaction's offset for a key of [`pending_key`].
fn transaction_offset_of_pending(key: &[u8]) -> Option<Vec<u8>> {
    let (group, rest) = split_at_separator(key.strip_prefix(&[PENDING])?)?;
    let (topic, rest) = split_at_separator(rest)?;
    let (partition, id) = split_at_separator(rest)?;
    let fields = [&[TRANSACTION_OFFSETS][..], id, SEPARATOR, group, SEPARATOR, topic, SEPARATOR];
    Some([&fields.concat()[..], partition].concat())
}

/// The key of the pending offset for a key of [`transaction_offset_key`].
fn pending_of_transaction_offset(key: &[u8]) -> Option<Vec<u8>> {
    let (id, place) = split_at_separator(key.strip_prefix(&[TRANSACTION_OFFSETS])?)?;
    Some([&[PENDING][..], place, SEPARATOR, id].concat())
}

pub(super) fn put_transaction_offsets(
    changes: &mut CatalogWriteBatch,
    id: &str,
    group: &str,
    offsets: &[OffsetCommit],
    stamp: Hlc,
) {
    for commit in offsets {
        let value = postcard::to_stdvec(commit).expect("an offset can be encoded");
        let OffsetCommit { topic, partition, .. } = commit;
        changes.put(&transaction_offset_key(id, group, topic, *partition), stamp, Some(&value));
        changes.put_unversioned(&pending_key(id, group, topic, *partition), Some(&[]));
    }
}

fn put_transaction(
    changes: &mut CatalogWriteBatch,
    id: &str,
    value: &TransactionValue,
    stamp: Hlc,
) {
    let value = postcard::to_stdvec(value).expect("a transaction can be encoded");
    changes.put(&transaction_key(id), stamp, Some(&value));
}

impl GroupCatalog {
    pub(super) fn save_transaction(
        &self,
        changes: &mut CatalogWriteBatch,
        id: &str,
        state: &TransactionState,
        stamp: Hlc,
    ) -> Result<(), CatalogError> {
        let before = self.catalog.get(&transaction_key(id), Cut::below(stamp))?;
        let before = before.and_then(|(_, value)| decode(&value));
        let decided = before.and_then(|before| before.decided);
        put_transaction(changes, id, &TransactionValue { state: state.clone(), decided }, stamp);
        Ok(())
    }

    pub(super) fn decide_transaction(
        &self,
        changes: &mut CatalogWriteBatch,
        id: &str,
        decision: StoredDecision,
        state: &TransactionState,
        stamp: Hlc,
    ) -> Result<(), CatalogError> {
        let decided = Some((stamp.bits(), decision));
        put_transaction(changes, id, &TransactionValue { state: state.clone(), decided }, stamp);
        for (key, ..) in self.catalog.scan(&transaction_offsets_prefix(id), Cut::below(stamp))? {
            changes.put(&key, stamp, None);
            if let Some(pending) = pending_of_transaction_offset(&key) {
                changes.put_unversioned(&pending, None);
            }
        }
        Ok(())
    }

    /// Commits the offsets of a transaction, except those that something later has superseded. The
    /// order is that in which offsets were accepted, as in Kafka: the end of a transaction does not
    /// make its offsets newer.
    pub(super) fn commit_transaction_offsets(
        &self,
        changes: &mut CatalogWriteBatch,
        id: &str,
        offsets: &GroupedOffsets,
        stamp: Hlc,
    ) -> Result<(), CatalogError> {
        for (group, offsets) in offsets {
            let mut newest = Vec::with_capacity(offsets.len());
            for commit in offsets {
                let OffsetCommit { topic, partition, .. } = commit;
                let key = transaction_offset_key(id, group, topic, *partition);
                let pending = self.catalog.get(&key, Cut::below(stamp))?;
                if let Some((added, _)) = pending.filter(|(_, value)| value != SUPERSEDED) {
                    let pending_elsewhere = pending_partition_prefix(group, topic, *partition);
                    self.supersede(
                        changes,
                        &pending_elsewhere,
                        Supersession { accepted: added, stamp },
                    )?;
                    newest.push(commit.clone());
                }
            }
            self.put_offsets(changes, group, &newest, stamp)?;
        }
        Ok(())
    }

    /// Ends the pending offsets for partitions that a commit names.
    pub(super) fn supersede_offsets(
        &self,
        changes: &mut CatalogWriteBatch,
        group: &str,
        offsets: &[OffsetCommit],
        stamp: Hlc,
    ) -> Result<(), CatalogError> {
        if !self.has_pending(&pending_prefix(group))? {
            return Ok(());
        }
        offsets.iter().try_for_each(|OffsetCommit { topic, partition, .. }| {
            let pending = pending_partition_prefix(group, topic, *partition);
            self.supersede(changes, &pending, Supersession { accepted: stamp, stamp })
        })
    }

    /// Ends the pending offsets for these partitions.
    pub(super) fn supersede_partitions(
        &self,
        changes: &mut CatalogWriteBatch,
        group: &str,
        partitions: &[(String, u32)],
        stamp: Hlc,
    ) -> Result<(), CatalogError> {
        partitions.iter().try_for_each(|(topic, partition)| {
            let pending = pending_partition_prefix(group, topic, *partition);
            self.supersede(changes, &pending, Supersession { accepted: stamp, stamp })
        })
    }

    /// Ends the pending offsets of a group.
    pub(super) fn supersede_group(
        &self,
        changes: &mut CatalogWriteBatch,
        group: &str,
        stamp: Hlc,
    ) -> Result<(), CatalogError> {
        let supersession = Supersession { accepted: stamp, stamp };
        self.supersede(changes, &pending_prefix(group), supersession)
    }

    /// Ends the pending offsets whose keys begin with `prefix` and that were accepted before the
    /// supersession.
    fn supersede(
        &self,
        changes: &mut CatalogWriteBatch,
        prefix: &[u8],
        supersession: Supersession,
    ) -> Result<(), CatalogError> {
        let Supersession { accepted, stamp } = supersession;
        for (pending, ..) in self.catalog.scan(prefix, Cut::ALL)? {
            let Some(offset) = transaction_offset_of_pending(&pending) else { continue };
            // A catalog that is brought up to date may hold what came later.
            let is_superseded = match self.catalog.get(&offset, Cut::below(stamp))? {
                Some((added, value)) => added < accepted && value != SUPERSEDED,
                None => false,
            };
            if is_superseded {
                changes.put(&offset, stamp, Some(SUPERSEDED));
                changes.put_unversioned(&pending, None);
            }
        }
        Ok(())
    }

    fn has_pending(&self, prefix: &[u8]) -> Result<bool, CatalogError> {
        self.catalog.has_any(prefix, Cut::ALL)
    }

    /// Returns true if an open transaction holds an offset of the group.
    pub(crate) fn has_pending_offsets(&self, group: &str) -> Result<bool, CatalogError> {
        self.has_pending(&pending_prefix(group))
    }

    /// Returns true if an open transaction holds an offset of the group for the partition.
    pub(crate) fn has_pending_offset(
        &self,
        group: &str,
        topic: &str,
        partition: u32,
    ) -> Result<bool, CatalogError> {
        self.has_pending(&pending_partition_prefix(group, topic, partition))
    }

    /// All transactional ids, by id.
    pub(crate) fn transactions(&self, cut: Cut) -> Result<Vec<StoredTransaction>, CatalogError> {
        let mut transactions: Vec<StoredTransaction> = Vec::new();
        for (key, _, value) in self.catalog.scan(&[TRANSACTIONS], cut)? {
            let Some(TransactionValue { state, decided }) = decode(&value) else { continue };
            let decided = decided.map(|(stamp, decision)| (Hlc::from_bits(stamp), decision));
            let (id, offsets) = (unescape(&key[1..]), Vec::new());
            let has_superseded = false;
            transactions.push(StoredTransaction { id, state, decided, offsets, has_superseded });
        }
        let numbers: HashMap<String, usize> = transactions
            .iter()
            .enumerate()
            .map(|(nth, transaction)| (transaction.id.clone(), nth))
            .collect();
        for (key, added, value) in self.catalog.scan(&[TRANSACTION_OFFSETS], cut)? {
            let Some((id, group)) = parse_transaction_offset_key(&key) else { continue };
            let Some(nth) = numbers.get(&id) else { continue };
            if value == SUPERSEDED {
                transactions[*nth].has_superseded = true;
            } else if let Ok(commit) = postcard::from_bytes(&value) {
                transactions[*nth].offsets.push(StoredTransactionOffset { group, added, commit });
            }
        }
        Ok(transactions)
    }

    /// Passes the events that restate transactional ids at `cut` to `emit`. Each has at most
    /// `bytes_max`, or a single value.
    pub(super) fn restate_transactions(
        &self,
        cut: Cut,
        bytes_max: usize,
        emit: &mut dyn FnMut(GroupEvent) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let (mut transactions, mut offsets, mut bytes) = (Vec::new(), Vec::new(), 0);
        let horizon = cut.bound().bits();
        let corrupt = |key: &[u8]| {
            EngineError::Corrupt(format!("cannot decode the catalog's value of key {key:?}"))
        };
        let mut emit_full =
            |transactions: &mut Vec<_>, offsets: &mut Vec<_>, bytes: &mut usize, next: usize| {
                if *bytes > 0 && *bytes + next > bytes_max {
                    *bytes = 0;
                    let (transactions, offsets) =
                        (std::mem::take(transactions), std::mem::take(offsets));
                    emit(GroupEvent::TransactionsRestated { horizon, transactions, offsets })?;
                }
                *bytes += next;
                Ok::<_, EngineError>(())
            };
        self.catalog.visit(&[TRANSACTIONS], cut, &mut |key, stamp, value| {
            let TransactionValue { state, decided } = decode(value).ok_or_else(|| corrupt(key))?;
            let (id, stamp) = (unescape(&key[1..]), stamp.bits());
            emit_full(
                &mut transactions,
                &mut offsets,
                &mut bytes,
                id.len() + value.len() + VALUE_BYTES,
            )?;
            transactions.push(RestatedTransaction { id, stamp, state, decided });
            Ok::<_, EngineError>(())
        })?;
        self.catalog.visit(&[TRANSACTION_OFFSETS], cut, &mut |key, stamp, value| {
            if value == SUPERSEDED {
                return Ok(());
            }
            let (id, group) = parse_transaction_offset_key(key).ok_or_else(|| corrupt(key))?;
            let commit = postcard::from_bytes(value).map_err(|_| corrupt(key))?;
            emit_full(
                &mut transactions,
                &mut offsets,
                &mut bytes,
                key.len() + value.len() + VALUE_BYTES,
            )?;
            offsets.push(RestatedTransactionOffset { id, group, stamp: stamp.bits(), commit });
            Ok::<_, EngineError>(())
        })?;
        if transactions.is_empty() && offsets.is_empty() {
            return Ok(());
        }
        emit(GroupEvent::TransactionsRestated { horizon, transactions, offsets })
    }

    /// Loads a restatement into a catalog that is being rebuilt.
    pub(crate) fn load_transactions(
        &self,
        transactions: &[RestatedTransaction],
        offsets: &[RestatedTransactionOffset],
    ) -> Result<(), CatalogError> {
        let mut changes = CatalogWriteBatch::default();
        for RestatedTransaction { id, stamp, state, decided } in transactions {
            let value = TransactionValue { state: state.clone(), decided: *decided };
            put_transaction(&mut changes, id, &value, Hlc::from_bits(*stamp));
        }
        for RestatedTransactionOffset { id, group, stamp, commit } in offsets {
            let commit = std::slice::from_ref(commit);
            put_transaction_offsets(&mut changes, id, group, commit, Hlc::from_bits(*stamp));
        }
        self.catalog.apply_unpositioned(changes)
    }
}

fn decode(value: &[u8]) -> Option<TransactionValue> {
    postcard::from_bytes(value).ok()
}
