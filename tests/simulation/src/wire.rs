//! A client's connection: requests as bytes, responses as messages.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use serde_json::Value;
use testkit::requests::{encode_frame, length_prefixed};
use testkit::rng::SeededRng;

use crate::network::SimSocket;
use crate::world::SimWorld;

/// The longest wait of a client for a response.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(3);
const EXTENSION_API_KEY: i16 = 17990;

/// A connection that is opened when needed and closed after any error.
pub(crate) struct SimClient {
    world: Rc<SimWorld>,
    socket: Option<Rc<SimSocket>>,
    /// That of its connections.
    rng: SeededRng,
}

impl SimClient {
    pub(crate) fn new(world: &Rc<SimWorld>, rng: SeededRng) -> SimClient {
        SimClient { world: Rc::clone(world), socket: None, rng }
    }

    /// Sends a request, and waits for the response.
    ///
    /// # Errors
    ///
    /// It is unknown whether the request was executed.
    pub(crate) async fn call<R: Request>(
        &mut self,
        version: i16,
        request: &R,
    ) -> io::Result<R::Response> {
        self.send(&encode_frame(version, request)).await?;
        self.receive_response::<R>(version).await
    }

    /// Sends a request of the extension API.
    ///
    /// # Errors
    ///
    /// As [`SimClient::call`].
    pub(crate) async fn call_extension(&mut self, document: &Value) -> io::Result<Value> {
        let mut body = BytesMut::new();
        RequestHeader::default()
            .with_request_api_key(EXTENSION_API_KEY)
            .with_client_id(Some(StrBytes::from_static_str("sim")))
            .encode(&mut body, 1)
            .map_err(io::Error::other)?;
        body.put_slice(document.to_string().as_bytes());
        self.send(&length_prefixed(&body)).await?;
        let answer = self.receive_frame().await?;
        serde_json::from_slice(&answer[4..]).map_err(io::Error::other)
    }

    /// Sends a request, and does not wait.
    ///
    /// # Errors
    ///
    /// As [`SimClient::call`].
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let end = self.connected_socket()?;
        let sent = with_timeout(end.send(bytes)).await;
        self.disconnect_on_error(sent)
    }

    /// The response to the first request that has none.
    ///
    /// # Errors
    ///
    /// As [`SimClient::call`].
    pub(crate) async fn receive_response<R: Request>(
        &mut self,
        version: i16,
    ) -> io::Result<R::Response> {
        let mut bytes = self.receive_frame().await?;
        ResponseHeader::decode(&mut bytes, R::Response::header_version(version))
            .and_then(|_| R::Response::decode(&mut bytes, version))
            .map_err(io::Error::other)
    }

    /// Cuts the connection, if there is one.
    pub(crate) fn disconnect(&mut self) {
        if let Some(end) = self.socket.take() {
            end.reset();
        }
    }

    fn connected_socket(&mut self) -> io::Result<Rc<SimSocket>> {
        if let Some(end) = &self.socket {
            return Ok(Rc::clone(end));
        }
        let end = self
            .world
            .connect(&mut self.rng)
            .map(Rc::new)
            .ok_or(io::ErrorKind::ConnectionRefused)?;
        self.socket = Some(Rc::clone(&end));
        Ok(end)
    }

    /// The response to the first request that has none, behind its length.
    ///
    /// # Errors
    ///
    /// As [`SimClient::call`].
    pub(crate) async fn receive_frame(&mut self) -> io::Result<Bytes> {
        let end = self.connected_socket()?;
        let received = with_timeout(async {
            let length = end.receive(4).await?;
            let length = u32::from_be_bytes(length[..].try_into().map_err(io::Error::other)?);
            end.receive(length as usize).await
        });
        let received = received.await;
        self.disconnect_on_error(received)
    }

    fn disconnect_on_error<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        if done.is_err() {
            self.disconnect();
        }
        done
    }
}

async fn with_timeout<T>(act: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(CALL_TIMEOUT, act).await.map_err(io::Error::other)?
}
