//! The events of the namespace: the entries of log 0. `docs/FORMAT.md` has their layout.

use std::collections::BTreeMap;
use std::sync::Arc;

use hlc::Hlc;
use serde::{Deserialize, Serialize};
use storage::{Log, Offset};

use crate::event_reader::{EventReader, LogEvent};

/// The content of an entry of log 0, encoded with postcard. New variants go to the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceEvent {
    /// A topic was created.
    TopicCreated {
        name: String,
        id: [u8; 16],
        /// The log of its partition 0; the others follow.
        first_log: u64,
        /// The number of its partitions.
        partitions: u32,
        /// The settings that are set on it.
        configs: BTreeMap<String, String>,
    },
    /// A topic was deleted; its past stays.
    TopicDeleted { id: [u8; 16] },
    /// A topic got more partitions.
    PartitionsAdded {
        id: [u8; 16],
        /// The log of the first new one; the others follow.
        first_log: u64,
        /// The number of new partitions.
        more: u32,
    },
    /// A topic's settings were changed.
    TopicConfigured {
        id: [u8; 16],
        /// All settings that are set on it now.
        configs: BTreeMap<String, String>,
    },
    /// Producer ids below this may have been allocated.
    ProducerIdsGranted {
        /// The bound.
        below: i64,
    },
    /// A pin was set, or its expiry extended.
    PinSet {
        name: String,
        /// The bits of its cut's bound.
        at: u64,
        /// The time at which it expires: milliseconds since 1970.
        expires_ms: u64,
        /// The ids of the topics that it covers; `None` for everything.
        topics: Option<Vec<[u8; 16]>>,
    },
    /// A pin was removed, or expired.
    PinRemoved { name: String },
    /// The state of topics and pins at a moment, restated before all older entries are removed.
    ///
    /// It changes nothing: only a start begins with it.
    NamespaceRestated {
        /// The bits of the bound of the moment's cut.
        horizon: u64,
        /// The index of this event in its restatement, from 0.
        part: u32,
        /// The lowest log number that no partition had.
        next_log: u64,
        /// Producer ids below this may have been allocated.
        producer_ids_below: i64,
        /// Some of the changes of topics, in their original order.
        changes: Vec<RestatedChange>,
        /// Some of the pins.
        pins: Vec<RestatedPin>,
        /// The time spans of removed topics: the bits of two stamps each, the creation of the first
        /// topic and the deletion of the last. All in the last event, by time.
        forgotten: Vec<(u64, u64)>,
        /// True for the last event of this restatement.
        is_last: bool,
    },
}

/// A change of a topic before the moment of [`NamespaceEvent::NamespaceRestated`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestatedChange {
    /// The bits of the stamp at which it happened.
    pub stamp: u64,
    pub change: TopicChange,
}

/// A change of a topic: the first events of [`NamespaceEvent`], with the same fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TopicChange {
    /// [`NamespaceEvent::TopicCreated`].
    Created {
        name: String,
        id: [u8; 16],
        /// The log of its partition 0; the others follow.
        first_log: u64,
        /// The number of its partitions.
        partitions: u32,
        /// The settings that were set on it.
        configs: BTreeMap<String, String>,
    },
    /// [`NamespaceEvent::TopicDeleted`].
    Deleted { id: [u8; 16] },
    /// [`NamespaceEvent::PartitionsAdded`].
    PartitionsAdded {
        id: [u8; 16],
        /// The log of the first new one; the others follow.
        first_log: u64,
        /// The number of new partitions.
        more: u32,
    },
    /// [`NamespaceEvent::TopicConfigured`].
    Configured {
        id: [u8; 16],
        /// All settings that were set on it.
        configs: BTreeMap<String, String>,
    },
}

impl From<TopicChange> for NamespaceEvent {
    fn from(change: TopicChange) -> NamespaceEvent {
        match change {
            TopicChange::Created { name, id, first_log, partitions, configs } => {
                NamespaceEvent::TopicCreated { name, id, first_log, partitions, configs }
            }
            TopicChange::Deleted { id } => NamespaceEvent::TopicDeleted { id },
            TopicChange::PartitionsAdded { id, first_log, more } => {
                NamespaceEvent::PartitionsAdded { id, first_log, more }
            }
            TopicChange::Configured { id, configs } => {
                NamespaceEvent::TopicConfigured { id, configs }
            }
        }
    }
}

/// A pin as it was at the moment of [`NamespaceEvent::NamespaceRestated`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestatedPin {
    pub name: String,
    /// The bits of its cut's bound.
    pub at: u64,
    /// The time at which it expires: milliseconds since 1970.
    pub expires_ms: u64,
    /// The ids of the topics that it covers; `None` for everything.
    pub topics: Option<Vec<[u8; 16]>>,
    /// The bits of the stamp at which it was set.
    pub set: u64,
}

