//! Clients and devices that fail, go, or break the rules of links.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use client::{ClientError, FetchOptions, LinkChoice, RequiredAcks};
use kafka_protocol::messages::{ApiKey, FetchRequest, ProduceRequest, RequestHeader};
use kafka_protocol::protocol::{Encodable, StrBytes};
use rdma::protocol::{
    CallBody, LINK_API_KEY, LinkAnswer, LinkCall, LinkRequest, RefusalCode, RegionToken,
    ResponsePlace,
};
use rdma::{ExposedMemory, PeerEnd, RemoteRegion, VerbsDevice, devices, resources, usable_ports};
use testkit::kafka::TestKafkaConnection;
use testkit::requests::{fetch_request, produce_request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::fixture::{LinkServer, MIB, batch, produce, record_values, run, values};

#[test]
fn nothing_is_left_of_the_links_of_clients_that_go_or_die() {
    run(async {
        let server = LinkServer::start().await;
        if !server.has_device {
            return;
        }
        server.topic("t", 1).await;
        let batch = batch(1, 1, 4_000_000);
        let mut client = server.client(LinkChoice::Rdma).await;
        for _ in 0..5 {
            produce(&mut client, "t", 0, &batch).await;
        }
        drop(client);
        server.links_closed().await;
        devices_open(1).await;
        let before = server.held_by_links();
        assert_eq!(before, (0, 0, 1));
        for nth in 0..20 {
            let mut client = server.client(LinkChoice::Rdma).await;
            let options = FetchOptions::default();
            // Dropped somewhere in a transfer.
            let fetch = client.fetch("t", &[(0, 0)], &options);
            let _ = timeout(Duration::from_millis(nth * 3), fetch).await;
        }
        // The server may open a link after its client has gone, and close it then.
        while server.held_by_links() != before || server.open_links() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // A stock client finds everything as it was.
        let mut stock = server.server.connect().await;
        let (error, batches) = stock.fetch("t", 4).await.unwrap();
        assert_eq!(error, 0);
        assert!(batches[61..] == batch[61..]);
    });
}

async fn rdma(arguments: String) {
    let run = move || Command::new("rdma").args(arguments.split(' ')).status().unwrap();
    assert!(tokio::task::spawn_blocking(run).await.unwrap().success());
}

/// Waits until the process has so many devices open.
async fn devices_open(count: u64) {
    while resources().devices != count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Each side releases all that it has of a device that is removed, even if it does nothing at the
/// time, and goes on over TCP.
#[test]
fn a_device_that_is_removed_takes_nothing_with_it() {
    // Only where the test owns the machine.
    if std::env::var_os("FREEZEFRAME_RDMA_OWNED").is_none() {
        eprintln!("not run: it removes devices, which only the virtual machine of rdma/vm lends");
        return;
    }
    run(async {
        let server = LinkServer::start().await;
        server.topic("t", 1).await;
        let large = batch(1, 1, 500_000);
        let mut client = server.client(LinkChoice::Auto).await;
        let mut idle = server.client(LinkChoice::Rdma).await;
        for client in [&mut client, &mut idle] {
            produce(client, "t", 0, &large).await;
        }
        let kept = client.fetch("t", &[(0, 0)], &FetchOptions::default()).await.unwrap();
        assert_eq!((server.open_links(), resources().devices), (2, 3));
        // The clients come from the other end of the wire.
        let of_clients = if server.device == "rxe0" { "rxe1" } else { "rxe0" };
        rdma(format!("link delete {of_clients}")).await;
        devices_open(1).await;
        let written = [&large, &large, &large].map(record_values).concat();
        produce(&mut client, "t", 0, &large).await;
        assert!(values(&mut client, "t", 0, 3).await == written);
        let batches = BTreeMap::from([(0, large.clone())]);
        let error = idle.produce("t", RequiredAcks::All, batches.clone()).await.unwrap_err();
        assert!(matches!(error, ClientError::NoLink { .. }), "{error}");
        assert!(kept[0].batches[61..].starts_with(&large[61..]));
        drop((client, idle));
        server.links_closed().await;

        rdma(format!("link add {of_clients} type rxe netdev wire{}", &of_clients[3..])).await;
        let mut client = server.client(LinkChoice::Auto).await;
        let mut idle = server.client(LinkChoice::Rdma).await;
        for client in [&mut client, &mut idle] {
            assert!(values(client, "t", 0, 3).await == written);
        }
        assert_eq!((server.open_links(), resources().devices), (2, 3));
        rdma(format!("link delete {}", server.device)).await;
        server.links_closed().await;
        devices_open(2).await;
        assert!(values(&mut client, "t", 0, 3).await == written);
        let error = idle.produce("t", RequiredAcks::All, batches).await.unwrap_err();
        assert!(matches!(error, ClientError::NoLink { .. }), "{error}");
        drop((client, idle));
        // Later clients get the reason, and the server has released what it had of the device.
        let mut late = server.client(LinkChoice::Rdma).await;
        let why = late.link().await.unwrap().unwrap_err();
        assert!(why.contains("gone"), "{why}");
        drop(late);
        devices_open(0).await;
        assert_eq!((resources().registrations, resources().pinned_bytes), (0, 0));
        rdma(format!("link add {} type rxe netdev wire{}", server.device, &server.device[3..]))
            .await;
    });
}

/// A connection whose client breaks the rules of links.
struct RawLink {
    connection: TestKafkaConnection,
    device: VerbsDevice,
    _end: PeerEnd,
}

impl RawLink {
    async fn open(server: &LinkServer) -> RawLink {
        RawLink::open_and(server, true).await
    }

    /// Opens a link, and connects the client's end or leaves it.
    async fn open_and(server: &LinkServer, connects: bool) -> RawLink {
        let mut connection = server.server.connect().await;
        let local = connection.0.local_addr().unwrap().ip();
        let port = usable_ports(&devices().unwrap(), Some(local)).remove(0);
        let device = VerbsDevice::open(port).unwrap();
        let mut end = PeerEnd::new(&device).unwrap();
        let answer = ask(&mut connection, &LinkRequest::Open { client: end.address() }).await;
        let LinkAnswer::Opened { server } = answer.unwrap() else { panic!("it opens") };
        if connects {
            end.connect(&server).unwrap();
        }
        RawLink { connection, device, _end: end }
    }

    async fn ask(&mut self, request: &LinkRequest) -> LinkAnswer {
        ask(&mut self.connection, request).await.unwrap()
    }

    async fn expose(&mut self, region: RemoteRegion) -> RegionToken {
        match self.ask(&LinkRequest::Expose { region }).await {
            LinkAnswer::Exposed { token, .. } => token,
            answer => panic!("{answer:?}"),
        }
    }

    fn memory(&self, length: usize) -> ExposedMemory {
        ExposedMemory::new(&self.device, length).unwrap()
    }

    /// Fetches into a region.
    async fn fetch_into(&mut self, token: RegionToken, at: u64, room: u64) -> LinkAnswer {
        let response = ResponsePlace::Region { token, at, room };
        let request =
            CallBody::Inline(body::<FetchRequest>(&fetch_request("t", 0, 0, Duration::ZERO), 12));
        let call = LinkCall { api_key: ApiKey::Fetch as i16, version: 12, request, response };
        self.ask(&LinkRequest::Call(call)).await
    }
}

async fn ask(
    connection: &mut TestKafkaConnection,
    request: &LinkRequest,
) -> std::io::Result<LinkAnswer> {
    let mut frame = BytesMut::zeroed(4);
    RequestHeader::default()
        .with_request_api_key(LINK_API_KEY)
        .with_client_id(Some(StrBytes::from_static_str("raw")))
        .encode(&mut frame, 1)
        .unwrap();
    request.encode(0, &mut frame);
    let length = (frame.len() - 4) as u32;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    connection.0.write_all(&frame).await?;
    let length = connection.0.read_u32().await?;
    let mut answer = vec![0; length as usize];
    connection.0.read_exact(&mut answer).await?;
    Ok(LinkAnswer::decode(Bytes::from(answer).slice(4..)).unwrap().1)
}

fn body<M: Encodable>(message: &M, version: i16) -> Bytes {
    let mut body = BytesMut::new();
    message.encode(&mut body, version).unwrap();
    body.freeze()
}

fn refusal(answer: LinkAnswer) -> RefusalCode {
    match answer {
        LinkAnswer::Refused(refusal) => refusal.code,
        answer => panic!("it is refused: {answer:?}"),
    }
}

#[test]
fn rules_that_a_client_breaks_hurt_nobody_but_it() {
    run(async {
        let server = LinkServer::start().await;
        if !server.has_device {
            return;
        }
        server.topic("t", 1).await;
        let large = batch(1, 1, 500_000);
        let mut good = server.client(LinkChoice::Rdma).await;
        produce(&mut good, "t", 0, &large).await;

        let mut raw = RawLink::open(&server).await;
        let memory = raw.memory(MIB);
        let region = memory.region();
        let token = raw.expose(region).await;
        let is_untouched =
            |memory: &ExposedMemory| memory.slice(0..MIB).iter().all(|byte| *byte == 0);
        // A token of nobody, and one of another connection.
        let mut other = RawLink::open(&server).await;
        let foreign = other.expose(region).await;
        assert_eq!(foreign, token, "tokens count for each connection");
        assert_eq!(
            refusal(raw.fetch_into(token + 1, 0, MIB as u64).await),
            RefusalCode::UnknownToken
        );
        // Too small, by the client's word or by the region's length.
        assert_eq!(refusal(raw.fetch_into(token, 0, 499_999).await), RefusalCode::TooSmall);
        assert_eq!(
            refusal(raw.fetch_into(token, 600_000, MIB as u64).await),
            RefusalCode::TooSmall
        );
        assert_eq!(
            refusal(raw.fetch_into(token, u64::MAX, MIB as u64).await),
            RefusalCode::TooSmall
        );
        assert!(is_untouched(&memory));
        // The link still works.
        assert!(matches!(
            raw.fetch_into(token, 100, MIB as u64 - 100).await,
            LinkAnswer::Placed(_)
        ));
        assert!(!is_untouched(&memory));
        // A token that was withdrawn.
        assert_eq!(raw.ask(&LinkRequest::Withdraw { token }).await, LinkAnswer::Withdrawn);
        assert_eq!(refusal(raw.fetch_into(token, 0, MIB as u64).await), RefusalCode::UnknownToken);
        // A request that is far too long.
        let call = |api: ApiKey, request| {
            let response = ResponsePlace::Inline;
            LinkRequest::Call(LinkCall { api_key: api as i16, version: 12, request, response })
        };
        let huge = CallBody::Region { token, at: 0, length: u32::MAX };
        assert_eq!(refusal(raw.ask(&call(ApiKey::Fetch, huge)).await), RefusalCode::NotNow);
        // A response that may not be lost.
        let token = raw.expose(region).await;
        let request = CallBody::Inline(body::<ProduceRequest>(&produce_request("t", 0, &large), 9));
        let response = ResponsePlace::Region { token, at: 0, room: MIB as u64 };
        let produces = LinkCall { api_key: ApiKey::Produce as i16, version: 9, request, response };
        assert_eq!(refusal(raw.ask(&LinkRequest::Call(produces)).await), RefusalCode::NotNow);
        let options = FetchOptions { wait_max: Duration::ZERO, ..FetchOptions::default() };
        let fetched = good.fetch("t", &[(0, 1)], &options).await.unwrap();
        assert_eq!(fetched[0].end, 1, "nothing was written");
        // Memory that was taken back breaks the link. Nothing comes of the request.
        let revoked = raw.memory(MIB);
        let token = raw.expose(revoked.region()).await;
        drop(revoked);
        let request = CallBody::Region { token, at: 0, length: 500_000 };
        assert_eq!(refusal(raw.ask(&call(ApiKey::Produce, request)).await), RefusalCode::NoLink);
        assert_eq!(refusal(raw.fetch_into(token, 0, MIB as u64).await), RefusalCode::NoLink);
        // A forged address, by a client whose key is right.
        let forged = RemoteRegion { address: 4096, ..other.memory(MIB).region() };
        let token = other.expose(forged).await;
        assert_eq!(refusal(other.fetch_into(token, 0, MIB as u64).await), RefusalCode::NoLink);
        // The connection of both still serves, and the other client noticed nothing.
        assert_eq!(raw.connection.fetch("t", 0).await.unwrap().0, 0);
        assert!(values(&mut good, "t", 0, 1).await == record_values(&large));
        assert_eq!(server.open_links(), 1);
    });
}

/// A client whose device answers nothing: its link ends, and others are served meanwhile.
#[test]
fn a_client_that_takes_nothing_holds_up_nobody() {
    run(async {
        let server = LinkServer::start().await;
        if !server.has_device {
            return;
        }
        server.topic("t", 1).await;
        let large = batch(1, 1, 4_000_000);
        let mut good = server.client(LinkChoice::Rdma).await;
        produce(&mut good, "t", 0, &large).await;
        let mut silent = RawLink::open_and(&server, false).await;
        let token = silent.expose(silent.memory(8 * MIB).region()).await;
        let mut refused = Box::pin(silent.fetch_into(token, 0, 8 * MIB as u64));
        let mut served = 0;
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut refused => break answer,
                read = values(&mut good, "t", 0, 1) => {
                    assert!(read == record_values(&large));
                    served += 1;
                }
            }
        };
        assert_eq!(refusal(answer), RefusalCode::NoLink);
        assert!(served > 0);
        drop(refused);
        assert_eq!(silent.connection.fetch("t", 0).await.unwrap().0, 0);
        // The other client may have been interrupted, and connect again.
        assert!(values(&mut good, "t", 0, 1).await == record_values(&large));
    });
}

