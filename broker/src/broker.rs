//! Starts the parts of the server in order, and stops them in the reverse order.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use compat_kafka::{KafkaFormat, KafkaOptions, KafkaServer};
use compat_zk::ZkOptions;
use engine::security::{NameKey, random_bytes};
use engine::{Engine, EngineError, EngineOptions, Isolation};
use fileview::fuse::{FuseMounts, MountGuards};
use fileview::tree::{TreeOptions, ViewTree};
use hlc::OsClock;
use storage::disk::RealDisk;
use storage::journal::RecoverError;
use storage::{DataDirectory, HistoryError, OpenError};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::config::Config;
use crate::control::{ControlContext, ControlSocket};
use crate::dynamic_settings::{NamedTls, RunningSettings};
use crate::health::{BrokerHealth, ListenerWarnings};
use crate::http_ports::{HttpPorts, HttpService};
use crate::kafka_ports::{KafkaPort, KafkaPorts};
use crate::links::open_links;
use crate::maintenance::MaintenanceTasks;
use crate::metrics::{CertificateEnds, DiskTrend};
use crate::mount_users::{AuthorizedMounts, MountUsers};
use crate::status::{ServerParts, ServerStatus};
use crate::supervisor;
use crate::zookeeper::{ZookeeperPorts, ZookeeperService};

/// The time limit for connections to end. The Kafka protocol server has a limit of its own; this
/// limit applies to that server.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// The time limit for the admin port to finish its last responses.
const ADMIN_DRAIN_MAX: Duration = Duration::from_secs(1);

/// The longest wait of a start for a catalog after one has failed.
const CATALOG_WAIT_MAX: Duration = Duration::from_secs(60);

/// The interval of progress messages during a slow start. A normal start takes less.
const OPENING_REPORT_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Broker;

#[derive(Debug)]
pub struct RunningBroker {
    status: Arc<ServerStatus>,
    engine: Arc<Engine>,
    kafka: Arc<KafkaServer>,
    kafka_ports: Vec<KafkaPort>,
    zookeeper: Option<ZookeeperService>,
    http: HttpService,
    mounts: FuseMounts,
    /// Serves the owner's requests. `None` if the socket could not be created.
    control: Option<ControlSocket>,
    maintenance: MaintenanceTasks,
    /// Held until everything in it is closed.
    data_dir: DataDirectory,
}

