//! A ZooKeeper client of one connection, for the commands of the command line, and for the past of
//! znodes.
//!
//! It works with Apache ZooKeeper too, except for [`ZkClient::request_history`] and the numbers of
//! sequential znodes ([`NewZnode::next_sequence`]). It sets no watches, and does not connect again.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use history_documents::{RefusalDocument, ServerRefusal, ZNODE_HISTORY_OPCODE};
use serde::de::DeserializeOwned;
use tls::TlsClient;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zk_wire::opcode as op;
use zk_wire::{
    ConnectRequest, ConnectResponse, JuteError, JuteReader, JuteWriter, ReplyHeader, RequestHeader,
    ZkCode, frame, put_frame,
};

use crate::stream::secured;

pub use history_documents::{
    ZnodeChangeDocument, ZnodeChangeName, ZnodeDiffEntry, ZnodeDiffRequest, ZnodeDiffResponse,
    ZnodeHistoryRequest, ZnodeLogEntry, ZnodeLogRequest, ZnodeLogResponse, ZnodeRestoreChange,
    ZnodeRestoreRequest, ZnodeRestoreResponse, ZnodeSummary,
};
pub use zk_wire::{ZkCode as ZooKeeperCode, ZnodeStat};

/// The session timeout that we ask for. The server counts a session as alive while it works on one
/// of its requests.
const SESSION_TIMEOUT_MS: i32 = 30_000;
/// The longest time that a connection or an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest reply that we take.
const REPLY_BYTES_MAX: usize = 1 << 30;
/// An entry of a list takes at least this: permissions, and the lengths of two strings.
const ACL_ENTRY_BYTES_MIN: usize = 12;
/// The xid of an authentication.
const AUTH_XID: i32 = -4;

/// The reason why a request of a ZooKeeper client failed.
#[derive(Debug, thiserror::Error)]
pub enum ZkClientError {
    /// The connection failed: start the server, or correct the address.
    #[error(
        "cannot reach ZooKeeper at {address}: {cause}; start a server with `freezeframe serve --zookeeper {address}`"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// The system's error.
        cause: io::Error,
    },
    /// TLS failed.
    #[error(
        "no secure connection to {address}: {cause}; give the certificates that sign for it with --tls-trust, and where it asks who you are, yours with --tls-key"
    )]
    Insecure {
        /// The address.
        address: String,
        /// The error of the handshake.
        cause: io::Error,
    },
    /// The connection broke, or the answer took too long. The server may have executed the request.
    #[error("{address} did not answer: {cause}")]
    Gone {
        /// The address.
        address: String,
        /// The system's error.
        cause: io::Error,
    },
    /// The port belongs to another service.
    #[error("{address} does not answer as ZooKeeper does: {cause}")]
    Malformed {
        /// The address.
        address: String,
        /// The error in the reply.
        cause: JuteError,
    },
    /// The server refused a request.
    #[error("{path}: {}", code_message(*.code))]
    Refused {
        /// The znode.
        path: String,
        /// ZooKeeper's error code.
        code: i32,
    },
    /// The server is another ZooKeeper, which has no past.
    #[error(
        "{address} is not a Freezeframe server: it serves ZooKeeper, but does not know how to answer questions about the past"
    )]
    NotFreezeframe {
        /// The address.
        address: String,
    },
    /// The server understood a question about the past, and refused it.
    #[error("{0}")]
    History(ServerRefusal),
}

/// An error code in words.
fn code_message(code: i32) -> String {
    let Some(zk_code) = ZkCode::from_number(code) else { return format!("error {code}") };
    let words = match zk_code {
        ZkCode::NoNode => "there is no such znode",
        ZkCode::NodeExists => "it exists already",
        ZkCode::NotEmpty => "it has children",
        ZkCode::BadVersion => "it has another version",
        ZkCode::NoAuth => {
            "its access control list does not permit it; give an identity with --auth"
        }
        ZkCode::BadArguments => "the path or the arguments are not valid",
        ZkCode::NotReadOnly => "the past cannot be changed",
        ZkCode::InvalidAcl => "the access control list is not valid",
        ZkCode::AuthFailed => "the identity is refused",
        ZkCode::NoChildrenForEphemerals => "its parent is ephemeral, and cannot have children",
        ZkCode::OperationTimeout => "the moment is not past yet",
        ZkCode::QuotaExceeded => "its quota is exceeded",
        ZkCode::Unimplemented => "the server does not serve this, or not by its settings",
        ZkCode::SystemError => "the server failed: see its log",
        ZkCode::RuntimeInconsistency
        | ZkCode::MarshallingError
        | ZkCode::SessionExpired
        | ZkCode::NoWatcher
        | ZkCode::ReconfigDisabled => return zk_code.to_string(),
        ZkCode::SessionClosedRequireSaslAuth => {
            "the server wants to know who you are first: give --auth (zookeeper.enforce.auth.schemes)"
        }
    };
    format!("{words} ({zk_code})")
}

