//! Pins: named moments that are kept readable until they expire.
//!
//! While a pin is valid, nothing that its cut admits is removed: retention stops at it,
//! DeleteRecords is refused, and the compaction horizon stays at or below it. A pin is set and
//! removed by events of the namespace, so it survives a restart.
//!
//! The wall clock decides whether a pin has expired, and a wrong clock must not end pins: while the
//! clock is fenced or in doubt, no pin expires, and nothing is removed by age
//! ([`Engine::retention_time`]). One lock, [`Engine::lock_changes`], covers setting pins, checking
//! them against the horizons, and advancing horizons: a pin never covers what is already removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use hlc::{Cut, Hlc, Moment, SysTime};
use tokio::sync::OwnedMutexGuard;

use crate::blocking::tip_at;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::namespace::event::{MetadataEvent, RestatedPin};
use crate::namespace::{Partition, TopicId, name_error};
use crate::seek::{SeekError, WaitPolicy};
use storage::StorageError;

/// The furthest expiry of a pin from now: ten years.
pub const EXPIRY_MS_MAX: u64 = 3653 * 24 * 60 * 60 * 1000;

/// A named moment that is kept readable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Its name.
    pub name: Arc<str>,
    /// What it keeps readable.
    pub at: Cut,
    /// When it expires.
    pub expires: SysTime,
    /// The topics that it covers; `None` for everything.
    pub topics: Option<Vec<Arc<str>>>,
    /// When it was set, or its expiry was last extended.
    pub set: Hlc,
}

/// What a valid pin holds.
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

/// Why a pin was not set or removed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PinError {
    /// The request is not a valid pin.
    #[error("{0}")]
    Invalid(String),
    /// The name is taken.
    #[error(
        "a pin of that name stands at another moment or for other topics; remove it first. pin={name}, moment={}", Moment::Sys(*.at)
    )]
    Taken {
        /// The name.
        name: String,
        /// The moment of the existing pin.
        at: Cut,
    },
    /// The limit of pins is reached.
    #[error("no more pins can be set; remove one, or wait until one expires. pins_max={0}")]
    TooMany(usize),
    /// No such pin exists.
    #[error("there is no pin of that name. pin={0}")]
    Unknown(String),
    /// The moment cannot be pinned, or the change was not made.
    #[error(transparent)]
    Seek(#[from] SeekError),
}

impl From<EngineError> for PinError {
    fn from(error: EngineError) -> PinError {
        PinError::Seek(SeekError::Engine(error))
    }
}

/// A pin as it is stored.
#[derive(Debug)]
struct StoredPin {
    at: Cut,
    expires: SysTime,
    /// Sorted.
    topics: Option<Vec<TopicId>>,
    set: Hlc,
}

impl StoredPin {
    fn is_active(&self, now: SysTime) -> bool {
        self.expires > now
    }

    /// Whether it covers a topic; for `None`, whether it covers what belongs to no topic.
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
pub(crate) struct PinTable(BTreeMap<Arc<str>, StoredPin>);

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
        let set = self.0.iter().filter(move |(_, held)| held.set <= horizon);
        set.map(|(name, held)| RestatedPin {
            name: name.to_string(),
            at: held.at.bound().bits(),
            expires_ms: held.expires.0,
            topics: held.topics.clone(),
            set: held.set.bits(),
        })
    }

    /// Loads restated pins.
    pub(crate) fn load_restatement(&mut self, pins: Vec<RestatedPin>) {
        for RestatedPin { name, at, expires_ms, topics, set } in pins {
            let at = Cut::below(Hlc::from_bits(at));
            self.set(&name, at, SysTime(expires_ms), topics.as_deref(), Hlc::from_bits(set));
        }
    }

    /// Whether a pin, expired or not, shows a topic that existed from `created` to `deleted`, or
    /// names it.
    pub(crate) fn shows_topic(&self, topic: &TopicId, created: Hlc, deleted: Hlc) -> bool {
        self.0.values().any(|held| match &held.topics {
            None => held.at.admits(created) && !held.at.admits(deleted),
            Some(_) => held.covers(Some(topic)),
        })
    }

    fn active(&self, now: SysTime) -> impl Iterator<Item = (&Arc<str>, &StoredPin)> {
        self.0.iter().filter(move |(_, held)| held.is_active(now))
    }

    fn first_expired(&self, now: SysTime) -> Option<Arc<str>> {
        self.0.iter().find(|(_, held)| !held.is_active(now)).map(|(name, _)| Arc::clone(name))
    }

    /// The latest valid pin that covers a topic, among those whose moment `shows` it.
    fn latest(
        &self,
        topic: &TopicId,
        now: SysTime,
        shows: impl Fn(Cut) -> bool,
    ) -> Option<PinHold> {
        let holding = self.active(now).filter(|(_, held)| held.covers(Some(topic)));
        let latest = holding.filter(|(_, held)| shows(held.at)).max_by_key(|(_, held)| held.at);
        latest.map(|(name, held)| PinHold { pin: Arc::clone(name), at: held.at })
    }

    fn topic_holds(&self, topic: Option<&TopicId>, now: SysTime) -> PinHoldRange {
        let holding = || self.active(now).filter(|(_, held)| held.covers(topic));
        let hold =
            |(name, held): (&Arc<str>, &StoredPin)| PinHold { pin: Arc::clone(name), at: held.at };
        PinHoldRange {
            earliest: holding().min_by_key(|(_, held)| held.at).map(hold),
            latest: holding().max_by_key(|(_, held)| held.at).map(hold),
        }
    }
}

