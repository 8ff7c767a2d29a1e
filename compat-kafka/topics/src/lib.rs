//! The topics that clients name: those that there are, and moments of them.

#![forbid(unsafe_code)]

mod group_topics;
mod moment_cache;
mod readable_topic;
mod readable_topics;

pub use moment_cache::{MomentRowQuota, MomentTopicError};
pub use readable_topic::ReadableTopic;
pub use readable_topics::ReadableTopics;
