//! One mount: what the kernel asks of it, answered.
//!
//! Files of the present are read and written ([`super::changes`]); everything else of the tree is read
//! only. What is said here holds for both.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::files::{FileError, Files, Inode, NAME_BYTES_MAX};
use fuser::{FileAttr, FileHandle, FopenFlags};
use hlc::Cut;
use parking_lot::Mutex;
use tokio::runtime::Handle as Runtime;

use super::asker::answer_of;
use super::attributes::{
    FILES_SHARED_TTL, FILES_TTL, PAST_TTL, PRESENT_TTL, absent, attributes, file_type, kind_type,
    read_only, unseen,
};
use super::coherence::{Audience, MountId};
use super::handles::{Handle, Handles, Listing};
use super::nodes::{Nodes, Place, number};
use super::refused::Refused;
use crate::Format;
use crate::tree::{Listed, Node, Tree, TreeError};

/// How many names of the tree are asked for at once.
const NAMES_AT_ONCE: usize = 1024;
/// How often something is looked at again that became another version meanwhile.
const TRIES: usize = 5;

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// What the kernel is told of a name or file, and for how long it may believe it.
pub(super) struct Told {
    pub(super) attributes: FileAttr,
    pub(super) ttl: Duration,
}

/// A name in a directory, as it is told.
pub(super) struct NamedNode {
    /// Where to go on behind it.
    pub(super) next: u64,
    pub(super) name: Vec<u8>,
    /// Not yet in any version.
    pub(super) place: Place,
    pub(super) kind: fuser::FileType,
}

/// One mount.
pub(super) struct Mounted {
    pub(super) id: MountId,
    pub(super) files: Files,
    pub(super) tree: Arc<Tree>,
    pub(super) runtime: Runtime,
    pub(super) audience: Arc<Audience>,
    pub(super) nodes: Nodes,
    pub(super) handles: Handles,
    /// Held while something is put at the end of a file; which one follows from its number.
    pub(super) ends: Arc<[Mutex<()>]>,
    /// Where the data lies: how much room there is follows from that.
    pub(super) data_dir: PathBuf,
}

