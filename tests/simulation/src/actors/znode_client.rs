//! A client on ZooKeeper's wire, whose connection breaks now and then. It is the only one that
//! changes the znodes below its root, and knows what each reply has to say:
//! - what was acknowledged is there, through every crash; what was not answered happened, or did
//!   not;
//! - replies come in order, and their zxids never fall;
//! - a watch fires once, and its event comes before any reply that shows its cause;
//! - a session lasts as long as something is heard of it, and its ephemeral znode goes with it.

use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use testkit::rng::SeededRng;
use tokio::time::Instant;
use zk_wire::opcode as op;
use zk_wire::{
    ConnectRequest, ConnectResponse, JuteReader, JuteWriter, ReplyHeader, RequestHeader, ZkCode,
    put_frame,
};

use super::pause;
use crate::coverage::CoveragePoint;
use crate::network::SimSocket;
use crate::wire::CALL_TIMEOUT;
use crate::world::SimWorld;

const WHO: &str = "znode_client";
/// Its znodes are below this.
pub(super) const CLIENT_ROOT: &str = "/w";
const PATHS: [&str; 3] = ["/w/a", "/w/b", "/w/c"];
const EPHEMERAL: &str = "/w/e";
const SESSION_TIMEOUT: Duration = Duration::from_millis(400);
const ON_THEIR_WAY_MAX: u64 = 4;
const FLAG_EPHEMERAL: i32 = 1;

/// A znode of the model: its version and its data.
type ClientZnode = (i32, String);
type ClientZnodes = BTreeMap<&'static str, ClientZnode>;

