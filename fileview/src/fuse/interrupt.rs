//! Cancellation of slow requests: a program that is killed must not have to wait for them.
//!
//! The kernel blocks a program until its request is answered, even while the program is being
//! killed. The kernel would report that (`FUSE_INTERRUPT`), but `fuser` does not pass it on. So
//! this module polls `/proc` to see whether the calling thread is being killed.

use std::cell::Cell;
use std::time::Duration;

const PROC_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// SIGKILL as one bit of a signal mask. The kernel raises it for every other signal that ends a
/// program, such as that of Ctrl-C.
const SIGKILL_BIT: u64 = 1 << 8;

thread_local! {
    static CALLER_THREAD: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Serves a request of the thread `asker`, which is the kernel's thread id.
pub(super) fn serve_for_caller(asker: u32, serve: impl FnOnce()) {
    struct CallerGuard;
    impl Drop for CallerGuard {
        fn drop(&mut self) {
            CALLER_THREAD.set(None);
        }
    }
    CALLER_THREAD.set(Some(asker));
    let _end = CallerGuard;
    serve();
}

/// Waits for an answer to the caller that this thread serves; `None` once that caller is being
/// killed.
pub(super) async fn wait_unless_killed<T>(answer: impl Future<Output = T>) -> Option<T> {
    let asker = CALLER_THREAD.get();
    wait_while(answer, || asker.is_none_or(|asker| !is_killed(asker))).await
}

async fn wait_while<T>(answer: impl Future<Output = T>, is_wanted: impl Fn() -> bool) -> Option<T> {
    let mut answer = std::pin::pin!(answer);
    loop {
        match tokio::time::timeout(PROC_POLL_INTERVAL, answer.as_mut()).await {
            Ok(answer) => return Some(answer),
            Err(_) if is_wanted() => {}
            Err(_) => return None,
        }
    }
}

fn is_killed(thread: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"));
    status.is_ok_and(|status| has_pending_sigkill(&status))
}

/// True if the signal is pending for the thread, or for its process.
fn has_pending_sigkill(status: &str) -> bool {
    status.lines().any(|line| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask & SIGKILL_BIT != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_being_killed_is_known_by_its_signals() {
        let status = |thread: &str, shared: &str| {
            format!("Name:\tcat\nSigPnd:\t{thread}\nShdPnd:\t{shared}\nSigBlk:\tffffffffffffffff\n")
        };
        assert!(!has_pending_sigkill(&status("0000000000000000", "0000000000000002")));
        assert!(has_pending_sigkill(&status("0000000000000100", "0000000000000000")));
        assert!(has_pending_sigkill(&status("0000000000000000", "0000000000000102")));
        assert!(!is_killed(std::process::id()) && !is_killed(0));
    }

    #[tokio::test]
    async fn an_answer_is_waited_for_while_somebody_wants_it() {
        assert_eq!(wait_while(async { 5 }, || false).await, Some(5));
        assert_eq!(wait_while(std::future::pending::<u8>(), || false).await, None);
        assert_eq!(wait_unless_killed(tokio::task::yield_now()).await, Some(()));
    }
}
