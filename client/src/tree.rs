//! The server's tree of files: topics as text, committed offsets and files, now and at any moment.
//! It uses the operation `tree` of our own API.
//!
//! An open file does not change, and is read in pieces.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::history::RefusalCode;
use crate::{Client, ClientError};

/// How long the server may need to find the size of a large partition for the first time.
const TREE_WAIT: Duration = Duration::from_secs(600);

/// Bytes that are usually text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// The type of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// When its bytes changed last: seconds since 1970, and nanoseconds.
    pub modified: (i64, u32),
    /// When its bytes or attributes changed last.
    pub changed: (i64, u32),
    /// When it was read last, as far as recorded.
    pub accessed: (i64, u32),
    /// When it was created.
    pub created: (i64, u32),
    /// The inode number.
    #[serde(with = "crate::decimal")]
    pub inode: u64,
    /// Whether it shows the present.
    pub grows: bool,
    /// The target of a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<TreeName>,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TreeDirectoryEntry {
    /// The name.
    pub name: TreeName,
    /// The type of the node.
    pub kind: TreeNodeKind,
    /// The cookie to continue after this name.
    #[serde(with = "crate::decimal")]
    pub cookie: u64,
    /// The attributes, if they were requested.
    #[serde(default)]
    pub stat: Option<TreeNodeStat>,
    /// Why there are no attributes.
    #[serde(default)]
    pub error: Option<String>,
}

/// A file that is open at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct TreeFileHandle {
    open: u64,
    /// The size in bytes.
    pub size: u64,
}

/// A page of the state of a topic by key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TreeKeysResponse {
    /// The moment of the page.
    pub at: String,
    /// The lines, in base64.
    pub base64: String,
    /// Where the next page begins; `None` at the end.
    pub next: Option<String>,
}

#[derive(Serialize)]
struct TreeRequest<'a> {
    op: &'static str,
    #[serde(flatten)]
    ask: TreeCommand<'a>,
}

#[derive(Serialize)]
#[serde(tag = "do", rename_all = "lowercase")]
enum TreeCommand<'a> {
    Stat {
        path: &'a str,
    },
    List {
        path: &'a str,
        #[serde(with = "crate::decimal")]
        after: u64,
        stat: bool,
    },
    Open {
        path: &'a str,
    },
    Read {
        open: u64,
        at: u64,
        length: usize,
    },
    Close {
        open: u64,
    },
    Keys {
        topic: &'a str,
        at: Option<&'a str>,
        format: &'a str,
        after: Option<&'a str>,
    },
}

#[derive(Deserialize)]
struct TreeListResponse {
    names: Vec<TreeDirectoryEntry>,
}

#[derive(Deserialize)]
struct TreeReadResponse {
    base64: String,
}

#[derive(Deserialize)]
struct TreeCloseResponse {
    #[serde(rename = "closed")]
    _closed: u64,
}

impl Client {
    /// The attributes of the node at a path.
    ///
    /// # Errors
    /// [`ClientError::NotFreezeframe`], [`ClientError::History`] and others.
    pub async fn tree_stat(&mut self, path: &str) -> Result<TreeNodeStat, ClientError> {
        self.tree(TreeCommand::Stat { path }).await
    }

    /// Names in a directory after the cookie `after`, which is 0 for the first page; empty at the
    /// end.
    ///
    /// `stat` requests the attributes of each name.
    ///
    /// # Errors
    /// As [`Client::tree_stat`].
    pub async fn tree_list(
        &mut self,
        path: &str,
        after: u64,
        stat: bool,
    ) -> Result<Vec<TreeDirectoryEntry>, ClientError> {
        let names: TreeListResponse = self.tree(TreeCommand::List { path, after, stat }).await?;
        Ok(names.names)
    }

    /// Opens the node at a path, as it is now.
    ///
    /// # Errors
    /// As [`Client::tree_stat`].
    pub async fn tree_open(&mut self, path: &str) -> Result<TreeFileHandle, ClientError> {
        self.tree(TreeCommand::Open { path }).await
    }

    /// Reads up to `length` bytes from `at` on, in base64.
    ///
    /// It returns fewer at the end, or if `length` exceeds the server's limit.
    ///
    /// # Errors
    /// As [`Client::tree_stat`].
    pub async fn tree_read(
        &mut self,
        opened: &TreeFileHandle,
        at: u64,
        length: usize,
    ) -> Result<String, ClientError> {
        let part: TreeReadResponse =
            self.tree(TreeCommand::Read { open: opened.open, at, length }).await?;
        Ok(part.base64)
    }

    /// Closes an open file.
    ///
    /// # Errors
    /// As [`Client::tree_stat`].
    pub async fn tree_close(&mut self, opened: TreeFileHandle) -> Result<(), ClientError> {
        let _: TreeCloseResponse = self.tree(TreeCommand::Close { open: opened.open }).await?;
        Ok(())
    }

    /// A page of the newest record of each key of a topic.
    ///
    /// For the next page, pass `at` and `next` of this one. `format` is `values` or `jsonl`.
    ///
    /// # Errors
    /// As [`Client::tree_stat`].
    pub async fn tree_keys(
        &mut self,
        topic: &str,
        at: Option<&str>,
        format: &str,
        after: Option<&str>,
    ) -> Result<TreeKeysResponse, ClientError> {
        self.tree(TreeCommand::Keys { topic, at, format, after }).await
    }

    async fn tree<T: for<'de> Deserialize<'de>>(
        &mut self,
        ask: TreeCommand<'_>,
    ) -> Result<T, ClientError> {
        let question = TreeRequest { op: "tree", ask };
        loop {
            match self.request_history(&question, TREE_WAIT).await {
                // The server searches a topic in pieces, and remembers its progress.
                Err(ClientError::History(refusal)) if refusal.code == RefusalCode::Unfinished => {}
                answer => return answer,
            }
        }
    }
}
