//! Names that move: one entry, whatever it replaces or exchanges.

use hlc::Cut;

use super::Files;
use super::change::Changing;
use super::error::FileError;
use super::event::{Change, FileKind, Inode};
use super::names::Names;
use super::path::{At, Place};

/// What may have the new name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Anything that it can replace, as POSIX has it.
    Replaced,
    /// Nothing.
    Absent,
    /// Something, which gets the old name.
    Exchanged,
}

/// What a rename moves.
struct Moved {
    inode: Inode,
    is_directory: bool,
}

impl Files {
    /// Renames, in place of what has the new name, as POSIX has it. It happens at one moment.
    ///
    /// # Errors
    /// There is nothing there, or what has the new name cannot be replaced by it, or a directory would
    /// come to lie in itself; or the disk fails.
    pub async fn rename<'a>(
        &self,
        from: impl Into<At<'a>>,
        to: impl Into<At<'a>>,
    ) -> Result<(), FileError> {
        self.rename_to(from, to, Target::Replaced).await
    }

    /// [`Files::rename`], where the caller says what may become of what has the new name.
    ///
    /// # Errors
    /// As there; or there is something where nothing was to be, or nothing to exchange with.
    pub async fn rename_to<'a>(
        &self,
        from: impl Into<At<'a>>,
        to: impl Into<At<'a>>,
        target: Target,
    ) -> Result<(), FileError> {
        let (from, to) = (from.into(), to.into());
        let (changing, names) = self.changing().await?;
        let (old, new) = (names.place(from)?, names.place(to)?);
        let missing = || FileError::NotFound(from.shown());
        let moved = moved(names, &old)?.ok_or_else(missing)?;
        let there = self::moved(names, &new)?;
        if target == Target::Absent && there.is_some() {
            return Err(FileError::Exists(to.shown()));
        }
        check_below(names, &moved, new.parent)?;
        if target == Target::Exchanged {
            let there = there.ok_or_else(|| FileError::NotFound(to.shown()))?;
            check_below(names, &there, old.parent)?;
            let inodes = [(&new, Some(moved.inode)), (&old, Some(there.inode))];
            return self.name_both(changing, inodes).await;
        }
        match &there {
            Some(there) if there.inode == moved.inode => return Ok(()),
            Some(there) => check_replaceable(names, &moved, there, to)?,
            None => {}
        }
        self.name_both(changing, [(&new, Some(moved.inode)), (&old, None)]).await
    }

    async fn name_both(
        &self,
        changing: Changing,
        places: [(&Place<'_>, Option<Inode>); 2],
    ) -> Result<(), FileError> {
        let changes = places.map(|(place, inode)| Change::Named {
            parent: place.parent,
            name: place.name.to_vec(),
            inode,
        });
        self.change(changes.into(), changing).await.map(drop)
    }
}

fn moved(names: &Names, place: &Place<'_>) -> Result<Option<Moved>, FileError> {
    let Some(inode) = names.lookup(place.parent, place.name, Cut::ALL)? else { return Ok(None) };
    let is_directory = names.record(inode, Cut::ALL)?.1.kind == FileKind::Directory;
    Ok(Some(Moved { inode, is_directory }))
}

fn check_replaceable(
    names: &Names,
    moved: &Moved,
    there: &Moved,
    to: At<'_>,
) -> Result<(), FileError> {
    match (moved.is_directory, there.is_directory) {
        (true, false) => Err(FileError::NotDirectory(to.shown())),
        (false, true) => Err(FileError::IsDirectory(to.shown())),
        (true, true) if !names.is_empty(there.inode)? => Err(FileError::NotEmpty(to.shown())),
        _ => Ok(()),
    }
}

/// A directory cannot move to `parent` if that is itself or in it.
fn check_below(names: &Names, moved: &Moved, parent: Inode) -> Result<(), FileError> {
    let mut at = parent;
    while moved.is_directory && at != Inode::ROOT && at != moved.inode {
        at = names.record(at, Cut::ALL)?.1.parent;
    }
    if moved.is_directory && at == moved.inode {
        return Err(FileError::Invalid("a directory cannot come to lie in itself"));
    }
    Ok(())
}
