//! Standard output, and the end of a run.
//!
//! Standard output is locked once and buffered. If a reader closes the pipe, the run ends quietly.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use rustix::fs::{FileType, fstat};
use serde::Serialize;

use crate::table::OutputTable;

const BUFFER_BYTES: usize = 256 << 10;

/// Escapes control characters in text for a terminal, which would obey them. New lines and tabs
/// stay.
#[derive(Debug, Default)]
struct TerminalEscaper {
    /// True if the last byte may begin a control character of two bytes (U+0080 to U+009F).
    has_lead: bool,
}

/// The first byte of U+0080 to U+00BF in UTF-8.
const LEAD: u8 = 0xc2;

impl TerminalEscaper {
    /// The next part of the text. A character may be split between two parts.
    fn escape(&mut self, text: &[u8]) -> Vec<u8> {
        let mut escaped = Vec::with_capacity(text.len());
        for byte in text {
            if std::mem::take(&mut self.has_lead) {
                if (0x80..=0x9f).contains(byte) {
                    escaped.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
                    continue;
                }
                escaped.push(LEAD);
            }
            match byte {
                b'\n' | b'\t' => escaped.push(*byte),
                0..=0x1f | 0x7f => escaped.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
                &LEAD => self.has_lead = true,
                _ => escaped.push(*byte),
            }
        }
        escaped
    }

    /// Flushes a byte held back at the end of the text.
    fn finish(&mut self) -> &'static [u8] {
        if std::mem::take(&mut self.has_lead) { &[LEAD] } else { &[] }
    }
}

/// A text without control characters for a terminal.
fn escaped(text: &str) -> String {
    let mut escaper = TerminalEscaper::default();
    let mut bytes = escaper.escape(text.as_bytes());
    bytes.extend_from_slice(escaper.finish());
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A word of a command line as a shell takes it.
pub(crate) fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@=".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return Cow::Borrowed(word);
    }
    Cow::Owned(format!("'{}'", word.replace('\'', r"'\''")))
}

/// Writes a line to standard error. Names of others may be in it.
pub(crate) fn note(line: &str) {
    let mut stderr = io::stderr();
    let printable = if stderr.is_terminal() { escaped(line) } else { line.to_owned() };
    // If standard error is closed, there is nowhere to report to.
    let _ = writeln!(stderr, "{printable}");
}

/// Writes a grey line to standard error, for a person at a terminal alone.
pub(crate) fn hint(line: &str) {
    if io::stdout().is_terminal() && io::stderr().is_terminal() {
        let (grey, end) = if colours(&io::stderr()) { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
        let _ = writeln!(io::stderr(), "{grey}{}{end}", escaped(line));
    }
}

/// A progress bar for `records` on a terminal; nothing elsewhere.
pub(crate) fn progress_bar(records: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} {per_sec} {eta}");
    ProgressBar::new(records).with_style(style.expect("the template is a constant that parses"))
}

/// A progress bar for `length` bytes on a terminal; nothing elsewhere.
pub(crate) fn byte_progress_bar(length: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = "{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    let style =
        ProgressStyle::with_template(style).expect("the template is a constant that parses");
    ProgressBar::new(length).with_style(style)
}

/// A progress display for output that is redirected to a file.
struct WriteProgress {
    bar: ProgressBar,
    begun: Instant,
    bytes: u64,
}

/// Shorter commands show no progress.
const PROGRESS_AFTER: Duration = Duration::from_secs(1);

impl WriteProgress {
    fn for_stdout(stdout: &io::Stdout) -> WriteProgress {
        let is_file = fstat(stdout)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        let bar = if is_file && io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{spinner} {bytes} {bytes_per_sec}");
            let style = style.expect("the template is a constant that parses");
            ProgressBar::new_spinner().with_style(style).with_finish(ProgressFinish::AndClear)
        } else {
            ProgressBar::hidden()
        };
        WriteProgress { bar, begun: Instant::now(), bytes: 0 }
    }

    fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if self.begun.elapsed() > PROGRESS_AFTER {
            self.bar.set_position(self.bytes);
        }
    }
}

pub(crate) struct StandardOutput {
    writer: BufWriter<StdoutLock<'static>>,
    progress: WriteProgress,
    is_terminal: bool,
    /// True if binary data goes to a terminal too.
    is_forced: bool,
    escaper: TerminalEscaper,
}

