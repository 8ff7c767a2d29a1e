//! Quotas: `/zookeeper/quota/PATH/zookeeper_limits` has the limits of the subtree at PATH, and its
//! sibling `zookeeper_stats` has the subtree's number of znodes and bytes. The server updates the
//! statistics, without a new version. Quotas do not nest: the one of the nearest znode above
//! counts.

use std::collections::BTreeMap;

/// The quota of PATH is at `/zookeeper/quota/PATH`.
const QUOTAS: &str = "/zookeeper/quota";
const LIMITS: &str = "zookeeper_limits";
const STATS: &str = "zookeeper_stats";

/// The znode whose limits are at a path.
pub(crate) fn path_of_limits(path: &str) -> Option<&str> {
    quota_path(path, LIMITS)
}

/// The znode whose usage is at a path.
pub(crate) fn path_of_stats(path: &str) -> Option<&str> {
    quota_path(path, STATS)
}

/// Returns true if a znode with this name may be one of either kind.
pub(crate) fn is_figures_name(name: &[u8]) -> bool {
    [LIMITS, STATS].iter().any(|figures| figures.as_bytes() == name)
}

fn quota_path<'a>(path: &'a str, name: &str) -> Option<&'a str> {
    let path = path.strip_prefix(QUOTAS)?.strip_suffix(name)?.strip_suffix('/')?;
    path.starts_with('/').then_some(path)
}

/// The path of the limits of a znode.
pub(crate) fn limits_path(path: &str) -> String {
    format!("{QUOTAS}{path}/{LIMITS}")
}

/// The path of the usage of a znode.
pub(crate) fn stats_path(path: &str) -> String {
    format!("{QUOTAS}{path}/{STATS}")
}

/// Limits, or usage, as ZooKeeper writes them (`StatsTrack`): -1 is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuotaFigures(BTreeMap<String, i64>);

impl QuotaFigures {
    pub(crate) fn new(count: i64, bytes: i64) -> QuotaFigures {
        let mut figures = QuotaFigures::default();
        figures.add(count, bytes);
        figures
    }

    /// Parses limits or usage, and leaves out what cannot be read.
    pub(crate) fn parse(data: Option<&[u8]>) -> QuotaFigures {
        let text = std::str::from_utf8(data.unwrap_or_default()).unwrap_or_default();
        let pairs = text.split([',', ';']).filter_map(|pair| {
            let mut words = pair.split('=');
            let (name, value) = (words.next()?, words.next()?);
            let value = if value.is_empty() { -1 } else { value.parse().ok()? };
            Some((name.to_owned(), value))
        });
        QuotaFigures(pairs.collect())
    }

    fn get(&self, name: &str) -> Option<i64> {
        self.0.get(name).copied()
    }

    /// Changes the usage.
    pub(crate) fn add(&mut self, count: i64, bytes: i64) {
        for (name, amount) in [("count", count), ("bytes", bytes)] {
            let before = self.get(name).unwrap_or(0);
            self.0.insert(name.to_owned(), before.saturating_add(amount));
        }
    }

    /// Returns true if usage that becomes this exceeds a hard limit; only a figure that grows is
    /// checked.
    pub(crate) fn is_exceeded_by(
        &self,
        usage: &QuotaFigures,
        count_grows: bool,
        bytes_grow: bool,
    ) -> bool {
        let exceeds = |limit: &str, figure: &str| {
            let limit = self.get(limit).filter(|limit| *limit >= 0);
            limit.is_some_and(|limit| usage.get(figure).unwrap_or(0) > limit)
        };
        (count_grows && exceeds("countHardLimit", "count"))
            || (bytes_grow && exceeds("byteHardLimit", "bytes"))
    }
}

impl std::fmt::Display for QuotaFigures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |name| self.get(name).unwrap_or(-1);
        write!(f, "count={},bytes={}", shown("count"), shown("bytes"))?;
        // Older clients stop reading at the second `=`.
        let mut rest = self.0.iter().filter(|(name, _)| !["count", "bytes"].contains(&&***name));
        if let Some((name, value)) = rest.next() {
            write!(f, "=;{name}={value}")?;
        }
        rest.try_for_each(|(name, value)| write!(f, ";{name}={value}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_as_zookeeper_writes_them() {
        for text in ["count=5,bytes=-1", "count=-1,bytes=-1=;byteHardLimit=7;countHardLimit=3"] {
            assert_eq!(QuotaFigures::parse(Some(text.as_bytes())).to_string(), text);
        }
        assert_eq!(QuotaFigures::parse(Some(b"nonsense")).to_string(), "count=-1,bytes=-1");
        assert_eq!(QuotaFigures::parse(None), QuotaFigures::default());
    }

    #[test]
    fn paths_of_quotas_are_those_of_the_znodes_that_they_are_of() {
        assert_eq!(path_of_limits("/zookeeper/quota/a/b/zookeeper_limits"), Some("/a/b"));
        assert_eq!(path_of_stats(&stats_path("/a")), Some("/a"));
        for path in [
            "/zookeeper/quota/zookeeper_limits",
            "/zookeeper/quota/a/other",
            "/zookeeper/quotas/zookeeper_limits",
            "/zookeeper/quotax/a/zookeeper_limits",
            "/a",
        ] {
            assert_eq!(path_of_limits(path), None, "{path}");
        }
    }
}
