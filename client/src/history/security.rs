//! Access control lists and users at a moment, and their changes.

use std::time::Duration;

use history_documents::{
    AclDescription, AclsResponse, HistoryRequest, QuotasAtMoment, QuotasResponse,
    SecurityLogRequest, SecurityLogResponse, SecurityMomentRequest, UserAtMoment, UsersResponse,
};
use hlc::Moment;
use serde::de::DeserializeOwned;

use super::SERVER_WAIT_MAX;
use crate::{Client, ClientError};

impl Client {
    /// The access control lists of `at`, sorted.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn acls_at(&mut self, at: &Moment) -> Result<Vec<AclDescription>, ClientError> {
        self.all_pages(at, HistoryRequest::Acls, |page: AclsResponse| (page.acls, page.next)).await
    }

    /// The users of `at` that had a password, by name.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn users_at(&mut self, at: &Moment) -> Result<Vec<UserAtMoment>, ClientError> {
        self.all_pages(at, HistoryRequest::Users, |page: UsersResponse| (page.users, page.next))
            .await
    }

    /// The quotas of `at`, by entity.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn quotas_at(&mut self, at: &Moment) -> Result<Vec<QuotasAtMoment>, ClientError> {
        self.all_pages(at, HistoryRequest::Quotas, |page: QuotasResponse| (page.quotas, page.next))
            .await
    }

    /// Asks for one page of `at` after the other. `items_and_next` takes a page apart.
    async fn all_pages<P: DeserializeOwned, T>(
        &mut self,
        at: &Moment,
        request_of: impl Fn(SecurityMomentRequest) -> HistoryRequest,
        items_and_next: impl Fn(P) -> (Vec<T>, Option<usize>),
    ) -> Result<Vec<T>, ClientError> {
        let at = Some(at.to_string());
        let mut request = SecurityMomentRequest { at, ..SecurityMomentRequest::default() };
        let mut entries = Vec::new();
        loop {
            let page = self.request_history(request_of(request.clone()), SERVER_WAIT_MAX).await?;
            let (items, next) = items_and_next(page);
            entries.extend(items);
            if next.is_none() {
                return Ok(entries);
            }
            request.skip = next;
        }
    }

    /// A page of the changes of access control lists, users and quotas.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn security_log(
        &mut self,
        request: SecurityLogRequest,
    ) -> Result<SecurityLogResponse, ClientError> {
        let patience = request.patience_ms.map_or(SERVER_WAIT_MAX, Duration::from_millis);
        self.request_history(HistoryRequest::SecurityLog(request), patience).await
    }
}
