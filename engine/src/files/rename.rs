//! Names that move: one entry, whatever it replaces or exchanges.

use hlc::Cut;

use super::FileSystem;
use super::change::FileChangeGuard;
use super::error::FileError;
use super::event::{FileChange, FileKind, Inode};
use super::names::FileNames;
use super::path::{FileLocation, ResolvedName};

/// What may have the new name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Anything that it can replace, as POSIX has it.
    Replace,
    /// Nothing.
    NoReplace,
    /// Something, which gets the old name.
    Exchange,
}

/// What a rename moves.
struct RenameSource {
    inode: Inode,
    is_directory: bool,
}

impl FileSystem {
    /// Renames, in place of what has the new name, as POSIX has it. It happens at one moment.
    ///
    /// # Errors
    /// There is nothing there, or what has the new name cannot be replaced by it, or a directory would
    /// come to lie in itself; or the disk fails.
    pub async fn rename<'a>(
        &self,
        from: impl Into<FileLocation<'a>>,
        to: impl Into<FileLocation<'a>>,
    ) -> Result<(), FileError> {
        self.rename_to(from, to, RenameMode::Replace).await
    }

    /// [`FileSystem::rename`], where the caller says what may become of what has the new name.
    ///
    /// # Errors
    /// As there; or there is something where nothing was to be, or nothing to exchange with.
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
        let there = self::rename_source(names, &new)?;
        if target == RenameMode::NoReplace && there.is_some() {
            return Err(FileError::Exists(to.display()));
        }
        check_not_descendant(names, &moved, new.parent)?;
        if target == RenameMode::Exchange {
            let there = there.ok_or_else(|| FileError::NotFound(to.display()))?;
            check_not_descendant(names, &there, old.parent)?;
            let inodes = [(&new, Some(moved.inode)), (&old, Some(there.inode))];
            return self.append_names(changing, inodes).await;
        }
        match &there {
            Some(there) if there.inode == moved.inode => return Ok(()),
            Some(there) => check_replaceable(names, &moved, there, to)?,
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
    there: &RenameSource,
    to: FileLocation<'_>,
) -> Result<(), FileError> {
    match (moved.is_directory, there.is_directory) {
        (true, false) => Err(FileError::NotDirectory(to.display())),
        (false, true) => Err(FileError::IsDirectory(to.display())),
        (true, true) if !names.is_empty(there.inode)? => Err(FileError::NotEmpty(to.display())),
        _ => Ok(()),
    }
}

/// A directory cannot move to `parent` if that is itself or in it.
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
