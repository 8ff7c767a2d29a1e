//! The znodes of a tree in little memory. A znode without children is one piece of memory: name,
//! what is known of it, and data, about 35 bytes more than name and data have. Data beyond a budget
//! is left out, and read again when it is asked for.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};

use admission::Holder;
use serde::{Deserialize, Serialize};

use crate::acl::Acl;
use crate::children::ChildIndex;
use crate::meta::{ZnodeMeta, ZnodeOwner};
use crate::quota::is_figures_name;

/// The most znodes that are looked at to make room after one change.
const LOOKED_AT_MAX: usize = 4096;
/// Shorter data stays: leaving it out saves little.
const EVICTED_BYTES_MIN: usize = 48;
/// More than [`PackedMeta`] takes.
const PACKED_META_BYTES_MAX: usize = 128;

/// The place of a znode in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ZnodeSlot(pub(crate) u32);

pub(crate) const ROOT: ZnodeSlot = ZnodeSlot(0);

/// A place in [`SharedValues`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SharedIndex(u32);

/// The indexes of a znode's list, and of the holder that the znode is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ZnodeLinks {
    acl: SharedIndex,
    holder: SharedIndex,
}

/// The metadata of a znode in a table.
pub(crate) type TableMeta = ZnodeMeta<ZnodeLinks>;

/// The data of a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZnodeData<'a> {
    /// Null differs from empty.
    Here(Option<&'a [u8]>),
    /// It is not in memory: [`crate::ZnodeHistory::data_since`] reads it, [`crate::Znodes::fetch`]
    /// brings it back.
    Elsewhere,
}

impl<'a> ZnodeData<'a> {
    /// Data that is in memory.
    pub fn here(self) -> Option<Option<&'a [u8]>> {
        match self {
            ZnodeData::Here(data) => Some(data),
            ZnodeData::Elsewhere => None,
        }
    }

    fn place(self) -> DataPlace {
        match self {
            ZnodeData::Here(None) => DataPlace::Null,
            ZnodeData::Here(Some(_)) => DataPlace::Here,
            ZnodeData::Elsewhere => DataPlace::Elsewhere,
        }
    }

    fn bytes(self) -> &'a [u8] {
        match self {
            ZnodeData::Here(Some(data)) => data,
            ZnodeData::Here(None) | ZnodeData::Elsewhere => &[],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum DataPlace {
    Null,
    Here,
    Elsewhere,
}

/// A znode's [`TableMeta`], in few bytes: most of its numbers are those of its creation.
#[derive(Serialize, Deserialize)]
struct PackedMeta {
    czxid: i64,
    mzxid_since: i64,
    pzxid_since: i64,
    ctime: i64,
    mtime_since: i64,
    version: i32,
    creates: i32,
    aversion: i32,
    data_length: i32,
    owner: ZnodeOwner,
    acl: ZnodeLinks,
    place: DataPlace,
}

/// A znode without children: the length of its name, the name, [`PackedMeta`], and data. Empty in a
/// slot that is free.
#[derive(Debug, Default)]
struct LeafZnode(Box<[u8]>);

impl LeafZnode {
    fn new(name: &[u8], meta: &TableMeta, data: ZnodeData<'_>) -> LeafZnode {
        let packed = PackedMeta {
            czxid: meta.czxid,
            mzxid_since: meta.mzxid - meta.czxid,
            pzxid_since: meta.pzxid - meta.czxid,
            ctime: meta.ctime,
            mtime_since: meta.mtime - meta.ctime,
            version: meta.version,
            creates: meta.creates,
            aversion: meta.aversion,
            data_length: meta.data_length,
            owner: meta.owner,
            acl: meta.acl,
            place: data.place(),
        };
        let mut scratch = [0; PACKED_META_BYTES_MAX];
        let packed = postcard::to_slice(&packed, &mut scratch).expect("it has bounded numbers");
        let mut length = [0; size_of::<u64>()];
        let length = postcard::to_slice(&(name.len() as u32), &mut length).expect("it is short");
        LeafZnode([length, name, packed, data.bytes()].concat().into())
    }

    fn name(&self) -> &[u8] {
        self.split().0
    }

    fn split(&self) -> (&[u8], &[u8]) {
        let packed = postcard::take_from_bytes::<u32>(&self.0);
        let (length, rest) = packed.expect("it was written in one piece");
        rest.split_at(length as usize)
    }

    fn unpack(&self) -> (&[u8], TableMeta, ZnodeData<'_>) {
        let (name, rest) = self.split();
        let (packed, data): (PackedMeta, _) =
            postcard::take_from_bytes(rest).expect("it was written in one piece");
        let meta = ZnodeMeta {
            czxid: packed.czxid,
            mzxid: packed.czxid + packed.mzxid_since,
            pzxid: packed.czxid + packed.pzxid_since,
            ctime: packed.ctime,
            mtime: packed.ctime + packed.mtime_since,
            version: packed.version,
            creates: packed.creates,
            aversion: packed.aversion,
            children: 0,
            data_length: packed.data_length,
            owner: packed.owner,
            acl: packed.acl,
        };
        let data = match packed.place {
            DataPlace::Null => ZnodeData::Here(None),
            DataPlace::Here => ZnodeData::Here(Some(data)),
            DataPlace::Elsewhere => ZnodeData::Elsewhere,
        };
        (name, meta, data)
    }
}

/// A znode that has, or had, children.
#[derive(Debug)]
struct InnerZnode {
    name: Box<[u8]>,
    /// Its number of children is that of `children`.
    meta: TableMeta,
    place: DataPlace,
    data: Box<[u8]>,
    children: ChildIndex,
}

impl InnerZnode {
    fn data(&self) -> ZnodeData<'_> {
        match self.place {
            DataPlace::Null => ZnodeData::Here(None),
            DataPlace::Here => ZnodeData::Here(Some(&self.data)),
            DataPlace::Elsewhere => ZnodeData::Elsewhere,
        }
    }
}

