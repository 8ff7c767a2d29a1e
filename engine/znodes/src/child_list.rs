//! The names of a znode's children in the catalog, so that a read of the past costs as much as
//! there were children then, however many there ever were.
//!
//! All names are written anew, in chunks, once as many of them changed as there are: a change costs
//! about one name more. Until then, changes are first in the znode's own version, which is new with
//! each of them anyway, and then in slots, which the next ones overwrite.
//!
//! Invariant: what the version of a znode in a cut names, chunks and slots, are those whose
//! versions are in that cut.

use std::collections::BTreeSet;

use engine_core::EngineError;
use hlc::{Cut, Hlc};
use serde::{Deserialize, Serialize};
use storage::catalog::{Catalog, CatalogError};

use crate::versions::{VersionWriter, child_chunk_key, child_slot_key, decode, encode};

/// The most changes that a version holds before they go into a slot.
const RECENT_MAX: usize = 16;
/// The fewest changes before all names are written anew.
const REWRITE_MIN: usize = 64;
/// The number of names, or changes, in one value.
const NAMES_PER_VALUE: usize = 128;

/// A child came or went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ChildChange {
    name: String,
    is_there: bool,
}

/// The place of the names of a znode's children.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChildList {
    extent: ChildExtent,
    /// The number of changes in the slots.
    slot_changes: u32,
    recent: Vec<ChildChange>,
}

/// The number of chunks and of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChildExtent {
    chunks: u32,
    slots: u32,
}

impl ChildList {
    pub(crate) fn insert(&mut self, name: &str) {
        self.recent.push(ChildChange { name: name.to_owned(), is_there: true });
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.recent.push(ChildChange { name: name.to_owned(), is_there: false });
    }

    pub(crate) fn extent(&self) -> ChildExtent {
        self.extent
    }

    /// The names. It is the list of `path` in `cut`.
    pub(crate) fn names(
        &self,
        catalog: &Catalog,
        path: &str,
        cut: Cut,
    ) -> Result<BTreeSet<String>, EngineError> {
        let value = |key: Vec<u8>| match catalog.get(&key, cut)? {
            Some((_, value)) => Ok(value),
            None => Err(EngineError::Corrupt(format!(
                "the catalog lacks children of the znode {path:?}"
            ))),
        };
        let mut names = BTreeSet::new();
        for chunk in 0..self.extent.chunks {
            names.extend(decode::<Vec<String>>(&value(child_chunk_key(path, chunk))?)?);
        }
        for slot in 0..self.extent.slots {
            apply(&mut names, decode(&value(child_slot_key(path, slot))?)?);
        }
        apply(&mut names, self.recent.clone());
        Ok(names)
    }

    /// Writes changes that are too many for the version of `path` at `stamp`, which has `children`
    /// of them. `before` is what there was before the transaction; the znode may be another one
    /// since.
    pub(crate) fn settle(
        &mut self,
        writer: &mut VersionWriter<'_>,
        place: ChildListPlace<'_>,
        before: ChildExtent,
        children: i32,
    ) -> Result<(), EngineError> {
        let ChildListPlace { path, stamp, .. } = place;
        let is_another = self.extent == ChildExtent::default() && before != self.extent;
        if self.recent.len() <= RECENT_MAX && !is_another {
            return Ok(());
        }
        let changes = self.slot_changes as usize + self.recent.len();
        if is_another || changes >= REWRITE_MIN.max(children as usize) {
            // The read below needs what the writer has not written yet.
            writer.flush()?;
            let names = self.names(place.catalog, path, Cut::below(stamp))?;
            *self = ChildList::write(writer, path, stamp, names)?;
            return Ok(before.clear(writer, path, stamp, self.extent)?);
        }
        self.slot_changes += self.recent.len() as u32;
        for changes in self.recent.chunks(NAMES_PER_VALUE) {
            let key = child_slot_key(path, self.extent.slots);
            writer.next()?.put(&key, stamp, Some(&encode(&changes)));
            self.extent.slots += 1;
        }
        self.recent.clear();
        Ok(())
    }

    /// Writes all names.
    pub(crate) fn write(
        writer: &mut VersionWriter<'_>,
        path: &str,
        stamp: Hlc,
        names: BTreeSet<String>,
    ) -> Result<ChildList, CatalogError> {
        let names: Vec<String> = names.into_iter().collect();
        let mut list = ChildList::default();
        for chunk in names.chunks(NAMES_PER_VALUE) {
            let key = child_chunk_key(path, list.extent.chunks);
            writer.next()?.put(&key, stamp, Some(&encode(&chunk)));
            list.extent.chunks += 1;
        }
        Ok(list)
    }
}

/// The place where a list is written: the znode, the stamp of its transaction, and the catalog that
/// has all before that.
#[derive(Clone, Copy)]
pub(crate) struct ChildListPlace<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) path: &'a str,
    pub(crate) stamp: Hlc,
}

impl ChildExtent {
    /// Ends chunks and slots of `path` at `stamp`, but for those that are in `after`.
    pub(crate) fn clear(
        self,
        writer: &mut VersionWriter<'_>,
        path: &str,
        stamp: Hlc,
        after: ChildExtent,
    ) -> Result<(), CatalogError> {
        for chunk in after.chunks..self.chunks {
            writer.next()?.put(&child_chunk_key(path, chunk), stamp, None);
        }
        for slot in after.slots..self.slots {
            writer.next()?.put(&child_slot_key(path, slot), stamp, None);
        }
        Ok(())
    }
}

fn apply(names: &mut BTreeSet<String>, changes: Vec<ChildChange>) {
    for ChildChange { name, is_there } in changes {
        if is_there {
            names.insert(name);
        } else {
            names.remove(&name);
        }
    }
}
