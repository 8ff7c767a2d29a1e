//! The tree of files for readers that ask for a path and read on: those of HTTP.

use admission::Holder;
use bytes::Bytes;
use fileview::tree::{OpenNode, TreeError, ViewNode, ViewTree, check_path};
use history_documents::{TreeName, TreeQuery, TreeRequest};

use crate::access::HistoryAccess;
use crate::context::HistoryContext;
use crate::error::HistoryApiError;
use crate::moment::parse_selector;
use crate::tree::TreeOperations;
use crate::turns::HistoryTurns;

/// The most bytes that one read returns.
const READ_BYTES_MAX: usize = 1 << 20;

/// The directory or the file at a path.
#[derive(Debug)]
pub enum TreeContents {
    /// The names in a directory: the text of a [`history_documents::TreeListResponse`].
    Directory(String),
    File(Box<OpenTreeContents>),
}

/// An open file of the tree. It holds no more than a reader of it needs.
#[derive(Debug)]
pub struct OpenTreeContents {
    tree: ViewTree,
    node: ViewNode,
    open: OpenNode,
    size: u64,
    /// The version of a moment's bytes, which retention and compaction change.
    version: u64,
    turns: HistoryTurns,
    holder: Holder,
}

impl OpenTreeContents {
    /// Its size when it was opened, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Its moment, and the version of its bytes: what has the same tag has the same bytes. `None`
    /// for the present.
    pub fn tag(&self) -> Option<String> {
        self.node.moment().map(|at| format!("{at}-{:x}", self.version))
    }

    /// Reads some bytes from `at` on: none only at the end.
    ///
    /// # Errors
    /// The reader may not read it any more, or records were removed that had not been read.
    pub async fn read(&self, at: u64, length: u64) -> Result<Bytes, HistoryApiError> {
        self.tree.check_contents(&self.node)?;
        let _turn = self.turns.take(&self.holder).await;
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(READ_BYTES_MAX);
        Ok(self.open.read(at, length).await?)
    }
}

/// Resolves a path as of the moment of a query, and opens the file there, or lists the directory.
pub(crate) async fn contents(
    context: &HistoryContext,
    operations: &TreeOperations,
    turns: &HistoryTurns,
    access: &HistoryAccess,
    path: &[u8],
    query: TreeQuery,
) -> Result<TreeContents, HistoryApiError> {
    let TreeQuery { at, after, limit, stat } = query;
    let at = at.map(|at| parse_selector(context, access, &at)).transpose()?;
    // No `..` leaves the moment.
    check_path(path)?;
    let mut absolute = at.map_or_else(Vec::new, |at| format!(".at/{at}/").into_bytes());
    absolute.extend_from_slice(path);
    // A link to the moment of a pin is followed.
    absolute.push(b'/');
    let tree = operations.shown_to(access);
    let node = tree.resolve(&absolute).await?;
    let holder = access.holder();
    // Without a turn: to open a long text is to measure it, which takes long and lets others go on
    // after each step.
    loop {
        let version = tree.version(&node).await?;
        let open = match tree.open(&node).await {
            Err(TreeError::IsDirectory(_)) => {
                let path = TreeName::from_bytes(&absolute);
                let list = TreeRequest::List { path, after, max: limit, stat };
                return Ok(TreeContents::Directory(operations.answer(access, list).await?));
            }
            open => open?,
        };
        let size = open.size().await?;
        // Each version comes once, so the loop ends when retention and compaction do.
        if tree.version(&node).await? == version {
            let turns = turns.clone();
            let file = OpenTreeContents { tree, node, open, size, version, turns, holder };
            return Ok(TreeContents::File(Box::new(file)));
        }
    }
}
