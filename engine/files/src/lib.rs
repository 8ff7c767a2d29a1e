//! Files with overwrites: names, attributes and bytes, now and as of any moment.
//!
//! A file's bytes are a log of their own: a write is an entry, whatever its length and offset, and
//! the file is the result of its entries in order. A file interval tree indexes it
//! ([`interval_tree`]). The tree is saved in the same log every
//! [`FileOptions::checkpoint_entries`] entries and when the file leaves memory. Names and
//! attributes are events in one log for all files.
//!
//! Invariants:
//! - Each change is one entry, so it has one stamp, and a cut has all of it or nothing. A rename is
//!   one entry.
//! - A name is resolved as of the requested moment, and so are its bytes: a file that was renamed,
//!   overwritten or deleted since is found by its old name.
//! - Index and names are soft: the first reader builds them from the entries, and rebuilds them
//!   where a checkpoint is corrupt.
//!
//! A read at a moment that is not past yet is refused: call [`EngineCore::wait_until_closed`]
//! first. [`Cut::ALL`] is the present.

#![forbid(unsafe_code)]

mod attributes;
mod change;
mod contents;
mod entry;
mod error;
mod event;
mod file;
pub mod interval_tree;
mod lookup;
mod names;
mod open_files;
mod path;
mod rename;
mod view;
mod window;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use admission::Holder;
use hlc::Cut;
use storage::catalog::Catalog;
use tokio::sync::oneshot;

use crate::interval_tree::NodeCache;

pub use attributes::{FileAttributes, FilePermissions};
pub use contents::FileCounters;
pub use entry::WRITE_BYTES_MAX;
pub use error::FileError;
pub use event::{AttributeUpdate, FileKind, FileTime, Inode, NAME_BYTES_MAX, TouchTimes};
pub use file::OpenFile;
pub use names::DirectoryEntry;
pub use path::FileLocation;
pub use rename::RenameMode;
pub use view::{FileExtent, FileView, READ_BYTES_MAX};

use contents::FileContents;
use engine_core::numbering::FILES_LOG;
use engine_core::projection::{CatalogFillError, ProjectionFill, ReaderProjection};
use engine_core::{AppendBudget, EngineCore, EngineStore};
use names::FileNames;
use open_files::OpenFileTable;

#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// The number of entries of a file after which its index is saved.
    ///
    /// A read of the past replays at most about as many, from the first 16 bytes of each, and each
    /// may be a read of the disk. A larger number writes less: of 10^5 random writes to one file,
    /// each costs 400 bytes of checkpoint at 64 entries, 330 at 128, 260 at 256 and 145 at 1024.
    /// Sequential ones cost 6.
    pub checkpoint_entries: u64,
    /// The most closed files that stay in memory.
    pub closed_max: usize,
    /// The most bytes of saved nodes that stay in memory, for all files.
    pub node_bytes_max: usize,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions { checkpoint_entries: 128, closed_max: 256, node_bytes_max: 8 << 20 }
    }
}

struct FileSystemInner {
    store: Arc<EngineStore>,
    names: FileNames,
    /// Held from the first read of names until the change that follows is in the log.
    change_lock: Arc<tokio::sync::Mutex<()>>,
    append_budget: AppendBudget,
    /// One account for the writes of all users.
    writer: Holder,
    open_files: OpenFileTable,
    nodes: Arc<NodeCache>,
    counters: Arc<FileCounters>,
    options: FileOptions,
    closing: AtomicBool,
}

#[derive(Clone)]
pub struct FileSystem(Arc<FileSystemInner>);

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").finish_non_exhaustive()
    }
}

impl FileSystem {
    /// The files of an engine, which starts with [`FileSystem::projection`] as one of its wings.
    ///
    /// # Errors
    /// Their log cannot be opened.
    pub fn of_engine(core: &EngineCore, options: FileOptions) -> Result<FileSystem, FileError> {
        let store = Arc::clone(core.store());
        let names = FileNames::new(store.log(FILES_LOG)?, Arc::clone(core.catalog()));
        Ok(FileSystem(Arc::new(FileSystemInner {
            store,
            names,
            change_lock: Arc::default(),
            append_budget: core.append_budget().clone(),
            writer: Holder::principal("files", false),
            open_files: OpenFileTable::new(options.closed_max),
            nodes: Arc::new(NodeCache::new(options.node_bytes_max)),
            counters: Arc::default(),
            options,
            closing: AtomicBool::new(false),
        })))
    }

    /// Names and attributes in the catalog.
    pub fn projection(&self) -> Box<dyn ReaderProjection> {
        Box::new(FilesProjection(self.clone()))
    }

    /// Saves the index of every file in memory. Called before the store is closed, which completes
    /// what is in flight.
    pub fn close(&self) {
        self.0.closing.store(true, Ordering::Release);
        for contents in self.0.open_files.all() {
            self.0.save_checkpoint(&contents, 1);
        }
    }

    /// Counters of the cost of files since the start.
    pub fn counters(&self) -> &FileCounters {
        &self.0.counters
    }

    /// The memory of indexes: of files in memory, and of saved nodes.
    pub fn index_bytes(&self) -> usize {
        let file_bytes: usize =
            self.0.open_files.all().iter().map(|file| file.memory_bytes()).sum();
        file_bytes + self.0.nodes.bytes()
    }

    /// The names as of `cut`, after all events are applied.
    fn names(&self, cut: Cut) -> Result<&FileNames, FileError> {
        if cut != Cut::ALL {
            let frontier = self.0.store.timekeeper().frontier();
            if !cut.is_closed_by(frontier) {
                return Err(FileError::NotYet { cut, frontier });
            }
        }
        self.0.names.catch_up()?;
        Ok(&self.0.names)
    }

    /// Syncs everything that was written before, to any file or name, to stable storage, even if
    /// the store omits syncs otherwise.
    ///
    /// # Errors
    /// The disk fails, or the service is stopping.
    pub async fn sync(&self) -> Result<(), FileError> {
        let (sender, receiver) = oneshot::channel();
        self.0.store.when_synced(move || {
            let _ = sender.send(());
        });
        let is_synced = receiver.await.is_ok() && !self.0.closing.load(Ordering::Acquire);
        match self.0.store.stop_reason() {
            None if is_synced => Ok(()),
            why => Err(FileError::Io(why.unwrap_or_else(|| "the service is stopping".into()))),
        }
    }
}

impl FileSystemInner {
    /// A failed checkpoint is retried later: it only saves time.
    fn save_checkpoint(&self, contents: &Arc<FileContents>, entries: u64) {
        if let Err(error) = contents.save_checkpoint(&self.store, entries) {
            tracing::warn!(%error, inode = contents.inode.0, "a file's index is not saved");
        }
    }
}

/// Names and attributes, as a projection of the files' log into the catalog.
struct FilesProjection(FileSystem);

impl ReaderProjection for FilesProjection {
    fn begin_fill(
        &self,
        catalog: &Arc<Catalog>,
    ) -> Result<Box<dyn ProjectionFill + '_>, CatalogFillError> {
        Ok(Box::new(self.0.0.names.begin_fill(Arc::clone(catalog))?))
    }
}
