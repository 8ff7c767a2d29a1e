//! Two clients that change the same offsets, groups and topics at the same time. Each race ends
//! with a question whose answer does not depend on who came first.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, DeleteGroupsRequest, EndTxnRequest, EndTxnResponse, GroupId,
    InitProducerIdRequest, InitProducerIdResponse, JoinGroupRequest, LeaveGroupRequest,
    OffsetDeleteRequest, ProducerId, SyncGroupRequest, TransactionalId, TxnOffsetCommitRequest,
};
use kafka_protocol::protocol::StrBytes;
use serde_json::json;
use testkit::requests::topic_name;
use testkit::rng::SeededRng;

use super::requests::{commit_request, create_topic_request, delete_topic_request};
use super::{RACED_TOPICS, UNKNOWN_OUTCOME_WAIT, pause};
use crate::coverage::CoveragePoint;
use crate::facts::{OffsetRace, SimFact};
use crate::node::GROUP_SESSION_TIMEOUT;
use crate::wire::SimClient;
use crate::world::SimWorld;

const WHO: &str = "racing_clients";
/// The longest head start of the first client, in milliseconds of the world.
const HEAD_START_MS_MAX: u64 = 8;
/// The same where the first client joins an empty group first, which takes 300 ms.
const JOIN_MS_MAX: u64 = 400;
const GROUP: &str = "raced";
const TRANSACTIONAL_ID: &str = "racing";
const STANDING_TOPIC: &str = "plain";
const OFFSET_COMMIT: i16 = 8;
const MEMBER_ID_REQUIRED: i16 = 79;
/// Kafka's code for a name that collides.
const INVALID_TOPIC: i16 = 17;

/// A race that was not run to its end: a request has no answer, or the server refused it.
struct IncompleteRace;

impl From<io::Error> for IncompleteRace {
    fn from(_: io::Error) -> IncompleteRace {
        IncompleteRace
    }
}

type RaceResult<T = ()> = Result<T, IncompleteRace>;

fn accepted(code: i16) -> RaceResult {
    if code == 0 { Ok(()) } else { Err(IncompleteRace) }
}

fn group() -> GroupId {
    GroupId(StrBytes::from_static_str(GROUP))
}

fn transactional_id() -> TransactionalId {
    TransactionalId(StrBytes::from_static_str(TRANSACTIONAL_ID))
}

/// A member of a generation of a classic group.
struct JoinedMember {
    id: StrBytes,
    generation: i32,
}

pub(crate) struct RacingClients {
    world: Rc<SimWorld>,
    first: SimClient,
    second: SimClient,
    rng: SeededRng,
    /// The largest offset that was ever sent.
    last_offset: u64,
}

