//! Panics of threads: those that end the process. `Cargo.toml` and `docs/ARCHITECTURE.md` list
//! them.
//!
//! Each case runs in a process of its own: this program, with the name of the thread in the
//! environment. A disk and a projection panic as soon as that thread calls them.

#![allow(clippy::unwrap_used, reason = "all of it is a test")]

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine_core::numbering::{GROUPS_LOG, KIND_GROUPS};
use engine_core::projection::{
    CatalogFillError, EngineWings, EventProjection, PluginModules, ProjectedEvent,
};
use engine_core::{
    BatchFormat, CoreOptions, EngineCore, KeyedRecord, ProducerSequence, RewriteOutcome, SeekError,
};
use hlc::{Cut, Hlc, ManualClock, SysTime, UserTime};
use storage::catalog::{AppliedPosition, Catalog, CatalogError, CatalogFaults, CatalogWriteBatch};
use storage::disk::MemoryDisk;
use storage::{Log, LogId, Offset, Payload};
use testkit::disks::{DiskHook, HookedDisk};

/// The name of the thread that panics.
const PANIC_IN: &str = "FREEZEFRAME_PANIC_IN";
/// The variable with the directory of the child's catalog.
const DIRECTORY: &str = "FREEZEFRAME_PANIC_DIRECTORY";
const ABORTED: i32 = 6;
/// The most times that each thread gets something to do.
const ROUNDS: u64 = 10_000;

fn panic_if_named() {
    let thread = std::thread::current();
    if thread.name().is_some() && thread.name() == std::env::var(PANIC_IN).ok().as_deref() {
        panic!("this thread was to panic");
    }
}

struct PanicHook;

impl DiskHook for PanicHook {
    fn before_create(&self, _name: &str) {
        panic_if_named();
    }

    fn before_read(&self, _name: &str, _position: u64) -> io::Result<()> {
        panic_if_named();
        Ok(())
    }

    fn before_sync(&self, _name: &str) {
        panic_if_named();
    }
}

/// It keeps nothing.
struct PanickingProjection;

impl EventProjection for PanickingProjection {
    fn log(&self) -> LogId {
        GROUPS_LOG
    }

    fn kind(&self) -> u8 {
        KIND_GROUPS
    }

    fn apply(
        &self,
        catalog: &Arc<Catalog>,
        _event: ProjectedEvent<'_>,
        at: AppliedPosition,
    ) -> Result<(), CatalogFillError> {
        panic_if_named();
        Ok(catalog.apply(CatalogWriteBatch::default(), at)?)
    }

    fn reset(&self, _catalog: &Arc<Catalog>, _log: &Arc<Log>) -> Result<(), CatalogFillError> {
        panic_if_named();
        Ok(())
    }

    fn topics_in_use(&self, _catalog: &Arc<Catalog>) -> Result<HashSet<String>, CatalogError> {
        Ok(HashSet::new())
    }

    fn truncated(&self, earliest: Hlc) -> SeekError {
        SeekError::BeforeNames { earliest }
    }
}

struct NoPlugins;

impl PluginModules for NoPlugins {
    fn read(&self, plugin: &str, _at: Cut) -> Result<Vec<u8>, String> {
        Err(format!("there is no plug-in {plugin}"))
    }
}

struct NoBatches;

impl BatchFormat for NoBatches {
    fn finalize_header(
        &self,
        _payload: &mut Payload,
        _base: Offset,
        _epoch: u32,
        _append_time: Option<SysTime>,
    ) -> Option<(usize, u32)> {
        None
    }

    fn producer(&self, _start: &[u8]) -> Option<ProducerSequence> {
        None
    }

    fn times(&self, _batch: &Bytes) -> Result<Vec<(Offset, UserTime)>, String> {
        Ok(Vec::new())
    }

    fn rewrite(
        &self,
        _batch: &Bytes,
        _delete_horizon: Option<SysTime>,
        _keep: &mut dyn FnMut(&KeyedRecord<'_>) -> bool,
    ) -> Result<RewriteOutcome, String> {
        Ok(RewriteOutcome::Unchanged)
    }
}

/// Gives every thread of a spine something to do until one has ended the process.
#[tokio::test(flavor = "multi_thread")]
async fn child() {
    if std::env::var(PANIC_IN).is_err() {
        return;
    }
    let clock = Arc::new(ManualClock::at(SysTime(1_000_000)));
    let faults = CatalogFaults::default();
    let options = CoreOptions {
        catalog: std::env::var_os(DIRECTORY).map(PathBuf::from),
        catalog_faults: faults.clone(),
        ..CoreOptions::default()
    };
    let wall = Arc::clone(&clock);
    let disk = Arc::new(HookedDisk::new(MemoryDisk::new(), Arc::new(PanicHook)));
    let core = EngineCore::open(disk, options, wall, Arc::new(NoBatches)).unwrap();
    let core = Arc::new(core);
    core.start(EngineWings {
        events: vec![Box::new(PanickingProjection)],
        readers: Vec::new(),
        plugins: Box::new(NoPlugins),
    })
    .unwrap();
    for nth in 0..ROUNDS {
        let id = u128::from(nth).to_be_bytes();
        let topics = core.topics();
        // A failure here ends with the process.
        let _ = topics.create(&format!("t{nth}"), 1, BTreeMap::new(), id, false).await;
        faults.fail_after(0);
        let _ = topics.delete(id).await;
        clock.advance(Duration::from_secs(10));
        let _ = core.maintenance().roll_segment().await;
    }
}

#[test]
fn a_panic_in_a_thread_that_owns_state_aborts_the_process() {
    for thread in ["journal", "bound", "namespace", "catalog", "maintenance"] {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("panic-{thread}"));
        let _ = std::fs::remove_dir_all(&directory);
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(PANIC_IN, thread)
            .env(DIRECTORY, &directory)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(ABORTED), "{thread}: {stderr}");
        assert!(stderr.contains("this thread was to panic"), "{thread}: {stderr}");
    }
}
