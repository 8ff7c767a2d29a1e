//! Checkpoints: all znodes and sessions at one moment, in a log of their own.
//!
//! A start loads the newest one and replays the transactions behind it. The history of znodes
//! begins at the oldest one: everything in front of it was removed (`retention`).
//!
//! Invariants:
//! - A checkpoint is the state after a prefix of the transactions. It counts once its last entry,
//!   the seal, is there; one that was interrupted is skipped.
//! - The start of the znodes' log is 0, or the first transaction that the oldest checkpoint does
//!   not have. Both logs advance at once.

use bytes::Bytes;
use engine_core::numbering::{KIND_ZNODE_CHECKPOINT, ZNODE_CHECKPOINTS_LOG};
use engine_core::{EngineCore, EngineError};
use hlc::{Cut, Hlc};
use serde::{Deserialize, Serialize};
use storage::{Log, Offset};

use crate::meta::ZnodeMeta;
use crate::request::SessionId;

/// The version of the layout.
const LAYOUT: u8 = 1;
/// The approximate bytes of znodes in one entry.
const ENTRY_BYTES: usize = 512 << 10;
/// The size of a znode besides its path and its data.
const ZNODE_BYTES: usize = 64;

/// A znode in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CheckpointZnode {
    /// Empty for the root.
    pub(crate) path: String,
    pub(crate) meta: ZnodeMeta,
    pub(crate) data: Option<Bytes>,
}

/// A session in a checkpoint. Its ephemeral znodes name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CheckpointSession {
    pub(crate) id: SessionId,
    pub(crate) timeout_ms: u32,
    pub(crate) password: [u8; 16],
}

/// The place of a checkpoint, and its moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CheckpointSeal {
    /// The first transaction that is not in it, as an offset.
    pub(crate) start: u64,
    /// The stamp of the last transaction in it.
    pub(crate) stamp: u64,
    /// The offset of its first entry in the log of checkpoints.
    pub(crate) first: u64,
    /// The bytes of its entries.
    pub(crate) bytes: u64,
}

impl CheckpointSeal {
    /// The moment of which it is.
    pub(crate) fn cut(&self) -> Cut {
        Cut::through(Hlc::from_bits(self.stamp))
    }
}

/// The content of an entry of the log. Sessions come before znodes, and znodes before those below
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CheckpointPart {
    Sessions(Vec<CheckpointSession>),
    Znodes(Vec<CheckpointZnode>),
    Seal(CheckpointSeal),
}

fn encode(entry: &CheckpointPart) -> Vec<u8> {
    postcard::to_extend(entry, vec![LAYOUT]).expect("a checkpoint can be encoded")
}

fn decode(bytes: &[u8]) -> Result<CheckpointPart, String> {
    match bytes.split_first() {
        Some((&LAYOUT, body)) => postcard::from_bytes(body).map_err(|error| error.to_string()),
        Some((layout, _)) => Err(format!("layout {layout} is not known")),
        None => Err("it is empty".to_owned()),
    }
}

fn corrupt(offset: Offset, why: impl std::fmt::Display) -> EngineError {
    let at = offset.0;
    EngineError::Corrupt(format!("the checkpoint of znodes at offset {at} cannot be read: {why}"))
}

pub(crate) struct CheckpointWriter<'a> {
    core: &'a EngineCore,
    first: Option<Offset>,
    znodes: Vec<CheckpointZnode>,
    /// The bytes of `znodes`, and of all entries so far.
    pending_bytes: usize,
    bytes: u64,
}

