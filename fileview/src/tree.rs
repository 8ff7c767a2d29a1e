//! Everything that a server holds, as one tree of files; now, and as of any moment.
//!
//! ```text
//! topics/TOPIC/PARTITION.log       its batches, byte for byte
//! topics/TOPIC/PARTITION.values    each value and a newline
//! topics/TOPIC/PARTITION.jsonl     one JSON object a record and line
//! topics/TOPIC/by-key/KEY          the newest value of a key, as it is
//! offsets/GROUP/TOPIC/PARTITION    a committed offset, and a newline
//! files/…                          general files
//! .at/MOMENT/…                     all of this as of a moment, or in a window
//! .at/PIN                          a link to a pin's moment
//! NAME@MOMENT                      the same of one topic, partition or file
//! ```
//! What holds true of it:
//! - A size is exact before anything is read: who reads to the end finds so many bytes.
//! - A moment is settled when it is looked up, and what it shows is the same for ever, or an error.
//!   Names are resolved at the moment too: a topic that was deleted since is there.
//! - What is opened is pinned: bytes do not move under a reader, whatever is given up or compacted
//!   meanwhile; where they cannot be given any more, that is an error. The present only grows.
//! - By user time a partition is the exact set of records, wherever in the log they stand; it is no
//!   prefix, and not causally closed across partitions. As known when it does not say: as of the
//!   frontier when the moment was first looked up here.
//! - Memory is bounded ([`TreeOptions`]), whatever the size of partitions and the number of keys.
//!
//! A name that holds an `@` of its own wins over a moment.
//!
//! Reading leaves threads to others while it waits for the disk ([`engine::blocking`]). Nothing here
//! writes: general files are written through [`Engine::files`].

mod error;
mod key_pages;
mod keys;
mod list;
mod lookup;
mod lru_cache;
mod moments;
mod names;
mod node;
mod open;
mod raw;
mod scan;
mod semaphore;
mod stat;
mod text;
mod value;
mod version;

#[cfg(test)]
#[path = "../tests/rig/mod.rs"]
mod rig;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use engine::Engine;
use engine::files::FileTime;
use hlc::Hlc;

pub use error::TreeError;
pub use key_pages::{KeysCursor, KeysPage};
pub use names::{NAME_BYTES_MAX, PATH_BYTES_MAX, encode};
pub use node::{TopicNode, ViewEntry, ViewNode, ViewNodeKind, ViewStat};
pub use open::OpenNode;

use keys::KeyTableCache;
use lru_cache::WeightedLruCache;
use moments::UserTimeCuts;
use text::TextCache;
use value::LastValue;

/// How the tree is kept.
#[derive(Clone, Copy, Debug)]
pub struct TreeOptions {
    /// How long a moment is waited for that is not past yet.
    pub patience: Duration,
    /// Whose everything is that nobody made as a file: user and group.
    pub owner: (u32, u32),
    /// How many bytes of memory may say where in a partition's text its records stand.
    pub index_bytes_max: usize,
    /// How many bytes of text lie between two such places, at least: a read renders about as many more
    /// than it was asked for.
    pub index_spacing_bytes: u64,
    /// How many bytes of memory may say what the keys of topics are. Where a topic has more, they are
    /// found in several passes.
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

/// The tree of an engine.
pub struct ViewTree {
    engine: Arc<Engine>,
    options: TreeOptions,
    /// Moments of user time, and as known when.
    user_time_cuts: Arc<UserTimeCuts>,
    texts: TextCache,
    key_tables: Arc<KeyTableCache>,
    /// How many bytes of batches one call looks through for a key.
    key_scan_bytes_max: Option<u64>,
    last_value: LastValue,
    /// Keeps a producer from choosing keys that crowd one place.
    seed: u64,
    /// When what has no time of its own was made.
    started_at: FileTime,
}

impl ViewTree {
    /// The tree of `engine`.
    pub fn new(engine: Arc<Engine>, options: TreeOptions) -> ViewTree {
        let since = Hlc::at(engine.wall_now()).into();
        ViewTree {
            engine,
            options,
            user_time_cuts: Arc::default(),
            texts: Arc::new(WeightedLruCache::new(options.index_bytes_max)),
            key_tables: Arc::new(KeyTableCache::new(options.key_bytes_max)),
            key_scan_bytes_max: None,
            last_value: LastValue::default(),
            seed: RandomState::new().hash_one(0),
            started_at: since,
        }
    }

    /// The same tree, where one call looks through so many bytes of batches for a key. What is not found
    /// by then is [`TreeError::Unfinished`], and the same call goes on from there.
    #[must_use]
    pub fn with_key_scan_limit(&self, bytes_max: u64) -> ViewTree {
        ViewTree {
            engine: Arc::clone(&self.engine),
            options: self.options,
            user_time_cuts: Arc::clone(&self.user_time_cuts),
            texts: Arc::clone(&self.texts),
            key_tables: Arc::clone(&self.key_tables),
            key_scan_bytes_max: Some(bytes_max),
            last_value: Arc::clone(&self.last_value),
            seed: self.seed,
            started_at: self.started_at,
        }
    }

    /// Where all paths begin.
    pub fn root(&self) -> ViewNode {
        ViewNode::Root(None)
    }
}

impl std::fmt::Debug for ViewTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").finish_non_exhaustive()
    }
}
