//! `freezeframe demo`: a shop, a bad deploy, and the way back, in a minute.
//!
//! It starts the real server as a child process. A stock Kafka client by other authors (rskafka)
//! writes the shop's records, and each step runs the command that it shows, as a user would. Each
//! step checks its claim: a wrong answer ends the demo with an error.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use jiff::Timestamp;
use rskafka::chrono::DateTime;
use rskafka::client::partition::{Compression, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::Record;
use tokio::signal::unix::{SignalKind, signal};

use crate::output::quoted;

/// The most lines of a command's output that are shown, and the most characters of a line.
const LINES_MAX: usize = 10;
const LINE_CHARS_MAX: usize = 78;
const PRODUCTS: [(&str, u32); 4] = [("apples", 3), ("bread", 4), ("cheese", 9), ("honey", 7)];
/// The morning's orders, and the first number.
const ORDERS: std::ops::Range<u32> = 1001..1013;
/// The orders after the deploy.
const LATE_ORDERS: std::ops::Range<u32> = 1013..1017;
/// The factor by which the bad deploy is wrong: it writes cents.
const CENTS: u32 = 100;

/// Show what is unique: a shop, a bad deploy, and the way back.
#[derive(Debug, Parser)]
#[command(after_help = "\
It starts a server on free ports, with its data in a temporary directory, and
removes both at the end. The shop's records are written by rskafka, a Kafka
client that knows nothing of Freezeframe.

Examples:
  freezeframe demo                      show it, and leave nothing behind
  freezeframe demo --stay               keep the server to try things by hand
  freezeframe demo --data-dir ./shop    keep the data")]
pub(crate) struct DemoArgs {
    /// Keep the data in this directory.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// The address that the server listens on
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    kafka: String,

    /// Keep the server running until Ctrl-C
    #[arg(long)]
    stay: bool,
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
    ensure!(stay, "a signal ended the demo before it was over");
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
    let started = Instant::now();
    let server = DemoServer::start(&directory, &args.kafka)?;
    println!("Freezeframe serves Kafka clients on {}", server.kafka);
    println!("and ZooKeeper clients on {}", server.zookeeper);
    println!("Its data is in {}", directory.display());
    let story = Story { server: &server };
    story.tell().await?;
    println!();
    println!(
        "That took {:.0} seconds, and each answer was checked.",
        started.elapsed().as_secs_f64()
    );
    if args.stay {
        print_suggestions(&server);
        println!("Serving until Ctrl-C.");
        std::future::pending::<()>().await;
    }
    match &args.data_dir {
        Some(data_dir) => {
            println!("The data is kept; serve it again with:");
            println!(
                "  freezeframe serve --data-dir {} --zookeeper 127.0.0.1:2181",
                data_dir.display()
            );
        }
        None => println!("freezeframe demo --stay keeps the shop open, with commands to try."),
    }
    Ok(())
}

/// Prints commands that can be pasted as they are.
fn print_suggestions(server: &DemoServer) {
    println!();
    println!("Try it yourself:");
    println!("  export FREEZEFRAME_BOOTSTRAP={}", server.kafka);
    println!("  export FREEZEFRAME_ZOOKEEPER={}", server.zookeeper);
    println!("  freezeframe cat orders payments --by time -f '%a %t %k %v'");
    println!("  freezeframe cat prices --keys --at 1m");
    println!("  freezeframe diff pin:before-deploy");
    println!("  freezeframe ls /.at/before-deploy/topics");
    println!("  freezeframe zk log /shop --recursive");
    println!("  kcat -b {} -C -e -t orders@before-deploy", server.kafka);
    println!("  curl 'http://{}/v1/cut?at=now'", server.http);
}

/// The steps. A step says what happens, runs a command, and checks its answer.
struct Story<'a> {
    server: &'a DemoServer,
}

