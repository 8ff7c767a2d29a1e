//! The events that a watch sends to its connection.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchEventKind {
    Created,
    Deleted,
    DataChanged,
    ChildrenChanged,
}

/// An event of a watch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchEvent<'a> {
    pub(crate) kind: WatchEventKind,
    pub(crate) path: &'a str,
    /// The transaction that fired it, or -1.
    pub(crate) zxid: i64,
}
