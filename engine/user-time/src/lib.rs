//! Where a record's user time comes from: its timestamp, a header, a field of its value, or a plug-in.
//!
//! This crate knows the grammar of [`UserTimeSpec`], how each kind is read, and how a plug-in is kept in bounds. It
//! does not know topics, batches, or where the modules of plug-ins are kept.
//!
//! What holds of every [`UserTimeExtractor`]:
//! - The same record has the same user time for ever: nothing is looked at but the record. What a plug-in
//!   remembers of one batch, it has forgotten in the next.
//! - Numbers are exact. Between two milliseconds, a time is the earlier of them.
//! - Whatever bytes a client sends, it ends soon, and with an error at the worst.
//!
//! | to | call |
//! | --- | --- |
//! | read a setting | [`UserTimeSpec::parse`] |
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

/// What an extractor may see of a record. Header names and values are in the order written.
#[derive(Clone, Debug)]
pub struct RecordParts<'a, H> {
    /// Its own timestamp, in milliseconds. -1 if it has none, or has that of its append.
    pub timestamp: i64,
    /// Null and empty differ.
    pub key: Option<&'a [u8]>,
    /// Null and empty differ.
    pub value: Option<&'a [u8]>,
    /// Its headers.
    pub headers: H,
}

/// A header's name and value.
pub type RecordHeader<'a> = (&'a [u8], Option<&'a [u8]>);

/// Finds the user time of records, as a [`UserTimeSpec`] says.
#[derive(Clone, Debug)]
pub struct UserTimeExtractor {
    spec: UserTimeSpec,
    plugin: Option<Plugin>,
}

impl UserTimeExtractor {
    /// An extractor that needs no plug-in.
    ///
    /// # Errors
    /// The text is no spec, or names a plug-in.
    pub fn parse(spec: &str) -> Result<UserTimeExtractor, SpecError> {
        UserTimeExtractor::new(UserTimeSpec::parse(spec)?, |name| {
            Err(format!("there is no plug-in {name}"))
        })
    }

    /// An extractor of a spec. `load` gives the bytes of a plug-in's module, by its name.
    ///
    /// # Errors
    /// The module cannot be had, or is none that can be used.
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

    /// An extractor that asks `plugin`.
    pub fn with_plugin(spec: UserTimeSpec, plugin: Plugin) -> UserTimeExtractor {
        UserTimeExtractor { spec, plugin: Some(plugin) }
    }

    /// What it was made of.
    pub fn spec(&self) -> &UserTimeSpec {
        &self.spec
    }

    /// The user time of one record.
    ///
    /// # Errors
    /// The record has none that can be read.
    pub fn extract<'a, H>(&self, record: RecordParts<'a, H>) -> Result<UserTime, ExtractError>
    where
        H: IntoIterator<Item = RecordHeader<'a>>,
    {
        self.session().extract(record)
    }

    /// For the records of one batch, in order.
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

/// Extracts from the records of one batch, in order. A plug-in's memory lives as long.
#[derive(Debug)]
pub struct ExtractorSession<'a> {
    extractor: &'a UserTimeExtractor,
    instance: Option<plugin::PluginInstance<'a>>,
    /// How a plug-in failed first.
    first_failure: Option<ExtractError>,
    /// How much a plug-in has worked so far, in units of about one instruction …
    fuel_spent: u64,
    /// … and how much it may, for what it has seen.
    fuel_max: u64,
}

impl ExtractorSession<'_> {
    /// The user time of the next record.
    ///
    /// # Errors
    /// The record has none that can be read.
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
        // What broke off may have left anything behind: the next record gets a new one.
        if answer.is_ok() || matches!(answer, Err(ExtractError::NoTime { .. })) {
            self.instance = Some(instance);
        } else if self.first_failure.is_none() {
            self.first_failure = answer.as_ref().err().cloned();
        }
        answer
    }

    /// Whether a plug-in has worked longer for these records than it may for a batch. Whoever takes a batch in
    /// asks, and refuses it then. Whoever reads it again need not: with records gone it costs less, and each is
    /// bounded by itself.
    pub fn fuel_error(&self) -> Option<ExtractError> {
        let plugin = self.extractor.plugin.as_ref().filter(|_| self.fuel_spent > self.fuel_max)?;
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
    let named = headers.into_iter().filter(|(key, _)| *key == name.as_bytes());
    let (_, value) = named.last().ok_or(ExtractError::Missing("header of that name"))?;
    let value = value.ok_or(ExtractError::Missing("value in the header"))?;
    match form {
        HeaderEncoding::Text => text::parse_time(value, unit),
        HeaderEncoding::Be64 => number::from_be64(value, unit),
    }
}
