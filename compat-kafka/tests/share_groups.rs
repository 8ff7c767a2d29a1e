//! Share groups (KIP-932) on the wire: what is delivered to whom, what a restart and a lost
//! connection leave, and what is refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use compat_kafka::KafkaOptions;
use engine::WaitPolicy;
use hlc::Cut;
use kafka_groups::ShareStart;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::share_acknowledge_request::{
    AcknowledgePartition, AcknowledgeTopic, AcknowledgementBatch,
};
use kafka_protocol::messages::share_fetch_request::{
    AcknowledgementBatch as FetchedBatch, FetchPartition, FetchTopic,
};
use kafka_protocol::messages::share_fetch_response::PartitionData;
use kafka_protocol::messages::*;
use storage::disk::MemoryDisk;
use testkit::kafka::{TestKafkaConnection, TestKafkaServer, one_record_batch};
use testkit::requests::{produce_request, str_bytes, topic_name};
use uuid::Uuid;

const ACCEPT: i8 = 1;
const RELEASE: i8 = 2;
const REJECT: i8 = 3;
const RENEW: i8 = 4;
const CLOSING_EPOCH: i32 = -1;

fn options() -> KafkaOptions {
    let mut options = KafkaOptions::default();
    options.groups.share.begin_at = ShareStart::Earliest;
    options
}

async fn server_on(disk: Arc<MemoryDisk>) -> TestKafkaServer {
    TestKafkaServer::start(disk, options(), 64 << 20).await
}

async fn server() -> TestKafkaServer {
    server_on(Arc::new(MemoryDisk::new())).await
}

/// Creates a topic of one partition with records.
async fn create(server: &TestKafkaServer, name: &str, id: u8, records: usize) {
    let created = server.engine.topics().create(name, 1, BTreeMap::new(), [id; 16], false);
    created.await.unwrap();
    append(server, name, records).await;
}

async fn append(server: &TestKafkaServer, name: &str, records: usize) {
    let mut connection = server.connect().await;
    for _ in 0..records {
        let request = produce_request(name, 0, &one_record_batch(b"v"));
        let answer = connection.ask(9, &request).await.unwrap();
        assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
    }
}

fn group(name: &str) -> GroupId {
    GroupId(str_bytes(name))
}

/// A member of a group.
struct Member {
    connection: TestKafkaConnection,
    group: &'static str,
    id: &'static str,
    epoch: i32,
    session: i32,
    records_max: i32,
}

/// First and last offset, and how often they were delivered.
type Deliveries = Vec<(i64, i64, i16)>;

impl Member {
    async fn join(
        server: &TestKafkaServer,
        group: &'static str,
        id: &'static str,
        topic: &str,
    ) -> Member {
        let connection = server.connect().await;
        let mut member = Member { connection, group, id, epoch: 0, session: 0, records_max: 100 };
        let answer = member.heartbeat(Some(topic)).await;
        assert_eq!(answer.error_code, 0, "{answer:?}");
        member.epoch = answer.member_epoch;
        member
    }

    async fn heartbeat(&mut self, topic: Option<&str>) -> ShareGroupHeartbeatResponse {
        let request = ShareGroupHeartbeatRequest::default()
            .with_group_id(group(self.group))
            .with_member_id(str_bytes(self.id))
            .with_member_epoch(self.epoch)
            .with_subscribed_topic_names(topic.map(|topic| vec![topic_name(topic)]));
        self.connection.ask(1, &request).await.unwrap()
    }

    async fn leave(&mut self) {
        self.epoch = CLOSING_EPOCH;
        assert_eq!(self.heartbeat(None).await.error_code, 0);
    }

    fn fetch_request(&self, topics: Vec<FetchTopic>, wait_ms: i32) -> ShareFetchRequest {
        ShareFetchRequest::default()
            .with_group_id(Some(group(self.group)))
            .with_member_id(Some(str_bytes(self.id)))
            .with_share_session_epoch(self.session)
            .with_max_wait_ms(wait_ms)
            .with_min_bytes(1)
            .with_max_bytes(1 << 20)
            .with_max_records(self.records_max)
            .with_batch_size(100)
            .with_topics(topics)
    }

