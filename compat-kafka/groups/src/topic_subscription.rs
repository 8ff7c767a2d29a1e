//! The subscriptions of a group's members: topics by name and by regular expression, and the topics
//! that match.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use engine::TopicId;
use hlc::split_moment_topic;
use regex::{Regex, RegexBuilder};
use xxhash_rust::xxh3::Xxh3;

use super::error::GroupError;

/// The most memory that a compiled regular expression may take.
const REGEX_BYTES_MAX: usize = 1 << 20;
/// The most bytes of a regular expression. While one is read, two bytes of it (`\w`) may take 6
/// KiB, which the limit above does not count.
const PATTERN_BYTES_MAX: usize = 16 << 10;
/// The topics of regular expressions hold this long at least for each topic that there is, so that
/// looking them up again takes a small share of the time.
const REGEX_INTERVAL_PER_TOPIC: Duration = Duration::from_micros(100);
/// And at most this long. Kafka waits as long whatever there is.
const REGEX_INTERVAL_MAX: Duration = Duration::from_secs(10);
/// If clients may not know of all topics, regular expressions are resolved again after this long:
/// the rules of access may have changed (Kafka's default of
/// `group.consumer.regex.refresh.interval.ms`).
const REGEX_INTERVAL_OF_RULES: Duration = Duration::from_secs(600);
/// About the memory of one topic that is resolved.
const TOPIC_BYTES: usize = 96;

/// The most moments of topics that a member may subscribe to: each may have to be looked up.
const MOMENT_TOPICS_MAX: usize = 1000;

/// True if a member may subscribe to these topics.
pub(super) fn may_subscribe(names: &BTreeSet<String>) -> bool {
    names.iter().filter(|name| split_moment_topic(name).is_some()).count() <= MOMENT_TOPICS_MAX
}

/// A topic, as far as groups know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupTopic {
    pub name: Arc<str>,
    pub id: TopicId,
    pub partitions: u32,
}

/// Returns true if a client may know of the topic of that name.
pub type TopicFilter<'a> = &'a (dyn Fn(&str) -> bool + Sync);

/// The topics that there are.
pub trait GroupTopics: Send + Sync {
    /// Differs whenever anything else here does.
    fn version(&self) -> u64;

    fn named(&self, name: &str) -> Option<GroupTopic>;

    fn by_id(&self, id: &TopicId) -> Option<GroupTopic>;

    /// The name of a topic that exists, or of a deleted one that is still known.
    fn name_of(&self, id: &TopicId) -> Option<Arc<str>>;

    /// The number of topics.
    fn count(&self) -> usize;

    /// True if clients may not know of all topics.
    fn are_restricted(&self) -> bool;

    /// The names that match, of topics of which the client may know. `None` if topics are
    /// restricted and no client asks.
    fn matching(&self, pattern: &Regex) -> Option<Vec<Arc<str>>>;

    /// [`GroupTopics::matching`] for the client that `may_know` is about.
    fn matching_for(&self, pattern: &Regex, may_know: TopicFilter<'_>) -> Vec<Arc<str>>;
}

/// The topics as a client sees them. As in Kafka, it may know of a topic that it or another member
/// of its group has named; of those that match a regular expression, it sees what it may describe.
pub(super) struct ClientTopics<'a> {
    pub(super) topics: &'a dyn GroupTopics,
    pub(super) may_know: TopicFilter<'a>,
}

impl GroupTopics for ClientTopics<'_> {
    fn version(&self) -> u64 {
        self.topics.version()
    }

    fn named(&self, name: &str) -> Option<GroupTopic> {
        self.topics.named(name)
    }

    fn by_id(&self, id: &TopicId) -> Option<GroupTopic> {
        self.topics.by_id(id)
    }

    fn name_of(&self, id: &TopicId) -> Option<Arc<str>> {
        self.topics.name_of(id)
    }

    fn count(&self) -> usize {
        self.topics.count()
    }

    fn are_restricted(&self) -> bool {
        self.topics.are_restricted()
    }

    fn matching(&self, pattern: &Regex) -> Option<Vec<Arc<str>>> {
        Some(self.topics.matching_for(pattern, self.may_know))
    }

    fn matching_for(&self, pattern: &Regex, may_know: TopicFilter<'_>) -> Vec<Arc<str>> {
        self.topics.matching_for(pattern, may_know)
    }
}

