//! One connection to a broker: it writes requests, reads responses, and negotiates versions.
//!
//! It blocks, and the caller's thread does all the work. So the CPU time of a run on our side is
//! that of the socket and little more. [`ResponseReader`] reads each frame into the same buffer,
//! once the last frame read has been dropped. Every wait ends after [`TIMEOUT`].

use std::{
    collections::BTreeMap,
    io::{BufReader, IoSlice, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    ops::RangeInclusive,
    sync::OnceLock,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use kafka_protocol::{
    error::ResponseError,
    messages::{ApiVersionsRequest, ApiVersionsResponse, RequestHeader, ResponseHeader},
    protocol::{Decodable, HeaderVersion, Request, StrBytes, encode_request_header_into_buffer},
};

use crate::halves::{ReadHalf, WriteHalf, split};

/// The longest that a broker may keep a connection waiting before the run fails.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

const FRAME_BYTES_MAX: usize = 256 << 20;
const CORRELATION_AT: usize = 8;
/// The name of this program.
pub(crate) const PROGRAM: &str = "freezeframe-bench";

static CLIENT_ID: OnceLock<String> = OnceLock::new();

/// Sets the client id of all requests, once.
pub(crate) fn set_client_id(id: &str) {
    CLIENT_ID.get_or_init(|| id.to_owned());
}

/// Fails with the name of the error, unless `code` is 0.
pub(crate) fn check_error_code(code: i16) -> Result<()> {
    match ResponseError::try_from_code(code) {
        None => Ok(()),
        Some(error) => bail!("the broker answered {error} ({code})"),
    }
}

/// The address to connect to; the first if a name has several.
pub(crate) fn resolve(bootstrap: &str) -> Result<SocketAddr> {
    let mut found = bootstrap
        .to_socket_addrs()
        .with_context(|| format!("resolve {bootstrap}, which must be HOST:PORT"))?;
    found.next().with_context(|| format!("no address is known for {bootstrap}"))
}

pub(crate) struct BenchConnection {
    pub(crate) writer: RequestWriter,
    pub(crate) reader: ResponseReader,
    versions: BTreeMap<i16, RangeInclusive<i16>>,
}

impl BenchConnection {
    /// Connects, and requests the versions that the broker supports.
    pub(crate) fn open(address: SocketAddr) -> Result<BenchConnection> {
        let open = || -> Result<BenchConnection> {
            let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            let (read, write) = split(stream, address)?;
            let inbox = ResponseReader::new(read);
            let outbox = RequestWriter { stream: write, correlation_id: 0 };
            let mut connection =
                BenchConnection { writer: outbox, reader: inbox, versions: BTreeMap::new() };
            connection.versions = connection.request_api_versions()?;
            Ok(connection)
        };
        open().with_context(|| format!("connect to {address}"))
    }

    fn request_api_versions(&mut self) -> Result<BTreeMap<i16, RangeInclusive<i16>>> {
        let request = ApiVersionsRequest::default()
            .with_client_software_name(StrBytes::from_static_str(PROGRAM))
            .with_client_software_version(StrBytes::from_static_str(env!("CARGO_PKG_VERSION")));
        self.writer.send(&mut encode_frame(&request, 3)?)?;
        let mut frame = self.reader.next_frame()?;
        let correlation_id = ResponseHeader::decode(&mut frame, 0)?.correlation_id;
        ensure!(correlation_id == self.writer.correlation_id, "answers are out of order");
        // A broker that does not know version 3 answers in version 0.
        let too_new = frame.starts_with(&ResponseError::UnsupportedVersion.code().to_be_bytes());
        let response = ApiVersionsResponse::decode(&mut frame, if too_new { 0 } else { 3 })?;
        if !too_new {
            check_error_code(response.error_code).context("ask for API versions")?;
        }
        let ranges = response.api_keys.iter();
        Ok(ranges.map(|api| (api.api_key, api.min_version..=api.max_version)).collect())
    }

    /// The newest version of `R` that the broker and `ours` share.
    pub(crate) fn version<R: Request>(&self, ours: RangeInclusive<i16>) -> Result<i16> {
        let theirs = self
            .versions
            .get(&R::KEY)
            .with_context(|| format!("the broker does not serve the API. key={}", R::KEY))?;
        let newest = *ours.end().min(theirs.end());
        ensure!(
            newest >= *ours.start() && newest >= *theirs.start(),
            "no version in common. key={}, ours={ours:?}, theirs={theirs:?}",
            R::KEY
        );
        Ok(newest)
    }

    /// Sends one request and waits for its response.
    pub(crate) fn call<R: Request>(&mut self, request: &R, version: i16) -> Result<R::Response> {
        let sent = self.writer.send(&mut encode_frame(request, version)?)?;
        let (correlation_id, response) = self.reader.next_response::<R>(version)?;
        ensure!(correlation_id == sent, "answers are out of order");
        Ok(response)
    }
}

/// A request with its length and header, without the correlation id, which is written when it is
/// sent.
pub(crate) fn encode_frame<R: Request>(request: &R, version: i16) -> Result<Vec<u8>> {
    let client_id = CLIENT_ID.get().map_or(PROGRAM, String::as_str);
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_client_id(Some(StrBytes::from_static_str(client_id)));
    let mut frame = BytesMut::zeroed(4);
    encode_request_header_into_buffer(&mut frame, &header)?;
    request.encode(&mut frame, version)?;
    let length = i32::try_from(frame.len() - 4).context("a request is larger than a frame")?;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    Ok(frame.into())
}

/// The half that writes.
pub(crate) struct RequestWriter {
    stream: WriteHalf,
    correlation_id: i32,
}

impl RequestWriter {
    /// Writes the next correlation id into the request at the start of `frame`.
    pub(crate) fn set_correlation_id(&mut self, frame: &mut [u8]) -> i32 {
        self.correlation_id = self.correlation_id.wrapping_add(1);
        let id = self.correlation_id.to_be_bytes();
        frame[CORRELATION_AT..CORRELATION_AT + 4].copy_from_slice(&id);
        self.correlation_id
    }

    pub(crate) fn send(&mut self, frame: &mut [u8]) -> Result<i32> {
        let id = self.set_correlation_id(frame);
        self.stream.write_all(frame).context("send a request")?;
        Ok(id)
    }

    /// Writes the slices one after the other, in as few system calls as the kernel allows.
    pub(crate) fn send_slices(&mut self, mut slices: &mut [IoSlice<'_>]) -> Result<()> {
        while !slices.is_empty() {
            let sent = self.stream.write_vectored(slices).context("send a request")?;
            ensure!(sent > 0, "the broker takes no more bytes");
            IoSlice::advance_slices(&mut slices, sent);
        }
        Ok(())
    }
}

/// The half that reads.
pub(crate) struct ResponseReader {
    stream: BufReader<ReadHalf>,
    buffer: Bytes,
}

impl ResponseReader {
    fn new(stream: ReadHalf) -> ResponseReader {
        // Larger reads bypass this into `buffer`. It saves a system call for small responses.
        ResponseReader { stream: BufReader::with_capacity(4096, stream), buffer: Bytes::new() }
    }

    /// The next frame, without its length. Drop it, and all slices of it, before the next call.
    /// Otherwise that call allocates a new buffer.
    pub(crate) fn next_frame(&mut self) -> Result<Bytes> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).context("wait for an answer")?;
        let length = u32::from_be_bytes(length) as usize;
        ensure!(length <= FRAME_BYTES_MAX, "an answer is too large. bytes={length}");
        let mut buffer = match std::mem::take(&mut self.buffer).try_into_mut() {
            Ok(buffer) if buffer.len() >= length => buffer,
            _ => BytesMut::zeroed(length.next_power_of_two().max(1 << 16)),
        };
        self.stream.read_exact(&mut buffer[..length]).context("read an answer")?;
        self.buffer = buffer.freeze();
        Ok(self.buffer.slice(..length))
    }

    /// The next response, which must be to an `R` of `version`, and its correlation id.
    pub(crate) fn next_response<R: Request>(&mut self, version: i16) -> Result<(i32, R::Response)> {
        let mut frame = self.next_frame()?;
        let header = ResponseHeader::decode(&mut frame, R::Response::header_version(version))?;
        let response = R::Response::decode(&mut frame, version)?;
        ensure!(frame.is_empty(), "an answer is longer than its contents. bytes={}", frame.len());
        Ok((header.correlation_id, response))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::MetadataRequest;
    use std::{net::TcpListener, thread};

    /// A listener that sends `answers` whatever it receives, one after each read.
    fn broker_with_responses(answers: Vec<Vec<u8>>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for answer in answers {
                let _ = stream.read(&mut [0; 1024]).unwrap();
                stream.write_all(&(answer.len() as u32).to_be_bytes()).unwrap();
                stream.write_all(&answer).unwrap();
            }
        });
        address
    }

    fn old_versions_response() -> Vec<u8> {
        // correlation 1, UNSUPPORTED_VERSION, one API: Metadata 0 to 4
        [&1_i32.to_be_bytes()[..], &[0, 35], &[0, 0, 0, 1], &[0, 3, 0, 0, 0, 4]].concat()
    }

    #[test]
    fn a_broker_that_knows_only_old_api_versions_is_understood() {
        let connection =
            BenchConnection::open(broker_with_responses(vec![old_versions_response()])).unwrap();
        assert_eq!(connection.version::<MetadataRequest>(0..=12).unwrap(), 4);
        assert!(connection.version::<MetadataRequest>(9..=12).is_err());
        assert!(connection.version::<ApiVersionsRequest>(0..=3).is_err());
    }

    #[test]
    fn a_buffer_is_read_into_again_once_its_frame_is_dropped() {
        let answers = [b'a', b'b'].map(|byte| vec![byte; 100]);
        let [first, second] = answers.clone();
        let mut connection = BenchConnection::open(broker_with_responses(vec![
            old_versions_response(),
            first,
            second,
        ]))
        .unwrap();
        let mut places = Vec::new();
        for answer in &answers {
            connection.writer.send(&mut [0; 64]).unwrap();
            let frame = connection.reader.next_frame().unwrap();
            assert_eq!(frame, answer[..]);
            places.push(frame.as_ptr());
        }
        assert_eq!(places[0], places[1]);
    }

    #[test]
    fn an_error_code_fails_by_name() {
        assert!(check_error_code(0).is_ok());
        let error = check_error_code(3).unwrap_err().to_string();
        assert!(error.contains("UnknownTopicOrPartition"), "{error}");
    }
}