#[test]
fn a_request_that_the_server_reads_is_checked_like_any_other() {
    run(async {
        let server = LinkServer::start().await;
        if !server.has_device {
            return;
        }
        server.topic("t", 1).await;
        let mut raw = RawLink::open(&server).await;
        let mut memory = raw.memory(MIB);
        let mut batch = batch(1, 1, 100_000).to_vec();
        batch[5000] ^= 1;
        let request = body::<ProduceRequest>(&produce_request("t", 0, &batch.into()), 9);
        memory.as_mut_slice().unwrap()[..request.len()].copy_from_slice(&request);
        let token = raw.expose(memory.region()).await;
        let place = CallBody::Region { token, at: 0, length: request.len() as u32 };
        let call = |request| {
            let response = ResponsePlace::Inline;
            let api_key = ApiKey::Produce as i16;
            LinkRequest::Call(LinkCall { api_key, version: 9, request, response })
        };
        let LinkAnswer::Inline(response) = raw.ask(&call(place)).await else { panic!() };
        let corrupt = kafka_protocol::ResponseError::CorruptMessage.code().to_be_bytes();
        assert!(response.windows(2).any(|bytes| bytes == corrupt), "{response:?}");
        // Bytes that are no request end the connection, as on any other.
        memory.as_mut_slice().unwrap().fill(0xff);
        let place = CallBody::Region { token, at: 0, length: 1000 };
        assert!(ask(&mut raw.connection, &call(place)).await.is_err());
        server.links_closed().await;
        assert_eq!(server.server.connect().await.fetch("t", 0).await.unwrap(), (0, Bytes::new()));
    });
}
