//! Access control lists: who may do what with a znode.
//!
//! The ids of a connection come from the protocol's crate, which authenticates clients.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use zk_wire::ZkCode;

pub const READ: i32 = 1;
pub const WRITE: i32 = 2;
pub const CREATE: i32 = 4;
pub const DELETE: i32 = 8;
pub const ADMIN: i32 = 16;
pub const ALL: i32 = 31;

/// The letters of permissions, in the order of ZooKeeper's command line.
const LETTERS: [(i32, char); 5] =
    [(CREATE, 'c'), (DELETE, 'd'), (READ, 'r'), (WRITE, 'w'), (ADMIN, 'a')];

/// Permissions as ZooKeeper's command line writes them: some of `cdrwa`.
pub fn permission_letters(permissions: i32) -> String {
    LETTERS.iter().filter(|(bit, _)| permissions & bit != 0).map(|(_, letter)| letter).collect()
}

/// The longest list, in bytes.
pub const ACL_BYTES_MAX: usize = 1 << 20;

/// An identity in one of the schemes `world`, `ip`, `digest`, `sasl`, `x509` and `super`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AclId {
    pub scheme: String,
    /// For `digest`: the user's name, a colon, and the hash of name and password.
    pub id: String,
}

impl AclId {
    pub fn new(scheme: &str, id: &str) -> AclId {
        AclId { scheme: scheme.to_owned(), id: id.to_owned() }
    }

    /// The length in bytes.
    pub fn bytes(&self) -> usize {
        self.scheme.len() + self.id.len()
    }

    /// Its scheme and itself without a hash, as `whoAmI` and the history show it.
    pub fn shown(&self) -> (&str, &str) {
        match &*self.scheme {
            "digest" => (&self.scheme, self.id.split(':').next().unwrap_or_default()),
            _ => (&self.scheme, &self.id),
        }
    }

    fn is_anyone(&self) -> bool {
        self.scheme == "world" && self.id == "anyone"
    }

    /// Returns true if this id of a list stands for a connection with the id `own`.
    fn matches(&self, own: &AclId) -> bool {
        own.scheme == self.scheme
            && match &*self.scheme {
                "ip" => matches_network(&own.id, &self.id),
                "sasl" => own.id == self.id || own.id == "super",
                _ => own.id == self.id,
            }
    }
}

/// An entry of a list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AclEntry {
    /// Bits of [`READ`], [`WRITE`], [`CREATE`], [`DELETE`] and [`ADMIN`].
    pub permissions: i32,
    pub id: AclId,
}

impl AclEntry {
    /// `SCHEME:ID:PERMISSIONS`, without a hash.
    pub fn shown(&self) -> String {
        let (scheme, id) = self.id.shown();
        format!("{scheme}:{id}:{}", permission_letters(self.permissions))
    }
}

/// A list. Znodes with equal lists share one.
pub type Acl = Arc<[AclEntry]>;

/// The list of one entry that permits `permissions` to anyone.
pub fn anyone(permissions: i32) -> Acl {
    Arc::new([AclEntry { permissions, id: AclId::new("world", "anyone") }])
}

/// Checks that a connection with the ids `held` has one of the permissions `wanted`.
///
/// # Errors
/// [`ZkCode::NoAuth`].
pub fn check_permission(acl: &[AclEntry], wanted: i32, held: &[AclId]) -> Result<(), ZkCode> {
    let permits = |entry: &AclEntry| {
        entry.permissions & wanted != 0
            && (entry.id.is_anyone() || held.iter().any(|own| entry.id.matches(own)))
    };
    let is_super = || held.iter().any(|id| id.scheme == "super");
    if acl.is_empty() || is_super() || acl.iter().any(permits) {
        Ok(())
    } else {
        Err(ZkCode::NoAuth)
    }
}

/// An entry as a client sends it: any field of the id may be null.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestedAclEntry {
    pub permissions: i32,
    pub scheme: Option<String>,
    pub id: Option<String>,
}

/// The list that most clients ask for, made once for each permission.
fn shared_acl(requested: &RequestedAclEntry) -> Option<Acl> {
    static SHARED: OnceLock<Vec<Acl>> = OnceLock::new();
    let RequestedAclEntry { permissions, scheme, id } = requested;
    if (scheme.as_deref(), id.as_deref()) != (Some("world"), Some("anyone")) {
        return None;
    }
    let shared = SHARED.get_or_init(|| (0..=ALL).map(anyone).collect());
    shared.get(usize::try_from(*permissions).ok()?).cloned()
}

/// The schemes that a list may have only if the server can authenticate clients with them.
#[derive(Clone, Copy, Debug, Default)]
pub struct OptionalSchemes {
    pub sasl: bool,
    pub x509: bool,
}

