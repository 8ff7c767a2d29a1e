//! Quotas on the wire: a client that uses too much waits, is told so, and disturbs nobody else.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use compat_kafka::{ConnectionLimits, DynamicOptions, KafkaOptions, QuotaRates, RateOptions};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::alter_client_quotas_request::{EntityData, EntryData, OpData};
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::{
    AlterClientQuotasRequest, CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest,
    FetchRequest, MetadataRequest, MetadataResponse, metadata_request,
};
use kafka_protocol::protocol::Request;
use storage::disk::MemoryDisk;
use testkit::kafka::{TestKafkaConnection, TestKafkaServer, one_record_batch};
use testkit::requests::{encode_frame_as, fetch_request, produce_request, str_bytes, topic_name};
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout};

/// Short samples, so that little is free at once: the use of 0.2 seconds.
const RATES: RateOptions = RateOptions { samples: 3, sample: Duration::from_millis(100) };
const FREE_SECONDS: f64 = 0.2;

async fn server() -> TestKafkaServer {
    server_with(KafkaOptions::default()).await
}

async fn server_with(options: KafkaOptions) -> TestKafkaServer {
    let quota_rates = QuotaRates { clients: RATES, mutations: RATES };
    let options = KafkaOptions { quota_rates, ..options };
    TestKafkaServer::start(Arc::new(MemoryDisk::new()), options, 64 << 20).await
}

/// Sets a quota of a client id, a user or an address.
async fn limit(server: &TestKafkaServer, kind: &str, name: Option<&str>, quota: &str, rate: f64) {
    let entity = EntityData::default()
        .with_entity_type(str_bytes(kind))
        .with_entity_name(name.map(str_bytes));
    let op = OpData::default().with_key(str_bytes(quota)).with_value(rate);
    let entry = EntryData::default().with_entity(vec![entity]).with_ops(vec![op]);
    let request = AlterClientQuotasRequest::default().with_entries(vec![entry]);
    let altered = server.connect().await.ask(1, &request).await.unwrap().entries;
    assert_eq!(altered[0].error_code, 0, "{altered:?}");
}

/// A client with an id.
struct QuotaClient {
    id: &'static str,
    connection: TestKafkaConnection,
}

impl QuotaClient {
    async fn new(server: &TestKafkaServer, id: &'static str) -> QuotaClient {
        QuotaClient { id, connection: server.connect().await }
    }

    async fn ask<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        self.connection.send(&encode_frame_as(self.id, version, request)).await.unwrap();
        self.connection.response::<R>(version).await.unwrap()
    }

    /// Produces a batch; returns for how many milliseconds the client is told to wait.
    async fn produce(&mut self, batch: &Bytes) -> i32 {
        let answer = self.ask(9, &produce_request("t", 0, batch)).await;
        assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
        answer.throttle_time_ms
    }

    async fn metadata(&mut self, topic: Option<&str>) -> MetadataResponse {
        let topics = topic.map(|name| {
            let topic = metadata_request::MetadataRequestTopic::default();
            vec![topic.with_name(Some(topic_name(name)))]
        });
        let request = MetadataRequest::default().with_allow_auto_topic_creation(true);
        self.ask(9, &request.with_topics(topics)).await
    }
}

fn batch(bytes: usize) -> Bytes {
    one_record_batch(&vec![b'x'; bytes])
}