impl ZkClientError {
    /// True if the server refused the request with this code.
    pub fn is(&self, expected: ZkCode) -> bool {
        matches!(self, ZkClientError::Refused { code, .. } if *code == expected.number())
    }
}

/// An entry of an access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZnodeAclEntry {
    /// Bits: read 1, write 2, create 4, delete 8, admin 16.
    pub permissions: i32,
    /// The scheme, such as `world`.
    pub scheme: String,
    /// The id in the scheme, such as `anyone`.
    pub id: String,
}

impl ZnodeAclEntry {
    /// The list that permits everything to anyone.
    pub fn open() -> Vec<ZnodeAclEntry> {
        let (scheme, id) = ("world".to_owned(), "anyone".to_owned());
        vec![ZnodeAclEntry { permissions: 31, scheme, id }]
    }
}

/// The kind of a new znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZnodeKind {
    /// It stays until it is deleted.
    Persistent,
    /// The same, with a number appended to its name.
    Sequential,
    /// It may be removed once its last child is deleted.
    Container,
    /// It may be removed once it has no children and has not changed for so many milliseconds.
    Ttl(i64),
}

/// A znode to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewZnode {
    /// Its path.
    pub path: String,
    /// Its data.
    pub data: Option<Bytes>,
    /// Its list.
    pub acl: Vec<ZnodeAclEntry>,
    /// The kind, which says when it may be removed.
    pub kind: ZnodeKind,
    /// The number of its first sequential child.
    pub next_sequence: i32,
}

/// The contents of a znode at a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZnodeContent {
    /// Its data.
    pub data: Option<Bytes>,
    /// Its list. A client that may not administer the znode sees digests without hashes, as
    /// `USER:x`.
    pub acl: Vec<ZnodeAclEntry>,
    /// The names of its children.
    pub children: Vec<String>,
    /// Its stat when it had these children.
    pub stat: ZnodeStat,
}

/// A request before it is sent.
struct PreparedRequest {
    opcode: i32,
    body: BytesMut,
}

impl PreparedRequest {
    fn new(opcode: i32, write: impl FnOnce(&mut BytesMut)) -> PreparedRequest {
        let mut body = BytesMut::new();
        write(&mut body);
        PreparedRequest { opcode, body }
    }
}

/// A reply's body, or its error code.
type ReplyBody = Result<JuteReader, i32>;

/// The reason why no frame is received.
enum ReceiveError {
    Gone(io::Error),
    Malformed(JuteError),
}

impl NewZnode {
    fn opcode(&self) -> i32 {
        match self.kind {
            ZnodeKind::Persistent | ZnodeKind::Sequential => op::CREATE_2,
            ZnodeKind::Container => op::CREATE_CONTAINER,
            ZnodeKind::Ttl(_) => op::CREATE_TTL,
        }
    }

    fn write(&self, out: &mut BytesMut) {
        out.string(Some(&self.path));
        out.buffer(self.data.as_deref());
        out.vector(Some(&self.acl), |out, entry| {
            out.int(entry.permissions);
            out.string(Some(&entry.scheme));
            out.string(Some(&entry.id));
        });
        match self.kind {
            ZnodeKind::Persistent => out.int(0),
            ZnodeKind::Sequential => out.int(2),
            ZnodeKind::Container => out.int(4),
            ZnodeKind::Ttl(ms) => {
                out.int(5);
                out.long(ms);
            }
        }
    }
}

