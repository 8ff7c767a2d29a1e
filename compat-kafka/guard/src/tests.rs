//! The table against `kafka-protocol`, and hostile bodies against both.

mod codec;
mod random_body;

use bytes::Bytes;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Decodable, Request as _, StrBytes};
use proptest::prelude::*;
use testkit::allocations::{CountingAllocator, allocated_bytes};
use testkit::rng::SeededRng;

use super::*;
use crate::schema::{FieldType, RequestSchema, SchemaFields};
use crate::table::{HEADER, REQUESTS};
use codec::{MessageCodec, codec, encoded};
use random_body::{LengthField, LengthWidth, RandomBody, random_body, varint};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// An error of the decoder, with a backtrace if `RUST_BACKTRACE` is set.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// The reference count of a body that is sliced for the first time.
const SHARED_BYTES_MAX: usize = 32;

/// No broker listener accepts these: they are for KRaft's controllers.
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

fn every_version() -> impl Iterator<Item = (&'static RequestSchema, i16)> {
    REQUESTS.iter().flat_map(|request| {
        (request.versions.0..=request.versions.1).map(move |version| (request, version))
    })
}

/// The bytes of a valid body that belong to the body.
fn walked(api_key: i16, version: i16, body: &[u8]) -> usize {
    let request = REQUESTS.iter().find(|request| request.api_key == api_key).unwrap();
    match SchemaWalker::through(request, version, body) {
        Ok(walk) => body.len() - walk.left.len(),
        Err(bad) => panic!("version {version} of {}: {bad}. body={body:02x?}", request.name),
    }
}

#[track_caller]
fn violation(checked: Result<usize, RequestBodyError>) -> (SchemaViolation, String) {
    match checked {
        Err(RequestBodyError::Violation { violation, field, .. }) => (violation, field),
        other => panic!("expected a violation, got {other:?}"),
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
            // Not `key.valid_versions()`: that has versions of OffsetCommit, OffsetFetch and
            // InitProducerId which the decoder refuses.
            let versions = codec(key as i16).versions;
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
        assert_eq!(
            check(api_key, version, &[]),
            Err(RequestBodyError::NoSchema { api_key, version })
        );
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
        assert!(SchemaWalker::through(&HEADER, version, &frame).unwrap().left.is_empty());
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
    let by_id = vec![data.with_topic_id(id())];
    walks_whole!(request.with_topic_data(by_id), 13..=13);
}

fn id() -> uuid::Uuid {
    uuid::Uuid::from_u128(0x1234)
}

#[test]
fn a_fetch_request_is_walked_to_its_last_byte_with_its_known_and_unknown_tags() {
    use fetch_request::{FetchPartition, FetchTopic, ForgottenTopic, ReplicaState};
    let partitions = vec![FetchPartition::default().with_partition(3).with_fetch_offset(9); 3];
    let topics = vec![FetchTopic::default().with_partitions(partitions.clone()); 2];
    let forgotten = ForgottenTopic::default().with_partitions(vec![1, 2, 3]);
    let old = FetchRequest::default().with_topics(topics.clone());
    walks_whole!(old.clone(), 4..=14);
    let session = old.with_session_id(5).with_forgotten_topics_data(vec![forgotten]);
    walks_whole!(session.clone().with_rack_id(text("rack")), 11..=14);
    walks_whole!(session.clone().with_cluster_id(Some(text("cluster"))), 12..=14);
    let tagged = partitions[0].clone().with_replica_directory_id(id()).with_high_watermark(7);
    let tagged = tagged.with_unknown_tagged_field(99, Bytes::from_static(b"later"));
    let topics = topics.into_iter().map(|topic| topic.with_partitions(vec![tagged.clone(); 2]));
    let state = ReplicaState::default().with_replica_id(1.into()).with_replica_epoch(2);
    walks_whole!(session.with_replica_state(state).with_topics(topics.collect()), 18..=18);
}

#[test]
fn a_metadata_request_is_walked_to_its_last_byte_for_all_none_or_some_topics() {
    let named = metadata_request::MetadataRequestTopic::default().with_name(Some(topic("orders")));
    walks_whole!(MetadataRequest::default().with_topics(None), 1..=13);
    walks_whole!(MetadataRequest::default().with_topics(Some(vec![])), 0..=13);
    walks_whole!(MetadataRequest::default().with_topics(Some(vec![named.clone(); 3])), 0..=13);
    let by_id = named.with_name(None).with_topic_id(id());
    walks_whole!(MetadataRequest::default().with_topics(Some(vec![by_id])), 12..=13);
}

#[test]
fn a_create_topics_request_is_walked_to_its_last_byte_with_assignments_and_configs() {
    use create_topics_request::{CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig};
    let replicas = CreatableReplicaAssignment::default().with_broker_ids(vec![BrokerId(1); 3]);
    let config = CreatableTopicConfig::default().with_name(text("k")).with_value(Some(text("v")));
    let topic = CreatableTopic::default()
        .with_name(topic("orders"))
        .with_assignments(vec![replicas; 2])
        .with_configs(vec![config.clone(), config.with_value(None)]);
    walks_whole!(CreateTopicsRequest::default().with_topics(vec![topic; 2]), 2..=7);
}

#[test]
fn what_a_group_sends_is_walked_to_its_last_byte() {
    use join_group_request::JoinGroupRequestProtocol;
    use offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
    use offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text("range"))
        .with_metadata(Bytes::from_static(b"subscription"));
    walks_whole!(JoinGroupRequest::default().with_protocols(vec![protocol; 2]), 0..=9);
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(5);
    let partitions = vec![partition.clone().with_committed_metadata(None), partition];
    let committed = OffsetCommitRequestTopic::default().with_partitions(partitions);
    walks_whole!(OffsetCommitRequest::default().with_topics(vec![committed; 2]), 2..=9);
    let fetched = OffsetFetchRequestTopics::default().with_partition_indexes(vec![1, 2]);
    let group = OffsetFetchRequestGroup::default().with_topics(Some(vec![fetched; 2]));
    let all = group.clone().with_topics(None);
    walks_whole!(OffsetFetchRequest::default().with_groups(vec![group, all]), 8..=9);
}

