//! Resolves the names and ids of topics and of moments of them.

use std::sync::Arc;
use std::time::Duration;

use engine::{Engine, TopicId, TopicView, WaitPolicy};
use hlc::split_moment_topic;
use kafka_protocol::ResponseError;

use crate::moment_cache::{MomentCache, MomentRowQuota, MomentTopicError};
use crate::readable_topic::ReadableTopic;

/// The topics that clients read: those that there are, and moments of them.
pub struct ReadableTopics {
    pub(crate) engine: Arc<Engine>,
    pub(crate) moments: MomentCache,
    patience: Duration,
}

impl ReadableTopics {
    /// Reads wait for at most `patience` for a moment that is not final yet.
    pub fn new(engine: Arc<Engine>, patience: Duration) -> ReadableTopics {
        let moments = MomentCache::new(engine.security().name_key());
        ReadableTopics { engine, moments, patience }
    }

    /// The view that a name with a moment asks for; `None` if it has no moment.
    ///
    /// # Errors
    /// The moment cannot be read.
    pub async fn moment(&self, name: &str) -> Result<Option<Arc<TopicView>>, MomentTopicError> {
        self.moments.resolve(&self.engine, name, WaitPolicy::Wait(self.patience)).await
    }

    /// The id of the moment that a name asks for. Nobody can compute it: a client that has it has
    /// read the moment.
    pub fn moment_id(&self, name: &str) -> TopicId {
        self.moments.topic_id(name)
    }

    /// Resolves the topic that a reader named: a topic, or a moment of one whose history is still
    /// there. A real topic with the same name takes precedence. `Ok(None)` if there is neither.
    ///
    /// # Errors
    ///
    /// The name asks for a moment that cannot be read.
    pub async fn resolve(&self, name: &str) -> Result<Option<ReadableTopic>, MomentTopicError> {
        let readable = self.resolve_unchecked(name).await?;
        if let Some(readable) = &readable {
            readable.check_kept()?;
        }
        Ok(readable)
    }

    /// [`ReadableTopics::resolve`] for a response that may describe only `rows` more rows of
    /// moments. Without a limit one request could name very many.
    ///
    /// # Errors
    ///
    /// As [`ReadableTopics::resolve`], or `rows` is used up.
    pub async fn resolve_within_quota(
        &self,
        name: &str,
        rows: &MomentRowQuota,
    ) -> Result<Option<ReadableTopic>, MomentTopicError> {
        if self.engine.topics().named(name).is_none() && split_moment_topic(name).is_some() {
            rows.check()?;
        }
        self.resolve(name).await
    }

    /// [`ReadableTopics::resolve`] without the check that the result still has all its records.
    /// After reading a partition, the caller calls [`ReadableTopic::check_partition_kept`].
    ///
    /// # Errors
    ///
    /// As [`ReadableTopics::resolve`].
    pub async fn resolve_unchecked(
        &self,
        name: &str,
    ) -> Result<Option<ReadableTopic>, MomentTopicError> {
        if let Some(topic) = self.engine.topics().named(name) {
            return Ok(Some(ReadableTopic::Present(topic)));
        }
        let view = self.moment(name).await?;
        Ok(view.map(ReadableTopic::Past))
    }

    /// Resolves a topic that a request may name: each moment is a view of all partitions, and a few
    /// bytes name one.
    ///
    /// # Errors
    /// The topic does not exist or cannot be read, or the request names too much of the past.
    pub async fn resolve_limited(
        &self,
        name: &str,
        rows: &mut MomentRowQuota,
    ) -> Result<ReadableTopic, ResponseError> {
        if self.engine.topics().named(name).is_none() && split_moment_topic(name).is_some() {
            rows.check().map_err(|refused| refused.error())?;
        }
        let found = self.resolve_unchecked(name).await.map_err(|refused| refused.error())?;
        if let Some(ReadableTopic::Past(view)) = &found {
            rows.take(view.partitions.len()).map_err(|refused| refused.error())?;
        }
        found.ok_or(ResponseError::UnknownTopicOrPartition)
    }

    /// Resolves the topic that a reader named by id.
    pub fn by_id(&self, id: &TopicId) -> Option<ReadableTopic> {
        if let Some(topic) = self.engine.topics().by_id(id) {
            return Some(ReadableTopic::Present(topic));
        }
        self.moments.by_id(id).map(ReadableTopic::Past)
    }

    /// The name of a topic, or of a moment of one that was read lately, by its id.
    pub fn name_of(&self, id: &TopicId) -> Option<String> {
        match self.engine.topics().by_id(id) {
            Some(topic) => Some(topic.name.to_string()),
            None => self.moments.name_of(id).map(String::from),
        }
    }

    /// The id by which clients know what has that name: a topic, or a moment of one.
    pub fn id_of(&self, name: &str) -> Option<TopicId> {
        match self.engine.topics().named(name) {
            Some(topic) => Some(topic.id),
            None => split_moment_topic(name).map(|_| self.moment_id(name)),
        }
    }
}