#[derive(Debug)]
enum StoredZnode {
    Leaf(LeafZnode),
    Inner(Box<InnerZnode>),
}

const _: () = assert!(size_of::<StoredZnode>() == 16);

impl StoredZnode {
    /// In UTF-8.
    fn name(&self) -> &[u8] {
        match self {
            StoredZnode::Leaf(leaf) => leaf.name(),
            StoredZnode::Inner(inner) => &inner.name,
        }
    }

    fn meta(&self) -> TableMeta {
        match self {
            StoredZnode::Leaf(leaf) => leaf.unpack().1,
            StoredZnode::Inner(inner) => {
                ZnodeMeta { children: inner.children.len() as i32, ..inner.meta }
            }
        }
    }

    fn data(&self) -> ZnodeData<'_> {
        match self {
            StoredZnode::Leaf(leaf) => leaf.unpack().2,
            StoredZnode::Inner(inner) => inner.data(),
        }
    }

    fn replace(&mut self, meta: TableMeta, data: ZnodeData<'_>) {
        match self {
            StoredZnode::Leaf(leaf) => *leaf = LeafZnode::new(leaf.name(), &meta, data),
            StoredZnode::Inner(inner) => {
                (inner.meta, inner.place, inner.data) = (meta, data.place(), data.bytes().into());
            }
        }
    }

    /// The znode as one that can have children.
    fn inner(&mut self) -> &mut InnerZnode {
        if let StoredZnode::Leaf(leaf) = self {
            let (name, meta, data) = leaf.unpack();
            let (place, bytes) = (data.place(), data.bytes());
            let (name, data, children) = (name.into(), bytes.into(), ChildIndex::default());
            *self = StoredZnode::Inner(Box::new(InnerZnode { name, meta, place, data, children }));
        }
        match self {
            StoredZnode::Inner(inner) => inner,
            StoredZnode::Leaf(_) => unreachable!("it was just made one that can have children"),
        }
    }
}

/// Values that many znodes have, such as their lists, each once.
#[derive(Debug)]
struct SharedValues<T> {
    places: HashMap<T, SharedIndex, ahash::RandomState>,
    /// Each value, and how many znodes have it; `None` in a place that is free.
    values: Vec<Option<(T, u64)>>,
    free: Vec<SharedIndex>,
}

