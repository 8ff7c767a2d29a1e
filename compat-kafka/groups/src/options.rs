//! The options of groups.

use std::time::Duration;

use super::assignor::Assignor;

/// Options of all groups. The defaults are Kafka's where Kafka has the setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The time that an empty group waits for more members after the first has joined.
    pub initial_rebalance_delay: Duration,
    /// The shortest session timeout that a member may ask for.
    pub session_timeout_min: Duration,
    /// The longest session timeout that a member may ask for.
    pub session_timeout_max: Duration,
    /// The longest time that a member that was just added waits for its first response before it is
    /// dropped.
    pub new_member_join_timeout: Duration,
    /// The most members that one group may have.
    pub group_max_size: usize,
    /// The most issued member ids of one group that have not joined yet (KIP-394).
    pub pending_members_max: usize,
    /// The most bytes of ids and protocol metadata that one member may send.
    pub member_bytes_max: usize,
    /// The most bytes that one group's members may hold together, assignments included.
    pub group_bytes_max: usize,
    pub groups_max: usize,
    /// The most bytes that the members of all groups may hold together, including assignments and
    /// issued ids.
    pub groups_bytes_max: usize,
    /// The time for which a group without members and without offsets is kept.
    pub empty_group_retention: Duration,
    /// The time for which offsets are kept after a group's last member left. If the group never had
    /// members or none reads their topic, the time counts from the commit
    /// (`offsets.retention.minutes`).
    pub offsets_retention: Duration,
    /// The interval of checks for expired offsets (`offsets.retention.check.interval.ms`).
    pub offsets_check_interval: Duration,
    /// The longest time that a write to the group log may take before it counts as failed.
    pub write_timeout: Duration,
    pub consumer: ConsumerOptions,
    pub share: ShareOptions,
    pub streams: StreamsOptions,
}

/// Options of groups of the consumer protocol (KIP-848), with Kafka's defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerOptions {
    /// A member that is silent for longer is removed (`group.consumer.session.timeout.ms`).
    pub session_timeout: Duration,
    /// The heartbeat interval of members
    /// (`group.consumer.heartbeat.interval.ms`).
    pub heartbeat_interval: Duration,
    /// Assignments are computed at most this often (`group.consumer.assignment.interval.ms`).
    /// Groups with few members do not wait as long.
    pub assignment_interval: Duration,
    /// The most members that one group may have (`group.consumer.max.size`).
    pub group_max_size: usize,
    /// The assignors that members may prefer; the first is used where none prefers any
    /// (`group.consumer.assignors`).
    pub assignors: Vec<Assignor>,
    /// The groups that change their kind with their members (`group.consumer.migration.policy`).
    pub migration: MigrationPolicy,
}

/// Options of share groups (KIP-932), with Kafka's defaults. Names in parentheses are of the
/// server's setting, and of that of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareOptions {
    /// A member that is silent for longer is removed (`group.share.session.timeout.ms`,
    /// `share.session.timeout.ms`).
    pub session_timeout: Duration,
    /// The heartbeat interval of members
    /// (`group.share.heartbeat.interval.ms`, `share.heartbeat.interval.ms`).
    pub heartbeat_interval: Duration,
    /// Assignments are computed at most this often (`group.share.assignment.interval.ms`,
    /// `share.assignment.interval.ms`). Groups with few members do not wait as long.
    pub assignment_interval: Duration,
    /// The most members that one group may have (`group.share.max.size`).
    pub group_max_size: usize,
    /// The most share sessions that there may be (`group.share.max.share.sessions`).
    pub sessions_max: usize,
    /// The time for which a member has a record before others may get it
    /// (`group.share.record.lock.duration.ms`, `share.record.lock.duration.ms`).
    pub record_lock: Duration,
    /// The most times that a record is delivered (`group.share.delivery.count.limit`,
    /// `share.delivery.count.limit`).
    pub deliveries_max: u16,
    /// The largest distance in a partition from the first record that is not done with to those
    /// that are delivered (`group.share.partition.max.record.locks`,
    /// `share.partition.max.record.locks`).
    pub in_flight_max: usize,
    /// The place where a group begins in a partition (`share.auto.offset.reset`).
    pub begin_at: ShareStart,
    /// True if records of transactions are delivered only once they are committed
    /// (`share.isolation.level`).
    pub is_committed: bool,
    /// True if members may ask for more time (KIP-1222, `share.renew.acknowledge.enable`).
    pub may_renew: bool,
}

