//! A log seen as files: what a path names, and what the contents look like.
//!
//! It knows the grammar `TOPIC/PARTITION@MOMENT`, and how batches of records become bytes for a
//! reader: as they are, one value a line, or one JSON object a record. These do no I/O, and do not
//! know where batches come from: a server's socket, or its disk.
//!
//! [`tree`] is everything that a server holds as one tree of files, now and as of any moment: over the
//! engine, and without a mount.
//!
//! A cut by system time is a prefix of a partition, and asking for it is up to whoever fetches. A cut
//! by user time is in general no prefix; what is rendered here is the exact set ([`RecordSelection`]).

// The tests' rig names the crate from outside.
#[cfg(test)]
extern crate self as fileview;

pub mod base64;
pub mod fuse;
mod jsonl;
mod name;
mod path;
mod render;
mod selection;
pub mod tree;

pub use jsonl::{LineError, RecordLine};
pub use name::{PARTITION_MAX, TOPIC_NAME_BYTES_MAX, TopicNameError, check_topic};
pub use path::{PathError, ViewPath};
pub use render::{RecordRenderer, RenderError, RenderProgress, ViewFormat};
pub use selection::RecordSelection;