impl<T: Clone + Eq + Hash> SharedValues<T> {
    fn new() -> SharedValues<T> {
        SharedValues { places: HashMap::default(), values: Vec::new(), free: Vec::new() }
    }

    fn get(&self, index: SharedIndex) -> &T {
        &self.values[index.0 as usize].as_ref().expect("some znode has it").0
    }

    /// Each value, and how many znodes have it.
    fn iter(&self) -> impl Iterator<Item = &(T, u64)> {
        self.values.iter().flatten()
    }

    /// For another znode with the value.
    fn hold(&mut self, value: &T) -> SharedIndex {
        if let Some(index) = self.places.get(value) {
            if let Some((_, znodes)) = &mut self.values[index.0 as usize] {
                *znodes += 1;
            }
            return *index;
        }
        let counted = Some((value.clone(), 1));
        let index = match self.free.pop() {
            Some(index) => {
                self.values[index.0 as usize] = counted;
                index
            }
            None => {
                self.values.push(counted);
                SharedIndex(u32::try_from(self.values.len() - 1).expect("fewer than znodes"))
            }
        };
        self.places.insert(value.clone(), index);
        index
    }

    /// A znode does not have the value any more.
    fn release(&mut self, index: SharedIndex) {
        let place = &mut self.values[index.0 as usize];
        let (value, znodes) = place.as_mut().expect("some znode has it");
        *znodes -= 1;
        if *znodes == 0 {
            self.places.remove(value);
            *place = None;
            self.free.push(index);
        }
    }
}

/// All znodes, by slot, and as a tree.
#[derive(Debug)]
pub(crate) struct ZnodeTable {
    nodes: Vec<StoredZnode>,
    /// True for each that was used since the hand passed it.
    used: Vec<AtomicBool>,
    free: Vec<ZnodeSlot>,
    acls: SharedValues<Acl>,
    holders: SharedValues<Holder>,
    /// The bytes of data in memory, and the most that may be.
    cached_bytes: u64,
    cached_bytes_max: u64,
    /// The number of znodes with their data elsewhere.
    elsewhere: usize,
    /// The slot that is looked at next to make room.
    hand: usize,
}

impl ZnodeTable {
    /// The root alone.
    pub(crate) fn new(root: &ZnodeMeta, holder: &Holder, cached_bytes_max: u64) -> ZnodeTable {
        let mut table = ZnodeTable {
            nodes: Vec::new(),
            used: Vec::new(),
            free: Vec::new(),
            acls: SharedValues::new(),
            holders: SharedValues::new(),
            cached_bytes: 0,
            cached_bytes_max,
            elsewhere: 0,
            hand: 0,
        };
        let meta = table.hold(root, holder);
        table.place(LeafZnode::new(b"", &meta, ZnodeData::Here(Some(&[]))));
        table
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// The number of znodes with their data elsewhere.
    pub(crate) fn elsewhere(&self) -> usize {
        self.elsewhere
    }

    /// The bytes of data in memory.
    pub(crate) fn cached_bytes(&self) -> u64 {
        self.cached_bytes
    }

    pub(crate) fn name(&self, slot: ZnodeSlot) -> &str {
        std::str::from_utf8(self.name_bytes(slot)).expect("a name is text")
    }

    fn name_bytes(&self, slot: ZnodeSlot) -> &[u8] {
        self.node(slot).name()
    }

    pub(crate) fn meta(&self, slot: ZnodeSlot) -> TableMeta {
        self.node(slot).meta()
    }

    pub(crate) fn acl(&self, links: ZnodeLinks) -> &Acl {
        self.acls.get(links.acl)
    }

    /// The holder that a znode is charged to.
    pub(crate) fn holder(&self, links: ZnodeLinks) -> &Holder {
        self.holders.get(links.holder)
    }

    /// All lists, each with the number of znodes that have it.
    pub(crate) fn acls(&self) -> impl Iterator<Item = &(Acl, u64)> {
        self.acls.iter()
    }

    /// A znode's data; it counts as used.
    pub(crate) fn data(&self, slot: ZnodeSlot) -> ZnodeData<'_> {
        let used = &self.used[slot.0 as usize];
        if !used.load(Ordering::Relaxed) {
            used.store(true, Ordering::Relaxed);
        }
        self.node(slot).data()
    }

