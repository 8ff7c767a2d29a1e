//! One mount, and its answers to the kernel.
//!
//! Files of the present are read and written ([`super::changes`]). Everything else of the tree is
//! read only. The code here serves both.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::files::{FileError, FileSystem, Inode, NAME_BYTES_MAX};
use fuser::{FileAttr, FileHandle, FopenFlags};
use hlc::Cut;
use parking_lot::Mutex;
use tokio::runtime::Handle as Runtime;

use super::attributes::{
    FILES_SHARED_TTL, FILES_TTL, PAST_TTL, PRESENT_TTL, attributes, file_type, kind_type,
    negative_entry, read_only_attributes, unread_text_attributes,
};
use super::coherence::{CacheInvalidator, MountId};
use super::errno::FuseErrno;
use super::handles::{DirectoryHandle, FuseHandle, FuseHandleTable, NodeHandle};
use super::inode_table::{InodeTable, MountNode, inode_number};
use super::interrupt::wait_unless_killed;
use crate::ViewFormat;
use crate::tree::{TreeError, ViewEntry, ViewNode, ViewTree, has_fixed_moment};

/// The number of names of the tree that one call lists.
const READDIR_NAMES_MAX: usize = 1024;
/// The number of times that a lookup is repeated when the node changes its version in the meantime.
const ATTEMPTS_MAX: usize = 5;

/// The user and group of the calling program.
#[derive(Clone, Copy, Debug)]
pub(super) struct FuseCaller {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// The reply to the kernel for a name or file: its attributes, and the time for which it may cache
/// them.
pub(super) struct EntryReply {
    pub(super) attributes: FileAttr,
    pub(super) ttl: Duration,
}

/// A name in a directory, as it is listed.
pub(super) struct ReaddirEntry {
    /// The cookie to continue after this name.
    pub(super) next: u64,
    pub(super) name: Vec<u8>,
    /// The node, without a version yet.
    pub(super) node: MountNode,
    pub(super) kind: fuser::FileType,
}

/// One mount, as one user of the machine sees it.
#[derive(Clone)]
pub(super) struct MountedTree {
    pub(super) id: MountId,
    pub(super) files: FileSystem,
    /// The tree, as far as this user may see it.
    pub(super) tree: Arc<ViewTree>,
    /// True if users see different things. Then the kernel caches no names, because it would show
    /// them to all.
    pub(super) is_guarded: bool,
    pub(super) runtime: Runtime,
    pub(super) invalidator: Arc<CacheInvalidator>,
    pub(super) nodes: Arc<InodeTable>,
    pub(super) handles: Arc<FuseHandleTable>,
    /// Held while data is appended to a file. The inode number selects the lock.
    pub(super) append_locks: Arc<[Mutex<()>]>,
    /// The data directory. Its file system determines the free space.
    pub(super) data_dir: PathBuf,
}

impl MountedTree {
    /// Blocks until an asynchronous answer is there.
    pub(super) fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        self.runtime.block_on(answer)
    }

    /// Like [`MountedTree::wait`], but for a slow answer: it stops when the caller is being killed.
    fn wait_interruptibly<T>(
        &self,
        answer: impl Future<Output = Result<T, TreeError>>,
    ) -> Result<T, TreeError> {
        let unwanted = || Err(TreeError::NotYet("the calling program is being killed".into()));
        self.wait(wait_unless_killed(answer)).unwrap_or_else(unwanted)
    }

    /// True if the lookup of a name may read all of a topic.
    pub(super) fn is_slow_lookup(&self, parent: u64, name: &OsStr) -> bool {
        match self.nodes.find(parent) {
            Ok(MountNode::Tree(ViewNode::Keys(_), _)) => true,
            Ok(MountNode::Tree(ViewNode::Topic(_), _)) => {
                let name = name.as_bytes();
                name.contains(&b'.') && !name.ends_with(b".log")
            }
            _ => false,
        }
    }

    /// True if `getattr` or `open` of that number may read all of a topic.
    pub(super) fn is_slow(&self, number: u64) -> bool {
        matches!(self.nodes.find(number), Ok(MountNode::Tree(node, _)) if is_rendered(&node)
            || matches!(node, ViewNode::Keys(_) | ViewNode::Key { .. }))
    }

