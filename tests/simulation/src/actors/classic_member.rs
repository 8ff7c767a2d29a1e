//! A member of a group of the classic protocol: it joins, fetches its assignment, leaves, and is
//! sometimes silent for too long, or gone without a word. Whoever leads the group deals the
//! partitions out.

use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    GroupId, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest,
    SyncGroupRequest,
};
use kafka_protocol::protocol::StrBytes;
use testkit::rng::SeededRng;
use tokio::time::Instant;
use uuid::Uuid;

use super::pause;
use crate::facts::{FIRST_CLASSIC, OwnedPartitions, SimFact};
use crate::node::GROUP_SESSION_TIMEOUT;
use crate::wire::SimClient;
use crate::world::SimWorld;

const JOIN: i16 = 7;
const SYNC: i16 = 5;
const HEARTBEAT: i16 = 4;
const LEAVE: i16 = 4;
/// Longer than a session: a member that does not hear that the others join gives up all before they
/// have it.
const REBALANCE_TIMEOUT_MS: i32 = 4000;
const PARTITIONS: u8 = 4;
/// Kafka's code for a member that must join again with the id that it is given.
const MEMBER_ID_REQUIRED: i16 = 79;
/// Kafka's code for a member that the group does not know.
const UNKNOWN_MEMBER_ID: i16 = 25;
const PROTOCOL: &str = "range";

pub(crate) struct ClassicMember {
    world: Rc<SimWorld>,
    client: SimClient,
    rng: SeededRng,
    nth: usize,
    name: String,
    /// Empty until the server has given it one.
    id: StrBytes,
    /// `None` while it has to join.
    generation: Option<i32>,
    owned: BTreeSet<i32>,
    /// The send time of the last request that was answered and left it what it has.
    answered: Instant,
}

fn group() -> GroupId {
    GroupId(StrBytes::from_static_str("classic"))
}

impl ClassicMember {
    pub(crate) fn new(world: &Rc<SimWorld>, nth: usize, mut rng: SeededRng) -> ClassicMember {
        ClassicMember {
            world: Rc::clone(world),
            client: SimClient::new(world, rng.fork()),
            rng,
            nth,
            name: format!("classic{nth}"),
            id: StrBytes::default(),
            generation: None,
            owned: BTreeSet::new(),
            answered: Instant::now(),
        }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            // Some are silent for longer than they may be.
            let most_ms = if self.rng.one_in(25) { 5000 } else { 300 };
            pause(&mut self.rng, 20, most_ms).await;
            if self.answered.elapsed() >= GROUP_SESSION_TIMEOUT {
                self.give_up("its session has ended");
            }
            if self.rng.one_in(40) {
                self.give_up("it starts again");
                self.id = StrBytes::default();
            } else if self.rng.one_in(40) {
                self.leave().await;
            } else if self.generation.is_some() {
                self.heartbeat().await;
            } else {
                // A failed join is tried again.
                let _ = self.join().await;
            }
        }
    }

    async fn join(&mut self) -> io::Result<()> {
        let protocol = JoinGroupRequestProtocol::default()
            .with_name(StrBytes::from_static_str(PROTOCOL))
            .with_metadata(Bytes::from_static(&[0, 0]));
        let request = JoinGroupRequest::default()
            .with_group_id(group())
            .with_session_timeout_ms(GROUP_SESSION_TIMEOUT.as_millis() as i32)
            .with_rebalance_timeout_ms(REBALANCE_TIMEOUT_MS)
            .with_member_id(self.id.clone())
            .with_protocol_type(StrBytes::from_static_str("sim"))
            .with_protocols(vec![protocol]);
        let joined = self.client.call(JOIN, &request).await?;
        match joined.error_code {
            0 => self.id = joined.member_id.clone(),
            MEMBER_ID_REQUIRED => {
                self.id = joined.member_id;
                return Ok(());
            }
            code => {
                self.hear_error(code);
                return Ok(());
            }
        }
        self.sync(&joined).await
    }

    async fn sync(&mut self, joined: &JoinGroupResponse) -> io::Result<()> {
        let is_leader = joined.leader == joined.member_id;
        let assignments = if is_leader { deal(joined) } else { Vec::new() };
        let request = SyncGroupRequest::default()
            .with_group_id(group())
            .with_generation_id(joined.generation_id)
            .with_member_id(self.id.clone())
            .with_protocol_type(Some(StrBytes::from_static_str("sim")))
            .with_protocol_name(Some(StrBytes::from_static_str(PROTOCOL)))
            .with_assignments(assignments);
        let sent = Instant::now();
        let synced = self.client.call(SYNC, &request).await?;
        if synced.error_code != 0 {
            self.hear_error(synced.error_code);
            return Ok(());
        }
        (self.generation, self.answered) = (Some(joined.generation_id), sent);
        self.owned = synced.assignment.iter().map(|partition| i32::from(*partition)).collect();
        let note = format!("owns {} in generation {}", self.owned.len(), joined.generation_id);
        self.world.note(&self.name, &note);
        self.report();
        Ok(())
    }

    async fn heartbeat(&mut self) {
        let Some(generation) = self.generation else { return };
        let request = HeartbeatRequest::default()
            .with_group_id(group())
            .with_generation_id(generation)
            .with_member_id(self.id.clone());
        let sent = Instant::now();
        // The server may have heard a request without an answer.
        let Ok(answer) = self.client.call(HEARTBEAT, &request).await else { return };
        if answer.error_code == 0 {
            self.answered = sent;
            self.report();
        } else {
            self.hear_error(answer.error_code);
        }
    }

    /// Whatever it is, the member has to join again.
    fn hear_error(&mut self, code: i16) {
        self.give_up("it has to join");
        if code == UNKNOWN_MEMBER_ID {
            self.id = StrBytes::default();
        }
    }

    async fn leave(&mut self) {
        self.give_up("it leaves");
        let member = MemberIdentity::default().with_member_id(std::mem::take(&mut self.id));
        let request =
            LeaveGroupRequest::default().with_group_id(group()).with_members(vec![member]);
        // It may be heard or not: what it had is nobody's until its session ends.
        let _ = self.client.call(LEAVE, &request).await;
    }

    fn give_up(&mut self, why: &str) {
        if self.generation.take().is_some() {
            self.world.note(&self.name, why);
        }
        self.owned.clear();
        self.answered = Instant::now();
        self.report();
    }

    fn report(&self) {
        let partitions = self.owned.iter().map(|partition| (Uuid::max(), *partition));
        self.world.report(&SimFact::Owned(OwnedPartitions {
            member: FIRST_CLASSIC + self.nth,
            partitions: partitions.collect(),
            now: Instant::now(),
            until: self.answered + GROUP_SESSION_TIMEOUT,
        }));
    }
}

/// Deals the partitions out to the members, in turn.
fn deal(joined: &JoinGroupResponse) -> Vec<SyncGroupRequestAssignment> {
    let count = joined.members.len();
    let assignment = |(nth, member): (usize, &JoinGroupResponseMember)| {
        let own = (0..PARTITIONS).filter(|partition| usize::from(*partition) % count == nth);
        SyncGroupRequestAssignment::default()
            .with_member_id(member.member_id.clone())
            .with_assignment(own.collect::<Vec<u8>>().into())
    };
    joined.members.iter().enumerate().map(assignment).collect()
}
