//! The entries of the znodes' log. `docs/FORMAT.md` has their layout.
//!
//! The header is filled in where the order of transactions is known: whether it failed, and whose it
//! is. A transaction that failed has no body.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use storage::{Payload, PayloadHeader};

use crate::code::ZkCode;
use crate::request::{SessionId, ZnodeRefusal, ZnodeTransaction};

/// The version of the layout.
const LAYOUT: u8 = 1;
const HEADER_BYTES: usize = 1 + 4 + 4 + 8;

/// What an entry carries after its header, encoded with postcard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ZnodeEntryBody {
    /// Who asked for it: the ids of the connection, without hashes.
    pub(crate) by: Arc<str>,
    pub(crate) transaction: ZnodeTransaction,
}

/// What was decided about a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ZnodeEntryHeader {
    pub(crate) session: SessionId,
    pub(crate) refusal: Option<ZnodeRefusal>,
}

impl ZnodeEntryHeader {
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = LAYOUT;
        if let Some(ZnodeRefusal { code, op }) = self.refusal {
            bytes[1..5].copy_from_slice(&code.number().to_le_bytes());
            bytes[5..9].copy_from_slice(&op.to_le_bytes());
        }
        bytes[9..].copy_from_slice(&self.session.0.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<ZnodeEntryHeader, String> {
        let field = |at: usize| -> [u8; 4] { bytes[at..at + 4].try_into().expect("4 bytes") };
        if bytes[0] != LAYOUT {
            return Err(format!("layout {} is not known", bytes[0]));
        }
        let refusal = match i32::from_le_bytes(field(1)) {
            0 => None,
            number => {
                let code = ZkCode::from_number(number)
                    .ok_or_else(|| format!("error code {number} is not known"))?;
                Some(ZnodeRefusal { code, op: u32::from_le_bytes(field(5)) })
            }
        };
        let session = i64::from_le_bytes(bytes[9..].try_into().expect("8 bytes"));
        Ok(ZnodeEntryHeader { session: SessionId(session), refusal })
    }
}

/// The payload of a transaction that waits to be decided.
pub(crate) fn undecided_payload(body: &ZnodeEntryBody) -> Payload {
    let bytes = postcard::to_stdvec(body).expect("a transaction can be encoded");
    Payload { header: PayloadHeader::new(&[0; HEADER_BYTES]), rest: bytes.into() }
}

/// Completes the payload of a transaction that was decided.
pub(crate) fn decide(payload: &mut Payload, header: ZnodeEntryHeader) {
    payload.header.as_mut_slice().copy_from_slice(&header.encode());
    if header.refusal.is_some() {
        payload.rest = Bytes::new();
    }
}

/// Decodes an entry: its header, and its body unless it failed.
///
/// # Errors
/// In words: what does not read.
pub(crate) fn decode_entry(
    bytes: &[u8],
) -> Result<(ZnodeEntryHeader, Option<ZnodeEntryBody>), String> {
    let Some((header, body)) = bytes.split_first_chunk() else {
        return Err(format!("an entry of {} bytes is too short", bytes.len()));
    };
    let header = ZnodeEntryHeader::decode(header)?;
    if header.refusal.is_some() {
        return Ok((header, None));
    }
    let body = postcard::from_bytes(body).map_err(|error| error.to_string())?;
    Ok((header, Some(body)))
}
