//! An engine with one file: the only file here that uses the calls of `engine::files`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use engine::files::{FileView, OpenFile};
use engine::{
    BatchFormat, CoreOptions, Durability, Engine, EngineOptions, KeyedRecord, Offset, Payload,
    ProducerSequence, RewriteOutcome, WaitPolicy,
};
use hlc::{Cut, Hlc, OsClock, SysTime, UserTime};
use storage::disk::RealDisk;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// The bytes that a reader reads at once.
const READ_BYTES: u64 = 1 << 20;
const IN_FLIGHT: usize = 128;
const PATH: &str = "/file";

/// Topics are not what is measured.
struct NoRecordsFormat;

impl BatchFormat for NoRecordsFormat {
    fn finalize_header(
        &self,
        _: &mut Payload,
        _: Offset,
        _: u32,
        _: Option<SysTime>,
    ) -> Option<(usize, u32)> {
        None
    }

    fn producer(&self, _: &[u8]) -> Option<ProducerSequence> {
        None
    }

    fn times(&self, _: &Bytes) -> Result<Vec<(Offset, UserTime)>, String> {
        Ok(Vec::new())
    }

    fn rewrite(
        &self,
        _: &Bytes,
        _: Option<SysTime>,
        _: &mut dyn FnMut(&KeyedRecord<'_>) -> bool,
    ) -> Result<RewriteOutcome, String> {
        Err("there are no records".to_owned())
    }
}

pub(crate) struct FileDriver {
    engine: Engine,
    runtime: Runtime,
    file: OpenFile,
}

impl FileDriver {
    /// Opens the engine in `directory`, and the file in it, which is created if it does not exist.
    pub(crate) fn open(directory: &Path, tail_bytes: usize) -> Result<FileDriver> {
        let disk = RealDisk::open(directory)?;
        let storage = storage::Options { tail_bytes_max: tail_bytes, ..Default::default() };
        let options = EngineOptions {
            core: CoreOptions { storage, ..CoreOptions::default() },
            ..EngineOptions::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let _within = runtime.enter();
        let engine =
            Engine::open(Arc::new(disk), options, Arc::new(OsClock), Arc::new(NoRecordsFormat))?;
        let file = match engine.files().open(PATH) {
            Ok(file) => file,
            Err(_) => runtime.block_on(engine.files().create(PATH, 0o644))?,
        };
        drop(_within);
        Ok(FileDriver { engine, runtime, file })
    }

    /// Writes all, in order, not synced; returns the newest moment.
    pub(crate) fn write(&self, writes: impl Iterator<Item = (u64, Bytes)>) -> Result<Hlc> {
        self.runtime.block_on(async {
            let mut newest = Hlc::ZERO;
            let mut writing = JoinSet::new();
            for (offset, data) in writes {
                let file = self.file.clone();
                writing
                    .spawn(async move { file.write_at(offset, data, Durability::Written).await });
                if writing.len() >= IN_FLIGHT {
                    let written = writing.join_next().await.context("none is on its way")?;
                    newest = newest.max(written??);
                }
            }
            while let Some(written) = writing.join_next().await {
                newest = newest.max(written??);
            }
            Ok(newest)
        })
    }

    /// Waits until nothing can enter the cut any more.
    pub(crate) fn wait_until_closed(&self, cut: Cut) -> Result<()> {
        let settled = self.engine.wait_until_closed(cut, WaitPolicy::Wait(Duration::from_secs(10)));
        self.runtime
            .block_on(settled)
            .map_err(|error| anyhow!("wait until the cut is closed: {error}"))?;
        Ok(())
    }

    /// Reads the whole file at the cut, and copies it out; returns the number of bytes.
    pub(crate) fn read_at(&self, cut: Cut, out: &mut Vec<u8>) -> Result<u64> {
        let view: FileView = self.file.view_at(cut)?;
        let mut next = 0;
        while next < view.length() {
            out.clear();
            for piece in view.read_extents(next..view.length().min(next + READ_BYTES))? {
                match &piece.bytes {
                    Some(bytes) => out.extend_from_slice(bytes),
                    None => {
                        out.resize(out.len() + (piece.range.end - piece.range.start) as usize, 0)
                    }
                }
            }
            std::hint::black_box(&*out);
            next += out.len() as u64;
        }
        Ok(next)
    }

    /// Bytes of memory that the index over the file holds.
    pub(crate) fn index_bytes(&self) -> usize {
        self.engine.files().index_bytes()
    }

    pub(crate) fn close(self) {
        let FileDriver { engine, runtime, file } = self;
        let _within = runtime.enter();
        drop(file);
        engine.close();
    }
}
