//! The contents of one file: its log, and the index over it.
//!
//! Nobody hands a write to the index. Whoever reads first indexes what the log has more than the
//! index, in order; so the present, a start and a read of the past are the same few steps: a
//! checkpoint, and the entries after it. A version is all of a prefix of the log, so no reader ever
//! sees a part of a write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use hlc::{Cut, Hlc, UserTime};
use parking_lot::Mutex;
use storage::fig::{Fig, FigError, Node, NodeCache, NodeId, NodeSource, ROOT_BYTES, Root};
use storage::{Append, Durability, Log, LogId, Offset, Payload, Piece, Store};

use super::entry::{FileHead, read_punch};
use super::error::FileError;
use super::event::{
    Inode, KIND_FILE_CHECKPOINT, KIND_FILE_PUNCH, KIND_FILE_TRUNCATE, KIND_FILE_WRITE,
};
use super::view::FileView;
use crate::append::{Note, Stager};

/// How many entries are looked at in one go.
const REPLAYED_AT_ONCE: u64 = 1024;

/// What files have cost since the start.
#[derive(Debug, Default)]
pub struct FileCounts {
    /// Roots of checkpoints read.
    pub roots_read: AtomicU64,
    /// Nodes of checkpoints read.
    pub nodes_read: AtomicU64,
    /// Writes and truncations indexed.
    pub entries_indexed: AtomicU64,
    /// Reads of the disk for writes.
    pub data_reads: AtomicU64,
    /// Bytes of writes read from the disk: more than were asked for, as what is checked is read whole.
    pub data_bytes_read: AtomicU64,
    /// Indexes made anew because a checkpoint was damaged.
    pub rebuilt: AtomicU64,
    /// Checkpoints written.
    pub checkpoints: AtomicU64,
    /// Bytes of them.
    pub checkpoint_bytes: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The index up to an offset of the log.
#[derive(Clone, Debug)]
pub(super) struct Index {
    pub(super) fig: Fig,
    /// The first offset that it has not seen.
    pub(super) next: Offset,
    /// The stamp of the last entry that changed the file.
    pub(super) modified: Hlc,
    /// How many entries changed the file since the last checkpoint.
    unsaved: u64,
}

/// Why an index does not come further.
enum Stuck {
    /// It is damaged, and can be made anew.
    Index(String),
    /// What the entries say is not known, whatever index is made of them.
    Entries(FileError),
}

impl From<FileError> for Stuck {
    fn from(error: FileError) -> Stuck {
        Stuck::Entries(error)
    }
}

impl From<std::io::Error> for Stuck {
    fn from(error: std::io::Error) -> Stuck {
        Stuck::Entries(error.into())
    }
}

impl From<FigError> for Stuck {
    fn from(error: FigError) -> Stuck {
        match error {
            FigError::Damaged { .. } => Stuck::Index(error.to_string()),
            FigError::Read(error) => error.into(),
        }
    }
}

impl From<Stuck> for FileError {
    fn from(stuck: Stuck) -> FileError {
        match stuck {
            Stuck::Index(why) => FileError::Corrupt(why),
            Stuck::Entries(error) => error,
        }
    }
}

/// What the checkpoint that was begun last is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Saving {
    Idle,
    OnItsWay,
    /// It arrived; it holds so many changes.
    Written(u64),
}

/// A file's log and index.
pub(crate) struct Contents {
    pub(crate) inode: Inode,
    log: Arc<Log>,
    nodes: Arc<NodeCache>,
    counts: Arc<FileCounts>,
    /// `None` until somebody looks.
    index: Mutex<Option<Index>>,
    /// Locked for moments only, by the journal's thread too; after `index` by those who hold both.
    saving: Mutex<Saving>,
    /// Entries before this offset are in a checkpoint or one on its way.
    covered: AtomicU64,
}

impl Contents {
    pub(crate) fn new(
        inode: Inode,
        log: Arc<Log>,
        nodes: Arc<NodeCache>,
        counts: Arc<FileCounts>,
    ) -> Contents {
        Contents {
            inode,
            log,
            nodes,
            counts,
            index: Mutex::new(None),
            saving: Mutex::new(Saving::Idle),
            covered: AtomicU64::new(0),
        }
    }

    /// The file as it is.
    pub(crate) fn present(self: &Arc<Self>) -> Result<FileView, FileError> {
        let mut held = self.index.lock();
        let index = self.up_to_date(&mut held)?;
        Ok(FileView::new(self, index))
    }

