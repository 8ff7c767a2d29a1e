//! Builds batches: for our own client, for markers, for tests.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::write::GzEncoder;
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};

use crate::cursor::put_varint;
use crate::decompress::XERIAL_MAGIC;
use crate::header::{CONTROL, LOG_OVERHEAD, MAGIC, TRANSACTIONAL};
use crate::{BatchHeader, CompressionType, HEADER_BYTES, set_crc};

/// Collects records into one batch, as a stock producer would write it.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    codec: CompressionType,
    attributes: i16,
    producer: (i64, i16, i32),
    base_timestamp: i64,
    max_timestamp: i64,
    record_count: i32,
    /// The records, not yet compressed.
    body: Vec<u8>,
    /// One record, while its length is not yet known.
    record: Vec<u8>,
}

impl BatchBuilder {
    /// An empty batch without a producer.
    pub fn new(codec: CompressionType) -> BatchBuilder {
        BatchBuilder {
            codec,
            attributes: codec.bits(),
            producer: (-1, -1, -1),
            base_timestamp: -1,
            max_timestamp: -1,
            record_count: 0,
            body: Vec::new(),
            record: Vec::new(),
        }
    }

    /// Sets the idempotent producer, and its sequence number for the first record.
    pub fn producer(&mut self, id: i64, epoch: i16, base_sequence: i32) -> &mut BatchBuilder {
        self.producer = (id, epoch, base_sequence);
        self
    }

    /// Marks the batch as part of its producer's transaction.
    pub fn transactional(&mut self) -> &mut BatchBuilder {
        self.attributes |= TRANSACTIONAL;
        self
    }

    /// Marks the batch as a control batch: a broker's marker.
    pub fn control(&mut self) -> &mut BatchBuilder {
        self.attributes |= CONTROL;
        self
    }

    /// Adds a record. Its offset is one after the last.
    ///
    /// # Panics
    ///
    /// If the timestamps of a batch are further apart than an `i64` can hold, or its records are
    /// more, or larger, than an `i32` can hold.
    pub fn record(
        &mut self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
    ) -> &mut BatchBuilder {
        let headers = headers.iter().map(|(name, value)| (name.as_bytes(), *value));
        self.raw_record(timestamp, key, value, headers)
    }

    /// Adds a record whose header names may be any bytes, as some clients write them.
    ///
    /// # Panics
    ///
    /// As [`BatchBuilder::record`].
    pub fn raw_record<'a>(
        &mut self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: impl ExactSizeIterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    ) -> &mut BatchBuilder {
        if self.record_count == 0 {
            (self.base_timestamp, self.max_timestamp) = (timestamp, timestamp);
        }
        let delta = timestamp.checked_sub(self.base_timestamp).expect("timestamps of one age");
        self.max_timestamp = self.max_timestamp.max(timestamp);
        self.record.clear();
        self.record.push(0);
        put_varint(&mut self.record, delta);
        put_varint(&mut self.record, self.record_count.into());
        put_nullable(&mut self.record, key);
        put_nullable(&mut self.record, value);
        put_varint(&mut self.record, headers.len() as i64);
        for (key, value) in headers {
            put_nullable(&mut self.record, Some(key));
            put_nullable(&mut self.record, value);
        }
        assert!(i32::try_from(self.record.len()).is_ok(), "a record must not exceed 2 GiB");
        put_varint(&mut self.body, self.record.len() as i64);
        self.body.extend_from_slice(&self.record);
        self.record_count = self.record_count.checked_add(1).expect("fewer than 2^31 records");
        self
    }

    /// The timestamp of the first record.
    pub fn first_timestamp(&self) -> Option<i64> {
        (self.record_count > 0).then_some(self.base_timestamp)
    }

    /// The number of records so far.
    pub fn record_count(&self) -> usize {
        self.record_count as usize
    }

    /// The length of the batch without compression.
    pub fn uncompressed_bytes(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }

    /// Builds the batch, at base offset 0.
    ///
    /// # Panics
    ///
    /// If it holds no record, or exceeds 2 GiB.
    pub fn build(&self) -> Bytes {
        assert!(self.record_count > 0, "a batch must hold a record");
        let mut batch = vec![0; HEADER_BYTES];
        compress(self.codec, &self.body, &mut batch).expect("a Vec takes what is written to it");
        let length = i32::try_from(batch.len() - LOG_OVERHEAD).expect("a batch below 2 GiB");
        let (producer_id, producer_epoch, base_sequence) = self.producer;
        let mut header = BatchHeader {
            base_offset: 0,
            length,
            leader_epoch: -1,
            magic: MAGIC,
            crc: 0,
            attributes: self.attributes,
            last_offset_delta: self.record_count - 1,
            base_timestamp: self.base_timestamp,
            max_timestamp: self.max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count: self.record_count,
        }
        .to_bytes();
        set_crc(&mut header, &batch[HEADER_BYTES..]);
        batch[..HEADER_BYTES].copy_from_slice(&header);
        batch.into()
    }
}

fn put_nullable(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        None => put_varint(out, -1),
        Some(bytes) => {
            put_varint(out, bytes.len() as i64);
            out.extend_from_slice(bytes);
        }
    }
}

/// Appends `body` to `out`, compressed as the Java client does.
pub(crate) fn compress(codec: CompressionType, body: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    match codec {
        CompressionType::None => out.extend_from_slice(body),
        CompressionType::Gzip => {
            let mut encoder = GzEncoder::new(out, flate2::Compression::default());
            encoder.write_all(body)?;
            encoder.finish()?;
        }
        CompressionType::Snappy => compress_xerial(body, out)?,
        CompressionType::Lz4 => {
            let frame =
                FrameInfo::new().block_size(BlockSize::Max64KB).block_mode(BlockMode::Independent);
            let mut encoder = FrameEncoder::with_frame_info(frame, out);
            encoder.write_all(body)?;
            encoder.finish()?;
        }
        CompressionType::Zstd => {
            zstd::stream::copy_encode(body, out, zstd::DEFAULT_COMPRESSION_LEVEL)?
        }
    }
    Ok(())
}

fn compress_xerial(body: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    const BLOCK_BYTES: usize = 32 << 10;
    out.extend_from_slice(&XERIAL_MAGIC);
    out.extend_from_slice(&1u32.to_be_bytes());
    out.extend_from_slice(&1u32.to_be_bytes());
    let mut encoder = snap::raw::Encoder::new();
    for block in body.chunks(BLOCK_BYTES) {
        let packed = encoder.compress_vec(block)?;
        out.extend_from_slice(&(packed.len() as u32).to_be_bytes());
        out.extend_from_slice(&packed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_what_the_builder_was_given() {
        let mut builder = BatchBuilder::new(CompressionType::Gzip);
        builder.producer(7, 3, 11).transactional().control();
        builder.record(20, None, Some(b"a"), &[]).record(10, None, Some(b"b"), &[]);
        assert_eq!(builder.record_count(), 2);
        let batch = builder.build();
        let header = BatchHeader::parse(&batch).expect("a whole batch");
        let expected = BatchHeader {
            base_offset: 0,
            length: (batch.len() - LOG_OVERHEAD) as i32,
            leader_epoch: -1,
            magic: MAGIC,
            crc: header.crc,
            attributes: CompressionType::Gzip.bits() | TRANSACTIONAL | CONTROL,
            last_offset_delta: 1,
            base_timestamp: 20,
            max_timestamp: 20,
            producer_id: 7,
            producer_epoch: 3,
            base_sequence: 11,
            record_count: 2,
        };
        assert_eq!(header, expected);
    }
}
