//! Files with overwrites: names, attributes and bytes, as they are and as they were at any moment.
//!
//! A file's bytes are a log of their own: a write is an entry, whatever its length and place, and the
//! file is what the entries make in their order. Over it stands a file interval tree
//! ([`storage::fig`]), saved in the same log every [`FileOptions::checkpoint_entries`] entries and when
//! the file leaves memory. Names and attributes are events in one log for all files.
//!
//! What holds true of it:
//! - Each change is one entry, so it has one stamp, and a cut has all of it or nothing. Rename is one.
//! - A name is resolved at the moment that is asked for, and so are its bytes: what was renamed,
//!   overwritten or deleted since is found by the name that it had.
//! - Index and names are soft: made from the entries, by whoever looks first, and made anew where a
//!   checkpoint is damaged.
//!
//! Reading a moment that is not past yet is refused: settle it first ([`crate::Engine::settle`]).
//! [`Cut::ALL`] is the present.

mod contents;
mod entry;
mod error;
mod event;
mod names;
mod open;
mod path;
mod rename;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use hlc::{Cut, Hlc};
use storage::fig::{FILE_BYTES_MAX, NodeCache};
use storage::{Append, AppendError, Appended, Durability, Payload, Store};
use tokio::sync::{OwnedMutexGuard, Semaphore, oneshot};

pub use contents::{FileCounts, FilePiece, FileView, READ_BYTES_MAX};
pub use entry::WRITE_BYTES_MAX;
pub use error::FileError;
pub use event::{FileKind, FileTime, Inode, NAME_BYTES_MAX, Now, SetAttributes};
pub use names::DirectoryEntry;
pub use path::At;
pub use rename::Target;

use crate::append::{Note, Stager};
use crate::engine::{FLIGHT_UNIT, Shared, flatten};
use crate::error::EngineError;
use contents::{Contents, append_of};
use entry::FileEntry;
pub(crate) use event::is_file_kind;
use event::{Change, FILES_LOG, FileEvent, KIND_FILE_EVENT};
use names::Names;
use open::Opened;
use path::{Place, shown};

/// How files are kept.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// After how many entries of a file its index is saved. A read of the past replays at most about
    /// as many, from the first 16 bytes of each, which may each be a read of the disk. The more, the
    /// less is written: of 10^5 random writes to one file, each costs 400 bytes of checkpoint where
    /// that is 64, 330 for 128, 260 for 256 and 145 for 1024. Sequential ones cost 6.
    pub checkpoint_entries: u64,
    /// How many closed files stay in memory.
    pub closed_max: usize,
    /// How many bytes of saved nodes stay in memory, for all files.
    pub node_bytes_max: usize,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions { checkpoint_entries: 128, closed_max: 256, node_bytes_max: 8 << 20 }
    }
}

/// Whose something new is, and who may do what with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Permissions {
    /// The permissions.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

impl From<u32> for Permissions {
    /// Root's.
    fn from(mode: u32) -> Permissions {
        Permissions { mode, uid: 0, gid: 0 }
    }
}

/// What is known of a file without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileAttributes {
    /// Its number.
    pub inode: Inode,
    /// What it is.
    pub kind: FileKind,
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// How many names it has; of a directory, two and one for each directory in it.
    pub links: u32,
    /// Which device, if it is one.
    pub device: u64,
    /// Bytes, of a file or of a link's target.
    pub size: u64,
    /// When its bytes or names changed last, or what was set since.
    pub modified: FileTime,
    /// When anything of it changed last.
    pub changed: FileTime,
    /// What was set, or else when it was modified: reads leave no trace.
    pub accessed: FileTime,
    /// When it was made.
    pub born: FileTime,
}

struct Inner {
    store: Arc<Store<Stager>>,
    names: Names,
    /// Held from looking at names until the change that follows is in the log.
    changing: Arc<tokio::sync::Mutex<()>>,
    flight: Arc<Semaphore>,
    flight_units: usize,
    opened: Opened,
    nodes: Arc<NodeCache>,
    counts: Arc<FileCounts>,
    options: FileOptions,
    closing: AtomicBool,
}

