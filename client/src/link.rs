//! The client's end of a link: where both sides have an RDMA device, records move through it.
//!
//! A link belongs to a connection, and is opened when the connection first moves records. The
//! server reads the body of a request from memory that this process exposes, and writes the
//! response there. A request that the server refuses is sent again on the connection itself: it
//! refuses before a request takes effect.

use std::net::IpAddr;

use bytes::Bytes;
use rdma::protocol::{
    CallBody, INLINE_BYTES_MAX, LinkAnswer, LinkCall, LinkRefusal, LinkRequest, RefusalCode,
    RegionToken, ResponsePlace,
};
use rdma::{ExposedMemory, LinkAddress, PeerEnd, VerbsDevice, WeakDevice, devices, usable_ports};
use tokio::task::AbortHandle;

/// Regions have a multiple of this length.
const REGION_STEP_BYTES: usize = 1 << 20;
/// The most responses that may be in use, each in a region of its own, while another one is
/// fetched.
const RESPONSE_REGIONS_MAX: usize = 32;

/// The most unused regions for responses that are kept.
const FREE_REGIONS_MAX: usize = 2;
/// The longest response: that of a request to Kafka may be no longer.
const RESPONSE_BYTES_MAX: usize = 128 << 20;

/// The transport of records between this process and a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkChoice {
    /// By RDMA where both sides have a device for it, else over TCP.
    #[default]
    Auto,
    /// Over TCP.
    Tcp,
    /// By RDMA. Where that is not possible, a call fails.
    Rdma,
}

/// The state of a connection's link.
#[derive(Debug, Default)]
pub(crate) enum LinkState {
    /// It was not needed yet.
    #[default]
    Untried,
    Open(Box<ClientLink>),
    /// It cannot be had, for this reason.
    Unavailable(String),
}

/// The client's end of an open link.
#[derive(Debug)]
pub(crate) struct ClientLink {
    /// Dropped first, so that the server reaches none of the regions any more.
    _end: PeerEnd,
    request: Option<NamedMemory>,
    responses: Vec<NamedMemory>,
    /// A weak reference, because the kernel removes a device only once it is not open any more.
    device: WeakDevice,
    name: String,
    /// The task that learns of the removal of the device.
    watch: AbortHandle,
}

/// Exposed memory that the server knows by a token.
#[derive(Debug)]
struct NamedMemory {
    memory: ExposedMemory,
    token: RegionToken,
}

/// An exchange of one message with the server. The connection implements it.
pub(crate) trait LinkExchange {
    /// The reason why there is no answer.
    type Error;

    fn exchange(
        &mut self,
        request: &LinkRequest,
    ) -> impl Future<Output = Result<LinkAnswer, Self::Error>> + Send;
}

/// The reason why a link did not move a request.
#[derive(Debug)]
pub(crate) enum LinkFailure<E> {
    /// The connection failed. The request may have taken effect.
    Connection(E),
    /// The request did not take effect. The link goes on.
    Refused(String),
    /// The request did not take effect. The link is of no further use.
    Lost(String),
    /// The request did not take effect, and would not without a link either: the server's clock
    /// refuses it.
    Clock(String),
    /// The server does not keep to the protocol. The request may have taken effect.
    Malformed(String),
    /// The request did not take effect: the memory that it named is forgotten. It may be named
    /// again.
    Forgotten(String),
    /// The request did not take effect: the response needs more room.
    TooSmall(String),
}

impl<E> From<LinkRefusal> for LinkFailure<E> {
    fn from(refusal: LinkRefusal) -> LinkFailure<E> {
        match refusal.code {
            RefusalCode::NoDevice | RefusalCode::NoLink => LinkFailure::Lost(refusal.text),
            RefusalCode::NotNow => LinkFailure::Refused(refusal.text),
            RefusalCode::UnknownToken => LinkFailure::Forgotten(refusal.text),
            RefusalCode::TooSmall => LinkFailure::TooSmall(refusal.text),
            RefusalCode::Clock => LinkFailure::Clock(refusal.text),
        }
    }
}

/// The device for a connection from the address `local`.
fn open_device(local: IpAddr) -> Result<VerbsDevice, String> {
    let found_devices = devices().map_err(|error| error.to_string())?;
    if found_devices.is_empty() {
        return Err("this machine has no RDMA device".to_owned());
    }
    let Some(port) = usable_ports(&found_devices, Some(local)).into_iter().next() else {
        let device_names: Vec<String> = found_devices.iter().map(ToString::to_string).collect();
        return Err(format!(
            "no RDMA device has an active port with an address: {}",
            device_names.join("; ")
        ));
    };
    VerbsDevice::open(port).map_err(|error| error.to_string())
}

