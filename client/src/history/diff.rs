//! The differences between two moments.

use std::time::Duration;

use history_documents::{
    DiffCategory, DiffRequest, DiffResponse, HistoryRequest, Isolation, PendingMomentPolicy,
};
use hlc::Moment;

use super::document_ms;
use crate::{Client, ClientError};

/// A request for differences.
#[derive(Clone, Copy, Debug)]
pub struct DiffQuery<'a> {
    /// The earlier moment, by system time.
    pub from: &'a Moment,
    /// The later one.
    pub until: &'a Moment,
    /// Restricts the result to these topics, and to offsets committed for them.
    pub topics: Option<&'a [String]>,
    /// Restricts the result to these categories.
    pub only: Option<&'a [DiffCategory]>,
    /// The records of transactions that count as appended.
    pub isolation: Isolation,
    /// The policy if the later moment is not final yet.
    pub when: PendingMomentPolicy,
    /// The longest time to wait for the later moment.
    pub patience: Duration,
    /// The start of the page: [`DiffResponse::next`] of the previous one.
    pub after: Option<&'a str>,
}

impl Client {
    /// A page of the differences between two moments of system time.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn diff(&mut self, ask: &DiffQuery<'_>) -> Result<DiffResponse, ClientError> {
        let DiffQuery { from, until, topics, only, isolation, when, patience, after } = *ask;
        let diff = DiffRequest {
            from: from.to_string(),
            until: until.to_string(),
            topics: topics.map(<[String]>::to_vec),
            only: only.map(<[DiffCategory]>::to_vec),
            isolation,
            when,
            patience_ms: Some(document_ms(patience)),
            after: after.map(str::to_owned),
            limit: None,
        };
        self.request_history(HistoryRequest::Diff(diff), patience).await
    }
}
