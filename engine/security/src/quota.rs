//! What clients may use, by user, client id and address (KIP-13, KIP-124, KIP-546, KIP-612).

use serde::{Deserialize, Serialize};

/// One of a kind, or all of the kind that have no quota of their own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum QuotaName {
    Default,
    Named(String),
}

/// Who a quota is for: users, client ids, both together, or addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QuotaEntity {
    pub user: Option<QuotaName>,
    pub client_id: Option<QuotaName>,
    pub ip: Option<QuotaName>,
}
