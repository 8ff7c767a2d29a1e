//! A group of appends as a value: laid out, then written, then published; or dropped.

use std::collections::HashMap;
use std::sync::Arc;

use super::writer::{AppendCompletion, complete};
use super::{AppendError, GroupNumber};
use crate::entry::{Entry, LogId, Offset};
use crate::journal::FrameGroup;
use crate::log::Log;
use crate::payload::Payload;

/// An append whose frame is laid out, and that is not visible yet.
pub(super) struct LaidOutAppend {
    pub(super) log: Arc<Log>,
    pub(super) entry: Entry,
    /// `None` if it is not in memory.
    pub(super) payload: Option<Payload>,
}

/// A group of appends on its way.
pub(super) struct AppendGroup<R> {
    pub(super) number: GroupNumber,
    pub(super) frames: FrameGroup,
    pub(super) appends: Vec<LaidOutAppend>,
    /// The ends that its logs will have.
    pub(super) ends: HashMap<LogId, Offset>,
    /// Its requests, each with its results, in order.
    pub(super) completions: Vec<AppendCompletion<R>>,
    /// True if it is synced before it is visible.
    pub(super) is_durable: bool,
    /// True if the stage has seen it. Otherwise it was taken over, or an earlier incarnation wrote it.
    pub(super) is_staged: bool,
}

impl<R> AppendGroup<R> {
    pub(super) fn new(number: GroupNumber, frames: FrameGroup, is_durable: bool) -> AppendGroup<R> {
        AppendGroup {
            number,
            frames,
            appends: Vec::new(),
            ends: HashMap::new(),
            completions: Vec::new(),
            is_durable,
            is_staged: true,
        }
    }

    /// Completes its requests with an error. Refusals become errors too: they took appends into account
    /// that are gone now.
    pub(super) fn fail(&mut self, error: &AppendError<R>)
    where
        R: Clone,
    {
        for result in self.completions.iter_mut().flat_map(|(_, results)| results) {
            *result = Err(error.clone());
        }
        complete(std::mem::take(&mut self.completions));
    }
}
