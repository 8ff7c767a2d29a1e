//! StreamsGroupDescribe (89): streams groups, their topology and their members (KIP-1071). The
//! codec does not have it.

use std::collections::{BTreeMap, HashSet};

use bytes::{BufMut, BytesMut};
use engine::security::{Operation, Resource};
use kafka_errors::group_error;
use kafka_groups::{
    GroupError, InternalTopic, MemberTasks, StreamsGroupSummary, StreamsMemberSummary, Subtopology,
    TaskSet, Topology,
};
use kafka_protocol::ResponseError;
use kafka_protocol::protocol::VersionRange;

use super::streams_group_heartbeat::{put_endpoint, put_tasks};
use crate::apis::topic_permissions::TopicPermissions;
use crate::kafka_server::KafkaServer;
use crate::request::{RequestBody, RequestContext, ResponseResult};
use crate::wire::{
    WireReader, put_array, put_count, put_no_tags, put_text, unreadable, write_flexible,
};

pub(crate) const API_KEY: i16 = 89;
pub(crate) const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 0 };

/// In place of the operations that a client may do, if it did not ask.
const NOT_ASKED: i32 = i32::MIN;
/// The message in place of a group with topics of which the client may not know.
const HIDDEN_TOPICS: &str =
    "The described group uses topics that the client is not authorized to describe.";
/// Structs that may be null begin with one of these.
const PRESENT: i8 = 1;
const NULL: i8 = -1;

pub(crate) fn handle(
    kafka: &KafkaServer,
    context: &RequestContext,
    body: RequestBody,
) -> ResponseResult {
    let mut reader = WireReader::new(body.into_bytes());
    let mut read_body = || {
        let (ids, operations) = (reader.array(WireReader::text)?, reader.bool()?);
        reader.end()?;
        Some((ids, operations))
    };
    let (ids, operations) = read_body().ok_or_else(|| unreadable(context))?;
    // Each group once. Kafka repeats them, but its clients send a set.
    let mut distinct = HashSet::new();
    let ids: Vec<String> = ids.into_iter().filter(|id| distinct.insert(id.clone())).collect();
    let mut seen_topics = TopicPermissions::new(kafka, context, Operation::Describe);
    let mut out = BytesMut::new();
    out.put_i32(0); // throttle time
    put_array(&mut out, ids.iter(), |out, id| {
        let group = Resource::group(id);
        let allowed = kafka.authorize(context, Operation::Describe, group);
        let described = match allowed {
            Ok(()) => describe(kafka, id, &mut seen_topics),
            Err(error) => Err((error, None)),
        };
        let operations = if operations && described.is_ok() {
            kafka.authorized_operations(context, group)
        } else {
            NOT_ASKED
        };
        match described {
            Ok(group) => put_group(out, id, &group),
            Err((error, message)) => put_refused(out, id, error, message.as_deref()),
        }
        out.put_i32(operations);
        put_no_tags(out);
    });
    put_no_tags(&mut out);
    write_flexible(context, &[out.freeze()]).map(Some)
}

/// The group, or Kafka's error and its message.
fn describe(
    kafka: &KafkaServer,
    id: &str,
    seen_topics: &mut TopicPermissions<'_>,
) -> Result<StreamsGroupSummary, (ResponseError, Option<String>)> {
    let group = kafka.coordinators.groups.describe_streams(id).map_err(|error| {
        let message = match error {
            GroupError::OtherGroupType => format!("Group {id} is not a streams group."),
            GroupError::GroupIdNotFound => format!("Group {id} not found."),
            error => error.to_string(),
        };
        (group_error(error), Some(message))
    })?;
    let sees_all = group
        .topology
        .as_ref()
        .is_none_or(|topology| topology.all_topics().all(|topic| seen_topics.allows(topic)));
    if sees_all {
        Ok(group)
    } else {
        Err((ResponseError::TopicAuthorizationFailed, Some(HIDDEN_TOPICS.to_owned())))
    }
}

fn put_refused(out: &mut BytesMut, id: &str, error: ResponseError, message: Option<&str>) {
    out.put_i16(error.code());
    put_text(out, message);
    put_text(out, Some(id));
    put_text(out, Some(""));
    out.put_i32(0);
    out.put_i32(0);
    out.put_i8(NULL);
    put_count(out, 0);
}

fn put_group(out: &mut BytesMut, id: &str, group: &StreamsGroupSummary) {
    out.put_i16(0);
    put_text(out, None);
    put_text(out, Some(id));
    put_text(out, Some(group.state.name()));
    out.put_i32(group.epoch);
    out.put_i32(group.assignment_epoch);
    match &group.topology {
        Some(topology) => put_topology(out, topology),
        None => out.put_i8(NULL),
    }
    put_array(out, group.members.iter(), put_member);
}

fn put_topology(out: &mut BytesMut, topology: &Topology) {
    out.put_i8(PRESENT);
    out.put_i32(topology.epoch);
    put_array(out, topology.subtopologies.iter(), |out, (id, subtopology)| {
        put_subtopology(out, id, subtopology)
    });
    put_no_tags(out);
}

fn put_subtopology(out: &mut BytesMut, id: &str, subtopology: &Subtopology) {
    put_text(out, Some(id));
    for topics in [&subtopology.sources, &subtopology.repartition_sinks] {
        put_array(out, topics.iter(), |out, name| put_text(out, Some(name)));
    }
    for topics in [&subtopology.changelogs, &subtopology.repartition_sources] {
        let mut topics: Vec<&InternalTopic> = topics.iter().collect();
        topics.sort_unstable_by_key(|topic| &topic.name);
        put_array(out, topics.into_iter(), put_topic);
    }
    put_no_tags(out);
}

fn put_topic(out: &mut BytesMut, topic: &InternalTopic) {
    put_text(out, Some(&topic.name));
    out.put_u32(topic.partitions);
    out.put_i16(topic.replication);
    put_pairs(out, &topic.configs);
    put_no_tags(out);
}

fn put_pairs(out: &mut BytesMut, pairs: &BTreeMap<String, String>) {
    put_array(out, pairs.iter(), |out, (key, value)| {
        put_text(out, Some(key));
        put_text(out, Some(value));
        put_no_tags(out);
    });
}

fn put_member(out: &mut BytesMut, member: &StreamsMemberSummary) {
    put_text(out, Some(&member.id));
    out.put_i32(member.epoch);
    put_text(out, None); // no static members
    put_text(out, member.rack.as_deref());
    put_text(out, Some(&member.client_id));
    put_text(out, Some(&member.client_host));
    out.put_i32(member.topology_epoch);
    put_text(out, Some(&member.process));
    match &member.endpoint {
        Some(endpoint) => {
            out.put_i8(PRESENT);
            put_endpoint(out, endpoint);
        }
        None => out.put_i8(NULL),
    }
    put_pairs(out, &member.tags);
    put_count(out, 0); // no offsets of tasks
    put_count(out, 0);
    put_assignment(out, &member.assigned);
    put_assignment(out, &member.target);
    out.put_u8(0); // not a classic member
    put_no_tags(out);
}

fn put_assignment(out: &mut BytesMut, tasks: &MemberTasks) {
    put_tasks(out, &tasks.active);
    put_tasks(out, &tasks.standby);
    put_tasks(out, &TaskSet::new()); // no warm-up tasks
    put_no_tags(out);
}