    async fn fetch(&mut self, id: Uuid, wait_ms: i32) -> Option<PartitionData> {
        let partition = FetchPartition::default();
        let topic = FetchTopic::default().with_topic_id(id).with_partitions(vec![partition]);
        let request = self.fetch_request(vec![topic], wait_ms);
        let answer = self.connection.ask(1, &request).await.unwrap();
        assert_eq!(answer.error_code, 0, "{answer:?}");
        self.session += 1;
        answer.responses.into_iter().next()?.partitions.into_iter().next()
    }

    /// The records that it gets of the first partition of a topic.
    async fn take(&mut self, id: u8, wait_ms: i32) -> Deliveries {
        let found = self.fetch(Uuid::from_bytes([id; 16]), wait_ms).await;
        acquired(&found.unwrap_or_default())
    }

    /// Says something of records; returns the code.
    async fn say(&mut self, id: u8, said: &[(i64, i64, &[i8])]) -> ResponseCode {
        let batch = |(first, last, kinds): &(i64, i64, &[i8])| {
            AcknowledgementBatch::default()
                .with_first_offset(*first)
                .with_last_offset(*last)
                .with_acknowledge_types(kinds.to_vec())
        };
        let partition = AcknowledgePartition::default()
            .with_acknowledgement_batches(said.iter().map(batch).collect());
        let topic = AcknowledgeTopic::default()
            .with_topic_id(Uuid::from_bytes([id; 16]))
            .with_partitions(vec![partition]);
        let request = ShareAcknowledgeRequest::default()
            .with_group_id(Some(group(self.group)))
            .with_member_id(Some(str_bytes(self.id)))
            .with_share_session_epoch(self.session)
            .with_topics(vec![topic]);
        let answer = self.connection.ask(1, &request).await.unwrap();
        if answer.error_code != 0 {
            return answer.error_code;
        }
        self.session += 1;
        answer.responses[0].partitions[0].error_code
    }
}

type ResponseCode = i16;

fn acquired(partition: &PartitionData) -> Deliveries {
    assert_eq!(partition.error_code, 0, "{partition:?}");
    let ranges = partition.acquired_records.iter();
    ranges.map(|range| (range.first_offset, range.last_offset, range.delivery_count)).collect()
}

#[tokio::test]
async fn records_go_to_one_member_and_what_is_done_survives_a_restart() {
    let disk = Arc::new(MemoryDisk::new());
    let running = server_on(Arc::clone(&disk)).await;
    create(&running, "t", 1, 10).await;
    let mut first = Member::join(&running, "g", "a", "t").await;
    first.records_max = 6;
    assert_eq!(first.take(1, 0).await, [(0, 5, 1)]);
    let mut second = Member::join(&running, "g", "b", "t").await;
    assert_eq!(second.take(1, 0).await, [(6, 9, 1)]);
    assert_eq!(first.take(1, 0).await, [], "everything is with a member");
    assert_eq!(first.say(1, &[(0, 2, &[ACCEPT]), (4, 5, &[ACCEPT, RELEASE])]).await, 0);
    assert_eq!(second.say(1, &[(6, 6, &[REJECT])]).await, 0);
    drop((first, second, running));

    let running = server_on(disk).await;
    let mut third = Member::join(&running, "g", "c", "t").await;
    // Records without an acknowledgement were not counted as delivered.
    assert_eq!(third.take(1, 0).await, [(3, 3, 1), (5, 5, 2), (7, 9, 1)]);
    assert_eq!(third.say(1, &[(3, 3, &[ACCEPT])]).await, 0);
    assert_eq!(third.say(1, &[(5, 5, &[ACCEPT]), (7, 9, &[ACCEPT])]).await, 0);
    assert_eq!(third.take(1, 0).await, []);
    let stored = running.engine.groups().committed_offsets(Some("g")).unwrap();
    assert_eq!((stored[0].committed.offset, stored[0].committed.metadata.as_str()), (10, ""));
}

#[tokio::test]
async fn a_lost_connection_and_a_closed_session_release_records_at_once() {
    let running = server().await;
    create(&running, "t", 1, 4).await;
    let mut other = Member::join(&running, "g", "b", "t").await;
    assert_eq!(other.take(1, 0).await, [(0, 3, 1)]);
    let mut member = Member::join(&running, "g", "a", "t").await;
    assert_eq!(member.take(1, 0).await, []);
    drop(other);
    // It waits for what is released, not for the time that the other had.
    assert_eq!(member.take(1, 10_000).await, [(0, 3, 2)]);
    let mut last = Member::join(&running, "g", "c", "t").await;
    assert_eq!(last.take(1, 0).await, []);
    member.session = CLOSING_EPOCH;
    let request = member.fetch_request(Vec::new(), 0);
    assert_eq!(member.connection.ask(1, &request).await.unwrap().error_code, 0);
    assert_eq!(last.take(1, 10_000).await.len(), 1);
}

