//! A soft ordered map of versions: what a key's value was at any stamp.
//!
//! All of it comes from the journal. Each batch of changes carries the journal position that it was
//! made from, in the same atomic write, so the catalog always knows how much of the journal it has
//! applied. If it holds something that the journal does not have, or cannot be opened, it is
//! dropped and rebuilt. This is the only file that names sled.
//!
//! Invariants when something fails:
//! - The first error is final: nothing is read or written after it. So a change that failed leaves
//!   no hole that later changes hide. Another catalog has to take its place ([`CatalogDirectory`]).
//! - sled keeps its first error for ever, panics on inconsistent files, and syncs when it is
//!   dropped, with a panic if that fails. None of that leaves this file.

mod directory;
mod faults;

use std::fs::{File, TryLockError};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hlc::{Cut, Hlc};

use crate::disk::is_full;
use crate::entry::{LogId, Offset};

pub use directory::CatalogDirectory;
pub use faults::CatalogFaults;

/// The largest number of versions that one batch removes.
const PRUNE_BATCH_MAX: usize = 1000;
/// The first byte of the catalog's own keys.
const META: u8 = 0;
const APPLIED: &[u8] = &[META, b'a'];
/// The size of sled's cache in memory.
const CACHE_BYTES: u64 = 16 << 20;
/// The number of polls, and the pause after each, with which an open waits for the end of a catalog
/// that was dropped before.
const LOCK_POLLS_MAX: u32 = 10_000;
const LOCK_POLL: Duration = Duration::from_millis(1);

/// The reason a catalog cannot be used. Its content is in the journal.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the catalog of offsets, groups and names {why}")]
pub struct CatalogError {
    why: Arc<str>,
}

impl CatalogError {
    /// There is no catalog now: it is being rebuilt from the journal.
    pub fn being_rebuilt() -> CatalogError {
        CatalogError { why: "is being rebuilt from the journal; try again".into() }
    }

    fn failed(directory: Option<&Path>, reason: &str) -> CatalogError {
        let place = directory.map_or("memory".into(), |path| path.display().to_string());
        let message = format!("in {place} failed, and is rebuilt from the journal: {reason}");
        CatalogError { why: message.into() }
    }
}

/// Called once, when a catalog fails.
pub type OnCatalogFailure = Arc<dyn Fn() + Send + Sync>;

/// The kind of a catalog step: a read or a write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CatalogAccess {
    Read,
    Write,
}

/// The journal position up to which the catalog has applied it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AppliedPosition {
    /// The position of the last entry applied.
    pub position: u64,
    pub stamp: Hlc,
}

/// The offset up to which the catalog has applied a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedOffset {
    /// The first offset of the last entry applied.
    pub offset: Offset,
    pub stamp: Hlc,
}

fn applied_key(log: LogId) -> Vec<u8> {
    [APPLIED, &log.0.to_be_bytes()].concat()
}

/// A key, the stamp of one of its versions, and its value from that stamp on.
pub type KeyVersion = (Vec<u8>, Hlc, Vec<u8>);

/// Called with the parts of a [`KeyVersion`].
pub type VersionVisitor<'a, E> = &'a mut dyn FnMut(&[u8], Hlc, &[u8]) -> Result<(), E>;

/// Versions of values, by key and stamp.
pub struct Catalog {
    /// `Some` until it is dropped.
    db: Option<sled::Db>,
    /// `None` for one in memory.
    directory: Option<PathBuf>,
    faults: CatalogFaults,
    failure: OnceLock<CatalogError>,
    on_failure: Option<OnCatalogFailure>,
    reads: AtomicU64,
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catalog").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// Changes that become visible together.
#[derive(Default)]
pub struct CatalogWriteBatch {
    batch: sled::Batch,
}

impl CatalogWriteBatch {
    /// Sets `key` to `value` from `stamp` on; `None` removes it.
    pub fn put(&mut self, key: &[u8], stamp: Hlc, value: Option<&[u8]>) {
        let mut stored = Vec::with_capacity(1 + value.map_or(0, <[u8]>::len));
        stored.push(u8::from(value.is_some()));
        stored.extend_from_slice(value.unwrap_or_default());
        self.batch.insert(versioned_key(key, stamp), stored);
    }

