//! Permissions as of a moment, and the changes of them: access control lists, users and quotas.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::completeness::{complete, is_complete};
use crate::moment::{PendingMomentPolicy, Stamp};

/// A request for the access control lists, the users or the quotas of a moment, a page at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecurityMomentRequest {
    /// The moment, of system time; the frontier if `None`.
    #[serde(default)]
    pub at: Option<String>,
    /// The policy for a moment that is not final yet.
    #[serde(default, skip_serializing_if = "PendingMomentPolicy::is_default")]
    pub when: PendingMomentPolicy,
    /// The longest wait for the moment; if `None`, as long as the server's settings say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience_ms: Option<u64>,
    /// The number of rows before the page: `next` of the previous one, of the same moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip: Option<usize>,
    /// The most on the page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// An access control rule, in Kafka's words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AclDescription {
    /// `TOPIC`, `GROUP` and so on.
    pub resource_type: String,
    /// The name, or the beginning of names.
    pub name: String,
    /// `LITERAL` or `PREFIXED`.
    pub pattern: String,
    /// The principal that it is about: `User:alice`.
    pub principal: String,
    /// The host that it applies to: an address, or `*`.
    pub host: String,
    /// `READ`, `WRITE` and so on.
    pub operation: String,
    /// `ALLOW` or `DENY`.
    pub permission: String,
}

/// A page of the access control lists of a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AclsResponse {
    /// The moment of the answer.
    pub at: String,
    /// The frontier of the server.
    pub frontier: Stamp,
    /// `frontier` in milliseconds since 1970.
    pub frontier_ms: u64,
    /// The rules, sorted.
    pub acls: Vec<AclDescription>,
    /// The value of `skip` for the next page, if there is one.
    pub next: Option<usize>,
}

/// A way in which a user could log in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MechanismAtMoment {
    /// `SCRAM-SHA-256` or `SCRAM-SHA-512`.
    pub mechanism: String,
    /// The number of times that the password is hashed.
    pub iterations: u32,
}

/// A user with a password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UserAtMoment {
    /// The name.
    pub user: String,
    /// The mechanisms by which the user could log in.
    pub mechanisms: Vec<MechanismAtMoment>,
}

/// A page of the users of a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UsersResponse {
    /// The moment of the answer.
    pub at: String,
    /// The frontier of the server.
    pub frontier: Stamp,
    /// `frontier` in milliseconds since 1970.
    pub frontier_ms: u64,
    /// The users, by name.
    pub users: Vec<UserAtMoment>,
    /// The value of `skip` for the next page, if there is one.
    pub next: Option<usize>,
}

/// The entity of quotas: `user`, `client-id` or `ip`, and the name; null is the default.
pub type QuotaEntityNames = BTreeMap<String, Option<String>>;

/// The quotas of somebody.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QuotasAtMoment {
    /// The entity that they apply to.
    pub entity: QuotaEntityNames,
    /// The quotas, by Kafka's names.
    pub quotas: BTreeMap<String, f64>,
}

/// A page of the quotas of a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QuotasResponse {
    /// The moment of the answer.
    pub at: String,
    /// The frontier of the server.
    pub frontier: Stamp,
    /// `frontier` in milliseconds since 1970.
    pub frontier_ms: u64,
    /// The quotas.
    pub quotas: Vec<QuotasAtMoment>,
    /// The value of `skip` for the next page, if there is one.
    pub next: Option<usize>,
}

/// A request for a page of the changes of access control lists, users and quotas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecurityLogRequest {
    /// Only changes after this moment of system time.
    #[serde(default)]
    pub from: Option<String>,
    /// Only changes that this moment of system time admits; the frontier if `None`.
    #[serde(default)]
    pub until: Option<String>,
    /// The action if that moment is not final yet.
    #[serde(default, skip_serializing_if = "PendingMomentPolicy::is_default")]
    pub when: PendingMomentPolicy,
    /// The longest wait for it; if `None`, as long as the server's settings say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience_ms: Option<u64>,
    /// The start of the page: `next` of the previous one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// The approximate number of changes on the page: one entry is never split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SecurityChangeDescription {
    /// A rule was added.
    AclAdded(AclDescription),
    /// A rule was removed.
    AclRemoved(AclDescription),
    /// The password of a user was set, or a user was added.
    PasswordSet {
        /// The user.
        user: String,
        /// The mechanism by which the user can log in with it.
        #[serde(flatten)]
        mechanism: MechanismAtMoment,
    },
    /// A password of a user was removed.
    PasswordRemoved {
        /// The user.
        user: String,
        /// `SCRAM-SHA-256` or `SCRAM-SHA-512`.
        mechanism: String,
    },
    /// Somebody has these quotas from then on, and no others.
    QuotasSet(QuotasAtMoment),
    /// A delegation token was made, or expires at another time.
    TokenSet {
        /// Its id.
        id: String,
        /// The principal that a client with the token becomes: `User:alice`.
        owner: String,
        /// The principal that requested it.
        requester: String,
        /// The principals that may renew it besides.
        renewers: Vec<String>,
        /// The time at which it expires unless it is renewed: milliseconds since 1970.
        expires_ms: u64,
        /// The time at which it expires in any case.
        max_ms: u64,
    },
    /// A delegation token was ended, or had expired.
    TokenRemoved {
        /// Its id.
        id: String,
    },
}

/// Changes that were made at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SecurityLogEntry {
    /// The stamp of the changes.
    pub stamp: Stamp,
    /// `stamp` in milliseconds since 1970.
    pub stamp_ms: u64,
    /// The principal that made them: `User:alice`.
    pub by: String,
    /// The address that they came from, or the way by which they were made.
    pub from: String,
    /// The changes of the entry.
    pub changes: Vec<SecurityChangeDescription>,
}

/// A page of the changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SecurityLogResponse {
    /// The moment that the changes lead to.
    pub until: String,
    /// The frontier of the server.
    pub frontier: Stamp,
    /// `frontier` in milliseconds since 1970.
    pub frontier_ms: u64,
    /// The changes, oldest first.
    pub entries: Vec<SecurityLogEntry>,
    /// The start of the next page, if there is one.
    pub next: Option<u64>,
    /// True if nothing was left out. The answer leaves out what the requester may not see.
    #[serde(default = "complete", skip_serializing_if = "is_complete")]
    pub complete: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_changes_comes_out_as_it_went_in() {
        let text = concat!(
            r#"{"until":"s6","frontier":"sh0000000000060001","frontier_ms":6,"entries":[{"stamp":"sh0000000000050001","stamp_ms":5,"#,
            r#""by":"User:a","from":"10.0.0.7","changes":["#,
            r#"{"kind":"acl_added","resource_type":"TOPIC","name":"t","pattern":"LITERAL","principal":"User:b","host":"*","operation":"READ","permission":"ALLOW"},"#,
            r#"{"kind":"password_set","user":"b","mechanism":"SCRAM-SHA-512","iterations":4096},"#,
            r#"{"kind":"password_removed","user":"b","mechanism":"SCRAM-SHA-256"},"#,
            r#"{"kind":"token_set","id":"i","owner":"User:b","requester":"User:a","renewers":["User:c"],"expires_ms":2,"max_ms":3},"#,
            r#"{"kind":"token_removed","id":"i"},"#,
            r#"{"kind":"quotas_set","entity":{"client-id":null,"user":"b"},"quotas":{"producer_byte_rate":1.5}}]}],"#,
            r#""next":7,"complete":false}"#,
        );
        let page: SecurityLogResponse = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&page).unwrap(), text);
    }
}
