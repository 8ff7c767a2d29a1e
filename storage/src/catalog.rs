//! A soft ordered map of versions: what a key's value was at any stamp.
//!
//! Everything here comes from the journal, and each batch of changes carries the journal position
//! that it was made from, in the same atomic write: so the catalog always knows how much of the
//! journal it has seen. Where it knows of something that the journal does not have, or cannot be
//! opened, it is dropped and filled again. This is the only file that knows sled.

use std::io;
use std::path::{Path, PathBuf};

use hlc::{Cut, Hlc};

use crate::disk::is_full;
use crate::log::{LogId, Offset};

/// How many versions are removed at once.
const PRUNED_AT_ONCE: usize = 1000;
/// What a key begins with to belong to the catalog itself.
const META: u8 = 0;
const APPLIED: &[u8] = &[META, b'a'];

/// Why the catalog cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("catalog: {source}. directory={directory}; it can be deleted, and is then rebuilt")]
pub struct CatalogError {
    directory: PathBuf,
    source: sled::Error,
}

/// The place in the journal up to which the catalog has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Applied {
    /// The position of the last entry seen.
    pub position: u64,
    /// Its stamp.
    pub stamp: Hlc,
}

/// The place in a log up to which the catalog has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedIn {
    /// The first offset of the last entry seen.
    pub offset: Offset,
    /// Its stamp.
    pub stamp: Hlc,
}

fn applied_key(log: LogId) -> Vec<u8> {
    [APPLIED, &log.0.to_be_bytes()].concat()
}

/// A key, the stamp of one of its versions, and the value that it has from there on.
pub type Version = (Vec<u8>, Hlc, Vec<u8>);

/// Given a [`Version`] in parts.
pub type Visit<'a, E> = &'a mut dyn FnMut(&[u8], Hlc, &[u8]) -> Result<(), E>;

/// Versions of values, by key and stamp.
pub struct Catalog {
    db: sled::Db,
    directory: PathBuf,
}

/// Changes that become visible together.
#[derive(Default)]
pub struct Changes {
    batch: sled::Batch,
}

impl Changes {
    /// From `stamp` on, the value of `key` is `value`; `None` removes it.
    pub fn put(&mut self, key: &[u8], stamp: Hlc, value: Option<&[u8]>) {
        let mut stored = Vec::with_capacity(1 + value.map_or(0, <[u8]>::len));
        stored.push(u8::from(value.is_some()));
        stored.extend_from_slice(value.unwrap_or_default());
        self.batch.insert(versioned(key, stamp), stored);
    }

    /// The value of `key` is `value`, at every moment, and what it was is forgotten; `None` removes it
    /// without a trace. For what follows from versions under other keys, and is to be found faster.
    pub fn keep(&mut self, key: &[u8], value: Option<&[u8]>) {
        match value {
            Some(_) => self.put(key, Hlc::ZERO, value),
            None => self.batch.remove(versioned(key, Hlc::ZERO)),
        }
    }
}

/// `key ‖ 0 ‖ stamp`, so that the versions of one key stand together in stamp order. Keys hold no
/// zero byte of their own; [`escape`] sees to that.
fn versioned(key: &[u8], stamp: Hlc) -> Vec<u8> {
    assert!(!key.contains(&0) && !key.is_empty(), "keys are escaped: {key:?}");
    [key, &[0], &stamp.bits().to_be_bytes()].concat()
}

/// Text from outside as a part of a key: without zero bytes, and in the same order.
pub fn escape(text: &str, key: &mut Vec<u8>) {
    for byte in text.bytes() {
        match byte {
            0 => key.extend_from_slice(&[1, 1]),
            1 => key.extend_from_slice(&[1, 2]),
            byte => key.push(byte),
        }
    }
}