    /// Sets `key` to `value` at every moment, without keeping versions; `None` removes it without a
    /// trace. For data that follows from versions under other keys, and exists to be found faster.
    pub fn put_unversioned(&mut self, key: &[u8], value: Option<&[u8]>) {
        match value {
            Some(_) => self.put(key, Hlc::ZERO, value),
            None => self.batch.remove(versioned_key(key, Hlc::ZERO)),
        }
    }
}

/// `key ‖ 0 ‖ stamp`, so that the versions of one key are adjacent and in stamp order. Keys hold no
/// zero byte of their own; [`escape`] ensures that.
fn versioned_key(key: &[u8], stamp: Hlc) -> Vec<u8> {
    assert!(!key.contains(&0) && !key.is_empty(), "keys are escaped: {key:?}");
    [key, &[0], &stamp.bits().to_be_bytes()].concat()
}

/// Appends text from outside to a key: without zero bytes, and in the same order.
pub fn escape(text: &str, key: &mut Vec<u8>) {
    for byte in text.bytes() {
        match byte {
            0 => key.extend_from_slice(&[1, 1]),
            1 => key.extend_from_slice(&[1, 2]),
            byte => key.push(byte),
        }
    }
}

/// The inverse of [`escape`].
pub fn unescape(part: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.iter();
    while let Some(byte) = rest.next() {
        match byte {
            1 => bytes.push(rest.next().map_or(1, |escaped| escaped - 1)),
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Catalog {
    /// Opens the catalog in `directory`. One that cannot be read is dropped and created again. If
    /// the disk is full, it stays as it is.
    ///
    /// # Errors
    /// Not even an empty one can be created, or the catalog is still open elsewhere.
    pub fn open(directory: &Path) -> Result<Catalog, CatalogError> {
        Catalog::open_with(directory, CatalogFaults::default())
    }

    fn open_with(directory: &Path, faults: CatalogFaults) -> Result<Catalog, CatalogError> {
        let open = || match faults.error_of(true, CatalogAccess::Write) {
            Some(error) => Err(error),
            None => catch_panic(|| config().path(directory).open()),
        };
        let unlocked = wait_until_unlocked(directory).map_err(CatalogStepError::from);
        let opened = unlocked.and_then(|()| open()).or_else(|error| {
            if error.spares_files {
                return Err(error);
            }
            tracing::warn!(%error, "the catalog cannot be read; it is rebuilt from the journal");
            remove(directory).map_err(|error| CatalogStepError::from(sled::Error::Io(error)))?;
            open()
        });
        let directory = directory.to_owned();
        let db = opened.map_err(|error| CatalogError::failed(Some(&directory), &error.why))?;
        Ok(Catalog::with_db(db, Some(directory), faults))
    }

    /// A catalog that ends with the process.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn temporary() -> Result<Catalog, CatalogError> {
        Catalog::temporary_with(CatalogFaults::default())
    }

    fn temporary_with(faults: CatalogFaults) -> Result<Catalog, CatalogError> {
        let opened = catch_panic(|| config().temporary(true).open());
        let db = opened.map_err(|error| CatalogError::failed(None, &error.why))?;
        Ok(Catalog::with_db(db, None, faults))
    }

    fn with_db(db: sled::Db, directory: Option<PathBuf>, faults: CatalogFaults) -> Catalog {
        let (failure, on_failure) = (OnceLock::new(), None);
        let reads = AtomicU64::new(0);
        Catalog { db: Some(db), directory, faults, failure, on_failure, reads }
    }

    /// Sets the callback for its failure.
    #[must_use]
    pub fn with_failure_callback(self, on_failure: OnCatalogFailure) -> Catalog {
        // Fields of a type that implements `Drop` cannot be moved out of it.
        let mut catalog = self;
        catalog.on_failure = Some(on_failure);
        catalog
    }

    /// Returns true if it is lost when the process ends.
    pub fn is_in_memory(&self) -> bool {
        self.directory.is_none()
    }

    /// Returns true if it has failed: then it is of no further use.
    pub fn has_failed(&self) -> bool {
        self.failure.get().is_some()
    }

    /// Runs one step, unless an earlier one failed. A step that fails is the last.
    fn step<T>(
        &self,
        access: CatalogAccess,
        act: impl FnOnce(&sled::Db) -> sled::Result<T>,
    ) -> Result<T, CatalogError> {
        if let Some(failure) = self.failure.get() {
            return Err(failure.clone());
        }
        let db = self.db.as_ref().expect("it is there until it is dropped");
        let result = match self.faults.error_of(self.directory.is_some(), access) {
            Some(error) => Err(error),
            None => catch_panic(|| act(db)),
        };
        result.map_err(|error| {
            let failure = CatalogError::failed(self.directory.as_deref(), &error.why);
            if self.failure.set(failure.clone()).is_ok()
                && let Some(tell) = &self.on_failure
            {
                tell();
            }
            failure
        })
    }

    /// The number of entries, or runs of them, that were looked up since it was opened.
    pub fn read_count(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    fn read<T>(&self, act: impl FnOnce(&sled::Db) -> sled::Result<T>) -> Result<T, CatalogError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.step(CatalogAccess::Read, act)
    }

    fn write<T>(&self, act: impl FnOnce(&sled::Db) -> sled::Result<T>) -> Result<T, CatalogError> {
        self.step(CatalogAccess::Write, act)
    }

    /// The position in the journal up to which it has applied entries; `None` if nothing.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn applied(&self) -> Result<Option<AppliedPosition>, CatalogError> {
        let stored = self.read(|db| db.get(APPLIED))?;
        Ok(stored.and_then(|bytes| {
            let position = u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?);
            let stamp = u64::from_be_bytes(bytes.get(8..16)?.try_into().ok()?);
            Some(AppliedPosition { position, stamp: Hlc::from_bits(stamp) })
        }))
    }

    /// Applies `changes`, which come from the journal's entry at `applied`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn apply(
        &self,
        mut changes: CatalogWriteBatch,
        applied: AppliedPosition,
    ) -> Result<(), CatalogError> {
        let place = [applied.position.to_be_bytes(), applied.stamp.bits().to_be_bytes()].concat();
        changes.batch.insert(APPLIED, place);
        self.write(|db| db.apply_batch(changes.batch))
    }

