//! A server process from start to end: the runtime, signals, and a store that stops.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::broker::{Broker, RunningBroker, restrict_new_files};
use crate::config::Config;
use crate::{descriptors, supervisor};

/// The time for which an idle blocking thread is kept for the next call.
const BLOCKING_THREAD_KEEP_ALIVE: Duration = Duration::from_millis(500);
/// The time limit for the runtime to end.
const RUNTIME_END_MAX: Duration = Duration::from_secs(1);

/// Serves until a signal ends the process or the store stops.
///
/// Calls `ready` once clients are served. A second signal ends the process at once.
///
/// # Errors
/// The server does not start, or the store has stopped.
pub fn run(
    mut config: Config,
    ready: impl FnOnce(&RunningBroker) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    restrict_new_files();
    descriptors::limit_connections(&mut config);
    let runtime = runtime().context("start the runtime")?;
    let result = runtime.block_on(serve(config, ready));
    runtime.shutdown_timeout(RUNTIME_END_MAX);
    result
}

fn runtime() -> std::io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread()
        .worker_threads(cores)
        .thread_name("worker")
        .thread_keep_alive(BLOCKING_THREAD_KEEP_ALIVE)
        .enable_all()
        .build()
}

async fn serve(
    config: Config,
    ready: impl FnOnce(&RunningBroker) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut signals = ShutdownSignals::new().context("wait for signals")?;
    let data_dir = config.data_dir.display().to_string();
    let mut running = tokio::select! {
        running = Broker::start(config) => running?,
        name = signals.next() => {
            // Nothing was acknowledged yet, so recovery can be interrupted as safely as a crash.
            tracing::info!("{name} while starting; leaving at once");
            std::process::exit(0);
        }
    };
    tracing::info!(%data_dir, cluster = running.cluster_id(), "{running}");
    let told = ready(&running);
    if told.is_ok() {
        supervisor::say_ready(&running.to_string());
    }
    let status = Arc::clone(running.status());
    let failed = tokio::select! {
        name = signals.next() => {
            tracing::info!("{name}; stopping");
            Ok(name)
        }
        why = wait_for_failure(told, &mut running) => Err(why),
        never = supervisor::feed_watchdog(&status) => match never {},
    };
    supervisor::say_stopping();
    let reason = match &failed {
        Ok(signal) => (*signal).to_owned(),
        Err(error) => format!("{error:#}"),
    };
    tokio::select! {
        () = running.close(&reason) => {}
        name = signals.next() => {
            tracing::warn!("{name} again; leaving at once");
            std::process::exit(1);
        }
    }
    tracing::info!("stopped");
    failed.map(drop)
}

/// Waits for a failure. A failed `ready` counts as one.
async fn wait_for_failure(ready: anyhow::Result<()>, running: &mut RunningBroker) -> anyhow::Error {
    match ready {
        Ok(()) => anyhow::Error::msg(running.wait_for_failure().await),
        Err(error) => error.context("say that the server is ready"),
    }
}

/// The signals that end the process.
struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl ShutdownSignals {
    fn new() -> std::io::Result<ShutdownSignals> {
        let terminate = signal(SignalKind::terminate())?;
        Ok(ShutdownSignals { terminate, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
