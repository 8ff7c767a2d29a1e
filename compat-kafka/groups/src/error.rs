//! The reasons for which a group refuses a request. Each variant is an error code of its own on
//! Kafka's wire, except [`GroupError::TooManyGroups`], [`GroupError::TooManyBytes`] and
//! [`GroupError::TooLarge`], which are our own limits.

/// The reason why a group refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum GroupError {
    /// The group has no such member: it must join again, with an empty member id.
    #[error("the group has no such member")]
    UnknownMemberId,
    /// The request's generation is not the group's.
    #[error("not the group's generation")]
    IllegalGeneration,
    /// The group waits for its members to join: join again.
    #[error("the group is rebalancing")]
    RebalanceInProgress,
    /// The protocol type differs from the group's, or no protocol is supported by all members.
    #[error("no protocol in common with the group")]
    InconsistentGroupProtocol,
    /// Join again with the member id in the response (KIP-394).
    #[error("join again with the member id given")]
    MemberIdRequired,
    /// A newer member has taken over this instance id.
    #[error("a newer member holds this instance id")]
    FencedInstanceId,
    /// The session timeout lies outside of what this service allows.
    #[error("session timeout outside of the allowed range")]
    InvalidSessionTimeout,
    /// The group may grow no further, by its count of members or by their bytes.
    #[error("the group may have no more members")]
    GroupMaxSizeReached,
    /// Not now: the group is being deleted, its log failed, or the service is stopping. Retry.
    #[error("the coordinator is not available")]
    CoordinatorNotAvailable,
    /// The group has members, so it cannot be deleted.
    #[error("the group is not empty")]
    NonEmptyGroup,
    /// There is no such group.
    #[error("no such group")]
    GroupIdNotFound,
    /// A member reads this topic, so its offsets cannot be deleted.
    #[error("the group is subscribed to the topic")]
    GroupSubscribedToTopic,
    /// The member's epoch is not one that it may have: it must give up what it has, and join again
    /// (KIP-848).
    #[error("the member epoch is not the group's; give up all partitions, and join again")]
    FencedMemberEpoch,
    /// The member's epoch is old, or its partitions were assigned later: it must fetch its
    /// assignment first.
    #[error("the member epoch is stale; send a heartbeat, and retry")]
    StaleMemberEpoch,
    /// Another member holds this instance id, and has not left.
    #[error("another member holds this instance id, and has not left")]
    UnreleasedInstanceId,
    /// The server has no such assignor.
    #[error("no such assignor; there are uniform and range")]
    UnsupportedAssignor,
    #[error("the regular expression of topics is not valid")]
    InvalidRegularExpression,
    /// Its fields contradict each other.
    #[error(
        "a heartbeat names its member and its epoch; one that joins, also a rebalance timeout, topics or a \
         regular expression, and no partitions"
    )]
    InvalidRequest,
    /// Its fields contradict each other, in a heartbeat of a share group.
    #[error(
        "a heartbeat names its member and its epoch, from -1 on; one that joins, also the topics"
    )]
    InvalidShareRequest,
    /// Its fields contradict each other, in a heartbeat of a streams group.
    #[error(
        "a heartbeat names its member and its epoch, from -1 on, and tasks that the topology has; one that \
         joins, also a rebalance timeout and its topology, and no tasks"
    )]
    InvalidStreamsRequest,
    /// The topology of an application contradicts itself.
    #[error(
        "the topology is not valid: each subtopology reads a topic, changelogs have no number of partitions, \
         and each repartition topic is written by a subtopology whose number of tasks does not depend on it"
    )]
    InvalidTopology,
    /// The group has another topology. As in Kafka, it keeps the first one.
    #[error(
        "the group has another topology, and keeps it: choose another application.id, or delete the group"
    )]
    OtherTopology,
    /// The request's version is too old for this group.
    #[error("the group's members speak a newer protocol than this version of the request")]
    UnsupportedVersion,
    /// There is such a group, of another kind.
    #[error("the group is of another kind")]
    OtherGroupType,
    /// An empty group id, where one is needed.
    #[error("the group id is empty")]
    InvalidGroupId,
    /// The client has its share of groups. Retry once some are gone.
    #[error("the client has its share of groups (limits.groups-max)")]
    TooManyGroups,
    /// The client has its share of the bytes of groups. Retry once some are gone.
    #[error("the client has its share of the bytes of groups (limits.groups-bytes)")]
    TooManyBytes,
    /// The metadata or the assignments in the request exceed their limit.
    #[error("metadata or assignments are too large")]
    TooLarge,
}