    /// The offset in `log` up to which [`Catalog::apply_in`] has applied entries; `None` if
    /// nothing.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn applied_in(&self, log: LogId) -> Result<Option<AppliedOffset>, CatalogError> {
        let stored = self.read(|db| db.get(applied_key(log)))?;
        Ok(stored.and_then(|bytes| {
            let offset = u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?);
            let stamp = u64::from_be_bytes(bytes.get(8..16)?.try_into().ok()?);
            Some(AppliedOffset { offset: Offset(offset), stamp: Hlc::from_bits(stamp) })
        }))
    }

    /// Applies `changes`, which come from the entry of `log` at `applied`. Logs that are read back
    /// one after the other each have their own position, so a start that is interrupted between two
    /// of them misses nothing.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn apply_in(
        &self,
        mut changes: CatalogWriteBatch,
        log: LogId,
        applied: AppliedOffset,
    ) -> Result<(), CatalogError> {
        let place = [applied.offset.0.to_be_bytes(), applied.stamp.bits().to_be_bytes()].concat();
        changes.batch.insert(applied_key(log), place);
        self.write(|db| db.apply_batch(changes.batch))
    }

    /// Removes all keys that begin with `prefix`, and the applied offset of `log`, from which they
    /// came.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn remove_log(&self, prefix: &[u8], log: LogId) -> Result<(), CatalogError> {
        // The applied offset first: keys that remain are overwritten when the log is read again.
        self.write(|db| db.remove(applied_key(log)))?;
        self.remove_prefix(prefix)
    }

    /// Applies `changes` that stand for what the journal no longer has. The applied position stays
    /// as it is.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn apply_unpositioned(&self, changes: CatalogWriteBatch) -> Result<(), CatalogError> {
        self.write(|db| db.apply_batch(changes.batch))
    }

    /// Removes all keys that begin with one of `prefixes`, and the position up to which the
    /// journal, from which they came, was applied ([`Catalog::applied`]).
    ///
    /// # Errors
    /// It cannot be written.
    pub fn reset_applied(&self, prefixes: &[u8]) -> Result<(), CatalogError> {
        self.write(|db| db.remove(APPLIED))?;
        prefixes.iter().try_for_each(|prefix| self.remove_prefix(&[*prefix]))
    }

    fn remove_prefix(&self, prefix: &[u8]) -> Result<(), CatalogError> {
        self.write(|db| db.scan_prefix(prefix).keys().try_for_each(|key| db.remove(key?).map(drop)))
    }

    /// The newest version of `key` in `cut`: its stamp and value. One seek.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn get(&self, key: &[u8], cut: Cut) -> Result<Option<(Hlc, Vec<u8>)>, CatalogError> {
        let range = versioned_key(key, Hlc::ZERO)..versioned_key(key, cut.bound());
        let newest = self.read(|db| db.range(range).next_back().transpose())?;
        Ok(newest.and_then(|(key, stored)| {
            let (_, stamp) = split(&key)?;
            (stored.first() == Some(&1)).then(|| (stamp, stored[1..].to_vec()))
        }))
    }

    /// The stamps of the versions of `key` that are in `until` and not in `from`, in order, at most
    /// `count`; removals too.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn stamps(
        &self,
        key: &[u8],
        from: Cut,
        until: Cut,
        count: usize,
    ) -> Result<Vec<Hlc>, CatalogError> {
        let range = versioned_key(key, from.bound())..versioned_key(key, until.bound());
        if range.is_empty() {
            return Ok(Vec::new());
        }
        self.read(|db| {
            let keys = db.range(range).keys().take(count);
            keys.filter_map(|key| key.map(|key| split(&key).map(|(_, stamp)| stamp)).transpose())
                .collect()
        })
    }

    /// The newest versions in `cut` of all keys that begin with `prefix`, by key. It costs two
    /// seeks a key, however many versions the key has.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn scan(&self, prefix: &[u8], cut: Cut) -> Result<Vec<KeyVersion>, CatalogError> {
        let mut versions = Vec::new();
        self.visit(prefix, cut, &mut |key, stamp, value| {
            versions.push((key.to_vec(), stamp, value.to_vec()));
            Ok::<_, CatalogError>(())
        })?;
        Ok(versions)
    }

    /// Calls `visit` with what [`Catalog::scan`] would return, one by one.
    ///
    /// # Errors
    /// It cannot be read, or `visit` fails.
    pub fn visit<E: From<CatalogError>>(
        &self,
        prefix: &[u8],
        cut: Cut,
        visit: VersionVisitor<'_, E>,
    ) -> Result<(), E> {
        let mut from = prefix.to_vec();
        while let Some(key) = self.first_key(prefix, &from)? {
            // After all versions of the key, whose next byte is a zero.
            from.clone_from(&key);
            from.push(1);
            if let Some((stamp, value)) = self.get(&key, cut)? {
                visit(&key, stamp, &value)?;
            }
        }
        Ok(())
    }

    /// Returns true if any key that begins with `prefix` has a value in `cut`.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn has_any(&self, prefix: &[u8], cut: Cut) -> Result<bool, CatalogError> {
        let mut from = prefix.to_vec();
        while let Some(key) = self.first_key(prefix, &from)? {
            if self.get(&key, cut)?.is_some() {
                return Ok(true);
            }
            from = key;
            from.push(1);
        }
        Ok(false)
    }

    /// The first key after `last`, or the first of all, that begins with `prefix`, whatever
    /// versions it has.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn next_key(
        &self,
        prefix: &[u8],
        last: Option<&[u8]>,
    ) -> Result<Option<Vec<u8>>, CatalogError> {
        let from = match last {
            Some(last) => [last, &[1]].concat(),
            None => prefix.to_vec(),
        };
        self.first_key(prefix, &from)
    }

    /// The first key, at or after `from`, that begins with `prefix`, whatever versions it has.
    fn first_key(&self, prefix: &[u8], from: &[u8]) -> Result<Option<Vec<u8>>, CatalogError> {
        // The catalog's own keys come first.
        let from = if from.is_empty() { &[META + 1][..] } else { from };
        let first = self.read(|db| db.range(from..).next().transpose())?;
        let first = first.filter(|(key, _)| key.starts_with(prefix));
        Ok(first.and_then(|(key, _)| split(&key).map(|(key, _)| key.to_vec())))
    }

    /// Removes versions of keys that begin with `prefix` which no cut with a bound of `horizon` or
    /// later shows: versions below `horizon` that a later one below it supersedes, and tombstones
    /// of keys that have no value there. Returns how many versions were removed.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub fn prune(&self, prefix: &[u8], horizon: Hlc) -> Result<u64, CatalogError> {
        self.write(|db| {
            let mut pruned = PruneBatch::default();
            let mut newest: Option<StoredVersion> = None;
            for item in db.scan_prefix(prefix) {
                let (key, stored) = item?;
                let next = StoredVersion(key, stored);
                let Some((key, _)) = next.key_and_stamp().filter(|(_, stamp)| *stamp < horizon)
                else {
                    continue;
                };
                match newest.take() {
                    Some(newest) if newest.has_key(key) => pruned.superseded.push(newest.0),
                    Some(newest) => pruned.tombstones.extend(newest.tombstone_key()),
                    None => {}
                }
                newest = Some(next);
                if pruned.superseded.len() + pruned.tombstones.len() >= PRUNE_BATCH_MAX {
                    pruned.remove_from(db)?;
                }
            }
            pruned.tombstones.extend(newest.and_then(StoredVersion::tombstone_key));
            pruned.remove_from(db)?;
            Ok(pruned.count)
        })
    }

    /// The number of versions. It reads each of them.
    pub fn version_count(&self) -> usize {
        let count = |db: &sled::Db| {
            Ok(db.iter().keys().flatten().filter(|key| split(key).is_some()).count())
        };
        self.read(count).unwrap_or(0)
    }

    /// Puts all changes on stable storage.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn sync(&self) -> Result<(), CatalogError> {
        self.write(|db| db.flush().map(drop))
    }

    /// Flushes changes to the disk, so that the next start replays less.
    pub fn flush(&self) {
        if let Err(error) = self.sync() {
            tracing::warn!(%error, "the catalog was not flushed; the next start replays more");
        }
    }
}

