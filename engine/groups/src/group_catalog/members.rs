//! The members that are stored one by one, as versions in the catalog.

use std::collections::BTreeMap;

use engine_core::EngineError;
use hlc::{Cut, Hlc};
use storage::catalog::{CatalogError, CatalogWriteBatch, escape, unescape};

use super::restatement::VALUE_BYTES;
use super::{GroupCatalog, MEMBERS, SEPARATOR, group_key, split_at_separator};
use crate::event::{GroupEvent, RestatedMember};

/// The members of a group that are stored one by one: their ids and snapshots.
pub type StoredMembers = BTreeMap<String, Vec<u8>>;

fn members_prefix(group: &str) -> Vec<u8> {
    let mut key = vec![MEMBERS];
    escape(group, &mut key);
    key.extend_from_slice(SEPARATOR);
    key
}

fn member_key(group: &str, member: &str) -> Vec<u8> {
    let mut key = members_prefix(group);
    escape(member, &mut key);
    key
}

/// The group and the member of a key of [`member_key`].
fn parse_member_key(key: &[u8]) -> Option<(String, String)> {
    let (group, member) = split_at_separator(key.strip_prefix(&[MEMBERS])?)?;
    Some((unescape(group), unescape(member)))
}

/// Applies [`GroupEvent::GroupChanged`].
pub(super) fn put_changed_group(
    changes: &mut CatalogWriteBatch,
    group: &str,
    snapshot: &[u8],
    members: &[(String, Option<Vec<u8>>)],
    stamp: Hlc,
) {
    changes.put(&group_key(group), stamp, Some(snapshot));
    for (member, snapshot) in members {
        changes.put(&member_key(group, member), stamp, snapshot.as_deref());
    }
}

impl GroupCatalog {
    pub(super) fn remove_members(
        &self,
        changes: &mut CatalogWriteBatch,
        group: &str,
        stamp: Hlc,
    ) -> Result<(), CatalogError> {
        for (key, ..) in self.catalog.scan(&members_prefix(group), Cut::below(stamp))? {
            changes.put(&key, stamp, None);
        }
        Ok(())
    }

    /// The members of a group that are stored one by one.
    pub(crate) fn members(&self, group: &str, cut: Cut) -> Result<StoredMembers, CatalogError> {
        let members = self.catalog.scan(&members_prefix(group), cut)?;
        let decode = |(key, _, snapshot): (Vec<u8>, Hlc, Vec<u8>)| {
            Some((parse_member_key(&key)?.1, snapshot))
        };
        Ok(members.into_iter().filter_map(decode).collect())
    }

    /// The members of all groups that are stored one by one, by group.
    pub(crate) fn all_members(
        &self,
        cut: Cut,
    ) -> Result<BTreeMap<String, StoredMembers>, CatalogError> {
        let mut groups = BTreeMap::<String, StoredMembers>::new();
        for (key, _, snapshot) in self.catalog.scan(&[MEMBERS], cut)? {
            if let Some((group, member)) = parse_member_key(&key) {
                groups.entry(group).or_default().insert(member, snapshot);
            }
        }
        Ok(groups)
    }

    /// Passes the events that restate members at `cut` to `emit`. Each has at most `bytes_max`, or
    /// a single member.
    pub(super) fn restate_members(
        &self,
        cut: Cut,
        bytes_max: usize,
        emit: &mut dyn FnMut(GroupEvent) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let (mut members, mut bytes) = (Vec::new(), 0);
        let horizon = cut.bound().bits();
        self.catalog.visit(&[MEMBERS], cut, &mut |key, stamp, value| {
            let corrupt =
                || EngineError::Corrupt(format!("cannot decode the catalog's key {key:?}"));
            let (group, member) = parse_member_key(key).ok_or_else(corrupt)?;
            let size = group.len() + member.len() + value.len() + VALUE_BYTES;
            if bytes > 0 && bytes + size > bytes_max {
                bytes = 0;
                let members = std::mem::take(&mut members);
                emit(GroupEvent::MembersRestated { horizon, members })?;
            }
            bytes += size;
            let (stamp, snapshot) = (stamp.bits(), value.to_vec());
            members.push(RestatedMember { group, member, stamp, snapshot });
            Ok::<_, EngineError>(())
        })?;
        if members.is_empty() {
            return Ok(());
        }
        emit(GroupEvent::MembersRestated { horizon, members })
    }

    /// Loads a restatement into a catalog that is being rebuilt.
    pub(crate) fn load_members(&self, members: &[RestatedMember]) -> Result<(), CatalogError> {
        let mut changes = CatalogWriteBatch::default();
        for RestatedMember { group, member, stamp, snapshot } in members {
            changes.put(&member_key(group, member), Hlc::from_bits(*stamp), Some(snapshot));
        }
        self.catalog.apply_unpositioned(changes)
    }
}
