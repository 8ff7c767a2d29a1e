//! DescribeConfigs (32): settings of topics and of the broker, and the source of each value.

use std::collections::HashSet;
use std::sync::Arc;

use engine::groups::ResourceType;
use engine::security::{Operation, Resource};
use engine::{TopicConfig, TopicDefaults, check_topic_name, topic_config_keys};
use kafka_client_metrics::SUBSCRIPTION_KEYS;
use kafka_groups::{GroupConfigKey, Options as GroupOptions, group_config_keys, with_group_config};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_protocol::messages::{DescribeConfigsRequest, DescribeConfigsResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};
use kafka_topics::{MomentRowQuota, MomentTopicError, ReadableTopic};

use super::resource_configs::unreadable;
use super::support::{KafkaApiError, authorize, error_fields};
use crate::broker_settings::{ALL_BROKERS, BrokerSetting, DynamicOptions, SettingSource};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// Kafka's numbers of resource types.
pub(super) mod resource {
    pub(in crate::apis) const TOPIC: i8 = 2;
    pub(in crate::apis) const BROKER: i8 = 4;
    pub(in crate::apis) const BROKER_LOGGER: i8 = 8;
    pub(in crate::apis) const CLIENT_METRICS: i8 = 16;
    pub(in crate::apis) const GROUP: i8 = 32;
}

/// Kafka's numbers of config sources.
mod source {
    pub(super) const TOPIC: i8 = 1;
    pub(super) const DYNAMIC_BROKER: i8 = 2;
    pub(super) const DYNAMIC_DEFAULT_BROKER: i8 = 3;
    pub(super) const STATIC_BROKER: i8 = 4;
    pub(super) const DEFAULT: i8 = 5;
    pub(super) const CLIENT_METRICS: i8 = 7;
    pub(super) const GROUP: i8 = 8;
}

const TYPE_UNKNOWN: i8 = 0;
/// The type of secret settings.
const SENSITIVE_TYPE: &str = "PASSWORD";
/// From here on responses have types and documentation.
const DOCUMENTED_SINCE: i16 = 3;

impl ApiHandler for DescribeConfigsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: 4 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> DescribeConfigsResponse {
        let mut results = Vec::new();
        let fields = ShownFields {
            synonyms: self.include_synonyms,
            documentation: self.include_documentation && context.version >= DOCUMENTED_SINCE,
        };
        let (mut distinct, mut past) = (HashSet::new(), MomentRowQuota::default());
        // Each resource once. Kafka repeats them, but its clients send a set.
        let is_first = |resource: &DescribeConfigsResource| {
            distinct.insert((resource.resource_type, resource.resource_name.clone()))
        };
        for resource in self.resources.into_iter().filter(is_first) {
            let allowed = authorize_configs(
                kafka,
                context,
                Operation::DescribeConfigs,
                resource.resource_type,
                &resource.resource_name,
            );
            let described = match allowed {
                Ok(()) => describe(kafka, &resource, &fields, &mut past).await,
                Err(denied) => Err(denied),
            };
            let (configs, result) = match described {
                Ok(configs) => (configs, Ok(())),
                Err(refusal) => (Vec::new(), Err(refusal)),
            };
            let (code, message) = error_fields(&result);
            results.push(
                DescribeConfigsResult::default()
                    .with_error_code(code)
                    .with_error_message(message)
                    .with_resource_type(resource.resource_type)
                    .with_resource_name(resource.resource_name)
                    .with_configs(configs),
            );
        }
        DescribeConfigsResponse::default().with_results(results)
    }
}

/// Authorizes an operation on the settings of a resource. One of an unknown type has none.
pub(super) fn authorize_configs(
    kafka: &KafkaServer,
    context: &RequestContext,
    operation: Operation,
    kind: i8,
    name: &str,
) -> Result<(), KafkaApiError> {
    let resource = match kind {
        resource::TOPIC => Resource::topic(name),
        resource::GROUP => Resource::group(name),
        resource::BROKER | resource::BROKER_LOGGER | resource::CLIENT_METRICS => Resource::CLUSTER,
        _ => return Ok(()),
    };
    authorize(kafka, context, operation, resource)
}

/// The fields of settings that a request wants besides their values.
struct ShownFields {
    synonyms: bool,
    documentation: bool,
}

