//! Creating, changing and deleting topics, and deleting records on request.

use std::collections::BTreeMap;
use std::sync::Arc;

use hlc::Hlc;
use storage::Offset;

use super::Engine;
use crate::config::TopicConfig;
use crate::error::EngineError;
use crate::namespace::event::MetadataEvent;
use crate::namespace::{Topic, TopicId, check_topic_name};
use crate::pins::PinHold;

/// How many producer ids one entry grants.
const PRODUCER_IDS_BLOCK: i64 = 1000;
impl Engine {
    pub fn topic(&self, name: &str) -> Option<Arc<Topic>> {
        self.shared.namespace.read().topic(name).cloned()
    }

    /// Whether a topic has that name, or had it and is not removed.
    pub fn has_current_or_past_topic(&self, name: &str) -> bool {
        self.shared.namespace.read().has_current_or_past(name)
    }

    pub fn topic_by_id(&self, id: &TopicId) -> Option<Arc<Topic>> {
        self.shared.namespace.read().topic_by_id(id).cloned()
    }

    /// All topics, by name.
    pub fn topics(&self) -> Vec<Arc<Topic>> {
        self.shared.namespace.read().topics().cloned().collect()
    }

    /// Creates a topic, or only validates the request.
    ///
    /// # Errors
    /// The topic exists; its name, partition count or settings are not valid; or the disk fails.
    pub async fn create_topic(
        &self,
        name: &str,
        partitions: u32,
        configs: BTreeMap<String, String>,
        id: TopicId,
        only_validate: bool,
    ) -> Result<Arc<Topic>, EngineError> {
        check_topic_name(name)?;
        self.check_partition_count(partitions)?;
        let config = TopicConfig::new(configs)?;
        config.check_new(self.topic_defaults())?;
        let changing = Arc::clone(&self.change_lock).lock_owned().await;
        self.check_plugin(&config, None)?;
        if self.topic(name).is_some() {
            return Err(EngineError::TopicExists(name.to_owned()));
        }
        self.check_topic_limits(1, partitions)?;
        let first_log = self.shared.namespace.read().next_log();
        let name = name.to_owned();
        if only_validate {
            return Ok(Arc::new(Topic::new(name.into(), id, Hlc::ZERO, config)));
        }
        let configs = config.overrides().clone();
        self.submit_event(
            MetadataEvent::TopicCreated { name, id, first_log, partitions, configs },
            Some(changing),
        )
        .await?;
        Ok(self.topic_by_id(&id).expect("a topic is there once its creation is applied"))
    }

    fn check_partition_count(&self, count: u32) -> Result<(), EngineError> {
        let most = self.options.partitions_max;
        if (1..=most).contains(&count) {
            return Ok(());
        }
        Err(EngineError::PartitionCount(format!(
            "number of partitions must be from 1 to {most}. partitions={count}"
        )))
    }

    /// Whether the limits allow so many more topics and partitions.
    fn check_topic_limits(&self, topics: usize, partitions: u32) -> Result<(), EngineError> {
        let (topic_count, partition_count) = self.shared.namespace.read().counts();
        let (topics_max, partitions_max) =
            (self.options.topics_max, self.options.all_partitions_max);
        let refuse = |what: &str, count: usize, most: usize, setting: &str| {
            Err(EngineError::TopicLimit(format!(
                "there are {count} {what}, and there may be {most}. delete some, or raise {setting}"
            )))
        };
        if topic_count + topics > topics_max {
            return refuse("topics", topic_count, topics_max, "limits.topics-max");
        }
        if partition_count + partitions as usize > partitions_max {
            return refuse(
                "partitions",
                partition_count,
                partitions_max,
                "limits.all-partitions-max",
            );
        }
        Ok(())
    }

    /// Deletes a topic. Its past stays readable at earlier moments.
    ///
    /// # Errors
    /// It does not exist, or the disk fails.
    pub async fn delete_topic(&self, id: TopicId) -> Result<(), EngineError> {
        let changing = Arc::clone(&self.change_lock).lock_owned().await;
        if self.topic_by_id(&id).is_none() {
            let topic = format!("{id:02x?}");
            return Err(EngineError::UnknownPartition { topic, partition: -1 });
        }
        self.submit_event(MetadataEvent::TopicDeleted { id }, Some(changing)).await.map(drop)
    }

