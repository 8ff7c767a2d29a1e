//! A file as of one moment: its length and its bytes.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use hlc::Hlc;
use storage::{EntryPayload, Offset};

use super::contents::{FileContents, FileIndex};
use super::entry::{DataBlock, read_data};
use super::error::FileError;
use super::event::Inode;
use super::window::EntryWindow;
use crate::interval_tree::{Extent, ExtentSource, FileIntervalTree, IntervalTreeError};

/// The longest read, in bytes; a longer read is cut short.
pub const READ_BYTES_MAX: usize = 16 << 20;
/// The most extents of one read; a read with more is cut short.
const EXTENTS_MAX: usize = 1 << 14;

/// A file as of one moment. It does not change.
#[derive(Clone)]
pub struct FileView {
    contents: Arc<FileContents>,
    tree: FileIntervalTree,
    modified: Hlc,
    /// The first offset of the file's log that the view does not have.
    until: Offset,
    /// The rebuilt index, once the one above was found corrupt.
    rebuilt_tree: Arc<OnceLock<FileIntervalTree>>,
}

impl std::fmt::Debug for FileView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inode = self.contents.inode.0;
        f.debug_struct("FileView").field("inode", &inode).field("length", &self.length()).finish()
    }
}

/// Contiguous bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// The byte range.
    pub range: Range<u64>,
    /// The bytes; `None` where nothing was written: they read as zero.
    pub bytes: Option<Bytes>,
}

impl FileView {
    pub(super) fn new(contents: &Arc<FileContents>, index: &FileIndex) -> FileView {
        FileView {
            contents: Arc::clone(contents),
            tree: index.tree.clone(),
            modified: index.modified,
            until: index.next,
            rebuilt_tree: Arc::default(),
        }
    }

    fn tree_extents(&self, range: Range<u64>) -> Result<Vec<Extent>, FileError> {
        let read =
            |fig: &FileIntervalTree| fig.read(&*self.contents, range.start, range.end, EXTENTS_MAX);
        match read(self.rebuilt_tree.get().unwrap_or(&self.tree)) {
            Err(damage @ IntervalTreeError::Corrupt { .. }) => {
                let mended = self.contents.rebuild_present(self.until, &damage.to_string())?;
                Ok(read(self.rebuilt_tree.get_or_init(|| mended))?)
            }
            result => Ok(result?),
        }
    }

    pub fn inode(&self) -> Inode {
        self.contents.inode
    }

    /// The length in bytes.
    pub fn length(&self) -> u64 {
        self.tree.length()
    }

    /// The first offset of the file's log that the view does not have.
    pub(crate) fn until(&self) -> Offset {
        self.until
    }

    /// The stamp of the last entry that changed it; zero if none did.
    pub fn modified(&self) -> Hlc {
        self.modified
    }

    /// The extents of `range`, in order and without gaps, up to the end of the file. Bytes in
    /// memory are not copied.
    ///
    /// The result may stop before the range's end: for a range longer than [`READ_BYTES_MAX`], or
    /// of very many extents, the caller reads again from there.
    ///
    /// Blocks, if something has to be read from the disk.
    ///
    /// # Errors
    /// Stored data cannot be read.
    pub fn read_extents(&self, range: Range<u64>) -> Result<Vec<FileExtent>, FileError> {
        let end = range.end.min(range.start.saturating_add(READ_BYTES_MAX as u64));
        let extents = self.tree_extents(range.start..end)?;
        let hole = |extent: &Extent| FileExtent { range: extent.start..extent.end, bytes: None };
        let mut pieces: Vec<FileExtent> = extents.iter().map(hole).collect();
        self.for_each_extent(&extents, &mut |nth, block, within| {
            pieces[nth].bytes = Some(block.copy_range(within));
        })?;
        Ok(pieces)
    }

