//! Every error code of the history API: one table, for Kafka's wire and for HTTP.
//! `docs/HISTORY-API.md` lists them, and a test compares.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! history_error_codes {
    ($($(#[$doc:meta])* $code:ident = $name:literal,)*) => {
        /// The kind of an error. It has exactly the codes that a server may send.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum HistoryErrorCode {
            $($(#[$doc])* $code,)*
        }

        impl HistoryErrorCode {
            /// All codes, in the order of the manual.
            pub const ALL: &[HistoryErrorCode] = &[$(HistoryErrorCode::$code),*];

            /// The name in a document.
            pub fn name(self) -> &'static str {
                match self {
                    $(HistoryErrorCode::$code => $name,)*
                }
            }

            /// The code of that name.
            pub fn from_name(name: &str) -> Option<HistoryErrorCode> {
                match name {
                    $($name => Some(HistoryErrorCode::$code),)*
                    _ => None,
                }
            }
        }
    };
}

history_error_codes! {
    /// The moment is not final yet.
    NotYet = "not_yet",
    /// The moment lies further ahead than the patience.
    FarFuture = "far_future",
    /// History that belongs to the moment was removed.
    BeforeHistory = "before_history",
    /// The search is not complete: the same request continues it.
    Unfinished = "unfinished",
    /// There was no such topic.
    UnknownTopic = "unknown_topic",
    /// There was no such group, or it has committed nothing.
    UnknownGroup = "unknown_group",
    /// The group has members.
    GroupActive = "group_active",
    /// The group is being changed by another request.
    GroupBusy = "group_busy",
    /// The limit on groups is reached.
    TooManyGroups = "too_many_groups",
    /// Not a moment, or not one that this operation accepts.
    BadMoment = "bad_moment",
    /// The document does not parse.
    BadRequest = "bad_request",
    /// The document is too long.
    TooLarge = "too_large",
    /// The name or the expiry of a pin is invalid.
    BadPin = "bad_pin",
    /// A pin with this name exists at another moment.
    PinTaken = "pin_taken",
    /// The limit on pins is reached.
    TooManyPins = "too_many_pins",
    /// There is no such pin.
    UnknownPin = "unknown_pin",
    /// The module or the name of a plug-in is invalid.
    BadPlugin = "bad_plugin",
    /// There is no such plug-in.
    UnknownPlugin = "unknown_plugin",
    /// The value of `freezeframe.user.time` is invalid.
    BadSpec = "bad_spec",
    /// No user time can be read from the record.
    Unreadable = "unreadable",
    /// The partition has no such offset.
    OutOfRange = "out_of_range",
    /// The tree has no such name.
    NotFound = "not_found",
    /// A name on the path is not a directory.
    NotDirectory = "not_directory",
    /// A directory has no bytes.
    IsDirectory = "is_directory",
    /// The path is invalid.
    BadPath = "bad_path",
    /// The handle is closed, or its data is not kept any more.
    Gone = "gone",
    /// It changed meanwhile, or something is in the way.
    Conflict = "conflict",
    /// An access control list does not permit it.
    Unauthorized = "unauthorized",
    /// The clock is fenced.
    Fenced = "fenced",
    /// The catalog is being rebuilt from the journal.
    Loading = "loading",
    /// The server is opening its data directory.
    Starting = "starting",
    /// The server is stopping.
    Stopping = "stopping",
    /// HTTP: GET does not serve this operation.
    UnknownOp = "unknown_op",
    /// HTTP: there is nothing at this path.
    UnknownPath = "unknown_path",
    /// HTTP: the path does not have this method.
    MethodNotAllowed = "method_not_allowed",
    /// HTTP: the body is not JSON by its `Content-Type`.
    UnsupportedMediaType = "unsupported_media_type",
    /// HTTP: a page of another origin requests a change.
    Forbidden = "forbidden",
    /// HTTP: the principal, or the address, has as many requests under way as it may have.
    TooManyRequests = "too_many_requests",
    /// HTTP: the request names a host that is not this server.
    ForeignHost = "foreign_host",
    /// The disk fails, or stored data cannot be read.
    Internal = "internal",
}

impl fmt::Display for HistoryErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for HistoryErrorCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for HistoryErrorCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HistoryErrorCode, D::Error> {
        let name = String::deserialize(deserializer)?;
        HistoryErrorCode::from_name(&name)
            .ok_or_else(|| serde::de::Error::custom(format!("no error code: {name}")))
    }
}

/// The code of an error as a client receives it: a newer server may know more codes. A server does
/// not send it, so it cannot be written as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub enum ReceivedErrorCode {
    /// A code of this version.
    Known(HistoryErrorCode),
    /// The name of a code that this version does not know.
    Other(String),
}

impl From<String> for ReceivedErrorCode {
    fn from(name: String) -> ReceivedErrorCode {
        match HistoryErrorCode::from_name(&name) {
            Some(code) => ReceivedErrorCode::Known(code),
            None => ReceivedErrorCode::Other(name),
        }
    }
}

impl PartialEq<HistoryErrorCode> for ReceivedErrorCode {
    fn eq(&self, code: &HistoryErrorCode) -> bool {
        matches!(self, ReceivedErrorCode::Known(known) if known == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_in_the_manual_and_every_code_in_the_manual_is_one() {
        let manual = include_str!("../../../docs/HISTORY-API.md");
        let (_, table) = manual.split_once("| code | HTTP | means |").unwrap();
        let rows = table.lines().skip(2).take_while(|line| line.starts_with("| `"));
        let documented: Vec<&str> = rows.map(|row| row.split('`').nth(1).unwrap()).collect();
        let codes: Vec<&str> = HistoryErrorCode::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(documented, codes);
    }

    #[test]
    fn every_code_reads_back_and_one_of_a_newer_server_keeps_its_name() {
        for code in HistoryErrorCode::ALL {
            let text = serde_json::to_value(code).unwrap();
            assert_eq!(serde_json::from_value::<HistoryErrorCode>(text.clone()).unwrap(), *code);
            assert_eq!(serde_json::from_value::<ReceivedErrorCode>(text).unwrap(), *code);
        }
        assert!(serde_json::from_str::<HistoryErrorCode>("\"tired\"").is_err());
        let unknown: ReceivedErrorCode = serde_json::from_str("\"tired\"").unwrap();
        assert_eq!(unknown, ReceivedErrorCode::Other("tired".to_owned()));
    }
}
