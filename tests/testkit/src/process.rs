//! Whole-process tests: the real binary is started, used, stopped and killed.
//!
//! This crate has what such tests share: a server in a process of its own, on a free port, with a
//! data directory that outlives it ([`TestServer`]) or is its own ([`OwnServer`]); a run of the
//! binary from its start to its end ([`run`]); and a raw connection that can break the rules of the
//! protocol ([`wire`]). Every wait has a limit.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{
    Pid, PidfdFlags, Resource, Signal, getrlimit, kill_process, pidfd_open, setrlimit,
};

mod http;
pub mod mount;
mod raw_connection;
mod shell;

pub use http::{HttpAnswer, http_get, http_get_with};
pub use raw_connection::RawKafkaConnection;
pub use shell::OwnServer;

/// The longest wait before a test fails as stuck.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// The binary, from the same build as these tests.
pub fn freezeframe() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "cli", "--bin", "freezeframe"])
            .args(["--profile", profile])
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .status()
            .expect("cargo runs");
        assert!(status.success(), "the binary must build");
        let test = std::env::current_exe().expect("a test has a path");
        let directory = test.parent().and_then(Path::parent).expect("it lies in target/…/deps");
        directory.join("freezeframe")
    })
}

/// The end of a run of the binary.
#[derive(Debug)]
pub struct CommandOutput {
    /// Its exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Its standard output.
    pub bytes: Vec<u8>,
    /// Its standard error.
    pub stderr: String,
}

impl CommandOutput {
    /// Its standard output as text.
    ///
    /// # Panics
    /// It is not UTF-8.
    pub fn stdout(&self) -> &str {
        std::str::from_utf8(&self.bytes).expect("it prints text")
    }
}

/// Runs the binary with `arguments` and `input`, to its end.
///
/// # Panics
/// It does not end.
pub fn run(arguments: &[&str], input: &str) -> CommandOutput {
    let mut command = Command::new(freezeframe());
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("the binary runs");
    let (stdin, input) = (process.stdin.take(), input.to_owned());
    // A process that does not read its input closes the pipe, which is no error here.
    std::thread::spawn(move || stdin.map(|mut pipe| pipe.write_all(input.as_bytes())));
    let stdout = read_all(process.stdout.take().expect("it is piped"));
    let stderr = read_all(process.stderr.take().expect("it is piped"));
    let status = wait_for_exit(&mut process, TIMEOUT).unwrap_or_else(|error| {
        let _ = process.kill();
        panic!("freezeframe {}: {error:#}", arguments.join(" "))
    });
    CommandOutput {
        code: status.code(),
        bytes: stdout.join().expect("it was read"),
        stderr: String::from_utf8_lossy(&stderr.join().expect("it was read")).into_owned(),
    }
}

fn read_all(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

/// Waits up to `patience` for a process to end.
///
/// # Errors
///
/// It did not.
pub fn wait_for_exit(process: &mut Child, patience: Duration) -> anyhow::Result<ExitStatus> {
    let handle = pidfd_open(Pid::from_child(process), PidfdFlags::empty())?;
    ensure!(readable(&handle, patience)?, "the process did not end within {patience:?}");
    Ok(process.wait()?)
}

/// Returns true if `from` has something to read, or has ended, before `patience` is over.
fn readable(from: &impl AsFd, patience: Duration) -> anyhow::Result<bool> {
    let patience = patience.try_into().context("a patience that fits")?;
    Ok(poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&patience))? == 1)
}

