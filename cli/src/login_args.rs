//! Authentication of the commands to servers that ask for it.

use std::path::PathBuf;

use anyhow::Context;
use client::{ClientLogin, LoginMechanism};
use tls::Secret;

use crate::help::CONNECTION;
use crate::output::UsageError;
use crate::profile::Profile;

/// A name, and where its password is. The password itself is no argument: everybody on a machine
/// can read command lines.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct LoginArgs {
    /// Log in as this user.
    #[arg(long, global = true, help_heading = CONNECTION, env = "FREEZEFRAME_SASL_USER", value_name = "NAME")]
    sasl_user: Option<String>,
    /// A file with the password; without it, the variable FREEZEFRAME_SASL_PASSWORD has it.
    #[arg(long, global = true, help_heading = CONNECTION, env = "FREEZEFRAME_SASL_PASSWORD_FILE", value_name = "FILE")]
    sasl_password_file: Option<PathBuf>,
    /// The SASL mechanism: SCRAM-SHA-512, SCRAM-SHA-256, or PLAIN (over TLS).
    #[arg(long, global = true, help_heading = CONNECTION, env = "FREEZEFRAME_SASL_MECHANISM", value_name = "MECHANISM", value_parser = mechanism)]
    sasl_mechanism: Option<LoginMechanism>,
}

/// The variable that has the password, if no file does.
pub(crate) const PASSWORD_VARIABLE: &str = "FREEZEFRAME_SASL_PASSWORD";

impl LoginArgs {
    /// The options that a profile has.
    ///
    /// # Errors
    /// It names a user and no file with the password: the variable has that of another server.
    pub(crate) fn of_profile(profile: &Profile) -> anyhow::Result<LoginArgs> {
        let args = LoginArgs {
            sasl_user: profile.get("sasl-user").cloned(),
            sasl_password_file: profile.get("sasl-password-file").map(PathBuf::from),
            sasl_mechanism: match profile.get("sasl-mechanism") {
                Some(text) => Some(mechanism(text).map_err(anyhow::Error::msg)?),
                None => None,
            },
        };
        anyhow::ensure!(
            args.sasl_user.is_none() || args.sasl_password_file.is_some(),
            "the profile has a user and no password: name a file with `freezeframe profile set … --sasl-password-file`"
        );
        Ok(args)
    }

    /// The login; `None` if it is not asked for.
    pub(crate) fn read(&self) -> anyhow::Result<Option<ClientLogin>> {
        let Some(user) = self.sasl_user.clone() else {
            if self.sasl_password_file.is_some() {
                let message = "--sasl-password-file without --sasl-user: say who you are too";
                return Err(UsageError(message.to_owned()).into());
            }
            return Ok(None);
        };
        let password = match &self.sasl_password_file {
            Some(path) => Secret::read(path)
                .with_context(|| format!("read the password in {}", path.display()))?,
            None => match std::env::var(PASSWORD_VARIABLE) {
                Ok(password) => Secret::new(&password),
                Err(_) => {
                    let message = format!(
                        "--sasl-user without a password: name a file that has it with --sasl-password-file, or set {PASSWORD_VARIABLE}"
                    );
                    return Err(UsageError(message).into());
                }
            },
        };
        let mechanism = self.sasl_mechanism.unwrap_or(LoginMechanism::ALL[0]);
        Ok(Some(ClientLogin { user, password, mechanism }))
    }
}

fn mechanism(text: &str) -> Result<LoginMechanism, String> {
    let mechanism = LoginMechanism::ALL.into_iter().find(|mechanism| mechanism.as_str() == text);
    mechanism.ok_or_else(|| {
        let names: Vec<&str> =
            LoginMechanism::ALL.iter().map(|mechanism| mechanism.as_str()).collect();
        format!("give one of: {}", names.join(", "))
    })
}