impl StandardOutput {
    /// Locks standard output for the rest of the run.
    pub(crate) fn lock() -> StandardOutput {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        let progress = WriteProgress::for_stdout(&stdout);
        let writer = BufWriter::with_capacity(BUFFER_BYTES, stdout.lock());
        let escaper = TerminalEscaper::default();
        StandardOutput { writer, progress, is_terminal, is_forced: false, escaper }
    }

    /// Writes bytes unchanged.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.progress.add(bytes.len());
        self.writer.write_all(bytes).map_err(with_output_context)
    }

    /// The same output. If `force` is set, it writes binary data to a terminal too.
    pub(crate) fn forced(self, force: bool) -> StandardOutput {
        StandardOutput { is_forced: force, ..self }
    }

    /// Writes bytes from clients, which are usually text. A terminal would interpret other data as
    /// commands: it gets none that is binary, and control characters only as escapes.
    pub(crate) fn contents(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        if bytes.contains(&0) {
            self.check_binary()?;
        }
        let printable = self.shown(bytes);
        Ok(self.bytes(&printable)?)
    }

    /// The bytes as they are written.
    fn shown<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        if self.is_terminal && !self.is_forced {
            Cow::Owned(self.escaper.escape(bytes))
        } else {
            Cow::Borrowed(bytes)
        }
    }

    /// Checks that binary data may be written.
    pub(crate) fn check_binary(&mut self) -> anyhow::Result<()> {
        if !self.is_terminal || self.is_forced {
            return Ok(());
        }
        self.flush()?;
        let message = "this is binary, and standard output is a terminal: redirect it to a file (> FILE), or give --force";
        Err(UsageError(message.to_owned()).into())
    }

    /// Writes one JSON document and a newline.
    pub(crate) fn json(&mut self, document: &impl Serialize) -> anyhow::Result<()> {
        // JSON itself leaves some control characters as they are.
        let mut text = serde_json::to_vec(document).map_err(io::Error::from)?;
        text.push(b'\n');
        let printable = self.shown(&text);
        Ok(self.bytes(&printable)?)
    }

    /// Writes a table: framed on a terminal, as tab-separated lines in a pipe.
    pub(crate) fn table(&mut self, table: &OutputTable) -> io::Result<()> {
        let text =
            if self.is_terminal { table.framed(colours(&io::stdout())) } else { table.plain() };
        self.bytes(text.as_bytes())
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let rest = self.escaper.finish();
        self.bytes(rest)?;
        self.writer.flush().map_err(with_output_context)
    }
}

/// A count and its noun: "1 partition", "2 partitions".
pub(crate) fn counted(count: impl TryInto<u64>, noun: &str) -> String {
    match count.try_into() {
        Ok(1) => format!("1 {noun}"),
        Ok(count) => format!("{count} {noun}s"),
        Err(_) => format!("{noun}s"),
    }
}

/// Adds a message to a write error. The kind stays the same, because the caller looks for a closed
/// pipe.
fn with_output_context(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("write to standard output: {error}"))
}

/// Says that an answer leaves something out, if it does.
pub(crate) fn note_incomplete(is_complete: bool) {
    if !is_complete {
        eprintln!("what no rule allows you to see is left out");
    }
}

/// Writes a list: one JSON document a line, or all of it as a table. Each item has both forms.
pub(crate) fn print_list<J: Serialize, const N: usize>(
    json: bool,
    headings: &'static [&'static str; N],
    items: impl IntoIterator<Item = (J, [String; N])>,
) -> anyhow::Result<()> {
    print_list_or(json, headings, items, "")
}

/// [`print_list`]; of no items, a person at a terminal reads `hint`.
pub(crate) fn print_list_or<J: Serialize, const N: usize>(
    json: bool,
    headings: &'static [&'static str; N],
    items: impl IntoIterator<Item = (J, [String; N])>,
    hint: &str,
) -> anyhow::Result<()> {
    let mut output = StandardOutput::lock();
    if json {
        items.into_iter().try_for_each(|(document, _)| output.json(&document))?;
        return Ok(output.flush()?);
    }
    let mut table = OutputTable::new(headings);
    items.into_iter().for_each(|(_, cells)| table.row(cells));
    if table.count() == 0 && !hint.is_empty() {
        self::hint(hint);
    } else {
        output.table(&table)?;
    }
    Ok(output.flush()?)
}

/// True if a stream gets colours: on a terminal, unless NO_COLOR is set to a value.
pub(crate) fn colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Options that are valid one by one, but not together.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// A server that went away, and did not come back in time: the same command may succeed later.
#[derive(Debug)]
pub(crate) struct UnavailableError(pub(crate) String);

impl fmt::Display for UnavailableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnavailableError {}