impl Broker {
    /// Binds the ports, opens the data directory, replays the journal, and serves.
    ///
    /// The admin port answers from the start. Kafka clients can connect at the end.
    ///
    /// # Errors
    /// The reason that prevents the start, and what to do about it.
    pub async fn start(config: Config) -> anyhow::Result<RunningBroker> {
        let mut warnings = ListenerWarnings::default();
        let kafka_ports = KafkaPorts::bind(&config, &mut warnings).await?;
        let zookeeper_ports = ZookeeperPorts::bind(&config, &mut warnings).await?;
        let http_ports = HttpPorts::bind(&config, &mut warnings).await?;
        let started_with = config.clone();
        let Config {
            data_dir,
            engine,
            kafka_server: mut kafka_options,
            mounts: mounted,
            mount_users,
            ..
        } = config;
        let status = ServerStatus::starting();
        let http = http_ports.serve(&status)?;
        let storage = &engine.core.storage;
        let payload_bytes_max = storage.tail_bytes_max + kafka_options.requests_bytes_max;
        kafka_options.links = open_links(&config.links, payload_bytes_max)?;
        kafka_options.decompressed_bytes_max = kafka_options.decompressed_bytes_max.max(1);
        let format = KafkaFormat { decompressed_bytes_max: kafka_options.decompressed_bytes_max };
        let data = data_dir.clone();
        let shown_dir = data_dir.display().to_string();
        let opening =
            tokio::task::spawn_blocking(move || open_data_directory(&data_dir, engine, format));
        let opened =
            report_progress_while_opening(opening, &shown_dir, OPENING_REPORT_INTERVAL).await;
        let (home, engine) = opened.context("open the data directory")??;
        kafka_options.data_dir = Some(data.clone());
        kafka_options.cluster_id = home.cluster_id().to_owned();
        let patience = kafka_options.moment_patience;
        let tree = open_tree(&engine, patience);
        let kafka = open_kafka(&engine, kafka_options, &tree).await?;
        let tls: Vec<NamedTls> = kafka_ports.tls_servers().chain(http.tls_server()).collect();
        let mut all_tls = tls.clone();
        let settings = RunningSettings { config: started_with, tls };
        let used = kafka.use_dynamic_settings(Arc::new(settings)).await;
        used.context("restore the settings that clients have given")?;
        let mut maintenance = MaintenanceTasks::default();
        http.run_maintenance(&mut maintenance);
        let kafka_ports = kafka_ports.serve(&kafka, &mut maintenance)?;
        let zookeeper = match zookeeper_ports {
            Some(ports) => {
                let options = ZkOptions { data_dir: data.clone(), ..config.zookeeper_server };
                Some(ports.serve(engine.znodes(), options, &mut maintenance)?)
            }
            None => None,
        };
        let zookeeper_tls = zookeeper.as_ref().and_then(|zookeeper| zookeeper.tls.clone());
        all_tls.extend(zookeeper_tls.map(|tls| ("ZooKeeper".to_owned(), tls)));
        let certificates = Arc::new(CertificateEnds::new(all_tls.clone()));
        kafka.history().set_health(Arc::new(BrokerHealth::new(
            &status,
            data.clone(),
            warnings,
            all_tls,
        )));
        let mounts = open_mounts(&engine, tree, &data, mount_users);
        mount_all(&mounts, mounted).await?;
        let control = open_control(
            &data,
            ControlContext { mounts: mounts.clone(), engine: Arc::clone(&engine) },
        );
        maintenance.spawn(Arc::clone(&engine).run_maintenance());
        maintenance.spawn(Arc::clone(&kafka).run_maintenance());
        let disk_trend = Arc::new(DiskTrend::default());
        maintenance.spawn(Arc::clone(&disk_trend).run(data.clone()));
        status.serving(ServerParts {
            data_dir: data,
            engine: Arc::clone(&engine),
            kafka: Arc::clone(&kafka),
            zookeeper: zookeeper.as_ref().map(|zookeeper| Arc::clone(&zookeeper.server)),
            disk_trend,
            group_lags: Arc::default(),
            certificates,
        });
        Ok(RunningBroker {
            status,
            engine,
            kafka,
            kafka_ports,
            zookeeper,
            http,
            mounts,
            control,
            maintenance,
            data_dir: home,
        })
    }
}

/// Waits for `opening`, and logs at each interval that it still runs, and why it can be slow.
async fn report_progress_while_opening<T>(
    mut opening: JoinHandle<T>,
    data_dir: &str,
    interval: Duration,
) -> Result<T, tokio::task::JoinError> {
    let started = Instant::now();
    loop {
        match tokio::time::timeout(interval, &mut opening).await {
            Ok(opened) => return opened,
            Err(_) => {
                let seconds = started.elapsed().as_secs();
                supervisor::ask_for_time(4 * interval);
                tracing::info!(
                    data_dir,
                    seconds,
                    "still opening the data directory: what is not indexed in files is read, and indexes that were lost are rebuilt"
                );
            }
        }
    }
}

/// Sets the umask: files that this process creates are open to its owner alone. All of them are in
/// the data directory. Files in a mount have the modes that their creators give them.
pub(crate) fn restrict_new_files() {
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}

/// Locks a data directory, and opens its engine; makes both if there are none. It may wait for
/// disks.
pub(crate) fn open_data_directory(
    data_dir: &Path,
    mut options: EngineOptions,
    format: KafkaFormat,
) -> anyhow::Result<(DataDirectory, Arc<Engine>)> {
    let mut home = DataDirectory::open_uncommitted(data_dir, new_cluster_id)
        .context("open the data directory")?;
    home.require_journal()?;
    if home.is_open_to_others().context("look at the data directory")? {
        tracing::warn!(
            data_dir = %data_dir.display(),
            "the data directory is open to other users of this machine; chmod go-rwx closes it"
        );
    }
    options.security.name_key = Some(NameKey::new(home.secret(random_bytes)?));
    options.core.catalog = Some(home.catalog());
    let engine = open_engine(&home.journal(), options, format)?;
    home.commit_identity().context("open the data directory")?;
    Ok((home, engine))
}

