//! The tree of files over the extension API: the operation `tree`. `docs/KAFKA.md` describes its
//! documents.
//!
//! The server keeps open files by number. So several reads of one file are consistent, even if
//! retention removes records between two requests. It keeps only a few. A client that returns after
//! many others must open the file again.

use std::collections::VecDeque;
use std::sync::Arc;

use compat_kafka::{ExtensionOperations, HistoryApiError, HistoryErrorCode, OperationFuture};
use fileview::tree::{
    OpenNode, TopicNode, TreeError, ViewEntry, ViewNode, ViewNodeKind, ViewStat, ViewTree,
};
use fileview::{ViewFormat, base64};
use hlc::MomentSelector;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};

/// How many files are kept open.
const OPEN_MAX: usize = 128;
/// The most bytes of a file in one response.
const READ_BYTES_MAX: usize = 1 << 20;
/// The most names in one response.
const LIST_MAX: usize = 1000;

/// How many bytes of batches one request scans for a key. The next request continues from there.
const KEY_SCAN_BYTES: u64 = 64 << 20;

/// The operation `tree`.
pub(crate) struct TreeOps {
    tree: Arc<ViewTree>,
    open_nodes: Mutex<OpenNodeTable>,
}

#[derive(Default)]
struct OpenNodeTable {
    /// In the order of use: the most recently used one is last.
    open: VecDeque<(u64, Arc<OpenNode>)>,
    last_number: u64,
}

/// A path: text, or base64 if it is not valid text.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TreeOpPath {
    Text(String),
    Bytes { base64: String },
}

#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
enum TreeOpRequest {
    Stat {
        path: TreeOpPath,
    },
    List {
        path: TreeOpPath,
        /// The cookie of the last name of the previous page.
        #[serde(default)]
        after: Option<String>,
        #[serde(default)]
        max: Option<usize>,
        /// Whether to return the attributes of each name.
        #[serde(default)]
        stat: bool,
    },
    Open {
        path: TreeOpPath,
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
        topic: String,
        #[serde(default)]
        at: Option<String>,
        #[serde(default)]
        format: KeysFormat,
        #[serde(default)]
        after: Option<String>,
    },
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KeysFormat {
    #[default]
    Values,
    Jsonl,
}

impl ExtensionOperations for TreeOps {
    fn operations(&self) -> &[&'static str] {
        &["tree"]
    }

    fn call<'a>(&'a self, _op: &'a str, document: Value) -> OperationFuture<'a> {
        Box::pin(async move {
            let request = serde_json::from_value(document).map_err(|error| {
                HistoryApiError::new(
                    HistoryErrorCode::BadRequest,
                    format!("not a request: {error}"),
                )
            })?;
            self.serve_request(request).await
        })
    }
}

impl TreeOps {
    pub(crate) fn new(tree: Arc<ViewTree>) -> TreeOps {
        TreeOps {
            tree: Arc::new(tree.with_key_scan_limit(KEY_SCAN_BYTES)),
            open_nodes: Mutex::default(),
        }
    }

    async fn serve_request(&self, request: TreeOpRequest) -> Result<Value, HistoryApiError> {
        match request {
            TreeOpRequest::Stat { path } => {
                let node = self.resolve(path).await?;
                let stat = self.tree.stat(&node).await.map_err(refusal)?;
                let mut answer = stat_of(&stat);
                if stat.kind == ViewNodeKind::Symlink {
                    let target = self.tree.read_link(&node).await.map_err(refusal)?;
                    answer["target"] = bytes_of(&target);
                }
                Ok(answer)
            }
            TreeOpRequest::List { path, after, max, stat } => {
                let after = after.as_deref().map_or(Ok(0), str::parse).map_err(|_| {
                    HistoryApiError::new(
                        HistoryErrorCode::BadRequest,
                        "after is the cookie of a name",
                    )
                })?;
                let node = self.resolve(path).await?;
                self.list(&node, after, max.unwrap_or(LIST_MAX).clamp(1, LIST_MAX), stat).await
            }
            TreeOpRequest::Open { path } => {
                let node = self.resolve(path).await?;
                let open = self.tree.open(&node).await.map_err(refusal)?;
                let size = open.size().await.map_err(refusal)?;
                Ok(json!({ "open": self.add_open(open), "size": size }))
            }
            TreeOpRequest::Read { open, at, length } => {
                let open = self.find_open(open)?;
                let read = open.read(at, length.min(READ_BYTES_MAX)).await.map_err(refusal)?;
                Ok(json!({ "base64": base64::encode(&read) }))
            }
            TreeOpRequest::Close { open } => {
                self.open_nodes.lock().open.retain(|(number, _)| *number != open);
                Ok(json!({ "closed": open }))
            }
            TreeOpRequest::Keys { topic, at, format, after } => {
                self.keys(&topic, at, format, after).await
            }
        }
    }

