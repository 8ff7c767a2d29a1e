//! What there is in the tree: a node says what it is, and as of which moment. It holds nothing open.

use std::sync::Arc;

use engine::TopicId;
use engine::files::{FileKind, FileTime, Inode};
use hlc::{Ask, Cut};
use xxhash_rust::xxh3::xxh3_64;

use crate::Format;

/// A topic in the tree: its name, which of those that had it, and as of when. `None` is now.
///
/// A moment in a node is absolute, and past: nothing can enter it any more.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TopicNode {
    /// Its name.
    pub name: Arc<str>,
    /// Its id.
    pub id: TopicId,
    /// As of when.
    pub at: Option<Ask>,
}

/// One file, directory or link of the tree.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Node {
    /// `/`, or `/.at/MOMENT`.
    Root(Option<Ask>),
    /// `/.at`.
    Moments,
    /// `/.at/PIN`, a link to the pin's moment.
    Pin(Arc<str>),
    /// `topics`.
    Topics(Option<Ask>),
    /// `topics/TOPIC`.
    Topic(TopicNode),
    /// `topics/TOPIC/PARTITION.FORMAT`.
    Partition {
        /// Whose.
        topic: TopicNode,
        /// Which.
        partition: u32,
        /// What its contents look like.
        format: Format,
    },
    /// `topics/TOPIC/by-key`.
    Keys(TopicNode),
    /// `topics/TOPIC/by-key/KEY`: the newest value of a key.
    Key {
        /// In which topic.
        topic: TopicNode,
        /// Its bytes.
        key: Arc<[u8]>,
    },
    /// `offsets`.
    Groups(Option<Ask>),
    /// `offsets/GROUP`.
    Group {
        /// Its name.
        group: Arc<str>,
        /// As of when.
        at: Option<Ask>,
    },
    /// `offsets/GROUP/TOPIC`.
    GroupTopic {
        /// The group.
        group: Arc<str>,
        /// The topic.
        topic: Arc<str>,
        /// As of when.
        at: Option<Ask>,
    },
    /// `offsets/GROUP/TOPIC/PARTITION`.
    Committed {
        /// The group.
        group: Arc<str>,
        /// The topic.
        topic: Arc<str>,
        /// The partition.
        partition: u32,
        /// As of when.
        at: Option<Ask>,
    },
    /// `files`, and everything below.
    File {
        /// Which; [`Inode::ROOT`] is `files` itself.
        inode: Inode,
        /// As of when.
        cut: Option<Cut>,
    },
}

/// What a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It has names.
    Directory,
    /// It has bytes.
    File,
    /// It leads elsewhere.
    Symlink,
    /// A pipe, socket or device among the files.
    Other(FileKind),
}

impl From<FileKind> for Kind {
    fn from(kind: FileKind) -> Kind {
        match kind {
            FileKind::File => Kind::File,
            FileKind::Directory => Kind::Directory,
            FileKind::Symlink => Kind::Symlink,
            other => Kind::Other(other),
        }
    }
}

/// What is known of a node without its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// What it is.
    pub kind: Kind,
    /// How many bytes a reader finds: exact.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// How many names it has.
    pub links: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// When its bytes changed last.
    pub modified: FileTime,
    /// When anything of it changed last.
    pub changed: FileTime,
    /// Reads leave no trace: when it was modified.
    pub accessed: FileTime,
    /// When it was made.
    pub created: FileTime,
    /// Of 512 bytes.
    pub blocks: u64,
    /// The same for the same node, for ever; a file's own number, for files of the present.
    pub inode: u64,
    /// Whether its size may change: it shows the present.
    pub grows: bool,
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Give it to [`crate::tree::Tree::list`] to go on behind this one. From 16 up, and below 2^63.
    pub cookie: u64,
    /// The name; POSIX knows no encoding.
    pub name: Vec<u8>,
    /// What it means.
    pub node: Node,
    /// What that is.
    pub kind: Kind,
}

