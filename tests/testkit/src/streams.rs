//! Requests of streams groups (KIP-1071), which the codec does not have, and their answers.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::requests::length_prefixed;

const HEARTBEAT: i16 = 88;
const DESCRIBE: i16 = 89;

/// A part of an application.
#[derive(Clone, Debug, Default)]
pub struct TestSubtopology {
    /// The topic of others that it reads, if it reads one.
    pub source: Option<String>,
    /// The topic that the application makes for it to read.
    pub repartition: Option<String>,
    /// The topic of that kind that it writes.
    pub sink: Option<String>,
    /// The topic of its state.
    pub changelog: Option<String>,
}

/// The parts of an application.
#[derive(Clone, Debug)]
pub struct TestTopology(pub Vec<TestSubtopology>);

impl TestTopology {
    /// One part reads `source` and writes `repartition`, and one reads that and keeps its state in
    /// `changelog`.
    pub fn counting(source: &str, repartition: &str, changelog: &str) -> TestTopology {
        let name = |name: &str| Some(name.to_owned());
        TestTopology(vec![
            TestSubtopology {
                source: name(source),
                sink: name(repartition),
                ..TestSubtopology::default()
            },
            TestSubtopology {
                repartition: name(repartition),
                changelog: name(changelog),
                ..TestSubtopology::default()
            },
        ])
    }
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

/// The content of an answer.
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

fn put_name(out: &mut BytesMut, name: Option<&String>) {
    out.put_u8(name.iter().len() as u8 + 1);
    name.iter().for_each(|name| put_text(out, name));
}

/// An internal topic with one setting, if there is one.
fn put_topic(out: &mut BytesMut, name: Option<&String>, policy: &str) {
    out.put_u8(name.iter().len() as u8 + 1);
    if let Some(name) = name {
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
        out.put_u8(self.0.len() as u8 + 1);
        for (nth, part) in self.0.iter().enumerate() {
            put_text(out, &nth.to_string());
            put_name(out, part.source.as_ref());
            out.put_u8(1); // no regular expressions
            put_topic(out, part.changelog.as_ref(), "compact");
            put_name(out, part.sink.as_ref());
            put_topic(out, part.repartition.as_ref(), "delete");
            out.put_u8(1); // no copartitioned topics
            out.put_u8(0);
        }
        out.put_u8(0);
    }
}

impl TestStreamsHeartbeat {
    /// The bytes after the header of the request.
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

impl TestStreamsAnswer {
    /// Reads an answer behind its length.
    ///
    /// # Panics
    /// It is not one.
    pub fn parse(answer: Bytes) -> TestStreamsAnswer {
        let mut from = body_of(answer);
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
        TestStreamsAnswer { error, message, epoch, statuses, active, standby }
    }
}

/// The bytes after the header of an answer.
pub fn body_of(answer: Bytes) -> Bytes {
    answer.slice(5..)
}
