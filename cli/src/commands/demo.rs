//! `freezeframe demo`: shows the main job, end to end, on real data.
//!
//! It starts the real server as a child process. A stock Kafka client by other authors (rskafka)
//! writes a week of earthquakes to it, and reads the same topic at three different moments.

use std::fs::DirBuilder;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use client::history::PendingMomentPolicy;
use client::{Client as OurClient, Options};
use hlc::{Cut, Moment, SysTime};
use indicatif::{ProgressBar, ProgressStyle};
use rskafka::chrono::{DateTime, Utc};
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::Record;
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::output::StandardOutput;
use crate::table::OutputTable;

const TOPIC: &str = "earthquakes";
const PARTITIONS: i32 = 3;
const WAVES: usize = 3;
const DATA: &str = include_str!("../../demo/earthquakes.jsonl");

/// Show the main job end to end: a stock Kafka client writes real data, and the topic is read at
/// three different moments.
///
/// Starts a server on a free port, with its embedded store in a temporary directory, and stops it
/// at the end. The data is a week of earthquakes (U.S. Geological Survey, public domain). The
/// client is rskafka, a Kafka client that knows nothing of Freezeframe.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  freezeframe demo                        show it, and leave nothing behind
  freezeframe demo --data-dir ./quakes    keep the data
  freezeframe demo --stay                 keep the server running to try things by hand")]
pub(crate) struct DemoArgs {
    /// Keep the data in this directory. The default is a temporary directory that is removed at the
    /// end
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// The address that the server listens on
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    kafka: String,

    /// Keep the server running until Ctrl-C
    #[arg(long)]
    stay: bool,
}

#[derive(Deserialize)]
struct EarthquakeEvent {
    id: String,
    time: i64,
    net: String,
    mag: Option<f64>,
    place: String,
}

/// Runs `demo`. Cleans up even if a signal ends it.
pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<()> {
    let mut terminated = signal(SignalKind::terminate()).context("listen for signals")?;
    let mut interrupted = signal(SignalKind::interrupt()).context("listen for signals")?;
    let stay = args.stay;
    tokio::select! {
        shown = run_demo(args) => return shown,
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
    }
    anyhow::ensure!(stay, "a signal ended the demo before it was over");
    Ok(())
}

async fn run_demo(args: DemoArgs) -> anyhow::Result<()> {
    let temporary = match args.data_dir {
        Some(_) => None,
        None => Some(TemporaryDirectory::make()?),
    };
    let directory = match (&args.data_dir, &temporary) {
        (Some(directory), _) => directory.clone(),
        (None, Some(temporary)) => temporary.0.clone(),
        (None, None) => unreachable!("one of the two is there"),
    };
    let server = DemoServer::start(&directory, &args.kafka)?;
    println!(
        "Freezeframe serves Kafka clients on {} (data in {})",
        server.kafka,
        directory.display()
    );

    let stock = ClientBuilder::new(vec![server.kafka.clone()]).build().await?;
    let mut ours = OurClient::connect(&server.kafka, Options::default()).await?;
    let moments = produce_waves(&stock).await?;
    println!();
    println!("The same topic at three moments, read by the stock client as {TOPIC}.__at.s…:");
    print_moments(&stock, &mut ours, &moments).await?;
    check_cut_repeats(&mut ours, &moments).await?;
    println!();
    if args.stay {
        println!("Try it yourself:");
        print_suggestions(&server.kafka, &moments);
        println!("Serving until Ctrl-C.");
        std::future::pending::<()>().await;
    }
    match &args.data_dir {
        Some(kept) => {
            println!(
                "The data is kept. To try it yourself, serve it, and ask in another terminal:"
            );
            println!("  freezeframe serve --data-dir {} --kafka {}", kept.display(), server.kafka);
            print_suggestions(&server.kafka, &moments);
        }
        None => println!(
            "The server and its data go now. freezeframe demo --stay keeps both, with commands to try."
        ),
    }
    Ok(())
}

/// Prints commands to try on the server with the data.
fn print_suggestions(kafka: &str, moments: &[u64]) {
    println!("  freezeframe cut --bootstrap {kafka} --at s{} --json", moments[1]);
    println!("  freezeframe cat --bootstrap {kafka} {TOPIC}/0@s{} | head -3", moments[0]);
    println!("  freezeframe topics --bootstrap {kafka} --at \"1 minute ago\"");
    println!("  kcat -b {kafka} -C -e -t {TOPIC}.__at.s{}", moments[0]);
}

/// Writes the data in waves, as it was revised. Returns the moment after each wave.
async fn produce_waves(stock: &Client) -> anyhow::Result<Vec<u64>> {
    let lines: Vec<&str> = DATA.lines().collect();
    let controller = stock.controller_client()?;
    controller.create_topic(TOPIC, PARTITIONS, 1, 5_000).await.context("create the topic")?;
    let partitions = partitions(stock, TOPIC).await?;
    let bar = ProgressBar::new(lines.len() as u64)
        .with_style(ProgressStyle::with_template("{bar:32} {pos}/{len} {msg}")?)
        .with_message("earthquakes written by a stock Kafka client");
    let mut moments = Vec::new();
    for wave in lines.chunks(lines.len().div_ceil(WAVES)) {
        let mut batches: Vec<Vec<Record>> = (0..PARTITIONS).map(|_| Vec::new()).collect();
        for line in wave {
            let quake: EarthquakeEvent =
                serde_json::from_str(line).context("read the demo's data")?;
            let partition = quake.net.bytes().map(usize::from).sum::<usize>() % batches.len();
            batches[partition].push(Record {
                key: Some(quake.id.into_bytes()),
                value: Some((*line).to_owned().into_bytes()),
                headers: Default::default(),
                timestamp: DateTime::<Utc>::from_timestamp_millis(quake.time)
                    .context("read an event's time")?,
            });
        }
        for (partition, batch) in partitions.iter().zip(batches) {
            for records in batch.chunks(50) {
                partition.produce(records.to_vec(), Compression::NoCompression).await?;
                bar.inc(records.len() as u64);
            }
        }
        moments.push(next_millisecond().await);
    }
    bar.finish();
    println!(
        "{} earthquakes written by a stock Kafka client (rskafka) in {WAVES} waves",
        lines.len()
    );
    Ok(moments)
}

