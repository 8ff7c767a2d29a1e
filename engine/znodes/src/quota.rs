//! Quotas: `/zookeeper/quota/PATH/zookeeper_limits` has the limits of the subtree at PATH, and
//! `zookeeper_stats` beside it how many znodes and bytes that has. The server keeps the latter up
//! to date, without a version. Quotas do not nest: the one of the nearest znode above counts.

use std::collections::BTreeMap;

/// Below it are quotas, at the paths that they are of.
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
    let of = path.strip_prefix(QUOTAS)?.strip_suffix(name)?.strip_suffix('/')?;
    of.starts_with('/').then_some(of)
}

/// The path of the limits of a znode.
pub(crate) fn limits_path(of: &str) -> String {
    format!("{QUOTAS}{of}/{LIMITS}")
}

/// The path of the usage of a znode.
pub(crate) fn stats_path(of: &str) -> String {
    format!("{QUOTAS}{of}/{STATS}")
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
        for (name, more) in [("count", count), ("bytes", bytes)] {
            let before = self.get(name).unwrap_or(0);
            self.0.insert(name.to_owned(), before.saturating_add(more));
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
        let exceeds = |limit: &str, of: &str| {
            let limit = self.get(limit).filter(|limit| *limit >= 0);
            limit.is_some_and(|limit| usage.get(of).unwrap_or(0) > limit)
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
        let mut others = self.0.iter().filter(|(name, _)| !["count", "bytes"].contains(&&***name));
        if let Some((name, value)) = others.next() {
            write!(f, "=;{name}={value}")?;
        }
        others.try_for_each(|(name, value)| write!(f, ";{name}={value}"))
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