/// A connection in the open, or over TLS.
trait ZkStream: AsyncRead + AsyncWrite + Send + Unpin + std::fmt::Debug {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + std::fmt::Debug> ZkStream for S {}

/// A connection with a session.
#[derive(Debug)]
pub struct ZkClient {
    address: String,
    stream: Box<dyn ZkStream>,
    received: BytesMut,
    xid: i32,
}

impl ZkClient {
    /// Connects to HOST:PORT, with `tls` over TLS, and begins a session.
    ///
    /// # Errors
    /// [`ZkClientError::Unreachable`], and others.
    pub async fn connect(
        address: &str,
        tls: Option<&TlsClient>,
    ) -> Result<ZkClient, ZkClientError> {
        let unreachable = |cause| ZkClientError::Unreachable { address: address.to_owned(), cause };
        let connecting = timeout(PATIENCE, TcpStream::connect(address)).await;
        let stream = connecting.map_err(|_| unreachable(io::ErrorKind::TimedOut.into()))?;
        let stream = stream.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let stream: Box<dyn ZkStream> = match tls {
            Some(tls) => {
                let shaken = timeout(PATIENCE, secured(address, tls, stream)).await;
                let shaken = shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                let insecure =
                    |cause| ZkClientError::Insecure { address: address.to_owned(), cause };
                Box::new(shaken.map_err(insecure)?)
            }
            None => Box::new(stream),
        };
        let (address, received) = (address.to_owned(), BytesMut::new());
        let mut client = ZkClient { address, stream, received, xid: 0 };
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 0,
            timeout_ms: SESSION_TIMEOUT_MS,
            session_id: 0,
            password: Some(Bytes::from_static(&[0; 16])),
            read_only: Some(false),
        };
        client.send(|out| request.write(out)).await?;
        let frame = client.receive(PATIENCE).await?;
        let response = ConnectResponse::read(frame).map_err(|cause| client.malformed(cause))?;
        match response.session_id {
            0 => Err(client.gone(io::Error::other("it gives no session"))),
            _ => Ok(client),
        }
    }

    /// Adds an identity, such as `digest` with `user:password`.
    ///
    /// # Errors
    /// The server refuses it.
    pub async fn authenticate(
        &mut self,
        scheme: &str,
        credentials: &str,
    ) -> Result<(), ZkClientError> {
        let header = RequestHeader { xid: AUTH_XID, op: op::AUTH };
        self.send(|out| {
            header.write(out);
            out.int(0);
            out.string(Some(scheme));
            out.buffer(Some(credentials.as_bytes()));
        })
        .await?;
        self.reply(PATIENCE).await?.map(drop).map_err(|code| self.refused(scheme, code))
    }

    /// A znode's data and stat.
    ///
    /// # Errors
    /// [`ZkClientError::Refused`], and others.
    pub async fn data(&mut self, path: &str) -> Result<(Option<Bytes>, ZnodeStat), ZkClientError> {
        let mut body = self.ask(op::GET_DATA, path, |out| put_path(out, path)).await?;
        self.read(|| Ok((body.buffer()?, ZnodeStat::read(&mut body)?)))
    }

    /// A znode's stat.
    ///
    /// # Errors
    /// As [`ZkClient::data`].
    pub async fn stat(&mut self, path: &str) -> Result<ZnodeStat, ZkClientError> {
        let mut body = self.ask(op::EXISTS, path, |out| put_path(out, path)).await?;
        self.read(|| ZnodeStat::read(&mut body))
    }

    /// The names of a znode's children, sorted, and its stat.
    ///
    /// # Errors
    /// As [`ZkClient::data`].
    pub async fn children(
        &mut self,
        path: &str,
    ) -> Result<(Vec<String>, ZnodeStat), ZkClientError> {
        let mut body = self.ask(op::GET_CHILDREN_2, path, |out| put_path(out, path)).await?;
        let (mut names, stat) = self.read(|| {
            let names = body.vector(4, JuteReader::required_string)?.unwrap_or_default();
            Ok((names, ZnodeStat::read(&mut body)?))
        })?;
        names.sort_unstable();
        Ok((names, stat))
    }

    /// A znode's access control list.
    ///
    /// # Errors
    /// As [`ZkClient::data`].
    pub async fn acl(&mut self, path: &str) -> Result<Vec<ZnodeAclEntry>, ZkClientError> {
        let mut body = self.ask(op::GET_ACL, path, |out| out.string(Some(path))).await?;
        self.read(|| read_acl(&mut body))
    }

    /// Creates a znode; returns its path and its stat.
    ///
    /// # Errors
    /// As [`ZkClient::data`].
    pub async fn create(&mut self, znode: &NewZnode) -> Result<(String, ZnodeStat), ZkClientError> {
        let mut body = self.ask(znode.opcode(), &znode.path, |out| znode.write(out)).await?;
        self.read(|| Ok((body.required_string()?, ZnodeStat::read(&mut body)?)))
    }

