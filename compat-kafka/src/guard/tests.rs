//! The table against `kafka-protocol`, and hostile bodies against both.

mod codec;
mod counting;
mod filled;

use bytes::Bytes;
use kafka_protocol::messages::{self, *};
use kafka_protocol::protocol::{Decodable, Request as _, StrBytes};
use proptest::prelude::*;

use super::schema::{Fields, Kind, Request};
use super::table::{HEADER, REQUESTS};
use super::*;
use codec::{Codec, codec, encoded};
use counting::asked_bytes;
use filled::{Announced, Filled, Random, Width, filled, varint};

/// An error of the decoder's, with a backtrace where `RUST_BACKTRACE` asks for one.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// The reference count of a body that is sliced for the first time.
const SHARED_BYTES_MAX: usize = 32;

/// No broker listener takes these: they are for KRaft's controllers.
const CONTROLLERS_ONLY: [ApiKey; 12] = [
    ApiKey::Vote,
    ApiKey::BeginQuorumEpoch,
    ApiKey::EndQuorumEpoch,
    ApiKey::AlterPartition,
    ApiKey::Envelope,
    ApiKey::FetchSnapshot,
    ApiKey::BrokerRegistration,
    ApiKey::BrokerHeartbeat,
    ApiKey::AllocateProducerIds,
    ApiKey::ControllerRegistration,
    ApiKey::AssignReplicasToDirs,
    ApiKey::UpdateRaftVoter,
];

fn every_version() -> impl Iterator<Item = (&'static Request, i16)> {
    REQUESTS.iter().flat_map(|request| {
        (request.versions.0..=request.versions.1).map(move |version| (request, version))
    })
}

/// How many bytes of a body that passes are the body's own.
fn walked(api_key: i16, version: i16, body: &[u8]) -> usize {
    let request = REQUESTS.iter().find(|request| request.api_key == api_key).unwrap();
    match Walk::through(request, version, body) {
        Ok(walk) => body.len() - walk.left.len(),
        Err(bad) => panic!("version {version} of {}: {bad}. body={body:02x?}", request.name),
    }
}

#[track_caller]
fn lie(checked: Result<(), BadBody>) -> (Lie, String) {
    match checked {
        Err(BadBody::Lie { lie, field, .. }) => (lie, field),
        other => panic!("want a lie, got {other:?}"),
    }
}

fn text(text: &'static str) -> StrBytes {
    StrBytes::from_static_str(text)
}

fn topic(name: &'static str) -> TopicName {
    TopicName(text(name))
}

// The table is what the decoder reads.

#[test]
fn the_table_has_every_version_that_the_decoder_knows_of_requests_to_a_broker() {
    let mut want = Vec::new();
    for key in (0..=i16::MAX).filter_map(|key| ApiKey::try_from(key).ok()) {
        if !CONTROLLERS_ONLY.contains(&key) {
            let versions = key.valid_versions();
            want.push((key as i16, (versions.min, versions.max)));
        }
    }
    let have: Vec<_> = REQUESTS.iter().map(|request| (request.api_key, request.versions)).collect();
    assert_eq!(have, want);
}

#[test]
fn a_version_is_flexible_where_its_header_is() {
    for (request, version) in every_version() {
        let header = ApiKey::try_from(request.api_key).unwrap().request_header_version(version);
        assert_eq!(version >= request.flexible_since, header == 2, "{} {version}", request.name);
    }
}

#[test]
fn an_api_or_a_version_without_a_schema_is_refused() {
    for (api_key, version) in [(4, 0), (88, 0), (-1, 1), (3, 14), (3, -1), (0, 2), (i16::MAX, 0)] {
        assert_eq!(check(api_key, version, &[]), Err(BadBody::NoSchema { api_key, version }));
    }
    assert!(check_header(0, &[0; 8]).is_err() && check_header(3, &[0; 20]).is_err());
}

#[test]
fn default_requests_are_walked_to_their_last_byte() {
    for (request, version) in every_version() {
        let body = (codec(request.api_key).default)(version);
        assert_eq!(walked(request.api_key, version, &body), body.len());
    }
}

#[test]
fn a_header_is_walked_to_its_last_byte() {
    for (version, client_id) in [(1, None), (1, Some("c")), (2, None), (2, Some("client"))] {
        let header = RequestHeader::default()
            .with_client_id(client_id.map(text))
            .with_unknown_tagged_field(7, Bytes::from_static(b"seven"));
        let frame = encoded(&header, version);
        for end in 0..frame.len() {
            assert!(check_header(version, &frame[..end]).is_err());
        }
        assert_eq!(check_header(version, &frame), Ok(()));
        assert!(Walk::through(&HEADER, version, &frame).unwrap().left.is_empty());
    }
}

/// Encodes one request in many versions, and walks each.
macro_rules! walks_whole {
    ($request:expr, $versions:expr) => {{
        let request = $request;
        for version in $versions {
            let body = encoded(&request, version);
            assert_eq!(walked(key_of(&request), version, &body), body.len());
        }
    }};
}

fn key_of<R: kafka_protocol::protocol::Request>(_: &R) -> i16 {
    R::KEY
}

#[test]
fn a_produce_request_is_walked_to_its_last_byte_by_name_and_by_id() {
    use produce_request::{PartitionProduceData, TopicProduceData};
    let partition = |index, records: Option<Bytes>| {
        PartitionProduceData::default().with_index(index).with_records(records)
    };
    let partitions = vec![partition(0, Some(vec![7; 300].into())), partition(1, None)];
    let data = TopicProduceData::default().with_partition_data(partitions);
    let request = ProduceRequest::default().with_transactional_id(Some(text("t").into()));
    let by_name = vec![data.clone().with_name(topic("orders")), data.clone()];
    walks_whole!(request.clone().with_topic_data(by_name), 3..=12);
    let by_id = vec![data.with_topic_id(uuid())];
    walks_whole!(request.with_topic_data(by_id), 13..=13);
}

fn uuid() -> ::uuid::Uuid {
    ::uuid::Uuid::from_u128(0x1234)
}
