//! Changes of names and attributes: each change reads the names under a lock, and is one entry of
//! the files' log.

use std::sync::Arc;

use engine_core::EngineError;
use engine_core::numbering::FILES_LOG;
use hlc::{Cut, Hlc};
use storage::{AppendReceipt, Durability, Payload};
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::FileSystem;
use super::attributes::FilePermissions;
use super::contents::file_append;
use super::error::FileError;
use super::event::{
    self, AttributeUpdate, FileChange, FileEvent, FileKind, Inode, KIND_FILE_EVENT, TouchTimes,
};
use super::file::OpenFile;
use super::names::FileNames;
use super::path::{FileLocation, ResolvedName};

pub(super) type FileChangeGuard = OwnedMutexGuard<()>;

impl FileSystem {
    pub(super) async fn lock_changes(&self) -> Result<(FileChangeGuard, &FileNames), FileError> {
        let changing = Arc::clone(&self.0.change_lock).lock_owned().await;
        Ok((changing, self.names(Cut::ALL)?))
    }

    /// Appends changes, which take effect at once. They are in the log when this returns, and on
    /// stable storage after the next [`FileSystem::sync`].
    pub(super) async fn append_changes(
        &self,
        changes: Vec<FileChange>,
        changing: FileChangeGuard,
    ) -> Result<Hlc, FileError> {
        let payload = Payload::without_header(FileEvent { changes }.encode().into());
        let append = file_append(FILES_LOG, KIND_FILE_EVENT, payload, None);
        let (sender, receiver) = oneshot::channel();
        self.0.store.append(vec![append], Durability::Written, move |mut results| {
            // The next change may read the names now: this one is in the log.
            drop(changing);
            let _ = sender.send(results.pop());
        });
        let appended = into_receipt(receiver.await)?;
        self.0.names.catch_up()?;
        Ok(appended.stamp)
    }

    /// Creates an inode and gives it a name.
    async fn create_inode(
        &self,
        at: FileLocation<'_>,
        changes_for: impl FnOnce(Inode) -> Vec<FileChange>,
    ) -> Result<Inode, FileError> {
        let (changing, names) = self.lock_changes().await?;
        let ResolvedName { parent, name } = names.resolve_parent(at)?;
        if names.lookup(parent, name, Cut::ALL)?.is_some() {
            return Err(FileError::Exists(at.display()));
        }
        // The lock ensures that nobody else appends to that log before this is done.
        let inode = Inode::from_offset(names.end());
        let mut changes = changes_for(inode);
        changes.push(FileChange::Named { parent, name: name.to_vec(), inode: Some(inode) });
        self.append_changes(changes, changing).await?;
        Ok(inode)
    }