    async fn resolve(&self, path: TreeOpPath) -> Result<ViewNode, HistoryApiError> {
        let path = match path {
            TreeOpPath::Text(text) => text.into_bytes(),
            TreeOpPath::Bytes { base64 } => base64::decode(&base64).ok_or_else(|| {
                HistoryApiError::new(HistoryErrorCode::BadPath, "a path in base64 does not read")
            })?,
        };
        self.tree.resolve(&path).await.map_err(refusal)
    }

    async fn list(
        &self,
        node: &ViewNode,
        after: u64,
        max: usize,
        with_stat: bool,
    ) -> Result<Value, HistoryApiError> {
        let listed = self.tree.list(node, after, max).await.map_err(refusal)?;
        let mut names = Vec::with_capacity(listed.len());
        for ViewEntry { cookie, name, node, kind } in listed {
            let mut shown = json!({ "name": bytes_of(&name), "kind": kind_of(kind), "cookie": cookie.to_string() });
            if with_stat {
                // An error for one name does not hide the others.
                match self.tree.stat(&node).await {
                    Ok(stat) => shown["stat"] = stat_of(&stat),
                    Err(error) => shown["error"] = json!(error.to_string()),
                }
                if kind == ViewNodeKind::Symlink
                    && shown["stat"].is_object()
                    && let Ok(target) = self.tree.read_link(&node).await
                {
                    shown["stat"]["target"] = bytes_of(&target);
                }
            }
            names.push(shown);
        }
        Ok(json!({ "names": names }))
    }

    async fn keys(
        &self,
        topic: &str,
        at: Option<String>,
        format: KeysFormat,
        after: Option<String>,
    ) -> Result<Value, HistoryApiError> {
        let path = match at {
            Some(at) => {
                let ask: MomentSelector = at.parse().map_err(|error: hlc::MomentError| {
                    HistoryApiError::new(HistoryErrorCode::BadMoment, error.to_string())
                })?;
                format!(".at/{ask}/topics/{topic}")
            }
            None => format!("topics/{topic}"),
        };
        let node = self.tree.resolve(path.as_bytes()).await.map_err(refusal)?;
        let ViewNode::Topic(topic) = node else {
            return Err(HistoryApiError::new(
                HistoryErrorCode::UnknownTopic,
                format!("not a topic. topic={topic}"),
            ));
        };
        let cursor = after.map(|after| after.parse()).transpose().map_err(refusal)?;
        let format = match format {
            KeysFormat::Values => ViewFormat::Values,
            KeysFormat::Jsonl => ViewFormat::Jsonl,
        };
        let topic: &TopicNode = &topic;
        let page = self.tree.keys_page(topic, format, cursor, READ_BYTES_MAX / 2).await;
        let page = page.map_err(refusal)?;
        Ok(json!({
            "at": page.at.to_string(),
            "base64": base64::encode(&page.text),
            "next": page.next.map(|next| next.to_string()),
        }))
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

fn refusal(error: TreeError) -> HistoryApiError {
    let code = match &error {
        TreeError::NotFound(_) => HistoryErrorCode::NotFound,
        TreeError::NotDirectory(_) => HistoryErrorCode::NotDirectory,
        TreeError::IsDirectory(_) => HistoryErrorCode::IsDirectory,
        TreeError::Moment(_) => HistoryErrorCode::BadMoment,
        TreeError::Invalid(_) | TreeError::Escapes(_) | TreeError::NameTooLong(_) => {
            HistoryErrorCode::BadPath
        }
        TreeError::NotYet(_) => HistoryErrorCode::NotYet,
        TreeError::FarFuture(_) => HistoryErrorCode::FarFuture,
        TreeError::BeforeHistory(_) => HistoryErrorCode::BeforeHistory,
        TreeError::Gone(_) => HistoryErrorCode::Gone,
        TreeError::Unfinished(_) => HistoryErrorCode::Unfinished,
        TreeError::Io(_) => HistoryErrorCode::Internal,
    };
    let refusal = HistoryApiError::new(code, error.to_string());
    // The progress of the search is remembered.
    if code == HistoryErrorCode::Unfinished { refusal.retry_in(0) } else { refusal }
}

/// Text as it is, other bytes in base64.
fn bytes_of(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "base64": base64::encode(bytes) }),
    }
}

fn kind_of(kind: ViewNodeKind) -> &'static str {
    match kind {
        ViewNodeKind::Directory => "directory",
        ViewNodeKind::File => "file",
        ViewNodeKind::Symlink => "symlink",
        ViewNodeKind::Other(_) => "other",
    }
}

fn stat_of(stat: &ViewStat) -> Value {
    let time = |time: engine::files::FileTime| json!([time.seconds, time.nanoseconds]);
    json!({
        "kind": kind_of(stat.kind),
        "size": stat.size,
        "mode": stat.mode,
        "links": stat.links,
        "uid": stat.owner.0,
        "gid": stat.owner.1,
        "modified": time(stat.modified),
        "changed": time(stat.changed),
        "accessed": time(stat.accessed),
        "created": time(stat.created),
        "inode": stat.inode.to_string(),
        "grows": stat.grows,
    })
}
