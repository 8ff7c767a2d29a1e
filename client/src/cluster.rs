//! The client: it chooses the server and the connection for a request, and retries requests.
//!
//! It retries a request only if the server refused it with an error that means "not here" or "not
//! yet". After a broken connection it retries nothing. It cannot know whether the server executed
//! the request, and a batch that is produced twice is worse than an error.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hlc::Hlc;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::fetch_request::FetchTopic;
use kafka_protocol::messages::{
    FetchRequest, FindCoordinatorRequest, MetadataRequest, MetadataResponse, TopicName,
    metadata_request::MetadataRequestTopic,
};
use kafka_protocol::protocol::StrBytes;

use tls::TlsClient;

use crate::api::ClientApi;
use crate::connection::ServerConnection;
use crate::login::ClientLogin;
use crate::{ClientError, LinkChoice, bootstrap};

const PROBE_TOPIC: &str = "a-topic-that-is-in-a-request-only-to-make-it-long.";
/// With this many topics, a request is too long to be sent inline.
const PROBE_TOPICS: usize = 1000;
/// The most bytes of the response.
const PROBE_ROOM: usize = 1 << 20;
const PAUSE_BETWEEN_ATTEMPTS: Duration = Duration::from_millis(100);
/// The kind of coordinator of groups.
const GROUP_COORDINATOR: i8 = 0;

/// Options of a client.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of the client in the server's logs.
    pub client_id: String,
    /// The timeout of a connection attempt.
    pub connect_patience: Duration,
    /// The longest time that a response may take, in addition to the time that the request allows
    /// the server to wait.
    pub response_patience: Duration,
    /// The longest time that a request is retried while the server refuses it with a retriable
    /// error.
    pub retry_patience: Duration,
    /// The transport of records: TCP, RDMA, or RDMA where both sides have a device for it.
    pub link: LinkChoice,
    /// TLS, if the servers speak it.
    pub tls: Option<TlsClient>,
    /// The name and the password, if the servers require authentication.
    pub login: Option<ClientLogin>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            client_id: "freezeframe".to_owned(),
            connect_patience: Duration::from_secs(5),
            response_patience: Duration::from_secs(30),
            retry_patience: Duration::from_secs(15),
            link: LinkChoice::Auto,
            tls: None,
            login: None,
        }
    }
}

/// A client of one server, or of the servers of one cluster.
pub struct Client {
    pub(crate) bootstrap: Vec<String>,
    pub(crate) options: Options,
    connections: HashMap<String, ServerConnection>,
    brokers: BTreeMap<i32, String>,
    controller: Option<i32>,
    leaders: HashMap<String, BTreeMap<i32, i32>>,
    /// The highest stamp that a server sent.
    stamp: Arc<AtomicU64>,
}

impl Client {
    /// Connects to the first of `HOST:PORT[,HOST:PORT…]` that answers.
    ///
    /// # Errors
    /// None of them answers. The error is that of the last one.
    pub async fn connect(bootstrap: &str, options: Options) -> Result<Client, ClientError> {
        let mut client = Client {
            bootstrap: bootstrap::addresses(bootstrap)?,
            options,
            connections: HashMap::new(),
            brokers: BTreeMap::new(),
            controller: None,
            leaders: HashMap::new(),
            stamp: Arc::default(),
        };
        client.any_server().await?;
        Ok(client)
    }

    /// The highest stamp of all answers so far: all that this client knows of happened at or before
    /// it. Each request carries it, so all that this client does happens after it, on every server.
    pub fn stamp(&self) -> Hlc {
        Hlc::from_bits(self.stamp.load(Ordering::Relaxed))
    }

    /// Orders all further requests of this client after `stamp`, the stamp of another client from
    /// which this one learned something.
    pub fn observe_stamp(&mut self, stamp: Hlc) {
        self.stamp.fetch_max(stamp.bits(), Ordering::Relaxed);
    }

