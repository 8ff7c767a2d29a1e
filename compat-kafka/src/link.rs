//! Links: the records of produce and fetch requests move over RDMA, started by the server.
//!
//! A client opens the link on its ordinary connection and names regions of its memory. The regions
//! belong to that connection alone, and end with it. Then it calls other APIs through
//! [`rdma::protocol`]: the server reads the body of a request from the client's memory, and writes
//! the response there, straight from where the payloads are. The handlers are those of every other
//! client, and so are the checks, the budgets and the bytes.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::{BufMut, Bytes};
use hlc::Hlc;
use kafka_connections::{QuotaPermit, units};
use kafka_protocol::messages::{ApiKey, ProduceRequest};
use rdma::protocol::{
    CallBody, INLINE_BYTES_MAX, LINK_API_KEY, LinkAnswer, LinkCall, LinkRefusal, LinkRequest,
    RefusalCode, RegionToken, ResponsePlace, called_api,
};
use rdma::{LinkAddress, LinkError, RemoteRegion, VerbsDevice, VerbsLink};
use tokio::time::timeout;

use crate::file_run::{LoadError, load_leading_chunks};
use crate::kafka_server::KafkaServer;
use crate::link_session::{OpenLink, refuse};
use crate::request::{BadRequest, ConnectionState, RequestContext, ResponseResult, decode};
use crate::response::{KafkaResponse, ResponseChunk};
use crate::serve::serve_api;

/// The longest time that a client waits while others open links.
const OPENING_WAIT_MAX: Duration = Duration::from_secs(5);
/// The most bytes from files that are under way to a client.
const LOADED_BYTES_MAX: usize = 2 << 20;

/// True if a request is a call of Produce.
pub(crate) fn is_produce(context: &RequestContext, body: &[u8]) -> bool {
    context.api_key == LINK_API_KEY && called_api(body) == Some(ApiKey::Produce as i16)
}

pub(crate) async fn handle(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    body: Bytes,
) -> ResponseResult {
    let bad = |reason| BadRequest { api: context.api_key, version: context.version, reason };
    if context.version != 0 {
        return Err(bad("the API for links is served in version 0".to_owned()));
    }
    let (stamp, request) = LinkRequest::decode(body).map_err(|error| bad(error.to_string()))?;
    if let Err(error) = kafka.engine.receive_stamp(Hlc::from_bits(stamp)).await {
        if expects_no_response(&context, &request) {
            return Err(bad(error.to_string()));
        }
        kafka.client_log.warn(context.peer.ip(), "a client's stamp is refused", error);
        return Ok(Some(answer_response(&kafka, &context, Err(refuse(RefusalCode::Clock, error)))));
    }
    let connection = &context.connection;
    let answer = match request {
        LinkRequest::Open { client } => open(&kafka, &context, &client).await,
        LinkRequest::Expose { region } => connection.link.lock().await.expose(region),
        LinkRequest::Withdraw { token } => {
            connection.link.lock().await.withdraw(token);
            Ok(LinkAnswer::Withdrawn)
        }
        LinkRequest::Call(call) => return answer_call(kafka, context, call).await,
    };
    Ok(Some(answer_response(&kafka, &context, answer)))
}

/// True if a request is a Produce with acks=0, whose client reads no answer.
fn expects_no_response(context: &RequestContext, request: &LinkRequest) -> bool {
    let LinkRequest::Call(call) = request else { return false };
    let CallBody::Inline(body) = &call.request else { return false };
    let inner = RequestContext { api_key: call.api_key, version: call.version, ..context.clone() };
    call.api_key == ApiKey::Produce as i16
        && decode::<ProduceRequest>(&inner, body.clone()).is_ok_and(|produce| produce.acks == 0)
}

fn answer_response(
    kafka: &KafkaServer,
    context: &RequestContext,
    answer: Result<LinkAnswer, LinkRefusal>,
) -> KafkaResponse {
    let mut out = KafkaResponse::new();
    out.write(|bytes| {
        bytes.put_i32(context.correlation_id);
        let stamp = kafka.engine.last_stamp().bits();
        answer.unwrap_or_else(LinkAnswer::Refused).encode(stamp, bytes);
    });
    out
}

