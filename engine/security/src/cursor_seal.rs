//! Sealed cursors of differences, for requesters that may not see everything: the cursor may hold
//! the name of a topic, a group or a znode that was left out, so they get it encrypted.

use std::fmt::Write;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};

use crate::random_bytes;

/// Encrypts cursors with a key of this process. A cursor of another one does not read.
#[derive(Debug)]
pub struct CursorSeal {
    key: RandomizedNonceKey,
}

impl CursorSeal {
    #[allow(clippy::new_without_default, reason = "each one has a key of its own")]
    pub fn new() -> CursorSeal {
        let key = RandomizedNonceKey::new(&AES_256_GCM, &random_bytes::<32>());
        CursorSeal { key: key.expect("the key has the right length") }
    }

    /// The text for a client: `e` and hex digits.
    pub fn seal(&self, cursor: &[u8]) -> String {
        let mut bytes = cursor.to_vec();
        let nonce = self.key.seal_in_place_append_tag(Aad::empty(), &mut bytes);
        let nonce = nonce.expect("a cursor is far shorter than a key encrypts");
        let mut text = String::with_capacity(1 + 2 * (NONCE_LEN + bytes.len()));
        text.push('e');
        for byte in nonce.as_ref().iter().chain(&bytes) {
            write!(text, "{byte:02x}").expect("a string takes everything");
        }
        text
    }

    /// The cursor in a text; `None` if it was not sealed here.
    pub fn open(&self, text: &str) -> Option<Vec<u8>> {
        let digits = text.strip_prefix('e').filter(|digits| digits.len().is_multiple_of(2))?;
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Vec<u8> = digits.as_bytes().chunks(2).map(byte).collect::<Option<_>>()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.key.open_in_place(nonce, Aad::empty(), &mut sealed).ok()?;
        Some(opened.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back_from_its_own_seal_only_and_shows_nothing() {
        let seal = CursorSeal::new();
        let text = seal.seal(b"o736563726574");
        assert!(!text.contains("736563726574"), "{text}");
        assert_eq!(seal.open(&text).as_deref(), Some(&b"o736563726574"[..]));
        assert_eq!(CursorSeal::new().open(&text), None);
        let mut changed = text.into_bytes();
        let last = changed.last_mut().unwrap();
        *last = if *last == b'0' { b'1' } else { b'0' };
        for bad in
            [&*String::from_utf8(changed).unwrap(), "", "e", "e0", "e+1", "eöö", "o736563726574"]
        {
            assert_eq!(seal.open(bad), None, "{bad}");
        }
    }
}
