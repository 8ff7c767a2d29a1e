//! Reads of files on runtime threads: the thread's other tasks move to other threads meanwhile.
//!
//! Data in memory is read on the current thread. If the place cannot be known in advance, the code
//! assumes that the data is in files.

use bytes::Bytes;
use hlc::Cut;
use storage::index::LogTip;
use storage::{EntryPayload, Log, Offset, PayloadLocation, StorageError};
use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs `act`, which may wait for the disk. On a multi-threaded runtime the thread's other tasks
/// move to other threads.
pub fn block_in_place<T>(act: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(act),
        _ => act(),
    }
}

/// [`Log::tip_at`].
///
/// # Errors
/// The index cannot be read.
pub fn tip_at(log: &Log, cut: Cut) -> Result<LogTip, StorageError> {
    let is_in_memory = cut.admits(log.tip().stamp) || log.journal_end_of(cut) > 0;
    if is_in_memory { log.tip_at(cut) } else { block_in_place(|| log.tip_at(cut)) }
}

/// [`Log::tip_at`] and [`Log::journal_end_of`].
pub(crate) fn tip_and_journal_end(log: &Log, cut: Cut) -> Result<(LogTip, u64), StorageError> {
    let reach = log.journal_end_of(cut);
    let is_in_memory = reach > 0 || cut.admits(log.tip().stamp);
    let tip = if is_in_memory { log.tip_at(cut) } else { block_in_place(|| log.tip_at(cut)) };
    Ok((tip?, reach))
}

/// Runs `look`, which reads a log from an offset on.
pub fn read_log_from<T>(log: &Log, from: Offset, look: impl FnOnce() -> T) -> T {
    if from >= log.memory_start() { look() } else { block_in_place(look) }
}

/// [`EntryPayload::read`].
///
/// # Errors
/// The disk fails, or returns other bytes than were written.
pub fn read(piece: &EntryPayload) -> Result<Bytes, StorageError> {
    match piece.location {
        PayloadLocation::Memory(_) => piece.read(),
        PayloadLocation::File { .. } => block_in_place(|| piece.read()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn others_go_on_while_one_waits() {
        let waits = tokio::spawn(async {
            let (sender, waiting) = mpsc::channel();
            tokio::spawn(async move { sender.send(7) });
            block_in_place(|| waiting.recv())
        });
        assert_eq!(waits.await.unwrap(), Ok(7));
    }

    #[tokio::test]
    async fn where_there_are_no_others_it_is_done_on_the_spot() {
        let current = std::thread::current().id();
        assert_eq!(block_in_place(|| std::thread::current().id()), current);
    }

    #[test]
    fn without_a_runtime_too() {
        assert_eq!(block_in_place(|| 7), 7);
    }
}
