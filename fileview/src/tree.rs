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
mod names;
mod node;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::Engine;

pub use error::TreeError;
pub use names::{NAME_BYTES_MAX, PATH_BYTES_MAX, encode};
pub use node::{Kind, Listed, Node, Stat, TopicNode};

/// How the tree is kept.
#[derive(Clone, Copy, Debug)]
pub struct TreeOptions {
    /// How long a moment is waited for that is not past yet.
    pub patience: Duration,
    /// Whose everything is that nobody made as a file: user and group.
    pub owner: (u32, u32),
    /// How many bytes of memory may say where in a partition's text its records stand.
    pub index_bytes_max: usize,
    /// How many bytes of memory may say what the keys of topics are.
    pub key_bytes_max: usize,
}

impl Default for TreeOptions {
    fn default() -> TreeOptions {
        TreeOptions {
            patience: Duration::from_secs(5),
            owner: (0, 0),
            index_bytes_max: 16 << 20,
            key_bytes_max: 64 << 20,
        }
    }
}

/// The tree of an engine.
pub struct Tree {
    engine: Arc<Engine>,
    options: TreeOptions,
}

impl Tree {
    /// The tree of `engine`.
    pub fn new(engine: Arc<Engine>, options: TreeOptions) -> Tree {
        Tree { engine, options }
    }

    /// Where all paths begin.
    pub fn root(&self) -> Node {
        Node::Root(None)
    }

    /// What a name in a directory means. `..` and `.` are up to the caller.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn lookup(&self, parent: &Node, name: &[u8]) -> Result<Node, TreeError> {
        let _ = (parent, &self.engine, &self.options);
        Err(TreeError::NotFound(names::shown(name)))
    }

    /// What a path means: names with slashes between them, from the root. `..` is followed, and may
    /// not leave the tree; links are not followed. A moment behind the last name holds for the whole
    /// path: names on the way are resolved at it too.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn resolve(&self, path: &[u8]) -> Result<Node, TreeError> {
        let mut node = self.root();
        for name in names::steps(path)? {
            node = self.lookup(&node, name).await?;
        }
        Ok(node)
    }

    /// What is known of a node.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn stat(&self, node: &Node) -> Result<Stat, TreeError> {
        Err(TreeError::NotFound(format!("{node:?}")))
    }

    /// Names in a directory, those behind the cookie `after` (0 for all), about `max` of them; empty at
    /// the end. In no order that means anything, but in the same one always: a name that stays is
    /// listed once, whatever comes and goes meanwhile.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn list(
        &self,
        node: &Node,
        after: u64,
        max: usize,
    ) -> Result<Vec<Listed>, TreeError> {
        Err(TreeError::NotDirectory(format!("{node:?} {after} {max}")))
    }

    /// Opens what has bytes, and pins them. A present partition goes on growing.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn open(&self, node: &Node) -> Result<Open, TreeError> {
        Err(TreeError::IsDirectory(format!("{node:?}")))
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn read_link(&self, node: &Node) -> Result<Vec<u8>, TreeError> {
        Err(TreeError::Invalid(format!("it is no symbolic link. {node:?}")))
    }
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").finish_non_exhaustive()
    }
}

/// Something open: what it reads does not change, but for growing.
#[derive(Debug)]
pub struct Open {
    bytes: Bytes,
}

impl Open {
    /// Up to `length` bytes from `at` on; fewer only at the end, and none behind it.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn read(&self, at: u64, length: usize) -> Result<Bytes, TreeError> {
        let from = usize::try_from(at).unwrap_or(usize::MAX).min(self.bytes.len());
        Ok(self.bytes.slice(from..from.saturating_add(length).min(self.bytes.len())))
    }

    /// How many bytes there are by now.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn size(&self) -> Result<u64, TreeError> {
        Ok(self.bytes.len() as u64)
    }
}