    /// Looks a name up. A negative entry is an answer too, where the kernel may cache it.
    pub(super) fn look_up(&self, parent: u64, name: &OsStr) -> Result<EntryReply, FuseErrno> {
        let (parent, name) = (self.nodes.find(parent)?, name.as_bytes());
        if name.len() > NAME_BYTES_MAX {
            return Err(FuseErrno::NAME_TOO_LONG);
        }
        if let MountNode::File(directory) = parent {
            match self.files.lookup(directory, name, Cut::ALL) {
                Ok(inode) => return self.file_reply(inode),
                // It may be a name with a moment.
                Err(FileError::NotFound(_)) if name.contains(&b'@') => {}
                Err(FileError::NotFound(_)) => {
                    return Ok(EntryReply { attributes: negative_entry(), ttl: self.files_ttl() });
                }
                Err(error) => return Err(error.into()),
            }
        }
        let parent = parent.view_node();
        match self.wait_interruptibly(self.tree.lookup(&parent, name)) {
            Ok(node) => {
                let is_fixed = !name.contains(&b'@') || has_fixed_moment(name);
                let entry = self.node_reply(node)?;
                Ok(if is_fixed { entry } else { EntryReply { ttl: PRESENT_TTL, ..entry } })
            }
            // The keys of a moment can disappear when their newest record is removed, so these are
            // not cached.
            Err(TreeError::NotFound(_))
                if !parent.is_present() && !matches!(parent, ViewNode::Keys(_)) =>
            {
                Ok(EntryReply { attributes: negative_entry(), ttl: self.past_ttl() })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The time for which the kernel may cache the names and attributes of a moment.
    fn past_ttl(&self) -> Duration {
        if self.is_guarded { Duration::ZERO } else { PAST_TTL }
    }

    /// The time for which the kernel may cache the names and attributes of files.
    pub(super) fn files_ttl(&self) -> Duration {
        if self.invalidator.is_shared() { FILES_SHARED_TTL } else { FILES_TTL }
    }

    /// True if a name in a directory of files has a moment, and the file existed then.
    pub(super) fn is_past(&self, directory: Inode, name: &[u8]) -> bool {
        let parent = MountNode::File(directory).view_node();
        name.contains(&b'@') && self.wait(self.tree.lookup(&parent, name)).is_ok()
    }

    pub(super) fn file_reply(&self, inode: Inode) -> Result<EntryReply, FuseErrno> {
        let file = self.files.stat_inode(inode, Cut::ALL)?;
        Ok(EntryReply { attributes: attributes(inode_number(inode), &file), ttl: self.files_ttl() })
    }

    /// The reply for `place`, counted as one more lookup by the kernel.
    pub(super) fn counted_reply(&self, place: &MountNode) -> Result<EntryReply, FuseErrno> {
        let entry = self.current_reply(place)?;
        self.nodes.add_lookup(place, Some(entry.attributes))?;
        Ok(entry)
    }

    /// [`MountedTree::counted_reply`] for the current version of a node.
    ///
    /// The name may refer to another version at the next lookup. So the kernel must look the name
    /// up again, but it may keep what it caches of this version.
    fn node_reply(&self, node: ViewNode) -> Result<EntryReply, FuseErrno> {
        let mut tries = 1;
        loop {
            let version = self.wait(self.tree.version(&node))?;
            match self.counted_reply(&MountNode::of(node.clone(), version)) {
                Err(FuseErrno::STALE) if tries < ATTEMPTS_MAX => tries += 1,
                Ok(entry) if version != 0 => return Ok(EntryReply { ttl: PRESENT_TTL, ..entry }),
                result => return result,
            }
        }
    }

    fn current_reply(&self, place: &MountNode) -> Result<EntryReply, FuseErrno> {
        let (node, version) = match place {
            MountNode::File(inode) => return self.file_reply(*inode),
            MountNode::Tree(node, version) => (node, *version),
        };
        let number = place.number();
        let is_fixed = version != 0 || !node.is_present();
        let ttl = if is_fixed { self.past_ttl() } else { PRESENT_TTL };
        // Cached attributes are not shared: one user may know what another one may not.
        if version != 0
            && !self.is_guarded
            && let Some(attributes) = self.nodes.attributes(number)
        {
            return Ok(EntryReply { attributes, ttl });
        }
        let stat = self.wait_interruptibly(self.tree.stat(node))?;
        self.check_version(node, version)?;
        Ok(EntryReply { attributes: read_only_attributes(number, &stat), ttl })
    }

    /// Checks that what was just read is of that version.
    fn check_version(&self, node: &ViewNode, version: u64) -> Result<(), FuseErrno> {
        if version != 0 && self.wait(self.tree.version(node))? != version {
            return Err(FuseErrno::STALE);
        }
        Ok(())
    }

    pub(super) fn attributes(
        &self,
        number: u64,
        open: Option<u64>,
    ) -> Result<EntryReply, FuseErrno> {
        let place = self.nodes.find(number)?;
        let mut entry = self.current_reply(&place)?;
        if let Some(open) = open
            && let FuseHandle::Node(handle) = &*self.handles.find(open)?
        {
            // An open handle may have fewer or more bytes than the node has now.
            entry.attributes.size = self.wait(handle.open.size())?;
        }
        Ok(entry)
    }

    pub(super) fn read_link(&self, number: u64) -> Result<Vec<u8>, FuseErrno> {
        match self.nodes.find(number)? {
            MountNode::File(inode) => Ok(self.files.read_link_inode(inode, Cut::ALL)?),
            MountNode::Tree(node, version) => {
                let target = self.wait(self.tree.read_link(&node))?;
                self.check_version(&node, version)?;
                Ok(target)
            }
        }
    }

    /// Opens a file for reading, or for writing where that is possible.
    pub(super) fn open(
        &self,
        number: u64,
        to_write: bool,
    ) -> Result<(FileHandle, FopenFlags), FuseErrno> {
        match self.nodes.find(number)? {
            MountNode::File(inode) => {
                let file = self.files.open_inode(inode)?;
                // All changes of the file go through the kernel, or it is notified of them.
                Ok((self.handles.add(FuseHandle::File(file))?, FopenFlags::FOPEN_KEEP_CACHE))
            }
            MountNode::Tree(..) if to_write => Err(FuseErrno::READ_ONLY),
            MountNode::Tree(node, version) => {
                let open = self.wait_interruptibly(self.tree.open(&node))?;
                // On an error the kernel looks the name up again, if it has one.
                self.check_version(&node, version)?;
                // Two handles of the present may have different bytes: each reads its own.
                let flags = if node.is_present() {
                    FopenFlags::FOPEN_DIRECT_IO
                } else {
                    FopenFlags::FOPEN_KEEP_CACHE
                };
                let handle = NodeHandle { open, node, tree: Arc::clone(&self.tree) };
                Ok((self.handles.add(FuseHandle::Node(handle))?, flags))
            }
        }
    }

    pub(super) fn read(&self, open: u64, offset: u64, length: u32) -> Result<Bytes, FuseErrno> {
        match &*self.handles.find(open)? {
            FuseHandle::File(file) => Ok(file.read_at(Cut::ALL, offset, length as usize)?),
            FuseHandle::Node(handle) => {
                // A rule that is removed ends access to what is open, too.
                handle.tree.check_contents(&handle.node)?;
                Ok(self.wait(handle.open.read(offset, length as usize))?)
            }
            FuseHandle::Directory(_) => Err(FuseErrno::IS_DIRECTORY),
        }
    }

    // ---- Directories ----

    pub(super) fn open_directory(
        &self,
        number: u64,
    ) -> Result<(FileHandle, FopenFlags), FuseErrno> {
        let place = self.nodes.find(number)?;
        let past = match &place {
            // The keys of a moment become fewer when retention removes records.
            MountNode::Tree(ViewNode::Keys(_), _) | MountNode::File(_) => false,
            MountNode::Tree(node, _) => !node.is_present() && !self.is_guarded,
        };
        let flags = if past {
            FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE
        } else {
            FopenFlags::empty()
        };
        let listing = DirectoryHandle { node: place, names: Mutex::default() };
        Ok((self.handles.add(FuseHandle::Directory(listing))?, flags))
    }

    /// The names in an open directory after the cookie `after`.
    ///
    /// A directory of files is listed as it was when the reader began. Names that appear or
    /// disappear in the meantime move no other name.
    pub(super) fn names(&self, open: u64, after: u64) -> Result<Vec<ReaddirEntry>, FuseErrno> {
        let handle = self.handles.find(open)?;
        let FuseHandle::Directory(listing) = &*handle else { return Err(FuseErrno::NOT_DIRECTORY) };
        let directory = listing.node.clone();
        let mut entries = Vec::new();
        for (next, name) in [(1, &b"."[..]), (2, b"..")] {
            if after < next {
                let (name, place) = (name.to_vec(), directory.clone());
                entries.push(ReaddirEntry {
                    next,
                    name,
                    node: place,
                    kind: fuser::FileType::Directory,
                });
            }
        }
        match &directory {
            MountNode::File(inode) => {
                entries.extend(self.file_names(*inode, None, listing, after)?);
            }
            MountNode::Tree(ViewNode::File { inode, cut }, _) => {
                entries.extend(self.file_names(*inode, *cut, listing, after)?);
            }
            MountNode::Tree(node, _) => {
                let behind = if after < FIRST_COOKIE { 0 } else { after };
                let children =
                    self.wait_interruptibly(self.tree.list(node, behind, READDIR_NAMES_MAX))?;
                entries.extend(children.into_iter().map(readdir_entry));
            }
        }
        Ok(entries)
    }

    fn file_names(
        &self,
        inode: Inode,
        cut: Option<Cut>,
        listing: &DirectoryHandle,
        after: u64,
    ) -> Result<Vec<ReaddirEntry>, FuseErrno> {
        let mut names = listing.names.lock();
        if after == 0 || names.is_none() {
            *names = Some(self.files.list_inode(inode, cut.unwrap_or(Cut::ALL))?);
        }
        let names = names.as_ref().expect("it was just put there");
        let skip = usize::try_from(after.saturating_sub(2)).unwrap_or(usize::MAX);
        let page = names.iter().enumerate().skip(skip).take(READDIR_NAMES_MAX);
        Ok(page
            .map(|(nth, entry)| ReaddirEntry {
                next: nth as u64 + 3,
                name: entry.name.clone(),
                node: MountNode::of(ViewNode::File { inode: entry.inode, cut }, 0),
                kind: file_type(entry.kind),
            })
            .collect())
    }

    /// The reply for a name in a listing; `None` if the name is gone by now.
    pub(super) fn name_reply(&self, entry: &ReaddirEntry) -> Option<EntryReply> {
        match &entry.node {
            MountNode::File(_) => self.counted_reply(&entry.node).ok(),
            MountNode::Tree(node, _) if is_rendered(node) => self.unread_text_reply(node).ok(),
            // A partition of which nothing is left still has a name.
            MountNode::Tree(node @ ViewNode::Partition { .. }, _) => {
                self.node_reply(node.clone()).or_else(|_| self.unread_text_reply(node)).ok()
            }
            MountNode::Tree(node, _) => self.node_reply(node.clone()).ok(),
        }
    }

    /// The reply for a text in a listing. Its length is unknown, because finding it would read the
    /// whole partition. The kernel requests it again if a program needs it.
    fn unread_text_reply(&self, node: &ViewNode) -> Result<EntryReply, FuseErrno> {
        let version = self.wait(self.tree.version(node)).unwrap_or(0);
        let place = MountNode::of(node.clone(), version);
        let cached = if self.is_guarded { None } else { self.nodes.attributes(place.number()) };
        let attributes = cached.unwrap_or_else(|| unread_text_attributes(place.number()));
        self.nodes.add_lookup(&place, None)?;
        Ok(EntryReply { attributes, ttl: PRESENT_TTL })
    }

    /// Takes back the count of a lookup: the kernel did not receive this reply.
    pub(super) fn undo_lookup(&self, entry: &EntryReply) {
        self.nodes.forget(entry.attributes.ino.0, 1);
    }

    /// The directory of files with the number `parent`.
    pub(super) fn directory(&self, parent: u64) -> Result<Inode, FuseErrno> {
        match self.nodes.find(parent)? {
            MountNode::File(inode) => Ok(inode),
            MountNode::Tree(..) => Err(FuseErrno::READ_ONLY),
        }
    }

    /// The file with the number `number`, which must be writable.
    pub(super) fn file(&self, number: u64) -> Result<Inode, FuseErrno> {
        self.directory(number)
    }

    // ---- Extended attributes ----

    pub(super) fn extended_attribute(
        &self,
        number: u64,
        name: &OsStr,
    ) -> Result<Vec<u8>, FuseErrno> {
        let node = self.nodes.find(number)?.view_node();
        if !is_stored_attribute(name.as_bytes()) {
            return Err(FuseErrno::NO_DATA);
        }
        self.tree.extended_attribute(&node, name.as_bytes())?.ok_or(FuseErrno::NO_DATA)
    }

    /// The names of all extended attributes, each with a zero byte after it.
    pub(super) fn extended_attribute_names(&self, number: u64) -> Result<Vec<u8>, FuseErrno> {
        let names = self.tree.extended_attribute_names(&self.nodes.find(number)?.view_node())?;
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }
}

/// The lowest cookie of the tree.
const FIRST_COOKIE: u64 = 16;

fn readdir_entry(child: ViewEntry) -> ReaddirEntry {
    let kind = kind_type(child.kind);
    ReaddirEntry { next: child.cookie, name: child.name, node: MountNode::of(child.node, 0), kind }
}

/// True if the node's bytes come from reading all of a partition.
fn is_rendered(node: &ViewNode) -> bool {
    matches!(node, ViewNode::Partition { format, .. } if *format != ViewFormat::Raw)
}

/// True if attributes of that name are stored: those of programs (`user.`) and of root
/// (`trusted.`). The kernel would not honour the others here (capabilities, access lists).
pub(super) fn is_stored_attribute(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name.starts_with(b"trusted.")
}
