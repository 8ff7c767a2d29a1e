//! Extracts a record's user time: from its timestamp, a header, a field of its value, or with a
//! plug-in.
//!
//! This crate defines the grammar of [`UserTimeSpec`], how each kind is parsed, and the limits of a
//! plug-in. It does not know topics, batches, or where the modules of plug-ins are stored.
//!
//! Invariants of every [`UserTimeExtractor`]:
//! - The same record always has the same user time: the record is the only input. A plug-in's
//!   memory is discarded after each batch.
//! - Numbers are exact. A time between two milliseconds is rounded down.
//! - Extraction ends soon, whatever bytes a client sends, at worst with an error.
//!
//! | to | call |
//! | --- | --- |
//! | parse a setting | [`UserTimeSpec::parse`] |
//! | make an extractor | [`UserTimeExtractor::parse`], or [`UserTimeExtractor::new`] if it may name a plug-in |
//! | extract from the records of a batch, in order | [`UserTimeExtractor::session`] |

#![forbid(unsafe_code)]

mod csv;
mod error;
mod json;
mod number;
mod plugin;
mod pmu;
mod spec;
mod text;

use hlc::UserTime;

pub use error::{ExtractError, SpecError};
pub use number::TimeUnit;
pub use plugin::{MODULE_BYTES_MAX, Plugin, PluginError, check_plugin_name};
pub use spec::{HeaderEncoding, UserTimeKind, UserTimeSpec};

/// The parts of a record that an extractor may read. Header names and values are in the order
/// written.
#[derive(Clone, Debug)]
pub struct RecordParts<'a, H> {
    /// Its own timestamp, in milliseconds. -1 if it has none, or if it gets the time of its append.
    pub timestamp: i64,
    /// Null and empty differ.
    pub key: Option<&'a [u8]>,
    /// Null and empty differ.
    pub value: Option<&'a [u8]>,
    pub headers: H,
}

/// A header's name and value.
pub type RecordHeader<'a> = (&'a [u8], Option<&'a [u8]>);

/// Extracts the user time of records, as a [`UserTimeSpec`] says.
#[derive(Clone, Debug)]
pub struct UserTimeExtractor {
    spec: UserTimeSpec,
    plugin: Option<Plugin>,
}

impl UserTimeExtractor {
    /// An extractor that needs no plug-in.
    ///
    /// # Errors
    /// The text is not a valid specification, or names a plug-in.
    pub fn parse(spec: &str) -> Result<UserTimeExtractor, SpecError> {
        UserTimeExtractor::new(UserTimeSpec::parse(spec)?, |name| {
            Err(format!("there is no plug-in {name}"))
        })
    }

    /// An extractor for a specification. `load` returns the bytes of a plug-in's module, by its
    /// name.
    ///
    /// # Errors
    /// The module cannot be loaded, or cannot be used.
    pub fn new(
        spec: UserTimeSpec,
        load: impl FnOnce(&str) -> Result<Vec<u8>, String>,
    ) -> Result<UserTimeExtractor, SpecError> {
        let plugin = match spec.kind() {
            UserTimeKind::Wasm { name } => {
                let bytes = load(name).map_err(SpecError::Plugin)?;
                let plugin = Plugin::new(name, &bytes);
                Some(plugin.map_err(|error| SpecError::Plugin(error.to_string()))?)
            }
            _ => None,
        };
        Ok(UserTimeExtractor { spec, plugin })
    }

    pub fn with_plugin(spec: UserTimeSpec, plugin: Plugin) -> UserTimeExtractor {
        UserTimeExtractor { spec, plugin: Some(plugin) }
    }

    pub fn spec(&self) -> &UserTimeSpec {
        &self.spec
    }

    /// The user time of one record.
    ///
    /// # Errors
    /// The record has no readable user time.
    pub fn extract<'a, H>(&self, record: RecordParts<'a, H>) -> Result<UserTime, ExtractError>
    where
        H: IntoIterator<Item = RecordHeader<'a>>,
    {
        self.session().extract(record)
    }

    /// A session for the records of one batch, in order.
    pub fn session(&self) -> ExtractorSession<'_> {
        ExtractorSession {
            extractor: self,
            instance: None,
            first_failure: None,
            fuel_spent: 0,
            fuel_max: plugin::FUEL_PER_BATCH,
        }
    }
}

