//! Logging on standard error: as text or as JSON, with priorities if standard error is the journal
//! of systemd.

use std::io::{self, IsTerminal, Write};

use tracing::{Level, Metadata};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::traces::ENDPOINT_VARIABLE;
pub use crate::traces::TraceExport;

/// The environment variable with the filter, such as `debug` or `info,compat_kafka=trace`.
pub const VARIABLE: &str = "FREEZEFRAME_LOG";
/// The environment variable with the format: `text` or `json`.
pub const FORMAT_VARIABLE: &str = "FREEZEFRAME_LOG_FORMAT";
/// The server's filter if the variable is not set.
const SERVER_LEVEL: &str = "info";
/// systemd sets it where standard output or standard error is the journal, to the device and the
/// inode of the stream.
const JOURNAL_VARIABLE: &str = "JOURNAL_STREAM";

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogFormat {
    Text,
    /// One object a line.
    Json,
}

/// Starts logging for the whole process. `default` is the filter if the variable is not set.
///
/// # Errors
/// A variable is not valid.
pub fn start(default: &str) -> anyhow::Result<()> {
    start_with(default, None)
}

/// Starts a server's logging, and the export of its traces if the environment asks for it.
///
/// # Errors
/// A variable is not valid.
#[cfg(feature = "otlp")]
pub fn start_server() -> anyhow::Result<Option<TraceExport>> {
    if variable(ENDPOINT_VARIABLE).is_none() {
        start_with(SERVER_LEVEL, None)?;
        return Ok(None);
    }
    let (export, layer) = TraceExport::start()?;
    start_with(SERVER_LEVEL, Some(layer))?;
    Ok(Some(export))
}

/// Starts a server's logging.
///
/// # Errors
/// A variable is not valid.
#[cfg(not(feature = "otlp"))]
pub fn start_server() -> anyhow::Result<Option<TraceExport>> {
    start(SERVER_LEVEL)?;
    if variable(ENDPOINT_VARIABLE).is_some() {
        tracing::warn!(
            "{ENDPOINT_VARIABLE} has no effect: this program was built without the feature otlp"
        );
    }
    Ok(None)
}

fn start_with(default: &str, traces: Option<BoxedLayer>) -> anyhow::Result<()> {
    let filter = variable(VARIABLE);
    let filter = parse_filter(filter.as_deref().unwrap_or(default))?;
    let format = parse_format(variable(FORMAT_VARIABLE).as_deref())?;
    let stream = std::env::var(JOURNAL_VARIABLE).ok();
    let writer = if stream.is_some_and(|stream| is_journal(&stream, &io::stderr())) {
        BoxMakeWriter::new(JournalWriter)
    } else {
        BoxMakeWriter::new(io::stderr)
    };
    let log = format_layer(format, writer).with_filter(filter).boxed();
    let layers: Vec<BoxedLayer> = traces.into_iter().chain([log]).collect();
    tracing_subscriber::registry()
        .with(layers)
        .try_init()
        .map_err(|error| anyhow::anyhow!("start logging: {error}"))
}

/// A variable of the environment, if it is not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

fn format_layer(format: LogFormat, writer: BoxMakeWriter) -> BoxedLayer {
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    match format {
        LogFormat::Text => {
            let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            layer.compact().with_ansi(io::stderr().is_terminal() && !no_color).boxed()
        }
        LogFormat::Json => layer.json().flatten_event(true).with_current_span(false).boxed(),
    }
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

fn parse_format(format: Option<&str>) -> anyhow::Result<LogFormat> {
    match format {
        None | Some("text") => Ok(LogFormat::Text),
        Some("json") => Ok(LogFormat::Json),
        Some(other) => Err(anyhow::anyhow!(
            "variable {FORMAT_VARIABLE}: {other:?} is no value for it; give text or json"
        )),
    }
}

/// True if a file is the stream of the journal that `JOURNAL_STREAM` names.
fn is_journal(stream: &str, file: &impl std::os::fd::AsFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(file) else { return false };
    let Some((device, inode)) = stream.split_once(':') else { return false };
    device.parse() == Ok(stat.st_dev) && inode.parse() == Ok(stat.st_ino)
}

/// The prefix by which the journal knows the priority of a line (sd-daemon(3)).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

/// Writes events to standard error with a priority before each line.
struct JournalWriter;

impl<'a> MakeWriter<'a> for JournalWriter {
    type Writer = PrefixedWriter<io::Stderr>;

    fn make_writer(&'a self) -> PrefixedWriter<io::Stderr> {
        PrefixedWriter { prefix: priority(Level::INFO), out: io::stderr() }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> PrefixedWriter<io::Stderr> {
        PrefixedWriter { prefix: priority(*event.level()), out: io::stderr() }
    }
}

/// Writes an event, which comes in one piece.
struct PrefixedWriter<W> {
    prefix: &'static str,
    out: W,
}

impl<W: Write> Write for PrefixedWriter<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let mut lines = Vec::with_capacity(event.len() + self.prefix.len());
        for line in event.split_inclusive(|byte| *byte == b'\n') {
            lines.extend_from_slice(self.prefix.as_bytes());
            lines.extend_from_slice(line);
        }
        // In one piece, so that no event of another thread comes in between.
        self.out.write_all(&lines)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

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

    #[test]
    fn an_unknown_format_is_refused_with_the_known_ones() {
        assert_eq!(parse_format(None).unwrap(), LogFormat::Text);
        assert_eq!(parse_format(Some("json")).unwrap(), LogFormat::Json);
        let refusal = parse_format(Some("logfmt")).unwrap_err().to_string();
        for part in [FORMAT_VARIABLE, "logfmt", "text", "json"] {
            assert!(refusal.contains(part), "{part} in {refusal}");
        }
    }

    #[test]
    fn each_line_in_the_journal_has_its_priority() {
        for (level, expected) in [
            (Level::ERROR, "<3>a\n<3>b\n"),
            (Level::WARN, "<4>a\n<4>b\n"),
            (Level::INFO, "<6>a\n<6>b\n"),
        ] {
            let mut writer = PrefixedWriter { prefix: priority(level), out: Vec::new() };
            writer.write_all(b"a\nb\n").unwrap();
            assert_eq!(String::from_utf8(writer.out).unwrap(), expected);
        }
    }

    #[test]
    fn only_the_stream_that_is_named_is_the_journal() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let stat = file.metadata().unwrap();
        assert!(is_journal(&format!("{}:{}", stat.dev(), stat.ino()), &file));
        for other in [format!("{}:{}", stat.dev(), stat.ino() + 1), String::new(), "1".to_owned()] {
            assert!(!is_journal(&other, &file), "{other}");
        }
    }
}
