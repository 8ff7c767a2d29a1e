//! One connection: it sends one request at a time, and waits for the response.
//!
//! A call that is cancelled makes the connection unusable, because its response would be taken for
//! that of the next call. So [`crate::Client`] keeps a connection only after its call has ended.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::{
    ApiVersionsRequest, ApiVersionsResponse, RequestHeader, ResponseHeader,
};
use kafka_protocol::protocol::{
    Decodable, Encodable, HeaderVersion, Request, StrBytes, VersionRange,
};
use rdma::protocol::{LINK_API_KEY, LinkAnswer, LinkCall, LinkRequest};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::api::{ClientApi, negotiated_version};
use crate::frame::{ClientFrameError, read_frame};
use crate::link::{ClientLink, LinkChoice, LinkExchange, LinkFailure, LinkState};
use crate::stream::{ClientStream, secured};
use crate::{ClientError, Options};

pub(crate) struct ServerConnection {
    stream: ClientStream,
    address: String,
    client_id: StrBytes,
    supported: HashMap<i16, VersionRange>,
    correlation_id: i32,
    link_choice: LinkChoice,
    link: LinkState,
    stamp: Arc<AtomicU64>,
}

/// The fields of a request header.
struct RequestHeaderFields {
    api_key: i16,
    version: i16,
    header_version: i16,
    name: &'static str,
}

