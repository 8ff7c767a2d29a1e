//! What can be wrong: with a spec, and with a record.

/// Why a spec is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No kind has that name.
    #[error(
        "there is no such kind: give timestamp, header:NAME, json:/POINTER, csv:COLUMN, be64:OFFSET, pmu or wasm:NAME. kind={0:?}"
    )]
    Kind(String),
    /// A kind's argument is none for it.
    #[error("{kind} {wants}. given={given:?}")]
    Argument {
        /// The kind.
        kind: &'static str,
        /// What it takes.
        wants: &'static str,
        /// What it got.
        given: String,
    },
    /// An option is none, or none of this kind.
    #[error("{kind} {wants}. option={option:?}")]
    Option {
        /// The kind.
        kind: &'static str,
        /// What it takes.
        wants: &'static str,
        /// What it got.
        option: String,
    },
    /// It is longer than any spec need be.
    #[error("it is too long: give at most {most} bytes. bytes={bytes}", most = crate::spec::SPEC_BYTES_MAX)]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// A percent sign that begins no byte.
    #[error(
        "a % is followed by two hex digits (%3B is a semicolon, %25 a percent sign). given={0:?}"
    )]
    InvalidEscape(String),
    /// The plug-in cannot be used.
    #[error("{0}")]
    Plugin(String),
}

/// Why a record has no user time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtractError {
    /// What should hold it is not there.
    #[error("it has no {0}")]
    Missing(&'static str),
    /// What is there is no time.
    #[error("{why}. found={found:?}")]
    NotATime {
        /// What was expected.
        why: &'static str,
        /// The beginning of what is there.
        found: String,
    },
    /// No milliseconds of 64 bits are that many.
    #[error("its time is out of range")]
    OutOfRange,
    /// The value is not JSON, as far as it was read.
    #[error("its value is not JSON: {0}")]
    Json(String),
    /// The value is no frame of a phasor measurement unit.
    #[error("its value is no C37.118 frame: {0}")]
    Frame(String),
    /// The plug-in says that the record has none.
    #[error("the plug-in {plugin} finds no time in it")]
    NoTime {
        /// The plug-in.
        plugin: String,
    },
    /// The plug-in was stopped.
    #[error("the plug-in {plugin} was stopped, for it works too long: does it loop?")]
    PluginOutOfFuel {
        /// The plug-in.
        plugin: String,
    },
    /// The plug-in takes longer for all of a batch than it may.
    #[error("the plug-in {plugin} works too long for the records of one batch: send smaller ones")]
    BatchOutOfFuel {
        /// The plug-in.
        plugin: String,
    },
    /// The plug-in failed.
    #[error("the plug-in {plugin} {why}")]
    Plugin {
        /// The plug-in.
        plugin: String,
        /// What it did.
        why: String,
    },
}

impl ExtractError {
    /// Something that is no time; its beginning is shown.
    pub(crate) fn not_a_time(why: &'static str, found: &[u8]) -> ExtractError {
        const SHOWN: usize = 40;
        let shown = &found[..found.len().min(SHOWN)];
        ExtractError::NotATime { why, found: String::from_utf8_lossy(shown).into_owned() }
    }
}
