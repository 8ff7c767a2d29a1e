//! The server: sessions, connections and watches over one tree.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use admission::{
    Budget, BudgetError, BudgetGrant, BudgetKind, BudgetSource, BudgetSpec, BudgetUsage, Holder,
    QueueGrant,
};
use engine_znodes::{
    OnApplied, SessionId, TransactionDraft, TransactionRequest, TreeChange, ZnodeLogSizes,
    ZnodeObserver, ZnodeTree, Znodes,
};
use parking_lot::Mutex;
use storage::LogThrottle;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::connection::Connection;
use crate::connections::{ConnectionLimits, ConnectionTable};
use crate::options::ZkOptions;
use crate::output::{ConnectionOutput, UnreadBudget};
use crate::past::PastReader;
use crate::reads::ReadSources;
use crate::sessions::{LiveSession, LiveSessions, RemovedSession, SessionUse};
use crate::traffic::{ServerTraffic, ZkLatencies, reset_of_server};
use crate::watches::Watches;

/// The number of transactions that enter the catalog at each tick.
const HISTORY_PER_TICK: usize = 20_000;

/// The author in the history when the server ends an expired session, or a container.
pub(crate) const BY_THE_SERVER: &str = "server";

const SESSIONS: BudgetSpec = BudgetSpec {
    name: "zookeeper-sessions",
    unit: "sessions",
    setting: Some("zookeeper.sessions-max"),
    kind: BudgetKind::Yielding,
};
const CONNECTIONS: BudgetSpec = BudgetSpec {
    name: "zookeeper-connections",
    unit: "connections",
    setting: Some("zookeeper.maxCnxns"),
    kind: BudgetKind::Yielding,
};

/// The watches, as the tree knows them.
#[derive(Debug)]
struct WatchObserver(Mutex<Watches>);

impl BudgetSource for WatchObserver {
    fn usage(&self) -> BudgetUsage {
        self.0.lock().usage()
    }
}

impl ZnodeObserver for WatchObserver {
    fn on_change(&self, change: &TreeChange<'_>) {
        self.0.lock().fire(change);
    }
}

/// Serves ZooKeeper's clients.
#[derive(Debug)]
pub struct ZkServer {
    pub(crate) znodes: Arc<Znodes>,
    pub(crate) options: ZkOptions,
    watches: Arc<WatchObserver>,
    session_budget: Arc<Budget>,
    /// Locked after the tree, never before it.
    sessions: Mutex<LiveSessions>,
    connections: Mutex<ConnectionTable>,
    next_connection: AtomicU64,
    unread: Arc<UnreadBudget>,
    pub(crate) past: PastReader,
    refusals: Mutex<LogThrottle>,
    closures: Mutex<LogThrottle>,
    rejected: AtomicU64,
    auth_failures: AtomicU64,
    failed_handshakes: AtomicU64,
    connection_requests: AtomicU64,
    expired_sessions: AtomicU64,
    /// The traffic of connections that have ended.
    traffic_before: Mutex<ServerTraffic>,
    latencies: Arc<ZkLatencies>,
    start: Instant,
}

