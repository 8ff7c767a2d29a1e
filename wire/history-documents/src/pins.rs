//! Pins: moments that are kept readable.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::moment::Stamp;

/// A request to set or extend a pin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PinRequest {
    /// Its name.
    pub name: String,
    /// The moment, of system time.
    pub at: String,
    /// The time until it expires, from now on, by the server's clock.
    pub for_ms: u64,
    /// The pinned topics; `None` for all.
    #[serde(default)]
    pub topics: Option<Vec<String>>,
}

/// A request to remove a pin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnpinRequest {
    /// Its name.
    pub name: String,
}

/// A request for the pins in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PinsRequest {}

/// A pin: a named moment that retention keeps readable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PinDescription {
    /// Its name.
    pub name: String,
    /// The moment.
    pub at: String,
    /// The time at which it expires: milliseconds since 1970, by the server's clock.
    pub expires_ms: u64,
    /// The pinned topics; `None` for all.
    pub topics: Option<Vec<String>>,
    /// The stamp at which it was set or last extended.
    pub set: Stamp,
    /// `set` in milliseconds since 1970.
    pub set_ms: u64,
}

/// The pin that was set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PinResponse {
    /// The pin.
    pub pin: PinDescription,
}

/// The pin that was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnpinResponse {
    /// Its name.
    pub removed: String,
}

/// The pins in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PinsResponse {
    /// The pins, by name.
    pub pins: Vec<PinDescription>,
}
