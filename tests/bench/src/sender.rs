//! A producer on one connection: requests are prepared in advance, and a bounded number of them is
//! unanswered.
//!
//! A request is encoded once, and then split at its batches. The bytes between them are kept per
//! request, the header of each batch per partition, and the records once for all. Sending it again
//! is a vectored write of these pieces, after the correlation id and, for an idempotent producer,
//! the batch headers have been rewritten.

use std::{
    collections::VecDeque,
    io::IoSlice,
    net::SocketAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::ValueEnum;
use kafka_protocol::{
    error::ResponseError,
    messages::{
        InitProducerIdRequest, ProduceRequest, ProducerId, TopicName,
        produce_request::{PartitionProduceData, TopicProduceData},
    },
};
use kafka_records::{BatchHeader, HEADER_BYTES};

use crate::{
    batch::{BenchBatch, header_bytes},
    connection::{BenchConnection, TIMEOUT, check_error_code, encode_frame},
    histogram::Histogram,
    pretouch::PretouchedMemory,
};

const TIMEOUT_MS: i32 = 30_000;
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The point at which a broker answers.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BenchAcks {
    /// Once the leader has the records
    #[value(name = "1")]
    Leader,
    /// Once they are as safe as the broker makes them
    #[value(name = "all")]
    All,
}

impl BenchAcks {
    pub(crate) fn wire(self) -> i16 {
        match self {
            BenchAcks::Leader => 1,
            BenchAcks::All => -1,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            BenchAcks::Leader => "1",
            BenchAcks::All => "all",
        }
    }
}

/// The options of a producer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendOptions {
    pub(crate) acks: BenchAcks,
    pub(crate) batches_per_request: u32,
    pub(crate) inflight_max: usize,
    pub(crate) idempotent: bool,
}

/// The totals of one call of [`BatchSender::send`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendTotals {
    pub(crate) payload_bytes: u64,
    pub(crate) requests: u64,
    pub(crate) records: u64,
}

pub(crate) struct BatchSender {
    connection: BenchConnection,
    version: i16,
    batch: Arc<BenchBatch>,
    requests: Vec<PreparedRequest>,
    next: usize,
    inflight_max: usize,
    unanswered: VecDeque<(i32, Instant)>,
    producer: Option<(i64, i16)>,
    /// From handing a request to the socket to its response.
    pub(crate) response_times: Histogram,
}

/// A request split into pieces: `glue`, a batch, `glue`, a batch, … and `glue` at the end.
struct PreparedRequest {
    framing: Vec<Vec<u8>>,
    batches: Vec<PreparedBatch>,
}

struct PreparedBatch {
    partition: i32,
    header: [u8; HEADER_BYTES],
    records_sent: u64,
}

impl BatchSender {
    /// Prepares requests that carry `batch` to each of `partitions`.
    pub(crate) fn connect(
        address: SocketAddr,
        topic: &TopicName,
        partitions: &[i32],
        batch: Arc<BenchBatch>,
        manner: SendOptions,
    ) -> Result<BatchSender> {
        let mut connection = BenchConnection::open(address)?;
        let version = connection.version::<ProduceRequest>(3..=10)?;
        let producer = manner.idempotent.then(|| producer_id(&mut connection)).transpose()?;
        let requests = partitions
            .chunks(manner.batches_per_request as usize)
            .map(|chunk| PreparedRequest::make(topic, chunk, &batch, manner.acks, version))
            .collect::<Result<Vec<PreparedRequest>>>()?;
        Ok(BatchSender {
            connection,
            version,
            batch,
            requests,
            next: 0,
            inflight_max: manner.inflight_max,
            unanswered: VecDeque::new(),
            producer,
            response_times: Histogram::new(),
        })
    }

    /// Sends requests in turn until they hold `payload_bytes`, and waits for every response.
    pub(crate) fn send(
        &mut self,
        payload_bytes: u64,
        ballast: &PretouchedMemory,
        deadline: Instant,
    ) -> Result<SendTotals> {
        let mut sent = SendTotals::default();
        while sent.payload_bytes < payload_bytes {
            ensure!(Instant::now() < deadline, "the run takes too long. sent={sent:?}");
            if self.unanswered.len() >= self.inflight_max {
                self.receive_response()?;
            }
            let batches = self.send_next()?;
            ballast.release_for(batches * self.batch.len() as u64);
            sent.requests += 1;
            sent.payload_bytes += batches * self.batch.payload_bytes;
            sent.records += batches * u64::from(self.batch.record_count);
        }
        while !self.unanswered.is_empty() {
            self.receive_response()?;
        }
        Ok(sent)
    }

    /// The number of records that each partition was sent since the connection was made.
    pub(crate) fn records_sent(&self) -> impl Iterator<Item = (i32, u64)> {
        let parts = self.requests.iter().flat_map(|request| &request.batches);
        parts.map(|part| (part.partition, part.records_sent))
    }

    /// Sends the next request, and returns how many batches are in it.
    fn send_next(&mut self) -> Result<u64> {
        let request_count = self.requests.len();
        let request = &mut self.requests[self.next];
        self.next = (self.next + 1) % request_count;
        let id = self.connection.writer.set_correlation_id(&mut request.framing[0]);
        for part in &mut request.batches {
            if let Some((id, epoch)) = self.producer {
                // After the largest sequence number comes 0.
                let sequence = (part.records_sent % (1 << 31)) as i32;
                let header = BatchHeader {
                    producer_id: id,
                    producer_epoch: epoch,
                    base_sequence: sequence,
                    ..self.batch.header
                };
                part.header = header_bytes(&header, &self.batch.records);
            }
            part.records_sent += u64::from(self.batch.record_count);
        }
        self.unanswered.push_back((id, Instant::now()));
        self.connection.writer.send_slices(&mut request.slices(&self.batch.records))?;
        Ok(request.batches.len() as u64)
    }

