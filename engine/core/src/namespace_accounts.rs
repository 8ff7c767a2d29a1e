//! The use of shared budgets by topics and pins.
//!
//! A topic, with partitions that are added later, is charged to the principal that created it, and
//! a pin to the principal that set it. The journal does not name these principals: after a restart,
//! a topic is charged to [`Holder::restored`] until somebody adds partitions to it, and a pin until
//! somebody extends it.
//!
//! Room is checked under the lock of changes (`EngineCore::lock_changes`), which is held until the
//! event is applied. Charges follow the events.

use std::collections::HashMap;
use std::sync::Arc;

use admission::{Budget, BudgetError, BudgetGrant, BudgetKind, BudgetRegistry, BudgetSpec, Holder};
use parking_lot::Mutex;

use crate::namespace::event::NamespaceEvent;
use crate::namespace::{Namespace, TopicId};

/// The most topics, partitions and pins at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamespaceLimits {
    pub(crate) topics: usize,
    pub(crate) partitions: usize,
    pub(crate) pins: usize,
}

/// The budgets of topics and pins, and their accounts.
#[derive(Debug)]
pub(crate) struct NamespaceAccounts {
    topics: Arc<Budget>,
    partitions: Arc<Budget>,
    pins: Arc<Budget>,
    grants: Mutex<NamespaceGrants>,
}

#[derive(Debug, Default)]
struct NamespaceGrants {
    /// The holder of the change in flight; the lock of changes lets one be in flight at a time.
    changer: Option<Holder>,
    topics: HashMap<TopicId, TopicGrants>,
    pins: HashMap<String, BudgetGrant>,
}

#[derive(Debug)]
struct TopicGrants {
    topic: BudgetGrant,
    partitions: BudgetGrant,
}

impl NamespaceAccounts {
    pub(crate) fn new(limits: NamespaceLimits, registry: &BudgetRegistry) -> NamespaceAccounts {
        let budget = |name, setting, limit: usize| {
            let spec =
                BudgetSpec { name, unit: name, setting: Some(setting), kind: BudgetKind::Kept };
            registry.budget(spec, limit as u64)
        };
        NamespaceAccounts {
            topics: budget("topics", "limits.topics-max", limits.topics),
            partitions: budget("partitions", "limits.all-partitions-max", limits.partitions),
            pins: budget("pins", "limits.pins-max", limits.pins),
            grants: Mutex::default(),
        }
    }

    /// Charges what a restart found.
    pub(crate) fn restore(&self, namespace: &Namespace) {
        let (mut grants, holder) = (self.grants.lock(), Holder::restored());
        for topic in namespace.topics() {
            let restored = self.topic_grants(&holder, topic.partitions.len() as u64);
            grants.topics.insert(topic.id, restored);
        }
        for name in namespace.pins.0.keys() {
            grants.pins.insert(name.to_string(), self.pins.take_always(&holder, 1));
        }
    }

    /// Checks that there is room for a new topic, which is created next.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn begin_create(
        &self,
        holder: &Holder,
        partitions: u32,
    ) -> Result<(), Box<BudgetError>> {
        self.topics.check(holder, 1)?;
        self.partitions.check(holder, u64::from(partitions))?;
        self.grants.lock().changer = Some(holder.clone());
        Ok(())
    }

    /// Checks that there is room for more partitions of a topic, which are added next.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn begin_add_partitions(
        &self,
        topic: &TopicId,
        holder: &Holder,
        count: u32,
    ) -> Result<(), Box<BudgetError>> {
        let mut grants = self.grants.lock();
        let creator = grants.topics.get(topic).map(|topic| topic.topic.holder());
        let account = creator.filter(|creator| !creator.is_restored()).unwrap_or(holder);
        self.partitions.check(account, u64::from(count))?;
        grants.changer = Some(holder.clone());
        Ok(())
    }

    /// Checks that there is room for a pin, which is set next. One that is there may be extended.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn begin_set_pin(
        &self,
        name: &str,
        holder: &Holder,
    ) -> Result<(), Box<BudgetError>> {
        let mut grants = self.grants.lock();
        if !grants.pins.contains_key(name) {
            self.pins.check(holder, 1)?;
        }
        grants.changer = Some(holder.clone());
        Ok(())
    }

    /// Charges, or gives back, what an event changed.
    pub(crate) fn apply(&self, event: &NamespaceEvent) {
        let mut grants = self.grants.lock();
        let NamespaceGrants { changer, topics, pins } = &mut *grants;
        match event {
            NamespaceEvent::TopicCreated { id, partitions, .. } => {
                let holder = changer.take().unwrap_or_else(Holder::server);
                topics.insert(*id, self.topic_grants(&holder, u64::from(*partitions)));
            }
            NamespaceEvent::PartitionsAdded { id, more, .. } => {
                let (changer, topic) = (changer.take(), topics.get_mut(id));
                if let Some(topic) = topic {
                    topic.claim(changer.as_ref());
                    let partitions = topic.partitions.amount() + u64::from(*more);
                    topic.partitions.resize_always(partitions);
                }
            }
            NamespaceEvent::TopicDeleted { id } => drop(topics.remove(id)),
            NamespaceEvent::PinSet { name, .. } => {
                let holder = changer.take().unwrap_or_else(Holder::server);
                let pin =
                    pins.entry(name.clone()).or_insert_with(|| self.pins.take_always(&holder, 1));
                if pin.is_restored() {
                    pin.hand_over(&holder);
                }
            }
            NamespaceEvent::PinRemoved { name } => drop(pins.remove(name)),
            NamespaceEvent::TopicConfigured { .. }
            | NamespaceEvent::ProducerIdsGranted { .. }
            | NamespaceEvent::NamespaceRestated { .. } => {}
        }
    }

    fn topic_grants(&self, holder: &Holder, partitions: u64) -> TopicGrants {
        TopicGrants {
            topic: self.topics.take_always(holder, 1),
            partitions: self.partitions.take_always(holder, partitions),
        }
    }
}

impl TopicGrants {
    /// Charges a topic that a restart found to the principal that changes it.
    fn claim(&mut self, changer: Option<&Holder>) {
        if let Some(changer) = changer
            && self.topic.is_restored()
        {
            self.topic.hand_over(changer);
            self.partitions.hand_over(changer);
        }
    }
}
