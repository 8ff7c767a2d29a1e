//! The numbers of requests (`ZooDefs.OpCode`), and the xids that are reserved.

pub const CREATE: i32 = 1;
pub const DELETE: i32 = 2;
pub const EXISTS: i32 = 3;
pub const GET_DATA: i32 = 4;
pub const SET_DATA: i32 = 5;
pub const GET_ACL: i32 = 6;
pub const SET_ACL: i32 = 7;
pub const GET_CHILDREN: i32 = 8;
pub const SYNC: i32 = 9;
pub const PING: i32 = 11;
pub const GET_CHILDREN_2: i32 = 12;
pub const CHECK: i32 = 13;
pub const MULTI: i32 = 14;
pub const CREATE_2: i32 = 15;
pub const RECONFIG: i32 = 16;
pub const CHECK_WATCHES: i32 = 17;
pub const REMOVE_WATCHES: i32 = 18;
pub const CREATE_CONTAINER: i32 = 19;
pub const CREATE_TTL: i32 = 21;
pub const MULTI_READ: i32 = 22;
pub const AUTH: i32 = 100;
pub const SET_WATCHES: i32 = 101;
pub const SASL: i32 = 102;
pub const GET_EPHEMERALS: i32 = 103;
pub const GET_ALL_CHILDREN_NUMBER: i32 = 104;
pub const SET_WATCHES_2: i32 = 105;
pub const ADD_WATCH: i32 = 106;
pub const WHO_AM_I: i32 = 107;
pub const CLOSE_SESSION: i32 = -11;
/// "FS", which other servers do not know: raises the number of a znode's next sequential child. It
/// has a path and that number, alone or in a multi.
pub const RAISE_SEQUENCE: i32 = i32::from_be_bytes([0, 0, b'F', b'S']);
/// The type of a result in a multi, and of the header behind the last one.
pub const ERROR: i32 = -1;

/// The name of a request, as ZooKeeper's clients call its operation.
pub fn name(opcode: i32) -> &'static str {
    match opcode {
        CREATE | CREATE_2 => "create",
        CREATE_CONTAINER => "createContainer",
        CREATE_TTL => "createTTL",
        DELETE => "delete",
        EXISTS => "exists",
        GET_DATA => "getData",
        SET_DATA => "setData",
        GET_ACL => "getACL",
        SET_ACL => "setACL",
        GET_CHILDREN | GET_CHILDREN_2 => "getChildren",
        GET_ALL_CHILDREN_NUMBER => "getAllChildrenNumber",
        GET_EPHEMERALS => "getEphemerals",
        SYNC => "sync",
        PING => "ping",
        CHECK => "check",
        MULTI => "multi",
        MULTI_READ => "multiRead",
        RECONFIG => "reconfig",
        CHECK_WATCHES => "checkWatches",
        REMOVE_WATCHES => "removeWatches",
        SET_WATCHES | SET_WATCHES_2 => "setWatches",
        ADD_WATCH => "addWatch",
        AUTH => "auth",
        SASL => "sasl",
        WHO_AM_I => "whoAmI",
        CLOSE_SESSION => "closeSession",
        RAISE_SEQUENCE => "raiseSequence",
        _ => "unknown",
    }
}

/// The xid of a watch event.
pub const NOTIFICATION_XID: i32 = -1;