/// All files.
#[derive(Clone)]
pub struct Files(Arc<Inner>);

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").finish_non_exhaustive()
    }
}

type Changing = OwnedMutexGuard<()>;

impl Files {
    pub(crate) fn open_all(
        store: Arc<Store<Stager>>,
        shared: Arc<Shared>,
        flight: (Arc<Semaphore>, usize),
        options: FileOptions,
    ) -> Result<Files, FileError> {
        let names = Names::open(store.log(FILES_LOG)?, shared)?;
        Ok(Files(Arc::new(Inner {
            store,
            names,
            changing: Arc::default(),
            flight: flight.0,
            flight_units: flight.1,
            opened: Opened::new(options.closed_max),
            nodes: Arc::new(NodeCache::new(options.node_bytes_max)),
            counts: Arc::default(),
            options,
            closing: AtomicBool::new(false),
        })))
    }

    /// Saves the index of every file in memory. Called before the store is closed, which completes
    /// what is on its way.
    pub(crate) fn close(&self) {
        self.0.closing.store(true, Ordering::Release);
        for contents in self.0.opened.all() {
            self.0.save(&contents);
        }
    }

    /// What files have cost since the start.
    pub fn counts(&self) -> &FileCounts {
        &self.0.counts
    }

    /// Bytes of memory that indexes hold: of files in memory, and of saved nodes.
    pub fn index_bytes(&self) -> usize {
        let own: usize = self.0.opened.all().iter().map(|file| file.memory_bytes()).sum();
        own + self.0.nodes.bytes()
    }

    // ---- Looking ----

    /// Names as of `cut`, complete.
    fn names(&self, cut: Cut) -> Result<&Names, FileError> {
        if cut != Cut::ALL {
            let frontier = self.0.store.timekeeper().frontier();
            if !cut.is_closed_by(frontier) {
                return Err(FileError::NotYet { cut, frontier });
            }
        }
        self.0.names.catch_up()?;
        Ok(&self.0.names)
    }

