//! JSON Web Tokens, and the keys that sign them.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// Somebody who signs tokens, with an elliptic curve (ES256).
pub struct TokenIssuer {
    /// The name of the key.
    pub name: &'static str,
    pair: EcdsaKeyPair,
}

impl TokenIssuer {
    pub fn new(name: &'static str) -> TokenIssuer {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
        TokenIssuer { name, pair }
    }

    /// The public key: a point of the curve.
    pub fn public_key(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }

    fn json_web_key(&self) -> Value {
        let (x, y) = self.public_key()[1..].split_at(32);
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({"kty": "EC", "crv": "P-256", "kid": self.name, "use": "sig", "x": text(x), "y": text(y)})
    }

    /// A token with any header.
    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", token_part(header), token_part(claims));
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes());
        let signature = signature.expect("it signs");
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// A token with these claims.
    pub fn token(&self, claims: &Value) -> String {
        self.sign(&json!({"alg": "ES256", "kid": self.name}), claims)
    }
}

/// A part of a token.
pub fn token_part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

/// The JSON Web Key Set of issuers.
pub fn key_set(issuers: &[&TokenIssuer]) -> String {
    let keys: Vec<Value> = issuers.iter().map(|issuer| issuer.json_web_key()).collect();
    json!({ "keys": keys }).to_string()
}
