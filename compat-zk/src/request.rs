//! The bodies of requests.

use bytes::Bytes;
use engine_znodes::ZkCode;
use engine_znodes::acl::RequestedAclEntry;
use history_documents::ZNODE_HISTORY_OPCODE;
use zk_wire::opcode as op;
use zk_wire::{JuteError, JuteReader};

use crate::past::{PastQuestion, is_past};

/// An entry of a list takes at least this: permissions, and the lengths of two strings.
const ACL_ENTRY_BYTES_MIN: usize = 12;
/// A path takes at least its length.
const PATH_BYTES_MIN: usize = 4;

/// A request after the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ZkRequest {
    Write(WriteRequest),
    Read(ReadRequest),
    Auth {
        scheme: String,
        auth: Bytes,
    },
    /// A token of SASL.
    Sasl(Bytes),
    /// A document of the history API.
    History(Bytes),
    CloseSession,
}

/// A request that takes a zxid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WriteRequest {
    Single(WriteOp),
    Multi(Vec<WriteOp>),
    /// It is refused in any tree, and takes a zxid all the same.
    Refused(ZkCode),
    Reconfig,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WriteOp {
    /// Its number, which decides what its result looks like.
    pub(crate) opcode: i32,
    pub(crate) path: String,
    pub(crate) body: WriteOpBody,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WriteOpBody {
    Create {
        data: Option<Bytes>,
        acl: Option<Vec<RequestedAclEntry>>,
        flags: i32,
        /// Milliseconds, or -1.
        ttl: i64,
    },
    Delete {
        version: i32,
    },
    SetData {
        data: Option<Bytes>,
        version: i32,
    },
    SetAcl {
        acl: Option<Vec<RequestedAclEntry>>,
        version: i32,
    },
    Check {
        version: i32,
    },
    RaiseSequence {
        next: i32,
    },
}

/// A request that takes no zxid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadRequest {
    /// One that is refused, in its turn.
    Refused(ZkCode),
    Ping,
    Sync {
        path: Option<String>,
    },
    Exists {
        path: String,
        watch: bool,
    },
    GetData(PathAndWatch),
    GetAcl {
        path: String,
    },
    GetChildren {
        from: PathAndWatch,
        with_stat: bool,
    },
    Multi(Vec<MultiReadOp>),
    SetWatches(Box<SetWatches>),
    AddWatch {
        path: String,
        mode: i32,
    },
    CheckWatches {
        path: String,
        kind: i32,
    },
    RemoveWatches {
        path: String,
        kind: i32,
    },
    GetEphemerals {
        prefix: Option<String>,
    },
    GetAllChildrenNumber {
        path: String,
    },
    WhoAmI,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathAndWatch {
    pub(crate) path: String,
    pub(crate) watch: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MultiReadOp {
    GetData(PathAndWatch),
    GetChildren(PathAndWatch),
}

impl MultiReadOp {
    /// The znode whose data is asked for.
    pub(crate) fn data_path(&self) -> Option<&str> {
        match self {
            MultiReadOp::GetData(from) => Some(&from.path),
            MultiReadOp::GetChildren(_) => None,
        }
    }

    pub(crate) fn sets_watch(&self) -> bool {
        let (MultiReadOp::GetData(from) | MultiReadOp::GetChildren(from)) = self;
        from.watch
    }

    /// The question about the past, as in [`ReadRequest::of_the_past`].
    pub(crate) fn of_the_past(&self) -> Option<(&str, PastQuestion)> {
        let (from, question) = match self {
            MultiReadOp::GetData(from) => (from, PastQuestion::Znode),
            MultiReadOp::GetChildren(from) => (from, PastQuestion::Children),
        };
        is_past(&from.path).then_some((&from.path, question))
    }
}

impl ReadRequest {
    /// The znodes whose data is asked for.
    pub(crate) fn data_paths(&self) -> Vec<&str> {
        match self {
            ReadRequest::GetData(from) => vec![&from.path],
            ReadRequest::Multi(ops) => ops.iter().filter_map(MultiReadOp::data_path).collect(),
            _ => Vec::new(),
        }
    }

    /// The path and the question, if the request is about the past.
    pub(crate) fn of_the_past(&self) -> Option<(&str, PastQuestion)> {
        let (path, question) = match self {
            ReadRequest::Exists { path, .. } => (path, PastQuestion::Znode),
            ReadRequest::GetData(from) => (&from.path, PastQuestion::Znode),
            ReadRequest::GetAcl { path } => (path, PastQuestion::Acl),
            ReadRequest::GetChildren { from, .. } => (&from.path, PastQuestion::Children),
            ReadRequest::GetAllChildrenNumber { path } => (path, PastQuestion::Descendants),
            _ => return None,
        };
        is_past(path).then_some((path, question))
    }
}

/// The watches that a client had before it lost its connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetWatches {
    /// The last zxid that it saw.
    pub(crate) relative_zxid: i64,
    pub(crate) data: Vec<String>,
    pub(crate) exists: Vec<String>,
    pub(crate) children: Vec<String>,
    pub(crate) persistent: Vec<String>,
    pub(crate) recursive: Vec<String>,
}

impl ZkRequest {
    /// Decodes a request by its number; `None` for a number that clients do not send.
    ///
    /// # Errors
    /// The body is cut short, or a field is null that must not be.
    pub(crate) fn read(
        opcode: i32,
        fields: &mut JuteReader,
    ) -> Result<Option<ZkRequest>, JuteError> {
        let read = match opcode {
            op::AUTH => {
                fields.int()?;
                let scheme = fields.required_string()?;
                let auth = fields.buffer()?.unwrap_or_default();
                return Ok(Some(ZkRequest::Auth { scheme, auth }));
            }
            op::SASL => return Ok(Some(ZkRequest::Sasl(fields.buffer()?.unwrap_or_default()))),
            op::CLOSE_SESSION => return Ok(Some(ZkRequest::CloseSession)),
            ZNODE_HISTORY_OPCODE => {
                return Ok(Some(ZkRequest::History(fields.buffer()?.unwrap_or_default())));
            }
            op::CREATE
            | op::CREATE_2
            | op::CREATE_CONTAINER
            | op::CREATE_TTL
            | op::DELETE
            | op::SET_DATA
            | op::SET_ACL
            | op::RAISE_SEQUENCE => {
                let write = WriteRequest::Single(WriteOp::read(opcode, fields)?);
                return Ok(Some(ZkRequest::Write(write)));
            }
            op::MULTI => {
                let write = match read_multi(fields, WriteOp::read_in_multi) {
                    Ok(ops) => WriteRequest::Multi(ops),
                    // As in ZooKeeper, only a null field is noticed before the zxid is taken.
                    Err(JuteError::Null) => return Err(JuteError::Null),
                    Err(_) => WriteRequest::Refused(ZkCode::MarshallingError),
                };
                return Ok(Some(ZkRequest::Write(write)));
            }
            op::RECONFIG => return Ok(Some(ZkRequest::Write(WriteRequest::Reconfig))),
            op::PING => ReadRequest::Ping,
            op::SYNC => ReadRequest::Sync { path: fields.string()? },
            op::EXISTS => {
                let PathAndWatch { path, watch } = PathAndWatch::read(fields)?;
                ReadRequest::Exists { path, watch }
            }
            op::GET_DATA => ReadRequest::GetData(PathAndWatch::read(fields)?),
            op::GET_ACL => ReadRequest::GetAcl { path: fields.required_string()? },
            op::GET_CHILDREN | op::GET_CHILDREN_2 => ReadRequest::GetChildren {
                from: PathAndWatch::read(fields)?,
                with_stat: opcode == op::GET_CHILDREN_2,
            },
            op::MULTI_READ => ReadRequest::Multi(read_multi(fields, MultiReadOp::read)?),
            op::SET_WATCHES | op::SET_WATCHES_2 => {
                ReadRequest::SetWatches(Box::new(SetWatches::read(opcode, fields)?))
            }
            op::ADD_WATCH => {
                ReadRequest::AddWatch { path: fields.required_string()?, mode: fields.int()? }
            }
            op::CHECK_WATCHES => {
                ReadRequest::CheckWatches { path: fields.required_string()?, kind: fields.int()? }
            }
            op::REMOVE_WATCHES => {
                ReadRequest::RemoveWatches { path: fields.required_string()?, kind: fields.int()? }
            }
            op::GET_EPHEMERALS => ReadRequest::GetEphemerals { prefix: fields.string()? },
            op::GET_ALL_CHILDREN_NUMBER => {
                ReadRequest::GetAllChildrenNumber { path: fields.required_string()? }
            }
            op::WHO_AM_I => ReadRequest::WhoAmI,
            _ => return Ok(None),
        };
        Ok(Some(ZkRequest::Read(read)))
    }
}

impl WriteOp {
    fn read(opcode: i32, fields: &mut JuteReader) -> Result<WriteOp, JuteError> {
        let path = fields.required_string()?;
        let body = match opcode {
            op::DELETE => WriteOpBody::Delete { version: fields.int()? },
            op::SET_DATA => WriteOpBody::SetData { data: fields.buffer()?, version: fields.int()? },
            op::SET_ACL => WriteOpBody::SetAcl { acl: read_acl(fields)?, version: fields.int()? },
            op::CHECK => WriteOpBody::Check { version: fields.int()? },
            op::RAISE_SEQUENCE => WriteOpBody::RaiseSequence { next: fields.int()? },
            _ => WriteOpBody::Create {
                data: fields.buffer()?,
                acl: read_acl(fields)?,
                flags: fields.int()?,
                ttl: if opcode == op::CREATE_TTL { fields.long()? } else { -1 },
            },
        };
        Ok(WriteOp { opcode, path, body })
    }

    fn read_in_multi(opcode: i32, fields: &mut JuteReader) -> Result<Option<WriteOp>, JuteError> {
        match opcode {
            op::CREATE
            | op::CREATE_2
            | op::CREATE_CONTAINER
            | op::CREATE_TTL
            | op::DELETE
            | op::SET_DATA
            | op::CHECK
            | op::RAISE_SEQUENCE => match WriteOp::read(opcode, fields)? {
                // ZooKeeper reads a null list elsewhere, and refuses it as an invalid one.
                WriteOp { body: WriteOpBody::Create { acl: None, .. }, .. } => Err(JuteError::Null),
                write => Ok(Some(write)),
            },
            _ => Ok(None),
        }
    }
}

impl MultiReadOp {
    fn read(opcode: i32, fields: &mut JuteReader) -> Result<Option<MultiReadOp>, JuteError> {
        Ok(match opcode {
            op::GET_DATA => Some(MultiReadOp::GetData(PathAndWatch::read(fields)?)),
            op::GET_CHILDREN => Some(MultiReadOp::GetChildren(PathAndWatch::read(fields)?)),
            _ => None,
        })
    }
}

impl PathAndWatch {
    fn read(fields: &mut JuteReader) -> Result<PathAndWatch, JuteError> {
        Ok(PathAndWatch { path: fields.required_string()?, watch: fields.bool()? })
    }
}

impl SetWatches {
    fn read(opcode: i32, fields: &mut JuteReader) -> Result<SetWatches, JuteError> {
        let mut watches = SetWatches {
            relative_zxid: fields.long()?,
            data: read_paths(fields)?,
            exists: read_paths(fields)?,
            children: read_paths(fields)?,
            ..SetWatches::default()
        };
        if opcode == op::SET_WATCHES_2 {
            watches.persistent = read_paths(fields)?;
            watches.recursive = read_paths(fields)?;
        }
        Ok(watches)
    }
}

/// Reads headers and operations up to the header that ends them.
fn read_multi<T>(
    fields: &mut JuteReader,
    read: impl Fn(i32, &mut JuteReader) -> Result<Option<T>, JuteError>,
) -> Result<Vec<T>, JuteError> {
    let mut ops = Vec::new();
    loop {
        let (opcode, is_done, _) = (fields.int()?, fields.bool()?, fields.int()?);
        if is_done {
            return Ok(ops);
        }
        ops.push(read(opcode, fields)?.ok_or(JuteError::Operation { opcode })?);
    }
}

fn read_acl(fields: &mut JuteReader) -> Result<Option<Vec<RequestedAclEntry>>, JuteError> {
    fields.vector(ACL_ENTRY_BYTES_MIN, |fields| {
        Ok(RequestedAclEntry {
            permissions: fields.int()?,
            scheme: fields.string()?,
            id: fields.string()?,
        })
    })
}

fn read_paths(fields: &mut JuteReader) -> Result<Vec<String>, JuteError> {
    Ok(fields.vector(PATH_BYTES_MIN, JuteReader::required_string)?.unwrap_or_default())
}
