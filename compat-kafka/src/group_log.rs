//! Groups are stored in the engine, like everything else that has history.

use std::sync::Arc;

use engine::Engine;
use kafka_groups::{GroupChange, GroupLog, GroupLogFuture};

pub(crate) struct EngineGroupLog {
    engine: Arc<Engine>,
}

impl EngineGroupLog {
    pub(crate) fn new(engine: Arc<Engine>) -> EngineGroupLog {
        EngineGroupLog { engine }
    }
}

impl GroupLog for EngineGroupLog {
    fn put(&self, group: &str, change: GroupChange) -> GroupLogFuture<Result<(), String>> {
        let (engine, group) = (Arc::clone(&self.engine), group.to_owned());
        Box::pin(async move {
            let GroupChange { snapshot, members, is_whole } = change;
            let groups = engine.groups();
            let saved = if members.is_empty() && is_whole {
                groups.save(&group, snapshot).await
            } else {
                groups.save_changes(&group, snapshot, members, is_whole).await
            };
            saved.map(drop).map_err(|error| error.to_string())
        })
    }

    fn delete(&self, group: &str) -> GroupLogFuture<Result<(), String>> {
        let (engine, group) = (Arc::clone(&self.engine), group.to_owned());
        Box::pin(async move {
            engine.groups().delete(&group).await.map(drop).map_err(|error| error.to_string())
        })
    }

    fn has_offsets(&self, group: &str) -> GroupLogFuture<bool> {
        let (engine, group) = (Arc::clone(&self.engine), group.to_owned());
        Box::pin(async move {
            // If a lookup fails now, the group must not be taken for one without offsets.
            engine.groups().has_offsets(&group).unwrap_or(true)
        })
    }
}
