//! A client's connection: requests as bytes, answers as messages.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use serde_json::Value;
use tests::wire::{frame, framed};

use crate::network::End;
use crate::world::World;

/// How long a client waits for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// The key of our own API.
const EXTENSION: i16 = 17990;

/// A connection, made when it is needed and given up when anything goes wrong.
pub(crate) struct Client {
    world: Rc<World>,
    end: Option<Rc<End>>,
}

impl Client {
    pub(crate) fn new(world: &Rc<World>) -> Client {
        Client { world: Rc::clone(world), end: None }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// Whether it was done is not known.
    pub(crate) async fn ask<R: Request>(
        &mut self,
        version: i16,
        request: &R,
    ) -> io::Result<R::Response> {
        self.send(&frame(version, request)).await?;
        self.answer::<R>(version).await
    }

    /// Asks what Kafka's protocol has no words for.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub(crate) async fn ask_extension(&mut self, document: &Value) -> io::Result<Value> {
        let mut body = BytesMut::new();
        RequestHeader::default()
            .with_request_api_key(EXTENSION)
            .with_client_id(Some(StrBytes::from_static_str("sim")))
            .encode(&mut body, 1)
            .map_err(io::Error::other)?;
        body.put_slice(document.to_string().as_bytes());
        self.send(&framed(&body)).await?;
        let answer = self.receive().await?;
        serde_json::from_slice(&answer[4..]).map_err(io::Error::other)
    }

    /// Sends a request, and does not wait.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let end = self.end()?;
        let sent = patiently(end.send(bytes)).await;
        self.noticing(sent)
    }

    /// The answer to the first request that has none.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub(crate) async fn answer<R: Request>(&mut self, version: i16) -> io::Result<R::Response> {
        let mut bytes = self.receive().await?;
        ResponseHeader::decode(&mut bytes, R::Response::header_version(version))
            .and_then(|_| R::Response::decode(&mut bytes, version))
            .map_err(io::Error::other)
    }

    /// Cuts the connection, if there is one.
    pub(crate) fn hang_up(&mut self) {
        if let Some(end) = self.end.take() {
            end.cut();
        }
    }

    fn end(&mut self) -> io::Result<Rc<End>> {
        if let Some(end) = &self.end {
            return Ok(Rc::clone(end));
        }
        let end = self.world.connect().map(Rc::new).ok_or(io::ErrorKind::ConnectionRefused)?;
        self.end = Some(Rc::clone(&end));
        Ok(end)
    }

    async fn receive(&mut self) -> io::Result<Bytes> {
        let end = self.end()?;
        let received = patiently(async {
            let length = end.receive(4).await?;
            let length = u32::from_be_bytes(length[..].try_into().map_err(io::Error::other)?);
            end.receive(length as usize).await
        });
        let received = received.await;
        self.noticing(received)
    }

    fn noticing<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        if done.is_err() {
            self.hang_up();
        }
        done
    }
}

async fn patiently<T>(act: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(PATIENCE, act).await.map_err(io::Error::other)?
}
