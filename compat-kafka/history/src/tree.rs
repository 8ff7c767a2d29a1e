//! The tree of files: the operation `tree`.
//!
//! The server keeps open files by number. So several reads of one file are consistent, even if
//! retention removes records between two requests. It keeps only a few, which are a budget by
//! principal: when all are taken, the principal with the most gives way with the one that it has
//! not read for longest. It must open that file again.

use std::collections::VecDeque;
use std::sync::Arc;

use admission::{Budget, BudgetGrant, BudgetKind, BudgetRegistry, BudgetSpec, Holder};
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

use crate::access::{AnswerFilter, HistoryAccess};
use crate::document::document_text;
use crate::error::HistoryApiError;
use crate::moment::engine_isolation;

const OPEN_FILES: BudgetSpec = BudgetSpec {
    name: "open-tree-files",
    unit: "open files of the tree",
    setting: Some("limits.open-files-max"),
    kind: BudgetKind::Yielding,
};

/// The most bytes of a file in one response.
const READ_BYTES_MAX: usize = 1 << 20;
/// The most names in one response.
const LIST_MAX: usize = 1000;

/// The most bytes of batches that one request scans for a key. The next request continues from
/// there.
const KEY_SCAN_BYTES: u64 = 64 << 20;

pub(crate) struct TreeOperations {
    /// It shows committed records.
    tree: ViewTree,
    open_nodes: Mutex<OpenNodeTable>,
    budget: Arc<Budget>,
}

#[derive(Default)]
struct OpenNodeTable {
    /// In the order of use: the most recently used one is last.
    open: VecDeque<OpenTreeFile>,
    last_number: u64,
}

struct OpenTreeFile {
    number: u64,
    grant: BudgetGrant,
    /// The node, to check at each read that it may still be read, and by this reader.
    node: ViewNode,
    bytes: Arc<OpenNode>,
}

impl TreeOperations {
    /// Lists its budget in `budgets`.
    pub(crate) fn new(
        tree: &ViewTree,
        open_max: usize,
        budgets: &BudgetRegistry,
    ) -> TreeOperations {
        let budget = budgets.budget(OPEN_FILES, open_max as u64);
        TreeOperations {
            budget,
            tree: tree.with_key_scan_limit(KEY_SCAN_BYTES),
            open_nodes: Mutex::default(),
        }
    }

    /// Answers with the text of the document.
    pub(crate) async fn answer(
        &self,
        access: &HistoryAccess,
        request: TreeRequest,
    ) -> Result<String, HistoryApiError> {
        let filter = Arc::new(access.filter());
        let tree = self.tree.with_guard(Arc::<AnswerFilter>::clone(&filter));
        match request {
            TreeRequest::Stat { path } => document_text(&stat(&tree, path).await?),
            TreeRequest::List { path, after, max, stat } => {
                let after = after.as_deref().map_or(Ok(0), str::parse).map_err(|_| {
                    let message = "after is the cookie of a name";
                    HistoryApiError::new(HistoryErrorCode::BadRequest, message)
                })?;
                let node = resolve(&tree, path).await?;
                let max = max.unwrap_or(LIST_MAX).clamp(1, LIST_MAX);
                let entries = tree.list(&node, after, max).await?;
                let complete = filter.is_complete();
                let names = list_entries(&tree, entries, stat).await;
                document_text(&TreeListResponse { names, complete })
            }
            TreeRequest::Open { path, isolation } => {
                let tree = tree.with_isolation(engine_isolation(isolation));
                let node = resolve(&tree, path).await?;
                let file = tree.open(&node).await?;
                let size = file.size().await?;
                let open = self.add_open(&access.holder(), node, file)?;
                document_text(&TreeFileHandle { open, size })
            }
            TreeRequest::Read { open, at, length } => {
                let file = self.find_open(&tree, open)?;
                let read = file.read(at, length.min(READ_BYTES_MAX)).await?;
                document_text(&TreeReadResponse { base64: Base64Bytes(read.into()) })
            }
            TreeRequest::Close { open } => {
                let is_closed = |file: &OpenTreeFile| {
                    file.number == open && tree.check_contents(&file.node).is_ok()
                };
                self.open_nodes.lock().open.retain(|file| !is_closed(file));
                document_text(&TreeCloseResponse { closed: open })
            }
            TreeRequest::Keys { topic, at, format, isolation, after } => {
                let tree = tree.with_isolation(engine_isolation(isolation));
                document_text(&keys(&tree, &topic, at, format, after).await?)
            }
        }
    }

