//! Names and attributes, present and past: versions in the catalog, built from the entries of the
//! files' log.
//!
//! An append does not update the catalog. The first reader applies the events that the catalog
//! lacks, in order. So a start continues where the catalog stopped, a lookup finds every
//! acknowledged event, and an event that cannot be applied is an error for every reader instead of
//! a hole.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine_core::CatalogSlot;
use engine_core::numbering::FILES_LOG;
use engine_core::projection::{CatalogFillError, ProjectionFill};
use hlc::{Cut, Hlc};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use storage::catalog::{AppliedOffset, Catalog, CatalogError, CatalogWriteBatch};
use storage::{EntryPayload, Log, Offset};

use super::error::FileError;
use super::event::{
    AttributeUpdate, FileChange, FileEvent, FileKind, FileTime, Inode, KIND_FILE_EVENT, TouchTimes,
};

/// The key prefix of files. Groups use other letters.
const PREFIX: u8 = b'f';
/// A name: parent and name to inode.
const NAME: u8 = b'd';
/// The same for current names only: listing a directory does not scan names that were removed.
const PRESENT: u8 = b'p';
/// The record of an inode.
const RECORD: u8 = b'i';
/// The last change of the names of a directory.
const TOUCHED: u8 = b'm';
/// The target of a symbolic link.
const TARGET: u8 = b'l';
/// An extended attribute.
const EXTENDED: u8 = b'x';
/// The key of the layout version of all of these.
const LAYOUT: &[u8] = b"fv";
/// Catalogs with another version are rebuilt. 2: directories have a count of their subdirectories.
const LAYOUT_NOW: &[u8] = b"2";
/// The most bytes of events that are read at once.
const READ_BYTES: usize = 1 << 20;

fn key(letter: u8, inode: Inode, rest: &[u8]) -> Vec<u8> {
    [&[PREFIX, letter], format!("{:016x}", inode.0).as_bytes(), rest].concat()
}

/// The catalog's record of an inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InodeRecord {
    pub(crate) kind: FileKind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The number of its names.
    pub(crate) links: u32,
    /// The number of directories that it contains, if it is one.
    pub(crate) directories: u32,
    pub(crate) device: u64,
    /// The parent of a directory.
    pub(crate) parent: Inode,
    /// The stamp of its creation.
    pub(crate) born: u64,
    /// The modification time that was set, and when it was set.
    pub(crate) modified: Option<(FileTime, u64)>,
    pub(crate) accessed: Option<FileTime>,
}

impl InodeRecord {
    fn root() -> InodeRecord {
        InodeRecord {
            kind: FileKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            links: 1,
            directories: 0,
            device: 0,
            parent: Inode::ROOT,
            born: 0,
            modified: None,
            accessed: None,
        }
    }

    fn set(&mut self, set: &AttributeUpdate, stamp: Hlc) {
        self.mode = set.mode.unwrap_or(self.mode);
        self.uid = set.uid.unwrap_or(self.uid);
        self.gid = set.gid.unwrap_or(self.gid);
        self.modified = set.modified.map(|time| (time, stamp.bits())).or(self.modified);
        self.accessed = set.accessed.or(self.accessed);
    }

    fn touch(&mut self, now: TouchTimes, stamp: Hlc) {
        let time = FileTime::from(stamp);
        let (modified, accessed) = (now.modified.then_some(time), now.accessed.then_some(time));
        self.set(&AttributeUpdate { modified, accessed, ..AttributeUpdate::default() }, stamp);
    }

    /// The number of links as POSIX counts: a directory has its name, its own `.`, and one in each
    /// directory that it contains.
    pub(crate) fn posix_links(&self) -> u32 {
        match (self.kind, self.links) {
            (FileKind::Directory, 1..) => self.directories.saturating_add(2),
            (_, links) => links,
        }
    }
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name; POSIX knows no encoding.
    pub name: Vec<u8>,
    pub inode: Inode,
    pub kind: FileKind,
}

pub(crate) struct FileNames {
    log: Arc<Log>,
    catalog: Arc<CatalogSlot>,
    /// The first offset that is not in the catalog yet.
    next: Mutex<Offset>,
}

