//! Access control lists and users at a moment, and their changes.

use std::time::Duration;

use history_documents::{
    AclDescription, AclsResponse, HistoryRequest, QuotasAtMoment, QuotasResponse,
    SecurityLogRequest, SecurityLogResponse, SecurityMomentRequest, UserAtMoment, UsersResponse,
};
use hlc::Moment;

use super::SERVER_WAIT_MAX;
use crate::{Client, ClientError};

impl Client {
    /// The access control lists of `at`, sorted.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn acls_at(&mut self, at: &Moment) -> Result<Vec<AclDescription>, ClientError> {
        let (mut request, mut all) = (security_moment_request(at), Vec::new());
        loop {
            let page = HistoryRequest::Acls(request.clone());
            let page: AclsResponse = self.request_history(page, SERVER_WAIT_MAX).await?;
            all.extend(page.acls);
            request.skip = page.next;
            if request.skip.is_none() {
                return Ok(all);
            }
        }
    }

    /// The users of `at` that had a password, by name.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn users_at(&mut self, at: &Moment) -> Result<Vec<UserAtMoment>, ClientError> {
        let (mut request, mut all) = (security_moment_request(at), Vec::new());
        loop {
            let page = HistoryRequest::Users(request.clone());
            let page: UsersResponse = self.request_history(page, SERVER_WAIT_MAX).await?;
            all.extend(page.users);
            request.skip = page.next;
            if request.skip.is_none() {
                return Ok(all);
            }
        }
    }

    /// The quotas of `at`, by whom they were of.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn quotas_at(&mut self, at: &Moment) -> Result<Vec<QuotasAtMoment>, ClientError> {
        let (mut request, mut all) = (security_moment_request(at), Vec::new());
        loop {
            let page = HistoryRequest::Quotas(request.clone());
            let page: QuotasResponse = self.request_history(page, SERVER_WAIT_MAX).await?;
            all.extend(page.quotas);
            request.skip = page.next;
            if request.skip.is_none() {
                return Ok(all);
            }
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

fn security_moment_request(at: &Moment) -> SecurityMomentRequest {
    SecurityMomentRequest { at: Some(at.to_string()), ..SecurityMomentRequest::default() }
}
