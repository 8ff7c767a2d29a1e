//! A connection's link, and the regions that its client has named. The regions belong to that
//! connection alone, and end with it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rdma::protocol::{LinkAnswer, LinkRefusal, REGIONS_MAX, RefusalCode, RegionToken};
use rdma::{LinkError, LinkTraffic, RemoteRegion, VerbsLink};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::kafka_server::KafkaServer;
use crate::metrics::{KafkaMetrics, add};

/// A region that was not used for so long is forgotten.
const REGION_IDLE_MAX: Duration = Duration::from_secs(600);

/// A connection's link, and the regions that its client has named.
#[derive(Debug, Default)]
pub(crate) struct LinkSession {
    pub(crate) link: Option<OpenLink>,
    regions: HashMap<RegionToken, NamedRegion>,
    /// The number of regions that were named.
    named: u64,
    /// True once the log says that its link broke.
    is_reported: bool,
}

#[derive(Debug)]
struct NamedRegion {
    region: RemoteRegion,
    used: Instant,
    /// True if the client's device gave a byte of it to this link.
    is_proven: bool,
}

/// A link that is open. The bytes that it moved are counted when it ends, and after each call.
#[derive(Debug)]
pub(crate) struct OpenLink {
    pub(crate) link: VerbsLink,
    counted: LinkTraffic,
    /// Dropped after the link, so that a link that counts as closed has nothing open.
    kafka: LinkCount,
    /// The task that closes the link if its device is removed.
    watch: AbortHandle,
}

impl OpenLink {
    pub(crate) fn new(kafka: &Arc<KafkaServer>, link: VerbsLink, watch: AbortHandle) -> OpenLink {
        add(&kafka.metrics().links, 1);
        let kafka = LinkCount(Arc::clone(kafka));
        OpenLink { link, counted: LinkTraffic::default(), kafka, watch }
    }

    /// Counts what was moved since the last time.
    pub(crate) fn count(&mut self) {
        let (now, before, metrics) = (self.link.traffic(), self.counted, self.kafka.0.metrics());
        add(&metrics.link_bytes_written, now.written_bytes - before.written_bytes);
        add(&metrics.link_bytes_read, now.read_bytes - before.read_bytes);
        add(&metrics.link_bytes_copied, now.copied_bytes - before.copied_bytes);
        self.counted = now;
    }
}

impl Drop for OpenLink {
    fn drop(&mut self) {
        self.count();
        self.watch.abort();
    }
}

/// Counts an open link.
#[derive(Debug)]
struct LinkCount(Arc<KafkaServer>);

impl Drop for LinkCount {
    fn drop(&mut self) {
        KafkaMetrics::subtract(&self.0.metrics().links, 1);
    }
}

pub(crate) fn refuse(code: RefusalCode, text: impl ToString) -> LinkRefusal {
    LinkRefusal { code, text: text.to_string() }
}

impl LinkSession {
    /// The region that `token` stands for, and the open link.
    pub(crate) fn region_and_link(
        &mut self,
        token: RegionToken,
    ) -> Result<(RemoteRegion, &mut OpenLink), LinkRefusal> {
        let unknown = "no region of this connection has that token, or it was not used for long";
        let unknown = || refuse(RefusalCode::UnknownToken, unknown);
        let named = self.regions.get_mut(&token).ok_or_else(unknown)?;
        if named.used.elapsed() > REGION_IDLE_MAX {
            self.regions.remove(&token);
            return Err(unknown());
        }
        named.used = Instant::now();
        let link = self.link.as_mut();
        let link = link.ok_or_else(|| refuse(RefusalCode::NoLink, "the link is not open"))?;
        Ok((named.region, link))
    }

    /// The same, once the client's device has shown that the region is there. Nobody has megabytes
    /// sent to an address that is not the client's.
    pub(crate) async fn proven_region_and_link(
        &mut self,
        token: RegionToken,
    ) -> Result<(RemoteRegion, &mut OpenLink), LinkRefusal> {
        let (region, _) = self.region_and_link(token)?;
        let is_proven = self.regions.get(&token).is_some_and(|named| named.is_proven);
        if !is_proven && region.length > 0 {
            let open = self.link.as_mut();
            let open = open.ok_or_else(|| refuse(RefusalCode::NoLink, "the link is not open"))?;
            if let Err(error) = open.link.read(&region, 0, 1).await {
                return Err(self.after(error));
            }
            if let Some(named) = self.regions.get_mut(&token) {
                named.is_proven = true;
            }
        }
        self.region_and_link(token)
    }

    pub(crate) fn expose(&mut self, region: RemoteRegion) -> Result<LinkAnswer, LinkRefusal> {
        self.regions.retain(|_, named| named.used.elapsed() <= REGION_IDLE_MAX);
        if self.regions.len() >= REGIONS_MAX {
            let text = format!("a connection names at most {REGIONS_MAX} regions; withdraw some");
            return Err(refuse(RefusalCode::NotNow, text));
        }
        self.named += 1;
        self.regions
            .insert(self.named, NamedRegion { region, used: Instant::now(), is_proven: false });
        let idle_ms = REGION_IDLE_MAX.as_millis() as u32;
        Ok(LinkAnswer::Exposed { token: self.named, idle_ms })
    }

    pub(crate) fn withdraw(&mut self, token: RegionToken) {
        self.regions.remove(&token);
    }

    /// Closes the link if it is broken, and says what a client can do about `error`.
    pub(crate) fn after(&mut self, error: LinkError) -> LinkRefusal {
        let code = match error {
            LinkError::OutOfRegion { .. } => RefusalCode::TooSmall,
            LinkError::NoMemory(_) => RefusalCode::NotNow,
            LinkError::Broken(_) => RefusalCode::NoLink,
        };
        if code == RefusalCode::NoLink {
            if !std::mem::replace(&mut self.is_reported, true) {
                tracing::warn!(%error, "a link to a client broke; it goes on without");
            }
            self.link = None;
        }
        refuse(code, error)
    }
}