#[test]
fn a_cursor_is_walked_or_passed_over_as_its_presence_says() {
    use describe_topic_partitions_request::Cursor;
    let cursor = Cursor::default().with_topic_name(topic("orders"));
    let request = DescribeTopicPartitionsRequest::default();
    walks_whole!(request.clone(), 0..=0);
    walks_whole!(request.with_cursor(Some(cursor)), 0..=0);
    let lied = check(DescribeTopicPartitionsRequest::KEY, 0, &[1, 0, 0, 0, 9, 2, 0]);
    assert_eq!(
        violation(lied),
        (SchemaViolation::Presence, "DescribeTopicPartitions.cursor".to_string())
    );
}

// Named regressions.

#[test]
fn a_long_body_does_not_take_thirty_times_its_length() {
    let keys = |count: u32| {
        let mut body = vec![0];
        body.extend(varint(count + 1));
        body.resize(body.len() + count as usize, 1);
        body.push(0);
        body
    };
    let check = |count| check(FindCoordinatorRequest::KEY, 4, &keys(count));
    assert!(check(1_000_000).is_ok_and(|bytes| bytes >= 32_000_000));
    let refused = (SchemaViolation::Memory, "FindCoordinator.coordinator_keys".to_string());
    assert_eq!(violation(check(10_000_000)), refused);
}

#[test]
fn a_count_of_two_billion_topics_in_57_bytes_is_refused() {
    let mut body = varint(0x7fff_ffff);
    body.resize(57, 0);
    let refused = check(MetadataRequest::KEY, 12, &body).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "more elements than the bytes left can hold. \
         field=Metadata.topics, announced=2147483646, left=52"
    );
    let mut body = 0x7fff_ffff_u32.to_be_bytes().to_vec();
    body.resize(57, 0);
    let refused = check(MetadataRequest::KEY, 1, &body);
    assert_eq!(violation(refused), (SchemaViolation::Count, "Metadata.topics".to_string()));
}