/// Compiles a regular expression that has to match a whole name.
///
/// # Errors
/// It is not one, or too long, or too large.
pub(super) fn compile(pattern: &str) -> Result<Regex, GroupError> {
    let build = |pattern: &str| RegexBuilder::new(pattern).size_limit(REGEX_BYTES_MAX).build();
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(GroupError::InvalidRegularExpression);
    }
    let unquoted = unquote(pattern);
    let pattern = unquoted.as_str();
    let anchored = || {
        build(pattern)?;
        // A pattern may end in a comment, which a line break ends.
        build(&format!(r"\A(?:{pattern})\z")).or_else(|_| build(&format!("\\A(?:{pattern}\n)\\z")))
    };
    anchored().map_err(|error| {
        tracing::debug!(pattern, %error, "a regular expression is not valid");
        GroupError::InvalidRegularExpression
    })
}

/// Escapes what stands between `\Q` and `\E`, which Kafka's syntax (RE2) has and ours has not.
fn unquote(pattern: &str) -> String {
    let (mut unquoted, mut rest) = (String::new(), pattern);
    while let Some(backslash) = rest.find('\\') {
        let (before, escape) = rest.split_at(backslash);
        unquoted.push_str(before);
        if let Some(quoted) = escape.strip_prefix("\\Q") {
            let (literal, after) = quoted.split_once("\\E").unwrap_or((quoted, ""));
            unquoted.push_str(&regex::escape(literal));
            rest = after;
        } else {
            let length = escape.chars().take(2).map(char::len_utf8).sum();
            unquoted.push_str(&escape[..length]);
            rest = &escape[length..];
        }
    }
    unquoted + rest
}

/// The topics of a regular expression.
#[derive(Debug, Clone)]
struct ResolvedRegex {
    members: usize,
    pattern: Regex,
    topics: Vec<Arc<str>>,
}

/// The subscriptions of all members.
#[derive(Debug, Clone, Default)]
pub(super) struct GroupSubscription {
    /// The number of members that name each topic.
    names: BTreeMap<String, usize>,
    regexes: BTreeMap<String, ResolvedRegex>,
    /// The topics of all, by name.
    topics: BTreeMap<Arc<str>, GroupTopic>,
    /// The [`GroupTopics::version`] of `topics`; `None` if they have to be looked up again.
    version: Option<u64>,
    /// The version at which all regular expressions were resolved, or earlier.
    regex_version: u64,
    regexes_resolved_at: Duration,
    /// Topics are restricted, and no client has asked since there is one of the regular
    /// expressions: it has no topics yet.
    is_unresolved: bool,
}

impl GroupSubscription {
    /// Counts a member in.
    ///
    /// # Errors
    /// Its regular expression is not valid. Then nothing has changed.
    pub(super) fn add(
        &mut self,
        names: &BTreeSet<String>,
        regex: &str,
        topics: &dyn GroupTopics,
    ) -> Result<(), GroupError> {
        match self.regexes.get_mut(regex) {
            Some(resolved) => resolved.members += 1,
            None if regex.is_empty() => {}
            None => {
                let pattern = compile(regex)?;
                if self.regexes.is_empty() {
                    self.regex_version = topics.version();
                }
                let matching = topics.matching(&pattern);
                self.is_unresolved |= matching.is_none();
                let topics = matching.unwrap_or_default();
                self.regexes
                    .insert(regex.to_owned(), ResolvedRegex { members: 1, pattern, topics });
            }
        }
        for name in names {
            *self.names.entry(name.clone()).or_default() += 1;
        }
        self.version = None;
        Ok(())
    }

