//! The contents of one file: its log, and the index over it.
//!
//! A write does not update the index. The first reader indexes the entries that the index lacks, in
//! order. So the present, a start and a read of the past take the same few steps: a checkpoint, and
//! the entries after it. A version is a whole prefix of the log, so no reader ever sees a part of a
//! write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use engine_core::{AppendNote, EngineStore};
use hlc::{Cut, Hlc, UserTime};
use parking_lot::Mutex;
use storage::{Durability, EntryPayload, Log, LogAppend, LogId, Offset, Payload, StorageError};

use super::entry::{FileEntryHeader, read_hole};
use super::error::FileError;
use super::event::{
    Inode, KIND_FILE_CHECKPOINT, KIND_FILE_PUNCH_HOLE, KIND_FILE_TRUNCATE, KIND_FILE_WRITE,
};
use super::view::FileView;
use crate::interval_tree::{
    CheckpointRoot, FileIntervalTree, IntervalTreeError, NodeCache, NodeId, NodeSource, ROOT_BYTES,
    TreeNode,
};

/// The number of entries that are replayed in one batch.
const REPLAY_BATCH_ENTRIES: u64 = 1024;

/// Counters of the cost of files since the start.
#[derive(Debug, Default)]
pub struct FileCounters {
    /// Roots of checkpoints read.
    pub roots_read: AtomicU64,
    /// Nodes of checkpoints read.
    pub nodes_read: AtomicU64,
    /// Writes and truncations indexed.
    pub entries_indexed: AtomicU64,
    /// Reads of the disk for writes.
    pub data_reads: AtomicU64,
    /// Bytes of writes read from the disk: more than requested, because what a checksum covers is
    /// read whole.
    pub data_bytes_read: AtomicU64,
    /// Indexes rebuilt because a checkpoint was corrupt.
    pub indexes_rebuilt: AtomicU64,
    /// Checkpoints written.
    pub checkpoints: AtomicU64,
    pub checkpoint_bytes: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The index up to an offset of the log.
#[derive(Clone, Debug)]
pub(super) struct FileIndex {
    pub(super) tree: FileIntervalTree,
    /// The first offset that it does not have.
    pub(super) next: Offset,
    /// The stamp of the last entry that changed the file.
    pub(super) modified: Hlc,
    /// The number of entries that changed the file since the last checkpoint.
    unsaved: u64,
}

/// The reason that an index could not advance.
enum IndexAdvanceError {
    /// The index is corrupt, and can be rebuilt.
    Index(String),
    /// The entries cannot be read, so a rebuilt index would fail too.
    Entries(FileError),
}

impl From<FileError> for IndexAdvanceError {
    fn from(error: FileError) -> IndexAdvanceError {
        IndexAdvanceError::Entries(error)
    }
}

impl From<StorageError> for IndexAdvanceError {
    fn from(error: StorageError) -> IndexAdvanceError {
        IndexAdvanceError::Entries(error.into())
    }
}

impl From<IntervalTreeError> for IndexAdvanceError {
    fn from(error: IntervalTreeError) -> IndexAdvanceError {
        match error {
            IntervalTreeError::Corrupt { .. } => IndexAdvanceError::Index(error.to_string()),
            IntervalTreeError::Read(error) => error.into(),
        }
    }
}

impl From<IndexAdvanceError> for FileError {
    fn from(stuck: IndexAdvanceError) -> FileError {
        match stuck {
            IndexAdvanceError::Index(why) => FileError::Corrupt(why),
            IndexAdvanceError::Entries(error) => error,
        }
    }
}

/// The state of the checkpoint that was begun last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckpointState {
    Idle,
    InFlight,
    /// It was written; it holds so many changes.
    Written(u64),
}

