//! The user times of a produced batch, if its topic has a rule for them.
//!
//! An error of a record's time names that record by its number in the batch. Kafka's clients then
//! fail that record, and report the others as failed because of it.

use std::ops::ControlFlow;

use bytes::Bytes;
use engine::blocking::block_in_place;
use engine::{EngineError, NO_TIMES, Topic, UserTimeRule};
use hlc::UserTime;
use kafka_errors::engine_error;
use kafka_format::{BatchTimestampType, RecordUserTime, extract};
use kafka_protocol::ResponseError;
use kafka_records::DecompressionLimit;
use user_time::{ExtractError, UserTimeExtractor, UserTimeKind};

use super::{PartitionProduceError, RecordErrors, TimestampBounds};
use crate::kafka_server::KafkaServer;

/// The times that were found in a batch.
pub(super) struct BatchUserTimes {
    /// The smallest and the largest user time.
    pub(super) user_times: (UserTime, UserTime),
    /// The same of the records' own timestamps.
    pub(super) timestamps: (UserTime, UserTime),
}

/// Finds the user time of each record, and checks it against the topic's limits.
pub(super) fn extract_user_times(
    kafka: &KafkaServer,
    topic: &Topic,
    rule: &UserTimeRule,
    records: &Bytes,
    limit: DecompressionLimit,
) -> Result<BatchUserTimes, PartitionProduceError> {
    let extractor = extractor(kafka, rule)?;
    let defaults = kafka.engine.topic_defaults();
    let append_time = topic.config.is_log_append_time(&defaults);
    // Append times are not known yet. They are within all bounds, and rise.
    let judged = !(append_time && rule.is_timestamp());
    let judge = UserTimeValidator {
        bounds: judged.then(|| TimestampBounds::of(kafka, topic)),
        rises: judged && rule.is_strict(),
        keeps_unreadable: rule.keeps_unreadable(),
    };
    let mut times = BatchUserTimes { user_times: NO_TIMES, timestamps: NO_TIMES };
    let (mut errors, mut index, mut last) = (RecordErrors::default(), 0, NO_TIMES.1);
    let mut overworked = None;
    extract_each(records, limit, extractor, append_time, |record| {
        widen(&mut times.timestamps, UserTime(record.timestamp));
        if record.overworked.is_some() {
            overworked = record.overworked;
            return ControlFlow::Break(());
        }
        match judge.validate(record.time, last) {
            Ok(Some(time)) => {
                widen(&mut times.user_times, time);
                last = last.max(time);
            }
            Ok(None) => {}
            Err((error, message)) => errors.add(index, error, || message),
        }
        index += 1;
        ControlFlow::Continue(())
    })?;
    // Errors of single records come first: they are why the plug-in used so much fuel.
    errors.into_result()?;
    if let Some(reason) = overworked {
        return Err(PartitionProduceError::new(
            ResponseError::InvalidRecord,
            format!("the batch: {reason}"),
        ));
    }
    Ok(times)
}

/// Names the records because of which a batch is older than its partition's newest time.
pub(super) fn out_of_order_error(
    kafka: &KafkaServer,
    rule: &UserTimeRule,
    append_time: bool,
    records: &Bytes,
    error: &EngineError,
) -> PartitionProduceError {
    let code = engine_error(error);
    let refused = PartitionProduceError::new(code, error.to_string());
    let (EngineError::UserTimeOutOfOrder { last, .. }, Ok(extractor)) =
        (error, extractor(kafka, rule))
    else {
        return refused;
    };
    let (mut errors, mut index) = (RecordErrors::default(), 0);
    let limit = kafka.format.decompression_limit();
    let walked = extract_each(records, limit, extractor, append_time, |record| {
        if let Some(time) = record.time.ok().filter(|time| time < last) {
            errors.add(index, code, || out_of_order_message(time, *last));
        }
        index += 1;
        ControlFlow::Continue(())
    });
    match walked.and_then(|()| errors.into_result()) {
        Err(error) => error,
        Ok(()) => refused,
    }
}

fn extractor<'a>(
    kafka: &KafkaServer,
    rule: &'a UserTimeRule,
) -> Result<&'a UserTimeExtractor, PartitionProduceError> {
    let extractor = kafka.engine.user_times().extractor(rule);
    extractor.map_err(|error| PartitionProduceError::new(engine_error(&error), error.to_string()))
}

fn extract_each(
    records: &Bytes,
    limit: DecompressionLimit,
    extractor: &UserTimeExtractor,
    append_time: bool,
    visit: impl FnMut(RecordUserTime) -> ControlFlow<()>,
) -> Result<(), PartitionProduceError> {
    let timestamps = if append_time {
        BatchTimestampType::LogAppendTime
    } else {
        BatchTimestampType::CreateTime
    };
    let act = || extract(records, limit, extractor, timestamps, visit);
    // A plug-in may be slow.
    let is_plugin = matches!(extractor.spec().kind(), UserTimeKind::Wasm { .. });
    let result = if is_plugin { block_in_place(act) } else { act() };
    result.map_err(|error| PartitionProduceError::unreadable(&error))
}

/// The limits of a topic.
struct UserTimeValidator {
    bounds: Option<TimestampBounds>,
    rises: bool,
    keeps_unreadable: bool,
}

type UserTimeResult = Result<Option<UserTime>, (ResponseError, String)>;

impl UserTimeValidator {
    /// Checks whether a record with this time may follow one with the time `last`.
    fn validate(&self, time: Result<UserTime, ExtractError>, last: UserTime) -> UserTimeResult {
        let time = match time {
            Ok(time) => time,
            Err(_) if self.keeps_unreadable => return Ok(None),
            Err(reason) => {
                let message = format!("no user time can be read from the record: {reason}");
                return Err((ResponseError::InvalidRecord, message));
            }
        };
        let is_outside = |bounds: &&TimestampBounds| bounds.is_early(time) || bounds.is_late(time);
        if let Some(bounds) = self.bounds.as_ref().filter(is_outside) {
            let message = bounds.error_message("the record's user time", time, time);
            return Err((ResponseError::InvalidTimestamp, message));
        }
        if self.rises && time < last {
            return Err((ResponseError::InvalidTimestamp, out_of_order_message(time, last)));
        }
        Ok(Some(time))
    }
}

fn out_of_order_message(time: UserTime, last: UserTime) -> String {
    format!(
        "the record's user time {} falls below the one before it, {}, and the topic is strict",
        time.0, last.0
    )
}

fn widen(range: &mut (UserTime, UserTime), time: UserTime) {
    *range = (range.0.min(time), range.1.max(time));
}
