//! Requests that take no zxid. They are answered while the tree is locked, and watches are set in
//! the same moment: nothing is missed, and nothing comes twice.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use bytes::BytesMut;
use engine_znodes::acl::{self, Acl, AclEntry, AclId, check_permission};
use engine_znodes::{FetchedData, SessionId, ZkCode, ZnodeData, ZnodeHistory, ZnodeRef, ZnodeTree};
use parking_lot::{Mutex, MutexGuard};
use zk_wire::JuteWriter;
use zk_wire::opcode as op;

use crate::connection::Connection;
use crate::output::ConnectionOutput;
use crate::past::{PastAnswer, is_past};
use crate::request::{MultiReadOp, PathAndWatch, ReadRequest};
use crate::traffic::RequestMark;
use crate::watches::{AddWatchMode, WatcherType, Watches};
use crate::writes::{put_multi_end, put_multi_error, put_multi_header};

/// A read that was not answered yet.
#[derive(Debug)]
pub(crate) struct PendingRead {
    pub(crate) mark: RequestMark,
    /// The ids of its connection when it came.
    pub(crate) held: Arc<[AclId]>,
    pub(crate) request: ReadRequest,
    pub(crate) fetched: FetchedReads,
}

/// Data that was not in memory and was read before, by path.
pub(crate) type FetchedReads = HashMap<String, FetchedData>;

/// Replies with an answer of the past.
pub(crate) fn reply_from_the_past(
    connection: &Connection,
    zxid: i64,
    read: &PendingRead,
    answer: Result<PastAnswer, ZkCode>,
) {
    let PendingRead { mark, held, request, .. } = read;
    let body = answer.map(|PastAnswer { znode, children, descendants }| {
        move |out: &mut BytesMut| match request {
            ReadRequest::GetData(_) => {
                out.buffer(znode.data.as_deref());
                znode.stat.write(out);
            }
            ReadRequest::GetAcl { .. } => {
                put_acl(out, &shown_acl(&znode.acl, held));
                znode.stat.write(out);
            }
            ReadRequest::GetChildren { with_stat, .. } => {
                put_names(out, &connection.output, &children);
                if *with_stat {
                    znode.stat.write(out);
                }
            }
            ReadRequest::GetAllChildrenNumber { .. } => out.int(descendants as i32),
            _ => znode.stat.write(out),
        }
    });
    connection.output.reply(mark.clone(), zxid, body);
}

/// Puts an answer of the past for an operation of a multiRead.
pub(crate) fn put_multi_read_of_the_past(
    out: &mut BytesMut,
    output: &ConnectionOutput,
    op: &MultiReadOp,
    answer: Result<PastAnswer, ZkCode>,
) {
    match (op, answer) {
        (_, Err(code)) => put_multi_error(out, code.number()),
        (MultiReadOp::GetData(_), Ok(PastAnswer { znode, .. })) => {
            put_multi_header(out, op::GET_DATA, false, 0);
            out.buffer(znode.data.as_deref());
            znode.stat.write(out);
        }
        (MultiReadOp::GetChildren(_), Ok(PastAnswer { children, .. })) => {
            put_multi_header(out, op::GET_CHILDREN, false, 0);
            put_names(out, output, &children);
        }
    }
}

/// A znode's data, from the tree or read before.
type ReadData<'a> = Option<Cow<'a, [u8]>>;

/// A reply's body.
type Body<'a> = Box<dyn FnOnce(&mut BytesMut) + 'a>;

/// Answers a read of `session`.
pub(crate) fn answer_read(
    sources: ReadSources<'_>,
    connection: &Arc<Connection>,
    session: SessionId,
    tree: &ZnodeTree,
    PendingRead { mark, held, request, fetched }: &PendingRead,
) {
    let reader = TreeReader { sources, connection, session, tree, held, fetched };
    let body = reader.answer(request);
    // ZooKeeper does not look at its tree for a request that it does not know.
    let zxid = match request {
        ReadRequest::Refused(ZkCode::Unimplemented) => -1,
        _ => tree.last_zxid(),
    };
    connection.output.reply(mark.clone(), zxid, body);
}

/// The sources of reads besides the tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadSources<'a> {
    pub(crate) watches: &'a Mutex<Watches>,
    pub(crate) history: &'a ZnodeHistory,
}

/// Reads the tree of the present for a connection.
pub(crate) struct TreeReader<'a> {
    pub(crate) sources: ReadSources<'a>,
    pub(crate) connection: &'a Arc<Connection>,
    pub(crate) session: SessionId,
    pub(crate) tree: &'a ZnodeTree,
    pub(crate) held: &'a [AclId],
    pub(crate) fetched: &'a FetchedReads,
}