impl NamespaceEvent {
    /// Returns true if the event leads to reclaimed space, sooner or later. Such an event must be
    /// accepted on a full disk too.
    pub(crate) fn reclaims_space(&self) -> bool {
        matches!(
            self,
            NamespaceEvent::TopicDeleted { .. }
                | NamespaceEvent::TopicConfigured { .. }
                | NamespaceEvent::PinRemoved { .. }
        )
    }

    /// Its bytes on disk.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("an event can be encoded")
    }

    /// The event of these bytes.
    ///
    /// # Errors
    /// They are not an event.
    pub fn decode(bytes: &[u8]) -> Result<NamespaceEvent, String> {
        postcard::from_bytes(bytes).map_err(|error| format!("decode namespace event: {error}"))
    }
}

/// The events of the namespace's log, from `from` on.
pub fn namespace_events(
    log: Arc<Log>,
    from: Offset,
) -> impl Iterator<Item = Result<LogEvent<NamespaceEvent>, String>> {
    EventReader::new(log, from).map(|event| {
        let (payload, stamp, position) = event?;
        Ok((NamespaceEvent::decode(&payload)?, stamp, position))
    })
}

/// The bound of the cut that an event of the namespace restates, if it is a restatement.
///
/// # Errors
/// It is no event.
pub fn restated_bound(payload: &[u8]) -> Result<Option<Hlc>, String> {
    Ok(match NamespaceEvent::decode(payload)? {
        NamespaceEvent::NamespaceRestated { horizon, .. } => Some(Hlc::from_bits(horizon)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pins down the bytes on disk.
    #[test]
    fn an_event_is_encoded_as_the_format_says() {
        let created = NamespaceEvent::TopicCreated {
            name: "t".into(),
            id: [7; 16],
            first_log: 300,
            partitions: 2,
            configs: BTreeMap::from([("k".into(), "v".into())]),
        };
        let mut expected = vec![0, 1, b't'];
        expected.extend([7; 16]);
        expected.extend([0xac, 0x02, 2, 1, 1, b'k', 1, b'v']);
        assert_eq!(created.encode(), expected);
        let pinned =
            |topics| NamespaceEvent::PinSet { name: "p".into(), at: 300, expires_ms: 5, topics };
        assert_eq!(pinned(None).encode(), [5, 1, b'p', 0xac, 0x02, 5, 0]);
        let mut expected = vec![5, 1, b'p', 0xac, 0x02, 5, 1, 1];
        expected.extend([7; 16]);
        assert_eq!(pinned(Some(vec![[7; 16]])).encode(), expected);
        assert_eq!(NamespaceEvent::PinRemoved { name: "p".into() }.encode(), [6, 1, b'p']);
    }

    #[test]
    fn a_restated_namespace_is_encoded_as_the_format_says() {
        let configs = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
        let (name, id) = ("t".to_owned(), [7; 16]);
        let changes = [
            TopicChange::Created {
                name,
                id,
                first_log: 300,
                partitions: 2,
                configs: configs.clone(),
            },
            TopicChange::Deleted { id },
            TopicChange::PartitionsAdded { id, first_log: 5, more: 6 },
            TopicChange::Configured { id, configs },
        ];
        // A change has the bytes of its event.
        let mut bytes: Vec<u8> = vec![4];
        for (stamp, change) in (1..).zip(&changes) {
            bytes.push(stamp);
            bytes.extend(NamespaceEvent::from(change.clone()).encode());
        }
        let stamped = (1..).zip(changes);
        let restated = NamespaceEvent::NamespaceRestated {
            horizon: 300,
            part: 1,
            next_log: 9,
            producer_ids_below: -2,
            changes: stamped.map(|(stamp, change)| RestatedChange { stamp, change }).collect(),
            pins: vec![RestatedPin {
                name: "p".into(),
                at: 300,
                expires_ms: 5,
                topics: Some(vec![[7; 16]]),
                set: 4,
            }],
            forgotten: vec![(1, 300)],
            is_last: true,
        };
        let mut expected = vec![7, 0xac, 0x02, 1, 9, 3];
        expected.extend(bytes);
        expected.extend([1, 1, b'p', 0xac, 0x02, 5, 1, 1]);
        expected.extend([7; 16]);
        expected.extend([4, 1, 1, 0xac, 0x02, 1]);
        assert_eq!(restated.encode(), expected);
        assert_eq!(NamespaceEvent::decode(&expected), Ok(restated));
    }

    #[test]
    fn bytes_that_are_no_event_are_an_error() {
        assert!(NamespaceEvent::decode(&[99]).is_err());
        assert!(NamespaceEvent::decode(&[0, 200]).is_err());
    }
}