/// Waits until the next millisecond begins, and returns it.
async fn next_millisecond() -> u64 {
    let ms = || jiff::Timestamp::now().as_millisecond() as u64;
    let next = ms() + 1;
    while ms() < next {
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    next
}

async fn partitions(stock: &Client, topic: &str) -> anyhow::Result<Vec<Arc<PartitionClient>>> {
    let mut partitions = Vec::new();
    for index in 0..PARTITIONS {
        let partition = stock.partition_client(topic, index, UnknownTopicHandling::Retry).await?;
        partitions.push(Arc::new(partition));
    }
    Ok(partitions)
}

/// Prints what the stock client reads at each moment.
async fn print_moments(
    stock: &Client,
    ours: &mut OurClient,
    moments: &[u64],
) -> anyhow::Result<()> {
    let mut table =
        OutputTable::new(&["moment", "ends", "events", "strongest so far", "hash of the cut"]);
    for ms in moments {
        let (mut ends, mut count) = (Vec::new(), 0);
        let mut strongest: Option<EarthquakeEvent> = None;
        for partition in partitions(stock, &format!("{TOPIC}.__at.s{ms}")).await? {
            let end = partition.get_offset(OffsetAt::Latest).await?;
            let mut offset = 0;
            while offset < end {
                let (records, _) = partition.fetch_records(offset, 1..1_000_000, 1_000).await?;
                if records.is_empty() {
                    bail!("the stock client got no records at offset {offset} of {end}");
                }
                for record in records {
                    offset = record.offset + 1;
                    count += 1;
                    let value = record.record.value.unwrap_or_default();
                    let quake: EarthquakeEvent = serde_json::from_slice(&value)?;
                    if strongest.as_ref().is_none_or(|strongest| quake.mag > strongest.mag) {
                        strongest = Some(quake);
                    }
                }
            }
            ends.push(end.to_string());
        }
        let cut = cut(ours, *ms).await?;
        let strongest = strongest.map_or_else(String::new, |quake| {
            format!("M{:.1} {}", quake.mag.unwrap_or_default(), quake.place)
        });
        table.row([format!("s{ms}"), ends.join("+"), count.to_string(), strongest, cut]);
    }
    let mut output = StandardOutput::lock();
    output.table(&table)?;
    Ok(output.flush()?)
}

async fn cut(ours: &mut OurClient, ms: u64) -> anyhow::Result<String> {
    let moment = Moment::Sys(Cut::before(SysTime(ms)));
    Ok(ours.cut(&moment, None, PendingMomentPolicy::Wait, Duration::from_secs(5)).await?.hash)
}

/// Reads the first cut again after all later writes, and compares.
async fn check_cut_repeats(ours: &mut OurClient, moments: &[u64]) -> anyhow::Result<()> {
    let (first, again) = (cut(ours, moments[0]).await?, cut(ours, moments[0]).await?);
    anyhow::ensure!(first == again, "a cut changed: {first} became {again}");
    println!("Asked again, the cut at s{} is {again}: the past does not change.", moments[0]);
    Ok(())
}

/// A server in a child process, which ends with this one.
struct DemoServer {
    process: Child,
    kafka: String,
}

impl DemoServer {
    fn start(directory: &std::path::Path, kafka: &str) -> anyhow::Result<DemoServer> {
        let program = std::env::current_exe().context("find this program")?;
        let mut process = Command::new(program)
            .arg("serve")
            .arg("--data-dir")
            .arg(directory)
            .args(["--kafka", kafka, "--zookeeper", "off", "--http", "off"])
            .arg("--end-with-input")
            .env("FREEZEFRAME_LOG", "warn")
            // Nothing is written to it. The server ends when this pipe closes, however this process
            // ends.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the server")?;
        let stdout = process.stdout.take().context("read the server's output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).context("read the server's output")?;
        let ready = line.split_whitespace().find_map(|word| word.strip_prefix("kafka="));
        match ready {
            Some(kafka) => Ok(DemoServer { kafka: kafka.to_owned(), process }),
            None => {
                let _ = process.wait();
                bail!("the server did not start; it says why above")
            }
        }
    }
}

impl Drop for DemoServer {
    /// `wait` closes the input, and the server then shuts down in order. A signal would be a second
    /// request to end, and the server would exit at once.
    fn drop(&mut self) {
        let _ = self.process.wait();
    }
}

struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn make() -> anyhow::Result<TemporaryDirectory> {
        let path = std::env::temp_dir().join(format!("freezeframe-demo-{}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("make {}", path.display()))?;
        Ok(TemporaryDirectory(path))
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
