//! Our own settings by section and name, and those of Apache ZooKeeper under `zookeeper.`.

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

use super::memory;
use super::setting::{ServerSetting, own, zookeeper};
use super::tls_settings::{cipher_suites, password_at, store_type, versions};
use super::value::{ExpectedForm, SettingValue, given, list};
use crate::links::DeviceSelection;
use crate::mount_users::MountUsers;

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

/// Refuses `true` for a check that this server does not have.
fn unless_true(value: &mut SettingValue, reason: &str) -> Result<(), ExpectedForm> {
    if value.boolean()? {
        return Err(format!("give false: {reason}"));
    }
    Ok(())
}

pub(super) const SETTINGS: &[ServerSetting] = &[
    own("server.data-dir", "./freezeframe-data")
        .about("The data directory. It belongs to one server at a time.")
        .parsed(|config, value| {
            if value.text().is_empty() {
                return Err("give a directory".to_owned());
            }
            config.data_dir = value.text().into();
            Ok(())
        }),
    own("server.kafka", "127.0.0.1:9092")
        .about(
            "The address for Kafka's clients, HOST:PORT, or off. The setting listeners takes \
             its place.",
        )
        .address(|config, address| config.kafka = address),
    own("server.http", "off")
        .about(
            "The address for operators over HTTP: health, metrics, and the history API. HOST:PORT, \
             or off.",
        )
        .address(|config, address| config.http = address),
    own("server.http-tls", "off")
        .about(
            "The address for operators over HTTPS: health, metrics, and the history API. \
             HOST:PORT, or off.",
        )
        .address(|config, address| config.http_tls = address),
    own("server.http-hosts", "")
        .about(
            "Names by which operators may address the server, besides localhost, the one in \
             server.http and any IP address. Commas between them; * for any name.",
        )
        .parsed(|config, value| {
            config.http_hosts = value.host_names()?;
            Ok(())
        }),
    own("server.zookeeper", "off")
        .about("The address for ZooKeeper's clients, HOST:PORT, or off.")
        .address(|config, address| config.zookeeper = address),
    own("server.zookeeper-tls", "off")
        .about("The address for ZooKeeper's clients over TLS, HOST:PORT, or off.")
        .address(|config, address| config.zookeeper_tls = address),
    own("server.mount", "")
        .about(
            "Empty directories at which the tree of topics and files is mounted. Colons between \
             them.",
        )
        .text(|config, text| {
            let directories = text.split(':').filter(|directory| !directory.is_empty());
            config.mounts = directories.map(Into::into).collect();
        }),
    own("server.mount-users", "")
        .about("The principals of the machine's users in mounts, where rules say who may do what.")
        .parsed(|config, value| {
            config.mount_users = mount_users(value.text(), "/etc/passwd".as_ref())?;
            Ok(())
        }),
    own("server.durability", "fsync")
        .about(
            "The durability of a write that is acknowledged: fsync (on stable storage) or os (in \
             the operating system: it survives a crash of this process).",
        )
        .parsed(|config, value| {
            config.engine.core.storage.durability =
                value.one_of(&[("fsync", Durability::Synced), ("os", Durability::Written)])?;
            Ok(())
        }),
    own("tls.kernel", "false")
        .about("Whether the kernel encrypts for Kafka's clients, where it can.")
        .boolean(|config, is_on| config.tls_in_kernel = is_on),
    own("rdma.devices", "auto")
        .about(
            "The RDMA devices that move records: auto for all that work, off, or names with \
             commas between them. The server does not start if a named one does not work.",
        )
        .parsed(|config, value| {
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
    own("rdma.memory-max", "auto")
        .about(
            "The memory that RDMA devices may use; auto follows from storage.tail-bytes and the \
             budget for requests.",
        )
        .parsed(|config, value| {
            config.links.memory_bytes_max = match value.text() {
                "auto" => None,
                _ => {
                    Some(value.bytes(4 * MIB, TIB).map_err(|expected| expected + ", or auto")?
                        as usize)
                }
            };
            Ok(())
        }),
    own("rdma.completions", "sleep")
        .about(
            "The wait for a device: sleep, or spin, which polls for up to 50 microseconds first.",
        )
        .parsed(|config, value| {
            config.links.completion_mode = value
                .one_of(&[("sleep", CompletionMode::Sleep), ("spin", CompletionMode::Spin)])?;
            Ok(())
        }),
    own("storage.tail-bytes", "auto")
        .about(
            "The bytes of batches that stay in memory: the newest, and older ones that were \
             read. auto is a quarter of the memory of the machine or the cgroup.",
        )
        .parsed(|config, value| {
            config.engine.core.storage.tail_bytes_max = match value.text() {
                "auto" => memory::tail_bytes(memory::limit(Path::new("/"))),
                _ => value.bytes(0, TIB).map_err(|expected| expected + ", or auto")? as usize,
            };
            Ok(())
        }),
    own("storage.segment-bytes", "256MiB")
        .about("A segment of the journal is rolled before it grows longer.")
        .bytes(MIB, TIB, |config, bytes| {
            config.engine.core.storage.segment_bytes_max = bytes as u64
        }),
    own("storage.segment-frames", "100000")
        .about(
            "The most batches of a segment. Until it is indexed in files, its index takes 104 \
             bytes of memory a batch.",
        )
        .whole(1000, 100_000_000, |config, count| {
            config.engine.core.storage.segment_frames_max = count as u64
        }),
    own("storage.segment-age-min", "1m")
        .about(
            "The least age at which a segment is rolled. Topics share segments, so a smaller \
             segment.ms has no effect.",
        )
        .time(SHORTEST, CENTURY, |config, time| {
            config.engine.core.maintenance.segment_age_min = time
        }),
    own("storage.index-bytes", "32MiB")
        .about("The bytes of index files that stay in memory.")
        .bytes(MIB, TIB, |config, bytes| {
            config.engine.core.storage.index_bytes_max = bytes as usize
        }),
    own("storage.deleted-topic-retention", "7d")
        .about(
            "The time for which the records of a deleted topic are kept, if its settings do not \
             remove them before.",
        )
        .time(Duration::ZERO, CENTURY, |config, time| {
            config.engine.core.deleted_topic_retention = time
        }),
    own("storage.offsets-retention", "7d")
        .about("The time for which past committed offsets and groups can be read.")
        .time(Duration::ZERO, CENTURY, |config, time| {
            config.engine.groups.offsets_retention = time
        }),
    own("storage.signing-key", "")
        .about("The file of a private key that signs the proofs of history.")
        .parsed(|config, value| {
            config.engine.core.signing_key = match value.text() {
                "" => None,
                path => Some(signing_key(path, &mut config.warnings)?),
            };
            Ok(())
        }),
    own("clock.skew-max", "500ms")
        .about("The most that the wall clock may be wrong before writes are fenced.")
        .time(SHORTEST, HOUR, |config, time| config.engine.core.storage.clock.skew_max = time),
    own("clock.bound-ahead", "1s")
        .about("The lead of the bound on stamps, which is on disk, over the wall clock.")
        .time(Duration::from_millis(100), HOUR, |config, time| {
            config.engine.core.storage.clock.bound_ahead = time
        }),
    own("clock.start-gap", "1h")
        .about(
            "The most that the wall clock may be ahead of the last confirmed time at a start. \
             Beyond it, retention by age is suspended.",
        )
        .time(SECOND, CENTURY, |config, time| config.engine.core.storage.clock.start_gap = time),
    own("clock.trust-after", "24h")
        .about(
            "The time without a clock step after which a clock beyond clock.start-gap is trusted.",
        )
        .time(SECOND, CENTURY, |config, time| config.engine.core.storage.clock.trust_after = time),
    own("limits.partitions-max", "10000").about("The most partitions of a topic.").whole(
        1,
        1_000_000,
        |config, count| config.engine.core.partitions_max = count as u32,
    ),
    own("limits.topics-max", "100000").about("The most topics.").whole(
        1,
        I32_MAX,
        |config, count| config.engine.core.topics_max = count as usize,
    ),
    own("limits.all-partitions-max", "500000").about("The most partitions of all topics.").whole(
        1,
        I32_MAX,
        |config, count| config.engine.core.all_partitions_max = count as usize,
    ),
    own("limits.flight-bytes", "32MiB")
        .about("The bytes of batches on their way to the disk. More wait.")
        .bytes(MIB, TIB, |config, bytes| config.engine.core.in_flight_bytes_max = bytes as usize),
    own("limits.security-bytes-max", "64MiB")
        .about("The bytes of users, access control lists and quotas.")
        .bytes(MIB, 1 << 30, |config, bytes| config.engine.security.bytes_max = bytes as usize),
    own("limits.pins-max", "100")
        .about("The most pins.")
        .whole(0, 10_000, |config, count| config.engine.core.pins_max = count as usize),
    own("limits.cut-cache-bytes", "16MiB")
        .about("The bytes of answers to cuts in the cache.")
        .bytes(0, TIB, |config, bytes| config.engine.core.cut_cache_bytes_max = bytes as usize),
    own("limits.unpacked-bytes", "128MiB")
        .about("The bytes that a batch may unpack to when its records are read.")
        .bytes(MIB, TIB, |config, bytes| {
            config.kafka_server.decompressed_bytes_max = bytes as usize
        }),
    own("limits.answer-bytes", "256MiB")
        .about("The bytes of answers in memory that Kafka's clients have not read yet.")
        .bytes(MIB, TIB, |config, bytes| config.kafka_server.responses_bytes_max = bytes as usize),
    own("limits.stall-max", "60s")
        .about("The longest pause of a client in a request or an answer.")
        .time(SECOND, HOUR, |config, time| config.kafka_server.transfer_limits.stall_max = time),
    own("limits.rate-min", "4KiB")
        .about("The bytes a second that a client moves at least, apart from its pauses.")
        .bytes(1, I32_MAX, |config, bytes| {
            config.kafka_server.transfer_limits.rate_min = bytes as u32
        }),
    own("limits.moment-patience", "5s")
        .about("The longest wait of a read for a moment that is not past yet.")
        .time(Duration::ZERO, HOUR, |config, time| {
            config.kafka_server.moment_patience = time;
            config.zookeeper_server.moment_patience = time;
        }),
    own("limits.open-files-max", "128")
        .about("The most open files of the tree that clients of the API may have.")
        .whole(1, 1_000_000, |config, count| config.kafka_server.open_files_max = count as usize),
    own("limits.transactional-ids-bytes", "384MiB")
        .about("The bytes of transactional ids in memory.")
        .bytes(64 << 10, TIB, |config, bytes| {
            config.kafka_server.transactions.ids_bytes_max = bytes as usize
        }),
    own("limits.transaction-partitions-max", "100000")
        .about("The most partitions of all open transactions.")
        .whole(1, ENLISTED_MAX, |config, count| {
            config.kafka_server.transactions.enlisted_max = count as usize
        }),
    own("limits.transaction-offsets-bytes", "128MiB")
        .about("The bytes of groups and offsets in open transactions.")
        .bytes(64 << 10, TIB, |config, bytes| {
            config.kafka_server.transactions.offsets_bytes_max = bytes as usize
        }),
    own("limits.groups-max", "100000").about("The most groups.").whole(
        1,
        I32_MAX,
        |config, count| config.kafka_server.groups.groups_max = count as usize,
    ),
    own("limits.groups-bytes", "512MiB")
        .about("The bytes that the members of all groups hold.")
        .bytes(MIB, TIB, |config, bytes| {
            config.kafka_server.groups.groups_bytes_max = bytes as usize
        }),
    own("limits.group-bytes", "64MiB")
        .about("The bytes that the members of one group hold.")
        .bytes(MIB, TIB, |config, bytes| {
            config.kafka_server.groups.group_bytes_max = bytes as usize
        }),
    own("limits.member-bytes", "1MiB").about("The bytes that one member brings.").bytes(
        1024,
        TIB,
        |config, bytes| config.kafka_server.groups.member_bytes_max = bytes as usize,
    ),
    own("limits.pending-members-max", "10000")
        .about("The most member ids of a group that were handed out and not used yet.")
        .whole(1, I32_MAX, |config, count| {
            config.kafka_server.groups.pending_members_max = count as usize
        }),
    zookeeper("zookeeper.tickTime", "2000")
        .about("The interval at which sessions are checked for expiry, in milliseconds.")
        .whole(1, 3_600_000, |config, count| config.zookeeper_server.tick_ms = count as u32),
    zookeeper("zookeeper.minSessionTimeout", "-1")
        .about("The shortest timeout of a session in milliseconds; -1 for 2 ticks.")
        .whole(-1, I32_MAX, |config, ms| {
            config.zookeeper_server.session_timeout_ms_min = u32::try_from(ms).ok();
        }),
    zookeeper("zookeeper.maxSessionTimeout", "-1")
        .about("The longest timeout of a session in milliseconds; -1 for 20 ticks.")
        .whole(-1, I32_MAX, |config, ms| {
            config.zookeeper_server.session_timeout_ms_max = u32::try_from(ms).ok();
        }),
    zookeeper("zookeeper.maxCnxns", "4096")
        .about("The most connections of ZooKeeper's clients.")
        .whole(1, I32_MAX, |config, count| {
            config.zookeeper_server.connections_max = count as usize
        }),
    zookeeper("zookeeper.maxClientCnxns", "60")
        .about("The most connections of one address; 0 for any number.")
        .whole(0, I32_MAX, |config, count| {
            config.zookeeper_server.connections_per_address_max = count as usize
        }),
    own("zookeeper.sessions-max", "100000")
        .about("The most sessions. Not a setting of Apache ZooKeeper.")
        .whole(1, I32_MAX, |config, count| config.zookeeper_server.sessions_max = count as usize),
    own("zookeeper.znodes-max", "10000000")
        .about("The most znodes. Not a setting of Apache ZooKeeper.")
        .whole(16, u32::MAX as i64, |config, count| config.engine.znodes.znodes_max = count as u64),
    own("zookeeper.znode-bytes-max", "16GiB")
        .about(
            "The bytes of the paths, data and lists of all znodes. Not a setting of Apache \
             ZooKeeper.",
        )
        .bytes(MIB, 1024 * TIB, |config, bytes| {
            config.engine.znodes.znode_bytes_max = bytes as u64
        }),
    own("zookeeper.watches-bytes-max", "256MiB")
        .about("The approximate memory of all watches. Not a setting of Apache ZooKeeper.")
        .bytes(MIB, TIB, |config, bytes| {
            config.zookeeper_server.watches_bytes_max = bytes as usize
        }),
    zookeeper("zookeeper.jute.maxbuffer", "1048575").about("The longest request, in bytes.").whole(
        1024,
        1 << 30,
        |config, count| config.zookeeper_server.frame_bytes_max = count as usize,
    ),
    zookeeper("zookeeper.extendedTypesEnabled", "false")
        .about("Whether znodes can have a time to live.")
        .boolean(|config, is_on| config.zookeeper_server.extended_types = is_on),
    zookeeper("zookeeper.reconfigEnabled", "false")
        .about("Whether reconfig is answered with Unimplemented, in place of ReconfigDisabled.")
        .boolean(|config, is_on| config.zookeeper_server.reconfig_enabled = is_on),
    own("zookeeper.superDigest", "")
        .about("The super user, as USER:BASE64(SHA1(USER:PASSWORD)). A secret.")
        .secret(|config, text| {
            config.zookeeper_server.super_digest = (!text.is_empty()).then(|| Secret::new(text))
        }),
    zookeeper("zookeeper.superUser", "")
        .about("The SASL user who is the super user.")
        .text(|config, text| config.zookeeper_server.super_user = given(text)),
    own("zookeeper.sasl.serverconfig", "Server")
        .about("The section of the file of logins.")
        .text(|config, text| config.zookeeper_server.login_section = text.to_owned()),
    own("zookeeper.sasl.login-config", "")
        .about("A file for Java's login modules (jaas.conf) with the users of SASL.")
        .parsed(|config, value| {
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
    zookeeper("zookeeper.ssl.keyStore.location", "")
        .about("The file with the server's key and certificates.")
        .text(|config, text| config.zookeeper_tls_options.key_store.path = text.into()),
    zookeeper("zookeeper.ssl.keyStore.type", "")
        .about("JKS, PKCS12 or PEM. It does not matter: the file says what it is.")
        .parsed(|_, value| store_type(value)),
    zookeeper("zookeeper.ssl.keyStore.password", "")
        .about("The password of the key store. A secret.")
        .secret(|config, text| config.zookeeper_tls_options.key_store.password = Secret::new(text)),
    zookeeper("zookeeper.ssl.keyStore.passwordPath", "")
        .about("The file with the password of the key store.")
        .parsed(|config, value| password_at(value, &mut config.zookeeper_tls_options.key_store)),
    zookeeper("zookeeper.ssl.trustStore.location", "")
        .about("The file with the certificate authorities of clients.")
        .text(|config, text| config.zookeeper_tls_options.trust_store.path = text.into()),
    zookeeper("zookeeper.ssl.trustStore.type", "")
        .about("JKS, PKCS12 or PEM. It does not matter: the file says what it is.")
        .parsed(|_, value| store_type(value)),
    zookeeper("zookeeper.ssl.trustStore.password", "")
        .about("The password of the trust store. A secret.")
        .secret(|config, text| {
            config.zookeeper_tls_options.trust_store.password = Secret::new(text)
        }),
    zookeeper("zookeeper.ssl.trustStore.passwordPath", "")
        .about("The file with the password of the trust store.")
        .parsed(|config, value| password_at(value, &mut config.zookeeper_tls_options.trust_store)),
    zookeeper("zookeeper.ssl.clientAuth", "need")
        .about("Whether clients show certificates: need, want or none.")
        .parsed(|config, value| {
            let authentication = match value.text().to_ascii_lowercase().as_str() {
                "none" => ClientAuthentication::None,
                "want" => ClientAuthentication::Want,
                "need" | "" => ClientAuthentication::Need,
                _ => return Err("give need, want or none".to_owned()),
            };
            config.zookeeper_tls_options.client_authentication = authentication;
            Ok(())
        }),
    zookeeper("zookeeper.ssl.enabledProtocols", "TLSv1.3,TLSv1.2")
        .about("The versions of TLS.")
        .parsed(|config, value| versions(value, &mut config.zookeeper_tls_options)),
    zookeeper("zookeeper.ssl.ciphersuites", "")
        .about("Cipher suites by Java's names, with commas between them.")
        .parsed(|config, value| {
            let (options, warnings) = (&mut config.zookeeper_tls_options, &mut config.warnings);
            cipher_suites("zookeeper.ssl.ciphersuites", value, options, warnings)
        }),
    zookeeper("zookeeper.ssl.clientHostnameVerification", "false")
        .about("Only false: names of clients' hosts are not checked.")
        .parsed(|_, value| {
            unless_true(
                value,
                "the names of clients' machines are not looked at in their certificates",
            )
        }),
    zookeeper("zookeeper.ssl.crl", "false")
        .about("Only false: revocation lists are not read.")
        .parsed(|_, value| unless_true(value, "no lists of revoked certificates are fetched")),
    zookeeper("zookeeper.ssl.ocsp", "false")
        .about("Only false: OCSP is not asked.")
        .parsed(|_, value| unless_true(value, "nobody is asked whether a certificate was revoked")),
    zookeeper("zookeeper.client.portUnification", "false")
        .about("Whether the port of server.zookeeper accepts TLS too.")
        .boolean(|config, is_on| config.zookeeper_unified = is_on),
    zookeeper("zookeeper.X509AuthenticationProvider.superUser", "")
        .about("The name in the super user's certificate.")
        .text(|config, text| config.zookeeper_server.x509_super_user = given(text)),
    own("zookeeper.enforce.auth.schemes", "")
        .about(
            "Some of digest, sasl, x509 and ip: a connection without an id of these schemes is \
             closed.",
        )
        .parsed(|config, value| {
            let schemes: BTreeSet<String> = list(value.text()).map(str::to_owned).collect();
            if let Some(unknown) = schemes
                .iter()
                .find(|scheme| !["digest", "sasl", "x509", "ip"].contains(&&***scheme))
            {
                return Err(format!("give some of digest, sasl, x509, ip; {unknown} is none"));
            }
            if schemes.contains("sasl") && config.zookeeper_server.sasl_users.is_empty() {
                return Err("give the users of SASL with zookeeper.sasl.login-config".to_owned());
            }
            config.zookeeper_server.required_schemes = schemes;
            Ok(())
        }),
    zookeeper("zookeeper.znode.container.checkIntervalMs", "60000")
        .about("The interval at which containers and times to live are checked, in milliseconds.")
        .whole(1, I32_MAX, |config, ms| {
            config.zookeeper_server.container_check_interval = Duration::from_millis(ms as u64);
        }),
    zookeeper("zookeeper.znode.container.maxPerMinute", "10000")
        .about("The most containers and expired znodes that are removed in a minute.")
        .whole(1, I32_MAX, |config, count| {
            config.zookeeper_server.container_reaps_per_minute = count as u32
        }),
    zookeeper("zookeeper.znode.container.maxNeverUsedIntervalMs", "0")
        .about(
            "The age in milliseconds at which a container that never had a child is removed; 0 \
             for never.",
        )
        .whole(0, I32_MAX, |config, ms| {
            config.zookeeper_server.container_never_used =
                (ms > 0).then(|| Duration::from_millis(ms as u64));
        }),
    zookeeper("zookeeper.enforceQuota", "false")
        .about("Whether a change that exceeds a hard limit of a quota is refused.")
        .boolean(|config, is_on| config.engine.znodes.enforces_quotas = is_on),
    own("zookeeper.cached-bytes-max", "1GiB")
        .about("The approximate bytes of znode data in memory. Not a setting of Apache ZooKeeper.")
        .bytes(0, TIB, |config, bytes| config.engine.znodes.cached_bytes_max = bytes as u64),
    own("zookeeper.history-retention", "7d")
        .about(
            "The least time for which the history of znodes is kept. Not a setting of Apache \
             ZooKeeper.",
        )
        .time(Duration::ZERO, CENTURY, |config, time| {
            config.engine.znodes.history_retention = time
        }),
    zookeeper("zookeeper.4lw.commands.whitelist", "srvr")
        .about("The four letter words that are answered, with commas between them; * for all.")
        .text(|config, text| {
            config.zookeeper_server.four_letter_words = list(text).map(str::to_owned).collect();
        }),
];

/// `USER=PRINCIPAL`, several with commas between. A user is a number, or a name in the list of
/// users in the file `names`.
fn mount_users(text: &str, names: &Path) -> Result<MountUsers, ExpectedForm> {
    list(text).map(|pair| mount_user(pair, names)).collect()
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