    /// Calls back with the bytes of each written extent of `extents` and its index in the list. The
    /// order is that of the entries: a block that several extents need is read once, and only the
    /// requested bytes are held longer.
    fn for_each_extent(
        &self,
        extents: &[Extent],
        each: &mut dyn FnMut(usize, &DataBlock, Range<usize>),
    ) -> Result<(), FileError> {
        let written = |(nth, extent): (usize, &Extent)| match extent.source {
            ExtentSource::Hole => None,
            ExtentSource::Entry { offset, skip } => {
                let (from, length) = (skip as usize, (extent.end - extent.start) as usize);
                Some((offset, from, from + length, nth))
            }
        };
        let mut pieces: Vec<_> = extents.iter().enumerate().filter_map(written).collect();
        pieces.sort_unstable();
        let offsets: Vec<Offset> = pieces.iter().map(|(offset, ..)| *offset).collect();
        let mut window = EntryWindow::new(&self.contents);
        let mut cached: Option<(Offset, DataBlock)> = None;
        for (index, (offset, from, to, nth)) in pieces.into_iter().enumerate() {
            let at_hand = cached.take().filter(|(entry, _)| *entry == offset);
            let block = match at_hand.filter(|(_, block)| block.contains(from..to)) {
                Some((_, block)) => block,
                None => self.load_block(&window.next_payload(&offsets[index..])?, from..to)?,
            };
            each(nth, &block, from..to);
            cached = Some((offset, block));
        }
        Ok(())
    }

    fn load_block(
        &self,
        piece: &EntryPayload,
        within: Range<usize>,
    ) -> Result<DataBlock, FileError> {
        let block = read_data(piece, within)?;
        if block.bytes_read() > 0 {
            self.contents.count_read(block.bytes_read());
        }
        Ok(block)
    }

    /// The first byte at or after `offset` that was written, if `written`, or that was not; `None`
    /// if there is none before the end. The end of the file counts as not written.
    ///
    /// # Errors
    /// Stored data cannot be read.
    pub fn seek_data_or_hole(&self, offset: u64, written: bool) -> Result<Option<u64>, FileError> {
        let mut from = offset;
        while from < self.length() {
            let extents = self.tree_extents(from..self.length())?;
            let extent =
                extents.iter().find(|extent| (extent.source != ExtentSource::Hole) == written);
            if let Some(extent) = extent {
                return Ok(Some(extent.start));
            }
            from = extents.last().map_or(self.length(), |last| last.end);
        }
        Ok((!written && offset < self.length()).then(|| self.length()))
    }

    /// Up to `length` bytes from `offset` on; fewer where the file ends before, or where `length`
    /// is more than [`READ_BYTES_MAX`]. Bytes of a single write that are in memory are not copied.
    ///
    /// Blocks, if something has to be read from the disk.
    ///
    /// # Errors
    /// Stored data cannot be read.
    pub fn read(&self, offset: u64, length: usize) -> Result<Bytes, FileError> {
        let end = offset.saturating_add(length.min(READ_BYTES_MAX) as u64).min(self.length());
        let mut bytes = BytesMut::new();
        let mut next = offset;
        while next < end {
            let extents = self.tree_extents(next..end)?;
            let whole = extents.len() == 1 && extents[0].end - extents[0].start == end - offset;
            if !whole {
                bytes.resize((end - offset) as usize, 0);
            }
            let mut only = None;
            self.for_each_extent(&extents, &mut |nth, block, within| {
                if whole {
                    only = Some(block.copy_range(within));
                } else {
                    let piece = block.bytes(within);
                    let at = (extents[nth].start - offset) as usize;
                    bytes[at..at + piece.len()].copy_from_slice(piece);
                }
            })?;
            if let Some(only) = only {
                return Ok(only);
            }
            next = extents.last().map_or(end, |last| last.end);
        }
        bytes.resize((end.saturating_sub(offset)) as usize, 0);
        Ok(bytes.freeze())
    }
}