impl Story<'_> {
    async fn tell(&self) -> anyhow::Result<()> {
        let shop = Shop::open(&self.server.kafka).await?;
        self.morning(&shop).await?;
        let pinned = self.pin()?;
        self.deploy(&shop).await?;
        self.find_the_damage()?;
        self.undo()?;
        self.look_across_topics()?;
        self.use_their_own_time(&pinned)?;
        self.cut_across_everything()
    }

    async fn morning(&self, shop: &Shop) -> anyhow::Result<()> {
        say(
            "A morning at the shop. A stock Kafka client writes prices, orders and payments,\nand ZooKeeper has the version of the shop's program.",
        );
        shop.write_prices(1).await?;
        for order in ORDERS {
            shop.order(order, 1).await?;
            shop.pay(order).await?;
        }
        self.quiet(&["zk", "create", "/shop", ""])?;
        self.quiet(&["zk", "create", "/shop/version", "41"])?;
        self.quiet(&["groups", "seek", "billing", "--at", "now", "--topic", "orders"])?;
        let output = self.show(&["topics"])?;
        ensure!(output.lines().count() == 3, "there are three topics: {output}");
        Ok(())
    }

    /// Returns the moment of the pin.
    fn pin(&self) -> anyhow::Result<String> {
        say("Keep this moment readable, under a name.");
        self.show(&["pins", "set", "before-deploy"])?;
        Ok(self.quiet(&["moment", "pin:before-deploy"])?.trim().to_owned())
    }

    async fn deploy(&self, shop: &Shop) -> anyhow::Result<()> {
        say("Version 42 is deployed. It has a bug: it writes prices in cents.");
        self.quiet(&["zk", "set", "/shop/version", "42"])?;
        shop.write_prices(CENTS).await?;
        for order in LATE_ORDERS {
            shop.order(order, CENTS).await?;
            shop.pay(order).await?;
        }
        self.quiet(&["groups", "seek", "billing", "--at", "now"])?;
        let price = self.show(&["cat", "prices", "--keys"])?;
        let (product, price_now) = PRODUCTS[0];
        let expected = format!("{product}\t{}", price_now * CENTS);
        ensure!(price.contains(&expected), "the price of {product} is wrong now: {price}");
        Ok(())
    }

    fn find_the_damage(&self) -> anyhow::Result<()> {
        say("What changed since?");
        let only_args = ["--only", "records", "--only", "znodes"];
        let output = self.show(&[&["diff", "pin:before-deploy"][..], &only_args].concat())?;
        for word in ["prices", "/shop/version"] {
            ensure!(output.contains(word), "{word} changed: {output}");
        }
        say("The prices as they were.");
        let output = self.show(&["cat", "prices", "--keys", "--at", "pin:before-deploy"])?;
        for (product, price) in PRODUCTS {
            let line = format!("{product}\t{price}\n");
            ensure!(output.contains(&line), "{product} cost {price}: {output}");
        }
        Ok(())
    }

    fn undo(&self) -> anyhow::Result<()> {
        say("Undo: what the keys had is written again, all in one transaction.");
        self.show(&[
            "topics",
            "restore",
            "prices",
            "--keys",
            "--at",
            "pin:before-deploy",
            "--yes",
        ])?;
        let (past_prices, now) = (self.prices("pin:before-deploy")?, self.prices("now")?);
        ensure!(past_prices == now, "the prices are as they were: {now:?}");
        say("The billing group had read the wrong orders. It reads them again.");
        let output = self.show(&["groups", "seek", "billing", "--at", "pin:before-deploy"])?;
        ensure!(output.contains("orders"), "the group is set back: {output}");
        Ok(())
    }

    fn prices(&self, at: &str) -> anyhow::Result<BTreeMap<String, String>> {
        let output = self.quiet(&["cat", "prices", "--keys", "--at", at])?;
        let price = |line: &str| {
            line.split_once('\t').map(|(key, price)| (key.to_owned(), price.to_owned()))
        };
        Ok(output.lines().filter_map(price).collect())
    }

    fn look_across_topics(&self) -> anyhow::Result<()> {
        say(
            "Who ordered and who paid, in the order in which it was accepted: one clock\nstamps all partitions of all topics.",
        );
        let format = "%a %t/%p %k";
        let output = self.show(&["cat", "orders", "payments", "--by", "time", "-f", format])?;
        let is_sorted = output.lines().is_sorted_by_key(|line| line.split(' ').next());
        ensure!(is_sorted && output.contains("payments"), "it is in order: {output}");
        Ok(())
    }

    fn use_their_own_time(&self, pinned: &str) -> anyhow::Result<()> {
        say("A payment of three hours ago arrives late. It says so itself: that is user time.");
        let late_record = ["produce", "payments", "--key", "999", "--timestamp", "3h"];
        println!("  $ echo paid | freezeframe {}", late_record.join(" "));
        self.run(&late_record, "paid\n")?;
        let output = self.show(&["cat", "payments", "--at", "u:1h", "-f", "%d %k %v"])?;
        ensure!(output.contains("999"), "it happened more than an hour ago: {output}");
        say("What was known of that time before the deploy? Nothing of that payment.");
        let hour_ago = self.quiet(&["moment", "u:1h"])?;
        let known_moment = format!("{}@{pinned}", hour_ago.trim());
        let output = self.show(&["cat", "payments", "--at", &known_moment, "-f", "%k"])?;
        ensure!(output.is_empty(), "it was not known: {output}");
        Ok(())
    }

    fn cut_across_everything(&self) -> anyhow::Result<()> {
        say(
            "One moment cuts across everything: topics, offsets, znodes. Its hash is the same\nwhenever it is asked for.",
        );
        let first = self.hash()?;
        self.show(&["zk", "get", "/shop/version", "--at", "pin:before-deploy"])?;
        let (past_version, now) = (
            self.quiet(&["zk", "get", "/shop/version", "--at", "pin:before-deploy"])?,
            self.quiet(&["zk", "get", "/shop/version"])?,
        );
        ensure!(
            (past_version.trim(), now.trim()) == ("41", "42"),
            "the version was {past_version}, and is {now}"
        );
        let hash_later = self.hash()?;
        ensure!(first == hash_later, "a cut changed: {first} became {hash_later}");
        println!("  cut at before-deploy, asked twice: {first}");
        println!("                                     {hash_later}");
        Ok(())
    }

    fn hash(&self) -> anyhow::Result<String> {
        let cut = self.quiet(&["cut", "--at", "pin:before-deploy", "--json"])?;
        let cut: serde_json::Value = serde_json::from_str(&cut).context("read the cut")?;
        Ok(cut["hash"].as_str().context("a cut has a hash")?.to_owned())
    }

    /// Shows a command, runs it, and shows its output.
    fn show(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let words: Vec<Cow<'_, str>> = arguments.iter().map(|word| quoted(word)).collect();
        println!("  $ freezeframe {}", words.join(" "));
        let (stdout, stderr) = self.run(arguments, "")?;
        // Leaves out the moment that a name means: the story goes by names.
        let is_news = |line: &&str| !line.starts_with("at ") && !line.starts_with("the exact set");
        let notes: Vec<&str> = stderr.lines().filter(is_news).collect();
        let notes = notes.join("\n");
        print_lines(if stdout.is_empty() { &notes } else { &stdout });
        Ok(stdout)
    }

    /// Runs a command, and returns its output.
    fn quiet(&self, arguments: &[&str]) -> anyhow::Result<String> {
        Ok(self.run(arguments, "")?.0)
    }

    /// Runs a command with an input. Returns its output and its notes.
    fn run(&self, arguments: &[&str], input: &str) -> anyhow::Result<(String, String)> {
        let program = std::env::current_exe().context("find this program")?;
        let mut process = Command::new(program)
            .args(arguments)
            .env("FREEZEFRAME_BOOTSTRAP", &self.server.kafka)
            .env("FREEZEFRAME_ZOOKEEPER", &self.server.zookeeper)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("run a command")?;
        if let Some(mut stdin) = process.stdin.take() {
            // A command that needs no input may have closed it.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = process.wait_with_output().context("run a command")?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        ensure!(output.status.success(), "freezeframe {}: {stderr}", arguments.join(" "));
        Ok((stdout, stderr))
    }
}

