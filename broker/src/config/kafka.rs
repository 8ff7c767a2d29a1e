//! The broker's settings that have an effect here, by their Kafka names.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use engine::security::TokenKey;
use kafka_groups::{Assignor, ConsumerOptions, MigrationPolicy, ShareOptions, StreamsOptions};
use tls::{ClientAuthentication, Secret};

use super::Config;
use super::listeners::{advertised, listeners, protocols};
use super::security_settings::{
    authorizer_class, mechanisms, principal_rules, super_users, token_keys,
};
use super::setting::UpdateMode::{ClusterWide, PerBroker};
use super::setting::{ServerSetting, kafka, kafka_unset};
use super::tls_settings::{cipher_suites, store_type, versions};
use super::value::{ExpectedForm, given, list};

const I32_MAX: i64 = i32::MAX as i64;
const MIB: i64 = 1 << 20;
const SHORTEST: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const DAY_SECONDS: u64 = 24 * 60 * 60;
const WEEK: Duration = Duration::from_secs(7 * DAY_SECONDS);
const IDLE_MAX: Duration = Duration::from_secs(52 * 7 * DAY_SECONDS);
const YEAR: Duration = Duration::from_secs(365 * DAY_SECONDS);
const CENTURY: Duration = Duration::from_secs(100 * 365 * DAY_SECONDS);
const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