async fn describe(
    kafka: &Arc<KafkaServer>,
    resource: &DescribeConfigsResource,
    fields: &ShownFields,
    past: &mut MomentRowQuota,
) -> Result<Vec<DescribeConfigsResourceResult>, KafkaApiError> {
    let name = &*resource.resource_name;
    let refuse = |message: String| Err(KafkaApiError::new(ResponseError::InvalidRequest, message));
    let mut configs = match resource.resource_type {
        resource::TOPIC => topic_configs(kafka, name, past).await?,
        resource::BROKER => broker_configs(kafka, name)?,
        resource::BROKER_LOGGER if name.is_empty() => {
            return refuse("Broker id must not be empty".to_owned());
        }
        resource::BROKER_LOGGER => {
            check_node_id(kafka, name)?;
            Vec::new()
        }
        resource::CLIENT_METRICS if name.is_empty() => {
            return refuse("Client metrics subscription name must not be empty".to_owned());
        }
        resource::GROUP if name.is_empty() => {
            return refuse("Group name must not be empty".to_owned());
        }
        resource::GROUP => group_configs(kafka, name)?,
        resource::CLIENT_METRICS => client_metrics_configs(kafka, name)?,
        unknown => return refuse(format!("Unsupported resource type: {unknown}")),
    };
    // An empty list asks for all, like a missing one.
    if let Some(keys) = resource.configuration_keys.as_ref().filter(|keys| !keys.is_empty()) {
        configs.retain(|config| keys.contains(&config.name));
    }
    for config in &mut configs {
        if !fields.synonyms {
            config.synonyms.clear();
        }
        if !fields.documentation {
            config.documentation = None;
        }
    }
    Ok(configs)
}

/// A topic's settings. For a moment, the settings at that time.
async fn topic_configs(
    kafka: &Arc<KafkaServer>,
    name: &str,
    past: &mut MomentRowQuota,
) -> Result<Vec<DescribeConfigsResourceResult>, KafkaApiError> {
    let Some(readable) =
        kafka.topics.resolve_within_quota(name, past).await.map_err(moment_error)?
    else {
        check_topic_name(name)?;
        return Err(KafkaApiError::new(
            ResponseError::UnknownTopicOrPartition,
            format!("The topic '{name}' does not exist."),
        ));
    };
    let read_only = matches!(readable, ReadableTopic::Past(_));
    if read_only {
        past.take(topic_config_keys().count()).map_err(moment_error)?;
    }
    let (defaults, broker) = (kafka.engine.topic_defaults(), kafka.settings.options.load());
    Ok(topic_settings(&readable.topic().config, &defaults, &broker)
        .map(|setting| setting.to_result(read_only))
        .collect())
}

/// The error for a moment that cannot be described.
fn moment_error(refused: MomentTopicError) -> KafkaApiError {
    KafkaApiError::new(refused.error(), refused.to_string())
}

/// The broker's settings, or, without a name, those that clients have given to all brokers.
fn broker_configs(
    kafka: &KafkaServer,
    name: &str,
) -> Result<Vec<DescribeConfigsResourceResult>, KafkaApiError> {
    let is_of_all = name == ALL_BROKERS;
    if !is_of_all {
        check_node_id(kafka, name)?;
    }
    let described = |setting: &BrokerSetting| {
        let BrokerSetting { name, type_name, value, given, default, is_dynamic, documentation } =
            setting;
        let (mut value, mut default) = (value.clone(), *default);
        let mut sources: Vec<_> = given
            .iter()
            .map(|(setting_source, value)| (source_of(*setting_source), value))
            .collect();
        if is_of_all {
            sources.retain(|(config_source, _)| *config_source == source::DYNAMIC_DEFAULT_BROKER);
            value = sources.first()?.1.clone();
            default = None;
        }
        let synonyms = sources
            .iter()
            .map(|(config_source, value)| optional_synonym(name, value.as_deref(), *config_source));
        let default = default.map(|default| synonym(name, default, source::DEFAULT));
        let result = DescribeConfigsResourceResult::default()
            .with_name(text(name))
            .with_value(value.as_deref().map(text))
            .with_read_only(!is_dynamic)
            .with_is_sensitive(*type_name == SENSITIVE_TYPE)
            .with_config_source(
                sources.first().map_or(source::DEFAULT, |(config_source, _)| *config_source),
            )
            .with_synonyms(synonyms.chain(default).collect())
            .with_config_type(type_number(type_name))
            .with_documentation(Some(text(documentation)));
        Some(result)
    };
    Ok(kafka.settings.options.load().broker_settings.iter().filter_map(described).collect())
}