impl RacingClients {
    pub(crate) fn new(world: &Rc<SimWorld>, mut rng: SeededRng) -> RacingClients {
        let (first, second) =
            (SimClient::new(world, rng.fork()), SimClient::new(world, rng.fork()));
        RacingClients { world: Rc::clone(world), first, second, rng, last_offset: 0 }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            pause(&mut self.rng, 100, 1200).await;
            let head_start = Duration::from_millis(self.rng.below(HEAD_START_MS_MAX));
            let ended = match self.rng.below(5) {
                0 => self.commit_beside_deletion_of_topic(head_start).await,
                1 => self.commit_beside_end_of_transaction(head_start).await,
                2 => self.delete_group_beside_end_of_transaction(head_start).await,
                3 => self.delete_offsets_beside_member().await,
                _ => self.create_colliding_topics(head_start).await,
            };
            if ended.is_err() {
                tokio::time::sleep(UNKNOWN_OUTCOME_WAIT).await;
            }
        }
    }

    /// Offsets that were committed before a topic was deleted are not those of the next topic of
    /// that name.
    async fn commit_beside_deletion_of_topic(&mut self, head_start: Duration) -> RaceResult {
        let [topic, _] = RACED_TOPICS;
        // It may be there.
        self.first.call(5, &create_topic_request(topic, 1)).await?;
        let commit = commit_request(GROUP, &[(topic, 0, self.next_offset())]);
        let deletion = delete_topic_request(topic);
        let (committed, deleted) = tokio::join!(self.first.call(OFFSET_COMMIT, &commit), async {
            tokio::time::sleep(head_start).await;
            self.second.call(5, &deletion).await
        });
        accepted(deleted?.responses[0].error_code)?;
        match committed {
            Ok(answer) if answer.topics[0].partitions[0].error_code == 0 => {
                self.world.cover(CoveragePoint::CommitBesideDeletion);
            }
            Ok(_) => {}
            Err(_) => tokio::time::sleep(UNKNOWN_OUTCOME_WAIT).await,
        }
        accepted(self.second.call(5, &create_topic_request(topic, 1)).await?.topics[0].error_code)?;
        let found = self.committed(topic).await?;
        self.report(OffsetRace::TopicRecreated, found);
        accepted(self.second.call(5, &deletion).await?.responses[0].error_code)
    }

    /// An offset that is committed after one of a transaction stays, whenever the transaction ends.
    async fn commit_beside_end_of_transaction(&mut self, head_start: Duration) -> RaceResult {
        let producer = self.begin_transaction().await?;
        let later = self.next_offset();
        let commit = commit_request(GROUP, &[(STANDING_TOPIC, 0, later)]);
        let end = end_request(&producer);
        let (ended, committed) = tokio::join!(self.first.call(3, &end), async {
            tokio::time::sleep(head_start).await;
            self.second.call(OFFSET_COMMIT, &commit).await
        });
        accepted(committed?.topics[0].partitions[0].error_code)?;
        self.hear_end(ended, CoveragePoint::CommitBesideEnd).await;
        let found = self.committed(STANDING_TOPIC).await?;
        self.report(OffsetRace::CommittedLater { later }, found);
        Ok(())
    }

    /// A transaction that ends does not bring back a group that was deleted.
    async fn delete_group_beside_end_of_transaction(&mut self, head_start: Duration) -> RaceResult {
        let producer = self.begin_transaction().await?;
        let deletion = DeleteGroupsRequest::default().with_groups_names(vec![group()]);
        let end = end_request(&producer);
        let (ended, deleted) = tokio::join!(self.first.call(3, &end), async {
            tokio::time::sleep(head_start).await;
            self.second.call(2, &deletion).await
        });
        accepted(deleted?.results[0].error_code)?;
        self.hear_end(ended, CoveragePoint::GroupDeletedBesideEnd).await;
        let found = self.committed(STANDING_TOPIC).await?;
        self.report(OffsetRace::GroupDeleted, found);
        Ok(())
    }

    /// Nobody deletes what a member of the group commits of a topic that it reads.
    async fn delete_offsets_beside_member(&mut self) -> RaceResult {
        let head_start = Duration::from_millis(self.rng.below(JOIN_MS_MAX));
        let old = commit_request(GROUP, &[(STANDING_TOPIC, 0, self.next_offset())]);
        let answer = self.first.call(OFFSET_COMMIT, &old).await?;
        accepted(answer.topics[0].partitions[0].error_code)?;
        let partition = OffsetDeleteRequestPartition::default().with_partition_index(0);
        let topic = OffsetDeleteRequestTopic::default()
            .with_name(topic_name(STANDING_TOPIC))
            .with_partitions(vec![partition]);
        let deletion =
            OffsetDeleteRequest::default().with_group_id(group()).with_topics(vec![topic]);
        let committed = self.next_offset();
        let incarnation = self.world.incarnation.get();
        let (deleted, joined) = tokio::join!(
            async {
                tokio::time::sleep(head_start).await;
                self.second.call(0, &deletion).await
            },
            join_and_commit(&mut self.first, committed)
        );
        let member = joined?;
        deleted?;
        let found = self.committed(STANDING_TOPIC).await?;
        // The offsets of a group without members expire; of a member that the node has forgotten,
        // too.
        if incarnation == self.world.incarnation.get() {
            self.world.cover(CoveragePoint::CommitBesideOffsetDelete);
            self.report(OffsetRace::MemberCommitted { committed }, found);
        }
        let member = MemberIdentity::default().with_member_id(member.id);
        let leave = LeaveGroupRequest::default().with_group_id(group()).with_members(vec![member]);
        accepted(self.first.call(4, &leave).await?.error_code)
    }

    /// An audit looks for both of them.
    async fn create_colliding_topics(&mut self, head_start: Duration) -> RaceResult {
        let [one, other] = RACED_TOPICS;
        let (creating, colliding) = (create_topic_request(one, 1), create_topic_request(other, 1));
        let answers = tokio::join!(self.first.call(5, &creating), async {
            tokio::time::sleep(head_start).await;
            self.second.call(5, &colliding).await
        });
        let code = |answer: io::Result<kafka_protocol::messages::CreateTopicsResponse>| {
            answer.ok().map(|answer| answer.topics[0].error_code)
        };
        let codes = (code(answers.0), code(answers.1));
        self.world.note(WHO, &format!("creates both topics: {codes:?}"));
        self.world.audit(crate::audit::AuditOccasion::NewEntries);
        if matches!(codes, (Some(0), Some(INVALID_TOPIC)) | (Some(INVALID_TOPIC), Some(0))) {
            self.world.cover(CoveragePoint::CollidingTopicsCreated);
        }
        for topic in RACED_TOPICS {
            self.first.call(5, &delete_topic_request(topic)).await?;
        }
        Ok(())
    }

    /// Waits until a transaction has ended, or never will.
    async fn hear_end(&self, ended: io::Result<EndTxnResponse>, committed: CoveragePoint) {
        match ended {
            Ok(answer) if answer.error_code == 0 => self.world.cover(committed),
            Ok(_) => {}
            Err(_) => tokio::time::sleep(UNKNOWN_OUTCOME_WAIT).await,
        }
    }

    fn next_offset(&mut self) -> u64 {
        self.last_offset += 1;
        self.last_offset
    }

    /// A transaction with an offset in it that is not committed yet.
    async fn begin_transaction(&mut self) -> RaceResult<InitProducerIdResponse> {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(transactional_id()))
            .with_transaction_timeout_ms(5000)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        let producer = self.first.call(4, &request).await?;
        accepted(producer.error_code)?;
        let request = AddOffsetsToTxnRequest::default()
            .with_transactional_id(transactional_id())
            .with_producer_id(producer.producer_id)
            .with_producer_epoch(producer.producer_epoch)
            .with_group_id(group());
        accepted(self.first.call(3, &request).await?.error_code)?;
        let partition = TxnOffsetCommitRequestPartition::default()
            .with_committed_offset(self.next_offset() as i64);
        let topic = TxnOffsetCommitRequestTopic::default()
            .with_name(topic_name(STANDING_TOPIC))
            .with_partitions(vec![partition]);
        let request = TxnOffsetCommitRequest::default()
            .with_transactional_id(transactional_id())
            .with_group_id(group())
            .with_producer_id(producer.producer_id)
            .with_producer_epoch(producer.producer_epoch)
            .with_topics(vec![topic]);
        let answer = self.first.call(3, &request).await?;
        accepted(answer.topics[0].partitions[0].error_code)?;
        Ok(producer)
    }

    /// The group's present offset of a topic's first partition.
    async fn committed(&mut self, topic: &str) -> RaceResult<Option<u64>> {
        let question = json!({"op": "offsets", "at": null, "group": GROUP});
        let answer = self.second.call_extension(&question).await?;
        if answer["at"].as_str().is_none() {
            return Err(IncompleteRace);
        }
        let offsets = answer["groups"][0]["offsets"].as_array().cloned().unwrap_or_default();
        let offset = offsets.iter().find(|offset| offset["topic"] == topic);
        Ok(offset.and_then(|offset| offset["offset"].as_u64()))
    }

    fn report(&self, race: OffsetRace, found: Option<u64>) {
        self.world.note(WHO, &format!("{race:?}: {found:?}"));
        self.world.report(&SimFact::OffsetRaced { race, found });
    }
}

