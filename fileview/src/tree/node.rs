//! The nodes of the tree. A node names a place in the tree and its moment. It holds nothing open.

use std::sync::Arc;

use engine::TopicId;
use engine::files::{FileKind, FileTime, Inode};
use hlc::{Cut, Moment, MomentSelector};
use xxhash_rust::xxh3::xxh3_64;

use super::ZnodeNode;
use crate::ViewFormat;

/// A topic in the tree: its name, its id, and the moment. `None` is the present.
///
/// The id tells apart topics that had the same name. A moment in a node is absolute and final.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TopicNode {
    pub name: Arc<str>,
    pub id: TopicId,
    /// The moment; `None` is the present.
    pub at: Option<MomentSelector>,
}

/// One file, directory or link of the tree.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ViewNode {
    /// `/`, or `/.at/MOMENT`.
    Root(Option<MomentSelector>),
    /// `/.at`.
    Moments,
    /// `/.at/PIN`, a link to the pin's moment.
    Pin(Arc<str>),
    /// `topics`.
    Topics(Option<MomentSelector>),
    /// `topics/TOPIC`.
    Topic(TopicNode),
    /// `topics/TOPIC/PARTITION.FORMAT`.
    Partition {
        topic: TopicNode,
        partition: u32,
        /// The format of its contents.
        format: ViewFormat,
    },
    /// `topics/TOPIC/by-key`.
    Keys(TopicNode),
    /// `topics/TOPIC/by-key/KEY`: the newest value of a key.
    Key {
        topic: TopicNode,
        /// The key's bytes.
        key: Arc<[u8]>,
    },
    /// `offsets`.
    Groups(Option<MomentSelector>),
    /// `offsets/GROUP`.
    Group {
        group: Arc<str>,
        /// The moment; `None` is the present.
        at: Option<MomentSelector>,
    },
    /// `offsets/GROUP/TOPIC`.
    GroupTopic {
        group: Arc<str>,
        topic: Arc<str>,
        /// The moment; `None` is the present.
        at: Option<MomentSelector>,
    },
    /// `offsets/GROUP/TOPIC/PARTITION`.
    Committed {
        group: Arc<str>,
        topic: Arc<str>,
        partition: u32,
        /// The moment; `None` is the present.
        at: Option<MomentSelector>,
    },
    /// `files`, and everything below.
    File {
        /// The inode; [`Inode::ROOT`] is `files` itself.
        inode: Inode,
        /// The moment; `None` is the present.
        cut: Option<Cut>,
    },
    /// `znodes`, and every znode below.
    Znode(ZnodeNode),
    /// `znodes/PATH/data`.
    ZnodeData(ZnodeNode),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ViewNodeKind {
    Directory,
    /// A node with bytes.
    File,
    Symlink,
    /// A pipe, socket or device among the files.
    Other(FileKind),
}

impl From<FileKind> for ViewNodeKind {
    fn from(kind: FileKind) -> ViewNodeKind {
        match kind {
            FileKind::File => ViewNodeKind::File,
            FileKind::Directory => ViewNodeKind::Directory,
            FileKind::Symlink => ViewNodeKind::Symlink,
            other => ViewNodeKind::Other(other),
        }
    }
}

/// The attributes of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ViewStat {
    pub kind: ViewNodeKind,
    /// The size in bytes; exact.
    pub size: u64,
    /// The permission bits.
    pub mode: u32,
    /// The number of names.
    pub links: u32,
    /// The user and the group.
    pub owner: (u32, u32),
    /// The time of the last change of its bytes.
    pub modified: FileTime,
    /// The time of the last change of its bytes or attributes.
    pub changed: FileTime,
    /// The access time. Reads are not recorded, so it is the modification time.
    pub accessed: FileTime,
    /// The creation time.
    pub created: FileTime,
    /// The number of blocks of 512 bytes.
    pub blocks: u64,
    /// The inode number. It is always the same for the same node. For files of the present it is
    /// the file's own number.
    pub inode: u64,
    /// True if the node shows the present, so that its size may change.
    pub grows: bool,
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ViewEntry {
    /// The cookie. Pass it to [`crate::tree::ViewTree::list`] to continue after this name. From 16
    /// up, and below 2^63.
    pub cookie: u64,
    /// The name; POSIX defines no encoding.
    pub name: Vec<u8>,
    /// The node that the name refers to.
    pub node: ViewNode,
    /// The type of that node.
    pub kind: ViewNodeKind,
}

impl ViewNode {
    /// The type of the node. `None` for [`ViewNode::File`], whose type is among its attributes.
    pub fn kind(&self) -> Option<ViewNodeKind> {
        match self {
            ViewNode::Partition { .. }
            | ViewNode::Key { .. }
            | ViewNode::Committed { .. }
            | ViewNode::ZnodeData(_) => Some(ViewNodeKind::File),
            ViewNode::Pin(_) => Some(ViewNodeKind::Symlink),
            ViewNode::File { inode: Inode::ROOT, .. } => Some(ViewNodeKind::Directory),
            ViewNode::File { .. } => None,
            _ => Some(ViewNodeKind::Directory),
        }
    }