impl FileNames {
    /// The names from the entries of `log`, which is [`FILES_LOG`].
    pub(crate) fn new(log: Arc<Log>, catalog: Arc<CatalogSlot>) -> FileNames {
        FileNames { log, catalog, next: Mutex::new(Offset(0)) }
    }

    /// The offset of the next event.
    pub(crate) fn end(&self) -> Offset {
        self.log.end()
    }

    fn catalog(&self) -> Result<Arc<Catalog>, CatalogError> {
        self.catalog.get()
    }

    /// Applies the events of the log that the catalog lacks.
    pub(crate) fn catch_up(&self) -> Result<(), FileError> {
        let mut next = self.next.lock();
        if *next < self.log.end() {
            advance(&self.log, &*self.catalog()?, &mut next, &|| false)?;
        }
        Ok(())
    }

    /// The record of an inode, and the stamp from which it holds.
    pub(crate) fn record(&self, inode: Inode, cut: Cut) -> Result<(Hlc, InodeRecord), FileError> {
        record(&*self.catalog()?, inode, cut)
    }

    /// The inode that a name refers to.
    pub(crate) fn lookup(
        &self,
        parent: Inode,
        name: &[u8],
        cut: Cut,
    ) -> Result<Option<Inode>, FileError> {
        lookup(&*self.catalog()?, parent, name, cut)
    }

    /// The names in a directory, in byte order.
    pub(crate) fn list(&self, parent: Inode, cut: Cut) -> Result<Vec<DirectoryEntry>, FileError> {
        let letter = if cut == Cut::ALL { PRESENT } else { NAME };
        let prefix = key(letter, parent, b"");
        let mut entries = Vec::new();
        for (key, _, value) in self.catalog()?.scan(&prefix, cut)? {
            let inode = decode(&value)?;
            let (_, record) = self.record(inode, cut)?;
            let name = key[prefix.len()..].to_vec();
            entries.push(DirectoryEntry { name, inode, kind: record.kind });
        }
        Ok(entries)
    }

    pub(crate) fn is_empty(&self, parent: Inode) -> Result<bool, FileError> {
        Ok(!self.catalog()?.has_any(&key(PRESENT, parent, b""), Cut::ALL)?)
    }

    /// The stamp of the last change of a directory's names.
    pub(crate) fn names_changed_at(&self, directory: Inode, cut: Cut) -> Result<Hlc, FileError> {
        let touched = self.catalog()?.get(&key(TOUCHED, directory, b""), cut)?;
        Ok(touched.map_or(Hlc::ZERO, |(stamp, _)| stamp))
    }

    pub(crate) fn link_target(&self, inode: Inode, cut: Cut) -> Result<Option<Vec<u8>>, FileError> {
        Ok(self.catalog()?.get(&key(TARGET, inode, b""), cut)?.map(|(_, target)| target))
    }

    /// The value of an extended attribute.
    pub(crate) fn get_xattr(
        &self,
        inode: Inode,
        name: &[u8],
        cut: Cut,
    ) -> Result<Option<Vec<u8>>, FileError> {
        Ok(self.catalog()?.get(&key(EXTENDED, inode, name), cut)?.map(|(_, value)| value))
    }

    /// The names of all extended attributes.
    pub(crate) fn list_xattrs(&self, inode: Inode, cut: Cut) -> Result<Vec<Vec<u8>>, FileError> {
        let prefix = key(EXTENDED, inode, b"");
        let xattrs = self.catalog()?.scan(&prefix, cut)?;
        Ok(xattrs.into_iter().map(|(key, ..)| key[prefix.len()..].to_vec()).collect())
    }
}

/// A catalog while it catches up with the files' log.
pub(crate) struct FileNamesFill<'a> {
    names: &'a FileNames,
    catalog: Arc<Catalog>,
    next: Offset,
    /// Held while readers are paused: the first event that the catalog in use does not have.
    paused: Option<MutexGuard<'a, Offset>>,
}

