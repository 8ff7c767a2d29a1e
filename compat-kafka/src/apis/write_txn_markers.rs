//! WriteTxnMarkers (27): between Kafka's brokers, and the way in which an operator aborts a
//! transaction that hangs (KIP-664).
//!
//! Here an abort ends the whole transaction, on all its partitions: all of a transaction is read,
//! or nothing. A commit is decided by EndTxn alone, and refused.

use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_errors::transaction_error;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::write_txn_markers_request::WritableTxnMarker;
use kafka_protocol::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use kafka_protocol::messages::{WriteTxnMarkersRequest, WriteTxnMarkersResponse};
use kafka_protocol::protocol::VersionRange;
use kafka_transactions::{ProducerIdAndEpoch, TransactionError};

use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for WriteTxnMarkersRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: 1 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> WriteTxnMarkersResponse {
        // An operator, or another broker.
        let may = |operation| kafka.is_authorized(context, operation, Resource::CLUSTER);
        if !may(Operation::Alter) && !may(Operation::ClusterAction) {
            let error = Err(ResponseError::ClusterAuthorizationFailed);
            let denied = self.markers.into_iter().map(|marker| to_response(marker, |_, _| error));
            return WriteTxnMarkersResponse::default().with_markers(denied.collect());
        }
        let producers = self.markers.iter().map(|marker| marker.producer_id.0).collect();
        let ids = kafka.coordinators.transactions.of_producers(&producers).await;
        let mut markers = Vec::with_capacity(self.markers.len());
        for marker in self.markers {
            let result = end(kafka, ids.get(&marker.producer_id.0), &marker).await;
            markers.push(to_response(marker, |topic, index| {
                let topic = kafka.engine.topics().named(topic);
                if topic.is_some_and(|topic| topic.partition(index).is_ok()) {
                    result
                } else {
                    Err(ResponseError::UnknownTopicOrPartition)
                }
            }));
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
    match kafka.coordinators.transactions.abort(id, producer).await {
        // It has ended meanwhile.
        Ok(()) | Err(TransactionError::InvalidState) => Ok(()),
        Err(TransactionError::Fenced) => Err(ResponseError::InvalidProducerEpoch),
        Err(error) => Err(transaction_error(&error)),
    }
}

fn to_response(
    marker: WritableTxnMarker,
    verdict: impl Fn(&str, i32) -> Result<(), ResponseError>,
) -> WritableTxnMarkerResult {
    let topics = marker.topics.into_iter().map(|topic| {
        let partitions = topic.partition_indexes.iter().map(|index| {
            let error = verdict(&topic.name, *index).err();
            WritableTxnMarkerPartitionResult::default()
                .with_partition_index(*index)
                .with_error_code(error.map_or(0, |error| error.code()))
        });
        let partitions = partitions.collect();
        WritableTxnMarkerTopicResult::default().with_name(topic.name).with_partitions(partitions)
    });
    WritableTxnMarkerResult::default()
        .with_producer_id(marker.producer_id)
        .with_topics(topics.collect())
}
