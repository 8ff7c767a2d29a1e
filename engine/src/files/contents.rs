//! The contents of one file: its log, and the index over it.
//!
//! Nobody hands a write to the index. Whoever reads first indexes what the log has more than the
//! index, in order; so the present, a start and a read of the past are the same few steps: a
//! checkpoint, and the entries after it. A version is all of a prefix of the log, so no reader ever
//! sees a part of a write.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use hlc::{Cut, Hlc, UserTime};
use parking_lot::Mutex;
use storage::fig::{
    Extent, Fig, FigError, Node, NodeCache, NodeId, NodeSource, ROOT_BYTES, Root, Source,
};
use storage::{Append, Durability, Log, Offset, Payload, Piece, Store};

use super::entry::{FileHead, read_data, read_punch};
use super::error::FileError;
use super::event::{
    Inode, KIND_FILE_CHECKPOINT, KIND_FILE_PUNCH, KIND_FILE_TRUNCATE, KIND_FILE_WRITE,
};
use crate::append::{Note, Stager};

/// The longest read, in bytes; a longer one is cut short.
pub const READ_BYTES_MAX: usize = 16 << 20;
/// The most pieces of one read; one that has more is cut short.
const PIECES_MAX: usize = 1 << 14;
/// How many bytes of entries are looked at in one go. They are not read from the disk for that.
const REPLAY_BYTES: usize = 64 << 20;
/// How many entries a read keeps at hand, where pieces of them alternate.
const RECENT_MAX: usize = 8;