impl FileNames {
    /// Begins to fill `catalog`, and continues where it stopped. Begins at the log start if that
    /// position is not known, or is not in the log.
    pub(crate) fn begin_fill(&self, catalog: Arc<Catalog>) -> Result<FileNamesFill<'_>, FileError> {
        let layout = catalog.get(LAYOUT, Cut::ALL)?.map(|(_, layout)| layout);
        if layout.as_deref() != Some(LAYOUT_NOW) {
            clear_files(&catalog)?;
        }
        let next = match catalog.applied_in(FILES_LOG)? {
            None => None,
            Some(applied) => {
                let entry = self.log.entry_at(applied.offset)?;
                let entry = entry.filter(|entry| entry.stamp == applied.stamp);
                if entry.is_none() {
                    tracing::warn!(
                        "the catalog knows of files that the journal has not; it is rebuilt"
                    );
                }
                entry
            }
        };
        let next = match next {
            Some(entry) => entry.end(),
            None => {
                // An interrupted rebuild, or a lost journal, may have left keys.
                clear_files(&catalog)?;
                Offset(0)
            }
        };
        Ok(FileNamesFill { names: self, catalog, next, paused: None })
    }
}

impl ProjectionFill for FileNamesFill<'_> {
    fn advance(&mut self, is_closing: &dyn Fn() -> bool) -> Result<u64, CatalogFillError> {
        Ok(advance(&self.names.log, &self.catalog, &mut self.next, is_closing)?)
    }

    fn pause_readers(&mut self) {
        self.paused = Some(self.names.next.lock());
    }

    fn finish(&mut self) {
        if let Some(next) = &mut self.paused {
            **next = self.next;
        }
    }
}

impl From<FileError> for CatalogFillError {
    fn from(error: FileError) -> CatalogFillError {
        match error {
            FileError::Loading(error) => CatalogFillError::Catalog(error),
            error => CatalogFillError::Journal(error.to_string()),
        }
    }
}

/// Applies the events of `log` from `next` on, unless the engine is being closed; returns how many.
fn advance(
    log: &Log,
    catalog: &Catalog,
    next: &mut Offset,
    is_closing: &dyn Fn() -> bool,
) -> Result<u64, FileError> {
    let (end, mut count) = (log.end(), 0);
    while *next < end && !is_closing() {
        let pieces = log.read(*next, end, READ_BYTES)?;
        if pieces.first().is_none_or(|piece| piece.entry.base != *next) {
            let why = format!("the event of files at offset {} is missing", next.0);
            return Err(FileError::Corrupt(why));
        }
        for piece in pieces {
            apply(catalog, &piece)?;
            *next = piece.entry.end();
            count += 1;
        }
    }
    Ok(count)
}

fn apply(catalog: &Catalog, piece: &EntryPayload) -> Result<(), FileError> {
    let (kind, offset, stamp) = (piece.entry.kind, piece.entry.base, piece.entry.stamp);
    if kind != KIND_FILE_EVENT {
        let why = format!("the entry at offset {} is of kind {kind}, no event of files", offset.0);
        return Err(FileError::Corrupt(why));
    }
    let event = FileEvent::decode(&piece.read()?)?;
    let changes = FileEventApplier::new(catalog, stamp).apply(&event)?;
    Ok(catalog.apply_in(changes, FILES_LOG, AppliedOffset { offset, stamp })?)
}

fn clear_files(catalog: &Catalog) -> Result<(), FileError> {
    catalog.remove_log(&[PREFIX], FILES_LOG)?;
    let mut layout = CatalogWriteBatch::default();
    layout.put_unversioned(LAYOUT, Some(LAYOUT_NOW));
    Ok(catalog.apply_unpositioned(layout)?)
}

fn decode<T: for<'a> Deserialize<'a>>(value: &[u8]) -> Result<T, FileError> {
    postcard::from_bytes(value)
        .map_err(|error| FileError::Corrupt(format!("decode the catalog's value: {error}")))
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("a value of the catalog can be encoded")
}

fn record(catalog: &Catalog, inode: Inode, cut: Cut) -> Result<(Hlc, InodeRecord), FileError> {
    match catalog.get(&key(RECORD, inode, b""), cut)? {
        Some((stamp, value)) => Ok((stamp, decode(&value)?)),
        None if inode == Inode::ROOT => Ok((Hlc::ZERO, InodeRecord::root())),
        None => Err(FileError::NotFound(format!("inode {}", inode.0))),
    }
}

