//! Writing the manifest: a snapshot, then edits after it, each synced before it counts.

use super::edit::{ManifestEdit, PAGE_BYTES};
use super::{MANIFEST_FILE, Manifest};
use crate::disk::Disk;
use crate::error::StorageError;
use crate::storage_file::{StorageFile, remove_file, rename_file};

const NEW_FILE: &str = "manifest.new";
/// Edits may take this many bytes more than the snapshot before them; then there is another
/// snapshot. So the bytes written stay in proportion to what changes.
const EDIT_BYTES: u64 = 64 << 10;

/// Appends edits to the manifest.
#[derive(Default)]
pub(crate) struct ManifestWriter {
    /// The file that edits are appended to. `None` before the first write, and after one that
    /// failed: a file whose sync failed is never synced again.
    appended: Option<ManifestFile>,
}

struct ManifestFile {
    file: StorageFile,
    /// The sequence number of its snapshot, and its length.
    snapshot: u64,
    snapshot_bytes: u64,
    edit_bytes: u64,
}

impl ManifestWriter {
    /// Puts `edit` of `current` on stable storage, as write `sequence`. If that fails, the disk has
    /// the manifest either with or without the edit.
    pub(crate) fn write(
        &mut self,
        disk: &dyn Disk,
        current: &Manifest,
        edit: &ManifestEdit,
        sequence: u64,
    ) -> Result<(), StorageError> {
        let is_outgrown = |file: &ManifestFile| file.edit_bytes > file.snapshot_bytes + EDIT_BYTES;
        match self.appended.take().filter(|file| !is_outgrown(file)) {
            Some(file) => self.appended = Some(file.append(edit, sequence)?),
            None => {
                let mut next = Manifest { sequence, ..current.clone() };
                next.apply(edit);
                self.write_snapshot(disk, &next)?;
            }
        }
        Ok(())
    }

    /// Puts the whole manifest on stable storage, in place of the previous file. If that fails,
    /// either of them may be found later.
    pub(crate) fn write_snapshot(
        &mut self,
        disk: &dyn Disk,
        next: &Manifest,
    ) -> Result<(), StorageError> {
        self.appended = None;
        let bytes = next.encode();
        let file = replace(disk, &bytes).map_err(|error| {
            // A partial file takes space that may be what is missing.
            let _ = remove_file(disk, NEW_FILE);
            with_size(error, "write", bytes.len())
        })?;
        let (snapshot, snapshot_bytes) = (next.sequence, bytes.len() as u64);
        self.appended = Some(ManifestFile { file, snapshot, snapshot_bytes, edit_bytes: 0 });
        Ok(())
    }
}

impl ManifestFile {
    fn append(mut self, edit: &ManifestEdit, sequence: u64) -> Result<ManifestFile, StorageError> {
        let pages = edit.encode(self.snapshot, self.edit_bytes / PAGE_BYTES as u64, sequence);
        let at = self.snapshot_bytes + self.edit_bytes;
        let written = self.file.write_at(&pages, at);
        let synced = written.and_then(|()| self.file.sync());
        synced.map_err(|error| with_size(error, "append to", pages.len()))?;
        self.edit_bytes += pages.len() as u64;
        Ok(self)
    }
}

fn with_size(error: StorageError, action: &str, need: usize) -> StorageError {
    error.during(&format!("{action} the manifest, which takes {need} bytes"))
}

fn replace(disk: &dyn Disk, bytes: &[u8]) -> Result<StorageFile, StorageError> {
    let file = StorageFile::create_or_replace(disk, NEW_FILE)?;
    file.write_at(bytes, 0)?;
    file.sync()?;
    rename_file(disk, NEW_FILE, MANIFEST_FILE)?;
    disk.sync_directory()?;
    Ok(file.with_name(MANIFEST_FILE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::MemoryDisk;
    use crate::manifest::MANIFEST_FILE;
    use crate::manifest::edit::ManifestChange;
    use crate::manifest::tests::manifest;

    /// An update costs what it changes, and the file stays about as long as its content.
    #[test]
    fn edits_are_appended_until_they_outgrow_the_snapshot_and_none_is_lost() {
        let (disk, mut writer) = (MemoryDisk::new(), ManifestWriter::default());
        let mut current = manifest();
        let (mut rewritten, mut before) = (0, 0);
        for nth in 1..1000 {
            let edit = ManifestEdit(vec![ManifestChange::IndexedTo(current.indexed_to + 8)]);
            // Sequence numbers may have gaps.
            let sequence = current.sequence + 1 + nth % 2;
            writer.write(&disk, &current, &edit, sequence).unwrap();
            current.apply(&edit);
            current.sequence = sequence;
            assert_eq!(Manifest::read(&disk.after_crash(|_| 0)).unwrap(), current);
            let length = disk.bytes(MANIFEST_FILE).len() as u64;
            let snapshot = current.encode().len() as u64;
            assert!(length <= 2 * snapshot + EDIT_BYTES + 4096, "{length} of {snapshot}");
            rewritten += u64::from(length < before);
            before = length;
        }
        assert!((1..50).contains(&rewritten), "{rewritten}");
    }
}
