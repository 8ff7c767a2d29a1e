//! Renames: each is one entry, whatever it replaces or exchanges.

use hlc::Cut;

use super::FileSystem;
use super::change::FileChangeGuard;
use super::error::FileError;
use super::event::{FileChange, FileKind, Inode};
use super::names::FileNames;
use super::path::{FileLocation, ResolvedName};

/// The rule for an existing file of the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced, if POSIX allows it.
    Replace,
    /// It must not exist.
    NoReplace,
    /// It must exist, and gets the old name.
    Exchange,
}

struct RenameSource {
    inode: Inode,
    is_directory: bool,
}

impl FileSystem {
    /// Renames, and replaces what has the new name, by the rules of POSIX. The rename is atomic.
    ///
    /// # Errors
    /// The old name does not exist, the new name cannot be replaced, or a directory would be moved
    /// into itself; or the disk fails.
    pub async fn rename<'a>(
        &self,
        from: impl Into<FileLocation<'a>>,
        to: impl Into<FileLocation<'a>>,
    ) -> Result<(), FileError> {
        self.rename_to(from, to, RenameMode::Replace).await
    }

    /// [`FileSystem::rename`] with a choice of what happens to an existing file of the new name.
    ///
    /// # Errors
    /// As [`FileSystem::rename`]; or the new name exists but must not, or does not exist but must.
    pub async fn rename_to<'a>(
        &self,
        from: impl Into<FileLocation<'a>>,
        to: impl Into<FileLocation<'a>>,
        target: RenameMode,
    ) -> Result<(), FileError> {
        let (from, to) = (from.into(), to.into());
        let (changing, names) = self.lock_changes().await?;
        let (old, new) = (names.resolve_parent(from)?, names.resolve_parent(to)?);
        let missing = || FileError::NotFound(from.display());
        let moved = rename_source(names, &old)?.ok_or_else(missing)?;
        let replaced = self::rename_source(names, &new)?;
        if target == RenameMode::NoReplace && replaced.is_some() {
            return Err(FileError::Exists(to.display()));
        }
        check_not_descendant(names, &moved, new.parent)?;
        if target == RenameMode::Exchange {
            let other = replaced.ok_or_else(|| FileError::NotFound(to.display()))?;
            check_not_descendant(names, &other, old.parent)?;
            let inodes = [(&new, Some(moved.inode)), (&old, Some(other.inode))];
            return self.append_names(changing, inodes).await;
        }
        match &replaced {
            Some(replaced) if replaced.inode == moved.inode => return Ok(()),
            Some(replaced) => check_replaceable(names, &moved, replaced, to)?,
            None => {}
        }
        self.append_names(changing, [(&new, Some(moved.inode)), (&old, None)]).await
    }

    async fn append_names(
        &self,
        changing: FileChangeGuard,
        places: [(&ResolvedName<'_>, Option<Inode>); 2],
    ) -> Result<(), FileError> {
        let changes = places.map(|(place, inode)| FileChange::Named {
            parent: place.parent,
            name: place.name.to_vec(),
            inode,
        });
        self.append_changes(changes.into(), changing).await.map(drop)
    }
}

fn rename_source(
    names: &FileNames,
    place: &ResolvedName<'_>,
) -> Result<Option<RenameSource>, FileError> {
    let Some(inode) = names.lookup(place.parent, place.name, Cut::ALL)? else { return Ok(None) };
    let is_directory = names.record(inode, Cut::ALL)?.1.kind == FileKind::Directory;
    Ok(Some(RenameSource { inode, is_directory }))
}

fn check_replaceable(
    names: &FileNames,
    moved: &RenameSource,
    replaced: &RenameSource,
    to: FileLocation<'_>,
) -> Result<(), FileError> {
    match (moved.is_directory, replaced.is_directory) {
        (true, false) => Err(FileError::NotDirectory(to.display())),
        (false, true) => Err(FileError::IsDirectory(to.display())),
        (true, true) if !names.is_empty(replaced.inode)? => Err(FileError::NotEmpty(to.display())),
        _ => Ok(()),
    }
}

/// Checks that a directory does not move into itself or into one of its descendants.
fn check_not_descendant(
    names: &FileNames,
    moved: &RenameSource,
    parent: Inode,
) -> Result<(), FileError> {
    let mut at = parent;
    while moved.is_directory && at != Inode::ROOT && at != moved.inode {
        at = names.record(at, Cut::ALL)?.1.parent;
    }
    if moved.is_directory && at == moved.inode {
        return Err(FileError::Invalid("a directory cannot come to lie in itself"));
    }
    Ok(())
}