/// A file's log and index.
pub(crate) struct FileContents {
    pub(crate) inode: Inode,
    log: Arc<Log>,
    nodes: Arc<NodeCache>,
    counters: Arc<FileCounters>,
    /// `None` until the first read.
    index: Mutex<Option<FileIndex>>,
    /// Locked only briefly, by the journal's thread too. A thread that takes both locks takes
    /// `index` first.
    checkpoint_state: Mutex<CheckpointState>,
    /// Entries before this offset are in a checkpoint, or in one in flight.
    checkpointed_to: AtomicU64,
}

impl FileContents {
    pub(crate) fn new(
        inode: Inode,
        log: Arc<Log>,
        nodes: Arc<NodeCache>,
        counts: Arc<FileCounters>,
    ) -> FileContents {
        FileContents {
            inode,
            log,
            nodes,
            counters: counts,
            index: Mutex::new(None),
            checkpoint_state: Mutex::new(CheckpointState::Idle),
            checkpointed_to: AtomicU64::new(0),
        }
    }

    /// The current version of the file.
    pub(crate) fn present(self: &Arc<Self>) -> Result<FileView, FileError> {
        let mut slot = self.index.lock();
        let index = self.advance_to_end(&mut slot)?;
        Ok(FileView::new(self, index))
    }

    /// The file as of `cut`, which must be closed.
    pub(crate) fn at(self: &Arc<Self>, cut: Cut) -> Result<FileView, FileError> {
        let until = self.log.offset_at(cut)?;
        // A read of the past does not wait for one that advances the present index.
        if let Some(slot) = self.index.try_lock()
            && let Some(index) = &*slot
            && index.next == until
        {
            return Ok(FileView::new(self, index));
        }
        let mut index = self.newest_checkpoint(until)?;
        match self.advance(&mut index, until) {
            Err(IndexAdvanceError::Index(why)) => index = self.rebuild_index(until, &why)?,
            advanced => advanced?,
        }
        Ok(FileView::new(self, &index))
    }

    /// Rebuilds the index from the entries alone, because its checkpoints are corrupt.
    fn rebuild_index(&self, until: Offset, why: &str) -> Result<FileIndex, FileError> {
        tracing::warn!(inode = self.inode.0, why, "a file's index is rebuilt from its entries");
        count(&self.counters.indexes_rebuilt);
        let mut index = FileIndex::empty();
        self.advance(&mut index, until)?;
        Ok(index)
    }

    /// [`FileContents::rebuild_index`] for a view that found corruption; also replaces the present
    /// index.
    pub(super) fn rebuild_present(
        &self,
        until: Offset,
        why: &str,
    ) -> Result<FileIntervalTree, FileError> {
        let index = self.rebuild_index(until, why)?;
        let fig = index.tree.clone();
        let mut slot = self.index.lock();
        if let Some(present) = slot.as_mut().filter(|present| present.next == until) {
            *present = index;
        }
        Ok(fig)
    }

