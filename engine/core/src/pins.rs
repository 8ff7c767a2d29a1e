//! Pins: named moments that are kept readable until they expire.
//!
//! While a pin is valid, nothing that its cut admits is removed: retention stops at it,
//! DeleteRecords is refused, and the compaction horizon stays at or below it. A pin is set and
//! removed by events of the namespace, so it survives a restart.
//!
//! The wall clock decides whether a pin has expired, and a wrong clock must not end pins: while the
//! clock is fenced or in doubt, no pin expires, and nothing is removed by age
//! ([`EngineCore::retention_time`]). One lock, [`EngineCore::lock_changes`], covers setting pins,
//! checking them against the horizons, and advancing horizons: a pin never covers what is already
//! removed.

use std::sync::Arc;

use admission::{BudgetError, Holder};
use hlc::{Cut, Hlc, Moment, MomentReference, SysTime};
use storage::StorageError;

use crate::blocking::tip_at;
use crate::engine_core::EngineCore;
use crate::error::EngineError;
use crate::frontier::WaitPolicy;
use crate::namespace::event::NamespaceEvent;
use crate::namespace::pin_table::{Pin, PinHold, PinHoldRange, StoredPin};
use crate::namespace::{Partition, TopicId, name_error};
use crate::seek_error::SeekError;

/// The furthest expiry of a pin from now: ten years.
pub const EXPIRY_MS_MAX: u64 = 3653 * 24 * 60 * 60 * 1000;

/// The reason that a pin was not set or removed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PinError {
    /// The request is not a valid pin.
    #[error("{0}")]
    Invalid(String),
    /// The name is taken.
    #[error(
        "the pin {name} exists already, at {} or for other topics: remove it first", Moment::Sys(*.at)
    )]
    Taken {
        name: String,
        /// The moment of the existing pin.
        at: Cut,
    },
    /// The client has its share of pins.
    #[error("no more pins can be set; remove one, or wait until one expires. {0}")]
    TooMany(Box<BudgetError>),
    /// No such pin exists.
    #[error("there is no pin {0}")]
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

/// Pins: named moments that are kept readable.
#[derive(Clone, Copy, Debug)]
pub struct Pins<'a> {
    core: &'a EngineCore,
    /// The account of pins that are set; `None` for the server itself.
    holder: Option<&'a Holder>,
}

impl EngineCore {
    /// Pins: named moments that are kept readable.
    pub fn pins(&self) -> Pins<'_> {
        Pins { core: self, holder: None }
    }
}

impl<'a> Pins<'a> {
    /// The same pins for one client, which is charged for those that it sets.
    pub fn on_behalf_of(self, holder: &'a Holder) -> Pins<'a> {
        Pins { holder: Some(holder), ..self }
    }
}

impl Pins<'_> {
    /// Keeps everything that `at` admits until `expires`: of all topics, or of the named ones. If a
    /// pin of that name exists at the same moment for the same topics, it gets the later of both
    /// expiries.
    ///
    /// # Errors
    /// [`PinError`].
    pub async fn set(
        self,
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
        let (at, _) = self.core.wait_until_closed(at, when).await?;
        self.remove_expired().await?;
        let changing = self.core.lock_changes().await;
        // Fails if any of it has been removed. The lock ensures that nothing is removed meanwhile.
        let snapshot = self.core.cuts().snapshot_at(at, topics)?;
        if topics.is_none() {
            self.core.check_projections_retained(at)?;
        }
        let ids = topics.map(|_| {
            let mut ids: Vec<TopicId> = snapshot.topics.iter().map(|topic| topic.id).collect();
            ids.sort_unstable();
            ids
        });
        let expires = self.later_expiry(name, at, expires, ids.as_deref())?;
        let holder = self.holder.cloned().unwrap_or_else(Holder::server);
        self.core.shared.accounts.begin_set_pin(name, &holder).map_err(PinError::TooMany)?;
        let event = NamespaceEvent::PinSet {
            name: name.to_owned(),
            at: at.bound().bits(),
            expires_ms: expires.0,
            topics: ids,
        };
        let set = self.core.submit_event(event, Some(changing)).await?;
        let mut names = topics.map(|_| snapshot.topics.iter().map(|topic| Arc::clone(&topic.name)));
        let topics = names.as_mut().map(Iterator::collect);
        Ok(Pin { name: name.into(), at, expires, topics, set })
    }

    fn check_expiry(self, expires: SysTime) -> Result<(), PinError> {
        let now = self.core.wall_now();
        if expires > now && expires.0 - now.0 <= EXPIRY_MS_MAX {
            return Ok(());
        }
        Err(PinError::Invalid(format!(
            "a pin expires in the future, within 10 years, and not at {} (now is {}; milliseconds since 1970)",
            expires.0, now.0
        )))
    }