fn lookup(
    catalog: &Catalog,
    parent: Inode,
    name: &[u8],
    cut: Cut,
) -> Result<Option<Inode>, FileError> {
    let value = catalog.get(&key(NAME, parent, name), cut)?;
    value.map(|(_, value)| decode(&value)).transpose()
}

/// Applies one event to the catalog. Its later changes see its earlier ones.
struct FileEventApplier<'a> {
    catalog: &'a Catalog,
    stamp: Hlc,
    changes: CatalogWriteBatch,
    records: BTreeMap<Inode, InodeRecord>,
    names: BTreeMap<(Inode, Vec<u8>), Option<Inode>>,
}

impl<'a> FileEventApplier<'a> {
    fn new(catalog: &'a Catalog, stamp: Hlc) -> FileEventApplier<'a> {
        let (changes, records, names) = Default::default();
        FileEventApplier { catalog, stamp, changes, records, names }
    }

    fn apply(mut self, event: &FileEvent) -> Result<CatalogWriteBatch, FileError> {
        for change in &event.changes {
            self.apply_change(change)?;
        }
        for (inode, record) in &self.records {
            self.changes.put(&key(RECORD, *inode, b""), self.stamp, Some(&encode(record)));
        }
        for ((parent, name), inode) in &self.names {
            let value = inode.map(|inode| encode(&inode));
            self.changes.put(&key(NAME, *parent, name), self.stamp, value.as_deref());
            self.changes.put_unversioned(&key(PRESENT, *parent, name), value.as_deref());
        }
        Ok(self.changes)
    }

    fn record(&mut self, inode: Inode) -> Result<&mut InodeRecord, FileError> {
        if !self.records.contains_key(&inode) {
            let (_, current) = record(self.catalog, inode, Cut::below(self.stamp))?;
            self.records.insert(inode, current);
        }
        Ok(self.records.get_mut(&inode).expect("it was just put there"))
    }

    fn apply_change(&mut self, change: &FileChange) -> Result<(), FileError> {
        let stamp = self.stamp;
        match change {
            FileChange::Made { inode, kind, mode, uid, gid, device } => {
                let record = InodeRecord {
                    kind: *kind,
                    mode: *mode,
                    uid: *uid,
                    gid: *gid,
                    device: *device,
                    born: stamp.bits(),
                    links: 0,
                    ..InodeRecord::root()
                };
                self.records.insert(*inode, record);
            }
            FileChange::Named { parent, name, inode } => self.set_name(*parent, name, *inode)?,
            FileChange::Set { inode, set } => self.record(*inode)?.set(set, stamp),
            FileChange::Touched { inode, now } => self.record(*inode)?.touch(*now, stamp),
            FileChange::Target { inode, target } => {
                self.changes.put(&key(TARGET, *inode, b""), stamp, Some(target));
            }
            FileChange::Extended { inode, name, value } => {
                // By POSIX this also changes the inode.
                self.record(*inode)?;
                self.changes.put(&key(EXTENDED, *inode, name), stamp, value.as_deref());
            }
        }
        Ok(())
    }

    /// Sets or removes a name. Updates the link count of the inode, and the parent of a directory.
    fn set_name(
        &mut self,
        parent: Inode,
        name: &[u8],
        new: Option<Inode>,
    ) -> Result<(), FileError> {
        let place = (parent, name.to_vec());
        let old = match self.names.get(&place) {
            Some(old) => *old,
            None => lookup(self.catalog, parent, name, Cut::below(self.stamp))?,
        };
        if let Some(old) = old {
            let record = self.record(old)?;
            record.links = record.links.saturating_sub(1);
            if record.kind == FileKind::Directory {
                let parent = self.record(parent)?;
                parent.directories = parent.directories.saturating_sub(1);
            }
        }
        if let Some(new) = new {
            let record = self.record(new)?;
            record.links += 1;
            if record.kind == FileKind::Directory {
                record.parent = parent;
                self.record(parent)?.directories += 1;
            }
        }
        self.names.insert(place, new);
        self.changes.put(&key(TOUCHED, parent, b""), self.stamp, Some(b""));
        Ok(())
    }
}
