//! Collects records into columns.
//!
//! The bytes of a column are indexed by `i32`, so a batch of rows holds less than 2 GiB of keys,
//! values or headers. A record that would pass that is refused, and the columns stay as they are.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, StringBuilder};
use arrow_array::{
    ArrayRef, Int32Array, Int64Array, ListArray, RecordBatch, StructArray,
    TimestampMillisecondArray,
};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::SchemaRef;
use kafka_records::KafkaRecord;

use crate::schema::{header_fields, header_item};

/// The most bytes of a column of keys, values, header keys or header values, and the most headers.
const COLUMN_MAX: usize = i32::MAX as usize;

/// The record does not fit into the columns that were begun: finish them, and push it again. Empty
/// columns take any record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a batch of rows holds at most 2 GiB of keys, of values and of headers")]
pub struct ColumnsFull;

/// Collects records, and gives them out as one [`RecordBatch`].
#[derive(Debug)]
pub struct RecordColumns {
    schema: SchemaRef,
    partitions: Vec<i32>,
    offsets: Vec<i64>,
    timestamps: Vec<i64>,
    keys: BinaryBuilder,
    values: BinaryBuilder,
    /// The end of each record's headers; 0 first.
    header_ends: Vec<i32>,
    header_keys: StringBuilder,
    header_values: BinaryBuilder,
    sizes: ColumnSizes,
    column_max: usize,
    escaped_header_keys: u64,
}

/// Sizes that an `i32` index bounds.
#[derive(Clone, Copy, Debug, Default)]
struct ColumnSizes {
    keys: usize,
    values: usize,
    headers: usize,
    header_keys: usize,
    header_values: usize,
}

impl ColumnSizes {
    /// The sizes with one more record.
    fn with(self, record: &KafkaRecord, header_keys: &[Cow<'_, str>]) -> ColumnSizes {
        let len = |bytes: &Option<_>| bytes.as_ref().map_or(0, |bytes: &bytes::Bytes| bytes.len());
        let header_values = record.headers.iter().map(|(_, value)| len(value)).sum::<usize>();
        ColumnSizes {
            keys: self.keys + len(&record.key),
            values: self.values + len(&record.value),
            headers: self.headers + record.headers.len(),
            header_keys: self.header_keys + header_keys.iter().map(|key| key.len()).sum::<usize>(),
            header_values: self.header_values + header_values,
        }
    }

    fn largest(self) -> usize {
        let ColumnSizes { keys, values, headers, header_keys, header_values } = self;
        keys.max(values).max(headers).max(header_keys).max(header_values)
    }

    fn bytes(self) -> usize {
        self.keys + self.values + self.header_keys + self.header_values
    }
}

impl RecordColumns {
    /// Empty columns of this schema, from [`record_schema`](crate::record_schema).
    pub fn new(schema: SchemaRef) -> RecordColumns {
        RecordColumns {
            schema,
            partitions: Vec::new(),
            offsets: Vec::new(),
            timestamps: Vec::new(),
            keys: BinaryBuilder::new(),
            values: BinaryBuilder::new(),
            header_ends: vec![0],
            header_keys: StringBuilder::new(),
            header_values: BinaryBuilder::new(),
            sizes: ColumnSizes::default(),
            column_max: COLUMN_MAX,
            escaped_header_keys: 0,
        }
    }

