//! Names and attributes, as they are and were: versions in the catalog, made from the entries of the
//! files' log.
//!
//! Nobody is told of an event. Whoever looks first applies what the log has more than the catalog, in
//! order: so a start reads on where the catalog stopped, a look finds every event that was answered,
//! and an event that cannot be applied is an error for everybody instead of a hole.

use std::collections::BTreeMap;
use std::sync::Arc;

use hlc::{Cut, Hlc};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use storage::catalog::{AppliedOffset, Catalog, CatalogError, CatalogWriteBatch};
use storage::{EntryPayload, Log, Offset};

use super::error::FileError;
use super::event::{
    AttributeUpdate, FILES_LOG, FileChange, FileEvent, FileKind, FileTime, Inode, KIND_FILE_EVENT,
    TouchTimes,
};
use crate::engine::EngineState;

/// With what the keys of files begin. The letters of groups are others.
const PREFIX: u8 = b'f';
/// A name: parent, then name, to inode.
const NAME: u8 = b'd';
/// The same for names of the present alone: listing a directory does not pass what was once in it.
const PRESENT: u8 = b'p';
/// What an inode is.
const RECORD: u8 = b'i';
/// When names of a directory changed.
const TOUCHED: u8 = b'm';
/// Where a symbolic link leads.
const TARGET: u8 = b'l';
/// An extended attribute.
const EXTENDED: u8 = b'x';
/// How all of these are laid out.
const LAYOUT: &[u8] = b"fv";
/// Catalogs that say otherwise are made anew. 2: directories know how many they hold.
const LAYOUT_NOW: &[u8] = b"2";
/// How many bytes of events are read at once.
const READ_BYTES: usize = 1 << 20;

fn key(letter: u8, inode: Inode, rest: &[u8]) -> Vec<u8> {
    [&[PREFIX, letter], format!("{:016x}", inode.0).as_bytes(), rest].concat()
}

/// What the catalog holds of an inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InodeRecord {
    pub(crate) kind: FileKind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// How many names it has.
    pub(crate) links: u32,
    /// How many directories are in it, if it is one.
    pub(crate) directories: u32,
    pub(crate) device: u64,
    /// The directory that a directory is in.
    pub(crate) parent: Inode,
    /// When it was made.
    pub(crate) born: u64,
    /// What was said of when it was modified, and when that was said.
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
        let time = Some(FileTime::from(stamp));
        let (modified, accessed) = (time.filter(|_| now.modified), time.filter(|_| now.accessed));
        self.set(&AttributeUpdate { modified, accessed, ..AttributeUpdate::default() }, stamp);
    }

    /// How many names it has, as POSIX counts: a directory has its own, one in itself, and one in
    /// each directory that it holds.
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
    /// What it means.
    pub inode: Inode,
    /// What that is.
    pub kind: FileKind,
}

/// All names.
pub(crate) struct FileNames {
    log: Arc<Log>,
    shared: Arc<EngineState>,
    /// The first offset that is not in the catalog yet.
    next: Mutex<Offset>,
}

impl FileNames {
    /// Names by the entries of `log`, which is [`FILES_LOG`]; the catalog has those below `next`.
    pub(crate) fn new(log: Arc<Log>, shared: Arc<EngineState>, next: Offset) -> FileNames {
        FileNames { log, shared, next: Mutex::new(next) }
    }

    /// The offset of the next event.
    pub(crate) fn end(&self) -> Offset {
        self.log.end()
    }

    fn catalog(&self) -> Result<Arc<Catalog>, CatalogError> {
        self.shared.catalog.get()
    }