impl Node {
    /// What it is. `None` for one of [`Node::File`], which only its attributes can tell.
    pub fn kind(&self) -> Option<Kind> {
        match self {
            Node::Partition { .. } | Node::Key { .. } | Node::Committed { .. } => Some(Kind::File),
            Node::Pin(_) => Some(Kind::Symlink),
            Node::File { inode: Inode::ROOT, .. } => Some(Kind::Directory),
            Node::File { .. } => None,
            _ => Some(Kind::Directory),
        }
    }

    /// Whether it shows the present, which changes.
    pub fn is_present(&self) -> bool {
        match self {
            Node::Moments | Node::Pin(_) => true,
            Node::Root(at) | Node::Topics(at) | Node::Groups(at) => at.is_none(),
            Node::Group { at, .. } | Node::GroupTopic { at, .. } | Node::Committed { at, .. } => {
                at.is_none()
            }
            Node::Topic(topic) | Node::Keys(topic) => topic.at.is_none(),
            Node::Partition { topic, .. } | Node::Key { topic, .. } => topic.at.is_none(),
            Node::File { cut, .. } => cut.is_none(),
        }
    }

    /// A number that is the same for the same node in every life of the server.
    pub fn inode(&self) -> u64 {
        /// Numbers of files are far below.
        const MADE: u64 = 1 << 63;
        match self {
            Node::Root(None) => 1,
            Node::File { inode, cut: None } if *inode != Inode::ROOT => inode.0,
            node => xxh3_64(&node.to_bytes()) | MADE,
        }
    }

    /// What tells it from all others.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let at = |bytes: &mut Vec<u8>, at: &Option<Ask>| {
            part(bytes, at.map_or_else(String::new, |ask| ask.to_string()).as_bytes());
        };
        match self {
            Node::Root(moment) | Node::Topics(moment) | Node::Groups(moment) => {
                at(&mut bytes, moment);
            }
            Node::Moments => {}
            Node::Pin(name) => part(&mut bytes, name.as_bytes()),
            Node::Topic(topic) | Node::Keys(topic) => {
                part(&mut bytes, &topic.id);
                at(&mut bytes, &topic.at);
            }
            Node::Partition { topic, partition, format } => {
                part(&mut bytes, &topic.id);
                at(&mut bytes, &topic.at);
                bytes.extend_from_slice(&partition.to_le_bytes());
                bytes.push(*format as u8);
            }
            Node::Key { topic, key } => {
                part(&mut bytes, &topic.id);
                at(&mut bytes, &topic.at);
                part(&mut bytes, key);
            }
            Node::Group { group, at: moment } => {
                part(&mut bytes, group.as_bytes());
                at(&mut bytes, moment);
            }
            Node::GroupTopic { group, topic, at: moment } => {
                part(&mut bytes, group.as_bytes());
                part(&mut bytes, topic.as_bytes());
                at(&mut bytes, moment);
            }
            Node::Committed { group, topic, partition, at: moment } => {
                part(&mut bytes, group.as_bytes());
                part(&mut bytes, topic.as_bytes());
                bytes.extend_from_slice(&partition.to_le_bytes());
                at(&mut bytes, moment);
            }
            Node::File { inode, cut } => {
                bytes.extend_from_slice(&inode.0.to_le_bytes());
                bytes.extend(cut.iter().flat_map(|cut| cut.bound().bits().to_le_bytes()));
            }
        }
        bytes.push(self.number());
        bytes
    }

    /// Of its kind of node.
    fn number(&self) -> u8 {
        match self {
            Node::Root(_) => 0,
            Node::Moments => 1,
            Node::Pin(_) => 2,
            Node::Topics(_) => 3,
            Node::Topic(_) => 4,
            Node::Partition { .. } => 5,
            Node::Keys(_) => 6,
            Node::Key { .. } => 7,
            Node::Groups(_) => 8,
            Node::Group { .. } => 9,
            Node::GroupTopic { .. } => 10,
            Node::Committed { .. } => 11,
            Node::File { .. } => 12,
        }
    }
}

fn part(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
    bytes.extend_from_slice(part);
}