/// Takes [`escape`] back.
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
    /// Opens the catalog in `directory`; one that cannot be read is dropped and begun again. One for which
    /// the disk has no room stays as it is, and another takes its place for this life.
    ///
    /// # Errors
    /// Even an empty one cannot be made.
    pub fn open(directory: &Path) -> Result<Catalog, CatalogError> {
        let fail = |source| CatalogError { directory: directory.to_owned(), source };
        let open = || {
            sled::Config::new().path(directory).cache_capacity(16 << 20).flush_every_ms(None).open()
        };
        let db = match open() {
            Ok(db) => db,
            Err(sled::Error::Io(error)) if is_full(&error) => {
                tracing::warn!(
                    "the disk is full: the catalog is made from the journal in memory, until the next start"
                );
                return Catalog::temporary();
            }
            Err(error) => {
                tracing::warn!(%error, "the catalog cannot be read; it is rebuilt from the journal");
                remove(directory).map_err(|error| fail(sled::Error::Io(error)))?;
                open().map_err(fail)?
            }
        };
        Ok(Catalog { db, directory: directory.to_owned() })
    }

    /// A catalog that ends with the process.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn temporary() -> Result<Catalog, CatalogError> {
        let fail = |source| CatalogError { directory: PathBuf::new(), source };
        let db = sled::Config::new()
            .temporary(true)
            .cache_capacity(16 << 20)
            .flush_every_ms(None)
            .open()
            .map_err(fail)?;
        Ok(Catalog { db, directory: PathBuf::new() })
    }

    fn fail(&self, source: sled::Error) -> CatalogError {
        CatalogError { directory: self.directory.clone(), source }
    }

    /// How much of the journal it has seen; `None` if nothing.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn applied(&self) -> Result<Option<Applied>, CatalogError> {
        let stored = self.db.get(APPLIED).map_err(|error| self.fail(error))?;
        Ok(stored.and_then(|bytes| {
            let position = u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?);
            let stamp = u64::from_be_bytes(bytes.get(8..16)?.try_into().ok()?);
            Some(Applied { position, stamp: Hlc::from_bits(stamp) })
        }))
    }

    /// Makes `changes`, which come from the journal's entry at `applied`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn apply(&self, mut changes: Changes, applied: Applied) -> Result<(), CatalogError> {
        let place = [applied.position.to_be_bytes(), applied.stamp.bits().to_be_bytes()].concat();
        changes.batch.insert(APPLIED, place);
        self.db.apply_batch(changes.batch).map_err(|error| self.fail(error))
    }

    /// The place in `log` up to which [`Catalog::apply_in`] has seen it; `None` if nothing.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn applied_in(&self, log: LogId) -> Result<Option<AppliedIn>, CatalogError> {
        let stored = self.db.get(applied_key(log)).map_err(|error| self.fail(error))?;
        Ok(stored.and_then(|bytes| {
            let offset = u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?);
            let stamp = u64::from_be_bytes(bytes.get(8..16)?.try_into().ok()?);
            Some(AppliedIn { offset: Offset(offset), stamp: Hlc::from_bits(stamp) })
        }))
    }

    /// Makes `changes`, which come from the entry of `log` at `applied`. Logs that are read back one
    /// after the other each have their own place: a start that is broken off between two of them
    /// misses nothing.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn apply_in(
        &self,
        mut changes: Changes,
        log: LogId,
        applied: AppliedIn,
    ) -> Result<(), CatalogError> {
        let place = [applied.offset.0.to_be_bytes(), applied.stamp.bits().to_be_bytes()].concat();
        changes.batch.insert(applied_key(log), place);
        self.db.apply_batch(changes.batch).map_err(|error| self.fail(error))
    }

    /// Forgets all keys that begin with `prefix`, and how much of `log`, which they came from, it has
    /// seen.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn forget(&self, prefix: &[u8], log: LogId) -> Result<(), CatalogError> {
        // The place first: what is left of the keys is written over when the log is read again.
        self.db.remove(applied_key(log)).map_err(|error| self.fail(error))?;
        self.remove_prefix(prefix)
    }

    /// Makes `changes` that stand for what the journal has no more; how much of the journal was seen
    /// stays as it is.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn fill(&self, changes: Changes) -> Result<(), CatalogError> {
        self.db.apply_batch(changes.batch).map_err(|error| self.fail(error))
    }

    /// Forgets all keys that begin with one of `prefixes`, and how much of the journal, which they came
    /// from, it has seen ([`Catalog::applied`]).
    ///
    /// # Errors
    /// It cannot be written.
    pub fn forget_applied(&self, prefixes: &[u8]) -> Result<(), CatalogError> {
        self.db.remove(APPLIED).map_err(|error| self.fail(error))?;
        prefixes.iter().try_for_each(|prefix| self.remove_prefix(&[*prefix]))
    }

    fn remove_prefix(&self, prefix: &[u8]) -> Result<(), CatalogError> {
        for key in self.db.scan_prefix(prefix).keys() {
            let removed = key.and_then(|key| self.db.remove(key));
            removed.map_err(|error| self.fail(error))?;
        }
        Ok(())
    }

    /// The newest version of `key` in `cut`: its stamp and value. One seek.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn get(&self, key: &[u8], cut: Cut) -> Result<Option<(Hlc, Vec<u8>)>, CatalogError> {
        let range = versioned(key, Hlc::ZERO)..versioned(key, cut.bound());
        let newest = self.db.range(range).next_back().transpose();
        let newest = newest.map_err(|error| self.fail(error))?;
        Ok(newest.and_then(|(key, stored)| {
            let (_, stamp) = split(&key)?;
            (stored.first() == Some(&1)).then(|| (stamp, stored[1..].to_vec()))
        }))
    }

    /// The newest versions in `cut` of all keys that begin with `prefix`, by key. Two seeks a key,
    /// however many versions it has.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn scan(&self, prefix: &[u8], cut: Cut) -> Result<Vec<Version>, CatalogError> {
        let mut found = Vec::new();
        self.visit(prefix, cut, &mut |key, stamp, value| {
            found.push((key.to_vec(), stamp, value.to_vec()));
            Ok::<_, CatalogError>(())
        })?;
        Ok(found)
    }

    /// Hands to `visit` what [`Catalog::scan`] would give, one by one.
    ///
    /// # Errors
    /// It cannot be read, or `visit` fails.
    pub fn visit<E: From<CatalogError>>(
        &self,
        prefix: &[u8],
        cut: Cut,
        visit: Visit<'_, E>,
    ) -> Result<(), E> {
        let mut from = prefix.to_vec();
        while let Some(key) = self.first_key(prefix, &from)? {
            // Behind all versions of the key, which go on with a zero.
            from.clone_from(&key);
            from.push(1);
            if let Some((stamp, value)) = self.get(&key, cut)? {
                visit(&key, stamp, &value)?;
            }
        }
        Ok(())
    }

    /// Whether any key that begins with `prefix` has a value in `cut`.
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

    /// The first key behind `last`, or of all, that begins with `prefix`, whatever versions it has.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn key_behind(
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

    /// The first key, at or behind `from`, that begins with `prefix`, whatever versions it has.
    fn first_key(&self, prefix: &[u8], from: &[u8]) -> Result<Option<Vec<u8>>, CatalogError> {
        // The catalog's own keys stand first.
        let from = if from.is_empty() { &[META + 1][..] } else { from };
        let first = self.db.range(from..).next().transpose().map_err(|error| self.fail(error))?;
        let first = first.filter(|(key, _)| key.starts_with(prefix));
        Ok(first.and_then(|(key, _)| split(&key).map(|(key, _)| key.to_vec())))
    }

    /// Removes, of keys that begin with `prefix`, what no cut with a bound of `horizon` or later shows:
    /// versions below it that another one below it supersedes, and of keys that had no value there, that
    /// they had none. Returns how many versions were removed.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub fn prune(&self, prefix: &[u8], horizon: Hlc) -> Result<u64, CatalogError> {
        let mut pruned = Pruned::default();
        let mut newest: Option<Stored> = None;
        for item in self.db.scan_prefix(prefix) {
            let (key, stored) = item.map_err(|error| self.fail(error))?;
            let next = Stored(key, stored);
            let Some((key, _)) = next.name().filter(|(_, stamp)| *stamp < horizon) else {
                continue;
            };
            match newest.take() {
                Some(newest) if newest.has_key(key) => pruned.superseded.push(newest.0),
                Some(newest) => pruned.ended.extend(newest.removed()),
                None => {}
            }
            newest = Some(next);
            if pruned.superseded.len() + pruned.ended.len() >= PRUNED_AT_ONCE {
                self.remove_pruned(&mut pruned)?;
            }
        }
        pruned.ended.extend(newest.and_then(Stored::removed));
        self.remove_pruned(&mut pruned)?;
        Ok(pruned.count)
    }

    fn remove_pruned(&self, pruned: &mut Pruned) -> Result<(), CatalogError> {
        // In this order: a value never comes back because only its removal is gone.
        for keys in [&mut pruned.superseded, &mut pruned.ended] {
            let mut batch = sled::Batch::default();
            pruned.count += keys.len() as u64;
            keys.drain(..).for_each(|key| batch.remove(key));
            self.db.apply_batch(batch).map_err(|error| self.fail(error))?;
        }
        Ok(())
    }

    /// How many versions there are. It looks at each.
    pub fn version_count(&self) -> usize {
        self.db.iter().keys().flatten().filter(|key| split(key).is_some()).count()
    }

    /// Hands what was changed to the operating system, so that the next start replays less.
    pub fn flush(&self) {
        if let Err(error) = self.db.flush() {
            tracing::warn!(%error, "the catalog was not flushed; the next start replays more");
        }
    }
}

