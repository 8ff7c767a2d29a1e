//! WriteTxnMarkers (27): between Kafka's brokers, and the way in which an operator aborts a transaction that
//! hangs (KIP-664).
//!
//! Here an abort ends the whole transaction, on all its partitions: all of a transaction is read, or nothing.
//! A commit is decided by EndTxn alone, and refused.

use std::sync::Arc;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::write_txn_markers_request::WritableTxnMarker;
use kafka_protocol::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use kafka_protocol::messages::{WriteTxnMarkersRequest, WriteTxnMarkersResponse};
use kafka_protocol::protocol::VersionRange;

use crate::core::KafkaServer;
use crate::error_code::transaction_error;
use crate::request::{ApiHandler, RequestContext};
use crate::transactions::{ProducerIdAndEpoch, TransactionError};

impl ApiHandler for WriteTxnMarkersRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: 1 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        _context: &RequestContext,
    ) -> WriteTxnMarkersResponse {
        let producers = self.markers.iter().map(|marker| marker.producer_id.0).collect();
        let ids = kafka.transactions.of_producers(&producers).await;
        let mut markers = Vec::with_capacity(self.markers.len());
        for marker in self.markers {
            let error = end(kafka, ids.get(&marker.producer_id.0), &marker).await.err();
            markers.push(to_response(kafka, marker, error));
        }
        WriteTxnMarkersResponse::default().with_markers(markers)
    }
}

async fn end(
    kafka: &KafkaServer,
    id: Option<&String>,
    marker: &WritableTxnMarker,
) -> Result<(), ResponseError> {
    if marker.transaction_result {
        return Err(ResponseError::InvalidTxnState);
    }
    let producer = ProducerIdAndEpoch { id: marker.producer_id.0, epoch: marker.producer_epoch };
    let id = id.ok_or(ResponseError::InvalidProducerIdMapping)?;
    match kafka.transactions.abort(id, producer).await {
        // It has ended meanwhile.
        Ok(()) | Err(TransactionError::InvalidState) => Ok(()),
        Err(TransactionError::Fenced) => Err(ResponseError::InvalidProducerEpoch),
        Err(error) => Err(transaction_error(&error)),
    }
}

fn to_response(
    kafka: &KafkaServer,
    marker: WritableTxnMarker,
    error: Option<ResponseError>,
) -> WritableTxnMarkerResult {
    let topics = marker.topics.into_iter().map(|named| {
        let topic = kafka.engine.topics().named(&named.name);
        let exists = |index| topic.as_ref().is_some_and(|topic| topic.partition(index).is_ok());
        let partitions = named.partition_indexes.iter().map(|index| {
            let error = match exists(*index) {
                true => error,
                false => Some(ResponseError::UnknownTopicOrPartition),
            };
            WritableTxnMarkerPartitionResult::default()
                .with_partition_index(*index)
                .with_error_code(error.map_or(0, |error| error.code()))
        });
        let partitions = partitions.collect();
        WritableTxnMarkerTopicResult::default().with_name(named.name).with_partitions(partitions)
    });
    WritableTxnMarkerResult::default()
        .with_producer_id(marker.producer_id)
        .with_topics(topics.collect())
}
