//! Records over RDMA and over TCP, by the size of a transfer (F25, F30 of the papers), beside the
//! same transfers without a server around them ([`bare`]).
//!
//! One client has one request on its way. It reads batches of one size from a topic that holds
//! them, and writes them to another one. Everything takes turns, so that noise hits all alike.

mod bare;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::Args;
use client::{Client, FetchOptions, LinkChoice, NewTopic, Options, RequiredAcks};
use kafka_records::{BatchBuilder, CompressionType};
use serde_json::json;

use self::bare::BareLink;
use crate::histogram::Histogram;
use crate::process::Process;
use crate::report::{ReportFormat, align_right, number, table};
use crate::size::ByteSize;
use crate::target::{BrokerTarget, TargetArgs};

/// The size of a batch besides the value of its one record: about this many bytes.
const BATCH_BYTES: u64 = 75;
/// The fewest and the most transfers of one measurement.
const TRANSFERS: std::ops::RangeInclusive<u64> = 16..=2000;
/// A page, as in the papers.
const PAGE_BYTES: usize = 4 << 10;
/// Pages of one write, when requests of 1 and of 16 pages are compared.
const SCATTERED_PAGES: usize = 256;

#[derive(Args, Clone, Debug)]
pub(crate) struct LinksWork {
    #[command(flatten)]
    target: TargetArgs,

    /// Bytes of one transfer
    #[arg(long, value_delimiter = ',', default_value = "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB")]
    sizes: Vec<ByteSize>,

    /// About how many bytes each measurement moves
    #[arg(long, default_value = "64MiB")]
    bytes: ByteSize,

    /// Rounds of each measurement; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// A measurement of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The server's writes alone.
    BareWrite,
    /// The same, each complete before the next one begins: as a client with one request has them.
    BareWriteAlone,
    Read(LinkChoice),
    /// The server's reads alone.
    BareRead,
    Write(LinkChoice),
}

/// In the order of the table. All of a line take turns. Reads come first: what is read stays in
/// memory until more is written than fits.
const WAYS: [&[Way]; 2] = [
    &[Way::BareWrite, Way::BareWriteAlone, Way::Read(LinkChoice::Rdma), Way::Read(LinkChoice::Tcp)],
    &[Way::BareRead, Way::Write(LinkChoice::Rdma), Way::Write(LinkChoice::Tcp)],
];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::BareWrite => "bare RDMA WRITE",
            Way::BareWriteAlone => "bare RDMA WRITE, one at a time",
            Way::BareRead => "bare RDMA READ",
            Way::Read(LinkChoice::Tcp) => "fetch, TCP",
            Way::Read(_) => "fetch, RDMA",
            Way::Write(LinkChoice::Tcp) => "produce, TCP",
            Way::Write(_) => "produce, RDMA",
        }
    }

    fn needs_device(self) -> bool {
        !matches!(self, Way::Read(LinkChoice::Tcp) | Way::Write(LinkChoice::Tcp))
    }

    /// The measurement that its rate is a share of.
    fn bare(self) -> Option<Way> {
        match self {
            Way::Read(_) => Some(Way::BareWrite),
            Way::Write(_) => Some(Way::BareRead),
            Way::BareWriteAlone => Some(Way::BareWrite),
            Way::BareWrite | Way::BareRead => None,
        }
    }
}

/// The cost of one measurement.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    bytes_a_second: f64,
    server_cpu_per_gb: f64,
    client_cpu_per_gb: f64,
    /// The median time of a transfer, in microseconds.
    median_us: f64,
}

/// A topic and clients for one size.
struct SizeBench {
    topic: String,
    batch: Bytes,
    count: u64,
    server: Option<Process>,
}

pub(crate) fn run(work: &LinksWork, format: ReportFormat) -> Result<()> {
    let target = BrokerTarget::find(&work.target)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut bare = BareLink::open()?;
        if bare.is_none() {
            eprintln!("note: this machine has no two RDMA ports: only TCP is measured");
        }
        let mut rows = Vec::new();
        for size in &work.sizes {
            rows.extend(measure_size(work, &target, size.0, bare.as_mut()).await?);
        }
        show(&rows, format);
        if let Some(bare) = &mut bare {
            show_pages(bare, work.rounds, format).await?;
        }
        Ok(())
    })
}

/// The medians of one size, by way.
struct Row {
    size: u64,
    way: Way,
    cost: Cost,
    share: Option<f64>,
}

