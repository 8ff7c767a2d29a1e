//! Offsets and groups at two moments, side by side: key by key, so that memory does not grow with them.

use hlc::Cut;
use storage::catalog::CatalogError;

use super::{
    Committed, GROUPS, Groups, LATER_PARTITIONS, OffsetDifference, offsets_of, parts_of, unescape,
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
pub(crate) struct Compared<T> {
    /// The key that was looked at; the next look begins behind it.
    pub(crate) key: Vec<u8>,
    /// What differs there, if anything does.
    pub(crate) difference: Option<T>,
}

impl Groups {
    /// Compares the first committed offset behind `last`; `None` behind the last of all.
    pub(crate) fn compare_offset(
        &self,
        last: Option<&[u8]>,
        from: Cut,
        until: Cut,
    ) -> Result<Option<Compared<OffsetDifference>>, CatalogError> {
        let Some(key) = self.catalog.key_behind(&offsets_of(None), last)? else { return Ok(None) };
        let at = |cut| -> Result<Option<Committed>, CatalogError> {
            let found = self.catalog.get(&key, cut)?;
            let committed = found.and_then(|(_, value)| postcard::from_bytes(&value).ok());
            // How long it is kept is no part of what was committed.
            Ok(committed.map(|committed| Committed { retention_ms: None, ..committed }))
        };
        let (before, after) = (at(from)?, at(until)?);
        let place = parts_of(&key);
        let place = place.filter(|(.., partition)| *partition != LATER_PARTITIONS);
        let difference = place.filter(|_| before != after).map(|(group, topic, partition)| {
            OffsetDifference { group, topic, partition, before, after }
        });
        Ok(Some(Compared { key, difference }))
    }

    /// Compares the first group behind `last`; `None` behind the last of all.
    pub(crate) fn compare_group(
        &self,
        last: Option<&[u8]>,
        from: Cut,
        until: Cut,
    ) -> Result<Option<Compared<GroupDifference>>, CatalogError> {
        let Some(key) = self.catalog.key_behind(&[GROUPS], last)? else { return Ok(None) };
        let at = |cut| -> Result<Option<Vec<u8>>, CatalogError> {
            Ok(self.catalog.get(&key, cut)?.map(|(_, value)| value))
        };
        let (before, after) = (at(from)?, at(until)?);
        let group = unescape(&key[1..]);
        let difference = (before != after).then_some(GroupDifference { group, before, after });
        Ok(Some(Compared { key, difference }))
    }
}