    /// The file as of `cut`, which nothing can enter any more.
    pub(crate) fn at(self: &Arc<Self>, cut: Cut) -> Result<FileView, FileError> {
        let until = self.log.offset_at(cut)?;
        // Who looks at the past waits for nobody who brings the present up to date.
        if let Some(held) = self.index.try_lock()
            && let Some(index) = &*held
            && index.next == until
        {
            return Ok(FileView::new(self, index));
        }
        let mut index = self.newest_checkpoint(until)?;
        match self.advance(&mut index, until) {
            Err(Stuck::Index(why)) => index = self.rebuilt(until, &why)?,
            advanced => advanced?,
        }
        Ok(FileView::new(self, &index))
    }

    /// The index as the entries alone make it, for one whose checkpoints are damaged.
    fn rebuilt(&self, until: Offset, why: &str) -> Result<Index, FileError> {
        tracing::warn!(inode = self.inode.0, why, "a file's index is made anew from its entries");
        count(&self.counts.rebuilt);
        let mut index = Index::empty();
        self.advance(&mut index, until)?;
        Ok(index)
    }

    /// [`Contents::rebuilt`], for a view that met damage; the present is mended with it.
    pub(super) fn mend(&self, until: Offset, why: &str) -> Result<Fig, FileError> {
        let index = self.rebuilt(until, why)?;
        let fig = index.fig.clone();
        let mut held = self.index.lock();
        if let Some(present) = held.as_mut().filter(|present| present.next == until) {
            *present = index;
        }
        Ok(fig)
    }

    fn up_to_date<'a>(&self, held: &'a mut Option<Index>) -> Result<&'a mut Index, FileError> {
        let end = self.log.end();
        if held.is_none() {
            let index = self.newest_checkpoint(end)?;
            self.covered.fetch_max(index.next.0, Ordering::Relaxed);
            *held = Some(index);
        }
        let index = held.as_mut().expect("it was just put there");
        let mut saving = self.saving.lock();
        if let Saving::Written(count) = *saving {
            index.fig.release();
            // One that was made anew meanwhile has more that is unsaved than this, and saves it all.
            index.unsaved = index.unsaved.saturating_sub(count);
            *saving = Saving::Idle;
        }
        drop(saving);
        match self.advance(index, end) {
            Err(Stuck::Index(why)) => *index = self.rebuilt(end, &why)?,
            advanced => advanced?,
        }
        Ok(index)
    }

    /// The index of the newest checkpoint before `until`. One that is damaged is passed over: what it
    /// says can be found in the entries before.
    fn newest_checkpoint(&self, until: Offset) -> Result<Index, FileError> {
        let mut before = until;
        while let Some(at) = before.0.checked_sub(1).map(Offset) {
            let entry = self.log.entry_at(at)?;
            if entry.is_some_and(|entry| entry.kind == KIND_FILE_CHECKPOINT) {
                match self.root(at) {
                    Ok(root) => return Ok(Index::saved(&root)),
                    Err(error) => tracing::warn!(%error, "a file's checkpoint is passed over"),
                }
            }
            before = at;
        }
        Ok(Index::empty())
    }

    fn root(&self, at: Offset) -> Result<Root, FileError> {
        count(&self.counts.roots_read);
        let piece = self.piece(at)?;
        let length = piece.entry.length as usize;
        let bytes = piece.read_part(length.saturating_sub(ROOT_BYTES)..length)?;
        Ok(Root::decode(&bytes, at, length)?)
    }

    pub(super) fn piece(&self, at: Offset) -> Result<Piece, FileError> {
        let piece = self.log.piece_at(at)?.filter(|piece| piece.entry.base == at);
        piece.ok_or_else(|| missing(at))
    }

    /// The entries from `from` up to `until`, as far as they are there.
    pub(super) fn pieces(&self, from: Offset, until: Offset) -> Result<Vec<Piece>, FileError> {
        Ok(self.log.read(from, until, usize::MAX)?)
    }

    fn advance(&self, index: &mut Index, until: Offset) -> Result<(), Stuck> {
        while index.next < until {
            let to = Offset(index.next.0.saturating_add(REPLAYED_AT_ONCE)).min(until);
            for piece in self.log.read(index.next, to, usize::MAX)? {
                index.apply(&piece, self)?;
            }
            if index.next < to {
                return Err(missing(index.next).into());
            }
        }
        Ok(())
    }

    /// How many entries are in no checkpoint, nor in one that is on its way.
    fn uncovered(&self) -> u64 {
        self.log.end().0.saturating_sub(self.covered.load(Ordering::Relaxed))
    }

    /// Appends a checkpoint, if at least `entries` are in none, unless reopening reads no more without
    /// one, or one is on its way.
    ///
    /// It is not waited for: a version that lacks it replays more.
    pub(crate) fn save(
        self: &Arc<Self>,
        store: &Store<Stager>,
        entries: u64,
    ) -> Result<(), FileError> {
        if self.uncovered() < entries {
            return Ok(());
        }
        let mut held = self.index.lock();
        let index = self.up_to_date(&mut held)?;
        let needless = match self.covered.load(Ordering::Relaxed) {
            // One entry is read as fast as a checkpoint of it.
            0 => index.unsaved <= 1,
            // Of a file that was not looked at before, it is known only now.
            _ => index.unsaved == 0 || self.uncovered() < entries,
        };
        let mut saving = self.saving.lock();
        if needless || *saving == Saving::OnItsWay {
            return Ok(());
        }
        *saving = Saving::OnItsWay;
        drop(saving);
        let (mut checkpoint, changes) =
            (index.fig.checkpoint(index.next, index.modified), index.unsaved);
        let covered = self.covered.swap(index.next.0, Ordering::Relaxed);
        drop(held);
        let bytes = Bytes::from(std::mem::take(&mut checkpoint.bytes));
        count(&self.counts.checkpoints);
        self.counts.checkpoint_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let append = append_of(self.log.id, KIND_FILE_CHECKPOINT, Payload::plain(bytes), None);
        let contents = Arc::clone(self);
        store.append(vec![append], Durability::Written, move |results| {
            let appended = results.into_iter().next().and_then(Result::ok);
            let mut saving = contents.saving.lock();
            match appended {
                Some(appended) => {
                    checkpoint.written(appended.base);
                    *saving = Saving::Written(changes);
                }
                None => {
                    contents.covered.store(covered, Ordering::Relaxed);
                    *saving = Saving::Idle;
                }
            }
        });
        Ok(())
    }

    pub(super) fn count_read(&self, bytes: usize) {
        count(&self.counts.data_reads);
        self.counts.data_bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes of memory that the index holds of its own.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Contents>() + self.index.lock().as_ref().map_or(0, |i| i.fig.memory_bytes())
    }
}

