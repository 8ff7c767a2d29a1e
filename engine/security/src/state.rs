//! Users, access control lists and quotas, all at one moment.

use std::collections::BTreeMap;
use std::ops::Bound;

use kafka_acls::{AclFilter, AclRule};
use scram::{ScramCredential, ScramMechanism};

use crate::acl_table::{AclSearchBudget, AclTable};
use crate::entry::SecurityChange;
use crate::password_rounds::{CheckedCredential, PasswordRounds};
use crate::principal::Principal;
use crate::quota::QuotaEntity;
use crate::token::DelegationToken;

/// The approximate bytes of memory that each thing takes besides its texts.
const ITEM_BYTES: usize = 128;

/// The credentials that a user had when it logged in by a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginCredentials {
    user: String,
    credentials: BTreeMap<ScramMechanism, ScramCredential>,
}

/// Users, access control lists and quotas.
#[derive(Clone, Debug, Default)]
pub struct SecurityState {
    pub(crate) acls: AclTable,
    credentials: BTreeMap<String, BTreeMap<ScramMechanism, ScramCredential>>,
    password_rounds: PasswordRounds,
    quotas: BTreeMap<QuotaEntity, BTreeMap<String, f64>>,
    tokens: BTreeMap<String, DelegationToken>,
    /// The approximate bytes that it takes.
    bytes: usize,
}

impl SecurityState {
    /// Makes a change. One that changes nothing is fine.
    pub(crate) fn apply(&mut self, change: &SecurityChange) {
        match change {
            SecurityChange::AclAdded(rule) => {
                if self.acls.insert(rule) {
                    self.bytes += acl_bytes(rule);
                }
            }
            SecurityChange::AclRemoved(rule) => {
                if self.acls.remove(rule) {
                    self.bytes -= acl_bytes(rule);
                }
            }
            SecurityChange::CredentialSet { user, mechanism, credential } => {
                let of_user = self.credentials.entry(user.clone()).or_default();
                self.bytes += credential_bytes(user, credential);
                self.password_rounds.remove(of_user);
                if let Some(before) = of_user.insert(*mechanism, credential.clone()) {
                    self.bytes -= credential_bytes(user, &before);
                }
                self.password_rounds.add(of_user);
            }
            SecurityChange::CredentialRemoved { user, mechanism } => {
                let Some(of_user) = self.credentials.get_mut(user) else { return };
                self.password_rounds.remove(of_user);
                if let Some(before) = of_user.remove(mechanism) {
                    self.bytes -= credential_bytes(user, &before);
                }
                self.password_rounds.add(of_user);
                if of_user.is_empty() {
                    self.credentials.remove(user);
                }
            }
            SecurityChange::QuotasSet { entity, quotas } => {
                let before = if quotas.is_empty() {
                    self.quotas.remove(entity)
                } else {
                    self.bytes += quota_bytes(entity, quotas);
                    self.quotas.insert(entity.clone(), quotas.clone())
                };
                if let Some(before) = before {
                    self.bytes -= quota_bytes(entity, &before);
                }
            }
            SecurityChange::TokenSet { id, token } => {
                self.bytes += token_bytes(id, token);
                if let Some(before) = self.tokens.insert(id.clone(), token.clone()) {
                    self.bytes -= token_bytes(id, &before);
                }
            }
            SecurityChange::TokenRemoved { id } => {
                if let Some(before) = self.tokens.remove(id) {
                    self.bytes -= token_bytes(id, &before);
                }
            }
        }
    }

    /// The changes that lead from nothing to this.
    pub(crate) fn changes(&self) -> Vec<SecurityChange> {
        let acls = self.acls.find(&AclFilter::default()).into_iter().map(SecurityChange::AclAdded);
        let credentials = self.credentials.iter().flat_map(|(user, of_user)| {
            of_user.iter().map(move |(mechanism, credential)| SecurityChange::CredentialSet {
                user: user.clone(),
                mechanism: *mechanism,
                credential: credential.clone(),
            })
        });
        let quotas = self.quotas.iter().map(|(entity, quotas)| SecurityChange::QuotasSet {
            entity: entity.clone(),
            quotas: quotas.clone(),
        });
        let tokens = self
            .tokens
            .iter()
            .map(|(id, token)| SecurityChange::TokenSet { id: id.clone(), token: token.clone() });
        acls.chain(credentials).chain(quotas).chain(tokens).collect()
    }