impl Drop for Catalog {
    /// Drops sled on a thread of its own, because sled waits for its threads then. A failed one may
    /// wait for ever, and nothing waits for it. Its files are removed, and their space is free once
    /// its last reader closes them.
    fn drop(&mut self) {
        let Some(db) = self.db.take() else { return };
        let (faults, has_failed) = (self.faults.clone(), self.has_failed());
        let directory = if has_failed { self.directory.take() } else { None };
        let end = move || {
            if let Some(directory) = &directory {
                let _ = remove(directory);
            }
            let ended = catch_unwind(AssertUnwindSafe(|| {
                drop(db);
                faults.panic_at_end();
            }));
            if ended.is_err() {
                tracing::warn!(
                    "the catalog was not closed in order; it is checked when it is opened"
                );
            }
        };
        let ending = std::thread::Builder::new().name("catalog-end".to_owned()).spawn(end);
        if let Ok(ending) = ending
            && !has_failed
        {
            let _ = ending.join();
        }
    }
}

fn config() -> sled::Config {
    sled::Config::new().cache_capacity(CACHE_BYTES).flush_every_ms(None)
}

/// The reason a step failed.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
struct CatalogStepError {
    why: String,
    /// True if the files are as good as before: the disk is full, or another catalog has them open.
    spares_files: bool,
}

