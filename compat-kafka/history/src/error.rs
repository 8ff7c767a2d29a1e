//! Errors of operations: a code for programs, and a sentence for people.

use std::fmt;

use engine::diff::DiffCursorError;
use engine::groups::GroupSetError;
use engine::{EngineError, PinError, PluginFilesError, SeekError, StorageError};
use fileview::tree::TreeError;
use history_documents::{HistoryErrorCode, HistoryRefusal, RefusalDocument, RequestError};
use hlc::{Hlc, MomentError};

/// The retry delay while the catalog is loaded from the journal.
const LOADING_RETRY_MS: u64 = 1000;

/// The reason that an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryApiError {
    refusal: HistoryRefusal,
}

impl HistoryApiError {
    /// An error without a frontier and without a retry.
    pub fn new(code: HistoryErrorCode, message: impl Into<String>) -> HistoryApiError {
        let message = message.into();
        HistoryApiError {
            refusal: HistoryRefusal {
                code,
                message,
                frontier: None,
                frontier_ms: None,
                retry_ms: None,
            },
        }
    }

    /// The kind of error.
    pub fn code(&self) -> HistoryErrorCode {
        self.refusal.code
    }

    /// The delay before a retry, in milliseconds, if a retry would help.
    pub fn retry_ms(&self) -> Option<u64> {
        self.refusal.retry_ms
    }

    /// The same, with a retry after `retry_ms`.
    #[must_use]
    pub fn retry_in(mut self, retry_ms: u64) -> HistoryApiError {
        self.refusal.retry_ms = Some(retry_ms);
        self
    }

    /// The text of the response document: one field, `error`.
    pub fn document(&self) -> String {
        let document = RefusalDocument { error: self.refusal.clone() };
        serde_json::to_string(&document).expect("texts and numbers are JSON")
    }

    fn at_frontier(mut self, frontier: Hlc) -> HistoryApiError {
        self.refusal.frontier = Some(frontier.into());
        self.refusal.frontier_ms = Some(frontier.time().0);
        self
    }
}

impl fmt::Display for HistoryApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.refusal.fmt(f)
    }
}

impl std::error::Error for HistoryApiError {}

impl From<RequestError> for HistoryApiError {
    fn from(error: RequestError) -> HistoryApiError {
        HistoryApiError::new(HistoryErrorCode::BadRequest, error.to_string())
    }
}

impl From<MomentError> for HistoryApiError {
    fn from(error: MomentError) -> HistoryApiError {
        HistoryApiError::new(HistoryErrorCode::BadMoment, error.to_string())
    }
}

impl From<DiffCursorError> for HistoryApiError {
    fn from(error: DiffCursorError) -> HistoryApiError {
        HistoryApiError::new(HistoryErrorCode::BadRequest, error.to_string())
    }
}

impl From<SeekError> for HistoryApiError {
    fn from(error: SeekError) -> HistoryApiError {
        let message = error.to_string();
        match error {
            SeekError::NotYet { frontier, retry_ms, .. } => {
                let refusal =
                    HistoryApiError::new(HistoryErrorCode::NotYet, message).at_frontier(frontier);
                refusal.retry_in(retry_ms)
            }
            SeekError::FarFuture { frontier, .. } => {
                HistoryApiError::new(HistoryErrorCode::FarFuture, message).at_frontier(frontier)
            }
            SeekError::BeforeHistory { .. }
            | SeekError::BeforeOffsets { .. }
            | SeekError::BeforeZnodes { .. }
            | SeekError::BeforeNames { .. } => {
                HistoryApiError::new(HistoryErrorCode::BeforeHistory, message)
            }
            SeekError::NoTopic { .. } => {
                HistoryApiError::new(HistoryErrorCode::UnknownTopic, message)
            }
            SeekError::Engine(error) => error.into(),
        }
    }
}

