//! What the engine must know of a record batch.

use bytes::Bytes;
use engine::{Format, KeyedRecord, Offset, ProducerNote, Rewritten};
use hlc::{SysTime, UserTime};
use kafka_records::{BatchHeader, HEADER_BYTES, Limit, rewrite, set_crc, times};

/// The CRC of a batch covers its bytes from here on.
const CRC_FROM: usize = 21;
const LOG_APPEND_TIME: i16 = 1 << 3;

/// Kafka's record batches, as a [`Format`]. The head of a payload is the batch's header.
#[derive(Clone, Copy, Debug)]
pub struct KafkaFormat {
    /// How many bytes a batch may unpack to when it is looked into.
    pub unpacked_bytes_max: usize,
}

impl KafkaFormat {
    /// The limit on unpacking.
    pub(crate) fn limit(self) -> Limit {
        Limit { decompressed_bytes_max: self.unpacked_bytes_max }
    }
}

impl Format for KafkaFormat {
    fn seal(
        &self,
        payload: &mut engine::Payload,
        base: Offset,
        epoch: u32,
        append_time: Option<SysTime>,
    ) -> Option<(usize, u32)> {
        let mut head: [u8; HEADER_BYTES] = payload.head.as_slice().try_into().ok()?;
        head[..8].copy_from_slice(&(base.0 as i64).to_be_bytes());
        head[12..16].copy_from_slice(&epoch.to_be_bytes());
        if let Some(time) = append_time {
            let attributes = i16::from_be_bytes([head[21], head[22]]) | LOG_APPEND_TIME;
            head[21..23].copy_from_slice(&attributes.to_be_bytes());
            head[35..43].copy_from_slice(&(time.0 as i64).to_be_bytes());
            set_crc(&mut head, &payload.rest);
        }
        payload.head.as_mut_slice().copy_from_slice(&head);
        let crc = u32::from_be_bytes([head[17], head[18], head[19], head[20]]);
        Some((CRC_FROM, crc))
    }

    fn producer(&self, start: &[u8]) -> Option<ProducerNote> {
        producer_note(&BatchHeader::parse(start).ok()?)
    }

    fn times(&self, batch: &Bytes) -> Result<Vec<(Offset, UserTime)>, String> {
        let times = times(batch, self.limit()).map_err(|error| error.to_string())?;
        Ok(times
            .into_iter()
            .map(|(offset, time)| (Offset(offset as u64), UserTime(time)))
            .collect())
    }

    fn rewrite(
        &self,
        batch: &Bytes,
        delete_horizon: Option<SysTime>,
        keep: &mut dyn FnMut(&KeyedRecord<'_>) -> bool,
    ) -> Result<Rewritten, String> {
        let header = BatchHeader::parse(batch).map_err(|error| error.to_string())?;
        // A negative one is long past.
        let known = header.delete_horizon_ms().map(|ms| SysTime(ms.max(0) as u64));
        let given = delete_horizon.map(|time| i64::try_from(time.0).unwrap_or(i64::MAX));
        let rewritten = rewrite(batch, self.limit(), given, |record| {
            keep(&KeyedRecord {
                offset: Offset(record.offset as u64),
                key: record.key,
                is_tombstone: record.is_tombstone,
                delete_horizon: known,
            })
        });
        Ok(match rewritten.map_err(|error| error.to_string())? {
            kafka_records::Rewritten::Unchanged => Rewritten::Unchanged,
            kafka_records::Rewritten::Changed(bytes) => Rewritten::Changed(bytes),
            kafka_records::Rewritten::Empty(bytes) => Rewritten::Empty(bytes),
        })
    }
}

/// Whose a batch is.
pub(crate) fn producer_note(header: &BatchHeader) -> Option<ProducerNote> {
    if header.producer_id < 0 || header.base_sequence < 0 {
        return None;
    }
    // Sequence numbers wrap from the largest to 0.
    let last = i64::from(header.base_sequence) + i64::from(header.last_offset_delta);
    Some(ProducerNote {
        id: header.producer_id,
        epoch: header.producer_epoch,
        first_sequence: header.base_sequence,
        last_sequence: (last % (i64::from(i32::MAX) + 1)) as i32,
    })
}
