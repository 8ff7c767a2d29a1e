//! `freezeframe export`: topics as files, all as of one moment.

mod record_sink;

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use client::Client;
use client::history::PendingMomentPolicy;
use fileview::{RecordLayout, ViewFormat};
use hlc::{Cut, Moment, MomentSelector};
use indicatif::{HumanBytes, ProgressBar};
use record_columns::record_schema;

use self::record_sink::{ExportFormat, RecordSink};
use super::{IsolationArgs, LinkArgs, ServerAddress};
use crate::completion;
use crate::moments::{MomentArg, TypedPath, describe_ask};
use crate::output::{StandardOutput, UsageError, counted, note, progress_bar};
use crate::rate_limit::{RateLimiter, parse_rate};
use crate::table::OutputTable;
use crate::topic_reader::{PATIENCE, TopicSource, present};
use crate::whole_file::WholeFile;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Writes a file for each topic, all as of one moment: without one, now, with all
that was acknowledged before. A moment of system time is one cut across all
partitions of all topics. A moment of user time (u…) gives the exact set of
records whose own timestamp is earlier. --from and --to give what came between
two moments.

jsonl has the lines of `cat --format jsonl`, which `produce --json` reads.
parquet and arrow have the columns partition, offset, timestamp, key, value and
headers. A header key that is not UTF-8 has \\xHH for its other bytes.

A file has its name only once it is whole and on the disk; until then it is
called NAME.partial. An export that was killed can be run again. It replaces
files of the same names.

Examples:
  freezeframe export orders --format parquet
  freezeframe export orders payments --at 'yesterday 14:00' -f arrow -o /data
  freezeframe export --all --at pin:before-deploy --format parquet -o dump/
  freezeframe export orders --from '2 hours ago' --to '1 hour ago' -f jsonl
  freezeframe export orders -f jsonl -o - | freezeframe produce copy --json")]
pub(crate) struct ExportArgs {
    /// TOPIC or TOPIC/PARTITION, with @MOMENT if wanted
    #[arg(
        value_parser = TypedPath::parse,
        value_name = "TOPIC",
        add = completion::topics(),
        required_unless_present = "all",
        conflicts_with = "all"
    )]
    paths: Vec<TypedPath>,
    /// All topics that existed at the moment
    #[arg(long)]
    all: bool,
    /// The moment, or the window FIRST..SECOND [default: now]
    #[arg(long, value_parser = MomentArg::parse, value_name = "MOMENT", allow_hyphen_values = true)]
    at: Option<MomentArg>,
    /// Only what came at this moment or later
    #[arg(long, value_parser = MomentArg::parse_moment, value_name = "MOMENT", requires = "to", conflicts_with = "at", allow_hyphen_values = true)]
    from: Option<MomentArg>,
    /// Only what came before this moment
    #[arg(long, value_parser = MomentArg::parse_moment, value_name = "MOMENT", requires = "from", allow_hyphen_values = true)]
    to: Option<MomentArg>,
    /// The format of the files
    #[arg(long, short, value_enum)]
    format: ExportFormat,
    /// A directory, a file for a single topic, or - for standard output
    #[arg(long, short, value_name = "PATH", default_value = ".")]
    output: PathBuf,
    /// Read at most this many bytes of records a second, such as 20MB
    #[arg(long, value_name = "BYTES", value_parser = parse_rate)]
    rate_limit: Option<u64>,
    #[command(flatten)]
    isolation: IsolationArgs,
    #[command(flatten)]
    link: LinkArgs,
}

/// The result of a topic.
struct ExportedTopic {
    partitions: usize,
    records: u64,
    /// The offsets between the first and the last that have no selected record.
    empty_offsets: u64,
    bytes: u64,
}