/// Extracts from the records of one batch, in order. A plug-in instance lives as long as the
/// session.
#[derive(Debug)]
pub struct ExtractorSession<'a> {
    extractor: &'a UserTimeExtractor,
    instance: Option<plugin::PluginInstance<'a>>,
    first_failure: Option<ExtractError>,
    /// The fuel that the plug-in has consumed, in units of about one instruction.
    fuel_spent: u64,
    /// The fuel that it may consume for the records so far.
    fuel_max: u64,
}

impl ExtractorSession<'_> {
    /// The user time of the next record.
    ///
    /// # Errors
    /// The record has no readable user time.
    pub fn extract<'a, H>(&mut self, record: RecordParts<'a, H>) -> Result<UserTime, ExtractError>
    where
        H: IntoIterator<Item = RecordHeader<'a>>,
    {
        let spec = &self.extractor.spec;
        let value = || record.value.ok_or(ExtractError::Missing("value"));
        let ms = match spec.kind() {
            UserTimeKind::Timestamp => return Ok(UserTime(record.timestamp)),
            UserTimeKind::Header { name, form } => {
                extract_header(record.headers, name, *form, spec.unit())
            }
            UserTimeKind::Json { pointer } => json::extract_time(value()?, pointer, spec.unit()),
            UserTimeKind::Csv { column, separator } => {
                let field = csv::field(value()?, *column, *separator);
                text::parse_time(&field?, spec.unit())
            }
            UserTimeKind::Be64 { offset } => {
                let bytes = offset.checked_add(8).and_then(|end| value().ok()?.get(*offset..end));
                let bytes = bytes.ok_or(ExtractError::Missing("8 bytes at the offset"))?;
                number::from_be64(bytes, spec.unit())
            }
            UserTimeKind::Pmu { time_base } => pmu::extract_time(value()?, *time_base),
            UserTimeKind::Wasm { .. } => {
                self.call_plugin(record.key, record.value, record.timestamp)
            }
        }?;
        // The smallest number stands for "none" where times are compared.
        if ms == i64::MIN { Err(ExtractError::OutOfRange) } else { Ok(UserTime(ms)) }
    }

    fn call_plugin(
        &mut self,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        timestamp: i64,
    ) -> Result<i64, ExtractError> {
        let plugin = self.extractor.plugin.as_ref().expect("an extractor has the plug-in it names");
        let mut instance = match self.instance.take() {
            Some(instance) => instance,
            None => {
                let instance = plugin.instance()?;
                self.fuel_spent = self.fuel_spent.saturating_add(instance.fuel_spent());
                instance
            }
        };
        let answer = instance.user_time(key, value, timestamp);
        self.fuel_spent = self.fuel_spent.saturating_add(instance.fuel_spent());
        let bytes = key.map_or(0, <[u8]>::len) + value.map_or(0, <[u8]>::len);
        self.fuel_max = self.fuel_max.saturating_add(plugin::FUEL_PER_BYTE * bytes as u64);
        // A call that failed may leave the instance in any state: the next record gets a new one.
        if answer.is_ok() || matches!(answer, Err(ExtractError::NoTime { .. })) {
            self.instance = Some(instance);
        } else if self.first_failure.is_none() {
            self.first_failure = answer.as_ref().err().cloned();
        }
        answer
    }

    /// The error if a plug-in has consumed more fuel for these records than it may for a batch.
    ///
    /// Code that accepts a batch checks this and refuses the batch. Code that reads it later need
    /// not check: with fewer records it costs less, and each record has its own limit.
    pub fn fuel_error(&self) -> Option<ExtractError> {
        if self.fuel_spent <= self.fuel_max {
            return None;
        }
        let plugin = self.extractor.plugin.as_ref()?;
        Some(plugin.fuel_error(self.first_failure.as_ref()))
    }
}

/// The last header of a name counts, as for Kafka's `lastHeader`.
fn extract_header<'a>(
    headers: impl IntoIterator<Item = RecordHeader<'a>>,
    name: &str,
    form: HeaderEncoding,
    unit: TimeUnit,
) -> Result<i64, ExtractError> {
    let matching = headers.into_iter().filter(|(key, _)| *key == name.as_bytes());
    let (_, value) = matching.last().ok_or(ExtractError::Missing("header of that name"))?;
    let value = value.ok_or(ExtractError::Missing("value in the header"))?;
    match form {
        HeaderEncoding::Text => text::parse_time(value, unit),
        HeaderEncoding::Be64 => number::from_be64(value, unit),
    }
}