async fn open(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    client: &LinkAddress,
) -> Result<LinkAnswer, LinkRefusal> {
    let no_device = |why: &dyn std::fmt::Display| refuse(RefusalCode::NoDevice, why);
    if context.connection.listener.tls.is_some() {
        return Err(no_device(
            &"the connection is over TLS, and memory that is written directly is in the open",
        ));
    }
    let devices = kafka.options.links.as_ref();
    let devices = devices.ok_or_else(|| no_device(&"the server uses no RDMA device"))?;
    let device = devices.device_at(context.local.ip());
    let device = device.ok_or_else(|| no_device(&"the RDMA devices of the server are gone"))?;
    if client.gid.ip().is_multicast() {
        return Err(no_device(&"the client's address is that of a group"));
    }
    let mut session = context.connection.link.lock().await;
    session.link = None;
    let turn =
        timeout(OPENING_WAIT_MAX, Arc::clone(&kafka.admission.link_openings).acquire_owned()).await;
    let Ok(Ok(turn)) = turn else {
        return Err(refuse(RefusalCode::NotNow, "too many links are being opened"));
    };
    // The kernel may look for the client's address meanwhile, up to a second.
    let (arena, mode) = (devices.arena.clone(), devices.completion_mode);
    let (of_link, client) = (device.clone(), *client);
    let connect = move || {
        // It is over when this is, also if the client has gone.
        let _turn = turn;
        let mut link = VerbsLink::new(&arena, &of_link, mode)?;
        link.connect(&client)?;
        Ok::<_, rdma::VerbsError>(link)
    };
    let connected = tokio::task::spawn_blocking(connect).await;
    let link = connected.map_err(|error| no_device(&error))?.map_err(|error| no_device(&error))?;
    let server = link.address();
    tracing::debug!(peer = %context.peer, device = %device.choice(), "a link is open");
    let watch = tokio::spawn(close_with_device(Arc::downgrade(&context.connection), device));
    session.link = Some(OpenLink::new(kafka, link, watch.abort_handle()));
    Ok(LinkAnswer::Opened { server })
}

/// Closes a connection's link when its device is removed: the kernel waits for that.
async fn close_with_device(connection: Weak<ConnectionState>, device: VerbsDevice) {
    device.lost().await;
    if let Some(connection) = connection.upgrade() {
        connection.link.lock().await.link = None;
    }
}

async fn answer_call(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    call: LinkCall,
) -> ResponseResult {
    if call.api_key != ApiKey::Fetch as i16
        && let ResponsePlace::Region { .. } = call.response
    {
        let refusal = refuse(RefusalCode::NotNow, "only the response to a Fetch is placed");
        return Ok(Some(answer_response(&kafka, &context, Err(refusal))));
    }
    // Refused before anything takes effect.
    if let ResponsePlace::Region { token, .. } = call.response
        && let Err(refusal) = context.connection.link.lock().await.region_and_link(token)
    {
        return Ok(Some(answer_response(&kafka, &context, Err(refusal))));
    }
    let (body, share) = match request_body(&kafka, &context, &call).await {
        Ok(found) => found,
        Err(refusal) => return Ok(Some(answer_response(&kafka, &context, Err(refusal)))),
    };
    let request_bytes = body.len();
    kafka.metrics().count_request(call.api_key, request_bytes);
    // It waits for the disk, which is no client's fault.
    if call.api_key == ApiKey::Produce as i16 {
        context.connection.request_quotas.clear_stalled();
    }
    let inner = RequestContext { api_key: call.api_key, version: call.version, ..context.clone() };
    let response = serve_api(Arc::clone(&kafka), inner, body, request_bytes)?.await?;
    drop(share);
    // Kafka has no response to Produce with acks=0.
    let Some(response) = response else { return Ok(None) };
    match call.response {
        ResponsePlace::Region { token, at, room } if response.len() > INLINE_BYTES_MAX => {
            let placed = place(&kafka, &context, response, token, at, room).await;
            Ok(Some(answer_response(&kafka, &context, placed.map(LinkAnswer::Placed))))
        }
        ResponsePlace::Region { .. } | ResponsePlace::Inline => {
            let mut out = KafkaResponse::new();
            out.write(|bytes| {
                bytes.put_i32(context.correlation_id);
                LinkAnswer::begin_inline(kafka.engine.last_stamp().bits(), bytes);
            });
            out.append(response);
            Ok(Some(out))
        }
    }
}

