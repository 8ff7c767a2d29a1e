//! Settings of resources that are no topics: the server, groups, and metrics of clients.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::EngineError;
use engine::groups::{ResourceConfig, ResourceType};
use kafka_client_metrics::{SubscriptionError, check_subscription};
use kafka_errors::engine_error;
use kafka_groups::{GroupConfigError, with_group_config};
use kafka_protocol::ResponseError;

use super::describe_configs::check_node_id;
use super::support::KafkaApiError;
use crate::broker_settings::{
    ALL_BROKERS, DynamicConfigs, DynamicSettings, PreparedSettings, RestoreSettingsError,
};
use crate::kafka_server::KafkaServer;

/// The longest name of a group or of a subscription, in bytes.
const NAME_BYTES_MAX: usize = 32_767;
/// Each client that comes is compared with all subscriptions.
const SUBSCRIPTIONS_MAX: usize = 1000;
/// The longest value of a setting of the server, in bytes.
const VALUE_BYTES_MAX: usize = 32_767;

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

impl KafkaServer {
    /// Lets settings change from now on as `settings` says, and puts the settings that clients have
    /// given before into force. Settings that are not valid any more are logged, and left out.
    ///
    /// # Errors
    /// The catalog cannot be read, or something is not valid that keeps clients out.
    ///
    /// # Panics
    /// It was called before.
    pub async fn use_dynamic_settings(
        &self,
        settings: Arc<dyn DynamicSettings>,
    ) -> Result<(), RestoreSettingsError> {
        let mut configs = self.dynamic_configs()?;
        let prepared = loop {
            match settings.prepare(&configs) {
                Ok(prepared) => break prepared,
                Err(invalid) if invalid.are_guards => {
                    return Err(RestoreSettingsError::Guards(invalid));
                }
                Err(invalid) => {
                    tracing::warn!(settings = ?invalid.names, %invalid, "settings that were given while the server ran are not valid any more; they have no effect");
                    let before = configs.clone();
                    for name in &invalid.names {
                        configs.of_all.remove(name);
                        configs.own.remove(name);
                    }
                    if configs == before {
                        configs = DynamicConfigs::default();
                    }
                }
            }
        };
        self.put_into_force(prepared).await;
        assert!(self.settings.source.set(settings).is_ok(), "settings have one meaning");
        Ok(())
    }

    /// The settings that clients have given.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub(crate) fn dynamic_configs(&self) -> Result<DynamicConfigs, EngineError> {
        let config_of = |name: &str| self.engine.groups().config(ResourceType::Broker, name);
        Ok(DynamicConfigs {
            of_all: config_of(ALL_BROKERS)?,
            own: config_of(&self.cluster.this_node().0.to_string())?,
        })
    }

    pub(crate) async fn put_into_force(&self, prepared: PreparedSettings) {
        let PreparedSettings { options, topic_defaults, maintenance, assignment_intervals, finish } =
            prepared;
        self.engine.core().set_dynamic_options(topic_defaults, maintenance).await;
        self.coordinators.groups.set_assignment_intervals(assignment_intervals);
        self.settings.options.store(Arc::new(options));
        finish();
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
    kafka: &Arc<KafkaServer>,
    name: &str,
    change: impl FnOnce(&mut BTreeMap<String, String>),
    validate_only: bool,
) -> Result<(), KafkaApiError> {
    check_name(name, "Default group resources are not allowed.")?;
    // Concurrent changes take turns: the second one sees the first.
    let turn = Arc::clone(&kafka.settings.changes).lock_owned().await;
    let mut config = kafka.engine.groups().config(ResourceType::Group, name).map_err(unreadable)?;
    change(&mut config);
    let invalid = |error: GroupConfigError| {
        KafkaApiError::new(ResponseError::InvalidConfig, error.to_string())
    };
    with_group_config(&kafka.coordinators.groups.default_options(), &config).map_err(invalid)?;
    if validate_only {
        return Ok(());
    }
    let (kafka, name) = (Arc::clone(kafka), name.to_owned());
    let changing = async move {
        let _turn = turn;
        store(&kafka, ResourceType::Group, &name, config.clone()).await?;
        kafka.coordinators.groups.set_config_of(&name, &config).map_err(invalid)
    };
    in_any_case(changing).await
}

