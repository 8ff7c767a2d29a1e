//! The server's tree of files: topics as text, committed offsets and files, now and at any moment.
//! The operation `tree` of our own API.
//!
//! What is opened stays what it is, and is read in parts.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::history::RefusalCode;
use crate::{Client, ClientError};

/// What the server may need to find the size of a large partition for the first time.
const TREE_WAIT: Duration = Duration::from_secs(600);

/// Bytes that are text as a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TreeName {
    /// Text.
    Text(String),
    /// Other bytes, in base64.
    Bytes {
        /// Them.
        base64: String,
    },
}

/// What something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TreeNodeKind {
    /// It has names.
    Directory,
    /// It has bytes.
    File,
    /// It leads elsewhere.
    Symlink,
    /// Something else.
    #[serde(other)]
    Other,
}

/// What is known of something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeNodeStat {
    /// What it is.
    pub kind: TreeNodeKind,
    /// How many bytes it has.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// How many names it has.
    pub links: u32,
    /// Whose it is.
    pub uid: u32,
    /// And its group.
    pub gid: u32,
    /// When its bytes changed last: seconds since 1970, and nanoseconds.
    pub modified: (i64, u32),
    /// When anything of it changed last.
    pub changed: (i64, u32),
    /// When it was read last, as far as anybody said.
    pub accessed: (i64, u32),
    /// When it was made.
    pub created: (i64, u32),
    /// Its number.
    #[serde(with = "crate::decimal")]
    pub inode: u64,
    /// Whether it shows the present.
    pub grows: bool,
    /// Where a link leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<TreeName>,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TreeDirectoryEntry {
    /// The name.
    pub name: TreeName,
    /// What it means.
    pub kind: TreeNodeKind,
    /// To go on behind it.
    #[serde(with = "crate::decimal")]
    pub cookie: u64,
    /// What is known of it, if that was asked for.
    #[serde(default)]
    pub stat: Option<TreeNodeStat>,
    /// Why nothing is.
    #[serde(default)]
    pub error: Option<String>,
}

/// Something open at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct TreeFileHandle {
    open: u64,
    /// How many bytes it has.
    pub size: u64,
}

/// A part of the state of a topic by key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TreeKeysResponse {
    /// The moment that it is of.
    pub at: String,
    /// Lines, in base64.
    pub base64: String,
    /// Where to go on.
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
    /// What is known of what is at a path.
    ///
    /// # Errors
    /// [`ClientError::NotFreezeframe`], [`ClientError::History`] and others.
    pub async fn tree_stat(&mut self, path: &str) -> Result<TreeNodeStat, ClientError> {
        self.tree(TreeCommand::Stat { path }).await
    }

    /// Names in a directory, behind the one with the cookie `after`; 0 for the first. None at the end.
    /// `stat` asks for what is known of each.
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

    /// Opens what is at a path, as it is now.
    ///
    /// # Errors
    /// As [`Client::tree_stat`].
    pub async fn tree_open(&mut self, path: &str) -> Result<TreeFileHandle, ClientError> {
        self.tree(TreeCommand::Open { path }).await
    }

    /// Up to `length` bytes from `at` on, in base64; fewer where there are no more, or where that is
    /// more than the server gives at once.
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

    /// Closes what was opened.
    ///
    /// # Errors
    /// As [`Client::tree_stat`].
    pub async fn tree_close(&mut self, opened: TreeFileHandle) -> Result<(), ClientError> {
        let _: TreeCloseResponse = self.tree(TreeCommand::Close { open: opened.open }).await?;
        Ok(())
    }

    /// The newest record of each key of a topic, a part at a time: give `at` and `next` of one part for
    /// the next. `format` is `values` or `jsonl`.
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
                // The server looks through a topic in parts, and remembers how far it has come.
                Err(ClientError::History(refusal)) if refusal.code == RefusalCode::Unfinished => {}
                answer => return answer,
            }
        }
    }
}
