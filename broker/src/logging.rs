//! Logging on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// The environment variable with the filter, such as `debug` or `info,compat_kafka=trace`.
pub const VARIABLE: &str = "FREEZEFRAME_LOG";
/// The server's filter if the variable is not set.
pub const SERVER_LEVEL: &str = "info";

/// Starts logging for the whole process. `default` is the filter if the variable is not set.
///
/// # Errors
/// The variable is not a valid filter.
pub fn start(default: &str) -> anyhow::Result<()> {
    let asked = std::env::var(VARIABLE).ok().filter(|asked| !asked.trim().is_empty());
    let asked = asked.as_deref().unwrap_or(default);
    // The catalog's library logs internals at every level. The user must name it to see them.
    let filter = EnvFilter::try_new(format!("sled=warn,{asked}"));
    // The library's own message tells a user less.
    let filter = filter.map_err(|_| {
        anyhow::anyhow!(
            "variable {VARIABLE}: {asked:?} is no value for it; give a level (error, warn, info, debug, trace), or TARGET=LEVEL, with commas between"
        )
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