pub(crate) async fn run(args: ExportArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let mut client = server.connect_with(args.link.options()).await?;
    let now = present(&mut client).await?;
    let asked = asked_moment(&args)?;
    let paths = if args.all {
        all_topics(&mut client, asked.as_ref(), now).await?
    } else {
        let with_at = |path: TypedPath| path.with_at(asked.clone());
        args.paths.iter().cloned().map(with_at).collect::<Result<_, _>>()?
    };
    let paths =
        paths.into_iter().map(|path| fixed(path, now)).collect::<anyhow::Result<Vec<_>>>()?;
    let destination = Destination::of(&args, &paths)?;
    if now.is_none() {
        note(
            "this server is not Freezeframe: each topic is read as it is now, one after the other",
        );
    }
    let mut table =
        OutputTable::new(&["topic", "partitions", "records", "empty offsets", "bytes", "file"]);
    let mut limiter = RateLimiter::new(args.rate_limit);
    for path in &paths {
        let exported = export(&mut client, path, &args, &destination, &mut limiter).await;
        let exported = exported.with_context(|| format!("export {}", path.topic))?;
        table.row([
            path.topic.clone(),
            exported.partitions.to_string(),
            exported.records.to_string(),
            exported.empty_offsets.to_string(),
            HumanBytes(exported.bytes).to_string(),
            destination.path(path).display().to_string(),
        ]);
    }
    if let Some(at) = paths.first().and_then(|path| path.at.as_ref()) {
        note(&format!("as of {}", describe_ask(&at.ask())));
    }
    if !matches!(destination, Destination::StandardOutput) {
        let mut output = StandardOutput::lock();
        output.table(&table)?;
        output.flush()?;
    }
    Ok(())
}

/// The moment or the window of the options.
fn asked_moment(args: &ExportArgs) -> anyhow::Result<Option<MomentArg>> {
    let (Some(from), Some(to)) = (&args.from, &args.to) else { return Ok(args.at.clone()) };
    let window = format!("{}..{}", from.moment(), to.moment());
    let window = MomentArg::parse(&window).map_err(|error| UsageError(error.to_string()))?;
    Ok(Some(window))
}

/// All topics that existed at the moment.
async fn all_topics(
    client: &mut Client,
    asked: Option<&MomentArg>,
    now: Option<Cut>,
) -> anyhow::Result<Vec<TypedPath>> {
    let path = |topic: String| TypedPath { topic, partition: None, at: asked.cloned() };
    let Some(now) = now else {
        let topics = client.topics().await?.into_iter().filter(|topic| !topic.is_internal);
        return Ok(topics.map(|topic| path(topic.name)).collect());
    };
    let moment = match asked.map(MomentArg::moment) {
        None => Moment::Sys(now),
        // By user time, the topics are those that are known when the records are.
        Some(Moment::User { .. }) => {
            let known = asked.and_then(|asked| asked.ask().known());
            Moment::Sys(known.unwrap_or(now))
        }
        Some(moment) => moment,
    };
    let topics = client.topics_at(Some(&moment)).await?.topics;
    ensure!(!topics.is_empty(), "there was no topic at {moment}");
    Ok(topics.into_iter().map(|topic| path(topic.name)).collect())
}

/// The path with a moment that always means the same: one for all topics.
fn fixed(path: TypedPath, now: Option<Cut>) -> anyhow::Result<TypedPath> {
    let Some(now) = now else { return Ok(path) };
    let ask = match &path.at {
        None => MomentSelector::At(Moment::Sys(now)),
        Some(at) => {
            let ask = at.ask();
            ask.known_as_of(ask.known().unwrap_or(now))
        }
    };
    let at = MomentArg::parse(&ask.to_string()).context("spell the moment")?;
    Ok(TypedPath { at: Some(at), ..path })
}

/// The destination of the files.
enum Destination {
    StandardOutput,
    File(PathBuf),
    Directory(PathBuf, &'static str),
}

impl Destination {
    fn of(args: &ExportArgs, paths: &[TypedPath]) -> anyhow::Result<Destination> {
        let output = &args.output;
        let is_directory = output.is_dir() || output.to_string_lossy().ends_with('/');
        if output == Path::new("-") {
            if paths.len() > 1 {
                let message = "several topics do not go to standard output: give a directory";
                return Err(UsageError(message.to_owned()).into());
            }
            if args.format != ExportFormat::Jsonl && io::stdout().is_terminal() {
                let message = "this is binary, and standard output is a terminal: give a file";
                return Err(UsageError(message.to_owned()).into());
            }
            return Ok(Destination::StandardOutput);
        }
        if paths.len() <= 1 && !args.all && !is_directory {
            return Ok(Destination::File(output.clone()));
        }
        std::fs::create_dir_all(output)
            .with_context(|| format!("create the directory {}", output.display()))?;
        let destination = Destination::Directory(output.clone(), args.format.extension());
        let mut files: Vec<PathBuf> = paths.iter().map(|path| destination.path(path)).collect();
        files.sort();
        if let Some(pair) = files.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(UsageError(format!("{} would be written twice", pair[0].display())).into());
        }
        Ok(destination)
    }