impl<'a> TreeReader<'a> {
    fn watches(&self) -> MutexGuard<'a, Watches> {
        self.sources.watches.lock()
    }

    fn answer(&'a self, request: &'a ReadRequest) -> Result<Body<'a>, ZkCode> {
        Ok(match request {
            ReadRequest::Refused(code) => return Err(*code),
            ReadRequest::Ping => Box::new(|_| {}),
            ReadRequest::Sync { path } => Box::new(|out| out.string(path.as_deref())),
            ReadRequest::Exists { path, watch } => self.exists(path, *watch)?,
            ReadRequest::GetData(from) => {
                let (znode, data) = self.data(&from.path)?;
                self.watch_data(from);
                Box::new(move |out| {
                    out.buffer(data.as_deref());
                    znode.stat().write(out);
                })
            }
            ReadRequest::GetAcl { path } => {
                let (acl, znode) = self.acl(path)?;
                Box::new(move |out| {
                    put_acl(out, &acl);
                    znode.stat().write(out);
                })
            }
            ReadRequest::GetChildren { from, with_stat } => {
                let znode = self.readable(&from.path)?;
                self.watch_children(from);
                Box::new(move |out| {
                    put_names(out, &self.connection.output, znode.children());
                    if *with_stat {
                        znode.stat().write(out);
                    }
                })
            }
            ReadRequest::Multi(ops) => {
                ops.iter().for_each(|op| self.watch_multi_read(op));
                Box::new(move |out| {
                    for op in ops {
                        // A short request can ask for the same long data many times.
                        if !self.connection.output.may_hold(out.len()) {
                            return;
                        }
                        self.put_multi_read(out, op);
                    }
                    put_multi_end(out);
                })
            }
            ReadRequest::SetWatches(watches) => {
                self.watches().restore(self.tree, watches, self.connection);
                Box::new(|_| {})
            }
            ReadRequest::AddWatch { path, mode } => {
                let mode = match mode {
                    0 => AddWatchMode::Persistent,
                    1 => AddWatchMode::PersistentRecursive,
                    _ => return Err(ZkCode::MarshallingError),
                };
                if !is_past(path) {
                    self.watches().add(path, self.connection, mode);
                }
                Box::new(|out| out.int(0))
            }
            ReadRequest::CheckWatches { path, kind } => {
                let kind = WatcherType::from_number(*kind)?;
                let is_watched = self.watches().holds(path, self.connection, kind);
                self.if_watched(is_watched)?
            }
            ReadRequest::RemoveWatches { path, kind } => {
                let kind = WatcherType::from_number(*kind)?;
                let is_watched = self.watches().remove(path, self.connection, kind);
                self.if_watched(is_watched)?
            }
            ReadRequest::GetEphemerals { prefix } => {
                let prefix = prefix.as_deref().unwrap_or_default();
                let is_root = matches!(prefix.trim(), "" | "/");
                let session = self.tree.session(self.session);
                let ephemerals = session.into_iter().flat_map(|session| session.ephemerals());
                let paths: Vec<&str> =
                    ephemerals.filter(|path| is_root || path.starts_with(prefix)).collect();
                Box::new(move |out| put_names(out, &self.connection.output, paths))
            }
            ReadRequest::GetAllChildrenNumber { path } => {
                self.readable(path)?;
                let descendants = self.tree.descendants(path).unwrap_or_default();
                // For ZooKeeper the root is below the empty path.
                let count = descendants + usize::from(path.is_empty());
                Box::new(move |out| out.int(count as i32))
            }
            ReadRequest::WhoAmI => Box::new(|out| {
                out.vector(Some(self.held), |out, id| {
                    let (scheme, id) = id.shown();
                    out.string(Some(scheme));
                    out.string(Some(id));
                });
            }),
        })
    }

    /// A znode that the connection may read.
    fn readable(&self, path: &str) -> Result<ZnodeRef<'a>, ZkCode> {
        let znode = self.tree.get(path).ok_or(ZkCode::NoNode)?;
        check_permission(znode.acl(), acl::READ, self.held)?;
        Ok(znode)
    }

    /// The watch is set also if there is no znode: it may be created.
    fn exists(&self, path: &str, watch: bool) -> Result<Body<'a>, ZkCode> {
        if path.contains('\0') {
            return Err(ZkCode::BadArguments);
        }
        let readable = match self.readable(path) {
            Err(ZkCode::NoNode) => Err(ZkCode::NoNode),
            result => Ok(result?),
        };
        if watch {
            self.watches().watch_data(path, self.connection);
        }
        let stat = readable?.stat();
        Ok(Box::new(move |out| stat.write(out)))
    }

    /// A znode and its data. Data that was not in memory was fetched before. Only data that left
    /// memory right after that is read here, while the tree is locked.
    fn data(&self, path: &str) -> Result<(ZnodeRef<'a>, ReadData<'a>), ZkCode> {
        let znode = self.readable(path)?;
        let data = match znode.data() {
            ZnodeData::Here(data) => data.map(Cow::Borrowed),
            ZnodeData::Elsewhere
                if let Some(FetchedData { mzxid, data }) = self.fetched.get(path)
                    && *mzxid == znode.stat().mzxid =>
            {
                data.as_deref().map(Cow::Borrowed)
            }
            ZnodeData::Elsewhere => {
                let data =
                    self.sources.history.data_since(path, znode.stat().mzxid).map_err(|error| {
                        tracing::warn!(path, %error, "the data of a znode cannot be read");
                        ZkCode::SystemError
                    })?;
                data.map(|data| Cow::Owned(data.to_vec()))
            }
        };
        Ok((znode, data))
    }

    /// Sets the watch that is asked for with the data of a znode.
    fn watch_data(&self, PathAndWatch { path, watch }: &PathAndWatch) {
        if *watch {
            self.watches().watch_data(path, self.connection);
        }
    }

    fn watch_children(&self, PathAndWatch { path, watch }: &PathAndWatch) {
        if *watch {
            self.watches().watch_children(path, self.connection);
        }
    }

    /// Sets the watch of one read of several. It must not be called while their reply is written:
    /// to set a watch is to check that the connection goes on, and its output is locked then.
    fn watch_multi_read(&self, read: &MultiReadOp) {
        let (MultiReadOp::GetData(from) | MultiReadOp::GetChildren(from)) = read;
        if self.readable(&from.path).is_err() {
            return;
        }
        match read {
            MultiReadOp::GetData(_) => self.watch_data(from),
            MultiReadOp::GetChildren(_) => self.watch_children(from),
        }
    }

    /// A client that may read, but not administer, does not see hashes.
    fn acl(&self, path: &str) -> Result<(Acl, ZnodeRef<'a>), ZkCode> {
        let znode = self.tree.get(path).ok_or(ZkCode::NoNode)?;
        let acl = znode.acl();
        check_permission(acl, acl::READ | acl::ADMIN, self.held)?;
        Ok((shown_acl(acl, self.held), znode))
    }

    fn if_watched(&self, is_watched: bool) -> Result<Body<'a>, ZkCode> {
        if !is_watched {
            return Err(ZkCode::NoWatcher);
        }
        Ok(Box::new(|_| {}))
    }

    /// Each of them fails for itself. Their watches are set before
    /// ([`TreeReader::watch_multi_read`]).
    pub(crate) fn put_multi_read(&self, out: &mut BytesMut, read: &MultiReadOp) {
        match read {
            MultiReadOp::GetData(from) => match self.data(&from.path) {
                Ok((znode, data)) => {
                    put_multi_header(out, op::GET_DATA, false, 0);
                    out.buffer(data.as_deref());
                    znode.stat().write(out);
                }
                Err(code) => put_multi_error(out, code.number()),
            },
            MultiReadOp::GetChildren(from) => match self.readable(&from.path) {
                Ok(znode) => {
                    put_multi_header(out, op::GET_CHILDREN, false, 0);
                    put_names(out, &self.connection.output, znode.children());
                }
                Err(code) => put_multi_error(out, code.number()),
            },
        }
    }
}