#[tokio::test]
async fn a_fetch_waits_for_records_and_says_what_became_of_others() {
    let running = server().await;
    create(&running, "t", 1, 2).await;
    let mut member = Member::join(&running, "g", "a", "t").await;
    assert_eq!(member.take(1, 0).await, [(0, 1, 1)]);
    let batch = FetchedBatch::default().with_last_offset(1).with_acknowledge_types(vec![ACCEPT]);
    let partition = FetchPartition::default().with_acknowledgement_batches(vec![batch]);
    let topic = FetchTopic::default()
        .with_topic_id(Uuid::from_bytes([1; 16]))
        .with_partitions(vec![partition]);
    let request = member.fetch_request(vec![topic], 10_000);
    let (answer, ()) = tokio::join!(member.connection.ask(1, &request), append(&running, "t", 1));
    let found = answer.unwrap().responses.remove(0).partitions.remove(0);
    assert_eq!((found.acknowledge_error_code, acquired(&found)), (0, vec![(2, 2, 1)]));
    let stored = running.engine.groups().committed_offsets(Some("g")).unwrap();
    assert_eq!(stored[0].committed.offset, 2);
}

#[tokio::test]
async fn bad_requests_get_kafkas_errors_and_change_nothing() {
    let running = server().await;
    create(&running, "t", 1, 5).await;
    let code = |error: ResponseError| error.code();
    let mut member = Member::join(&running, "g", "a", "t").await;
    let unknown = member.say(1, &[(0, 0, &[ACCEPT])]).await;
    assert_eq!(unknown, code(ResponseError::InvalidShareSessionEpoch), "it would open a session");
    member.session = 1;
    let unknown = member.say(1, &[(0, 0, &[ACCEPT])]).await;
    assert_eq!(unknown, code(ResponseError::ShareSessionNotFound));
    member.session = 0;
    member.records_max = 3;
    assert_eq!(member.take(1, 0).await, [(0, 2, 1)]);
    let invalid = code(ResponseError::InvalidRequest);
    let state = code(ResponseError::InvalidRecordState);
    for (said, expected) in [
        (&[(2, 1, &[ACCEPT][..])][..], invalid),
        (&[(0, 2, &[])], invalid),
        (&[(0, 2, &[ACCEPT, ACCEPT])], invalid),
        (&[(0, 0, &[5])], invalid),
        (&[(0, 0, &[-1])], invalid),
        // Only a newer version may renew.
        (&[(0, 0, &[RENEW])], invalid),
        (&[(0, 0, &[ACCEPT]), (0, 1, &[ACCEPT])], invalid),
        (&[(0, 3, &[ACCEPT])], invalid),
        (&[(i64::MIN, i64::MAX, &[ACCEPT])], invalid),
        (&[(0, i64::MAX, &[ACCEPT])], invalid),
    ] {
        assert_eq!(member.say(1, said).await, expected, "{said:?}");
    }
    assert_eq!(member.say(9, &[(0, 0, &[ACCEPT])]).await, code(ResponseError::UnknownTopicId));
    let mut other = Member::join(&running, "g", "b", "t").await;
    assert_eq!(other.take(1, 0).await, [(3, 4, 1)]);
    assert_eq!(other.say(1, &[(2, 3, &[ACCEPT])]).await, state, "half of it is another's");
    assert_eq!(other.say(1, &[(3, 4, &[RELEASE])]).await, 0);
    assert_eq!(other.say(1, &[(3, 3, &[ACCEPT])]).await, state, "it has given it back");
    let mut wrong = member.fetch_request(Vec::new(), 0);
    wrong.share_session_epoch = 77;
    let answer = member.connection.ask(1, &wrong).await.unwrap();
    assert_eq!(answer.error_code, code(ResponseError::InvalidShareSessionEpoch));
    for (named, member_id) in [(None, Some("a")), (Some("g"), None), (Some("g"), Some(""))] {
        let request = ShareFetchRequest::default()
            .with_group_id(named.map(group))
            .with_member_id(member_id.map(str_bytes));
        assert_eq!(member.connection.ask(1, &request).await.unwrap().error_code, invalid);
    }
    assert_eq!(member.say(1, &[(0, 2, &[ACCEPT])]).await, 0, "it still has what it had");
}