    /// Adds a record.
    pub fn push(&mut self, partition: i32, record: &KafkaRecord) -> Result<(), ColumnsFull> {
        let header_keys: Vec<_> = record.headers.iter().map(|(key, _)| header_key(key)).collect();
        let sizes = self.sizes.with(record, &header_keys);
        // One record is below 2 GiB. Only its escaped header keys can be longer than it.
        if sizes.largest() > self.column_max {
            return Err(ColumnsFull);
        }
        self.sizes = sizes;
        self.partitions.push(partition);
        self.offsets.push(record.offset);
        self.timestamps.push(record.timestamp);
        self.keys.append_option(record.key.as_deref());
        self.values.append_option(record.value.as_deref());
        for (key, (_, value)) in header_keys.iter().zip(&record.headers) {
            self.escaped_header_keys += u64::from(matches!(key, Cow::Owned(_)));
            self.header_keys.append_value(key);
            self.header_values.append_option(value.as_deref());
        }
        self.header_ends.push(i32::try_from(sizes.headers).expect("checked above"));
        Ok(())
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Returns true without records.
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// The bytes of keys, values and headers, to decide when to finish.
    pub fn content_bytes(&self) -> usize {
        self.sizes.bytes()
    }

    /// The number of header keys so far, in all batches, that were not UTF-8.
    pub fn escaped_header_keys(&self) -> u64 {
        self.escaped_header_keys
    }

    /// The schema of the batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Takes the records out as a batch, which may be empty. More can be pushed afterwards.
    pub fn finish(&mut self) -> RecordBatch {
        self.sizes = ColumnSizes::default();
        let header_ends = std::mem::replace(&mut self.header_ends, vec![0]);
        let headers: Vec<ArrayRef> =
            vec![Arc::new(self.header_keys.finish()), Arc::new(self.header_values.finish())];
        let headers = StructArray::new(header_fields(), headers, None);
        let header_ends = OffsetBuffer::new(ScalarBuffer::from(header_ends));
        let headers = ListArray::new(header_item(), header_ends, Arc::new(headers), None);
        let timestamps = TimestampMillisecondArray::from(std::mem::take(&mut self.timestamps));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int32Array::from(std::mem::take(&mut self.partitions))),
            Arc::new(Int64Array::from(std::mem::take(&mut self.offsets))),
            Arc::new(timestamps.with_timezone("UTC")),
            Arc::new(self.keys.finish()),
            Arc::new(self.values.finish()),
            Arc::new(headers),
        ];
        RecordBatch::try_new(self.schema.clone(), columns)
            .expect("columns of one length, of the types of the record schema")
    }
}