    /// Creates all of these, or none.
    ///
    /// # Errors
    /// As [`ZkClient::data`], with the path of the one that failed.
    pub async fn create_all(&mut self, znodes: &[NewZnode]) -> Result<(), ZkClientError> {
        let write = |out: &mut BytesMut| {
            for znode in znodes {
                put_multi_header(out, znode.opcode(), false);
                znode.write(out);
            }
            // Behind their children, which count too.
            for znode in parents_of_sequences(znodes) {
                put_multi_header(out, op::RAISE_SEQUENCE, false);
                put_sequence(out, &znode.path, znode.next_sequence);
            }
            put_multi_header(out, op::ERROR, true);
        };
        let mut body = self.ask(op::MULTI, "", write).await?;
        for znode in znodes.iter().chain(parents_of_sequences(znodes)) {
            if let Some(code) = self.read(|| read_multi_result(&mut body))? {
                return Err(self.refused(&znode.path, code));
            }
        }
        Ok(())
    }

    /// Creates each of these that does not exist, and has the numbers of sequential children go on
    /// in all. Returns how many it created.
    ///
    /// # Errors
    /// As [`ZkClient::create_all`]. Others may be created then.
    pub async fn create_missing(&mut self, znodes: &[NewZnode]) -> Result<usize, ZkClientError> {
        let creates =
            znodes.iter().map(|znode| PreparedRequest::new(znode.opcode(), |out| znode.write(out)));
        let raises = parents_of_sequences(znodes).map(|znode| {
            let write = |out: &mut BytesMut| put_sequence(out, &znode.path, znode.next_sequence);
            PreparedRequest::new(op::RAISE_SEQUENCE, write)
        });
        let replies = self.ask_all(creates.chain(raises).collect()).await?;
        let paths = znodes.iter().chain(parents_of_sequences(znodes));
        let mut created = 0;
        for (nth, (reply, znode)) in replies.into_iter().zip(paths).enumerate() {
            match reply {
                Ok(_) if nth < znodes.len() => created += 1,
                Ok(_) => {}
                Err(code) if code == ZkCode::NodeExists.number() => {}
                Err(code) => return Err(self.refused(&znode.path, code)),
            }
        }
        Ok(created)
    }

    /// Has the numbers of a znode's sequential children begin at `next`, unless they have come so
    /// far.
    ///
    /// # Errors
    /// As [`ZkClient::data`].
    pub async fn raise_sequence(&mut self, path: &str, next: i32) -> Result<(), ZkClientError> {
        let write = |out: &mut BytesMut| put_sequence(out, path, next);
        self.ask(op::RAISE_SEQUENCE, path, write).await.map(drop)
    }

    /// Reads znodes, with many requests on their way. `None` stands for one that does not exist, or
    /// is deleted meanwhile.
    ///
    /// # Errors
    /// As [`ZkClient::data`].
    pub async fn contents(
        &mut self,
        paths: &[String],
    ) -> Result<Vec<Option<ZnodeContent>>, ZkClientError> {
        let requests_of = |path: &String| {
            [
                PreparedRequest::new(op::GET_DATA, |out| put_path(out, path)),
                PreparedRequest::new(op::GET_ACL, |out| out.string(Some(path))),
                PreparedRequest::new(op::GET_CHILDREN_2, |out| put_path(out, path)),
            ]
        };
        let requests = paths.iter().flat_map(requests_of).collect();
        let mut replies = self.ask_all(requests).await?.into_iter();
        let mut contents = Vec::with_capacity(paths.len());
        for path in paths {
            let of_path: Vec<ReplyBody> = replies.by_ref().take(3).collect();
            match of_path.into_iter().collect::<Result<Vec<JuteReader>, i32>>() {
                Ok(bodies) => contents.push(Some(self.read(|| read_content(bodies))?)),
                Err(code) if code == ZkCode::NoNode.number() => contents.push(None),
                Err(code) => return Err(self.refused(path, code)),
            }
        }
        Ok(contents)
    }

