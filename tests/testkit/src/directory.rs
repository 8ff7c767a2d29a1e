//! A temporary directory.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory of one test. Dropping it removes the directory.
#[derive(Debug)]
pub struct TestDirectory(PathBuf);

impl TestDirectory {
    /// A new, empty directory.
    ///
    /// # Panics
    /// It cannot be created.
    pub fn new() -> TestDirectory {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        loop {
            let nth = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("freezeframe-test-{}-{nth}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match std::fs::create_dir(&path) {
                Ok(()) => return TestDirectory(path),
                // An earlier process with this id was killed and left it.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Default for TestDirectory {
    fn default() -> TestDirectory {
        TestDirectory::new()
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