impl ZkServer {
    /// A server over `znodes`. The sessions that it has go on from now.
    ///
    /// # Panics
    /// Another server is there already.
    pub fn new(znodes: Arc<Znodes>, options: ZkOptions) -> Arc<ZkServer> {
        let watches = Watches::new(options.watches_bytes_max);
        let watches = Arc::new(WatchObserver(Mutex::new(watches)));
        znodes.observe(Arc::clone(&watches) as Arc<dyn ZnodeObserver>);
        let unread = UnreadBudget::new(options.unread_total_bytes_max);
        let budgets = znodes.core().budgets();
        budgets.register(Arc::clone(&watches) as Arc<dyn BudgetSource>);
        budgets.register(Arc::clone(&unread) as Arc<dyn BudgetSource>);
        let session_budget = budgets.budget(SESSIONS, options.sessions_max as u64);
        let mut sessions = LiveSessions::default();
        for (id, session) in znodes.tree().sessions() {
            let session = Arc::new(LiveSession::new(id, session.timeout_ms, 0));
            sessions.insert(session, session_budget.take_always(&Holder::restored(), 1), 0);
        }
        let connection_budget = budgets.budget(CONNECTIONS, options.connections_max as u64);
        let limits = ConnectionLimits {
            budget: connection_budget,
            per_address_max: options.connections_per_address_max,
        };
        let past = PastReader::new(Arc::clone(&znodes), options.moment_patience);
        Arc::new(ZkServer {
            past,
            unread,
            znodes,
            options,
            watches,
            session_budget,
            sessions: Mutex::new(sessions),
            connections: Mutex::new(ConnectionTable::new(limits)),
            next_connection: AtomicU64::new(1),
            refusals: Mutex::default(),
            closures: Mutex::default(),
            rejected: AtomicU64::new(0),
            auth_failures: AtomicU64::new(0),
            failed_handshakes: AtomicU64::new(0),
            connection_requests: AtomicU64::new(0),
            expired_sessions: AtomicU64::new(0),
            traffic_before: Mutex::default(),
            latencies: Arc::default(),
            start: Instant::now(),
        })
    }

    /// Forgets a connection that has ended.
    pub(crate) fn dismiss(&self, connection: &Arc<Connection>) {
        {
            let mut connections = self.connections.lock();
            connections.remove(connection.id());
            self.traffic_before.lock().add(&connection.requests, &connection.output.stats());
        }
        self.watches().lock().remove_connection(connection);
        let Some(id) = connection.session() else { return };
        let mut sessions = self.sessions.lock();
        let is_attached = sessions.get(id).is_some_and(|session| {
            let mut attached = session.connection.lock();
            attached.take_if(|attached| attached.id() == connection.id()).is_some()
        });
        if is_attached {
            sessions.set_use(id, SessionUse::Idle, self.now_ms());
        }
    }

    /// A new connection from `peer`, if there may be another one.
    pub(crate) fn admit(&self, peer: SocketAddr) -> Option<Arc<Connection>> {
        let mut connections = self.connections.lock();
        let grant = match connections.make_room(peer.ip()) {
            Ok(grant) => grant,
            Err(refusal) => {
                self.refuse_connection(&refusal.to_string());
                return None;
            }
        };
        let id = self.next_connection.fetch_add(1, Ordering::Relaxed);
        let now_ms = self.znodes.core().wall_now().0;
        let network = Holder::address(peer.ip());
        let output = ConnectionOutput::new(
            self.options.unread_bytes_max,
            &self.unread,
            &network,
            &self.latencies,
        );
        let super_name = self.options.x509_super_user.clone();
        let connection = Arc::new(Connection::new(id, peer, now_ms, output, super_name));
        connections.insert(Arc::clone(&connection), grant);
        Some(connection)
    }

