//! Logging on standard error.

use std::io::IsTerminal;

use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The environment variable with the filter, such as `debug` or `info,compat_kafka=trace`.
pub const VARIABLE: &str = "FREEZEFRAME_LOG";
/// The server's filter if the variable is not set.
pub const SERVER_LEVEL: &str = "info";

/// Starts logging for the whole process. `default` is the filter if the variable is not set.
///
/// # Errors
/// The variable is not a valid filter.
pub fn start(default: &str) -> anyhow::Result<()> {
    let filter = std::env::var(VARIABLE).ok().filter(|filter| !filter.trim().is_empty());
    let filter = filter.as_deref().unwrap_or(default);
    let filter = parse_filter(filter)?;
    let is_terminal = std::io::stderr().is_terminal();
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let layer = tracing_subscriber::fmt::layer()
        .compact()
        .with_writer(std::io::stderr)
        .with_ansi(is_terminal && !no_color)
        .with_filter(filter);
    tracing_subscriber::registry()
        .with(layer)
        .try_init()
        .map_err(|error| anyhow::anyhow!("start logging: {error}"))
}

fn parse_filter(filter: &str) -> anyhow::Result<Targets> {
    // The catalog's library logs internals at every level. The user must name it to see them.
    // The filter library's own message tells a user less.
    format!("sled=warn,{filter}").parse().map_err(|_| {
        anyhow::anyhow!(
            "variable {VARIABLE}: {filter:?} is no value for it; give a level (error, warn, info, debug, trace), or TARGET=LEVEL, with commas between"
        )
    })
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_filter_is_a_level_and_levels_of_targets() {
        let filter = parse_filter("info,compat_kafka=trace").unwrap();
        assert!(filter.would_enable("storage::store", &Level::INFO));
        assert!(!filter.would_enable("storage::store", &Level::DEBUG));
        assert!(filter.would_enable("compat_kafka::conn", &Level::TRACE));
        assert!(!filter.would_enable("sled", &Level::INFO), "it has to be named");
        assert!(parse_filter("sled=debug").unwrap().would_enable("sled::pagecache", &Level::DEBUG));
        for filter in ["storage=loud", "a=b=c"] {
            assert!(parse_filter(filter).unwrap_err().to_string().contains(filter), "{filter}");
        }
    }
}
