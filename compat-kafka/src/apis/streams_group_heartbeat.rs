//! StreamsGroupHeartbeat (88): a member of a streams group joins with its topology, is alive,
//! learns its tasks, or leaves (KIP-1071). The codec does not have it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use engine::check_topic_name;
use engine::security::{Operation, Resource};
use hlc::split_moment_topic;
use kafka_errors::group_error;
use kafka_groups::{
    EndpointPartitions, GroupError, InternalTopic, MemberTasks, StreamsHeartbeat,
    StreamsHeartbeatAnswer, StreamsStatus, Subtopology, TaskSet, Topology, UserEndpoint,
};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::protocol::{StrBytes, VersionRange};
use kafka_topics::TOPICS_OF_KAFKA;

use super::consumer_group_heartbeat::prepare_moments;
use super::create_topics::{PARTITIONS_PER_REQUEST_MAX, TOO_MANY_PARTITIONS, create_internal};
use super::support::KafkaApiError;
use crate::apis::topic_permissions::TopicPermissions;
use crate::kafka_server::KafkaServer;
use crate::request::{NEVER_STRICT, RequestBody, RequestContext, ResponseResult};
use crate::wire::{
    WireReader, put_array, put_count, put_no_tags, put_text, unreadable, write_flexible,
};

pub(crate) const API_KEY: i16 = 88;
pub(crate) const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 0 };

pub(crate) async fn handle(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    body: RequestBody,
) -> ResponseResult {
    let request = read_request(&mut WireReader::new(body.into_bytes()))
        .ok_or_else(|| unreadable(&context))?;
    let group = request.group.clone();
    let answer = match heartbeat(&kafka, &context, request).await {
        Ok(answer) => encode_answer(&answer),
        Err(error) => encode_error(&group, error),
    };
    write_flexible(&context, &[answer.freeze()]).map(Some)
}

/// The reason why a heartbeat is refused.
enum HeartbeatRefusal {
    Group(GroupError),
    /// By Kafka's error, with a message for people.
    Request(ResponseError, String),
    /// By the rules of access; Kafka says no more.
    Forbidden(ResponseError),
}

impl From<GroupError> for HeartbeatRefusal {
    fn from(error: GroupError) -> HeartbeatRefusal {
        HeartbeatRefusal::Group(error)
    }
}

fn invalid(message: &str) -> HeartbeatRefusal {
    HeartbeatRefusal::Request(ResponseError::InvalidRequest, message.to_owned())
}

async fn heartbeat(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: HeartbeatRequest,
) -> Result<StreamsHeartbeatAnswer, HeartbeatRefusal> {
    let group = request.group.clone();
    let allowed = kafka.authorize(context, Operation::Read, Resource::group(&group));
    allowed.map_err(HeartbeatRefusal::Forbidden)?;
    let bytes_max = kafka.coordinators.groups.options_of(&group).member_bytes_max;
    let heartbeat = request.into_heartbeat(context, bytes_max)?;
    if let Some(topology) = &heartbeat.topology {
        check_names(topology)?;
        authorize_topics(kafka, context, topology)?;
        let sources = topology.sources().into_iter();
        let sources: Vec<TopicName> =
            sources.map(|name| TopicName(StrBytes::from_string(name.to_owned()))).collect();
        prepare_moments(kafka, &sources).await?;
    }
    let mut answer = kafka.groups_for(context).streams_heartbeat(&group, heartbeat).await?;
    let problem = match forbidden_creations(kafka, context, &answer.missing_topics) {
        Some(forbidden) => Some(format!("Unauthorized to CREATE on topics {forbidden}.")),
        None => {
            let failed = create_missing(kafka, context, &answer.missing_topics).await;
            failed.map(|failed| format!("Creation failed: {failed}"))
        }
    };
    if let Some(problem) = problem {
        let statuses = &mut answer.statuses;
        if let Some(status) = statuses.iter_mut().find(|status| status.is_missing_internal()) {
            status.detail = format!("{}; {problem}", status.detail);
        }
    }
    Ok(answer)
}

