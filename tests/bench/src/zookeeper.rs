//! Any server that speaks ZooKeeper's protocol: how fast it writes and reads znodes, what CPU a
//! request costs it, and how long a request takes; two servers in turn.
//!
//! A session is a thread with one connection and a number of requests on their way: 1 is a
//! synchronous client. Both servers run on this machine, so that their CPU time can be read.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::{BufMut, BytesMut};
use clap::{Args, ValueEnum};
use zk_wire::{ConnectRequest, JuteWriter};

use crate::connection::resolve;
use crate::histogram::Histogram;
use crate::meter::broker_behind;
use crate::process::Process;
use crate::report::{align_right, millis, number, table};

const CREATE: i32 = 1;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const DELETE: i32 = 2;
const GET_CHILDREN: i32 = 8;
const MULTI: i32 = 14;
const ADD_WATCH: i32 = 106;
const CLOSE_SESSION: i32 = -11;
/// The number of changes in a multi.
const MULTI_OPS: usize = 10;
/// Children that are listed, and others that were deleted before.
const CHILDREN: usize = 10;
const GONE_CHILDREN: usize = 100_000;
/// Children that one transaction creates and deletes.
const GONE_AT_ONCE: usize = 500;
/// The measurements of each load: sessions, and requests on their way.
const PLAIN: &[(usize, usize)] = &[(1, 1), (16, 1), (16, 64), (128, 1)];
/// The bytes of a znode's data, as in ZooKeeper's own figures.
const DATA: [u8; 128] = [b'x'; 128];
const READ_BYTES: usize = 64 << 10;

/// The servers and the loads to measure.
#[derive(Args, Clone, Debug)]
pub(crate) struct ZookeeperWork {
    /// A server, HOST:PORT on this machine
    #[arg(long)]
    ours: String,

    /// Another one to compare with
    #[arg(long)]
    theirs: Option<String>,

    /// The duration of each measurement, in seconds
    #[arg(long, default_value_t = 3)]
    seconds: u64,

    /// Rounds of each measurement; medians are shown
    #[arg(long, default_value_t = 3)]
    rounds: usize,

    /// Only this load; may be given more than once
    #[arg(long, value_enum)]
    only: Vec<ZnodeLoad>,

    /// Measures no load, but creates so many thousand znodes, and says how much memory the servers
    /// have
    #[arg(long, value_name = "THOUSANDS")]
    fill: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ZnodeLoad {
    Create,
    Set,
    Get,
    /// Creates a znode and deletes it, in turn.
    CreateDelete,
    /// Ten changes of data in one transaction.
    Multi,
    /// Reads data as of a moment; of our server alone.
    GetThen,
    /// Lists ten children of a znode from which a hundred thousand have gone.
    Children,
    /// Lists them as of a moment; of our server alone.
    ChildrenThen,
    /// Connects, and closes the session.
    Connect,
    /// Changes data that all sessions watch; an event counts as a request.
    Watch,
}

impl ZnodeLoad {
    fn cases(self) -> &'static [(usize, usize)] {
        match self {
            ZnodeLoad::Create | ZnodeLoad::Set | ZnodeLoad::Get => PLAIN,
            ZnodeLoad::CreateDelete | ZnodeLoad::GetThen => &[(1, 1), (16, 64)],
            ZnodeLoad::Children | ZnodeLoad::ChildrenThen => &[(1, 1)],
            ZnodeLoad::Multi => &[(1, 1), (16, 16)],
            ZnodeLoad::Connect => &[(1, 1), (16, 1)],
            ZnodeLoad::Watch => &[(16, 1), (128, 1)],
        }
    }

    /// True of reads of the past, which no other server has.
    fn is_of_the_past(self) -> bool {
        matches!(self, ZnodeLoad::GetThen | ZnodeLoad::ChildrenThen)
    }
}

/// A load, and by how many it is done.
#[derive(Clone, Copy, Debug)]
struct ZookeeperCase {
    load: ZnodeLoad,
    sessions: usize,
    /// Requests of a session that are on their way.
    depth: usize,
}

/// The figures of a run.
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
        for server in &servers {
            let process = broker_behind(resolve(server)?, None);
            let process = process.context("the server runs on this machine")?;
            println!("{server}: {} MiB resident before", process.resident_bytes()? >> 20);
        }
        if let Some(thousands) = self.fill {
            return servers.iter().try_for_each(|server| fill(server, thousands));
        }
        let is_wanted = |load: &&ZnodeLoad| self.only.is_empty() || self.only.contains(load);
        for load in ZnodeLoad::value_variants().iter().filter(is_wanted).copied() {
            let servers = if load.is_of_the_past() { &servers[..1] } else { &servers[..] };
            for &(sessions, depth) in load.cases() {
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
                    } else if self.theirs.is_some() {
                        row.extend([String::new(), String::new()]);
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
            match case.load {
                ZnodeLoad::Watch => {
                    session.root.clone_from(&run);
                    session.watch()?;
                }
                _ => session.create(&session.root.clone())?,
            }
            if matches!(case.load, ZnodeLoad::Children | ZnodeLoad::ChildrenThen) {
                session.create_and_delete_children()?;
            }
            if case.load.is_of_the_past() {
                session.root = format!("/.at/s{}{}", wall_ms() + 1, session.root);
            }
            sessions.push(session);
        }
        let (before, begun) = (process.cpu()?, Instant::now());
        let end = begun + Duration::from_secs(self.seconds);
        let threads: Vec<_> = sessions
            .into_iter()
            .enumerate()
            .map(|(nth, session)| {
                let server = server.to_owned();
                std::thread::spawn(move || match case.load {
                    ZnodeLoad::Connect => connect_again_and_again(&server, end),
                    ZnodeLoad::Watch => session.run_watch(nth == 0, end),
                    _ => session.run(case, end),
                })
            })
            .collect();
        let mut latencies = Histogram::new();
        for thread in threads {
            latencies.merge(&thread.join().expect("a session does not panic")?);
        }
        figures(process, &latencies, begun.elapsed(), before)
    }
}

