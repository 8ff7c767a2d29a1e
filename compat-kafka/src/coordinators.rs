//! The coordinators of groups, of share groups' progress, and of transactions.
//!
//! One broker of a cluster has them: it restores them from what is stored when it takes the role,
//! and closes them when it gives the role up.

use std::sync::Arc;

use engine::groups::ResourceType;
use engine::{Engine, EngineError};
use kafka_groups::GroupCoordinator;
use kafka_share_groups::SharePartitions;
use kafka_topics::ReadableTopics;
use kafka_transactions::TransactionCoordinator;
use uuid::Uuid;

use crate::group_log::EngineGroupLog;
use crate::options::KafkaOptions;

pub(crate) struct Coordinators {
    pub(crate) groups: Arc<GroupCoordinator>,
    /// The state that share groups keep of their partitions.
    pub(crate) shares: Arc<SharePartitions>,
    pub(crate) transactions: TransactionCoordinator,
}

impl Coordinators {
    /// Restores the groups and the transactional ids. It must be called within a runtime.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub(crate) fn open(
        engine: &Arc<Engine>,
        options: &KafkaOptions,
        topics: &Arc<ReadableTopics>,
    ) -> Result<Coordinators, EngineError> {
        let log = Arc::new(EngineGroupLog::new(Arc::clone(engine)));
        let new_id = options.new_id;
        let new_member_id = move || Uuid::from_bytes(new_id());
        let topics = Arc::<ReadableTopics>::clone(topics);
        let groups = GroupCoordinator::new(options.groups.clone(), log, topics, new_member_id);
        let groups = Arc::new(groups);
        for budget in groups.budgets() {
            engine.budgets().register(budget);
        }
        restore_groups(engine, &groups)?;
        let sessions_max = options.groups.share.sessions_max;
        let shares = SharePartitions::new(Arc::clone(engine), Arc::clone(&groups), sessions_max);
        let transactions =
            TransactionCoordinator::open(Arc::clone(engine), options.transactions.clone())?;
        Ok(Coordinators { groups, shares, transactions })
    }

    /// Answers all members that wait in groups.
    pub(crate) fn close(&self) {
        self.groups.close();
    }
}

fn restore_groups(engine: &Engine, groups: &GroupCoordinator) -> Result<(), EngineError> {
    // Before members are restored: their sessions last as long as their group says.
    for (group, config) in engine.groups().configs(ResourceType::Group)? {
        if let Err(error) = groups.set_config_of(&group, &config) {
            tracing::warn!(group, %error, "a group's settings are not valid any more");
        }
    }
    for (group, stored) in engine.groups().stored()? {
        if let Err(error) = groups.restore(&group, &stored) {
            tracing::warn!(%group, %error, "a group cannot be restored; its members join again");
            groups.restore_unknown(&group);
        }
    }
    for offset in engine.groups().committed_offsets(None)? {
        groups.restore_without_members(&offset.group);
    }
    Ok(())
}
