//! DescribeShareGroupOffsets (90): where share groups stand in their partitions (KIP-932), and how
//! many records are left for them (KIP-1226).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use engine::security::{Operation, Resource};
use kafka_errors::{engine_error, error_message, group_error};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_share_group_offsets_request::{
    DescribeShareGroupOffsetsRequestGroup, DescribeShareGroupOffsetsRequestTopic,
};
use kafka_protocol::messages::{DescribeShareGroupOffsetsRequest, GroupId};
use kafka_protocol::protocol::VersionRange;

use crate::cluster_view::leader_epoch;
use crate::kafka_server::KafkaServer;
use crate::request::{BadRequest, RequestBody, RequestContext, ResponseResult, decode};
use crate::wire::{put_count, put_no_tags, put_text, write_flexible};

/// From here on, a partition has the number of records that are left.
const LAG: i16 = 1;
/// The version that the codec has. The requests of both are the same.
const KNOWN: i16 = 0;

pub(crate) const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: LAG };

/// In place of an offset or a lag: the group knows nothing of the partition.
const NONE: i64 = -1;

/// A group's start offset and lag in a partition, or the error.
#[derive(Clone, Copy)]
struct Position {
    start: i64,
    leader_epoch: i32,
    lag: i64,
    error: Option<ResponseError>,
}

impl Position {
    fn unknown(error: Option<ResponseError>) -> Position {
        Position { start: NONE, leader_epoch: 0, lag: NONE, error }
    }
}

/// By topic and partition.
type Positions = BTreeMap<String, BTreeMap<i32, Position>>;

pub(crate) async fn handle(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    body: RequestBody,
) -> ResponseResult {
    let known_context = RequestContext { version: KNOWN, ..context.clone() };
    let request = decode::<DescribeShareGroupOffsetsRequest>(&known_context, body)?;
    let mut described = Vec::with_capacity(request.groups.len());
    // Each group once. Kafka repeats them, but its clients send a map.
    let mut ids = HashSet::new();
    for group in request.groups.into_iter().filter(|group| ids.insert(group.group_id.clone())) {
        let positions = describe(&kafka, &context, &group).await;
        described.push((group.group_id, positions));
    }
    write(&kafka, &context, described).map(Some)
}

async fn describe(
    kafka: &KafkaServer,
    context: &RequestContext,
    group: &DescribeShareGroupOffsetsRequestGroup,
) -> Result<Positions, ResponseError> {
    let id = group.group_id.as_str();
    kafka.authorize(context, Operation::Describe, Resource::group(id))?;
    kafka.coordinators.groups.describe_share(id).map_err(group_error)?;
    let stored = kafka.engine.groups().committed_offsets(Some(id));
    let stored = stored.map_err(|error| engine_error(&error))?;
    let mut positions = Positions::new();
    match &group.topics {
        None => {
            for offset in &stored {
                let indexes = positions.entry(offset.topic.clone()).or_default();
                indexes.insert(offset.partition as i32, Position::unknown(None));
            }
        }
        Some(topics) => {
            for DescribeShareGroupOffsetsRequestTopic { topic_name, partitions, .. } in topics {
                let indexes = positions.entry(topic_name.to_string()).or_default();
                indexes.extend(partitions.iter().map(|index| (*index, Position::unknown(None))));
            }
        }
    }
    let stored: BTreeMap<(&str, i32), _> = stored
        .iter()
        .map(|offset| ((offset.topic.as_str(), offset.partition as i32), &offset.committed))
        .collect();
    let mut hidden = Vec::new();
    for (topic, indexes) in &mut positions {
        let name = Resource::topic(topic);
        if let Err(error) = kafka.authorize(context, Operation::Describe, name) {
            let refused = Position::unknown(Some(error));
            indexes.values_mut().for_each(|position| *position = refused);
            hidden.push(topic.clone());
            continue;
        }
        let readable = match kafka.topics.resolve_unchecked(topic).await {
            Ok(Some(readable)) => readable,
            _ => {
                let unknown = Position::unknown(Some(ResponseError::UnknownTopicOrPartition));
                indexes.values_mut().for_each(|position| *position = unknown);
                continue;
            }
        };
        for (index, position) in indexes {
            let Some(view) = readable.view(*index) else {
                *position = Position::unknown(Some(ResponseError::UnknownTopicOrPartition));
                continue;
            };
            let leader_epoch = leader_epoch(&view.partition);
            position.leader_epoch = leader_epoch;
            let Some(committed) = stored.get(&(topic.as_str(), *index)) else { continue };
            let (start, count) = kafka_share_groups::position_of(committed);
            let lag = (view.end().0 as i64 - start - count).max(0);
            *position = Position { start, leader_epoch, lag, error: None };
        }
    }
    if group.topics.is_none() {
        hidden.iter().for_each(|topic| drop(positions.remove(topic)));
    }
    Ok(positions)
}

fn write(
    kafka: &KafkaServer,
    context: &RequestContext,
    described: Vec<(GroupId, Result<Positions, ResponseError>)>,
) -> Result<crate::response::KafkaResponse, BadRequest> {
    let mut out = BytesMut::new();
    out.put_i32(0); // throttle time
    put_count(&mut out, described.len());
    for (group, positions) in described {
        put_text(&mut out, Some(&group));
        let (positions, error) = match positions {
            Ok(positions) => (positions, None),
            Err(error) => (Positions::new(), Some(error)),
        };
        put_count(&mut out, positions.len());
        for (topic, indexes) in positions {
            put_text(&mut out, Some(&topic));
            let hides = |position: &Position| {
                position.error == Some(ResponseError::TopicAuthorizationFailed)
            };
            // A client that may not know of the topic learns neither its id nor whether there is
            // one.
            let is_hidden = indexes.values().any(hides);
            let id = if is_hidden { None } else { kafka.topics.id_of(&topic) };
            out.put_slice(&id.unwrap_or_default());
            put_count(&mut out, indexes.len());
            for (index, position) in indexes {
                out.put_i32(index);
                out.put_i64(position.start);
                out.put_i32(position.leader_epoch);
                if context.version >= LAG {
                    out.put_i64(position.lag);
                }
                put_error(&mut out, position.error);
            }
            put_no_tags(&mut out);
        }
        match error {
            // Kafka says no more.
            Some(error @ ResponseError::GroupAuthorizationFailed) => {
                out.put_i16(error.code());
                put_text(&mut out, None);
                put_no_tags(&mut out);
            }
            error => put_error(&mut out, error),
        }
    }
    put_no_tags(&mut out);
    write_flexible(context, &[out.freeze()])
}

/// An error, its message, and the end of a struct.
fn put_error(out: &mut BytesMut, error: Option<ResponseError>) {
    out.put_i16(error.map_or(0, |error| error.code()));
    put_text(out, error.map(error_message).as_deref());
    put_no_tags(out);
}