impl From<EngineError> for HistoryApiError {
    fn from(error: EngineError) -> HistoryApiError {
        let code = match &error {
            EngineError::Fenced(_) => HistoryErrorCode::Fenced,
            EngineError::Loading(_) => HistoryErrorCode::Loading,
            EngineError::Stopping(_) => HistoryErrorCode::Stopping,
            EngineError::UserTime(_) => HistoryErrorCode::BadPlugin,
            EngineError::OffsetOutOfRange { .. } => HistoryErrorCode::OutOfRange,
            EngineError::UnknownPartition { .. } | EngineError::UnknownTopic(_) => {
                HistoryErrorCode::UnknownTopic
            }
            EngineError::TopicName(_) | EngineError::Config(_) | EngineError::PartitionCount(_) => {
                HistoryErrorCode::BadRequest
            }
            EngineError::Storage(error) => storage_error_code(error),
            EngineError::Corrupt(_) | EngineError::Internal(_) => HistoryErrorCode::Internal,
            // Only appends and topic creation return these, and no operation here does.
            EngineError::TopicExists(_)
            | EngineError::Duplicate { .. }
            | EngineError::OutOfOrderSequence { .. }
            | EngineError::StaleProducerEpoch { .. }
            | EngineError::NotTransactional { .. }
            | EngineError::NoOpenTransaction { .. }
            | EngineError::TooManyTransactions { .. }
            | EngineError::OverBudget(_)
            | EngineError::Pinned { .. }
            | EngineError::UserTimeChanged
            | EngineError::UserTimeOutOfOrder { .. } => HistoryErrorCode::Internal,
        };
        let refusal = HistoryApiError::new(code, error.to_string());
        let is_loading = matches!(error, EngineError::Loading(_));
        if is_loading { refusal.retry_in(LOADING_RETRY_MS) } else { refusal }
    }
}

/// The code of something that is stored and cannot be read or written.
fn storage_error_code(error: &StorageError) -> HistoryErrorCode {
    match error {
        StorageError::Io { .. }
        | StorageError::NoSpace { .. }
        | StorageError::Missing { .. }
        | StorageError::Corrupt { .. }
        | StorageError::Stopped { .. }
        | StorageError::Interrupted => HistoryErrorCode::Internal,
    }
}

impl From<PinError> for HistoryApiError {
    fn from(error: PinError) -> HistoryApiError {
        let code = match error {
            PinError::Seek(error) => return error.into(),
            PinError::Invalid(_) => HistoryErrorCode::BadPin,
            PinError::Taken { .. } => HistoryErrorCode::PinTaken,
            PinError::TooMany(_) => HistoryErrorCode::TooManyPins,
            PinError::Unknown(_) => HistoryErrorCode::UnknownPin,
        };
        HistoryApiError::new(code, error.to_string())
    }
}

impl From<GroupSetError> for HistoryApiError {
    fn from(error: GroupSetError) -> HistoryApiError {
        let code = match error {
            GroupSetError::Seek(error) => return error.into(),
            GroupSetError::NothingCommitted(_) | GroupSetError::NothingAtMoment { .. } => {
                HistoryErrorCode::UnknownGroup
            }
            GroupSetError::UnknownTopic(_) => HistoryErrorCode::UnknownTopic,
        };
        HistoryApiError::new(code, error.to_string())
    }
}

impl From<PluginFilesError> for HistoryApiError {
    fn from(error: PluginFilesError) -> HistoryApiError {
        let code = match error {
            PluginFilesError::Plugin(_) => HistoryErrorCode::BadPlugin,
            PluginFilesError::Unknown(_) => HistoryErrorCode::UnknownPlugin,
            PluginFilesError::Files(_) => HistoryErrorCode::Internal,
        };
        HistoryApiError::new(code, error.to_string())
    }
}

impl From<TreeError> for HistoryApiError {
    fn from(error: TreeError) -> HistoryApiError {
        let code = match &error {
            TreeError::NotFound(_) => HistoryErrorCode::NotFound,
            TreeError::NotPermitted(_) => HistoryErrorCode::Unauthorized,
            TreeError::NotDirectory(_) => HistoryErrorCode::NotDirectory,
            TreeError::IsDirectory(_) => HistoryErrorCode::IsDirectory,
            TreeError::Moment(_) => HistoryErrorCode::BadMoment,
            TreeError::Invalid(_) | TreeError::Escapes(_) | TreeError::NameTooLong(_) => {
                HistoryErrorCode::BadPath
            }
            TreeError::NotYet(_) => HistoryErrorCode::NotYet,
            TreeError::FarFuture(_) => HistoryErrorCode::FarFuture,
            TreeError::BeforeHistory(_) => HistoryErrorCode::BeforeHistory,
            TreeError::Gone(_) => HistoryErrorCode::Gone,
            TreeError::Unfinished(_) => HistoryErrorCode::Unfinished,
            TreeError::Io(_) => HistoryErrorCode::Internal,
        };
        let refusal = HistoryApiError::new(code, error.to_string());
        // The progress of the search is remembered.
        if code == HistoryErrorCode::Unfinished { refusal.retry_in(0) } else { refusal }
    }
}
