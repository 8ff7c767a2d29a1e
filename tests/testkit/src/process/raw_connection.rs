//! A raw connection: it sends the bytes that a test gives it, and reads what arrives.
//!
//! It also has the few requests that tests of the wire share, with stock Kafka's fields.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::{CreateTopicsRequest, ResponseHeader};
use kafka_protocol::protocol::{Decodable, HeaderVersion, Request};

use super::{TIMEOUT, connect_from};
use crate::requests::{
    CORRELATION_ID, encode_frame, fetch_request, list_offsets_request, produce_request, str_bytes,
    topic_name,
};

pub struct RawKafkaConnection(TcpStream);

impl RawKafkaConnection {
    /// Connects.
    ///
    /// # Panics
    /// Nothing listens at the address.
    pub fn connect(address: SocketAddr) -> RawKafkaConnection {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT).expect("somebody listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a limit can be set");
        stream.set_write_timeout(Some(TIMEOUT)).expect("a limit can be set");
        stream.set_nodelay(true).expect("it can be set");
        RawKafkaConnection(stream)
    }

    /// Connects from another address of this machine, 127.0.0.`host`.
    ///
    /// # Errors
    /// Nothing listens there.
    pub fn connect_from(host: u8, address: SocketAddr) -> io::Result<RawKafkaConnection> {
        connect_from(host, address).map(RawKafkaConnection)
    }

    /// Sends raw bytes.
    ///
    /// # Errors
    ///
    /// The server has closed the connection.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    /// Shuts down the sending side.
    pub fn shutdown_write(&self) {
        let _ = self.0.shutdown(Shutdown::Write);
    }

    /// Receives the next frame, without its length.
    ///
    /// # Errors
    ///
    /// None arrives.
    pub fn receive(&mut self) -> io::Result<Bytes> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length)?;
        let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }

    /// Receives the response to a request.
    ///
    /// # Errors
    ///
    /// None arrives, or it does not decode.
    pub fn receive_response<R: Request>(&mut self, version: i16) -> io::Result<R::Response> {
        let mut bytes = self.receive()?;
        let header = ResponseHeader::decode(&mut bytes, R::Response::header_version(version))
            .map_err(io::Error::other)?;
        assert_eq!(header.correlation_id, CORRELATION_ID, "answers name their requests");
        let response = R::Response::decode(&mut bytes, version).map_err(io::Error::other)?;
        assert!(bytes.is_empty(), "{} bytes after the answer", bytes.len());
        Ok(response)
    }

    /// Sends a request, and waits for the response.
    ///
    /// # Errors
    ///
    /// None arrives, or it does not decode.
    pub fn call<R: Request>(&mut self, version: i16, request: &R) -> io::Result<R::Response> {
        self.send(&encode_frame(version, request))?;
        self.receive_response::<R>(version)
    }

    /// Reads what the server sends before it closes the connection.
    ///
    /// # Panics
    /// It does not close it.
    pub fn read_until_closed(&mut self) -> Vec<u8> {
        let (mut words, mut bytes) = (Vec::new(), [0; 4096]);
        loop {
            match self.0.read(&mut bytes) {
                Ok(0) => return words,
                Ok(count) => words.extend_from_slice(&bytes[..count]),
                // Bytes that we sent and it did not read turn its close into a reset.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return words,
                Err(error) => panic!("the server does not end the connection: {error}"),
            }
        }
    }

    /// Creates a topic.
    ///
    /// # Panics
    /// It is not created.
    pub fn create_topic(&mut self, topic: &str, partitions: i32, configs: &[(&str, &str)]) {
        let configs = configs.iter().map(|(name, value)| {
            CreatableTopicConfig::default()
                .with_name(str_bytes(name))
                .with_value(Some(str_bytes(value)))
        });
        let topic = CreatableTopic::default()
            .with_name(topic_name(topic))
            .with_num_partitions(partitions)
            .with_replication_factor(1)
            .with_configs(configs.collect());
        let request = CreateTopicsRequest::default().with_topics(vec![topic]);
        let made = self.call(5, &request).expect("an answer");
        assert_eq!(made.topics[0].error_code, 0, "{:?}", made.topics[0].error_message);
    }

    /// Produces one batch, valid or not. Returns the error code and the base offset.
    ///
    /// # Panics
    /// No response arrives.
    pub fn produce(&mut self, topic: &str, partition: i32, records: &Bytes) -> (i16, i64) {
        self.try_produce(topic, partition, records).expect("an answer")
    }

    /// [`RawKafkaConnection::produce`], on a server that may end.
    ///
    /// # Errors
    /// No response arrives.
    pub fn try_produce(
        &mut self,
        topic: &str,
        partition: i32,
        records: &Bytes,
    ) -> io::Result<(i16, i64)> {
        let answer = self.call(9, &produce_request(topic, partition, records))?;
        let answer = &answer.responses[0].partition_responses[0];
        Ok((answer.error_code, answer.base_offset))
    }

    /// Fetches from `offset` on without waiting. Returns the error code, the end, and the batches.
    ///
    /// # Panics
    /// No response arrives.
    pub fn fetch(&mut self, topic: &str, partition: i32, offset: i64) -> (i16, i64, Bytes) {
        let request = fetch_request(topic, partition, offset, Duration::ZERO);
        let answer = self.call(12, &request).expect("an answer");
        let answer = answer.responses[0].partitions[0].clone();
        (answer.error_code, answer.high_watermark, answer.records.unwrap_or_default())
    }

    /// The offset of the first record at or after a time, or −1; and the error code.
    ///
    /// # Panics
    /// No response arrives.
    pub fn offset_at(&mut self, topic: &str, partition: i32, time_ms: i64) -> (i16, i64) {
        let answer =
            self.call(6, &list_offsets_request(topic, partition, time_ms)).expect("an answer");
        let answer = &answer.topics[0].partitions[0];
        (answer.error_code, answer.offset)
    }
}
