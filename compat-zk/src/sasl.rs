//! SASL with DIGEST-MD5 (RFC 2831), as the server side: the mechanism that ZooKeeper has beside
//! Kerberos. It authenticates only: the rest of the connection is neither signed nor encrypted by
//! it.

use std::collections::{BTreeMap, HashMap};

use md5::{Digest, Md5};

/// The realm, and the host in the URI that a client has to name.
const REALM: &str = "zk-sasl-md5";
const DIGEST_URI: &str = "zookeeper/zk-sasl-md5";
/// Only the first response to a challenge is looked at.
const FIRST: &str = "00000001";

/// The users, and their passwords.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SaslUsers(BTreeMap<String, String>);

impl std::fmt::Debug for SaslUsers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl SaslUsers {
    /// True if there are no users: then SASL is not offered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the section `section` of a configuration of Java's login modules: its options
    /// `user_NAME="PASSWORD"`.
    ///
    /// # Errors
    /// In words: the section is not there, or has no users.
    pub fn from_login_config(text: &str, section: &str) -> Result<SaslUsers, String> {
        let words = login_config_words(text);
        let is_section = |pair: &[String]| pair[0] == section && pair[1] == "{";
        let begin = words.windows(2).position(is_section);
        let begin = begin.ok_or_else(|| format!("it has no section {section}"))?;
        let section_words = words[begin + 2..].iter().take_while(|word| *word != "}");
        let users = section_words.filter_map(|word| {
            let (name, password) = word.strip_prefix("user_")?.split_once('=')?;
            Some((name.to_owned(), password.to_owned()))
        });
        let users = SaslUsers(users.collect());
        if users.is_empty() {
            return Err(format!("the section {section} has no line user_NAME=\"PASSWORD\""));
        }
        Ok(users)
    }
}

/// Words, and braces by themselves. Quotes are taken off, and comments are left out.
fn login_config_words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '"' => {
                while let Some(char) = chars.next().filter(|char| *char != '"') {
                    let char = if char == '\\' { chars.next().unwrap_or(char) } else { char };
                    words.last_mut().expect("there is one").push(char);
                }
            }
            '/' if chars.peek() == Some(&'/') => {
                for char in chars.by_ref() {
                    if char == '\n' {
                        break;
                    }
                }
            }
            '/' if chars.peek() == Some(&'*') => {
                let mut last = ' ';
                chars.next();
                for char in chars.by_ref() {
                    if (last, char) == ('*', '/') {
                        break;
                    }
                    last = char;
                }
            }
            '{' | '}' => words.extend([char.to_string(), String::new()]),
            ';' => words.push(String::new()),
            char if char.is_whitespace() => words.push(String::new()),
            char => words.last_mut().expect("there is one").push(char),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The reason why an exchange failed, for the log. A client is not told.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct SaslError(&'static str);

/// One exchange of a connection.
#[derive(Debug, Default)]
pub(crate) enum SaslExchange {
    #[default]
    Begin,
    /// The nonce of the challenge that was sent.
    Challenged(String),
    Over,
}

/// The answer of the server to a token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SaslAnswer {
    Challenge(String),
    /// The client is this user; and the proof that the server knows its password too.
    Done {
        user: String,
        proof: String,
    },
}

impl SaslExchange {
    pub(crate) fn answer(
        &mut self,
        users: &SaslUsers,
        token: &[u8],
        new_nonce: impl FnOnce() -> String,
    ) -> Result<SaslAnswer, SaslError> {
        match std::mem::replace(self, SaslExchange::Over) {
            SaslExchange::Begin if token.is_empty() => {
                let nonce = new_nonce();
                let challenge =
                    format!("realm=\"{REALM}\",nonce=\"{nonce}\",charset=utf-8,algorithm=md5-sess");
                *self = SaslExchange::Challenged(nonce);
                Ok(SaslAnswer::Challenge(challenge))
            }
            SaslExchange::Challenged(nonce) => check_response(users, &nonce, token),
            SaslExchange::Begin => Err(SaslError("the first token has to be empty")),
            SaslExchange::Over => Err(SaslError("the exchange is over")),
        }
    }
}

fn check_response(users: &SaslUsers, nonce: &str, token: &[u8]) -> Result<SaslAnswer, SaslError> {
    let fields = parse_directives(token).ok_or(SaslError("the response does not read"))?;
    let field = |name: &str| fields.get(name).map(String::as_str);
    let required = |name| field(name).ok_or(SaslError("the response lacks a directive"));
    let (user, cnonce, uri) = (required("username")?, required("cnonce")?, required("digest-uri")?);
    let qop = field("qop").unwrap_or("auth");
    if required("nonce")? != nonce || required("nc")? != FIRST {
        return Err(SaslError("the response is to another challenge"));
    }
    if uri != DIGEST_URI || qop != "auth" {
        return Err(SaslError("the response is for another service, or wants another protection"));
    }
    if field("authzid").is_some_and(|id| id != user) {
        return Err(SaslError("nobody may act for somebody else"));
    }
    let realm = field("realm").unwrap_or_default();
    // The same work for a user that is not there.
    let (is_known, password) = match users.0.get(user) {
        Some(password) => (true, password.as_str()),
        None => (false, ""),
    };
    let mut secret =
        Md5::digest([latin1(user), latin1(realm), latin1(password)].join(&b':')).to_vec();
    for field in [nonce, cnonce].into_iter().chain(field("authzid")) {
        secret.push(b':');
        secret.extend_from_slice(field.as_bytes());
    }
    let secret = hex(&Md5::digest(secret));
    let proof = |method: &str| {
        let hashed = hex(&Md5::digest(format!("{method}:{uri}")));
        hex(&Md5::digest(format!("{secret}:{nonce}:{FIRST}:{cnonce}:{qop}:{hashed}")))
    };
    let (expected, response) = (proof("AUTHENTICATE"), required("response")?);
    let is_equal = is_equal_in_constant_time(expected.as_bytes(), response.as_bytes());
    if !is_known || !is_equal {
        return Err(SaslError("the user or the password is wrong"));
    }
    Ok(SaslAnswer::Done { user: user.to_owned(), proof: format!("rspauth={}", proof("")) })
}

