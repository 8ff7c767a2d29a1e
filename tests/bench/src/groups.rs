//! Groups whose partitions the server assigns (KIP-848): how long it takes until many members that
//! join together have their shares, and what their heartbeats cost the broker afterwards.
//!
//! Members that join send the next heartbeat as soon as the others of their connection had their
//! turn: the time is the broker's, and not that of the heartbeats' interval.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::{
    ConsumerGroupHeartbeatRequest, FindCoordinatorRequest, GroupId, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use crate::connection::{BenchConnection, check_error_code};
use crate::histogram::Histogram;
use crate::meter::UsageMeter;
use crate::report::{BenchReport, FigureDirection, mebibytes};
use crate::target::BrokerTarget;
use crate::topic::BenchTopic;

const HEARTBEAT: i16 = 1;
/// Until all members have their shares.
const JOIN_MAX: Duration = Duration::from_secs(300);

#[derive(Args, Clone, Debug)]
pub(crate) struct GroupsWork {
    /// Members of all groups
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    members: u32,

    /// Groups, among which the members are distributed
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    groups: u32,

    /// Partitions that the members of a group share
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    partitions: u32,

    /// Connections, among which the members are distributed
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,

    /// Seconds to measure heartbeats once all have their shares
    #[arg(long, default_value_t = 5)]
    seconds: u64,

    /// Seconds between two heartbeats of a member then; as soon as its connection has time if 0
    #[arg(long, default_value_t = 0)]
    interval: u64,
}

/// A member as it follows the protocol.
struct BenchMember {
    /// Its group's number, and its own among the members of its group.
    nth: (usize, usize),
    group: GroupId,
    id: StrBytes,
    epoch: i32,
    owned: BTreeMap<Uuid, Vec<i32>>,
}

/// The epoch and the share of each member, by group.
type Shares = Arc<Vec<Mutex<Vec<(i32, usize)>>>>;

struct MemberConnection {
    connection: BenchConnection,
    topic: TopicName,
    members: Vec<BenchMember>,
    shares: Shares,
    partitions: usize,
    heartbeats: Histogram,
}

impl MemberConnection {
    /// Lets all members join, and send heartbeats until every member of the group has its share.
    fn join(mut self) -> Result<MemberConnection> {
        let deadline = Instant::now() + JOIN_MAX;
        while !self.is_settled() {
            ensure!(Instant::now() < deadline, "members have no shares after {JOIN_MAX:?}");
            for nth in 0..self.members.len() {
                self.heartbeat(nth)?;
            }
        }
        Ok(self)
    }

    fn is_settled(&self) -> bool {
        self.shares.iter().all(|shares| self.is_group_settled(shares))
    }

    fn is_group_settled(&self, shares: &Mutex<Vec<(i32, usize)>>) -> bool {
        let shares = shares.lock().expect("no thread panics");
        let epoch = shares[0].0;
        // An assignment may be of an epoch in which the last had not joined.
        let least = self.partitions / shares.len();
        epoch > 0
            && shares.iter().all(|(of, share)| *of == epoch && (least..=least + 1).contains(share))
            && shares.iter().map(|(_, share)| share).sum::<usize>() == self.partitions
    }

    fn heartbeat(&mut self, nth: usize) -> Result<()> {
        let member = &mut self.members[nth];
        let joins = member.epoch == 0;
        let owned = member.owned.iter().map(|(topic, indexes)| {
            TopicPartitions::default().with_topic_id(*topic).with_partitions(indexes.clone())
        });
        let request = ConsumerGroupHeartbeatRequest::default()
            .with_group_id(member.group.clone())
            .with_member_id(member.id.clone())
            .with_member_epoch(member.epoch)
            .with_rebalance_timeout_ms(if joins { 300_000 } else { -1 })
            .with_subscribed_topic_names(joins.then(|| vec![self.topic.clone()]))
            .with_topic_partitions(Some(owned.collect()));
        let response = self.connection.call(&request, HEARTBEAT)?;
        let is_fenced = [ResponseError::FencedMemberEpoch, ResponseError::UnknownMemberId];
        if is_fenced.iter().any(|error| error.code() == response.error_code) {
            (member.epoch, member.owned) = (0, BTreeMap::new());
            return Ok(());
        }
        let is_early = response.error_code == ResponseError::NotCoordinator.code()
            || response.error_code == ResponseError::CoordinatorLoadInProgress.code();
        if is_early {
            return Ok(());
        }
        check_error_code(response.error_code).context("heartbeat")?;
        member.epoch = response.member_epoch;
        if let Some(assignment) = response.assignment {
            let topics = assignment.topic_partitions.into_iter();
            member.owned = topics.map(|topic| (topic.topic_id, topic.partitions)).collect();
        }
        let share = member.owned.values().map(Vec::len).sum();
        let (group, nth) = member.nth;
        self.shares[group].lock().expect("no thread panics")[nth] = (member.epoch, share);
        Ok(())
    }

