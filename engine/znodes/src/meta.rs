//! All of a znode but its data and the names of its children, and what changes do to it.
//!
//! The tree, what waits for it, and the versions in the catalog all change it by these functions.

use hlc::Hlc;
use serde::{Deserialize, Serialize};
use zk_wire::{ZkCode, ZnodeStat};

use crate::acl::{self, Acl};
use crate::request::{SessionId, ZnodeLifetime};

/// The time at which a transaction takes effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransactionTime {
    pub(crate) zxid: i64,
    /// Milliseconds since 1970.
    pub(crate) ms: i64,
}

impl TransactionTime {
    /// The time of the transaction that has this stamp.
    pub(crate) fn new(zxid: i64, stamp: Hlc) -> TransactionTime {
        TransactionTime { zxid, ms: stamp.time().0 as i64 }
    }
}

/// The condition of a znode's lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ZnodeOwner {
    None,
    Session(SessionId),
    Container,
    /// In milliseconds.
    Ttl(i64),
}

impl ZnodeOwner {
    pub(crate) fn of(lifetime: ZnodeLifetime, session: SessionId) -> ZnodeOwner {
        match lifetime {
            ZnodeLifetime::Persistent => ZnodeOwner::None,
            ZnodeLifetime::Ephemeral => ZnodeOwner::Session(session),
            ZnodeLifetime::Container => ZnodeOwner::Container,
            ZnodeLifetime::Ttl(ms) => ZnodeOwner::Ttl(ms),
        }
    }

    pub(crate) fn lifetime(self) -> ZnodeLifetime {
        match self {
            ZnodeOwner::None => ZnodeLifetime::Persistent,
            ZnodeOwner::Session(_) => ZnodeLifetime::Ephemeral,
            ZnodeOwner::Container => ZnodeLifetime::Container,
            ZnodeOwner::Ttl(ms) => ZnodeLifetime::Ttl(ms),
        }
    }
}

/// `A` is its list, or where that and its holder are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ZnodeMeta<A = Acl> {
    pub(crate) czxid: i64,
    pub(crate) mzxid: i64,
    pub(crate) pzxid: i64,
    pub(crate) ctime: i64,
    pub(crate) mtime: i64,
    pub(crate) version: i32,
    /// The number of children that were ever created: ZooKeeper's cversion before it is shown.
    pub(crate) creates: i32,
    pub(crate) aversion: i32,
    pub(crate) children: i32,
    pub(crate) data_length: i32,
    pub(crate) owner: ZnodeOwner,
    pub(crate) acl: A,
}

impl ZnodeMeta {
    pub(crate) fn new(
        at: TransactionTime,
        owner: ZnodeOwner,
        acl: Acl,
        data: Option<&[u8]>,
    ) -> ZnodeMeta {
        ZnodeMeta {
            czxid: at.zxid,
            mzxid: at.zxid,
            pzxid: at.zxid,
            ctime: at.ms,
            mtime: at.ms,
            version: 0,
            creates: 0,
            aversion: 0,
            children: 0,
            data_length: length_of(data),
            owner,
            acl,
        }
    }

    /// A znode that is there before the first transaction.
    pub(crate) fn built_in(path: &str) -> Option<ZnodeMeta> {
        let (children, permissions, aversion) = match path {
            "" => (1, acl::ALL, 0),
            "/zookeeper" => (2, acl::ALL, 0),
            "/zookeeper/quota" => (0, acl::ALL, 0),
            "/zookeeper/config" => (0, acl::READ, -1),
            _ => return None,
        };
        let at = TransactionTime { zxid: 0, ms: 0 };
        let meta = ZnodeMeta::new(at, ZnodeOwner::None, acl::anyone(permissions), None);
        Some(ZnodeMeta { children, aversion, ..meta })
    }
}

impl<A> ZnodeMeta<A> {
    /// The same with another list.
    pub(crate) fn with_acl<B>(&self, acl: B) -> ZnodeMeta<B> {
        ZnodeMeta {
            czxid: self.czxid,
            mzxid: self.mzxid,
            pzxid: self.pzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            creates: self.creates,
            aversion: self.aversion,
            children: self.children,
            data_length: self.data_length,
            owner: self.owner,
            acl,
        }
    }

    pub(crate) fn create_child(&mut self, at: TransactionTime) {
        self.creates = self.creates.wrapping_add(1);
        self.children += 1;
        self.pzxid = at.zxid;
    }

    pub(crate) fn delete_child(&mut self, at: TransactionTime) {
        self.children -= 1;
        self.pzxid = at.zxid;
    }

    /// Raises the number of the next sequential child. After the highest number comes the lowest.
    pub(crate) fn raise_sequence(&mut self, at: TransactionTime, next: i32) {
        if self.is_below_sequence(next) {
            self.creates = next;
            self.pzxid = at.zxid;
        }
    }

    pub(crate) fn is_below_sequence(&self, next: i32) -> bool {
        next.wrapping_sub(self.creates) > 0
    }

    pub(crate) fn set_data(&mut self, at: TransactionTime, data: Option<&[u8]>) {
        self.version = next_version(self.version);
        (self.mzxid, self.mtime) = (at.zxid, at.ms);
        self.data_length = length_of(data);
    }

    /// Sets the list; returns the one before.
    pub(crate) fn set_acl(&mut self, acl: A) -> A {
        self.aversion = next_version(self.aversion);
        std::mem::replace(&mut self.acl, acl)
    }

    /// Returns true if a container or a znode with a time to live may be removed at `now_ms`. A
    /// container of which no child was ever created may be after `never_used_ms`, if that is given.
    pub(crate) fn may_be_reaped(&self, now_ms: i64, never_used_ms: Option<i64>) -> bool {
        let is_due = match self.owner {
            ZnodeOwner::Container if self.creates != 0 => true,
            ZnodeOwner::Container => never_used_ms.is_some_and(|ms| now_ms - self.ctime > ms),
            ZnodeOwner::Ttl(ms) => now_ms - self.mtime > ms,
            ZnodeOwner::None | ZnodeOwner::Session(_) => false,
        };
        is_due && self.children == 0
    }

    pub(crate) fn stat(&self) -> ZnodeStat {
        ZnodeStat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            // Each child that is gone was created and deleted.
            cversion: self.creates.wrapping_mul(2).wrapping_sub(self.children),
            aversion: self.aversion,
            ephemeral_owner: match self.owner {
                ZnodeOwner::Session(session) => session.0,
                ZnodeOwner::None | ZnodeOwner::Container | ZnodeOwner::Ttl(_) => 0,
            },
            data_length: self.data_length,
            num_children: self.children,
            pzxid: self.pzxid,
        }
    }
}

fn length_of(data: Option<&[u8]>) -> i32 {
    data.map_or(0, |data| data.len() as i32)
}

/// The version after `version`. It is never -1, which means any version in a request.
fn next_version(version: i32) -> i32 {
    match version.wrapping_add(1) {
        -1 => 0,
        next => next,
    }
}

/// Checks that `current` is the version that a client expects; -1 expects any.
///
/// # Errors
/// [`ZkCode::BadVersion`].
pub(crate) fn check_version(current: i32, expected: i32) -> Result<(), ZkCode> {
    if expected == -1 || expected == current { Ok(()) } else { Err(ZkCode::BadVersion) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From ZOOKEEPER-4743: a client could not expect a version of -1.
    #[test]
    fn no_version_is_the_one_that_means_any() {
        assert_eq!(next_version(0), 1);
        assert_eq!(next_version(i32::MAX), i32::MIN);
        assert_eq!(next_version(-2), 0);
    }
}
