//! Authorization of requests about the past: the one place of this crate that decides who may read
//! or change what. Today's rules count, also for what was deleted.
//!
//! A request for a named resource is refused ([`HistoryAccess::require`]) before the name is looked
//! up, so that a refusal does not say whether it is there. An answer that covers many resources
//! leaves out those that the requester may not see ([`AnswerFilter`]), and says so.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use admission::Holder;
use engine::security::{
    DelegationToken, Operation, Requester, Resource, ResourceType, Security, base_resource,
};
use fileview::tree::{GuardedPlace, TreeError, TreeGuard};
use history_documents::HistoryErrorCode;

use crate::error::HistoryApiError;

/// The rights of a requester.
#[derive(Clone, Debug)]
pub struct HistoryAccess {
    security: Arc<Security>,
    who: Arc<Requester>,
}

impl HistoryAccess {
    /// The rights of `requester` by the rules of `security`.
    pub fn new(security: Arc<Security>, requester: Arc<Requester>) -> HistoryAccess {
        HistoryAccess { security, who: requester }
    }

    /// Its account in budgets.
    pub(crate) fn holder(&self) -> Holder {
        self.security.holder(&self.who)
    }

    /// Returns true if no rule limits the requester.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.security.is_unlimited(&self.who)
    }

    pub(crate) fn allows(&self, operation: Operation, resource: Resource<'_>) -> bool {
        self.security.authorize(&self.who, operation, base_resource(resource))
    }

    /// # Errors
    /// `unauthorized`, with the missing right.
    pub(crate) fn require(
        &self,
        operation: Operation,
        resource: Resource<'_>,
    ) -> Result<(), HistoryApiError> {
        let resource = base_resource(resource);
        if self.security.authorize_named(&self.who, operation, resource) {
            Ok(())
        } else {
            Err(refusal(&missing(operation, resource)))
        }
    }

    /// Records a change that the requester made, in the audit log.
    pub(crate) fn record_change(&self, operation: &str, resource: impl Display) {
        self.security.audit().record_change(self.who.audit_subject(), operation, resource);
    }

    /// [`HistoryAccess::require`] for each of these topics.
    pub(crate) fn require_topics(
        &self,
        operation: Operation,
        topics: &[String],
    ) -> Result<(), HistoryApiError> {
        topics.iter().try_for_each(|topic| self.require(operation, Resource::topic(topic)))
    }

    /// Returns true if the requester may do this to any resource of a type at all.
    pub(crate) fn allows_any(&self, operation: Operation, kind: ResourceType) -> bool {
        self.security.authorize_any(&self.who, operation, kind)
    }

    /// Refuses a requester that may see nothing of the resources that a request covers, whatever
    /// there is.
    ///
    /// # Errors
    /// `unauthorized`, with the missing right.
    pub(crate) fn require_any(
        &self,
        operation: Operation,
        kind: ResourceType,
    ) -> Result<(), HistoryApiError> {
        if self.allows_any(operation, kind) {
            Ok(())
        } else {
            let subject = self.who.audit_subject();
            self.security.audit().record_denial(subject, operation, format_args!("any {kind}"));
            Err(refusal(&missing_any(operation, kind)))
        }
    }

    /// A filter for one answer.
    pub(crate) fn filter(&self) -> AnswerFilter {
        AnswerFilter { access: self.clone(), has_left_out: AtomicBool::new(false) }
    }
}

/// Filters one answer by the rights of the requester.
#[derive(Debug)]
pub(crate) struct AnswerFilter {
    access: HistoryAccess,
    has_left_out: AtomicBool,
}

impl AnswerFilter {
    /// Returns true if something is shown.
    pub(crate) fn shows(&self, operation: Operation, resource: Resource<'_>) -> bool {
        self.note(self.access.allows(operation, resource))
    }

    /// Returns true if anything may be shown that this is allowed for.
    pub(crate) fn shows_any(&self, operation: Operation, kind: ResourceType) -> bool {
        self.note(match kind {
            ResourceType::Cluster => self.access.allows(operation, Resource::CLUSTER),
            kind => self.access.allows_any(operation, kind),
        })
    }

    /// Returns true if the name of a topic is shown, and what is known of it.
    pub(crate) fn shows_topic(&self, topic: &str) -> bool {
        self.shows(Operation::Describe, Resource::topic(topic))
    }

    /// Returns true if a group is shown.
    pub(crate) fn shows_group(&self, group: &str) -> bool {
        self.shows(Operation::Describe, Resource::group(group))
    }

    /// Returns true if the settings of a topic or a group are shown.
    pub(crate) fn shows_settings(&self, resource: Resource<'_>) -> bool {
        self.shows(Operation::DescribeConfigs, resource)
    }

    /// Returns true if a delegation token is shown: to its owner and renewers, as
    /// DescribeDelegationToken has it. A removed token is known by its id alone.
    pub(crate) fn shows_token(&self, id: &str, token: Option<&DelegationToken>) -> bool {
        let access = &self.access;
        let itself = Resource { kind: ResourceType::DelegationToken, name: id };
        let is_shown = access.allows(Operation::Describe, itself)
            || token.is_some_and(|token| {
                let owner = Resource { kind: ResourceType::User, name: &token.owner };
                token.is_of(access.who.principal.as_str())
                    || access.allows(Operation::DescribeTokens, owner)
            });
        self.note(is_shown)
    }

    /// Returns true if nothing was left out so far.
    pub(crate) fn is_complete(&self) -> bool {
        !self.has_left_out.load(Ordering::Relaxed)
    }

    fn note(&self, is_shown: bool) -> bool {
        if !is_shown {
            self.has_left_out.store(true, Ordering::Relaxed);
        }
        is_shown
    }
}

impl TreeGuard for AnswerFilter {
    fn check(&self, place: GuardedPlace<'_>) -> Result<(), TreeError> {
        let (operation, resource) = match place {
            GuardedPlace::Topics => return self.check_any(ResourceType::Topic),
            GuardedPlace::Groups => return self.check_any(ResourceType::Group),
            GuardedPlace::Topic(topic) => (Operation::Describe, Resource::topic(topic)),
            GuardedPlace::Records(topic) => (Operation::Read, Resource::topic(topic)),
            GuardedPlace::Group(group) => (Operation::Describe, Resource::group(group)),
            GuardedPlace::Pins | GuardedPlace::Names => (Operation::Describe, Resource::CLUSTER),
            // Kafka has no READ of a cluster. DESCRIBE of the cluster, which a scraper of metrics
            // has, does not include reading everybody's files.
            GuardedPlace::Contents => (Operation::Alter, Resource::CLUSTER),
        };
        if self.shows(operation, resource) {
            Ok(())
        } else {
            Err(TreeError::NotPermitted(missing(operation, base_resource(resource))))
        }
    }
}

impl AnswerFilter {
    fn check_any(&self, kind: ResourceType) -> Result<(), TreeError> {
        if self.shows_any(Operation::Describe, kind) {
            Ok(())
        } else {
            Err(TreeError::NotPermitted(missing_any(Operation::Describe, kind)))
        }
    }
}

/// The refusal that says so.
pub(crate) fn refusal(right: &str) -> HistoryApiError {
    HistoryApiError::new(HistoryErrorCode::Unauthorized, right)
}

fn missing(operation: Operation, Resource { kind, name }: Resource<'_>) -> String {
    format!("no rule allows {operation} on {kind} {name}")
}

fn missing_any(operation: Operation, kind: ResourceType) -> String {
    format!("no rule allows {operation} on any {kind}")
}