    /// Holds up who looks first, and says which event is the next to be applied.
    pub(super) fn lock_next(&self) -> MutexGuard<'_, Offset> {
        self.next.lock()
    }

    /// Applies what the log has more than the catalog.
    pub(crate) fn catch_up(&self) -> Result<(), FileError> {
        let mut next = self.next.lock();
        if *next < self.log.end() {
            advance(&self.log, &*self.catalog()?, &mut next, &|| false)?;
        }
        Ok(())
    }

    /// What an inode is, and since when it is so.
    pub(crate) fn record(&self, inode: Inode, cut: Cut) -> Result<(Hlc, InodeRecord), FileError> {
        record(&*self.catalog()?, inode, cut)
    }

    /// What a name means.
    pub(crate) fn lookup(
        &self,
        parent: Inode,
        name: &[u8],
        cut: Cut,
    ) -> Result<Option<Inode>, FileError> {
        lookup(&*self.catalog()?, parent, name, cut)
    }

    /// The names in a directory, in the order of their bytes.
    pub(crate) fn list(&self, parent: Inode, cut: Cut) -> Result<Vec<DirectoryEntry>, FileError> {
        let letter = if cut == Cut::ALL { PRESENT } else { NAME };
        let prefix = key(letter, parent, b"");
        let mut found = Vec::new();
        for (key, _, value) in self.catalog()?.scan(&prefix, cut)? {
            let inode = decode(&value)?;
            let (_, record) = self.record(inode, cut)?;
            let name = key[prefix.len()..].to_vec();
            found.push(DirectoryEntry { name, inode, kind: record.kind });
        }
        Ok(found)
    }

    pub(crate) fn is_empty(&self, parent: Inode) -> Result<bool, FileError> {
        Ok(!self.catalog()?.has_any(&key(PRESENT, parent, b""), Cut::ALL)?)
    }

    /// When a directory's names changed last.
    pub(crate) fn names_changed_at(&self, directory: Inode, cut: Cut) -> Result<Hlc, FileError> {
        let found = self.catalog()?.get(&key(TOUCHED, directory, b""), cut)?;
        Ok(found.map_or(Hlc::ZERO, |(stamp, _)| stamp))
    }

    /// Where a symbolic link leads.
    pub(crate) fn link_target(&self, inode: Inode, cut: Cut) -> Result<Option<Vec<u8>>, FileError> {
        Ok(self.catalog()?.get(&key(TARGET, inode, b""), cut)?.map(|(_, target)| target))
    }

    /// An extended attribute.
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
        let found = self.catalog()?.scan(&prefix, cut)?;
        Ok(found.into_iter().map(|(key, ..)| key[prefix.len()..].to_vec()).collect())
    }
}

/// A catalog on its way to what the log of files says.
pub(crate) struct FileNamesFill {
    log: Arc<Log>,
    catalog: Arc<Catalog>,
    next: Offset,
}

impl FileNamesFill {
    /// Goes on where `catalog` stopped in `log`, which is [`FILES_LOG`]; from the beginning if that is not
    /// known, or is nothing that the log has.
    pub(crate) fn begin(log: Arc<Log>, catalog: Arc<Catalog>) -> Result<FileNamesFill, FileError> {
        let layout = catalog.get(LAYOUT, Cut::ALL)?.map(|(_, layout)| layout);
        if layout.as_deref() != Some(LAYOUT_NOW) {
            clear_files(&catalog)?;
        }
        let known = match catalog.applied_in(FILES_LOG)? {
            None => None,
            Some(applied) => {
                let entry = log.entry_at(applied.offset)?;
                let entry = entry.filter(|entry| entry.stamp == applied.stamp);
                if entry.is_none() {
                    tracing::warn!(
                        "the catalog knows of files that the journal has not; it is rebuilt"
                    );
                }
                entry
            }
        };
        let next = match known {
            Some(entry) => entry.end(),
            None => {
                // Keys may have been left by a rebuild that was broken off, and of a journal that is gone.
                clear_files(&catalog)?;
                Offset(0)
            }
        };
        Ok(FileNamesFill { log, catalog, next })
    }

    /// Applies what the log has more; how many events that were.
    pub(crate) fn advance(&mut self, is_closing: &dyn Fn() -> bool) -> Result<u64, FileError> {
        advance(&self.log, &self.catalog, &mut self.next, is_closing)
    }

    /// The first event that the catalog does not have.
    pub(crate) fn next(&self) -> Offset {
        self.next
    }
}

/// Applies the events of `log` from `next` on, unless the engine is being closed; how many.
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
            let why = format!("an event of files is not there. entry={}", next.0);
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
        let why = format!("not an event of files. kind={kind}, entry={}", offset.0);
        return Err(FileError::Corrupt(why));
    }
    let event = FileEvent::decode(&piece.read()?)?;
    let changes = FileEventApplier::new(catalog, stamp).apply(&event)?;
    Ok(catalog.apply_in(changes, FILES_LOG, AppliedOffset { offset, stamp })?)
}

/// Forgets all of files.
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
    let found = catalog.get(&key(NAME, parent, name), cut)?;
    found.map(|(_, value)| decode(&value)).transpose()
}

/// One event on its way into the catalog. Its later changes see the earlier ones.
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
            let (_, found) = record(self.catalog, inode, Cut::below(self.stamp))?;
            self.records.insert(inode, found);
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
                // It changes the inode too, by POSIX.
                self.record(*inode)?;
                self.changes.put(&key(EXTENDED, *inode, name), stamp, value.as_deref());
            }
        }
        Ok(())
    }

    /// A name begins or ends to mean something: how many names an inode has, and the directory that
    /// a directory is in, follow from that.
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