/// The list that a client's request means: without repetitions, and with the ids of the connection
/// in place of the scheme `auth`.
///
/// # Errors
/// [`ZkCode::InvalidAcl`]: the list is empty, has an id that no scheme accepts, or is longer than
/// [`ACL_BYTES_MAX`] with the ids of the connection in it.
pub fn resolve_acl(
    requested: Option<&[RequestedAclEntry]>,
    held: &[AclId],
    optional: OptionalSchemes,
) -> Result<Acl, ZkCode> {
    if let Some([only]) = requested
        && let Some(acl) = shared_acl(only)
    {
        return Ok(acl);
    }
    let mut unique = HashSet::new();
    let mut resolved = Vec::new();
    let mut bytes = 0;
    let mut push = |permissions, id: AclId| {
        bytes += size_of::<i32>() + id.bytes();
        resolved.push(AclEntry { permissions, id });
        if bytes <= ACL_BYTES_MAX { Ok(()) } else { Err(ZkCode::InvalidAcl) }
    };
    for entry in requested.unwrap_or_default() {
        if !unique.insert(entry) {
            continue;
        }
        let RequestedAclEntry { permissions, scheme: Some(scheme), id } = entry else {
            return Err(ZkCode::InvalidAcl);
        };
        if scheme == "auth" {
            let authenticated: Vec<_> =
                held.iter().filter(|id| is_authenticated(&id.scheme)).collect();
            if authenticated.is_empty() {
                return Err(ZkCode::InvalidAcl);
            }
            authenticated.into_iter().try_for_each(|id| push(*permissions, id.clone()))?;
            continue;
        }
        let is_valid = |id: &&str| match &**scheme {
            "sasl" => optional.sasl && is_principal(id),
            "x509" => optional.x509 && is_distinguished_name(id),
            scheme => is_valid_id(scheme, id),
        };
        let id = id.as_deref().filter(is_valid).ok_or(ZkCode::InvalidAcl)?;
        push(*permissions, AclId::new(scheme, id))?;
    }
    if resolved.is_empty() { Err(ZkCode::InvalidAcl) } else { Ok(resolved.into()) }
}

/// Returns true if ids of a scheme are identities, not the addresses of connections.
pub fn is_authenticated(scheme: &str) -> bool {
    matches!(scheme, "digest" | "sasl" | "x509")
}

/// `NAME`, or Kerberos's `NAME/HOST@REALM`.
fn is_principal(id: &str) -> bool {
    match id.split_once('@') {
        Some((name, realm)) => name.matches('/').count() <= 1 && !realm.contains(['@', '/']),
        None => true,
    }
}

/// Returns true if Java's `X500Principal` takes a name: attributes that it knows, with commas or
/// semicolons and plus signs between them.
fn is_distinguished_name(id: &str) -> bool {
    id.is_empty() || unquoted_parts(id).into_iter().all(is_attribute)
}

/// The parts between separators that are neither quoted nor escaped.
fn unquoted_parts(id: &str) -> Vec<&str> {
    let (mut fields, mut begin, mut is_quoted, mut is_escaped) = (Vec::new(), 0, false, false);
    for (place, letter) in id.char_indices() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            ',' | ';' | '+' if !is_quoted => {
                fields.push(&id[begin..place]);
                begin = place + 1;
            }
            _ => {}
        }
    }
    fields.push(&id[begin..]);
    fields
}

fn is_attribute(text: &str) -> bool {
    const KNOWN: &str = " CN C L S ST O OU T IP STREET DC DNQUALIFIER DNQ SURNAME GIVENNAME INITIALS \
        GENERATION EMAIL EMAILADDRESS UID SERIALNUMBER ";
    let Some((name, _)) = text.split_once('=') else { return false };
    let name = name.trim().to_ascii_uppercase();
    let oid = name.strip_prefix("OID.").unwrap_or(&name);
    let is_number = |number: &str| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    let is_oid = oid.contains('.') && oid.split('.').all(is_number);
    is_oid || (!name.contains(' ') && KNOWN.contains(&format!(" {name} ")))
}

fn is_valid_id(scheme: &str, id: &str) -> bool {
    match scheme {
        "world" => id == "anyone",
        "ip" => parse_network(id).is_some(),
        "digest" => id.trim_end_matches(':').split(':').count() == 2,
        _ => false,
    }
}

/// `ADDRESS` or `ADDRESS/BITS`.
fn parse_network(text: &str) -> Option<(IpAddr, u32)> {
    let mut fields = text.splitn(2, '/');
    let address: IpAddr = fields.next()?.parse().ok()?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    let bits = match fields.next() {
        Some(bits) => bits.parse().ok().filter(|bits| *bits <= width)?,
        None => width,
    };
    Some((address, bits))
}