/// Of two settings with the same effect, the later one in the table wins. This is Kafka's
/// precedence: milliseconds before minutes before hours.
pub(super) const SETTINGS: &[ServerSetting] = &[
    kafka_unset("broker.id", "INT").about("Another name of node.id.").whole(
        0,
        I32_MAX,
        set_node_id,
    ),
    kafka("node.id", "INT", "1").about("The number of this server.").whole(0, I32_MAX, set_node_id),
    kafka_unset("broker.rack", "STRING")
        .about("The rack of this server, which clients are told.")
        .text(|config, text| config.kafka_server.rack = given(text)),
    kafka_unset("listeners", "LIST")
        .about("The ports for Kafka's clients, as NAME://HOST:PORT with commas between them.")
        .parsed(|config, value| {
            config.listeners.listeners = listeners(value.text())?;
            Ok(())
        }),
    kafka_unset("advertised.listeners", "LIST")
        .about(
            "The address of each port that clients are told to connect to; without it, the one \
             that they came to.",
        )
        .parsed(|config, value| {
            config.listeners.advertised = advertised(value.text())?;
            Ok(())
        }),
    kafka(
        "listener.security.protocol.map",
        "STRING",
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
    )
    .about("The security protocol of each listener: NAME:PROTOCOL with commas between them.")
    .parsed(|config, value| {
        config.listeners.protocols = protocols(value.text())?;
        Ok(())
    }),
    kafka_unset("ssl.keystore.location", "STRING")
        .about("The file with the server's key and certificates.")
        .update(PerBroker)
        .text(|config, text| config.kafka_security.tls.key_store.set_path(text.as_ref())),
    kafka_unset("ssl.keystore.password", "PASSWORD")
        .about("The password of the key store. A secret.")
        .secret(|config, text| config.kafka_security.tls.key_store.password = Secret::new(text)),
    kafka_unset("ssl.key.password", "PASSWORD")
        .about("The password of the key in the key store. A secret.")
        .secret(|config, text| {
            config.kafka_security.tls.key_store.key_password = Secret::new(text)
        }),
    kafka("ssl.keystore.type", "STRING", "JKS")
        .about("JKS, PKCS12 or PEM. It does not matter: the file says what it is.")
        .update(PerBroker)
        .parsed(|_, value| store_type(value)),
    kafka_unset("ssl.keystore.key", "PASSWORD")
        .about("The server's key, in PEM, in place of a file. A secret.")
        .secret(|config, text| config.kafka_security.tls.key_store.set_pem_key(text)),
    kafka_unset("ssl.keystore.certificate.chain", "PASSWORD")
        .about("The server's certificates, in PEM, in place of a file.")
        .secret(|config, text| config.kafka_security.tls.key_store.set_pem_certificates(text)),
    kafka_unset("ssl.truststore.location", "STRING")
        .about("The file with the certificate authorities of clients.")
        .update(PerBroker)
        .text(|config, text| config.kafka_security.tls.trust_store.set_path(text.as_ref())),
    kafka_unset("ssl.truststore.password", "PASSWORD")
        .about("The password of the trust store. A secret.")
        .secret(|config, text| config.kafka_security.tls.trust_store.password = Secret::new(text)),
    kafka("ssl.truststore.type", "STRING", "JKS")
        .about("JKS, PKCS12 or PEM. It does not matter: the file says what it is.")
        .update(PerBroker)
        .parsed(|_, value| store_type(value)),
    kafka_unset("ssl.truststore.certificates", "PASSWORD")
        .about("The certificate authorities of clients, in PEM, in place of a file.")
        .secret(|config, text| config.kafka_security.tls.trust_store.set_pem_certificates(text)),
    kafka("ssl.client.auth", "STRING", "none")
        .about("Whether clients show certificates: required, requested or none.")
        .update(PerBroker)
        .parsed(|config, value| {
            config.kafka_security.tls.client_authentication = value.one_of(&[
                ("none", ClientAuthentication::None),
                ("requested", ClientAuthentication::Want),
                ("required", ClientAuthentication::Need),
            ])?;
            Ok(())
        }),
    kafka("ssl.enabled.protocols", "LIST", "TLSv1.2,TLSv1.3")
        .about("The versions of TLS.")
        .update(PerBroker)
        .parsed(|config, value| versions(value, &mut config.kafka_security.tls)),
    kafka("ssl.cipher.suites", "LIST", "")
        .about("Cipher suites by Java's names, with commas between them.")
        .update(PerBroker)
        .parsed(|config, value| {
            let (options, warnings) = (&mut config.kafka_security.tls, &mut config.warnings);
            cipher_suites("ssl.cipher.suites", value, options, warnings)
        }),
    kafka("ssl.principal.mapping.rules", "STRING", "DEFAULT")
        .about("The rules that map the name in a certificate to a principal.")
        .parsed(|config, value| principal_rules(value, &mut config.kafka_security)),
    kafka("sasl.enabled.mechanisms", "LIST", "SCRAM-SHA-256,SCRAM-SHA-512")
        .about("The mechanisms of SASL: SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, OAUTHBEARER.")
        .parsed(|config, value| mechanisms(value, &mut config.kafka_security)),
    kafka("connections.max.reauth.ms", "LONG", "0")
        .about("The time for which a login by SASL is valid, in milliseconds; 0 for no limit.")
        .time(Duration::ZERO, YEAR, |config, time| {
            config.kafka_security.sasl.reauthentication_max = (!time.is_zero()).then_some(time);
        }),
    kafka("sasl.server.max.receive.size", "INT", "524288")
        .about("The longest message of a login, in bytes.")
        .bytes(1024, 100 * MIB, |config, bytes| {
            config.kafka_security.sasl.receive_bytes_max = bytes as usize
        }),
    kafka("connection.failed.authentication.delay.ms", "INT", "100")
        .about("The delay of the response to a refused login, in milliseconds.")
        .time(Duration::ZERO, Duration::from_secs(10), |config, time| {
            config.kafka_security.sasl.failure_delay = time
        }),
    kafka_unset("sasl.oauthbearer.jwks.endpoint.url", "STRING")
        .about("The keys that sign tokens: a URL, or a file.")
        .parsed(|config, value| token_keys(value, &mut config.kafka_security.tokens)),
    kafka("sasl.oauthbearer.jwks.endpoint.refresh.ms", "LONG", "3600000")
        .about("The interval at which the keys that sign tokens are read again, in milliseconds.")
        .time(SECOND, YEAR, |config, time| config.kafka_security.tokens.refresh = time),
    kafka("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", "LONG", "100")
        .about(
            "The first pause after the keys that sign tokens could not be read, in milliseconds.",
        )
        .time(SHORTEST, YEAR, |config, time| config.kafka_security.tokens.retry = time),
    kafka("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", "LONG", "10000")
        .about(
            "The longest pause after the keys that sign tokens could not be read, in milliseconds.",
        )
        .time(SHORTEST, YEAR, |config, time| config.kafka_security.tokens.retry_max = time),
    kafka("sasl.oauthbearer.expected.audience", "LIST", "")
        .about("The audiences of tokens that are accepted, with commas between them.")
        .text(|config, text| {
            config.kafka_security.tokens.audiences = list(text).map(str::to_owned).collect();
        }),
    kafka_unset("sasl.oauthbearer.expected.issuer", "STRING")
        .about("The issuer of tokens that are accepted.")
        .text(|config, text| config.kafka_security.tokens.issuer = given(text)),
    kafka("sasl.oauthbearer.clock.skew.seconds", "INT", "30")
        .about("The most that the clock of an issuer of tokens may be wrong, in seconds.")
        .whole(0, 86_400, |config, seconds| {
            config.kafka_security.tokens.clock_skew = Duration::from_secs(seconds as u64);
        }),
    kafka("sasl.oauthbearer.sub.claim.name", "STRING", "sub")
        .about("The claim with the name of the user.")
        .parsed(|config, value| {
            if value.text().is_empty() {
                return Err("give the name of a claim, such as sub".to_owned());
            }
            config.kafka_security.tokens.subject_claim = value.text().to_owned();
            Ok(())
        }),
    kafka("authorizer.class.name", "STRING", "")
        .about(
            "org.apache.kafka.metadata.authorizer.StandardAuthorizer, so that rules say who may \
             do what; empty for no rules.",
        )
        .parsed(|config, value| authorizer_class(value, &mut config.engine.security.authorizer)),
    kafka("super.users", "STRING", "")
        .about("Principals who may do everything, with semicolons between them.")
        .parsed(|config, value| super_users(value, &mut config.engine.security.authorizer)),
    kafka("allow.everyone.if.no.acl.found", "BOOLEAN", "false")
        .about("Whether a resource without access control lists is open to everybody.")
        .boolean(|config, is_on| {
            config.engine.security.authorizer.allow_everyone_if_no_acl_found = is_on
        }),
    kafka("num.partitions", "INT", "1")
        .about("The partitions of a topic that is created without a number.")
        .whole(1, 10_000, |config, count| config.kafka_server.partitions = count as u32),
    kafka("auto.create.topics.enable", "BOOLEAN", "true")
        .about("Whether a topic is created when a client asks for it.")
        .boolean(|config, is_on| config.kafka_server.auto_create_topics = is_on),
    kafka("delete.topic.enable", "BOOLEAN", "true")
        .about("Whether topics can be deleted.")
        .boolean(|config, is_on| config.kafka_server.delete_topics = is_on),
    kafka("default.replication.factor", "INT", "1").about("Only 1: there is one server.").parsed(
        |_, value| {
            value.whole(1, 1).map(drop).map_err(|_| "give 1: there is one server".to_owned())
        },
    ),
    kafka("socket.request.max.bytes", "INT", "104857600")
        .about("The longest request, in bytes.")
        .bytes(1024, I32_MAX, |config, bytes| {
            config.kafka_server.request_bytes_max = bytes as usize
        }),
    kafka("queued.max.request.bytes", "LONG", "536870912")
        .about("The bytes of large requests that arrived and are not answered, of all connections.")
        .parsed(|config, value| {
            let bytes = value.bytes(-1, i64::MAX)?;
            if (0..MIB).contains(&bytes) {
                return Err("give 1MiB or more, or -1 for no limit".to_owned());
            }
            config.kafka_server.requests_bytes_max = usize::try_from(bytes).unwrap_or(usize::MAX);
            Ok(())
        }),
    kafka("max.connections", "INT", "4096")
        .about("The most connections of Kafka's clients.")
        .update(ClusterWide)
        .whole(1, I32_MAX, |config, count| config.kafka_server.dynamic.limits.max = count as usize),
    kafka("max.connections.per.ip", "INT", "2147483647")
        .about("The most connections of one address.")
        .update(ClusterWide)
        .whole(1, I32_MAX, |config, count| {
            config.kafka_server.dynamic.connections_per_ip_max = count as usize
        }),
    kafka("max.connections.per.ip.overrides", "STRING", "")
        .about("The most connections of single addresses: ADDRESS:COUNT with commas between them.")
        .update(ClusterWide)
        .parsed(|config, value| {
            config.kafka_server.dynamic.connections_per_ip_overrides =
                address_limits(value.text())?;
            Ok(())
        }),
    kafka("max.connection.creation.rate", "INT", "2147483647")
        .about("The most new connections a second.")
        .update(ClusterWide)
        .whole(1, I32_MAX, |config, rate| {
            config.kafka_server.dynamic.limits.rate_max = (rate < I32_MAX).then_some(rate as u32);
        }),
    kafka_unset("delegation.token.secret.key", "PASSWORD")
        .about("The secret that delegation tokens are made with; without it there are none.")
        .secret(|config, text| {
            config.engine.security.token_key = (!text.is_empty()).then(|| TokenKey::new(text))
        }),
    kafka("delegation.token.max.lifetime.ms", "LONG", "604800000")
        .about("The longest life of a delegation token, in milliseconds.")
        .time(SHORTEST, CENTURY, |config, time| config.kafka_server.token_lifetime_max = time),
    kafka("delegation.token.expiry.time.ms", "LONG", "86400000")
        .about("The life of a delegation token until it is renewed, in milliseconds.")
        .time(SHORTEST, CENTURY, |config, time| config.kafka_server.token_renewal_max = time),
    kafka("quota.window.num", "INT", "11")
        .about("The windows over which the use of a quota is averaged.")
        .whole(1, 1000, |config, count| {
            config.kafka_server.quota_rates.clients.samples = count as u32;
        }),
    kafka("quota.window.size.seconds", "INT", "1")
        .about("The length of a window over which the use of a quota is averaged, in seconds.")
        .whole(1, 86_400, |config, seconds| {
            config.kafka_server.quota_rates.clients.sample = Duration::from_secs(seconds as u64);
        }),
    kafka("controller.quota.window.num", "INT", "11")
        .about("The windows over which created and deleted partitions are averaged.")
        .whole(1, 1000, |config, count| {
            config.kafka_server.quota_rates.mutations.samples = count as u32;
        }),
    kafka("controller.quota.window.size.seconds", "INT", "1")
        .about(
            "The length of a window over which created and deleted partitions are averaged, in \
             seconds.",
        )
        .whole(1, 86_400, |config, seconds| {
            config.kafka_server.quota_rates.mutations.sample = Duration::from_secs(seconds as u64);
        }),
    kafka("connections.max.idle.ms", "LONG", "600000")
        .about("The idle time after which a connection ends, in milliseconds.")
        .time(SECOND, IDLE_MAX, |config, time| config.kafka_server.idle_max = time),
    kafka("fetch.max.bytes", "INT", "57671680")
        .about("The most bytes of the answer to a fetch.")
        .bytes(1024, I32_MAX, |config, bytes| config.kafka_server.fetch_bytes_max = bytes as usize),
    kafka("max.incremental.fetch.session.cache.slots", "INT", "1000")
        .about("The most fetch sessions.")
        .whole(0, 1_000_000, |config, count| {
            config.kafka_server.fetch_sessions_max = count as usize
        }),
    kafka("offset.metadata.max.bytes", "INT", "4096")
        .about("The longest metadata of a committed offset, in bytes.")
        .bytes(0, MIB, |config, bytes| {
            config.kafka_server.offset_metadata_bytes_max = bytes as usize
        }),
    kafka("group.initial.rebalance.delay.ms", "INT", "3000")
        .about("The time for which a new classic group waits for more members, in milliseconds.")
        .time(Duration::ZERO, WEEK, |config, time| {
            config.kafka_server.groups.initial_rebalance_delay = time
        }),
    kafka("group.min.session.timeout.ms", "INT", "6000")
        .about("The shortest session timeout of a member of a classic group, in milliseconds.")
        .time(SHORTEST, WEEK, |config, time| config.kafka_server.groups.session_timeout_min = time),
    kafka("group.max.session.timeout.ms", "INT", "1800000")
        .about("The longest session timeout of a member of a classic group, in milliseconds.")
        .time(SHORTEST, WEEK, |config, time| config.kafka_server.groups.session_timeout_max = time),
    kafka("offsets.retention.minutes", "INT", "10080")
        .about("The time for which the offsets of a group without members are kept, in minutes.")
        .whole(1, I32_MAX, |config, minutes| {
            config.kafka_server.groups.offsets_retention = Duration::from_secs(60 * minutes as u64);
        }),
    kafka("offsets.retention.check.interval.ms", "LONG", "600000")
        .about("The interval at which expired offsets of groups are removed, in milliseconds.")
        .time(SHORTEST, WEEK, |config, time| {
            config.kafka_server.groups.offsets_check_interval = time
        }),
    kafka("transaction.max.timeout.ms", "INT", "900000")
        .about("The longest timeout that a transaction may have, in milliseconds.")
        .time(SHORTEST, WEEK, |config, time| config.kafka_server.transactions.timeout_max = time),
    kafka("transactional.id.expiration.ms", "INT", "604800000")
        .about("The time without use after which a transactional id is forgotten, in milliseconds.")
        .time(SHORTEST, YEAR, |config, time| config.kafka_server.transactions.id_expiration = time),
    kafka("transaction.abort.timed.out.transaction.cleanup.interval.ms", "INT", "10000")
        .about(
            "The interval at which transactions are checked for their timeouts, in milliseconds.",
        )
        .time(SHORTEST, WEEK, |config, time| {
            config.kafka_server.transactions.abort_interval = time
        }),
    kafka("transaction.remove.expired.transaction.cleanup.interval.ms", "INT", "3600000")
        .about(
            "The interval at which transactional ids are checked for their age, in milliseconds.",
        )
        .time(SHORTEST, WEEK, |config, time| {
            config.kafka_server.transactions.removal_interval = time
        }),
    kafka("group.max.size", "INT", "2147483647")
        .about("The most members of a classic group.")
        .whole(1, I32_MAX, |config, count| {
            config.kafka_server.groups.group_max_size = count as usize
        }),
    kafka("group.consumer.session.timeout.ms", "INT", "45000")
        .about("The session timeout of a member of a consumer group (KIP-848), in milliseconds.")
        .time(SHORTEST, WEEK, |config, time| consumer_groups(config).session_timeout = time),
    kafka("group.consumer.heartbeat.interval.ms", "INT", "5000")
        .about(
            "The interval of heartbeats of a consumer group's member (KIP-848), in milliseconds.",
        )
        .time(SHORTEST, WEEK, |config, time| consumer_groups(config).heartbeat_interval = time),
    kafka("group.consumer.assignment.interval.ms", "INT", "1000")
        .about("The least time between two assignments of a consumer group, in milliseconds.")
        .update(ClusterWide)
        .time(Duration::ZERO, WEEK, |config, time| {
            consumer_groups(config).assignment_interval = time
        }),
    kafka("group.consumer.max.size", "INT", "2147483647")
        .about("The most members of a consumer group.")
        .whole(1, I32_MAX, |config, count| consumer_groups(config).group_max_size = count as usize),
    kafka("group.consumer.assignors", "LIST", "uniform,range")
        .about("The assignors of consumer groups, the default first: uniform, range.")
        .parsed(|config, value| {
            let assignors = value.text().split(',').map(|name| Assignor::named(name.trim()));
            let assignors: Option<Vec<Assignor>> = assignors.collect();
            consumer_groups(config).assignors = assignors
                .filter(|assignors| !assignors.is_empty())
                .ok_or_else(|| "give one or more of: uniform, range".to_owned())?;
            Ok(())
        }),
    kafka("group.consumer.migration.policy", "STRING", "bidirectional")
        .about(
            "Whether classic and consumer groups become each other: disabled, downgrade, \
             upgrade or bidirectional.",
        )
        .parsed(|config, value| {
            consumer_groups(config).migration = value.one_of(&[
                ("bidirectional", MigrationPolicy::Bidirectional),
                ("upgrade", MigrationPolicy::Upgrade),
                ("downgrade", MigrationPolicy::Downgrade),
                ("disabled", MigrationPolicy::Disabled),
            ])?;
            Ok(())
        }),
    kafka("telemetry.max.bytes", "INT", "1048576")
        .about("The most bytes of metrics that a client pushes at once.")
        .bytes(1, I32_MAX, |config, bytes| {
            config.kafka_server.telemetry_bytes_max = bytes as usize
        }),
    kafka("group.share.session.timeout.ms", "INT", "45000")
        .about("The session timeout of a member of a share group (KIP-932), in milliseconds.")
        .time(SHORTEST, WEEK, |config, time| share_groups(config).session_timeout = time),
    kafka("group.share.heartbeat.interval.ms", "INT", "5000")
        .about("The interval of heartbeats of a share group's member (KIP-932), in milliseconds.")
        .time(SHORTEST, WEEK, |config, time| share_groups(config).heartbeat_interval = time),
    kafka("group.share.assignment.interval.ms", "INT", "1000")
        .about("The least time between two assignments of a share group, in milliseconds.")
        .update(ClusterWide)
        .time(Duration::ZERO, WEEK, |config, time| share_groups(config).assignment_interval = time),
    kafka("group.share.max.size", "INT", "200").about("The most members of a share group.").whole(
        1,
        1000,
        |config, count| share_groups(config).group_max_size = count as usize,
    ),
    kafka("group.share.max.share.sessions", "INT", "2000").about("The most share sessions.").whole(
        1,
        I32_MAX,
        |config, count| share_groups(config).sessions_max = count as usize,
    ),
    kafka("group.share.record.lock.duration.ms", "INT", "30000")
        .about(
            "The time for which a record is locked for the member that acquired it, in \
             milliseconds.",
        )
        .time(SECOND, WEEK, |config, time| share_groups(config).record_lock = time),
    kafka("group.share.delivery.count.limit", "INT", "5")
        .about("The most deliveries of a record of a share group.")
        .whole(2, 10, |config, count| share_groups(config).deliveries_max = count as u16),
    kafka("group.share.partition.max.record.locks", "INT", "2000")
        .about(
            "The most records of a partition that are locked for members of a share group at a \
             time.",
        )
        .whole(100, 10_000, |config, count| share_groups(config).in_flight_max = count as usize),
    kafka("group.streams.session.timeout.ms", "INT", "45000")
        .about("The session timeout of a member of a streams group (KIP-1071), in milliseconds.")
        .time(SHORTEST, WEEK, |config, time| streams_groups(config).session_timeout = time),
    kafka("group.streams.heartbeat.interval.ms", "INT", "5000")
        .about(
            "The interval of heartbeats of a streams group's member (KIP-1071), in milliseconds.",
        )
        .time(SHORTEST, WEEK, |config, time| streams_groups(config).heartbeat_interval = time),
    kafka("group.streams.assignment.interval.ms", "INT", "1000")
        .about("The least time between two assignments of a streams group, in milliseconds.")
        .update(ClusterWide)
        .time(Duration::ZERO, WEEK, |config, time| {
            streams_groups(config).assignment_interval = time
        }),
    kafka("group.streams.initial.rebalance.delay.ms", "INT", "3000")
        .about("The time for which a new streams group waits for more members, in milliseconds.")
        .time(Duration::ZERO, WEEK, |config, time| {
            streams_groups(config).initial_rebalance_delay = time
        }),
    kafka("group.streams.max.size", "INT", "2147483647")
        .about("The most members of a streams group.")
        .whole(1, I32_MAX, |config, count| streams_groups(config).group_max_size = count as usize),
    kafka("group.streams.num.standby.replicas", "INT", "0")
        .about("The copies of a task's state that are kept besides the active one.")
        .whole(0, 2, |config, count| streams_groups(config).standbys = count as u32),
    kafka("log.retention.check.interval.ms", "LONG", "300000")
        .about("The interval at which retention is applied, in milliseconds.")
        .time(SHORTEST, WEEK, |config, time| {
            config.engine.core.maintenance.retention_interval = time
        }),
    kafka("log.cleaner.backoff.ms", "LONG", "15000")
        .about("The pause of compaction when there is nothing to compact, in milliseconds.")
        .update(ClusterWide)
        .time(SHORTEST, WEEK, |config, time| {
            config.engine.core.maintenance.dynamic.compaction_interval = time
        }),
    kafka("log.cleaner.dedupe.buffer.size", "LONG", "134217728")
        .about("The memory of compaction, in bytes.")
        .update(ClusterWide)
        .bytes(MIB, 1 << 40, |config, bytes| {
            config.engine.core.maintenance.dynamic.compaction_bytes_max = bytes as usize
        }),
    kafka("compression.gzip.level", "INT", "-1")
        .about("Shown for Kafka's clients; batches are stored as they come.")
        .update(ClusterWide)
        .topic_default("compression.gzip.level", 1),
    kafka("compression.lz4.level", "INT", "9")
        .about("Shown for Kafka's clients; batches are stored as they come.")
        .update(ClusterWide)
        .topic_default("compression.lz4.level", 1),
    kafka("compression.type", "STRING", "producer")
        .about("Shown for Kafka's clients; batches are stored as they come.")
        .update(ClusterWide)
        .topic_default("compression.type", 1),
    kafka("compression.zstd.level", "INT", "3")
        .about("Shown for Kafka's clients; batches are stored as they come.")
        .update(ClusterWide)
        .topic_default("compression.zstd.level", 1),
    kafka("log.cleaner.delete.retention.ms", "LONG", "86400000")
        .about("The time for which a tombstone of a compacted topic is kept, in milliseconds.")
        .update(ClusterWide)
        .topic_default("delete.retention.ms", 1),
    kafka("log.cleaner.max.compaction.lag.ms", "LONG", "9223372036854775807")
        .about("The age after which a record of a compacted topic is compacted, in milliseconds.")
        .update(ClusterWide)
        .topic_default("max.compaction.lag.ms", 1),
    kafka("log.cleaner.min.cleanable.ratio", "DOUBLE", "0.5")
        .about("The share of a compacted topic that has to be new before it is compacted.")
        .update(ClusterWide)
        .topic_default("min.cleanable.dirty.ratio", 1),
    kafka("log.cleaner.min.compaction.lag.ms", "LONG", "0")
        .about("The age before which a record is not compacted, in milliseconds.")
        .update(ClusterWide)
        .topic_default("min.compaction.lag.ms", 1),
    kafka("log.cleanup.policy", "LIST", "delete")
        .about("The cleanup of old records: delete, compact, or both.")
        .update(ClusterWide)
        .topic_default("cleanup.policy", 1),
    kafka("log.flush.interval.messages", "LONG", "9223372036854775807")
        .about(
            "Shown for Kafka's clients; server.durability says when records are on stable \
             storage.",
        )
        .update(ClusterWide)
        .topic_default("flush.messages", 1),
    kafka_unset("log.flush.interval.ms", "LONG")
        .about(
            "Shown for Kafka's clients; server.durability says when records are on stable storage.",
        )
        .update(ClusterWide)
        .topic_default("flush.ms", 1),
    kafka("log.index.interval.bytes", "INT", "4096")
        .about("Shown for Kafka's clients; indexes are made in another way.")
        .update(ClusterWide)
        .topic_default("index.interval.bytes", 1),
    kafka("log.index.size.max.bytes", "INT", "10485760")
        .about("Shown for Kafka's clients; indexes are made in another way.")
        .update(ClusterWide)
        .topic_default("segment.index.bytes", 1),
    kafka("log.local.retention.bytes", "LONG", "-2")
        .about("Shown for Kafka's clients; there is no tiered storage.")
        .update(ClusterWide)
        .topic_default("local.retention.bytes", 1),
    kafka("log.local.retention.ms", "LONG", "-2")
        .about("Shown for Kafka's clients; there is no tiered storage.")
        .update(ClusterWide)
        .topic_default("local.retention.ms", 1),
    kafka("log.message.timestamp.after.max.ms", "LONG", "3600000")
        .about(
            "The most that the time of a record may be ahead of the server's clock, in \
             milliseconds.",
        )
        .update(ClusterWide)
        .topic_default("message.timestamp.after.max.ms", 1),
    kafka("log.message.timestamp.before.max.ms", "LONG", "9223372036854775807")
        .about(
            "The most that the time of a record may be behind the server's clock, in milliseconds.",
        )
        .update(ClusterWide)
        .topic_default("message.timestamp.before.max.ms", 1),
    kafka("log.message.timestamp.type", "STRING", "CreateTime")
        .about("The time of records: CreateTime is the client's, LogAppendTime the server's.")
        .update(ClusterWide)
        .topic_default("message.timestamp.type", 1),
    kafka("log.preallocate", "BOOLEAN", "false")
        .about("Shown for Kafka's clients; the journal preallocates by itself.")
        .update(ClusterWide)
        .topic_default("preallocate", 1),
    kafka("log.retention.bytes", "LONG", "-1")
        .about("The bytes of a partition that are kept; -1 for all.")
        .update(ClusterWide)
        .topic_default("retention.bytes", 1),
    kafka("log.retention.hours", "INT", "168")
        .about("The time for which records are kept, in hours; -1 for no limit.")
        .topic_default("retention.ms", HOUR_MS),
    kafka_unset("log.retention.minutes", "INT")
        .about("The time for which records are kept, in minutes. It overrides log.retention.hours.")
        .topic_default("retention.ms", MINUTE_MS),
    kafka_unset("log.retention.ms", "LONG")
        .about(
            "The time for which records are kept, in milliseconds. It overrides \
             log.retention.minutes.",
        )
        .update(ClusterWide)
        .topic_default("retention.ms", 1),
    kafka("log.roll.hours", "INT", "168")
        .about("The age at which a segment is rolled, in hours; see storage.segment-age-min.")
        .topic_default("segment.ms", HOUR_MS),
    kafka_unset("log.roll.ms", "LONG")
        .about(
            "The age at which a segment is rolled, in milliseconds. It overrides log.roll.hours.",
        )
        .update(ClusterWide)
        .topic_default("segment.ms", 1),
    kafka("log.roll.jitter.hours", "INT", "0")
        .about("Shown for Kafka's clients; all topics share a segment.")
        .topic_default("segment.jitter.ms", HOUR_MS),
    kafka_unset("log.roll.jitter.ms", "LONG")
        .about("Shown for Kafka's clients; all topics share a segment.")
        .update(ClusterWide)
        .topic_default("segment.jitter.ms", 1),
    kafka("log.segment.bytes", "INT", "1073741824")
        .about("Shown for Kafka's clients; storage.segment-bytes says how long a segment is.")
        .update(ClusterWide)
        .topic_default("segment.bytes", 1),
    kafka("log.segment.delete.delay.ms", "LONG", "60000")
        .about("The time for which space stays in use after records were removed, in milliseconds.")
        .update(ClusterWide)
        .topic_default("file.delete.delay.ms", 1),
    kafka("message.max.bytes", "INT", "1048588")
        .about("The longest batch, in bytes.")
        .update(ClusterWide)
        .topic_default("max.message.bytes", 1),
    kafka("min.insync.replicas", "INT", "1")
        .about("Shown for Kafka's clients; there is one server.")
        .update(ClusterWide)
        .topic_default("min.insync.replicas", 1),
    kafka("unclean.leader.election.enable", "BOOLEAN", "false")
        .about("Shown for Kafka's clients; there is one server.")
        .update(ClusterWide)
        .topic_default("unclean.leader.election.enable", 1),
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
    let limit = |limit: &str| {
        let (address, count) = limit.rsplit_once(':')?;
        let address = address.trim().trim_start_matches('[').trim_end_matches(']');
        let address: IpAddr = address.parse().ok()?;
        Some((address.to_canonical(), count.trim().parse::<u32>().ok()? as usize))
    };
    let limits: Option<BTreeMap<IpAddr, usize>> = list(text).map(limit).collect();
    limits.ok_or_else(|| "give ADDRESS:COUNT, several with commas between".to_owned())
}

fn set_node_id(config: &mut Config, id: i64) {
    config.kafka_server.node_id = id as i32;
}
