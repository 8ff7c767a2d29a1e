//! Principals: the identities of clients.

use std::fmt;
use std::sync::Arc;

/// The type of principals that are users.
pub const USER_TYPE: &str = "User";
/// The name of clients that did not authenticate.
pub const ANONYMOUS: &str = "ANONYMOUS";

/// An identity, as access control lists name it: `User:alice`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal {
    text: Arc<str>,
}

impl Principal {
    /// The user of that name.
    pub fn user(name: &str) -> Principal {
        Principal { text: format!("{USER_TYPE}:{name}").into() }
    }

    /// A client of unknown identity.
    pub fn anonymous() -> Principal {
        Principal::user(ANONYMOUS)
    }

    /// The name without the type.
    pub fn name(&self) -> &str {
        self.text.split_once(':').map_or(&self.text, |(_, name)| name)
    }

    /// `User:alice`.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