/// Waits until `claim` holds.
///
/// # Panics
/// It does not, for too long.
pub fn wait_until(what: &str, mut claim: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !claim() {
        assert!(begun.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The resident memory of a process in bytes, as the kernel reports it.
///
/// # Panics
/// There is no such process.
pub fn resident_bytes(pid: u32) -> u64 {
    memory_field(pid, "VmRSS:")
}

/// The peak of [`resident_bytes`].
///
/// # Panics
/// There is no such process.
pub fn resident_bytes_peak(pid: u32) -> u64 {
    memory_field(pid, "VmHWM:")
}

fn memory_field(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("it has memory");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

/// Lets this process have as many files and sockets as it may.
pub fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("the limit can be raised to its maximum");
}

/// Connects from another address of this machine, 127.0.0.`host`.
///
/// # Errors
/// Nothing listens there.
pub fn connect_from(host: u8, address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::from(([127, 0, 0, host], 0)))?;
    connect(&socket, &address)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A server in a process of its own. Its log is printed if the test fails.
pub struct TestServer {
    process: Child,
    stderr: Arc<Mutex<Vec<u8>>>,
    /// Its address for Kafka clients; the first of several.
    pub kafka: SocketAddr,
    /// The address of its listener `SSL`, if that is not the first.
    pub kafka_tls: Option<SocketAddr>,
    /// The address for ZooKeeper clients, if `server.zookeeper` is set.
    pub zookeeper: Option<SocketAddr>,
    /// Their address over TLS, if `server.zookeeper-tls` is set.
    pub zookeeper_tls: Option<SocketAddr>,
    /// The address of its admin port.
    pub http: SocketAddr,
    /// The address of the same over TLS, if `server.http-tls` is set.
    pub http_tls: Option<SocketAddr>,
}

impl TestServer {
    /// Starts a server on `data`, with more arguments, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// It did not start. The error contains its log.
    pub fn start(data: &Path, arguments: &[&str]) -> anyhow::Result<TestServer> {
        TestServer::start_command(Command::new(freezeframe()), data, arguments)
    }

    /// The same, in a process that a shell prepares, for example with `ulimit -n 100`.
    ///
    /// # Errors
    ///
    /// As [`TestServer::start`].
    pub fn start_after(
        preparation: &str,
        data: &Path,
        arguments: &[&str],
    ) -> anyhow::Result<TestServer> {
        let mut command = Command::new("sh");
        command.args(["-c", &format!(r#"{preparation} && exec "$@""#), "sh"]).arg(freezeframe());
        TestServer::start_command(command, data, arguments)
    }

    fn start_command(
        mut command: Command,
        data: &Path,
        arguments: &[&str],
    ) -> anyhow::Result<TestServer> {
        let names_listeners = arguments.iter().any(|word| word.starts_with("listeners="));
        let kafka = if names_listeners { &[][..] } else { &["--kafka", "127.0.0.1:0"] };
        let mut process = command
            .arg("serve")
            .arg("--data-dir")
            .arg(data)
            .args(["--http", "127.0.0.1:0"])
            .args(kafka)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start the server")?;
        let stdout = process.stdout.take().context("its output")?;
        if !readable(&stdout, TIMEOUT)? {
            process.kill()?;
            bail!("the server neither says that it is ready nor ends");
        }
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).context("read its output")?;
        let address = |name: &str| {
            line.split_whitespace().find_map(|word| word.strip_prefix(name)?.parse().ok())
        };
        let (zookeeper, zookeeper_tls) = (address("zookeeper="), address("zookeeper-tls="));
        let kafka_tls = address("kafka-ssl=");
        let (Some(kafka), Some(http)) = (address("kafka="), address("http=")) else {
            let mut said = String::new();
            if let Some(stderr) = &mut process.stderr {
                stderr.read_to_string(&mut said)?;
            }
            let status = process.wait()?;
            bail!("the server did not start ({status}): {line}{said}");
        };
        // The log is drained, so that it does not fill the pipe.
        let said = Arc::new(Mutex::new(Vec::new()));
        if let Some(stderr) = process.stderr.take() {
            let said = Arc::clone(&said);
            std::thread::spawn(move || collect_stderr(stderr, &said));
        }
        let http_tls = address("http-tls=");
        Ok(TestServer {
            process,
            stderr: said,
            kafka,
            kafka_tls,
            zookeeper,
            zookeeper_tls,
            http,
            http_tls,
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Its standard error so far.
    ///
    /// # Panics
    /// Another holder of the log panicked.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.lock().expect("nobody panics with it")).into_owned()
    }

    /// True if the process that was started still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Kills it, as a crash of the process would. It has no chance to clean up.
    ///
    /// # Errors
    ///
    /// It cannot be killed.
    pub fn kill(mut self) -> anyhow::Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Asks it to stop, and waits until it has.
    ///
    /// # Errors
    ///
    /// It cannot be signalled, or does not stop.
    pub fn stop(mut self) -> anyhow::Result<ExitStatus> {
        kill_process(Pid::from_child(&self.process), Signal::TERM)?;
        wait_for_exit(&mut self.process, TIMEOUT)
    }
}

fn collect_stderr(mut stderr: impl Read, said: &Mutex<Vec<u8>>) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stderr.read(&mut bytes) {
        said.lock().expect("nobody panics with it").extend_from_slice(&bytes[..count]);
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking()
            && let Ok(said) = self.stderr.lock()
        {
            eprintln!("the server said:\n{}", String::from_utf8_lossy(&said));
        }
    }
}