#[test]
fn a_violation_deep_down_is_named_with_its_path() {
    let request = FetchRequest::default().with_topics(vec![
        fetch_request::FetchTopic::default(),
        fetch_request::FetchTopic::default(),
    ]);
    let mut body = encoded(&request, 4);
    let count = body.len() - 4;
    body[count..].copy_from_slice(&1000_i32.to_be_bytes());
    let field = "Fetch.topics[1].partitions".to_string();
    let refused = RequestBodyError::Violation {
        violation: SchemaViolation::Count,
        field,
        announced: 1000,
        left: 0,
    };
    assert_eq!(check(FetchRequest::KEY, 4, &body), Err(refused));
    body[count..].copy_from_slice(&(-2_i32).to_be_bytes());
    assert_eq!(violation(check(FetchRequest::KEY, 4, &body)).0, SchemaViolation::Negative);
}

#[test]
fn bytes_after_the_body_are_left_to_the_decoder() {
    let body = [encoded(&HeartbeatRequest::default(), 4), vec![0xff; 9]].concat();
    assert!(check(HeartbeatRequest::KEY, 4, &body).is_ok());
    assert_eq!(walked(HeartbeatRequest::KEY, 4, &body), body.len() - 9);
}

#[test]
fn a_varint_of_more_than_32_bits_is_refused() {
    for long in [[0xff, 0xff, 0xff, 0xff, 0x1f], [0x80, 0x80, 0x80, 0x80, 0x80]] {
        let body = [&long[..], &[0; 9]].concat();
        assert_eq!(violation(check(MetadataRequest::KEY, 12, &body)).0, SchemaViolation::Varint);
    }
}

#[test]
fn a_known_tag_must_end_where_its_size_says() {
    let request = FetchRequest::default().with_cluster_id(Some(text("c")));
    let body = encoded(&request, 12);
    let (start, tag) = body.split_at(body.len() - 5);
    assert_eq!(tag, [1, 0, 2, 2, b'c']);
    for (tag, want) in [
        (&[1, 0, 3, 2, b'c', 0][..], SchemaViolation::TagSize),
        (&[1, 0, 1, 2, b'c', 0], SchemaViolation::Length),
        (&[1, 0, 9, 2, b'c', 0], SchemaViolation::Length),
        (&[9, 0, 2, 2, b'c', 0], SchemaViolation::Count),
    ] {
        assert_eq!(
            violation(check(FetchRequest::KEY, 12, &[start, tag].concat())).0,
            want,
            "{tag:?}"
        );
    }
}

// The limits of a body.

#[test]
fn a_hundred_thousand_partitions_pass_in_every_api_that_lists_them() {
    use fetch_request::{FetchPartition, FetchTopic};
    let partitions = vec![FetchPartition::default(); 100_000];
    let topics = vec![FetchTopic::default().with_partitions(partitions)];
    walks_whole!(FetchRequest::default().with_topics(topics), 4..=18);
    let small = FetchTopic::default().with_partitions(vec![FetchPartition::default()]);
    walks_whole!(FetchRequest::default().with_topics(vec![small; 100_000]), [4, 12, 13, 18]);

    use offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
    let partitions = vec![OffsetCommitRequestPartition::default(); 100_000];
    let topics = vec![OffsetCommitRequestTopic::default().with_partitions(partitions)];
    walks_whole!(OffsetCommitRequest::default().with_topics(topics), 2..=9);

    let named = metadata_request::MetadataRequestTopic::default().with_name(Some(topic("abc")));
    walks_whole!(MetadataRequest::default().with_topics(Some(vec![named; 100_000])), 0..=13);
    walks_whole!(DeleteTopicsRequest::default().with_topic_names(vec![topic("t"); 100_000]), 1..=5);
}

#[test]
fn a_body_of_empty_names_takes_too_much_memory_and_is_refused() {
    let topics = 500_000;
    let body = [varint(topics + 1), [1, 0].repeat(topics as usize), vec![0; 4]].concat();
    assert_eq!(violation(check(MetadataRequest::KEY, 9, &body)).0, SchemaViolation::Memory);
}

#[test]
fn a_flood_of_structs_with_an_unknown_tag_each_takes_too_much_memory_and_is_refused() {
    let member = [1, 1, 1, 1, 0x7f, 0];
    let body = [vec![1], varint(50_001), member.repeat(50_000), vec![0]].concat();
    let (lied, field) = violation(check(LeaveGroupRequest::KEY, 5, &body));
    assert_eq!(lied, SchemaViolation::Memory);
    assert!(field.ends_with(".tags[0]"), "{field}");
}

