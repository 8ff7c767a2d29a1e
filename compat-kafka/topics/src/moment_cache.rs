//! Topics whose name contains a moment.
//!
//! A final moment never changes, so its resolved view is cached, within a limit of bytes. The least
//! recently used views are evicted first. A moment of user time that does not say as of when is
//! pinned by its first request, for as long as it is cached.

use std::sync::Arc;

use engine::security::NameKey;
use engine::{
    CacheWeight, Engine, LruCache, PartitionView, SeekError, TopicId, TopicView, WaitPolicy,
};
use hlc::{Moment, MomentError, MomentSelector, split_moment_topic, split_topic_mark};
use kafka_errors::seek_error;
use kafka_protocol::ResponseError;

/// The most bytes of cached views.
const CACHE_BYTES_MAX: usize = 64 << 20;
/// The bytes of a view without its partitions and its name.
const VIEW_BYTES: usize = 512;
/// The longest name that is parsed.
const NAME_BYTES_MAX: usize = 1024;
/// The most partitions or settings of moments that one response describes. Rows of the present are
/// limited by what exists. Rows of moments are not: a few bytes in a request name one more moment.
const MOMENT_ROWS_MAX: usize = 100_000;

/// The reason that a moment in a topic's name cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MomentTopicError {
    /// The moment does not parse.
    #[error("{0}")]
    Grammar(#[from] MomentError),
    /// The moment cannot be read.
    #[error("{0}")]
    Seek(#[from] SeekError),
    /// The response has as many rows of moments as it may.
    #[error(
        "one answer describes at most {MOMENT_ROWS_MAX} partitions or settings of moments. ask for fewer at a time"
    )]
    TooMany,
}

impl MomentTopicError {
    pub fn error(&self) -> ResponseError {
        match self {
            // Clients report this error to their callers, and do not retry.
            MomentTopicError::Grammar(_) | MomentTopicError::TooMany => {
                ResponseError::InvalidTopicException
            }
            MomentTopicError::Seek(error) => seek_error(error),
        }
    }
}

/// The number of rows of moments that a response may still have.
#[derive(Debug)]
pub struct MomentRowQuota(usize);

impl Default for MomentRowQuota {
    fn default() -> MomentRowQuota {
        MomentRowQuota(MOMENT_ROWS_MAX)
    }
}

impl MomentRowQuota {
    /// Checks that rows are left.
    pub(crate) fn check(&self) -> Result<(), MomentTopicError> {
        if self.0 == 0 { Err(MomentTopicError::TooMany) } else { Ok(()) }
    }

    /// Uses `rows` for another moment. The last one may have more rows than are left.
    pub fn take(&mut self, rows: usize) -> Result<(), MomentTopicError> {
        self.check()?;
        self.0 = self.0.saturating_sub(rows.max(1));
        Ok(())
    }
}

/// A view, and the name that it was requested by.
#[derive(Debug)]
struct CachedView {
    name: Box<str>,
    view: Arc<TopicView>,
}

impl CacheWeight for CachedView {
    fn bytes(&self) -> usize {
        VIEW_BYTES + self.name.len() + self.view.partitions.len() * size_of::<PartitionView>()
    }
}

/// The views that names resolved to. The newest one stays, however large it is.
pub(crate) struct MomentCache {
    views: LruCache<TopicId, CachedView>,
    id_key: NameKey,
}

impl MomentCache {
    /// A cache whose topic ids follow from a key. The key of a data directory outlives a restart,
    /// and so do the ids.
    pub(crate) fn new(key: &NameKey) -> MomentCache {
        let id_key = key.derive("ids of moments");
        MomentCache { views: LruCache::new(CACHE_BYTES_MAX), id_key }
    }

    /// The id of the topic with that name. Nobody can compute it: a client that has it has read the
    /// topic.
    pub(crate) fn topic_id(&self, name: &str) -> TopicId {
        let hash = self.id_key.hash(name.as_bytes());
        let mut id: TopicId = *hash.first_chunk().expect("a hash is longer than an id");
        // A version 8 UUID (RFC 9562: custom), which no random topic id is.
        id[6] = (id[6] & 0x0f) | 0x80;
        id[8] = (id[8] & 0x3f) | 0x80;
        id
    }

    /// Resolves the view that `name` asks for, or `None` if it contains no moment. A cached view
    /// may have lost records since. After reading it, the caller calls
    /// [`TopicView::check_retained`] or [`TopicView::check_partition_retained`].
    pub(crate) async fn resolve(
        &self,
        engine: &Engine,
        name: &str,
        when: WaitPolicy,
    ) -> Result<Option<Arc<TopicView>>, MomentTopicError> {
        if name.len() > NAME_BYTES_MAX {
            return Ok(None);
        }
        let Some((topic, ask)) = split_moment_topic(name) else { return Ok(None) };
        let id = self.topic_id(name);
        let cached = self.views.get(&id).filter(|cached| *cached.name == *name);
        let ask = match (ask, &cached) {
            (Ok(_), Some(cached)) => return Ok(Some(Arc::clone(&cached.view))),
            (Ok(ask), None) => ask,
            (Err(error), _) => {
                let pinned =
                    split_topic_mark(name).and_then(|(_, pin)| engine.pins().moment_of(pin));
                let ask = MomentSelector::At(Moment::Sys(pinned.ok_or(error)?));
                match &cached {
                    Some(cached) if cached.view.selector == ask => {
                        return Ok(Some(Arc::clone(&cached.view)));
                    }
                    // The pin was removed, and set at another moment.
                    Some(cached) => self.views.remove(&id, cached),
                    None => {}
                }
                ask
            }
        };
        let view = Arc::new(engine.seek().view(topic, ask, when).await?);
        Ok(Some(self.insert(name, view)))
    }

