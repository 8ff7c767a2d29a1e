//! The pins of the namespace, and what they hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use hlc::{Cut, Hlc, SysTime};

use super::TopicId;
use super::event::RestatedPin;

/// A named moment that is kept readable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    pub name: Arc<str>,
    /// The cut that it keeps readable.
    pub at: Cut,
    /// The time at which it expires.
    pub expires: SysTime,
    /// The topics that it covers; `None` for everything.
    pub topics: Option<Vec<Arc<str>>>,
    /// The stamp at which it was set, or its expiry was last extended.
    pub set: Hlc,
}

/// The cut that a valid pin holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinHold {
    /// Its name.
    pub pin: Arc<str>,
    /// It holds everything that this cut admits.
    pub at: Cut,
}

/// The range that the valid pins hold of one topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinHoldRange {
    /// The earliest: a compaction horizon stays at or below its bound.
    pub earliest: Option<PinHold>,
    /// The latest: no entry that it admits is removed.
    pub latest: Option<PinHold>,
}

#[derive(Debug)]
pub(crate) struct StoredPin {
    pub(crate) at: Cut,
    pub(crate) expires: SysTime,
    /// Sorted.
    pub(crate) topics: Option<Vec<TopicId>>,
    pub(crate) set: Hlc,
}

impl StoredPin {
    pub(crate) fn is_active(&self, now: SysTime) -> bool {
        self.expires > now
    }

    /// Returns true if it covers a topic; for `None`, if it covers what belongs to no topic.
    fn covers(&self, topic: Option<&TopicId>) -> bool {
        match (&self.topics, topic) {
            (None, _) => true,
            (Some(topics), Some(topic)) => topics.binary_search(topic).is_ok(),
            (Some(_), None) => false,
        }
    }
}

/// All pins, by name, including expired ones that have not been removed yet.
#[derive(Debug, Default)]
pub(crate) struct PinTable(pub(crate) BTreeMap<Arc<str>, StoredPin>);

impl PinTable {
    pub(crate) fn set(
        &mut self,
        name: &str,
        at: Cut,
        expires: SysTime,
        topics: Option<&[TopicId]>,
        set: Hlc,
    ) {
        let topics = topics.map(|topics| {
            let mut topics = topics.to_vec();
            topics.sort_unstable();
            topics
        });
        self.0.insert(name.into(), StoredPin { at, expires, topics, set });
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// The pins that were set at `horizon` or before, to be restated.
    pub(crate) fn restate(&self, horizon: Hlc) -> impl Iterator<Item = RestatedPin> {
        let set = self.0.iter().filter(move |(_, pin)| pin.set <= horizon);
        set.map(|(name, pin)| RestatedPin {
            name: name.to_string(),
            at: pin.at.bound().bits(),
            expires_ms: pin.expires.0,
            topics: pin.topics.clone(),
            set: pin.set.bits(),
        })
    }

    pub(crate) fn load_restatement(&mut self, pins: Vec<RestatedPin>) {
        for RestatedPin { name, at, expires_ms, topics, set } in pins {
            let at = Cut::below(Hlc::from_bits(at));
            self.set(&name, at, SysTime(expires_ms), topics.as_deref(), Hlc::from_bits(set));
        }
    }

    /// Returns true if a pin, expired or not, shows a topic that existed from `created` to
    /// `deleted`, or names it.
    pub(crate) fn shows_topic(&self, topic: &TopicId, created: Hlc, deleted: Hlc) -> bool {
        self.0.values().any(|pin| match &pin.topics {
            None => pin.at.admits(created) && !pin.at.admits(deleted),
            Some(_) => pin.covers(Some(topic)),
        })
    }

    pub(crate) fn active(&self, now: SysTime) -> impl Iterator<Item = (&Arc<str>, &StoredPin)> {
        self.0.iter().filter(move |(_, pin)| pin.is_active(now))
    }

    pub(crate) fn first_expired(&self, now: SysTime) -> Option<Arc<str>> {
        self.0.iter().find(|(_, pin)| !pin.is_active(now)).map(|(name, _)| Arc::clone(name))
    }

    /// The latest valid pin that covers a topic, among those whose moment `shows` it.
    pub(crate) fn latest(
        &self,
        topic: &TopicId,
        now: SysTime,
        shows: impl Fn(Cut) -> bool,
    ) -> Option<PinHold> {
        let holding = self.active(now).filter(|(_, pin)| pin.covers(Some(topic)));
        let latest = holding.filter(|(_, pin)| shows(pin.at)).max_by_key(|(_, pin)| pin.at);
        latest.map(|(name, pin)| PinHold { pin: Arc::clone(name), at: pin.at })
    }

    pub(crate) fn topic_holds(&self, topic: Option<&TopicId>, now: SysTime) -> PinHoldRange {
        let holding = || self.active(now).filter(|(_, pin)| pin.covers(topic));
        let hold =
            |(name, pin): (&Arc<str>, &StoredPin)| PinHold { pin: Arc::clone(name), at: pin.at };
        PinHoldRange {
            earliest: holding().min_by_key(|(_, pin)| pin.at).map(hold),
            latest: holding().max_by_key(|(_, pin)| pin.at).map(hold),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TopicId = [1; 16];
    const B: TopicId = [2; 16];

    fn cut(ms: u64) -> Cut {
        Cut::before(SysTime(ms))
    }

    fn hold(pin: &str, ms: u64) -> Option<PinHold> {
        Some(PinHold { pin: pin.into(), at: cut(ms) })
    }

    #[test]
    fn a_topic_is_held_by_its_own_pins_and_by_those_of_everything_until_they_expire() {
        let mut pins = PinTable::default();
        pins.set("all", cut(20), SysTime(100), None, Hlc::ZERO);
        pins.set("a", cut(30), SysTime(200), Some(&[A]), Hlc::ZERO);
        pins.set("b", cut(10), SysTime(300), Some(&[B, A]), Hlc::ZERO);
        let holds = |topic, now| pins.topic_holds(topic, SysTime(now));
        let both = |earliest, latest| PinHoldRange { earliest, latest };
        assert_eq!(holds(Some(&A), 99), both(hold("b", 10), hold("a", 30)));
        assert_eq!(holds(Some(&B), 99), both(hold("b", 10), hold("all", 20)));
        assert_eq!(holds(None, 99), both(hold("all", 20), hold("all", 20)));
        assert_eq!(holds(Some(&B), 100), both(hold("b", 10), hold("b", 10)));
        assert_eq!(holds(None, 100), PinHoldRange::default());
        assert_eq!(holds(Some(&A), 300), PinHoldRange::default());
        assert_eq!(pins.first_expired(SysTime(99)), None);
        assert_eq!(pins.first_expired(SysTime(100)).as_deref(), Some("all"));
    }
}