fn matches_network(address: &str, network: &str) -> bool {
    let (Ok(address), Some((network, bits))) = (address.parse::<IpAddr>(), parse_network(network))
    else {
        return false;
    };
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let differing = u32::from(address) ^ u32::from(network);
            differing.checked_shr(32 - bits).unwrap_or(0) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let differing = u128::from(address) ^ u128::from(network);
            differing.checked_shr(128 - bits).unwrap_or(0) == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL_SCHEMES: OptionalSchemes = OptionalSchemes { sasl: true, x509: true };

    fn requested(scheme: &str, id: &str) -> RequestedAclEntry {
        let (scheme, id) = (Some(scheme.to_owned()), Some(id.to_owned()));
        RequestedAclEntry { permissions: ALL, scheme, id }
    }

    #[test]
    fn the_scheme_auth_becomes_the_ids_that_say_who_somebody_is() {
        let ids = [AclId::new("ip", "10.0.0.1"), AclId::new("digest", "a:hash")];
        let resolved =
            resolve_acl(Some(&[requested("auth", "")]), &ids, OptionalSchemes::default()).unwrap();
        assert_eq!(&*resolved, [AclEntry { permissions: ALL, id: ids[1].clone() }]);
        let nobody =
            resolve_acl(Some(&[requested("auth", "")]), &ids[..1], OptionalSchemes::default());
        assert_eq!(nobody, Err(ZkCode::InvalidAcl));
    }

    #[test]
    fn lists_that_mean_nobody_are_refused() {
        let null = RequestedAclEntry { permissions: ALL, scheme: None, id: None };
        let unknown = [
            requested("dig", "a:b"),
            requested("digest", "a"),
            requested("ip", "ten"),
            null,
            requested("sasl", "a@b@c"),
        ];
        for entry in unknown {
            assert_eq!(resolve_acl(Some(&[entry]), &[], ALL_SCHEMES), Err(ZkCode::InvalidAcl));
        }
        assert_eq!(resolve_acl(Some(&[]), &[], ALL_SCHEMES), Err(ZkCode::InvalidAcl));
        assert_eq!(resolve_acl(None, &[], ALL_SCHEMES), Err(ZkCode::InvalidAcl));
        for (optional, expected) in
            [(ALL_SCHEMES, Ok(1)), (OptionalSchemes::default(), Err(ZkCode::InvalidAcl))]
        {
            for (scheme, id) in [("sasl", "bob/host@REALM"), ("x509", "CN=bob,O=x")] {
                let list = [requested(scheme, id)];
                assert_eq!(resolve_acl(Some(&list), &[], optional).map(|acl| acl.len()), expected);
            }
        }
        let twice = [requested("ip", "10.0.0.0/8"), requested("ip", "10.0.0.0/8")];
        assert_eq!(resolve_acl(Some(&twice), &[], ALL_SCHEMES).unwrap().len(), 1);
    }

    /// As `new X500Principal(id)` of Java 17 takes them, or not.
    #[test]
    fn ids_of_x509_are_distinguished_names() {
        for id in [
            "",
            "CN=a",
            "cn = a, O=b",
            "CN=a;O=b",
            "CN=a+OU=b,C=de",
            "CN=\"a,b\",O=c",
            "CN=a\\,b",
            "1.2.840.113549.1.9.1=#1603612e62",
            "OID.2.5.4.3=a",
            "emailAddress=a@b",
        ] {
            assert!(is_distinguished_name(id), "{id}");
        }
        for id in ["a", "CN=a,", "X=a", "CN=a,b", "=a", "CN a=b", ",CN=a", " "] {
            assert!(!is_distinguished_name(id), "{id}");
        }
    }

    #[test]
    fn a_list_that_grows_by_the_ids_of_its_connection_has_a_limit() {
        let ids = [AclId::new("digest", &format!("{}:hash", "u".repeat(10_000)))];
        let auth = |permissions| RequestedAclEntry { permissions, ..requested("auth", "") };
        let list: Vec<_> = (0..200).map(auth).collect();
        assert_eq!(
            resolve_acl(Some(&list[..50]), &ids, OptionalSchemes::default()).unwrap().len(),
            50
        );
        assert_eq!(
            resolve_acl(Some(&list), &ids, OptionalSchemes::default()),
            Err(ZkCode::InvalidAcl)
        );
    }

    #[test]
    fn a_network_is_compared_by_its_first_bits() {
        for (address, network, expected) in [
            ("10.1.2.3", "10.0.0.0/8", true),
            ("11.1.2.3", "10.0.0.0/8", false),
            ("11.1.2.3", "10.0.0.0/0", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("::1", "::1/128", true),
            ("::1", "::2/127", false),
            ("::1", "10.0.0.0/0", false),
        ] {
            assert_eq!(matches_network(address, network), expected, "{address} {network}");
        }
    }

    #[test]
    fn a_permission_comes_from_an_entry_or_from_being_super() {
        let list = [AclEntry { permissions: READ, id: AclId::new("digest", "a:x") }];
        let a = [AclId::new("digest", "a:x")];
        assert_eq!(check_permission(&list, READ, &a), Ok(()));
        assert_eq!(check_permission(&list, WRITE, &a), Err(ZkCode::NoAuth));
        assert_eq!(check_permission(&list, READ, &[]), Err(ZkCode::NoAuth));
        assert_eq!(check_permission(&list, WRITE, &[AclId::new("super", "")]), Ok(()));
        assert_eq!(check_permission(&anyone(READ), READ | ADMIN, &[]), Ok(()));
    }
}
