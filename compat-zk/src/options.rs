//! The settings of an operator, with the names and meanings that ZooKeeper gives it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use engine_znodes::acl::OptionalSchemes;
use tls::Secret;
use zk_wire::FRAME_BYTES_MAX;

use crate::sasl::SaslUsers;

/// `tickTime` in milliseconds, as in ZooKeeper's own sample of a configuration.
const TICK_MS: u32 = 2000;

#[derive(Clone, Debug)]
pub struct ZkOptions {
    /// `clientPort`: only shown.
    pub client_port: u16,
    /// `secureClientPort`: only shown.
    pub secure_client_port: Option<u16>,
    /// `dataDir`: only shown.
    pub data_dir: PathBuf,
    /// A source of unguessable numbers.
    pub new_id: fn() -> [u8; 16],
    /// `tickTime`, in milliseconds: how often sessions are checked for their end.
    pub tick_ms: u32,
    /// `minSessionTimeout`, in milliseconds; 2 ticks by default.
    pub session_timeout_ms_min: Option<u32>,
    /// `maxSessionTimeout`, in milliseconds; 20 ticks by default.
    pub session_timeout_ms_max: Option<u32>,
    /// `maxCnxns`: connections in all.
    pub connections_max: usize,
    /// `maxClientCnxns`: connections from one address; 0 for any number.
    pub connections_per_address_max: usize,
    /// `jute.maxbuffer`: the longest request, in bytes.
    pub frame_bytes_max: usize,
    /// The number of bytes that may wait for a client that does not read.
    pub unread_bytes_max: usize,
    /// The number of bytes that may wait for all clients, before the connections that hold most are
    /// closed.
    pub unread_total_bytes_max: usize,
    /// The largest number of sessions.
    pub sessions_max: usize,
    /// The memory that all watches may take, approximately, in bytes.
    pub watches_bytes_max: usize,
    /// A client waits for a moment that is no further ahead than this.
    pub moment_patience: Duration,
    /// `extendedTypesEnabled`: whether znodes can have a time to live.
    pub extended_types: bool,
    /// `reconfigEnabled`.
    pub reconfig_enabled: bool,
    /// `DigestAuthenticationProvider.superDigest`: the digest of the super user.
    pub super_digest: Option<Secret>,
    /// `superUser`: the SASL name of the super user.
    pub super_user: Option<String>,
    /// `sasl.serverconfig`: the section of that configuration with them.
    pub login_section: String,
    /// The users of SASL, from a configuration of Java's login modules.
    pub sasl_users: SaslUsers,
    /// True if clients can show certificates.
    pub has_x509: bool,
    /// `X509AuthenticationProvider.superUser`: the name in the certificate of the super user.
    pub x509_super_user: Option<String>,
    /// `enforce.auth.schemes`, if that is enabled: a connection has to have an id in one of them.
    pub required_schemes: BTreeSet<String>,
    /// `znode.container.checkIntervalMs`: how often containers and times to live are looked at.
    pub container_check_interval: Duration,
    /// `znode.container.maxPerMinute`: how many of them are removed in a minute.
    pub container_reaps_per_minute: u32,
    /// `znode.container.maxNeverUsedIntervalMs`: when a container without any child is removed;
    /// never by default.
    pub container_never_used: Option<Duration>,
    /// `4lw.commands.whitelist`.
    pub four_letter_words: BTreeSet<String>,
}

impl Default for ZkOptions {
    fn default() -> ZkOptions {
        ZkOptions {
            client_port: 0,
            secure_client_port: None,
            data_dir: PathBuf::new(),
            new_id: || uuid::Uuid::new_v4().into_bytes(),
            tick_ms: TICK_MS,
            session_timeout_ms_min: None,
            session_timeout_ms_max: None,
            connections_max: 4096,
            connections_per_address_max: 60,
            frame_bytes_max: FRAME_BYTES_MAX,
            unread_bytes_max: 64 << 20,
            unread_total_bytes_max: 512 << 20,
            sessions_max: 100_000,
            watches_bytes_max: 256 << 20,
            moment_patience: Duration::from_secs(5),
            extended_types: false,
            reconfig_enabled: false,
            super_digest: None,
            super_user: None,
            login_section: "Server".to_owned(),
            sasl_users: SaslUsers::default(),
            has_x509: false,
            x509_super_user: None,
            required_schemes: BTreeSet::new(),
            container_check_interval: Duration::from_secs(60),
            container_reaps_per_minute: 10_000,
            container_never_used: None,
            four_letter_words: BTreeSet::from(["srvr".to_owned()]),
        }
    }
}

impl ZkOptions {
    /// The schemes that lists can have here.
    pub(crate) fn optional_schemes(&self) -> OptionalSchemes {
        OptionalSchemes { sasl: !self.sasl_users.is_empty(), x509: self.has_x509 }
    }

    /// True if every client has to authenticate. Only `sasl` and `x509` prove an identity: a client
    /// makes up ids of `digest`.
    pub fn proves_identities(&self) -> bool {
        let mut required = self.required_schemes.iter();
        !self.required_schemes.is_empty()
            && required.all(|scheme| scheme == "sasl" || scheme == "x509")
    }

    /// The timeout that a client gets that wants `wanted_ms`.
    pub(crate) fn session_timeout(&self, wanted_ms: i32) -> u32 {
        let requested_ms = u32::try_from(wanted_ms).unwrap_or(0);
        requested_ms.max(self.session_timeout_min()).min(self.session_timeout_max())
    }

    pub(crate) fn session_timeout_min(&self) -> u32 {
        self.session_timeout_ms_min.unwrap_or(self.tick_ms.saturating_mul(2))
    }

    pub(crate) fn session_timeout_max(&self) -> u32 {
        self.session_timeout_ms_max.unwrap_or(self.tick_ms.saturating_mul(20))
    }
}