    /// The approximate bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The rules that `filter` finds, sorted.
    pub fn acls(&self, filter: &AclFilter) -> Vec<AclRule> {
        self.acls.find(filter)
    }

    /// The rules that `filter` finds, sorted; `None` if that takes more than `budget` has left.
    pub fn acls_within(
        &self,
        filter: &AclFilter,
        budget: &mut AclSearchBudget,
    ) -> Option<Vec<AclRule>> {
        self.acls.find_within(filter, budget)
    }

    /// The number of rules.
    pub fn acl_count(&self) -> usize {
        self.acls.len()
    }

    /// Returns true if there is this rule.
    pub fn has_acl(&self, rule: &AclRule) -> bool {
        self.acls.contains(rule)
    }

    /// The users with a password, and their credentials.
    pub fn users(&self) -> &BTreeMap<String, BTreeMap<ScramMechanism, ScramCredential>> {
        &self.credentials
    }

    /// The credential of a user's password.
    pub fn credential(&self, user: &str, mechanism: ScramMechanism) -> Option<&ScramCredential> {
        self.credentials.get(user)?.get(&mechanism)
    }

    /// The credentials of a user, for a login that they prove.
    pub fn login_credentials(&self, user: &str) -> LoginCredentials {
        let credentials = self.credentials.get(user).cloned().unwrap_or_default();
        LoginCredentials { user: user.to_owned(), credentials }
    }

    /// Returns true if no credential of a login has been replaced or removed since.
    pub fn is_current(&self, login: &LoginCredentials) -> bool {
        let is_kept = |(mechanism, credential): (&ScramMechanism, &ScramCredential)| {
            self.credential(&login.user, *mechanism) == Some(credential)
        };
        login.credentials.iter().all(is_kept)
    }

    /// The credential by which a user's password is checked; `None` if there is no such user.
    pub(crate) fn checked_credential(&self, user: &str) -> Option<CheckedCredential> {
        CheckedCredential::of(self.credentials.get(user)?)
    }

    /// The hashing that every check of a password takes.
    pub(crate) fn password_rounds(&self) -> &PasswordRounds {
        &self.password_rounds
    }

    /// The ids of the delegation tokens that a user owns or has requested.
    pub(crate) fn tokens_of(
        &self,
        user: &str,
    ) -> impl Iterator<Item = (&String, &DelegationToken)> {
        let user = Principal::user(user);
        self.tokens.iter().filter(move |(_, token)| {
            token.owner == user.as_str() || token.requester == user.as_str()
        })
    }

    /// The credential of another user: the next by name that has one for this mechanism.
    pub(crate) fn similar_credential(
        &self,
        user: &str,
        mechanism: ScramMechanism,
    ) -> Option<&ScramCredential> {
        let later = self.credentials.range::<str, _>((Bound::Excluded(user), Bound::Unbounded));
        let next = later.chain(&self.credentials).next();
        next.and_then(|(_, of_user)| of_user.get(&mechanism))
    }

    /// The delegation tokens, by id, those that have expired too.
    pub fn tokens(&self) -> &BTreeMap<String, DelegationToken> {
        &self.tokens
    }

    /// All quotas, by Kafka's names.
    pub fn quotas(&self) -> &BTreeMap<QuotaEntity, BTreeMap<String, f64>> {
        &self.quotas
    }
}

pub(crate) fn acl_bytes(rule: &AclRule) -> usize {
    ITEM_BYTES + rule.name.len() + rule.principal.len() + rule.host.len()
}

fn credential_bytes(user: &str, credential: &ScramCredential) -> usize {
    ITEM_BYTES + user.len() + credential.bytes()
}

fn token_bytes(id: &str, token: &DelegationToken) -> usize {
    let renewers: usize = token.renewers.iter().map(|renewer| ITEM_BYTES + renewer.len()).sum();
    ITEM_BYTES + id.len() + token.owner.len() + token.requester.len() + renewers
}

fn quota_bytes(entity: &QuotaEntity, quotas: &BTreeMap<String, f64>) -> usize {
    let names = [&entity.user, &entity.client_id, &entity.ip];
    let name = |name: &Option<crate::quota::QuotaName>| match name {
        Some(crate::quota::QuotaName::Named(name)) => name.len(),
        _ => 0,
    };
    let values: usize = quotas.keys().map(|key| key.len() + ITEM_BYTES).sum();
    ITEM_BYTES + names.into_iter().map(name).sum::<usize>() + values
}
