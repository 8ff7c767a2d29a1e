//! The tree of files: topics as text, committed offsets and files, now and at any moment.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::base64::{self, Base64Bytes};
use crate::completeness::{complete, is_complete};
use crate::moment::Isolation;

/// A request about the tree. Its field `do` says which one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub enum TreeRequest {
    /// The attributes of a node.
    Stat {
        /// Its path.
        path: TreeName,
    },
    /// The names in a directory, a page at a time.
    List {
        /// Its path.
        path: TreeName,
        /// The cookie of the last name of the previous page.
        #[serde(default)]
        after: Option<String>,
        /// The most names on the page.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max: Option<usize>,
        /// True to return the attributes of each name.
        #[serde(default)]
        stat: bool,
    },
    /// Opens a node, as it is now.
    Open {
        /// Its path.
        path: TreeName,
        /// The isolation level: it selects the records of transactions that are in it.
        #[serde(default, skip_serializing_if = "Isolation::is_default")]
        isolation: Isolation,
    },
    /// Reads bytes of an open file.
    Read {
        /// The number of the open file.
        open: u64,
        /// The position of the first byte.
        at: u64,
        /// The most bytes.
        length: usize,
    },
    /// Closes an open file.
    Close {
        /// Its number.
        open: u64,
    },
    /// The newest record of each key of a topic, a page at a time.
    Keys {
        /// The topic.
        topic: String,
        /// The moment; the present if `None`.
        #[serde(default)]
        at: Option<String>,
        /// The format of a line.
        #[serde(default)]
        format: TreeKeysFormat,
        /// The isolation level: it selects the records of transactions that count.
        #[serde(default, skip_serializing_if = "Isolation::is_default")]
        isolation: Isolation,
        /// The start of the page: [`TreeKeysResponse::next`] of the previous one.
        #[serde(default)]
        after: Option<String>,
    },
}

/// The format of a line of [`TreeKeysResponse`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TreeKeysFormat {
    /// The key, a tab, and the value.
    #[default]
    Values,
    /// A JSON object with the whole record.
    Jsonl,
}

/// Bytes that are usually text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TreeName {
    /// Text.
    Text(String),
    /// Other bytes, in base64.
    Bytes {
        /// The encoded bytes.
        base64: String,
    },
}

impl TreeName {
    /// Text as it is, other bytes in base64.
    pub fn from_bytes(bytes: &[u8]) -> TreeName {
        match std::str::from_utf8(bytes) {
            Ok(text) => TreeName::Text(text.to_owned()),
            Err(_) => TreeName::Bytes { base64: base64::encode(bytes) },
        }
    }

    /// The bytes; `None` if they are not base64.
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        match self {
            TreeName::Text(text) => Some(text.into_bytes()),
            TreeName::Bytes { base64 } => base64::decode(&base64),
        }
    }
}

/// The type of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TreeNodeKind {
    /// A directory.
    Directory,
    /// A node with bytes.
    File,
    /// A symbolic link.
    Symlink,
    /// Something else.
    #[serde(other)]
    Other,
}

/// The attributes of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TreeNodeStat {
    /// The type.
    pub kind: TreeNodeKind,
    /// The size in bytes.
    pub size: u64,
    /// The permission bits.
    pub mode: u32,
    /// The number of names.
    pub links: u32,
    /// The user that owns it.
    pub uid: u32,
    /// The group that owns it.
    pub gid: u32,
    /// The last change of its bytes: seconds since 1970, and nanoseconds.
    pub modified: (i64, u32),
    /// The last change of its bytes or attributes.
    pub changed: (i64, u32),
    /// The last read of it, as far as recorded.
    pub accessed: (i64, u32),
    /// The time of its creation.
    pub created: (i64, u32),
    /// The inode number.
    #[serde(with = "crate::decimal")]
    #[schemars(with = "String")]
    pub inode: u64,
    /// True if it shows the present.
    pub grows: bool,
    /// The target of a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<TreeName>,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TreeDirectoryEntry {
    /// The name.
    pub name: TreeName,
    /// The type of the node.
    pub kind: TreeNodeKind,
    /// The cookie to continue after this name.
    #[serde(with = "crate::decimal")]
    #[schemars(with = "String")]
    pub cookie: u64,
    /// The attributes, if they were requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stat: Option<TreeNodeStat>,
    /// The reason that there are no attributes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A page of names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TreeListResponse {
    /// The names; empty at the end.
    pub names: Vec<TreeDirectoryEntry>,
    /// True if nothing was left out. The answer leaves out what the requester may not see.
    #[serde(default = "complete", skip_serializing_if = "is_complete")]
    pub complete: bool,
}

/// A file that is open at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TreeFileHandle {
    /// Its number.
    pub open: u64,
    /// The size in bytes.
    pub size: u64,
}

/// Bytes of an open file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TreeReadResponse {
    /// The bytes.
    pub base64: Base64Bytes,
}

/// The file that was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TreeCloseResponse {
    /// Its number.
    pub closed: u64,
}

/// A page of the state of a topic by key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TreeKeysResponse {
    /// The moment of the page.
    pub at: String,
    /// The lines.
    pub base64: Base64Bytes,
    /// The start of the next page; `None` at the end.
    pub next: Option<String>,
}