/// Options of streams groups (KIP-1071), with Kafka's defaults. Names in parentheses are of the
/// server's setting, and of that of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamsOptions {
    /// A member that is silent for longer is removed (`group.streams.session.timeout.ms`,
    /// `streams.session.timeout.ms`).
    pub session_timeout: Duration,
    /// The heartbeat interval of members
    /// (`group.streams.heartbeat.interval.ms`, `streams.heartbeat.interval.ms`).
    pub heartbeat_interval: Duration,
    /// Assignments are computed at most this often (`group.streams.assignment.interval.ms`,
    /// `streams.assignment.interval.ms`). Groups with few members do not wait as long.
    pub assignment_interval: Duration,
    /// The time that an empty group waits for more members after the first has joined
    /// (`group.streams.initial.rebalance.delay.ms`, `streams.initial.rebalance.delay.ms`).
    pub initial_rebalance_delay: Duration,
    /// The most members that one group may have (`group.streams.max.size`).
    pub group_max_size: usize,
    /// The number of copies of its state that each task has besides that of the member where it is
    /// active (`group.streams.num.standby.replicas`, `streams.num.standby.replicas`).
    pub standbys: u32,
}

impl Default for StreamsOptions {
    fn default() -> StreamsOptions {
        StreamsOptions {
            session_timeout: Duration::from_secs(45),
            heartbeat_interval: Duration::from_secs(5),
            assignment_interval: Duration::from_secs(1),
            initial_rebalance_delay: Duration::from_secs(3),
            group_max_size: i32::MAX as usize,
            standbys: 0,
        }
    }
}

/// The place where a share group begins in a partition of which it knows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareStart {
    Earliest,
    Latest,
    /// With the first record whose timestamp is no older than this.
    Ago(Duration),
}

impl Default for ShareOptions {
    fn default() -> ShareOptions {
        ShareOptions {
            session_timeout: Duration::from_secs(45),
            heartbeat_interval: Duration::from_secs(5),
            assignment_interval: Duration::from_secs(1),
            group_max_size: 200,
            sessions_max: 2000,
            record_lock: Duration::from_secs(30),
            deliveries_max: 5,
            in_flight_max: 2000,
            begin_at: ShareStart::Latest,
            is_committed: false,
            may_renew: true,
        }
    }
}

/// Assignments are computed at most this often for each member: of many that join together, most
/// share one, and partitions do not move from one to the next while they come.
const ASSIGNMENT_INTERVAL_PER_MEMBER: Duration = Duration::from_micros(100);

/// The shortest interval between assignments of that many members.
pub(super) fn assignment_interval(max: Duration, members: usize) -> Duration {
    let members = u32::try_from(members).unwrap_or(u32::MAX);
    max.min(ASSIGNMENT_INTERVAL_PER_MEMBER.saturating_mul(members))
}

/// The groups with members that may change their kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationPolicy {
    /// Both kinds.
    Bidirectional,
    /// Classic groups become groups of the consumer protocol.
    Upgrade,
    /// Groups of the consumer protocol become classic ones.
    Downgrade,
    Disabled,
}

impl Default for ConsumerOptions {
    fn default() -> ConsumerOptions {
        ConsumerOptions {
            session_timeout: Duration::from_secs(45),
            heartbeat_interval: Duration::from_secs(5),
            assignment_interval: Duration::from_secs(1),
            group_max_size: i32::MAX as usize,
            assignors: Assignor::ALL.to_vec(),
            migration: MigrationPolicy::Bidirectional,
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            initial_rebalance_delay: Duration::from_secs(3),
            session_timeout_min: Duration::from_secs(6),
            session_timeout_max: Duration::from_secs(30 * 60),
            new_member_join_timeout: Duration::from_secs(5 * 60),
            group_max_size: i32::MAX as usize,
            pending_members_max: 10_000,
            member_bytes_max: 1 << 20,
            group_bytes_max: 64 << 20,
            groups_max: 100_000,
            groups_bytes_max: 512 << 20,
            empty_group_retention: Duration::from_secs(10 * 60),
            offsets_retention: Duration::from_secs(7 * 24 * 60 * 60),
            offsets_check_interval: Duration::from_secs(10 * 60),
            write_timeout: Duration::from_secs(5),
            consumer: ConsumerOptions::default(),
            share: ShareOptions::default(),
            streams: StreamsOptions::default(),
        }
    }
}

/// The shortest intervals between computations of the assignments of groups
/// (`group.consumer.assignment.interval.ms` and the settings of share and streams groups).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssignmentIntervals {
    pub consumer: Duration,
    pub share: Duration,
    pub streams: Duration,
}
