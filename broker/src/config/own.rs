//! Our own settings by section and name, in one table.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use compat_zk::SaslUsers;
use engine::security::Principal;
use rdma::CompletionMode;
use storage::Durability;
use storage::proof::{SigningKey, read_signing_key};
use tls::{ClientAuthentication, Secret};

use super::tls_settings::{cipher_suites, password_at, store_type, versions};
use super::value::{ExpectedForm, SettingValue};
use super::{Config, memory};
use crate::links::DeviceSelection;
use crate::mount_users::MountUsers;

/// One of our own settings.
pub(super) struct OwnSetting {
    /// Section and name.
    pub(super) key: &'static str,
    pub(super) default: &'static str,
    pub(super) apply: fn(&mut Config, &mut SettingValue) -> Result<(), ExpectedForm>,
}

const fn setting(
    key: &'static str,
    default: &'static str,
    apply: fn(&mut Config, &mut SettingValue) -> Result<(), ExpectedForm>,
) -> OwnSetting {
    OwnSetting { key, default, apply }
}

const MIB: i64 = 1 << 20;
const TIB: i64 = 1 << 40;
const I32_MAX: i64 = i32::MAX as i64;
/// As many partitions of transactions as the journal has room for, with some that are being ended
/// beside them.
const ENLISTED_MAX: i64 = 100_000;
const SHORTEST: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const CENTURY: Duration = Duration::from_secs(36_525 * 24 * 60 * 60);

/// Reads the signing key from a file. Warns if other users can read it, because a signature then
/// proves little.
fn signing_key(path: &str, warnings: &mut Vec<String>) -> Result<Arc<SigningKey>, ExpectedForm> {
    let (key, is_open) = read_signing_key(Path::new(path)).map_err(|error| error.to_string())?;
    if is_open {
        warnings.push(format!(
            "storage.signing-key: others than its owner may read {path}; chmod 600 {path}"
        ));
    }
    Ok(Arc::new(key))
}

/// Milliseconds, or -1 for what follows from `tickTime`.
fn unless_default(value: &mut SettingValue) -> Result<Option<u32>, ExpectedForm> {
    Ok(u32::try_from(value.whole(-1, I32_MAX)?).ok())
}

/// Refuses `true` for a check that this server does not have.
fn unless_true(value: &mut SettingValue, reason: &str) -> Result<(), ExpectedForm> {
    if value.boolean()? {
        return Err(format!("give false: {reason}"));
    }
    Ok(())
}