    /// Sends the heartbeats of members that have all they are to have.
    fn stay(mut self, until: Instant, interval: Duration) -> Result<MemberConnection> {
        let bare = |member: &BenchMember| {
            ConsumerGroupHeartbeatRequest::default()
                .with_group_id(member.group.clone())
                .with_member_id(member.id.clone())
                .with_member_epoch(member.epoch)
                .with_rebalance_timeout_ms(-1)
                .with_subscribed_topic_names(None)
                .with_topic_partitions(None)
        };
        let requests: Vec<_> = self.members.iter().map(bare).collect();
        let (start, pause) = (Instant::now(), interval / requests.len() as u32);
        for (nth, request) in requests.iter().cycle().enumerate() {
            thread::sleep((start + pause * nth as u32).saturating_duration_since(Instant::now()));
            let begin = Instant::now();
            if begin >= until {
                break;
            }
            let response = self.connection.call(request, HEARTBEAT)?;
            check_error_code(response.error_code).context("heartbeat")?;
            self.heartbeats.record(begin.elapsed());
        }
        Ok(self)
    }
}

fn connect(
    address: SocketAddr,
    work: &GroupsWork,
    topic: &TopicName,
) -> Result<Vec<MemberConnection>> {
    let group = |nth| GroupId(StrBytes::from_string(format!("{}-{nth}", topic.as_str())));
    let (members, groups) = (work.members, work.groups.min(work.members));
    let size = |group: u32| members / groups + u32::from(group < members % groups);
    let shares = (0..groups).map(|group| Mutex::new(vec![(0, 0); size(group) as usize]));
    let shares: Shares = Arc::new(shares.collect());
    let mut connections = Vec::new();
    for nth in 0..work.connections.min(work.members) {
        let mut connection = BenchConnection::open(address)?;
        // Kafka makes the topic of its coordinator with the first request for one.
        let coordinator = FindCoordinatorRequest::default().with_key(group(0).0);
        let deadline = Instant::now() + Duration::from_secs(30);
        while connection.call(&coordinator, 3)?.error_code != 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(50));
        }
        let member = |nth: u32| BenchMember {
            nth: ((nth % groups) as usize, (nth / groups) as usize),
            group: group(nth % groups),
            id: StrBytes::from_string(Uuid::new_v4().to_string()),
            epoch: 0,
            owned: BTreeMap::new(),
        };
        let members = (nth..work.members).step_by(work.connections as usize).map(member);
        connections.push(MemberConnection {
            connection,
            topic: topic.clone(),
            members: members.collect(),
            shares: Arc::clone(&shares),
            partitions: work.partitions as usize,
            heartbeats: Histogram::new(),
        });
    }
    Ok(connections)
}

/// Runs each connection on a thread of its own.
fn on_threads(
    connections: Vec<MemberConnection>,
    run: impl Fn(MemberConnection) -> Result<MemberConnection> + Copy + Send + 'static,
) -> Result<Vec<MemberConnection>> {
    let threads: Vec<_> =
        connections.into_iter().map(|one| thread::spawn(move || run(one))).collect();
    // All threads end, whichever fails first.
    let ended: Vec<_> = threads.into_iter().map(thread::JoinHandle::join).collect();
    ended.into_iter().map(|ended| ended.map_err(|_| anyhow!("a thread panicked"))?).collect()
}

/// Measures it in a topic and a group of its own.
pub(crate) fn run(target: &BrokerTarget, work: &GroupsWork) -> Result<BenchReport> {
    let topic = BenchTopic::create(target.address, work.partitions, 0)?;
    let connections = connect(target.address, work, &topic.name)?;
    let meter = UsageMeter::start(target.process)?;
    let connections = on_threads(connections, MemberConnection::join)?;
    let joining = meter.stop(Duration::ZERO)?;
    let meter = UsageMeter::start(target.process)?;
    let until = Instant::now() + Duration::from_secs(work.seconds);
    let interval = Duration::from_secs(work.interval);
    let connections = on_threads(connections, move |one| one.stay(until, interval))?;
    let staying = meter.stop(Duration::ZERO)?;
    let mut heartbeats = Histogram::new();
    connections.iter().for_each(|one| heartbeats.merge(&one.heartbeats));
    let workload = format!(
        "{} members of {} groups share {} partitions a group, on {} connections",
        work.members, work.groups, work.partitions, work.connections
    );
    let mut report = BenchReport::new("groups", workload, &target.name);
    report.add(FigureDirection::Lower, "s until all have shares", joining.wall.as_secs_f64());
    let count = heartbeats.count();
    ensure!(count > 0, "no heartbeat was answered");
    report.add(FigureDirection::Higher, "heartbeats/s", count as f64 / work.seconds as f64);
    report.add_latencies("heartbeat", &heartbeats);
    if let (Some(joining), Some(staying)) = (&joining.broker, &staying.broker) {
        let cpu = joining.cpu.total().as_secs_f64();
        report.add(FigureDirection::Lower, "broker CPU s until then", cpu);
        let us = staying.cpu.total().as_secs_f64() * 1e6 / count as f64;
        report.add(FigureDirection::Lower, "broker CPU us a heartbeat", us);
        let peak = mebibytes(staying.resident_peak_bytes);
        report.add(FigureDirection::Lower, "peak RSS MiB", peak);
    }
    Ok(report)
}