#[test]
fn a_flood_of_unknown_tags_takes_no_more_memory_than_the_walk_charges() {
    let start = encoded(&HeartbeatRequest::default(), 4);
    for order in [|tag: u32| tag, |tag| 20_000 - tag, |tag| tag * 7919 % 20_000, |_| 5] {
        let tags = (0..20_000).flat_map(|tag| [varint(order(tag)), vec![0]].concat());
        let tags: Vec<u8> = tags.collect();
        let body = [&start[..start.len() - 1], &varint(20_000), &tags].concat();
        assert_eq!(walked(HeartbeatRequest::KEY, 4, &body), body.len());
        let heartbeat = REQUESTS.iter().find(|request| request.name == "Heartbeat").unwrap();
        assert_safe(heartbeat, 4, body).unwrap();
    }
}

#[test]
fn every_element_takes_at_least_a_byte() {
    fn assert_for(fields: SchemaFields, walk: &SchemaWalker<'_>) {
        for field in fields {
            match &field.kind {
                FieldType::Array { of, .. } => {
                    assert!(walk.smallest_element(of).bytes > 0, "{}", field.name);
                    if let schema::ElementType::Struct(fields) = of {
                        assert_for(fields, walk);
                    }
                }
                FieldType::Inline(fields) | FieldType::Nullable(fields) => assert_for(fields, walk),
                _ => {}
            }
        }
    }
    for (request, version) in every_version() {
        let body = random_body(request, version, 0).body;
        let walk = SchemaWalker::through(request, version, &body).unwrap();
        assert_for(request.fields, &walk);
    }
}

// At random.

impl std::fmt::Debug for RequestSchema {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(self.name)
    }
}

fn bodies() -> impl Strategy<Value = (&'static RequestSchema, i16, u64)> {
    let versions: Vec<_> = every_version().collect();
    (prop::sample::select(versions), any::<u64>())
        .prop_map(|((request, version), seed)| (request, version, seed))
}

/// A hostile client's change to a valid body.
#[derive(Debug, Clone)]
enum BodyMutation {
    Byte(u8),
    Number(u32),
    Varint(u32),
    Repeat { bytes: usize, times: usize },
    CutShort,
}

fn mutations() -> impl Strategy<Value = Vec<(prop::sample::Index, BodyMutation)>> {
    let numbers = prop_oneof![
        Just(0),
        Just(i32::MAX as u32),
        Just(u32::MAX),
        Just(u32::MAX - 1),
        (0..32_u32).prop_map(|bit| 1 << bit),
        any::<u32>(),
    ];
    let harm = prop_oneof![
        any::<u8>().prop_map(BodyMutation::Byte),
        numbers.clone().prop_map(BodyMutation::Number),
        numbers.prop_map(BodyMutation::Varint),
        (1..40_usize, 1..200_usize)
            .prop_map(|(bytes, times)| BodyMutation::Repeat { bytes, times }),
        Just(BodyMutation::CutShort),
    ];
    prop::collection::vec((any::<prop::sample::Index>(), harm), 0..4)
}

fn mutate_body(body: &mut Vec<u8>, harms: Vec<(prop::sample::Index, BodyMutation)>) {
    for (at, harm) in harms {
        let at = at.index(body.len() + 1);
        let end = |bytes: usize| (at + bytes).min(body.len());
        match harm {
            BodyMutation::Byte(byte) => drop(body.splice(at..end(1), [byte])),
            BodyMutation::Number(number) => drop(body.splice(at..end(4), number.to_be_bytes())),
            BodyMutation::Varint(number) => drop(body.splice(at..end(1), varint(number))),
            BodyMutation::Repeat { bytes, times } => {
                let repeated = body[at..end(bytes)].repeat(times);
                drop(body.splice(at..at, repeated));
            }
            BodyMutation::CutShort => body.truncate(at),
        }
    }
}