pub(super) const SETTINGS: &[OwnSetting] = &[
    setting("server.data-dir", "./freezeframe-data", |config, value| {
        if value.text().is_empty() {
            return Err("give a directory".to_owned());
        }
        config.data_dir = value.text().into();
        Ok(())
    }),
    setting("server.kafka", "127.0.0.1:9092", |config, value| {
        config.kafka = value.listen()?;
        Ok(())
    }),
    setting("server.http", "off", |config, value| {
        config.http = value.listen()?;
        Ok(())
    }),
    setting("server.http-tls", "off", |config, value| {
        config.http_tls = value.listen()?;
        Ok(())
    }),
    setting("server.http-hosts", "", |config, value| {
        config.http_hosts = value.host_names()?;
        Ok(())
    }),
    setting("server.zookeeper", "off", |config, value| {
        config.zookeeper = value.listen()?;
        Ok(())
    }),
    setting("server.zookeeper-tls", "off", |config, value| {
        config.zookeeper_tls = value.listen()?;
        Ok(())
    }),
    setting("server.mount", "", |config, value| {
        let directories = value.text().split(':').filter(|directory| !directory.is_empty());
        config.mounts = directories.map(Into::into).collect();
        Ok(())
    }),
    setting("server.mount-users", "", |config, value| {
        config.mount_users = mount_users(value.text(), "/etc/passwd".as_ref())?;
        Ok(())
    }),
    setting("server.durability", "fsync", |config, value| {
        config.engine.core.storage.durability = match value.word(&["fsync", "os"])? {
            "os" => Durability::Written,
            _ => Durability::Synced,
        };
        Ok(())
    }),
    setting("tls.kernel", "false", |config, value| {
        config.tls_in_kernel = value.boolean()?;
        Ok(())
    }),
    setting("rdma.devices", "auto", |config, value| {
        config.links.devices = match value.text() {
            "auto" => DeviceSelection::Auto,
            "off" => DeviceSelection::Off,
            names if names.split(',').all(|name| !name.trim().is_empty()) => {
                DeviceSelection::Named(
                    names.split(',').map(|name| name.trim().to_owned()).collect(),
                )
            }
            _ => return Err("auto, off, or names of devices with commas between".to_owned()),
        };
        Ok(())
    }),
    setting("rdma.memory-max", "auto", |config, value| {
        config.links.memory_bytes_max = match value.text() {
            "auto" => None,
            _ => {
                Some(value.bytes(4 * MIB, TIB).map_err(|expected| expected + ", or auto")? as usize)
            }
        };
        Ok(())
    }),
    setting("rdma.completions", "sleep", |config, value| {
        config.links.completion_mode = match value.word(&["sleep", "spin"])? {
            "spin" => CompletionMode::Spin,
            _ => CompletionMode::Sleep,
        };
        Ok(())
    }),
    setting("storage.tail-bytes", "auto", |config, value| {
        config.engine.core.storage.tail_bytes_max = match value.text() {
            "auto" => memory::tail_bytes(memory::limit(Path::new("/"))),
            _ => value.bytes(0, TIB).map_err(|expected| expected + ", or auto")? as usize,
        };
        Ok(())
    }),
    setting("storage.segment-bytes", "256MiB", |config, value| {
        config.engine.core.storage.segment_bytes_max = value.bytes(MIB, TIB)? as u64;
        Ok(())
    }),
    setting("storage.segment-frames", "100000", |config, value| {
        config.engine.core.storage.segment_frames_max = value.whole(1000, 100_000_000)? as u64;
        Ok(())
    }),
    setting("storage.segment-age-min", "1m", |config, value| {
        config.engine.core.maintenance.segment_age_min = value.time(SHORTEST, CENTURY)?;
        Ok(())
    }),
    setting("storage.index-bytes", "32MiB", |config, value| {
        config.engine.core.storage.index_bytes_max = value.bytes(MIB, TIB)? as usize;
        Ok(())
    }),
    setting("storage.deleted-topic-retention", "7d", |config, value| {
        config.engine.core.deleted_topic_retention = value.time(Duration::ZERO, CENTURY)?;
        Ok(())
    }),
    setting("storage.offsets-retention", "7d", |config, value| {
        config.engine.groups.offsets_retention = value.time(Duration::ZERO, CENTURY)?;
        Ok(())
    }),
    setting("storage.signing-key", "", |config, value| {
        config.engine.core.signing_key = match value.text() {
            "" => None,
            path => Some(signing_key(path, &mut config.warnings)?),
        };
        Ok(())
    }),
    setting("clock.skew-max", "500ms", |config, value| {
        config.engine.core.storage.clock.skew_max = value.time(SHORTEST, HOUR)?;
        Ok(())
    }),
    setting("clock.bound-ahead", "1s", |config, value| {
        config.engine.core.storage.clock.bound_ahead =
            value.time(Duration::from_millis(100), HOUR)?;
        Ok(())
    }),
    setting("clock.start-gap", "1h", |config, value| {
        config.engine.core.storage.clock.start_gap = value.time(Duration::from_secs(1), CENTURY)?;
        Ok(())
    }),
    setting("clock.trust-after", "24h", |config, value| {
        config.engine.core.storage.clock.trust_after =
            value.time(Duration::from_secs(1), CENTURY)?;
        Ok(())
    }),
    setting("limits.partitions-max", "10000", |config, value| {
        config.engine.core.partitions_max = value.whole(1, 1_000_000)? as u32;
        Ok(())
    }),
    setting("limits.topics-max", "100000", |config, value| {
        config.engine.core.topics_max = value.whole(1, I32_MAX)? as usize;
        Ok(())
    }),
    setting("limits.all-partitions-max", "500000", |config, value| {
        config.engine.core.all_partitions_max = value.whole(1, I32_MAX)? as usize;
        Ok(())
    }),
    setting("limits.flight-bytes", "32MiB", |config, value| {
        config.engine.core.in_flight_bytes_max = value.bytes(MIB, TIB)? as usize;
        Ok(())
    }),
    setting("limits.security-bytes-max", "64MiB", |config, value| {
        config.engine.security.bytes_max = value.bytes(MIB, 1 << 30)? as usize;
        Ok(())
    }),
    setting("limits.pins-max", "100", |config, value| {
        config.engine.core.pins_max = value.whole(0, 10_000)? as usize;
        Ok(())
    }),
    setting("limits.cut-cache-bytes", "16MiB", |config, value| {
        config.engine.core.cut_cache_bytes_max = value.bytes(0, TIB)? as usize;
        Ok(())
    }),
    setting("limits.unpacked-bytes", "128MiB", |config, value| {
        config.kafka_server.decompressed_bytes_max = value.bytes(MIB, TIB)? as usize;
        Ok(())
    }),
    setting("limits.answer-bytes", "256MiB", |config, value| {
        config.kafka_server.responses_bytes_max = value.bytes(MIB, TIB)? as usize;
        Ok(())
    }),
    setting("limits.stall-max", "60s", |config, value| {
        config.kafka_server.transfer_limits.stall_max = value.time(SECOND, HOUR)?;
        Ok(())
    }),
    setting("limits.rate-min", "4KiB", |config, value| {
        config.kafka_server.transfer_limits.rate_min = value.bytes(1, I32_MAX)? as u32;
        Ok(())
    }),
    setting("limits.moment-patience", "5s", |config, value| {
        config.kafka_server.moment_patience = value.time(Duration::ZERO, HOUR)?;
        config.zookeeper_server.moment_patience = config.kafka_server.moment_patience;
        Ok(())
    }),
    setting("limits.open-files-max", "128", |config, value| {
        config.kafka_server.open_files_max = value.whole(1, 1_000_000)? as usize;
        Ok(())
    }),
    setting("limits.transactional-ids-bytes", "384MiB", |config, value| {
        config.kafka_server.transactions.ids_bytes_max = value.bytes(64 << 10, TIB)? as usize;
        Ok(())
    }),
    setting("limits.transaction-partitions-max", "100000", |config, value| {
        config.kafka_server.transactions.enlisted_max = value.whole(1, ENLISTED_MAX)? as usize;
        Ok(())
    }),
    setting("limits.transaction-offsets-bytes", "128MiB", |config, value| {
        config.kafka_server.transactions.offsets_bytes_max = value.bytes(64 << 10, TIB)? as usize;
        Ok(())
    }),
    setting("limits.groups-max", "100000", |config, value| {
        config.kafka_server.groups.groups_max = value.whole(1, I32_MAX)? as usize;
        Ok(())
    }),
    setting("limits.groups-bytes", "512MiB", |config, value| {
        config.kafka_server.groups.groups_bytes_max = value.bytes(MIB, TIB)? as usize;
        Ok(())
    }),
    setting("limits.group-bytes", "64MiB", |config, value| {
        config.kafka_server.groups.group_bytes_max = value.bytes(MIB, TIB)? as usize;
        Ok(())
    }),
    setting("limits.member-bytes", "1MiB", |config, value| {
        config.kafka_server.groups.member_bytes_max = value.bytes(1024, TIB)? as usize;
        Ok(())
    }),
    setting("limits.pending-members-max", "10000", |config, value| {
        config.kafka_server.groups.pending_members_max = value.whole(1, I32_MAX)? as usize;
        Ok(())
    }),
    setting("zookeeper.tickTime", "2000", |config, value| {
        config.zookeeper_server.tick_ms = value.whole(1, 3_600_000)? as u32;
        Ok(())
    }),
    setting("zookeeper.minSessionTimeout", "-1", |config, value| {
        config.zookeeper_server.session_timeout_ms_min = unless_default(value)?;
        Ok(())
    }),
    setting("zookeeper.maxSessionTimeout", "-1", |config, value| {
        config.zookeeper_server.session_timeout_ms_max = unless_default(value)?;
        Ok(())
    }),
    setting("zookeeper.maxCnxns", "4096", |config, value| {
        config.zookeeper_server.connections_max = value.whole(1, I32_MAX)? as usize;
        Ok(())
    }),
    setting("zookeeper.maxClientCnxns", "60", |config, value| {
        config.zookeeper_server.connections_per_address_max = value.whole(0, I32_MAX)? as usize;
        Ok(())
    }),
    setting("zookeeper.sessions-max", "100000", |config, value| {
        config.zookeeper_server.sessions_max = value.whole(1, I32_MAX)? as usize;
        Ok(())
    }),
    setting("zookeeper.znodes-max", "10000000", |config, value| {
        config.engine.znodes.znodes_max = value.whole(16, u32::MAX.into())? as u64;
        Ok(())
    }),
    setting("zookeeper.znode-bytes-max", "16GiB", |config, value| {
        config.engine.znodes.znode_bytes_max = value.bytes(MIB, 1024 * TIB)? as u64;
        Ok(())
    }),
    setting("zookeeper.watches-bytes-max", "256MiB", |config, value| {
        config.zookeeper_server.watches_bytes_max = value.bytes(MIB, TIB)? as usize;
        Ok(())
    }),
    setting("zookeeper.jute.maxbuffer", "1048575", |config, value| {
        config.zookeeper_server.frame_bytes_max = value.whole(1024, 1 << 30)? as usize;
        Ok(())
    }),
    setting("zookeeper.extendedTypesEnabled", "false", |config, value| {
        config.zookeeper_server.extended_types = value.boolean()?;
        Ok(())
    }),
    setting("zookeeper.reconfigEnabled", "false", |config, value| {
        config.zookeeper_server.reconfig_enabled = value.boolean()?;
        Ok(())
    }),
    setting("zookeeper.superDigest", "", |config, value| {
        config.zookeeper_server.super_digest =
            Some(Secret::new(value.text())).filter(|digest| !digest.is_empty());
        Ok(())
    }),
    setting("zookeeper.superUser", "", |config, value| {
        config.zookeeper_server.super_user =
            Some(value.text().to_owned()).filter(|text| !text.is_empty());
        Ok(())
    }),
    setting("zookeeper.sasl.serverconfig", "Server", |config, value| {
        config.zookeeper_server.login_section = value.text().to_owned();
        Ok(())
    }),
    setting("zookeeper.sasl.login-config", "", |config, value| {
        config.zookeeper_server.sasl_users = match value.text() {
            "" => SaslUsers::default(),
            path => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("give a file that can be read: {error}"))?;
                SaslUsers::from_login_config(&text, &config.zookeeper_server.login_section)?
            }
        };
        Ok(())
    }),
    setting("zookeeper.ssl.keyStore.location", "", |config, value| {
        config.zookeeper_tls_options.key_store.path = value.text().into();
        Ok(())
    }),
    setting("zookeeper.ssl.keyStore.type", "", |_, value| store_type(value)),
    setting("zookeeper.ssl.keyStore.password", "", |config, value| {
        config.zookeeper_tls_options.key_store.password = Secret::new(value.text());
        Ok(())
    }),
    setting("zookeeper.ssl.keyStore.passwordPath", "", |config, value| {
        password_at(value, &mut config.zookeeper_tls_options.key_store)
    }),
    setting("zookeeper.ssl.trustStore.location", "", |config, value| {
        config.zookeeper_tls_options.trust_store.path = value.text().into();
        Ok(())
    }),
    setting("zookeeper.ssl.trustStore.type", "", |_, value| store_type(value)),
    setting("zookeeper.ssl.trustStore.password", "", |config, value| {
        config.zookeeper_tls_options.trust_store.password = Secret::new(value.text());
        Ok(())
    }),
    setting("zookeeper.ssl.trustStore.passwordPath", "", |config, value| {
        password_at(value, &mut config.zookeeper_tls_options.trust_store)
    }),
    setting("zookeeper.ssl.clientAuth", "need", |config, value| {
        let authentication = match value.text().to_ascii_lowercase().as_str() {
            "none" => ClientAuthentication::None,
            "want" => ClientAuthentication::Want,
            "need" | "" => ClientAuthentication::Need,
            _ => return Err("give need, want or none".to_owned()),
        };
        config.zookeeper_tls_options.client_authentication = authentication;
        Ok(())
    }),
    setting("zookeeper.ssl.enabledProtocols", "TLSv1.3,TLSv1.2", |config, value| {
        versions(value, &mut config.zookeeper_tls_options)
    }),
    setting("zookeeper.ssl.ciphersuites", "", |config, value| {
        let (options, warnings) = (&mut config.zookeeper_tls_options, &mut config.warnings);
        cipher_suites("zookeeper.ssl.ciphersuites", value, options, warnings)
    }),
    setting("zookeeper.ssl.clientHostnameVerification", "false", |_, value| {
        unless_true(value, "the names of clients' machines are not looked at in their certificates")
    }),
    setting("zookeeper.ssl.crl", "false", |_, value| {
        unless_true(value, "no lists of revoked certificates are fetched")
    }),
    setting("zookeeper.ssl.ocsp", "false", |_, value| {
        unless_true(value, "nobody is asked whether a certificate was revoked")
    }),
    setting("zookeeper.client.portUnification", "false", |config, value| {
        config.zookeeper_unified = value.boolean()?;
        Ok(())
    }),
    setting("zookeeper.X509AuthenticationProvider.superUser", "", |config, value| {
        config.zookeeper_server.x509_super_user =
            Some(value.text().to_owned()).filter(|text| !text.is_empty());
        Ok(())
    }),
    setting("zookeeper.enforce.auth.schemes", "", |config, value| {
        let schemes = value.text().split(',').map(str::trim).filter(|scheme| !scheme.is_empty());
        let schemes: BTreeSet<String> = schemes.map(str::to_owned).collect();
        if let Some(unknown) =
            schemes.iter().find(|scheme| !["digest", "sasl", "x509", "ip"].contains(&&***scheme))
        {
            return Err(format!("give some of digest, sasl, x509, ip; {unknown} is none"));
        }
        if schemes.contains("sasl") && config.zookeeper_server.sasl_users.is_empty() {
            return Err("give the users of SASL with zookeeper.sasl.login-config".to_owned());
        }
        config.zookeeper_server.required_schemes = schemes;
        Ok(())
    }),
    setting("zookeeper.znode.container.checkIntervalMs", "60000", |config, value| {
        let ms = value.whole(1, I32_MAX)? as u64;
        config.zookeeper_server.container_check_interval = Duration::from_millis(ms);
        Ok(())
    }),
    setting("zookeeper.znode.container.maxPerMinute", "10000", |config, value| {
        config.zookeeper_server.container_reaps_per_minute = value.whole(1, I32_MAX)? as u32;
        Ok(())
    }),
    setting("zookeeper.znode.container.maxNeverUsedIntervalMs", "0", |config, value| {
        let ms = value.whole(0, I32_MAX)? as u64;
        config.zookeeper_server.container_never_used =
            Some(Duration::from_millis(ms)).filter(|time| !time.is_zero());
        Ok(())
    }),
    setting("zookeeper.enforceQuota", "false", |config, value| {
        config.engine.znodes.enforces_quotas = value.boolean()?;
        Ok(())
    }),
    setting("zookeeper.cached-bytes-max", "1GiB", |config, value| {
        config.engine.znodes.cached_bytes_max = value.bytes(0, TIB)? as u64;
        Ok(())
    }),
    setting("zookeeper.history-retention", "7d", |config, value| {
        config.engine.znodes.history_retention = value.time(Duration::ZERO, CENTURY)?;
        Ok(())
    }),
    setting("zookeeper.4lw.commands.whitelist", "srvr", |config, value| {
        let words = value.text().split(',').map(str::trim).filter(|word| !word.is_empty());
        config.zookeeper_server.four_letter_words = words.map(str::to_owned).collect();
        Ok(())
    }),
];

/// `USER=PRINCIPAL`, several with commas between. A user is a number, or a name in the list of
/// users in the file `names`.
fn mount_users(text: &str, names: &Path) -> Result<MountUsers, ExpectedForm> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    pairs.map(|pair| mount_user(pair, names)).collect()
}

fn mount_user(pair: &str, names: &Path) -> Result<(u32, Principal), ExpectedForm> {
    let form =
        || "give USER=PRINCIPAL, several with commas between, such as alice=User:alice".to_owned();
    let (user, principal) = pair.split_once('=').ok_or_else(form)?;
    let (user, name) = (user.trim(), principal.trim().strip_prefix("User:").ok_or_else(form)?);
    if user.is_empty() || name.is_empty() {
        return Err(form());
    }
    let number = user.parse().ok().or_else(|| {
        let users = std::fs::read_to_string(names).ok()?;
        let line = users.lines().find(|line| line.split(':').next() == Some(user))?;
        line.split(':').nth(2)?.parse().ok()
    });
    let unknown = || format!("there is no user {user} in {}: give its number", names.display());
    Ok((number.ok_or_else(unknown)?, Principal::user(name)))
}
