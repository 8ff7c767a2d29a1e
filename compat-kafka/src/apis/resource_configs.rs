//! Settings of resources that are no topics and no brokers: groups, and metrics of clients.

use std::collections::{BTreeMap, BTreeSet};

use engine::groups::{ResourceConfig, ResourceType};
use kafka_protocol::ResponseError;

use super::create_topics::KafkaApiError;
use crate::core::KafkaServer;
use crate::error_code::engine_error;
use crate::groups::{Options, with_group_config};

/// The longest name of a group or of a subscription, in bytes.
const NAME_BYTES_MAX: usize = 32_767;

impl KafkaServer {
    /// Gives each group the settings that are stored of it.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub(crate) fn restore_group_configs(&self) -> Result<(), engine::EngineError> {
        for (group, config) in self.engine.groups().configs(ResourceType::Group)? {
            match with_group_config(&self.options.groups, &config) {
                Ok(options) => self.groups.set_options_of(&group, Some(options)),
                Err(error) => {
                    tracing::warn!(group, %error, "a group's settings are not valid any more");
                }
            }
        }
        Ok(())
    }
}

/// The names of the resources of a type that have settings.
pub(super) fn configured_names(
    kafka: &KafkaServer,
    resource: ResourceType,
) -> Result<BTreeSet<String>, KafkaApiError> {
    let configs = kafka.engine.groups().configs(resource).map_err(unreadable)?;
    Ok(configs.into_keys().collect())
}

/// Changes the settings of a group.
pub(super) async fn alter_group(
    kafka: &KafkaServer,
    name: &str,
    change: impl FnOnce(&mut BTreeMap<String, String>),
    validate_only: bool,
) -> Result<(), KafkaApiError> {
    check_name(name, "Default group resources are not allowed.")?;
    // Of two changes at a time, the second one sees the first.
    let _turn = kafka.config_changes.lock().await;
    let mut config = kafka.engine.groups().config(ResourceType::Group, name).map_err(unreadable)?;
    change(&mut config);
    let options = with_group_config(&kafka.options.groups, &config)
        .map_err(|error| KafkaApiError::new(ResponseError::InvalidConfig, error.to_string()))?;
    if validate_only {
        return Ok(());
    }
    let own: Option<Options> = (!config.is_empty()).then_some(options);
    store(kafka, ResourceType::Group, name, config).await?;
    kafka.groups.set_options_of(name, own);
    Ok(())
}

/// Checks the name of a resource.
pub(super) fn check_name(name: &str, if_empty: &str) -> Result<(), KafkaApiError> {
    let refuse = |message: &str| Err(KafkaApiError::new(ResponseError::InvalidRequest, message));
    match name.len() {
        0 => refuse(if_empty),
        length if length > NAME_BYTES_MAX => refuse("The name of the resource is too long."),
        _ => Ok(()),
    }
}

/// Stores all settings of a resource.
pub(super) async fn store(
    kafka: &KafkaServer,
    resource: ResourceType,
    name: &str,
    config: ResourceConfig,
) -> Result<(), KafkaApiError> {
    let stored = kafka.engine.groups().set_config(resource, name, config).await;
    stored.map(drop).map_err(|error| {
        tracing::error!(name, %error, "settings cannot be stored");
        KafkaApiError::new(engine_error(&error), error.to_string())
    })
}

/// Why settings cannot be read.
pub(super) fn unreadable(error: engine::EngineError) -> KafkaApiError {
    tracing::error!(%error, "settings cannot be read");
    KafkaApiError::new(engine_error(&error), error.to_string())
}
