//! The permissions of a request for topics that it does not name itself: each is asked for once.

use std::collections::{BTreeSet, HashMap};

use engine::TopicId;
use engine::security::{Operation, Resource};

use crate::kafka_server::KafkaServer;
use crate::request::RequestContext;

/// The topics to which a request may do one operation.
pub(crate) struct TopicPermissions<'a> {
    kafka: &'a KafkaServer,
    context: &'a RequestContext,
    operation: Operation,
    known: HashMap<String, bool>,
}

impl<'a> TopicPermissions<'a> {
    pub(crate) fn new(
        kafka: &'a KafkaServer,
        context: &'a RequestContext,
        operation: Operation,
    ) -> TopicPermissions<'a> {
        TopicPermissions { kafka, context, operation, known: HashMap::new() }
    }

    pub(crate) fn allows(&mut self, topic: &str) -> bool {
        if !self.kafka.is_authorizing() {
            return true;
        }
        if let Some(is_allowed) = self.known.get(topic) {
            return *is_allowed;
        }
        let topic_name = Resource::topic(topic);
        let is_allowed = self.kafka.is_authorized(self.context, self.operation, topic_name);
        self.known.insert(topic.to_owned(), is_allowed);
        is_allowed
    }
}

impl KafkaServer {
    /// True if there is anything that some client may not do.
    pub(crate) fn is_authorizing(&self) -> bool {
        self.engine.security().options().authorizer.is_enabled
    }

    /// The topics to which the client may not do `operation`. One that is not known is not among
    /// them: it has no name by which there could be rules.
    pub(crate) fn refused_topics(
        &self,
        context: &RequestContext,
        operation: Operation,
        topics: impl Iterator<Item = TopicId>,
    ) -> BTreeSet<TopicId> {
        if !self.is_authorizing() {
            return BTreeSet::new();
        }
        let mut refused: BTreeSet<TopicId> = topics.collect();
        refused.retain(|id| {
            let name = self.topics.name_of(id);
            name.is_some_and(|name| !self.is_authorized(context, operation, Resource::topic(&name)))
        });
        refused
    }
}