/// Fails if the client may not know of a topic of its topology.
fn authorize_topics(
    kafka: &KafkaServer,
    context: &RequestContext,
    topology: &Topology,
) -> Result<(), HeartbeatRefusal> {
    let mut seen_topics = TopicPermissions::new(kafka, context, Operation::Describe);
    if topology.all_topics().all(|topic| seen_topics.allows(topic)) {
        Ok(())
    } else {
        Err(HeartbeatRefusal::Forbidden(ResponseError::TopicAuthorizationFailed))
    }
}

/// The names of internal topics that the client may not create; `None` if it may create all.
fn forbidden_creations(
    kafka: &KafkaServer,
    context: &RequestContext,
    missing: &[InternalTopic],
) -> Option<String> {
    if missing.is_empty() || kafka.is_authorized(context, Operation::Create, Resource::CLUSTER) {
        return None;
    }
    let names = missing.iter().map(|topic| topic.name.as_str());
    let forbidden: Vec<&str> = names
        .filter(|name| !kafka.is_authorized(context, Operation::Create, Resource::topic(name)))
        .collect();
    (!forbidden.is_empty()).then(|| forbidden.join(", "))
}

/// Fails if a topic of the topology cannot be one.
fn check_names(topology: &Topology) -> Result<(), HeartbeatRefusal> {
    let refuse =
        |message| Err(HeartbeatRefusal::Request(ResponseError::StreamsInvalidTopology, message));
    for subtopology in topology.subtopologies.values() {
        for name in subtopology.all_topics() {
            if TOPICS_OF_KAFKA.contains(&name) {
                return refuse(format!(
                    "Use of Kafka internal topics {name} in a Kafka Streams topology is prohibited."
                ));
            }
            if split_moment_topic(name).is_none() && check_topic_name(name).is_err() {
                return refuse(format!("Topic names {name} are not valid topic names."));
            }
        }
    }
    Ok(())
}

/// Creates internal topics. Returns what first went wrong: members see it, and their next heartbeat
/// tries again.
async fn create_missing(
    kafka: &KafkaServer,
    context: &RequestContext,
    missing: &[InternalTopic],
) -> Option<String> {
    let quota = context.mutation_quota(NEVER_STRICT);
    let partitions: usize = missing.iter().map(|topic| topic.partitions as usize).sum();
    if partitions > PARTITIONS_PER_REQUEST_MAX {
        return Some(TOO_MANY_PARTITIONS.to_owned());
    }
    let mut failed = None;
    for topic in missing {
        // The heartbeat of another member has made it meanwhile.
        if kafka.engine.topics().named(&topic.name).is_some() {
            continue;
        }
        let created: Result<(), KafkaApiError> =
            create_internal(kafka, &creatable(topic), &quota).await;
        if let Err(error) = created {
            let error = format!("{} ({error})", topic.name);
            kafka.client_log.warn(context.peer.ip(), "an internal topic cannot be created", &error);
            failed.get_or_insert(error);
        }
    }
    failed
}

fn creatable(topic: &InternalTopic) -> CreatableTopic {
    let text = |text: &str| StrBytes::from_string(text.to_owned());
    let configs = topic.configs.iter().map(|(name, value)| {
        CreatableTopicConfig::default().with_name(text(name)).with_value(Some(text(value)))
    });
    CreatableTopic::default()
        .with_name(TopicName(text(&topic.name)))
        .with_num_partitions(i32::try_from(topic.partitions).unwrap_or(i32::MAX))
        .with_replication_factor(if topic.replication == 0 { -1 } else { topic.replication })
        .with_configs(configs.collect())
}

/// A request, as it is on the wire.
struct HeartbeatRequest {
    group: String,
    member_id: String,
    member_epoch: i32,
    endpoint_epoch: i32,
    instance_id: Option<String>,
    rack: Option<String>,
    rebalance_timeout_ms: i32,
    topology: Option<TopologyRequest>,
    active: Option<Vec<TaskIds>>,
    standby: Option<Vec<TaskIds>>,
    warmup: Option<Vec<TaskIds>>,
    process: Option<String>,
    endpoint: Option<UserEndpoint>,
    tags: Option<BTreeMap<String, String>>,
    has_task_offsets: bool,
    is_shutdown: bool,
}

