//! The start time of a server, and the cost of an idle one.
//!
//! A start ends with the first response to Metadata that names a broker: from then on a stock
//! client can work. CPU and memory are those of the whole process tree, because a script may start
//! the server.

use std::{
    fs::File,
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use kafka_protocol::messages::MetadataRequest;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    connection::{BenchConnection, resolve},
    process::Process,
    report::{BenchReport, FigureDirection, mebibytes, millis},
};

const POLL_INTERVAL: Duration = Duration::from_millis(2);
const CONNECT_PATIENCE: Duration = Duration::from_millis(500);
const STOP_PATIENCE: Duration = Duration::from_secs(60);

/// The server to start.
#[derive(Args, Clone, Debug)]
pub(crate) struct StartupWork {
    /// The command that runs the server in the foreground, given to sh
    #[arg(long, short)]
    command: String,

    /// The address on which it will listen, HOST:PORT
    #[arg(long, short, default_value = "127.0.0.1:9092")]
    bootstrap: String,

    /// A command given to sh before each start, not measured: to empty a data directory, say
    #[arg(long)]
    prepare: Option<String>,

    /// Starts to measure; medians are shown
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,

    /// Seconds to leave it idle before memory is read again
    #[arg(long, default_value_t = 3.0)]
    idle: f64,

    /// Fail if a start takes more than this many seconds
    #[arg(long, default_value_t = 120)]
    seconds_max: u64,

    /// The file for the server's own output
    #[arg(long, default_value = "/dev/null")]
    output: String,
}

/// A server process, stopped with its tree when this is dropped.
struct ServerProcess {
    child: Child,
}

impl ServerProcess {
    fn start(command: &str, output: &str) -> Result<ServerProcess> {
        let output = File::options().append(true).create(true).open(output);
        let output = output.context("open the file for the server's output")?;
        let child = Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("start the server")?;
        Ok(ServerProcess { child })
    }

    fn process(&self) -> Process {
        Process { pid: self.child.id() }
    }

    fn ensure_running(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the server ended before it answered: {status} (see --output)"),
        }
    }

    /// Asks each process of the tree to end, by its id, and waits. Kills those that do not.
    fn stop(&mut self) -> Duration {
        let asked_at = Instant::now();
        let tree = self.process().tree();
        tree.iter().for_each(|process| signal(*process, Signal::TERM));
        while !self.has_ended(&tree) && asked_at.elapsed() < STOP_PATIENCE {
            thread::sleep(POLL_INTERVAL);
        }
        if !self.has_ended(&tree) {
            eprintln!("warning: the server did not end when asked to, and is killed");
            tree.iter().for_each(|process| signal(*process, Signal::KILL));
            let _ = self.child.wait();
        }
        asked_at.elapsed()
    }

    fn has_ended(&mut self, tree: &[Process]) -> bool {
        let root_ended = !matches!(self.child.try_wait(), Ok(None));
        // A zombie has no resident memory.
        root_ended && tree.iter().all(|process| process.resident_bytes().is_err())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.stop();
        }
    }
}

fn signal(process: Process, signal: Signal) {
    if let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) {
        // A process that has ended meanwhile is no error.
        let _ = kill_process(pid, signal);
    }
}

/// Starts and stops it as often as requested: one report per start.
pub(crate) fn run(work: &StartupWork) -> Result<Vec<BenchReport>> {
    let address = resolve(&work.bootstrap)?;
    (0..work.rounds).map(|_| measure(work, address)).collect()
}

fn measure(work: &StartupWork, address: SocketAddr) -> Result<BenchReport> {
    ensure!(
        TcpStream::connect_timeout(&address, CONNECT_PATIENCE).is_err(),
        "something listens already. address={address}"
    );
    if let Some(prepare) = &work.prepare {
        let status = Command::new("sh").args(["-c", prepare]).status().context("prepare")?;
        ensure!(status.success(), "the command to prepare failed: {status}");
    }
    let started = Instant::now();
    let mut server = ServerProcess::start(&work.command, &work.output)?;
    wait_for_metadata(&mut server, address, started + Duration::from_secs(work.seconds_max))?;
    let wall = started.elapsed();
    let process = server.process();
    let (cpu, resident) = (process.tree_cpu(), process.tree_resident_bytes());

    let idle = Duration::from_secs_f64(work.idle);
    thread::sleep(idle);
    server.ensure_running()?;
    let (cpu_later, resident_later) = (process.tree_cpu(), process.tree_resident_bytes());
    let idle_share = cpu_later.saturating_sub(cpu).as_secs_f64() / idle.as_secs_f64().max(1e-3);
    let stop = server.stop();

    let mut report = BenchReport::new("startup", "to first Metadata".to_owned(), &work.bootstrap);
    report.add(FigureDirection::Lower, "wall ms", millis(wall));
    report.add(FigureDirection::Lower, "CPU ms", millis(cpu));
    report.add(FigureDirection::Lower, "RSS MiB", mebibytes(resident));
    report.add(FigureDirection::Lower, "RSS after idle MiB", mebibytes(resident_later));
    report.add(FigureDirection::Lower, "idle CPU %", idle_share * 100.0);
    report.add(FigureDirection::Lower, "stop ms", millis(stop));
    Ok(report)
}

fn wait_for_metadata(
    server: &mut ServerProcess,
    address: SocketAddr,
    deadline: Instant,
) -> Result<()> {
    while !answers_metadata(address) {
        server.ensure_running()?;
        ensure!(Instant::now() < deadline, "the server does not answer in time");
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn answers_metadata(address: SocketAddr) -> bool {
    let ask = || -> Result<bool> {
        let mut connection = BenchConnection::open(address)?;
        let version = connection.version::<MetadataRequest>(1..=12)?;
        let every_topic = MetadataRequest::default().with_topics(None);
        Ok(!connection.call(&every_topic, version)?.brokers.is_empty())
    };
    ask().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_stopped_with_the_children_it_started() {
        let mut server = ServerProcess::start("sleep 100 & sleep 100; true", "/dev/null").unwrap();
        let appeared = Instant::now() + Duration::from_secs(5);
        while server.process().tree().len() < 3 && Instant::now() < appeared {
            thread::sleep(POLL_INTERVAL);
        }
        let tree = server.process().tree();
        assert_eq!(tree.len(), 3);
        assert!(server.stop() < Duration::from_secs(5));
        assert!(tree.iter().all(|process| process.resident_bytes().is_err()));
    }

    #[test]
    fn a_server_that_ends_at_once_is_an_error_and_not_a_wait() {
        let mut server = ServerProcess::start("exit 3", "/dev/null").unwrap();
        let unused = "127.0.0.1:1".parse().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let error = wait_for_metadata(&mut server, unused, deadline).unwrap_err();
        assert!(error.to_string().contains("ended before"), "{error}");
    }
}
