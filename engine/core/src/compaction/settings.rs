//! Conditions for the compaction of a log, and its bound: the topic's settings, with Kafka's
//! meaning.

use std::time::Duration;

use hlc::{Hlc, SysTime};

use crate::config::{TopicConfig, TopicDefaults};

/// The compaction settings of a compacted topic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompactionSettings {
    /// The time for which a record is not compacted (`min.compaction.lag.ms`).
    pub min_lag: Duration,
    /// The time after which a record must be compacted (`max.compaction.lag.ms`).
    pub max_lag: Duration,
    /// The share of the log that must be dirty (`min.cleanable.dirty.ratio`).
    pub min_dirty_ratio: f64,
    /// The time that a tombstone stays (`delete.retention.ms`).
    pub delete_retention: Duration,
}

impl CompactionSettings {
    /// The settings of a topic; `None` if it is not compacted.
    pub fn of(config: &TopicConfig, defaults: &TopicDefaults) -> Option<CompactionSettings> {
        if !config.is_compacted(defaults) {
            return None;
        }
        let time = |key| Duration::from_millis(config.number(key, defaults).max(0) as u64);
        let ratio = config.value("min.cleanable.dirty.ratio", defaults);
        Some(CompactionSettings {
            min_lag: time("min.compaction.lag.ms"),
            max_lag: time("max.compaction.lag.ms"),
            min_dirty_ratio: ratio.parse().expect("settings were checked when they were set"),
            delete_retention: time("delete.retention.ms"),
        })
    }

    /// Records accepted before this may be compacted. Pins can hold the horizon further back.
    pub fn horizon(&self, now: SysTime) -> Hlc {
        Hlc::at(now.saturating_sub(self.min_lag))
    }

    /// Returns true if a log must be compacted now.
    ///
    /// `dirty_bytes` lie between the end of the last run and the horizon. `total_bytes` are these
    /// and the compacted bytes. `oldest_dirty` is when the first dirty record was accepted.
    pub fn is_due(
        &self,
        dirty_bytes: u64,
        total_bytes: u64,
        oldest_dirty: Option<SysTime>,
        now: SysTime,
    ) -> bool {
        if dirty_bytes == 0 {
            return false;
        }
        let must = now.saturating_sub(self.max_lag);
        let is_late = oldest_dirty.is_some_and(|oldest| oldest < must);
        is_late || dirty_bytes as f64 / total_bytes.max(dirty_bytes) as f64 > self.min_dirty_ratio
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn of(set: &[(&str, &str)]) -> Option<CompactionSettings> {
        let set = set.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let config = TopicConfig::new(BTreeMap::from_iter(set)).unwrap();
        CompactionSettings::of(&config, &TopicDefaults::new())
    }

    #[test]
    fn only_a_topic_whose_policy_says_so_is_compacted() {
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("cleanup.policy", "delete")]), None);
        for policy in ["compact", "compact,delete", "delete, compact"] {
            let settings = of(&[("cleanup.policy", policy), ("delete.retention.ms", "7")]);
            assert_eq!(settings.unwrap().delete_retention, Duration::from_millis(7), "{policy}");
        }
    }

    #[test]
    fn what_is_younger_than_the_lag_lies_above_the_horizon() {
        let settings = of(&[("cleanup.policy", "compact"), ("min.compaction.lag.ms", "100")]);
        let settings = settings.unwrap();
        assert_eq!(settings.horizon(SysTime(1000)), Hlc::at(SysTime(900)));
        assert_eq!(settings.horizon(SysTime(50)), Hlc::ZERO);
    }

    #[test]
    fn a_log_is_due_when_enough_of_it_is_dirty_or_it_has_waited_too_long() {
        let settings = of(&[
            ("cleanup.policy", "compact"),
            ("min.cleanable.dirty.ratio", "0.5"),
            ("max.compaction.lag.ms", "100"),
        ]);
        let is_due =
            |dirty, total, oldest| settings.unwrap().is_due(dirty, total, oldest, SysTime(1000));
        assert!(is_due(51, 100, Some(SysTime(950))));
        assert!(!is_due(50, 100, Some(SysTime(900))));
        assert!(is_due(1, 100, Some(SysTime(899))));
        assert!(!is_due(0, 100, Some(SysTime(1))));
        assert!(!is_due(0, 0, None));
        // By Kafka's defaults there is no lag, and half of the log must be dirty.
        let settings = of(&[("cleanup.policy", "compact")]).unwrap();
        assert!(!settings.is_due(50, 100, Some(SysTime(0)), SysTime(u64::MAX >> 16)));
        assert!(settings.is_due(51, 100, Some(SysTime(0)), SysTime(1)));
    }
}