    fn path(&self, path: &TypedPath) -> PathBuf {
        match self {
            Destination::StandardOutput => PathBuf::from("-"),
            Destination::File(file) => file.clone(),
            Destination::Directory(directory, extension) => {
                let partition = path.partition.map(|partition| format!("-{partition}"));
                let partition = partition.unwrap_or_default();
                directory.join(format!("{}{partition}.{extension}", path.topic))
            }
        }
    }
}

async fn export(
    client: &mut Client,
    path: &TypedPath,
    args: &ExportArgs,
    destination: &Destination,
    limiter: &mut RateLimiter,
) -> anyhow::Result<ExportedTopic> {
    let topic = open(client, path, args).await?;
    let moment = path.at.as_ref().map(|at| at.ask().to_string());
    let schema = record_schema(&path.topic, moment.as_deref());
    if let Destination::StandardOutput = destination {
        let output: Box<dyn Write + Send> = Box::new(io::stdout());
        let sink = RecordSink::new(args.format, output, schema)?;
        let (exported, mut output) = write(client, topic, sink, limiter).await?;
        output.flush()?;
        return Ok(exported);
    }
    let file_path = destination.path(path);
    let (whole, file) = WholeFile::create(&file_path)?;
    let sink = RecordSink::new(args.format, file, schema)?;
    let written = write(client, topic, sink, limiter).await;
    let (exported, file): (ExportedTopic, File) =
        written.with_context(|| format!("write {}", file_path.display()))?;
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    whole.publish(&file)?;
    Ok(ExportedTopic { bytes, ..exported })
}

/// A topic to export, and its offsets.
struct OpenTopic {
    source: TopicSource,
    bounds: Vec<(i32, std::ops::Range<i64>)>,
}

async fn open(
    client: &mut Client,
    path: &TypedPath,
    args: &ExportArgs,
) -> anyhow::Result<OpenTopic> {
    let source = TopicSource::find(client, path).await?.with_isolation(args.isolation.isolation());
    let bounds = source.bounds(client, path).await?;
    check_cut(client, path, &bounds).await?;
    Ok(OpenTopic { source, bounds })
}

/// Compares the offsets with those of the cut at the moment, which the server finds in another way.
async fn check_cut(
    client: &mut Client,
    path: &TypedPath,
    bounds: &[(i32, std::ops::Range<i64>)],
) -> anyhow::Result<()> {
    let Some(MomentSelector::At(moment @ Moment::Sys(_))) = path.at.as_ref().map(MomentArg::ask)
    else {
        return Ok(());
    };
    let topics = [path.topic.clone()];
    let cut = client.cut(&moment, Some(&topics), PendingMomentPolicy::Wait, PATIENCE).await?;
    for (partition, offsets) in bounds {
        let place = cut.partitions.iter().find(|place| place.partition == *partition);
        let place = place.with_context(|| format!("the cut has no partition {partition}"))?;
        // Retention may have removed records since. A transaction that was open is not read.
        ensure!(
            offsets.start >= place.start && offsets.end <= place.end,
            "partition {partition} has the offsets {offsets:?}, and the cut at {moment} says {}..{}",
            place.start,
            place.end
        );
    }
    Ok(())
}

async fn write<W: Write + Send>(
    client: &mut Client,
    topic: OpenTopic,
    mut sink: RecordSink<W>,
    limiter: &mut RateLimiter,
) -> anyhow::Result<(ExportedTopic, W)> {
    let OpenTopic { source, bounds } = topic;
    let layout = RecordLayout::View(ViewFormat::Jsonl);
    let mut reader = source.reader(&bounds, &layout)?;
    let offsets = reader.offsets_left();
    let bar: ProgressBar = progress_bar(offsets);
    let mut selected = 0;
    while !reader.is_done() {
        let mut bytes = 0;
        selected += reader
            .visit(client, &mut |position, record, stamp| {
                bytes += record.content_bytes() as u64;
                sink.push(position, record, stamp);
            })
            .await?;
        sink.check()?;
        bar.set_position(offsets - reader.offsets_left());
        limiter.admit(bytes).await;
    }
    bar.finish_and_clear();
    if sink.escaped_header_keys() > 0 {
        let keys = counted(sink.escaped_header_keys(), "header key");
        note(&format!("{keys} are not UTF-8: their other bytes are \\xHH"));
    }
    let (records, writer) = sink.finish()?;
    ensure!(records == selected, "{selected} records were read, and {records} written");
    let empty_offsets =
        offsets.checked_sub(records).context("more records than offsets were read")?;
    let exported = ExportedTopic { partitions: bounds.len(), records, empty_offsets, bytes: 0 };
    Ok((exported, writer))
}
