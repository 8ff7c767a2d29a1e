//! Errors of specifications, and of records.

/// The reason that a text is not a valid specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No kind of that name exists.
    #[error(
        "there is no kind {0:?}: give timestamp, header:NAME, json:/POINTER, csv:COLUMN, be64:OFFSET, pmu or wasm:NAME"
    )]
    Kind(String),
    /// The argument is not valid for this kind.
    #[error("{kind} {wants}, and {given:?} was given")]
    Argument {
        kind: &'static str,
        /// The form of a valid argument.
        wants: &'static str,
        given: String,
    },
    /// The option is unknown or invalid for this kind.
    #[error("{kind} {wants}, and {option:?} was given")]
    Option {
        kind: &'static str,
        /// The form of a valid option.
        wants: &'static str,
        option: String,
    },
    /// It is longer than any valid specification.
    #[error("it has {bytes} bytes: give at most {most}", most = crate::spec::SPEC_BYTES_MAX)]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// A percent sign without two hex digits.
    #[error(
        "a % is followed by two hex digits (%3B is a semicolon, %25 a percent sign), and in {0:?} it is not"
    )]
    InvalidEscape(String),
    /// The plug-in cannot be used.
    #[error("{0}")]
    Plugin(String),
}

/// The reason that a record has no user time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtractError {
    /// The part of the record that should hold it is missing.
    #[error("it has no {0}")]
    Missing(&'static str),
    #[error("{why}: {found:?}")]
    NotATime {
        /// The expected value.
        why: &'static str,
        /// The beginning of the value.
        found: String,
    },
    /// The time does not fit into 64 bits of milliseconds.
    #[error("its time is out of range")]
    OutOfRange,
    /// The value is not JSON, as far as it was parsed.
    #[error("its value is not JSON: {0}")]
    Json(String),
    /// The value is not a frame of a phasor measurement unit.
    #[error("its value is no C37.118 frame: {0}")]
    Frame(String),
    /// The plug-in returned that the record has no user time.
    #[error("the plug-in {plugin} finds no time in it")]
    NoTime { plugin: String },
    /// The plug-in exceeded its fuel for one record and was stopped.
    #[error("the plug-in {plugin} was stopped, because it works too long: does it loop?")]
    PluginOutOfFuel { plugin: String },
    /// The plug-in exceeded its fuel for a batch.
    #[error("the plug-in {plugin} works too long for the records of one batch: send smaller ones")]
    BatchOutOfFuel { plugin: String },
    /// The plug-in failed.
    #[error("the plug-in {plugin} {why}")]
    Plugin {
        plugin: String,
        /// The failure, in words.
        why: String,
    },
}

impl ExtractError {
    /// The error for a value that is not a time. It shows the beginning of the value.
    pub(crate) fn not_a_time(why: &'static str, found: &[u8]) -> ExtractError {
        const SHOWN: usize = 40;
        let shown = &found[..found.len().min(SHOWN)];
        ExtractError::NotATime { why, found: String::from_utf8_lossy(shown).into_owned() }
    }
}