/// The lock from [`Engine::lock_changes`]: held from reading pins until the decision based on them
/// is done.
#[derive(Debug)]
pub struct ChangesGuard(#[expect(dead_code, reason = "held, not read")] OwnedMutexGuard<()>);

impl Engine {
    /// Keeps everything that `at` admits until `expires`: of all topics, or of the named ones. If a
    /// pin of that name exists at the same moment for the same topics, it gets the later of both
    /// expiries.
    ///
    /// # Errors
    /// [`PinError`].
    pub async fn pin(
        &self,
        name: &str,
        at: Cut,
        when: WaitPolicy,
        expires: SysTime,
        topics: Option<&[String]>,
    ) -> Result<Pin, PinError> {
        check_pin_name(name)?;
        self.check_expiry(expires)?;
        if topics.is_some_and(<[String]>::is_empty) {
            return Err(PinError::Invalid("a pin of no topic keeps nothing".to_owned()));
        }
        let (at, _) = self.wait_until_closed(at, when).await?;
        self.remove_expired_pins().await?;
        let changing = Arc::clone(&self.change_lock).lock_owned().await;
        // Fails if any of it has been removed. The lock ensures that nothing is removed meanwhile.
        let snapshot = self.snapshot_at(at, topics)?;
        if topics.is_none() {
            self.check_groups_retained(at)?;
        }
        let ids = topics.map(|_| {
            let mut ids: Vec<TopicId> = snapshot.topics.iter().map(|topic| topic.id).collect();
            ids.sort_unstable();
            ids
        });
        let expires = self.later_expiry(name, at, expires, ids.as_deref())?;
        let event = MetadataEvent::PinSet {
            name: name.to_owned(),
            at: at.bound().bits(),
            expires_ms: expires.0,
            topics: ids,
        };
        let set = self.submit_event(event, Some(changing)).await?;
        let mut names = topics.map(|_| snapshot.topics.iter().map(|topic| Arc::clone(&topic.name)));
        let topics = names.as_mut().map(Iterator::collect);
        Ok(Pin { name: name.into(), at, expires, topics, set })
    }

    fn check_expiry(&self, expires: SysTime) -> Result<(), PinError> {
        let now = self.wall_now();
        if expires > now && expires.0 - now.0 <= EXPIRY_MS_MAX {
            return Ok(());
        }
        Err(PinError::Invalid(format!(
            "a pin expires in the future, within 10 years. expires_ms={}, now_ms={}",
            expires.0, now.0
        )))
    }

    /// The expiry of the new pin, if it may be set.
    fn later_expiry(
        &self,
        name: &str,
        at: Cut,
        expires: SysTime,
        topics: Option<&[TopicId]>,
    ) -> Result<SysTime, PinError> {
        let now = self.pin_expiry_time();
        let namespace = self.shared.namespace.read();
        let pins = &namespace.pins;
        match pins.0.get(name).filter(|held| held.is_active(now)) {
            Some(held) if held.at == at && held.topics.as_deref() == topics => {
                Ok(expires.max(held.expires))
            }
            Some(held) => Err(PinError::Taken { name: name.to_owned(), at: held.at }),
            None if pins.active(now).count() >= self.options.pins_max => {
                Err(PinError::TooMany(self.options.pins_max))
            }
            None => Ok(expires),
        }
    }

    /// Removes a pin.
    ///
    /// # Errors
    /// [`PinError::Unknown`], or the disk fails.
    pub async fn unpin(&self, name: &str) -> Result<(), PinError> {
        let changing = Arc::clone(&self.change_lock).lock_owned().await;
        let now = self.pin_expiry_time();
        if !self.shared.namespace.read().pins.active(now).any(|(known, _)| &**known == name) {
            return Err(PinError::Unknown(name.to_owned()));
        }
        self.submit_event(MetadataEvent::PinRemoved { name: name.to_owned() }, Some(changing))
            .await?;
        Ok(())
    }

    /// The valid pins, by name.
    pub fn pins(&self) -> Vec<Pin> {
        let now = self.pin_expiry_time();
        let namespace = self.shared.namespace.read();
        // A topic that a pin names is not removed.
        let pin = |(name, held): (&Arc<str>, &StoredPin)| Pin {
            name: Arc::clone(name),
            at: held.at,
            expires: held.expires,
            topics: held.topics.as_ref().map(|ids| {
                let mut names: Vec<Arc<str>> =
                    ids.iter().filter_map(|id| namespace.name_of(id)).collect();
                names.sort();
                names
            }),
            set: held.set,
        };
        namespace.pins.active(now).map(pin).collect()
    }

    /// The time by which pins expire: none expires while the clock is fenced or in doubt.
    fn pin_expiry_time(&self) -> SysTime {
        self.retention_time().unwrap_or(SysTime(0))
    }

    /// What the valid pins hold of a topic; for `None`, what they hold of everything that belongs
    /// to no topic.
    pub fn pin_holds(&self, topic: Option<&TopicId>) -> PinHoldRange {
        let now = self.pin_expiry_time();
        self.shared.namespace.read().pins.topic_holds(topic, now)
    }

    /// The pin that keeps a partition's log start from advancing, if there is one.
    ///
    /// The partition is in the pin's cut, with records that are retained, or with nothing but an
    /// end at the log start. In the second case the records after the cut could be removed, but
    /// then the moment would be incomplete: its end would be below the log start.
    ///
    /// # Errors
    /// An index cannot be read.
    pub(crate) fn pin_hold_on(
        &self,
        topic: &TopicId,
        partition: &Partition,
    ) -> Result<Option<PinHold>, StorageError> {
        let now = self.pin_expiry_time();
        let hold = {
            let namespace = self.shared.namespace.read();
            // A topic that was deleted before the moment, or created after it, is not in it,
            // whatever its log holds. A removed topic is in no pinned moment, and has no records
            // left.
            let shows = |at| namespace.partition_count_at(topic, at) > partition.index as usize;
            namespace.pins.latest(topic, now, shows)
        };
        let Some(hold) = hold else { return Ok(None) };
        let end = tip_at(&partition.log, hold.at)?.end;
        Ok((end >= partition.start()).then_some(hold))
    }

    /// Removes the pins that have expired; returns how many. Removes none while the clock is in
    /// doubt. Maintenance calls this periodically.
    ///
    /// # Errors
    /// The disk fails, or the clock is fenced.
    pub async fn remove_expired_pins(&self) -> Result<usize, EngineError> {
        let mut removed = 0;
        loop {
            if let Some(fence) = self.timekeeper().fence() {
                return Err(EngineError::Fenced(fence.to_string()));
            }
            let Some(now) = self.retention_time() else { return Ok(removed) };
            // Locked again for each pin: nobody may set it between the check and the removal.
            let changing = Arc::clone(&self.change_lock).lock_owned().await;
            let expired = self.shared.namespace.read().pins.first_expired(now);
            let Some(name) = expired else { return Ok(removed) };
            tracing::info!(pin = &*name, "a pin has expired");
            self.submit_event(MetadataEvent::PinRemoved { name: name.to_string() }, Some(changing))
                .await?;
            removed += 1;
        }
    }

    /// Keeps pins and topics unchanged until the guard is dropped. Code that decides by pins which
    /// records to remove holds it from the decision until the horizon is on stable storage.
    pub async fn lock_changes(&self) -> ChangesGuard {
        ChangesGuard(Arc::clone(&self.change_lock).lock_owned().await)
    }

    /// The time by which records may be removed for their age; `None` while the clock cannot be
    /// trusted: a wrong clock could make everything look old, and every pin expired.
    pub fn retention_time(&self) -> Option<SysTime> {
        self.timekeeper().confirmed_now()
    }
}

/// Checks that a name is a valid pin name, by the rules of topic names.
///
/// # Errors
/// It is not valid.
pub fn check_pin_name(name: &str) -> Result<(), PinError> {
    match name_error(name) {
        None => Ok(()),
        Some(fault) => Err(PinError::Invalid(format!("pin name is invalid: {fault}"))),
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
