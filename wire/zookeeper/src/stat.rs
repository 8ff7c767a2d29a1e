//! The metadata of a znode, as clients see it.

use bytes::BytesMut;

use crate::{JuteError, JuteReader, JuteWriter};

/// A znode's `Stat`, as on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZnodeStat {
    /// The zxid of its creation.
    pub czxid: i64,
    /// The zxid of the last change of its data.
    pub mzxid: i64,
    /// The time of its creation, in milliseconds since 1970.
    pub ctime: i64,
    /// The time of the last change of its data, in milliseconds since 1970.
    pub mtime: i64,
    /// The number of changes of its data.
    pub version: i32,
    /// The number of times that a child was created or deleted.
    pub cversion: i32,
    /// The number of changes of its access control list.
    pub aversion: i32,
    /// The session that it ends with, or 0.
    pub ephemeral_owner: i64,
    pub data_length: i32,
    pub num_children: i32,
    /// The zxid of the last creation or deletion of a child.
    pub pzxid: i64,
}

impl ZnodeStat {
    /// The number of the next sequential child: the count of children that were ever created. The
    /// fields say it up to 2^31 - 1.
    pub fn next_sequence(&self) -> i32 {
        let doubled = self.cversion.wrapping_add(self.num_children);
        (doubled.cast_unsigned() >> 1).cast_signed()
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_sequence_is_the_count_of_creates() {
        for (creates, num_children) in [(0, 0), (3, 1), (3, 3), (1 << 30, 5), (i32::MAX, 7)] {
            let cversion = 2_i32.wrapping_mul(creates).wrapping_sub(num_children);
            let stat = ZnodeStat { cversion, num_children, ..ZnodeStat::default() };
            assert_eq!(stat.next_sequence(), creates);
        }
    }
}
