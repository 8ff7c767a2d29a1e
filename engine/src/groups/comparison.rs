//! Offsets and groups at two moments, side by side: key by key, so that memory does not grow with them.

use hlc::Cut;
use storage::catalog::CatalogError;

use super::{
    CommittedOffset, GROUPS, GroupCatalog, LATER_PARTITIONS, OffsetDifference, offsets_prefix,
    parse_offset_key, unescape,
};

/// A group's snapshot before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDifference {
    /// The group.
    pub group: String,
    /// The snapshot of before.
    pub before: Option<Vec<u8>>,
    /// The snapshot of after.
    pub after: Option<Vec<u8>>,
}

/// What one look found.
pub(crate) struct KeyComparison<T> {
    /// The key that was looked at; the next look begins behind it.
    pub(crate) key: Vec<u8>,
    /// What differs there, if anything does.
    pub(crate) difference: Option<T>,
}

impl GroupCatalog {
    /// Compares the first committed offset behind `last`; `None` behind the last of all.
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
            let found = self.catalog.get(&key, cut)?;
            let committed = found.and_then(|(_, value)| postcard::from_bytes(&value).ok());
            // How long it is kept is no part of what was committed.
            Ok(committed.map(|committed| CommittedOffset { retention_ms: None, ..committed }))
        };
        let (before, after) = (at(from)?, at(until)?);
        let place = parse_offset_key(&key);
        let place = place.filter(|(.., partition)| *partition != LATER_PARTITIONS);
        let difference = place.filter(|_| before != after).map(|(group, topic, partition)| {
            OffsetDifference { group, topic, partition, before, after }
        });
        Ok(Some(KeyComparison { key, difference }))
    }

    /// Compares the first group behind `last`; `None` behind the last of all.
    pub(crate) fn compare_group(
        &self,
        last: Option<&[u8]>,
        from: Cut,
        until: Cut,
    ) -> Result<Option<KeyComparison<GroupDifference>>, CatalogError> {
        let Some(key) = self.catalog.next_key(&[GROUPS], last)? else { return Ok(None) };
        let at = |cut| -> Result<Option<Vec<u8>>, CatalogError> {
            Ok(self.catalog.get(&key, cut)?.map(|(_, value)| value))
        };
        let (before, after) = (at(from)?, at(until)?);
        let group = unescape(&key[1..]);
        let difference = (before != after).then_some(GroupDifference { group, before, after });
        Ok(Some(KeyComparison { key, difference }))
    }
}
