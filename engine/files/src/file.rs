//! An open file: reading and writing its bytes.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use engine_core::{AppendNote, EngineError};
use hlc::{Cut, Hlc};
use storage::{AppendError, AppendReceipt, Durability, LogAppend, StorageError};
use tokio::sync::oneshot;

use super::FileSystem;
use super::contents::{FileContents, file_append};
use super::entry::{FileEntry, WRITE_BYTES_MAX};
use super::error::FileError;
use super::event::{FileKind, Inode};
use super::path::FileLocation;
use super::view::FileView;
use crate::interval_tree::FILE_BYTES_MAX;

impl FileSystem {
    /// Opens the file at a path, for reading and writing.
    ///
    /// # Errors
    /// The path does not exist, or is no file.
    pub fn open<'a>(&self, at: impl Into<FileLocation<'a>>) -> Result<OpenFile, FileError> {
        let inode = self.resolve(at, Cut::ALL)?;
        self.check_file(inode, Cut::ALL)?;
        self.open_contents(inode)
    }

    /// Opens a file by inode, even if it has no name any more.
    ///
    /// # Errors
    /// There is no such inode, or it is no file.
    pub fn open_inode(&self, inode: Inode) -> Result<OpenFile, FileError> {
        self.check_file(inode, Cut::ALL)?;
        self.open_contents(inode)
    }

    /// The file at a path, as of a moment.
    ///
    /// # Errors
    /// The path did not exist, or was no file.
    pub fn open_at<'a>(
        &self,
        at: impl Into<FileLocation<'a>>,
        cut: Cut,
    ) -> Result<FileView, FileError> {
        let inode = self.resolve(at, cut)?;
        self.check_file(inode, cut)?;
        self.view(inode, cut)
    }

    fn check_file(&self, inode: Inode, cut: Cut) -> Result<(), FileError> {
        match self.names(cut)?.record(inode, cut)?.1.kind {
            FileKind::File => Ok(()),
            FileKind::Directory => Err(FileError::IsDirectory(format!("inode {}", inode.0))),
            _ => Err(FileError::Invalid("it has no bytes")),
        }
    }

    pub(super) fn open_contents(&self, inode: Inode) -> Result<OpenFile, FileError> {
        let inner = &self.0;
        let contents = match inner.open_files.reopen(inode) {
            Some(contents) => contents,
            None => {
                let log = inner.store.log(inode.contents_log())?;
                let (nodes, counts) = (Arc::clone(&inner.nodes), Arc::clone(&inner.counters));
                inner.open_files.insert(FileContents::new(inode, log, nodes, counts))
            }
        };
        Ok(OpenFile { contents, files: self.clone() })
    }

    pub(super) fn view(&self, inode: Inode, cut: Cut) -> Result<FileView, FileError> {
        self.open_contents(inode)?.view_at(cut)
    }
}

/// An open file. It stays the same file, whatever happens to its name.
pub struct OpenFile {
    contents: Arc<FileContents>,
    files: FileSystem,
}

impl std::fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("inode", &self.contents.inode).finish_non_exhaustive()
    }
}

impl Clone for OpenFile {
    fn clone(&self) -> OpenFile {
        let contents = self.files.0.open_files.reopen(self.inode());
        let contents = contents.expect("what is held is in memory");
        OpenFile { contents, files: self.files.clone() }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let inner = &self.files.0;
        for contents in inner.open_files.close(self.contents.inode) {
            inner.save_checkpoint(&contents, 1);
        }
    }
}

impl OpenFile {
    pub fn inode(&self) -> Inode {
        self.contents.inode
    }

    /// Writes at an offset, which may be after the end: the gap then reads as zero. Returns the
    /// stamp.
    ///
    /// The write is atomic for every reader: a read sees all of it or nothing. Every read after
    /// this returns sees it.
    ///
    /// # Errors
    /// The write is longer than [`WRITE_BYTES_MAX`] or reaches too far; or the disk fails.
    pub async fn write_at(
        &self,
        offset: u64,
        data: Bytes,
        durability: Durability,
    ) -> Result<Hlc, FileError> {
        let length = data.len() as u64;
        let reach = offset.checked_add(length).filter(|reach| *reach <= FILE_BYTES_MAX);
        if data.len() > WRITE_BYTES_MAX || reach.is_none() {
            return Err(FileError::TooLarge { offset, length });
        }
        if data.is_empty() {
            return Ok(self.contents.present()?.modified());
        }
        self.append(FileEntry::write(offset, data), durability).await
    }

