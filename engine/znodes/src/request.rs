//! Requests to change znodes and sessions, and what becomes of them.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use zk_wire::{ZkCode, ZnodeStat};

use crate::acl::Acl;

/// A session's id. No two sessions ever have the same one, and none is 0.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct SessionId(pub i64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// What becomes of a znode by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ZnodeLifetime {
    /// It stays until it is deleted.
    Persistent,
    /// It ends with the session that created it.
    Ephemeral,
    /// It may be removed once its last child is deleted.
    Container,
    /// It may be removed once it has no children and has not changed for so many milliseconds.
    Ttl(i64),
}

/// One change of a znode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ZnodeOp {
    Create {
        /// Of a sequential znode, without the number.
        path: String,
        data: Option<Bytes>,
        acl: Acl,
        lifetime: ZnodeLifetime,
        is_sequential: bool,
    },
    Delete {
        path: String,
        /// The version that it must have; -1 for any.
        version: i32,
    },
    SetData {
        path: String,
        data: Option<Bytes>,
        version: i32,
    },
    SetAcl {
        path: String,
        acl: Acl,
        version: i32,
    },
    /// Changes nothing, but fails if the znode does not have this version.
    Check {
        path: String,
        version: i32,
    },
}

/// A transaction: everything in it happens, or nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ZnodeTransaction {
    /// Changes of znodes, in order.
    Ops(Vec<ZnodeOp>),
    /// A session begins. Its id follows from the stamp of this.
    SessionCreated { timeout_ms: u32, password: [u8; 16] },
    /// A session ends, and its ephemeral znodes with it.
    SessionClosed,
    /// A container or a znode with a time to live is removed, if it still may be.
    Reaped { path: String },
}

/// What becomes of one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpOutcome {
    /// The path of the new znode, and its stat.
    Created(String, ZnodeStat),
    Deleted,
    DataSet(ZnodeStat),
    AclSet(ZnodeStat),
    Checked,
}

/// Why a transaction failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZnodeRefusal {
    pub code: ZkCode,
    /// The place of the change that failed.
    pub op: u32,
}

/// What became of a transaction.
#[derive(Clone, Debug)]
pub struct TransactionOutcome {
    pub zxid: i64,
    /// The session: of a new one, its id.
    pub session: SessionId,
    /// What became of each change, or why none of them happened.
    pub result: Result<Vec<OpOutcome>, ZnodeRefusal>,
}
