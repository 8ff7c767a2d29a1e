//! Any server that speaks ZooKeeper's protocol: how fast it writes and reads znodes, what CPU a
//! request costs it, and how long a request takes; two servers in turn.
//!
//! A session is a thread with one connection and a number of requests on their way: 1 is a synchronous
//! client. Both servers run on this machine, so that their CPU time can be read.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::{BufMut, BytesMut};
use clap::Args;
use zk_wire::{ConnectRequest, JuteWriter};

use crate::connection::resolve;
use crate::histogram::Histogram;
use crate::meter::broker_behind;
use crate::process::Process;
use crate::report::{align_right, millis, number, table};

const CREATE: i32 = 1;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
/// The bytes of a znode's data, as in ZooKeeper's own figures.
const DATA: [u8; 128] = [b'x'; 128];
const READ_BYTES: usize = 64 << 10;

/// What is measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct ZookeeperWork {
    /// A server, HOST:PORT on this machine
    #[arg(long)]
    ours: String,

    /// Another one to compare with
    #[arg(long)]
    theirs: Option<String>,

    /// How long each measurement takes, in seconds
    #[arg(long, default_value_t = 3)]
    seconds: u64,

    /// How often each is repeated; medians are shown
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ZnodeLoad {
    Create,
    Get,
    Set,
}

/// A load, and by how many it is done.
#[derive(Clone, Copy, Debug)]
struct ZookeeperCase {
    load: ZnodeLoad,
    sessions: usize,
    /// Requests of a session that are on their way.
    depth: usize,
}

/// What a run found.
#[derive(Clone, Copy, Debug)]
struct ZookeeperFigures {
    per_second: f64,
    cpu_us: f64,
    p50_ms: f64,
    p99_ms: f64,
}

impl ZookeeperWork {
    /// Measures, and prints a table.
    ///
    /// # Errors
    /// A server cannot be reached, or answers with an error.
    pub(crate) fn run(&self) -> Result<()> {
        let servers: Vec<&str> = [Some(&self.ours), self.theirs.as_ref()]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect();
        let mut header = vec!["load".to_owned()];
        for name in ["requests/s", "CPU us/request", "p50 ms", "p99 ms"] {
            header.extend(servers.iter().map(|server| format!("{name} {server}")));
            if servers.len() > 1 {
                header.push("ratio".to_owned());
            }
        }
        let mut shown = table(header);
        for load in [ZnodeLoad::Create, ZnodeLoad::Set, ZnodeLoad::Get] {
            for (sessions, depth) in [(1, 1), (16, 1), (16, 64), (128, 1)] {
                let case = ZookeeperCase { load, sessions, depth };
                let mut found = vec![Vec::new(); servers.len()];
                for round in 0..self.rounds {
                    for (server, figures) in servers.iter().zip(&mut found) {
                        figures.push(self.measure(server, case, round)?);
                    }
                }
                let mut row = vec![format!("{load:?} {sessions} x {depth}")];
                let fields: [fn(&ZookeeperFigures) -> f64; 4] = [
                    |figures| figures.per_second,
                    |figures| figures.cpu_us,
                    |figures| figures.p50_ms,
                    |figures| figures.p99_ms,
                ];
                for field in fields {
                    let medians: Vec<f64> = found.iter().map(|all| median(all, field)).collect();
                    row.extend(medians.iter().map(|value| number(*value)));
                    if let [ours, theirs] = medians[..] {
                        row.push(number(ours / theirs));
                    }
                }
                shown.add_row(row);
                eprintln!("measured {load:?} {sessions} x {depth}");
            }
        }
        align_right(&mut shown, 1..);
        println!("{shown}");
        Ok(())
    }

    fn measure(&self, server: &str, case: ZookeeperCase, round: usize) -> Result<ZookeeperFigures> {
        let address = resolve(server)?;
        let process = broker_behind(address, None).context("the server runs on this machine")?;
        let name = format!("bench-{:?}-{}-{}-{round}", case.load, case.sessions, case.depth);
        let run = format!("/{name}-{}", std::process::id());
        let mut setup = ZnodeSession::begin(server)?;
        setup.create(&run)?;
        let mut sessions = Vec::new();
        for nth in 0..case.sessions {
            let mut session = ZnodeSession::begin(server)?;
            session.root = format!("{run}/{nth}");
            session.create(&session.root.clone())?;
            sessions.push(session);
        }
        let (before, begun) = (process.cpu()?, Instant::now());
        let end = begun + Duration::from_secs(self.seconds);
        let threads: Vec<_> = sessions
            .into_iter()
            .map(|session| std::thread::spawn(move || session.run(case, end)))
            .collect();
        let mut latencies = Histogram::new();
        for thread in threads {
            latencies.merge(&thread.join().expect("a session does not panic")?);
        }
        figures(process, &latencies, begun.elapsed(), before)
    }
}