/// The documentation of the broker's setting of the same meaning, if there is one.
fn documentation(of_broker: Option<&BrokerSetting>) -> Option<StrBytes> {
    of_broker.map(|setting| text(&setting.documentation))
}

fn source_of(setting_source: SettingSource) -> i8 {
    match setting_source {
        SettingSource::Broker => source::DYNAMIC_BROKER,
        SettingSource::AllBrokers => source::DYNAMIC_DEFAULT_BROKER,
        SettingSource::Static => source::STATIC_BROKER,
    }
}

/// The settings of a subscription, whether there is such a subscription or not.
fn client_metrics_configs(
    kafka: &KafkaServer,
    name: &str,
) -> Result<Vec<DescribeConfigsResourceResult>, KafkaApiError> {
    let config = kafka.engine.groups().config(ResourceType::ClientMetrics, name);
    let config = config.map_err(unreadable)?;
    let described = |(key, type_name): (&'static str, &'static str)| {
        let synonym_of_resource =
            config.get(key).map(|value| synonym(key, value, source::CLIENT_METRICS));
        let value = config.get(key).map_or(subscription_default(key), String::as_str);
        DescribeConfigsResourceResult::default()
            .with_name(StrBytes::from_static_str(key))
            .with_config_source(
                synonym_of_resource.as_ref().map_or(source::DEFAULT, |synonym| synonym.source),
            )
            .with_value(Some(text(value)))
            .with_synonyms(synonym_of_resource.into_iter().collect())
            .with_config_type(type_number(type_name))
            .with_documentation(None)
    };
    Ok(SUBSCRIPTION_KEYS.into_iter().map(described).collect())
}

/// The value that Kafka lists for a setting of a subscription that is not set.
fn subscription_default(key: &str) -> &'static str {
    if key == "interval.ms" { "300000" } else { "" }
}

/// The settings of a group, whether there is such a group or not.
fn group_configs(
    kafka: &KafkaServer,
    name: &str,
) -> Result<Vec<DescribeConfigsResourceResult>, KafkaApiError> {
    let defaults = &*kafka.coordinators.groups.default_options();
    let config = kafka.engine.groups().config(ResourceType::Group, name).map_err(unreadable)?;
    let options = with_group_config(defaults, &config).unwrap_or_else(|_| defaults.clone());
    let broker = kafka.settings.options.load();
    let kafkas = GroupOptions::default();
    let described = |key: &GroupConfigKey| {
        let given_value = config.get(key.name);
        // A text is shown as it was given, a number as it is understood.
        let value = match given_value {
            Some(text) if key.type_name == "STRING" => text.clone(),
            _ => key.value(&options),
        };
        let group_synonym = given_value.map(|value| synonym(key.name, value, source::GROUP));
        let setting = key.synonym.and_then(|name| broker.setting(name));
        let values = setting.into_iter().flat_map(|setting| &setting.given);
        let synonyms = values.map(|(setting_source, value)| {
            optional_synonym(
                key.synonym.unwrap_or(key.name),
                value.as_deref(),
                source_of(*setting_source),
            )
        });
        let default = key.value(&kafkas);
        let default = synonym(key.synonym.unwrap_or(key.name), &default, source::DEFAULT);
        let synonyms: Vec<_> = group_synonym.into_iter().chain(synonyms).chain([default]).collect();
        DescribeConfigsResourceResult::default()
            .with_name(StrBytes::from_static_str(key.name))
            .with_config_source(synonyms[0].source)
            .with_value(Some(StrBytes::from_string(value)))
            .with_synonyms(synonyms)
            .with_config_type(type_number(key.type_name))
            .with_documentation(documentation(setting))
    };
    Ok(group_config_keys().iter().map(described).collect())
}

/// Checks that a broker's name is this broker's id.
pub(super) fn check_node_id(kafka: &KafkaServer, name: &str) -> Result<(), KafkaApiError> {
    let node = kafka.cluster.this_node().0;
    let message = match name.parse::<i32>() {
        // Other spellings (01, +1) were never in any response.
        Ok(id) if id == node && *name == id.to_string() => return Ok(()),
        Ok(id) => {
            format!("Unexpected broker id, expected {node} or empty string, but received {id}")
        }
        Err(_) => format!("Broker id must be an integer, but it is: {name}"),
    };
    Err(KafkaApiError::new(ResponseError::InvalidRequest, message))
}

