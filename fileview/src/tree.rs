//! Everything that a server holds, as one tree of files, now and as of any moment.
//!
//! ```text
//! topics/TOPIC/PARTITION.log       its batches, byte for byte
//! topics/TOPIC/PARTITION.values    each value and a newline
//! topics/TOPIC/PARTITION.jsonl     one JSON object a record and line
//! topics/TOPIC/by-key/KEY          the newest value of a key, as it is
//! offsets/GROUP/TOPIC/PARTITION    a committed offset, and a newline
//! files/…                          general files
//! znodes/PATH/data                 the data of a znode
//! .at/MOMENT/…                     all of this as of a moment, or in a window
//! .at/PIN                          a link to a pin's moment
//! NAME@MOMENT                      the same of one topic, partition or file
//! ```
//! These properties hold:
//! - A size is exact before anything is read. A reader that reads to the end gets that many bytes.
//! - A lookup resolves a moment to a final one. The contents of that moment never change: a read
//!   returns the same bytes or an error. Names are resolved at the moment too, so a topic that was
//!   deleted later is there.
//! - An open node is pinned. Bytes do not move under a reader when retention or compaction removes
//!   records. If the bytes are no longer available, the read fails. The present only grows.
//! - By user time, a partition is the exact set of records, wherever they stand in the log. This
//!   set is not a prefix, and it is not causally closed across partitions. If the moment does not
//!   say as of when it is known, it is known as of the frontier at the first lookup here.
//! - Memory is bounded ([`TreeOptions`]), whatever the size of partitions and the number of keys.
//!
//! If a name exists that itself contains an `@`, it takes precedence over a moment.
//!
//! Reads that wait for the disk leave their thread to other tasks ([`engine::blocking`]). Nothing
//! here writes. General files are written through [`Engine::files`].

mod error;
mod guard;
mod key_pages;
mod keys;
mod list;
mod lookup;
mod moments;
mod names;
mod node;
mod open;
mod raw;
mod record_pages;
mod scan;
mod semaphore;
mod stat;
mod text;
mod value;
mod version;
mod znodes;

#[cfg(test)]
#[path = "../tests/fixture.rs"]
mod fixture;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use engine::files::FileTime;
use engine::{Engine, Isolation, LruCache};
use hlc::Hlc;

pub use error::TreeError;
pub use guard::{GuardedPlace, TreeGuard};
pub use key_pages::{KeysCursor, KeysPage};
pub(crate) use names::has_fixed_moment;
pub use names::{NAME_BYTES_MAX, PATH_BYTES_MAX, check_path, encode};
pub use node::{TopicNode, ViewEntry, ViewNode, ViewNodeKind, ViewStat};
pub use open::OpenNode;
pub use record_pages::{RecordsCursor, RecordsQuery, TakeRecord};
pub use znodes::ZnodeNode;

use keys::KeyTableCache;
use moments::UserTimeCuts;
use text::TextCache;
use value::LastValue;

/// The limits and defaults of a tree.
#[derive(Clone, Copy, Debug)]
pub struct TreeOptions {
    /// The longest time that a lookup waits for a moment that is not final yet.
    pub patience: Duration,
    /// The user and group that own everything that is not a stored file.
    pub owner: (u32, u32),
    /// The memory for text indexes, in bytes. They map the offsets of a partition to positions in
    /// its text.
    pub index_bytes_max: usize,
    /// The least distance between two index entries, in bytes of text. A read renders about this
    /// many bytes more than it returns.
    pub index_spacing_bytes: u64,
    /// The memory for key tables, in bytes. If a topic has more keys than fit, the tree finds them
    /// in several passes.
    pub key_bytes_max: usize,
}

impl Default for TreeOptions {
    fn default() -> TreeOptions {
        TreeOptions {
            patience: Duration::from_secs(5),
            owner: (0, 0),
            index_bytes_max: 16 << 20,
            index_spacing_bytes: 256 << 10,
            key_bytes_max: 64 << 20,
        }
    }
}

/// The tree of an engine. It shows what is committed ([`ViewTree::with_isolation`]).
#[derive(Clone)]
pub struct ViewTree {
    engine: Arc<Engine>,
    options: TreeOptions,
    isolation: Isolation,
    /// The guard of the user; `None` if all is shown.
    guard: Option<Arc<dyn TreeGuard>>,
    /// The cuts of user-time moments: as of when each is known.
    user_time_cuts: Arc<UserTimeCuts>,
    texts: TextCache,
    key_tables: Arc<KeyTableCache>,
    /// The number of bytes of batches that one call scans for a key.
    key_scan_bytes_max: Option<u64>,
    last_value: LastValue,
    /// A random seed of the hash, so that a producer cannot choose keys that collide.
    seed: u64,
    /// The creation time of nodes that have no time of their own.
    started_at: FileTime,
}

impl ViewTree {
    /// Creates the tree of `engine`.
    pub fn new(engine: Arc<Engine>, options: TreeOptions) -> ViewTree {
        let since = Hlc::at(engine.wall_now()).into();
        ViewTree {
            engine,
            options,
            isolation: Isolation::Committed,
            guard: None,
            user_time_cuts: Arc::default(),
            texts: Arc::new(LruCache::new(options.index_bytes_max)),
            key_tables: Arc::new(KeyTableCache::new(options.key_bytes_max)),
            key_scan_bytes_max: None,
            last_value: LastValue::default(),
            seed: RandomState::new().hash_one(0),
            started_at: since,
        }
    }

    /// The same tree, where one call scans at most this many bytes of batches for a key.
    ///
    /// If the key is not found by then, the call returns [`TreeError::Unfinished`]. The same call
    /// then continues from there.
    #[must_use]
    pub fn with_key_scan_limit(&self, bytes_max: u64) -> ViewTree {
        ViewTree { key_scan_bytes_max: Some(bytes_max), ..self.clone() }
    }

    /// The same tree, with the records of the transactions that `isolation` names. Its memory is in
    /// the same limits.
    #[must_use]
    pub fn with_isolation(&self, isolation: Isolation) -> ViewTree {
        ViewTree { isolation, ..self.clone() }
    }

    /// The same tree, as far as `guard` shows it.
    #[must_use]
    pub fn with_guard(&self, guard: Arc<dyn TreeGuard>) -> ViewTree {
        ViewTree { guard: Some(guard), ..self.clone() }
    }

    fn check(&self, place: GuardedPlace<'_>) -> Result<(), TreeError> {
        self.guard.as_ref().map_or(Ok(()), |guard| guard.check(place))
    }

    fn is_shown(&self, place: GuardedPlace<'_>) -> bool {
        self.check(place).is_ok()
    }

    /// The root of all paths.
    pub fn root(&self) -> ViewNode {
        ViewNode::Root(None)
    }
}

impl std::fmt::Debug for ViewTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").finish_non_exhaustive()
    }
}