    /// Sets a znode's data if it has `version`; -1 for any.
    ///
    /// # Errors
    /// As [`ZkClient::data`].
    pub async fn set(
        &mut self,
        path: &str,
        data: &[u8],
        version: i32,
    ) -> Result<ZnodeStat, ZkClientError> {
        let write = |out: &mut BytesMut| {
            out.string(Some(path));
            out.buffer(Some(data));
            out.int(version);
        };
        let mut body = self.ask(op::SET_DATA, path, write).await?;
        self.read(|| ZnodeStat::read(&mut body))
    }

    /// Deletes a znode without children if it has `version`; -1 for any.
    ///
    /// # Errors
    /// As [`ZkClient::data`].
    pub async fn delete(&mut self, path: &str, version: i32) -> Result<(), ZkClientError> {
        let write = |out: &mut BytesMut| {
            out.string(Some(path));
            out.int(version);
        };
        self.ask(op::DELETE, path, write).await.map(drop)
    }

    /// Asks about the past, or puts some of it back. The server may wait up to `server_wait`.
    ///
    /// # Errors
    /// [`ZkClientError::History`], [`ZkClientError::NotFreezeframe`], and others.
    pub async fn request_history<T: DeserializeOwned>(
        &mut self,
        request: &ZnodeHistoryRequest,
        server_wait: Duration,
    ) -> Result<T, ZkClientError> {
        let document = serde_json::to_vec(request).expect("a request can be written as JSON");
        self.send_request(ZNODE_HISTORY_OPCODE, |out| out.buffer(Some(&document))).await?;
        let Ok(mut body) = self.reply(PATIENCE + server_wait).await? else {
            return Err(ZkClientError::NotFreezeframe { address: self.address.clone() });
        };
        let answer = self.read(|| body.buffer())?.unwrap_or_default();
        if let Ok(RefusalDocument { error }) = serde_json::from_slice(&answer) {
            return Err(ZkClientError::History(error));
        }
        serde_json::from_slice(&answer).map_err(|error| self.gone(error.into()))
    }

    /// Ends the session.
    ///
    /// # Errors
    /// The connection breaks first; the session expires then.
    pub async fn close(mut self) -> Result<(), ZkClientError> {
        self.send_request(op::CLOSE_SESSION, |_| {}).await?;
        self.reply(PATIENCE).await.map(drop)
    }