/// The exit code of [`UnavailableError`]: `EX_TEMPFAIL` of sysexits.h.
const TEMPORARY_FAILURE: u8 = 75;

/// Prints why the run failed, and returns its exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let label = if colours(&io::stderr()) { "\x1b[1;31merror:\x1b[0m" } else { "error:" };
    // If standard error is closed, there is nowhere to report to.
    let _ = write!(io::stderr(), "{label} ");
    note(&error_chain(error));
    if error.is::<UsageError>() {
        ExitCode::from(2)
    } else if error.is::<UnavailableError>() {
        ExitCode::from(TEMPORARY_FAILURE)
    } else {
        ExitCode::FAILURE
    }
}

/// The attempted operation and its causes. A cause that the message already contains is not
/// repeated.
pub(crate) fn error_chain(error: &anyhow::Error) -> String {
    let mut chain = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if chain.is_empty() {
            chain = cause;
        } else if !chain.contains(&cause) {
            chain = format!("{chain}: {cause}");
        }
    }
    chain
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_as_a_shell_takes_it() {
        for (word, shown) in [
            ("pin:before-deploy", "pin:before-deploy"),
            ("%a %k", "'%a %k'"),
            ("", "''"),
            ("it's", r"'it'\''s'"),
        ] {
            assert_eq!(quoted(word), shown);
        }
    }

    #[test]
    fn an_error_names_its_causes_once_each() {
        let error = anyhow::Error::from(io::Error::other("no room"));
        let error = error.context("cannot write a: no room").context("do it");
        assert_eq!(error_chain(&error), "do it: cannot write a: no room");
        let error = anyhow::anyhow!("why").context("what");
        assert_eq!(error_chain(&error), "what: why");
    }

    #[test]
    fn what_is_no_text_goes_to_a_terminal_only_by_force() {
        let mut output = StandardOutput::lock();
        output.is_terminal = true;
        let refused = output.contents(b"a\0b").unwrap_err();
        assert!(refused.is::<UsageError>() && refused.to_string().contains("--force"), "{refused}");
        assert!(output.contents(b"").is_ok());
        assert!(output.forced(true).check_binary().is_ok());
    }

    #[test]
    fn control_characters_reach_a_terminal_as_escapes() {
        let mut output = StandardOutput::lock();
        let mut shown = |is_terminal: bool, parts: &[&str]| {
            output.is_terminal = is_terminal;
            let mut printed = Vec::new();
            for part in parts {
                printed.extend_from_slice(&output.shown(part.as_bytes()));
            }
            printed.extend_from_slice(output.escaper.finish());
            String::from_utf8(printed).unwrap()
        };
        let text = "k\x1b]0;title\x07\tv\r\n\u{9b}31m é ©\x7f";
        assert_eq!(shown(true, &[text]), "k\\x1b]0;title\\x07\tv\\x0d\n\\x9b31m é ©\\x7f");
        assert_eq!(shown(true, &["é", "é"]), "éé");
        assert_eq!(shown(false, &[text]), text);
        // A character of two bytes may be split between two parts.
        let mut escaper = TerminalEscaper::default();
        assert_eq!(escaper.escape(b"a\xc2"), b"a");
        assert_eq!(escaper.escape(b"\x9bb\xc2"), b"\\x9bb");
        assert_eq!(escaper.escape(b"\xa9"), "©".as_bytes());
        assert_eq!(escaped("group\x1b[2J"), "group\\x1b[2J");
    }

    #[test]
    fn progress_is_shown_to_those_who_wait() {
        let mut progress = WriteProgress::for_stdout(&io::stdout());
        progress.add(5);
        assert_eq!(progress.bar.position(), 0);
        progress.begun -= PROGRESS_AFTER;
        progress.add(5);
        assert_eq!(progress.bar.position(), 10);
    }

    #[test]
    fn one_thing_is_not_counted_as_many() {
        assert_eq!(
            [0_u64, 1, 2].map(|count| counted(count, "member")),
            ["0 members", "1 member", "2 members"]
        );
    }

    #[test]
    fn a_closed_pipe_is_no_failure_and_other_errors_are() {
        let closed: anyhow::Error = io::Error::from(io::ErrorKind::BrokenPipe).into();
        assert!(is_closed_pipe(&closed));
        assert!(is_closed_pipe(&closed.context("write the answer")));
        assert!(!is_closed_pipe(&io::Error::from(io::ErrorKind::NotFound).into()));
        assert!(!is_closed_pipe(&anyhow::anyhow!("broken pipe")));
    }
}