    /// Its moment, which is final; `None` for the present.
    pub fn moment(&self) -> Option<MomentSelector> {
        let at_cut = |cut: &Option<Cut>| cut.map(|cut| MomentSelector::At(Moment::Sys(cut)));
        match self {
            ViewNode::Moments | ViewNode::Pin(_) => None,
            ViewNode::Root(at) | ViewNode::Topics(at) | ViewNode::Groups(at) => *at,
            ViewNode::Group { at, .. }
            | ViewNode::GroupTopic { at, .. }
            | ViewNode::Committed { at, .. } => *at,
            ViewNode::Topic(topic)
            | ViewNode::Keys(topic)
            | ViewNode::Partition { topic, .. }
            | ViewNode::Key { topic, .. } => topic.at,
            ViewNode::File { cut, .. } => at_cut(cut),
            ViewNode::Znode(znode) | ViewNode::ZnodeData(znode) => at_cut(&znode.cut),
        }
    }

    /// True if it shows the present, which changes.
    pub fn is_present(&self) -> bool {
        self.moment().is_none()
    }

    /// An inode number that is the same for the same node in every incarnation of the server.
    pub fn inode(&self) -> u64 {
        /// The numbers of files are far below.
        const SYNTHETIC_INODE_MIN: u64 = 1 << 63;
        match self {
            ViewNode::Root(None) => 1,
            ViewNode::File { inode, cut: None } if *inode != Inode::ROOT => inode.0,
            node => xxh3_64(&node.to_bytes()) | SYNTHETIC_INODE_MIN,
        }
    }

    /// An encoding that is different for each node.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let at = |bytes: &mut Vec<u8>, at: &Option<MomentSelector>| {
            push_field(
                bytes,
                at.map_or_else(String::new, |selector| selector.to_string()).as_bytes(),
            );
        };
        match self {
            ViewNode::Root(moment) | ViewNode::Topics(moment) | ViewNode::Groups(moment) => {
                at(&mut bytes, moment);
            }
            ViewNode::Moments => {}
            ViewNode::Pin(name) => push_field(&mut bytes, name.as_bytes()),
            ViewNode::Topic(topic) | ViewNode::Keys(topic) => {
                push_field(&mut bytes, &topic.id);
                at(&mut bytes, &topic.at);
            }
            ViewNode::Partition { topic, partition, format } => {
                push_field(&mut bytes, &topic.id);
                at(&mut bytes, &topic.at);
                bytes.extend_from_slice(&partition.to_le_bytes());
                bytes.push(*format as u8);
            }
            ViewNode::Key { topic, key } => {
                push_field(&mut bytes, &topic.id);
                at(&mut bytes, &topic.at);
                push_field(&mut bytes, key);
            }
            ViewNode::Group { group, at: moment } => {
                push_field(&mut bytes, group.as_bytes());
                at(&mut bytes, moment);
            }
            ViewNode::GroupTopic { group, topic, at: moment } => {
                push_field(&mut bytes, group.as_bytes());
                push_field(&mut bytes, topic.as_bytes());
                at(&mut bytes, moment);
            }
            ViewNode::Committed { group, topic, partition, at: moment } => {
                push_field(&mut bytes, group.as_bytes());
                push_field(&mut bytes, topic.as_bytes());
                bytes.extend_from_slice(&partition.to_le_bytes());
                at(&mut bytes, moment);
            }
            ViewNode::File { inode, cut } => {
                bytes.extend_from_slice(&inode.0.to_le_bytes());
                bytes.extend(cut.iter().flat_map(|cut| cut.bound().bits().to_le_bytes()));
            }
            ViewNode::Znode(ZnodeNode { path, cut })
            | ViewNode::ZnodeData(ZnodeNode { path, cut }) => {
                push_field(&mut bytes, path.as_bytes());
                bytes.extend(cut.iter().flat_map(|cut| cut.bound().bits().to_le_bytes()));
            }
        }
        bytes.push(self.kind_number());
        bytes
    }

    /// A number for each variant.
    fn kind_number(&self) -> u8 {
        match self {
            ViewNode::Root(_) => 0,
            ViewNode::Moments => 1,
            ViewNode::Pin(_) => 2,
            ViewNode::Topics(_) => 3,
            ViewNode::Topic(_) => 4,
            ViewNode::Partition { .. } => 5,
            ViewNode::Keys(_) => 6,
            ViewNode::Key { .. } => 7,
            ViewNode::Groups(_) => 8,
            ViewNode::Group { .. } => 9,
            ViewNode::GroupTopic { .. } => 10,
            ViewNode::Committed { .. } => 11,
            ViewNode::File { .. } => 12,
            ViewNode::Znode(_) => 13,
            ViewNode::ZnodeData(_) => 14,
        }
    }
}

fn push_field(bytes: &mut Vec<u8>, field: &[u8]) {
    bytes.extend_from_slice(&(field.len() as u64).to_le_bytes());
    bytes.extend_from_slice(field);
}
