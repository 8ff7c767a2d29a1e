//! A directory that is removed when it is dropped.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};

pub(crate) struct BenchDirectory(PathBuf);

impl BenchDirectory {
    pub(crate) fn new(within: &Path, name: &str) -> Result<BenchDirectory> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = within.join(format!("freezeframe-bench-{}-{next}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(BenchDirectory(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for BenchDirectory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("warning: {} was not removed: {error}", self.0.display());
        }
    }
}