fn figures(
    process: Process,
    latencies: &Histogram,
    wall: Duration,
    before: crate::process::CpuTime,
) -> Result<ZookeeperFigures> {
    let cpu = process.cpu()?.since(before).total();
    let requests = latencies.count() as f64;
    ensure!(requests > 0.0, "nothing was answered");
    Ok(ZookeeperFigures {
        per_second: requests / wall.as_secs_f64(),
        cpu_us: cpu.as_secs_f64() * 1e6 / requests,
        p50_ms: millis(latencies.percentile(50.0)),
        p99_ms: millis(latencies.percentile(99.0)),
    })
}

fn median(all: &[ZookeeperFigures], field: fn(&ZookeeperFigures) -> f64) -> f64 {
    let mut values: Vec<f64> = all.iter().map(field).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A connection with a session.
struct ZnodeSession {
    stream: TcpStream,
    received: BytesMut,
    unsent: BytesMut,
    xid: i32,
    /// The znode below which it works.
    root: String,
}

impl ZnodeSession {
    fn begin(server: &str) -> Result<ZnodeSession> {
        let stream = TcpStream::connect(server).with_context(|| format!("connect to {server}"))?;
        stream.set_nodelay(true)?;
        let (received, unsent) = Default::default();
        let mut session = ZnodeSession { stream, received, unsent, xid: 0, root: String::new() };
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 0,
            timeout_ms: 30_000,
            session_id: 0,
            password: Some(bytes::Bytes::from_static(&[0; 16])),
            read_only: Some(false),
        };
        session.frame(|out| request.write(out));
        session.flush()?;
        session.frame_received()?;
        Ok(session)
    }

    fn frame(&mut self, write: impl FnOnce(&mut BytesMut)) {
        let start = self.unsent.len();
        self.unsent.put_i32(0);
        write(&mut self.unsent);
        let length = (self.unsent.len() - start - 4) as i32;
        self.unsent[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }

    fn ask(&mut self, opcode: i32, write: impl FnOnce(&mut BytesMut)) {
        self.xid += 1;
        let xid = self.xid;
        self.frame(|out| {
            out.int(xid);
            out.int(opcode);
            write(out);
        });
    }

    fn ask_for(&mut self, load: ZnodeLoad) {
        let root = std::mem::take(&mut self.root);
        match load {
            ZnodeLoad::Create => {
                let path = format!("{root}/{}", self.xid);
                self.ask(CREATE, |out| put_create(out, &path));
            }
            ZnodeLoad::Set => self.ask(SET_DATA, |out| {
                out.string(Some(&root));
                out.buffer(Some(&DATA));
                out.int(-1);
            }),
            ZnodeLoad::Get => self.ask(GET_DATA, |out| {
                out.string(Some(&root));
                out.bool(false);
            }),
        }
        self.root = root;
    }

    fn create(&mut self, path: &str) -> Result<()> {
        self.ask(CREATE, |out| put_create(out, path));
        self.flush()?;
        self.reply()
    }

    fn flush(&mut self) -> Result<()> {
        self.stream.write_all(&self.unsent)?;
        self.unsent.clear();
        Ok(())
    }

    /// Waits for a frame, and drops it; returns the error code in it, if it is a reply.
    fn frame_received(&mut self) -> Result<i32> {
        loop {
            if let Some(length) = self.received.first_chunk::<4>() {
                let end = 4 + i32::from_be_bytes(*length) as usize;
                if self.received.len() >= end {
                    let frame = self.received.split_to(end);
                    let err = frame.get(16..20).and_then(|err| err.try_into().ok());
                    return Ok(err.map_or(0, i32::from_be_bytes));
                }
            }
            let filled = self.received.len();
            self.received.resize(filled + READ_BYTES, 0);
            let read = self.stream.read(&mut self.received[filled..])?;
            self.received.truncate(filled + read);
            ensure!(read > 0, "the server has closed the connection");
        }
    }

    fn reply(&mut self) -> Result<()> {
        let err = self.frame_received()?;
        ensure!(err == 0, "the server answered with error {err}");
        Ok(())
    }

    /// Keeps requests on their way until `end`; returns how long each took.
    fn run(mut self, case: ZookeeperCase, end: Instant) -> Result<Histogram> {
        let mut latencies = Histogram::new();
        let mut waiting = VecDeque::new();
        loop {
            if Instant::now() < end {
                while waiting.len() < case.depth {
                    self.ask_for(case.load);
                    waiting.push_back(Instant::now());
                }
                self.flush()?;
            }
            let Some(sent) = waiting.pop_front() else { return Ok(latencies) };
            self.reply()?;
            latencies.record(sent.elapsed());
        }
    }
}

fn put_create(out: &mut BytesMut, path: &str) {
    out.string(Some(path));
    out.buffer(Some(&DATA));
    out.int(1);
    out.int(31);
    out.string(Some("world"));
    out.string(Some("anyone"));
    out.int(0);
}
