//! The requests of a connection: the handshake, then one after the other.
//!
//! Invariants:
//! - Replies leave in the order of the requests, but for pings: while a request waits, frames are
//!   read ahead, and pings among them are answered at once. A client takes its connection as lost
//!   after two thirds of its timeout without any packet. Writes are on their way together; a read
//!   that comes behind a write of its own connection is answered right after that write, before
//!   anything later is applied.
//! - A session that goes on at another connection is behind its earlier requests: their writes are
//!   answered or never made.
//! - An event is in the output before any reply that could show its cause: both are appended while
//!   the tree is locked.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use admission::BudgetGrant;
use bytes::{Bytes, BytesMut};
use engine_core::REQUEST_TARGET;
use engine_znodes::acl::AclId;
use engine_znodes::{
    SessionId, TransactionDraft, TransactionOutcome, TransactionRequest, ZkCode, ZnodeData,
    ZnodeTree,
};
use parking_lot::Mutex;
use tls::Secret;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::Span;
use tracing::field::Empty;
use zk_wire::{
    ConnectRequest, ConnectResponse, JuteError, JuteReader, JuteWriter, RequestHeader, frame,
    opcode,
};

use crate::auth::authenticate_digest;
use crate::connection::{Connection, ConnectionIdentity};
use crate::four_letter;
use crate::output::{LAST_READ_MAX, LENGTH_BYTES};
use crate::past::{PastAnswer, PastPath, PastQuestion};
use crate::reads::{
    FetchedReads, PendingRead, TreeReader, answer_read, put_multi_read_of_the_past,
    reply_from_the_past,
};
use crate::request::{MultiReadOp, ReadRequest, WriteRequest, ZkRequest};
use crate::sasl::{SaslAnswer, SaslExchange};
use crate::server::ZkServer;
use crate::sessions::LiveSession;
use crate::traffic::RequestMark;
use crate::writes::{WriteReply, put_multi_end, put_multi_error, reply_to_write, transaction_of};

/// The longest time that a client may take for the handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
const PASSWORD_BYTES: usize = 16;
/// The number of frames, and of their bytes, that are read ahead while a request waits.
const AHEAD_MAX: usize = 1000;
const AHEAD_BYTES_MAX: usize = 1 << 20;

/// A session and its password.
type GrantedSession = (Arc<LiveSession>, [u8; PASSWORD_BYTES]);

/// A write on its way, and the reads behind it; `None` once all are answered. It is locked while
/// they are: a read that comes meanwhile must not be answered before them.
struct WriteTurn(Mutex<Option<Vec<PendingRead>>>);

/// The reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionEnd {
    #[error("the client went away")]
    Gone,
    #[error("{0}")]
    Malformed(#[from] JuteError),
    #[error("{0}")]
    Refused(&'static str),
}

struct RequestFrame {
    bytes: Bytes,
    received_at: Instant,
}

/// Frames that came while a request waited.
#[derive(Default)]
struct ReadAhead {
    frames: VecDeque<RequestFrame>,
    bytes: usize,
    /// The reason why no more frames come.
    end: Option<ConnectionEnd>,
}

impl ReadAhead {
    fn has_room(&self) -> bool {
        self.end.is_none() && self.frames.len() < AHEAD_MAX && self.bytes < AHEAD_BYTES_MAX
    }

    fn push(&mut self, frame: RequestFrame) {
        self.bytes += frame.bytes.len();
        self.frames.push_back(frame);
    }

    fn pop(&mut self) -> Option<RequestFrame> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.bytes.len();
        Some(frame)
    }
}

/// Reads a connection's requests to their end.
pub(crate) struct ConnectionReader<'a, R> {
    pub(crate) server: &'a Arc<ZkServer>,
    pub(crate) connection: &'a Arc<Connection>,
    pub(crate) stream: R,
    pub(crate) received: BytesMut,
    ahead: ReadAhead,
    /// The last write of this connection.
    last_write: Option<Arc<WriteTurn>>,
    sasl: SaslExchange,
}

