//! Operations and resources, by Kafka's names and numbers (KIP-11, KIP-290).

use std::fmt;

use serde::{Deserialize, Serialize};

/// The name of the one resource of the type [`ResourceType::Cluster`].
pub const CLUSTER: &str = "kafka-cluster";
/// The literal name that stands for all resources of a type.
pub const ANY_NAME: &str = "*";

macro_rules! kafka_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $code:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* $variant = $code,)* }

        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// Kafka's number.
            pub fn code(self) -> i8 {
                self as i8
            }

            /// The one with this number.
            pub fn of_code(code: i8) -> Option<$name> {
                $name::ALL.iter().copied().find(|known| known.code() == code)
            }

            /// The one of this name, in any case.
            pub fn named(name: &str) -> Option<$name> {
                $name::ALL.iter().copied().find(|known| known.as_str().eq_ignore_ascii_case(name))
            }

            /// Kafka's name.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(crate) use kafka_enum;

kafka_enum! {
    /// The type of a protected resource.
    ResourceType {
        Topic = 2 "TOPIC",
        Group = 3 "GROUP",
        Cluster = 4 "CLUSTER",
        TransactionalId = 5 "TRANSACTIONAL_ID",
        DelegationToken = 6 "DELEGATION_TOKEN",
        User = 7 "USER",
    }
}

kafka_enum! {
    /// The comparison of the name of a rule with that of a resource.
    PatternType {
        /// They are the same, or the rule has `*`.
        Literal = 3 "LITERAL",
        /// The resource's begins with the rule's.
        Prefixed = 4 "PREFIXED",
    }
}

kafka_enum! {
    /// An operation on a resource.
    Operation {
        /// Only in rules: all of them.
        All = 2 "ALL",
        Read = 3 "READ",
        Write = 4 "WRITE",
        Create = 5 "CREATE",
        Delete = 6 "DELETE",
        Alter = 7 "ALTER",
        Describe = 8 "DESCRIBE",
        ClusterAction = 9 "CLUSTER_ACTION",
        DescribeConfigs = 10 "DESCRIBE_CONFIGS",
        AlterConfigs = 11 "ALTER_CONFIGS",
        IdempotentWrite = 12 "IDEMPOTENT_WRITE",
        CreateTokens = 13 "CREATE_TOKENS",
        DescribeTokens = 14 "DESCRIBE_TOKENS",
        TwoPhaseCommit = 15 "TWO_PHASE_COMMIT",
    }
}

impl Operation {
    /// Returns true if a principal that may do `self` may do `operation`.
    pub fn allows(self, asked: Operation) -> bool {
        match (self, asked) {
            (Operation::All, _) => true,
            (
                Operation::Read | Operation::Write | Operation::Delete | Operation::Alter,
                Operation::Describe,
            ) => true,
            (Operation::AlterConfigs, Operation::DescribeConfigs) => true,
            (own, operation) => own == operation,
        }
    }

    /// Returns true if a principal that may not do `self` may not do `asked`.
    pub fn denies(self, asked: Operation) -> bool {
        self == Operation::All || self == asked
    }
}

impl ResourceType {
    /// The operations on resources of this type, besides [`Operation::All`].
    pub fn operations(self) -> &'static [Operation] {
        use Operation::{
            Alter, AlterConfigs, ClusterAction, Create, CreateTokens, Delete, Describe,
            DescribeConfigs, DescribeTokens, IdempotentWrite, Read, TwoPhaseCommit, Write,
        };
        match self {
            ResourceType::Topic => {
                &[Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs]
            }
            ResourceType::Group => &[Read, Delete, Describe, DescribeConfigs, AlterConfigs],
            ResourceType::Cluster => &[
                Create,
                Alter,
                Describe,
                ClusterAction,
                DescribeConfigs,
                AlterConfigs,
                IdempotentWrite,
            ],
            ResourceType::TransactionalId => &[Write, Describe, TwoPhaseCommit],
            ResourceType::DelegationToken => &[Describe],
            ResourceType::User => &[CreateTokens, DescribeTokens],
        }
    }
}

/// Something that is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource<'a> {
    pub kind: ResourceType,
    pub name: &'a str,
}

impl<'a> Resource<'a> {
    pub const CLUSTER: Resource<'static> = Resource { kind: ResourceType::Cluster, name: CLUSTER };

    pub fn topic(name: &'a str) -> Resource<'a> {
        Resource { kind: ResourceType::Topic, name }
    }

    pub fn group(name: &'a str) -> Resource<'a> {
        Resource { kind: ResourceType::Group, name }
    }

    pub fn transactional_id(name: &'a str) -> Resource<'a> {
        Resource { kind: ResourceType::TransactionalId, name }
    }
}