/// A list as a client with these `ids` sees it: hashes are for administrators.
fn shown_acl(acl: &Acl, ids: &[AclId]) -> Acl {
    if check_permission(acl, acl::ADMIN, ids).is_ok() {
        return Acl::clone(acl);
    }
    let without_hash = |entry: &AclEntry| match &*entry.id.scheme {
        "digest" => {
            let (_, user) = entry.id.shown();
            let id = AclId::new("digest", &format!("{user}:x"));
            AclEntry { id, ..*entry }
        }
        _ => entry.clone(),
    };
    acl.iter().map(without_hash).collect()
}

/// Puts names, or the first of them, until they are more than may wait for the client: its
/// connection is closed then. The children of one znode may have gigabytes of names.
fn put_names(
    out: &mut BytesMut,
    output: &ConnectionOutput,
    names: impl IntoIterator<Item: AsRef<str>, IntoIter: ExactSizeIterator>,
) {
    let names = names.into_iter();
    out.int(names.len() as i32);
    for name in names {
        if !output.may_hold(out.len()) {
            return;
        }
        out.string(Some(name.as_ref()));
    }
}

fn put_acl(out: &mut BytesMut, acl: &Acl) {
    out.vector(Some(&acl[..]), |out, entry| {
        out.int(entry.permissions);
        out.string(Some(&entry.id.scheme));
        out.string(Some(&entry.id.id));
    });
}