    /// Sets the length of the file: removes bytes after it, and fills up with zeroes. Returns the
    /// stamp.
    ///
    /// # Errors
    /// It is too long, or the disk fails.
    pub async fn truncate(&self, length: u64, durability: Durability) -> Result<Hlc, FileError> {
        if length > FILE_BYTES_MAX {
            return Err(FileError::TooLarge { offset: length, length: 0 });
        }
        self.append(FileEntry::truncate(length), durability).await
    }

    /// Makes the file at least `length` bytes long, without removing any bytes, even of concurrent
    /// writes. Returns the stamp; `None` if the file was long enough.
    ///
    /// # Errors
    /// As [`OpenFile::truncate`].
    pub async fn extend(
        &self,
        length: u64,
        durability: Durability,
    ) -> Result<Option<Hlc>, FileError> {
        if length > FILE_BYTES_MAX {
            return Err(FileError::TooLarge { offset: length, length: 0 });
        }
        loop {
            let present = self.contents.present()?;
            if present.length() >= length {
                return Ok(None);
            }
            // A concurrent write may have made it longer: the writer's thread checks.
            let (entry, note) =
                (FileEntry::truncate(length), AppendNote::IfLogEndsAt(present.until()));
            match self.append_with_note(entry, note, durability).await {
                Err(AppendError::Refused(EngineError::OffsetOutOfRange { .. })) => {}
                appended => return Ok(Some(appended.map_err(EngineError::from)?.stamp)),
            }
        }
    }

    /// Sets the bytes in `range` to zero, up to the end of the file. Returns the stamp.
    ///
    /// # Errors
    /// The range is empty or reaches too far; or the disk fails.
    pub async fn punch_hole(
        &self,
        range: Range<u64>,
        durability: Durability,
    ) -> Result<Hlc, FileError> {
        if range.is_empty() {
            return Err(FileError::Invalid("a hole has a length"));
        }
        if range.end > FILE_BYTES_MAX {
            let (offset, length) = (range.start, range.end - range.start);
            return Err(FileError::TooLarge { offset, length });
        }
        self.append(FileEntry::punch_hole(range), durability).await
    }

    async fn append(&self, entry: FileEntry, durability: Durability) -> Result<Hlc, FileError> {
        let appended = self
            .append_with_note(entry, AppendNote::Event, durability)
            .await
            .map_err(EngineError::from)?;
        Ok(appended.stamp)
    }

    async fn append_with_note(
        &self,
        entry: FileEntry,
        note: AppendNote,
        durability: Durability,
    ) -> Result<AppendReceipt, AppendError<EngineError>> {
        let inner = &self.files.0;
        let bytes = entry.payload.len();
        let flight = inner.append_budget.acquire(&inner.writer, bytes).await;
        let log = self.inode().contents_log();
        let append =
            LogAppend { note, ..file_append(log, entry.kind, entry.payload, entry.crc_from) };
        let (sender, receiver) = oneshot::channel();
        inner.store.append(vec![append], durability, move |mut results| {
            // The journal releases the grant: a caller that went away has not freed the room.
            drop(flight);
            let _ = sender.send(results.pop());
        });
        let stopping = || {
            AppendError::Storage(StorageError::Stopped { why: "the service is stopping".into() })
        };
        let appended = receiver.await.ok().flatten().ok_or_else(stopping)??;
        inner.save_checkpoint(&self.contents, inner.options.checkpoint_entries);
        Ok(appended)
    }

    /// The file as of `cut`; for [`Cut::ALL`], its current version.
    ///
    /// # Errors
    /// The moment is not past yet, the file did not exist yet, or stored data cannot be read.
    pub fn view_at(&self, cut: Cut) -> Result<FileView, FileError> {
        if cut == Cut::ALL {
            return self.contents.present();
        }
        self.files.names(cut)?.record(self.inode(), cut)?;
        self.contents.at(cut)
    }

    /// Bytes of the file as of `cut`: [`FileView::read`].
    ///
    /// # Errors
    /// As [`OpenFile::view_at`].
    pub fn read_at(&self, cut: Cut, offset: u64, length: usize) -> Result<Bytes, FileError> {
        self.view_at(cut)?.read(offset, length)
    }

    /// [`FileSystem::sync`].
    ///
    /// # Errors
    /// The disk fails, or the service is stopping.
    pub async fn sync(&self) -> Result<(), FileError> {
        self.files.sync().await
    }
}
