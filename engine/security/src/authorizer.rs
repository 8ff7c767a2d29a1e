//! Authorization of requests. This is the one place that decides.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use admission::Holder;
use engine_core::AuditSubject;
use hlc::split_moment_topic;
use kafka_acls::{Operation, Resource, ResourceType};

use crate::principal::Principal;
use crate::security::Security;

/// The settings of authorization, as Kafka has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthorizerOptions {
    /// True if requests are authorized (`authorizer.class.name`).
    pub is_enabled: bool,
    /// The principals that may do everything: `User:admin` (`super.users`).
    pub super_users: BTreeSet<String>,
    /// True if a resource without any rule is for everybody (`allow.everyone.if.no.acl.found`).
    pub allow_everyone_if_no_acl_found: bool,
}

/// The principal that sends a request, and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requester {
    pub principal: Principal,
    /// The address, and as rules have it.
    address: IpAddr,
    host: Arc<str>,
    /// Its account in budgets, once it was used.
    holder: OnceLock<Holder>,
}

impl Requester {
    pub fn new(principal: Principal, address: IpAddr) -> Requester {
        let address = address.to_canonical();
        Requester { principal, address, host: address.to_string().into(), holder: OnceLock::new() }
    }

    /// Somebody else at the same address.
    pub fn with_principal(&self, principal: Principal) -> Requester {
        Requester {
            principal,
            address: self.address,
            host: Arc::clone(&self.host),
            holder: OnceLock::new(),
        }
    }

    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The address as rules have it.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The requester as the audit log has it.
    pub fn audit_subject(&self) -> AuditSubject<'_> {
        AuditSubject { principal: self.principal.as_str(), address: &self.host }
    }
}

/// The resource that rules name. A moment of a topic is that topic: today's rules say who may read
/// its past.
pub fn base_resource(resource: Resource<'_>) -> Resource<'_> {
    let name = match resource.kind {
        ResourceType::Topic => {
            split_moment_topic(resource.name).map_or(resource.name, |(topic, _)| topic)
        }
        ResourceType::Group
        | ResourceType::Cluster
        | ResourceType::TransactionalId
        | ResourceType::DelegationToken
        | ResourceType::User => resource.name,
    };
    Resource { name, ..resource }
}

/// Returns true if rules for this type grant delegation tokens of others.
fn is_of_tokens(kind: ResourceType) -> bool {
    matches!(kind, ResourceType::User | ResourceType::DelegationToken)
}

impl Security {
    /// The account in budgets that `who` uses: its principal's, or its address's if nobody is
    /// logged in.
    pub fn holder(&self, who: &Requester) -> Holder {
        let make = || {
            let name = who.principal.as_str();
            let is_super = self.options().authorizer.super_users.contains(name);
            if who.principal == Principal::anonymous() && !is_super {
                Holder::address(who.address())
            } else {
                Holder::principal(name, is_super)
            }
        };
        who.holder.get_or_init(make).clone()
    }

    /// Returns true if no rule limits `who`: requests are not authorized, or it is a super user.
    pub fn is_unlimited(&self, who: &Requester) -> bool {
        let options = &self.options().authorizer;
        !options.is_enabled || options.super_users.contains(who.principal.as_str())
    }

    /// Returns true if `who` may do `operation` to `resource`.
    pub fn authorize(&self, who: &Requester, operation: Operation, resource: Resource<'_>) -> bool {
        let options = &self.options().authorizer;
        let principal = who.principal.as_str();
        if self.is_unlimited(who) {
            return true;
        }
        let decision = self.state().acls.decide(principal, &who.host, operation, resource);
        // A token grants its owner's identity: without a rule, nobody may make one for others.
        let is_for_everyone =
            options.allow_everyone_if_no_acl_found && !is_of_tokens(resource.kind);
        let is_allowed = decision.unwrap_or(is_for_everyone);
        if !is_allowed {
            let Resource { kind, name } = resource;
            tracing::debug!(%principal, host = who.host(), %operation, resource = %kind, name, "denied");
        }
        is_allowed
    }

    /// [`Security::authorize`] for what a requester names: a denial goes into the audit log. What
    /// is left out of a list is none.
    pub fn authorize_named(
        &self,
        who: &Requester,
        operation: Operation,
        resource: Resource<'_>,
    ) -> bool {
        let is_allowed = self.authorize(who, operation, resource);
        if !is_allowed {
            let Resource { kind, name } = resource;
            let subject = who.audit_subject();
            self.audit().record_denial(subject, operation, format_args!("{kind} {name}"));
        }
        is_allowed
    }

    /// Returns true if `who` may do `operation` to any resource of a type at all.
    pub fn authorize_any(&self, who: &Requester, operation: Operation, kind: ResourceType) -> bool {
        let options = &self.options().authorizer;
        let principal = who.principal.as_str();
        // If resources without a rule are for everybody, some name has no rule.
        self.is_unlimited(who)
            || options.allow_everyone_if_no_acl_found
            || self.state().acls.allows_any(principal, &who.host, operation, kind)
    }
}