/// The id of a subtopology, and partitions.
type TaskIds = (String, Vec<i32>);

struct TopologyRequest {
    epoch: i32,
    subtopologies: Vec<SubtopologyRequest>,
}

struct SubtopologyRequest {
    id: String,
    sources: Vec<String>,
    source_patterns: Vec<String>,
    changelogs: Vec<TopicRequest>,
    repartition_sinks: Vec<String>,
    repartition_sources: Vec<TopicRequest>,
    /// Groups of places: in `repartition_sources` where it says `true`, else in `sources`. None is
    /// empty.
    copartitioned: BTreeSet<BTreeSet<(bool, i16)>>,
}

struct TopicRequest {
    name: String,
    partitions: i32,
    replication: i16,
    configs: BTreeMap<String, String>,
}

fn read_request(reader: &mut WireReader) -> Option<HeartbeatRequest> {
    let (group, member_id) = (reader.text()?, reader.text()?);
    let (member_epoch, endpoint_epoch) = (reader.i32()?, reader.i32()?);
    let (instance_id, rack) = (reader.nullable_text()?, reader.nullable_text()?);
    let rebalance_timeout_ms = reader.i32()?;
    let topology = if reader.is_present()? { Some(read_topology(reader)?) } else { None };
    let mut tasks = || reader.nullable_array(read_task_ids);
    let (active, standby, warmup) = (tasks()?, tasks()?, tasks()?);
    let process = reader.nullable_text()?;
    let endpoint = if reader.is_present()? {
        let endpoint = UserEndpoint { host: reader.text()?, port: reader.u16()? };
        reader.end()?;
        Some(endpoint)
    } else {
        None
    };
    let tags = reader.nullable_array(read_pair)?.map(BTreeMap::from_iter);
    let mut offsets = || reader.nullable_array(read_task_offset);
    let has_task_offsets = offsets()?.is_some() | offsets()?.is_some();
    let is_shutdown = reader.bool()?;
    reader.end()?;
    Some(HeartbeatRequest {
        group,
        member_id,
        member_epoch,
        endpoint_epoch,
        instance_id,
        rack,
        rebalance_timeout_ms,
        topology,
        active,
        standby,
        warmup,
        process,
        endpoint,
        tags,
        has_task_offsets,
        is_shutdown,
    })
}

fn read_topology(reader: &mut WireReader) -> Option<TopologyRequest> {
    let (epoch, subtopologies) = (reader.i32()?, reader.array(read_subtopology)?);
    reader.end()?;
    Some(TopologyRequest { epoch, subtopologies })
}

fn read_subtopology(reader: &mut WireReader) -> Option<SubtopologyRequest> {
    let subtopology = SubtopologyRequest {
        id: reader.text()?,
        sources: reader.array(WireReader::text)?,
        source_patterns: reader.array(WireReader::text)?,
        changelogs: reader.array(read_topic)?,
        repartition_sinks: reader.array(WireReader::text)?,
        repartition_sources: reader.array(read_topic)?,
        copartitioned: reader
            .array(read_copartitioned)?
            .into_iter()
            .filter(|set| !set.is_empty())
            .collect(),
    };
    reader.end()?;
    Some(subtopology)
}

fn read_copartitioned(reader: &mut WireReader) -> Option<BTreeSet<(bool, i16)>> {
    let mut places = || reader.array(WireReader::i16);
    let [sources, _patterns, internal] = [places()?, places()?, places()?];
    reader.end()?;
    let sources = sources.into_iter().map(|index| (false, index));
    Some(sources.chain(internal.into_iter().map(|index| (true, index))).collect())
}

fn read_topic(reader: &mut WireReader) -> Option<TopicRequest> {
    let (name, partitions, replication) = (reader.text()?, reader.i32()?, reader.i16()?);
    let configs = reader.array(read_pair)?.into_iter().collect();
    reader.end()?;
    Some(TopicRequest { name, partitions, replication, configs })
}