    /// Adds partitions to a topic, `total` in all.
    ///
    /// # Errors
    /// It has as many or more, or does not exist; or the disk fails.
    pub async fn add_partitions(
        &self,
        name: &str,
        total: u32,
        only_validate: bool,
    ) -> Result<(), EngineError> {
        let changing = Arc::clone(&self.change_lock).lock_owned().await;
        let topic = self.require_topic(name)?;
        self.check_partition_count(total)?;
        let count = topic.partitions.len() as u32;
        if total <= count {
            return Err(EngineError::PartitionCount(format!(
                "the topic {name} currently has {count} partition(s); {total} would not be an increase"
            )));
        }
        self.check_topic_limits(0, total - count)?;
        let first_log = self.shared.namespace.read().next_log();
        if only_validate {
            return Ok(());
        }
        let event = MetadataEvent::PartitionsAdded { id: topic.id, first_log, more: total - count };
        self.submit_event(event, Some(changing)).await.map(drop)
    }

    fn require_topic(&self, name: &str) -> Result<Arc<Topic>, EngineError> {
        let unknown = || EngineError::UnknownPartition { topic: name.to_owned(), partition: -1 };
        self.topic(name).ok_or_else(unknown)
    }

    /// Changes the settings of a topic: `change` gets the current ones.
    ///
    /// # Errors
    /// It does not exist, a setting is not valid, or the disk fails.
    pub async fn configure_topic(
        &self,
        name: &str,
        change: impl FnOnce(&mut BTreeMap<String, String>) -> Result<(), EngineError>,
        only_validate: bool,
    ) -> Result<(), EngineError> {
        let changing = Arc::clone(&self.change_lock).lock_owned().await;
        let topic = self.require_topic(name)?;
        let mut configs = topic.config.overrides().clone();
        change(&mut configs)?;
        let config = TopicConfig::new(configs)?;
        config.check_new(self.topic_defaults())?;
        self.check_plugin(&config, Some(&topic))?;
        if only_validate || config == topic.config {
            return Ok(());
        }
        let configs = config.overrides().clone();
        self.submit_event(MetadataEvent::TopicConfigured { id: topic.id, configs }, Some(changing))
            .await
            .map(drop)
    }

    /// Deletes the records before `before`; -1 means all. Returns the new log start.
    ///
    /// # Errors
    /// The offset is outside of the log, a pin holds some of the records, or the disk fails.
    pub async fn delete_records(
        &self,
        topic: &Topic,
        partition: i32,
        before: i64,
    ) -> Result<Offset, EngineError> {
        let changing = Arc::clone(&self.change_lock).lock_owned().await;
        // It may have been deleted since it was looked up.
        let topic = self.topic_by_id(&topic.id).ok_or_else(|| EngineError::UnknownPartition {
            topic: topic.name.to_string(),
            partition,
        })?;
        let held = topic.partition(partition)?;
        let (start, end) = (held.start(), held.end());
        let before = if before == -1 { end } else { Offset(before.try_into().unwrap_or(u64::MAX)) };
        if before > end {
            let offset = before.0 as i64;
            return Err(EngineError::OffsetOutOfRange { offset, start, end });
        }
        if before > start {
            if let Some(fence) = self.timekeeper().fence() {
                return Err(EngineError::Fenced(fence.to_string()));
            }
            if let Some(held_by) = self.pin_hold_on(&topic.id, held)? {
                let (topic, partition) = (Arc::clone(&topic.name), held.index);
                let PinHold { pin, at } = held_by;
                return Err(EngineError::Pinned { pin, at, topic, partition });
            }
            let (store, log) = (Arc::clone(&self.store), held.log.id);
            self.spawn_blocking(move || {
                // Held until the horizon is on stable storage, even if the caller goes away.
                let _changing = changing;
                Ok(store.advance_log_start(&[(log, before)])?)
            })
            .await?;
        }
        Ok(held.start())
    }

    /// A producer id that was never allocated before.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn new_producer_id(&self) -> Result<i64, EngineError> {
        let mut ids = self.producer_ids.lock().await;
        if ids.is_empty() {
            let below = ids.end + PRODUCER_IDS_BLOCK;
            self.submit_event(MetadataEvent::ProducerIdsGranted { below }, None).await?;
            *ids = ids.end..below;
        }
        Ok(ids.next().expect("a block was just granted"))
    }
}
