//! The settings of resources that are no topics, as versions in the catalog.

use std::collections::BTreeMap;

use engine_core::EngineError;
use hlc::{Cut, Hlc};
use storage::catalog::{CatalogError, CatalogWriteBatch, escape, unescape};

use super::restatement::VALUE_BYTES;
use super::{CONFIGS, GroupCatalog};
use crate::event::{GroupEvent, RestatedConfig};

/// The settings of a resource that are set, by name.
pub type ResourceConfig = BTreeMap<String, String>;

fn config_key(resource: u8, name: &str) -> Vec<u8> {
    let mut key = vec![CONFIGS, resource];
    escape(name, &mut key);
    key
}

/// The type and the name of a key of [`config_key`].
fn parse_config_key(key: &[u8]) -> Option<(u8, String)> {
    match key {
        [CONFIGS, resource, name @ ..] => Some((*resource, unescape(name))),
        _ => None,
    }
}

/// Applies [`GroupEvent::ConfigChanged`]. A resource of which nothing is set is none.
pub(super) fn put_config(
    changes: &mut CatalogWriteBatch,
    resource: u8,
    name: &str,
    config: &ResourceConfig,
    stamp: Hlc,
) {
    let value = postcard::to_stdvec(config).expect("settings can be encoded");
    changes.put(&config_key(resource, name), stamp, (!config.is_empty()).then_some(&value[..]));
}

impl GroupCatalog {
    /// The settings of all resources of a type, by name.
    pub(crate) fn configs(
        &self,
        resource: u8,
        cut: Cut,
    ) -> Result<BTreeMap<String, ResourceConfig>, CatalogError> {
        let mut configs = BTreeMap::new();
        for (key, _, value) in self.catalog.scan(&[CONFIGS, resource], cut)? {
            if let (Some((_, name)), Ok(config)) =
                (parse_config_key(&key), postcard::from_bytes(&value))
            {
                configs.insert(name, config);
            }
        }
        Ok(configs)
    }

    /// The settings of one resource.
    pub(crate) fn config(
        &self,
        resource: u8,
        name: &str,
        cut: Cut,
    ) -> Result<ResourceConfig, CatalogError> {
        let stored = self.catalog.get(&config_key(resource, name), cut)?;
        let config = stored.and_then(|(_, value)| postcard::from_bytes(&value).ok());
        Ok(config.unwrap_or_default())
    }

    /// Passes the events that restate settings at `cut` to `emit`. Each has at most `bytes_max`, or
    /// those of a single resource.
    pub(super) fn restate_configs(
        &self,
        cut: Cut,
        bytes_max: usize,
        emit: &mut dyn FnMut(GroupEvent) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let (mut configs, mut bytes) = (Vec::new(), 0);
        let horizon = cut.bound().bits();
        self.catalog.visit(&[CONFIGS], cut, &mut |key, stamp, value| {
            let corrupt =
                || EngineError::Corrupt(format!("cannot decode the catalog's key {key:?}"));
            let (resource, name) = parse_config_key(key).ok_or_else(corrupt)?;
            let size = name.len() + value.len() + VALUE_BYTES;
            if bytes > 0 && bytes + size > bytes_max {
                bytes = 0;
                let configs = std::mem::take(&mut configs);
                emit(GroupEvent::ConfigsRestated { horizon, configs })?;
            }
            bytes += size;
            let config = postcard::from_bytes(value).map_err(|_| corrupt())?;
            configs.push(RestatedConfig { resource, name, stamp: stamp.bits(), config });
            Ok::<_, EngineError>(())
        })?;
        if configs.is_empty() {
            Ok(())
        } else {
            emit(GroupEvent::ConfigsRestated { horizon, configs })
        }
    }

    /// Loads a restatement into a catalog that is being rebuilt.
    pub(crate) fn load_configs(&self, configs: &[RestatedConfig]) -> Result<(), CatalogError> {
        let mut changes = CatalogWriteBatch::default();
        for RestatedConfig { resource, name, stamp, config } in configs {
            put_config(&mut changes, *resource, name, config, Hlc::from_bits(*stamp));
        }
        self.catalog.apply_unpositioned(changes)
    }
}
