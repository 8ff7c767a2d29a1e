//! Arrow's two formats: the stream and the file.

use std::io::Write;

use arrow_array::RecordBatch;
use arrow_ipc::writer::{FileWriter, StreamWriter};
use arrow_schema::{ArrowError, SchemaRef};

/// Writes batches as an Arrow IPC stream (`application/vnd.apache.arrow.stream`), which is read from
/// its beginning to its end. The schema is written at once.
pub struct ArrowStreamWriter<W: Write> {
    writer: StreamWriter<W>,
}

impl<W: Write> ArrowStreamWriter<W> {
    /// Begins a stream of batches of `schema`.
    pub fn new(writer: W, schema: &SchemaRef) -> Result<ArrowStreamWriter<W>, ArrowError> {
        Ok(ArrowStreamWriter { writer: StreamWriter::try_new(writer, schema)? })
    }

    /// Writes a batch.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        self.writer.write(batch)
    }

    /// The writer below, to take away what was written so far.
    pub fn get_mut(&mut self) -> &mut W {
        self.writer.get_mut()
    }

    /// Marks the end of the stream, and returns the writer. A reader takes a stream without this
    /// mark as complete if it ends between two batches: check the number of rows in another way.
    pub fn finish(mut self) -> Result<W, ArrowError> {
        self.writer.finish()?;
        self.writer.into_inner()
    }
}

/// Writes batches as an Arrow IPC file (`application/vnd.apache.arrow.file`, Feather 2), whose batches
/// can be read in any order. Without [`finish`](ArrowFileWriter::finish), no reader opens it.
pub struct ArrowFileWriter<W: Write> {
    writer: FileWriter<W>,
}

impl<W: Write> ArrowFileWriter<W> {
    /// Begins a file of batches of `schema`.
    pub fn new(writer: W, schema: &SchemaRef) -> Result<ArrowFileWriter<W>, ArrowError> {
        Ok(ArrowFileWriter { writer: FileWriter::try_new(writer, schema)? })
    }

    /// Writes a batch.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        self.writer.write(batch)
    }

    /// Writes the index of the batches, and returns the writer.
    pub fn finish(mut self) -> Result<W, ArrowError> {
        self.writer.finish()?;
        self.writer.into_inner()
    }
}
