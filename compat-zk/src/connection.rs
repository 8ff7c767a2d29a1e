//! A connection, as the server and its watches know it.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use admission::Holder;
use engine_znodes::acl::AclId;
use engine_znodes::{SessionId, ZkCode};
use parking_lot::RwLock;
use tokio::sync::Notify;

use crate::output::ConnectionOutput;
use crate::traffic::RequestStats;

/// The number of requests of one connection that may be on their way: ZooKeeper's
/// `globalOutstandingLimit`.
const OUTSTANDING_MAX: usize = 1000;
/// No request is read while this many bytes wait to be sent.
const UNSENT_BYTES_MAX: usize = 4 << 20;
/// The number of bytes that all ids of a connection may have: each write records them.
const IDS_BYTES_MAX: usize = 16 << 10;

#[derive(Debug)]
pub(crate) struct Connection {
    id: u64,
    pub(crate) peer: SocketAddr,
    /// The holder that the connection and its session are charged to.
    pub(crate) network: Holder,
    /// The time at which it began, in milliseconds since 1970.
    pub(crate) established_ms: u64,
    pub(crate) requests: RequestStats,
    pub(crate) output: ConnectionOutput,
    identity: RwLock<ConnectionIdentity>,
    session: OnceLock<SessionId>,
    /// True once the client has asked for a session.
    has_asked: AtomicBool,
    is_secure: AtomicBool,
    /// `X509AuthenticationProvider.superUser`
    x509_super_user: Option<String>,
    outstanding: AtomicUsize,
    answered: Notify,
}

#[derive(Clone, Debug)]
pub(crate) struct ConnectionIdentity {
    pub(crate) held: Arc<[AclId]>,
    /// The same, as the history shows it.
    pub(crate) by: Arc<str>,
    /// The holder that its znodes and writes are charged to: an authenticated user, or else the
    /// network. An id of the scheme `digest` proves nothing, because a client makes up as many as
    /// it likes.
    pub(crate) holder: Holder,
}

impl ConnectionIdentity {
    fn new(ids: Vec<AclId>, network: &Holder) -> ConnectionIdentity {
        let is_super = ids.iter().any(|id| id.scheme == "super");
        let user = ids.iter().find(|id| matches!(&*id.scheme, "sasl" | "x509"));
        let holder = match user {
            Some(user) => Holder::principal(&format!("{}:{}", user.scheme, user.id), is_super),
            None if is_super => Holder::principal("super", true),
            None => network.clone(),
        };
        let names: Vec<String> = ids
            .iter()
            .map(|id| {
                let (scheme, id) = id.shown();
                format!("{scheme}:{id}")
            })
            .collect();
        ConnectionIdentity { held: ids.into(), by: names.join(",").into(), holder }
    }
}

impl Connection {
    pub(crate) fn new(
        id: u64,
        peer: SocketAddr,
        established_ms: u64,
        output: ConnectionOutput,
        x509_super_user: Option<String>,
    ) -> Connection {
        let ip_id = AclId::new("ip", &peer.ip().to_string());
        let network = Holder::address(peer.ip());
        let identity = RwLock::new(ConnectionIdentity::new(vec![ip_id], &network));
        Connection {
            id,
            peer,
            network,
            established_ms,
            requests: RequestStats::new(),
            output,
            identity,
            session: OnceLock::new(),
            has_asked: AtomicBool::new(false),
            is_secure: AtomicBool::new(false),
            x509_super_user,
            outstanding: AtomicUsize::new(0),
            answered: Notify::new(),
        }
    }

    /// Its number in this process.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Its session, once the handshake is over.
    pub(crate) fn session(&self) -> Option<SessionId> {
        self.session.get().copied()
    }

    /// It asks for a session: it is no longer [idle](Connection::is_idle).
    pub(crate) fn ask_for_session(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    /// True if the client never asked for a session.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_asked.load(Ordering::Relaxed)
    }

    pub(crate) fn set_session(&self, session: SessionId) {
        let _ = self.session.set(session);
    }

    pub(crate) fn identity(&self) -> ConnectionIdentity {
        self.identity.read().clone()
    }

    /// The ids of the client, as access control lists name them.
    pub(crate) fn held(&self) -> Arc<[AclId]> {
        Arc::clone(&self.identity.read().held)
    }

    pub(crate) fn identify(&self, ids: Vec<AclId>) -> Result<(), ZkCode> {
        let mut identity = self.identity.write();
        let mut held = identity.held.to_vec();
        for id in ids {
            if !held.contains(&id) {
                held.push(id);
            }
        }
        if held.iter().map(AclId::bytes).sum::<usize>() > IDS_BYTES_MAX {
            return Err(ZkCode::AuthFailed);
        }
        *identity = ConnectionIdentity::new(held, &self.network);
        Ok(())
    }

    /// TLS is spoken on it, by the client of this name.
    ///
    /// # Errors
    /// The name is too long.
    pub(crate) fn secured(&self, client: Option<String>) -> io::Result<()> {
        self.is_secure.store(true, Ordering::Relaxed);
        let Some(client) = client else { return Ok(()) };
        let certificate_id = AclId::new("x509", &client);
        let is_super = self.x509_super_user.as_ref() == Some(&client);
        let ids =
            is_super.then(|| AclId::new("super", &client)).into_iter().chain([certificate_id]);
        self.identify(ids.collect())
            .map_err(|_| io::Error::other("the name in the certificate is too long"))
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.is_secure.load(Ordering::Relaxed)
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    pub(crate) fn begin_request(&self) {
        self.outstanding.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end_request(&self) {
        self.outstanding.fetch_sub(1, Ordering::Relaxed);
        self.answered.notify_one();
    }

    /// Waits until all its requests are answered.
    pub(crate) async fn wait_for_answers(&self) {
        self.wait_until_below(1).await;
    }

    async fn wait_until_below(&self, outstanding: usize) {
        loop {
            let answered = self.answered.notified();
            if self.outstanding() < outstanding {
                return;
            }
            answered.await;
        }
    }

    /// Waits until another request may be on its way.
    pub(crate) async fn wait_for_turn(&self) {
        self.wait_until_below(OUTSTANDING_MAX).await;
        self.output.wait_for_room(UNSENT_BYTES_MAX).await;
    }
}
