//! A fixture with one group: the test moves time, collects responses, and ends writes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::super::{
    ClassicGroupState, GroupError, GroupHeartbeatRequest, GroupSnapshot, JoinRequest, JoinResult,
    LeaveMemberRequest, Options, SyncRequest, SyncResult,
};
use super::{ClassicGroup, GroupEffect, RequestToken, WriteId, WriteResult};

pub(super) fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A dynamic consumer of a client that knows KIP-394.
pub(super) fn consumer(member_id: &str) -> JoinRequest {
    JoinRequest {
        member_id: member_id.to_owned(),
        group_instance_id: None,
        client_id: "app".to_owned(),
        client_host: "/10.0.0.1".to_owned(),
        session_timeout: s(10),
        rebalance_timeout: s(60),
        protocol_type: "consumer".to_owned(),
        protocols: protocols(&["range"]),
        require_known_member_id: true,
        supports_skip_assignment: true,
        reason: None,
    }
}

/// A static consumer that has no member id yet.
pub(super) fn static_consumer(instance: &str) -> JoinRequest {
    JoinRequest {
        group_instance_id: Some(instance.to_owned()),
        require_known_member_id: false,
        ..consumer("")
    }
}

/// With the protocol's name as metadata.
pub(super) fn protocols(names: &[&str]) -> Vec<(String, Bytes)> {
    let protocol = |name: &&str| (name.to_string(), Bytes::copy_from_slice(name.as_bytes()));
    names.iter().map(protocol).collect()
}

/// A group, and all its outputs.
pub(super) struct TestClassicGroup {
    pub(super) group: ClassicGroup,
    pub(super) now: Duration,
    pub(super) joins: HashMap<RequestToken, JoinResult>,
    pub(super) syncs: HashMap<RequestToken, SyncResult>,
    pub(super) held_writes: VecDeque<(WriteId, GroupSnapshot)>,
    pub(super) stored: Option<GroupSnapshot>,
    pub(super) holds_writes: bool,
    next_token: u64,
    next_id: u128,
}

impl TestClassicGroup {
    pub(super) fn new() -> TestClassicGroup {
        TestClassicGroup::with(Options::default())
    }

    pub(super) fn with(options: Options) -> TestClassicGroup {
        TestClassicGroup::from_group(ClassicGroup::new(Arc::new(options)), Duration::ZERO)
    }

    pub(super) fn from_group(group: ClassicGroup, now: Duration) -> TestClassicGroup {
        TestClassicGroup {
            group,
            now,
            joins: HashMap::new(),
            syncs: HashMap::new(),
            held_writes: VecDeque::new(),
            stored: None,
            holds_writes: false,
            next_token: 0,
            next_id: 0,
        }
    }

    /// A stable group of static and dynamic members; their ids, the leader's first.
    pub(super) fn stable(&mut self, requests: &[JoinRequest]) -> Vec<String> {
        let joins: Vec<RequestToken> =
            requests.iter().map(|request| self.join_fully(request.clone())).collect();
        self.gather();
        let mut ids: Vec<String> = joins.iter().map(|join| self.joined(*join).member_id).collect();
        let leader = self.joined(joins[0]).leader;
        ids.sort_by_key(|id| *id != leader);
        self.sync_all(&ids);
        assert_eq!(self.group.state(), ClassicGroupState::Stable);
        ids
    }

    /// The leader, first, assigns each member its own id.
    pub(super) fn sync_all(&mut self, ids: &[String]) {
        for id in &ids[1..] {
            self.sync(id, &[]);
        }
        let assignments: Vec<(&str, &str)> =
            ids.iter().map(|id| (id.as_str(), id.as_str())).collect();
        self.sync(&ids[0], &assignments);
    }

    pub(super) fn token(&mut self) -> RequestToken {
        self.next_token += 1;
        RequestToken(self.next_token)
    }

    pub(super) fn join(&mut self, request: JoinRequest) -> RequestToken {
        let token = self.token();
        let ids = &mut || {
            self.next_id += 1;
            Uuid::from_u128(self.next_id)
        };
        let effects = self.group.join(self.now, token, request, ids);
        self.apply_effects(effects);
        token
    }

