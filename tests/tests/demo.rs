//! The demo leaves nothing behind, however it ends.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use testkit::process::{RawKafkaConnection, TIMEOUT, freezeframe, wait_for_exit};

/// A demo that has printed everything, and keeps running.
struct DemoProcess {
    process: Child,
    kafka: SocketAddr,
    data: PathBuf,
}

impl DemoProcess {
    fn start() -> DemoProcess {
        let mut command = Command::new(freezeframe());
        command.args(["demo", "--stay"]).stdin(Stdio::null()).stderr(Stdio::null());
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the binary runs");
        let mut lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        // Freezeframe serves Kafka clients on HOST:PORT
        // and ZooKeeper clients on HOST:PORT
        // Its data is in DIR
        let mut last_word = || {
            let line = lines.next().expect("a line").expect("text");
            line.rsplit(' ').next().expect("a word").to_owned()
        };
        let kafka = last_word().parse().expect("an address");
        let _zookeeper = last_word();
        let data = PathBuf::from(last_word());
        let shown = lines.map_while(Result::ok).any(|line| line.starts_with("Serving until"));
        assert!(shown, "it shows all and stays");
        DemoProcess { process, kafka, data }
    }
}

impl Drop for DemoProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

#[test]
fn a_demo_that_is_told_to_end_takes_its_server_and_its_data_with_it() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut demo = DemoProcess::start();
        let mut client = RawKafkaConnection::connect(demo.kafka);
        assert!(demo.data.exists());
        kill_process(Pid::from_child(&demo.process), signal).expect("it runs");
        let status = wait_for_exit(&mut demo.process, TIMEOUT).expect("it ends");
        assert_eq!(status.code(), Some(0), "{signal:?}");
        assert!(client.read_until_closed().is_empty(), "its server has ended");
        assert!(!demo.data.exists(), "{}", demo.data.display());
    }
}

#[test]
fn a_demo_that_is_killed_takes_its_server_with_it() {
    let mut demo = DemoProcess::start();
    let mut client = RawKafkaConnection::connect(demo.kafka);
    demo.process.kill().expect("it runs");
    wait_for_exit(&mut demo.process, TIMEOUT).expect("it ends");
    assert!(client.read_until_closed().is_empty(), "its server ends the connection, and itself");
    let again = std::net::TcpStream::connect_timeout(&demo.kafka, TIMEOUT);
    assert!(again.is_err(), "nobody listens there any more");
}
