//! Validates one produced batch: it refuses what a Kafka 4 broker refuses.
//!
//! It computes the CRC in one pass, and reads the header. The records stay compressed. Rules that
//! depend on the sender are the caller's: a client may send neither control batches nor the
//! log-append-time bit, but the same check serves batches that the broker wrote.

use crate::header::CRC_FROM;
use crate::{BatchError, BatchHeader};

/// Checks that `batch` is exactly one whole, intact and consistent batch.
pub fn check(batch: &[u8]) -> Result<BatchHeader, BatchError> {
    let header = check_bytes(batch)?;
    check_offsets(&header)?;
    check_producer(&header)?;
    Ok(header)
}

/// [`check`] for a batch that another log gave away: records may be missing in it, even all of them, as
/// compaction leaves it.
pub fn check_sparse(batch: &[u8]) -> Result<BatchHeader, BatchError> {
    let header = check_bytes(batch)?;
    let (delta, count) = (header.last_offset_delta, header.record_count);
    require(delta >= 0, "a batch must cover an offset", delta)?;
    let is_covered = (0..=i64::from(delta) + 1).contains(&i64::from(count));
    require(is_covered, "a batch must not hold more records than offsets", count)?;
    require(header.base_offset >= 0, "an offset is not negative", header.base_offset)?;
    let end = header.base_offset.checked_add(i64::from(delta) + 1);
    require(end.is_some(), "offsets must not overflow", header.base_offset)?;
    check_producer(&header)?;
    Ok(header)
}

/// The checks that all batches pass: frame, checksum and codec.
fn check_bytes(batch: &[u8]) -> Result<BatchHeader, BatchError> {
    let header = BatchHeader::parse(batch)?;
    check_length(&header, batch)?;
    let computed = crc32c::crc32c(&batch[CRC_FROM..]);
    if computed != header.crc {
        return Err(BatchError::Crc { crc: header.crc, computed });
    }
    header.compression()?;
    Ok(header)
}

/// Compares the header's length with the slice that should be the whole batch.
pub(crate) fn check_length(header: &BatchHeader, batch: &[u8]) -> Result<(), BatchError> {
    if header.total_bytes() == batch.len() {
        return Ok(());
    }
    Err(BatchError::Length { says: header.total_bytes() as i64, have: batch.len() })
}

/// A producer numbers its records without gaps; only compaction makes gaps, later.
fn check_offsets(header: &BatchHeader) -> Result<(), BatchError> {
    let count = header.record_count;
    require(count >= 1, "a batch must hold a record", count)?;
    require(
        header.last_offset_delta == count - 1,
        "the last offset must follow from the record count",
        header.last_offset_delta,
    )?;
    require(
        header.base_offset.checked_add(i64::from(count)).is_some(),
        "offsets must not overflow",
        header.base_offset,
    )
}

fn check_producer(header: &BatchHeader) -> Result<(), BatchError> {
    if header.producer_id < 0 {
        require(header.producer_id == -1, "no producer id is -1", header.producer_id)?;
        let transactional = header.is_transactional();
        return require(!transactional, "a transaction needs a producer id", header.producer_id);
    }
    require(
        header.producer_epoch >= 0,
        "a producer id needs an epoch",
        i32::from(header.producer_epoch),
    )?;
    // A transaction's marker is written by the broker, outside the producer's numbering.
    require(
        header.base_sequence >= 0 || header.is_control(),
        "a producer id needs a sequence number",
        header.base_sequence,
    )
}

