//! The topics that clients name: those that there are, and moments of them ([`ReadableTopics`]).
//!
//! A topic wins over a moment of the same name. Views of moments are cached, 64 MiB of them. Their
//! records may be removed while they are read, so a reader calls
//! [`ReadableTopic::check_partition_kept`] after its reads. The id of a moment is a keyed hash of
//! its name, which no client can compute.

#![forbid(unsafe_code)]

mod group_topics;
mod moment_cache;
mod readable_topic;
mod readable_topics;

pub use moment_cache::{MomentRowQuota, MomentTopicError};
pub use readable_topic::ReadableTopic;
pub use readable_topics::ReadableTopics;

/// Topics of Kafka itself, which no application may use.
pub const TOPICS_OF_KAFKA: [&str; 4] =
    ["__cluster_metadata", "__consumer_offsets", "__share_group_state", "__transaction_state"];
