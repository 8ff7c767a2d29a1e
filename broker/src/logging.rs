//! What is said on standard error.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

/// The variable that says how much, such as `debug` or `info,compat_kafka=trace`.
pub const VARIABLE: &str = "FREEZEFRAME_LOG";
/// What is said if it is not set. The catalog's library tells of its inner life at this level.
const DEFAULT: &str = "info,sled=warn";

/// Starts it, for the whole process.
///
/// # Errors
/// The variable holds no filter.
pub fn start() -> anyhow::Result<()> {
    let asked = std::env::var(VARIABLE).ok().filter(|asked| !asked.trim().is_empty());
    let filter = EnvFilter::try_new(asked.as_deref().unwrap_or(DEFAULT)).with_context(|| {
        format!("read variable {VARIABLE}: give a level, such as info or debug, or TARGET=LEVEL")
    })?;
    let is_terminal = std::io::stderr().is_terminal();
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .compact()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(is_terminal && !no_color)
        .try_init()
        .map_err(|error| anyhow::anyhow!("start logging: {error}"))
}