impl Mounted {
    /// Waits for what is answered from elsewhere.
    pub(super) fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        self.runtime.block_on(answer)
    }

    /// [`Mounted::wait`], for what may take long, as long as somebody waits for it.
    fn wait_long<T>(
        &self,
        answer: impl Future<Output = Result<T, TreeError>>,
    ) -> Result<T, TreeError> {
        let unwanted = || Err(TreeError::NotYet("whoever asked is being killed".into()));
        self.wait(answer_of(answer)).unwrap_or_else(unwanted)
    }

    /// Whether to look a name up may take reading all of a topic.
    pub(super) fn looks_up_long(&self, parent: u64, name: &OsStr) -> bool {
        match self.nodes.find(parent) {
            Ok(Place::Tree(Node::Keys(_), _)) => true,
            Ok(Place::Tree(Node::Topic(_), _)) => {
                let name = name.as_bytes();
                name.contains(&b'.') && !name.ends_with(b".log")
            }
            _ => false,
        }
    }

    /// Whether to know or open what has that number may take so.
    pub(super) fn is_long(&self, number: u64) -> bool {
        matches!(self.nodes.find(number), Ok(Place::Tree(node, _)) if is_text(&node)
            || matches!(node, Node::Keys(_) | Node::Key { .. }))
    }

    /// What a name means. A name that is not there is an answer too, where it may be remembered.
    pub(super) fn look_up(&self, parent: u64, name: &OsStr) -> Result<Told, Refused> {
        let (parent, name) = (self.nodes.find(parent)?, name.as_bytes());
        if name.len() > NAME_BYTES_MAX {
            return Err(Refused::NAME_TOO_LONG);
        }
        if let Place::File(directory) = parent {
            match self.files.lookup(directory, name, Cut::ALL) {
                Ok(inode) => return self.told_of_file(inode),
                // It may be a name and a moment.
                Err(FileError::NotFound(_)) if name.contains(&b'@') => {}
                Err(FileError::NotFound(_)) => {
                    return Ok(Told { attributes: absent(), ttl: self.files_ttl() });
                }
                Err(error) => return Err(error.into()),
            }
        }
        let parent = parent.node();
        match self.wait_long(self.tree.lookup(&parent, name)) {
            Ok(node) => self.tell_node(node),
            // Whoever is asked for a key may find that what was its newest record is gone.
            Err(TreeError::NotFound(_))
                if !parent.is_present() && !matches!(parent, Node::Keys(_)) =>
            {
                Ok(Told { attributes: absent(), ttl: PAST_TTL })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// How long the kernel may believe what it knows of files.
    pub(super) fn files_ttl(&self) -> Duration {
        if self.audience.is_shared() { FILES_SHARED_TTL } else { FILES_TTL }
    }

    /// Whether a name in a directory of files is one with a moment, and there was something then.
    pub(super) fn is_past(&self, directory: Inode, name: &[u8]) -> bool {
        let parent = Place::File(directory).node();
        name.contains(&b'@') && self.wait(self.tree.lookup(&parent, name)).is_ok()
    }

    pub(super) fn told_of_file(&self, inode: Inode) -> Result<Told, Refused> {
        let file = self.files.stat_inode(inode, Cut::ALL)?;
        Ok(Told { attributes: attributes(number(inode), &file), ttl: self.files_ttl() })
    }

    /// What the kernel is told of `place`, which it then knows once more.
    pub(super) fn tell(&self, place: &Place) -> Result<Told, Refused> {
        let told = self.known(place)?;
        self.nodes.tell(place, Some(told.attributes))?;
        Ok(told)
    }

    /// [`Mounted::tell`], of what a node is by now. The name may mean another version when it is asked
    /// for again, so it is asked for again; what the kernel keeps of this one it finds again.
    fn tell_node(&self, node: Node) -> Result<Told, Refused> {
        let mut tries = 1;
        loop {
            let version = self.wait(self.tree.version(&node))?;
            match self.tell(&Place::of(node.clone(), version)) {
                Err(Refused::STALE) if tries < TRIES => tries += 1,
                Ok(told) if version != 0 => return Ok(Told { ttl: PRESENT_TTL, ..told }),
                told => return told,
            }
        }
    }

    fn known(&self, place: &Place) -> Result<Told, Refused> {
        let (node, version) = match place {
            Place::File(inode) => return self.told_of_file(*inode),
            Place::Tree(node, version) => (node, *version),
        };
        let number = place.number();
        let is_fixed = version != 0 || !node.is_present();
        let ttl = if is_fixed { PAST_TTL } else { PRESENT_TTL };
        if version != 0
            && let Some(attributes) = self.nodes.attributes(number)
        {
            return Ok(Told { attributes, ttl });
        }
        let stat = self.wait_long(self.tree.stat(node))?;
        self.check_version(node, version)?;
        Ok(Told { attributes: read_only(number, &stat), ttl })
    }

    /// What was just looked at is of that version.
    fn check_version(&self, node: &Node, version: u64) -> Result<(), Refused> {
        if version != 0 && self.wait(self.tree.version(node))? != version {
            return Err(Refused::STALE);
        }
        Ok(())
    }

    /// What is known of a node.
    pub(super) fn attributes(&self, number: u64, open: Option<u64>) -> Result<Told, Refused> {
        let place = self.nodes.find(number)?;
        let mut told = self.known(&place)?;
        if let Some(open) = open
            && let Handle::Open(open) = &*self.handles.find(open)?
        {
            // What is open may be less than what is there now, or more.
            told.attributes.size = self.wait(open.size())?;
        }
        Ok(told)
    }

    pub(super) fn read_link(&self, number: u64) -> Result<Vec<u8>, Refused> {
        match self.nodes.find(number)? {
            Place::File(inode) => Ok(self.files.read_link_inode(inode, Cut::ALL)?),
            Place::Tree(node, version) => {
                let target = self.wait(self.tree.read_link(&node))?;
                self.check_version(&node, version)?;
                Ok(target)
            }
        }
    }

    /// Opens for reading, or writing if that can be.
    pub(super) fn open(
        &self,
        number: u64,
        to_write: bool,
    ) -> Result<(FileHandle, FopenFlags), Refused> {
        match self.nodes.find(number)? {
            Place::File(inode) => {
                let file = self.files.open_inode(inode)?;
                // All that changes it comes through the kernel, or it is told.
                Ok((self.handles.add(Handle::File(file))?, FopenFlags::FOPEN_KEEP_CACHE))
            }
            Place::Tree(..) if to_write => Err(Refused::READ_ONLY),
            Place::Tree(node, version) => {
                let open = self.wait_long(self.tree.open(&node))?;
                // The kernel looks the name up again, if it has one.
                self.check_version(&node, version)?;
                // Two that have a present open may have different bytes of it: each reads its own.
                let flags = match node.is_present() {
                    true => FopenFlags::FOPEN_DIRECT_IO,
                    false => FopenFlags::FOPEN_KEEP_CACHE,
                };
                Ok((self.handles.add(Handle::Open(open))?, flags))
            }
        }
    }

    pub(super) fn read(&self, open: u64, offset: u64, length: u32) -> Result<Bytes, Refused> {
        match &*self.handles.find(open)? {
            Handle::File(file) => Ok(file.read_at(Cut::ALL, offset, length as usize)?),
            Handle::Open(open) => Ok(self.wait(open.read(offset, length as usize))?),
            Handle::Listing(_) => Err(Refused::IS_DIRECTORY),
        }
    }

    // ---- Directories ----

    pub(super) fn open_directory(&self, number: u64) -> Result<(FileHandle, FopenFlags), Refused> {
        let place = self.nodes.find(number)?;
        let past = match &place {
            // The keys of a moment are fewer once records are given up.
            Place::Tree(Node::Keys(_), _) | Place::File(_) => false,
            Place::Tree(node, _) => !node.is_present(),
        };
        let flags = match past {
            true => FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
            false => FopenFlags::empty(),
        };
        let listing = Listing { place, names: Mutex::default() };
        Ok((self.handles.add(Handle::Listing(listing))?, flags))
    }

    /// Names of an open directory, those behind `after`. A directory of files is listed as it was when
    /// the reader began: what comes and goes meanwhile moves nothing.
    pub(super) fn names(&self, open: u64, after: u64) -> Result<Vec<NamedNode>, Refused> {
        let handle = self.handles.find(open)?;
        let Handle::Listing(listing) = &*handle else { return Err(Refused::NOT_DIRECTORY) };
        let here = listing.place.clone();
        let mut named = Vec::new();
        for (next, name) in [(1, &b"."[..]), (2, b"..")] {
            if after < next {
                let (name, place) = (name.to_vec(), here.clone());
                named.push(NamedNode { next, name, place, kind: fuser::FileType::Directory });
            }
        }
        match &here {
            Place::File(inode) => {
                named.extend(self.file_names(*inode, None, listing, after)?);
            }
            Place::Tree(Node::File { inode, cut }, _) => {
                named.extend(self.file_names(*inode, *cut, listing, after)?);
            }
            Place::Tree(node, _) => {
                let behind = if after < FIRST_COOKIE { 0 } else { after };
                let listed = self.wait_long(self.tree.list(node, behind, NAMES_AT_ONCE))?;
                named.extend(listed.into_iter().map(named_node));
            }
        }
        Ok(named)
    }

    fn file_names(
        &self,
        inode: Inode,
        cut: Option<Cut>,
        listing: &Listing,
        after: u64,
    ) -> Result<Vec<NamedNode>, Refused> {
        let mut names = listing.names.lock();
        if after == 0 || names.is_none() {
            *names = Some(self.files.list_inode(inode, cut.unwrap_or(Cut::ALL))?);
        }
        let names = names.as_ref().expect("it was just put there");
        let skip = usize::try_from(after.saturating_sub(2)).unwrap_or(usize::MAX);
        let left = names.iter().enumerate().skip(skip).take(NAMES_AT_ONCE);
        Ok(left
            .map(|(nth, entry)| NamedNode {
                next: nth as u64 + 3,
                name: entry.name.clone(),
                place: Place::of(Node::File { inode: entry.inode, cut }, 0),
                kind: file_type(entry.kind),
            })
            .collect())
    }

    /// What the kernel is told of a name in a directory that it lists; `None` if it is gone by now.
    pub(super) fn told_of_name(&self, named: &NamedNode) -> Option<Told> {
        match &named.place {
            Place::File(_) => self.tell(&named.place).ok(),
            Place::Tree(node, _) if is_text(node) => self.tell_unseen(node).ok(),
            // One of which nothing is kept has a name nevertheless.
            Place::Tree(node @ Node::Partition { .. }, _) => {
                self.tell_node(node.clone()).or_else(|_| self.tell_unseen(node)).ok()
            }
            Place::Tree(node, _) => self.tell_node(node.clone()).ok(),
        }
    }

    /// What the kernel is told of a text in a listing: to know how long it is would mean to read all of
    /// it. It asks again, if somebody wants to know.
    fn tell_unseen(&self, node: &Node) -> Result<Told, Refused> {
        let version = self.wait(self.tree.version(node)).unwrap_or(0);
        let place = Place::of(node.clone(), version);
        let known = self.nodes.attributes(place.number());
        let attributes = known.unwrap_or_else(|| unseen(place.number()));
        self.nodes.tell(&place, None)?;
        Ok(Told { attributes, ttl: PRESENT_TTL })
    }

    /// The kernel was not told of it after all.
    pub(super) fn untold(&self, told: &Told) {
        self.nodes.forget(told.attributes.ino.0, 1);
    }

    /// The directory of files with the number `parent`.
    pub(super) fn directory(&self, parent: u64) -> Result<Inode, Refused> {
        match self.nodes.find(parent)? {
            Place::File(inode) => Ok(inode),
            Place::Tree(..) => Err(Refused::READ_ONLY),
        }
    }

    /// The file with the number `number`, which can be changed.
    pub(super) fn file(&self, number: u64) -> Result<Inode, Refused> {
        self.directory(number)
    }

    // ---- Extended attributes ----

    pub(super) fn extended(&self, number: u64, name: &OsStr) -> Result<Vec<u8>, Refused> {
        let node = self.nodes.find(number)?.node();
        if !is_kept(name.as_bytes()) {
            return Err(Refused::NO_DATA);
        }
        self.tree.extended(&node, name.as_bytes())?.ok_or(Refused::NO_DATA)
    }

    /// The names of all, each with a zero behind it.
    pub(super) fn extended_names(&self, number: u64) -> Result<Vec<u8>, Refused> {
        let names = self.tree.extended_names(&self.nodes.find(number)?.node())?;
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }
}

/// Cookies of the tree are not below.
const FIRST_COOKIE: u64 = 16;

fn named_node(listed: Listed) -> NamedNode {
    let kind = kind_type(listed.kind);
    NamedNode { next: listed.cookie, name: listed.name, place: Place::of(listed.node, 0), kind }
}

/// Whether it is made by reading all of a partition.
fn is_text(node: &Node) -> bool {
    matches!(node, Node::Partition { format, .. } if *format != Format::Raw)
}

/// Whether attributes of that name are kept: a program's own, and root's. What others mean to the kernel
/// (capabilities, access lists) it would not find here.
pub(super) fn is_kept(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name.starts_with(b"trusted.")
}
