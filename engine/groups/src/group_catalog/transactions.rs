//! Transactional ids in the catalog, and the offsets of their open transactions.

use std::collections::HashMap;

use engine_core::EngineError;
use hlc::{Cut, Hlc};
use serde::{Deserialize, Serialize};
use storage::catalog::{CatalogError, CatalogWriteBatch, escape, unescape};

use super::restatement::VALUE_BYTES;
use super::{GroupCatalog, SEPARATOR, TRANSACTION_OFFSETS, TRANSACTIONS, split_at_separator};
use crate::event::{GroupEvent, OffsetCommit, RestatedTransaction, RestatedTransactionOffset};
use crate::stored_transaction::{StoredTransaction, StoredTransactionOffset};
use crate::transaction_state::{StoredDecision, TransactionState};

/// The value of a transactional id: its state; and the bits of the stamp of its last decision, with
/// the decision.
#[derive(Debug, Serialize, Deserialize)]
struct TransactionValue {
    state: TransactionState,
    decided: Option<(u64, StoredDecision)>,
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

fn transaction_offset_key(id: &str, group: &str, commit: &OffsetCommit) -> Vec<u8> {
    let mut key = transaction_offsets_prefix(id);
    escape(group, &mut key);
    key.extend_from_slice(SEPARATOR);
    escape(&commit.topic, &mut key);
    key.extend_from_slice(SEPARATOR);
    key.extend_from_slice(format!("{:08x}", commit.partition).as_bytes());
    key
}

/// The transactional id and the group of a key of [`transaction_offset_key`].
fn parse_transaction_offset_key(key: &[u8]) -> Option<(String, String)> {
    let (id, rest) = split_at_separator(key.strip_prefix(&[TRANSACTION_OFFSETS])?)?;
    let (group, _) = split_at_separator(rest)?;
    Some((unescape(id), unescape(group)))
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
        changes.put(&transaction_offset_key(id, group, commit), stamp, Some(&value));
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
        (decision, state): (StoredDecision, &TransactionState),
        stamp: Hlc,
    ) -> Result<(), CatalogError> {
        let decided = Some((stamp.bits(), decision));
        put_transaction(changes, id, &TransactionValue { state: state.clone(), decided }, stamp);
        for (key, ..) in self.catalog.scan(&transaction_offsets_prefix(id), Cut::below(stamp))? {
            changes.put(&key, stamp, None);
        }
        Ok(())
    }

    /// All transactional ids, by id.
    pub(crate) fn transactions(&self, cut: Cut) -> Result<Vec<StoredTransaction>, CatalogError> {
        let mut found: Vec<StoredTransaction> = Vec::new();
        for (key, _, value) in self.catalog.scan(&[TRANSACTIONS], cut)? {
            let Some(TransactionValue { state, decided }) = decode(&value) else { continue };
            let decided = decided.map(|(stamp, decision)| (Hlc::from_bits(stamp), decision));
            let (id, offsets) = (unescape(&key[1..]), Vec::new());
            found.push(StoredTransaction { id, state, decided, offsets });
        }
        let numbers: HashMap<String, usize> =
            found.iter().enumerate().map(|(nth, one)| (one.id.clone(), nth)).collect();
        for (key, added, value) in self.catalog.scan(&[TRANSACTION_OFFSETS], cut)? {
            let parsed = parse_transaction_offset_key(&key);
            let (Some((id, group)), Ok(commit)) = (parsed, postcard::from_bytes(&value)) else {
                continue;
            };
            if let Some(nth) = numbers.get(&id) {
                found[*nth].offsets.push(StoredTransactionOffset { group, added, commit });
            }
        }
        Ok(found)
    }

    /// Passes the events that restate transactional ids at `cut` to `emit`. Each has at most `bytes_max`,
    /// or a single value.
    pub(super) fn restate_transactions(
        &self,
        cut: Cut,
        bytes_max: usize,
        emit: &mut dyn FnMut(GroupEvent) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let (mut transactions, mut offsets, mut bytes) = (Vec::new(), Vec::new(), 0);
        let horizon = cut.bound().bits();
        let corrupt =
            |key: &[u8]| EngineError::Corrupt(format!("decode the catalog's value. key={key:?}"));
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
