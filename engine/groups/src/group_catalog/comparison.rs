//! Compares offsets and groups of two moments key by key, so that memory does not grow with their
//! number.

use hlc::Cut;
use storage::catalog::CatalogError;

use super::{
    CommittedOffset, GROUPS, GroupCatalog, LATER_PARTITIONS, OffsetDifference, offsets_prefix,
    parse_offset_key, unescape,
};

/// A group's snapshot before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDifference {
    pub group: String,
    pub before: Option<Vec<u8>>,
    pub after: Option<Vec<u8>>,
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
            let found = self.catalog.get(&key, cut)?;
            let committed = found.and_then(|(_, value)| postcard::from_bytes(&value).ok());
            // The retention of an offset is not part of the comparison.
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

    /// Compares the first group after `last`; `None` after the last one.
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
