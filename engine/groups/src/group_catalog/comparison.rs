//! Compares offsets and groups of two moments key by key, so that memory does not grow with their
//! number.

use hlc::{Cut, Hlc};
use storage::catalog::CatalogError;

use super::{
    CommittedOffset, GROUPS, GroupCatalog, LATER_PARTITIONS, OffsetDifference, StoredMembers,
    offsets_prefix, parse_offset_key, unescape,
};

/// A group's snapshot before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDifference {
    pub group: String,
    pub before: Option<StoredGroup>,
    pub after: Option<StoredGroup>,
}

/// The stored state of a group: its coordinator's snapshot, and those members that are stored one
/// by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredGroup {
    pub snapshot: Vec<u8>,
    pub members: StoredMembers,
}

impl StoredGroup {
    /// A group whose snapshot holds all its members.
    pub fn whole(snapshot: Vec<u8>) -> StoredGroup {
        StoredGroup { snapshot, members: StoredMembers::new() }
    }

    /// The bytes of the snapshots, and of the ids of the members.
    pub fn bytes(&self) -> usize {
        let members = self.members.iter().map(|(id, snapshot)| id.len() + snapshot.len());
        self.snapshot.len() + members.sum::<usize>()
    }
}

/// The result of one comparison.
pub struct KeyComparison<T> {
    /// The key that was compared; the next comparison begins after it.
    pub key: Vec<u8>,
    /// The difference at that key, if any.
    pub difference: Option<T>,
}

impl GroupCatalog {
    /// Compares the first committed offset after `last`; `None` after the last one.
    pub(crate) fn compare_offset(
        &self,
        last: Option<&[u8]>,
        from: Cut,
        until: Cut,
    ) -> Result<Option<KeyComparison<OffsetDifference>>, CatalogError> {
        let Some(key) = self.catalog.next_key(&offsets_prefix(None), last)? else {
            return Ok(None);
        };
        let at = |cut| -> Result<Option<CommittedOffset>, CatalogError> {
            let value = self.catalog.get(&key, cut)?;
            let committed = value.and_then(|(_, value)| postcard::from_bytes(&value).ok());
            // The retention of an offset is not part of the comparison.
            Ok(committed.map(|committed| CommittedOffset { retention_ms: None, ..committed }))
        };
        let (before, after) = (at(from)?, at(until)?);
        let difference = match parse_offset_key(&key) {
            Some((group, topic, partition)) if partition != LATER_PARTITIONS && before != after => {
                Some(OffsetDifference { group, topic, partition, before, after })
            }
            Some(_) | None => None,
        };
        Ok(Some(KeyComparison { key, difference }))
    }

    /// Compares the first group after `last`; `None` after the last one.
    pub(crate) fn compare_group(
        &self,
        last: Option<&[u8]>,
        from: Cut,
        until: Cut,
    ) -> Result<Option<KeyComparison<GroupDifference>>, CatalogError> {
        let Some(key) = self.catalog.next_key(&[GROUPS], last)? else { return Ok(None) };
        let (before, after) = (self.catalog.get(&key, from)?, self.catalog.get(&key, until)?);
        // A coordinator's snapshot is written whenever one of its members is.
        if before == after {
            return Ok(Some(KeyComparison { key, difference: None }));
        }
        let group = unescape(&key[1..]);
        let whole = |snapshot: Option<(Hlc, Vec<u8>)>, cut| {
            let Some((_, snapshot)) = snapshot else { return Ok(None) };
            let members = self.members(&group, cut)?;
            Ok::<_, CatalogError>(Some(StoredGroup { snapshot, members }))
        };
        let (before, after) = (whole(before, from)?, whole(after, until)?);
        let difference = (before != after).then_some(GroupDifference { group, before, after });
        Ok(Some(KeyComparison { key, difference }))
    }
}