fn unexpected<E>(answer: &LinkAnswer) -> LinkFailure<E> {
    LinkFailure::Malformed(format!("an answer fits no question: {answer:?}"))
}

impl ClientLink {
    /// Opens the link of a connection from the address `local`.
    pub(crate) async fn open<X: LinkExchange>(
        connection: &mut X,
        local: IpAddr,
    ) -> Result<ClientLink, LinkFailure<X::Error>> {
        let device = open_device(local).map_err(LinkFailure::Lost)?;
        let mut end =
            PeerEnd::new(&device).map_err(|error| LinkFailure::Lost(error.to_string()))?;
        let server = open_server(connection, end.address()).await?;
        end.connect(&server).map_err(|error| LinkFailure::Lost(error.to_string()))?;
        let watch = tokio::spawn(device.clone().watch()).abort_handle();
        tracing::debug!(device = %device.choice(), "records move by RDMA");
        let (name, device) = (device.choice().to_string(), device.downgrade());
        Ok(ClientLink { _end: end, request: None, responses: Vec::new(), device, name, watch })
    }

    /// The device, and its address.
    pub(crate) fn describe(&self) -> String {
        self.name.clone()
    }

    fn device<E>(&self) -> Result<VerbsDevice, LinkFailure<E>> {
        let device_gone =
            || LinkFailure::Lost("the RDMA device of this machine is gone".to_owned());
        self.device.upgrade().ok_or_else(device_gone)
    }

    /// Sends a request with the given body, and returns the response with its header. A long body
    /// is read by the server, which writes a long response. That has up to `room` bytes, or more if
    /// its first batch is longer.
    pub(crate) async fn call<X: LinkExchange>(
        &mut self,
        connection: &mut X,
        api_key: i16,
        version: i16,
        body: &[u8],
        mut room: usize,
    ) -> Result<Bytes, LinkFailure<X::Error>> {
        let mut is_forgotten = false;
        loop {
            match self.call_once(connection, api_key, version, body, room).await {
                Err(LinkFailure::Forgotten(_)) if !is_forgotten => {
                    self.withdraw_all(connection).await?;
                    is_forgotten = true;
                }
                Err(LinkFailure::TooSmall(_)) if room > 0 && room < RESPONSE_BYTES_MAX => {
                    room = room.saturating_mul(4).min(RESPONSE_BYTES_MAX);
                }
                result => return result,
            }
        }
    }

    async fn call_once<X: LinkExchange>(
        &mut self,
        connection: &mut X,
        api_key: i16,
        version: i16,
        body: &[u8],
        room: usize,
    ) -> Result<Bytes, LinkFailure<X::Error>> {
        self.device()?;
        let request = if body.len() > INLINE_BYTES_MAX {
            self.place_request(connection, body).await?
        } else {
            CallBody::Inline(Bytes::copy_from_slice(body))
        };
        let nth = if room > INLINE_BYTES_MAX {
            Some(self.response_region(connection, room).await?)
        } else {
            None
        };
        let response = nth.map_or(ResponsePlace::Inline, |nth| {
            let region = &self.responses[nth];
            let room = region.memory.length() as u64;
            ResponsePlace::Region { token: region.token, at: 0, room }
        });
        let call = LinkCall { api_key, version, request, response };
        let answer = connection.exchange(&LinkRequest::Call(call)).await;
        match (answer.map_err(LinkFailure::Connection)?, nth) {
            (LinkAnswer::Inline(response), _) => Ok(response),
            (LinkAnswer::Placed(length), Some(nth)) => {
                let memory = &self.responses[nth].memory;
                let length =
                    usize::try_from(length).ok().filter(|length| *length <= memory.length());
                let length = length.ok_or_else(|| {
                    LinkFailure::Malformed("more was placed than there is room for".to_owned())
                })?;
                Ok(memory.slice(0..length))
            }
            (LinkAnswer::Refused(refusal), _) => Err(refusal.into()),
            (answer, _) => Err(unexpected(&answer)),
        }
    }