async fn measure_size(
    work: &LinksWork,
    target: &BrokerTarget,
    size: u64,
    mut bare: Option<&mut BareLink>,
) -> Result<Vec<Row>> {
    let count = (work.bytes.0 / size).clamp(*TRANSFERS.start(), *TRANSFERS.end());
    let bench = SizeBench::prepare(target, size, count).await?;
    let is_possible = |way: &&Way| bare.is_some() || !way.needs_device();
    let groups = WAYS.map(|ways| ways.iter().filter(is_possible).copied().collect::<Vec<Way>>());
    let ways = groups.concat();
    let mut clients = BTreeMap::new();
    for way in &ways {
        if let Way::Read(link) | Way::Write(link) = way {
            let options = Options { link: *link, ..Options::default() };
            let client = Client::connect(&target.name, options).await?;
            clients.insert(way.name(), client);
        }
    }
    let mut found: BTreeMap<&str, Vec<Cost>> = BTreeMap::new();
    // The first round warms up.
    let turns = groups.iter().flat_map(|group| (0..=work.rounds).map(move |round| (round, group)));
    for (round, group) in turns {
        for way in group {
            let cost = match (way, &mut bare) {
                (Way::BareWrite, Some(bare)) => {
                    let (time, count) = bare.write(size, count, false).await?;
                    bare_cost(time, count, size)
                }
                (Way::BareWriteAlone, Some(bare)) => {
                    let (time, count) = bare.write(size, count, true).await?;
                    bare_cost(time, count, size)
                }
                (Way::BareRead, Some(bare)) => {
                    let (time, count) = bare.read(size, count).await?;
                    bare_cost(time, count, size)
                }
                (Way::Read(_), _) => {
                    bench.read(clients.get_mut(way.name()).context("a client")?).await?
                }
                (Way::Write(_), _) => {
                    bench.write(clients.get_mut(way.name()).context("a client")?).await?
                }
                _ => continue,
            };
            if round > 0 {
                found.entry(way.name()).or_default().push(cost);
            }
        }
    }
    let rows = ways.into_iter().map(|way| {
        let of = |way: Way, figure: fn(&Cost) -> f64| {
            median(found[way.name()].iter().map(figure).collect())
        };
        let share = way.bare().filter(|bare| found.contains_key(bare.name())).map(|bare| {
            let pairs = found[way.name()].iter().zip(&found[bare.name()]);
            median(pairs.map(|(one, bare)| one.bytes_a_second / bare.bytes_a_second).collect())
        });
        let cost = Cost {
            bytes_a_second: of(way, |cost| cost.bytes_a_second),
            server_cpu_per_gb: of(way, |cost| cost.server_cpu_per_gb),
            client_cpu_per_gb: of(way, |cost| cost.client_cpu_per_gb),
            median_us: of(way, |cost| cost.median_us),
        };
        Row { size, way, cost, share }
    });
    Ok(rows.collect())
}

fn bare_cost(time: Duration, count: u64, size: u64) -> Cost {
    let bytes_a_second = (count * size) as f64 / time.as_secs_f64();
    Cost { bytes_a_second, ..Cost::default() }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl SizeBench {
    /// Creates a topic for what is read and one for what is written, and fills the first.
    async fn prepare(target: &BrokerTarget, size: u64, count: u64) -> Result<SizeBench> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let topic = format!("links-{size}-{}", now.as_nanos());
        let value = vec![0xa5; size.saturating_sub(BATCH_BYTES) as usize];
        let mut builder = BatchBuilder::new(CompressionType::None);
        builder.record(now.as_millis() as i64, None, Some(&value), &[]);
        let bench = SizeBench { topic, batch: builder.build(), count, server: target.process };
        let mut client = Client::connect(&target.name, Options::default()).await?;
        for name in [bench.topic.clone(), bench.written()] {
            let configs = [("max.message.bytes".to_owned(), (2 * size + 4096).to_string())];
            let topic = NewTopic {
                name,
                partitions: Some(1),
                replication_factor: None,
                configs: configs.into(),
            };
            client.create_topic(&topic).await?;
        }
        for _ in 0..count {
            let batches = BTreeMap::from([(0, bench.batch.clone())]);
            client.produce(&bench.topic, RequiredAcks::Leader, batches).await?;
        }
        Ok(bench)
    }

    fn written(&self) -> String {
        format!("{}-written", self.topic)
    }

    async fn read(&self, client: &mut Client) -> Result<Cost> {
        let bytes_max = self.batch.len() as i32;
        let options = FetchOptions {
            wait_max: Duration::ZERO,
            partition_bytes_max: bytes_max,
            bytes_max,
            ..FetchOptions::default()
        };
        let bench = self.begin()?;
        let mut times = Histogram::new();
        for offset in 0..self.count as i64 {
            let begun = Instant::now();
            let fetched = client.fetch(&self.topic, &[(0, offset)], &options).await?;
            ensure!(fetched[0].batches.len() == self.batch.len(), "a fetch brings one batch");
            times.record(begun.elapsed());
        }
        bench.end(self, &times)
    }

    async fn write(&self, client: &mut Client) -> Result<Cost> {
        let topic = self.written();
        let bench = self.begin()?;
        let mut times = Histogram::new();
        for _ in 0..self.count {
            let begun = Instant::now();
            let batches = BTreeMap::from([(0, self.batch.clone())]);
            client.produce(&topic, RequiredAcks::Leader, batches).await?;
            times.record(begun.elapsed());
        }
        bench.end(self, &times)
    }

    fn begin(&self) -> Result<UsageStart> {
        let server = self.server.map(Process::cpu).transpose()?.unwrap_or_default();
        let client = Process::this().cpu()?;
        Ok(UsageStart { server, client, at: Instant::now() })
    }
}