/// Opens the engine of a journal.
pub(crate) fn open_engine(
    journal: &Path,
    mut options: EngineOptions,
    format: KafkaFormat,
) -> anyhow::Result<Arc<Engine>> {
    options.core.storage.salt = Uuid::new_v4().as_u64_pair().0;
    let doing = || format!("open the journal in {}", journal.display());
    let disk = RealDisk::open(journal).with_context(doing)?;
    let engine = Engine::open(Arc::new(disk), options, Arc::new(OsClock), Arc::new(format));
    let engine = engine.map_err(|error| {
        let hint = if looks_copied(&error) { COPY_HINT } else { "" };
        anyhow::anyhow!("{error}{hint}")
    });
    Ok(Arc::new(engine.with_context(doing)?))
}

/// Advice for a directory that was copied while a server wrote to it.
const COPY_HINT: &str = ". If the directory is a copy of one that a server was using, the copy is not of one moment: copy it with `freezeframe backup`";

/// True if the files of a journal contradict each other, as files copied one after another do.
fn looks_copied(error: &OpenError) -> bool {
    match error {
        OpenError::BoundLost | OpenError::BoundStale { .. } => true,
        OpenError::History(error) => matches!(
            error,
            HistoryError::Manifest(_)
                | HistoryError::MissingFile { .. }
                | HistoryError::Order { .. }
        ),
        OpenError::Recover(error) => matches!(
            error,
            RecoverError::Corrupt(_) | RecoverError::Gap { .. } | RecoverError::Offsets { .. }
        ),
        OpenError::Bound(_) | OpenError::Storage(_) => false,
    }
}

/// Creates the tree of files. Mounts and clients share one, and so its memory.
fn open_tree(engine: &Arc<Engine>, patience: Duration) -> Arc<ViewTree> {
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let options = TreeOptions { patience, owner, ..TreeOptions::default() };
    Arc::new(ViewTree::new(Arc::clone(engine), options))
}

fn open_mounts(
    engine: &Arc<Engine>,
    tree: Arc<ViewTree>,
    data_dir: &Path,
    users: MountUsers,
) -> FuseMounts {
    let runtime = tokio::runtime::Handle::current();
    let security = Arc::clone(engine.security());
    let is_enabled = security.options().authorizer.is_enabled;
    let owner = rustix::process::geteuid().as_raw();
    let guards = is_enabled
        .then(|| -> Arc<dyn MountGuards> { Arc::new(AuthorizedMounts { security, users, owner }) });
    FuseMounts::new(engine.files().clone(), (tree, guards), data_dir.to_owned(), runtime)
}

async fn mount_all(mounts: &FuseMounts, directories: Vec<PathBuf>) -> anyhow::Result<()> {
    let mounts = mounts.clone();
    let mounting = tokio::task::spawn_blocking(move || {
        directories.iter().try_for_each(|directory| {
            match mounts.mount(directory, Isolation::Committed) {
                Ok(_) => Ok(()),
                Err(error) => {
                    mounts.close();
                    Err(error)
                }
            }
        })
    });
    mounting.await.context("mount")?.context("mount, as server.mount asks")
}

/// Opens the control socket. The server runs without it, because clients do not need it.
fn open_control(data_dir: &Path, context: ControlContext) -> Option<ControlSocket> {
    match ControlSocket::open(data_dir, context) {
        Ok(control) => Some(control),
        Err(error) => {
            tracing::warn!(%error, "no control socket: freezeframe mount, clock, users and backup cannot reach this server");
            None
        }
    }
}

/// Restores the consumer groups. If their catalog fails just then, it waits for the next one.
async fn open_kafka(
    engine: &Arc<Engine>,
    options: KafkaOptions,
    tree: &ViewTree,
) -> anyhow::Result<Arc<KafkaServer>> {
    let started = Instant::now();
    loop {
        match KafkaServer::with_tree(Arc::clone(engine), options.clone(), tree) {
            Err(EngineError::Loading(error)) if started.elapsed() < CATALOG_WAIT_MAX => {
                tracing::warn!(%error, "the start waits for another catalog");
                let (engine, left) = (Arc::clone(engine), CATALOG_WAIT_MAX - started.elapsed());
                let waiting = move || engine.catalog().wait_until_healthy(left);
                tokio::task::spawn_blocking(waiting).await.context("wait for a catalog")?;
            }
            opened => return opened.context("restore the consumer groups"),
        }
    }
}

/// A new cluster id in Kafka's format: 16 random bytes in 22 letters.
fn new_cluster_id() -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits = Uuid::new_v4().as_u128();
    // The last letter holds the last two bits. An id that begins with `-` would look like an
    // option.
    let letters = (0..22).map(|index| match index {
        21 => (bits << 4) & 0x30,
        _ => (bits >> (122 - 6 * index)) & 0x3f,
    });
    let id: String = letters.map(|letter| char::from(LETTERS[letter as usize])).collect();
    if id.starts_with('-') { new_cluster_id() } else { id }
}