/// What files have cost since the start.
#[derive(Debug, Default)]
pub struct FileCounts {
    /// Roots of checkpoints read.
    pub roots_read: AtomicU64,
    /// Nodes of checkpoints read.
    pub nodes_read: AtomicU64,
    /// Writes and truncations indexed.
    pub entries_indexed: AtomicU64,
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
struct Index {
    fig: Fig,
    /// The first offset that it has not seen.
    next: Offset,
    /// The stamp of the last entry that changed the file.
    modified: Hlc,
    /// How many entries changed the file since the last checkpoint.
    unsaved: u64,
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
    pub(crate) log: Arc<Log>,
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
        if let Some(index) = &*self.index.lock()
            && index.next == until
        {
            return Ok(FileView::new(self, index));
        }
        let found = self.newest_checkpoint(until).and_then(|mut index| {
            self.advance(&mut index, until)?;
            Ok(index)
        });
        let index = match found {
            Err(FileError::Corrupt(why)) => self.rebuilt(until, &why)?,
            found => found?,
        };
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
    fn mend(&self, until: Offset, why: &str) -> Result<Fig, FileError> {
        let index = self.rebuilt(until, why)?;
        let fig = index.fig.clone();
        let mut held = self.index.lock();
        // A checkpoint that is on its way counts changes of the index that it was made of.
        let idle = *self.saving.lock() == Saving::Idle;
        if idle && let Some(present) = held.as_mut().filter(|present| present.next == until) {
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
            index.unsaved -= count;
            *saving = Saving::Idle;
        }
        drop(saving);
        match self.advance(index, end) {
            Err(FileError::Corrupt(why)) if *self.saving.lock() == Saving::Idle => {
                *index = self.rebuilt(end, &why)?;
            }
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

    fn piece(&self, at: Offset) -> Result<Piece, FileError> {
        let piece = self.log.piece_at(at)?.filter(|piece| piece.entry.base == at);
        piece.ok_or_else(|| {
            FileError::Corrupt(format!("an index names an entry that is not there. entry={}", at.0))
        })
    }

    fn advance(&self, index: &mut Index, until: Offset) -> Result<(), FileError> {
        while index.next < until {
            for piece in self.log.read(index.next, until, REPLAY_BYTES)? {
                index.apply(&piece, self)?;
            }
        }
        Ok(())
    }

    /// How many entries are in no checkpoint, nor in one that is on its way.
    pub(crate) fn uncovered(&self) -> u64 {
        self.log.end().0.saturating_sub(self.covered.load(Ordering::Relaxed))
    }

    /// Appends a checkpoint, unless reopening reads no more without one, or one is on its way.
    ///
    /// It is not waited for: a version that lacks it replays more.
    pub(crate) fn save(self: &Arc<Self>, store: &Store<Stager>) -> Result<(), FileError> {
        let mut held = self.index.lock();
        if held.is_none() && self.uncovered() == 0 {
            return Ok(());
        }
        let index = self.up_to_date(&mut held)?;
        let needless = match self.covered.load(Ordering::Relaxed) {
            // One entry is read as fast as a checkpoint of it.
            0 => index.unsaved <= 1,
            _ => index.unsaved == 0,
        };
        let mut saving = self.saving.lock();
        if needless || *saving == Saving::OnItsWay {
            return Ok(());
        }
        *saving = Saving::OnItsWay;
        drop(saving);
        let (checkpoint, changes) =
            (index.fig.checkpoint(index.next, index.modified), index.unsaved);
        let covered = self.covered.swap(index.next.0, Ordering::Relaxed);
        drop(held);
        let bytes = Bytes::from(checkpoint.bytes.clone());
        count(&self.counts.checkpoints);
        self.counts.checkpoint_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let append = append_of(&self.log, KIND_FILE_CHECKPOINT, Payload::plain(bytes), None);
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

    /// Bytes of memory that the index holds of its own.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Contents>() + self.index.lock().as_ref().map_or(0, |i| i.fig.memory_bytes())
    }
}

/// An entry of a file's log, or of the files' log.
pub(crate) fn append_of(
    log: &Log,
    kind: u8,
    payload: Payload,
    crc_from: Option<(usize, u32)>,
) -> Append<Note> {
    let user = (UserTime(0), UserTime(0));
    Append { log: log.id, kind, epoch: 0, count: 1, user, payload, crc_from, note: Note::File }
}

impl Index {
    fn empty() -> Index {
        Index { fig: Fig::new(), next: Offset(0), modified: Hlc::ZERO, unsaved: 0 }
    }

    fn saved(root: &Root) -> Index {
        let (next, modified) = (root.covers, root.modified);
        Index { fig: Fig::saved(root), next, modified, unsaved: 0 }
    }

    fn apply(&mut self, piece: &Piece, nodes: &Contents) -> Result<(), FileError> {
        let entry = &piece.entry;
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
                return Err(FileError::Corrupt(why));
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

/// A file as it was at one moment. It does not change.
#[derive(Clone)]
pub struct FileView {
    contents: Arc<Contents>,
    fig: Fig,
    modified: Hlc,
    /// The first offset of the file's log that is not in it.
    until: Offset,
    /// The index made anew, once the one above was found damaged.
    mended: Arc<OnceLock<Fig>>,
}

impl std::fmt::Debug for FileView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inode = self.contents.inode.0;
        f.debug_struct("FileView").field("inode", &inode).field("length", &self.length()).finish()
    }
}

/// Bytes of a file that stand together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePiece {
    /// Where.
    pub range: Range<u64>,
    /// Them; `None` where nothing was written: they are zero.
    pub bytes: Option<Bytes>,
}

impl FileView {
    fn new(contents: &Arc<Contents>, index: &Index) -> FileView {
        FileView {
            contents: Arc::clone(contents),
            fig: index.fig.clone(),
            modified: index.modified,
            until: index.next,
            mended: Arc::default(),
        }
    }

    fn extents(&self, range: Range<u64>) -> Result<Vec<Extent>, FileError> {
        let read = |fig: &Fig| fig.read(&*self.contents, range.start, range.end, PIECES_MAX);
        match read(self.mended.get().unwrap_or(&self.fig)) {
            Err(damage @ FigError::Damaged { .. }) => {
                let mended = self.contents.mend(self.until, &damage.to_string())?;
                Ok(read(self.mended.get_or_init(|| mended))?)
            }
            found => Ok(found?),
        }
    }

    /// Which file.
    pub fn inode(&self) -> Inode {
        self.contents.inode
    }

    /// How long it is.
    pub fn length(&self) -> u64 {
        self.fig.length()
    }