fn read_pair(reader: &mut WireReader) -> Option<(String, String)> {
    let pair = (reader.text()?, reader.text()?);
    reader.end()?;
    Some(pair)
}

fn read_task_ids(reader: &mut WireReader) -> Option<TaskIds> {
    let tasks = (reader.text()?, reader.array(WireReader::i32)?);
    reader.end()?;
    Some(tasks)
}

fn read_task_offset(reader: &mut WireReader) -> Option<()> {
    let _ = (reader.text()?, reader.i32()?, reader.i64()?);
    reader.end()
}

impl HeartbeatRequest {
    /// The heartbeat as the group takes it, with at most `bytes_max` bytes of copartitioned names.
    /// Features that Kafka does not support yet are refused with its messages.
    fn into_heartbeat(
        self,
        context: &RequestContext,
        bytes_max: usize,
    ) -> Result<StreamsHeartbeat, HeartbeatRefusal> {
        let has_warmups = self.warmup.as_ref().is_some_and(|tasks| !tasks.is_empty());
        for (is_there, message) in [
            (self.instance_id.is_some(), "Static membership is not yet supported."),
            (self.has_task_offsets, "TaskOffsets are not supported yet."),
            (has_warmups, "WarmupTasks are not supported yet."),
        ] {
            if is_there {
                return Err(invalid(message));
            }
        }
        let topology = self.topology.map(|topology| topology.into_topology(bytes_max));
        let topology = topology.transpose()?;
        let is_any_given = self.warmup.is_some();
        let owned = match (self.active, self.standby) {
            (None, None) if !is_any_given => None,
            (Some(active), Some(standby)) if is_any_given => {
                Some(MemberTasks { active: task_set(active)?, standby: task_set(standby)? })
            }
            _ => return Err(invalid("If one task-type is non-null, all must be non-null.")),
        };
        let timeout = u64::try_from(self.rebalance_timeout_ms).ok();
        Ok(StreamsHeartbeat {
            member_id: self.member_id,
            member_epoch: self.member_epoch,
            endpoint_epoch: self.endpoint_epoch,
            rack: self.rack,
            rebalance_timeout: timeout.map(Duration::from_millis),
            topology,
            owned,
            process: self.process,
            endpoint: self.endpoint,
            tags: self.tags,
            is_shutdown: self.is_shutdown,
            client_id: context.client_id.clone(),
            client_host: context.client_host(),
        })
    }
}

fn task_set(tasks: Vec<TaskIds>) -> Result<TaskSet, HeartbeatRefusal> {
    let mut set = TaskSet::new();
    for (id, partitions) in tasks {
        let partitions: Option<BTreeSet<u32>> =
            partitions.into_iter().map(|partition| u32::try_from(partition).ok()).collect();
        let partitions = partitions.ok_or(GroupError::InvalidStreamsRequest)?;
        if !partitions.is_empty() {
            set.entry(id).or_default().extend(partitions);
        }
    }
    Ok(set)
}

impl TopologyRequest {
    /// Refuses a topology beyond `bytes_max` before it is in memory: a group of copartitioned
    /// topics takes two bytes a topic in the request, and the names of the topics in the topology.
    fn into_topology(self, bytes_max: usize) -> Result<Topology, HeartbeatRefusal> {
        let mut copartitioned_bytes = 0;
        let mut subtopologies = BTreeMap::new();
        for subtopology in self.subtopologies {
            if !subtopology.source_patterns.is_empty() {
                return Err(invalid(
                    "Regular expressions for source topics are not supported yet.",
                ));
            }
            copartitioned_bytes += subtopology.copartitioned_bytes();
            if copartitioned_bytes > bytes_max {
                return Err(GroupError::TooLarge.into());
            }
            let (id, subtopology) = subtopology.into_subtopology()?;
            if subtopologies.insert(id, subtopology).is_some() {
                return Err(GroupError::InvalidTopology.into());
            }
        }
        Ok(Topology { epoch: self.epoch, subtopologies })
    }
}