    fn advance_to_end<'a>(
        &self,
        slot: &'a mut Option<FileIndex>,
    ) -> Result<&'a mut FileIndex, FileError> {
        let end = self.log.end();
        if slot.is_none() {
            let index = self.newest_checkpoint(end)?;
            self.checkpointed_to.fetch_max(index.next.0, Ordering::Relaxed);
            *slot = Some(index);
        }
        let index = slot.as_mut().expect("it was just put there");
        let mut saving = self.checkpoint_state.lock();
        if let CheckpointState::Written(count) = *saving {
            index.tree.release_saved();
            // An index that was rebuilt meanwhile has more unsaved changes, and saves all of them.
            index.unsaved = index.unsaved.saturating_sub(count);
            *saving = CheckpointState::Idle;
        }
        drop(saving);
        match self.advance(index, end) {
            Err(IndexAdvanceError::Index(why)) => *index = self.rebuild_index(end, &why)?,
            advanced => advanced?,
        }
        Ok(index)
    }

    /// The index of the newest checkpoint before `until`. Skips corrupt checkpoints: their content
    /// can be replayed from the entries before them.
    fn newest_checkpoint(&self, until: Offset) -> Result<FileIndex, FileError> {
        let mut before = until;
        while let Some(at) = before.0.checked_sub(1).map(Offset) {
            let entry = self.log.entry_at(at)?;
            if entry.is_some_and(|entry| entry.kind == KIND_FILE_CHECKPOINT) {
                match self.root(at) {
                    Ok(root) => return Ok(FileIndex::from_checkpoint(&root)),
                    Err(error) => tracing::warn!(%error, "a file's checkpoint is skipped"),
                }
            }
            before = at;
        }
        Ok(FileIndex::empty())
    }

    fn root(&self, at: Offset) -> Result<CheckpointRoot, FileError> {
        count(&self.counters.roots_read);
        let piece = self.entry_payload(at)?;
        let length = piece.entry.length as usize;
        let bytes = piece.read_range(length.saturating_sub(ROOT_BYTES)..length)?;
        Ok(CheckpointRoot::decode(&bytes, at, length)?)
    }

    pub(super) fn entry_payload(&self, at: Offset) -> Result<EntryPayload, FileError> {
        let piece = self.log.payload_at(at)?.filter(|piece| piece.entry.base == at);
        piece.ok_or_else(|| missing_entry(at))
    }

    /// The existing entries from `from` up to `until`.
    pub(super) fn entry_payloads(
        &self,
        from: Offset,
        until: Offset,
    ) -> Result<Vec<EntryPayload>, FileError> {
        Ok(self.log.read(from, until, usize::MAX)?)
    }

    fn advance(&self, index: &mut FileIndex, until: Offset) -> Result<(), IndexAdvanceError> {
        while index.next < until {
            let to = Offset(index.next.0.saturating_add(REPLAY_BATCH_ENTRIES)).min(until);
            for piece in self.log.read(index.next, to, usize::MAX)? {
                index.apply(&piece, self)?;
            }
            if index.next < to {
                return Err(missing_entry(index.next).into());
            }
        }
        Ok(())
    }

    /// The number of entries that are neither in a checkpoint nor in one in flight.
    fn uncheckpointed(&self) -> u64 {
        self.log.end().0.saturating_sub(self.checkpointed_to.load(Ordering::Relaxed))
    }

    /// Appends a checkpoint if at least `entries` are in none. Does nothing if reopening the file
    /// would read no less with it, or if one is in flight.
    ///
    /// It does not wait for the append: a version without the checkpoint replays more.
    pub(crate) fn save_checkpoint(
        self: &Arc<Self>,
        store: &EngineStore,
        entries: u64,
    ) -> Result<(), FileError> {
        if self.uncheckpointed() < entries {
            return Ok(());
        }
        let mut slot = self.index.lock();
        let index = self.advance_to_end(&mut slot)?;
        let needless = match self.checkpointed_to.load(Ordering::Relaxed) {
            // Reading one entry is as fast as reading a checkpoint of it.
            0 => index.unsaved <= 1,
            // For a file that was not read before, this is known only now.
            _ => index.unsaved == 0 || self.uncheckpointed() < entries,
        };
        let mut saving = self.checkpoint_state.lock();
        if needless || *saving == CheckpointState::InFlight {
            return Ok(());
        }
        *saving = CheckpointState::InFlight;
        drop(saving);
        let (mut checkpoint, changes) =
            (index.tree.checkpoint(index.next, index.modified), index.unsaved);
        let covered = self.checkpointed_to.swap(index.next.0, Ordering::Relaxed);
        drop(slot);
        let bytes = Bytes::from(std::mem::take(&mut checkpoint.bytes));
        count(&self.counters.checkpoints);
        self.counters.checkpoint_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let append =
            file_append(self.log.id, KIND_FILE_CHECKPOINT, Payload::without_header(bytes), None);
        let contents = Arc::clone(self);
        store.append(vec![append], Durability::Written, move |results| {
            let appended = results.into_iter().next().and_then(Result::ok);
            let mut saving = contents.checkpoint_state.lock();
            match appended {
                Some(appended) => {
                    checkpoint.mark_saved(appended.base);
                    *saving = CheckpointState::Written(changes);
                }
                None => {
                    contents.checkpointed_to.store(covered, Ordering::Relaxed);
                    *saving = CheckpointState::Idle;
                }
            }
        });
        Ok(())
    }

    pub(super) fn count_read(&self, bytes: usize) {
        count(&self.counters.data_reads);
        self.counters.data_bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The memory of the index itself.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<FileContents>() + self.index.lock().as_ref().map_or(0, |i| i.tree.memory_bytes())
    }
}