/// The body of a call, and its share of the budget if the server read it.
async fn request_body(
    kafka: &KafkaServer,
    context: &RequestContext,
    call: &LinkCall,
) -> Result<(Bytes, Option<QuotaPermit>), LinkRefusal> {
    let (token, at, length) = match &call.request {
        CallBody::Inline(body) => return Ok((body.clone(), None)),
        CallBody::Region { token, at, length } => (*token, *at, *length as usize),
    };
    let most = kafka.options.request_bytes_max;
    if length > most {
        let text = format!("the request has {length} bytes, and may have {most}");
        return Err(refuse(RefusalCode::NotNow, text));
    }
    let quota = &context.connection.request_quotas.large;
    let share = quota.take(units(length)).await;
    let share = share.map_err(|error| refuse(RefusalCode::NotNow, error))?;
    let mut session = context.connection.link.lock().await;
    let (region, open) = session.region_and_link(token)?;
    quota.mark_all_stalled();
    let wait_max = kafka.options.transfer_limits.wait_max(length as u64);
    let read = timeout(wait_max, open.link.read(&region, at, length)).await;
    open.count();
    match read.unwrap_or_else(|_| Err(too_slow())) {
        Ok(body) => Ok((body, Some(share))),
        Err(error) => Err(session.after(error)),
    }
}

/// Writes a response into a region, straight from where its payloads are. Returns its length.
async fn place(
    kafka: &KafkaServer,
    context: &RequestContext,
    mut response: KafkaResponse,
    token: RegionToken,
    at: u64,
    room: u64,
) -> Result<u64, LinkRefusal> {
    let length = response.len() as u64;
    if length > room {
        let text = format!("the response of {length} bytes does not fit into {room}");
        return Err(refuse(RefusalCode::TooSmall, text));
    }
    let _room = response.take_permit();
    let mut session = context.connection.link.lock().await;
    let (region, open) = session.proven_region_and_link(token).await?;
    let quota = &context.connection.response_quota;
    quota.mark_all_stalled();
    let placing = async {
        let placed = write_chunks(kafka, open, &region, at, response).await;
        // Nothing is under way when the client may use the memory again.
        let flushed = if placed.is_err() { open.link.flush().await } else { Ok(()) };
        placed.and(flushed.map_err(PlaceError::Link))
    };
    let placed = timeout(kafka.options.transfer_limits.wait_max(length), placing).await;
    quota.clear_stalled();
    open.count();
    match placed.unwrap_or_else(|_| Err(PlaceError::Link(too_slow()))) {
        Ok(()) => Ok(length),
        Err(PlaceError::Link(error)) => Err(session.after(error)),
        Err(PlaceError::Load(LoadError::Corrupt(corruption))) => {
            kafka.record_corruption(&corruption);
            Err(refuse(RefusalCode::NotNow, corruption))
        }
        Err(PlaceError::Load(error)) => Err(refuse(RefusalCode::NotNow, error)),
    }
}

fn too_slow() -> LinkError {
    LinkError::Broken("the client's device takes too long".to_owned())
}

/// The reason that a response is not in its place.
enum PlaceError {
    Link(LinkError),
    Load(LoadError),
}

impl From<LinkError> for PlaceError {
    fn from(error: LinkError) -> PlaceError {
        PlaceError::Link(error)
    }
}

async fn write_chunks(
    kafka: &KafkaServer,
    open: &mut OpenLink,
    region: &RemoteRegion,
    mut at: u64,
    response: KafkaResponse,
) -> Result<(), PlaceError> {
    let mut chunks = response.into_chunks();
    let arena = kafka.options.links.as_ref().map(|devices| &devices.arena);
    // Bytes from files that are under way.
    let mut loaded_bytes = 0;
    while !chunks.is_empty() {
        let mut pieces = Vec::new();
        if chunks.front().is_some_and(|chunk| !chunk.is_in_memory()) {
            let loaded =
                load_leading_chunks(&mut chunks, &kafka.loader).await.map_err(PlaceError::Load)?;
            pieces.extend(loaded.into_pieces());
            loaded_bytes += pieces.iter().map(Bytes::len).sum::<usize>();
        }
        while let Some(chunk) = chunks.pop_front_if(|chunk| chunk.is_in_memory()) {
            match chunk {
                ResponseChunk::Payload(bytes) => pieces.push(bytes),
                // Devices may use payloads where they are, and this where it is copied to.
                ResponseChunk::Encoded(bytes) => {
                    pieces.push(arena.and_then(|arena| arena.copy(&bytes)).unwrap_or(bytes));
                }
                ResponseChunk::Loaded(loaded) => pieces.extend(loaded.into_pieces()),
                ResponseChunk::File { .. } => unreachable!("a file is not in memory"),
            }
        }
        open.link.write(region, at, &pieces).await?;
        at += pieces.iter().map(Bytes::len).sum::<usize>() as u64;
        if loaded_bytes >= LOADED_BYTES_MAX {
            open.link.flush().await?;
            loaded_bytes = 0;
        }
    }
    Ok(open.link.flush().await?)
}
