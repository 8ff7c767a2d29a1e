//! Reads a `zoo.cfg`, the configuration of Apache ZooKeeper: a Java properties file.
//!
//! A setting with the same meaning here becomes one of our settings. A setting without one gets a
//! warning.

use std::path::Path;

use super::problem::SettingOrigin;
use super::setting::{ServerSetting, SettingFamily};
use super::sources::SourceValue;
use super::{SettingLookup, UnknownSetting};

const SUPER_DIGEST: &str = "DigestAuthenticationProvider.superDigest";

/// Settings by the beginning of their name, and why they have no effect.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("admin.", "the address --http serves /commands"),
    ("audit.", "freezeframe zk log shows who changed what"),
    (
        "authProvider",
        "digest, ip and world are always there, sasl with zookeeper.sasl.login-config, x509 with TLS",
    ),
    ("autopurge.", "zookeeper.history-retention says how long the history is kept"),
    ("clientPortListenBacklog", "1024 connections may wait"),
    ("dataDir", "give a data directory with --data-dir"),
    ("dataLogDir", "give a data directory with --data-dir"),
    ("dynamicConfigFile", "one server has all znodes"),
    ("electionAlg", "one server has all znodes"),
    ("forceSync", "see --durability"),
    ("globalOutstandingLimit", "1000 requests of one connection may be on their way"),
    ("group.", "one server has all znodes"),
    ("initLimit", "one server has all znodes"),
    ("localSessions", "every session is known to the one server"),
    ("metricsProvider.", "the address --http serves /metrics"),
    ("preAllocSize", "the journal is not allocated in advance"),
    ("quorum", "one server has all znodes"),
    ("server.", "one server has all znodes"),
    ("skipACL", "access is always checked"),
    ("snap", "checkpoints are written as the log grows"),
    ("ssl.protocol", "ssl.enabledProtocols says which versions are spoken"),
    ("ssl.quorum", "one server has all znodes"),
    ("ssl", "TLS has no such choice here"),
    ("sslQuorum", "one server has all znodes"),
    ("serverCnxnFactory", "one kind of connections serves both, in the open and over TLS"),
    ("client.certReload", "files of TLS that change are always read again"),
    ("standaloneEnabled", "one server has all znodes"),
    ("syncEnabled", "one server has all znodes"),
    ("syncLimit", "one server has all znodes"),
    ("weight.", "one server has all znodes"),
];

/// All settings of a file. Port and address become the address for clients: without an address that
/// is every one of this machine, as in ZooKeeper.
pub(super) fn read(path: &Path, text: &str) -> Vec<SourceValue> {
    let mut values = Vec::new();
    let (mut port, mut host) = (None, None);
    let (mut secure_port, mut secure_host) = (None, None);
    let (mut is_enforced, mut schemes, mut requires_sasl) = (None, String::new(), None);
    for Property { line, name, value } in properties(text) {
        let origin = SettingOrigin::ZooCfg { path: path.to_owned(), line };
        let name = name.strip_prefix("zookeeper.").unwrap_or(&name);
        match name {
            "clientPort" => port = Some((value, origin)),
            "clientPortAddress" => host = Some(value),
            "secureClientPort" => secure_port = Some((value, origin)),
            "secureClientPortAddress" => secure_host = Some(value),
            "enforce.auth.enabled" => is_enforced = is_true(&value).then_some(origin),
            "enforce.auth.schemes" => schemes = value,
            "sessionRequireClientSASLAuth" => requires_sasl = is_true(&value).then_some(origin),
            SUPER_DIGEST => values.push(setting("zookeeper.superDigest".to_owned(), value, origin)),
            name => {
                let key = own_name(name).map_or_else(|| name.to_owned(), str::to_owned);
                values.push(setting(key, value, origin));
            }
        }
    }
    for (key, port, host) in
        [("server.zookeeper", port, host), ("server.zookeeper-tls", secure_port, secure_host)]
    {
        let Some((port, origin)) = port else { continue };
        let host = host.unwrap_or_else(|| "0.0.0.0".to_owned());
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        values.push(setting(key.to_owned(), format!("{host}:{port}"), origin));
    }
    let required = requires_sasl.map(|origin| ("sasl".to_owned(), origin));
    if let Some((schemes, origin)) = required.or(is_enforced.map(|origin| (schemes, origin))) {
        values.push(setting("zookeeper.enforce.auth.schemes".to_owned(), schemes, origin));
    }
    values
}

/// The setting here that has the same meaning.
fn own_name(name: &str) -> Option<&'static str> {
    let is_meant = |setting: &&ServerSetting| {
        matches!(setting.family, SettingFamily::ZooKeeper)
            && setting.name.strip_prefix("zookeeper.") == Some(name)
    };
    ServerSetting::all().find(is_meant).map(|setting| setting.name)
}

fn is_true(value: &str) -> bool {
    value.trim().eq_ignore_ascii_case("true")
}

fn setting(key: String, value: String, origin: SettingOrigin) -> SourceValue {
    SourceValue { layer: 0, key, value, origin }
}

