//! A moment of what is committed has all records of a transaction or none, on all partitions, also
//! while markers are missing; none of one that was aborted; all of one whose commit was answered
//! before something else in the moment was sent; and the same whenever it is read.

use std::collections::{BTreeMap, BTreeSet};

use hlc::Hlc;

use super::{Invariant, InvariantResult};
use crate::facts::{CommittedContents, NodeExitKind, SimFact};
use crate::ledger::{LedgerStep, SimLedger, TransactionOutcome};

#[derive(Default)]
pub(super) struct TransactionsAreWhole {
    answered: BTreeMap<Hlc, CommittedContents>,
}

impl Invariant for TransactionsAreWhole {
    fn name(&self) -> &'static str {
        "transactions_are_whole"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        ledger: &SimLedger,
    ) -> InvariantResult {
        match fact {
            // Contents that were not durable are lost with the machine.
            SimFact::NodeExited(NodeExitKind::PowerLoss) => self.answered.clear(),
            SimFact::Committed(contents) => {
                check(contents, ledger)?;
                if let Some(before) = self.answered.insert(contents.at, contents.clone()) {
                    check_same(&before, contents)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn check(contents: &CommittedContents, ledger: &SimLedger) -> InvariantResult {
    let at = contents.at;
    // The batches that are in the moment, whether committed or not, and those that are shown.
    let (mut stored, mut shown) = (BTreeSet::new(), BTreeSet::new());
    for ((topic, partition), (span, records)) in &contents.partitions {
        shown.extend(records.iter().map(|record| record.batch));
        let Some(seen) = ledger.partition_at(topic, *partition, at) else {
            return Err(format!("{topic}/{partition} did not exist at {at}, and was read"));
        };
        let kept = seen.entries_before(at).filter(|entry| entry.base >= span.start);
        stored.extend(kept.filter_map(|entry| entry.batch()));
    }
    let last_sent = stored.iter().map(|id| ledger.batch(*id).sent).max().unwrap_or(0);
    // Of each transaction, the batches that are shown, and those that are not.
    let mut by_transaction: BTreeMap<usize, [Vec<u64>; 2]> = BTreeMap::new();
    for id in &stored {
        let is_shown = shown.contains(id);
        match ledger.batch(*id).transaction {
            Some(number) => {
                by_transaction.entry(number).or_default()[usize::from(is_shown)].push(*id);
            }
            None if is_shown => {}
            None => {
                return Err(format!("batch {id} is of no transaction, and is missing at {at}"));
            }
        }
    }
    for (number, [missing, shown]) in by_transaction {
        let what =
            format!("transaction {number} at {at}: {shown:?} are shown, {missing:?} are not");
        if !missing.is_empty() && !shown.is_empty() {
            return Err(format!("it is in a moment in part. {what}"));
        }
        match ledger.transactions[number].outcome {
            TransactionOutcome::Aborted if !shown.is_empty() => {
                return Err(format!("it is aborted. {what}"));
            }
            TransactionOutcome::Committed(step) if shown.is_empty() && step < last_sent => {
                return Err(format!("it was committed at {step}. {what}"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_same(before: &CommittedContents, now: &CommittedContents) -> InvariantResult {
    for (place, (span, records)) in &now.partitions {
        let Some((span_before, records_before)) = before.partitions.get(place) else { continue };
        let kept = records_before.iter().filter(|record| record.offset >= span.start);
        if span.start < span_before.start {
            return Err(format!("{place:?} at {} began at {span_before:?}, then {span:?}", now.at));
        }
        if !records.iter().eq(kept) {
            return Err(format!("{place:?} at {}: {records_before:?}, then {records:?}", now.at));
        }
    }
    Ok(())
}
