//! A store whose every append is accepted: the only file here that uses the `storage` crate's
//! calls.
//!
//! One thread appends, with a bounded number of appends in flight, and waits for all of them at the
//! end. A cut is read as the broker does: payloads in memory directly, and runs of a file in one
//! load.

use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use hlc::{Cut, Hlc, OsClock, UserTime};
use storage::disk::{Disk, RealDisk};
use storage::journal::RecoverError;
use storage::{
    AppendResults, AppendStage, DataFile, EntryPayload, GroupNumber, LoadBuffer, LogAppend, LogId,
    Offset, Options, Payload, PayloadLocation, ReplayHandler, ReplayedEntry, Store,
};

pub(crate) use storage::Durability;

/// The bytes that are read of a file at once, as by the broker.
const RUN_BYTES_MAX: usize = 1 << 20;
const NO_WAITER: i64 = -1;

struct AcceptAllStage;

impl AppendStage for AcceptAllStage {
    type Note = ();
    type Refusal = Infallible;

    fn stage(&mut self, _: &mut LogAppend<()>, _: Offset, _: Hlc) -> Result<(), Infallible> {
        Ok(())
    }

    fn begin(&mut self, _: GroupNumber) {}

    fn commit(&mut self, _: GroupNumber) {}

    fn replay(&mut self, _: &ReplayedEntry<'_>) {}

    fn rollback(&mut self, _: GroupNumber) {}

    fn state(&self) -> Vec<u8> {
        Vec::new()
    }
}

struct NullReplay;

impl ReplayHandler for NullReplay {
    fn restore(&mut self, _: &[u8]) -> Result<(), RecoverError> {
        Ok(())
    }

    fn entry(&mut self, _: &ReplayedEntry<'_>) -> Result<(), RecoverError> {
        Ok(())
    }

    fn state(&self) -> Vec<u8> {
        Vec::new()
    }
}

struct InFlightAppends {
    count: AtomicI64,
    /// The appender wakes when no more than this many are in flight.
    wake_at: AtomicI64,
    appender: Thread,
    /// The newest stamp that was given out.
    newest: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl InFlightAppends {
    fn complete(&self, results: AppendResults<Infallible>) {
        for result in &results {
            match result {
                Ok(appended) => self.newest.store(appended.stamp.bits(), Ordering::Relaxed),
                Err(error) => self.fail(error.to_string()),
            }
        }
        let landed = results.len() as i64;
        let left = self.count.fetch_sub(landed, Ordering::SeqCst) - landed;
        if left <= self.wake_at.load(Ordering::SeqCst) {
            self.appender.unpark();
        }
    }

    fn fail(&self, why: String) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    }

    fn wait_until(&self, at_most: i64) {
        self.wake_at.store(at_most, Ordering::SeqCst);
        while self.count.load(Ordering::SeqCst) > at_most {
            std::thread::park();
        }
        self.wake_at.store(NO_WAITER, Ordering::SeqCst);
    }
}

/// The number of groups and syncs.
#[derive(Clone, Copy)]
pub(crate) struct GroupCounts {
    pub(crate) groups: u64,
    pub(crate) syncs: u64,
}

/// A store, and its appender: used by the thread that created it.
pub(crate) struct StoreDriver {
    store: Store<AcceptAllStage>,
    in_flight: Arc<InFlightAppends>,
}

impl StoreDriver {
    /// Opens the store in `directory`; its newest `tail_bytes` stay in memory.
    pub(crate) fn open(directory: &Path, tail_bytes: usize) -> Result<StoreDriver> {
        let disk = RealDisk::open(directory)
            .with_context(|| format!("open directory {}", directory.display()))?;
        let options = Options { tail_bytes_max: tail_bytes, ..Options::default() };
        StoreDriver::open_on(Arc::new(disk), options)
    }

    /// [`StoreDriver::open`], of a store that sorts nothing until it is told to.
    pub(crate) fn open_unsorted(directory: &Path, tail_bytes: usize) -> Result<StoreDriver> {
        let disk = RealDisk::open(directory)?;
        let options =
            Options { tail_bytes_max: tail_bytes, manual_maintenance: true, ..Options::default() };
        StoreDriver::open_on(Arc::new(disk), options)
    }

    /// A store whose files are never read: its segments are never rolled.
    pub(crate) fn open_unsealed(disk: Arc<dyn Disk>, tail_bytes: usize) -> Result<StoreDriver> {
        let options = Options {
            tail_bytes_max: tail_bytes,
            segment_bytes_max: 1 << 40,
            segment_frames_max: u64::MAX,
            manual_maintenance: true,
            ..Options::default()
        };
        StoreDriver::open_on(disk, options)
    }

    fn open_on(disk: Arc<dyn Disk>, options: Options) -> Result<StoreDriver> {
        let store = Store::open(
            disk,
            options,
            Arc::new(OsClock),
            &mut NullReplay,
            |_| AcceptAllStage,
            || {},
        )?;
        let flight = InFlightAppends {
            count: AtomicI64::new(0),
            wake_at: AtomicI64::new(NO_WAITER),
            appender: std::thread::current(),
            newest: AtomicU64::new(0),
            failure: Mutex::new(None),
        };
        Ok(StoreDriver { store, in_flight: Arc::new(flight) })
    }

    /// Appends one payload. If `in_flight` appends are in flight, it first waits until half of them
    /// are done.
    pub(crate) fn append(&self, log: u64, payload: Bytes, how: Durability, in_flight: usize) {
        self.request(vec![append(log, payload)], how, in_flight);
    }

    /// Appends all in one request; waits as [`StoreDriver::append`] does.
    pub(crate) fn append_all(
        &self,
        payloads: impl Iterator<Item = (u64, Bytes)>,
        how: Durability,
        in_flight: usize,
    ) {
        self.request(payloads.map(|(log, payload)| append(log, payload)).collect(), how, in_flight);
    }

