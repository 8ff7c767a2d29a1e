//! Who may read what of the past, and change what: the one place of this crate that decides. Today's rules count, also
//! for what was deleted.
//!
//! What a request names is refused ([`HistoryAccess::require`]) before it is looked up, so that a refusal does not say
//! whether it is there. What a request only covers is left out ([`AnswerFilter`]), and the answer says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use admission::Holder;
use engine::security::{
    DelegationToken, Operation, Requester, Resource, ResourceType, Security, base_resource,
};
use fileview::tree::{GuardedPlace, TreeError, TreeGuard};
use history_documents::HistoryErrorCode;

use crate::error::HistoryApiError;

/// What the one who asks may do.
#[derive(Clone, Debug)]
pub struct HistoryAccess {
    security: Arc<Security>,
    who: Arc<Requester>,
}

impl HistoryAccess {
    /// What `who` may do by the rules of `security`.
    pub fn new(security: Arc<Security>, who: Arc<Requester>) -> HistoryAccess {
        HistoryAccess { security, who }
    }

    /// The account in budgets of the one who asks.
    pub(crate) fn holder(&self) -> Holder {
        self.security.holder(&self.who)
    }

    /// Whether no rule limits it.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.security.is_unlimited(&self.who)
    }

    pub(crate) fn allows(&self, operation: Operation, resource: Resource<'_>) -> bool {
        self.security.authorize(&self.who, operation, base_resource(resource))
    }

    /// # Errors
    /// `unauthorized`, and what is missing.
    pub(crate) fn require(
        &self,
        operation: Operation,
        resource: Resource<'_>,
    ) -> Result<(), HistoryApiError> {
        match self.allows(operation, resource) {
            true => Ok(()),
            false => Err(refusal(&missing(operation, base_resource(resource)))),
        }
    }

    /// [`HistoryAccess::require`] for each of these topics.
    pub(crate) fn require_topics(
        &self,
        operation: Operation,
        topics: &[String],
    ) -> Result<(), HistoryApiError> {
        topics.iter().try_for_each(|topic| self.require(operation, Resource::topic(topic)))
    }

    /// Whether the one who asks may do this to any resource of a type at all.
    pub(crate) fn allows_any(&self, operation: Operation, kind: ResourceType) -> bool {
        self.security.authorize_any(&self.who, operation, kind)
    }

    /// Refuses those who may see nothing of what a request covers, whatever there is.
    ///
    /// # Errors
    /// `unauthorized`, and what is missing.
    pub(crate) fn require_any(
        &self,
        operation: Operation,
        kind: ResourceType,
    ) -> Result<(), HistoryApiError> {
        match self.allows_any(operation, kind) {
            true => Ok(()),
            false => Err(refusal(&missing_any(operation, kind))),
        }
    }

    /// A filter for one answer.
    pub(crate) fn filter(&self) -> AnswerFilter {
        AnswerFilter { access: self.clone(), has_left_out: AtomicBool::new(false) }
    }
}

/// Leaves out of one answer what the one who asks may not see.
#[derive(Debug)]
pub(crate) struct AnswerFilter {
    access: HistoryAccess,
    has_left_out: AtomicBool,
}

impl AnswerFilter {
    /// Whether something is shown.
    pub(crate) fn shows(&self, operation: Operation, resource: Resource<'_>) -> bool {
        self.note(self.access.allows(operation, resource))
    }

    /// Whether anything may be shown that this is allowed for.
    pub(crate) fn shows_any(&self, (operation, kind): (Operation, ResourceType)) -> bool {
        self.note(match kind {
            ResourceType::Cluster => self.access.allows(operation, Resource::CLUSTER),
            kind => self.access.allows_any(operation, kind),
        })
    }

    /// Whether the name of a topic is shown, and what is known of it.
    pub(crate) fn shows_topic(&self, topic: &str) -> bool {
        self.shows(Operation::Describe, Resource::topic(topic))
    }

    /// Whether a group is shown.
    pub(crate) fn shows_group(&self, group: &str) -> bool {
        self.shows(Operation::Describe, Resource::group(group))
    }

    /// Whether the settings of a topic or a group are shown.
    pub(crate) fn shows_settings(&self, of: Resource<'_>) -> bool {
        self.shows(Operation::DescribeConfigs, of)
    }

    /// Whether a delegation token is shown, of which only the id is known once it is removed: its owner's and renewers'
    /// own, as DescribeDelegationToken has it.
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

    /// Whether nothing was left out so far.
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
            // Kafka has no READ of a cluster. Whoever may describe it, as a scraper of metrics does, does not read
            // everybody's files.
            GuardedPlace::Contents => (Operation::Alter, Resource::CLUSTER),
        };
        match self.shows(operation, resource) {
            true => Ok(()),
            false => Err(TreeError::NotPermitted(missing(operation, base_resource(resource)))),
        }
    }
}

impl AnswerFilter {
    fn check_any(&self, kind: ResourceType) -> Result<(), TreeError> {
        match self.shows_any((Operation::Describe, kind)) {
            true => Ok(()),
            false => Err(TreeError::NotPermitted(missing_any(Operation::Describe, kind))),
        }
    }
}

/// The refusal that says so.
pub(crate) fn refusal(what: &str) -> HistoryApiError {
    HistoryApiError::new(HistoryErrorCode::Unauthorized, what)
}

fn missing(operation: Operation, Resource { kind, name }: Resource<'_>) -> String {
    format!("no rule allows {operation} on {kind} {name}")
}

fn missing_any(operation: Operation, kind: ResourceType) -> String {
    format!("no rule allows {operation} on any {kind}")
}
