//! The node's catalog, which outlives it: on a real directory, because sled needs one. An
//! incarnation finds what the previous one left, which after a power loss may be ahead of the
//! journal; or what an earlier one left; or nothing.

use std::path::{Path, PathBuf};
use std::{fs, io};

use testkit::directory::TestDirectory;
use testkit::rng::SeededRng;

/// The number of catalogs of earlier incarnations that are kept.
const KEPT_MAX: u64 = 5;

/// The catalog that an incarnation finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CatalogAge {
    /// The one that the last incarnation left.
    Latest,
    /// One that an earlier incarnation left.
    Stale,
    Missing,
}

/// The catalogs of all incarnations of a world, each in a directory of its own.
#[derive(Debug)]
pub(crate) struct CatalogDirectories {
    root: TestDirectory,
    incarnations: u64,
}

impl CatalogDirectories {
    pub(crate) fn new() -> CatalogDirectories {
        CatalogDirectories { root: TestDirectory::new(), incarnations: 0 }
    }

    fn directory_of(&self, life: u64) -> PathBuf {
        self.root.path().join(life.to_string())
    }

    /// The directory for the next incarnation, and what is in it.
    ///
    /// # Errors
    ///
    /// The directory cannot be created.
    pub(crate) fn next(&mut self, rng: &mut SeededRng) -> io::Result<(PathBuf, CatalogAge)> {
        let (left, back) = match rng.below(6) {
            0 => (CatalogAge::Missing, None),
            1..3 => (CatalogAge::Stale, Some(rng.between(2, KEPT_MAX))),
            _ => (CatalogAge::Latest, Some(1)),
        };
        self.incarnations += 1;
        let directory = self.directory_of(self.incarnations);
        let from =
            back.and_then(|back| self.incarnations.checked_sub(back)).filter(|from| *from > 0);
        if let Some(gone) = self.incarnations.checked_sub(KEPT_MAX + 1) {
            let _ = fs::remove_dir_all(self.directory_of(gone));
        }
        match from {
            Some(from) => copy(&self.directory_of(from), &directory).map(|()| (directory, left)),
            None => Ok((directory, CatalogAge::Missing)),
        }
    }
}

/// Copies a catalog. The previous incarnation may still have it open, and a failed catalog may be
/// in removal.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    // An incarnation may have ended before it had one.
    let entries = match fs::read_dir(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let to = to.join(entry.file_name());
        let copied = if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)
        } else {
            fs::copy(entry.path(), to).map(drop)
        };
        match copied {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            copied => copied?,
        }
    }
    Ok(())
}