/// Creates znodes in transactions of a thousand, and prints the server's memory now and then.
fn fill(server: &str, thousands: usize) -> Result<()> {
    let process =
        broker_behind(resolve(server)?, None).context("the server runs on this machine")?;
    let mut session = ZnodeSession::begin(server)?;
    let run = format!("/fill-{}", std::process::id());
    session.create(&run)?;
    let (before, begun) = (process.cpu()?, Instant::now());
    for thousand in 1..=thousands {
        session.ask(MULTI, |out| {
            let root = format!("{run}/{thousand}");
            for path in
                std::iter::once(root.clone()).chain((1..1000).map(|n| format!("{root}/{n}")))
            {
                put_multi_header(out, CREATE, false);
                put_create(out, &path);
            }
            put_multi_header(out, -1, true);
        });
        session.flush()?;
        session.reply()?;
        if thousand.is_power_of_two() || thousand == thousands {
            let resident = process.resident_bytes()? >> 20;
            println!("{server}: {thousand} thousand more znodes, {resident} MiB resident");
        }
    }
    let cpu = process.cpu()?.since(before).total().as_secs_f64() * 1e3 / thousands as f64;
    let wall = begun.elapsed().as_secs_f64();
    println!("{server}: {wall:.1} s, {cpu:.1} us of CPU for each");
    Ok(())
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
            ZnodeLoad::CreateDelete if self.xid % 2 == 1 => {
                let path = format!("{root}/x");
                self.ask(CREATE, |out| put_create(out, &path));
            }
            ZnodeLoad::CreateDelete => self.ask(DELETE, |out| {
                out.string(Some(&format!("{root}/x")));
                out.int(-1);
            }),
            ZnodeLoad::Multi => self.ask(MULTI, |out| {
                for _ in 0..MULTI_OPS {
                    put_multi_header(out, SET_DATA, false);
                    out.string(Some(&root));
                    out.buffer(Some(&DATA));
                    out.int(-1);
                }
                put_multi_header(out, -1, true);
            }),
            ZnodeLoad::Connect | ZnodeLoad::Watch => unreachable!("they run by themselves"),
            ZnodeLoad::Children | ZnodeLoad::ChildrenThen => self.ask(GET_CHILDREN, |out| {
                out.string(Some(&root));
                out.bool(false);
            }),
            ZnodeLoad::Get | ZnodeLoad::GetThen => self.ask(GET_DATA, |out| {
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

    /// Below its root, creates children that stay, and very many that go again.
    fn create_and_delete_children(&mut self) -> Result<()> {
        let root = self.root.clone();
        for nth in 0..CHILDREN {
            self.create(&format!("{root}/stays-{nth}"))?;
        }
        for first in (0..GONE_CHILDREN).step_by(GONE_AT_ONCE) {
            let paths = || (first..first + GONE_AT_ONCE).map(|nth| format!("{root}/goes-{nth}"));
            self.ask(MULTI, |out| {
                for path in paths() {
                    put_multi_header(out, CREATE, false);
                    put_create(out, &path);
                }
                for path in paths() {
                    put_multi_header(out, DELETE, false);
                    out.string(Some(&path));
                    out.int(-1);
                }
                put_multi_header(out, -1, true);
            });
            self.flush()?;
            self.reply()?;
        }
        Ok(())
    }

    /// Watches its root until it ends.
    fn watch(&mut self) -> Result<()> {
        let root = self.root.clone();
        self.ask(ADD_WATCH, |out| {
            out.string(Some(&root));
            out.int(0);
        });
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

    /// One changes the data, one time after the other, and all receive an event each time; how long
    /// the events took that the one received, and how many the others did.
    fn run_watch(mut self, writes: bool, end: Instant) -> Result<Histogram> {
        let mut latencies = Histogram::new();
        self.stream.set_read_timeout(Some(Duration::from_millis(200)))?;
        while Instant::now() < end {
            let sent = Instant::now();
            if writes {
                self.ask_for(ZnodeLoad::Set);
                self.flush()?;
            }
            match self.frame_received() {
                Ok(_) => latencies.record(sent.elapsed()),
                // Nothing was changed for a while: it is over.
                Err(_) if !writes => break,
                Err(error) => return Err(error),
            }
            if writes {
                // The reply comes behind the event.
                self.reply()?;
            }
        }
        Ok(latencies)
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

fn connect_again_and_again(server: &str, end: Instant) -> Result<Histogram> {
    let mut latencies = Histogram::new();
    while Instant::now() < end {
        let begun = Instant::now();
        let mut session = ZnodeSession::begin(server)?;
        latencies.record(begun.elapsed());
        session.ask(CLOSE_SESSION, |_| {});
        session.flush()?;
        session.reply()?;
    }
    Ok(latencies)
}

fn wall_ms() -> u128 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("it is later").as_millis()
}

fn put_multi_header(out: &mut BytesMut, opcode: i32, is_end: bool) {
    out.int(opcode);
    out.bool(is_end);
    out.int(-1);
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
