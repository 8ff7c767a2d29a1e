//! ZooKeeper's error codes (`KeeperException.Code`), as far as a server of one node answers them.

use std::fmt;

/// The reason why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum ZkCode {
    /// The service failed: its disk, or its clock.
    SystemError = -1,
    /// An operation of a transaction that was not tried, because one before it failed.
    RuntimeInconsistency = -2,
    /// The request cannot be decoded.
    MarshallingError = -5,
    Unimplemented = -6,
    OperationTimeout = -7,
    BadArguments = -8,
    NoNode = -101,
    NoAuth = -102,
    BadVersion = -103,
    NoChildrenForEphemerals = -108,
    NodeExists = -110,
    NotEmpty = -111,
    SessionExpired = -112,
    InvalidAcl = -114,
    AuthFailed = -115,
    NotReadOnly = -119,
    NoWatcher = -121,
    ReconfigDisabled = -123,
    /// The connection has to authenticate first.
    SessionClosedRequireSaslAuth = -124,
    QuotaExceeded = -125,
}

const ALL: [ZkCode; 20] = [
    ZkCode::SystemError,
    ZkCode::RuntimeInconsistency,
    ZkCode::MarshallingError,
    ZkCode::Unimplemented,
    ZkCode::OperationTimeout,
    ZkCode::BadArguments,
    ZkCode::NoNode,
    ZkCode::NoAuth,
    ZkCode::BadVersion,
    ZkCode::NoChildrenForEphemerals,
    ZkCode::NodeExists,
    ZkCode::NotEmpty,
    ZkCode::SessionExpired,
    ZkCode::InvalidAcl,
    ZkCode::AuthFailed,
    ZkCode::NotReadOnly,
    ZkCode::NoWatcher,
    ZkCode::ReconfigDisabled,
    ZkCode::SessionClosedRequireSaslAuth,
    ZkCode::QuotaExceeded,
];

impl ZkCode {
    /// The number on the wire and in the journal.
    pub fn number(self) -> i32 {
        self as i32
    }

    /// The code of a number.
    pub fn from_number(number: i32) -> Option<ZkCode> {
        ALL.into_iter().find(|code| code.number() == number)
    }
}

impl fmt::Display for ZkCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?} ({})", self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_found_by_its_number() {
        for code in ALL {
            assert_eq!(ZkCode::from_number(code.number()), Some(code));
        }
        assert_eq!(ZkCode::from_number(0), None);
    }
}
