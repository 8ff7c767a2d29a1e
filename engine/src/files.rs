//! Files with overwrites: names, attributes and bytes, as they are and as they were at any moment.
//!
//! A file's bytes are a log of their own: a write is an entry, whatever its length and place, and the
//! file is what the entries make in their order. Over it stands a file interval tree
//! ([`storage::interval_tree`]), saved in the same log every [`FileOptions::checkpoint_entries`] entries and when
//! the file leaves memory. Names and attributes are events in one log for all files.
//!
//! What holds true of it:
//! - Each change is one entry, so it has one stamp, and a cut has all of it or nothing. Rename is one.
//! - A name is resolved at the moment that is asked for, and so are its bytes: what was renamed,
//!   overwritten or deleted since is found by the name that it had.
//! - Index and names are soft: made from the entries, by whoever looks first, and made anew where a
//!   checkpoint is damaged.
//!
//! Reading a moment that is not past yet is refused: settle it first ([`crate::Engine::wait_until_closed`]).
//! [`Cut::ALL`] is the present.

mod attributes;
mod change;
mod contents;
mod entry;
mod error;
mod event;
mod file;
mod lookup;
mod names;
mod open_files;
mod path;
mod rename;
mod view;
mod window;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hlc::Cut;
use storage::interval_tree::NodeCache;
use storage::{Offset, Store};
use tokio::sync::{Semaphore, oneshot};

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

use crate::append::EngineAppendStage;
use crate::engine::EngineState;
use contents::FileContents;
pub(crate) use event::{FILES_LOG, is_file_kind};
use names::FileNames;
pub(crate) use names::FileNamesFill;
use open_files::OpenFileTable;

/// How files are kept.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// After how many entries of a file its index is saved. A read of the past replays at most about
    /// as many, from the first 16 bytes of each, which may each be a read of the disk. The more, the
    /// less is written: of 10^5 random writes to one file, each costs 400 bytes of checkpoint where
    /// that is 64, 330 for 128, 260 for 256 and 145 for 1024. Sequential ones cost 6.
    pub checkpoint_entries: u64,
    /// How many closed files stay in memory.
    pub closed_max: usize,
    /// How many bytes of saved nodes stay in memory, for all files.
    pub node_bytes_max: usize,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions { checkpoint_entries: 128, closed_max: 256, node_bytes_max: 8 << 20 }
    }
}

struct FileSystemInner {
    store: Arc<Store<EngineAppendStage>>,
    names: FileNames,
    /// Held from looking at names until the change that follows is in the log.
    change_lock: Arc<tokio::sync::Mutex<()>>,
    in_flight: Arc<Semaphore>,
    in_flight_units: usize,
    open_files: OpenFileTable,
    nodes: Arc<NodeCache>,
    counters: Arc<FileCounters>,
    options: FileOptions,
    closing: AtomicBool,
}

/// All files.
#[derive(Clone)]
pub struct FileSystem(Arc<FileSystemInner>);

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").finish_non_exhaustive()
    }
}

impl FileSystem {
    pub(crate) fn open_all(
        store: Arc<Store<EngineAppendStage>>,
        shared: Arc<EngineState>,
        flight: (Arc<Semaphore>, usize),
        next: Offset,
        options: FileOptions,
    ) -> Result<FileSystem, FileError> {
        let names = FileNames::new(store.log(FILES_LOG)?, shared, next);
        Ok(FileSystem(Arc::new(FileSystemInner {
            store,
            names,
            change_lock: Arc::default(),
            in_flight: flight.0,
            in_flight_units: flight.1,
            open_files: OpenFileTable::new(options.closed_max),
            nodes: Arc::new(NodeCache::new(options.node_bytes_max)),
            counters: Arc::default(),
            options,
            closing: AtomicBool::new(false),
        })))
    }

    /// Holds up who looks for names, and says which event of files is the next to be applied.
    pub(crate) fn lock_names(&self) -> parking_lot::MutexGuard<'_, Offset> {
        self.0.names.lock_next()
    }

    /// Saves the index of every file in memory. Called before the store is closed, which completes
    /// what is on its way.
    pub(crate) fn close(&self) {
        self.0.closing.store(true, Ordering::Release);
        for contents in self.0.open_files.all() {
            self.0.save_checkpoint(&contents, 1);
        }
    }

    /// What files have cost since the start.
    pub fn counters(&self) -> &FileCounters {
        &self.0.counters
    }

    /// Bytes of memory that indexes hold: of files in memory, and of saved nodes.
    pub fn index_bytes(&self) -> usize {
        let own: usize = self.0.open_files.all().iter().map(|file| file.memory_bytes()).sum();
        own + self.0.nodes.bytes()
    }

    /// Names as of `cut`, complete.
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

    /// Everything that was written before, to any file or name, is on stable storage: also where the
    /// store does without syncs otherwise.
    ///
    /// # Errors
    /// The disk fails, or the service is stopping.
    pub async fn sync(&self) -> Result<(), FileError> {
        let (sender, receiver) = oneshot::channel();
        self.0.store.when_synced(move || {
            let _ = sender.send(());
        });
        let done = receiver.await.is_ok() && !self.0.closing.load(Ordering::Acquire);
        match self.0.store.stop_reason() {
            None if done => Ok(()),
            why => Err(FileError::Io(why.unwrap_or_else(|| "the service is stopping".into()))),
        }
    }
}

impl FileSystemInner {
    /// A checkpoint that cannot be made now is made later: it only saves time.
    fn save_checkpoint(&self, contents: &Arc<FileContents>, entries: u64) {
        if let Err(error) = contents.save_checkpoint(&self.store, entries) {
            tracing::warn!(%error, inode = contents.inode.0, "a file's index is not saved");
        }
    }
}
