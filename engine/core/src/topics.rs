//! Creating, changing and deleting topics, and deleting records on request.

use std::collections::BTreeMap;
use std::sync::Arc;

use admission::Holder;
use hlc::{Cut, Hlc};
use storage::Offset;

use crate::blocking::block_in_place;
use crate::config::TopicConfig;
use crate::engine_core::EngineCore;
use crate::error::EngineError;
use crate::frontier::WaitPolicy;
use crate::namespace::event::NamespaceEvent;
use crate::namespace::pin_table::PinHold;
use crate::namespace::{Topic, TopicId, check_collision, check_topic_name};
use crate::seek_error::SeekError;

/// The topics, and their changes.
#[derive(Clone, Copy, Debug)]
pub struct Topics<'a> {
    core: &'a EngineCore,
    /// The account of what is created; `None` for the server itself.
    holder: Option<&'a Holder>,
}

impl EngineCore {
    /// The topics, and their changes.
    pub fn topics(&self) -> Topics<'_> {
        Topics { core: self, holder: None }
    }
}

impl<'a> Topics<'a> {
    /// The same topics for one client, which is charged for what it creates.
    pub fn on_behalf_of(self, holder: &'a Holder) -> Topics<'a> {
        Topics { holder: Some(holder), ..self }
    }

    fn holder(self) -> Holder {
        self.holder.cloned().unwrap_or_else(Holder::server)
    }
}

impl Topics<'_> {
    pub fn named(self, name: &str) -> Option<Arc<Topic>> {
        self.core.shared.namespace.read().topic(name).cloned()
    }