/// Says what comes next.
fn say(text: &str) {
    println!();
    println!("{text}");
}

/// Prints the first lines of an output, with its columns below each other.
fn print_lines(text: &str) {
    let rows: Vec<Vec<&str>> =
        text.lines().take(LINES_MAX).map(|line| line.split('\t').collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in &rows {
        if let [sentence] = row[..] {
            print_wrapped(sentence);
            continue;
        }
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let shown_line: String = line.trim_end().chars().take(LINE_CHARS_MAX).collect();
        println!("  {shown_line}");
    }
    match text.lines().count() {
        0 => println!("  (nothing)"),
        count if count > LINES_MAX => println!("  … {} more", count - LINES_MAX),
        _ => {}
    }
}

/// Prints a sentence in lines of bounded length.
fn print_wrapped(sentence: &str) {
    let mut line = String::new();
    for word in sentence.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > LINE_CHARS_MAX {
            println!("  {line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    println!("  {line}");
}

/// The shop's records, which a stock client writes.
struct Shop {
    client: Client,
}

impl Shop {
    async fn open(kafka: &str) -> anyhow::Result<Shop> {
        let client = ClientBuilder::new(vec![kafka.to_owned()]).build().await?;
        let controller = client.controller_client()?;
        for (topic, partitions) in [("orders", 3), ("payments", 2), ("prices", 1)] {
            let created = controller.create_topic(topic, partitions, 1, 5_000).await;
            created.with_context(|| format!("create topic {topic}"))?;
        }
        Ok(Shop { client })
    }

    async fn write_prices(&self, factor: u32) -> anyhow::Result<()> {
        for (product, price) in PRODUCTS {
            self.write("prices", 0, product, &(price * factor).to_string()).await?;
        }
        Ok(())
    }

    async fn order(&self, number: u32, factor: u32) -> anyhow::Result<()> {
        let (product, price) = PRODUCTS[number as usize % PRODUCTS.len()];
        let order = format!(r#"{{"product":"{product}","price":{}}}"#, price * factor);
        let partition = (number % 3) as i32;
        self.write("orders", partition, &number.to_string(), &order).await
    }

    async fn pay(&self, number: u32) -> anyhow::Result<()> {
        self.write("payments", (number % 2) as i32, &number.to_string(), "paid").await
    }

    async fn write(
        &self,
        topic: &str,
        partition: i32,
        key: &str,
        value: &str,
    ) -> anyhow::Result<()> {
        let of_partition =
            self.client.partition_client(topic, partition, UnknownTopicHandling::Retry);
        let record = Record {
            key: Some(key.as_bytes().to_vec()),
            value: Some(value.as_bytes().to_vec()),
            headers: BTreeMap::new(),
            timestamp: DateTime::from_timestamp_millis(Timestamp::now().as_millisecond())
                .context("tell the time")?,
        };
        of_partition.await?.produce(vec![record], Compression::NoCompression).await?;
        Ok(())
    }
}

/// A server in a child process, which ends with this one.
struct DemoServer {
    process: Child,
    kafka: String,
    zookeeper: String,
    http: String,
}

impl DemoServer {
    fn start(directory: &Path, kafka: &str) -> anyhow::Result<DemoServer> {
        let program = std::env::current_exe().context("find this program")?;
        let mut process = Command::new(program)
            .arg("serve")
            .arg("--data-dir")
            .arg(directory)
            .args(["--kafka", kafka, "--zookeeper", "127.0.0.1:0", "--http", "127.0.0.1:0"])
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
        let address = |name: &str| {
            line.split_whitespace().find_map(|word| word.strip_prefix(name)).map(str::to_owned)
        };
        match (address("kafka="), address("zookeeper="), address("http=")) {
            (Some(kafka), Some(zookeeper), Some(http)) => {
                Ok(DemoServer { process, kafka, zookeeper, http })
            }
            _ => {
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
        let created = DirBuilder::new().mode(0o700).create(&path);
        created.with_context(|| format!("make {}", path.display()))?;
        Ok(TemporaryDirectory(path))
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
