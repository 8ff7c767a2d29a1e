//! Changing names and attributes: each change looks at the names, one at a time, and is one entry of the
//! files' log.

use std::sync::Arc;

use hlc::{Cut, Hlc};
use storage::{Appended, Durability, Payload};
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::Files;
use super::attributes::Permissions;
use super::contents::append_of;
use super::error::FileError;
use super::event::{
    self, Change, FILES_LOG, FileEvent, FileKind, Inode, KIND_FILE_EVENT, Now, SetAttributes,
};
use super::file::File;
use super::names::Names;
use super::path::{At, Place};
use crate::engine::flatten;

pub(super) type Changing = OwnedMutexGuard<()>;

impl Files {
    pub(super) async fn changing(&self) -> Result<(Changing, &Names), FileError> {
        let changing = Arc::clone(&self.0.changing).lock_owned().await;
        Ok((changing, self.names(Cut::ALL)?))
    }

    /// Appends changes, which happen at once. They are in the log when this returns, and on stable
    /// storage after the next [`Files::sync`].
    pub(super) async fn change(
        &self,
        changes: Vec<Change>,
        changing: Changing,
    ) -> Result<Hlc, FileError> {
        let payload = Payload::plain(FileEvent { changes }.encode().into());
        let append = append_of(FILES_LOG, KIND_FILE_EVENT, payload, None);
        let (sender, receiver) = oneshot::channel();
        self.0.store.append(vec![append], Durability::Written, move |mut results| {
            // The next one may look now: what this one did is in the log.
            drop(changing);
            let _ = sender.send(results.pop());
        });
        let appended = received(receiver.await)?;
        self.0.names.catch_up()?;
        Ok(appended.stamp)
    }

    /// Makes an inode and gives it a name.
    async fn make(
        &self,
        at: At<'_>,
        made: impl FnOnce(Inode) -> Vec<Change>,
    ) -> Result<Inode, FileError> {
        let (changing, names) = self.changing().await?;
        let Place { parent, name } = names.place(at)?;
        if names.lookup(parent, name, Cut::ALL)?.is_some() {
            return Err(FileError::Exists(at.shown()));
        }
        // Nobody else appends to that log before this is done.
        let inode = Inode::made_at(names.end());
        let mut changes = made(inode);
        changes.push(Change::Named { parent, name: name.to_vec(), inode: Some(inode) });
        self.change(changes, changing).await?;
        Ok(inode)
    }

