//! Settings of resources that are no topics and no brokers: groups, and metrics of clients.

use std::collections::{BTreeMap, BTreeSet};

use engine::EngineError;
use engine::groups::{ResourceConfig, ResourceType};
use kafka_protocol::ResponseError;

use super::create_topics::KafkaApiError;
use crate::client_metrics::{SubscriptionError, check_subscription};
use crate::core::KafkaServer;
use crate::error_code::engine_error;
use crate::groups::{GroupConfigError, with_group_config};

/// The longest name of a group or of a subscription, in bytes.
const NAME_BYTES_MAX: usize = 32_767;
/// Each client that comes is compared with all subscriptions.
const SUBSCRIPTIONS_MAX: usize = 1000;

impl KafkaServer {
    /// Takes the subscriptions to metrics of clients that are stored.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub(crate) fn restore_subscriptions(&self) -> Result<(), EngineError> {
        for (name, config) in self.engine.groups().configs(ResourceType::ClientMetrics)? {
            if let Err(error) = self.client_metrics.subscribe(&name, &config) {
                tracing::warn!(name, %error, "a subscription to metrics is not valid any more");
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
    let invalid = |error: GroupConfigError| {
        KafkaApiError::new(ResponseError::InvalidConfig, error.to_string())
    };
    with_group_config(&kafka.options.groups, &config).map_err(invalid)?;
    if validate_only {
        return Ok(());
    }
    store(kafka, ResourceType::Group, name, config.clone()).await?;
    kafka.groups.set_config_of(name, &config).map_err(invalid)
}

/// Changes the settings of a subscription to metrics of clients.
pub(super) async fn alter_client_metrics(
    kafka: &KafkaServer,
    name: &str,
    change: impl FnOnce(&mut BTreeMap<String, String>),
    validate_only: bool,
) -> Result<(), KafkaApiError> {
    check_name(name, "Subscription name can't be empty")?;
    let _turn = kafka.config_changes.lock().await;
    let resource = ResourceType::ClientMetrics;
    let mut config = kafka.engine.groups().config(resource, name).map_err(unreadable)?;
    let is_new = config.is_empty();
    change(&mut config);
    check_subscription(&config).map_err(|error| {
        let code = match error {
            SubscriptionError::InvalidPattern(_) | SubscriptionError::TooMany(_) => {
                ResponseError::InvalidConfig
            }
            SubscriptionError::UnknownName(_) | SubscriptionError::InvalidInterval(_) => {
                ResponseError::InvalidRequest
            }
        };
        KafkaApiError::new(code, error.to_string())
    })?;
    if is_new && configured_names(kafka, resource)?.len() >= SUBSCRIPTIONS_MAX {
        let message = format!("There are {SUBSCRIPTIONS_MAX} subscriptions: delete some.");
        return Err(KafkaApiError::new(ResponseError::PolicyViolation, message));
    }
    if validate_only {
        return Ok(());
    }
    store(kafka, resource, name, config.clone()).await?;
    let subscribed = kafka.client_metrics.subscribe(name, &config);
    subscribed.map_err(|error| KafkaApiError::new(ResponseError::InvalidConfig, error.to_string()))
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
pub(super) fn unreadable(error: EngineError) -> KafkaApiError {
    tracing::error!(%error, "settings cannot be read");
    KafkaApiError::new(engine_error(&error), error.to_string())
}