    /// The name of a cached view.
    pub(crate) fn name_of(&self, id: &TopicId) -> Option<Box<str>> {
        self.views.get(id).map(|cached| cached.name.clone())
    }

    pub(crate) fn by_id(&self, id: &TopicId) -> Option<Arc<TopicView>> {
        self.views.get(id).map(|cached| Arc::clone(&cached.view))
    }

    /// Caches a view. Of several requests for one name, the first pins the result.
    fn insert(&self, name: &str, view: Arc<TopicView>) -> Arc<TopicView> {
        let id = self.topic_id(name);
        let make = || CachedView { name: name.into(), view: Arc::clone(&view) };
        let cached = self.views.get_or_insert_with(&id, make);
        self.views.update_weight(&id);
        // Of two names with one id, the first has it.
        if *cached.name == *name { Arc::clone(&cached.view) } else { view }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use engine::EngineOptions;
    use hlc::{Cut, ManualClock, SysTime};
    use storage::disk::MemoryDisk;

    use super::*;
    use kafka_format::KafkaFormat;

    const START: u64 = 1_795_252_948_000;

    async fn engine(partitions: u32) -> Engine {
        let clock = Arc::new(ManualClock::at(SysTime(START)));
        let engine = Engine::open(
            Arc::new(MemoryDisk::new()),
            EngineOptions::default(),
            Arc::clone(&clock) as Arc<dyn hlc::WallClock>,
            Arc::new(KafkaFormat { decompressed_bytes_max: 1 << 20 }),
        );
        let engine = engine.unwrap();
        engine.topics().create("t", partitions, BTreeMap::new(), [1; 16], false).await.unwrap();
        clock.advance(Duration::from_secs(1));
        engine
    }

    #[tokio::test]
    async fn views_are_remembered_within_so_many_bytes_and_those_that_are_asked_for_stay() {
        let engine = engine(1000).await;
        let bytes_max = 1 << 20;
        let views = LruCache::new(bytes_max);
        let moments = MomentCache { views, ..MomentCache::new(&NameKey::random()) };
        let resolve = async |nth: usize| {
            let name = format!("t@u{nth}");
            moments.resolve(&engine, &name, WaitPolicy::Refuse).await.unwrap().unwrap()
        };
        let first = resolve(0).await;
        let one = moments.views.bytes();
        assert!(one >= 1000 * size_of::<PartitionView>());
        let count = 2 * bytes_max / one;
        for nth in 1..count {
            resolve(nth).await;
            assert!(Arc::ptr_eq(&first, &resolve(0).await), "asked for all the time");
        }
        assert!(moments.views.bytes() <= bytes_max, "{}", moments.views.bytes());
        let is_cached = |name: &str| moments.views.get(&moments.topic_id(name)).is_some();
        assert!(!is_cached("t@u1"), "asked for once, long ago");
        assert!(is_cached(&format!("t@u{}", count - 1)));
    }

    #[tokio::test]
    async fn a_pin_names_the_moment_at_which_it_stands_now() {
        let engine = engine(1).await;
        let moments = MomentCache::new(&NameKey::random());
        let selector = async |name: &str| {
            let view = moments.resolve(&engine, name, WaitPolicy::Refuse).await;
            view.map(|view| view.unwrap().selector.to_string())
        };
        assert!(selector("t@audit").await.is_err());
        for ms in [START + 100, START + 200] {
            let (cut, expires) = (Cut::before(SysTime(ms)), SysTime(START + 1_000_000));
            engine.pins().set("audit", cut, WaitPolicy::Refuse, expires, None).await.unwrap();
            for name in ["t@audit", "t@pin:audit", "t.__at.pin.audit", "t@audit"] {
                assert_eq!(selector(name).await.unwrap(), format!("s{ms}"), "{name}");
            }
            engine.pins().remove("audit").await.unwrap();
        }
        assert!(selector("t@audit").await.is_err());
    }

    #[test]
    fn topic_ids_follow_from_the_key_and_from_nothing_else() {
        let key = NameKey::random();
        let id = |key: &NameKey| MomentCache::new(key).topic_id("t@u1");
        assert_eq!(id(&key), id(&key), "also after a restart");
        assert_ne!(id(&key), id(&NameKey::random()), "without the key, nobody computes it");
        assert_ne!(id(&key), MomentCache::new(&key).topic_id("t@u2"));
        assert_eq!((id(&key)[6] & 0xf0, id(&key)[8] & 0xc0), (0x80, 0x80));
    }

    #[test]
    fn an_answer_tells_of_so_many_partitions_of_moments_and_then_refuses() {
        let mut rows = MomentRowQuota::default();
        for _ in 0..9 {
            rows.take(MOMENT_ROWS_MAX / 10).unwrap();
        }
        assert!(rows.take(MOMENT_ROWS_MAX).is_ok(), "the last may have more than are left");
        assert!(matches!(rows.check(), Err(MomentTopicError::TooMany)));
        assert!(matches!(rows.take(1), Err(MomentTopicError::TooMany)));
    }
}
