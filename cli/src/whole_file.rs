//! A file that appears under its name only when it is whole.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// A file that is being written, beside the place where it will be. An interrupted command leaves it, and
/// the next one writes it anew.
#[derive(Debug)]
pub(crate) struct WholeFile {
    path: PathBuf,
    temporary: PathBuf,
    is_published: bool,
}

impl WholeFile {
    /// Begins a file, and returns it to write to.
    pub(crate) fn create(path: &Path) -> anyhow::Result<(WholeFile, File)> {
        let name = path.file_name().with_context(|| format!("{} is not a file", path.display()))?;
        let mut temporary = name.to_owned();
        temporary.push(".partial");
        let temporary = path.with_file_name(temporary);
        let doing = || format!("create {}", temporary.display());
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&temporary);
        let file = file.with_context(doing)?;
        ensure!(
            lock(&file, &temporary).with_context(doing)?,
            "{} is being written by another process",
            temporary.display()
        );
        file.set_len(0).with_context(doing)?;
        Ok((WholeFile { path: path.to_owned(), temporary, is_published: false }, file))
    }

    /// Gives the file its name, once it is on stable storage. It replaces a file of that name.
    pub(crate) fn publish(mut self, file: &File) -> anyhow::Result<()> {
        let publish = || {
            file.sync_all()?;
            std::fs::rename(&self.temporary, &self.path)?;
            let directory = self.path.parent().filter(|parent| *parent != Path::new(""));
            File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
        };
        publish().with_context(|| format!("write {}", self.path.display()))?;
        self.is_published = true;
        Ok(())
    }
}

/// Locks a temporary file. Returns false if another process has it.
fn lock(file: &File, temporary: &Path) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // A process that had it since it was opened may have published it.
    let here = file.metadata()?;
    Ok(std::fs::metadata(temporary)
        .is_ok_and(|there| (there.dev(), there.ino()) == (here.dev(), here.ino())))
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if !self.is_published {
            // It says by its name that it is not whole.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_has_its_name_only_once_it_is_whole() {
        let directory = std::env::temp_dir().join(format!("whole-file-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (path, partial) = (directory.join("t.jsonl"), directory.join("t.jsonl.partial"));
        // The rest of an interrupted export.
        std::fs::write(&partial, "a longer rest").unwrap();
        let (whole, mut file) = WholeFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        assert!(!path.exists() && partial.exists());
        let busy = WholeFile::create(&path).unwrap_err().to_string();
        assert!(busy.contains("another process"), "{busy}");
        let late = File::options().write(true).open(&partial).unwrap();
        assert!(!lock(&late, &partial).unwrap());
        whole.publish(&file).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        drop(file);
        assert!(!lock(&late, &partial).unwrap(), "a published file would be truncated");
        drop(late);
        drop(WholeFile::create(&path).unwrap());
        assert_eq!((std::fs::read(&path).unwrap(), partial.exists()), (b"new".to_vec(), false));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
