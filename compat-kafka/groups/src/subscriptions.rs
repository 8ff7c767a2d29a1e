//! The topics that a group's members read: it parses the metadata of a "consumer" member.
//!
//! Every version of that metadata begins with a version, then the topics, so only this prefix is
//! read. The bytes come from a client: a length is checked before memory is reserved.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::{Buf, Bytes};

/// The protocol type of Kafka's own consumers.
pub const CONSUMER_PROTOCOL_TYPE: &str = "consumer";

/// The protocol type of share groups.
pub const SHARE_PROTOCOL_TYPE: &str = "share";

/// The protocol type of streams groups.
pub const STREAMS_PROTOCOL_TYPE: &str = "streams";

/// The topics that a group's members read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupSubscriptions {
    /// The group's members are not consumers, or it has none and never had.
    NotConsumers,
    /// Exactly these topics.
    Topics(Arc<BTreeSet<String>>),
    /// The members are consumers, and their topics are unknown: it may be any topic.
    Unknown,
}

impl GroupSubscriptions {
    /// Returns true if a member may read this topic.
    pub fn include(&self, topic: &str) -> bool {
        match self {
            GroupSubscriptions::NotConsumers => false,
            GroupSubscriptions::Topics(topics) => topics.contains(topic),
            GroupSubscriptions::Unknown => true,
        }
    }

    /// The topics of members with this metadata.
    pub(super) fn of(
        protocol_type: Option<&str>,
        metadata: impl Iterator<Item = Bytes>,
    ) -> GroupSubscriptions {
        if protocol_type != Some(CONSUMER_PROTOCOL_TYPE) {
            return GroupSubscriptions::NotConsumers;
        }
        let mut topics = BTreeSet::new();
        for mut metadata in metadata {
            if read_topics(&mut metadata, &mut topics).is_none() {
                return GroupSubscriptions::Unknown;
            }
        }
        GroupSubscriptions::Topics(Arc::new(topics))
    }
}

/// `None` if the bytes do not begin like a subscription.
fn read_topics(bytes: &mut Bytes, topics: &mut BTreeSet<String>) -> Option<()> {
    let version = bytes.try_get_i16().ok()?;
    let count = bytes.try_get_i32().ok()?;
    if version < 0 || count < 0 {
        return None;
    }
    for _ in 0..count {
        topics.insert(read_name(bytes)?);
    }
    Some(())
}

pub(super) fn read_name(bytes: &mut Bytes) -> Option<String> {
    let len = usize::try_from(bytes.try_get_i16().ok()?).ok()?;
    if len > bytes.len() {
        return None;
    }
    String::from_utf8(bytes.split_to(len).to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscription(topics: &[&str], tail: &[u8]) -> Bytes {
        let mut bytes = 3i16.to_be_bytes().to_vec();
        bytes.extend((topics.len() as i32).to_be_bytes());
        for topic in topics {
            bytes.extend((topic.len() as i16).to_be_bytes());
            bytes.extend(topic.as_bytes());
        }
        bytes.extend(tail);
        Bytes::from(bytes)
    }

    #[test]
    fn topics_of_all_members_are_read_whatever_follows_them() {
        let members = [subscription(&["a", "b"], b""), subscription(&["c"], &[255; 9])];
        let subscriptions = GroupSubscriptions::of(Some("consumer"), members.into_iter());
        assert!(["a", "b", "c"].iter().all(|topic| subscriptions.include(topic)));
        assert!(!subscriptions.include("d"));
    }

    #[test]
    fn consumers_whose_bytes_cannot_be_read_may_read_any_topic() {
        let metadata = subscription(&["topic"], b"");
        for len in 0..metadata.len() {
            let cut = metadata.slice(..len);
            let subscriptions = GroupSubscriptions::of(Some("consumer"), [cut].into_iter());
            assert_eq!(subscriptions, GroupSubscriptions::Unknown, "{len}");
        }
        let overlong = Bytes::from_static(&[0, 0, 127, 255, 255, 255, 0, 0]);
        assert!(GroupSubscriptions::of(Some("consumer"), [overlong].into_iter()).include("x"));
    }

    #[test]
    fn members_that_are_not_consumers_read_no_topic() {
        let bytes = subscription(&["a"], b"");
        assert!(!GroupSubscriptions::of(Some("connect"), [bytes].into_iter()).include("a"));
        assert!(!GroupSubscriptions::of(None, [].into_iter()).include("a"));
    }

    #[test]
    fn a_consumer_group_without_members_reads_no_topic() {
        assert!(!GroupSubscriptions::of(Some("consumer"), [].into_iter()).include("a"));
    }
}
