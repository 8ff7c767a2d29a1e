//! Quotas of clients, by user, client id and address (KIP-13, KIP-124, KIP-546, KIP-612).

use std::fmt;

use serde::{Deserialize, Serialize};

/// One of a kind, or all of the kind that have no quota of their own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum QuotaName {
    Default,
    Named(String),
}

/// The entity of a quota: users, client ids, both together, or addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QuotaEntity {
    pub user: Option<QuotaName>,
    pub client_id: Option<QuotaName>,
    pub ip: Option<QuotaName>,
}

/// `user=alice, client-id=<default>`
impl fmt::Display for QuotaEntity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [("user", &self.user), ("client-id", &self.client_id), ("ip", &self.ip)];
        let given = parts.into_iter().filter_map(|(kind, name)| Some((kind, name.as_ref()?)));
        for (nth, (kind, name)) in given.enumerate() {
            let separator = if nth == 0 { "" } else { ", " };
            let name = match name {
                QuotaName::Named(name) => name,
                QuotaName::Default => "<default>",
            };
            write!(f, "{separator}{kind}={name}")?;
        }
        Ok(())
    }
}

impl QuotaEntity {
    /// The entities whose quotas may apply to a client of this user, the most specific first, as
    /// Kafka orders them.
    pub fn candidates(user: &str, client_id: &str) -> [QuotaEntity; 8] {
        let user = || Some(QuotaName::Named(user.to_owned()));
        let client = || Some(QuotaName::Named(client_id.to_owned()));
        let all = || Some(QuotaName::Default);
        let entity = |user, client_id| QuotaEntity { user, client_id, ip: None };
        [
            entity(user(), client()),
            entity(user(), all()),
            entity(user(), None),
            entity(all(), client()),
            entity(all(), all()),
            entity(all(), None),
            entity(None, client()),
            entity(None, all()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_quota_comes_first() {
        let text = |name: &Option<QuotaName>| match name {
            None => "-".to_owned(),
            Some(QuotaName::Default) => "*".to_owned(),
            Some(QuotaName::Named(name)) => name.clone(),
        };
        let candidates = QuotaEntity::candidates("u", "c");
        let order = candidates.map(|entity| {
            assert_eq!(entity.ip, None);
            format!("{}/{}", text(&entity.user), text(&entity.client_id))
        });
        assert_eq!(order, ["u/c", "u/*", "u/-", "*/c", "*/*", "*/-", "-/c", "-/*"]);
    }
}