/// The readings before a measurement.
struct UsageStart {
    server: crate::process::CpuTime,
    client: crate::process::CpuTime,
    at: Instant,
}

impl UsageStart {
    fn end(self, bench: &SizeBench, times: &Histogram) -> Result<Cost> {
        let time = self.at.elapsed();
        let bytes = (bench.count * bench.batch.len() as u64) as f64;
        let server = bench.server.map(Process::cpu).transpose()?.unwrap_or_default();
        let client = Process::this().cpu()?;
        let per_gb = |time: Duration| time.as_secs_f64() / (bytes / 1e9);
        Ok(Cost {
            bytes_a_second: bytes / time.as_secs_f64(),
            server_cpu_per_gb: per_gb(server.since(self.server).total()),
            client_cpu_per_gb: per_gb(client.since(self.client).total()),
            median_us: times.percentile(50.0).as_secs_f64() * 1e6,
        })
    }
}

fn show(rows: &[Row], format: ReportFormat) {
    if format == ReportFormat::JsonLines {
        for Row { size, way, cost, share } in rows {
            let line = json!({
                "bench": "links", "bytes": size, "way": way.name(), "share_of_bare": share,
                "MB/s": cost.bytes_a_second / 1e6, "p50 us": cost.median_us,
                "server CPU s/GB": cost.server_cpu_per_gb,
                "client CPU s/GB": cost.client_cpu_per_gb,
            });
            println!("{line}");
        }
        return;
    }
    let mut shown = table(
        ["bytes", "way", "MB/s", "of bare", "p50 us", "server CPU s/GB", "client CPU s/GB"]
            .map(str::to_owned)
            .into(),
    );
    for Row { size, way, cost, share } in rows {
        let unless_bare = |value: f64| match way {
            Way::Read(_) | Way::Write(_) => number(value),
            Way::BareWrite | Way::BareWriteAlone | Way::BareRead => String::new(),
        };
        shown.add_row([
            ByteSize(*size).to_string(),
            way.name().to_owned(),
            number(cost.bytes_a_second / 1e6),
            share.map_or_else(String::new, |share| format!("{:.0} %", share * 100.0)),
            unless_bare(cost.median_us),
            unless_bare(cost.server_cpu_per_gb),
            unless_bare(cost.client_cpu_per_gb),
        ]);
    }
    align_right(&mut shown, 2..);
    println!("{shown}");
}

/// Scattered pages with 1 and with 16 of them in a work request (F25), and how long one page takes.
async fn show_pages(bare: &mut BareLink, rounds: usize, format: ReportFormat) -> Result<()> {
    let (mut one, mut sixteen, mut gain, mut page) = (vec![], vec![], vec![], vec![]);
    for round in 0..=rounds {
        let by_one = bare.write_pages(SCATTERED_PAGES, 1).await?;
        let by_sixteen = bare.write_pages(SCATTERED_PAGES, 16).await?;
        let alone = bare.page_time().await?;
        if round > 0 {
            one.push(by_one);
            sixteen.push(by_sixteen);
            gain.push(by_sixteen / by_one);
            page.push(alone.as_secs_f64() * 1e6);
        }
    }
    let (one, sixteen, gain, page) = (median(one), median(sixteen), median(gain), median(page));
    if format == ReportFormat::JsonLines {
        let line = json!({
            "bench": "pages", "1 a request, MB/s": one / 1e6,
            "16 a request, MB/s": sixteen / 1e6, "gain": gain, "one page, us": page,
        });
        println!("{line}");
        return Ok(());
    }
    println!(
        "scattered pages of 4 KiB: 1 in a request {} MB/s, 16 in a request {} MB/s, {gain:.1} times; \
         one page and its completion {} us",
        number(one / 1e6),
        number(sixteen / 1e6),
        number(page),
    );
    Ok(())
}