    /// Creates a file.
    ///
    /// # Errors
    /// The name is taken or invalid, or the directory does not exist; or the disk fails.
    pub async fn create<'a>(
        &self,
        at: impl Into<FileLocation<'a>>,
        permissions: impl Into<FilePermissions>,
    ) -> Result<OpenFile, FileError> {
        let inode = self.mknod(at, FileKind::File, permissions, 0).await?;
        self.open_contents(inode)
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// As [`FileSystem::create`].
    pub async fn mkdir<'a>(
        &self,
        at: impl Into<FileLocation<'a>>,
        permissions: impl Into<FilePermissions>,
    ) -> Result<Inode, FileError> {
        self.mknod(at, FileKind::Directory, permissions, 0).await
    }

    /// Creates an inode of any kind but a symbolic link.
    ///
    /// # Errors
    /// As [`FileSystem::create`].
    pub async fn mknod<'a>(
        &self,
        at: impl Into<FileLocation<'a>>,
        kind: FileKind,
        permissions: impl Into<FilePermissions>,
        device: u64,
    ) -> Result<Inode, FileError> {
        let permissions = permissions.into();
        if kind == FileKind::Symlink {
            return Err(FileError::Invalid("a symbolic link leads somewhere"));
        }
        self.create_inode(at.into(), |inode| vec![inode_change(inode, kind, permissions, device)])
            .await
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// As [`FileSystem::create`]; or the target is empty or too long.
    pub async fn symlink<'a>(
        &self,
        target: &[u8],
        at: impl Into<FileLocation<'a>>,
        permissions: impl Into<FilePermissions>,
    ) -> Result<Inode, FileError> {
        if target.is_empty() || target.len() > 4095 || target.contains(&0) {
            return Err(FileError::Invalid(
                "a link's target has 1 to 4095 bytes, none of them zero",
            ));
        }
        let (target, permissions) = (target.to_vec(), permissions.into());
        let changes = |inode| {
            let created = inode_change(inode, FileKind::Symlink, permissions, 0);
            vec![created, FileChange::Target { inode, target }]
        };
        self.create_inode(at.into(), changes).await
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// As [`FileSystem::create`]; or it is a directory.
    pub async fn link<'a>(
        &self,
        existing: impl Into<FileLocation<'a>>,
        at: impl Into<FileLocation<'a>>,
    ) -> Result<(), FileError> {
        let (existing, at) = (existing.into(), at.into());
        let (changing, names) = self.lock_changes().await?;
        let inode = names.resolve(existing, Cut::ALL)?;
        self.name_inode(names, changing, inode, at).await
    }

    /// [`FileSystem::link`] by inode, if the file still has a name.
    ///
    /// # Errors
    /// As [`FileSystem::link`].
    pub async fn link_inode<'a>(
        &self,
        inode: Inode,
        at: impl Into<FileLocation<'a>>,
    ) -> Result<(), FileError> {
        let at = at.into();
        let (changing, names) = self.lock_changes().await?;
        self.name_inode(names, changing, inode, at).await
    }

    async fn name_inode(
        &self,
        names: &FileNames,
        changing: FileChangeGuard,
        inode: Inode,
        at: FileLocation<'_>,
    ) -> Result<(), FileError> {
        let (_, record) = names.record(inode, Cut::ALL)?;
        if record.kind == FileKind::Directory {
            return Err(FileError::NotPermitted("a directory has one name"));
        }
        let ResolvedName { parent, name } = names.resolve_parent(at)?;
        if names.lookup(parent, name, Cut::ALL)?.is_some() {
            return Err(FileError::Exists(at.display()));
        }
        if record.links == 0 {
            return Err(FileError::NotFound(format!("inode {}", inode.0)));
        }
        let change = FileChange::Named { parent, name: name.to_vec(), inode: Some(inode) };
        self.append_changes(vec![change], changing).await.map(drop)
    }

    /// Removes a name of a file. Its bytes stay readable for open handles, and its past for
    /// everybody.
    ///
    /// # Errors
    /// The name does not exist, or is a directory; or the disk fails.
    pub async fn unlink<'a>(&self, at: impl Into<FileLocation<'a>>) -> Result<(), FileError> {
        self.remove(at.into(), false).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The name does not exist, is no directory, or the directory is not empty; or the disk fails.
    pub async fn rmdir<'a>(&self, at: impl Into<FileLocation<'a>>) -> Result<(), FileError> {
        self.remove(at.into(), true).await
    }

    async fn remove(&self, at: FileLocation<'_>, directory: bool) -> Result<(), FileError> {
        let (changing, names) = self.lock_changes().await?;
        let ResolvedName { parent, name } = names.resolve_parent(at)?;
        let inode = names.lookup(parent, name, Cut::ALL)?;
        let inode = inode.ok_or_else(|| FileError::NotFound(at.display()))?;
        let is_directory = names.record(inode, Cut::ALL)?.1.kind == FileKind::Directory;
        match (directory, is_directory) {
            (true, false) => return Err(FileError::NotDirectory(at.display())),
            (false, true) => return Err(FileError::IsDirectory(at.display())),
            (true, true) if !names.is_empty(inode)? => {
                return Err(FileError::NotEmpty(at.display()));
            }
            _ => {}
        }
        let change = FileChange::Named { parent, name: name.to_vec(), inode: None };
        self.append_changes(vec![change], changing).await.map(drop)
    }

    /// Sets attributes.
    ///
    /// # Errors
    /// There is no such inode, or the disk fails.
    pub async fn set_attributes(
        &self,
        inode: Inode,
        set: AttributeUpdate,
    ) -> Result<(), FileError> {
        self.set_attributes_and_times(inode, set, TouchTimes::default()).await
    }

    /// [`FileSystem::set_attributes`], with times to set to that of the change.
    ///
    /// # Errors
    /// As [`FileSystem::set_attributes`].
    pub async fn set_attributes_and_times(
        &self,
        inode: Inode,
        set: AttributeUpdate,
        now: TouchTimes,
    ) -> Result<(), FileError> {
        let (changing, names) = self.lock_changes().await?;
        names.record(inode, Cut::ALL)?;
        let mut changes = vec![FileChange::Set { inode, set }];
        if now != TouchTimes::default() {
            changes.push(FileChange::Touched { inode, now });
        }
        self.append_changes(changes, changing).await.map(drop)
    }

    /// Sets an extended attribute, or removes it.
    ///
    /// # Errors
    /// There is no such inode, or the name or the value is too long; or the disk fails.
    pub async fn set_xattr(
        &self,
        inode: Inode,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), FileError> {
        const VALUE_BYTES_MAX: usize = 64 << 10;
        event::check_xattr_name(name)?;
        let value = value.map(<[u8]>::to_vec);
        let length = value.as_ref().map_or(0, Vec::len);
        if length > VALUE_BYTES_MAX {
            return Err(FileError::TooLarge { offset: 0, length: length as u64 });
        }
        let (changing, names) = self.lock_changes().await?;
        names.record(inode, Cut::ALL)?;
        let change = FileChange::Extended { inode, name: name.to_vec(), value };
        self.append_changes(vec![change], changing).await.map(drop)
    }
}

fn inode_change(
    inode: Inode,
    kind: FileKind,
    permissions: FilePermissions,
    device: u64,
) -> FileChange {
    let FilePermissions { mode, uid, gid } = permissions;
    FileChange::Made { inode, kind, mode, uid, gid, device }
}

type AppendResponse = Option<Result<AppendReceipt, storage::AppendError<EngineError>>>;

fn into_receipt(
    answer: Result<AppendResponse, oneshot::error::RecvError>,
) -> Result<AppendReceipt, FileError> {
    match answer {
        Ok(Some(result)) => Ok(result.map_err(EngineError::from)?),
        _ => Err(FileError::Io("the service is stopping".into())),
    }
}