/// A header key as text.
fn header_key(key: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(key) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(key.len() + 16);
    for chunk in key.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use arrow_array::Array;
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Int32Type, Int64Type, TimestampMillisecondType};
    use bytes::Bytes;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::{ArrowFileWriter, ArrowStreamWriter, record_schema};

    fn columns() -> RecordColumns {
        RecordColumns::new(record_schema("orders", None))
    }

    fn record(headers: &[(&[u8], Option<&[u8]>)]) -> KafkaRecord {
        let headers = headers
            .iter()
            .map(|(key, value)| (Bytes::copy_from_slice(key), value.map(Bytes::copy_from_slice)));
        KafkaRecord {
            offset: 7,
            timestamp: 1_700_000_000_000,
            key: Some(Bytes::from_static(b"k")),
            value: Some(Bytes::from_static(b"value")),
            headers: headers.collect(),
        }
    }

    /// The rows of a batch as records again.
    fn rows(batch: &RecordBatch) -> Vec<(i32, KafkaRecord)> {
        let partitions = batch.column(0).as_primitive::<Int32Type>();
        let offsets = batch.column(1).as_primitive::<Int64Type>();
        let timestamps = batch.column(2).as_primitive::<TimestampMillisecondType>();
        let (keys, values) =
            (batch.column(3).as_binary::<i32>(), batch.column(4).as_binary::<i32>());
        let headers = batch.column(5).as_list::<i32>();
        let nullable = |array: &arrow_array::BinaryArray, index: usize| {
            array.is_valid(index).then(|| Bytes::copy_from_slice(array.value(index)))
        };
        let row = |index: usize| {
            let list = headers.value(index);
            let list = list.as_struct();
            let names = list.column(0).as_string::<i32>();
            let header = |at: usize| {
                let name = Bytes::copy_from_slice(names.value(at).as_bytes());
                (name, nullable(list.column(1).as_binary::<i32>(), at))
            };
            let record = KafkaRecord {
                offset: offsets.value(index),
                timestamp: timestamps.value(index),
                key: nullable(keys, index),
                value: nullable(values, index),
                headers: (0..list.len()).map(header).collect(),
            };
            (partitions.value(index), record)
        };
        (0..batch.num_rows()).map(row).collect()
    }

    #[test]
    fn a_header_key_that_is_not_utf8_is_escaped_byte_by_byte() {
        let mut columns = columns();
        let record =
            record(&[(b"plain", None), (b"a\xff\xfeb", Some(b"1")), ("\u{e9}".as_bytes(), None)]);
        columns.push(0, &record).unwrap();
        assert_eq!(columns.escaped_header_keys(), 1);
        let names: Vec<_> =
            rows(&columns.finish())[0].1.headers.iter().map(|h| h.0.clone()).collect();
        assert_eq!(names, [&b"plain"[..], b"a\\xff\\xfeb", "\u{e9}".as_bytes()]);
    }

    #[test]
    fn a_record_that_does_not_fit_is_refused_and_fits_once_finished() {
        let mut columns = columns();
        columns.column_max = 9;
        columns.push(0, &record(&[])).unwrap();
        assert_eq!(columns.push(0, &record(&[])), Err(ColumnsFull));
        assert_eq!((columns.len(), columns.content_bytes()), (1, 6));
        assert_eq!(columns.finish().num_rows(), 1);
        columns.push(0, &record(&[])).unwrap();
        assert_eq!(columns.finish().num_rows(), 1);
    }

    #[test]
    fn each_kind_of_content_counts_against_the_limit() {
        let (many, long) = ([b'a'; 10], Some(&[b'b'; 10][..]));
        let headers: Vec<(&[u8], Option<&[u8]>)> = vec![(&many[..1], None); 10];
        let records = [
            KafkaRecord { key: Some(Bytes::from_static(&[1; 10])), ..record(&[]) },
            KafkaRecord { value: Some(Bytes::from_static(&[1; 10])), ..record(&[]) },
            record(&[(&many, None)]),
            record(&[(b"a", long)]),
            record(&headers),
            record(&[(&[0xff; 3], None)]),
        ];
        for record in &records {
            let mut columns = columns();
            columns.column_max = 9;
            assert_eq!(columns.push(0, record), Err(ColumnsFull), "{record:?}");
            assert!(columns.is_empty() && columns.escaped_header_keys() == 0);
        }
    }

    #[test]
    fn the_metadata_of_the_schema_is_in_the_stream() {
        let schema = record_schema("orders", Some("s5"));
        let mut stream = ArrowStreamWriter::try_new(Vec::new(), &schema).unwrap();
        stream.write(&RecordColumns::new(schema.clone()).finish()).unwrap();
        let bytes = stream.into_inner().unwrap();
        let reader = arrow_ipc::reader::StreamReader::try_new(&bytes[..], None).unwrap();
        assert_eq!(reader.schema(), schema);
        let metadata = |name: &str| schema.metadata()[name].as_str();
        assert_eq!(metadata("freezeframe.topic"), "orders");
        assert_eq!(metadata("freezeframe.moment"), "s5");
        assert_eq!(record_schema("orders", None).metadata().len(), 1);
    }

    prop_compose! {
        fn any_record()(
            offset in any::<i64>(),
            timestamp in any::<i64>(),
            key in option::of(vec(any::<u8>(), 0..8)),
            value in option::of(vec(any::<u8>(), 0..40)),
            headers in vec(("[a-z\u{e9}]{0,3}", option::of(vec(any::<u8>(), 0..4))), 0..4),
        ) -> KafkaRecord {
            let header = |(name, value): (String, Option<Vec<u8>>)| {
                (Bytes::from(name), value.map(Bytes::from))
            };
            KafkaRecord {
                offset,
                timestamp,
                key: key.map(Bytes::from),
                value: value.map(Bytes::from),
                headers: headers.into_iter().map(header).collect(),
            }
        }
    }

    proptest! {
        #[test]
        fn what_arrows_own_readers_read_is_what_was_pushed(
            batches in vec(vec((any::<i32>(), any_record()), 0..20), 0..4),
        ) {
            let mut columns = columns();
            let mut stream = ArrowStreamWriter::try_new(Vec::new(), columns.schema()).unwrap();
            let mut file = ArrowFileWriter::try_new(Vec::new(), columns.schema()).unwrap();
            for batch in &batches {
                for (partition, record) in batch {
                    columns.push(*partition, record).unwrap();
                }
                let batch = columns.finish();
                stream.write(&batch).unwrap();
                file.write(&batch).unwrap();
            }
            let (stream, file) = (stream.into_inner().unwrap(), file.into_inner().unwrap());
            let stream = arrow_ipc::reader::StreamReader::try_new(&stream[..], None).unwrap();
            let file = std::io::Cursor::new(file);
            let file = arrow_ipc::reader::FileReader::try_new(file, None).unwrap();
            let read: Vec<_> = stream.map(|batch| rows(&batch.unwrap())).collect();
            prop_assert_eq!(&read, &batches);
            let read: Vec<_> = file.map(|batch| rows(&batch.unwrap())).collect();
            prop_assert_eq!(&read, &batches);
        }

        #[test]
        fn header_keys_of_any_bytes_become_text_that_names_each_byte(
            key in vec(any::<u8>(), 0..12),
        ) {
            let text = header_key(&key);
            prop_assert_eq!(matches!(&text, Cow::Owned(_)), std::str::from_utf8(&key).is_err());
            let escapes = key.utf8_chunks().map(|chunk| chunk.invalid().len()).sum::<usize>();
            prop_assert_eq!(text.len(), key.len() + 3 * escapes);
        }
    }
}