/// Looks up a setting that has no counterpart here: whether it is known, and why it has no effect.
pub(super) fn without_setting(source: &SourceValue) -> Result<SettingLookup, UnknownSetting> {
    let name = source.key.as_str();
    match WITHOUT_EFFECT.iter().find(|(begin, _)| name.starts_with(begin)) {
        Some((_, reason)) => Ok(SettingLookup::NoEffect(reason)),
        None => Err(UnknownSetting::Ignored(format!("{name} is not known, and has no effect"))),
    }
}

/// A line of a properties file, or several that are continued.
#[derive(Debug, PartialEq, Eq)]
struct Property {
    /// The number of its first line.
    line: usize,
    name: String,
    value: String,
}

/// The properties of a text, as `java.util.Properties` reads them.
fn properties(text: &str) -> Vec<Property> {
    let mut properties = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((at, first)) = lines.next() {
        let first = first.trim_start();
        if first.is_empty() || first.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = first.to_owned();
        while is_continued(&logical) {
            logical.pop();
            let Some((_, next)) = lines.next() else { break };
            logical.push_str(next.trim_start());
        }
        let (name, value) = split(&logical);
        properties.push(Property { line: at + 1, name: unescape(name), value: unescape(value) });
    }
    properties
}

/// True if the line ends with an odd number of backslashes.
fn is_continued(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// Splits at the first `=`, `:` or blank that is not escaped, with the blanks around it.
fn split(line: &str) -> (&str, &str) {
    let mut is_escaped = false;
    let end = line.find(|char: char| {
        let ends = !is_escaped && (matches!(char, '=' | ':') || char.is_ascii_whitespace());
        is_escaped = char == '\\' && !is_escaped;
        ends
    });
    let (name, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = rest.trim_start();
    (name, rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start())
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        if char != '\\' {
            plain.push(char);
            continue;
        }
        match chars.next() {
            Some('t') => plain.push('\t'),
            Some('n') => plain.push('\n'),
            Some('r') => plain.push('\r'),
            Some('f') => plain.push('\u{c}'),
            Some('u') => {
                let digits: String = chars.by_ref().take(4).collect();
                let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                plain.push(code.unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            Some(char) => plain.push(char),
            None => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_properties(text: &str) -> Vec<(usize, String, String)> {
        let pairs = properties(text).into_iter();
        pairs.map(|Property { line, name, value }| (line, name, value)).collect()
    }

    #[test]
    fn properties_read_as_java_reads_them() {
        let text = "# a comment\n! too\n\ntickTime = 2000\nclientPort:2181\r\ndataDir /var/zk\n\
                    a\\=b=c\\u0041\\n\nlong=one,\\\n   two\nempty\nback=x\\\\\nlast=\\";
        let line = |line, name: &str, value: &str| (line, name.to_owned(), value.to_owned());
        assert_eq!(
            read_properties(text),
            [
                line(4, "tickTime", "2000"),
                line(5, "clientPort", "2181"),
                line(6, "dataDir", "/var/zk"),
                line(7, "a=b", "cA\n"),
                line(8, "long", "one,two"),
                line(10, "empty", ""),
                line(11, "back", "x\\"),
                line(12, "last", ""),
            ]
        );
    }

    #[test]
    fn the_address_comes_from_two_settings() {
        let address = |text: &str| {
            let values = read(Path::new("zoo.cfg"), text);
            values
                .into_iter()
                .find(|value| value.key == "server.zookeeper")
                .map(|value| value.value)
        };
        assert_eq!(address("clientPort=2181").unwrap(), "0.0.0.0:2181");
        assert_eq!(address("clientPortAddress=::1\nclientPort=2181").unwrap(), "[::1]:2181");
        assert_eq!(address("tickTime=1"), None);
        let secure = read(Path::new("zoo.cfg"), "secureClientPort=2281\nssl.clientAuth=none");
        let secure: Vec<_> = secure.iter().map(|value| (&*value.key, &*value.value)).collect();
        let expected =
            [("zookeeper.ssl.clientAuth", "none"), ("server.zookeeper-tls", "0.0.0.0:2281")];
        assert_eq!(secure, expected);
    }

    #[test]
    fn who_has_to_say_who_it_is_comes_from_three_settings() {
        let schemes = |text: &str| {
            let values = read(Path::new("zoo.cfg"), text).into_iter();
            let pairs = values.map(|value| (value.key, value.value)).collect::<Vec<_>>();
            pairs.into_iter().find(|(key, _)| key == "zookeeper.enforce.auth.schemes")
        };
        let value = |text| schemes(text).map(|(_, value)| value);
        assert_eq!(value("sessionRequireClientSASLAuth=true").unwrap(), "sasl");
        let text = "enforce.auth.schemes=digest\nenforce.auth.enabled=true";
        assert_eq!(value(text).unwrap(), "digest");
        assert_eq!(value("enforce.auth.schemes=digest\nenforce.auth.enabled=false"), None);
    }
}
