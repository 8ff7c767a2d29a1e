//! The entries of the log of security. `docs/FORMAT.md` has their layout.

use std::collections::BTreeMap;
use std::fmt;

use kafka_acls::AclRule;
use scram::{ScramCredential, ScramMechanism};
use serde::{Deserialize, Serialize};

use crate::quota::QuotaEntity;
use crate::token::DelegationToken;

/// The version of the layout, in the first byte of each entry.
const LAYOUT: u8 = 1;

/// The author of a change.
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
    AclAdded(AclRule),
    AclRemoved(AclRule),
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
    /// A delegation token was made, or expires at another time.
    TokenSet {
        id: String,
        token: DelegationToken,
    },
    /// A delegation token was ended, or had expired.
    TokenRemoved {
        id: String,
    },
}

impl SecurityChange {
    /// The API of Kafka that makes such a change.
    pub(crate) fn operation(&self) -> &'static str {
        match self {
            SecurityChange::AclAdded(_) => "CreateAcls",
            SecurityChange::AclRemoved(_) => "DeleteAcls",
            SecurityChange::CredentialSet { .. } | SecurityChange::CredentialRemoved { .. } => {
                "AlterUserScramCredentials"
            }
            SecurityChange::QuotasSet { .. } => "AlterClientQuotas",
            SecurityChange::TokenSet { .. } => "CreateDelegationToken",
            SecurityChange::TokenRemoved { .. } => "ExpireDelegationToken",
        }
    }
}

/// The change without secrets.
impl fmt::Display for SecurityChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecurityChange::AclAdded(rule) | SecurityChange::AclRemoved(rule) => {
                write!(f, "{rule}")
            }
            SecurityChange::CredentialSet { user, mechanism, .. } => {
                write!(f, "USER {user}: {mechanism} set")
            }
            SecurityChange::CredentialRemoved { user, mechanism } => {
                write!(f, "USER {user}: {mechanism} removed")
            }
            SecurityChange::QuotasSet { entity, quotas } => write!(f, "{entity}: {quotas:?}"),
            SecurityChange::TokenSet { id, token } => {
                write!(f, "DELEGATION_TOKEN {id} of {}", token.owner)
            }
            SecurityChange::TokenRemoved { id } => write!(f, "DELEGATION_TOKEN {id}"),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Operation, PatternType, Permission, QuotaName, ResourceType};

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn text(text: &str) -> String {
        format!("{:02x}{}", text.len(), hex(text.as_bytes()))
    }

    fn rule() -> AclRule {
        AclRule {
            resource_type: ResourceType::User,
            pattern: PatternType::Prefixed,
            name: "n".to_owned(),
            principal: "User:a".to_owned(),
            host: "*".to_owned(),
            operation: Operation::TwoPhaseCommit,
            permission: Permission::Allow,
        }
    }

    fn token() -> DelegationToken {
        DelegationToken {
            owner: "User:a".to_owned(),
            requester: "User:b".to_owned(),
            renewers: vec!["User:c".to_owned()],
            issued_ms: 1,
            expires_ms: 2,
            max_ms: 300,
        }
    }

    fn all_changes() -> Vec<(SecurityChange, String)> {
        let rule_bytes = format!("0501{}{}{}0d01", text("n"), text("User:a"), text("*"));
        // Salt, stored key, server key, rounds.
        let credential_bytes = [2, 7, 8, 1, 9, 1, 10, 0x80, 0x20];
        let credential = postcard::from_bytes(&credential_bytes).unwrap();
        let mechanism = ScramMechanism::Sha512;
        let user = || "u".to_owned();
        let named = Some(QuotaName::Named("c".to_owned()));
        let entity = QuotaEntity { user: Some(QuotaName::Default), client_id: named, ip: None };
        let quotas = BTreeMap::from([("k".to_owned(), 1.5)]);
        let quota_bytes = format!("01000101{}0001", text("c"));
        vec![
            (SecurityChange::AclAdded(rule()), format!("00{rule_bytes}")),
            (SecurityChange::AclRemoved(rule()), format!("01{rule_bytes}")),
            (
                SecurityChange::CredentialSet { user: user(), mechanism, credential },
                format!("02{}01{}", text("u"), hex(&credential_bytes)),
            ),
            (
                SecurityChange::CredentialRemoved { user: user(), mechanism },
                format!("03{}01", text("u")),
            ),
            (
                SecurityChange::QuotasSet { entity, quotas },
                format!("04{quota_bytes}{}{}", text("k"), hex(&1.5_f64.to_le_bytes())),
            ),
            (
                SecurityChange::TokenSet { id: "i".to_owned(), token: token() },
                format!(
                    "05{}{}{}01{}0102ac02",
                    text("i"),
                    text("User:a"),
                    text("User:b"),
                    text("User:c")
                ),
            ),
            (SecurityChange::TokenRemoved { id: "i".to_owned() }, format!("06{}", text("i"))),
        ]
    }

    /// `docs/FORMAT.md` describes these bytes. Others mean another layout.
    #[test]
    fn the_bytes_of_an_entry() {
        let (changes, bytes): (Vec<SecurityChange>, Vec<String>) =
            all_changes().into_iter().unzip();
        let by = Actor { principal: "User:b".to_owned(), from: "h".to_owned() };
        let actor = text("User:b") + &text("h");
        let bytes = bytes.concat();
        let changed = |snapshot| {
            let (by, changes) = (by.clone(), changes.clone());
            SecurityEntry::Changed { snapshot, by, changes }
        };
        let all = [
            (changed(None), format!("010000{actor}07{bytes}")),
            (changed(Some(300)), format!("010001ac02{actor}07{bytes}")),
            (SecurityEntry::Snapshot(changes.clone()), format!("010107{bytes}")),
            (SecurityEntry::Snapshot(Vec::new()), "010100".to_owned()),
        ];
        for (entry, expected) in all {
            let bytes = entry.encode();
            assert_eq!(hex(&bytes), expected);
            assert_eq!(SecurityEntry::decode(&bytes), Ok(entry));
            for end in 0..bytes.len() {
                assert!(SecurityEntry::decode(&bytes[..end]).is_err(), "{end} bytes");
            }
        }
        assert_eq!(SecurityEntry::decode(&[2, 1, 0]), Err("layout 2 is not known".to_owned()));
    }

    /// The numbers in an entry are Kafka's, less that of the first.
    #[test]
    fn the_numbers_of_an_entry_follow_from_those_of_kafka() {
        fn check<T: Serialize + Copy>(all: &[T], code: impl Fn(T) -> i8) {
            let first = code(all[0]);
            for value in all {
                let expected = vec![(code(*value) - first) as u8];
                assert_eq!(postcard::to_allocvec(value).unwrap(), expected);
            }
        }
        check(ResourceType::ALL, ResourceType::code);
        check(PatternType::ALL, PatternType::code);
        check(Operation::ALL, Operation::code);
        check(Permission::ALL, Permission::code);
        check(ScramMechanism::ALL, ScramMechanism::code);
    }
}
