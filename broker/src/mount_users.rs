//! The rights of the machine's users in a mount: the rules allow them to the principal of each
//! user.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use engine::security::{
    Operation, Principal, Requester, Resource, ResourceType, Security, base_resource,
};
use fileview::fuse::MountGuards;
use fileview::tree::{GuardedPlace, TreeError, TreeGuard};

const ROOT: u32 = 0;

/// The principals of users, by their numbers. Others are `User:ANONYMOUS`.
pub(crate) type MountUsers = BTreeMap<u32, Principal>;

/// The mounts of a server with an authorizer.
pub(crate) struct AuthorizedMounts {
    pub(crate) security: Arc<Security>,
    pub(crate) users: MountUsers,
    /// The user that the server runs as, who can read the data directory itself.
    pub(crate) owner: u32,
}

impl MountGuards for AuthorizedMounts {
    fn guard_of(&self, uid: u32) -> Option<Arc<dyn TreeGuard>> {
        if uid == ROOT || uid == self.owner {
            return None;
        }
        let principal = self.users.get(&uid).cloned().unwrap_or_else(Principal::anonymous);
        let requester = Requester::new(principal, IpAddr::V4(Ipv4Addr::LOCALHOST));
        Some(Arc::new(MountGuard { security: Arc::clone(&self.security), who: requester }))
    }
}

/// The rights of one user. Files and znodes have modes and lists instead.
struct MountGuard {
    security: Arc<Security>,
    who: Requester,
}

impl TreeGuard for MountGuard {
    fn check(&self, place: GuardedPlace<'_>) -> Result<(), TreeError> {
        let any = |kind| self.security.authorize_any(&self.who, Operation::Describe, kind);
        let named = |operation, resource| {
            self.security.authorize(&self.who, operation, base_resource(resource))
        };
        let is_shown = match place {
            GuardedPlace::Topics => any(ResourceType::Topic),
            GuardedPlace::Groups => any(ResourceType::Group),
            GuardedPlace::Topic(topic) => named(Operation::Describe, Resource::topic(topic)),
            GuardedPlace::Records(topic) => named(Operation::Read, Resource::topic(topic)),
            GuardedPlace::Group(group) => named(Operation::Describe, Resource::group(group)),
            GuardedPlace::Pins => named(Operation::Describe, Resource::CLUSTER),
            GuardedPlace::Names | GuardedPlace::Contents => true,
        };
        if is_shown {
            return Ok(());
        }
        let principal = self.who.principal.as_str();
        Err(TreeError::NotPermitted(format!("no rule allows that to {principal}")))
    }
}