/// Serves a connection until either side ends it.
pub(crate) async fn serve_connection(
    server: &Arc<ZkServer>,
    connection: &Arc<Connection>,
    stream: impl AsyncRead + AsyncWrite,
) {
    let (read, write) = tokio::io::split(stream);
    tokio::pin!(read);
    tokio::pin!(write);
    let mut reader = ConnectionReader {
        server,
        connection,
        stream: read,
        received: BytesMut::new(),
        ahead: ReadAhead::default(),
        last_write: None,
        sasl: SaslExchange::default(),
    };
    let reading = async {
        let end = reader.run().await;
        tracing::debug!(peer = %connection.peer, ?end, "a ZooKeeper connection ends");
        // Earlier requests are still answered, if the client is there to read the replies.
        let _ = tokio::time::timeout(LAST_READ_MAX, connection.wait_for_answers()).await;
        connection.output.end();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = reading => {}
        () = connection.output.write_to(&mut write) => {}
    }
    connection.output.cut();
}

impl<R: AsyncRead + Unpin> ConnectionReader<'_, R> {
    async fn run(&mut self) -> Result<(), ConnectionEnd> {
        let session = match tokio::time::timeout(HANDSHAKE_MAX, self.shake_hands()).await {
            Ok(session) => session?,
            Err(_) => return Err(ConnectionEnd::Refused("the handshake took too long")),
        };
        let Some(session) = session else { return Ok(()) };
        loop {
            let frame = match (self.ahead.pop(), self.ahead.end.take()) {
                (Some(frame), end) => {
                    self.ahead.end = end;
                    frame
                }
                (None, Some(end)) => return Err(end),
                (None, None) => self.next_request(&session).await?,
            };
            self.connection.wait_for_turn().await;
            if self.connection.output.has_ended() {
                return Ok(());
            }
            self.take_request(&session, frame).await?;
        }
    }

    /// Reads the next request. Nothing is lost if this is dropped meanwhile.
    async fn next_request(&mut self, session: &LiveSession) -> Result<RequestFrame, ConnectionEnd> {
        let bytes = self.next_frame().await?;
        let received_at = Instant::now();
        self.connection.requests.received(LENGTH_BYTES + bytes.len());
        session.touch(self.server.ms_since_start(received_at));
        Ok(RequestFrame { bytes, received_at })
    }

    /// The first frame, or a four-letter word; `None` if there is nothing after it.
    async fn shake_hands(&mut self) -> Result<Option<Arc<LiveSession>>, ConnectionEnd> {
        while self.received.len() < four_letter::BYTES {
            self.receive().await?;
        }
        self.connection.requests.received(self.received.len());
        if let Some(answer) = four_letter::answer(self.server, &self.received) {
            self.connection.output.text(&answer);
            return Ok(None);
        }
        let request = ConnectRequest::read(self.next_frame().await?)?;
        self.server.count_connection_request();
        self.connection.ask_for_session();
        if request.last_zxid_seen > self.server.znodes.tree().last_zxid() {
            return Err(ConnectionEnd::Refused("the client has seen a later state than there is"));
        }
        let timeout_ms = self.server.options.session_timeout(request.timeout_ms);
        let session = match request.session_id {
            0 => match self.server.take_session(&self.connection.network) {
                Ok(grant) => self.create_session(timeout_ms, grant).await,
                Err(error) => {
                    self.server.refuse_connection(&error.to_string());
                    return Err(ConnectionEnd::Refused("there are too many sessions"));
                }
            },
            id => {
                let password = request.password.as_deref();
                self.resume_session(SessionId(id), password, timeout_ms).await?
            }
        };
        let gone = ([0; PASSWORD_BYTES], 0, SessionId(0));
        let (password, timeout_ms, id) = match &session {
            Some((session, password)) => (*password, session.timeout_ms(), session.id),
            None => gone,
        };
        self.connection.output.connected(&ConnectResponse {
            protocol_version: 0,
            timeout_ms: timeout_ms as i32,
            session_id: id.0,
            password: Some(Bytes::copy_from_slice(&password)),
            read_only: request.read_only.map(|_| false),
        });
        Ok(session.map(|(session, _)| session))
    }

    async fn create_session(&self, timeout_ms: u32, grant: BudgetGrant) -> Option<GrantedSession> {
        let password = self.server.new_password();
        let (sender, receiver) = oneshot::channel();
        let (server, connection) = (Arc::clone(self.server), Arc::clone(self.connection));
        let ConnectionIdentity { held, by, holder } = self.connection.identity();
        let request = TransactionRequest::CreateSession { timeout_ms, password };
        let draft = TransactionDraft::new(SessionId(0), held, &by, request);
        let flight = self.server.wait_for_flight(&holder, draft.bytes()).await;
        let on_begun = move |_: &ZnodeTree, result: Result<TransactionOutcome, _>| {
            drop(flight);
            let session = result
                .map(|outcome| server.attach(outcome.session, timeout_ms, &connection, grant));
            let _ = sender.send(session);
        };
        self.server.znodes.submit(draft, Box::new(on_begun));
        match receiver.await {
            Ok(Ok(session)) => Some((session, password)),
            Ok(Err(error)) => {
                tracing::debug!(%error, "no session can be created");
                None
            }
            Err(_) => None,
        }
    }

    /// Attaches the connection to an open session, once the requests of its other connections are
    /// done: requests of this connection come after them. Returns `None` if the session has ended
    /// or its password is another one. A client is told that its session has ended only once that
    /// is on stable storage: until then it has to come again.
    async fn resume_session(
        &self,
        id: SessionId,
        password: Option<&[u8]>,
        timeout_ms: u32,
    ) -> Result<Option<GrantedSession>, ConnectionEnd> {
        let known_password = self.server.znodes.tree().session(id).map(|session| session.password);
        let Some(known_password) =
            known_password.filter(|known_password| password == Some(&known_password[..]))
        else {
            return Ok(None);
        };
        let Some(session) = self.server.resume(id, timeout_ms, self.connection) else {
            return Err(ConnectionEnd::Refused("the session is being ended"));
        };
        // Its client sends nothing before the answer.
        touch_until(self.server, &session, session.wait_for_writes()).await;
        match self.server.live_session(id) {
            Some(session) => Ok(Some((session, known_password))),
            // The client asked to end it.
            None if self.server.znodes.tree().session(id).is_none() => Ok(None),
            None => Err(ConnectionEnd::Refused("the session is being ended")),
        }
    }

    async fn take_request(
        &mut self,
        session: &Arc<LiveSession>,
        RequestFrame { bytes, received_at }: RequestFrame,
    ) -> Result<(), ConnectionEnd> {
        let mut fields = JuteReader::new(bytes);
        let RequestHeader { xid, op } = RequestHeader::read(&mut fields)?;
        self.connection.requests.begin(op, xid);
        let span = self.request_span(session, op, xid);
        let mark = RequestMark { xid, received_at, is_write: false, span };
        let request = match ZkRequest::read(op, &mut fields) {
            Ok(Some(request)) => request,
            Ok(None) => {
                self.refuse_in_turn(mark, session, ZkCode::Unimplemented);
                return Err(ConnectionEnd::Refused("the request is not known"));
            }
            Err(error) => {
                tracing::debug!(op, %error, "a request does not read");
                self.refuse_in_turn(mark, session, ZkCode::MarshallingError);
                return Ok(());
            }
        };
        if !matches!(request, ZkRequest::Auth { .. } | ZkRequest::Sasl(_)) {
            self.require_authentication(mark.clone())?;
        }
        match request {
            ZkRequest::Read(ReadRequest::Multi(ops))
                if ops.iter().any(|op| op.of_the_past().is_some()) =>
            {
                self.answer_multi_of_the_past(session, mark, &ops).await;
            }
            ZkRequest::Read(request) if request.of_the_past().is_some() => {
                self.answer_from_the_past(session, mark, request).await;
            }
            ZkRequest::Read(request) => {
                let fetched = if self.server.znodes.has_data_elsewhere() {
                    self.fetch_data(session, &request).await
                } else {
                    FetchedReads::default()
                };
                self.answer_in_turn(mark, session, request, fetched);
            }
            ZkRequest::Write(request) => self.write(mark, session, Some(request)).await,
            ZkRequest::CloseSession => {
                self.write(mark, session, None).await;
                // Nothing is read behind it. Its reply ends the output.
                std::future::pending::<()>().await;
            }
            ZkRequest::History(document) => self.answer_history(session, mark, &document).await,
            ZkRequest::Sasl(token) => return self.authenticate_by_sasl(mark, &token),
            ZkRequest::Auth { scheme, auth } => return self.authenticate(mark, &scheme, &auth),
        }
        Ok(())
    }

    /// The span of a request. Pings have none: they say only that a client is there.
    fn request_span(&self, session: &LiveSession, opcode: i32, xid: i32) -> Span {
        if opcode == opcode::PING {
            return Span::none();
        }
        tracing::trace_span!(
            target: REQUEST_TARGET,
            "zookeeper",
            otel.name = opcode::name(opcode),
            otel.kind = "server",
            zookeeper.xid = xid,
            zookeeper.session = %session.id,
            zookeeper.error = Empty,
            client.address = %self.connection.peer.ip(),
            client.port = i64::from(self.connection.peer.port()),
        )
    }

    /// Refuses a request once all writes before it are answered.
    fn refuse_in_turn(&mut self, mark: RequestMark, session: &Arc<LiveSession>, code: ZkCode) {
        self.answer_in_turn(mark, session, ReadRequest::Refused(code), FetchedReads::default());
    }

    /// Answers a read once all writes before it are answered.
    fn answer_in_turn(
        &mut self,
        mark: RequestMark,
        session: &Arc<LiveSession>,
        request: ReadRequest,
        fetched: FetchedReads,
    ) {
        let held = self.connection.held();
        let read = PendingRead { mark, held, request, fetched };
        if let Some(turn) = &self.last_write
            && let Some(waiting) = &mut *turn.0.lock()
        {
            self.connection.begin_request();
            return waiting.push(read);
        }
        self.last_write = None;
        let tree = self.server.znodes.tree();
        answer_read(self.server.read_sources(), self.connection, session.id, &tree, &read);
    }

    /// Reads the data of a read that is not in memory. Later requests wait meanwhile, so that
    /// answers stay in order.
    async fn fetch_data(&mut self, session: &LiveSession, request: &ReadRequest) -> FetchedReads {
        let paths = request.data_paths();
        if paths.is_empty() {
            return FetchedReads::default();
        }
        // Earlier writes may change the znodes that it reads.
        self.connection.wait_for_answers().await;
        self.fetch_data_at(session, paths).await
    }

    async fn fetch_data_at(&mut self, session: &LiveSession, paths: Vec<&str>) -> FetchedReads {
        let server = self.server;
        let (mut fetched, mut bytes) = (FetchedReads::default(), 0);
        let ConnectionIdentity { holder, .. } = self.connection.identity();
        for path in paths {
            let is_elsewhere = |tree: &ZnodeTree| {
                tree.get(path).is_some_and(|znode| znode.data() == ZnodeData::Elsewhere)
            };
            if !is_elsewhere(&server.znodes.tree()) {
                continue;
            }
            if !self.connection.output.may_hold(bytes) {
                break;
            }
            let (znodes, wanted_path) = (Arc::clone(&server.znodes), path.to_owned());
            let fetch = server.past.read_history(&holder, move |_| Ok(znodes.fetch(&wanted_path)?));
            match self.keep_alive(session, fetch).await {
                Ok(Some(znode)) => {
                    bytes += znode.data.as_ref().map_or(0, Bytes::len);
                    fetched.insert(path.to_owned(), znode);
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "the data of a znode cannot be fetched"),
            }
        }
        fetched
    }

    /// Answers from the past. Later requests wait meanwhile, so that answers stay in order.
    async fn answer_from_the_past(
        &mut self,
        session: &Arc<LiveSession>,
        mark: RequestMark,
        request: ReadRequest,
    ) {
        self.connection.wait_for_answers().await;
        let identity = self.connection.identity();
        let Some((path, question)) = request.of_the_past() else { return };
        let answer = self.read_past(session, &identity, path, question).await;
        let ConnectionIdentity { held, .. } = identity;
        let zxid = self.server.znodes.tree().last_zxid();
        let read = PendingRead { mark, held, request, fetched: FetchedReads::default() };
        reply_from_the_past(self.connection, zxid, &read, answer);
    }

    async fn read_past(
        &mut self,
        session: &LiveSession,
        identity: &ConnectionIdentity,
        path: &str,
        question: PastQuestion,
    ) -> Result<PastAnswer, ZkCode> {
        let path = PastPath::parse(path)?;
        let server = self.server;
        self.keep_alive(session, server.past.read(path, identity, question)).await
    }

    /// Answers a multiRead of which some paths are in the past.
    async fn answer_multi_of_the_past(
        &mut self,
        session: &Arc<LiveSession>,
        mark: RequestMark,
        ops: &[MultiReadOp],
    ) {
        self.connection.wait_for_answers().await;
        let identity = self.connection.identity();
        let held = &identity.held;
        let mut body = BytesMut::new();
        for op in ops {
            if !self.connection.output.may_hold(body.len()) {
                break;
            }
            match op.of_the_past() {
                Some((path, question)) => {
                    let answer = self.read_past(session, &identity, path, question).await;
                    put_multi_read_of_the_past(&mut body, &self.connection.output, op, answer);
                }
                // Its event could come before this reply.
                None if op.sets_watch() => {
                    put_multi_error(&mut body, ZkCode::BadArguments.number());
                }
                None => {
                    let data_paths = if self.server.znodes.has_data_elsewhere() {
                        op.data_path().into_iter().collect()
                    } else {
                        Vec::new()
                    };
                    let fetched = &self.fetch_data_at(session, data_paths).await;
                    let (sources, tree) = (self.server.read_sources(), self.server.znodes.tree());
                    let (connection, session) = (self.connection, session.id);
                    let tree = &tree;
                    let reader = TreeReader { sources, connection, session, tree, held, fetched };
                    reader.put_multi_read(&mut body, op);
                }
            }
        }
        put_multi_end(&mut body);
        let zxid = self.server.znodes.tree().last_zxid();
        self.connection.output.reply(mark, zxid, Ok(|out: &mut BytesMut| out.extend(body)));
    }

    /// Answers a document of the history API, like a read of the past.
    async fn answer_history(
        &mut self,
        session: &Arc<LiveSession>,
        mark: RequestMark,
        document: &[u8],
    ) {
        self.connection.wait_for_answers().await;
        let (server, connection) = (self.server, self.connection);
        let answer = server.past.answer(session, connection, document);
        let answer = self.keep_alive(session, answer).await;
        let zxid = self.server.znodes.tree().last_zxid();
        let body = |out: &mut BytesMut| out.buffer(Some(&answer));
        self.connection.output.reply(mark, zxid, Ok(body));
    }

    /// Waits for `answer`. The session counts as alive meanwhile, and its pings are answered.
    async fn keep_alive<T>(&mut self, session: &LiveSession, answer: impl Future<Output = T>) -> T {
        let answer = touch_until(self.server, session, answer);
        tokio::pin!(answer);
        loop {
            if !self.ahead.has_room() {
                return answer.await;
            }
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                request = self.next_request(session) => self.take_ahead(request),
            }
        }
    }

    /// Takes a request while another one waits.
    fn take_ahead(&mut self, request: Result<RequestFrame, ConnectionEnd>) {
        let frame = match request {
            Ok(frame) => frame,
            Err(end) => return self.ahead.end = Some(end),
        };
        let mut fields = JuteReader::new(frame.bytes.clone());
        match RequestHeader::read(&mut fields) {
            Ok(RequestHeader { xid, op: opcode::PING }) => {
                self.connection.requests.begin(opcode::PING, xid);
                let (received_at, span) = (frame.received_at, Span::none());
                let mark = RequestMark { xid, received_at, is_write: false, span };
                let zxid = self.server.znodes.tree().last_zxid();
                self.connection.output.reply_header(mark, zxid, Ok(()));
            }
            Ok(_) | Err(_) => self.ahead.push(frame),
        }
    }

    /// Submits a write, or without one the end of the session.
    async fn write(
        &mut self,
        mark: RequestMark,
        session: &Arc<LiveSession>,
        request: Option<WriteRequest>,
    ) {
        let ends_session = request.is_none();
        let mark = RequestMark { is_write: true, ..mark };
        let ConnectionIdentity { held, by, holder } = self.connection.identity();
        let (transaction, reply) = match request {
            Some(request) => transaction_of(request, &held, &self.server.options),
            None => (TransactionRequest::CloseSession, WriteReply::Header),
        };
        let draft =
            TransactionDraft::new(session.id, held, &by, transaction).charged_to(holder.clone());
        let session_write = session.begin_write();
        let server = self.server;
        let turn = server.wait_for_flight(&holder, draft.bytes());
        let flight = self.keep_alive(session, turn).await;
        // Another connection may be the session's by now, and write what comes after.
        if self.connection.output.has_ended() {
            return;
        }
        let turn = Arc::new(WriteTurn(Mutex::new(Some(Vec::new()))));
        self.last_write = Some(Arc::clone(&turn));
        self.connection.begin_request();
        let (server, connection) = (Arc::clone(self.server), Arc::clone(self.connection));
        let id = session.id;
        let on_applied = move |tree: &ZnodeTree, result: Result<TransactionOutcome, _>| {
            let _session_write = session_write;
            drop(flight);
            // A session whose end the disk refuses goes on, until it expires.
            if ends_session && result.is_ok() {
                // Before the reply: its place is free for a client that has it.
                server.end_session(id);
            }
            reply_to_write(&connection.output, tree, mark, &reply, result);
            connection.end_request();
            let mut turn = turn.0.lock();
            for read in turn.take().unwrap_or_default() {
                answer_read(server.read_sources(), &connection, id, tree, &read);
                connection.end_request();
            }
            drop(turn);
            if ends_session {
                connection.output.end();
            }
        };
        self.server.znodes.submit(draft, Box::new(on_applied));
    }

    /// Not in turn, as in ZooKeeper: it holds for the requests that come after it.
    fn authenticate(
        &self,
        mark: RequestMark,
        scheme: &str,
        auth: &[u8],
    ) -> Result<(), ConnectionEnd> {
        let identified = match scheme {
            "digest" => {
                let credentials = String::from_utf8_lossy(auth);
                let super_digest = self.server.options.super_digest.as_ref().map(Secret::expose);
                self.connection.identify(authenticate_digest(&credentials, super_digest))
            }
            "ip" => Ok(()),
            _ => Err(ZkCode::AuthFailed),
        };
        if identified.is_err() {
            self.server.record_auth_failure(self.connection, scheme);
        }
        self.connection.output.reply_header(mark, 0, identified);
        identified.map_err(|_| ConnectionEnd::Refused("the client is not who it says it is"))
    }

    /// Not in turn either.
    fn authenticate_by_sasl(
        &mut self,
        mark: RequestMark,
        token: &[u8],
    ) -> Result<(), ConnectionEnd> {
        let users = &self.server.options.sasl_users;
        let output = &self.connection.output;
        if users.is_empty() {
            output.reply_with_body(mark, 0, 0, |out| out.buffer(None));
            return Ok(());
        }
        let nonce = || self.server.new_nonce();
        let (answer, identified) = match self.sasl.answer(users, token, nonce) {
            Ok(SaslAnswer::Challenge(challenge)) => (challenge, Ok(())),
            Ok(SaslAnswer::Done { user, proof }) => {
                let mut ids = vec![AclId::new("sasl", &user)];
                if self.server.options.super_user.as_ref() == Some(&user) {
                    ids.push(AclId::new("super", ""));
                }
                (proof, self.connection.identify(ids))
            }
            Err(error) => {
                tracing::debug!(peer = %self.connection.peer, %error, "SASL failed");
                (String::new(), Err(ZkCode::AuthFailed))
            }
        };
        if let Err(code) = identified {
            self.server.record_auth_failure(self.connection, "sasl");
            output.reply_with_body(mark, 0, code.number(), |out| out.buffer(None));
            return Err(ConnectionEnd::Refused("the client is not who it says it is"));
        }
        output.reply_with_body(mark, 0, 0, |out| out.buffer(Some(answer.as_bytes())));
        Ok(())
    }

    /// Ends a connection that is not authenticated where authentication is required.
    fn require_authentication(&self, mark: RequestMark) -> Result<(), ConnectionEnd> {
        let required = &self.server.options.required_schemes;
        let is_known = || self.connection.held().iter().any(|id| required.contains(&id.scheme));
        if required.is_empty() || is_known() {
            return Ok(());
        }
        let code = ZkCode::SessionClosedRequireSaslAuth;
        self.connection.output.reply_header(mark, 0, Err(code));
        Err(ConnectionEnd::Refused(
            "the client has to say who it is (zookeeper.enforce.auth.schemes)",
        ))
    }

    async fn next_frame(&mut self) -> Result<Bytes, ConnectionEnd> {
        loop {
            if let Some(frame) = frame(&mut self.received, self.server.options.frame_bytes_max)? {
                return Ok(frame);
            }
            self.receive().await?;
        }
    }

    async fn receive(&mut self) -> Result<(), ConnectionEnd> {
        match self.stream.read_buf(&mut self.received).await {
            Ok(0) | Err(_) => Err(ConnectionEnd::Gone),
            Ok(_) => Ok(()),
        }
    }
}

/// Waits for `answer`, and counts the session as alive meanwhile.
async fn touch_until<T>(
    server: &ZkServer,
    session: &LiveSession,
    answer: impl Future<Output = T>,
) -> T {
    tokio::pin!(answer);
    loop {
        let pause = Duration::from_millis(u64::from(session.timeout_ms()) / 4 + 1);
        match tokio::time::timeout(pause, &mut answer).await {
            Ok(answer) => return answer,
            Err(_) => session.touch(server.now_ms()),
        }
    }
}
