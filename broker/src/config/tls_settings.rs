//! Settings of TLS, which ZooKeeper's clients and Kafka's have alike.

use std::path::Path;

use tls::{Secret, StoreFile, TlsOptions, TlsVersion, all_cipher_suites};

use super::value::{ExpectedForm, SettingValue, list};

/// Checks the type only: the content of a file tells what it is.
pub(super) fn store_type(value: &mut SettingValue) -> Result<(), ExpectedForm> {
    match value.text().to_ascii_uppercase().as_str() {
        "" | "PEM" | "PKCS12" | "JKS" => Ok(()),
        _ => Err("give PEM or PKCS12".to_owned()),
    }
}

/// Reads a password from a file.
pub(super) fn password_at(
    value: &mut SettingValue,
    store: &mut StoreFile,
) -> Result<(), ExpectedForm> {
    if value.text().is_empty() {
        return Ok(());
    }
    store.password = Secret::read(Path::new(value.text()))
        .map_err(|error| format!("give a file that can be read: {error}"))?;
    Ok(())
}

/// The versions that are spoken.
pub(super) fn versions(
    value: &mut SettingValue,
    options: &mut TlsOptions,
) -> Result<(), ExpectedForm> {
    let versions = value.text().split(',').map(|version| match version.trim() {
        "TLSv1.2" => Ok(TlsVersion::Tls12),
        "TLSv1.3" => Ok(TlsVersion::Tls13),
        _ => Err("give TLSv1.3, TLSv1.2, or both with a comma".to_owned()),
    });
    options.versions = versions.collect::<Result<_, _>>()?;
    Ok(())
}

/// The suites that are offered, of the setting `name`; none for all.
pub(super) fn cipher_suites(
    name: &str,
    value: &mut SettingValue,
    options: &mut TlsOptions,
    warnings: &mut Vec<String>,
) -> Result<(), ExpectedForm> {
    options.cipher_suites = list(value.text()).map(str::to_owned).collect();
    let (unknown, known) = options.cipher_suites_by_support();
    match (known.is_empty(), unknown.is_empty()) {
        (true, false) => Err(format!("give suites that TLS has here: {}", all_cipher_suites())),
        (_, true) => Ok(()),
        (false, false) => {
            let unknown = unknown.join(", ");
            warnings
                .push(format!("{name}: {unknown} are not offered: TLS does not have them here"));
            Ok(())
        }
    }
}
