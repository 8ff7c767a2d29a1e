//! The broker's settings by their Kafka names, in one table.
//!
//! There are three kinds of names. A setting may have an effect here. A setting that Kafka knows
//! may have no effect, which is reported once with the reason. A setting may ask for protection
//! that this version does not have. It is refused, because ignoring it would look like protection.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use compat_kafka::RateOptions;
use engine::security::TokenKey;
use kafka_groups::{Assignor, ConsumerOptions, MigrationPolicy, ShareOptions, StreamsOptions};
use tls::{ClientAuthentication, Secret};

use super::Config;
use super::listeners::{advertised, listeners, protocols};
use super::security_settings::{
    authorizer_class, mechanisms, principal_rules, super_users, token_keys,
};
use super::tls_settings::{cipher_suites, store_type, versions};
use super::value::{ExpectedForm, SettingValue};

/// A setting that has an effect here.
pub(super) struct KafkaSetting {
    pub(super) name: &'static str,
    /// As Kafka spells it; `None` if leaving it out has a meaning of its own.
    pub(super) default: Option<&'static str>,
    pub(super) effect: KafkaSettingEffect,
}

pub(super) enum KafkaSettingEffect {
    /// It sets an option of the broker.
    Broker(fn(&mut Config, &mut SettingValue) -> Result<(), ExpectedForm>),
    /// It sets a secret option of the broker, which is never shown.
    Secret(fn(&mut Config, &str)),
    /// It sets the default of a topic setting. The number is how many of the topic's units are in
    /// one unit of the broker's.
    Topic(&'static str, i64),
}

use KafkaSettingEffect::{Broker, Secret as SecretEffect, Topic};

const fn setting(
    name: &'static str,
    default: &'static str,
    effect: KafkaSettingEffect,
) -> KafkaSetting {
    KafkaSetting { name, default: Some(default), effect }
}

const fn unset(name: &'static str, effect: KafkaSettingEffect) -> KafkaSetting {
    KafkaSetting { name, default: None, effect }
}

const fn secret(name: &'static str, apply: fn(&mut Config, &str)) -> KafkaSetting {
    KafkaSetting { name, default: None, effect: SecretEffect(apply) }
}

const I32_MAX: i64 = i32::MAX as i64;
const MIB: i64 = 1 << 20;
const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
const SHORTEST: Duration = Duration::from_millis(1);
const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

/// All settings. Of two settings with the same effect, the later one in the table wins. This is
/// Kafka's precedence: milliseconds before minutes before hours.
pub(super) const SETTINGS: &[KafkaSetting] = &[
    unset("broker.id", Broker(node_id)),
    setting("node.id", "1", Broker(node_id)),
    unset(
        "broker.rack",
        Broker(|config, value| {
            config.kafka_server.rack =
                Some(value.text().to_owned()).filter(|rack| !rack.is_empty());
            Ok(())
        }),
    ),
    unset(
        "listeners",
        Broker(|config, value| {
            config.listeners.listeners = listeners(value.text())?;
            Ok(())
        }),
    ),
    unset(
        "advertised.listeners",
        Broker(|config, value| {
            config.listeners.advertised = advertised(value.text())?;
            Ok(())
        }),
    ),
    setting(
        "listener.security.protocol.map",
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        Broker(|config, value| {
            config.listeners.protocols = protocols(value.text())?;
            Ok(())
        }),
    ),
    unset(
        "ssl.keystore.location",
        Broker(|config, value| {
            config.kafka_security.tls.key_store.set_path(value.text().as_ref());
            Ok(())
        }),
    ),
    secret("ssl.keystore.password", |config, text| {
        config.kafka_security.tls.key_store.password = Secret::new(text);
    }),
    secret("ssl.key.password", |config, text| {
        config.kafka_security.tls.key_store.key_password = Secret::new(text);
    }),
    setting("ssl.keystore.type", "JKS", Broker(|_, value| store_type(value))),
    secret("ssl.keystore.key", |config, text| {
        config.kafka_security.tls.key_store.set_pem_key(text);
    }),
    secret("ssl.keystore.certificate.chain", |config, text| {
        config.kafka_security.tls.key_store.set_pem_certificates(text);
    }),
    unset(
        "ssl.truststore.location",
        Broker(|config, value| {
            config.kafka_security.tls.trust_store.set_path(value.text().as_ref());
            Ok(())
        }),
    ),
    secret("ssl.truststore.password", |config, text| {
        config.kafka_security.tls.trust_store.password = Secret::new(text);
    }),
    setting("ssl.truststore.type", "JKS", Broker(|_, value| store_type(value))),
    secret("ssl.truststore.certificates", |config, text| {
        config.kafka_security.tls.trust_store.set_pem_certificates(text);
    }),
    setting(
        "ssl.client.auth",
        "none",
        Broker(|config, value| {
            let word = value.word(&["none", "requested", "required"])?;
            config.kafka_security.tls.client_authentication = match word {
                "requested" => ClientAuthentication::Want,
                "required" => ClientAuthentication::Need,
                _ => ClientAuthentication::None,
            };
            Ok(())
        }),
    ),
    setting(
        "ssl.enabled.protocols",
        "TLSv1.2,TLSv1.3",
        Broker(|config, value| versions(value, &mut config.kafka_security.tls)),
    ),
    setting(
        "ssl.cipher.suites",
        "",
        Broker(|config, value| {
            let (options, warnings) = (&mut config.kafka_security.tls, &mut config.warnings);
            cipher_suites("ssl.cipher.suites", value, options, warnings)
        }),
    ),
    setting(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        Broker(|config, value| principal_rules(value, &mut config.kafka_security)),
    ),
    setting(
        "sasl.enabled.mechanisms",
        "SCRAM-SHA-256,SCRAM-SHA-512",
        Broker(|config, value| mechanisms(value, &mut config.kafka_security)),
    ),
    setting(
        "connections.max.reauth.ms",
        "0",
        Broker(|config, value| {
            let max = value.time(Duration::ZERO, YEAR)?;
            let max = Some(max).filter(|max| !max.is_zero());
            config.kafka_security.sasl.reauthentication_max = max;
            Ok(())
        }),
    ),
    setting(
        "sasl.server.max.receive.size",
        "524288",
        Broker(|config, value| {
            config.kafka_security.sasl.receive_bytes_max = value.bytes(1024, 100 * MIB)? as usize;
            Ok(())
        }),
    ),
    setting(
        "connection.failed.authentication.delay.ms",
        "100",
        Broker(|config, value| {
            config.kafka_security.sasl.failure_delay =
                value.time(Duration::ZERO, Duration::from_secs(10))?;
            Ok(())
        }),
    ),
    unset(
        "sasl.oauthbearer.jwks.endpoint.url",
        Broker(|config, value| token_keys(value, &mut config.kafka_security.tokens)),
    ),
    setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "3600000",
        Broker(|config, value| {
            config.kafka_security.tokens.refresh = value.time(Duration::from_secs(1), YEAR)?;
            Ok(())
        }),
    ),
    setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "100",
        Broker(|config, value| {
            config.kafka_security.tokens.retry = value.time(SHORTEST, YEAR)?;
            Ok(())
        }),
    ),
    setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "10000",
        Broker(|config, value| {
            config.kafka_security.tokens.retry_max = value.time(SHORTEST, YEAR)?;
            Ok(())
        }),
    ),
    setting(
        "sasl.oauthbearer.expected.audience",
        "",
        Broker(|config, value| {
            let names = value.text().split(',').map(str::trim).filter(|name| !name.is_empty());
            config.kafka_security.tokens.audiences = names.map(str::to_owned).collect();
            Ok(())
        }),
    ),
    unset(
        "sasl.oauthbearer.expected.issuer",
        Broker(|config, value| {
            let issuer = Some(value.text().to_owned()).filter(|issuer| !issuer.is_empty());
            config.kafka_security.tokens.issuer = issuer;
            Ok(())
        }),
    ),
    setting(
        "sasl.oauthbearer.clock.skew.seconds",
        "30",
        Broker(|config, value| {
            let seconds = value.whole(0, 86_400)?;
            config.kafka_security.tokens.clock_skew = Duration::from_secs(seconds as u64);
            Ok(())
        }),
    ),
    setting(
        "sasl.oauthbearer.sub.claim.name",
        "sub",
        Broker(|config, value| {
            if value.text().is_empty() {
                return Err("give the name of a claim, such as sub".to_owned());
            }
            config.kafka_security.tokens.subject_claim = value.text().to_owned();
            Ok(())
        }),
    ),
    setting(
        "authorizer.class.name",
        "",
        Broker(|config, value| authorizer_class(value, &mut config.engine.security.authorizer)),
    ),
    setting(
        "super.users",
        "",
        Broker(|config, value| super_users(value, &mut config.engine.security.authorizer)),
    ),
    setting(
        "allow.everyone.if.no.acl.found",
        "false",
        Broker(|config, value| {
            config.engine.security.authorizer.allow_everyone_if_no_acl_found = value.boolean()?;
            Ok(())
        }),
    ),
    setting(
        "num.partitions",
        "1",
        Broker(|config, value| {
            config.kafka_server.partitions = value.whole(1, 10_000)? as u32;
            Ok(())
        }),
    ),
    setting(
        "auto.create.topics.enable",
        "true",
        Broker(|config, value| {
            config.kafka_server.auto_create_topics = value.boolean()?;
            Ok(())
        }),
    ),
    setting(
        "delete.topic.enable",
        "true",
        Broker(|config, value| {
            config.kafka_server.delete_topics = value.boolean()?;
            Ok(())
        }),
    ),
    setting(
        "default.replication.factor",
        "1",
        Broker(|_, value| {
            value.whole(1, 1).map(drop).map_err(|_| "give 1: there is one server".to_owned())
        }),
    ),
    setting(
        "socket.request.max.bytes",
        "104857600",
        Broker(|config, value| {
            config.kafka_server.request_bytes_max = value.bytes(1024, I32_MAX)? as usize;
            Ok(())
        }),
    ),
    setting(
        "queued.max.request.bytes",
        "536870912",
        Broker(|config, value| {
            let bytes = value.bytes(-1, i64::MAX)?;
            if (0..MIB).contains(&bytes) {
                return Err("give 1MiB or more, or -1 for no limit".to_owned());
            }
            config.kafka_server.requests_bytes_max = usize::try_from(bytes).unwrap_or(usize::MAX);
            Ok(())
        }),
    ),
    setting(
        "max.connections",
        "4096",
        Broker(|config, value| {
            config.kafka_server.dynamic.limits.max = value.whole(1, I32_MAX)? as usize;
            Ok(())
        }),
    ),
    setting(
        "max.connections.per.ip",
        "2147483647",
        Broker(|config, value| {
            config.kafka_server.dynamic.connections_per_ip_max = value.whole(1, I32_MAX)? as usize;
            Ok(())
        }),
    ),
    setting(
        "max.connections.per.ip.overrides",
        "",
        Broker(|config, value| {
            config.kafka_server.dynamic.connections_per_ip_overrides =
                address_limits(value.text())?;
            Ok(())
        }),
    ),
    setting(
        "max.connection.creation.rate",
        "2147483647",
        Broker(|config, value| {
            let rate = value.whole(1, I32_MAX)?;
            config.kafka_server.dynamic.limits.rate_max = (rate < I32_MAX).then_some(rate as u32);
            Ok(())
        }),
    ),
    secret("delegation.token.secret.key", |config, text| {
        config.engine.security.token_key = (!text.is_empty()).then(|| TokenKey::new(text));
    }),
    setting(
        "delegation.token.max.lifetime.ms",
        "604800000",
        Broker(|config, value| {
            config.kafka_server.token_lifetime_max = value.time(SHORTEST, 100 * YEAR)?;
            Ok(())
        }),
    ),
    setting(
        "delegation.token.expiry.time.ms",
        "86400000",
        Broker(|config, value| {
            config.kafka_server.token_renewal_max = value.time(SHORTEST, 100 * YEAR)?;
            Ok(())
        }),
    ),
    setting(
        "quota.window.num",
        "11",
        Broker(|config, value| samples(&mut config.kafka_server.quota_rates.clients, value)),
    ),
    setting(
        "quota.window.size.seconds",
        "1",
        Broker(|config, value| sample(&mut config.kafka_server.quota_rates.clients, value)),
    ),
    setting(
        "controller.quota.window.num",
        "11",
        Broker(|config, value| samples(&mut config.kafka_server.quota_rates.mutations, value)),
    ),
    setting(
        "controller.quota.window.size.seconds",
        "1",
        Broker(|config, value| sample(&mut config.kafka_server.quota_rates.mutations, value)),
    ),
    setting(
        "connections.max.idle.ms",
        "600000",
        Broker(|config, value| {
            config.kafka_server.idle_max = value.time(Duration::from_secs(1), 52 * WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "fetch.max.bytes",
        "57671680",
        Broker(|config, value| {
            config.kafka_server.fetch_bytes_max = value.bytes(1024, I32_MAX)? as usize;
            Ok(())
        }),
    ),
    setting(
        "max.incremental.fetch.session.cache.slots",
        "1000",
        Broker(|config, value| {
            config.kafka_server.fetch_sessions_max = value.whole(0, 1_000_000)? as usize;
            Ok(())
        }),
    ),
    setting(
        "offset.metadata.max.bytes",
        "4096",
        Broker(|config, value| {
            config.kafka_server.offset_metadata_bytes_max = value.bytes(0, MIB)? as usize;
            Ok(())
        }),
    ),
    setting(
        "group.initial.rebalance.delay.ms",
        "3000",
        Broker(|config, value| {
            config.kafka_server.groups.initial_rebalance_delay =
                value.time(Duration::ZERO, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "group.min.session.timeout.ms",
        "6000",
        Broker(|config, value| {
            config.kafka_server.groups.session_timeout_min = value.time(SHORTEST, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "group.max.session.timeout.ms",
        "1800000",
        Broker(|config, value| {
            config.kafka_server.groups.session_timeout_max = value.time(SHORTEST, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "offsets.retention.minutes",
        "10080",
        Broker(|config, value| {
            let minutes = value.whole(1, I32_MAX)? as u64;
            config.kafka_server.groups.offsets_retention = Duration::from_secs(60 * minutes);
            Ok(())
        }),
    ),
    setting(
        "offsets.retention.check.interval.ms",
        "600000",
        Broker(|config, value| {
            config.kafka_server.groups.offsets_check_interval = value.time(SHORTEST, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "transaction.max.timeout.ms",
        "900000",
        Broker(|config, value| {
            config.kafka_server.transactions.timeout_max = value.time(SHORTEST, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "transactional.id.expiration.ms",
        "604800000",
        Broker(|config, value| {
            config.kafka_server.transactions.id_expiration = value.time(SHORTEST, YEAR)?;
            Ok(())
        }),
    ),
    setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "10000",
        Broker(|config, value| {
            config.kafka_server.transactions.abort_interval = value.time(SHORTEST, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "3600000",
        Broker(|config, value| {
            config.kafka_server.transactions.removal_interval = value.time(SHORTEST, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "group.max.size",
        "2147483647",
        Broker(|config, value| {
            config.kafka_server.groups.group_max_size = value.whole(1, I32_MAX)? as usize;
            Ok(())
        }),
    ),
    setting(
        "group.consumer.session.timeout.ms",
        "45000",
        Broker(|config, value| {
            consumer_groups(config).session_timeout = value.time(SHORTEST, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "group.consumer.heartbeat.interval.ms",
        "5000",
        Broker(|config, value| {
            consumer_groups(config).heartbeat_interval = value.time(SHORTEST, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "group.consumer.assignment.interval.ms",
        "1000",
        Broker(|config, value| {
            consumer_groups(config).assignment_interval = value.time(Duration::ZERO, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "group.consumer.max.size",
        "2147483647",
        Broker(|config, value| {
            consumer_groups(config).group_max_size = value.whole(1, I32_MAX)? as usize;
            Ok(())
        }),
    ),
    setting(
        "group.consumer.assignors",
        "uniform,range",
        Broker(|config, value| {
            let assignors = value.text().split(',').map(|name| Assignor::named(name.trim()));
            let assignors: Option<Vec<Assignor>> = assignors.collect();
            consumer_groups(config).assignors = assignors
                .filter(|assignors| !assignors.is_empty())
                .ok_or_else(|| "give one or more of: uniform, range".to_owned())?;
            Ok(())
        }),
    ),
    setting(
        "group.consumer.migration.policy",
        "bidirectional",
        Broker(|config, value| {
            let word = value.word(&["bidirectional", "upgrade", "downgrade", "disabled"])?;
            consumer_groups(config).migration = match word {
                "upgrade" => MigrationPolicy::Upgrade,
                "downgrade" => MigrationPolicy::Downgrade,
                "disabled" => MigrationPolicy::Disabled,
                _ => MigrationPolicy::Bidirectional,
            };
            Ok(())
        }),
    ),
    setting(
        "telemetry.max.bytes",
        "1048576",
        Broker(|config, value| {
            config.kafka_server.telemetry_bytes_max = value.bytes(1, I32_MAX)? as usize;
            Ok(())
        }),
    ),
    setting(
        "group.share.session.timeout.ms",
        "45000",
        Broker(|config, value| {
            share_groups(config).session_timeout = value.time(SHORTEST, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "group.share.heartbeat.interval.ms",
        "5000",
        Broker(|config, value| {
            share_groups(config).heartbeat_interval = value.time(SHORTEST, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "group.share.assignment.interval.ms",
        "1000",
        Broker(|config, value| {
            share_groups(config).assignment_interval = value.time(Duration::ZERO, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "group.share.max.size",
        "200",
        Broker(|config, value| {
            share_groups(config).group_max_size = value.whole(1, 1000)? as usize;
            Ok(())
        }),
    ),
    setting(
        "group.share.max.share.sessions",
        "2000",
        Broker(|config, value| {
            share_groups(config).sessions_max = value.whole(1, I32_MAX)? as usize;
            Ok(())
        }),
    ),
    setting(
        "group.share.record.lock.duration.ms",
        "30000",
        Broker(|config, value| {
            share_groups(config).record_lock = value.time(Duration::from_secs(1), WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "group.share.delivery.count.limit",
        "5",
        Broker(|config, value| {
            share_groups(config).deliveries_max = value.whole(2, 10)? as u16;
            Ok(())
        }),
    ),
    setting(
        "group.share.partition.max.record.locks",
        "2000",
        Broker(|config, value| {
            share_groups(config).in_flight_max = value.whole(100, 10_000)? as usize;
            Ok(())
        }),
    ),
    setting(
        "group.streams.session.timeout.ms",
        "45000",
        Broker(|config, value| {
            streams_groups(config).session_timeout = value.time(SHORTEST, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "group.streams.heartbeat.interval.ms",
        "5000",
        Broker(|config, value| {
            streams_groups(config).heartbeat_interval = value.time(SHORTEST, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "group.streams.assignment.interval.ms",
        "1000",
        Broker(|config, value| {
            streams_groups(config).assignment_interval = value.time(Duration::ZERO, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "group.streams.initial.rebalance.delay.ms",
        "3000",
        Broker(|config, value| {
            streams_groups(config).initial_rebalance_delay = value.time(Duration::ZERO, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "group.streams.max.size",
        "2147483647",
        Broker(|config, value| {
            streams_groups(config).group_max_size = value.whole(1, I32_MAX)? as usize;
            Ok(())
        }),
    ),
    setting(
        "group.streams.num.standby.replicas",
        "0",
        Broker(|config, value| {
            streams_groups(config).standbys = value.whole(0, 2)? as u32;
            Ok(())
        }),
    ),
    setting(
        "log.retention.check.interval.ms",
        "300000",
        Broker(|config, value| {
            config.engine.core.maintenance.retention_interval = value.time(SHORTEST, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "log.cleaner.backoff.ms",
        "15000",
        Broker(|config, value| {
            config.engine.core.maintenance.dynamic.compaction_interval =
                value.time(SHORTEST, WEEK)?;
            Ok(())
        }),
    ),
    setting(
        "log.cleaner.dedupe.buffer.size",
        "134217728",
        Broker(|config, value| {
            config.engine.core.maintenance.dynamic.compaction_bytes_max =
                value.bytes(MIB, 1 << 40)? as usize;
            Ok(())
        }),
    ),
    setting("compression.gzip.level", "-1", Topic("compression.gzip.level", 1)),
    setting("compression.lz4.level", "9", Topic("compression.lz4.level", 1)),
    setting("compression.type", "producer", Topic("compression.type", 1)),
    setting("compression.zstd.level", "3", Topic("compression.zstd.level", 1)),
    setting("log.cleaner.delete.retention.ms", "86400000", Topic("delete.retention.ms", 1)),
    setting(
        "log.cleaner.max.compaction.lag.ms",
        "9223372036854775807",
        Topic("max.compaction.lag.ms", 1),
    ),
    setting("log.cleaner.min.cleanable.ratio", "0.5", Topic("min.cleanable.dirty.ratio", 1)),
    setting("log.cleaner.min.compaction.lag.ms", "0", Topic("min.compaction.lag.ms", 1)),
    setting("log.cleanup.policy", "delete", Topic("cleanup.policy", 1)),
    setting("log.flush.interval.messages", "9223372036854775807", Topic("flush.messages", 1)),
    unset("log.flush.interval.ms", Topic("flush.ms", 1)),
    setting("log.index.interval.bytes", "4096", Topic("index.interval.bytes", 1)),
    setting("log.index.size.max.bytes", "10485760", Topic("segment.index.bytes", 1)),
    setting("log.local.retention.bytes", "-2", Topic("local.retention.bytes", 1)),
    setting("log.local.retention.ms", "-2", Topic("local.retention.ms", 1)),
    setting(
        "log.message.timestamp.after.max.ms",
        "3600000",
        Topic("message.timestamp.after.max.ms", 1),
    ),
    setting(
        "log.message.timestamp.before.max.ms",
        "9223372036854775807",
        Topic("message.timestamp.before.max.ms", 1),
    ),
    setting("log.message.timestamp.type", "CreateTime", Topic("message.timestamp.type", 1)),
    setting("log.preallocate", "false", Topic("preallocate", 1)),
    setting("log.retention.bytes", "-1", Topic("retention.bytes", 1)),
    setting("log.retention.hours", "168", Topic("retention.ms", HOUR_MS)),
    unset("log.retention.minutes", Topic("retention.ms", MINUTE_MS)),
    unset("log.retention.ms", Topic("retention.ms", 1)),
    setting("log.roll.hours", "168", Topic("segment.ms", HOUR_MS)),
    unset("log.roll.ms", Topic("segment.ms", 1)),
    setting("log.roll.jitter.hours", "0", Topic("segment.jitter.ms", HOUR_MS)),
    unset("log.roll.jitter.ms", Topic("segment.jitter.ms", 1)),
    setting("log.segment.bytes", "1073741824", Topic("segment.bytes", 1)),
    setting("log.segment.delete.delay.ms", "60000", Topic("file.delete.delay.ms", 1)),
    setting("message.max.bytes", "1048588", Topic("max.message.bytes", 1)),
    setting("min.insync.replicas", "1", Topic("min.insync.replicas", 1)),
    setting("unclean.leader.election.enable", "false", Topic("unclean.leader.election.enable", 1)),
];

fn share_groups(config: &mut Config) -> &mut ShareOptions {
    &mut config.kafka_server.groups.share
}

fn streams_groups(config: &mut Config) -> &mut StreamsOptions {
    &mut config.kafka_server.groups.streams
}

fn consumer_groups(config: &mut Config) -> &mut ConsumerOptions {
    &mut config.kafka_server.groups.consumer
}

/// `ADDRESS:COUNT`, several with commas between.
fn address_limits(text: &str) -> Result<BTreeMap<IpAddr, usize>, ExpectedForm> {
    let limits = text.split(',').map(str::trim).filter(|limit| !limit.is_empty());
    let limit = |limit: &str| {
        let (address, count) = limit.rsplit_once(':')?;
        let address = address.trim().trim_start_matches('[').trim_end_matches(']');
        let address: IpAddr = address.parse().ok()?;
        Some((address.to_canonical(), count.trim().parse::<u32>().ok()? as usize))
    };
    let limits: Option<BTreeMap<IpAddr, usize>> = limits.map(limit).collect();
    limits.ok_or_else(|| "give ADDRESS:COUNT, several with commas between".to_owned())
}

/// Over how many samples the rates of quotas are measured.
fn samples(rates: &mut RateOptions, value: &mut SettingValue) -> Result<(), ExpectedForm> {
    rates.samples = value.whole(1, 1000)? as u32;
    Ok(())
}

/// The length of a sample of the rates of quotas, in seconds.
fn sample(rates: &mut RateOptions, value: &mut SettingValue) -> Result<(), ExpectedForm> {
    rates.sample = Duration::from_secs(value.whole(1, 86_400)? as u64);
    Ok(())
}

fn node_id(config: &mut Config, value: &mut SettingValue) -> Result<(), ExpectedForm> {
    config.kafka_server.node_id = value.whole(0, I32_MAX)? as i32;
    Ok(())
}
