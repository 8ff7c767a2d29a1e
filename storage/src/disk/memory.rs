//! A disk in memory that can fail and crash, for tests.
//!
//! Until a file is synced its writes are pending, and a crash keeps any of them, in any order, torn
//! at any sector, as a real disk may do. Names behave the same until they are synced.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{BLOCK_BYTES, Disk, DiskFile};

const SECTOR: usize = 512;

/// A fault, and the time at which it occurs. Counts run over all files of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// The machine stops at operation `n` (a write, a truncate, or a sync), before it is done.
    CrashAt(u64),
    /// The `n`th sync from now fails, whether of a file or of names. A file's failed sync forgets
    /// what it should have saved.
    SyncFails(u64),
    /// Writes that would make the disk hold more than this many bytes fail.
    FullAt(u64),
    /// The next truncation of a file finds no space, as on file systems that do not overwrite in
    /// place.
    NoSpaceToTruncate,
}

#[derive(Default)]
struct MemoryDiskState {
    names: BTreeMap<String, u64>,
    names_synced: BTreeMap<String, u64>,
    /// Ordered, so that the choices of a crash are reproducible from their seed.
    files: BTreeMap<u64, MemoryFileContent>,
    next_file: u64,
    operations: u64,
    crash_at: Option<u64>,
    syncs_until_failure: Option<u64>,
    capacity: Option<u64>,
    fails_truncation: bool,
    has_crashed: bool,
}

#[derive(Default, Clone)]
struct MemoryFileContent {
    synced: Vec<u8>,
    visible: Vec<u8>,
    pending: Vec<UnsyncedOperation>,
    /// Reads of bytes in this range fail.
    unreadable: Option<Range<u64>>,
    /// The number of bytes that were punched out.
    hole_bytes: u64,
    /// The number of bytes that are allocated to it; they are zeros, and are not held in memory.
    allocated: u64,
}

#[derive(Clone)]
enum UnsyncedOperation {
    Write { position: usize, bytes: Vec<u8> },
    Truncate { length: usize },
}

/// A disk in memory. Clones are the same disk.
#[derive(Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<MemoryDiskState>>);

impl MemoryDisk {
    /// An empty disk without faults.
    pub fn new() -> MemoryDisk {
        MemoryDisk::default()
    }

    pub fn arm(&self, fault: DiskFault) {
        let mut state = self.0.lock();
        match fault {
            DiskFault::CrashAt(operation) => state.crash_at = Some(operation),
            DiskFault::SyncFails(count) => state.syncs_until_failure = Some(count),
            DiskFault::FullAt(bytes) => state.capacity = Some(bytes),
            DiskFault::NoSpaceToTruncate => state.fails_truncation = true,
        }
    }

    pub fn remove_capacity_limit(&self) {
        self.0.lock().capacity = None;
    }

    /// Returns true if an armed failure of a sync is still pending.
    pub fn has_pending_sync_failure(&self) -> bool {
        self.0.lock().syncs_until_failure.is_some()
    }

    /// The number of writes, truncates and syncs so far.
    pub fn operations(&self) -> u64 {
        self.0.lock().operations
    }

    /// Returns true if the armed crash has happened: every operation fails from then on.
    pub fn has_crashed(&self) -> bool {
        self.0.lock().has_crashed
    }

    /// The disk as a machine finds it after a loss of power. Of all that was not synced, `choose`
    /// decides what is kept: it gets the number of choices and picks one.
    pub fn after_crash(&self, mut choose: impl FnMut(usize) -> usize) -> MemoryDisk {
        let state = self.0.lock();
        let mut names = state.names_synced.clone();
        let changed: Vec<&String> = state.names.keys().chain(state.names_synced.keys()).collect();
        for name in changed {
            let (now, synced) = (state.names.get(name), state.names_synced.get(name));
            if now != synced && choose(2) == 1 {
                match now {
                    Some(file) => names.insert(name.clone(), *file),
                    None => names.remove(name),
                };
            }
        }
        let mut files = BTreeMap::new();
        for (id, content) in &state.files {
            let bytes = content.after_crash(&mut choose);
            let allocated = content.allocated;
            let synced = bytes.clone();
            files.insert(
                *id,
                MemoryFileContent {
                    synced,
                    visible: bytes,
                    allocated,
                    ..MemoryFileContent::default()
                },
            );
        }
        MemoryDisk(Arc::new(Mutex::new(MemoryDiskState {
            names_synced: names.clone(),
            names,
            files,
            next_file: state.next_file,
            ..MemoryDiskState::default()
        })))
    }