    /// The address of a connected server. Connects to one if there is none.
    pub(crate) async fn any_server(&mut self) -> Result<String, ClientError> {
        if let Some(address) = self.connections.keys().min() {
            return Ok(address.clone());
        }
        let mut last = None;
        for address in self.bootstrap.clone() {
            match ServerConnection::open(&address, &self.options, &self.stamp).await {
                Ok(connection) => {
                    self.connections.insert(address.clone(), connection);
                    return Ok(address);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("an address list that was parsed is not empty"))
    }

    pub(crate) async fn call_any<R: ClientApi>(
        &mut self,
        request: &R,
    ) -> Result<R::Response, ClientError> {
        let address = self.any_server().await?;
        self.call(&address, request, Duration::ZERO).await
    }

    /// Sends a request to the server at `address`, which may wait `server_wait` before it answers.
    pub(crate) async fn call<R: ClientApi>(
        &mut self,
        address: &str,
        request: &R,
        server_wait: Duration,
    ) -> Result<R::Response, ClientError> {
        let mut connection = self.take_connection(address).await?;
        let answer = connection.call(request, self.options.response_patience + server_wait).await;
        self.return_connection(address, connection, answer)
    }

    /// [`Client::call`] for a request that moves records, whose response has up to `room` bytes.
    pub(crate) async fn call_for_records<R: ClientApi>(
        &mut self,
        address: &str,
        request: &R,
        room: usize,
        server_wait: Duration,
    ) -> Result<R::Response, ClientError> {
        let mut connection = self.take_connection(address).await?;
        let patience = self.options.response_patience + server_wait;
        let answer = connection.call_for_records(request, room, patience).await;
        self.return_connection(address, connection, answer)
    }

    /// The transport of records between this process and the server that it is connected to: the
    /// name of the RDMA device here, or the reason for TCP.
    ///
    /// # Errors
    /// The server cannot be asked.
    pub async fn link(&mut self) -> Result<Result<String, String>, ClientError> {
        let address = self.any_server().await?;
        let mut connection = self.take_connection(&address).await?;
        let answer = connection.describe_link(self.options.response_patience).await;
        self.return_connection(&address, connection, answer)
    }

    /// Moves a request without records through the link: the server reads it from the memory of
    /// this process, and writes the response there.
    ///
    /// # Errors
    /// [`ClientError::NoLink`], and those of any request.
    pub async fn probe_link(&mut self) -> Result<(), ClientError> {
        // The topics do not exist. Their names make the request long enough to be read by RDMA.
        let topics = (0..PROBE_TOPICS).map(|nth| {
            FetchTopic::default().with_topic(topic_name(&format!("{PROBE_TOPIC}{nth}")))
        });
        let request = FetchRequest::default().with_topics(topics.collect());
        let address = self.any_server().await?;
        self.call_for_records(&address, &request, PROBE_ROOM, Duration::ZERO).await.map(drop)
    }

    pub(crate) async fn send_without_response<R: ClientApi>(
        &mut self,
        address: &str,
        request: &R,
    ) -> Result<(), ClientError> {
        let mut connection = self.take_connection(address).await?;
        let sent = connection.send_without_response(request, self.options.response_patience).await;
        self.return_connection(address, connection, sent)
    }

    pub(crate) async fn call_extension(
        &mut self,
        api_key: i16,
        document: &[u8],
        server_wait: Duration,
    ) -> Result<bytes::Bytes, ClientError> {
        let address = self.any_server().await?;
        let mut connection = self.take_connection(&address).await?;
        let patience = self.options.response_patience + server_wait;
        let answer = connection.call_extension(api_key, document, patience).await;
        self.return_connection(&address, connection, answer)
    }

    async fn take_connection(&mut self, address: &str) -> Result<ServerConnection, ClientError> {
        match self.connections.remove(address) {
            Some(connection) => Ok(connection),
            None => ServerConnection::open(address, &self.options, &self.stamp).await,
        }
    }

    /// Keeps a connection only if its response arrived completely and in time.
    fn return_connection<T>(
        &mut self,
        address: &str,
        connection: ServerConnection,
        answer: Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let is_whole = matches!(
            answer,
            Ok(_)
                | Err(ClientError::Unsupported { .. }
                    | ClientError::NoLink { .. }
                    | ClientError::Refused { .. })
        );
        if is_whole {
            self.connections.insert(address.to_owned(), connection);
        }
        answer
    }

    /// Repeats `attempt` while the server refuses it with a retriable error. The cached leaders are
    /// dropped before each retry.
    pub(crate) async fn retry<T>(
        &mut self,
        mut attempt: impl AsyncFnMut(&mut Client) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let give_up = Instant::now() + self.options.retry_patience;
        loop {
            match attempt(self).await {
                Err(error) if error.is_retriable() && Instant::now() < give_up => {
                    tracing::debug!(%error, "asking again");
                    self.leaders.clear();
                    self.controller = None;
                    tokio::time::sleep(PAUSE_BETWEEN_ATTEMPTS).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Requests metadata of the named topics, or of all. It never creates a topic.
    pub(crate) async fn metadata(
        &mut self,
        topics: Option<&[&str]>,
    ) -> Result<MetadataResponse, ClientError> {
        let requested =
            |topic: &&str| MetadataRequestTopic::default().with_name(Some(topic_name(topic)));
        let request = MetadataRequest::default()
            .with_topics(topics.map(|topics| topics.iter().map(requested).collect()))
            .with_allow_auto_topic_creation(false);
        let answer = self.call_any(&request).await?;
        self.brokers = answer
            .brokers
            .iter()
            .map(|broker| (broker.node_id.0, address_of(&broker.host, broker.port)))
            .collect();
        self.controller = Some(answer.controller_id.0).filter(|id| *id >= 0);
        for topic in &answer.topics {
            let Some(name) = &topic.name else { continue };
            let leaders = topic
                .partitions
                .iter()
                .map(|partition| (partition.partition_index, partition.leader_id.0))
                .collect();
            self.leaders.insert(name.to_string(), leaders);
        }
        Ok(answer)
    }

    /// The id of the cluster, if it has one.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub async fn cluster_id(&mut self) -> Result<Option<String>, ClientError> {
        let answer = self.metadata(Some(&[])).await?;
        Ok(answer.cluster_id.map(|id| id.to_string()))
    }

    /// The addresses of all servers of the cluster.
    pub(crate) async fn all_servers(&mut self) -> Result<Vec<String>, ClientError> {
        self.metadata(Some(&[])).await?;
        Ok(self.brokers.values().cloned().collect())
    }

    /// The server that changes topics: the controller.
    pub(crate) async fn controller(&mut self) -> Result<String, ClientError> {
        if self.controller.is_none() {
            self.metadata(Some(&[])).await?;
        }
        match self.controller.and_then(|id| self.brokers.get(&id)) {
            Some(address) => Ok(address.clone()),
            None => self.any_server().await,
        }
    }

    /// Groups partitions by their leader.
    pub(crate) async fn by_leader<T>(
        &mut self,
        topic: &str,
        partitions: impl IntoIterator<Item = (i32, T)>,
    ) -> Result<BTreeMap<String, Vec<(i32, T)>>, ClientError> {
        if self.leaders.get(topic).is_none_or(BTreeMap::is_empty) {
            let answer = self.metadata(Some(&[topic])).await?;
            let code = answer.topics.first().map_or(0, |topic| topic.error_code);
            topic_error(topic, "find topic", code, None)?;
        }
        let no_leaders = BTreeMap::new();
        let leaders = self.leaders.get(topic).unwrap_or(&no_leaders);
        let mut grouped: BTreeMap<String, Vec<(i32, T)>> = BTreeMap::new();
        for (partition, item) in partitions {
            let leader = leaders.get(&partition).ok_or_else(|| ClientError::UnknownPartition {
                topic: topic.to_owned(),
                partition,
                count: leaders.len(),
            })?;
            let address = self.brokers.get(leader).ok_or_else(|| {
                ClientError::kafka(
                    format!("find the leader of {topic}/{partition}"),
                    ResponseError::LeaderNotAvailable,
                    None,
                )
            })?;
            grouped.entry(address.clone()).or_default().push((partition, item));
        }
        Ok(grouped)
    }

    /// The coordinator of `group`.
    pub(crate) async fn coordinator(&mut self, group: &str) -> Result<String, ClientError> {
        self.coordinator_of(group, GROUP_COORDINATOR).await
    }

    /// The coordinator of a group or a transactional id.
    pub(crate) async fn coordinator_of(
        &mut self,
        id: &str,
        kind: i8,
    ) -> Result<String, ClientError> {
        let request = FindCoordinatorRequest::default()
            .with_key_type(kind)
            .with_key(StrBytes::from_string(id.to_owned()));
        let answer = self.call_any(&request).await?;
        match ResponseError::try_from_code(answer.error_code) {
            None => Ok(address_of(&answer.host, answer.port)),
            Some(error) => Err(ClientError::kafka(
                format!("find the coordinator of {id}"),
                error,
                answer.error_message.as_deref(),
            )),
        }
    }

    /// Drops the cached leaders of a topic, after a server said that it does not lead it.
    pub(crate) fn invalidate_leaders(&mut self, topic: &str) {
        self.leaders.remove(topic);
    }
}

pub(crate) fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

/// Converts an error code about a topic to an error.
pub(crate) fn topic_error(
    topic: &str,
    doing: &str,
    code: i16,
    message: Option<&str>,
) -> Result<(), ClientError> {
    match ResponseError::try_from_code(code) {
        None => Ok(()),
        Some(ResponseError::UnknownTopicOrPartition) => {
            Err(ClientError::UnknownTopic(topic.to_owned()))
        }
        Some(error) => Err(ClientError::kafka(format!("{doing} {topic}"), error, message)),
    }
}

fn address_of(host: &str, port: i32) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