/// A setting of a topic, and the source of its value.
pub(super) struct KafkaConfigEntry<'a> {
    pub(super) name: &'static str,
    pub(super) value: &'a str,
    pub(super) source: i8,
    /// The type by Kafka's name.
    type_name: &'static str,
    /// The broker's values, the one in force first.
    broker: Vec<(i8, &'a str)>,
    default: &'static str,
    /// The broker's setting of the same meaning.
    of_broker: Option<&'a BrokerSetting>,
}

/// All settings of a topic, by name.
pub(super) fn topic_settings<'a>(
    config: &'a TopicConfig,
    defaults: &'a TopicDefaults,
    options: &'a DynamicOptions,
) -> impl Iterator<Item = KafkaConfigEntry<'a>> {
    topic_config_keys().map(move |(name, default, config_type)| {
        let setting = broker_name(name).and_then(|name| options.setting(name));
        let values = setting.into_iter().flat_map(|setting| &setting.given);
        let mut broker: Vec<(i8, &str)> = values
            .filter_map(|(setting_source, value)| {
                Some((source_of(*setting_source), value.as_deref()?))
            })
            .collect();
        // It may be given by another name, in another unit.
        if broker.is_empty()
            && let Some(value) = defaults.get(name)
        {
            broker.push((source::STATIC_BROKER, value));
        }
        let source = match (config.overrides().contains_key(name), broker.first()) {
            (true, _) => source::TOPIC,
            (false, Some((config_source, _))) => *config_source,
            (false, None) => source::DEFAULT,
        };
        let value = config.value(name, defaults);
        let type_name = config_type.name();
        KafkaConfigEntry { name, value, source, type_name, broker, default, of_broker: setting }
    })
}

impl KafkaConfigEntry<'_> {
    fn to_result(&self, read_only: bool) -> DescribeConfigsResourceResult {
        DescribeConfigsResourceResult::default()
            .with_name(StrBytes::from_static_str(self.name))
            .with_value(Some(text(self.value)))
            .with_read_only(read_only)
            .with_config_source(self.source)
            .with_synonyms(self.synonyms())
            .with_config_type(type_number(self.type_name))
            .with_documentation(documentation(self.of_broker))
    }

    /// Every value that the setting has at some level, the effective one first.
    fn synonyms(&self) -> Vec<DescribeConfigsSynonym> {
        let topic_synonym =
            (self.source == source::TOPIC).then(|| synonym(self.name, self.value, source::TOPIC));
        let name = broker_name(self.name);
        let broker = self.broker.iter();
        let broker = broker.map(|(config_source, value)| {
            synonym(name.unwrap_or(self.name), value, *config_source)
        });
        let default = if BROKER_DEFAULT_IN_OTHER_UNIT.contains(&self.name) {
            None
        } else {
            name.map(|name| synonym(name, self.default, source::DEFAULT))
        };
        topic_synonym.into_iter().chain(broker).chain(default).collect()
    }
}

fn synonym(name: &str, value: &str, source: i8) -> DescribeConfigsSynonym {
    optional_synonym(name, Some(value), source)
}

