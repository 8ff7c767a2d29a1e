//! Requests to change znodes and sessions, and their outcomes.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use zk_wire::{ZkCode, ZnodeStat};

use crate::acl::Acl;
use crate::path::key_of;

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

/// The lifetime of a znode that nobody deletes.
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
    /// Raises the number of the next sequential child, unless it is as high already.
    RaiseSequence {
        path: String,
        next: i32,
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

/// The effect of a transaction on a znode's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DataSet {
    To(Option<Bytes>),
    Not,
    /// Several sequential znodes of the transaction may be it: their numbers are not in it.
    Unclear,
}

impl ZnodeTransaction {
    /// The data that the transaction set on a znode that is there after it.
    pub(crate) fn data_set(&self, path_set: &str) -> DataSet {
        let ZnodeTransaction::Ops(ops) = self else { return DataSet::Not };
        let (mut by_name, mut by_number, mut numbers) = (DataSet::Not, DataSet::Not, 0);
        for op in ops {
            match op {
                ZnodeOp::Create { path, data, is_sequential: true, .. } => {
                    if is_numbered(path_set, path) {
                        by_number = DataSet::To(data.clone());
                        numbers += 1;
                    }
                }
                ZnodeOp::Create { path, data, .. } | ZnodeOp::SetData { path, data, .. } => {
                    if key_of(path) == key_of(path_set) {
                        by_name = DataSet::To(data.clone());
                    }
                }
                ZnodeOp::Delete { .. }
                | ZnodeOp::SetAcl { .. }
                | ZnodeOp::Check { .. }
                | ZnodeOp::RaiseSequence { .. } => {}
            }
        }
        // A znode that is set by its name was there before, so that no later change created it.
        match (by_name, numbers) {
            (DataSet::Not, 0 | 1) => by_number,
            (DataSet::Not, _) => DataSet::Unclear,
            (by_name, _) => by_name,
        }
    }
}

/// Returns true if a path is another one with a sequence number behind it.
fn is_numbered(path: &str, prefix: &str) -> bool {
    let number = path.strip_prefix(prefix).map(|number| number.trim_start_matches('-'));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// The outcome of one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpOutcome {
    /// The path of the new znode, and its stat.
    Created(String, ZnodeStat),
    Deleted,
    DataSet(ZnodeStat),
    AclSet(ZnodeStat),
    Checked,
    SequenceRaised,
}

/// The reason that a transaction failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZnodeRefusal {
    pub code: ZkCode,
    /// The place of the change that failed.
    pub op: u32,
}

/// The outcome of a transaction.
#[derive(Clone, Debug)]
pub struct TransactionOutcome {
    pub zxid: i64,
    /// The session: of a new one, its id.
    pub session: SessionId,
    /// The outcome of each change, or the reason that none of them happened.
    pub result: Result<Vec<OpOutcome>, ZnodeRefusal>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::{ALL, anyone};

    fn create(path: &str, data: &'static str, is_sequential: bool) -> ZnodeOp {
        let (path, data) = (path.to_owned(), Some(Bytes::from_static(data.as_bytes())));
        let lifetime = ZnodeLifetime::Persistent;
        ZnodeOp::Create { path, data, acl: anyone(ALL), lifetime, is_sequential }
    }

    fn set(path: &str, data: &'static str) -> ZnodeOp {
        let (path, data) = (path.to_owned(), Some(Bytes::from_static(data.as_bytes())));
        ZnodeOp::SetData { path, data, version: -1 }
    }

    #[test]
    fn a_transaction_says_what_data_it_set_unless_numbers_leave_it_open() {
        let to = |data: &'static str| DataSet::To(Some(Bytes::from_static(data.as_bytes())));
        for (ops, path, expected) in [
            (vec![create("/a", "x", false)], "/a", to("x")),
            (vec![create("/a", "x", false), set("/a", "y")], "/a", to("y")),
            (vec![create("/a", "x", false)], "/b", DataSet::Not),
            (vec![set("/", "x")], "", to("x")),
            (vec![create("/n-", "x", true)], "/n-0000000007", to("x")),
            (vec![create("/n-", "x", true)], "/n-", DataSet::Not),
            (vec![create("/n-", "x", true)], "/n--2147483648", to("x")),
            (
                vec![create("/n-", "x", true), create("/n-", "y", true)],
                "/n-0000000007",
                DataSet::Unclear,
            ),
            (vec![create("/n-", "x", true), create("/m-", "y", true)], "/n-0000000007", to("x")),
            (vec![set("/n-0000000001", "x"), create("/n-", "y", true)], "/n-0000000001", to("x")),
        ] {
            let data_set = ZnodeTransaction::Ops(ops.clone()).data_set(path);
            assert_eq!(data_set, expected, "{path} in {ops:?}");
        }
        assert_eq!(ZnodeTransaction::SessionClosed.data_set("/a"), DataSet::Not);
    }
}
