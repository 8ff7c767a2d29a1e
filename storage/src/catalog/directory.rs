//! The place of catalogs: each is in a directory of its own, named by a number, and the newest
//! counts.
//!
//! A catalog that fails is not used any more, and another one is made next to it. So a start may
//! find one that is incomplete: it knows how much of the journal it has applied, and continues from
//! there.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use super::{Catalog, CatalogError, CatalogFaults, remove};

#[derive(Debug)]
pub struct CatalogDirectory {
    /// `None`: in memory.
    path: Option<PathBuf>,
    faults: CatalogFaults,
    /// The largest number that was assigned. None is reused, because a failed catalog may still
    /// remove its directory.
    last: AtomicU64,
}

impl CatalogDirectory {
    /// Catalogs under `path`, or in memory.
    pub fn new(path: Option<PathBuf>, faults: CatalogFaults) -> CatalogDirectory {
        CatalogDirectory { path, faults, last: AtomicU64::new(0) }
    }

    pub fn is_on_disk(&self) -> bool {
        self.path.is_some()
    }

    /// The newest catalog, or an empty one.
    ///
    /// # Errors
    /// Not even an empty one can be created there.
    pub fn open_latest(&self) -> Result<Catalog, CatalogError> {
        self.open(|last| last.max(1))
    }

    /// An empty catalog, in place of all that exist. Users that have one of them open continue with
    /// it.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn open_new(&self) -> Result<Catalog, CatalogError> {
        self.open(|last| last + 1)
    }

    /// An empty catalog in memory.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn open_in_memory(&self) -> Result<Catalog, CatalogError> {
        Catalog::temporary_with(self.faults.clone())
    }

    fn open(&self, number: impl FnOnce(u64) -> u64) -> Result<Catalog, CatalogError> {
        let Some(path) = &self.path else { return self.open_in_memory() };
        let fail = |error: io::Error| CatalogError::failed(Some(path), &error.to_string());
        let number = self.remove_all_but(number).map_err(fail)?;
        Catalog::open_with(&path.join(number.to_string()), self.faults.clone())
    }

    /// Removes all catalogs but one: `number` computes its number from the last one.
    fn remove_all_but(&self, number: impl FnOnce(u64) -> u64) -> io::Result<u64> {
        let Some(path) = &self.path else { return Ok(0) };
        fs::create_dir_all(path)?;
        let entries = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
        let number_of =
            |entry: &fs::DirEntry| entry.file_name().to_str().and_then(|name| name.parse().ok());
        let newest = entries.iter().filter_map(number_of).max().unwrap_or(0);
        let number = number(newest.max(self.last.load(Ordering::Relaxed)));
        self.last.store(number, Ordering::Relaxed);
        let is_old = |entry: &&fs::DirEntry| match number_of(entry) {
            Some(other) => other != number,
            None => is_legacy_file(entry),
        };
        // A failed catalog may be removing its own directory just now. The next time removes the
        // rest.
        for entry in entries.iter().filter(is_old) {
            let _ = if entry.file_type()?.is_dir() {
                remove(&entry.path())
            } else {
                fs::remove_file(entry.path())
            };
        }
        Ok(number)
    }
}

/// Returns true if a file belongs to a catalog directly in the directory, where catalogs once were.
/// Other files may be there, as in the root of a file system, and are not ours.
fn is_legacy_file(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    let Some(name) = name.to_str() else { return false };
    ["db", "conf", "blobs"].contains(&name) || name.starts_with("snap.")
}

#[cfg(test)]
mod tests {
    use hlc::{Cut, Hlc};

    use super::super::{AppliedPosition, CatalogWriteBatch};
    use super::*;

    fn path(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("freezeframe-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    fn fill(catalog: &Catalog) {
        let mut changes = CatalogWriteBatch::default();
        changes.put(b"a", Hlc::from_bits(1), Some(b"1"));
        catalog.apply(changes, AppliedPosition::default()).unwrap();
        catalog.sync().unwrap();
    }

    #[test]
    fn the_last_catalog_is_found_again_and_a_new_one_takes_its_place_while_it_is_open() {
        let path = path("catalogs");
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("db"), b"of an older version").unwrap();
        let directory = CatalogDirectory::new(Some(path.clone()), CatalogFaults::default());
        fill(&directory.open_latest().unwrap());
        assert!(!path.join("db").exists());
        let last = directory.open_latest().unwrap();
        assert!(last.get(b"a", Cut::ALL).unwrap().is_some());
        let new = directory.open_new().unwrap();
        assert!(new.get(b"a", Cut::ALL).unwrap().is_none());
        assert!(last.get(b"a", Cut::ALL).unwrap().is_some(), "who has it goes on");
        fill(&new);
        drop((last, new));
        assert!(directory.open_latest().unwrap().get(b"a", Cut::ALL).unwrap().is_some());
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        let _ = fs::remove_dir_all(&path);
    }

    #[test]
    fn one_that_is_still_being_closed_is_waited_for_and_not_dropped() {
        let path = path("closing");
        let directory = CatalogDirectory::new(Some(path.clone()), CatalogFaults::default());
        fill(&directory.open_latest().unwrap());
        let closing = fs::File::open(path.join("1/db")).unwrap();
        // The last thread of the one that was dropped may still have its file.
        closing.lock().unwrap();
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| directory.open_latest().unwrap());
            // Time to fail in: without a wait it would be dropped here.
            std::thread::sleep(std::time::Duration::from_millis(50));
            drop(closing);
            assert!(opened.join().unwrap().get(b"a", Cut::ALL).unwrap().is_some());
        });
        let _ = fs::remove_dir_all(&path);
    }

    #[test]
    fn one_that_failed_leaves_nothing_that_a_start_could_find() {
        let (path, faults) = (path("failed"), CatalogFaults::default());
        let directory = CatalogDirectory::new(Some(path.clone()), faults.clone());
        let catalog = directory.open_latest().unwrap();
        fill(&catalog);
        faults.set_full(true);
        assert!(catalog.apply(CatalogWriteBatch::default(), AppliedPosition::default()).is_err());
        assert!(directory.open_new().is_err());
        assert!(directory.open_in_memory().is_ok());
        faults.set_full(false);
        drop(catalog);
        assert!(directory.open_new().unwrap().get(b"a", Cut::ALL).unwrap().is_none());
        let _ = fs::remove_dir_all(&path);
    }
}