    fn receive_response(&mut self) -> Result<()> {
        let (id, response) =
            self.connection.reader.next_response::<ProduceRequest>(self.version)?;
        let expected = self.unanswered.pop_front();
        let (asked, sent_at) = expected.context("the broker answered what was not asked")?;
        ensure!(id == asked, "answers are out of order. expected={asked}, got={id}");
        self.response_times.record(sent_at.elapsed());
        let partitions = response.responses.iter().flat_map(|topic| &topic.partition_responses);
        for partition in partitions {
            check_error_code(partition.error_code)
                .with_context(|| format!("produce to partition {}", partition.index))?;
        }
        Ok(())
    }
}

fn producer_id(connection: &mut BenchConnection) -> Result<(i64, i16)> {
    let version = connection.version::<InitProducerIdRequest>(0..=4)?;
    let request = InitProducerIdRequest::default()
        .with_transactional_id(None)
        .with_transaction_timeout_ms(TIMEOUT_MS)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1);
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let response = connection.call(&request, version)?;
        // A broker that has only just started may ask for a retry.
        let refused = ResponseError::try_from_code(response.error_code);
        if !refused.is_some_and(|error| error.is_retriable()) || Instant::now() > deadline {
            check_error_code(response.error_code).context("ask for a producer id")?;
            return Ok((response.producer_id.0, response.producer_epoch));
        }
        thread::sleep(RETRY_INTERVAL);
    }
}

/// The request that carries `batch` to each of `partitions`.
pub(crate) fn produce_frame(
    topic: &TopicName,
    partitions: &[i32],
    batch: &[u8],
    acks: BenchAcks,
    version: i16,
) -> Result<Vec<u8>> {
    let records = Bytes::copy_from_slice(batch);
    let data = partitions.iter().map(|partition| {
        PartitionProduceData::default().with_index(*partition).with_records(Some(records.clone()))
    });
    let topic_data =
        TopicProduceData::default().with_name(topic.clone()).with_partition_data(data.collect());
    let request = ProduceRequest::default()
        .with_acks(acks.wire())
        .with_timeout_ms(TIMEOUT_MS)
        .with_topic_data(vec![topic_data]);
    encode_frame(&request, version)
}

/// The position at which the batch begins in `bytes`: it is found by its header, whose checksum
/// nothing else shares.
pub(crate) fn find_batch(header: &[u8; HEADER_BYTES], bytes: &[u8]) -> Result<usize> {
    bytes
        .windows(HEADER_BYTES)
        .position(|window| window == header)
        .context("an encoded request holds its batch")
}

impl PreparedRequest {
    fn make(
        topic: &TopicName,
        partitions: &[i32],
        batch: &BenchBatch,
        acks: BenchAcks,
        version: i16,
    ) -> Result<PreparedRequest> {
        let frame = produce_frame(topic, partitions, &batch.to_vec(), acks, version)?;
        let header = header_bytes(&batch.header, &batch.records);
        let mut rest = &frame[..];
        let mut glue = Vec::with_capacity(partitions.len() + 1);
        for _ in partitions {
            let place = find_batch(&header, rest)?;
            glue.push(rest[..place].to_vec());
            rest = &rest[place + batch.len()..];
        }
        glue.push(rest.to_vec());
        let part =
            |partition: &i32| PreparedBatch { partition: *partition, header, records_sent: 0 };
        Ok(PreparedRequest { framing: glue, batches: partitions.iter().map(part).collect() })
    }

    fn slices<'a>(&'a self, records: &'a [u8]) -> Vec<IoSlice<'a>> {
        let mut slices = Vec::with_capacity(3 * self.batches.len() + 1);
        for (glue, part) in self.framing.iter().zip(&self.batches) {
            slices.extend([&glue[..], &part.header, records].map(IoSlice::new));
        }
        slices.extend(self.framing.last().map(|glue| IoSlice::new(glue)));
        slices
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::{Decodable, StrBytes, decode_request_header_from_buffer};

    #[test]
    fn the_pieces_of_a_request_make_the_request() {
        let topic = TopicName(StrBytes::from_static_str("t"));
        let batch = BenchBatch::filled(100, 2_000, 1);
        for version in 3..=10 {
            let request =
                PreparedRequest::make(&topic, &[4, 7, 9], &batch, BenchAcks::All, version).unwrap();
            let slices = request.slices(&batch.records);
            let frame: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
            assert_eq!(
                frame.len() - 4,
                u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize
            );
            let mut body = Bytes::from(frame).slice(4..);
            decode_request_header_from_buffer(&mut body).unwrap();
            let decoded = ProduceRequest::decode(&mut body, version).unwrap();
            assert_eq!((decoded.acks, body.len()), (-1, 0));
            let partitions = &decoded.topic_data[0].partition_data;
            assert_eq!(partitions.iter().map(|it| it.index).collect::<Vec<_>>(), [4, 7, 9]);
            for partition in partitions {
                assert_eq!(partition.records.as_ref().unwrap(), &batch.to_vec());
            }
        }
    }
}
