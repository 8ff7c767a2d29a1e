//! The entries of the znodes' log. `docs/FORMAT.md` has their layout.
//!
//! The header (session and result) is filled in where the order of transactions is known. A
//! transaction that failed has no body.

use bytes::Bytes;
use storage::{Payload, PayloadHeader};
use zk_wire::ZkCode;

use crate::request::{SessionId, ZnodeRefusal, ZnodeTransaction};

/// The version of the layout.
const LAYOUT: u8 = 1;
const HEADER_BYTES: usize = 1 + 4 + 4 + 8;

/// The content of an entry after its header, encoded with postcard: the requester (the ids of the
/// connection, without hashes), and the transaction.
type ZnodeEntryBody<By, Transaction> = (By, Transaction);

/// The decision on a transaction.
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
pub(crate) fn undecided_payload(by: &str, transaction: &ZnodeTransaction) -> Payload {
    let body: ZnodeEntryBody<&str, &ZnodeTransaction> = (by, transaction);
    let bytes = postcard::to_stdvec(&body).expect("a transaction can be encoded");
    Payload { header: PayloadHeader::new(&[0; HEADER_BYTES]), rest: bytes.into() }
}

/// Completes the payload of a transaction that was decided.
pub(crate) fn decide(payload: &mut Payload, header: ZnodeEntryHeader) {
    payload.header.as_mut_slice().copy_from_slice(&header.encode());
    if header.refusal.is_some() {
        payload.rest = Bytes::new();
    }
}

/// An entry that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ZnodeEntry {
    pub(crate) header: ZnodeEntryHeader,
    /// The requester; empty if it failed.
    pub(crate) by: String,
    /// `None` if it failed.
    pub(crate) transaction: Option<ZnodeTransaction>,
}

/// Decodes an entry.
///
/// # Errors
/// In words: the part that does not read.
pub(crate) fn decode_entry(bytes: &[u8]) -> Result<ZnodeEntry, String> {
    let Some((header, body)) = bytes.split_first_chunk() else {
        return Err(format!("an entry of {} bytes is too short", bytes.len()));
    };
    let header = ZnodeEntryHeader::decode(header)?;
    if header.refusal.is_some() {
        return Ok(ZnodeEntry { header, by: String::new(), transaction: None });
    }
    let (by, transaction): ZnodeEntryBody<String, ZnodeTransaction> =
        postcard::from_bytes(body).map_err(|error| error.to_string())?;
    Ok(ZnodeEntry { header, by, transaction: Some(transaction) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::{self, Acl};
    use crate::request::{ZnodeLifetime, ZnodeOp};

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    const BY: &str = "ip:::1";

    /// `docs/FORMAT.md` describes these bytes. Others mean another layout.
    #[test]
    fn the_bytes_of_an_entry() {
        let (path, version) = ("/a".to_owned(), -1);
        let acl = acl::anyone(acl::READ);
        let data = Some(Bytes::from_static(b"xy"));
        let ops = vec![
            ZnodeOp::Create {
                path: path.clone(),
                data: data.clone(),
                acl: Acl::clone(&acl),
                lifetime: ZnodeLifetime::Ttl(5),
                is_sequential: true,
            },
            ZnodeOp::Delete { path: path.clone(), version },
            ZnodeOp::SetData { path: path.clone(), data: None, version: 3 },
            ZnodeOp::SetAcl { path: path.clone(), acl, version },
            ZnodeOp::Check { path: path.clone(), version },
            ZnodeOp::RaiseSequence { path: path.clone(), next: 5 },
        ];
        let by = "0669703a3a3a31";
        let list = "010205776f726c6406616e796f6e65";
        let expected = format!(
            "{by}0006\
             00022f6101027879{list}030a01\
             01022f6101\
             02022f610006\
             03022f61{list}01\
             04022f6101\
             05022f610a"
        );
        let all = [
            (ZnodeTransaction::Ops(ops), expected),
            (
                ZnodeTransaction::SessionCreated { timeout_ms: 300, password: [7; 16] },
                format!("{by}01ac02{}", "07".repeat(16)),
            ),
            (ZnodeTransaction::SessionClosed, format!("{by}02")),
            (ZnodeTransaction::Reaped { path }, format!("{by}03022f61")),
        ];
        for (transaction, expected) in all {
            let mut payload = undecided_payload(BY, &transaction);
            assert_eq!(hex(&payload.rest), expected);
            let header = ZnodeEntryHeader { session: SessionId(0x0102), refusal: None };
            decide(&mut payload, header);
            assert_eq!(
                hex(payload.header.as_slice()),
                format!("01{}0201{}", "00".repeat(8), "00".repeat(6))
            );
            let entry = ZnodeEntry { header, by: BY.to_owned(), transaction: Some(transaction) };
            assert_eq!(decode_entry(&payload.to_bytes()), Ok(entry));
        }
    }

    #[test]
    fn a_transaction_that_failed_has_a_header_only() {
        let mut payload = undecided_payload(BY, &ZnodeTransaction::SessionClosed);
        let refusal = Some(ZnodeRefusal { code: ZkCode::NoNode, op: 3 });
        let header = ZnodeEntryHeader { session: SessionId(-1), refusal };
        decide(&mut payload, header);
        assert_eq!(hex(&payload.to_bytes()), format!("019bffffff03000000{}", "ff".repeat(8)));
        let entry = ZnodeEntry { header, by: String::new(), transaction: None };
        assert_eq!(decode_entry(&payload.to_bytes()), Ok(entry));
    }

    #[test]
    fn other_bytes_are_refused_in_words() {
        let mut payload = undecided_payload(BY, &ZnodeTransaction::SessionClosed);
        decide(&mut payload, ZnodeEntryHeader { session: SessionId(1), refusal: None });
        let bytes = payload.to_bytes();
        for end in 0..bytes.len() {
            assert!(decode_entry(&bytes[..end]).is_err(), "{end} bytes");
        }
        let with = |at: usize, byte: u8| {
            let mut changed = bytes.to_vec();
            changed[at] = byte;
            decode_entry(&changed).unwrap_err()
        };
        assert!(with(0, 2).contains("layout 2"), "{}", with(0, 2));
        assert!(with(1, 5).contains("error code 5"), "{}", with(1, 5));
    }
}
