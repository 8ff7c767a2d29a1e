//! Whole-process tests: the real binary, started, used, stopped and killed.
//!
//! What is here is what such tests share: a server in a process of its own, on a free port, with a
//! data directory that outlives it.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, bail};

/// The binary, built as these tests were.
pub fn freezeframe() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "cli", "--bin", "freezeframe"])
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .status()
            .expect("cargo runs");
        assert!(status.success(), "the binary must build");
        let test = std::env::current_exe().expect("a test has a path");
        let directory = test.parent().and_then(Path::parent).expect("it lies in target/…/deps");
        directory.join("freezeframe")
    })
}

/// A directory of its own for a test, removed with it.
pub struct Directory(PathBuf);

impl Directory {
    /// A new, empty directory.
    pub fn new() -> Directory {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "freezeframe-test-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a temporary directory can be made");
        Directory(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Default for Directory {
    fn default() -> Directory {
        Directory::new()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server in a process of its own.
pub struct Server {
    process: Child,
    /// Where it serves Kafka's clients.
    pub kafka: SocketAddr,
    /// Where it serves its admin port.
    pub http: SocketAddr,
}

impl Server {
    /// Starts a server on `data`, with more arguments, and waits until it is ready.
    ///
    /// # Errors
    /// It did not start; the error holds what it said.
    pub fn start(data: &Path, arguments: &[&str]) -> anyhow::Result<Server> {
        let mut process = Command::new(freezeframe())
            .arg("serve")
            .arg("--data-dir")
            .arg(data)
            .args(["--kafka", "127.0.0.1:0", "--zookeeper", "off", "--http", "127.0.0.1:0"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start the server")?;
        let stdout = process.stdout.take().context("its output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).context("read its output")?;
        let address = |name: &str| {
            line.split_whitespace().find_map(|word| word.strip_prefix(name)?.parse().ok())
        };
        let (Some(kafka), Some(http)) = (address("kafka="), address("http=")) else {
            let mut said = String::new();
            if let Some(stderr) = &mut process.stderr {
                stderr.read_to_string(&mut said)?;
            }
            let status = process.wait()?;
            bail!("the server did not start ({status}): {line}{said}");
        };
        // What it logs must not fill the pipe.
        if let Some(mut stderr) = process.stderr.take() {
            std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::stderr()));
        }
        Ok(Server { process, kafka, http })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Kills it as a crash of the process would: it gets no chance to tidy up.
    ///
    /// # Errors
    /// It cannot be killed.
    pub fn kill(mut self) -> anyhow::Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Asks it to stop, and waits until it has.
    ///
    /// # Errors
    /// It cannot be signalled.
    pub fn stop(mut self) -> anyhow::Result<ExitStatus> {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        Ok(self.process.wait()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
