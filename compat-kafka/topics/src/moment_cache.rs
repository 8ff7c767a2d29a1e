//! Topics whose name contains a moment.
//!
//! A final moment never changes, so its resolved view is cached, within a limit of bytes. The least
//! recently used views are evicted first. A moment of user time that does not say as of when is
//! pinned by its first request, for as long as it is cached.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use engine::security::NameKey;
use engine::{Engine, PartitionView, SeekError, TopicId, TopicView, WaitPolicy};
use hlc::{Moment, MomentError, MomentSelector, split_moment_topic, split_topic_mark};
use kafka_errors::seek_error;
use kafka_protocol::ResponseError;
use parking_lot::Mutex;

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
    /// True if the view was used since eviction last skipped it.
    is_used: bool,
}

impl CachedView {
    fn bytes(&self) -> usize {
        VIEW_BYTES + self.name.len() + self.view.partitions.len() * size_of::<PartitionView>()
    }
}

#[derive(Default)]
struct MomentCacheState {
    by_id: HashMap<TopicId, CachedView>,
    /// The next candidate for eviction is in front.
    order: VecDeque<TopicId>,
    bytes: usize,
}

impl MomentCacheState {
    fn get(&mut self, id: &TopicId) -> Option<&CachedView> {
        let cached_view = self.by_id.get_mut(id)?;
        cached_view.is_used = true;
        Some(cached_view)
    }

    fn put(&mut self, id: TopicId, cached_view: CachedView) {
        self.bytes += cached_view.bytes();
        self.by_id.insert(id, cached_view);
        self.order.push_back(id);
    }

    fn remove(&mut self, id: &TopicId) {
        if let Some(cached_view) = self.by_id.remove(id) {
            self.bytes -= cached_view.bytes();
            self.order.retain(|held| held != id);
        }
    }

    /// Evicts what was not used lately, until at most `bytes_max` are left. The newest view stays.
    fn shrink(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max && self.order.len() > 1 {
            let Some(id) = self.order.pop_front() else { return };
            let Some(next) = self.by_id.get_mut(&id) else { continue };
            if std::mem::take(&mut next.is_used) {
                self.order.push_back(id);
                continue;
            }
            self.bytes -= next.bytes();
            self.by_id.remove(&id);
        }
    }
}

/// The views that names resolved to.
pub(crate) struct MomentCache {
    state: Mutex<MomentCacheState>,
    bytes_max: usize,
    id_key: NameKey,
}

impl MomentCache {
    /// A cache whose topic ids follow from a key. The key of a data directory outlives a restart,
    /// and so do the ids.
    pub(crate) fn new(key: &NameKey) -> MomentCache {
        let id_key = key.derive("ids of moments");
        MomentCache { state: Mutex::default(), bytes_max: CACHE_BYTES_MAX, id_key }
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
        let cached = self.by_name(name);
        let ask = match ask {
            Ok(_) if cached.is_some() => return Ok(cached),
            Ok(ask) => ask,
            Err(error) => {
                let pinned =
                    split_topic_mark(name).and_then(|(_, pin)| engine.pins().moment_of(pin));
                let ask = MomentSelector::At(Moment::Sys(pinned.ok_or(error)?));
                match cached {
                    Some(view) if view.selector == ask => return Ok(Some(view)),
                    // The pin was removed, and set at another moment.
                    Some(_) => self.state.lock().remove(&self.topic_id(name)),
                    None => {}
                }
                ask
            }
        };
        let view = Arc::new(engine.seek().view(topic, ask, when).await?);
        Ok(Some(self.insert(name, view)))
    }

    fn by_name(&self, name: &str) -> Option<Arc<TopicView>> {
        let id = self.topic_id(name);
        let mut state = self.state.lock();
        let cached_view = state.get(&id)?;
        (*cached_view.name == *name).then(|| Arc::clone(&cached_view.view))
    }

    /// The name of a cached view.
    pub(crate) fn name_of(&self, id: &TopicId) -> Option<Box<str>> {
        self.state.lock().get(id).map(|cached_view| cached_view.name.clone())
    }

    pub(crate) fn by_id(&self, id: &TopicId) -> Option<Arc<TopicView>> {
        self.state.lock().get(id).map(|cached_view| Arc::clone(&cached_view.view))
    }

    /// Caches a view. Of several requests for one name, the first pins the result.
    fn insert(&self, name: &str, view: Arc<TopicView>) -> Arc<TopicView> {
        let (id, mut state) = (self.topic_id(name), self.state.lock());
        match state.by_id.get(&id) {
            Some(first) if *first.name == *name => return Arc::clone(&first.view),
            // Of two names with one id, the first has it.
            Some(_) => return view,
            None => {}
        }
        let cached_view = CachedView { name: name.into(), view: Arc::clone(&view), is_used: false };
        state.put(id, cached_view);
        state.shrink(self.bytes_max);
        view
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
        let moments = MomentCache { bytes_max: 1 << 20, ..MomentCache::new(&NameKey::random()) };
        let resolve = async |nth: usize| {
            let name = format!("t@u{nth}");
            moments.resolve(&engine, &name, WaitPolicy::Refuse).await.unwrap().unwrap()
        };
        let first = resolve(0).await;
        let one = moments.state.lock().bytes;
        assert!(one >= 1000 * size_of::<PartitionView>());
        let count = 2 * moments.bytes_max / one;
        for nth in 1..count {
            resolve(nth).await;
            assert!(Arc::ptr_eq(&first, &resolve(0).await), "asked for all the time");
        }
        let state = moments.state.lock();
        assert!(state.bytes <= moments.bytes_max, "{}", state.bytes);
        assert_eq!(state.order.len(), state.by_id.len());
        assert_eq!(state.bytes, state.by_id.values().map(CachedView::bytes).sum::<usize>());
        assert!(!state.by_id.contains_key(&moments.topic_id("t@u1")), "asked for once, long ago");
        assert!(state.by_id.contains_key(&moments.topic_id(&format!("t@u{}", count - 1))));
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
        let state = moments.state.lock();
        assert_eq!(state.order.len(), state.by_id.len());
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