    /// The expiry of the new pin, if it may be set.
    fn later_expiry(
        self,
        name: &str,
        at: Cut,
        expires: SysTime,
        topics: Option<&[TopicId]>,
    ) -> Result<SysTime, PinError> {
        let now = self.pin_expiry_time();
        let namespace = self.core.shared.namespace.read();
        let pins = &namespace.pins;
        match pins.0.get(name).filter(|pin| pin.is_active(now)) {
            Some(pin) if pin.at == at && pin.topics.as_deref() == topics => {
                Ok(expires.max(pin.expires))
            }
            Some(pin) => Err(PinError::Taken { name: name.to_owned(), at: pin.at }),
            None => Ok(expires),
        }
    }

    /// Removes a pin.
    ///
    /// # Errors
    /// [`PinError::Unknown`], or the disk fails.
    pub async fn remove(self, name: &str) -> Result<(), PinError> {
        self.remove_if(name, |_| true).await
    }

    /// Removes the pin that was set at `set`, and no later one of its name.
    ///
    /// # Errors
    /// As [`Pins::remove`].
    pub async fn remove_set_at(self, name: &str, set: Hlc) -> Result<(), PinError> {
        self.remove_if(name, |pin| pin.set == set).await
    }

    async fn remove_if(
        self,
        name: &str,
        is_it: impl Fn(&StoredPin) -> bool,
    ) -> Result<(), PinError> {
        let changing = self.core.lock_changes().await;
        let now = self.pin_expiry_time();
        let is_there = {
            let namespace = self.core.shared.namespace.read();
            namespace.pins.active(now).any(|(known, pin)| &**known == name && is_it(pin))
        };
        if !is_there {
            return Err(PinError::Unknown(name.to_owned()));
        }
        self.core
            .submit_event(NamespaceEvent::PinRemoved { name: name.to_owned() }, Some(changing))
            .await?;
        Ok(())
    }

    /// The moment of the valid pin that a text names: `pin:NAME`, in a topic's name `pin.NAME`, or
    /// the name alone.
    pub fn moment_of(self, text: &str) -> Option<Cut> {
        let name = match text.parse() {
            Ok(MomentReference::Pin(name)) => name,
            Ok(_) => return None,
            Err(_) => text.to_owned(),
        };
        let now = self.pin_expiry_time();
        let namespace = self.core.shared.namespace.read();
        let mut pins = namespace.pins.active(now);
        pins.find(|(pin, _)| ***pin == *name).map(|(_, pin)| pin.at)
    }

    /// The valid pins, by name.
    pub fn all(self) -> Vec<Pin> {
        let now = self.pin_expiry_time();
        let namespace = self.core.shared.namespace.read();
        // A topic that a pin names is not removed.
        let pin = |(name, stored): (&Arc<str>, &StoredPin)| Pin {
            name: Arc::clone(name),
            at: stored.at,
            expires: stored.expires,
            topics: stored.topics.as_ref().map(|ids| {
                let mut names: Vec<Arc<str>> =
                    ids.iter().filter_map(|id| namespace.name_of(id)).collect();
                names.sort();
                names
            }),
            set: stored.set,
        };
        namespace.pins.active(now).map(pin).collect()
    }

    /// The time by which pins expire: none expires while the clock is fenced or in doubt.
    fn pin_expiry_time(self) -> SysTime {
        self.core.retention_time().unwrap_or(SysTime(0))
    }

    /// The range that the valid pins hold of a topic; for `None`, of everything that belongs to no
    /// topic.
    pub fn holds(self, topic: Option<&TopicId>) -> PinHoldRange {
        let now = self.pin_expiry_time();
        self.core.shared.namespace.read().pins.topic_holds(topic, now)
    }

    /// The pin that keeps a partition's log start from advancing, if there is one.
    ///
    /// The partition is in the pin's cut, with records that are retained, or with nothing but an
    /// end at the log start. In the second case the records after the cut could be removed, but
    /// then the moment would be incomplete: its end would be below the log start.
    ///
    /// # Errors
    /// An index cannot be read.
    pub(crate) fn hold_on(
        self,
        topic: &TopicId,
        partition: &Partition,
    ) -> Result<Option<PinHold>, StorageError> {
        let now = self.pin_expiry_time();
        let hold = {
            let namespace = self.core.shared.namespace.read();
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
    pub async fn remove_expired(self) -> Result<usize, EngineError> {
        let mut removed = 0;
        loop {
            if let Some(fence) = self.core.timekeeper().fence() {
                return Err(EngineError::Fenced(fence.to_string()));
            }
            let Some(now) = self.core.retention_time() else { return Ok(removed) };
            // Locked again for each pin: nobody may set it between the check and the removal.
            let changing = self.core.lock_changes().await;
            let expired = self.core.shared.namespace.read().pins.first_expired(now);
            let Some(name) = expired else { return Ok(removed) };
            tracing::info!(pin = &*name, "a pin has expired");
            self.core
                .submit_event(NamespaceEvent::PinRemoved { name: name.to_string() }, Some(changing))
                .await?;
            removed += 1;
        }
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
