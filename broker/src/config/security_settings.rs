//! Authentication and authorization of Kafka's clients.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use bearer_tokens::{KeySource, TokenOptions};
use compat_kafka::{SaslMechanism, SaslOptions};
use engine::security::{AuthorizerOptions, PrincipalRules};
use tls::TlsOptions;

use super::value::{ExpectedForm, SettingValue, list};

/// Kafka's authorizer, whose rules are ours.
const STANDARD_AUTHORIZER: &str = "org.apache.kafka.metadata.authorizer.StandardAuthorizer";

/// The authentication of a listener's clients.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListenerSecurity {
    pub(crate) tls: TlsOptions,
    pub(crate) sasl: SaslOptions,
    pub(crate) principal_rules: PrincipalRules,
    /// The accepted tokens, if `OAUTHBEARER` is offered.
    pub(crate) tokens: TokenSettings,
    /// True if `ssl.client.auth` is this listener's own: where SASL names clients, that of all has
    /// no effect, as in Kafka.
    pub(crate) has_own_client_auth: bool,
}

/// `sasl.enabled.mechanisms`
pub(super) fn mechanisms(
    value: &mut SettingValue,
    security: &mut ListenerSecurity,
) -> Result<(), ExpectedForm> {
    let expected = || {
        let names: Vec<&str> =
            SaslMechanism::ALL.iter().map(|mechanism| mechanism.as_str()).collect();
        format!("give some of {}, with commas between", names.join(", "))
    };
    let mechanisms: Option<BTreeSet<SaslMechanism>> =
        list(value.text()).map(SaslMechanism::named).collect();
    security.sasl.mechanisms =
        mechanisms.filter(|mechanisms| !mechanisms.is_empty()).ok_or_else(expected)?;
    Ok(())
}

/// `ssl.principal.mapping.rules`
pub(super) fn principal_rules(
    value: &mut SettingValue,
    security: &mut ListenerSecurity,
) -> Result<(), ExpectedForm> {
    security.principal_rules = PrincipalRules::parse(value.text())?;
    Ok(())
}

/// `authorizer.class.name`
pub(super) fn authorizer_class(
    value: &mut SettingValue,
    options: &mut AuthorizerOptions,
) -> Result<(), ExpectedForm> {
    options.is_enabled = match value.text() {
        "" => false,
        STANDARD_AUTHORIZER => true,
        _ => {
            return Err(format!(
                "give {STANDARD_AUTHORIZER}, whose rules are the ones here, or nothing"
            ));
        }
    };
    Ok(())
}

/// `super.users`: `User:NAME`, with semicolons between, because names of certificates have commas.
pub(super) fn super_users(
    value: &mut SettingValue,
    options: &mut AuthorizerOptions,
) -> Result<(), ExpectedForm> {
    let users = value.text().split(';').map(str::trim).filter(|user| !user.is_empty());
    let is_user = |user: &str| {
        user.split_once(':').is_some_and(|(kind, name)| !kind.is_empty() && !name.is_empty())
    };
    let expected = || "give User:NAME, with semicolons between".to_owned();
    let users: Option<BTreeSet<String>> =
        users.map(|user| is_user(user).then(|| user.to_owned())).collect();
    options.super_users = users.ok_or_else(expected)?;
    Ok(())
}

/// The tokens that authenticate clients, as the settings are given.
#[derive(Clone, Debug)]
pub(crate) struct TokenSettings {
    pub(crate) keys: Option<KeySource>,
    pub(crate) refresh: Duration,
    pub(crate) retry: Duration,
    pub(crate) retry_max: Duration,
    pub(crate) audiences: BTreeSet<String>,
    pub(crate) issuer: Option<String>,
    pub(crate) clock_skew: Duration,
    pub(crate) subject_claim: String,
}

impl Default for TokenSettings {
    /// The table of settings has the defaults.
    fn default() -> TokenSettings {
        TokenSettings {
            keys: None,
            refresh: Duration::ZERO,
            retry: Duration::ZERO,
            retry_max: Duration::ZERO,
            audiences: BTreeSet::new(),
            issuer: None,
            clock_skew: Duration::ZERO,
            subject_claim: String::new(),
        }
    }
}

impl TokenSettings {
    /// The options of what checks tokens; `None` if there are no keys.
    pub(crate) fn options(&self) -> Option<TokenOptions> {
        Some(TokenOptions {
            keys: self.keys.clone()?,
            trust: std::env::var_os("SSL_CERT_FILE").map(PathBuf::from),
            refresh: self.refresh,
            retry: (self.retry, self.retry_max.max(self.retry)),
            audiences: self.audiences.clone(),
            issuer: self.issuer.clone(),
            clock_skew: self.clock_skew,
            subject_claim: self.subject_claim.clone(),
        })
    }
}

/// `sasl.oauthbearer.jwks.endpoint.url`
pub(super) fn token_keys(
    value: &mut SettingValue,
    tokens: &mut TokenSettings,
) -> Result<(), ExpectedForm> {
    tokens.keys = match value.text() {
        "" => None,
        text => Some(KeySource::parse(text)?),
    };
    Ok(())
}