impl SubtopologyRequest {
    /// The bytes of the names that its groups of copartitioned topics stand for.
    fn copartitioned_bytes(&self) -> usize {
        let bytes = |(is_internal, index): &(bool, i16)| {
            let index = usize::try_from(*index).ok();
            let name = index.and_then(|index| {
                if *is_internal {
                    self.repartition_sources.get(index).map(|topic| &topic.name)
                } else {
                    self.sources.get(index)
                }
            });
            name.map_or(0, String::len)
        };
        self.copartitioned.iter().flatten().map(bytes).sum()
    }

    fn into_subtopology(self) -> Result<(String, Subtopology), HeartbeatRefusal> {
        let topics = |topics: Vec<TopicRequest>| -> Result<Vec<InternalTopic>, GroupError> {
            topics.into_iter().map(TopicRequest::into_topic).collect()
        };
        let repartition_sources = topics(self.repartition_sources)?;
        let mut copartitioned = Vec::with_capacity(self.copartitioned.len());
        for group in &self.copartitioned {
            let names = group.iter().map(|(is_internal, index)| {
                let index = usize::try_from(*index).ok()?;
                if *is_internal {
                    repartition_sources.get(index).map(|topic| topic.name.clone())
                } else {
                    self.sources.get(index).cloned()
                }
            });
            let names: Option<BTreeSet<String>> = names.collect();
            copartitioned.push(names.ok_or(GroupError::InvalidTopology)?);
        }
        let subtopology = Subtopology {
            sources: self.sources.into_iter().collect(),
            repartition_sources,
            repartition_sinks: self.repartition_sinks.into_iter().collect(),
            changelogs: topics(self.changelogs)?,
            copartitioned,
        };
        Ok((self.id, subtopology))
    }
}

impl TopicRequest {
    fn into_topic(self) -> Result<InternalTopic, GroupError> {
        Ok(InternalTopic {
            name: self.name,
            partitions: u32::try_from(self.partitions).map_err(|_| GroupError::InvalidTopology)?,
            replication: self.replication,
            configs: self.configs,
        })
    }
}

fn encode_error(group: &str, refusal: HeartbeatRefusal) -> BytesMut {
    let (error, message) = match refusal {
        HeartbeatRefusal::Group(GroupError::GroupIdNotFound | GroupError::OtherGroupType) => {
            let message = format!("Group {group} is not a streams group.");
            (ResponseError::GroupIdNotFound, Some(message))
        }
        HeartbeatRefusal::Group(error) => (group_error(error), Some(error.to_string())),
        HeartbeatRefusal::Request(error, message) => (error, Some(message)),
        HeartbeatRefusal::Forbidden(error) => (error, None),
    };
    let mut out = BytesMut::new();
    out.put_i32(0); // throttle time
    out.put_i16(error.code());
    put_text(&mut out, message.as_deref());
    put_text(&mut out, Some(""));
    put_numbers(&mut out, [0; 4]);
    for _ in 0..4 {
        put_null_array(&mut out);
    }
    out.put_i32(0); // the epoch of endpoints
    put_null_array(&mut out);
    put_no_tags(&mut out);
    out
}

fn encode_answer(answer: &StreamsHeartbeatAnswer) -> BytesMut {
    let mut out = BytesMut::new();
    out.put_i32(0); // throttle time
    out.put_i16(0);
    put_text(&mut out, None);
    put_text(&mut out, Some(&answer.member_id));
    let interval = i32::try_from(answer.interval.as_millis()).unwrap_or(i32::MAX);
    // There are no warm-up tasks, so nothing is said of their lag and of offsets.
    put_numbers(&mut out, [answer.member_epoch, interval, 0, 0]);
    put_array(&mut out, answer.statuses.iter(), put_status);
    match &answer.tasks {
        Some(tasks) => {
            put_tasks(&mut out, &tasks.active);
            put_tasks(&mut out, &tasks.standby);
            put_tasks(&mut out, &TaskSet::new());
        }
        None => (0..3).for_each(|_| put_null_array(&mut out)),
    }
    out.put_i32(answer.endpoint_epoch);
    match &answer.endpoints {
        Some(endpoints) => {
            let endpoints = endpoints.iter().map(|endpoint| &**endpoint);
            put_array(&mut out, endpoints, put_endpoint_partitions);
        }
        None => put_null_array(&mut out),
    }
    put_no_tags(&mut out);
    out
}

