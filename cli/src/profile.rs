//! Profiles: names for servers, and for how to connect to them. All are in one file of the user.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::whole_file::WholeFile;

/// The variable that names a profile.
pub(crate) const PROFILE_VARIABLE: &str = "FREEZEFRAME_PROFILE";

/// The options that a profile has, by their ids on the command line, and whether each is the path
/// of a file.
pub(crate) const OPTIONS: [(&str, bool); 7] = [
    ("bootstrap", false),
    ("tls_trust", true),
    ("tls_key", true),
    ("tls_password_file", true),
    ("sasl_user", false),
    ("sasl_password_file", true),
    ("sasl_mechanism", false),
];

/// The option of `zk` that a profile has.
pub(crate) const ZOOKEEPER: &str = "zookeeper";

/// The values of options, by their names without dashes in front, such as `tls-trust`.
pub(crate) type Profile = BTreeMap<String, String>;

/// The contents of the file.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profiles {
    /// The one that is used where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) default: Option<String>,
    #[serde(default)]
    pub(crate) profiles: BTreeMap<String, Profile>,
}

/// The name of an option in a profile.
pub(crate) fn option_name(id: &str) -> String {
    id.replace('_', "-")
}

/// The path of the file.
pub(crate) fn profiles_path() -> anyhow::Result<PathBuf> {
    let directory =
        |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_home = || directory("HOME").map(|home| home.join(".config"));
    let config = directory("XDG_CONFIG_HOME").or_else(of_home);
    let config = config.context("there is no place for profiles: set HOME or XDG_CONFIG_HOME")?;
    Ok(config.join("freezeframe").join("profiles.toml"))
}

impl Profiles {
    /// Reads the file. Without one there are no profiles.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Profiles> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Profiles::default()),
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        let profiles = Profiles::parse(&text);
        profiles.with_context(|| format!("mend the file of profiles, {}", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Profiles> {
        let profiles: Profiles = toml::from_str(text)?;
        for (name, profile) in &profiles.profiles {
            let is_known = |key: &str| {
                key == ZOOKEEPER || OPTIONS.iter().any(|(id, _)| option_name(id) == key)
            };
            if let Some(key) = profile.keys().find(|key| !is_known(key)) {
                let names: Vec<String> = OPTIONS.iter().map(|(id, _)| option_name(id)).collect();
                let names = names.join(", ");
                anyhow::bail!("profile {name} has {key}: it may have {names}, {ZOOKEEPER}");
            }
        }
        Ok(profiles)
    }

    /// Replaces the file, or leaves the one that was there.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = toml::to_string(self).context("spell the profiles")?;
        let directory = path.parent().context("the file of profiles has a directory")?;
        let doing = || format!("write {}", path.display());
        std::fs::create_dir_all(directory).with_context(doing)?;
        let (whole, mut file) = WholeFile::create(path)?;
        file.write_all(text.as_bytes()).with_context(doing)?;
        whole.publish(&file)
    }

    /// The profile of a name.
    ///
    /// # Errors
    /// No profile has this name. The message says which names there are.
    pub(crate) fn named(&self, name: &str) -> anyhow::Result<&Profile> {
        self.profiles.get(name).with_context(|| {
            let names: Vec<&str> = self.profiles.keys().map(String::as_str).collect();
            match names[..] {
                [] => format!("there is no profile {name}; make it with `freezeframe profile set {name} --bootstrap HOST:PORT`"),
                _ => format!("there is no profile {name}; there is: {}", names.join(", ")),
            }
        })
    }
}

/// The profile that applies: the named one, or the default one. Without both there is none.
pub(crate) fn selected(name: Option<&str>) -> anyhow::Result<Option<Profile>> {
    let name = name.filter(|name| !name.is_empty());
    let path = match (profiles_path(), name) {
        (Ok(path), _) => path,
        (Err(error), Some(_)) => return Err(error),
        (Err(_), None) => return Ok(None),
    };
    let profiles = match Profiles::read(&path) {
        // A service may run as somebody whose home is not theirs. It named no profile, and uses
        // none.
        Err(error) if name.is_none() && is_unreadable(&error) => return Ok(None),
        read => read?,
    };
    match name.or(profiles.default.as_deref()) {
        Some(name) => profiles.named(name).cloned().map(Some),
        None => Ok(None),
    }
}

/// True if this user may not read the file, or it cannot be there.
fn is_unreadable(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(kind, Some(ErrorKind::PermissionDenied | ErrorKind::NotADirectory))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profiles() -> Profiles {
        let mut profiles = Profiles { default: Some("a".to_owned()), ..Profiles::default() };
        let options = [("bootstrap", "h:1"), ("tls-trust", "/ca.pem")];
        let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
        profiles.profiles.insert("a".to_owned(), Profile::from(options));
        profiles
    }

    #[test]
    fn profiles_are_read_as_they_were_written() {
        let directory = std::env::temp_dir().join(format!("profiles-{}", std::process::id()));
        let path = directory.join("freezeframe/profiles.toml");
        assert_eq!(Profiles::read(&path).unwrap(), Profiles::default());
        profiles().write(&path).unwrap();
        profiles().write(&path).unwrap();
        assert_eq!(Profiles::read(&path).unwrap(), profiles());
        // A file that cannot be read is not an empty one: `profile set` would replace it.
        let error = Profiles::read(&path.join("below a file")).unwrap_err();
        assert!(is_unreadable(&error), "{error:#}");
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn what_is_no_profile_says_what_may_be_in_one() {
        let error = Profiles::parse("[profiles.a]\nserver = 'h:1'\n").unwrap_err();
        assert!(error.to_string().contains("it may have bootstrap, tls-trust"), "{error}");
        assert!(Profiles::parse("default = 5").is_err());
        assert!(Profiles::parse("else = 'a'").is_err());
        let missing = profiles().named("b").unwrap_err().to_string();
        assert!(missing.contains("there is: a"), "{missing}");
        let refusal = Profiles::default().named("b").unwrap_err().to_string();
        assert!(refusal.contains("profile set b"), "{refusal}");
    }
}