    /// The child with a name.
    pub(crate) fn child(&self, parent: ZnodeSlot, name: &str) -> Option<ZnodeSlot> {
        match self.node(parent) {
            StoredZnode::Leaf(_) => None,
            StoredZnode::Inner(inner) => {
                inner.children.get(name.as_bytes(), |slot| self.name_bytes(slot))
            }
        }
    }

    /// In the order of their names.
    pub(crate) fn children(&self, parent: ZnodeSlot) -> ZnodeChildren<'_> {
        let slots: Box<dyn Iterator<Item = ZnodeSlot>> = match self.node(parent) {
            StoredZnode::Leaf(_) => Box::new(std::iter::empty()),
            StoredZnode::Inner(inner) => Box::new(inner.children.slots()),
        };
        ZnodeChildren { slots, left: self.child_count(parent) }
    }

    pub(crate) fn child_count(&self, parent: ZnodeSlot) -> usize {
        match self.node(parent) {
            StoredZnode::Leaf(_) => 0,
            StoredZnode::Inner(inner) => inner.children.len(),
        }
    }

    /// Adds a znode; `None` if its parent has a child with its name.
    pub(crate) fn insert(
        &mut self,
        parent: ZnodeSlot,
        name: &str,
        meta: &ZnodeMeta,
        data: Option<&[u8]>,
        holder: &Holder,
    ) -> Option<ZnodeSlot> {
        let (name, shared) = (name.as_bytes(), self.hold(meta, holder));
        let slot = self.place(LeafZnode::new(name, &shared, ZnodeData::Here(data)));
        let mut children = std::mem::take(&mut self.node_mut(parent).inner().children);
        let is_new = children.insert(name, slot, |slot| self.name_bytes(slot));
        self.node_mut(parent).inner().children = children;
        if !is_new {
            self.release(shared.acl);
            self.vacate(slot);
            return None;
        }
        self.cached_bytes += data.map_or(0, <[u8]>::len) as u64;
        self.make_room();
        Some(slot)
    }

    /// Removes a znode and returns its stat. Returns `None`, and removes nothing, if the znode does
    /// not exist or has children.
    pub(crate) fn remove(&mut self, parent: ZnodeSlot, name: &str) -> Option<ZnodeMeta> {
        let slot = self.child(parent, name)?;
        if self.child_count(slot) > 0 {
            return None;
        }
        let mut children = std::mem::take(&mut self.node_mut(parent).inner().children);
        children.remove(name.as_bytes(), |slot| self.name_bytes(slot));
        self.node_mut(parent).inner().children = children;
        let meta = self.meta(slot);
        self.forget_data(slot);
        let removed = meta.with_acl(Acl::clone(self.acl(meta.acl)));
        self.release(meta.acl);
        self.vacate(slot);
        Some(removed)
    }

    /// Changes what is known of a znode but its list and the number of its children, and returns
    /// it.
    pub(crate) fn update(
        &mut self,
        slot: ZnodeSlot,
        change: impl FnOnce(&mut TableMeta),
    ) -> TableMeta {
        let node = self.node_mut(slot);
        if let StoredZnode::Inner(inner) = node {
            change(&mut inner.meta);
            return node.meta();
        }
        let mut meta = node.meta();
        change(&mut meta);
        let data = node.data().here().map(|data| data.map(Box::<[u8]>::from));
        match &data {
            Some(data) => node.replace(meta, ZnodeData::Here(data.as_deref())),
            None => node.replace(meta, ZnodeData::Elsewhere),
        }
        meta
    }

    pub(crate) fn set_acl(&mut self, slot: ZnodeSlot, acl: &Acl) {
        let (before, after) = (self.meta(slot).acl.acl, self.acls.hold(acl));
        self.update(slot, |meta| meta.acl.acl = after);
        self.acls.release(before);
    }

    /// Charges a znode to another share.
    pub(crate) fn set_holder(&mut self, slot: ZnodeSlot, holder: &Holder) {
        let before = self.meta(slot).acl.holder;
        if self.holders.get(before) == holder {
            return;
        }
        let after = self.holders.hold(holder);
        self.update(slot, |meta| meta.acl.holder = after);
        self.holders.release(before);
    }

    /// Sets a znode's data and metadata.
    pub(crate) fn set_data(&mut self, slot: ZnodeSlot, meta: TableMeta, data: Option<&[u8]>) {
        self.forget_data(slot);
        self.cached_bytes += data.map_or(0, <[u8]>::len) as u64;
        self.node_mut(slot).replace(meta, ZnodeData::Here(data));
        *self.used[slot.0 as usize].get_mut() = true;
        self.make_room();
    }

    /// Stops to count a znode's data, which is replaced or removed.
    fn forget_data(&mut self, slot: ZnodeSlot) {
        match self.node(slot).data() {
            ZnodeData::Here(data) => self.cached_bytes -= data.map_or(0, <[u8]>::len) as u64,
            ZnodeData::Elsewhere => self.elsewhere -= 1,
        }
    }

    /// Leaves out data that was not used lately, until there is room, or enough was looked at.
    fn make_room(&mut self) {
        for _ in 0..LOOKED_AT_MAX {
            if self.cached_bytes <= self.cached_bytes_max {
                return;
            }
            let at = self.hand;
            self.hand = (at + 1) % self.nodes.len();
            if std::mem::take(self.used[at].get_mut()) {
                continue;
            }
            let node = &mut self.nodes[at];
            let is_free = matches!(node, StoredZnode::Leaf(LeafZnode(leaf)) if leaf.is_empty());
            if is_free || is_figures_name(node.name()) {
                continue;
            }
            if let ZnodeData::Here(Some(data)) = node.data()
                && data.len() >= EVICTED_BYTES_MIN
            {
                self.cached_bytes -= data.len() as u64;
                self.elsewhere += 1;
                node.replace(node.meta(), ZnodeData::Elsewhere);
            }
        }
    }

    /// The table's form of what is known of a znode.
    fn hold(&mut self, meta: &ZnodeMeta, holder: &Holder) -> TableMeta {
        let (acl, holder) = (self.acls.hold(&meta.acl), self.holders.hold(holder));
        meta.with_acl(ZnodeLinks { acl, holder })
    }

    fn release(&mut self, links: ZnodeLinks) {
        self.acls.release(links.acl);
        self.holders.release(links.holder);
    }

    fn place(&mut self, leaf: LeafZnode) -> ZnodeSlot {
        let node = StoredZnode::Leaf(leaf);
        match self.free.pop() {
            Some(slot) => {
                *self.node_mut(slot) = node;
                *self.used[slot.0 as usize].get_mut() = true;
                slot
            }
            None => {
                let slot = u32::try_from(self.nodes.len()).expect("fewer znodes than 2^32");
                self.nodes.push(node);
                self.used.push(AtomicBool::new(true));
                ZnodeSlot(slot)
            }
        }
    }

    fn vacate(&mut self, slot: ZnodeSlot) {
        *self.node_mut(slot) = StoredZnode::Leaf(LeafZnode::default());
        self.free.push(slot);
    }

    fn node(&self, slot: ZnodeSlot) -> &StoredZnode {
        &self.nodes[slot.0 as usize]
    }

    fn node_mut(&mut self, slot: ZnodeSlot) -> &mut StoredZnode {
        &mut self.nodes[slot.0 as usize]
    }
}

/// The children of a znode.
pub(crate) struct ZnodeChildren<'a> {
    slots: Box<dyn Iterator<Item = ZnodeSlot> + 'a>,
    left: usize,
}

impl Iterator for ZnodeChildren<'_> {
    type Item = ZnodeSlot;

    fn next(&mut self) -> Option<ZnodeSlot> {
        let next = self.slots.next()?;
        self.left -= 1;
        Some(next)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for ZnodeChildren<'_> {}
