//! Files with overwrites on a whole engine: names, bytes and attributes, present and past (`F13`,
//! `F20`, `F34`, `F35`, `G1`–`G9`, `G12`, `G13`, `G16`; TIME.md 9).

mod contents;
mod corruption;
mod cost;
mod histories;
mod names;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use engine::files::{
    AttributeUpdate, FileError, FileKind, FileOptions, FilePermissions, FileSystem, FileTime,
    OpenFile, WRITE_BYTES_MAX,
};
use engine::{CoreOptions, Durability, EngineOptions};
use hlc::{Cut, ManualClock, SysTime};
use rustix::io::Errno;
use storage::disk::{DiskFault, MemoryDisk};
use testkit::engine::{EngineFixture, START};

fn with(files: FileOptions) -> EngineFixture {
    on_new(EngineOptions { files, ..EngineOptions::default() })
}

fn on_new(options: EngineOptions) -> EngineFixture {
    let clock = Arc::new(ManualClock::at(SysTime(START)));
    EngineFixture::with(MemoryDisk::new(), clock, options)
}

fn reopen(fixture: EngineFixture, options: EngineOptions) -> EngineFixture {
    let EngineFixture { disk, clock, engine } = fixture;
    engine.close();
    drop(engine);
    EngineFixture::with(disk, clock, options)
}

/// The current moment. Later events are not in it.
fn moment(fixture: &EngineFixture) -> Cut {
    fixture.advance_clock(2);
    let cut = fixture.now();
    fixture.advance_clock(2);
    cut
}

async fn write(file: &OpenFile, offset: u64, bytes: &[u8]) {
    let data = Bytes::copy_from_slice(bytes);
    file.write_at(offset, data, Durability::Written).await.unwrap();
}

async fn filled(files: &FileSystem, path: &str, bytes: &[u8]) -> OpenFile {
    let file = files.create(path, 0o644).await.unwrap();
    write(&file, 0, bytes).await;
    file
}

fn text(files: &FileSystem, path: &str, cut: Cut) -> Result<String, i32> {
    let view = if cut == Cut::ALL {
        files.open(path).and_then(|file| file.view_at(cut))
    } else {
        files.open_at(path, cut)
    };
    let read = view.and_then(|view| view.read(0, 1 << 20));
    read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).map_err(|e| e.errno())
}

fn names(files: &FileSystem, path: &str, cut: Cut) -> Vec<String> {
    let entries = files.list(path, cut).unwrap();
    entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect()
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn errno<T: std::fmt::Debug>(result: Result<T, FileError>) -> i32 {
    result.expect_err("it is refused").errno()
}

const EPERM: i32 = Errno::PERM.raw_os_error();
const ENOENT: i32 = Errno::NOENT.raw_os_error();
const EAGAIN: i32 = Errno::AGAIN.raw_os_error();
const EEXIST: i32 = Errno::EXIST.raw_os_error();
const ENOTDIR: i32 = Errno::NOTDIR.raw_os_error();
const EISDIR: i32 = Errno::ISDIR.raw_os_error();
const EINVAL: i32 = Errno::INVAL.raw_os_error();
const EFBIG: i32 = Errno::FBIG.raw_os_error();
const ENOSPC: i32 = Errno::NOSPC.raw_os_error();
const ENAMETOOLONG: i32 = Errno::NAMETOOLONG.raw_os_error();
const ENOTEMPTY: i32 = Errno::NOTEMPTY.raw_os_error();

/// Options by which no written data stays in memory.
fn nothing_in_memory() -> EngineOptions {
    let storage = storage::Options { tail_bytes_max: 1, ..storage::Options::default() };
    EngineOptions {
        core: CoreOptions { storage, ..CoreOptions::default() },
        ..EngineOptions::default()
    }
}

/// Options by which a short history goes everywhere: through several checkpoints, out of all
/// caches, and into segments that are rolled, indexed and sorted meanwhile.
fn tight() -> EngineOptions {
    let storage = storage::Options {
        segment_bytes_max: 16 << 10,
        segment_frames_max: 60,
        tail_bytes_max: 4 << 10,
        index_bytes_max: 64 << 10,
        ..storage::Options::default()
    };
    let files = FileOptions { checkpoint_entries: 7, closed_max: 2, node_bytes_max: 8 << 10 };
    EngineOptions {
        core: CoreOptions { storage, ..CoreOptions::default() },
        files,
        ..EngineOptions::default()
    }
}
