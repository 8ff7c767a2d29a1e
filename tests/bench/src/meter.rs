//! The cost of a run: wall time, the CPU time of the broker and of this program, the broker's
//! memory.
//!
//! A broker may defer work until after its response. So its CPU time is read twice: at the last
//! response, and again after an idle moment ([`BrokerUsage::settled`]).

use std::{
    net::SocketAddr,
    sync::mpsc::{self, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::process::{CpuTime, Process};

const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

/// The process behind an address: `pid` if given, else the one that listens there. `None`, with a
/// warning, if it is unknown: then only times are measured.
pub(crate) fn broker_behind(address: SocketAddr, pid: Option<u32>) -> Option<Process> {
    let found = match pid {
        Some(pid) => Ok(Process { pid }),
        None => Process::listening_on(address.port()),
    };
    match found.and_then(|process| process.cpu().map(|_| process)) {
        Ok(process) => Some(process),
        Err(error) => {
            eprintln!("warning: the broker's CPU and memory are not measured: {error:#}");
            None
        }
    }
}

/// Runs from [`UsageMeter::start`] to [`UsageMeter::stop`].
pub(crate) struct UsageMeter {
    broker: Option<Process>,
    broker_before: UsageReading,
    client_before: CpuTime,
    started: Instant,
    stop: mpsc::Sender<()>,
    sampler: JoinHandle<u64>,
}

#[derive(Clone, Copy, Default)]
struct UsageReading {
    cpu: CpuTime,
    written_bytes: Option<u64>,
    read_bytes: Option<u64>,
}

/// The usage of a run. The broker's is empty if its process is unknown.
pub(crate) struct RunUsage {
    pub(crate) wall: Duration,
    pub(crate) client: CpuTime,
    pub(crate) broker: Option<BrokerUsage>,
}

pub(crate) struct BrokerUsage {
    pub(crate) cpu: CpuTime,
    /// As `cpu`, but read after the broker was idle for a moment.
    pub(crate) settled: CpuTime,
    pub(crate) resident_peak_bytes: u64,
    pub(crate) resident_after_bytes: u64,
    pub(crate) written_bytes: Option<u64>,
    pub(crate) read_bytes: Option<u64>,
}

impl UsageMeter {
    pub(crate) fn start(broker: Option<Process>) -> Result<UsageMeter> {
        let (stop, stopped) = mpsc::channel();
        let sampler = thread::spawn(move || broker.map_or(0, |it| peak_resident(it, &stopped)));
        Ok(UsageMeter {
            broker,
            broker_before: broker.map(read).transpose()?.unwrap_or_default(),
            client_before: Process::this().cpu()?,
            started: Instant::now(),
            stop,
            sampler,
        })
    }

    /// Reads the clocks now, and the broker's once more after `settle`.
    pub(crate) fn stop(self, settle: Duration) -> Result<RunUsage> {
        let wall = self.started.elapsed();
        let client = Process::this().cpu()?.since(self.client_before);
        let at_end = self.broker.map(read).transpose()?;
        drop(self.stop);
        let resident_peak_bytes = self.sampler.join().unwrap_or(0);
        let (Some(broker), Some(at_end)) = (self.broker, at_end) else {
            return Ok(RunUsage { wall, client, broker: None });
        };
        thread::sleep(settle);
        let settled = read(broker)?;
        let written_bytes = settled.written_bytes.zip(self.broker_before.written_bytes);
        let read_bytes = settled.read_bytes.zip(self.broker_before.read_bytes);
        let usage = BrokerUsage {
            cpu: at_end.cpu.since(self.broker_before.cpu),
            settled: settled.cpu.since(self.broker_before.cpu),
            resident_peak_bytes,
            resident_after_bytes: broker.resident_bytes()?,
            written_bytes: written_bytes.map(|(after, before)| after.saturating_sub(before)),
            read_bytes: read_bytes.map(|(after, before)| after.saturating_sub(before)),
        };
        Ok(RunUsage { wall, client, broker: Some(usage) })
    }
}

fn read(process: Process) -> Result<UsageReading> {
    let (written_bytes, read_bytes) = (process.written_bytes(), process.read_bytes());
    Ok(UsageReading { cpu: process.cpu()?, written_bytes, read_bytes })
}

/// The peak of memory, until the sender of `stopped` is dropped.
fn peak_resident(process: Process, stopped: &mpsc::Receiver<()>) -> u64 {
    let mut peak = 0;
    loop {
        peak = peak.max(process.resident_bytes().unwrap_or(0));
        if stopped.recv_timeout(SAMPLE_INTERVAL) != Err(RecvTimeoutError::Timeout) {
            return peak;
        }
    }
}