    /// The stamp at which a record of a topic that exists was accepted; `None` if there is none, or
    /// it was removed.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn stamp_of(
        self,
        topic: &str,
        partition: u32,
        offset: Offset,
    ) -> Result<Option<Hlc>, EngineError> {
        let topic = self.named(topic);
        let partition = topic.as_ref().and_then(|topic| topic.partitions.get(partition as usize));
        let Some(partition) = partition.filter(|partition| offset >= partition.start()) else {
            return Ok(None);
        };
        let entry = block_in_place(|| partition.log.entry_at(offset))?;
        Ok(entry.filter(|entry| entry.base <= offset).map(|entry| entry.stamp))
    }

    /// Returns true if a topic has that name, or had it and is not removed.
    pub fn has_current_or_past(self, name: &str) -> bool {
        self.core.shared.namespace.read().has_current_or_past(name)
    }

    pub fn by_id(self, id: &TopicId) -> Option<Arc<Topic>> {
        self.core.shared.namespace.read().topic_by_id(id).cloned()
    }

    /// The name of a topic that exists, or of a deleted one that is not removed.
    pub fn name_of(self, id: &TopicId) -> Option<Arc<str>> {
        let namespace = self.core.shared.namespace.read();
        namespace.topic_including_deleted(id).map(|(topic, _)| Arc::clone(&topic.name))
    }

    /// The stamp of the newest change of any topic: a reader that has seen the topics of this stamp
    /// has seen all.
    pub fn last_change(self) -> Hlc {
        self.core.shared.namespace.read().last_change()
    }

    /// The number of topics that exist.
    pub fn count(self) -> usize {
        self.core.shared.namespace.read().counts().0
    }

    /// The topics whose name `matches`, by name.
    pub fn matching(self, matches: impl Fn(&str) -> bool) -> Vec<Arc<Topic>> {
        let namespace = self.core.shared.namespace.read();
        namespace.topics().filter(|topic| matches(&topic.name)).cloned().collect()
    }

    /// All topics, by name.
    pub fn all(self) -> Vec<Arc<Topic>> {
        self.core.shared.namespace.read().topics().cloned().collect()
    }

    /// Every topic that exists or existed, in order of creation, in its last state, with its
    /// deletion time if it was deleted. It may have no records left. Removed topics are not listed.
    pub fn including_deleted(self) -> Vec<(Arc<Topic>, Option<Hlc>)> {
        let namespace = self.core.shared.namespace.read();
        let mut topics: Vec<_> =
            namespace.topics_including_deleted().map(|(t, d)| (Arc::clone(t), d)).collect();
        topics.sort_by_key(|(topic, _)| topic.created);
        topics
    }

    /// Creates a topic, or only validates the request.
    ///
    /// # Errors
    /// The topic exists; its name, partition count or settings are not valid; or the disk fails.
    pub async fn create(
        self,
        name: &str,
        partitions: u32,
        configs: BTreeMap<String, String>,
        id: TopicId,
        only_validate: bool,
    ) -> Result<Arc<Topic>, EngineError> {
        check_topic_name(name)?;
        self.check_partition_count(partitions)?;
        let config = TopicConfig::new(configs)?;
        config.check_new(&self.core.topic_defaults())?;
        let changing = self.core.lock_changes().await;
        self.core.user_times().check_plugin(&config, None)?;
        if self.named(name).is_some() {
            return Err(EngineError::TopicExists(name.to_owned()));
        }
        check_collision(&self.core.shared.namespace.read(), name)?;
        let accounts = &self.core.shared.accounts;
        accounts.begin_create(&self.holder(), partitions).map_err(EngineError::OverBudget)?;
        let first_log = self.core.shared.namespace.read().next_log();
        let (topic, name) = (name, name.to_owned());
        if only_validate {
            return Ok(Arc::new(Topic::new(name.into(), id, Hlc::ZERO, config)));
        }
        let configs = config.overrides().clone();
        self.core
            .submit_event(
                NamespaceEvent::TopicCreated { name, id, first_log, partitions, configs },
                Some(changing),
            )
            .await?;
        // Somebody may have deleted it already.
        let unknown = || EngineError::UnknownTopic(topic.to_owned());
        self.by_id(&id).ok_or_else(unknown)
    }

    fn check_partition_count(self, count: u32) -> Result<(), EngineError> {
        let partitions_max = self.core.options.partitions_max;
        if (1..=partitions_max).contains(&count) {
            return Ok(());
        }
        Err(EngineError::PartitionCount(format!(
            "number of partitions must be from 1 to {partitions_max}, and not {count}"
        )))
    }

    /// Deletes a topic. Its past stays readable at earlier moments.
    ///
    /// # Errors
    /// It does not exist, or the disk fails.
    pub async fn delete(self, id: TopicId) -> Result<(), EngineError> {
        let changing = self.core.lock_changes().await;
        if self.by_id(&id).is_none() {
            let topic = format!("{id:02x?}");
            return Err(EngineError::UnknownTopic(topic));
        }
        self.core.submit_event(NamespaceEvent::TopicDeleted { id }, Some(changing)).await.map(drop)
    }

    /// Adds partitions to a topic, `total` in all.
    ///
    /// # Errors
    /// It has as many or more, or does not exist; or the disk fails.
    pub async fn add_partitions(
        self,
        name: &str,
        total: u32,
        only_validate: bool,
    ) -> Result<(), EngineError> {
        let changing = self.core.lock_changes().await;
        let topic = self.require_topic(name)?;
        self.check_partition_count(total)?;
        let count = topic.partitions.len() as u32;
        if total <= count {
            return Err(EngineError::PartitionCount(format!(
                "the topic {name} currently has {count} partition(s); {total} would not be an increase."
            )));
        }
        let accounts = &self.core.shared.accounts;
        let begun = accounts.begin_add_partitions(&topic.id, &self.holder(), total - count);
        begun.map_err(EngineError::OverBudget)?;
        let first_log = self.core.shared.namespace.read().next_log();
        if only_validate {
            return Ok(());
        }
        let event =
            NamespaceEvent::PartitionsAdded { id: topic.id, first_log, more: total - count };
        self.core.submit_event(event, Some(changing)).await.map(drop)
    }

    fn require_topic(self, name: &str) -> Result<Arc<Topic>, EngineError> {
        let unknown = || EngineError::UnknownTopic(name.to_owned());
        self.named(name).ok_or_else(unknown)
    }

    /// Changes the settings of a topic: `change` gets the current ones.
    ///
    /// # Errors
    /// It does not exist, a setting is not valid, or the disk fails.
    pub async fn configure(
        self,
        name: &str,
        change: impl FnOnce(&mut BTreeMap<String, String>) -> Result<(), EngineError>,
        only_validate: bool,
    ) -> Result<(), EngineError> {
        let changing = self.core.lock_changes().await;
        let topic = self.require_topic(name)?;
        let mut configs = topic.config.overrides().clone();
        change(&mut configs)?;
        let config = TopicConfig::new(configs)?;
        config.check_new(&self.core.topic_defaults())?;
        self.core.user_times().check_plugin(&config, Some(&topic))?;
        if only_validate || config == topic.config {
            return Ok(());
        }
        let configs = config.overrides().clone();
        self.core
            .submit_event(NamespaceEvent::TopicConfigured { id: topic.id, configs }, Some(changing))
            .await
            .map(drop)
    }

    /// Deletes the records before `before`; -1 means all. Returns the new log start.
    ///
    /// # Errors
    /// The offset is outside of the log, a pin holds some of the records, or the disk fails.
    pub async fn delete_records(
        self,
        topic: &Topic,
        partition: i32,
        before: i64,
    ) -> Result<Offset, EngineError> {
        let changing = self.core.lock_changes().await;
        // It may have been deleted since it was looked up.
        let topic = self.by_id(&topic.id).ok_or_else(|| EngineError::UnknownPartition {
            topic: topic.name.to_string(),
            partition,
        })?;
        let target = topic.partition(partition)?;
        let (start, end) = (target.start(), target.end());
        let before = if before == -1 { end } else { Offset(before.try_into().unwrap_or(u64::MAX)) };
        if before > end {
            let offset = before.0 as i64;
            return Err(EngineError::OffsetOutOfRange { offset, start, end });
        }
        if before > start {
            if let Some(fence) = self.core.timekeeper().fence() {
                return Err(EngineError::Fenced(fence.to_string()));
            }
            if let Some(held_by) = self.core.pins().hold_on(&topic.id, target)? {
                let (topic, partition) = (Arc::clone(&topic.name), target.index);
                let PinHold { pin, at } = held_by;
                return Err(EngineError::Pinned { pin, at, topic, partition });
            }
            let (store, log) = (Arc::clone(&self.core.store), target.log.id);
            let ended = self.core.transaction_log_start(target, before)?;
            self.core
                .spawn_blocking(move || {
                    // Held until the horizon is on stable storage, even if the caller goes away.
                    let _changing = changing;
                    Ok(store.advance_log_start(&[(log, before), ended])?)
                })
                .await?;
        }
        Ok(target.start())
    }

    /// All topics as of `cut`, each with the stamp of its deletion if it was deleted later.
    ///
    /// # Errors
    /// [`SeekError`].
    pub async fn at(
        self,
        cut: Cut,
        when: WaitPolicy,
    ) -> Result<(Cut, Hlc, Vec<(Arc<Topic>, Option<Hlc>)>), SeekError> {
        let (at, frontier) = self.core.wait_until_closed(cut, when).await?;
        let namespace = self.core.shared.namespace.read();
        let topics = namespace
            .require_topics_at(at)?
            .into_iter()
            .map(|topic| {
                let deleted = namespace.deleted_at(&topic.id);
                (topic, deleted)
            })
            .collect();
        Ok((at, frontier, topics))
    }
}
