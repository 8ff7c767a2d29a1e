//! What a client learns about a znode besides its data.

use bytes::BytesMut;

use crate::{JuteError, JuteReader, JuteWriter};

/// A znode's `Stat`, as on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZnodeStat {
    /// The zxid of its creation.
    pub czxid: i64,
    /// The zxid of the last change of its data.
    pub mzxid: i64,
    /// When it was created, in milliseconds since 1970.
    pub ctime: i64,
    /// When its data was last changed.
    pub mtime: i64,
    /// How often its data was changed.
    pub version: i32,
    /// How often a child was created or deleted.
    pub cversion: i32,
    /// How often its access control list was changed.
    pub aversion: i32,
    /// The session that it ends with, or 0.
    pub ephemeral_owner: i64,
    pub data_length: i32,
    pub num_children: i32,
    /// The zxid of the last creation or deletion of a child.
    pub pzxid: i64,
}

impl ZnodeStat {
    /// Takes a stat from the front: 68 bytes.
    ///
    /// # Errors
    /// It is cut short.
    pub fn read(fields: &mut JuteReader) -> Result<ZnodeStat, JuteError> {
        Ok(ZnodeStat {
            czxid: fields.long()?,
            mzxid: fields.long()?,
            ctime: fields.long()?,
            mtime: fields.long()?,
            version: fields.int()?,
            cversion: fields.int()?,
            aversion: fields.int()?,
            ephemeral_owner: fields.long()?,
            data_length: fields.int()?,
            num_children: fields.int()?,
            pzxid: fields.long()?,
        })
    }

    /// Appends the stat.
    pub fn write(&self, out: &mut BytesMut) {
        out.long(self.czxid);
        out.long(self.mzxid);
        out.long(self.ctime);
        out.long(self.mtime);
        out.int(self.version);
        out.int(self.cversion);
        out.int(self.aversion);
        out.long(self.ephemeral_owner);
        out.int(self.data_length);
        out.int(self.num_children);
        out.long(self.pzxid);
    }
}