    /// The disk as the next process finds it when only the process died: it has all that was
    /// written, and what was not synced is still not.
    pub fn after_kill(&self) -> MemoryDisk {
        let state = self.0.lock();
        MemoryDisk(Arc::new(Mutex::new(MemoryDiskState {
            names: state.names.clone(),
            names_synced: state.names_synced.clone(),
            files: state.files.clone(),
            next_file: state.next_file,
            ..MemoryDiskState::default()
        })))
    }

    /// Flips bits of a stored byte, as a failing medium does.
    pub fn corrupt(&self, name: &str, position: usize, mask: u8) {
        let mut state = self.0.lock();
        let id = state.names[name];
        let content = state.files.get_mut(&id).expect("a name has its file");
        content.sync();
        content.visible[position] ^= mask;
        content.synced[position] ^= mask;
    }

    /// Truncates a file behind the store's back.
    pub fn truncate_file(&self, name: &str, length: usize) {
        let mut state = self.0.lock();
        let id = state.names[name];
        let content = state.files.get_mut(&id).expect("a name has its file");
        content.sync();
        content.visible.truncate(length);
        content.synced.truncate(length);
    }

    /// Makes reads of the bytes `range` of a file fail from now on, as on a medium with bad
    /// sectors; `None` ends that.
    pub fn set_unreadable(&self, name: &str, range: Option<Range<u64>>) {
        let mut state = self.0.lock();
        let id = state.names[name];
        state.files.get_mut(&id).expect("a name has its file").unreadable = range;
    }

    /// The number of bytes that its files take, without holes.
    pub fn used_bytes(&self) -> u64 {
        self.0.lock().used_bytes()
    }

    pub fn names(&self) -> Vec<String> {
        self.0.lock().names.keys().cloned().collect()
    }

    /// The bytes of a file, as a reader sees them.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let state = self.0.lock();
        state.files[&state.names[name]].visible.clone()
    }
}

impl MemoryFileContent {
    fn length(&self) -> u64 {
        (self.visible.len() as u64).max(self.allocated)
    }

    fn after_crash(&self, choose: &mut impl FnMut(usize) -> usize) -> Vec<u8> {
        let mut bytes = self.synced.clone();
        for pending in &self.pending {
            match pending {
                UnsyncedOperation::Truncate { length } => {
                    if choose(2) == 1 {
                        bytes.resize(*length, 0);
                    }
                }
                UnsyncedOperation::Write { position, bytes: written } => {
                    for (at, sector) in sectors(*position, written) {
                        // Torn writes: each sector is decided by itself.
                        if choose(4) != 0 {
                            put(&mut bytes, at, sector);
                        }
                    }
                }
            }
        }
        bytes
    }

    /// Makes only pending writes stable: what a failed sync forgot stays forgotten, although
    /// readers still see it.
    fn sync(&mut self) {
        for pending in std::mem::take(&mut self.pending) {
            match pending {
                UnsyncedOperation::Truncate { length } => self.synced.resize(length, 0),
                UnsyncedOperation::Write { position, bytes } => {
                    put(&mut self.synced, position, &bytes)
                }
            }
        }
    }
}

/// A write, split at the sectors of the disk, which are written whole or not at all.
fn sectors(position: usize, mut written: &[u8]) -> Vec<(usize, &[u8])> {
    let (mut sectors, mut at) = (Vec::new(), position);
    while !written.is_empty() {
        let (sector, rest) = written.split_at((SECTOR - at % SECTOR).min(written.len()));
        sectors.push((at, sector));
        (at, written) = (at + sector.len(), rest);
    }
    sectors
}

fn put(bytes: &mut Vec<u8>, position: usize, written: &[u8]) {
    let end = position + written.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[position..end].copy_from_slice(written);
}

impl MemoryDiskState {
    fn operate(&mut self) -> io::Result<()> {
        if self.crash_at == Some(self.operations) {
            self.has_crashed = true;
        }
        self.check_up()?;
        self.operations += 1;
        Ok(())
    }

    fn check_up(&self) -> io::Result<()> {
        if self.has_crashed { Err(io::Error::other("the machine is down")) } else { Ok(()) }
    }

    /// Counts a sync; returns whether it is the one that fails.
    fn fails_sync(&mut self) -> bool {
        let syncs_left = self.syncs_until_failure;
        self.syncs_until_failure = syncs_left.and_then(|count| count.checked_sub(1));
        syncs_left == Some(0)
    }

    fn used_bytes(&self) -> u64 {
        let linked = self.names.values().filter_map(|id| self.files.get(id));
        linked.map(|content| content.length().saturating_sub(content.hole_bytes)).sum()
    }
}

