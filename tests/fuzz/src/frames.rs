//! The port for Kafka's clients: frames of any API, and messages of logins.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use compat_kafka::{ByteStream, ConnectionEnds, KafkaListener};
use engine::security::Principal;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::FrameCounter;
use crate::world::{PATIENCE, World, with_world};

/// The time that a client stays for its answers.
const STAY: Duration = Duration::from_millis(2);
/// APIs have these numbers, and two above them are our own.
const APIS_MAX: u8 = 100;
const SASL_HANDSHAKE: i16 = 17;
const SASL_AUTHENTICATE: i16 = 36;

/// Parts of an input are separated by it.
const SEPARATOR: u8 = 0xff;

/// Each part is a frame: whole if its first byte is above all APIs, or the number of the API, the
/// version, and the body.
pub(crate) fn run(input: &[u8]) {
    let mut sent = BytesMut::new();
    for part in input.split(|byte| *byte == SEPARATOR) {
        match part {
            [api, version, body @ ..] if *api <= APIS_MAX => {
                put_frame(&mut sent, i16::from(*api), i16::from(*version), body);
            }
            [_, frame @ ..] => {
                sent.extend_from_slice(&(frame.len() as u32).to_be_bytes());
                sent.extend_from_slice(frame);
            }
            [] => {}
        }
    }
    with_world(|world| serve(world, &world.open, sent.freeze()));
}

/// The first byte chooses a mechanism, and each part is a message.
pub(crate) fn run_login(input: &[u8]) {
    let Some((choice, messages)) = input.split_first() else { return };
    let mechanisms = ["SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "PLAIN"];
    let mechanism = mechanisms[usize::from(*choice) % mechanisms.len()];
    // A password that reads costs milliseconds.
    let reads = |message: &[u8]| message.iter().filter(|byte| **byte == 0).count() == 2;
    if mechanism == "PLAIN" && messages.split(|byte| *byte == SEPARATOR).any(reads) {
        return;
    }
    let mut sent = BytesMut::new();
    let mut handshake = (mechanism.len() as u16).to_be_bytes().to_vec();
    handshake.extend(mechanism.as_bytes());
    put_frame(&mut sent, SASL_HANDSHAKE, 1, &handshake);
    for message in messages.split(|byte| *byte == SEPARATOR) {
        let mut body = (message.len() as u32).to_be_bytes().to_vec();
        body.extend(message);
        put_frame(&mut sent, SASL_AUTHENTICATE, 1, &body);
    }
    with_world(|world| serve(world, &world.with_login, sent.freeze()));
}

fn put_frame(sent: &mut BytesMut, api: i16, version: i16, body: &[u8]) {
    // The number of the request, and a client id: of flexible versions, no tagged fields follow,
    // which is the first byte of the body.
    let header =
        [&api.to_be_bytes()[..], &version.to_be_bytes(), &[0, 0, 0, 1, 0, 1, b'c']].concat();
    sent.extend_from_slice(&((header.len() + body.len()) as u32).to_be_bytes());
    sent.extend_from_slice(&header);
    sent.extend_from_slice(body);
}

fn serve(world: &World, listener: &Arc<KafkaListener>, sent: Bytes) {
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 50_000));
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 9092));
    let principal = Principal::anonymous();
    let ends = ConnectionEnds { listener: Arc::clone(listener), peer, local, principal };
    let asked = count_frames(&sent);
    let answers = Mutex::new(FrameCounter::default());
    let client = Arc::new(Client {
        unread: Mutex::new(sent),
        asked,
        answers,
        leaving: Notify::new(),
        is_gone: AtomicBool::new(false),
    });
    let (_running, stop) = watch::channel(false);
    let leaves = Arc::clone(&client);
    world.runtime.block_on(async {
        let serving =
            compat_kafka::serve_stream(Arc::clone(&world.kafka), ClientStream(client), ends, stop);
        let leaving = async {
            tokio::time::sleep(STAY).await;
            leaves.is_gone.store(true, Ordering::Relaxed);
            leaves.leaving.notify_one();
            std::future::pending::<()>().await;
        };
        let served = async {
            tokio::select! {
                () = serving => {}
                () = leaving => {}
            }
        };
        assert!(tokio::time::timeout(PATIENCE, served).await.is_ok(), "a connection hangs");
    });
}

fn count_frames(sent: &[u8]) -> usize {
    let mut counter = FrameCounter::default();
    counter.take(sent);
    counter.frames
}

/// A client that sends all at once, reads all at once, and leaves when everything is answered.
struct Client {
    unread: Mutex<Bytes>,
    /// The number of frames that it sends.
    asked: usize,
    answers: Mutex<FrameCounter>,
    leaving: Notify,
    /// True if it has left.
    is_gone: AtomicBool,
}

struct ClientStream(Arc<Client>);

impl ClientStream {
    fn take(&self, room: usize) -> Bytes {
        let mut unread = self.0.unread.lock();
        let count = room.min(unread.len());
        unread.split_to(count)
    }

    fn is_read(&self) -> bool {
        self.0.unread.lock().is_empty()
    }
}

impl ByteStream for ClientStream {
    async fn readable(&self) -> io::Result<()> {
        if self.is_read() {
            self.0.leaving.notified().await;
            // It is gone for all that ask later.
            self.0.leaving.notify_one();
        }
        Ok(())
    }

    async fn writable(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_ended(&self) -> bool {
        self.0.is_gone.load(Ordering::Relaxed)
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let taken = self.take(buffer.len());
        taken.as_ref().copy_to_slice(&mut buffer[..taken.len()]);
        Ok(taken.len())
    }

    fn try_read_buf(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        let taken = self.take(buffer.capacity() - buffer.len());
        buffer.extend_from_slice(&taken);
        Ok(taken.len())
    }

    fn try_write_vectored(&self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let mut answers = self.0.answers.lock();
        slices.iter().for_each(|slice| answers.take(slice));
        if answers.frames >= self.0.asked {
            self.0.leaving.notify_one();
        }
        Ok(slices.iter().map(|slice| slice.len()).sum())
    }
}

/// A body of each API that says little.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let little = (0..=APIS_MAX).flat_map(|api| {
        [0, 1, 3, 7, 9, 12].map(|version| [&[api, version][..], &[0; 24]].concat())
    });
    let requests = [
        // Metadata of one topic, in an old version and in a flexible one.
        b"\x03\x01\x00\x00\x00\x01\x00\x01t".to_vec(),
        b"\x03\x09\x00\x02\x02t\x00\x00\x00\x00\x00".to_vec(),
        // Two requests, and a frame too short for a header.
        b"\x12\x00\xff\x03\x00\x00\x00\x00\x00\xff\xc8\x00\x03".to_vec(),
        // CreateTopics, FindCoordinator, ListGroups.
        b"\x13\x00\x00\x00\x00\x01\x00\x01u\x00\x00\x00\x01\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\xe8".to_vec(),
        b"\x0a\x01\x00\x01g\x00".to_vec(),
        b"\x10\x00".to_vec(),
    ];
    little.chain(requests).collect()
}

pub(crate) fn login_seeds() -> Vec<Vec<u8>> {
    let scram =
        |choice: u8| [&[choice][..], b"n,,n=alice,r=abc\xffc=biws,r=abcdef,p=AAAA"].concat();
    let mut token = vec![2];
    token.extend(b"n,,\x01auth=Bearer eyJhbGciOiJFUzI1NiJ9.e30.AAAA\x01\x01\xff\x01");
    vec![scram(0), scram(1), token, [&[3][..], b"\0alice"].concat(), vec![0], vec![1, 0xff, 0xff]]
}
