//! Tokens: any text, and any claims that are signed.

use serde_json::Value;

use crate::texts;
use crate::world::{PATIENCE, with_world};

/// Claims and a header with a zero byte between are signed if both read; all else is a token as it
/// is.
pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    with_world(|world| {
        let read = |part: &str| serde_json::from_str::<Value>(part).ok();
        let parts = text.split_once('\0');
        let signed = parts.and_then(|(header, claims)| Some((read(header)?, read(claims)?)));
        let token = match signed {
            Some((header, claims)) => world.issuer.sign(&header, &claims),
            None => text.to_owned(),
        };
        let checking =
            async { tokio::time::timeout(PATIENCE, world.tokens.validate(&token)).await };
        let checked = world.runtime.block_on(checking).expect("a check does not hang");
        if let Ok(found) = checked {
            assert!(!found.subject.is_empty(), "a token names somebody");
        }
    });
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    texts(&[
        "{\"alg\":\"ES256\",\"kid\":\"key\"}\0{\"sub\":\"alice\",\"aud\":\"frames\",\"exp\":4102444800,\"iss\":\"i\",\"nbf\":1,\"iat\":1}",
        "{\"alg\":\"ES256\"}\0{\"sub\":\"alice\",\"aud\":[\"frames\",\"x\"],\"exp\":4102444800}",
        "{\"alg\":\"none\"}\0{}",
        "{\"alg\":\"HS256\",\"typ\":\"JWT\",\"jku\":\"http://x\",\"jwk\":{},\"x5c\":[],\"crit\":[\"b64\"]}\0{\"sub\":7}",
        "eyJhbGciOiJFUzI1NiJ9.e30.AAAA",
        "..",
    ])
}
