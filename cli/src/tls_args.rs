//! TLS of the commands.

use std::path::{Path, PathBuf};

use anyhow::Context;
use tls::{Secret, StoreFile, TlsClient, TlsClientOptions};

use crate::help::CONNECTION;
use crate::profile::Profile;

/// The authorities to trust, and our own key and certificates.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct TlsArgs {
    /// Speak TLS, and trust servers for which these certificates sign, PEM or PKCS#12.
    #[arg(long, global = true, help_heading = CONNECTION, env = "FREEZEFRAME_TLS_TRUST", value_name = "FILE")]
    tls_trust: Option<PathBuf>,
    /// Our key and certificates for servers that ask who we are, PEM or PKCS#12.
    #[arg(long, global = true, help_heading = CONNECTION, env = "FREEZEFRAME_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// A file with the password of both.
    #[arg(long, global = true, help_heading = CONNECTION, env = "FREEZEFRAME_TLS_PASSWORD_FILE", value_name = "FILE")]
    tls_password_file: Option<PathBuf>,
}

impl TlsArgs {
    /// The options that a profile has.
    pub(crate) fn of_profile(profile: &Profile) -> TlsArgs {
        let path = |name: &str| profile.get(name).map(PathBuf::from);
        TlsArgs {
            tls_trust: path("tls-trust"),
            tls_key: path("tls-key"),
            tls_password_file: path("tls-password-file"),
        }
    }

    /// TLS with these files; `None` if it is not asked for.
    pub(crate) fn open(&self) -> anyhow::Result<Option<TlsClient>> {
        let password = self.tls_password_file.as_deref();
        open_tls(self.tls_trust.as_deref(), self.tls_key.as_deref(), password)
    }
}

/// TLS with these files; `None` without `trust`.
pub(crate) fn open_tls(
    trust: Option<&Path>,
    key: Option<&Path>,
    password: Option<&Path>,
) -> anyhow::Result<Option<TlsClient>> {
    let Some(trust) = trust else {
        anyhow::ensure!(key.is_none(), "--tls-key without --tls-trust: say whom to trust too");
        return Ok(None);
    };
    let password = match password {
        Some(path) => Secret::read(path)
            .with_context(|| format!("read the password in {}", path.display()))?,
        None => Secret::default(),
    };
    let store = |path: &Path| StoreFile {
        path: path.to_owned(),
        password: password.clone(),
        ..StoreFile::default()
    };
    let key_store = key.map(store).unwrap_or_default();
    let options = TlsClientOptions { trust_store: store(trust), key_store };
    Ok(Some(TlsClient::new(&options).context("speak TLS")?))
}