#[derive(Clone, Debug)]
enum ClientRequest {
    Create { path: &'static str, data: String },
    Set { path: &'static str, data: String },
    Delete { path: &'static str },
    Get { path: &'static str, watch: bool },
}

impl ClientRequest {
    fn path(&self) -> &'static str {
        match self {
            ClientRequest::Create { path, .. }
            | ClientRequest::Set { path, .. }
            | ClientRequest::Delete { path }
            | ClientRequest::Get { path, .. } => path,
        }
    }

    fn opcode(&self) -> i32 {
        match self {
            ClientRequest::Create { .. } => op::CREATE,
            ClientRequest::Set { .. } => op::SET_DATA,
            ClientRequest::Delete { .. } => op::DELETE,
            ClientRequest::Get { .. } => op::GET_DATA,
        }
    }

    fn write(&self, out: &mut BytesMut) {
        out.string(Some(self.path()));
        match self {
            ClientRequest::Create { path, data } => {
                out.buffer(Some(data.as_bytes()));
                out.int(1);
                out.int(31);
                out.string(Some("world"));
                out.string(Some("anyone"));
                out.int(if *path == EPHEMERAL { FLAG_EPHEMERAL } else { 0 });
            }
            ClientRequest::Set { data, .. } => {
                out.buffer(Some(data.as_bytes()));
                out.int(-1);
            }
            ClientRequest::Delete { .. } => out.int(-1),
            ClientRequest::Get { watch, .. } => out.bool(*watch),
        }
    }

    /// Applies it, and returns the error code of its answer.
    fn apply(&self, znodes: &mut ClientZnodes) -> i32 {
        let (path, there) = (self.path(), znodes.get_mut(self.path()));
        match (self, there) {
            (ClientRequest::Create { .. }, Some(_)) => ZkCode::NodeExists.number(),
            (ClientRequest::Create { data, .. }, None) => {
                znodes.insert(path, (0, data.clone()));
                0
            }
            (_, None) => ZkCode::NoNode.number(),
            (ClientRequest::Set { data, .. }, Some(znode)) => {
                *znode = (znode.0 + 1, data.clone());
                0
            }
            (ClientRequest::Delete { .. }, Some(_)) => {
                znodes.remove(path);
                0
            }
            (ClientRequest::Get { .. }, Some(_)) => 0,
        }
    }
}

/// The content of a frame from the server.
enum ServerFrame {
    Event { path: String },
    Reply { header: ReplyHeader, body: JuteReader },
}

pub(crate) struct ZnodeClient {
    world: Rc<SimWorld>,
    rng: SeededRng,
    socket: Option<SimSocket>,
    /// The id of its session and its password.
    session: Option<(i64, Bytes)>,
    /// The send time of the last request that was answered: since then the session lasts at least
    /// its timeout.
    heard_at: Instant,
    znodes: ClientZnodes,
    /// Requests whose end is unknown.
    unknown: Vec<ClientRequest>,
    /// True if the model is behind, because the store refused something.
    is_lost: bool,
    /// The znodes with a watch, and the transaction that they were seen at.
    armed: BTreeMap<&'static str, i64>,
    /// The znodes whose watch fired, until a read shows why.
    fired: BTreeMap<&'static str, i64>,
    last_zxid: i64,
    xid: i32,
    next: u64,
}

impl ZnodeClient {
    pub(crate) fn new(world: &Rc<SimWorld>, rng: SeededRng) -> ZnodeClient {
        ZnodeClient {
            world: Rc::clone(world),
            rng,
            socket: None,
            session: None,
            heard_at: Instant::now(),
            znodes: ClientZnodes::new(),
            unknown: Vec::new(),
            is_lost: true,
            armed: BTreeMap::new(),
            fired: BTreeMap::new(),
            last_zxid: 0,
            xid: 0,
            next: 0,
        }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            pause(&mut self.rng, 20, 300).await;
            if self.rng.one_in(25) {
                // Long enough for the session to end.
                self.disconnect();
                pause(&mut self.rng, 500, 1500).await;
            }
            if let Err(error) = self.take_turn().await {
                self.world.note(WHO, &format!("is cut off: {error}"));
                self.disconnect();
            }
        }
    }

    fn disconnect(&mut self) {
        if let Some(socket) = self.socket.take() {
            socket.reset();
        }
        // The server forgets them with the connection.
        self.armed.clear();
        self.fired.clear();
    }

    async fn take_turn(&mut self) -> io::Result<()> {
        if self.socket.is_none() {
            self.connect().await?;
        }
        if self.is_lost || !self.unknown.is_empty() {
            self.reconcile().await?;
        }
        let requests: Vec<_> =
            (0..self.rng.between(1, ON_THEIR_WAY_MAX)).map(|_| self.random_request()).collect();
        self.unknown.clone_from(&requests);
        let sent_at = Instant::now();
        for request in &requests {
            self.send(request).await?;
        }
        if self.rng.one_in(12) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        for request in &requests {
            let (header, body) = self.reply().await?;
            self.heard_at = sent_at;
            self.unknown.remove(0);
            if header.err == ZkCode::SystemError.number() {
                // Later requests on their way depend on it.
                self.is_lost = true;
                return Err(io::Error::other("the store refuses a change"));
            }
            self.check_reply(request, &header, body);
        }
        Ok(())
    }

    async fn connect(&mut self) -> io::Result<()> {
        let socket =
            self.world.connect_zookeeper(&mut self.rng).ok_or(io::ErrorKind::ConnectionRefused)?;
        let (session_id, password) = self.session.clone().unwrap_or_default();
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: self.last_zxid,
            timeout_ms: SESSION_TIMEOUT.as_millis() as i32,
            session_id,
            password: Some(if password.is_empty() {
                Bytes::from_static(&[0; 16])
            } else {
                password
            }),
            read_only: Some(false),
        };
        let mut out = BytesMut::new();
        put_frame(&mut out, |out| request.write(out));
        let sent_at = Instant::now();
        let answer = async {
            socket.send(&out).await?;
            receive_frame(&socket).await
        };
        let frame = within(answer).await?;
        let response = ConnectResponse::read(frame).map_err(io::Error::other)?;
        if response.session_id == 0 {
            return Err(self.refused(session_id, sent_at));
        }
        if session_id != 0 && response.session_id != session_id {
            self.world.fail(WHO, "another session is resumed");
        }
        self.session = Some((response.session_id, response.password.unwrap_or_default()));
        self.heard_at = sent_at;
        self.socket = Some(socket);
        Ok(())
    }

    /// There is no session: it is over, or no new one can be made now.
    fn refused(&mut self, session_id: i64, now: Instant) -> io::Error {
        if session_id == 0 {
            return io::Error::other("no session can be made");
        }
        if now - self.heard_at < SESSION_TIMEOUT {
            self.world.fail(WHO, "a session has ended before its time");
        }
        self.world.cover(CoveragePoint::ZkSessionExpired);
        self.session = None;
        // Requests on their way still come before the end.
        self.unknown.push(ClientRequest::Delete { path: EPHEMERAL });
        io::Error::other("the session is over")
    }

    /// Reads all znodes, which have to be what some of the requests made of them whose end is
    /// unknown. A session that is over has taken its znode with it.
    async fn reconcile(&mut self) -> io::Result<()> {
        let mut found = ClientZnodes::new();
        self.send_create_root().await?;
        for path in PATHS.into_iter().chain([EPHEMERAL]) {
            self.send(&ClientRequest::Get { path, watch: false }).await?;
            let (header, mut body) = self.reply().await?;
            if header.err == 0 {
                let data = body.buffer().map_err(io::Error::other)?.unwrap_or_default();
                let (_, version, owner) = read_stat(&mut body)?;
                if owner != 0 && self.session.as_ref().is_none_or(|(own, _)| *own != owner) {
                    self.world.fail(WHO, "an ephemeral znode has outlived its session");
                }
                found.insert(path, (version, String::from_utf8_lossy(&data).into_owned()));
            }
        }
        let unknown = std::mem::take(&mut self.unknown);
        let some = |chosen: usize| {
            let mut znodes = self.znodes.clone();
            for (nth, request) in unknown.iter().enumerate() {
                // The end of a session is sure.
                let is_end =
                    matches!(request, ClientRequest::Delete { path } if *path == EPHEMERAL);
                if chosen & (1 << nth) != 0 || is_end {
                    request.apply(&mut znodes);
                }
            }
            znodes
        };
        let is_possible = (0..1 << unknown.len()).any(|chosen| some(chosen) == found);
        if !self.is_lost && !is_possible {
            let known = &self.znodes;
            let why = format!("finds {found:?}, after {known:?} and perhaps {unknown:?}");
            self.world.fail(WHO, &why);
        }
        self.world.note(WHO, &format!("finds {} znodes", found.len()));
        self.is_lost = false;
        self.znodes = found;
        Ok(())
    }

    async fn send_create_root(&mut self) -> io::Result<()> {
        let root = ClientRequest::Create { path: CLIENT_ROOT, data: String::new() };
        self.send(&root).await?;
        let (header, _) = self.reply().await?;
        match ZkCode::from_number(header.err) {
            None | Some(ZkCode::NodeExists) => Ok(()),
            Some(_) => Err(io::Error::other("the root cannot be made")),
        }
    }

    fn random_request(&mut self) -> ClientRequest {
        self.next += 1;
        let path = if self.rng.one_in(5) { EPHEMERAL } else { *self.rng.pick(&PATHS) };
        let data =
            if self.rng.one_in(2) { self.next.to_string() } else { format!("{:.<50}", self.next) };
        match self.rng.below(8) {
            0 | 1 => ClientRequest::Create { path, data },
            2 | 3 => ClientRequest::Set { path, data },
            4 if path != EPHEMERAL => ClientRequest::Delete { path },
            nth => ClientRequest::Get { path, watch: nth < 7 },
        }
    }

    async fn send(&mut self, request: &ClientRequest) -> io::Result<()> {
        self.xid += 1;
        let header = RequestHeader { xid: self.xid, op: request.opcode() };
        let mut out = BytesMut::new();
        put_frame(&mut out, |out| {
            header.write(out);
            request.write(out);
        });
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        within(socket.send(&out)).await
    }

    /// The next reply; events in front of it are checked.
    async fn reply(&mut self) -> io::Result<(ReplyHeader, JuteReader)> {
        loop {
            let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
            let frame = within(receive_frame(socket)).await?;
            match read_server_frame(frame)? {
                ServerFrame::Event { path } => self.check_event(&path),
                ServerFrame::Reply { header, body } => {
                    if header.zxid < self.last_zxid {
                        let why = format!("zxid {} after {}", header.zxid, self.last_zxid);
                        self.world.fail(WHO, &why);
                    }
                    self.last_zxid = header.zxid.max(self.last_zxid);
                    return Ok((header, body));
                }
            }
        }
    }

    fn check_event(&mut self, path: &str) {
        let armed = self.armed.remove_entry(path);
        match armed {
            Some((path, mzxid)) => {
                self.world.cover(CoveragePoint::ZkEvent);
                self.fired.insert(path, mzxid);
            }
            None => self.world.fail(WHO, &format!("an event that nothing watches for: {path}")),
        }
    }

    fn check_reply(&mut self, request: &ClientRequest, header: &ReplyHeader, mut body: JuteReader) {
        let path = request.path();
        let expected = request.apply(&mut self.znodes);
        if header.err != expected {
            let why = format!("{request:?} is answered with {}, and not {expected}", header.err);
            return self.world.fail(WHO, &why);
        }
        let ClientRequest::Get { watch, .. } = request else {
            let is_change = !matches!(request, ClientRequest::Create { .. }) && expected == 0;
            if is_change && self.armed.contains_key(path) {
                self.world.fail(WHO, &format!("{request:?} is answered before its event"));
            }
            return;
        };
        let seen = (header.err == 0).then(|| {
            let data = body.buffer().ok().flatten().unwrap_or_default();
            let stat = read_stat(&mut body).unwrap_or_default();
            (stat, String::from_utf8_lossy(&data).into_owned())
        });
        let mzxid = seen.as_ref().map(|((mzxid, ..), _)| *mzxid);
        let seen = seen.map(|((_, version, _), data)| (version, data));
        if seen.as_ref() != self.znodes.get(path) {
            let known = self.znodes.get(path);
            self.world.fail(WHO, &format!("{path} is read as {seen:?}, and is {known:?}"));
        }
        if self.armed.get(path).is_some_and(|armed| Some(*armed) != mzxid) {
            self.world.fail(WHO, &format!("a change of {path} is read before its event"));
        }
        if self.fired.remove(path).is_some_and(|fired| Some(fired) == mzxid) {
            self.world.fail(WHO, &format!("an event of {path} has no cause"));
        }
        if *watch && let Some(mzxid) = mzxid {
            self.armed.insert(path, mzxid);
        }
    }
}

async fn within<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(CALL_TIMEOUT, work).await {
        Ok(done) => done,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn receive_frame(socket: &SimSocket) -> io::Result<Bytes> {
    let length = socket.receive(4).await?.get_i32();
    socket.receive(length.max(0) as usize).await
}

fn read_server_frame(frame: Bytes) -> io::Result<ServerFrame> {
    let mut body = JuteReader::new(frame);
    let header = ReplyHeader::read(&mut body).map_err(io::Error::other)?;
    if header.xid != op::NOTIFICATION_XID {
        return Ok(ServerFrame::Reply { header, body });
    }
    let path = body.int().and_then(|_| body.int()).and_then(|_| body.required_string());
    Ok(ServerFrame::Event { path: path.map_err(io::Error::other)? })
}

/// The last transaction that set the data, the version, and the session of an ephemeral znode.
fn read_stat(body: &mut JuteReader) -> io::Result<(i64, i32, i64)> {
    let mut read = || {
        let [_, mzxid, ..] = [body.long()?, body.long()?, body.long()?, body.long()?];
        let [version, ..] = [body.int()?, body.int()?, body.int()?];
        Ok::<_, zk_wire::JuteError>((mzxid, version, body.long()?))
    };
    read().map_err(io::Error::other)
}