    /// What a path means.
    ///
    /// # Errors
    /// There is nothing there, or it cannot be read.
    pub fn resolve<'a>(&self, at: impl Into<At<'a>>, cut: Cut) -> Result<Inode, FileError> {
        self.names(cut)?.resolve(at.into(), cut)
    }

    /// What a name in a directory means.
    ///
    /// # Errors
    /// There is nothing there, or it cannot be read.
    pub fn lookup(&self, parent: Inode, name: &[u8], cut: Cut) -> Result<Inode, FileError> {
        let found = self.names(cut)?.lookup(parent, name, cut)?;
        found.ok_or_else(|| FileError::NotFound(shown(name)))
    }

    /// The names in a directory, in the order of their bytes.
    ///
    /// # Errors
    /// It is no directory, or cannot be read.
    pub fn list<'a>(
        &self,
        at: impl Into<At<'a>>,
        cut: Cut,
    ) -> Result<Vec<DirectoryEntry>, FileError> {
        let inode = self.resolve(at, cut)?;
        self.list_inode(inode, cut)
    }

    /// [`Files::list`], of a directory by its number.
    ///
    /// # Errors
    /// It is no directory, or cannot be read.
    pub fn list_inode(&self, inode: Inode, cut: Cut) -> Result<Vec<DirectoryEntry>, FileError> {
        let names = self.names(cut)?;
        match names.record(inode, cut)?.1.kind {
            FileKind::Directory => names.list(inode, cut),
            _ => Err(FileError::NotDirectory(format!("inode {}", inode.0))),
        }
    }

    /// What is known of what is at a path.
    ///
    /// # Errors
    /// There is nothing there, or it cannot be read.
    pub fn stat<'a>(&self, at: impl Into<At<'a>>, cut: Cut) -> Result<FileAttributes, FileError> {
        let inode = self.resolve(at, cut)?;
        self.stat_inode(inode, cut)
    }

    /// [`Files::stat`], by its number: also of what has no name any more.
    ///
    /// # Errors
    /// There was no such inode, or it cannot be read.
    pub fn stat_inode(&self, inode: Inode, cut: Cut) -> Result<FileAttributes, FileError> {
        let names = self.names(cut)?;
        let (since, record) = names.record(inode, cut)?;
        let born = Hlc::from_bits(record.born);
        let (size, written) = match record.kind {
            FileKind::File => {
                let view = self.view(inode, cut)?;
                (view.length(), view.modified())
            }
            FileKind::Directory => (0, names.touched(inode, cut)?),
            FileKind::Symlink => {
                (names.target(inode, cut)?.map_or(0, |target| target.len() as u64), Hlc::ZERO)
            }
            _ => (0, Hlc::ZERO),
        };
        let modified = match record.modified {
            Some((time, when)) if when > written.bits() => time,
            _ => written.max(born).into(),
        };
        Ok(FileAttributes {
            inode,
            kind: record.kind,
            mode: record.mode,
            uid: record.uid,
            gid: record.gid,
            links: record.links_by_posix(),
            device: record.device,
            size,
            modified,
            changed: since.max(written).into(),
            accessed: record.accessed.unwrap_or(modified),
            born: born.into(),
        })
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// There is nothing there, or it is no link.
    pub fn read_link<'a>(&self, at: impl Into<At<'a>>, cut: Cut) -> Result<Vec<u8>, FileError> {
        let inode = self.resolve(at, cut)?;
        self.read_link_inode(inode, cut)
    }

    /// [`Files::read_link`], by its number.
    ///
    /// # Errors
    /// It is no link, or cannot be read.
    pub fn read_link_inode(&self, inode: Inode, cut: Cut) -> Result<Vec<u8>, FileError> {
        let target = self.names(cut)?.target(inode, cut)?;
        target.ok_or(FileError::Invalid("it is no symbolic link"))
    }

    /// An extended attribute; `None` if there is none of that name.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn extended(
        &self,
        inode: Inode,
        name: &[u8],
        cut: Cut,
    ) -> Result<Option<Vec<u8>>, FileError> {
        self.names(cut)?.extended(inode, name, cut)
    }

    /// The names of all extended attributes.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn list_extended(&self, inode: Inode, cut: Cut) -> Result<Vec<Vec<u8>>, FileError> {
        self.names(cut)?.list_extended(inode, cut)
    }

    /// The file at a path, to be read and written.
    ///
    /// # Errors
    /// There is nothing there, or it is no file.
    pub fn open<'a>(&self, at: impl Into<At<'a>>) -> Result<File, FileError> {
        let inode = self.resolve(at, Cut::ALL)?;
        self.check_file(inode, Cut::ALL)?;
        self.hold(inode)
    }

    /// A file by its number, also one that has no name any more.
    ///
    /// # Errors
    /// There is no such inode, or it is no file.
    pub fn open_inode(&self, inode: Inode) -> Result<File, FileError> {
        self.check_file(inode, Cut::ALL)?;
        self.hold(inode)
    }

    /// The file that was at a path, as it was.
    ///
    /// # Errors
    /// There was nothing there, or it was no file.
    pub fn open_at<'a>(&self, at: impl Into<At<'a>>, cut: Cut) -> Result<FileView, FileError> {
        let inode = self.resolve(at, cut)?;
        self.check_file(inode, cut)?;
        self.view(inode, cut)
    }

    fn check_file(&self, inode: Inode, cut: Cut) -> Result<(), FileError> {
        match self.names(cut)?.record(inode, cut)?.1.kind {
            FileKind::File => Ok(()),
            FileKind::Directory => Err(FileError::IsDirectory(format!("inode {}", inode.0))),
            _ => Err(FileError::Invalid("it has no bytes")),
        }
    }

    fn hold(&self, inode: Inode) -> Result<File, FileError> {
        let inner = &self.0;
        let contents = inner.opened.open(inode, || {
            let log = inner.store.log(inode.contents_log())?;
            let (nodes, counts) = (Arc::clone(&inner.nodes), Arc::clone(&inner.counts));
            Ok::<_, FileError>(Arc::new(Contents::new(inode, log, nodes, counts)))
        })?;
        Ok(File { contents, files: self.clone() })
    }

    fn view(&self, inode: Inode, cut: Cut) -> Result<FileView, FileError> {
        self.hold(inode)?.at(cut)
    }

    // ---- Changing names ----

    async fn changing(&self) -> Result<(Changing, &Names), FileError> {
        let changing = Arc::clone(&self.0.changing).lock_owned().await;
        Ok((changing, self.names(Cut::ALL)?))
    }

    /// Appends changes, which happen at once. They are in the log when this returns, and on stable
    /// storage after the next [`Files::sync`].
    async fn change(&self, changes: Vec<Change>, changing: Changing) -> Result<Hlc, FileError> {
        let payload = Payload::plain(FileEvent { changes }.encode().into());
        let log = self.0.names.log();
        let append = append_of(log, KIND_FILE_EVENT, payload, None);
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
        let inode = Inode::made_at(self.0.names.log().end());
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

    /// Everything that was written before, to any file or name, is on stable storage: also where the
    /// store does without syncs otherwise.
    ///
    /// # Errors
    /// The disk fails, or the service is stopping.
    pub async fn sync(&self) -> Result<(), FileError> {
        let (sender, receiver) = oneshot::channel();
        self.0.store.when_synced(move || {
            let _ = sender.send(());
        });
        let done = receiver.await.is_ok() && !self.0.closing.load(Ordering::Acquire);
        match self.0.store.stopped() {
            None if done => Ok(()),
            why => Err(FileError::Io(why.unwrap_or_else(|| "the service is stopping".into()))),
        }
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

impl Inner {
    /// A checkpoint that cannot be made now is made later: it only saves time.
    fn save(&self, contents: &Arc<Contents>) {
        if let Err(error) = contents.save(&self.store) {
            tracing::warn!(%error, inode = contents.inode.0, "a file's index is not saved");
        }
    }
}

/// An open file. It goes on being the same file, whatever becomes of its name.
pub struct File {
    contents: Arc<Contents>,
    files: Files,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("inode", &self.contents.inode).finish_non_exhaustive()
    }
}

impl Clone for File {
    fn clone(&self) -> File {
        let contents = self.files.0.opened.again(self.inode());
        File { contents, files: self.files.clone() }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let inner = &self.files.0;
        for contents in inner.opened.close(self.contents.inode) {
            inner.save(&contents);
        }
    }
}

impl File {
    /// Its number.
    pub fn inode(&self) -> Inode {
        self.contents.inode
    }

    /// Writes at an offset, also behind the end: what is between is zero then. All of it or nothing is
    /// ever read, by anybody; whoever reads after this returns, reads it. Returns its moment.
    ///
    /// # Errors
    /// The write is longer than [`WRITE_BYTES_MAX`] or reaches too far; or the disk fails.
    pub async fn write_at(
        &self,
        offset: u64,
        data: Bytes,
        durability: Durability,
    ) -> Result<Hlc, FileError> {
        let length = data.len() as u64;
        let reach = offset.checked_add(length).filter(|reach| *reach <= FILE_BYTES_MAX);
        if data.len() > WRITE_BYTES_MAX || reach.is_none() {
            return Err(FileError::TooLarge { offset, length });
        }
        if data.is_empty() {
            return Ok(self.contents.present()?.modified());
        }
        self.append(FileEntry::write(offset, data), durability).await
    }

    /// Makes the file `length` bytes long: what is behind goes, and what is new is zero. Returns its
    /// moment.
    ///
    /// # Errors
    /// It is too long, or the disk fails.
    pub async fn truncate(&self, length: u64, durability: Durability) -> Result<Hlc, FileError> {
        if length > FILE_BYTES_MAX {
            return Err(FileError::TooLarge { offset: length, length: 0 });
        }
        self.append(FileEntry::truncate(length), durability).await
    }

    /// Makes the file at least `length` bytes long; nothing that was written goes, whoever writes
    /// meanwhile. Returns the moment; `None` if it was as long.
    ///
    /// # Errors
    /// As [`File::truncate`].
    pub async fn extend(
        &self,
        length: u64,
        durability: Durability,
    ) -> Result<Option<Hlc>, FileError> {
        if length > FILE_BYTES_MAX {
            return Err(FileError::TooLarge { offset: length, length: 0 });
        }
        loop {
            let present = self.contents.present()?;
            if present.length() >= length {
                return Ok(None);
            }
            // A write that came in between may have made it longer: the writer's thread knows.
            let (entry, note) = (FileEntry::truncate(length), Note::FileAt(present.until()));
            match self.append_noted(entry, note, durability).await {
                Err(AppendError::Refused(EngineError::OffsetOutOfRange { .. })) => {}
                appended => return Ok(Some(appended.map_err(flatten)?.stamp)),
            }
        }
    }

    /// Makes zero what is in `range`, as far as the file goes. Returns its moment.
    ///
    /// # Errors
    /// The range is empty or reaches too far; or the disk fails.
    pub async fn punch(&self, range: Range<u64>, durability: Durability) -> Result<Hlc, FileError> {
        if range.is_empty() {
            return Err(FileError::Invalid("a hole has a length"));
        }
        if range.end > FILE_BYTES_MAX {
            let (offset, length) = (range.start, range.end - range.start);
            return Err(FileError::TooLarge { offset, length });
        }
        self.append(FileEntry::punch(range), durability).await
    }

    async fn append(&self, entry: FileEntry, durability: Durability) -> Result<Hlc, FileError> {
        let appended = self.append_noted(entry, Note::File, durability).await.map_err(flatten)?;
        Ok(appended.stamp)
    }

    async fn append_noted(
        &self,
        entry: FileEntry,
        note: Note,
        durability: Durability,
    ) -> Result<Appended, AppendError<EngineError>> {
        let inner = &self.files.0;
        let units = (entry.payload.len() / FLIGHT_UNIT + 1).min(inner.flight_units) as u32;
        let permit = Arc::clone(&inner.flight).acquire_many_owned(units).await;
        let permit = permit.expect("never closed");
        let log = &self.contents.log;
        let append = Append { note, ..append_of(log, entry.kind, entry.payload, entry.crc_from) };
        let (sender, receiver) = oneshot::channel();
        inner.store.append(vec![append], durability, move |mut results| {
            // The room is the journal's to give back.
            drop(permit);
            let _ = sender.send(results.pop());
        });
        let stopping = || AppendError::Stopped("the service is stopping".into());
        let appended = receiver.await.ok().flatten().ok_or_else(stopping)??;
        if self.contents.uncovered() >= inner.options.checkpoint_entries {
            inner.save(&self.contents);
        }
        Ok(appended)
    }

    /// The file as of `cut`; for [`Cut::ALL`], as it is now.
    ///
    /// # Errors
    /// The moment is not past yet, or what is stored cannot be read.
    pub fn at(&self, cut: Cut) -> Result<FileView, FileError> {
        if cut == Cut::ALL {
            return self.contents.present();
        }
        self.files.names(cut)?;
        self.contents.at(cut)
    }

    /// Bytes of the file as of `cut`: [`FileView::read`].
    ///
    /// # Errors
    /// As [`File::at`].
    pub fn read_at(&self, cut: Cut, offset: u64, length: usize) -> Result<Bytes, FileError> {
        self.at(cut)?.read(offset, length)
    }

    /// [`Files::sync`].
    ///
    /// # Errors
    /// The disk fails, or the service is stopping.
    pub async fn sync(&self) -> Result<(), FileError> {
        self.files.sync().await
    }
}
