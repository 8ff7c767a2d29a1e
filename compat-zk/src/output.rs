//! What a connection will send: replies and events, in order.
//!
//! Replies and events are appended to a buffer without waiting. One task per connection writes the
//! buffer to the socket.

use std::io;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use engine_znodes::ZkCode;
use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use zk_wire::opcode::NOTIFICATION_XID;
use zk_wire::{ConnectResponse, JuteWriter, ReplyHeader, put_frame};

use crate::event::{WatchEvent, WatchEventKind};
use crate::traffic::{ReplyStats, RequestMark};

/// How long a client gets to read what was sent before the end.
const LAST_READ_MAX: Duration = Duration::from_secs(5);

/// `SyncConnected`, the state in every event.
const CONNECTED: i32 = 3;

#[derive(Debug, Default)]
struct OutputState {
    buffer: BytesMut,
    /// Nothing is appended any more; what is there is still sent.
    ended: bool,
    stats: ReplyStats,
}

/// The output of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionOutput {
    state: Mutex<OutputState>,
    filled: Notify,
    drained: Notify,
    ending: Notify,
    /// A client that does not read its events is cut off once so many bytes wait.
    bytes_max: usize,
}

impl ConnectionOutput {
    pub(crate) fn new(bytes_max: usize) -> ConnectionOutput {
        ConnectionOutput {
            state: Mutex::default(),
            filled: Notify::new(),
            drained: Notify::new(),
            ending: Notify::new(),
            bytes_max,
        }
    }

    /// Whether `bytes` may wait for the client. The connection is closed once more wait.
    pub(crate) fn may_hold(&self, bytes: usize) -> bool {
        bytes <= self.bytes_max
    }

    /// Appends a reply, with a body unless it is an error.
    pub(crate) fn reply(
        &self,
        request: RequestMark,
        zxid: i64,
        result: Result<impl FnOnce(&mut BytesMut), ZkCode>,
    ) {
        let err = result.as_ref().err().map_or(0, |code| code.number());
        self.reply_with_body(request, zxid, err, |out| {
            if let Ok(body) = result {
                body(out);
            }
        });
    }

    /// Appends a reply of a header only.
    pub(crate) fn reply_header(&self, request: RequestMark, zxid: i64, result: Result<(), ZkCode>) {
        self.reply(request, zxid, result.map(|()| |_: &mut BytesMut| ()));
    }

    /// Appends a reply whose body comes also with an error.
    pub(crate) fn reply_with_body(
        &self,
        request: RequestMark,
        zxid: i64,
        err: i32,
        body: impl FnOnce(&mut BytesMut),
    ) {
        self.push(Some((request, zxid)), |out| {
            ReplyHeader { xid: request.xid, zxid, err }.write(out);
            body(out);
        });
    }

    pub(crate) fn event(&self, event: &WatchEvent<'_>) {
        let WatchEvent { kind, path, zxid } = event;
        self.push(None, |out| {
            ReplyHeader { xid: NOTIFICATION_XID, zxid: *zxid, err: 0 }.write(out);
            out.int(match kind {
                WatchEventKind::Created => 1,
                WatchEventKind::Deleted => 2,
                WatchEventKind::DataChanged => 3,
                WatchEventKind::ChildrenChanged => 4,
            });
            out.int(CONNECTED);
            out.string(Some(path));
        });
    }

    pub(crate) fn connected(&self, response: &ConnectResponse) {
        self.push(None, |out| response.write(out));
    }

    /// Appends bytes that are no frame.
    pub(crate) fn text(&self, text: &str) {
        self.state.lock().buffer.put_slice(text.as_bytes());
        self.filled.notify_one();
    }

    /// What was sent on the connection.
    pub(crate) fn stats(&self) -> ReplyStats {
        self.state.lock().stats
    }

    pub(crate) fn change_stats(&self, change: impl FnOnce(&mut ReplyStats)) {
        change(&mut self.state.lock().stats);
    }

    /// Appends a frame: the reply to a request with its zxid, or something else.
    fn push(&self, reply: Option<(RequestMark, i64)>, write: impl FnOnce(&mut BytesMut)) {
        let mut state = self.state.lock();
        if state.ended {
            return;
        }
        put_frame(&mut state.buffer, write);
        state.stats.sent();
        if let Some((request, zxid)) = reply {
            state.stats.replied(request, zxid);
        }
        if !self.may_hold(state.buffer.len()) {
            tracing::debug!(
                bytes = state.buffer.len(),
                "a ZooKeeper client does not read; its connection is closed"
            );
            state.buffer.clear();
            state.ended = true;
        }
        let ended = state.ended;
        drop(state);
        self.filled.notify_one();
        if ended {
            self.ending.notify_one();
        }
    }

    /// Ends the output: what is there is sent, if the client reads it soon, and then the connection
    /// is closed.
    pub(crate) fn end(&self) {
        self.end_with(|_| ());
    }

    /// Ends it at once: nothing more is sent. A reply that comes meanwhile must not be sent either: those before it
    /// would be missing.
    pub(crate) fn cut(&self) {
        self.end_with(BytesMut::clear);
    }

    fn end_with(&self, change: impl FnOnce(&mut BytesMut)) {
        let mut state = self.state.lock();
        change(&mut state.buffer);
        state.ended = true;
        drop(state);
        self.filled.notify_one();
        self.drained.notify_one();
        self.ending.notify_one();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().ended
    }

    /// Waits until at most `bytes` wait to be sent, or it has ended.
    pub(crate) async fn wait_for_room(&self, bytes: usize) {
        loop {
            let drained = self.drained.notified();
            let has_room = {
                let state = self.state.lock();
                state.ended || state.buffer.len() <= bytes
            };
            if has_room {
                return;
            }
            drained.await;
        }
    }

    /// Waits until it has ended, and for as long as a client then gets to read the rest.
    async fn given_time_to_read(&self) {
        loop {
            let ending = self.ending.notified();
            if self.has_ended() {
                break;
            }
            ending.await;
        }
        tokio::time::sleep(LAST_READ_MAX).await;
    }

    /// Writes to `stream` until the output ends, or the stream fails.
    pub(crate) async fn write_to(&self, stream: &mut (impl AsyncWrite + Unpin)) {
        loop {
            let filled = self.filled.notified();
            let (bytes, ended) = {
                let mut state = self.state.lock();
                (state.buffer.split(), state.ended)
            };
            if bytes.is_empty() {
                if ended {
                    let _ = stream.shutdown().await;
                    return;
                }
                filled.await;
                continue;
            }
            tokio::select! {
                biased;
                written = write_all(stream, &bytes) => match written {
                    Ok(()) => self.drained.notify_one(),
                    Err(_) => return,
                },
                () = self.given_time_to_read() => return,
            }
        }
    }
}

async fn write_all(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    // TLS may still hold the last of it.
    stream.flush().await
}
