//! The identity of a connection: the schemes `ip` and `digest`, and the super user.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use engine_znodes::acl::AclId;
use sha1::{Digest, Sha1};

/// The id of credentials, `USER:PASSWORD`, as in access control lists: the user and a hash of both.
pub fn digest_of(credentials: &str) -> String {
    let user = credentials.split(':').next().unwrap_or_default();
    format!("{user}:{}", STANDARD.encode(Sha1::digest(credentials)))
}

/// The ids that credentials prove. The credentials of the super user prove two.
pub(crate) fn authenticate_digest(credentials: &str, super_digest: Option<&str>) -> Vec<AclId> {
    let digest = digest_of(credentials);
    let mut ids = Vec::new();
    if super_digest == Some(&*digest) {
        ids.push(AclId::new("super", ""));
    }
    ids.push(AclId { scheme: "digest".to_owned(), id: digest });
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_that_of_zookeeper() {
        // From `DigestAuthenticationProvider.generateDigest("super:test")`.
        assert_eq!(digest_of("super:test"), "super:D/InIHSb7yEEbrWz8b9l71RjZJU=");
        let ids = authenticate_digest("super:test", Some("super:D/InIHSb7yEEbrWz8b9l71RjZJU="));
        assert_eq!(ids[0], AclId::new("super", ""));
        assert_eq!(ids[1].shown(), ("digest", "super"));
    }
}
