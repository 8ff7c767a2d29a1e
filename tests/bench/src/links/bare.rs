//! One-sided transfers between two ports of this machine, without a server around them: what a link
//! is compared with. Memory is registered before, and requests follow each other without a pause.

use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use rdma::{
    CompletionMode, ExposedMemory, MemoryArena, PeerEnd, VerbsDevice, VerbsLink, devices,
    usable_ports,
};

use super::PAGE_BYTES;

/// The memory of each side.
const MEMORY_BYTES: usize = 32 << 20;
/// The number of pages that are written one after the other to time one.
const PAGES_TIMED: u32 = 500;

/// Both ends of a link in this process.
pub(super) struct BareLink {
    arena: MemoryArena,
    device: VerbsDevice,
    memory: ExposedMemory,
    link: VerbsLink,
    _peer: PeerEnd,
    client: VerbsDevice,
}

impl BareLink {
    /// Opens two ports; `None` if the machine has fewer.
    pub(super) fn open() -> Result<Option<BareLink>> {
        let Ok([server, client]) = <[_; 2]>::try_from(
            usable_ports(&devices()?, None).into_iter().take(2).collect::<Vec<_>>(),
        ) else {
            return Ok(None);
        };
        let (server, client) = (VerbsDevice::open(server)?, VerbsDevice::open(client)?);
        let arena = MemoryArena::new(vec![server], 2 * MEMORY_BYTES)?;
        let device = arena.devices().remove(0);
        let memory = ExposedMemory::new(&client, MEMORY_BYTES)?;
        let (link, peer) = connect(&arena, &device, &client)?;
        Ok(Some(BareLink { arena, device, memory, link, _peer: peer, client }))
    }

    /// Writes `count` times `size` bytes of one buffer: all at once, or each once the one before it
    /// is there.
    pub(super) async fn write(
        &mut self,
        size: u64,
        count: u64,
        one_at_a_time: bool,
    ) -> Result<(Duration, u64)> {
        let buffer = self.buffer(size as usize)?;
        let region = self.memory.region();
        let slots = MEMORY_BYTES as u64 / size;
        let begun = Instant::now();
        for nth in 0..count {
            let at = nth % slots * size;
            self.link.write(&region, at, std::slice::from_ref(&buffer)).await?;
            if one_at_a_time {
                self.link.flush().await?;
            }
        }
        self.link.flush().await?;
        Ok((begun.elapsed(), count))
    }

    /// Reads about `count` times `size` bytes, as many at once as there is memory for: a read of
    /// the link ends when its bytes are there.
    pub(super) async fn read(&mut self, size: u64, count: u64) -> Result<(Duration, u64)> {
        let at_once = (MEMORY_BYTES as u64 / 2 / size).max(1);
        let region = self.memory.region();
        let rounds = count.div_ceil(at_once);
        let begun = Instant::now();
        for _ in 0..rounds {
            self.link.read(&region, 0, (at_once * size) as usize).await?;
        }
        Ok((begun.elapsed(), rounds * at_once))
    }

    /// Writes pages that do not lie next to each other, so many in a request. Returns bytes a
    /// second.
    pub(super) async fn write_pages(&mut self, pages: usize, in_request: usize) -> Result<f64> {
        let (mut link, _peer) = connect(&self.arena, &self.device, &self.client)?;
        link.set_pieces_max(in_request);
        let buffer = self.buffer(2 * pages * PAGE_BYTES)?;
        let page = |nth: usize| buffer.slice(2 * nth * PAGE_BYTES..(2 * nth + 1) * PAGE_BYTES);
        let pieces: Vec<Bytes> = (0..pages).map(page).collect();
        let region = self.memory.region();
        let begun = Instant::now();
        for _ in 0..16 {
            link.write(&region, 0, &pieces).await?;
        }
        link.flush().await?;
        Ok((16 * pages * PAGE_BYTES) as f64 / begun.elapsed().as_secs_f64())
    }

    /// The time from a request for one page until it is complete.
    pub(super) async fn page_time(&mut self) -> Result<Duration> {
        let (page, region) = (self.buffer(PAGE_BYTES)?, self.memory.region());
        let begun = Instant::now();
        for _ in 0..PAGES_TIMED {
            self.link.write(&region, 0, std::slice::from_ref(&page)).await?;
            self.link.flush().await?;
        }
        Ok(begun.elapsed() / PAGES_TIMED)
    }

    fn buffer(&self, length: usize) -> Result<Bytes> {
        let mut buffer = self.arena.take(length).ok_or_else(|| anyhow::anyhow!("no memory"))?;
        buffer.as_mut_slice().fill(0xa5);
        Ok(buffer.into_bytes())
    }
}

fn connect(
    arena: &MemoryArena,
    device: &VerbsDevice,
    client: &VerbsDevice,
) -> Result<(VerbsLink, PeerEnd)> {
    let mut link = VerbsLink::new(arena, device, CompletionMode::Sleep)?;
    let mut peer = PeerEnd::new(client)?;
    link.connect(&peer.address())?;
    peer.connect(&link.address())?;
    Ok((link, peer))
}
