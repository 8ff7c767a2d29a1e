//! Connections that are opened, asked once, and closed: over TLS, each with a whole handshake.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Args;

use crate::connection::BenchConnection;
use crate::histogram::Histogram;
use crate::meter::UsageMeter;
use crate::report::{BenchReport, FigureDirection};
use crate::target::BrokerTarget;

#[derive(Args, Clone, Debug)]
pub(crate) struct ConnectWork {
    /// Connections in all
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,

    /// Threads, each with one connection at a time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    threads: u32,
}

pub(crate) fn run(target: &BrokerTarget, work: &ConnectWork) -> Result<BenchReport> {
    let address = target.address;
    let open = move |count: u32| -> Result<Histogram> {
        let mut times = Histogram::new();
        for _ in 0..count {
            let begun = Instant::now();
            BenchConnection::open(address)?;
            times.record(begun.elapsed());
        }
        Ok(times)
    };
    // The first ones are not measured.
    open(work.threads)?;
    let meter = UsageMeter::start(target.process)?;
    let share = work.connections.div_ceil(work.threads);
    let threads: Vec<_> = (0..work.threads).map(|_| thread::spawn(move || open(share))).collect();
    let mut times = Histogram::new();
    for thread in threads {
        times.merge(&thread.join().map_err(|_| anyhow!("a thread panicked"))??);
    }
    let usage = meter.stop(Duration::ZERO)?;
    let opened = f64::from(share * work.threads);
    let workload = format!("{opened} connections, {} at a time", work.threads);
    let mut report = BenchReport::new("connect", workload, &target.name);
    let (higher, lower) = (FigureDirection::Higher, FigureDirection::Lower);
    report.add(higher, "connections/s", opened / usage.wall.as_secs_f64());
    report.add_latencies("connect", &times);
    if let Some(broker) = &usage.broker {
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / opened;
        report.add(lower, "broker CPU us each", micros(broker.cpu.total()));
    }
    let micros = usage.client.total().as_secs_f64() * 1e6 / opened;
    report.add(FigureDirection::Neither, "client CPU us each", micros);
    report.add_memory(&usage);
    Ok(report)
}