#[tokio::test(flavor = "multi_thread")]
async fn who_produces_too_much_waits_and_others_do_not() {
    const RATE: f64 = 100_000.0;
    let server = server().await;
    server.topic("t", &[]).await;
    limit(&server, "client-id", Some("heavy"), "producer_byte_rate", RATE).await;
    let mut heavy = QuotaClient::new(&server, "heavy").await;
    let mut quiet = QuotaClient::new(&server, "quiet").await;
    let first = batch(50_000);
    let mut told_ms = heavy.produce(&first).await;
    assert_eq!(told_ms, first_delay("heavy", &first, RATE));
    let (begun, batch, count) = (Instant::now(), batch(10_000), 12);
    for _ in 0..count {
        told_ms += heavy.produce(&batch).await;
        assert_eq!(quiet.produce(&batch).await, 0, "it has no quota");
    }
    let used = 10_000.0 * f64::from(count - 1);
    // A sample is forgotten as a whole.
    let least = Duration::from_secs_f64(used / RATE * 2.0 / 3.0);
    let took = begun.elapsed();
    assert!(took >= least, "{used} bytes in {took:?}: that is faster than the quota");
    let metrics = server.kafka.metrics();
    let count =
        |counter: &std::sync::atomic::AtomicU64| counter.load(std::sync::atomic::Ordering::Relaxed);
    assert!(count(&metrics.throttled_requests) > 0);
    assert!(count(&metrics.throttled_ms) >= told_ms as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_connections_of_a_client_share_its_quota_and_a_changed_one_counts_at_once() {
    let server = server().await;
    server.topic("t", &[]).await;
    limit(&server, "client-id", None, "producer_byte_rate", 1000.0).await;
    let mut first = QuotaClient::new(&server, "c").await;
    let mut second = QuotaClient::new(&server, "c").await;
    let mut other = QuotaClient::new(&server, "d").await;
    let batch = batch(300);
    let first_delay = |id| first_delay(id, &batch, 1000.0);
    assert_eq!(first.produce(&batch).await, first_delay("c"), "it is more than is free");
    assert!(second.produce(&batch).await > 0, "what the first one used counts");
    assert_eq!(other.produce(&batch).await, first_delay("d"), "it has used nothing");
    limit(&server, "client-id", Some("c"), "producer_byte_rate", 1e9).await;
    assert_eq!(second.produce(&batch).await, 0);
    assert_eq!(first.produce(&batch).await, 0);
    limit(&server, "user", Some("ANONYMOUS"), "producer_byte_rate", 1000.0).await;
    assert!(second.produce(&batch).await > 0, "a user's quota comes before that of a client id");
}

/// The wait in milliseconds at a rate in bytes a second, for a client that has used nothing before.
fn first_delay(id: &'static str, batch: &Bytes, rate: f64) -> i32 {
    let request = encode_frame_as(id, 9, &produce_request("t", 0, batch));
    let used = (request.len() - 4) as f64;
    ((used / FREE_SECONDS - rate) / rate * FREE_SECONDS * 1000.0).round().max(0.0) as i32
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_response_the_connection_waits_too() {
    let server = server().await;
    server.topic("t", &[]).await;
    limit(&server, "client-id", Some("c"), "producer_byte_rate", 10_000.0).await;
    let mut client = QuotaClient::new(&server, "c").await;
    let silent = produce_request("t", 0, &batch(5000)).with_acks(0);
    let begun = Instant::now();
    client.connection.send(&encode_frame_as("c", 9, &silent)).await.unwrap();
    // 5,000 bytes where 2,000 are free: 3,000 too much, 0.3 seconds.
    client.metadata(None).await;
    assert!(begun.elapsed() >= Duration::from_millis(290), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_that_is_too_much_has_no_records_and_they_come_later() {
    const RATE: f64 = 20_000.0;
    let server = server().await;
    server.topic("t", &[]).await;
    let mut producer = QuotaClient::new(&server, "p").await;
    for _ in 0..10 {
        producer.produce(&batch(2000)).await;
    }
    limit(&server, "client-id", Some("c"), "consumer_byte_rate", RATE).await;
    for in_session in [false, true] {
        let mut client = QuotaClient::new(&server, "c").await;
        let (begun, mut offset, mut bytes, mut empty, mut session) =
            (Instant::now(), 0, 0, 0, (0, 0));
        while offset < 10 {
            let mut request: FetchRequest = fetch_request("t", 0, offset, Duration::ZERO);
            // Two batches at a time.
            request.topics[0].partitions[0].partition_max_bytes = 5000;
            if in_session {
                (request.session_id, request.session_epoch) = session;
            } else {
                request.session_epoch = -1;
            }
            let answer = client.ask(12, &request).await;
            assert_eq!(answer.error_code, 0);
            if in_session {
                let next = if answer.session_id == 0 { 0 } else { session.1 + 1 };
                assert!(next > 0 || session.1 == 0, "a session that is there stays");
                session = (answer.session_id, next);
            }
            if answer.responses.is_empty() {
                assert!(answer.throttle_time_ms > 0, "{answer:?}");
                empty += 1;
                continue;
            }
            let records = answer.responses[0].partitions[0].records.clone().unwrap_or_default();
            bytes += records.len();
            offset += (records.len() / batch(2000).len()) as i64;
        }
        assert!(empty > 0, "20,000 bytes are more than the 4,000 that are free");
        let least = Duration::from_secs_f64((bytes as f64 / RATE) - 2.0 * FREE_SECONDS);
        assert!(begun.elapsed() >= least, "{bytes} in {:?}", begun.elapsed());
    }
}

/// Otherwise it would never come.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_more_than_all_that_is_free_comes_after_a_while() {
    let server = server().await;
    server.topic("t", &[]).await;
    QuotaClient::new(&server, "p").await.produce(&batch(10_000)).await;
    limit(&server, "client-id", Some("c"), "consumer_byte_rate", 20_000.0).await;
    let mut client = QuotaClient::new(&server, "c").await;
    let request = fetch_request("t", 0, 0, Duration::ZERO).with_session_epoch(-1);
    let first = client.ask(12, &request).await;
    assert_eq!(first.responses.len(), 1, "nothing was used before");
    assert!(first.throttle_time_ms >= 250, "{first:?}");
    let begun = Instant::now();
    while client.ask(12, &request).await.responses.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_threads_counts_and_no_wait_for_it_is_longer_than_a_sample() {
    let server = server().await;
    server.topic("t", &[]).await;
    // A millionth of a thread.
    limit(&server, "client-id", Some("c"), "request_percentage", 0.0001).await;
    let mut client = QuotaClient::new(&server, "c").await;
    let begun = Instant::now();
    assert_eq!(client.metadata(None).await.throttle_time_ms, RATES.sample.as_millis() as i32);
    client.metadata(None).await;
    assert!(begun.elapsed() >= RATES.sample);
}

fn create(name: &str, partitions: i32) -> CreateTopicsRequest {
    let topic = CreatableTopic::default().with_name(topic_name(name));
    let topic = topic.with_num_partitions(partitions).with_replication_factor(1);
    CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000)
}

/// The milliseconds that are left of a wait which begins after `since`, at least.
fn rest_of(wait_ms: i32, since: Instant) -> i32 {
    wait_ms - since.elapsed().as_micros().div_ceil(1000) as i32
}

/// 10 a second with a burst of 3 samples: 3 partitions are free.
#[tokio::test(flavor = "multi_thread")]
async fn who_creates_too_much_is_told_so_or_waits_if_it_is_old() {
    let throttled = ResponseError::ThrottlingQuotaExceeded.code();
    let server = server().await;
    limit(&server, "client-id", Some("c"), "controller_mutation_rate", 10.0).await;
    limit(&server, "client-id", Some("old"), "controller_mutation_rate", 10.0).await;
    let mut client = QuotaClient::new(&server, "c").await;
    let validated = create("a", 100).with_validate_only(true);
    assert_eq!(client.ask(6, &validated).await.topics[0].error_code, 0);
    let asked = Instant::now();
    let first = client.ask(6, &create("a", 10)).await;
    assert_eq!((first.topics[0].error_code, first.throttle_time_ms), (0, 0));
    // 7 are owed: that is 0.7 seconds, less what has passed.
    let second = client.ask(6, &create("b", 1)).await;
    assert_eq!(second.topics[0].error_code, throttled);
    let words = second.topics[0].error_message.as_ref().unwrap();
    assert_eq!(&**words, "The throttling quota has been exceeded.");
    let wait = second.throttle_time_ms;
    assert!((rest_of(700, asked)..=700).contains(&wait), "{second:?}");
    assert!(server.engine.topics().named("b").is_none());
    // It was not read from meanwhile, so it may go on.
    let third = client.ask(6, &create("b", 10)).await;
    assert_eq!(third.topics[0].error_code, 0);
    let more = CreatePartitionsTopic::default().with_name(topic_name("a")).with_count(11);
    let more = CreatePartitionsRequest::default()
        .with_topics(vec![more.with_assignments(None)])
        .with_timeout_ms(10_000);
    let refused = client.ask(3, &more).await;
    assert_eq!(refused.results[0].error_code, throttled);
    client.ask(6, &create("c", 10)).await;
    let delete = DeleteTopicsRequest::default().with_timeout_ms(10_000);
    let deleted = client.ask(5, &delete.clone().with_topic_names(vec![topic_name("a")])).await;
    assert_eq!(deleted.responses[0].error_code, throttled);
    assert_eq!(server.engine.topics().named("a").unwrap().partitions.len(), 10);

    let mut old = QuotaClient::new(&server, "old").await;
    let begun = Instant::now();
    let done = old.ask(5, &create("d", 10)).await;
    assert_eq!(done.topics[0].error_code, 0);
    let wait = done.throttle_time_ms;
    assert!((rest_of(700, begun)..=700).contains(&wait), "{done:?}");
    let deleted = old.ask(4, &delete.with_topic_names(vec![topic_name("d")])).await;
    assert_eq!(deleted.responses[0].error_code, 0);
    assert!(begun.elapsed() >= Duration::from_millis(600));
    // A topic that is created by asking for it counts too.
    let metadata = old.metadata(Some("new")).await;
    assert_eq!(metadata.topics[0].error_code, 0);
    assert!(begun.elapsed() >= Duration::from_millis(1500));
}

/// True if the server closes a connection, without waiting for it longer than a minute.
async fn is_closed(connection: &mut TestKafkaConnection) -> bool {
    let mut byte = [0];
    let read = timeout(Duration::from_secs(60), connection.0.read(&mut byte)).await.unwrap();
    read.map_or(true, |count| count == 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_too_many_for_their_address_are_closed_after_a_while() {
    let server = server().await;
    let mut before = QuotaClient::new(&server, "c").await;
    // One connection is free in 0.2 seconds.
    limit(&server, "ip", Some("127.0.0.1"), "connection_creation_rate", 5.0).await;
    let mut first = QuotaClient::new(&server, "c").await;
    let begun = Instant::now();
    let mut second = server.connect().await;
    first.metadata(None).await;
    assert!(is_closed(&mut second).await);
    assert!(begun.elapsed() >= Duration::from_millis(50), "{:?}", begun.elapsed());
    first.metadata(None).await;
    before.metadata(None).await;
    // In the end there is room again.
    loop {
        let mut next = QuotaClient::new(&server, "c").await;
        let frame = encode_frame_as("c", 9, &MetadataRequest::default());
        if next.connection.send(&frame).await.is_ok()
            && next.connection.response::<MetadataRequest>(9).await.is_ok()
        {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
    assert!(begun.elapsed() >= Duration::from_millis(100));
}

#[tokio::test(flavor = "multi_thread")]
async fn all_connections_are_accepted_at_a_rate_and_none_is_refused() {
    const RATE: u32 = 50;
    let limits = ConnectionLimits { max: 4096, rate_max: Some(RATE) };
    let of_all = DynamicOptions { limits, ..DynamicOptions::default() };
    let of_listener = std::collections::BTreeMap::from([("plaintext".to_owned(), limits)]);
    let of_listener = DynamicOptions { listener_limits: of_listener, ..DynamicOptions::default() };
    for dynamic in [of_all, of_listener] {
        let options = KafkaOptions { dynamic, ..KafkaOptions::default() };
        let server = server_with(options).await;
        let begun = Instant::now();
        for _ in 0..30 {
            QuotaClient::new(&server, "c").await.metadata(None).await;
        }
        let least = Duration::from_secs_f64(29.0 / f64::from(RATE) - FREE_SECONDS - 0.1);
        assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_may_have_a_limit_of_its_own() {
    let here = std::net::Ipv4Addr::LOCALHOST.into();
    let overrides = std::collections::BTreeMap::from([(here, 1)]);
    let dynamic =
        DynamicOptions { connections_per_ip_overrides: overrides, ..DynamicOptions::default() };
    let options = KafkaOptions { dynamic, ..KafkaOptions::default() };
    let server = server_with(options).await;
    let mut first = QuotaClient::new(&server, "c").await;
    first.metadata(None).await;
    assert!(is_closed(&mut server.connect().await).await);
    first.metadata(None).await;
}

/// The wait would be minutes long.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_while_it_waits_leaves_its_place() {
    let server = server().await;
    server.topic("t", &[]).await;
    limit(&server, "client-id", Some("c"), "producer_byte_rate", 100.0).await;
    for with_more in [false, true] {
        let mut client = QuotaClient::new(&server, "c").await;
        let silent = produce_request("t", 0, &batch(20_000)).with_acks(0);
        let frame = encode_frame_as("c", 9, &silent);
        client.connection.send(&frame).await.unwrap();
        if with_more {
            client.connection.send(&frame).await.unwrap();
        }
        drop(client);
        let open = &server.kafka.metrics().connections;
        let begun = Instant::now();
        while open.load(std::sync::atomic::Ordering::Relaxed) > 0 {
            assert!(begun.elapsed() < Duration::from_secs(20), "it is open: {with_more}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_requests_at_a_time_one_creates_the_last_partitions() {
    let server = server().await;
    limit(&server, "client-id", Some("c"), "controller_mutation_rate", 0.01).await;
    let mut asking = tokio::task::JoinSet::new();
    for nth in 0..10 {
        let mut client = QuotaClient::new(&server, "c").await;
        asking.spawn(async move {
            client.ask(6, &create(&format!("t{nth}"), 1000)).await.topics[0].error_code
        });
    }
    let codes = asking.join_all().await;
    assert_eq!(codes.iter().filter(|code| **code == 0).count(), 1, "{codes:?}");
    assert_eq!(server.engine.topics().all().len(), 1);
}

/// One of two consumers that share a quota asks for nothing, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_comes_although_others_use_some_of_the_quota() {
    let server = server().await;
    server.topic("t", &[]).await;
    QuotaClient::new(&server, "p").await.produce(&batch(10_000)).await;
    limit(&server, "client-id", Some("c"), "consumer_byte_rate", 20_000.0).await;
    let (mut poller, mut reader) =
        (QuotaClient::new(&server, "c").await, QuotaClient::new(&server, "c").await);
    let quiet = fetch_request("t", 0, 1, Duration::ZERO).with_session_epoch(-1);
    let polling = tokio::spawn(async move {
        loop {
            poller.ask(12, &quiet).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let begun = Instant::now();
    let large = fetch_request("t", 0, 0, Duration::ZERO).with_session_epoch(-1);
    for _ in 0..2 {
        while reader.ask(12, &large).await.responses.is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(20));
        }
    }
    polling.abort();
}