/// A body that passes may be decoded. That asks for no more memory than the walk found, and the
/// walk found no more than a body of that size may take.
fn assert_safe(request: &RequestSchema, version: i16, body: Vec<u8>) -> Result<(), TestCaseError> {
    let Ok(walk) = SchemaWalker::through(request, version, &body) else { return Ok(()) };
    let (memory, left) = (walk.memory_bytes, walk.left.len());
    prop_assert!(memory <= memory_bytes_max(body.len()));
    let MessageCodec { decodes, .. } = codec(request.api_key);
    let mut body = Bytes::from(body);
    let (is_decoded, asked) = allocated_bytes(|| decodes(&mut body, version));
    let besides = if is_decoded { SHARED_BYTES_MAX } else { ERROR_BYTES_MAX };
    prop_assert!(asked <= memory + besides, "asked={asked}, walked={memory}, {is_decoded}");
    if is_decoded {
        prop_assert_eq!(body.len(), left, "the walk and the decoder end in different places");
    }
    Ok(())
}

/// `PROPTEST_CASES` scales it.
fn eight_times() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases * 8, ..usual }
}

proptest! {
    #![proptest_config(eight_times())]

    #[test]
    fn requests_filled_at_random_are_walked_and_decoded_to_their_last_byte(
        (request, version, seed) in bodies(),
    ) {
        let body = random_body(request, version, seed).body;
        prop_assert_eq!(walked(request.api_key, version, &body), body.len());
        let mut left = Bytes::from(body.clone());
        let again = (codec(request.api_key).reencode)(&mut left, version);
        prop_assert!(left.is_empty(), "the decoder stopped {} bytes before the end", left.len());
        let again = again.expect("the decoder likes what the schema allows");
        prop_assert_eq!(walked(request.api_key, version, &again), again.len());
    }

    #[test]
    fn a_length_or_count_beyond_the_body_is_refused_wherever_it_stands(
        (request, version, seed) in bodies(),
    ) {
        let RandomBody { body, length_fields } = random_body(request, version, seed);
        for LengthField { at, width } in length_fields {
            let (old, new) = match width {
                LengthWidth::Varint => (1, varint([0x7fff_ffff, u32::MAX][at % 2])),
                LengthWidth::Four => (4, 0x7fff_ffff_u32.to_be_bytes().to_vec()),
                LengthWidth::Two if body.len() < 0x7fff => (2, vec![0x7f, 0xff]),
                LengthWidth::Two => continue,
            };
            let lying = [&body[..at], &new, &body[at + old..]].concat();
            prop_assert!(check(request.api_key, version, &lying).is_err(), "at {at} of {body:?}");
        }
    }

    #[test]
    fn no_body_cut_short_passes((request, version, seed) in bodies()) {
        let body = random_body(request, version, seed).body;
        let mut random = SeededRng::new(seed);
        for _ in 0..body.len().min(20) {
            let end = random.below(body.len() as u64) as usize;
            prop_assert!(check(request.api_key, version, &body[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn a_mutated_body_that_passes_decodes_in_the_memory_that_the_walk_found(
        (request, version, seed) in bodies(),
        harms in mutations(),
    ) {
        let mut body = random_body(request, version, seed).body;
        mutate_body(&mut body, harms);
        assert_safe(request, version, body)?;
    }

    #[test]
    fn any_bytes_that_pass_decode_in_the_memory_that_the_walk_found(
        (request, version, _) in bodies(),
        body in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..64),
            prop::collection::vec(prop::sample::select(vec![0, 1, 2, 3, 9, 0x7f, 0xff]), 0..300),
        ],
    ) {
        assert_safe(request, version, body)?;
    }

    #[test]
    fn a_mutated_header_that_passes_decodes_in_the_memory_that_the_walk_found(
        version in 1..=2_i16,
        seed: u64,
        harms in mutations(),
    ) {
        let mut frame = random_body(&HEADER, version, seed).body;
        prop_assert_eq!(check_header(version, &frame), Ok(()));
        mutate_body(&mut frame, harms);
        if let Ok(walk) = SchemaWalker::through(&HEADER, version, &frame) {
            let mut frame = Bytes::from(frame.clone());
            let decode = || RequestHeader::decode(&mut frame, version).is_ok();
            let (is_decoded, asked) = allocated_bytes(decode);
            let besides = if is_decoded { SHARED_BYTES_MAX } else { ERROR_BYTES_MAX };
            prop_assert!(asked <= walk.memory_bytes + besides);
        }
    }
}