    /// Makes a file.
    ///
    /// # Errors
    /// The name is taken or cannot be, or there is no such directory; or the disk fails.
    pub async fn create<'a>(
        &self,
        at: impl Into<At<'a>>,
        permissions: impl Into<Permissions>,
    ) -> Result<File, FileError> {
        let inode = self.make_node(at, FileKind::File, permissions, 0).await?;
        self.hold(inode)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As [`Files::create`].
    pub async fn mkdir<'a>(
        &self,
        at: impl Into<At<'a>>,
        permissions: impl Into<Permissions>,
    ) -> Result<Inode, FileError> {
        self.make_node(at, FileKind::Directory, permissions, 0).await
    }

    /// Makes anything but a symbolic link.
    ///
    /// # Errors
    /// As [`Files::create`].
    pub async fn make_node<'a>(
        &self,
        at: impl Into<At<'a>>,
        kind: FileKind,
        permissions: impl Into<Permissions>,
        device: u64,
    ) -> Result<Inode, FileError> {
        let permissions = permissions.into();
        if kind == FileKind::Symlink {
            return Err(FileError::Invalid("a symbolic link leads somewhere"));
        }
        self.make(at.into(), |inode| vec![made(inode, kind, permissions, device)]).await
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As [`Files::create`]; or the target is empty or too long.
    pub async fn symlink<'a>(
        &self,
        target: &[u8],
        at: impl Into<At<'a>>,
        permissions: impl Into<Permissions>,
    ) -> Result<Inode, FileError> {
        if target.is_empty() || target.len() > 4095 || target.contains(&0) {
            return Err(FileError::Invalid(
                "a link's target has 1 to 4095 bytes, none of them zero",
            ));
        }
        let (target, permissions) = (target.to_vec(), permissions.into());
        let changes = |inode| {
            let made = made(inode, FileKind::Symlink, permissions, 0);
            vec![made, Change::Target { inode, target }]
        };
        self.make(at.into(), changes).await
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// As [`Files::create`]; or it is a directory.
    pub async fn link<'a>(
        &self,
        existing: impl Into<At<'a>>,
        at: impl Into<At<'a>>,
    ) -> Result<(), FileError> {
        let (existing, at) = (existing.into(), at.into());
        let (changing, names) = self.changing().await?;
        let inode = names.resolve(existing, Cut::ALL)?;
        self.name_inode(names, changing, inode, at).await
    }

    /// [`Files::link`], of a file by its number, if it has a name still.
    ///
    /// # Errors
    /// As [`Files::link`].
    pub async fn link_inode<'a>(
        &self,
        inode: Inode,
        at: impl Into<At<'a>>,
    ) -> Result<(), FileError> {
        let at = at.into();
        let (changing, names) = self.changing().await?;
        self.name_inode(names, changing, inode, at).await
    }

    async fn name_inode(
        &self,
        names: &Names,
        changing: Changing,
        inode: Inode,
        at: At<'_>,
    ) -> Result<(), FileError> {
        let (_, record) = names.record(inode, Cut::ALL)?;
        if record.kind == FileKind::Directory {
            return Err(FileError::NotPermitted("a directory has one name"));
        }
        let Place { parent, name } = names.place(at)?;
        if names.lookup(parent, name, Cut::ALL)?.is_some() {
            return Err(FileError::Exists(at.shown()));
        }
        if record.links == 0 {
            return Err(FileError::NotFound(format!("inode {}", inode.0)));
        }
        let change = Change::Named { parent, name: name.to_vec(), inode: Some(inode) };
        self.change(vec![change], changing).await.map(drop)
    }

    /// Takes a name from a file. Its bytes stay for those who have it open, and its past for everybody.
    ///
    /// # Errors
    /// There is nothing there, or it is a directory; or the disk fails.
    pub async fn unlink<'a>(&self, at: impl Into<At<'a>>) -> Result<(), FileError> {
        self.remove(at.into(), false).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// There is nothing there, it is no directory, or has names in it; or the disk fails.
    pub async fn rmdir<'a>(&self, at: impl Into<At<'a>>) -> Result<(), FileError> {
        self.remove(at.into(), true).await
    }

    async fn remove(&self, at: At<'_>, directory: bool) -> Result<(), FileError> {
        let (changing, names) = self.changing().await?;
        let Place { parent, name } = names.place(at)?;
        let inode = names.lookup(parent, name, Cut::ALL)?;
        let inode = inode.ok_or_else(|| FileError::NotFound(at.shown()))?;
        let is_directory = names.record(inode, Cut::ALL)?.1.kind == FileKind::Directory;
        match (directory, is_directory) {
            (true, false) => return Err(FileError::NotDirectory(at.shown())),
            (false, true) => return Err(FileError::IsDirectory(at.shown())),
            (true, true) if !names.is_empty(inode)? => {
                return Err(FileError::NotEmpty(at.shown()));
            }
            _ => {}
        }
        let change = Change::Named { parent, name: name.to_vec(), inode: None };
        self.change(vec![change], changing).await.map(drop)
    }

    /// Sets attributes.
    ///
    /// # Errors
    /// There is no such inode, or the disk fails.
    pub async fn set_attributes(&self, inode: Inode, set: SetAttributes) -> Result<(), FileError> {
        self.set(inode, set, Now::default()).await
    }

    /// [`Files::set_attributes`], and times that are to be that of the change.
    ///
    /// # Errors
    /// As there.
    pub async fn set(&self, inode: Inode, set: SetAttributes, now: Now) -> Result<(), FileError> {
        let (changing, names) = self.changing().await?;
        names.record(inode, Cut::ALL)?;
        let mut changes = vec![Change::Set { inode, set }];
        if now != Now::default() {
            changes.push(Change::Touched { inode, now });
        }
        self.change(changes, changing).await.map(drop)
    }

    /// Sets an extended attribute, or removes it.
    ///
    /// # Errors
    /// There is no such inode, or the name or the value is too long; or the disk fails.
    pub async fn set_extended(
        &self,
        inode: Inode,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), FileError> {
        const VALUE_BYTES_MAX: usize = 64 << 10;
        event::check_extended_name(name)?;
        let value = value.map(<[u8]>::to_vec);
        let length = value.as_ref().map_or(0, Vec::len);
        if length > VALUE_BYTES_MAX {
            return Err(FileError::TooLarge { offset: 0, length: length as u64 });
        }
        let (changing, names) = self.changing().await?;
        names.record(inode, Cut::ALL)?;
        let change = Change::Extended { inode, name: name.to_vec(), value };
        self.change(vec![change], changing).await.map(drop)
    }
}

fn made(inode: Inode, kind: FileKind, permissions: Permissions, device: u64) -> Change {
    let Permissions { mode, uid, gid } = permissions;
    Change::Made { inode, kind, mode, uid, gid, device }
}

type Answer = Option<Result<Appended, storage::AppendError<crate::error::EngineError>>>;

fn received(answer: Result<Answer, oneshot::error::RecvError>) -> Result<Appended, FileError> {
    match answer {
        Ok(Some(result)) => Ok(result.map_err(flatten)?),
        _ => Err(FileError::Io("the service is stopping".into())),
    }
}