    /// The tree, as far as `access` shows it.
    pub(crate) fn shown_to(&self, access: &HistoryAccess) -> ViewTree {
        self.tree.with_guard(Arc::new(access.filter()))
    }

    fn add_open(
        &self,
        holder: &Holder,
        node: ViewNode,
        open: OpenNode,
    ) -> Result<u64, HistoryApiError> {
        let mut nodes = self.open_nodes.lock();
        let grant = self.budget.take_evicting(holder, 1, |refusal| {
            let yields = refusal.yields.as_ref();
            let oldest = nodes.open.iter().position(|file| Some(file.grant.holder()) == yields);
            oldest.and_then(|oldest| nodes.open.remove(oldest)).is_some()
        });
        let grant =
            grant.map_err(|full| HistoryApiError::new(HistoryErrorCode::Gone, full.to_string()))?;
        nodes.last_number += 1;
        let number = nodes.last_number;
        nodes.open.push_back(OpenTreeFile { number, grant, node, bytes: Arc::new(open) });
        Ok(number)
    }

    /// The open file of that number. Numbers can be guessed: for those who may not read what it is,
    /// it is not open.
    fn find_open(&self, tree: &ViewTree, number: u64) -> Result<Arc<OpenNode>, HistoryApiError> {
        let mut nodes = self.open_nodes.lock();
        let is_requested =
            |file: &OpenTreeFile| file.number == number && tree.check_contents(&file.node).is_ok();
        let index = nodes.open.iter().position(is_requested);
        let file = index.and_then(|index| nodes.open.remove(index));
        let Some(file) = file else {
            let message =
                format!("the file with the number {number} is not open any more: open it again");
            return Err(HistoryApiError::new(HistoryErrorCode::Gone, message));
        };
        let open = Arc::clone(&file.bytes);
        nodes.open.push_back(file);
        Ok(open)
    }
}

async fn stat(tree: &ViewTree, path: TreeName) -> Result<TreeNodeStat, HistoryApiError> {
    let node = resolve(tree, path).await?;
    let stat = tree.stat(&node).await?;
    let is_link = stat.kind == ViewNodeKind::Symlink;
    let target = if is_link { Some(tree.read_link(&node).await?) } else { None };
    Ok(node_stat(&stat, target.as_deref()))
}

async fn list_entries(
    tree: &ViewTree,
    entries: Vec<ViewEntry>,
    with_stat: bool,
) -> Vec<TreeDirectoryEntry> {
    let mut names = Vec::with_capacity(entries.len());
    for ViewEntry { cookie, name, node, kind } in entries {
        let name = TreeName::from_bytes(&name);
        let kind_of = node_kind(kind);
        let mut entry = TreeDirectoryEntry { name, kind: kind_of, cookie, stat: None, error: None };
        if with_stat {
            // An error for one name does not hide the others.
            match tree.stat(&node).await {
                Ok(stat) => {
                    let is_link = kind == ViewNodeKind::Symlink;
                    let target = if is_link { tree.read_link(&node).await.ok() } else { None };
                    entry.stat = Some(node_stat(&stat, target.as_deref()));
                }
                Err(error) => entry.error = Some(error.to_string()),
            }
        }
        names.push(entry);
    }
    names
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
            format!("{topic} is not a topic"),
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
