//! Health of the server: the checks that are well, and those that are not.

use std::sync::Arc;

use engine::blocking::block_in_place;
use engine::security::{Operation, Resource};
use history_documents::{HealthRequest, HealthResponse, HistoryErrorCode};

use crate::access::HistoryAccess;
use crate::error::HistoryApiError;
use crate::turns::HistoryTurns;

/// The server around the engine, which knows how it is.
pub trait ServerHealth: Send + Sync + 'static {
    /// Looks at the server. It may wait for disks.
    fn look(&self) -> HealthResponse;
}

pub(crate) async fn health(
    server: Option<&Arc<dyn ServerHealth>>,
    access: &HistoryAccess,
    turns: &HistoryTurns,
    HealthRequest {}: HealthRequest,
) -> Result<HealthResponse, HistoryApiError> {
    access.require(Operation::Describe, Resource::CLUSTER)?;
    let Some(server) = server else {
        return Err(HistoryApiError::new(HistoryErrorCode::Starting, "the server is starting"));
    };
    let _turn = turns.take(&access.holder()).await;
    Ok(block_in_place(|| server.look()))
}
