//! Parsing of bootstrap addresses.

use crate::ClientError;

const PORT_DEFAULT: u16 = 9092;

/// Parses `HOST:PORT[,HOST:PORT…]`. The default port is Kafka's, 9092.
pub(crate) fn addresses(text: &str) -> Result<Vec<String>, ClientError> {
    text.split(',').map(|name| address(name.trim())).collect()
}

fn address(text: &str) -> Result<String, ClientError> {
    let bad_address = || ClientError::BadAddress(text.to_owned());
    // A colon inside brackets belongs to an IPv6 address.
    let after_host = text.rfind(']').map_or(0, |at| at + 1);
    let (host, port) = match text[after_host..].rfind(':') {
        Some(at) => (&text[..after_host + at], Some(&text[after_host + at + 1..])),
        None => (text, None),
    };
    let port = match port {
        Some(port) => port.parse::<u16>().map_err(|_| bad_address())?,
        None => PORT_DEFAULT,
    };
    let bare_v6 = after_host == 0 && host.contains(':');
    if host.is_empty() || host.contains(['/', ' ', '@']) || bare_v6 || port == 0 {
        return Err(bad_address());
    }
    Ok(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_port_is_kafkas() {
        assert_eq!(addresses("a, b:1,[::1]").unwrap(), ["a:9092", "b:1", "[::1]:9092"]);
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", ":9092", "a:", "a:x", "a:70000", "a:0", "::1", "http://a:1", "a,,b"] {
            assert!(addresses(text).is_err(), "{text:?}");
        }
    }
}
