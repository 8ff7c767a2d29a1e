//! Notifies a supervisor on `NOTIFY_SOCKET`, in the protocol of `sd_notify(3)`. Does nothing without
//! that variable.

use std::convert::Infallible;
use std::time::Duration;

use sd_notify::{NotifyState, notify, watchdog_enabled};

use crate::status::ServerStatus;

/// Clients are served.
pub(crate) fn say_ready(addresses: &str) {
    say(&[NotifyState::Ready, NotifyState::Status(addresses)]);
}

/// The server ends.
pub(crate) fn say_stopping() {
    say(&[NotifyState::Stopping]);
}

/// The start goes on, and takes up to `at_most` longer.
pub(crate) fn ask_for_time(at_most: Duration) {
    let micros = u32::try_from(at_most.as_micros()).unwrap_or(u32::MAX);
    say(&[NotifyState::ExtendTimeoutUsec(micros)]);
}

/// Says again and again that the server is healthy, as long as it is and if somebody waits for it.
pub(crate) async fn feed_watchdog(status: &ServerStatus) -> Infallible {
    let Some(patience) = watchdog_enabled() else {
        return std::future::pending().await;
    };
    let mut turns = tokio::time::interval(patience / 2);
    loop {
        turns.tick().await;
        if status.health().is_ok() {
            say(&[NotifyState::Watchdog]);
        }
    }
}

fn say(states: &[NotifyState<'_>]) {
    if let Err(error) = notify(states) {
        tracing::debug!(%error, "the supervisor was not told");
    }
}
