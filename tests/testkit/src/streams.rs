//! Requests of streams groups (KIP-1071), which the codec does not have, and their answers.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::AsyncReadExt;

use crate::kafka::TestKafkaConnection;
use crate::requests::length_prefixed;

const PATIENCE: Duration = Duration::from_secs(30);
const HEARTBEAT: i16 = 88;
const DESCRIBE: i16 = 89;

/// What an application reads, and what it needs for that: one subtopology reads `source` and writes
/// `repartition`, and one reads that and keeps its state in `changelog`.
#[derive(Clone, Debug)]
pub struct TestTopology {
    pub source: String,
    pub repartition: String,
    pub changelog: String,
}

/// Tasks by subtopology, all active.
pub type TestTasks = Vec<(String, Vec<i32>)>;

/// A heartbeat of a member.
#[derive(Clone, Debug, Default)]
pub struct TestStreamsHeartbeat {
    pub group: String,
    pub member: String,
    pub epoch: i32,
    /// With it, the member joins.
    pub topology: Option<TestTopology>,
    pub owned: Option<TestTasks>,
}

/// What an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestStreamsAnswer {
    pub error: i16,
    pub message: Option<String>,
    pub epoch: i32,
    /// Codes and details.
    pub statuses: Vec<(i8, String)>,
    pub active: Option<TestTasks>,
    pub standby: Option<TestTasks>,
}

fn put_text(out: &mut BytesMut, text: &str) {
    assert!(text.len() < 127, "one byte is its length");
    out.put_u8(text.len() as u8 + 1);
    out.put_slice(text.as_bytes());
}

fn put_texts(out: &mut BytesMut, texts: &[&str]) {
    out.put_u8(texts.len() as u8 + 1);
    texts.iter().for_each(|text| put_text(out, text));
}

/// Internal topics with one setting.
fn put_topics(out: &mut BytesMut, topics: &[&str], policy: &str) {
    out.put_u8(topics.len() as u8 + 1);
    for name in topics {
        put_text(out, name);
        out.put_i32(0);
        out.put_i16(0);
        out.put_u8(2);
        put_text(out, "cleanup.policy");
        put_text(out, policy);
        out.put_slice(&[0, 0]);
    }
}

fn put_tasks(out: &mut BytesMut, tasks: &[(String, Vec<i32>)]) {
    out.put_u8(tasks.len() as u8 + 1);
    for (id, indexes) in tasks {
        put_text(out, id);
        out.put_u8(indexes.len() as u8 + 1);
        indexes.iter().for_each(|index| out.put_i32(*index));
        out.put_u8(0);
    }
}

fn frame(key: i16, body: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    out.put_i16(key);
    out.put_i16(0);
    out.put_i32(1);
    out.put_i16(4);
    out.put_slice(b"test");
    out.put_u8(0);
    out.put_slice(body);
    length_prefixed(&out)
}

impl TestTopology {
    fn put(&self, out: &mut BytesMut) {
        out.put_i32(0);
        out.put_u8(3);
        for (id, sources, changelogs, sinks, internal) in [
            ("0", &[self.source.as_str()][..], &[][..], &[self.repartition.as_str()][..], &[][..]),
            ("1", &[], &[self.changelog.as_str()], &[], &[self.repartition.as_str()]),
        ] {
            put_text(out, id);
            put_texts(out, sources);
            put_texts(out, &[]);
            put_topics(out, changelogs, "compact");
            put_texts(out, sinks);
            put_topics(out, internal, "delete");
            out.put_u8(1); // copartitioned topics
            out.put_u8(0);
        }
        out.put_u8(0);
    }
}

