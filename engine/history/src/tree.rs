//! The tree of files: the operation `tree`.
//!
//! The server keeps open files by number. So several reads of one file are consistent, even if
//! retention removes records between two requests. It keeps only a few. A client that returns after
//! many others must open the file again.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::files::FileTime;
use fileview::ViewFormat;
use fileview::tree::{OpenNode, TopicNode, ViewEntry, ViewNode, ViewNodeKind, ViewStat, ViewTree};
use history_documents::{
    Base64Bytes, HistoryErrorCode, TreeCloseResponse, TreeDirectoryEntry, TreeFileHandle,
    TreeKeysFormat, TreeKeysResponse, TreeListResponse, TreeName, TreeNodeKind, TreeNodeStat,
    TreeReadResponse, TreeRequest,
};
use hlc::MomentSelector;
use parking_lot::Mutex;

use crate::document::document_text;
use crate::error::HistoryApiError;
use crate::moment::engine_isolation;

/// How many files are kept open.
const OPEN_MAX: usize = 128;
/// The most bytes of a file in one response.
const READ_BYTES_MAX: usize = 1 << 20;
/// The most names in one response.
const LIST_MAX: usize = 1000;

/// How many bytes of batches one request scans for a key. The next request continues from there.
const KEY_SCAN_BYTES: u64 = 64 << 20;

pub(crate) struct TreeOperations {
    /// It shows what is committed.
    tree: ViewTree,
    open_nodes: Mutex<OpenNodeTable>,
}

#[derive(Default)]
struct OpenNodeTable {
    /// In the order of use: the most recently used one is last.
    open: VecDeque<(u64, Arc<OpenNode>)>,
    last_number: u64,
}

impl TreeOperations {
    pub(crate) fn new(tree: &ViewTree) -> TreeOperations {
        TreeOperations {
            tree: tree.with_key_scan_limit(KEY_SCAN_BYTES),
            open_nodes: Mutex::default(),
        }
    }

    /// Answers with the text of the document.
    pub(crate) async fn answer(&self, request: TreeRequest) -> Result<String, HistoryApiError> {
        match request {
            TreeRequest::Stat { path } => document_text(&self.stat(path).await?),
            TreeRequest::List { path, after, max, stat } => {
                let after = after.as_deref().map_or(Ok(0), str::parse).map_err(|_| {
                    let what = "after is the cookie of a name";
                    HistoryApiError::new(HistoryErrorCode::BadRequest, what)
                })?;
                let node = resolve(&self.tree, path).await?;
                let max = max.unwrap_or(LIST_MAX).clamp(1, LIST_MAX);
                document_text(&self.list(&node, after, max, stat).await?)
            }
            TreeRequest::Open { path, isolation } => {
                let tree = self.tree.with_isolation(engine_isolation(isolation));
                let node = resolve(&tree, path).await?;
                let file = tree.open(&node).await?;
                let size = file.size().await?;
                document_text(&TreeFileHandle { open: self.add_open(file), size })
            }
            TreeRequest::Read { open, at, length } => {
                let file = self.find_open(open)?;
                let read = file.read(at, length.min(READ_BYTES_MAX)).await?;
                document_text(&TreeReadResponse { base64: Base64Bytes(read.into()) })
            }
            TreeRequest::Close { open } => {
                self.open_nodes.lock().open.retain(|(number, _)| *number != open);
                document_text(&TreeCloseResponse { closed: open })
            }
            TreeRequest::Keys { topic, at, format, isolation, after } => {
                let tree = self.tree.with_isolation(engine_isolation(isolation));
                document_text(&keys(&tree, &topic, at, format, after).await?)
            }
        }
    }

    async fn stat(&self, path: TreeName) -> Result<TreeNodeStat, HistoryApiError> {
        let node = resolve(&self.tree, path).await?;
        let stat = self.tree.stat(&node).await?;
        let is_link = stat.kind == ViewNodeKind::Symlink;
        let target = if is_link { Some(self.tree.read_link(&node).await?) } else { None };
        Ok(node_stat(&stat, target.as_deref()))
    }