    /// Withdraws all memory from the server.
    async fn withdraw_all<X: LinkExchange>(
        &mut self,
        connection: &mut X,
    ) -> Result<(), LinkFailure<X::Error>> {
        for region in self.request.take().into_iter().chain(self.responses.drain(..)) {
            withdraw(connection, region).await?;
        }
        Ok(())
    }

    /// Puts the body of a request where the server can read it.
    async fn place_request<X: LinkExchange>(
        &mut self,
        connection: &mut X,
        body: &[u8],
    ) -> Result<CallBody, LinkFailure<X::Error>> {
        let fits = |region: &NamedMemory| region.memory.length() >= body.len();
        if !self.request.as_ref().is_some_and(fits) {
            if let Some(before) = self.request.take() {
                withdraw(connection, before).await?;
            }
            self.request = Some(self.name_memory(connection, body.len()).await?);
        }
        let region = self.request.as_mut();
        let memory_slot =
            region.and_then(|region| Some((region.token, region.memory.as_mut_slice()?)));
        let Some((token, memory)) = memory_slot else {
            return Err(LinkFailure::Refused("the memory for requests is in use".to_owned()));
        };
        memory[..body.len()].copy_from_slice(body);
        Ok(CallBody::Region { token, at: 0, length: body.len() as u32 })
    }

    /// An unused region of at least `room` bytes.
    async fn response_region<X: LinkExchange>(
        &mut self,
        connection: &mut X,
        room: usize,
    ) -> Result<usize, LinkFailure<X::Error>> {
        let is_free = |region: &NamedMemory| !region.memory.is_shared();
        let fits = |region: &NamedMemory| is_free(region) && region.memory.length() >= room;
        if let Some(nth) = self.responses.iter().position(fits) {
            // After a cut whose records are not used any more, many are free.
            let mut indexes = (0..self.responses.len()).rev();
            let free_count = self.responses.iter().filter(|region| is_free(region)).count();
            let surplus = if free_count > FREE_REGIONS_MAX {
                indexes.find(|index| *index > nth && is_free(&self.responses[*index]))
            } else {
                None
            };
            if let Some(surplus) = surplus {
                let surplus = self.responses.remove(surplus);
                withdraw(connection, surplus).await?;
            }
            return Ok(nth);
        }
        // One that is free is too short.
        if let Some(nth) = self.responses.iter().position(is_free) {
            let short_region = self.responses.swap_remove(nth);
            withdraw(connection, short_region).await?;
        }
        if self.responses.len() >= RESPONSE_REGIONS_MAX {
            let text = "earlier responses are all in use".to_owned();
            return Err(LinkFailure::Refused(text));
        }
        let region = self.name_memory(connection, room).await?;
        self.responses.push(region);
        Ok(self.responses.len() - 1)
    }

    async fn name_memory<X: LinkExchange>(
        &self,
        connection: &mut X,
        length: usize,
    ) -> Result<NamedMemory, LinkFailure<X::Error>> {
        let length = length.next_multiple_of(REGION_STEP_BYTES);
        let memory = ExposedMemory::new(&self.device()?, length)
            .map_err(|error| LinkFailure::Lost(error.to_string()))?;
        let request = LinkRequest::Expose { region: memory.region() };
        match connection.exchange(&request).await.map_err(LinkFailure::Connection)? {
            LinkAnswer::Exposed { token, .. } => Ok(NamedMemory { memory, token }),
            LinkAnswer::Refused(refusal) => Err(refusal.into()),
            answer => Err(unexpected(&answer)),
        }
    }
}

async fn open_server<X: LinkExchange>(
    connection: &mut X,
    client: LinkAddress,
) -> Result<LinkAddress, LinkFailure<X::Error>> {
    let answer = connection.exchange(&LinkRequest::Open { client }).await;
    match answer.map_err(LinkFailure::Connection)? {
        LinkAnswer::Opened { server } => Ok(server),
        LinkAnswer::Refused(refusal) => Err(refusal.into()),
        answer => Err(unexpected(&answer)),
    }
}

/// Takes memory back: the server does not use it any more when this returns.
async fn withdraw<X: LinkExchange>(
    connection: &mut X,
    region: NamedMemory,
) -> Result<(), LinkFailure<X::Error>> {
    let request = LinkRequest::Withdraw { token: region.token };
    connection.exchange(&request).await.map_err(LinkFailure::Connection)?;
    Ok(())
}

impl Drop for ClientLink {
    fn drop(&mut self) {
        self.watch.abort();
    }
}