/// A version, as it is stored.
struct Stored(sled::IVec, sled::IVec);

impl Stored {
    /// Its key and its stamp.
    fn name(&self) -> Option<(&[u8], Hlc)> {
        split(&self.0)
    }

    fn has_key(&self, key: &[u8]) -> bool {
        self.name().is_some_and(|(own, _)| own == key)
    }

    /// What it is stored under, if it says that its key has no value.
    fn removed(self) -> Option<sled::IVec> {
        (self.1.first() != Some(&1)).then_some(self.0)
    }
}

/// What is to be removed, and how much has been.
#[derive(Default)]
struct Pruned {
    superseded: Vec<sled::IVec>,
    ended: Vec<sled::IVec>,
    count: u64,
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
    use hlc::SysTime;

    use super::*;

    fn at(ms: u64) -> Hlc {
        Hlc::at(SysTime(ms))
    }

    fn filled() -> Catalog {
        let catalog = Catalog::temporary().unwrap();
        let mut changes = Changes::default();
        changes.put(b"a", at(10), Some(b"1"));
        changes.put(b"a", at(20), Some(b"2"));
        changes.put(b"a", at(30), None);
        changes.put(b"ab", at(15), Some(b"x"));
        catalog.apply(changes, Applied { position: 8, stamp: at(30) }).unwrap();
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
    fn a_scan_finds_each_key_once_and_only_those_that_had_a_value() {
        let catalog = filled();
        let keys = |ms| -> Vec<Vec<u8>> {
            let found = catalog.scan(b"a", Cut::before(SysTime(ms))).unwrap();
            found.into_iter().map(|(key, ..)| key).collect()
        };
        assert_eq!(keys(12), [b"a".to_vec()]);
        assert_eq!(keys(25), [b"a".to_vec(), b"ab".to_vec()]);
        assert_eq!(keys(99), [b"ab".to_vec()]);
    }

    #[test]
    fn a_scan_passes_from_key_to_key_whatever_bytes_follow_and_however_many_versions_there_are() {
        let catalog = Catalog::temporary().unwrap();
        let mut changes = Changes::default();
        let keys: [&[u8]; 6] = [b"a", b"a\x01", b"a\x01\x01", b"a\x02", b"aa", b"b"];
        for key in keys {
            for ms in 0..50 {
                changes.put(key, at(ms), Some(&[ms as u8]));
            }
        }
        changes.keep(b"c", Some(b"1"));
        changes.keep(b"ca", Some(b"2"));
        catalog.apply(changes, Applied::default()).unwrap();
        let scan = |prefix: &[u8], ms| -> Vec<(Vec<u8>, Vec<u8>)> {
            let found = catalog.scan(prefix, Cut::before(SysTime(ms))).unwrap();
            found.into_iter().map(|(key, _, value)| (key, value)).collect()
        };
        let expected: Vec<_> = keys[..5].iter().map(|key| (key.to_vec(), vec![29])).collect();
        assert_eq!(scan(b"a", 30), expected);
        assert_eq!(scan(b"a\x01", 30), expected[1..3]);
        assert_eq!(scan(b"a", 0), []);
        assert!(!catalog.has_any(b"a", Cut::before(SysTime(0))).unwrap());
        assert!(catalog.has_any(b"a", Cut::before(SysTime(1))).unwrap());
        assert_eq!(scan(b"c", 30).len(), 2);
        let mut changes = Changes::default();
        changes.keep(b"c", None);
        catalog.apply(changes, Applied::default()).unwrap();
        assert_eq!(scan(b"c", 30), [(b"ca".to_vec(), b"2".to_vec())]);
    }

    #[test]
    fn pruning_leaves_every_cut_from_the_horizon_on_as_it_was() {
        for horizon in 5..40 {
            let catalog = filled();
            let mut changes = Changes::default();
            changes.put(b"ac", at(12), None);
            changes.put(b"ac", at(35), Some(b"3"));
            catalog.apply(changes, Applied { position: 9, stamp: at(35) }).unwrap();
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
        let mut changes = Changes::default();
        for ms in 0..PRUNED_AT_ONCE as u64 * 3 {
            changes.put(b"k-kept", at(ms), Some(b"v"));
            changes.put(b"k-removed", at(ms), (ms % 7 != 0).then_some(b"v"));
        }
        changes.put(b"k-removed", at(9999), None);
        catalog.apply(changes, Applied { position: 1, stamp: at(9999) }).unwrap();
        catalog.prune(b"k", at(9998)).unwrap();
        assert_eq!(catalog.version_count(), 3);
        assert_eq!(catalog.prune(b"k", at(10_000)).unwrap(), 2);
        let kept: Vec<_> = catalog.scan(b"k", Cut::ALL).unwrap();
        assert_eq!(kept, [(b"k-kept".to_vec(), at(PRUNED_AT_ONCE as u64 * 3 - 1), b"v".to_vec())]);
    }

    #[test]
    fn it_knows_how_much_of_the_journal_it_has_seen() {
        let applied = filled().applied().unwrap();
        assert_eq!(applied, Some(Applied { position: 8, stamp: at(30) }));
    }

    #[test]
    fn each_log_has_its_own_place_and_can_be_forgotten_alone() {
        let (catalog, log) = (filled(), LogId(u64::MAX));
        assert_eq!(catalog.applied_in(log).unwrap(), None);
        let applied = AppliedIn { offset: Offset(3), stamp: at(40) };
        let mut changes = Changes::default();
        changes.put(b"fa", at(40), Some(b"1"));
        catalog.apply_in(changes, log, applied).unwrap();
        assert_eq!(catalog.applied_in(log).unwrap(), Some(applied));
        assert_eq!(catalog.applied_in(LogId(1)).unwrap(), None);
        catalog.forget(b"f", log).unwrap();
        assert_eq!(catalog.applied_in(log).unwrap(), None);
        assert_eq!(catalog.scan(b"f", Cut::ALL).unwrap(), []);
        assert_eq!(catalog.scan(b"ab", Cut::ALL).unwrap().len(), 1);
        assert!(catalog.applied().unwrap().is_some());
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
