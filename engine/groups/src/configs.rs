//! Settings of resources that are no topics, now and as of a moment.

use std::collections::BTreeMap;

use engine_core::blocking::block_in_place;
use engine_core::{EngineError, SeekError, WaitPolicy};
use hlc::{Cut, Hlc};

use crate::event::GroupEvent;
use crate::group_catalog::ResourceConfig;
use crate::groups::Groups;

/// A type of resources, by Kafka's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResourceType {
    /// Servers: one by its id, or all of them by the empty name.
    Broker = 4,
    /// Metrics that clients are to push (KIP-714).
    ClientMetrics = 16,
    Group = 32,
}

impl Groups {
    /// The settings of all resources of a type, by name.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn configs(
        &self,
        resource: ResourceType,
    ) -> Result<BTreeMap<String, ResourceConfig>, EngineError> {
        block_in_place(|| Ok(self.catalog()?.configs(resource as u8, Cut::ALL)?))
    }

    /// The settings of one resource; none, if there is no such resource.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn config(
        &self,
        resource: ResourceType,
        name: &str,
    ) -> Result<ResourceConfig, EngineError> {
        block_in_place(|| Ok(self.catalog()?.config(resource as u8, name, Cut::ALL)?))
    }

    /// The settings of one resource as of `cut`.
    ///
    /// # Errors
    /// [`SeekError`].
    pub async fn config_at(
        &self,
        resource: ResourceType,
        name: &str,
        cut: Cut,
        when: WaitPolicy,
    ) -> Result<ResourceConfig, SeekError> {
        let (at, _) = self.core.wait_until_closed(cut, when).await?;
        let config = block_in_place(|| self.catalog()?.config(resource as u8, name, at));
        let config = config.map_err(EngineError::from)?;
        // Checked last: history that was removed meanwhile is missing from the answer.
        self.check_retained(at)?;
        Ok(config)
    }

    /// Changes the settings of a resource to these; returns the stamp.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn set_config(
        &self,
        resource: ResourceType,
        name: &str,
        config: ResourceConfig,
    ) -> Result<Hlc, EngineError> {
        let (resource, name) = (resource as u8, name.to_owned());
        self.submit(GroupEvent::ConfigChanged { resource, name, config }, None).await
    }
}