impl<'a> CheckpointWriter<'a> {
    pub(crate) fn new(core: &'a EngineCore) -> CheckpointWriter<'a> {
        CheckpointWriter { core, first: None, znodes: Vec::new(), pending_bytes: 0, bytes: 0 }
    }

    pub(crate) fn sessions(&mut self, sessions: Vec<CheckpointSession>) -> Result<(), EngineError> {
        self.append(&CheckpointPart::Sessions(sessions))
    }

    pub(crate) fn znode(&mut self, znode: CheckpointZnode) -> Result<(), EngineError> {
        let data = znode.data.as_ref().map_or(0, Bytes::len);
        self.pending_bytes += ZNODE_BYTES + znode.path.len() + data;
        self.znodes.push(znode);
        if self.pending_bytes >= ENTRY_BYTES { self.flush() } else { Ok(()) }
    }

    /// Ends the checkpoint, which is of the state after the transaction with `stamp`, in front of
    /// `start`.
    pub(crate) fn seal(mut self, start: Offset, stamp: Hlc) -> Result<CheckpointSeal, EngineError> {
        self.flush()?;
        let first = self.first.expect("there are entries in front of the seal").0;
        let seal = CheckpointSeal { start: start.0, stamp: stamp.bits(), first, bytes: self.bytes };
        self.append(&CheckpointPart::Seal(seal))?;
        Ok(seal)
    }

    fn flush(&mut self) -> Result<(), EngineError> {
        self.pending_bytes = 0;
        let znodes = std::mem::take(&mut self.znodes);
        self.append(&CheckpointPart::Znodes(znodes))
    }

    fn append(&mut self, entry: &CheckpointPart) -> Result<(), EngineError> {
        let payload = encode(entry);
        self.bytes += payload.len() as u64;
        let (log, kind) = (ZNODE_CHECKPOINTS_LOG, KIND_ZNODE_CHECKPOINT);
        let receipt = self.core.append_event_blocking(log, kind, payload)?;
        self.first.get_or_insert(receipt.base);
        Ok(())
    }
}

fn part_at(log: &Log, offset: Offset) -> Result<CheckpointPart, EngineError> {
    let entry = log.payload_at(offset)?.ok_or_else(|| corrupt(offset, "it is not there"))?;
    decode(&entry.read()?).map_err(|why| corrupt(offset, why))
}

/// The seals of `log`, the log of checkpoints, the newest first.
pub(crate) fn seals(log: &Log) -> impl Iterator<Item = Result<CheckpointSeal, EngineError>> {
    let mut end = log.end();
    std::iter::from_fn(move || {
        while end > log.start() {
            let offset = Offset(end.0 - 1);
            end = offset;
            match part_at(log, offset) {
                Ok(CheckpointPart::Seal(seal)) => {
                    end = Offset(seal.first);
                    return Some(Ok(seal));
                }
                // A part of one that was interrupted.
                Ok(CheckpointPart::Sessions(_) | CheckpointPart::Znodes(_)) => {}
                Err(error) => {
                    end = log.start();
                    return Some(Err(error));
                }
            }
        }
        None
    })
}

/// Calls `visit` with each part of a checkpoint but its seal.
pub(crate) fn read_checkpoint(
    log: &Log,
    seal: &CheckpointSeal,
    visit: &mut dyn FnMut(CheckpointPart) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let mut offset = Offset(seal.first);
    loop {
        match part_at(log, offset)? {
            CheckpointPart::Seal(end) if end == *seal => return Ok(()),
            CheckpointPart::Seal(_) => return Err(corrupt(offset, "another one ends here")),
            entry => visit(entry)?,
        }
        offset = Offset(offset.0 + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl;
    use crate::meta::{TransactionTime, ZnodeOwner};

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// `docs/FORMAT.md` describes these bytes. Others mean another layout.
    #[test]
    fn the_bytes_of_an_entry() {
        let at = TransactionTime { zxid: 5, ms: 7 };
        let owner = ZnodeOwner::Session(SessionId(1));
        let data = Some(Bytes::from_static(b"xy"));
        let meta = ZnodeMeta::new(at, owner, acl::anyone(acl::READ), data.as_deref());
        let znode = CheckpointZnode { path: "/a".to_owned(), meta, data };
        let session = CheckpointSession { id: SessionId(1), timeout_ms: 9, password: [3; 16] };
        let seal = CheckpointSeal { start: 6, stamp: 300, first: 2, bytes: 40 };
        let acl = format!("010205{}06{}", hex(b"world"), hex(b"anyone"));
        let znodes = format!("010101022f610a0a0a0e0e00000000040102{acl}01027879");
        let all = [
            (
                CheckpointPart::Sessions(vec![session]),
                format!("01000102{}{}", "09", "03".repeat(16)),
            ),
            (CheckpointPart::Znodes(vec![znode]), znodes),
            (CheckpointPart::Seal(seal), "010206ac020228".to_owned()),
        ];
        for (entry, expected) in all {
            let bytes = encode(&entry);
            assert_eq!(hex(&bytes), expected);
            assert_eq!(decode(&bytes), Ok(entry));
            for end in 0..bytes.len() {
                assert!(decode(&bytes[..end]).is_err(), "{end} bytes");
            }
        }
        assert_eq!(decode(&[2]), Err("layout 2 is not known".to_owned()));
    }
}
