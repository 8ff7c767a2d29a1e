//! The allocation of producer ids.

use std::sync::atomic::Ordering;

use crate::engine_core::EngineCore;
use crate::error::EngineError;
use crate::namespace::event::NamespaceEvent;

/// The number of producer ids that one entry grants.
const PRODUCER_IDS_BLOCK: i64 = 1000;

impl EngineCore {
    /// A producer id that was never allocated before.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn new_producer_id(&self) -> Result<i64, EngineError> {
        let mut ids = self.producer_ids.lock().await;
        if ids.is_empty() {
            let below = ids.end + PRODUCER_IDS_BLOCK;
            self.submit_event(NamespaceEvent::ProducerIdsGranted { below }, None).await?;
            self.producer_ids_below.store(below, Ordering::Relaxed);
            *ids = ids.end..below;
        }
        Ok(ids.next().expect("a block was just granted"))
    }
}
