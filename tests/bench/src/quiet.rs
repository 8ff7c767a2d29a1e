//! The cost of a consumer of many partitions in which nothing happens: with a fetch session
//! (KIP-227), and with requests that name all partitions, in turns.

use anyhow::{Context, Result, ensure};
use clap::Args;
use kafka_protocol::messages::FetchRequest;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use serde_json::json;

use crate::{
    connection::{BenchConnection, check_error_code},
    process::{CpuTime, Process},
    report::{ReportFormat, align_right, number, table},
    target::{BrokerTarget, TargetArgs},
    topic::BenchTopic,
};

#[derive(Args, Clone, Debug)]
pub(crate) struct QuietWork {
    #[command(flatten)]
    target: TargetArgs,

    /// Partitions of the consumer
    #[arg(long, default_value_t = 2000)]
    partitions: u32,

    /// Fetches of one turn
    #[arg(long, default_value_t = 500)]
    fetches: u32,

    /// Milliseconds that the broker may wait for records
    #[arg(long, default_value_t = 2)]
    max_wait_ms: i32,

    /// Rounds of each measurement; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// The cost of one fetch.
#[derive(Clone, Copy, Debug)]
struct FetchCost {
    broker_us: f64,
    client_us: f64,
}

pub(crate) fn run(work: &QuietWork, format: ReportFormat) -> Result<()> {
    let target = BrokerTarget::find(&work.target)?;
    let broker = target.process.context("the broker's process is not known; give --pid")?;
    let topic = BenchTopic::create(target.address, work.partitions, 0)?;
    let mut costs: [Vec<FetchCost>; 2] = [Vec::new(), Vec::new()];
    // The first round warms up.
    for round in 0..=work.rounds {
        for (costs, has_session) in costs.iter_mut().zip([false, true]) {
            let cost = measure(work, &topic, &target, broker, has_session)?;
            if round > 0 {
                costs.push(cost);
            }
        }
    }
    let median = |costs: &[FetchCost], of: fn(&FetchCost) -> f64| {
        let mut values: Vec<f64> = costs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let broker = costs.each_ref().map(|costs| median(costs, |cost| cost.broker_us));
    let client = costs.each_ref().map(|costs| median(costs, |cost| cost.client_us));
    let ratios = [broker[1] / broker[0], client[1] / client[0]];
    if format == ReportFormat::JsonLines {
        let line = json!({
            "bench": "quiet", "target": target.name, "partitions": work.partitions,
            "broker us, all": broker[0], "broker us, session": broker[1], "ratio": ratios[0],
            "client us, all": client[0], "client us, session": client[1],
        });
        println!("{line}");
        return Ok(());
    }
    let header = ["CPU of a fetch, us", "all partitions", "session", "ratio"];
    let mut shown = table(header.map(str::to_owned).into());
    for (name, row, ratio) in [("broker", broker, ratios[0]), ("client", client, ratios[1])] {
        shown.add_row([name.to_owned(), number(row[0]), number(row[1]), format!("{ratio:.3}")]);
    }
    align_right(&mut shown, 1..);
    println!("{} quiet partitions\n{shown}", work.partitions);
    Ok(())
}

fn measure(
    work: &QuietWork,
    topic: &BenchTopic,
    target: &BrokerTarget,
    broker: Process,
    has_session: bool,
) -> Result<FetchCost> {
    let mut connection = BenchConnection::open(target.address)?;
    let version = connection.version::<FetchRequest>(7..=12)?;
    let partition =
        |index| FetchPartition::default().with_partition(index).with_partition_max_bytes(1 << 20);
    let all = FetchTopic::default()
        .with_topic(topic.name.clone())
        .with_partitions((0..work.partitions as i32).map(partition).collect());
    let mut request = FetchRequest::default()
        .with_max_wait_ms(work.max_wait_ms)
        .with_min_bytes(1)
        .with_max_bytes(50 << 20)
        .with_session_epoch(if has_session { 0 } else { -1 })
        .with_topics(vec![all]);
    let mut fetch = |request: &FetchRequest| {
        let response = connection.call(request, version)?;
        check_error_code(response.error_code).context("fetch")?;
        Ok::<_, anyhow::Error>(response.session_id)
    };
    let session = fetch(&request)?;
    ensure!((session != 0) == has_session, "the broker opened no session, or one unasked");
    if has_session {
        // The first one after it looks at all partitions once more.
        request = request.with_session_id(session).with_session_epoch(1).with_topics(Vec::new());
        fetch(&request)?;
    }
    let (of_broker, of_client) = (broker.cpu()?, Process::this().cpu()?);
    for nth in 0..work.fetches as i32 {
        if has_session {
            request.session_epoch = nth + 2;
        }
        fetch(&request)?;
    }
    let each = |now: CpuTime, before| {
        now.since(before).total().as_secs_f64() * 1e6 / f64::from(work.fetches)
    };
    let cost = FetchCost {
        broker_us: each(broker.cpu()?, of_broker),
        client_us: each(Process::this().cpu()?, of_client),
    };
    if has_session {
        // Its place is free for the next one.
        fetch(&request.with_session_epoch(-1))?;
    }
    Ok(cost)
}