    /// Counts a member out.
    pub(super) fn remove(&mut self, names: &BTreeSet<String>, regex: &str) {
        for name in names {
            if let Some(count) = self.names.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    self.names.remove(name);
                }
            }
        }
        if let Some(resolved) = self.regexes.get_mut(regex) {
            resolved.members -= 1;
            if resolved.members == 0 {
                self.regexes.remove(regex);
                self.is_unresolved &= !self.regexes.is_empty();
            }
        }
        self.version = None;
    }

    /// True if it is not known yet which topics match. Then nothing may follow from those that
    /// there are.
    pub(super) fn is_unresolved(&self) -> bool {
        self.is_unresolved
    }

    /// Looks up what may have changed since. Returns whether it looked, and knows all.
    pub(super) fn refresh(&mut self, now: Duration, topics: &dyn GroupTopics) -> bool {
        let version = topics.version();
        let may_resolve = || {
            let count = u32::try_from(topics.count()).unwrap_or(u32::MAX);
            let interval = REGEX_INTERVAL_PER_TOPIC.saturating_mul(count).min(REGEX_INTERVAL_MAX);
            now.saturating_sub(self.regexes_resolved_at) >= interval
        };
        let may_rules_differ = || {
            let age = now.saturating_sub(self.regexes_resolved_at);
            topics.are_restricted() && age >= REGEX_INTERVAL_OF_RULES
        };
        let is_old = || self.regex_version != version && may_resolve();
        let resolves = !self.regexes.is_empty()
            && (self.is_unresolved || is_old() || may_rules_differ())
            && self.resolve(topics);
        if self.version == Some(version) && !resolves {
            return false;
        }
        if resolves {
            (self.regex_version, self.regexes_resolved_at) = (version, now);
        }
        self.version = Some(version);
        let matched = self.regexes.values().flat_map(|resolved| &resolved.topics);
        let names = self.names.keys().map(String::as_str).chain(matched.map(|name| &**name));
        let topics = names.filter_map(|name| topics.named(name));
        self.topics = topics.map(|topic| (Arc::clone(&topic.name), topic)).collect();
        !self.is_unresolved
    }

    /// Looks up the topics of all regular expressions, unless topics are restricted and no client
    /// asks.
    fn resolve(&mut self, topics: &dyn GroupTopics) -> bool {
        let patterns = self.regexes.values();
        let matching: Option<Vec<_>> =
            patterns.map(|regex| topics.matching(&regex.pattern)).collect();
        let Some(matching) = matching else { return false };
        for (resolved, topics) in self.regexes.values_mut().zip(matching) {
            resolved.topics = topics;
        }
        self.is_unresolved = false;
        true
    }

    /// The names of all topics that a member subscribes to, whether they exist or not.
    pub(super) fn names(&self) -> BTreeSet<String> {
        let matched = self.regexes.values().flat_map(|resolved| &resolved.topics);
        self.names.keys().cloned().chain(matched.map(|name| name.to_string())).collect()
    }

    /// The number of partitions of each topic.
    pub(super) fn partition_counts(&self) -> BTreeMap<TopicId, u32> {
        self.topics.values().map(|topic| (topic.id, topic.partitions)).collect()
    }

    /// The topics that a member subscribes to, and that exist.
    pub(super) fn topics_of(&self, names: &BTreeSet<String>, regex: &str) -> BTreeSet<TopicId> {
        let by_name = names.iter().filter_map(|name| self.topics.get(name.as_str()));
        let resolved = self.regexes.get(regex).map_or(&[][..], |resolved| &resolved.topics);
        let matched = resolved.iter().filter_map(|name| self.topics.get(name));
        by_name.chain(matched).map(|topic| topic.id).collect()
    }

    /// Differs, as good as certainly, if the topics or the numbers of their partitions do.
    pub(super) fn hash(&self) -> u64 {
        let mut hash = Xxh3::new();
        for topic in self.topics.values() {
            hash.update(&topic.id);
            hash.update(&topic.partitions.to_le_bytes());
        }
        hash.digest()
    }

    /// About the memory of what is resolved.
    pub(super) fn bytes(&self) -> usize {
        let matched: usize = self.regexes.values().map(|resolved| resolved.topics.len()).sum();
        let patterns = self.regexes.len() * REGEX_BYTES_MAX / 8;
        (self.topics.len() + matched) * TOPIC_BYTES + patterns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_whole_names_only() {
        let matches = |pattern: &str, name: &str| compile(pattern).unwrap().is_match(name);
        assert!(matches("a|ab", "ab") && !matches("a|ab", "abc") && !matches("b", "ab"));
        assert!(matches("(?x) a b # a comment", "ab") && !matches("(?x) a b # x", "abc"));
        assert!(matches("(?i)orders-.*", "Orders-7") && matches("a#b", "a#b"));
        assert!(matches(r"\Qa.b\E.*", "a.bc") && !matches(r"\Qa.b\E.*", "axbc"));
        assert!(matches(r"\Qa.b", "a.b") && matches(r"\\Qa?", r"\Q") && matches(r"\.\Q\E-", ".-"));
        for pattern in ["a)(b", "(", "[", "a{9999999}", "(?x"] {
            assert_eq!(compile(pattern).err(), Some(GroupError::InvalidRegularExpression));
        }
    }
}
