//! Every code that a refusal of the history API can have: one table, over Kafka's wire and over HTTP.
//! `docs/KAFKA.md` lists them, and a test compares.

use std::fmt;

use serde::{Serialize, Serializer};

macro_rules! history_error_codes {
    ($($(#[$doc:meta])* $code:ident = $name:literal,)*) => {
        /// The kind of a refusal.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum HistoryErrorCode {
            $($(#[$doc])* $code,)*
        }

        impl HistoryErrorCode {
            /// All of them.
            pub const ALL: &[HistoryErrorCode] = &[$(HistoryErrorCode::$code),*];

            /// Its name in a document.
            pub fn name(self) -> &'static str {
                match self {
                    $(HistoryErrorCode::$code => $name,)*
                }
            }
        }
    };
}

history_error_codes! {
    /// The moment is not past yet.
    NotYet = "not_yet",
    /// The moment lies further ahead than the patience.
    FarFuture = "far_future",
    /// What belongs to the moment is not kept any more.
    BeforeHistory = "before_history",
    /// There is more to look through: the same question goes on with it.
    Unfinished = "unfinished",
    /// There was no such topic.
    UnknownTopic = "unknown_topic",
    /// There was no such group, or it has committed nothing.
    UnknownGroup = "unknown_group",
    /// The group has members.
    GroupActive = "group_active",
    /// The group is being changed by another request.
    GroupBusy = "group_busy",
    /// There are as many groups as there may be.
    TooManyGroups = "too_many_groups",
    /// No moment, or none that can be asked of this.
    BadMoment = "bad_moment",
    /// The document does not read.
    BadRequest = "bad_request",
    /// The document is too long.
    TooLarge = "too_large",
    /// A name or an expiry that a pin cannot have.
    BadPin = "bad_pin",
    /// The pin stands elsewhere.
    PinTaken = "pin_taken",
    /// There are as many pins as there may be.
    TooManyPins = "too_many_pins",
    /// There is no such pin.
    UnknownPin = "unknown_pin",
    /// A module or a name that no plug-in can have.
    BadPlugin = "bad_plugin",
    /// There is no such plug-in.
    UnknownPlugin = "unknown_plugin",
    /// No value of `freezeframe.user.time`.
    BadSpec = "bad_spec",
    /// No user time can be read from the record.
    Unreadable = "unreadable",
    /// The partition has no such offset.
    OutOfRange = "out_of_range",
    /// The tree has nothing of that name.
    NotFound = "not_found",
    /// Something on the way is no directory.
    NotDirectory = "not_directory",
    /// A directory has no bytes.
    IsDirectory = "is_directory",
    /// No path.
    BadPath = "bad_path",
    /// What was opened is not open any more, or not kept.
    Gone = "gone",
    /// The clock is fenced.
    Fenced = "fenced",
    /// What the catalog keeps is being loaded from the journal.
    Loading = "loading",
    /// The server opens its data directory.
    Starting = "starting",
    /// The server ends.
    Stopping = "stopping",
    /// HTTP: no question that GET can ask.
    UnknownOp = "unknown_op",
    /// HTTP: there is nothing at this path.
    UnknownPath = "unknown_path",
    /// HTTP: the path is not for this method.
    MethodNotAllowed = "method_not_allowed",
    /// HTTP: the body is not JSON by its `Content-Type`.
    UnsupportedMediaType = "unsupported_media_type",
    /// HTTP: a page of another origin asks for a change.
    Forbidden = "forbidden",
    /// HTTP: the request names a host that is not this server.
    ForeignHost = "foreign_host",
    /// The disk fails, or what is stored cannot be read.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_in_the_manual_and_every_code_in_the_manual_is_one() {
        let manual = include_str!("../../../docs/KAFKA.md");
        let (_, table) = manual.split_once("| code | HTTP | means |").unwrap();
        let rows = table.lines().skip(2).take_while(|line| line.starts_with("| `"));
        let listed: Vec<&str> = rows.map(|row| row.split('`').nth(1).unwrap()).collect();
        let codes: Vec<&str> = HistoryErrorCode::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(listed, codes);
    }
}