fn is_equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

/// Text in ISO 8859-1 if it can be written so, as RFC 2831 hashes it.
fn latin1(text: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = text.chars().map(|char| u8::try_from(char).ok()).collect();
    bytes.unwrap_or_else(|| text.as_bytes().to_vec())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `name=value,name="value",…`; no name may come twice.
fn parse_directives(token: &[u8]) -> Option<HashMap<String, String>> {
    let text = std::str::from_utf8(token).ok()?;
    let mut fields = HashMap::new();
    let mut rest = text.trim_start_matches([',', ' ']);
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted_value(quoted)?,
            None => {
                let end = after.find(',').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        if fields.insert(name.trim().to_owned(), value).is_some() {
            return None;
        }
        rest = after.trim_start_matches([',', ' ']);
    }
    Some(fields)
}

/// A value up to its closing quote, and what comes after that.
fn quoted_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((end, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[end + 1..])),
            '\\' => value.push(chars.next()?.1),
            char => value.push(char),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> SaslUsers {
        let text = "// users\nServer {\n org.apache.zookeeper.server.auth.DigestLoginModule required\n \
                    user_super=\"su{per}\" /* x */ user_bob=\"b\\\"ob\";\n};\nClient { user_eve=\"e\"; };";
        SaslUsers::from_login_config(text, "Server").expect("it has users")
    }

    #[test]
    fn users_are_those_of_a_section() {
        let expected = [("super", "su{per}"), ("bob", "b\"ob")];
        let expected = expected.map(|(name, password)| (name.to_owned(), password.to_owned()));
        assert_eq!(users(), SaslUsers(BTreeMap::from(expected)));
        assert!(SaslUsers::from_login_config("Server {};", "Server").is_err());
        assert!(SaslUsers::from_login_config("Other { user_a=\"b\"; };", "Server").is_err());
        assert!(!format!("{:?}", users()).contains("per}"), "no password is shown");
    }

    /// The response of a client with this password.
    fn response(user: &str, password: &str, nonce: &str) -> String {
        let (cnonce, uri) = ("OA6MHXh6VqTrRk", DIGEST_URI);
        let users = SaslUsers(BTreeMap::from([(user.to_owned(), password.to_owned())]));
        let unsigned = |response: &str| {
            format!(
                "charset=utf-8,username=\"{user}\",realm=\"{REALM}\",nonce=\"{nonce}\",nc={FIRST},cnonce=\"{cnonce}\",digest-uri=\"{uri}\",response={response},qop=auth"
            )
        };
        let secret = Md5::digest(format!("{user}:{REALM}:{}", users.0[user]));
        let secret = [&secret[..], format!(":{nonce}:{cnonce}").as_bytes()].concat();
        let secret = hex(&Md5::digest(secret));
        let hashed = hex(&Md5::digest(format!("AUTHENTICATE:{uri}")));
        unsigned(&hex(&Md5::digest(format!("{secret}:{nonce}:{FIRST}:{cnonce}:auth:{hashed}"))))
    }

    fn challenged() -> SaslExchange {
        SaslExchange::Challenged("n".to_owned())
    }

    #[test]
    fn who_knows_the_password_is_let_in_once() {
        let mut exchange = SaslExchange::default();
        let first_step = exchange.answer(&users(), b"", || "n".to_owned());
        assert!(
            matches!(first_step, Ok(SaslAnswer::Challenge(text)) if text.contains("nonce=\"n\""))
        );
        let token = response("bob", "b\"ob", "n");
        let last_step = exchange.answer(&users(), token.as_bytes(), String::new);
        let Ok(SaslAnswer::Done { user, proof }) = last_step else { panic!("{last_step:?}") };
        assert_eq!(user, "bob");
        assert!(proof.starts_with("rspauth=") && proof.len() == "rspauth=".len() + 32);
        assert!(exchange.answer(&users(), token.as_bytes(), String::new).is_err(), "a replay");
    }

    #[test]
    fn others_are_not() {
        let right = response("bob", "b\"ob", "n");
        for token in [
            response("bob", "bob", "n"),
            response("eve", "e", "n"),
            response("bob", "b\"ob", "another"),
            right.replace("zookeeper/", "kafka/"),
            right.replace("qop=auth", "qop=auth-int"),
            right.replace("nc=00000001", "nc=00000002"),
            format!("{right},authzid=\"super\""),
            format!("{right},username=\"super\""),
            right.replace("response=", "other="),
            "\"".to_owned(),
            "username=\"".to_owned(),
            String::new(),
        ] {
            assert!(
                challenged().answer(&users(), token.as_bytes(), String::new).is_err(),
                "{token}"
            );
        }
        assert!(challenged().answer(&users(), &[0xff, 0], String::new).is_err());
    }
}