/// The error for an entry that is missing from a file's log: its change is not known.
fn missing_entry(at: Offset) -> FileError {
    FileError::Corrupt(format!("the entry at offset {} of its log is missing", at.0))
}

/// An entry of a file's log, or of the files' log.
pub(crate) fn file_append(
    log: LogId,
    kind: u8,
    payload: Payload,
    crc_from: Option<(usize, u32)>,
) -> LogAppend<AppendNote> {
    let user = (UserTime(0), UserTime(0));
    LogAppend { log, kind, epoch: 0, count: 1, user, payload, crc_from, note: AppendNote::Event }
}

impl FileIndex {
    fn empty() -> FileIndex {
        FileIndex {
            tree: FileIntervalTree::new(),
            next: Offset(0),
            modified: Hlc::ZERO,
            unsaved: 0,
        }
    }

    fn from_checkpoint(root: &CheckpointRoot) -> FileIndex {
        let (next, modified) = (root.covers, root.modified);
        FileIndex { tree: FileIntervalTree::from_checkpoint(root), next, modified, unsaved: 0 }
    }

    fn apply(
        &mut self,
        piece: &EntryPayload,
        nodes: &FileContents,
    ) -> Result<(), IndexAdvanceError> {
        let entry = &piece.entry;
        if entry.base != self.next {
            return Err(missing_entry(self.next).into());
        }
        match entry.kind {
            KIND_FILE_WRITE => {
                let head = FileEntryHeader::read(piece)?;
                let length = entry.length - head.bytes() as u32;
                self.tree.write(nodes, head.offset, length, entry.base)?;
            }
            KIND_FILE_TRUNCATE => {
                self.tree.truncate(nodes, FileEntryHeader::read(piece)?.offset)?
            }
            KIND_FILE_PUNCH_HOLE => {
                let hole = read_hole(piece)?;
                self.tree.punch_hole(nodes, hole.start, hole.end)?;
            }
            KIND_FILE_CHECKPOINT => {}
            kind => {
                let at = entry.base.0;
                let why = format!("the entry at offset {at} is of kind {kind}, which no file has");
                return Err(FileError::Corrupt(why).into());
            }
        }
        self.next = entry.end();
        if entry.kind != KIND_FILE_CHECKPOINT {
            count(&nodes.counters.entries_indexed);
            self.modified = entry.stamp;
            self.unsaved += 1;
        }
        Ok(())
    }
}

impl NodeSource for FileContents {
    fn load(&self, id: NodeId) -> Result<Arc<TreeNode>, IntervalTreeError> {
        if let Some(node) = self.nodes.get(self.log.id, id) {
            return Ok(node);
        }
        count(&self.counters.nodes_read);
        let damaged = |why| IntervalTreeError::Corrupt { why, entry: id.entry, at: id.at };
        let is_checkpoint = |piece: &EntryPayload| {
            piece.entry.base == id.entry && piece.entry.kind == KIND_FILE_CHECKPOINT
        };
        let piece = self.log.payload_at(id.entry)?.filter(is_checkpoint);
        let piece = piece.ok_or_else(|| damaged("there is no such checkpoint"))?;
        let start = id.at as usize;
        let end = start + id.length as usize;
        if end > piece.entry.length as usize {
            return Err(damaged("it lies outside of its checkpoint"));
        }
        let node = Arc::new(TreeNode::decode(&piece.read_range(start..end)?, id)?);
        self.nodes.put(self.log.id, id, Arc::clone(&node));
        Ok(node)
    }
}