fn require(holds: bool, what: &'static str, value: impl Into<i64>) -> Result<(), BatchError> {
    if holds { Ok(()) } else { Err(BatchError::Incoherent { what, value: value.into() }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchBuilder, CompressionType, HEADER_BYTES, set_crc};

    fn batch() -> Vec<u8> {
        let mut builder = BatchBuilder::new(CompressionType::None);
        builder.producer(7, 3, 40).record(1000, None, Some(b"a"), &[]);
        builder.record(1001, None, Some(b"b"), &[]).build().to_vec()
    }

    /// The result for a batch with one field changed and the CRC recomputed.
    fn check_with(change: impl FnOnce(&mut BatchHeader)) -> Result<BatchHeader, BatchError> {
        let mut batch = batch();
        let mut header = BatchHeader::parse(&batch).unwrap();
        change(&mut header);
        let mut bytes = header.to_bytes();
        set_crc(&mut bytes, &batch[HEADER_BYTES..]);
        batch[..HEADER_BYTES].copy_from_slice(&bytes);
        check(&batch)
    }

    #[test]
    fn a_whole_batch_passes_and_its_header_comes_back() {
        let header = check(&batch()).unwrap();
        assert_eq!((header.record_count, header.last_offset()), (2, 1));
        assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (7, 3, 40));
        assert_eq!((header.base_timestamp, header.max_timestamp), (1000, 1001));
    }

    #[test]
    fn producer_0_is_one_and_needs_an_epoch_and_a_number() {
        assert!(check_with(|header| header.producer_id = 0).is_ok());
        let without_epoch = check_with(|header| {
            (header.producer_id, header.producer_epoch) = (0, -1);
        });
        assert!(matches!(without_epoch, Err(BatchError::Incoherent { .. })), "{without_epoch:?}");
        let without_number = check_with(|header| {
            (header.producer_id, header.base_sequence) = (0, -1);
        });
        assert!(matches!(without_number, Err(BatchError::Incoherent { .. })), "{without_number:?}");
    }

    #[test]
    fn a_batch_that_is_cut_or_has_a_tail_is_refused() {
        let whole = batch();
        let says = whole.len() as i64;
        for have in HEADER_BYTES..whole.len() {
            assert_eq!(check(&whole[..have]), Err(BatchError::Length { says, have }));
        }
        let have = whole.len() + 1;
        assert_eq!(check(&[&whole[..], b"x"].concat()), Err(BatchError::Length { says, have }));
    }

    #[test]
    fn any_flipped_bit_after_the_crc_is_found() {
        let whole = batch();
        for bit in CRC_FROM * 8..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(check(&flipped), Err(BatchError::Crc { .. })), "bit {bit}");
        }
    }

    #[test]
    fn placing_a_batch_in_a_log_leaves_its_crc_right() {
        let mut batch = batch();
        batch[..8].copy_from_slice(&1_000_000i64.to_be_bytes());
        batch[12..16].copy_from_slice(&9i32.to_be_bytes());
        assert_eq!(check(&batch).unwrap().last_offset(), 1_000_001);
    }

    type Change = fn(&mut BatchHeader);

    #[test]
    fn headers_that_contradict_themselves_are_refused() {
        let changes: [(&str, Change); 9] = [
            ("no records", |h| (h.record_count, h.last_offset_delta) = (0, -1)),
            ("negative count", |h| h.record_count = i32::MIN),
            ("gap in offsets", |h| h.last_offset_delta = 2),
            ("offsets overflow", |h| h.base_offset = i64::MAX - 1),
            ("producer without epoch", |h| h.producer_epoch = -1),
            ("producer without sequence", |h| h.base_sequence = -1),
            ("negative producer", |h| h.producer_id = -2),
            ("transaction without producer", |h| {
                h.producer_id = -1;
                h.attributes |= 1 << 4;
            }),
            ("control without epoch", |h| {
                h.producer_epoch = -1;
                h.attributes |= 1 << 5;
            }),
        ];
        for (name, change) in changes {
            let verdict = check_with(change);
            assert!(matches!(verdict, Err(BatchError::Incoherent { .. })), "{name}: {verdict:?}");
        }
    }

    #[test]
    fn a_sparse_batch_covers_offsets_and_holds_at_most_as_many_records() {
        let sparse = |change: Change| {
            let mut batch = batch();
            let mut header = BatchHeader::parse(&batch).unwrap();
            change(&mut header);
            let mut bytes = header.to_bytes();
            set_crc(&mut bytes, &batch[HEADER_BYTES..]);
            batch[..HEADER_BYTES].copy_from_slice(&bytes);
            check_sparse(&batch)
        };
        assert!(sparse(|_| {}).is_ok());
        assert!(sparse(|h| h.last_offset_delta = 7).is_ok());
        assert!(sparse(|h| h.record_count = 0).is_ok());
        let refused: [(&str, Change); 5] = [
            ("more records than offsets", |h| h.record_count = 3),
            ("negative count", |h| h.record_count = -1),
            ("no offsets", |h| (h.record_count, h.last_offset_delta) = (0, -1)),
            ("negative offset", |h| h.base_offset = -1),
            ("offsets overflow", |h| h.base_offset = i64::MAX - 1),
        ];
        for (name, change) in refused {
            let verdict = sparse(change);
            assert!(matches!(verdict, Err(BatchError::Incoherent { .. })), "{name}: {verdict:?}");
        }
        assert!(check_sparse(&batch()[1..]).is_err());
    }

    #[test]
    fn codecs_without_a_name_are_refused() {
        for bits in 5..8 {
            let verdict = check_with(|header| header.attributes |= bits);
            assert_eq!(verdict, Err(BatchError::UnknownCodec { bits }));
        }
    }

    #[test]
    fn a_marker_needs_no_sequence_number() {
        let verdict = check_with(|header| {
            header.base_sequence = -1;
            header.attributes |= 1 << 5;
        });
        assert!(verdict.unwrap().is_control());
    }
}
