//! Kafka's groups: members, and what each is assigned.
//!
//! [`ClassicGroup`] is one group whose members choose a leader that assigns partitions,
//! [`ConsumerGroup`] one whose partitions the server assigns (KIP-848), [`ShareGroup`] one whose
//! members share partitions (KIP-932), and [`StreamsGroup`] one whose members run the tasks of an
//! application (KIP-1071). All are pure state machines: they read no clock and do no I/O.
//! [`GroupCoordinator`] holds all groups, and connects them to time, waiting requests and a log.
//! [`GroupSnapshot`], [`GroupHeader`] and [`StoredConsumerMember`] are the state of groups that
//! survives a restart.
//!
//! Absent on purpose: committed offsets (the engine has them; here is only the check that a commit
//! must pass), and every wire format except what members of the type "consumer" exchange.

#![forbid(unsafe_code)]

mod assignment;
mod assignor;
mod classic_group;
mod commit;
mod consumer_group;
mod consumer_protocol;
mod coordinator;
mod deadlines;
mod describe;
mod effects;
mod error;
mod group;
mod group_config;
mod group_header;
mod member;
mod member_requests;
mod modern_group;
mod options;
mod partitions;
mod pending_write;
mod share_group;
mod snapshot;
mod state;
mod streams_group;
mod subscriptions;
#[cfg(test)]
mod test_topics;
mod topic_subscription;
mod unsaved_changes;

pub use assignment::assigned;
pub use assignor::Assignor;
pub use classic_group::ClassicGroup;
pub use commit::{CommitFence, CommitKind, OffsetExpirationCondition};
pub use consumer_group::{
    ClassicMembershipSnapshot, ConsumerGroup, ConsumerGroupState, ConsumerGroupSummary,
    ConsumerHeartbeat, ConsumerHeartbeatAnswer, ConsumerMemberSummary, MemberState,
    StoredConsumerGroup, StoredConsumerMember,
};
pub use consumer_protocol::ConsumerSubscription;
pub use coordinator::{GroupCoordinator, GroupLog, GroupLogFuture, HeldGroup, OffsetsLease};
pub use describe::{GroupOverview, GroupSummary, GroupType, MemberSummary};
pub use effects::{GroupChange, GroupEffect, WriteId, WriteResult};
pub use error::GroupError;
pub use group_config::{GroupConfigError, GroupConfigKey, group_config_keys, with_group_config};
pub use group_header::GroupHeader;
pub use member_requests::{
    GroupHeartbeatRequest, JoinRequest, JoinResult, JoinedMember, LeaveMemberRequest,
    LeaveMemberResult, RequestToken, SyncRequest, SyncResult,
};
pub use modern_group::{CommittedPartition, StoredModernGroup};
pub use options::{
    AssignmentIntervals, ConsumerOptions, MigrationPolicy, Options, ShareOptions, ShareStart,
    StreamsOptions,
};
pub use partitions::{AssignedPartitions, PartitionSet};
pub use share_group::{
    ShareGroup, ShareGroupState, ShareGroupSummary, ShareHeartbeat, ShareHeartbeatAnswer,
    ShareMemberSummary, StoredShareGroup, StoredShareMember,
};
pub use snapshot::{GroupSnapshot, GroupSnapshotError, MemberSnapshot};
pub use state::ClassicGroupState;
pub use streams_group::{
    EndpointPartitions, GivenTasks, InternalTopic, MemberTasks, StoredStreamsGroup,
    StoredStreamsMember, StreamsGroup, StreamsGroupHeader, StreamsGroupState, StreamsGroupSummary,
    StreamsHeartbeat, StreamsHeartbeatAnswer, StreamsMemberSummary, StreamsStatus, Subtopology,
    TaskSet, Topology, UserEndpoint,
};
pub use subscriptions::{
    CONSUMER_PROTOCOL_TYPE, GroupSubscriptions, SHARE_PROTOCOL_TYPE, STREAMS_PROTOCOL_TYPE,
};
pub use topic_subscription::{GroupTopic, GroupTopics, TopicFilter};