    /// The first offset of the file's log that is not in it.
    pub(crate) fn until(&self) -> Offset {
        self.until
    }

    /// The stamp of the last entry that changed it; zero if none did.
    pub fn modified(&self) -> Hlc {
        self.modified
    }

    /// What is in `range`, in order and without gaps, as far as the file goes. Nothing that is in
    /// memory is copied. It may stop before the range's end: a range longer than [`READ_BYTES_MAX`],
    /// or of very many pieces, is asked for again from there.
    ///
    /// Blocks, if something has to be read from the disk.
    ///
    /// # Errors
    /// What is stored cannot be read.
    pub fn pieces(&self, range: Range<u64>) -> Result<Vec<FilePiece>, FileError> {
        let end = range.end.min(range.start.saturating_add(READ_BYTES_MAX as u64));
        let extents = self.extents(range.start..end)?;
        let mut recent: VecDeque<(Offset, Bytes)> = VecDeque::new();
        let mut pieces = Vec::with_capacity(extents.len());
        for extent in extents {
            let length = (extent.end - extent.start) as usize;
            let bytes = match extent.source {
                Source::Hole => None,
                Source::Entry { offset, skip } => {
                    Some(self.data(&mut recent, offset, skip as usize, length)?)
                }
            };
            pieces.push(FilePiece { range: extent.start..extent.end, bytes });
        }
        Ok(pieces)
    }

    /// The first byte at or after `offset` that was written, if `written`, or that was not; `None` if
    /// there is none before the end. The end of the file counts as not written.
    ///
    /// # Errors
    /// What is stored cannot be read.
    pub fn next(&self, offset: u64, written: bool) -> Result<Option<u64>, FileError> {
        let mut from = offset;
        while from < self.length() {
            let extents = self.extents(from..self.length())?;
            let found = extents.iter().find(|extent| (extent.source != Source::Hole) == written);
            if let Some(extent) = found {
                return Ok(Some(extent.start));
            }
            from = extents.last().map_or(self.length(), |last| last.end);
        }
        Ok((!written && offset < self.length()).then(|| self.length()))
    }

    fn data(
        &self,
        recent: &mut VecDeque<(Offset, Bytes)>,
        offset: Offset,
        skip: usize,
        length: usize,
    ) -> Result<Bytes, FileError> {
        let held = recent.iter().find(|(held, _)| *held == offset);
        if let Some((_, data)) = held.filter(|(_, data)| skip + length <= data.len()) {
            return Ok(data.slice(skip..skip + length));
        }
        let piece = self.contents.piece(offset)?;
        let (bytes, all) = read_data(&piece, skip, length)?;
        if let Some(all) = all {
            recent.push_back((offset, all));
            if recent.len() > RECENT_MAX {
                recent.pop_front();
            }
        }
        Ok(bytes)
    }

    /// The bytes from `offset` on, `length` of them, or fewer where the file ends before or `length`
    /// is more than [`READ_BYTES_MAX`]. Not copied where they were written at once and are in memory.
    ///
    /// Blocks, if something has to be read from the disk.
    ///
    /// # Errors
    /// What is stored cannot be read.
    pub fn read(&self, offset: u64, length: usize) -> Result<Bytes, FileError> {
        let end = offset.saturating_add(length.min(READ_BYTES_MAX) as u64).min(self.length());
        let mut next = offset;
        let mut bytes = BytesMut::new();
        while next < end {
            let mut pieces = self.pieces(next..end)?;
            if let [FilePiece { range, bytes: Some(all) }] = &mut pieces[..]
                && *range == (offset..end)
            {
                return Ok(std::mem::take(all));
            }
            bytes.reserve((end - next) as usize);
            for FilePiece { range, bytes: piece } in pieces {
                let zeros = (range.end - range.start) as usize;
                match piece {
                    Some(piece) => bytes.extend_from_slice(&piece),
                    None => bytes.resize(bytes.len() + zeros, 0),
                }
                next = range.end;
            }
        }
        Ok(bytes.freeze())
    }
}