impl TestStreamsHeartbeat {
    /// What follows the header of the request.
    pub fn body(&self) -> Vec<u8> {
        let mut out = BytesMut::new();
        put_text(&mut out, &self.group);
        put_text(&mut out, &self.member);
        out.put_i32(self.epoch);
        out.put_i32(-1);
        out.put_slice(&[0, 0]);
        out.put_i32(if self.topology.is_some() { 60_000 } else { -1 });
        match &self.topology {
            Some(topology) => {
                out.put_i8(1);
                topology.put(&mut out);
            }
            None => out.put_i8(-1),
        }
        match &self.owned {
            Some(active) => {
                put_tasks(&mut out, active);
                out.put_slice(&[1, 1]);
            }
            None => out.put_slice(&[0; 3]),
        }
        match self.topology {
            Some(_) => put_text(&mut out, "process"),
            None => out.put_u8(0),
        }
        out.put_i8(-1);
        // Neither tags nor offsets of tasks, and no shutdown.
        out.put_slice(&[0; 5]);
        out.to_vec()
    }

    pub fn frame(&self) -> Vec<u8> {
        TestStreamsHeartbeat::frame_of(&self.body())
    }

    /// A heartbeat with any bytes.
    pub fn frame_of(body: &[u8]) -> Vec<u8> {
        frame(HEARTBEAT, body)
    }
}

/// A request that describes groups.
pub fn describe_streams_frame(groups: &[&str]) -> Vec<u8> {
    let mut out = BytesMut::new();
    let (count, mut rest) = (groups.len() as u32 + 1, BytesMut::new());
    groups.iter().for_each(|group| put_text(&mut rest, group));
    out.put_u8(count as u8 | 0x80);
    out.put_u8((count >> 7) as u8);
    out.put_slice(&rest);
    out.put_slice(&[0, 0]);
    frame(DESCRIBE, &out)
}

fn text(from: &mut Bytes) -> Option<String> {
    let length = from.get_u8().checked_sub(1)?;
    let length = if length < 0x7f { usize::from(length) } else { long_length(length, from) };
    Some(String::from_utf8(from.split_to(length).to_vec()).expect("a text"))
}

/// A length of two bytes, of which one was read, less one.
fn long_length(first: u8, from: &mut Bytes) -> usize {
    usize::from((first + 1) & 0x7f) + (usize::from(from.get_u8()) << 7) - 1
}

fn tasks(from: &mut Bytes) -> Option<TestTasks> {
    let count = from.get_u8().checked_sub(1)?;
    let mut tasks = TestTasks::new();
    for _ in 0..count {
        let id = text(from).expect("a subtopology");
        let indexes = (1..from.get_u8()).map(|_| from.get_i32()).collect();
        from.advance(1);
        tasks.push((id, indexes));
    }
    Some(tasks)
}

impl TestKafkaConnection {
    /// Reads what follows the header of an answer.
    ///
    /// # Panics
    /// Neither an answer nor the end comes.
    pub async fn answer_bytes(&mut self) -> std::io::Result<Bytes> {
        let read = async {
            let length = self.0.read_i32().await?;
            let mut bytes = vec![0; length as usize];
            self.0.read_exact(&mut bytes).await?;
            Ok(Bytes::from(bytes).slice(5..))
        };
        tokio::time::timeout(PATIENCE, read).await.expect("an answer comes, or the end")
    }

    /// Sends a heartbeat, and reads its answer.
    pub async fn streams_heartbeat(
        &mut self,
        heartbeat: &TestStreamsHeartbeat,
    ) -> std::io::Result<TestStreamsAnswer> {
        self.send(&heartbeat.frame()).await?;
        let mut from = self.answer_bytes().await?;
        from.advance(4);
        let (error, message) = (from.get_i16(), text(&mut from));
        text(&mut from);
        let epoch = from.get_i32();
        from.advance(12);
        let mut statuses = Vec::new();
        for _ in 1..from.get_u8().max(1) {
            statuses.push((from.get_i8(), text(&mut from).expect("a detail")));
            from.advance(1);
        }
        let (active, standby) = (tasks(&mut from), tasks(&mut from));
        Ok(TestStreamsAnswer { error, message, epoch, statuses, active, standby })
    }
}