    fn request(&self, appends: Vec<LogAppend<()>>, how: Durability, in_flight: usize) {
        let count = appends.len() as i64;
        if self.in_flight.count.load(Ordering::SeqCst) + count > in_flight as i64 {
            self.in_flight.wait_until(in_flight as i64 / 2);
        }
        self.in_flight.count.fetch_add(count, Ordering::SeqCst);
        let flight = Arc::clone(&self.in_flight);
        self.store.append(appends, how, move |results| flight.complete(results));
    }

    /// Waits for all appends in flight.
    pub(crate) fn drain(&self) -> Result<()> {
        self.in_flight.wait_until(0);
        match self.in_flight.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(why) => bail!("an append failed: {why}"),
            None => Ok(()),
        }
    }

    /// Rolls the open segment, then indexes and sorts everything.
    pub(crate) fn sort_segments(&self) -> Result<()> {
        self.store.roll_segment();
        self.store.sync()?;
        Ok(self.store.run_maintenance()?)
    }

    /// Syncs and closes; nothing may be in flight.
    pub(crate) fn close(self) {
        self.store.close();
    }

    pub(crate) fn groups(&self) -> GroupCounts {
        let stats = self.store.stats();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GroupCounts { groups: load(&stats.groups), syncs: load(&stats.syncs) }
    }

    /// The newest stamp that this incarnation of the store issued.
    pub(crate) fn newest(&self) -> Hlc {
        Hlc::from_bits(self.in_flight.newest.load(Ordering::Relaxed))
    }

    /// The stamps of a log's first and last entries.
    pub(crate) fn span(&self, log: u64) -> Result<(Hlc, Hlc)> {
        let log = self.store.log(LogId(log))?;
        let first = log.entry_at(Offset(0))?.context("the log is empty")?;
        Ok((first.stamp, log.tip().stamp))
    }

    /// The first offset of the log that is not in the cut.
    pub(crate) fn offset_at(&self, log: u64, cut: Cut) -> Result<u64> {
        Ok(self.store.log(LogId(log))?.offset_at(cut)?.0)
    }

    /// Reads a log from its start up to `cut`, `request_bytes` at once; returns the number of
    /// bytes.
    pub(crate) fn read_cut(
        &self,
        log: u64,
        cut: Cut,
        request_bytes: usize,
        reader: &mut PayloadReader,
    ) -> Result<u64> {
        let log = self.store.log(LogId(log))?;
        let end = log.offset_at(cut)?;
        let (mut from, mut bytes) = (Offset(0), 0);
        while from < end {
            let pieces = log.read(from, end, request_bytes)?;
            let last = pieces.last().ok_or_else(|| anyhow!("a log ends before its cut"))?;
            from = last.entry.end();
            bytes += reader.take(&pieces)?;
        }
        Ok(bytes)
    }
}

fn append(log: u64, payload: Bytes) -> LogAppend<()> {
    LogAppend {
        log: LogId(log),
        kind: 0,
        epoch: 0,
        count: 1,
        user: (UserTime(0), UserTime(0)),
        payload: Payload::without_header(payload),
        crc_from: None,
        note: (),
    }
}

/// The buffer that payloads are copied to: like a socket's buffer for the broker.
#[derive(Default)]
pub(crate) struct PayloadReader {
    out: Vec<u8>,
    buffer: LoadBuffer,
}

impl PayloadReader {
    /// Copies the payloads of one read out, one after the other.
    fn take(&mut self, pieces: &[EntryPayload]) -> Result<u64> {
        self.out.clear();
        let mut left = pieces;
        while let Some(piece) = left.first() {
            match &piece.location {
                PayloadLocation::Memory(payload) => {
                    self.out.extend_from_slice(payload.header.as_slice());
                    self.out.extend_from_slice(&payload.rest);
                    left = &left[1..];
                }
                PayloadLocation::File { file, at } => {
                    let (run, length) = adjacent_pieces(left, file, *at);
                    self.load(file, *at, length, run)?;
                    left = &left[run.len()..];
                }
            }
        }
        std::hint::black_box(&self.out);
        Ok(self.out.len() as u64)
    }

    /// As the broker does it: payloads from a file are verified.
    fn load(
        &mut self,
        file: &DataFile,
        start: u64,
        length: usize,
        run: &[EntryPayload],
    ) -> Result<()> {
        if !file.load_cached(&mut self.buffer, start, length)? {
            file.load(&mut self.buffer, start, length)?;
        }
        for piece in run {
            let PayloadLocation::File { at, .. } = &piece.location else { continue };
            let from = (at - start) as usize;
            let bytes = &self.buffer.bytes()[from..from + piece.entry.length as usize];
            ensure!(crc32c::crc32c(bytes) == piece.entry.payload_crc, "{} is corrupt", file.name());
            self.out.extend_from_slice(bytes);
        }
        Ok(())
    }
}

/// The leading pieces that lie in one file and close together from `start` on, and the length to
/// read for them.
fn adjacent_pieces<'a>(
    pieces: &'a [EntryPayload],
    file: &Arc<DataFile>,
    start: u64,
) -> (&'a [EntryPayload], usize) {
    let (mut count, mut length) = (0, 0);
    for piece in pieces {
        let PayloadLocation::File { file: of, at } = &piece.location else { break };
        let Some(from) = at.checked_sub(start) else { break };
        let end = from as usize + piece.entry.length as usize;
        if !Arc::ptr_eq(of, file) || (count > 0 && end > RUN_BYTES_MAX) {
            break;
        }
        (count, length) = (count + 1, length.max(end));
    }
    (&pieces[..count], length)
}
