//! Keys and certificates that change while the server runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use storage::LogThrottle;
use tls::TlsServer;
use tokio::time::{MissedTickBehavior, interval};

/// The interval at which the files of TLS are checked for changes.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Reads the keys and certificates for `clients` again when their files change. It does not return.
pub(crate) async fn reload_tls(tls: Arc<TlsServer>, clients: &'static str) {
    let mut tick = interval(RELOAD_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (started, mut throttle, mut last) = (Instant::now(), LogThrottle::default(), None);
    loop {
        tick.tick().await;
        let files = Arc::clone(&tls);
        match tokio::task::spawn_blocking(move || files.reload_if_changed()).await {
            Ok(Ok(false)) => {}
            Ok(Ok(true)) => {
                (throttle, last) = Default::default();
                tracing::info!("the key and certificates of TLS for {clients} were read again");
            }
            // It is tried again: the file may be half written, or not ours yet.
            Ok(Err(error)) => {
                let error = error.to_string();
                if last.as_ref() != Some(&error) {
                    (throttle, last) = (LogThrottle::default(), Some(error.clone()));
                }
                if throttle.record_failure(started.elapsed()).is_none() {
                    continue;
                }
                tracing::warn!(%error, "the new key or certificates of TLS for {clients} cannot be used; the old ones stay");
            }
            Err(error) => tracing::error!(%error, "the files of TLS cannot be looked at"),
        }
    }
}