#[tokio::test]
async fn a_group_that_is_not_there_and_one_of_another_kind_deliver_nothing() {
    let running = server().await;
    create(&running, "t", 1, 1).await;
    let connection = running.connect().await;
    let mut outsider =
        Member { connection, group: "none", id: "a", epoch: 0, session: 0, records_max: 9 };
    let found = outsider.fetch(Uuid::from_bytes([1; 16]), 0).await.unwrap();
    assert_eq!(found.error_code, ResponseError::GroupIdNotFound.code());
    let mut first = Member::join(&running, "g", "a", "t").await;
    assert_eq!(first.take(1, 0).await.len(), 1);
    // Offsets of a share group are nobody else's to commit.
    let commit = |name| {
        let topic = offset_commit_request::OffsetCommitRequestTopic::default()
            .with_name(topic_name("t"))
            .with_partitions(vec![Default::default()]);
        OffsetCommitRequest::default()
            .with_group_id(group(name))
            .with_generation_id_or_member_epoch(-1)
            .with_topics(vec![topic])
    };
    let answer = first.connection.ask(9, &commit("g")).await.unwrap();
    let refused = answer.topics[0].partitions[0].error_code;
    assert_eq!(refused, ResponseError::GroupIdNotFound.code());
    // A group that has committed offsets is none that a member could share.
    let answer = first.connection.ask(9, &commit("old")).await.unwrap();
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
    let connection = running.connect().await;
    let mut late =
        Member { connection, group: "old", id: "a", epoch: 0, session: 0, records_max: 9 };
    let refused = late.heartbeat(Some("t")).await;
    assert_eq!(refused.error_code, ResponseError::GroupIdNotFound.code());
}

#[tokio::test]
async fn a_moment_is_shared_like_a_topic_and_the_group_has_a_past() {
    let running = server().await;
    create(&running, "t", 1, 3).await;
    let mut member = Member::join(&running, "g", "a", "t").await;
    assert_eq!(member.take(1, 0).await, [(0, 2, 1)]);
    assert_eq!(member.say(1, &[(1, 1, &[ACCEPT])]).await, 0);
    let then = running.engine.frontier();
    running.clock.advance(Duration::from_millis(100));
    assert_eq!(member.say(1, &[(0, 0, &[ACCEPT]), (2, 2, &[ACCEPT])]).await, 0);
    let at = Cut::through(then);
    let (_, _, groups) =
        running.engine.groups().at(Some("g"), at, WaitPolicy::Refuse).await.unwrap();
    let stood = &groups[0].offsets[0].committed;
    assert_eq!((stood.offset, stood.metadata.as_str()), (0, "1f0 1d"));
    append(&running, "t", 2).await;
    let name = format!("t@s{}", then.time().0 + 1);
    let mut past = Member::join(&running, "past", "p", &name).await;
    let assignment = past.heartbeat(None).await.assignment;
    let id = match assignment {
        Some(assignment) => assignment.topic_partitions[0].topic_id,
        None => {
            let request = ShareGroupDescribeRequest::default().with_group_ids(vec![group("past")]);
            let described = past.connection.ask(1, &request).await.unwrap();
            described.groups[0].members[0].assignment.topic_partitions[0].topic_id
        }
    };
    let found = past.fetch(id, 0).await.unwrap();
    assert_eq!(acquired(&found), [(0, 2, 1)], "what came later is not in the moment");
}

fn alter_offsets(id: &str, topic: &str, offset: i64) -> AlterShareGroupOffsetsRequest {
    use kafka_protocol::messages::alter_share_group_offsets_request as alter;
    let partition =
        alter::AlterShareGroupOffsetsRequestPartition::default().with_start_offset(offset);
    let topic = alter::AlterShareGroupOffsetsRequestTopic::default()
        .with_topic_name(topic_name(topic))
        .with_partitions(vec![partition]);
    AlterShareGroupOffsetsRequest::default().with_group_id(group(id)).with_topics(vec![topic])
}