fn put_numbers(out: &mut BytesMut, numbers: [i32; 4]) {
    numbers.into_iter().for_each(|number| out.put_i32(number));
}

fn put_null_array(out: &mut BytesMut) {
    out.put_u8(0);
}

fn put_status(out: &mut BytesMut, status: &StreamsStatus) {
    out.put_i8(status.code);
    put_text(out, Some(&status.detail));
    put_no_tags(out);
}

/// Writes tasks by subtopology.
pub(super) fn put_tasks(out: &mut BytesMut, tasks: &TaskSet) {
    put_array(out, tasks.iter(), |out, (id, indexes)| {
        put_text(out, Some(id));
        put_array(out, indexes.iter(), |out, index| out.put_u32(*index));
        put_no_tags(out);
    });
}

/// Writes the host and port at which an application answers queries.
pub(super) fn put_endpoint(out: &mut BytesMut, endpoint: &UserEndpoint) {
    put_text(out, Some(&endpoint.host));
    out.put_u16(endpoint.port);
    put_no_tags(out);
}

fn put_endpoint_partitions(out: &mut BytesMut, endpoint: &EndpointPartitions) {
    put_endpoint(out, &endpoint.endpoint);
    for partitions in [&endpoint.active, &endpoint.standby] {
        put_array(out, partitions.iter(), |out, (topic, indexes)| {
            put_text(out, Some(topic));
            put_count(out, indexes.len());
            indexes.iter().for_each(|index| out.put_u32(*index));
            put_no_tags(out);
        });
    }
    put_no_tags(out);
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;

    use super::*;

    fn subtopology(sources: Vec<String>, copartitioned: &[&[i16]]) -> SubtopologyRequest {
        let group = |group: &&[i16]| group.iter().map(|index| (false, *index)).collect();
        SubtopologyRequest {
            id: "0".to_owned(),
            sources,
            source_patterns: Vec::new(),
            changelogs: Vec::new(),
            repartition_sinks: Vec::new(),
            repartition_sources: Vec::new(),
            copartitioned: copartitioned.iter().map(group).collect(),
        }
    }

    #[test]
    fn a_place_that_is_named_often_counts_once() {
        let mut group = BytesMut::new();
        group.put_slice(&[0x81, 0x40]); // 8,192 places
        (0..8192).for_each(|_| group.put_i16(1));
        group.put_slice(&[1, 2, 0, 0, 0]); // no patterns, one internal topic
        let parsed = read_copartitioned(&mut WireReader::new(group.freeze()));
        assert_eq!(parsed, Some(BTreeSet::from([(false, 1), (true, 0)])));
    }

    #[test]
    fn names_that_groups_repeat_are_bounded_before_they_are_made() {
        let sources: Vec<String> =
            (0..10).map(|nth| format!("{nth}{}", "x".repeat(1000))).collect();
        let groups: [&[i16]; 3] = [&[0, 1], &[0, 2, 3], &[4, 5]];
        let topology = || {
            let subtopologies = vec![subtopology(sources.clone(), &groups)];
            TopologyRequest { epoch: 0, subtopologies }
        };
        let parsed = topology().into_topology(7 * 1001);
        let parsed = parsed.unwrap_or_else(|_| panic!("it is as long as it may be"));
        assert_eq!(parsed.subtopologies["0"].copartitioned.iter().flatten().count(), 7);
        let refused = topology().into_topology(7 * 1001 - 1);
        assert!(matches!(refused, Err(HeartbeatRefusal::Group(GroupError::TooLarge))));
    }

    #[test]
    fn places_that_there_are_not_are_refused() {
        for group in [[-1_i16], [1]] {
            let request = subtopology(vec!["t".to_owned()], &[&group]);
            let refused = request.into_subtopology();
            assert!(matches!(refused, Err(HeartbeatRefusal::Group(GroupError::InvalidTopology))));
        }
    }
}