    async fn ask(
        &mut self,
        opcode: i32,
        path: &str,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<JuteReader, ZkClientError> {
        self.send_request(opcode, write).await?;
        self.reply(PATIENCE).await?.map_err(|code| self.refused(path, code))
    }

    async fn send_request(
        &mut self,
        opcode: i32,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<(), ZkClientError> {
        self.xid = self.xid.wrapping_add(1).max(1);
        let header = RequestHeader { xid: self.xid, op: opcode };
        self.send(|out| {
            header.write(out);
            write(out);
        })
        .await
    }

    /// Sends requests, and does not wait for a reply before the next one. Returns the replies in
    /// order.
    async fn ask_all(
        &mut self,
        requests: Vec<PreparedRequest>,
    ) -> Result<Vec<ReplyBody>, ZkClientError> {
        let mut out = BytesMut::new();
        for PreparedRequest { opcode, body } in &requests {
            self.xid = self.xid.wrapping_add(1).max(1);
            put_frame(&mut out, |out| {
                RequestHeader { xid: self.xid, op: *opcode }.write(out);
                out.extend_from_slice(body);
            });
        }
        // The server reads no more while the client does not read its replies.
        let (mut reader, mut writer) = tokio::io::split(&mut self.stream);
        let received = &mut self.received;
        let writing = async {
            let written = async {
                writer.write_all(&out).await?;
                writer.flush().await
            };
            written.await.map_err(ReceiveError::Gone)
        };
        let reading = async {
            let mut frames = Vec::with_capacity(requests.len());
            for _ in &requests {
                frames.push(receive_frame(&mut reader, received, PATIENCE).await?);
            }
            Ok(frames)
        };
        let exchange = tokio::try_join!(writing, reading);
        let ((), frames) = exchange.map_err(|error| self.not_received(error))?;
        frames.into_iter().map(|frame| self.read(|| read_reply(frame))).collect()
    }

    async fn send(&mut self, write: impl FnOnce(&mut BytesMut)) -> Result<(), ZkClientError> {
        let mut out = BytesMut::new();
        put_frame(&mut out, write);
        let written = async {
            self.stream.write_all(&out).await?;
            self.stream.flush().await
        };
        written.await.map_err(|cause| self.gone(cause))
    }

    async fn reply(&mut self, patience: Duration) -> Result<ReplyBody, ZkClientError> {
        let frame = self.receive(patience).await?;
        self.read(|| read_reply(frame))
    }

    async fn receive(&mut self, patience: Duration) -> Result<Bytes, ZkClientError> {
        let received = receive_frame(&mut self.stream, &mut self.received, patience).await;
        received.map_err(|error| self.not_received(error))
    }

    fn not_received(&self, error: ReceiveError) -> ZkClientError {
        match error {
            ReceiveError::Gone(cause) => self.gone(cause),
            ReceiveError::Malformed(cause) => self.malformed(cause),
        }
    }

    fn read<T>(&self, read: impl FnOnce() -> Result<T, JuteError>) -> Result<T, ZkClientError> {
        read().map_err(|cause| self.malformed(cause))
    }

    fn malformed(&self, cause: JuteError) -> ZkClientError {
        ZkClientError::Malformed { address: self.address.clone(), cause }
    }

    fn gone(&self, cause: io::Error) -> ZkClientError {
        ZkClientError::Gone { address: self.address.clone(), cause }
    }

    fn refused(&self, path: &str, code: i32) -> ZkClientError {
        ZkClientError::Refused { path: path.to_owned(), code }
    }
}

async fn receive_frame(
    stream: &mut (impl AsyncRead + Unpin),
    received: &mut BytesMut,
    patience: Duration,
) -> Result<Bytes, ReceiveError> {
    let reading = async {
        loop {
            match frame(received, REPLY_BYTES_MAX) {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(malformed) => return Err(ReceiveError::Malformed(malformed)),
            }
            match stream.read_buf(received).await {
                Ok(0) => return Err(ReceiveError::Gone(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => {}
                Err(error) => return Err(ReceiveError::Gone(error)),
            }
        }
    };
    let read = timeout(patience, reading).await;
    read.unwrap_or_else(|_| Err(ReceiveError::Gone(io::ErrorKind::TimedOut.into())))
}

fn read_reply(frame: Bytes) -> Result<ReplyBody, JuteError> {
    let mut fields = JuteReader::new(frame);
    let ReplyHeader { err, .. } = ReplyHeader::read(&mut fields)?;
    Ok(if err == 0 { Ok(fields) } else { Err(err) })
}

fn read_acl(body: &mut JuteReader) -> Result<Vec<ZnodeAclEntry>, JuteError> {
    let entries = body.vector(ACL_ENTRY_BYTES_MIN, |fields| {
        Ok(ZnodeAclEntry {
            permissions: fields.int()?,
            scheme: fields.required_string()?,
            id: fields.required_string()?,
        })
    })?;
    Ok(entries.unwrap_or_default())
}

/// Reads the replies to getData, getACL and getChildren2.
fn read_content(bodies: Vec<JuteReader>) -> Result<ZnodeContent, JuteError> {
    let mut bodies = bodies.into_iter();
    let mut next = || bodies.next().unwrap_or_else(|| JuteReader::new(Bytes::new()));
    let data = next().buffer()?;
    let acl = read_acl(&mut next())?;
    let mut body = next();
    let children = body.vector(4, JuteReader::required_string)?.unwrap_or_default();
    Ok(ZnodeContent { data, acl, children, stat: ZnodeStat::read(&mut body)? })
}

fn parents_of_sequences(znodes: &[NewZnode]) -> impl Iterator<Item = &NewZnode> {
    znodes.iter().filter(|znode| znode.next_sequence != 0)
}

/// The code of the next result of a multi that creates znodes, if it failed.
fn read_multi_result(body: &mut JuteReader) -> Result<Option<i32>, JuteError> {
    let (kind, _, _) = (body.int()?, body.bool()?, body.int()?);
    match kind {
        op::ERROR => return Ok(Some(body.int()?).filter(|code| *code != 0)),
        op::RAISE_SEQUENCE => {}
        _ => {
            body.required_string()?;
            ZnodeStat::read(body)?;
        }
    }
    Ok(None)
}

fn put_sequence(out: &mut BytesMut, path: &str, next: i32) {
    out.string(Some(path));
    out.int(next);
}

fn put_path(out: &mut BytesMut, path: &str) {
    out.string(Some(path));
    out.bool(false);
}

fn put_multi_header(out: &mut BytesMut, opcode: i32, is_done: bool) {
    out.int(opcode);
    out.bool(is_done);
    out.int(-1);
}