/// As in Kafka: so a group can be told where to begin before it has a member.
#[tokio::test]
async fn setting_offsets_makes_a_group_that_is_missing() {
    let disk = Arc::new(MemoryDisk::new());
    let running = server_on(Arc::clone(&disk)).await;
    create(&running, "t", 1, 4).await;
    let mut client = running.connect().await;
    let unknown = client.ask(0, &alter_offsets("g", "no-topic", 2)).await.unwrap();
    let error = unknown.responses[0].partitions[0].error_code;
    assert_eq!((unknown.error_code, error), (0, ResponseError::UnknownTopicOrPartition.code()));
    let request = ShareGroupDescribeRequest::default().with_group_ids(vec![group("g")]);
    let described = client.ask(1, &request).await.unwrap();
    assert_eq!(described.groups[0].error_code, ResponseError::GroupIdNotFound.code());

    let altered = client.ask(0, &alter_offsets("g", "t", 2)).await.unwrap();
    assert_eq!((altered.error_code, altered.responses[0].partitions[0].error_code), (0, 0));
    let described = client.ask(1, &request).await.unwrap();
    assert_eq!(described.groups[0].group_state.as_str(), "Empty");
    drop((client, running));
    let running = server_on(disk).await;
    let mut client = running.connect().await;
    let described = client.ask(1, &request).await.unwrap();
    assert_eq!(described.groups[0].group_state.as_str(), "Empty", "it was stored");
    let mut member = Member::join(&running, "g", "a", "t").await;
    assert_eq!(member.take(1, 0).await, [(2, 3, 1)]);
    let joining = JoinGroupRequest::default()
        .with_group_id(group("classic"))
        .with_session_timeout_ms(10_000)
        .with_protocol_type(str_bytes("consumer"))
        .with_protocols(vec![
            join_group_request::JoinGroupRequestProtocol::default().with_name(str_bytes("range")),
        ]);
    assert_eq!(client.ask(3, &joining).await.unwrap().error_code, 0);
    let other = client.ask(0, &alter_offsets("classic", "t", 2)).await.unwrap();
    assert_eq!(other.error_code, ResponseError::GroupIdNotFound.code());
}

#[tokio::test]
async fn offsets_that_are_set_from_outside_are_read_again() {
    let running = server().await;
    create(&running, "t", 1, 4).await;
    let mut member = Member::join(&running, "g", "a", "t").await;
    assert_eq!(member.take(1, 0).await, [(0, 3, 1)]);
    let refused = member.connection.ask(0, &alter_offsets("g", "t", 2)).await.unwrap();
    assert_eq!(refused.error_code, ResponseError::NonEmptyGroup.code());
    member.leave().await;
    let altered = member.connection.ask(0, &alter_offsets("g", "t", 2)).await.unwrap();
    assert_eq!((altered.error_code, altered.responses[0].partitions[0].error_code), (0, 0));
    // The records that it had are not its any more, and not stored.
    let late = member.say(1, &[(0, 3, &[ACCEPT])]).await;
    assert_eq!(late, ResponseError::UnknownTopicOrPartition.code());
    let mut next = Member::join(&running, "g", "b", "t").await;
    assert_eq!(next.take(1, 0).await, [(2, 3, 1)]);
    next.leave().await;
    drop(next);
    let request = DeleteGroupsRequest::default().with_groups_names(vec![group("g")]);
    let deleted = member.connection.ask(2, &request).await.unwrap();
    assert_eq!(deleted.results[0].error_code, 0);
    let mut again = Member::join(&running, "g", "c", "t").await;
    assert_eq!(again.take(1, 0).await, [(0, 3, 1)], "a new group begins where it is told to");
}

#[tokio::test]
async fn a_topic_that_goes_takes_what_the_group_knew_of_it() {
    let running = server().await;
    create(&running, "t", 1, 2).await;
    let mut member = Member::join(&running, "g", "a", "t").await;
    assert_eq!(member.take(1, 0).await, [(0, 1, 1)]);
    running.engine.topics().delete([1; 16]).await.unwrap();
    assert_eq!(member.say(1, &[(0, 1, &[ACCEPT])]).await, ResponseError::UnknownTopicId.code());
    let found = member.fetch(Uuid::from_bytes([1; 16]), 0).await.unwrap();
    assert_eq!(found.error_code, ResponseError::UnknownTopicId.code());
    create(&running, "t", 2, 3).await;
    assert_eq!(running.engine.groups().committed_offsets(Some("g")).unwrap(), []);
    // Another session: the last one still names what is gone.
    member.session = 0;
    assert_eq!(member.take(2, 0).await, [(0, 2, 1)]);
}
