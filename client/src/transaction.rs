//! Transactions: batches that readers of committed records see all at once, or never.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, DescribeTransactionsRequest, EndTxnRequest, InitProducerIdRequest,
    ListTransactionsRequest, ProducerId, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;

use crate::ClientError;
use crate::cluster::{Client, topic_name};
use crate::produce::{ProducedBatch, RequiredAcks};

/// The kind of coordinator of transactions.
const TRANSACTION_COORDINATOR: i8 = 1;

/// A transaction that has begun. If it is dropped, the server aborts it after its timeout, or once
/// another one with its id begins.
#[derive(Debug)]
pub struct ClientTransaction {
    id: String,
    coordinator: String,
    /// The producer id and epoch that each batch of it carries.
    pub producer: (i64, i16),
    partitions: BTreeSet<(String, i32)>,
}

/// The transaction of an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionDescription {
    /// Its transactional id.
    pub id: String,
    /// Its state, in Kafka's words.
    pub state: String,
    /// The id and the epoch of its producer.
    pub producer: (i64, i16),
    /// The time at which it began, in milliseconds since 1970; `None` if none is open.
    pub began_ms: Option<i64>,
    /// The longest time that it may be open, in milliseconds.
    pub timeout_ms: i32,
    /// The partitions that it has records in, by topic.
    pub partitions: BTreeMap<String, Vec<i32>>,
}

