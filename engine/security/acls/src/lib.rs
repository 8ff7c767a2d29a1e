//! Kafka's rules of access, and what they are about: for servers and clients. It decides nothing.

#![forbid(unsafe_code)]

mod acl;
mod resource;

pub use acl::{ANY_HOST, ANY_PRINCIPAL, AclFilter, AclRule, PatternFilter, Permission};
pub use resource::{ANY_NAME, CLUSTER, Operation, PatternType, Resource, ResourceType};