    /// As a client does: if the response has an id to use, joins again with it.
    pub(super) fn join_fully(&mut self, request: JoinRequest) -> RequestToken {
        let token = self.join(request.clone());
        match self.joins.get(&token) {
            Some(answer) if answer.error == Some(GroupError::MemberIdRequired) => {
                let member_id = answer.member_id.clone();
                self.join(JoinRequest { member_id, ..request })
            }
            _ => token,
        }
    }

    pub(super) fn sync_request(&self, id: &str, assignments: &[(&str, &str)]) -> SyncRequest {
        let assignment =
            |(id, bytes): &(&str, &str)| (id.to_string(), Bytes::copy_from_slice(bytes.as_bytes()));
        SyncRequest {
            member_id: id.to_owned(),
            group_instance_id: None,
            generation_id: self.group.generation(),
            protocol_type: Some("consumer".to_owned()),
            protocol_name: None,
            assignments: assignments.iter().map(assignment).collect(),
        }
    }

    pub(super) fn sync(&mut self, id: &str, assignments: &[(&str, &str)]) -> RequestToken {
        let request = self.sync_request(id, assignments);
        self.sync_with(request)
    }

    pub(super) fn sync_with(&mut self, request: SyncRequest) -> RequestToken {
        let token = self.token();
        let effects = self.group.sync(self.now, token, request);
        self.apply_effects(effects);
        token
    }

    pub(super) fn heartbeat(&mut self, id: &str) -> Result<(), GroupError> {
        let generation_id = self.group.generation();
        let request = GroupHeartbeatRequest {
            member_id: id.to_owned(),
            group_instance_id: None,
            generation_id,
        };
        let result = self.group.heartbeat(self.now, &request);
        self.apply_effects(Vec::new());
        result
    }

    pub(super) fn leave(&mut self, id: &str, instance: Option<&str>) -> Option<GroupError> {
        let leaving = LeaveMemberRequest {
            member_id: id.to_owned(),
            group_instance_id: instance.map(str::to_owned),
            reason: None,
        };
        let (results, effects) = self.group.leave(self.now, &[leaving]);
        self.apply_effects(effects);
        results.expect("the group is not dead")[0].error
    }

    /// Ends the oldest write that is held.
    pub(super) fn end_write(&mut self, result: WriteResult) {
        let (write, snapshot) = self.held_writes.pop_front().expect("a write is held");
        if result == WriteResult::Stored {
            self.stored = Some(snapshot);
        }
        let effects = self.group.persisted(self.now, write, result);
        self.apply_effects(effects);
    }

    /// Moves time, and ticks at every deadline.
    pub(super) fn advance_clock(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(at) = self.group.next_deadline().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            let effects = self.group.tick(self.now);
            self.apply_effects(effects);
        }
        self.now = until;
    }

    /// Moves time until the members have joined.
    pub(super) fn gather(&mut self) {
        while self.group.state() == ClassicGroupState::PreparingRebalance {
            let at = self.group.next_deadline().expect("joins are not waited for for ever");
            self.advance_clock(at.saturating_sub(self.now));
        }
    }

    pub(super) fn joined(&self, token: RequestToken) -> JoinResult {
        let answer = self.joins.get(&token).expect("the join is answered").clone();
        assert_eq!(answer.error, None, "{answer:?}");
        answer
    }

    pub(super) fn refused(&self, token: RequestToken) -> GroupError {
        self.joins.get(&token).and_then(|answer| answer.error).expect("the join is refused")
    }

    pub(super) fn synced(&self, token: RequestToken) -> Bytes {
        let answer = self.syncs.get(&token).expect("the sync is answered").clone();
        assert_eq!(answer.error, None, "{answer:?}");
        answer.assignment
    }

    pub(super) fn sync_refused(&self, token: RequestToken) -> GroupError {
        self.syncs.get(&token).and_then(|answer| answer.error).expect("the sync is refused")
    }

    fn apply_effects(&mut self, effects: Vec<GroupEffect>) {
        for effect in effects {
            match effect {
                GroupEffect::Join { token, answer } => {
                    assert_eq!(self.joins.insert(token, answer), None, "answered once");
                }
                GroupEffect::Sync { token, answer } => {
                    assert_eq!(self.syncs.insert(token, answer), None, "answered once");
                }
                GroupEffect::Persist { write, snapshot } => {
                    self.held_writes.push_back((write, snapshot))
                }
            }
        }
        self.group.assert_sound();
        if !self.holds_writes && !self.held_writes.is_empty() {
            self.end_write(WriteResult::Stored);
        }
    }
}