/// Changes the settings of a subscription to metrics of clients.
pub(super) async fn alter_client_metrics(
    kafka: &Arc<KafkaServer>,
    name: &str,
    change: impl FnOnce(&mut BTreeMap<String, String>),
    validate_only: bool,
) -> Result<(), KafkaApiError> {
    check_name(name, "Subscription name can't be empty")?;
    let turn = Arc::clone(&kafka.settings.changes).lock_owned().await;
    let resource = ResourceType::ClientMetrics;
    let mut config = kafka.engine.groups().config(resource, name).map_err(unreadable)?;
    let is_new = config.is_empty();
    change(&mut config);
    check_subscription(&config).map_err(|error| {
        let code = match error {
            SubscriptionError::InvalidPattern(_)
            | SubscriptionError::TooMany(_)
            | SubscriptionError::NoNumber(_)
            | SubscriptionError::EmptyItem(_) => ResponseError::InvalidConfig,
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
    let (kafka, name) = (Arc::clone(kafka), name.to_owned());
    let changing = async move {
        let _turn = turn;
        store(&kafka, resource, &name, config.clone()).await?;
        let subscribed = kafka.client_metrics.subscribe(&name, &config);
        subscribed
            .map_err(|error| KafkaApiError::new(ResponseError::InvalidConfig, error.to_string()))
    };
    in_any_case(changing).await
}

/// Stores settings and puts them into force, also if the client goes away meanwhile: settings that
/// are stored are in force.
async fn in_any_case(
    changing: impl Future<Output = Result<(), KafkaApiError>> + Send + 'static,
) -> Result<(), KafkaApiError> {
    let result = tokio::spawn(changing).await;
    result
        .map_err(|error| KafkaApiError::new(ResponseError::UnknownServerError, error.to_string()))?
}

/// Changes the settings of this server that change while it runs, or those of all servers if it has
/// no name.
pub(super) async fn alter_broker(
    kafka: &Arc<KafkaServer>,
    name: &str,
    change: impl FnOnce(&mut BTreeMap<String, String>),
    validate_only: bool,
) -> Result<(), KafkaApiError> {
    if name != ALL_BROKERS {
        check_node_id(kafka, name)?;
    }
    let turn = Arc::clone(&kafka.settings.changes).lock_owned().await;
    let mut configs = kafka.dynamic_configs().map_err(unreadable)?;
    let config = if name == ALL_BROKERS { &mut configs.of_all } else { &mut configs.own };
    let before = config.clone();
    change(config);
    if *config == before {
        return Ok(());
    }
    let config = config.clone();
    let refuse = |message: String| KafkaApiError::new(ResponseError::InvalidRequest, message);
    for (name, value) in &config {
        if value.len() > VALUE_BYTES_MAX {
            let message = format!("{name}: its value is longer than {VALUE_BYTES_MAX} bytes.");
            return Err(refuse(message));
        }
    }
    let Some(settings) = kafka.settings.source.get().map(Arc::clone) else {
        return Err(refuse("This server's settings cannot be changed while it runs.".to_owned()));
    };
    // It may read files.
    let preparing = tokio::task::spawn_blocking(move || settings.prepare(&configs));
    let prepared = preparing.await.map_err(|error| refuse(error.to_string()))?;
    let prepared = prepared.map_err(|invalid| refuse(invalid.to_string()))?;
    if validate_only {
        return Ok(());
    }
    let (kafka, name) = (Arc::clone(kafka), name.to_owned());
    let changing = async move {
        let _turn = turn;
        store(&kafka, ResourceType::Broker, &name, config).await?;
        kafka.put_into_force(prepared).await;
        tracing::info!(broker = name, "settings were changed by a client");
        Ok(())
    };
    in_any_case(changing).await
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

/// Logs that settings cannot be read, and returns the error for the client.
pub(super) fn unreadable(error: EngineError) -> KafkaApiError {
    tracing::error!(%error, "settings cannot be read");
    KafkaApiError::new(engine_error(&error), error.to_string())
}
