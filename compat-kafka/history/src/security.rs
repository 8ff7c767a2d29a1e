//! Access control lists, users and quotas at a moment, and their changes.

use engine::security::{
    AclFilter, AclRule, ChangeLogEntry, Operation, QuotaEntity, QuotaName, Resource,
    ScramCredential, ScramMechanism, SecurityChange, SecurityState,
};
use engine::{Offset, WaitPolicy};
use history_documents::{
    AclDescription, AclsResponse, MechanismAtMoment, QuotaEntityNames, QuotasAtMoment,
    QuotasResponse, SecurityChangeDescription, SecurityLogEntry, SecurityLogRequest,
    SecurityLogResponse, SecurityMomentRequest, UserAtMoment, UsersResponse,
};
use hlc::{Cut, Hlc};

use crate::access::{AnswerFilter, HistoryAccess};
use crate::context::HistoryContext;
use crate::error::HistoryApiError;
use crate::moment::{moment_text, parse_cut, parse_or_frontier, when};
use crate::turns::HistoryTurns;

/// The default number of rules, users or quotas on a page, and the most.
const LIMIT: usize = 10_000;
const LIMIT_MAX: usize = 100_000;
/// The default number of changes on a page, and the most.
const CHANGES: usize = 1000;
const CHANGES_MAX: usize = 10_000;

pub(crate) async fn acls(
    context: &HistoryContext,
    access: &HistoryAccess,
    request: SecurityMomentRequest,
) -> Result<AclsResponse, HistoryApiError> {
    access.require(Operation::Describe, Resource::CLUSTER)?;
    let page = ListPage::of(&request);
    let (at, frontier, state) = state_at(context, access, request).await?;
    // It may have waited for its moment.
    access.require(Operation::Describe, Resource::CLUSTER)?;
    let (acls, next) = page.take(state.acls(&AclFilter::default()), |rule| acl(&rule));
    let (frontier, frontier_ms) = (frontier.into(), frontier.time().0);
    Ok(AclsResponse { at: moment_text(at), frontier, frontier_ms, acls, next })
}

pub(crate) async fn users(
    context: &HistoryContext,
    access: &HistoryAccess,
    request: SecurityMomentRequest,
) -> Result<UsersResponse, HistoryApiError> {
    access.require(Operation::Describe, Resource::CLUSTER)?;
    let page = ListPage::of(&request);
    let (at, frontier, state) = state_at(context, access, request).await?;
    // It may have waited for its moment.
    access.require(Operation::Describe, Resource::CLUSTER)?;
    let (users, next) = page.take(state.users(), |(user, of_user)| UserAtMoment {
        user: user.clone(),
        mechanisms: of_user.iter().map(|(kind, credential)| mechanism(*kind, credential)).collect(),
    });
    let (frontier, frontier_ms) = (frontier.into(), frontier.time().0);
    Ok(UsersResponse { at: moment_text(at), frontier, frontier_ms, users, next })
}

pub(crate) async fn quotas(
    context: &HistoryContext,
    access: &HistoryAccess,
    request: SecurityMomentRequest,
) -> Result<QuotasResponse, HistoryApiError> {
    access.require(Operation::DescribeConfigs, Resource::CLUSTER)?;
    let page = ListPage::of(&request);
    let (at, frontier, state) = state_at(context, access, request).await?;
    // It may have waited for its moment.
    access.require(Operation::DescribeConfigs, Resource::CLUSTER)?;
    let (quotas, next) = page.take(state.quotas(), |(entity, quotas)| QuotasAtMoment {
        entity: entity_names(entity),
        quotas: quotas.clone(),
    });
    let (frontier, frontier_ms) = (frontier.into(), frontier.time().0);
    Ok(QuotasResponse { at: moment_text(at), frontier, frontier_ms, quotas, next })
}

pub(crate) async fn log(
    context: &HistoryContext,
    access: &HistoryAccess,
    turns: &HistoryTurns,
    request: SecurityLogRequest,
) -> Result<SecurityLogResponse, HistoryApiError> {
    let SecurityLogRequest { from, until, when: policy, patience_ms, after, limit } = request;
    access.require(Operation::Describe, Resource::CLUSTER)?;
    let (until, when) =
        parse_or_frontier(context, access, until.as_deref(), when(context, policy, patience_ms))?;
    let security = context.engine.security();
    let start = match from {
        Some(from) => security.offset_at(parse_cut(context, access, &from)?, when).await?,
        None => Offset(0),
    };
    let start = start.max(Offset(after.unwrap_or(0)));
    let limit = limit.unwrap_or(CHANGES).clamp(1, CHANGES_MAX);
    context.engine.wait_until_closed(until, when).await?;
    let _turn = turns.take(&access.holder()).await;
    let page = security.change_log(start, until, when, limit).await?;
    let filter = access.filter();
    let entries = page.entries.iter().map(|logged| log_entry(&filter, logged));
    let entries = entries.filter(|entry| !entry.changes.is_empty()).collect();
    Ok(SecurityLogResponse {
        until: moment_text(page.until),
        frontier: page.frontier.into(),
        frontier_ms: page.frontier.time().0,
        entries,
        next: page.next.map(|next| next.0),
        complete: filter.is_complete(),
    })
}

