//! The three formats of an export.

use std::io::{self, BufWriter, Write};

use anyhow::{Context, ensure};
use arrow_schema::SchemaRef;
use hlc::Hlc;
use kafka_records::KafkaRecord;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use record_columns::{ArrowFileWriter, ColumnsFull, RecordColumns};

use crate::topic_reader::PartitionCursor;

/// The most rows and bytes of a batch of columns.
const ROWS_MAX: usize = 64 << 10;
const COLUMN_BYTES_MAX: usize = 16 << 20;
/// The size of a row group of a Parquet file, encoded.
const ROW_GROUP_BYTES: usize = 64 << 20;
const BUFFER_BYTES: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ExportFormat {
    /// A JSON object a line, as `cat --format jsonl` prints it
    Jsonl,
    /// Parquet, compressed with snappy
    Parquet,
    /// An Arrow IPC file (Feather 2)
    Arrow,
}

impl ExportFormat {
    pub(super) fn extension(self) -> &'static str {
        match self {
            ExportFormat::Jsonl => "jsonl",
            ExportFormat::Parquet => "parquet",
            ExportFormat::Arrow => "arrow",
        }
    }
}

/// Writes records in a format.
pub(super) struct RecordSink<W: Write + Send> {
    encoder: RecordEncoder<W>,
    columns: RecordColumns,
    records: u64,
    /// The first error. Records after it are not written.
    failure: Option<anyhow::Error>,
}

enum RecordEncoder<W: Write + Send> {
    Jsonl(BufWriter<W>),
    Parquet(Box<ArrowWriter<W>>),
    Arrow(Box<ArrowFileWriter<BufWriter<W>>>),
}

impl<W: Write + Send> RecordSink<W> {
    /// Begins an output. Files with a schema have `schema`, which says what they hold.
    pub(super) fn new(
        format: ExportFormat,
        writer: W,
        schema: SchemaRef,
    ) -> anyhow::Result<RecordSink<W>> {
        let buffered = |writer| BufWriter::with_capacity(BUFFER_BYTES, writer);
        let encoder = match format {
            ExportFormat::Jsonl => RecordEncoder::Jsonl(buffered(writer)),
            ExportFormat::Parquet => {
                let properties =
                    WriterProperties::builder().set_compression(Compression::SNAPPY).build();
                let writer = ArrowWriter::try_new(writer, schema.clone(), Some(properties))?;
                RecordEncoder::Parquet(Box::new(writer))
            }
            ExportFormat::Arrow => {
                RecordEncoder::Arrow(Box::new(ArrowFileWriter::try_new(buffered(writer), &schema)?))
            }
        };
        Ok(RecordSink { encoder, columns: RecordColumns::new(schema), records: 0, failure: None })
    }

    /// Adds a record. An error is reported by [`RecordSink::check`].
    pub(super) fn push(
        &mut self,
        position: &PartitionCursor,
        record: &KafkaRecord,
        stamp: Option<Hlc>,
    ) {
        if self.failure.is_none() {
            self.failure = self.add(position, record, stamp).err();
        }
    }

    fn add(
        &mut self,
        position: &PartitionCursor,
        record: &KafkaRecord,
        stamp: Option<Hlc>,
    ) -> anyhow::Result<()> {
        self.records += 1;
        if let RecordEncoder::Jsonl(writer) = &mut self.encoder {
            return Ok(position.renderer.write_record(record, stamp, writer)?);
        }
        if let Err(ColumnsFull) = self.columns.push(position.partition, record) {
            self.write_columns()?;
            self.columns.push(position.partition, record)?;
        }
        if self.columns.len() >= ROWS_MAX || self.columns.content_bytes() >= COLUMN_BYTES_MAX {
            self.write_columns()?;
        }
        Ok(())
    }

    fn write_columns(&mut self) -> anyhow::Result<()> {
        if self.columns.is_empty() {
            return Ok(());
        }
        let batch = self.columns.finish();
        match &mut self.encoder {
            RecordEncoder::Jsonl(_) => {}
            RecordEncoder::Arrow(writer) => writer.write(&batch)?,
            RecordEncoder::Parquet(writer) => {
                writer.write(&batch)?;
                if writer.in_progress_size() >= ROW_GROUP_BYTES {
                    writer.flush()?;
                }
            }
        }
        Ok(())
    }

    /// Returns the first error of [`RecordSink::push`].
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        match self.failure.take() {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// The number of header keys that were not UTF-8 and are escaped.
    pub(super) fn escaped_header_keys(&self) -> u64 {
        self.columns.escaped_header_keys()
    }

    /// Ends the output. Returns the number of records and the writer.
    pub(super) fn finish(mut self) -> anyhow::Result<(u64, W)> {
        self.check()?;
        self.write_columns()?;
        let records = self.records;
        let unbuffered =
            |writer: BufWriter<W>| writer.into_inner().map_err(io::IntoInnerError::into_error);
        let writer = match self.encoder {
            RecordEncoder::Jsonl(writer) => unbuffered(writer)?,
            RecordEncoder::Arrow(writer) => unbuffered(writer.into_inner()?)?,
            RecordEncoder::Parquet(mut writer) => {
                writer.flush()?;
                let groups = writer.flushed_row_groups().iter();
                let rows: i64 = groups.map(|group| group.num_rows()).sum();
                ensure!(
                    u64::try_from(rows) == Ok(records),
                    "the Parquet file has {rows} rows, and {records} records were read"
                );
                writer.into_inner().context("end the Parquet file")?
            }
        };
        Ok((records, writer))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use bytes::Bytes;
    use fileview::{RecordLayout, RecordRenderer, RecordSelection, ViewFormat};
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use record_columns::record_schema;

    use super::*;

    #[test]
    fn parquets_own_reader_reads_the_rows_and_what_they_are() {
        let path = std::env::temp_dir().join(format!("record-sink-{}", std::process::id()));
        let schema = record_schema("orders", Some("s5"));
        let file = File::create(&path).unwrap();
        let mut sink = RecordSink::new(ExportFormat::Parquet, file, schema.clone()).unwrap();
        let layout = RecordLayout::View(ViewFormat::Jsonl);
        let renderer = RecordRenderer::new("orders", 3, layout, RecordSelection::all()).unwrap();
        let position = PartitionCursor { partition: 3, next: 0, end: 0, renderer };
        // More than a batch of columns.
        let count = ROWS_MAX as i64 + 10;
        for offset in 0..count {
            let record = KafkaRecord {
                offset,
                timestamp: offset,
                key: Some(Bytes::from_static(b"key")),
                value: (offset % 2 == 0).then(|| Bytes::from_static(b"value")),
                headers: vec![(Bytes::from_static(b"h\xff"), None)],
            };
            sink.push(&position, &record, None);
        }
        assert_eq!(sink.escaped_header_keys(), count as u64);
        assert_eq!(sink.finish().unwrap().0, count as u64);
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&path).unwrap()).unwrap();
        assert_eq!(*reader.schema(), schema);
        let batches: Vec<_> = reader.build().unwrap().map(Result::unwrap).collect();
        let offsets =
            batches.iter().flat_map(|batch| batch.column(1).as_primitive::<Int64Type>().values());
        assert!(offsets.copied().eq(0..count));
        let nulls: usize = batches.iter().map(|batch| batch.column(4).null_count()).sum();
        assert_eq!(nulls as i64, count / 2);
        std::fs::remove_file(path).unwrap();
    }
}