impl CatalogStepError {
    fn new(reason: &str) -> CatalogStepError {
        CatalogStepError { why: reason.to_owned(), spares_files: false }
    }
}

/// Another one has the catalog open.
struct LockedCatalog;

impl From<LockedCatalog> for CatalogStepError {
    fn from(_: LockedCatalog) -> CatalogStepError {
        CatalogStepError { why: "it is still open elsewhere".to_owned(), spares_files: true }
    }
}

impl From<sled::Error> for CatalogStepError {
    fn from(error: sled::Error) -> CatalogStepError {
        let is_full = matches!(&error, sled::Error::Io(error) if is_full(error));
        CatalogStepError { why: error.to_string(), spares_files: is_full }
    }
}

/// Runs `act`, and turns a panic of sled into an error.
fn catch_panic<T>(act: impl FnOnce() -> sled::Result<T>) -> Result<T, CatalogStepError> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(result) => result.map_err(CatalogStepError::from),
        Err(_) => Err(CatalogStepError::new("its library panicked")),
    }
}

/// Waits until no one has the catalog in `directory` open. sled drops its file on threads of its
/// own, so a catalog that was dropped can be locked a little longer; one that is locked is not
/// unreadable.
fn wait_until_unlocked(directory: &Path) -> Result<(), LockedCatalog> {
    // As sled opens it: some file systems lock only what may be written.
    let opened = File::options().read(true).write(true).open(directory.join("db"));
    // sled reports any other error.
    let Ok(file) = opened else { return Ok(()) };
    for _ in 0..LOCK_POLLS_MAX {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_POLL),
            Ok(()) | Err(TryLockError::Error(_)) => {
                // Not left to the end of the file, which a child process may hold for a moment.
                let _ = file.unlock();
                return Ok(());
            }
        }
    }
    Err(LockedCatalog)
}