fn end_request(producer: &InitProducerIdResponse) -> EndTxnRequest {
    EndTxnRequest::default()
        .with_transactional_id(transactional_id())
        .with_producer_id(producer.producer_id)
        .with_producer_epoch(producer.producer_epoch)
        .with_committed(true)
}

/// Joins the group as a consumer of the standing topic, and commits an offset of it.
async fn join_and_commit(client: &mut SimClient, offset: u64) -> RaceResult<JoinedMember> {
    let member = join(client).await?;
    let request = commit_request(GROUP, &[(STANDING_TOPIC, 0, offset)])
        .with_generation_id_or_member_epoch(member.generation)
        .with_member_id(member.id.clone());
    let answer = client.call(OFFSET_COMMIT, &request).await?;
    accepted(answer.topics[0].partitions[0].error_code)?;
    Ok(member)
}

async fn join(client: &mut SimClient) -> RaceResult<JoinedMember> {
    let protocol_type = StrBytes::from_static_str("consumer");
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(StrBytes::from_static_str("range"))
        .with_metadata(subscription());
    let mut request = JoinGroupRequest::default()
        .with_group_id(group())
        .with_session_timeout_ms(GROUP_SESSION_TIMEOUT.as_millis() as i32)
        .with_rebalance_timeout_ms(1000)
        .with_protocol_type(protocol_type.clone())
        .with_protocols(vec![protocol]);
    let mut joined = client.call(7, &request).await?;
    if joined.error_code == MEMBER_ID_REQUIRED {
        request.member_id = joined.member_id;
        joined = client.call(7, &request).await?;
    }
    accepted(joined.error_code)?;
    let assignment = SyncGroupRequestAssignment::default().with_member_id(joined.member_id.clone());
    let request = SyncGroupRequest::default()
        .with_group_id(group())
        .with_generation_id(joined.generation_id)
        .with_member_id(joined.member_id.clone())
        .with_protocol_type(Some(protocol_type))
        .with_protocol_name(joined.protocol_name)
        .with_assignments(vec![assignment]);
    accepted(client.call(5, &request).await?.error_code)?;
    Ok(JoinedMember { id: joined.member_id, generation: joined.generation_id })
}

/// The subscription of a consumer: a version, the topics that it reads, and no data of its own.
fn subscription() -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_i16(0);
    bytes.put_i32(1);
    bytes.put_i16(STANDING_TOPIC.len() as i16);
    bytes.put_slice(STANDING_TOPIC.as_bytes());
    bytes.put_i32(-1);
    bytes.freeze()
}