impl ServerConnection {
    /// Connects, and requests the API versions of the server.
    /// All connections of a client share the highest `stamp` that one of them received.
    pub(crate) async fn open(
        address: &str,
        options: &Options,
        stamp: &Arc<AtomicU64>,
    ) -> Result<ServerConnection, ClientError> {
        let unreachable = |cause| ClientError::Unreachable { address: address.to_owned(), cause };
        let stream = timeout(options.connect_patience, TcpStream::connect(address))
            .await
            .map_err(|_| unreachable(io::ErrorKind::TimedOut.into()))?
            .map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let stream = match &options.tls {
            None => ClientStream::Plain(stream),
            Some(tls) => {
                let insecure = |cause| ClientError::Insecure { address: address.to_owned(), cause };
                let shaken = timeout(options.connect_patience, secured(address, tls, stream)).await;
                let shaken = shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                ClientStream::Tls(Box::new(shaken.map_err(insecure)?))
            }
        };
        let mut connection = ServerConnection {
            stream,
            address: address.to_owned(),
            client_id: StrBytes::from_string(options.client_id.clone()),
            supported: HashMap::new(),
            correlation_id: 0,
            link_choice: options.link,
            link: LinkState::default(),
            stamp: Arc::clone(stamp),
        };
        connection.negotiate_versions(options.connect_patience).await?;
        if let Some(login) = &options.login {
            connection.log_in(login, options.connect_patience).await?;
        }
        tracing::debug!(address, apis = connection.supported.len(), "connected");
        Ok(connection)
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    async fn negotiate_versions(&mut self, patience: Duration) -> Result<(), ClientError> {
        let mut answer = self.api_versions(3, patience).await?;
        if answer.error_code == ResponseError::UnsupportedVersion.code() {
            answer = self.api_versions(0, patience).await?;
        }
        if let Some(error) = ResponseError::try_from_code(answer.error_code) {
            return Err(ClientError::kafka("ask for versions", error, None));
        }
        self.supported = answer
            .api_keys
            .iter()
            .map(|api| (api.api_key, VersionRange { min: api.min_version, max: api.max_version }))
            .collect();
        Ok(())
    }

    async fn api_versions(
        &mut self,
        version: i16,
        patience: Duration,
    ) -> Result<ApiVersionsResponse, ClientError> {
        let head = RequestHeaderFields {
            api_key: ApiVersionsRequest::KEY,
            version,
            header_version: ApiVersionsRequest::header_version(version),
            name: "ApiVersions",
        };
        let request = ApiVersionsRequest::default()
            .with_client_software_name(StrBytes::from_static_str("freezeframe"))
            .with_client_software_version(StrBytes::from_static_str(env!("CARGO_PKG_VERSION")));
        let frame = self.frame(&head, |buffer| request.encode(buffer, version))?;
        let mut body = self.exchange(head.name, frame, 0, patience).await?;
        // A server that does not support the version answers in version 0, with its ranges only.
        let refused = body.starts_with(&ResponseError::UnsupportedVersion.code().to_be_bytes());
        let version = if refused { 0 } else { version };
        ApiVersionsResponse::decode(&mut body, version).map_err(|error| self.malformed(error))
    }

    /// The version of `R` that both sides support.
    fn version_of<R: ClientApi>(&self) -> Result<i16, ClientError> {
        let server_range = self.supported.get(&R::KEY);
        negotiated_version(R::OURS, server_range).ok_or_else(|| ClientError::Unsupported {
            address: self.address.clone(),
            api: R::NAME,
            ours: R::OURS.to_string(),
            theirs: server_range.map(ToString::to_string),
        })
    }

    /// [`ServerConnection::call`] before authentication: such messages carry no stamp.
    pub(crate) async fn call_unstamped<R: ClientApi>(
        &mut self,
        request: &R,
        patience: Duration,
    ) -> Result<R::Response, ClientError> {
        let version = self.version_of::<R>()?;
        let head = header_fields::<R>(version);
        let frame = self.frame(&head, |buffer| request.encode(buffer, version))?;
        let header = R::Response::header_version(version);
        let mut body = self.exchange(head.name, frame, header, patience).await?;
        R::Response::decode(&mut body, version).map_err(|error| self.malformed(error))
    }

    /// Sends a request and waits for its response.
    pub(crate) async fn call<R: ClientApi>(
        &mut self,
        request: &R,
        patience: Duration,
    ) -> Result<R::Response, ClientError> {
        let version = self.version_of::<R>()?;
        let head = header_fields::<R>(version);
        let response_header = R::Response::header_version(version);
        let encode = |buffer: &mut BytesMut| request.encode(buffer, version);
        let mut body = self.exchange_stamped(&head, encode, response_header, patience).await?;
        R::Response::decode(&mut body, version).map_err(|error| self.malformed(error))
    }

    /// Sends a request that moves records, whose response has up to `room` bytes: by RDMA if both
    /// sides can, and the options allow it.
    pub(crate) async fn call_for_records<R: ClientApi>(
        &mut self,
        request: &R,
        room: usize,
        patience: Duration,
    ) -> Result<R::Response, ClientError> {
        if self.link_choice == LinkChoice::Tcp {
            return self.call(request, patience).await;
        }
        let mut link = self.take_link(patience).await?;
        let LinkState::Open(open) = &mut link else {
            self.link = link;
            return self.call(request, patience).await;
        };
        let version = self.version_of::<R>()?;
        let mut body = BytesMut::new();
        request.encode(&mut body, version).map_err(|error| {
            self.malformed(format!("{} cannot be put into its words: {error}", R::NAME))
        })?;
        let mut channel = LinkChannel { connection: self, patience, name: R::NAME };
        let called = open.call(&mut channel, R::KEY, version, &body, room).await;
        let reason = match called {
            Ok(mut response) => {
                self.link = link;
                let header = R::Response::header_version(version);
                return ResponseHeader::decode(&mut response, header)
                    .and_then(|_| R::Response::decode(&mut response, version))
                    .map_err(|error| self.malformed(error));
            }
            Err(LinkFailure::Connection(error)) => return Err(error),
            Err(LinkFailure::Clock(reason)) => {
                self.link = link;
                return Err(self.refused(R::NAME, reason));
            }
            Err(LinkFailure::Malformed(problem)) => return Err(self.malformed(problem)),
            Err(
                LinkFailure::Refused(reason)
                | LinkFailure::Forgotten(reason)
                | LinkFailure::TooSmall(reason),
            ) => {
                self.link = link;
                reason
            }
            Err(LinkFailure::Lost(reason)) => {
                self.link = LinkState::Unavailable(reason.clone());
                reason
            }
        };
        tracing::debug!(why = reason, "records go over TCP this time");
        match self.link_choice {
            LinkChoice::Rdma => Err(self.no_link(reason)),
            LinkChoice::Auto | LinkChoice::Tcp => self.call(request, patience).await,
        }
    }

    /// The connection's link, which is opened if it was not tried before. The caller gives it back.
    async fn take_link(&mut self, patience: Duration) -> Result<LinkState, ClientError> {
        let link = match std::mem::take(&mut self.link) {
            LinkState::Untried => self.open_link(patience).await?,
            link => link,
        };
        match (&link, self.link_choice) {
            (LinkState::Unavailable(reason), LinkChoice::Rdma) => {
                let error = self.no_link(reason.clone());
                self.link = link;
                Err(error)
            }
            _ => Ok(link),
        }
    }

    async fn open_link(&mut self, patience: Duration) -> Result<LinkState, ClientError> {
        if !self.is_stamped() {
            return Ok(LinkState::Unavailable("the server offers none".to_owned()));
        }
        let ClientStream::Plain(stream) = &self.stream else {
            let reason = "the connection is over TLS, and RDMA is in the open";
            return Ok(LinkState::Unavailable(reason.to_owned()));
        };
        let local = match stream.local_addr() {
            Ok(local) => local.ip().to_canonical(),
            Err(error) => return Ok(LinkState::Unavailable(error.to_string())),
        };
        let mut channel = LinkChannel { connection: self, patience, name: "a link" };
        match ClientLink::open(&mut channel, local).await {
            Ok(link) => Ok(LinkState::Open(Box::new(link))),
            Err(LinkFailure::Connection(error)) => Err(error),
            Err(LinkFailure::Clock(reason)) => Err(self.refused("a link", reason)),
            Err(LinkFailure::Malformed(problem)) => Err(self.malformed(problem)),
            Err(
                LinkFailure::Refused(reason)
                | LinkFailure::Lost(reason)
                | LinkFailure::Forgotten(reason)
                | LinkFailure::TooSmall(reason),
            ) => {
                tracing::debug!(why = reason, "records go over TCP");
                Ok(LinkState::Unavailable(reason))
            }
        }
    }

    /// The transport of records: the RDMA device, or the reason for TCP.
    pub(crate) async fn describe_link(
        &mut self,
        patience: Duration,
    ) -> Result<Result<String, String>, ClientError> {
        if let LinkState::Untried = self.link {
            self.link = self.open_link(patience).await?;
        }
        Ok(match &self.link {
            LinkState::Open(link) => Ok(link.describe()),
            LinkState::Unavailable(reason) => Err(reason.clone()),
            LinkState::Untried => Err("it was not tried".to_owned()),
        })
    }

    fn no_link(&self, reason: String) -> ClientError {
        ClientError::NoLink { address: self.address.clone(), why: reason }
    }

    /// Sends a request that has no response: Produce with acks 0.
    pub(crate) async fn send_without_response<R: ClientApi>(
        &mut self,
        request: &R,
        patience: Duration,
    ) -> Result<(), ClientError> {
        let version = self.version_of::<R>()?;
        let head = header_fields::<R>(version);
        let frame = self.stamped_frame(&head, |buffer| request.encode(buffer, version))?;
        match timeout(patience, Self::write(&mut self.stream, &frame)).await {
            Ok(written) => written.map_err(|error| self.connection_error(R::NAME, error)),
            Err(_) => Err(self.timed_out(R::NAME, patience)),
        }
    }

    /// Sends a document of our extension API, and waits for the response document.
    pub(crate) async fn call_extension(
        &mut self,
        api_key: i16,
        document: &[u8],
        patience: Duration,
    ) -> Result<Bytes, ClientError> {
        let head = RequestHeaderFields {
            api_key,
            version: 0,
            header_version: 1,
            name: "a question about the past",
        };
        let encode = |buffer: &mut BytesMut| {
            buffer.put_slice(document);
            Ok::<_, io::Error>(())
        };
        self.exchange_stamped(&head, encode, 0, patience).await
    }

    /// True if messages carry stamps: the server is Freezeframe.
    fn is_stamped(&self) -> bool {
        self.supported.contains_key(&LINK_API_KEY)
    }

    /// A request, with a stamp if the server can use it.
    fn stamped_frame<E: std::fmt::Display>(
        &mut self,
        head: &RequestHeaderFields,
        body: impl FnOnce(&mut BytesMut) -> Result<(), E>,
    ) -> Result<BytesMut, ClientError> {
        if !self.is_stamped() {
            return self.frame(head, body);
        }
        let stamp = self.stamp.load(Ordering::Relaxed);
        self.frame(&link_header_fields(head.name), |buffer| {
            LinkCall::begin_inline(stamp, head.api_key, head.version, buffer);
            body(buffer)
        })
    }

    /// Sends a request and waits for its response, both with a stamp if the server can use it.
    async fn exchange_stamped<E: std::fmt::Display>(
        &mut self,
        head: &RequestHeaderFields,
        body: impl FnOnce(&mut BytesMut) -> Result<(), E>,
        response_header: i16,
        patience: Duration,
    ) -> Result<Bytes, ClientError> {
        let frame = self.stamped_frame(head, body)?;
        if !self.is_stamped() {
            return self.exchange(head.name, frame, response_header, patience).await;
        }
        let answer = self.exchange(head.name, frame, 0, patience).await?;
        match self.link_answer(answer)? {
            LinkAnswer::Inline(mut response) => {
                ResponseHeader::decode(&mut response, response_header)
                    .map_err(|error| self.malformed(error))?;
                Ok(response)
            }
            LinkAnswer::Refused(refusal) => Err(self.refused(head.name, refusal.text)),
            answer => Err(self.malformed(format!("an answer fits no question: {answer:?}"))),
        }
    }

    /// Decodes an answer, and keeps its stamp if it is the highest.
    fn link_answer(&self, body: Bytes) -> Result<LinkAnswer, ClientError> {
        let (stamp, answer) = LinkAnswer::decode(body).map_err(|error| self.malformed(error))?;
        self.stamp.fetch_max(stamp, Ordering::Relaxed);
        Ok(answer)
    }

    fn refused(&self, during: &'static str, reason: String) -> ClientError {
        ClientError::Refused { address: self.address.clone(), during, why: reason }
    }

    fn frame<E: std::fmt::Display>(
        &mut self,
        head: &RequestHeaderFields,
        body: impl FnOnce(&mut BytesMut) -> Result<(), E>,
    ) -> Result<BytesMut, ClientError> {
        self.correlation_id = self.correlation_id.wrapping_add(1);
        let header = RequestHeader::default()
            .with_request_api_key(head.api_key)
            .with_request_api_version(head.version)
            .with_correlation_id(self.correlation_id)
            .with_client_id(Some(self.client_id.clone()));
        let mut buffer = BytesMut::zeroed(4);
        let cannot = |error: &dyn std::fmt::Display| ClientError::Malformed {
            address: self.address.clone(),
            what: format!("{} cannot be put into its words: {error}", head.name),
        };
        header.encode(&mut buffer, head.header_version).map_err(|error| cannot(&error))?;
        body(&mut buffer).map_err(|error| cannot(&error))?;
        let length =
            u32::try_from(buffer.len() - 4).map_err(|_| cannot(&"it is longer than 4 GiB"))?;
        buffer[..4].copy_from_slice(&length.to_be_bytes());
        Ok(buffer)
    }

    async fn exchange(
        &mut self,
        name: &'static str,
        frame: BytesMut,
        response_header: i16,
        patience: Duration,
    ) -> Result<Bytes, ClientError> {
        let stream = &mut self.stream;
        let exchange = async {
            Self::write(stream, &frame).await?;
            read_frame(stream).await
        };
        let mut body = match timeout(patience, exchange).await {
            Ok(exchanged) => exchanged.map_err(|error| self.connection_error(name, error))?,
            Err(_) => return Err(self.timed_out(name, patience)),
        };
        let header = ResponseHeader::decode(&mut body, response_header)
            .map_err(|error| self.malformed(error))?;
        if header.correlation_id != self.correlation_id {
            return Err(self.malformed(format!(
                "answer {} came where {} was due",
                header.correlation_id, self.correlation_id
            )));
        }
        Ok(body)
    }

    async fn write(stream: &mut ClientStream, frame: &[u8]) -> Result<(), ClientFrameError> {
        stream.write_all(frame).await?;
        Ok(stream.flush().await?)
    }

    fn connection_error(&self, during: &'static str, error: ClientFrameError) -> ClientError {
        let address = self.address.clone();
        match error {
            ClientFrameError::Closed => ClientError::Closed { address, during },
            // With TLS 1.3, a server says only after the handshake that it misses a certificate.
            ClientFrameError::Io(cause) if cause.kind() == io::ErrorKind::InvalidData => {
                ClientError::Insecure { address, cause }
            }
            ClientFrameError::Io(cause) => ClientError::Io { address, during, cause },
            // An alert of TLS, in the place of a length.
            ClientFrameError::Length(length) if length >> 16 == 0x1503 => self.malformed(
                "it speaks TLS; give the certificates that sign for it with --tls-trust",
            ),
            ClientFrameError::Length(length) => {
                self.malformed(format!("it announced an answer of {length} bytes"))
            }
        }
    }

    fn timed_out(&self, during: &'static str, after: Duration) -> ClientError {
        ClientError::TimedOut { address: self.address.clone(), during, after }
    }

    fn malformed(&self, problem: impl ToString) -> ClientError {
        ClientError::Malformed { address: self.address.clone(), what: problem.to_string() }
    }
}

/// The messages of a link, on the link's own connection.
struct LinkChannel<'a> {
    connection: &'a mut ServerConnection,
    patience: Duration,
    /// The request in progress, for messages.
    name: &'static str,
}

impl LinkExchange for LinkChannel<'_> {
    type Error = ClientError;

    async fn exchange(&mut self, request: &LinkRequest) -> Result<LinkAnswer, ClientError> {
        let connection = &mut *self.connection;
        let stamp = connection.stamp.load(Ordering::Relaxed);
        let frame = connection.frame(&link_header_fields(self.name), |buffer| {
            request.encode(stamp, buffer);
            Ok::<_, io::Error>(())
        })?;
        let answer = connection.exchange(self.name, frame, 0, self.patience).await?;
        connection.link_answer(answer)
    }
}

fn link_header_fields(name: &'static str) -> RequestHeaderFields {
    RequestHeaderFields { api_key: LINK_API_KEY, version: 0, header_version: 1, name }
}

fn header_fields<R: ClientApi>(version: i16) -> RequestHeaderFields {
    RequestHeaderFields {
        api_key: R::KEY,
        version,
        header_version: R::header_version(version),
        name: R::NAME,
    }
}