struct StoredVersion(sled::IVec, sled::IVec);

impl StoredVersion {
    fn key_and_stamp(&self) -> Option<(&[u8], Hlc)> {
        split(&self.0)
    }

    fn has_key(&self, key: &[u8]) -> bool {
        self.key_and_stamp().is_some_and(|(entry_key, _)| entry_key == key)
    }

    /// Its key in the database, if it is a tombstone.
    fn tombstone_key(self) -> Option<sled::IVec> {
        (self.1.first() != Some(&1)).then_some(self.0)
    }
}

/// Versions to remove, and how many have been removed.
#[derive(Default)]
struct PruneBatch {
    superseded: Vec<sled::IVec>,
    tombstones: Vec<sled::IVec>,
    count: u64,
}

impl PruneBatch {
    fn remove_from(&mut self, db: &sled::Db) -> sled::Result<()> {
        // In this order, a value never comes back because only its tombstone was removed.
        for keys in [&mut self.superseded, &mut self.tombstones] {
            let mut batch = sled::Batch::default();
            self.count += keys.len() as u64;
            keys.drain(..).for_each(|key| batch.remove(key));
            db.apply_batch(batch)?;
        }
        Ok(())
    }
}

fn split(key: &[u8]) -> Option<(&[u8], Hlc)> {
    if key.first() == Some(&META) {
        return None;
    }
    let (key, stamp) = key.split_at_checked(key.len().checked_sub(9)?)?;
    Some((key, Hlc::from_bits(u64::from_be_bytes(stamp[1..].try_into().ok()?))))
}