impl RunningBroker {
    /// The address for Kafka clients, if any; the first of several.
    pub fn kafka_address(&self) -> Option<SocketAddr> {
        self.kafka_ports.first().map(KafkaPort::address)
    }

    /// The address for ZooKeeper clients, if any.
    pub fn zookeeper_address(&self) -> Option<SocketAddr> {
        self.zookeeper.as_ref()?.plain.as_ref().map(|door| door.address)
    }

    /// The address for ZooKeeper clients over TLS, if any.
    pub fn zookeeper_tls_address(&self) -> Option<SocketAddr> {
        self.zookeeper.as_ref()?.secure.as_ref().map(|door| door.address)
    }

    /// The address for operators, if any.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.http.plain.as_ref().map(|port| port.address)
    }

    pub(crate) fn status(&self) -> &Arc<ServerStatus> {
        &self.status
    }

    pub fn cluster_id(&self) -> &str {
        self.data_dir.cluster_id()
    }

    /// Waits until the server fails, and returns the reason.
    pub async fn wait_for_failure(&mut self) -> String {
        let engine = Arc::clone(&self.engine);
        let store = async { format!("the store has stopped: {}", engine.stopped().await) };
        if self.kafka_ports.is_empty() {
            return store.await;
        }
        let stopped_port = futures_util::future::select_all(
            self.kafka_ports.iter_mut().map(|port| &mut port.listener.task),
        );
        tokio::select! {
            why = store => why,
            (stopped_port, ..) = stopped_port => match stopped_port {
                Ok(()) => "a listener for Kafka's clients has ended".to_owned(),
                Err(error) => format!("a listener for Kafka's clients has ended: {error}"),
            },
        }
    }

    /// Finishes the requests in progress, within bounds, then closes everything.
    ///
    /// Requests that arrive in the meantime are refused with `reason`.
    pub async fn close(mut self, reason: &str) {
        self.status.stopping(reason);
        // Maintenance stops first, because from now on groups look as if they had no members.
        self.maintenance.shutdown().await;
        if let Some(zookeeper) = self.zookeeper {
            for door in [zookeeper.plain, zookeeper.secure].into_iter().flatten() {
                door.close(ADMIN_DRAIN_MAX).await;
            }
        }
        for port in &self.kafka_ports {
            port.listener.stop();
        }
        // Members that wait in a group would otherwise hold their connections open.
        self.kafka.close();
        let open = self.kafka_ports.into_iter().filter(|port| !port.listener.task.is_finished());
        let closing = open.map(|port| port.listener.close(DRAIN_MAX));
        futures_util::future::join_all(closing).await;
        if let Some(control) = &self.control {
            control.close();
        }
        let mounts = self.mounts;
        if let Err(error) = tokio::task::spawn_blocking(move || mounts.close()).await {
            tracing::error!(%error, "mounts were not unmounted in order");
        }
        let engine = self.engine;
        let closed = tokio::task::spawn_blocking(move || engine.close()).await;
        if let Err(error) = closed {
            tracing::error!(%error, "the store was not closed in order");
        }
        let HttpService { plain, secure, .. } = self.http;
        for port in [plain, secure].into_iter().flatten() {
            port.close(ADMIN_DRAIN_MAX).await;
        }
        drop(self.data_dir);
    }
}

/// The line that reports the addresses of the server.
impl fmt::Display for RunningBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address_text = |address: Option<SocketAddr>| {
            address.map_or_else(|| "off".to_owned(), |address| address.to_string())
        };
        let (kafka, http) =
            (address_text(self.kafka_address()), address_text(self.admin_address()));
        let zookeeper = address_text(self.zookeeper_address());
        write!(f, "ready kafka={kafka} zookeeper={zookeeper} http={http}")?;
        for port in self.kafka_ports.iter().skip(1) {
            write!(f, " kafka-{}={}", port.name.to_ascii_lowercase(), port.address())?;
        }
        if let Some(address) = self.zookeeper_tls_address() {
            write!(f, " zookeeper-tls={address}")?;
        }
        match self.http.secure.as_ref().map(|port| port.address) {
            Some(address) => write!(f, " http-tls={address}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