async fn state_at(
    context: &HistoryContext,
    access: &HistoryAccess,
    request: SecurityMomentRequest,
) -> Result<(Cut, Hlc, SecurityState), HistoryApiError> {
    let when: WaitPolicy = when(context, request.when, request.patience_ms);
    let (cut, when) = parse_or_frontier(context, access, request.at.as_deref(), when)?;
    Ok(context.engine.security().at(cut, when).await?)
}

/// The part of a list that one page has.
struct ListPage {
    skip: usize,
    limit: usize,
}

impl ListPage {
    fn of(request: &SecurityMomentRequest) -> ListPage {
        let limit = request.limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX);
        ListPage { skip: request.skip.unwrap_or(0), limit }
    }

    /// The page, and what the next one skips.
    fn take<T, D>(
        &self,
        entries: impl IntoIterator<Item = T>,
        document: impl Fn(T) -> D,
    ) -> (Vec<D>, Option<usize>) {
        let mut rest = entries.into_iter().skip(self.skip);
        let page: Vec<D> = rest.by_ref().take(self.limit).map(document).collect();
        let next = rest.next().map(|_| self.skip + page.len());
        (page, next)
    }
}

fn acl(rule: &AclRule) -> AclDescription {
    AclDescription {
        resource_type: rule.resource_type.to_string(),
        name: rule.name.clone(),
        pattern: rule.pattern.to_string(),
        principal: rule.principal.clone(),
        host: rule.host.clone(),
        operation: rule.operation.to_string(),
        permission: rule.permission.to_string(),
    }
}

fn mechanism(mechanism: ScramMechanism, credential: &ScramCredential) -> MechanismAtMoment {
    MechanismAtMoment { mechanism: mechanism.to_string(), iterations: credential.iterations }
}

fn entity_names(entity: &QuotaEntity) -> QuotaEntityNames {
    let components = [("user", &entity.user), ("client-id", &entity.client_id), ("ip", &entity.ip)];
    let named_components = components.into_iter().filter_map(|(kind, name)| {
        let name = match name.as_ref()? {
            QuotaName::Default => None,
            QuotaName::Named(name) => Some(name.clone()),
        };
        Some((kind.to_owned(), name))
    });
    named_components.collect()
}

fn log_entry(filter: &AnswerFilter, logged: &ChangeLogEntry) -> SecurityLogEntry {
    let shows = |operation| filter.shows(operation, Resource::CLUSTER);
    let visible = logged.changes.iter().filter(|change| match change {
        SecurityChange::QuotasSet { .. } => shows(Operation::DescribeConfigs),
        SecurityChange::AclAdded(_)
        | SecurityChange::AclRemoved(_)
        | SecurityChange::CredentialSet { .. }
        | SecurityChange::CredentialRemoved { .. } => shows(Operation::Describe),
        SecurityChange::TokenSet { id, token } => {
            shows(Operation::Describe) && filter.shows_token(id, Some(token))
        }
        SecurityChange::TokenRemoved { id } => {
            shows(Operation::Describe) && filter.shows_token(id, None)
        }
    });
    SecurityLogEntry {
        stamp: logged.stamp.into(),
        stamp_ms: logged.stamp.time().0,
        by: logged.by.principal.clone(),
        from: logged.by.from.clone(),
        changes: visible.map(change).collect(),
    }
}

fn change(change: &SecurityChange) -> SecurityChangeDescription {
    match change {
        SecurityChange::AclAdded(rule) => SecurityChangeDescription::AclAdded(acl(rule)),
        SecurityChange::AclRemoved(rule) => SecurityChangeDescription::AclRemoved(acl(rule)),
        SecurityChange::CredentialSet { user, mechanism: kind, credential } => {
            SecurityChangeDescription::PasswordSet {
                user: user.clone(),
                mechanism: mechanism(*kind, credential),
            }
        }
        SecurityChange::CredentialRemoved { user, mechanism } => {
            SecurityChangeDescription::PasswordRemoved {
                user: user.clone(),
                mechanism: mechanism.to_string(),
            }
        }
        SecurityChange::TokenSet { id, token } => SecurityChangeDescription::TokenSet {
            id: id.clone(),
            owner: token.owner.clone(),
            requester: token.requester.clone(),
            renewers: token.renewers.clone(),
            expires_ms: token.expires_ms,
            max_ms: token.max_ms,
        },
        SecurityChange::TokenRemoved { id } => {
            SecurityChangeDescription::TokenRemoved { id: id.clone() }
        }
        SecurityChange::QuotasSet { entity, quotas } => {
            SecurityChangeDescription::QuotasSet(QuotasAtMoment {
                entity: entity_names(entity),
                quotas: quotas.clone(),
            })
        }
    }
}
