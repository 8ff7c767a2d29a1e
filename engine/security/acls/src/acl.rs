//! Rules of access, as Kafka has them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::resource::{ANY_NAME, Operation, PatternType, ResourceType, kafka_enum};

/// The principal that stands for all.
pub const ANY_PRINCIPAL: &str = "User:*";
/// The host that stands for all.
pub const ANY_HOST: &str = "*";

kafka_enum! {
    /// The effect of a rule.
    Permission {
        Deny = 2 "DENY",
        Allow = 3 "ALLOW",
    }
}

/// One rule: it allows or denies an operation on resources to a principal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AclRule {
    pub resource_type: ResourceType,
    pub pattern: PatternType,
    /// The name of the resource, or what names begin with.
    pub name: String,
    /// `User:alice`, or `User:*`.
    pub principal: String,
    /// An address, or `*`.
    pub host: String,
    pub operation: Operation,
    pub permission: Permission,
}

impl fmt::Display for AclRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AclRule { resource_type, pattern, name, principal, host, operation, permission } = self;
        write!(f, "{permission} {principal} from {host}: {operation} on {resource_type} ")?;
        match pattern {
            PatternType::Literal => write!(f, "{name}"),
            PatternType::Prefixed => write!(f, "{name}… (PREFIXED)"),
        }
    }
}

/// The patterns that a filter finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PatternFilter {
    /// Patterns of this type, with this very name.
    Exactly(PatternType),
    /// Patterns with this very name.
    #[default]
    Any,
    /// Patterns that apply to a resource of this name.
    Match,
}

/// Finds rules; a field that is `None` is not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AclFilter {
    pub resource_type: Option<ResourceType>,
    pub pattern: PatternFilter,
    pub name: Option<String>,
    pub principal: Option<String>,
    pub host: Option<String>,
    pub operation: Option<Operation>,
    pub permission: Option<Permission>,
}

impl AclFilter {
    /// Returns true if it finds `rule`.
    pub fn finds(&self, rule: &AclRule) -> bool {
        let matches = |filter: &Option<String>, value: &String| {
            filter.as_ref().is_none_or(|filter| filter == value)
        };
        self.resource_type.is_none_or(|resource_type| resource_type == rule.resource_type)
            && self.finds_pattern(rule)
            && matches(&self.principal, &rule.principal)
            && matches(&self.host, &rule.host)
            && self.operation.is_none_or(|operation| operation == rule.operation)
            && self.permission.is_none_or(|permission| permission == rule.permission)
    }

    fn finds_pattern(&self, rule: &AclRule) -> bool {
        let is_named = self.name.as_ref().is_none_or(|name| *name == rule.name);
        match self.pattern {
            PatternFilter::Any => is_named,
            PatternFilter::Exactly(pattern) => pattern == rule.pattern && is_named,
            PatternFilter::Match => match (&self.name, rule.pattern) {
                (None, _) => true,
                (Some(name), PatternType::Literal) => *name == rule.name || rule.name == ANY_NAME,
                (Some(name), PatternType::Prefixed) => name.starts_with(&rule.name),
            },
        }
    }
}
