//! The source of a topic's user time, now and in the past.
//!
//! A change of the setting does not rewrite the past: each batch is read by the rule that was in
//! force at its stamp. To guarantee that it was also accepted by this rule, the writer's thread
//! checks each batch against the rule in force at that position of the journal (`ActiveRules`).
//!
//! A record can have no user time, if the topic accepts such records. It is found by no user time,
//! belongs to no exact set of one, and does not count for the smallest and the largest of its
//! batch.

use std::sync::{Arc, OnceLock};

use hlc::{Hlc, UserTime};
use parking_lot::RwLock;
use user_time::{UserTimeExtractor, UserTimeKind, UserTimeSpec};

use crate::config::{TopicConfig, USER_TIME, USER_TIME_ORDER, USER_TIME_UNREADABLE};

/// A topic's settings for user time, from one stamp on.
#[derive(Debug)]
pub struct UserTimeRule {
    pub(crate) since: Hlc,
    pub(crate) spec: UserTimeSpec,
    is_strict: bool,
    keeps_unreadable: bool,
    /// Created when it is first needed.
    pub(crate) extractor: OnceLock<UserTimeExtractor>,
}

impl UserTimeRule {
    /// The rule of settings that hold from `since` on; `None` for the defaults.
    pub(crate) fn from_config(config: &TopicConfig, since: Hlc) -> Option<Arc<UserTimeRule>> {
        let set = |key: &str| config.overrides().get(key).map(String::as_str);
        let spec =
            set(USER_TIME).map(|text| UserTimeSpec::parse(text).expect("settings are checked"));
        let spec = spec.unwrap_or_else(|| UserTimeSpec::parse("timestamp").expect("it is a spec"));
        let is_strict = set(USER_TIME_ORDER) == Some("strict");
        let keeps_unreadable = set(USER_TIME_UNREADABLE) == Some("keep");
        let extractor = OnceLock::new();
        let says_nothing = spec.is_timestamp() && !is_strict;
        let rule = UserTimeRule { since, spec, is_strict, keeps_unreadable, extractor };
        (!says_nothing).then(|| Arc::new(rule))
    }

    /// The stamp from which it holds.
    pub fn since(&self) -> Hlc {
        self.since
    }

    /// The source of user time.
    pub fn spec(&self) -> &UserTimeSpec {
        &self.spec
    }

    /// Returns true if a record's user time must not be below that of the record before it.
    pub fn is_strict(&self) -> bool {
        self.is_strict
    }

    /// Returns true if records whose user time cannot be read are kept, without one.
    pub fn keeps_unreadable(&self) -> bool {
        self.keeps_unreadable
    }

    /// Returns true if user time is the record's own timestamp.
    pub fn is_timestamp(&self) -> bool {
        self.spec.is_timestamp()
    }

    fn is_equivalent(&self, other: &UserTimeRule) -> bool {
        (&self.spec, self.is_strict, self.keeps_unreadable)
            == (&other.spec, other.is_strict, other.keeps_unreadable)
    }
}

/// The rule of a new version of a topic: the rule of the version before, if the settings say the
/// same.
pub(crate) fn next_rule(
    before: Option<&Arc<UserTimeRule>>,
    config: &TopicConfig,
    stamp: Hlc,
) -> Option<Arc<UserTimeRule>> {
    let rule = UserTimeRule::from_config(config, stamp)?;
    match before {
        Some(before) if before.is_equivalent(&rule) => Some(Arc::clone(before)),
        _ => Some(rule),
    }
}

/// All rules that a topic has had. Its partitions share them.
#[derive(Debug, Default)]
pub(crate) struct UserTimeRules(RwLock<Vec<(Hlc, Option<Arc<UserTimeRule>>)>>);

impl UserTimeRules {
    /// From `stamp` on, `rule` holds.
    pub(crate) fn push(&self, stamp: Hlc, rule: Option<&Arc<UserTimeRule>>) {
        let mut rules = self.0.write();
        let is_same = match (rules.last().and_then(|(_, last)| last.as_ref()), rule) {
            (None, None) => true,
            (Some(last), Some(rule)) => Arc::ptr_eq(last, rule),
            _ => false,
        };
        if !is_same {
            rules.push((stamp, rule.cloned()));
        }
    }

    /// Returns true if none of them reads the content of records.
    pub(crate) fn are_all_timestamps(&self) -> bool {
        let looks =
            |rule: &Option<Arc<UserTimeRule>>| rule.as_ref().is_some_and(|r| !r.is_timestamp());
        !self.0.read().iter().any(|(_, rule)| looks(rule))
    }

    /// Returns true if any of them uses a plug-in.
    pub(crate) fn any_plugin(&self) -> bool {
        self.0.read().iter().any(|(_, rule)| rule.as_ref().is_some_and(|r| is_plugin(&r.spec)))
    }

    /// The rule for a batch with this stamp.
    pub(crate) fn at(&self, stamp: Hlc) -> Option<Arc<UserTimeRule>> {
        let rules = self.0.read();
        let count = rules.partition_point(|(since, _)| *since <= stamp);
        rules[..count].last()?.1.clone()
    }
}

/// The smallest and the largest user time of a batch in which no record has any.
pub const NO_TIMES: (UserTime, UserTime) = (UserTime(i64::MAX), UserTime(i64::MIN));

pub(crate) fn is_plugin(spec: &UserTimeSpec) -> bool {
    matches!(spec.kind(), UserTimeKind::Wasm { .. })
}