fn optional_synonym(name: &str, value: Option<&str>, source: i8) -> DescribeConfigsSynonym {
    DescribeConfigsSynonym::default()
        .with_name(text(name))
        .with_value(value.map(text))
        .with_source(source)
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn type_number(name: &str) -> i8 {
    match name {
        "BOOLEAN" => 1,
        "STRING" => 2,
        "INT" => 3,
        "SHORT" => 4,
        "LONG" => 5,
        "DOUBLE" => 6,
        "LIST" => 7,
        "CLASS" => 8,
        SENSITIVE_TYPE => 9,
        _ => TYPE_UNKNOWN,
    }
}

/// For these settings, Kafka's broker has a default only in another unit, which is no synonym.
const BROKER_DEFAULT_IN_OTHER_UNIT: &[&str] =
    &["flush.ms", "retention.ms", "segment.jitter.ms", "segment.ms"];

/// Kafka's broker-level name of a topic's setting, if there is one.
fn broker_name(topic_name: &str) -> Option<&'static str> {
    Some(match topic_name {
        "cleanup.policy" => "log.cleanup.policy",
        "compression.gzip.level" => "compression.gzip.level",
        "compression.lz4.level" => "compression.lz4.level",
        "compression.type" => "compression.type",
        "compression.zstd.level" => "compression.zstd.level",
        "delete.retention.ms" => "log.cleaner.delete.retention.ms",
        "file.delete.delay.ms" => "log.segment.delete.delay.ms",
        "flush.messages" => "log.flush.interval.messages",
        "flush.ms" => "log.flush.interval.ms",
        "index.interval.bytes" => "log.index.interval.bytes",
        "local.retention.bytes" => "log.local.retention.bytes",
        "local.retention.ms" => "log.local.retention.ms",
        "max.compaction.lag.ms" => "log.cleaner.max.compaction.lag.ms",
        "max.message.bytes" => "message.max.bytes",
        "message.timestamp.after.max.ms" => "log.message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms" => "log.message.timestamp.before.max.ms",
        "message.timestamp.type" => "log.message.timestamp.type",
        "min.cleanable.dirty.ratio" => "log.cleaner.min.cleanable.ratio",
        "min.compaction.lag.ms" => "log.cleaner.min.compaction.lag.ms",
        "min.insync.replicas" => "min.insync.replicas",
        "preallocate" => "log.preallocate",
        "retention.bytes" => "log.retention.bytes",
        "retention.ms" => "log.retention.ms",
        "segment.bytes" => "log.segment.bytes",
        "segment.index.bytes" => "log.index.size.max.bytes",
        "segment.jitter.ms" => "log.roll.jitter.ms",
        "segment.ms" => "log.roll.ms",
        "unclean.leader.election.enable" => "unclean.leader.election.enable",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apis::test_server::{ask, kafka, kafka_with, topic};
    use crate::options::KafkaOptions;

    fn resource(resource_type: i8, name: &str) -> DescribeConfigsResource {
        DescribeConfigsResource::default()
            .with_resource_type(resource_type)
            .with_resource_name(text(name))
            .with_configuration_keys(None)
    }

    fn describe_request(resource: DescribeConfigsResource) -> DescribeConfigsRequest {
        DescribeConfigsRequest::default().with_resources(vec![resource]).with_include_synonyms(true)
    }

    async fn describe_one(
        kafka: &Arc<KafkaServer>,
        resource: DescribeConfigsResource,
    ) -> DescribeConfigsResult {
        ask(kafka, 4, describe_request(resource)).await.results.remove(0)
    }

    async fn set(kafka: &Arc<KafkaServer>, name: &str, key: &str, value: &str) {
        let change = |configs: &mut std::collections::BTreeMap<String, String>| {
            configs.insert(key.to_owned(), value.to_owned());
            Ok(())
        };
        kafka.engine.topics().configure(name, change, false).await.unwrap();
    }

    #[tokio::test]
    async fn each_value_says_where_it_comes_from_and_what_it_hides() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        set(&kafka, "a", "retention.ms", "7").await;
        let result = describe_one(&kafka, resource(resource::TOPIC, "a")).await;
        assert_eq!((result.error_code, &result.error_message), (0, &None));
        assert_eq!(result.configs.len(), topic_config_keys().count());
        let config = |name: &str| result.configs.iter().find(|c| &*c.name == name).unwrap();
        let values = |name: &str| -> Vec<(String, String, i8)> {
            let synonyms = config(name).synonyms.iter();
            let plain = |s: &DescribeConfigsSynonym| {
                (s.name.to_string(), s.value.as_ref().unwrap().to_string(), s.source)
            };
            synonyms.map(plain).collect()
        };
        let synonym = |name: &str, value: &str, source| (name.to_owned(), value.to_owned(), source);
        assert_eq!(
            values("retention.ms"),
            [synonym("retention.ms", "7", 1), synonym("log.retention.ms", "5000", 4),]
        );
        // Kafka's broker has that default in hours only.
        assert!(values("segment.ms").is_empty());
        assert_eq!(values("segment.bytes"), [synonym("log.segment.bytes", "1073741824", 5)]);
        assert_eq!(config("retention.ms").config_source, 1);
        assert_eq!(config("retention.ms").config_type, 5);
        assert_eq!(config("cleanup.policy").config_type, 7);
        assert_eq!(config("leader.replication.throttled.replicas").config_type, 7);
        assert!(values("leader.replication.throttled.replicas").is_empty());
        assert!(result.configs.iter().all(|config| !config.read_only));
    }

    #[tokio::test]
    async fn only_what_was_asked_for_is_answered_in_every_version() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        for version in 1..=4 {
            let requested = resource(resource::TOPIC, "a")
                .with_configuration_keys(Some(vec![text("retention.ms"), text("no.such")]));
            let request = describe_request(requested).with_include_synonyms(false);
            let configs = ask(&kafka, version, request).await.results.remove(0).configs;
            assert_eq!(configs.len(), 1);
            assert_eq!(configs[0].value, Some(text("5000")));
            assert_eq!((configs[0].config_source, configs[0].synonyms.len()), (4, 0));
            let request = resource(resource::TOPIC, "a").with_configuration_keys(Some(Vec::new()));
            let configs =
                ask(&kafka, version, describe_request(request)).await.results.remove(0).configs;
            assert_eq!(configs.len(), topic_config_keys().count());
        }
    }

    #[tokio::test]
    async fn a_moment_shows_what_was_set_then_and_can_only_be_read() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        let before = kafka.engine.topics().named("a").unwrap().created;
        let moment = format!("a@sh{:016x}", hlc::Cut::through(before).bound().bits());
        set(&kafka, "a", "retention.ms", "7").await;
        let result = describe_one(&kafka, resource(resource::TOPIC, &moment)).await;
        assert_eq!((result.error_code, &*result.resource_name), (0, &*moment));
        let config = result.configs.iter().find(|c| &*c.name == "retention.ms").unwrap();
        assert_eq!((config.value.clone(), config.config_source), (Some(text("5000")), 4));
        assert!(config.read_only);
    }

    #[tokio::test]
    async fn the_broker_s_settings_stand_under_its_id_and_those_that_nobody_set_are_defaults() {
        let setting =
            |name: &str, type_name, value: Option<&str>, default, is_set: bool| BrokerSetting {
                name: name.to_owned(),
                type_name,
                value: value.map(str::to_owned),
                given: Vec::from_iter(
                    is_set.then(|| (SettingSource::Static, value.map(str::to_owned))),
                ),
                default,
                is_dynamic: false,
                documentation: format!("What {name} is."),
            };
        let broker_settings = vec![
            setting("log.retention.bytes", "LONG", Some("-1"), Some("-1"), false),
            setting("log.retention.hours", "INT", Some("24"), Some("168"), true),
            setting("log.retention.ms", "LONG", Some("5000"), None, true),
            setting("ssl.key.password", "PASSWORD", None, None, true),
            setting("broker.rack", "STRING", None, None, false),
        ];
        let dynamic = DynamicOptions { broker_settings, ..DynamicOptions::default() };
        let kafka = kafka_with(KafkaOptions { dynamic, ..KafkaOptions::default() });
        let broker_result = describe_one(&kafka, resource(resource::BROKER, "1")).await;
        assert_eq!(broker_result.error_code, 0);
        assert!(broker_result.configs.iter().all(|config| config.read_only));
        let [untouched, hours, ms, password, rack] = &broker_result.configs[..] else {
            panic!("{broker_result:?}")
        };
        let types: Vec<i8> =
            broker_result.configs.iter().map(|config| config.config_type).collect();
        assert_eq!(types, [5, 3, 5, 9, 2]);
        assert!(broker_result.configs.iter().all(|config| config.documentation.is_none()));
        assert_eq!(
            (&password.value, password.is_sensitive, password.config_source),
            (&None, true, 4)
        );
        assert_eq!(password.synonyms.len(), 1, "{password:?}");
        assert_eq!((&rack.value, rack.is_sensitive, rack.config_source), (&None, false, 5));
        assert!(rack.synonyms.is_empty(), "{rack:?}");
        let documented = DescribeConfigsRequest::default()
            .with_resources(vec![resource(resource::BROKER, "1")])
            .with_include_documentation(true);
        for version in [1, 4] {
            let answer = ask(&kafka, version, documented.clone()).await;
            let text = answer.results[0].configs[0].documentation.clone();
            let expected = if version == 4 { "What log.retention.bytes is." } else { "" };
            assert_eq!(text.as_deref().unwrap_or(""), expected);
        }
        for (config, value, source, synonyms) in [
            (untouched, "-1", 5, &[("-1", 5)][..]),
            (hours, "24", 4, &[("24", 4), ("168", 5)]),
            (ms, "5000", 4, &[("5000", 4)]),
        ] {
            assert_eq!((config.value.as_deref(), config.config_source), (Some(value), source));
            let values =
                config.synonyms.iter().map(|synonym| (synonym.value.as_deref(), synonym.source));
            assert!(values.eq(synonyms.iter().map(|(value, source)| (Some(*value), *source))));
        }
        let default = describe_one(&kafka, resource(resource::BROKER, "")).await;
        assert_eq!((default.error_code, default.configs.len()), (0, 0));
    }

    #[tokio::test]
    async fn what_has_no_settings_is_empty_or_refused_as_kafka_does() {
        let kafka = kafka();
        let invalid = ResponseError::InvalidRequest.code();
        for (kind, name, code) in [
            (resource::TOPIC, "b", ResponseError::UnknownTopicOrPartition.code()),
            (resource::TOPIC, "", ResponseError::InvalidTopicException.code()),
            (resource::TOPIC, "a b", ResponseError::InvalidTopicException.code()),
            (resource::TOPIC, "b@yesterday", ResponseError::InvalidTopicException.code()),
            (resource::BROKER, "2", invalid),
            (resource::BROKER, "one", invalid),
            (resource::BROKER_LOGGER, "", invalid),
            (resource::BROKER_LOGGER, "2", invalid),
            (resource::BROKER_LOGGER, "1", 0),
            (resource::CLIENT_METRICS, "", invalid),
            (resource::CLIENT_METRICS, "m", 0),
            (resource::GROUP, "", invalid),
            (0, "x", invalid),
            (3, "x", invalid),
        ] {
            let result = describe_one(&kafka, resource(kind, name)).await;
            assert_eq!(result.error_code, code, "{kind} {name}");
            let is_described = code == 0 && kind == resource::CLIENT_METRICS;
            let expected = if is_described { SUBSCRIPTION_KEYS.len() } else { 0 };
            assert_eq!(result.configs.len(), expected, "{kind} {name}");
            assert_eq!(result.error_message.is_none(), code == 0);
        }
    }

    #[tokio::test]
    async fn a_group_has_settings_of_its_own_that_survive_a_restart() {
        let kafka = kafka();
        let key = "share.auto.offset.reset";
        let entry = |result: &DescribeConfigsResult| {
            let config = result.configs.iter().find(|config| &*config.name == key).unwrap();
            (config.value.as_deref().unwrap().to_owned(), config.config_source)
        };
        let described = describe_one(&kafka, resource(resource::GROUP, "g")).await;
        assert_eq!(entry(&described), ("latest".to_owned(), source::DEFAULT));
        assert_eq!(described.configs.len(), group_config_keys().len());
        let change = |configs: &mut std::collections::BTreeMap<String, String>| {
            configs.insert(key.to_owned(), "earliest".to_owned());
        };
        super::super::resource_configs::alter_group(&kafka, "g", change, true).await.unwrap();
        let described = describe_one(&kafka, resource(resource::GROUP, "g")).await;
        assert_eq!(entry(&described).1, source::DEFAULT, "it was only checked");
        super::super::resource_configs::alter_group(&kafka, "g", change, false).await.unwrap();
        let described = describe_one(&kafka, resource(resource::GROUP, "g")).await;
        assert_eq!(entry(&described), ("earliest".to_owned(), source::GROUP));
        assert_eq!(
            kafka.coordinators.groups.options_of("g").share.begin_at,
            kafka_groups::ShareStart::Earliest
        );
        let restarted = KafkaServer::new(Arc::clone(&kafka.engine), Default::default()).unwrap();
        assert_eq!(
            restarted.coordinators.groups.options_of("g").share.begin_at,
            kafka_groups::ShareStart::Earliest
        );
        assert_eq!(
            restarted.coordinators.groups.options_of("h").share.begin_at,
            kafka_groups::ShareStart::Latest
        );
    }

    #[test]
    fn every_setting_that_the_broker_may_have_has_a_name_there() {
        let nameless: Vec<&str> = topic_config_keys()
            .map(|(name, ..)| name)
            .filter(|name| broker_name(name).is_none())
            .collect();
        assert_eq!(
            nameless,
            [
                "follower.replication.throttled.replicas",
                "freezeframe.user.time",
                "freezeframe.user.time.order",
                "freezeframe.user.time.unreadable",
                "leader.replication.throttled.replicas",
                "remote.log.copy.disable",
                "remote.log.delete.on.disable",
                "remote.storage.enable",
            ]
        );
        assert!(topic_config_keys().all(|(.., kind)| type_number(kind.name()) != TYPE_UNKNOWN));
    }
}
