//! Protection of the admin port: only requests that name this server, and no changes from foreign
//! web pages.
//!
//! A page in a browser can make its own name resolve to this address (DNS rebinding). It could then
//! read everything here as its own origin. Its requests name its host, so the server admits only
//! its own names. IP addresses are admitted: a page whose origin is an address was served from that
//! address.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Version, header};
use axum::middleware::Next;
use axum::response::Response;
use history_api::HistoryApiError;
use history_documents::HistoryErrorCode;

use crate::config::ListenAddress;
use crate::http_response::refuse;

/// Admits every name.
const ANY: &str = "*";

/// The host names that requests may use.
#[derive(Clone, Debug)]
pub(crate) struct HttpHosts {
    names: Vec<String>,
}

impl HttpHosts {
    /// `localhost`, the names in `addresses`, and `names`.
    pub(crate) fn new(addresses: &[&ListenAddress], names: &[String]) -> HttpHosts {
        let own_hosts = addresses.iter().filter_map(|address| match address {
            ListenAddress::At(address) => Some(&address.host),
            ListenAddress::Off => None,
        });
        let names = own_hosts.chain(names).map(|name| plain(name));
        HttpHosts { names: ["localhost".to_owned()].into_iter().chain(names).collect() }
    }

    /// True if the host in a request is this server.
    fn admits(&self, authority: &Authority) -> bool {
        let host = plain(authority.host());
        let address = host.trim_start_matches('[').trim_end_matches(']');
        address.parse::<IpAddr>().is_ok()
            || self.names.iter().any(|name| *name == host || name == ANY)
    }

    fn check(&self, request: &Request) -> Result<(), HistoryApiError> {
        let host = host_of(request)?;
        match host {
            Some(host) if !self.admits(&host) => Err(HistoryApiError::new(
                HistoryErrorCode::ForeignHost,
                format!(
                    "this server does not answer for the host {}: if it is its name, add it to server.http-hosts",
                    host.host()
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// In lower case, and without the dot at the end of a fully qualified name.
fn plain(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// The host that a request names. Only protocols older than HTTP/1.1 allow none, and no browser
/// uses them.
fn host_of(request: &Request) -> Result<Option<Authority>, HistoryApiError> {
    let bad_request = |message| HistoryApiError::new(HistoryErrorCode::BadRequest, message);
    if let Some(authority) = request.uri().authority() {
        return Ok(Some(authority.clone()));
    }
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => match Authority::try_from(host.as_bytes()) {
            Ok(authority) if !authority.as_str().contains('@') => Ok(Some(authority)),
            _ => Err(bad_request("the header Host is no host")),
        },
        (None, _) if request.version() < Version::HTTP_11 => Ok(None),
        (None, _) => Err(bad_request("a request has a header Host")),
        (Some(_), Some(_)) => Err(bad_request("a request has one header Host")),
    }
}

/// Refuses requests for foreign hosts, and changes from pages of another origin.
pub(crate) async fn check(
    State(hosts): State<HttpHosts>,
    request: Request,
    next: Next,
) -> Response {
    let checked = hosts.check(&request).and_then(|()| {
        let changes = !request.method().is_safe();
        if changes { check_origin(request.headers()) } else { Ok(()) }
    });
    match checked {
        Ok(()) => next.run(request).await,
        Err(refusal) => refuse(&refusal),
    }
}

/// Checks the origin that a browser reports. Admitted are pages of this server, and of a proxy with
/// the same name in front of it.
fn check_origin(headers: &HeaderMap) -> Result<(), HistoryApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let page = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    match (page, host) {
        (Some((_, page)), Some(host)) if page.eq_ignore_ascii_case(host) => Ok(()),
        _ => Err(HistoryApiError::new(
            HistoryErrorCode::Forbidden,
            "not for web pages of another origin",
        )),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use compat_kafka::AdvertisedAddress;

    use super::*;

    fn hosts(names: &[&str]) -> HttpHosts {
        let listen = ListenAddress::At(AdvertisedAddress {
            host: "Broker-1.example".to_owned(),
            port: 8080,
        });
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        HttpHosts::new(&[&listen], &names)
    }

    fn code(hosts: &HttpHosts, host: &str) -> Option<&'static str> {
        let request = Request::builder().header(header::HOST, host).body(Body::empty()).unwrap();
        hosts.check(&request).err().map(|refusal| refusal.code().name())
    }

    #[test]
    fn a_name_is_ours_or_refused_and_an_address_is_no_name() {
        let own_hosts = hosts(&["metrics.example"]);
        for host in [
            "localhost",
            "LocalHost:8080",
            "localhost.",
            "127.0.0.1:8080",
            "[::1]:8080",
            "10.1.2.3",
            "broker-1.example:80",
            "metrics.example.",
        ] {
            assert_eq!(code(&own_hosts, host), None, "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8080", "x"] {
            assert_eq!(code(&own_hosts, host), Some("foreign_host"), "{host}");
            assert_eq!(code(&hosts(&["*"]), host), None, "{host}");
        }
        for host in ["", "localhost@evil.example", "a b", "localhost/"] {
            assert_eq!(code(&own_hosts, host), Some("bad_request"), "{host}");
        }
    }

    #[test]
    fn the_host_of_a_whole_address_counts_and_there_is_one() {
        let own_hosts = hosts(&[]);
        let absolute =
            Request::builder().uri("http://evil.example/v1").header(header::HOST, "localhost");
        let refusal = own_hosts.check(&absolute.body(Body::empty()).unwrap()).unwrap_err();
        assert_eq!(refusal.code(), HistoryErrorCode::ForeignHost);
        let without_host = Request::builder().body(Body::empty()).unwrap();
        assert!(own_hosts.check(&without_host).is_err());
        let old = Request::builder().version(Version::HTTP_10).body(Body::empty()).unwrap();
        assert!(own_hosts.check(&old).is_ok());
        let with_two =
            Request::builder().header(header::HOST, "localhost").header(header::HOST, "b");
        assert!(own_hosts.check(&with_two.body(Body::empty()).unwrap()).is_err());
    }

    #[test]
    fn a_page_may_ask_its_own_server() {
        let asks = |origin: &str| {
            let headers = [(header::ORIGIN, origin), (header::HOST, "localhost:8080")];
            let headers = headers.map(|(name, value)| (name, value.parse().unwrap()));
            check_origin(&headers.into_iter().collect()).is_ok()
        };
        assert!(asks("http://localhost:8080") && asks("https://LOCALHOST:8080"));
        for foreign in ["http://localhost", "http://localhost:8081", "http://evil", "null", ""] {
            assert!(!asks(foreign), "{foreign}");
        }
        assert!(check_origin(&HeaderMap::new()).is_ok());
    }
}
