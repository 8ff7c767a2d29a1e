//! Produce: one batch for each partition and request, as Kafka requires.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::ProduceRequest;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::{
    BatchIndexAndErrorMessage, PartitionProduceResponse,
};

use crate::ClientError;
use crate::cluster::{Client, topic_name};
use crate::transaction::transactional_id;

const SERVER_WAIT: Duration = Duration::from_secs(30);

/// The acknowledgement after which a batch counts as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredAcks {
    /// Once it was sent. The server does not respond.
    None,
    /// Once the leader has written it.
    Leader,
    /// Once every in-sync replica has written it.
    All,
}

/// The position of a written batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducedBatch {
    /// The partition.
    pub partition: i32,
    /// The offset of its first record.
    pub base_offset: i64,
}

impl Client {
    /// Appends one batch to each of several partitions. Returns their positions by partition;
    /// nothing with [`RequiredAcks::None`].
    ///
    /// Batches that a server refuses with a retriable error (it does not lead the partition) are
    /// sent again. Other batches are not.
    ///
    /// # Errors
    /// Some of the batches may have been written nevertheless.
    pub async fn produce(
        &mut self,
        topic: &str,
        acks: RequiredAcks,
        batches: BTreeMap<i32, Bytes>,
    ) -> Result<Vec<ProducedBatch>, ClientError> {
        self.produce_with(topic, acks, None, batches).await
    }

    /// [`Client::produce`], as a part of a transaction if it has an id.
    pub(crate) async fn produce_with(
        &mut self,
        topic: &str,
        acks: RequiredAcks,
        transaction: Option<&str>,
        mut batches: BTreeMap<i32, Bytes>,
    ) -> Result<Vec<ProducedBatch>, ClientError> {
        let order = BatchOrder { topic, acks, transaction };
        let mut placed = Vec::with_capacity(batches.len());
        self.retry(async |client: &mut Client| {
            client.produce_once(&order, &mut batches, &mut placed).await
        })
        .await?;
        placed.sort_by_key(|placed: &ProducedBatch| placed.partition);
        Ok(placed)
    }

    /// Sends `batches` once, and removes those that were written.
    async fn produce_once(
        &mut self,
        order: &BatchOrder<'_>,
        batches: &mut BTreeMap<i32, Bytes>,
        placed: &mut Vec<ProducedBatch>,
    ) -> Result<(), ClientError> {
        let mut refused = Ok(());
        for (leader, led) in self.by_leader(order.topic, batches.clone()).await? {
            let request = request(order, &led);
            if order.acks == RequiredAcks::None {
                self.send_without_response(&leader, &request).await?;
                led.iter().for_each(|(partition, _)| drop(batches.remove(partition)));
                continue;
            }
            let answer = self.call_for_records(&leader, &request, 0, SERVER_WAIT).await?;
            for result in answer.responses.into_iter().flat_map(|topic| topic.partition_responses) {
                match check_result(order.topic, &result) {
                    Ok(()) => {
                        batches.remove(&result.index);
                        placed.push(ProducedBatch {
                            partition: result.index,
                            base_offset: result.base_offset,
                        });
                    }
                    // A permanent error is the one to report.
                    Err(error) if error.is_retriable() && refused.is_err() => {}
                    Err(error) => refused = Err(error),
                }
            }
        }
        refused
    }
}

/// The topic and the options of a produce request.
struct BatchOrder<'a> {
    topic: &'a str,
    acks: RequiredAcks,
    /// The id of the transaction that they are in.
    transaction: Option<&'a str>,
}

fn request(order: &BatchOrder<'_>, batches: &[(i32, Bytes)]) -> ProduceRequest {
    let partitions = batches.iter().map(|(partition, batch)| {
        PartitionProduceData::default().with_index(*partition).with_records(Some(batch.clone()))
    });
    let topic = TopicProduceData::default()
        .with_name(topic_name(order.topic))
        .with_partition_data(partitions.collect());
    ProduceRequest::default()
        .with_transactional_id(order.transaction.map(transactional_id))
        .with_acks(match order.acks {
            RequiredAcks::None => 0,
            RequiredAcks::Leader => 1,
            RequiredAcks::All => -1,
        })
        .with_timeout_ms(SERVER_WAIT.as_millis() as i32)
        .with_topic_data(vec![topic])
}

/// The number of refused records of a batch that a message names.
const REFUSED_NAMED_MAX: usize = 3;

fn check_result(topic: &str, result: &PartitionProduceResponse) -> Result<(), ClientError> {
    let Some(error) = ResponseError::try_from_code(result.error_code) else {
        return Ok(());
    };
    // If records are named, the message says the same in Java's terms.
    let message = match &result.record_errors[..] {
        [] => result.error_message.as_ref().map(ToString::to_string),
        records => Some(refused_records(records)),
    };
    let message = message.unwrap_or_default();
    let doing = format!("produce to {topic}/{}", result.index);
    Err(ClientError::kafka(doing, error, Some(&message)))
}

fn refused_records(records: &[BatchIndexAndErrorMessage]) -> String {
    let messages = records.iter().take(REFUSED_NAMED_MAX).map(|error| {
        let message = error.batch_index_error_message.as_deref().unwrap_or("refused");
        format!("record {} of the batch: {message}", error.batch_index)
    });
    let mut messages: Vec<String> = messages.collect();
    if records.len() > REFUSED_NAMED_MAX {
        messages.push(format!("and {} more", records.len() - REFUSED_NAMED_MAX));
    }
    messages.join("; ")
}

#[cfg(test)]
mod tests {
    use kafka_protocol::protocol::StrBytes;

    use super::*;

    #[test]
    fn a_refused_record_is_reported_once() {
        let of_record = |index| {
            BatchIndexAndErrorMessage::default()
                .with_batch_index(index)
                .with_batch_index_error_message(Some(StrBytes::from_static_str("it has no value")))
        };
        let text = "One or more records have been rejected: [RecordError(batchIndex=0, message='it has no value')]";
        let result = PartitionProduceResponse::default()
            .with_error_code(ResponseError::InvalidRecord.code())
            .with_error_message(Some(StrBytes::from_static_str(text)))
            .with_record_errors((0..5).map(of_record).collect());
        assert_eq!(
            check_result("t", &result).unwrap_err().to_string(),
            "produce to t/0: InvalidRecord (87): record 0 of the batch: it has no value; \
             record 1 of the batch: it has no value; record 2 of the batch: it has no value; and 2 more"
        );
    }
}
