//! Users and their credentials, access control lists, and quotas, now and as of any moment.
//!
//! Every change is one entry of a log of its own, with who made it. The state is small and in
//! memory. The state at a moment is read from the log: from the snapshot before it on.

#![forbid(unsafe_code)]

mod acl_table;
mod authorizer;
mod cursor_seal;
mod entry;
mod error;
mod guess_limits;
mod logins;
mod name_key;
mod password_rounds;
mod principal;
mod principal_rules;
mod quota;
mod security;
mod state;
mod token;
mod tokens;

pub use acl_table::AclSearchBudget;
pub use authorizer::{AuthorizerOptions, Requester, base_resource};
pub use cursor_seal::CursorSeal;
pub use entry::{Actor, SecurityChange};
pub use error::SecurityError;
pub use kafka_acls::{
    ANY_NAME, AclFilter, AclRule, CLUSTER, Operation, PatternFilter, PatternType, Permission,
    Resource, ResourceType,
};
pub use logins::{Logins, PasswordRefusal};
pub use name_key::NameKey;
pub use principal::{ANONYMOUS, Principal, USER_TYPE};
pub use principal_rules::PrincipalRules;
pub use quota::{QuotaEntity, QuotaName};
pub use scram::{ITERATIONS_MAX, ITERATIONS_MIN, ScramCredential, ScramMechanism, random_bytes};
pub use security::{ChangeLogEntry, ChangeLogPage, Security, SecurityOptions};
pub use state::{LoginCredentials, SecurityState};
pub use token::{DelegationToken, TOKENS_MAX, TokenKey};
pub use tokens::{EndedTokens, TokenExpiry, TokenRefusal};
