//! Plug-ins that find user times: add, list, remove, and test. Also the user times that were found
//! in records.

use std::sync::Arc;

use engine::blocking::block_in_place;
use engine::security::{Operation, Resource};
use engine::{NO_TIMES, PartitionView, TopicView};
use history_documents::{
    AddPluginRequest, AddPluginResponse, HexBytes, HistoryErrorCode, PluginDescription,
    PluginsRequest, PluginsResponse, RemovePluginRequest, RemovePluginResponse, TestPluginRequest,
    TestPluginResponse, UserTimesRequest, UserTimesResponse,
};
use hlc::UserTime;
use user_time::{RecordParts, SpecError, UserTimeExtractor, UserTimeKind, UserTimeSpec};

use crate::access::HistoryAccess;
use crate::context::HistoryContext;
use crate::error::HistoryApiError;
use crate::turns::HistoryTurns;

/// The most records in one response, if their first batch has no more.
const RECORDS_MAX: usize = 10_000;
/// The most bytes of batches that are read for one response.
const SCAN_BYTES_MAX: usize = 1 << 20;

pub(crate) fn plugins(
    context: &HistoryContext,
    access: &HistoryAccess,
    PluginsRequest {}: PluginsRequest,
) -> Result<PluginsResponse, HistoryApiError> {
    access.require(Operation::Describe, Resource::CLUSTER)?;
    let plugins = context.engine.plugins().list()?.into_iter().map(|plugin| PluginDescription {
        name: plugin.name,
        bytes: plugin.bytes,
        written: plugin.written.into(),
        written_ms: plugin.written.time().0,
    });
    Ok(PluginsResponse { plugins: plugins.collect() })
}

pub(crate) async fn add_plugin(
    context: &HistoryContext,
    access: &HistoryAccess,
    AddPluginRequest { name, module: HexBytes(module) }: AddPluginRequest,
) -> Result<AddPluginResponse, HistoryApiError> {
    access.require(Operation::Alter, Resource::CLUSTER)?;
    context.engine.plugins().add(&name, module.into()).await?;
    access.record_change("add_plugin", format_args!("plug-in {name}"));
    Ok(AddPluginResponse { added: name })
}

pub(crate) async fn remove_plugin(
    context: &HistoryContext,
    access: &HistoryAccess,
    RemovePluginRequest { name }: RemovePluginRequest,
) -> Result<RemovePluginResponse, HistoryApiError> {
    access.require(Operation::Alter, Resource::CLUSTER)?;
    context.engine.plugins().remove(&name).await?;
    access.record_change("remove_plugin", format_args!("plug-in {name}"));
    Ok(RemovePluginResponse { removed: name })
}

pub(crate) fn test_user_time(
    context: &HistoryContext,
    access: &HistoryAccess,
    request: TestPluginRequest,
) -> Result<TestPluginResponse, HistoryApiError> {
    access.require(Operation::Describe, Resource::CLUSTER)?;
    let TestPluginRequest { spec, key, value, timestamp, headers } = request;
    let extractor = extractor(context, &spec)?;
    let record = RecordParts {
        timestamp: timestamp.unwrap_or(-1),
        key: key.as_ref().map(|bytes| bytes.0.as_slice()),
        value: value.as_ref().map(|bytes| bytes.0.as_slice()),
        headers: headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.0.as_slice()))),
    };
    let time = block_in_place(|| extractor.extract(record));
    let time = time
        .map_err(|error| HistoryApiError::new(HistoryErrorCode::Unreadable, error.to_string()))?;
    Ok(TestPluginResponse { user_time: time.0 })
}

fn extractor(context: &HistoryContext, text: &str) -> Result<UserTimeExtractor, HistoryApiError> {
    let bad_spec =
        |error: SpecError| HistoryApiError::new(HistoryErrorCode::BadSpec, error.to_string());
    let spec = UserTimeSpec::parse(text).map_err(bad_spec)?;
    let UserTimeKind::Wasm { name } = spec.kind() else {
        return UserTimeExtractor::parse(text).map_err(bad_spec);
    };
    let plugin = context.engine.user_times().load_plugin(name);
    let plugin = plugin.map_err(|error| {
        HistoryApiError::new(HistoryErrorCode::UnknownPlugin, error.to_string())
    })?;
    Ok(UserTimeExtractor::with_plugin(spec, plugin))
}

/// The partition that a reader named: of a topic of the present, or of a moment of one.
struct ReadablePartition {
    view: PartitionView,
    /// The whole topic, if it is of the past.
    past: Option<Arc<TopicView>>,
}

impl ReadablePartition {
    /// Finds a partition. A real topic takes precedence over a moment's name. `None` if there is
    /// neither.
    async fn find(
        context: &HistoryContext,
        topic: &str,
        partition: i32,
    ) -> Result<Option<ReadablePartition>, HistoryApiError> {
        let index = usize::try_from(partition).ok();
        if let Some(topic) = context.engine.topics().named(topic) {
            let found_partition = index.and_then(|index| topic.partitions.get(index));
            let view = found_partition.map(PartitionView::present);
            return Ok(view.map(|view| ReadablePartition { view, past: None }));
        }
        let Some(past) = context.moment_topics.view(topic).await? else { return Ok(None) };
        past.check_retained()?;
        let view = index.and_then(|index| past.partitions.get(index)).cloned();
        Ok(view.map(|view| ReadablePartition { view, past: Some(past) }))
    }

    /// Checks that all of the topic is still there. A reader calls this after its reads.
    fn check_retained(&self) -> Result<(), HistoryApiError> {
        let Some(past) = &self.past else { return Ok(()) };
        past.check_retained().map_err(|_| {
            let message =
                "the log start has advanced past the moment meanwhile: ask for a later one";
            HistoryApiError::new(HistoryErrorCode::BeforeHistory, message)
        })
    }
}

pub(crate) async fn user_times(
    context: &HistoryContext,
    access: &HistoryAccess,
    turns: &HistoryTurns,
    request: UserTimesRequest,
) -> Result<UserTimesResponse, HistoryApiError> {
    let UserTimesRequest { topic, partition, from } = request;
    access.require(Operation::Read, Resource::topic(&topic))?;
    let readable = ReadablePartition::find(context, &topic, partition).await?.ok_or_else(|| {
        let message = format!("there is no partition {topic}/{partition}");
        HistoryApiError::new(HistoryErrorCode::UnknownTopic, message)
    })?;
    let view = &readable.view;
    if view.partition.uses_record_timestamps() {
        return Ok(UserTimesResponse { own: true, next: from, times: Vec::new() });
    }
    let _turn = turns.take(&access.holder()).await;
    let (mut next, mut times) = (from, Vec::new());
    'pieces: for piece in view.read(from, SCAN_BYTES_MAX)? {
        let end = piece.entry.end().min(view.end()).0 as i64;
        for (offset, time) in context.engine.user_times().of_batch(&view.partition, &piece)? {
            let offset = offset.0 as i64;
            if offset >= from && offset < end {
                if times.len() >= RECORDS_MAX {
                    next = offset;
                    break 'pieces;
                }
                let time = time.filter(|time| *time != NO_TIMES.1);
                times.push((offset, time.map(|UserTime(ms)| ms)));
            }
        }
        next = end;
    }
    readable.check_retained()?;
    Ok(UserTimesResponse { own: false, next, times })
}