impl Client {
    /// The transactional ids that the servers know, with the state of each.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub async fn transactions(&mut self) -> Result<Vec<(String, String)>, ClientError> {
        let request = ListTransactionsRequest::default();
        let mut transactions = Vec::new();
        for address in self.all_servers().await? {
            let answer = self.call(&address, &request, Duration::ZERO).await?;
            check(|| "list transactions".to_owned(), answer.error_code)?;
            let states = answer.transaction_states.into_iter();
            transactions.extend(states.map(|transaction| {
                (
                    transaction.transactional_id.to_string(),
                    transaction.transaction_state.to_string(),
                )
            }));
        }
        transactions.sort();
        Ok(transactions)
    }

    /// The transaction of an id.
    ///
    /// # Errors
    /// Among others Kafka's `TransactionalIdNotFound`.
    pub async fn describe_transaction(
        &mut self,
        id: &str,
    ) -> Result<TransactionDescription, ClientError> {
        let request = DescribeTransactionsRequest::default()
            .with_transactional_ids(vec![transactional_id(id)]);
        self.retry(async |client: &mut Client| {
            let coordinator = client.coordinator_of(id, TRANSACTION_COORDINATOR).await?;
            let answer = client.call(&coordinator, &request, Duration::ZERO).await?;
            let Some(state) = answer.transaction_states.into_iter().next() else {
                let problem = "the response describes no transaction".to_owned();
                return Err(ClientError::Malformed { address: coordinator, what: problem });
            };
            check(|| format!("describe transaction {id}"), state.error_code)?;
            let topics = state.topics.into_iter();
            Ok(TransactionDescription {
                id: id.to_owned(),
                state: state.transaction_state.to_string(),
                producer: (state.producer_id.0, state.producer_epoch),
                began_ms: Some(state.transaction_start_time_ms).filter(|ms| *ms >= 0),
                timeout_ms: state.transaction_timeout_ms,
                partitions: topics
                    .map(|topic| (topic.topic.to_string(), topic.partitions))
                    .collect(),
            })
        })
        .await
    }

    /// Begins a transaction. One with the same id that was not ended is aborted, and its client
    /// fenced.
    ///
    /// # Errors
    /// The server refuses it, or is not there.
    pub async fn begin_transaction(
        &mut self,
        id: &str,
        timeout: Duration,
    ) -> Result<ClientTransaction, ClientError> {
        let (coordinator, producer) = self
            .retry(async |client: &mut Client| {
                let coordinator = client.coordinator_of(id, TRANSACTION_COORDINATOR).await?;
                let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
                let request = InitProducerIdRequest::default()
                    .with_transactional_id(Some(transactional_id(id)))
                    .with_transaction_timeout_ms(timeout_ms);
                let answer = client.call(&coordinator, &request, Duration::ZERO).await?;
                check(|| format!("begin transaction {id}"), answer.error_code)?;
                Ok((coordinator, (answer.producer_id.0, answer.producer_epoch)))
            })
            .await?;
        Ok(ClientTransaction {
            id: id.to_owned(),
            coordinator,
            producer,
            partitions: BTreeSet::new(),
        })
    }

    /// Appends one batch to each of several partitions, in a transaction. The batches name its
    /// producer, and have the sequence numbers that follow.
    ///
    /// # Errors
    /// The transaction is to be aborted.
    pub async fn produce_in(
        &mut self,
        transaction: &mut ClientTransaction,
        topic: &str,
        batches: BTreeMap<i32, Bytes>,
    ) -> Result<Vec<ProducedBatch>, ClientError> {
        let is_new =
            |partition: &i32| !transaction.partitions.contains(&(topic.to_owned(), *partition));
        let new: Vec<i32> = batches.keys().copied().filter(is_new).collect();
        if !new.is_empty() {
            self.add_partitions(transaction, topic, &new).await?;
            let new = new.into_iter().map(|partition| (topic.to_owned(), partition));
            transaction.partitions.extend(new);
        }
        self.produce_with(topic, RequiredAcks::All, Some(&transaction.id), batches).await
    }

    async fn add_partitions(
        &mut self,
        transaction: &ClientTransaction,
        topic: &str,
        partitions: &[i32],
    ) -> Result<(), ClientError> {
        let requested = AddPartitionsToTxnTopic::default()
            .with_name(topic_name(topic))
            .with_partitions(partitions.to_vec());
        let (producer, epoch) = transaction.producer;
        let request = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(transactional_id(&transaction.id))
            .with_v3_and_below_producer_id(ProducerId(producer))
            .with_v3_and_below_producer_epoch(epoch)
            .with_v3_and_below_topics(vec![requested]);
        self.retry(async |client: &mut Client| {
            let answer = client.call(&transaction.coordinator, &request, Duration::ZERO).await?;
            for topic in &answer.results_by_topic_v3_and_below {
                for result in &topic.results_by_partition {
                    let doing = || format!("begin to write to {}", &**topic.name);
                    check(doing, result.partition_error_code)?;
                }
            }
            Ok(())
        })
        .await
    }

    /// Commits a transaction.
    ///
    /// # Errors
    /// It may be committed nevertheless, if the server is not there; if it refuses, it is not.
    pub async fn commit_transaction(
        &mut self,
        transaction: ClientTransaction,
    ) -> Result<(), ClientError> {
        self.end_transaction(transaction, true).await
    }

    /// Aborts a transaction: readers of committed records never see its batches.
    ///
    /// # Errors
    /// The server is not there, or has aborted it already.
    pub async fn abort_transaction(
        &mut self,
        transaction: ClientTransaction,
    ) -> Result<(), ClientError> {
        self.end_transaction(transaction, false).await
    }

    async fn end_transaction(
        &mut self,
        transaction: ClientTransaction,
        commits: bool,
    ) -> Result<(), ClientError> {
        // For the server, a transaction begins with its first partition.
        if transaction.partitions.is_empty() {
            return Ok(());
        }
        let (producer, epoch) = transaction.producer;
        let request = EndTxnRequest::default()
            .with_transactional_id(transactional_id(&transaction.id))
            .with_producer_id(ProducerId(producer))
            .with_producer_epoch(epoch)
            .with_committed(commits);
        self.retry(async |client: &mut Client| {
            let answer = client.call(&transaction.coordinator, &request, Duration::ZERO).await?;
            check(|| format!("end transaction {}", transaction.id), answer.error_code)
        })
        .await
    }
}

pub(crate) fn transactional_id(id: &str) -> TransactionalId {
    TransactionalId(StrBytes::from_string(id.to_owned()))
}

fn check(doing: impl FnOnce() -> String, code: i16) -> Result<(), ClientError> {
    match ResponseError::try_from_code(code) {
        None => Ok(()),
        Some(error) => Err(ClientError::kafka(doing(), error, None)),
    }
}