    async fn list(
        &self,
        node: &ViewNode,
        after: u64,
        max: usize,
        with_stat: bool,
    ) -> Result<TreeListResponse, HistoryApiError> {
        let listed = self.tree.list(node, after, max).await?;
        let mut names = Vec::with_capacity(listed.len());
        for ViewEntry { cookie, name, node, kind } in listed {
            let name = TreeName::from_bytes(&name);
            let kind_of = node_kind(kind);
            let mut entry =
                TreeDirectoryEntry { name, kind: kind_of, cookie, stat: None, error: None };
            if with_stat {
                // An error for one name does not hide the others.
                match self.tree.stat(&node).await {
                    Ok(stat) => {
                        let is_link = kind == ViewNodeKind::Symlink;
                        let target =
                            if is_link { self.tree.read_link(&node).await.ok() } else { None };
                        entry.stat = Some(node_stat(&stat, target.as_deref()));
                    }
                    Err(error) => entry.error = Some(error.to_string()),
                }
            }
            names.push(entry);
        }
        Ok(TreeListResponse { names })
    }

    fn add_open(&self, open: OpenNode) -> u64 {
        let mut held = self.open_nodes.lock();
        held.last_number += 1;
        let number = held.last_number;
        held.open.push_back((number, Arc::new(open)));
        if held.open.len() > OPEN_MAX {
            held.open.pop_front();
        }
        number
    }

    fn find_open(&self, number: u64) -> Result<Arc<OpenNode>, HistoryApiError> {
        let mut held = self.open_nodes.lock();
        let place = held.open.iter().position(|(known, _)| *known == number);
        let found = place.and_then(|place| held.open.remove(place));
        let Some(found) = found else {
            let why = format!("not open any more: open it again. open={number}");
            return Err(HistoryApiError::new(HistoryErrorCode::Gone, why));
        };
        let open = Arc::clone(&found.1);
        held.open.push_back(found);
        Ok(open)
    }
}

async fn resolve(tree: &ViewTree, path: TreeName) -> Result<ViewNode, HistoryApiError> {
    let path = path.into_bytes().ok_or_else(|| {
        HistoryApiError::new(HistoryErrorCode::BadPath, "a path in base64 does not read")
    })?;
    Ok(tree.resolve(&path).await?)
}

async fn keys(
    tree: &ViewTree,
    topic: &str,
    at: Option<String>,
    format: TreeKeysFormat,
    after: Option<String>,
) -> Result<TreeKeysResponse, HistoryApiError> {
    let path = match at {
        Some(at) => format!(".at/{}/topics/{topic}", at.parse::<MomentSelector>()?),
        None => format!("topics/{topic}"),
    };
    let node = tree.resolve(path.as_bytes()).await?;
    let ViewNode::Topic(topic) = node else {
        return Err(HistoryApiError::new(
            HistoryErrorCode::UnknownTopic,
            format!("not a topic. topic={topic}"),
        ));
    };
    let cursor = after.map(|after| after.parse()).transpose()?;
    let format = match format {
        TreeKeysFormat::Values => ViewFormat::Values,
        TreeKeysFormat::Jsonl => ViewFormat::Jsonl,
    };
    let topic: &TopicNode = &topic;
    let page = tree.keys_page(topic, format, cursor, READ_BYTES_MAX / 2).await?;
    Ok(TreeKeysResponse {
        at: page.at.to_string(),
        base64: Base64Bytes(page.text),
        next: page.next.map(|next| next.to_string()),
    })
}

fn node_kind(kind: ViewNodeKind) -> TreeNodeKind {
    match kind {
        ViewNodeKind::Directory => TreeNodeKind::Directory,
        ViewNodeKind::File => TreeNodeKind::File,
        ViewNodeKind::Symlink => TreeNodeKind::Symlink,
        ViewNodeKind::Other(_) => TreeNodeKind::Other,
    }
}

fn node_stat(stat: &ViewStat, target: Option<&[u8]>) -> TreeNodeStat {
    let time = |time: FileTime| (time.seconds, time.nanoseconds);
    TreeNodeStat {
        kind: node_kind(stat.kind),
        size: stat.size,
        mode: stat.mode,
        links: stat.links,
        uid: stat.owner.0,
        gid: stat.owner.1,
        modified: time(stat.modified),
        changed: time(stat.changed),
        accessed: time(stat.accessed),
        created: time(stat.created),
        inode: stat.inode,
        grows: stat.grows,
        target: target.map(TreeName::from_bytes),
    }
}