fn remove(directory: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hlc::SysTime;

    use super::*;

    fn at(ms: u64) -> Hlc {
        Hlc::at(SysTime(ms))
    }

    fn filled() -> Catalog {
        let catalog = Catalog::temporary().unwrap();
        let mut changes = CatalogWriteBatch::default();
        changes.put(b"a", at(10), Some(b"1"));
        changes.put(b"a", at(20), Some(b"2"));
        changes.put(b"a", at(30), None);
        changes.put(b"ab", at(15), Some(b"x"));
        catalog.apply(changes, AppliedPosition { position: 8, stamp: at(30) }).unwrap();
        catalog
    }

    #[test]
    fn a_key_reads_as_it_was_at_each_moment() {
        let catalog = filled();
        let get = |ms| catalog.get(b"a", Cut::before(SysTime(ms))).unwrap().map(|(_, v)| v);
        assert_eq!(get(10), None);
        assert_eq!(get(11), Some(b"1".to_vec()));
        assert_eq!(get(20), Some(b"1".to_vec()));
        assert_eq!(get(21), Some(b"2".to_vec()));
        assert_eq!(get(31), None);
    }

    #[test]
    fn the_stamps_of_a_key_are_those_of_its_versions_between_two_cuts() {
        let catalog = filled();
        let stamps = |from, until, count| {
            let (from, until) = (Cut::before(SysTime(from)), Cut::before(SysTime(until)));
            catalog.stamps(b"a", from, until, count).unwrap()
        };
        assert_eq!(stamps(0, 99, 9), [at(10), at(20), at(30)]);
        assert_eq!(stamps(10, 30, 9), [at(10), at(20)]);
        assert_eq!(stamps(11, 99, 1), [at(20)]);
        assert_eq!(stamps(30, 10, 9), []);
    }

    #[test]
    fn a_scan_finds_each_key_once_and_only_those_that_had_a_value() {
        let catalog = filled();
        let keys = |ms| -> Vec<Vec<u8>> {
            let versions = catalog.scan(b"a", Cut::before(SysTime(ms))).unwrap();
            versions.into_iter().map(|(key, ..)| key).collect()
        };
        assert_eq!(keys(12), [b"a".to_vec()]);
        assert_eq!(keys(25), [b"a".to_vec(), b"ab".to_vec()]);
        assert_eq!(keys(99), [b"ab".to_vec()]);
    }

    #[test]
    fn a_scan_passes_from_key_to_key_whatever_bytes_follow_and_however_many_versions_there_are() {
        let catalog = Catalog::temporary().unwrap();
        let mut changes = CatalogWriteBatch::default();
        let keys: [&[u8]; 6] = [b"a", b"a\x01", b"a\x01\x01", b"a\x02", b"aa", b"b"];
        for key in keys {
            for ms in 0..50 {
                changes.put(key, at(ms), Some(&[ms as u8]));
            }
        }
        changes.put_unversioned(b"c", Some(b"1"));
        changes.put_unversioned(b"ca", Some(b"2"));
        catalog.apply(changes, AppliedPosition::default()).unwrap();
        let scan = |prefix: &[u8], ms| -> Vec<(Vec<u8>, Vec<u8>)> {
            let versions = catalog.scan(prefix, Cut::before(SysTime(ms))).unwrap();
            versions.into_iter().map(|(key, _, value)| (key, value)).collect()
        };
        let expected: Vec<_> = keys[..5].iter().map(|key| (key.to_vec(), vec![29])).collect();
        assert_eq!(scan(b"a", 30), expected);
        assert_eq!(scan(b"a\x01", 30), expected[1..3]);
        assert_eq!(scan(b"a", 0), []);
        assert!(!catalog.has_any(b"a", Cut::before(SysTime(0))).unwrap());
        assert!(catalog.has_any(b"a", Cut::before(SysTime(1))).unwrap());
        assert_eq!(scan(b"c", 30).len(), 2);
        let mut changes = CatalogWriteBatch::default();
        changes.put_unversioned(b"c", None);
        catalog.apply(changes, AppliedPosition::default()).unwrap();
        assert_eq!(scan(b"c", 30), [(b"ca".to_vec(), b"2".to_vec())]);
    }

    #[test]
    fn pruning_leaves_every_cut_from_the_horizon_on_as_it_was() {
        for horizon in 5..40 {
            let catalog = filled();
            let mut changes = CatalogWriteBatch::default();
            changes.put(b"ac", at(12), None);
            changes.put(b"ac", at(35), Some(b"3"));
            catalog.apply(changes, AppliedPosition { position: 9, stamp: at(35) }).unwrap();
            let scans = || -> Vec<_> {
                let cuts = (horizon..50).map(|ms| Cut::before(SysTime(ms)));
                cuts.map(|cut| catalog.scan(b"a", cut).unwrap()).collect()
            };
            let (before, count) = (scans(), catalog.version_count());
            let removed = catalog.prune(b"a", at(horizon)).unwrap();
            assert_eq!(scans(), before, "{horizon}");
            assert_eq!(catalog.version_count() as u64, count as u64 - removed);
            assert_eq!(catalog.prune(b"a", at(horizon)).unwrap(), 0, "{horizon}");
            assert_eq!(catalog.applied().unwrap().map(|applied| applied.position), Some(9));
        }
    }

    #[test]
    fn of_many_versions_the_newest_stays_and_of_a_key_that_was_removed_nothing() {
        let catalog = Catalog::temporary().unwrap();
        let mut changes = CatalogWriteBatch::default();
        for ms in 0..PRUNE_BATCH_MAX as u64 * 3 {
            changes.put(b"k-kept", at(ms), Some(b"v"));
            changes.put(b"k-removed", at(ms), (ms % 7 != 0).then_some(b"v"));
        }
        changes.put(b"k-removed", at(9999), None);
        catalog.apply(changes, AppliedPosition { position: 1, stamp: at(9999) }).unwrap();
        catalog.prune(b"k", at(9998)).unwrap();
        assert_eq!(catalog.version_count(), 3);
        assert_eq!(catalog.prune(b"k", at(10_000)).unwrap(), 2);
        let versions: Vec<_> = catalog.scan(b"k", Cut::ALL).unwrap();
        assert_eq!(
            versions,
            [(b"k-kept".to_vec(), at(PRUNE_BATCH_MAX as u64 * 3 - 1), b"v".to_vec())]
        );
    }

    #[test]
    fn it_knows_how_much_of_the_journal_it_has_seen() {
        let applied = filled().applied().unwrap();
        assert_eq!(applied, Some(AppliedPosition { position: 8, stamp: at(30) }));
    }

    #[test]
    fn each_log_has_its_own_place_and_can_be_removed_alone() {
        let (catalog, log) = (filled(), LogId(u64::MAX));
        assert_eq!(catalog.applied_in(log).unwrap(), None);
        let applied = AppliedOffset { offset: Offset(3), stamp: at(40) };
        let mut changes = CatalogWriteBatch::default();
        changes.put(b"fa", at(40), Some(b"1"));
        catalog.apply_in(changes, log, applied).unwrap();
        assert_eq!(catalog.applied_in(log).unwrap(), Some(applied));
        assert_eq!(catalog.applied_in(LogId(1)).unwrap(), None);
        catalog.remove_log(b"f", log).unwrap();
        assert_eq!(catalog.applied_in(log).unwrap(), None);
        assert_eq!(catalog.scan(b"f", Cut::ALL).unwrap(), []);
        assert_eq!(catalog.scan(b"ab", Cut::ALL).unwrap().len(), 1);
        assert!(catalog.applied().unwrap().is_some());
    }

    #[test]
    fn one_error_is_the_last_and_is_told_once_and_an_end_that_panics_is_nobodys_end() {
        let (reports, faults) = (Arc::new(AtomicUsize::new(0)), CatalogFaults::default());
        let tell = Arc::clone(&reports);
        let catalog = Catalog::temporary_with(faults.clone()).unwrap();
        let tell = move || {
            tell.fetch_add(1, Ordering::SeqCst);
        };
        let catalog = catalog.with_failure_callback(Arc::new(tell));
        let mut changes = CatalogWriteBatch::default();
        changes.put(b"a", at(1), Some(b"1"));
        catalog.apply(changes, AppliedPosition::default()).unwrap();
        faults.fail_after(1);
        assert!(catalog.get(b"a", Cut::ALL).unwrap().is_some());
        for _ in 0..3 {
            assert!(catalog.get(b"a", Cut::ALL).is_err());
            assert!(
                catalog.apply(CatalogWriteBatch::default(), AppliedPosition::default()).is_err()
            );
        }
        assert!(catalog.has_failed());
        assert_eq!(reports.load(Ordering::SeqCst), 1);
        drop(catalog);
        faults.set_panic_at_end();
        drop(Catalog::temporary_with(faults).unwrap());
    }

    #[test]
    fn any_text_can_be_part_of_a_key() {
        for text in ["", "a", "a\0b", "\u{1}\0\u{1}", "ü"] {
            let mut key = Vec::new();
            escape(text, &mut key);
            assert!(!key.contains(&0));
            assert_eq!(unescape(&key), text);
        }
    }
}