impl Disk for MemoryDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.0.lock();
        state.check_up()?;
        let id = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(MemoryFile { disk: self.clone(), id }))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.0.lock();
        state.check_up()?;
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let id = state.next_file;
        state.next_file += 1;
        state.names.insert(name.to_owned(), id);
        state.files.insert(id, MemoryFileContent::default());
        Ok(Arc::new(MemoryFile { disk: self.clone(), id }))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().names.keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        state.check_up()?;
        state.names.remove(name).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        state.check_up()?;
        let file = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), file);
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        state.operate()?;
        if state.fails_sync() {
            return Err(io::Error::other("input/output error"));
        }
        state.names_synced = state.names.clone();
        Ok(())
    }
}

fn assert_aligned(places: [usize; 3]) {
    let is_aligned = places.iter().all(|place| place.is_multiple_of(BLOCK_BYTES));
    assert!(is_aligned, "whole blocks go around the page cache: {places:?}");
}

struct MemoryFile {
    disk: MemoryDisk,
    id: u64,
}

impl MemoryFile {
    fn with<T>(&self, act: impl FnOnce(&mut MemoryFileContent) -> T) -> T {
        let mut state = self.disk.0.lock();
        act(state.files.get_mut(&self.id).expect("an open file stays"))
    }
}

impl DiskFile for MemoryFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.with(|content| content.length()))
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.with(|content| {
            let from = (position as usize).min(content.visible.len());
            let count = buffer.len().min(content.visible.len() - from);
            let (first, behind) = (from as u64, (from + count) as u64);
            let fails = |bad: &Range<u64>| bad.start < behind && first < bad.end;
            if content.unreadable.as_ref().is_some_and(fails) {
                return Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()));
            }
            buffer[..count].copy_from_slice(&content.visible[from..from + count]);
            Ok(count)
        })
    }

    fn write_at(&self, slices: &mut [io::IoSlice<'_>], position: u64) -> io::Result<()> {
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        let mut state = self.disk.0.lock();
        state.operate()?;
        let (used, capacity) = (state.used_bytes(), state.capacity);
        let content = state.files.get_mut(&self.id).expect("an open file stays");
        let grows = (position + bytes.len() as u64).saturating_sub(content.visible.len() as u64);
        if capacity.is_some_and(|capacity| used + grows > capacity) {
            // As on a real disk, the part that fits is written.
            let over = used + grows - capacity.unwrap_or(0);
            let fits = bytes.len() - (over as usize).min(bytes.len());
            let bytes = bytes[..fits].to_vec();
            put(&mut content.visible, position as usize, &bytes);
            content.pending.push(UnsyncedOperation::Write { position: position as usize, bytes });
            return Err(io::ErrorKind::StorageFull.into());
        }
        put(&mut content.visible, position as usize, &bytes);
        content.pending.push(UnsyncedOperation::Write { position: position as usize, bytes });
        Ok(())
    }

    fn supports_direct_write(&self) -> bool {
        true
    }

    fn write_direct_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        assert_aligned([bytes.as_ptr() as usize, bytes.len(), position as usize]);
        self.write_at(&mut [io::IoSlice::new(bytes)], position)
    }

    fn read_direct_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        assert_aligned([buffer.as_ptr() as usize, buffer.len(), position as usize]);
        self.read_at(buffer, position)
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.operate()?;
        let content = state.files.get_mut(&self.id).expect("an open file stays");
        let (from, to) = (range.start as usize, (range.end as usize).min(content.visible.len()));
        if from < to {
            content.hole_bytes += (to - from) as u64;
            content.visible[from..to].fill(0);
            content
                .pending
                .push(UnsyncedOperation::Write { position: from, bytes: vec![0; to - from] });
        }
        Ok(())
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.operate()?;
        let (used, capacity) = (state.used_bytes(), state.capacity);
        let content = state.files.get_mut(&self.id).expect("an open file stays");
        let grows = length.saturating_sub(content.length());
        if capacity.is_some_and(|capacity| used + grows > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        content.allocated = content.allocated.max(length);
        Ok(())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.operate()?;
        if std::mem::take(&mut state.fails_truncation) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        drop(state);
        self.with(|content| {
            content.visible.resize(length as usize, 0);
            content.pending.push(UnsyncedOperation::Truncate { length: length as usize });
        });
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.operate()?;
        if state.fails_sync() {
            let content = state.files.get_mut(&self.id).expect("an open file stays");
            // As on Linux, the dirty pages are dropped, and the next sync reports success.
            content.pending.clear();
            return Err(io::Error::other("input/output error"));
        }
        let content = state.files.get_mut(&self.id).expect("an open file stays");
        content.sync();
        Ok(())
    }
}