/// An entry that should be in a file's log is not: what it did to the file is not known.
fn missing(at: Offset) -> FileError {
    FileError::Corrupt(format!("an entry of the file is not there. entry={}", at.0))
}

/// An entry of a file's log, or of the files' log.
pub(crate) fn append_of(
    log: LogId,
    kind: u8,
    payload: Payload,
    crc_from: Option<(usize, u32)>,
) -> Append<Note> {
    let user = (UserTime(0), UserTime(0));
    Append { log, kind, epoch: 0, count: 1, user, payload, crc_from, note: Note::File }
}

impl Index {
    fn empty() -> Index {
        Index { fig: Fig::new(), next: Offset(0), modified: Hlc::ZERO, unsaved: 0 }
    }

    fn saved(root: &Root) -> Index {
        let (next, modified) = (root.covers, root.modified);
        Index { fig: Fig::saved(root), next, modified, unsaved: 0 }
    }

    fn apply(&mut self, piece: &Piece, nodes: &Contents) -> Result<(), Stuck> {
        let entry = &piece.entry;
        if entry.base != self.next {
            return Err(missing(self.next).into());
        }
        match entry.kind {
            KIND_FILE_WRITE => {
                let head = FileHead::read(piece)?;
                let length = entry.length - head.bytes() as u32;
                self.fig.write(nodes, head.offset, length, entry.base)?;
            }
            KIND_FILE_TRUNCATE => self.fig.truncate(nodes, FileHead::read(piece)?.offset)?,
            KIND_FILE_PUNCH => {
                let hole = read_punch(piece)?;
                self.fig.punch(nodes, hole.start, hole.end)?;
            }
            KIND_FILE_CHECKPOINT => {}
            kind => {
                let at = entry.base.0;
                let why = format!("not an entry of a file. kind={kind}, entry={at}");
                return Err(FileError::Corrupt(why).into());
            }
        }
        self.next = entry.end();
        if entry.kind != KIND_FILE_CHECKPOINT {
            count(&nodes.counts.entries_indexed);
            self.modified = entry.stamp;
            self.unsaved += 1;
        }
        Ok(())
    }
}

impl NodeSource for Contents {
    fn load(&self, id: NodeId) -> Result<Arc<Node>, FigError> {
        if let Some(node) = self.nodes.get(self.log.id, id) {
            return Ok(node);
        }
        count(&self.counts.nodes_read);
        let damaged = |why| FigError::Damaged { why, entry: id.entry, at: id.at };
        let is_checkpoint = |piece: &Piece| {
            piece.entry.base == id.entry && piece.entry.kind == KIND_FILE_CHECKPOINT
        };
        let piece = self.log.piece_at(id.entry)?.filter(is_checkpoint);
        let piece = piece.ok_or_else(|| damaged("there is no such checkpoint"))?;
        let start = id.at as usize;
        let end = start + id.length as usize;
        if end > piece.entry.length as usize {
            return Err(damaged("it lies outside of its checkpoint"));
        }
        let node = Arc::new(Node::decode(&piece.read_part(start..end)?, id)?);
        self.nodes.put(self.log.id, id, Arc::clone(&node));
        Ok(node)
    }
}
