//! Topics whose name asks for a moment.
//!
//! A moment that is past never changes, so what it resolved to is kept, in a bounded cache, oldest
//! out first. A moment of user time that does not say as known when is pinned by its first request,
//! for as long as it is remembered.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use engine::{Engine, SeekError, TopicId, TopicView, When};
use hlc::{MomentError, split_topic};
use parking_lot::Mutex;

/// How many moments are remembered.
const REMEMBERED: usize = 4096;
/// The longest name that is looked at.
const NAME_BYTES_MAX: usize = 1024;

/// Why a moment that a topic's name asks for cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum MomentRefused {
    /// It is no moment.
    #[error("{0}")]
    Grammar(#[from] MomentError),
    /// It cannot be read.
    #[error("{0}")]
    Seek(#[from] SeekError),
}

#[derive(Default)]
struct State {
    by_name: HashMap<Arc<str>, Arc<TopicView>>,
    by_id: HashMap<TopicId, Arc<TopicView>>,
    order: VecDeque<Arc<str>>,
}

/// What names resolved to.
#[derive(Default)]
pub(crate) struct Moments(Mutex<State>);

/// The id of the topic of that name: the same in every life of every server.
pub(crate) fn id_of(name: &str) -> TopicId {
    let mut id = xxhash_rust::xxh3::xxh3_128(name.as_bytes()).to_be_bytes();
    // A version 8 UUID (RFC 9562: custom), which no random topic id is.
    id[6] = (id[6] & 0x0f) | 0x80;
    id[8] = (id[8] & 0x3f) | 0x80;
    id
}

impl Moments {
    /// The view that `name` asks for; `None` if it asks for no moment.
    pub(crate) async fn resolve(
        &self,
        engine: &Engine,
        name: &str,
        when: When,
    ) -> Result<Option<Arc<TopicView>>, MomentRefused> {
        if name.len() > NAME_BYTES_MAX {
            return Ok(None);
        }
        let Some((topic, ask)) = split_topic(name) else { return Ok(None) };
        let remembered = self.0.lock().by_name.get(name).cloned();
        if let Some(view) = remembered {
            view.check_kept()?;
            return Ok(Some(view));
        }
        let view = Arc::new(engine.view(topic, ask?, when).await?);
        Ok(Some(self.remember(name, view)))
    }

    pub(crate) fn by_id(&self, id: &TopicId) -> Option<Arc<TopicView>> {
        self.0.lock().by_id.get(id).cloned()
    }

    /// Keeps a view; whoever came first with the same question has pinned the answer.
    fn remember(&self, name: &str, view: Arc<TopicView>) -> Arc<TopicView> {
        let mut state = self.0.lock();
        if let Some(first) = state.by_name.get(name) {
            return Arc::clone(first);
        }
        let name: Arc<str> = name.into();
        state.by_name.insert(Arc::clone(&name), Arc::clone(&view));
        state.by_id.insert(id_of(&name), Arc::clone(&view));
        state.order.push_back(name);
        while state.order.len() > REMEMBERED {
            if let Some(oldest) = state.order.pop_front() {
                state.by_name.remove(&oldest);
                state.by_id.remove(&id_of(&oldest));
            }
        }
        view
    }
}