    /// Logs that a connection is refused, unless the log has had enough of it.
    pub(crate) fn refuse_connection(&self, reason: &str) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
        if let Some(connections) = self.refusals.lock().record_failure(self.start.elapsed()) {
            tracing::warn!(why = reason, connections, "ZooKeeper connections are not accepted");
        }
    }

    /// Ends sessions that expire, and removes containers and znodes whose time is over. It does not
    /// return.
    pub async fn run_maintenance(self: Arc<ZkServer>) {
        let mut tick = interval(Duration::from_millis(self.options.tick_ms.into()));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reap = interval(self.options.container_check_interval);
        reap.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = tick.tick() => {
                    self.expire_sessions();
                    self.catch_up_history().await;
                }
                _ = reap.tick() => self.reap(),
            }
        }
    }

    fn expire_sessions(self: &Arc<ZkServer>) {
        let expired = self.sessions.lock().remove_expired(self.now_ms());
        for expired in expired {
            tracing::info!(session = %expired.session.id, "a ZooKeeper session expires");
            self.expired_sessions.fetch_add(1, Ordering::Relaxed);
            self.close_session(expired);
        }
    }

    /// Ends a session that no client can resume any more.
    fn close_session(self: &Arc<ZkServer>, removed: RemovedSession) {
        let RemovedSession { session, holder } = removed;
        let (server, id) = (Arc::clone(self), session.id);
        let on_ended = move |tree: &ZnodeTree, result: Result<_, _>| {
            if let Err(error) = result {
                tracing::warn!(session = %id, %error, "a session cannot be ended; again later");
                // Nothing of it is gone.
                if let Some(session) = tree.session(id) {
                    let grant = server.session_budget.take_always(&holder, 1);
                    server.track(id, session.timeout_ms, grant);
                }
            }
        };
        if let Some(connection) = session.connection.lock().take() {
            connection.output.cut();
        }
        self.submit(id, TransactionRequest::CloseSession, Box::new(on_ended));
    }

    /// Room for a session of `holder`. If there is none, sessions of the holder with the most end:
    /// idle ones, and others only for a holder that has fewer.
    ///
    /// # Errors
    /// None of them may end.
    pub(crate) fn take_session(
        self: &Arc<ZkServer>,
        holder: &Holder,
    ) -> Result<BudgetGrant, BudgetError> {
        self.session_budget.take_evicting(holder, 1, |refusal| {
            let Some(yields) = &refusal.yields else { return false };
            // Their clients may be on their way back. The sessions of clients that do not return
            // expire.
            if yields.is_restored() {
                return false;
            }
            let stays_larger = self.session_budget.held(yields) > refusal.held + 1;
            let max_use = if stays_larger { SessionUse::Connected } else { SessionUse::Idle };
            let removed = {
                let tree = self.znodes.tree();
                self.sessions.lock().remove_least_used(yields, max_use, &tree)
            };
            let Some(removed) = removed else { return false };
            if let Some(sessions) = self.closures.lock().record_failure(self.start.elapsed()) {
                let limit = refusal.limit;
                tracing::warn!(
                    holder = %yields,
                    sessions,
                    limit,
                    "there are as many ZooKeeper sessions as may be (zookeeper.sessions-max): idle ones of the address with the most are closed"
                );
            }
            self.close_session(removed);
            true
        })
    }

    /// Waits until a transaction of `holder` may be on its way to the disk.
    pub(crate) async fn wait_for_flight(&self, holder: &Holder, bytes: usize) -> QueueGrant {
        self.znodes.core().append_budget().acquire(holder, bytes).await
    }

    /// Keeps the past nearly complete, at a bounded cost.
    async fn catch_up_history(&self) {
        let history = Arc::clone(self.znodes.history());
        let advance = move || history.catch_up(HISTORY_PER_TICK);
        if let Err(error) = self.znodes.core().spawn_blocking(advance).await {
            tracing::debug!(%error, "the history of znodes is caught up with later");
        }
    }

    fn reap(&self) {
        let now_ms = self.znodes.core().wall_now().0 as i64;
        let never_used = self.options.container_never_used;
        let never_used_ms = never_used.map(|time| time.as_millis() as i64);
        let share = self.options.container_check_interval.as_millis().min(60_000) as u64;
        let max_reaps = u64::from(self.options.container_reaps_per_minute) * share / 60_000;
        let due = self.znodes.tree().reapable(now_ms, never_used_ms);
        for path in due.into_iter().take(max_reaps.max(1) as usize) {
            self.submit(SessionId(0), TransactionRequest::Reap { path }, Box::new(|_, _| {}));
        }
    }

    /// Submits what no client asked for.
    fn submit(&self, session: SessionId, request: TransactionRequest, on_applied: OnApplied) {
        let draft = TransactionDraft::new(session, Arc::new([]), BY_THE_SERVER, request);
        self.znodes.submit(draft, on_applied);
    }

    /// A session begins at a connection.
    pub(crate) fn attach(
        &self,
        id: SessionId,
        timeout_ms: u32,
        connection: &Arc<Connection>,
        grant: BudgetGrant,
    ) -> Arc<LiveSession> {
        connection.set_session(id);
        let session = self.track(id, timeout_ms, grant);
        let mut sessions = self.sessions.lock();
        *session.connection.lock() = Some(Arc::clone(connection));
        sessions.set_use(id, SessionUse::Connected, self.now_ms());
        session
    }

    fn track(&self, id: SessionId, timeout_ms: u32, grant: BudgetGrant) -> Arc<LiveSession> {
        let now_ms = self.now_ms();
        let session = Arc::new(LiveSession::new(id, timeout_ms, now_ms));
        self.sessions.lock().insert(Arc::clone(&session), grant, now_ms);
        session
    }

    /// A session goes on at another connection; the one that it had is cut. `None` if it has
    /// expired, and its end is on its way.
    pub(crate) fn resume(
        &self,
        id: SessionId,
        timeout_ms: u32,
        connection: &Arc<Connection>,
    ) -> Option<Arc<LiveSession>> {
        // It does not expire meanwhile.
        let mut sessions = self.sessions.lock();
        let session = Arc::clone(sessions.get(id)?);
        session.set_timeout_ms(timeout_ms);
        session.touch(self.now_ms());
        connection.set_session(id);
        let mut attached = session.connection.lock();
        let before = attached.replace(Arc::clone(connection));
        // Before yet another one can be attached, which does not know of it.
        if let Some(before) = &before {
            before.output.cut();
        }
        drop(attached);
        sessions.hand_over(id, &connection.network);
        sessions.set_use(id, SessionUse::Connected, self.now_ms());
        drop(sessions);
        if let Some(before) = before {
            self.watches().lock().remove_connection(&before);
        }
        Some(session)
    }

    /// A session that has not ended.
    pub(crate) fn live_session(&self, id: SessionId) -> Option<Arc<LiveSession>> {
        self.sessions.lock().get(id).cloned()
    }

    pub(crate) fn end_session(&self, id: SessionId) {
        self.sessions.lock().remove(id);
    }

    pub(crate) fn read_sources(&self) -> ReadSources<'_> {
        ReadSources { watches: &self.watches.0, history: self.znodes.history() }
    }

    pub(crate) fn watches(&self) -> &Mutex<Watches> {
        &self.watches.0
    }

    /// Milliseconds since the server started.
    pub(crate) fn now_ms(&self) -> u64 {
        self.ms_since_start(Instant::now())
    }

    pub(crate) fn ms_since_start(&self, moment: Instant) -> u64 {
        moment.duration_since(self.start).as_millis() as u64
    }

    pub(crate) fn new_password(&self) -> [u8; 16] {
        (self.options.new_id)()
    }

    /// A nonce: unguessable, and used once.
    pub(crate) fn new_nonce(&self) -> String {
        uuid::Uuid::from_bytes((self.options.new_id)()).simple().to_string()
    }

    pub(crate) fn connection_list(&self) -> Vec<Arc<Connection>> {
        self.connections.lock().iter().cloned().collect()
    }

    pub(crate) fn session_count(&self) -> usize {
        self.sessions.lock().len()
    }

    /// The sessions by when they expire if nothing is heard of them, in milliseconds since 1970.
    pub(crate) fn session_expiries(&self) -> BTreeMap<u64, Vec<SessionId>> {
        let mut expiries: BTreeMap<u64, Vec<SessionId>> = BTreeMap::new();
        let started_ms = self.started_ms();
        for session in self.sessions.lock().iter() {
            let tick = u64::from(self.options.tick_ms);
            let expiry = started_ms + session.expiry_ms().next_multiple_of(tick);
            expiries.entry(expiry).or_default().push(session.id);
        }
        expiries.values_mut().for_each(|sessions| sessions.sort());
        expiries
    }

    /// 0 for a session that has ended.
    pub(crate) fn session_timeout_ms(&self, id: SessionId) -> u32 {
        self.sessions.lock().get(id).map_or(0, |session| session.timeout_ms())
    }

    /// The traffic of all connections since the start, or since it was reset.
    pub(crate) fn traffic(&self) -> ServerTraffic {
        let connections = self.connections.lock();
        let mut traffic = *self.traffic_before.lock();
        for connection in connections.iter() {
            traffic.add(&connection.requests, &connection.output.stats());
        }
        traffic
    }

    /// The latencies of all connections' requests since the start.
    pub fn latencies(&self) -> &ZkLatencies {
        &self.latencies
    }

    pub(crate) fn reset_traffic(&self) {
        let connections = self.connections.lock();
        *self.traffic_before.lock() = ServerTraffic::default();
        for connection in connections.iter() {
            connection.output.change_stats(|stats| reset_of_server(&connection.requests, stats));
        }
    }

    /// Resets the figures that each connection has of its own.
    pub(crate) fn reset_connections(&self) {
        for connection in self.connection_list() {
            connection.requests.reset_own();
            connection.output.change_stats(|stats| stats.reset_own());
        }
    }

    pub(crate) fn connections_rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    pub(crate) fn auth_failures(&self) -> u64 {
        self.auth_failures.load(Ordering::Relaxed)
    }

    /// A client that is not who it says, by this scheme.
    pub(crate) fn record_auth_failure(&self, connection: &Connection, scheme: &str) {
        self.auth_failures.fetch_add(1, Ordering::Relaxed);
        let address = connection.peer.ip().to_canonical().to_string();
        let why = "the client is not who it says it is";
        let way = format_args!("ZooKeeper {scheme}");
        self.znodes.core().audit().record_login_failure(&address, way, why);
    }

    /// A client that did not speak TLS as it has to, or showed no certificate that is trusted.
    pub(crate) fn count_failed_handshake(&self, peer: SocketAddr, error: &io::Error) {
        tracing::debug!(%peer, %error, "a handshake of TLS failed");
        self.failed_handshakes.fetch_add(1, Ordering::Relaxed);
        self.auth_failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn failed_handshakes(&self) -> u64 {
        self.failed_handshakes.load(Ordering::Relaxed)
    }

    /// A client asks for a session, or to go on with one.
    pub(crate) fn count_connection_request(&self) {
        self.connection_requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn connection_requests(&self) -> u64 {
        self.connection_requests.load(Ordering::Relaxed)
    }

    pub(crate) fn expired_sessions(&self) -> u64 {
        self.expired_sessions.load(Ordering::Relaxed)
    }

    pub(crate) fn log_sizes(&self) -> ZnodeLogSizes {
        self.znodes.log_sizes().unwrap_or_else(|error| {
            tracing::warn!(%error, "the size of the log of znodes is not known");
            ZnodeLogSizes::default()
        })
    }

    /// As `srvr` shows it. It begins with the version of ZooKeeper that the server is compatible
    /// with, because tools read that, and the date behind it.
    pub(crate) fn version(&self) -> String {
        const VERSION: &str = concat!("3.9.5-freezeframe-", env!("CARGO_PKG_VERSION"));
        let built = env!("BUILT_AT_SECONDS").parse().ok();
        let built = built.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
        let built = built.unwrap_or_default().strftime("%Y-%m-%d %H:%M UTC");
        format!("{VERSION}, built on {built}")
    }

    /// The time of the start, in milliseconds since 1970.
    fn started_ms(&self) -> u64 {
        self.znodes.core().wall_now().0.saturating_sub(self.now_ms())
    }

    /// An instant in milliseconds since 1970; 0 for none.
    pub(crate) fn ms_of(&self, moment: Option<Instant>) -> u64 {
        moment.map_or(0, |moment| self.started_ms() + self.ms_since_start(moment))
    }
}
