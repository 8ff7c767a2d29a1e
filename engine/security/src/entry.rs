//! The entries of the log of security. `docs/FORMAT.md` has their layout.

use std::collections::BTreeMap;

use kafka_acls::AclBinding;
use scram::{ScramCredential, ScramMechanism};
use serde::{Deserialize, Serialize};

use crate::quota::QuotaEntity;

/// The version of the layout, in the first byte of each entry.
const LAYOUT: u8 = 1;

/// Who made a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// `User:alice`.
    pub principal: String,
    /// The address that it came from, or what it came through.
    pub from: String,
}

/// A change. New variants go to the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SecurityChange {
    AclAdded(AclBinding),
    AclRemoved(AclBinding),
    /// The password of a user was set.
    CredentialSet {
        user: String,
        mechanism: ScramMechanism,
        credential: ScramCredential,
    },
    CredentialRemoved {
        user: String,
        mechanism: ScramMechanism,
    },
    /// The quotas of an entity are these, and no others.
    QuotasSet {
        entity: QuotaEntity,
        quotas: BTreeMap<String, f64>,
    },
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum SecurityEntry {
    Changed {
        /// The offset of the last snapshot before it; `None` if there is none.
        snapshot: Option<u64>,
        by: Actor,
        /// All of them at once.
        changes: Vec<SecurityChange>,
    },
    /// The changes that lead from nothing to the state after all entries before it.
    Snapshot(Vec<SecurityChange>),
}

impl SecurityEntry {
    pub(crate) fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![LAYOUT]).expect("an entry can be encoded")
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<SecurityEntry, String> {
        match bytes.split_first() {
            Some((&LAYOUT, entry)) => {
                postcard::from_bytes(entry).map_err(|error| error.to_string())
            }
            Some((layout, _)) => Err(format!("layout {layout} is not known")),
            None => Err("it is empty".to_owned()),
        }
    }
}
