//! The floor: the least that a broker can do for a record, as a broker of its own.
//!
//! It receives requests into aligned memory, checks the CRC-32C of each batch once, writes the
//! bytes once to the disk from where they were received, and responds. To a consumer it sends the
//! same batch again and again out of memory. It keeps no index, no offsets except a count, and no
//! history; after a restart it has nothing. So the additional cost of a real broker is the cost of
//! its promises.
//!
//! It supports as much of Kafka's protocol as the measurements here need, so that `compare` runs it
//! in turn with a server.

mod connection;
mod file;
mod responses;
mod wire;

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::connection::resolve;
use connection::FloorConnection;

/// The options of the floor.
#[derive(Args, Clone, Debug)]
pub(crate) struct FloorWork {
    /// The address to listen on, HOST:PORT
    #[arg(long, default_value = "127.0.0.1:9192")]
    listen: String,

    /// The directory to write to; on the same disk as the server that it is compared with
    #[arg(long)]
    dir: PathBuf,

    /// The durability of bytes before they are answered
    #[arg(long, value_enum, default_value_t = FloorDurability::Fsync)]
    durability: FloorDurability,
}

/// The durability of bytes before they are acknowledged.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FloorDurability {
    /// The disk has them
    Os,
    /// They were synced
    Fsync,
}

/// The state that all connections share.
pub(crate) struct FloorBroker {
    address: SocketAddr,
    dir: PathBuf,
    durability: FloorDurability,
    connections: AtomicU64,
    topics: Mutex<HashMap<String, FloorTopic>>,
}

/// The state of a topic: the number of records of each partition, and one batch of them.
struct FloorTopic {
    ends: Vec<i64>,
    sample: Option<responses::SampleBatches>,
}

/// Serves until the process ends.
pub(crate) fn run(work: &FloorWork) -> Result<()> {
    let listener = TcpListener::bind(resolve(&work.listen)?)
        .with_context(|| format!("listen at {}", work.listen))?;
    std::fs::create_dir_all(&work.dir).with_context(|| format!("make {}", work.dir.display()))?;
    eprintln!("the floor listens at {}", listener.local_addr()?);
    serve(&listener, work)
}

fn serve(listener: &TcpListener, work: &FloorWork) -> Result<()> {
    let floor = FloorBroker {
        address: listener.local_addr()?,
        dir: work.dir.clone(),
        durability: work.durability,
        connections: AtomicU64::new(0),
        topics: Mutex::default(),
    };
    thread::scope(|scope| {
        loop {
            let (stream, peer) = listener.accept().context("accept a connection")?;
            let (floor, number) = (&floor, floor.connections.fetch_add(1, Ordering::Relaxed));
            scope.spawn(move || {
                let run = || FloorConnection::open(floor, stream, number)?.run();
                if let Err(error) = run() {
                    eprintln!("a connection ended. peer={peer}, error={error:#}");
                }
            });
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;

    use clap::Parser;
    use testkit::directory::TestDirectory;

    use super::*;
    use crate::batch::BenchBatch;
    use crate::consume::{self, ConsumeWork};
    use crate::produce::{self, ProduceWork};
    use crate::sender::{BenchAcks, produce_frame};
    use crate::target::{BrokerTarget, TargetArgs};
    use crate::topic::BenchTopic;

    #[derive(Parser)]
    struct FloorArguments<Work: Args> {
        #[command(flatten)]
        work: Work,
    }

    fn work<Work: Args>(line: &str) -> Work {
        FloorArguments::parse_from(["floor"].into_iter().chain(line.split(' '))).work
    }

    fn listening() -> (BrokerTarget, TestDirectory) {
        let dir = TestDirectory::new();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let bootstrap = listener.local_addr().unwrap().to_string();
        let (listen, durability) = (bootstrap.clone(), FloorDurability::Os);
        let work = FloorWork { listen, dir: dir.path().to_owned(), durability };
        thread::spawn(move || serve(&listener, &work));
        let pid = Some(std::process::id());
        (BrokerTarget::find(&TargetArgs { bootstrap, pid }).unwrap(), dir)
    }

    #[test]
    fn the_floor_takes_what_is_produced_and_gives_back_whole_batches() {
        let (target, dir) = listening();
        for line in ["--bytes 9MB --settle 0", "--bytes 3MB --partitions 7 --like java --settle 0"]
        {
            let report = produce::run(&target, &work::<ProduceWork>(line)).unwrap();
            assert!(report.figure("records/s").unwrap() > 0.0);
            let line = format!("{line} --check-crc");
            let report = consume::run(&target, &work::<ConsumeWork>(&line)).unwrap();
            assert!(report.figure("bytes a request").unwrap() > 0.0);
        }
        drop(dir);
    }

    #[test]
    fn a_batch_whose_checksum_is_wrong_ends_its_connection() {
        let (target, dir) = listening();
        let topic = BenchTopic::create(target.address, 1, 1000).unwrap();
        let mut batch = BenchBatch::single(b"0123456789", 5).to_vec();
        *batch.last_mut().unwrap() ^= 1;
        let frame = produce_frame(&topic.name, &[0], &batch, BenchAcks::All, 7).unwrap();
        let mut stream = TcpStream::connect(target.address).unwrap();
        stream.write_all(&frame).unwrap();
        assert_eq!(std::io::copy(&mut stream, &mut std::io::sink()).unwrap(), 0, "no answer");
        drop(topic);
        drop(dir);
    }
}
