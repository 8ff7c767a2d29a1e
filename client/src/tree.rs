//! The server's tree of files: topics as text, committed offsets and files, now and at any moment.
//! It uses the operation `tree` of our own API.
//!
//! An open file does not change, and is read in pieces.

use std::time::Duration;

use history_documents::{
    Base64Bytes, HistoryErrorCode, HistoryRequest, Isolation, TreeCloseResponse, TreeListResponse,
    TreeReadResponse, TreeRequest,
};
use serde::Deserialize;

use crate::{Client, ClientError};

pub use history_documents::{
    TreeDirectoryEntry, TreeFileHandle, TreeKeysFormat, TreeKeysResponse, TreeName, TreeNodeKind,
    TreeNodeStat,
};

/// The longest time that the server may take to find the size of a large partition for the first
/// time.
const TREE_WAIT: Duration = Duration::from_secs(600);

impl Client {
    /// The attributes of the node at a path.
    ///
    /// # Errors
    /// [`ClientError::NotFreezeframe`], [`ClientError::History`] and others.
    pub async fn tree_stat(&mut self, path: &str) -> Result<TreeNodeStat, ClientError> {
        self.tree(TreeRequest::Stat { path: path_of(path) }).await
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
        let (path, after) = (path_of(path), Some(after.to_string()));
        let list = TreeRequest::List { path, after, max: None, stat };
        let TreeListResponse { names, .. } = self.tree(list).await?;
        Ok(names)
    }

    /// Opens the node at a path, as it is now, with these records of transactions in it.
    ///
    /// # Errors
    /// As [`Client::tree_stat`].
    pub async fn tree_open(
        &mut self,
        path: &str,
        isolation: Isolation,
    ) -> Result<TreeFileHandle, ClientError> {
        self.tree(TreeRequest::Open { path: path_of(path), isolation }).await
    }

    /// Reads up to `length` bytes from `at` on.
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
    ) -> Result<Vec<u8>, ClientError> {
        let request = TreeRequest::Read { open: opened.open, at, length };
        let TreeReadResponse { base64: Base64Bytes(bytes) } = self.tree(request).await?;
        Ok(bytes)
    }

    /// Closes an open file.
    ///
    /// # Errors
    /// As [`Client::tree_stat`].
    pub async fn tree_close(&mut self, opened: TreeFileHandle) -> Result<(), ClientError> {
        let _: TreeCloseResponse = self.tree(TreeRequest::Close { open: opened.open }).await?;
        Ok(())
    }

    /// A page of the newest record of each key of a topic, among these records of transactions.
    ///
    /// For the next page, pass `at` and `next` of this one.
    ///
    /// # Errors
    /// As [`Client::tree_stat`].
    pub async fn tree_keys(
        &mut self,
        topic: &str,
        at: Option<&str>,
        format: TreeKeysFormat,
        isolation: Isolation,
        after: Option<&str>,
    ) -> Result<TreeKeysResponse, ClientError> {
        let (at, after) = (at.map(str::to_owned), after.map(str::to_owned));
        self.tree(TreeRequest::Keys { topic: topic.to_owned(), at, format, isolation, after }).await
    }

    async fn tree<T: for<'de> Deserialize<'de>>(
        &mut self,
        ask: TreeRequest,
    ) -> Result<T, ClientError> {
        let request = HistoryRequest::Tree(ask);
        loop {
            match self.request_history(&request, TREE_WAIT).await {
                // The server searches a topic in pieces, and remembers its progress.
                Err(ClientError::History(refusal))
                    if refusal.code == HistoryErrorCode::Unfinished => {}
                answer => return answer,
            }
        }
    }
}

fn path_of(path: &str) -> TreeName {
    TreeName::Text(path.to_owned())
}
