//! A server's tree, mounted: what tests of the mount share.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use rustix::mount::UnmountFlags;

use super::{CommandOutput, TestServer, freezeframe, run};
use crate::directory::TestDirectory;

/// A server with its tree mounted, and the mount point.
pub struct TestMount {
    directory: TestDirectory,
    server: Option<TestServer>,
    arguments: Vec<String>,
}

/// Prints a notice even if the test passes.
pub fn print_notice(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// `Ok` if this machine can mount. If not, tests that need it are skipped with a notice.
///
/// # Errors
///
/// The reason why it cannot.
pub fn can_mount() -> Result<(), String> {
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    device.map_err(|error| format!("/dev/fuse cannot be opened: {error}"))?;
    if rustix::process::geteuid().is_root() || is_installed("fusermount3") {
        return Ok(());
    }
    Err("only root can mount without fusermount3, which is not installed".to_owned())
}

/// True if the program is installed.
pub fn is_installed(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", "command -v \"$1\"", "sh", program])
        .stdout(Stdio::null())
        .status();
    found.is_ok_and(|status| status.success())
}

/// Starts a server that mounts its tree. `None`, with a notice, if nothing can be mounted.
///
/// # Panics
/// It does not start although it could.
pub fn start(test: &str, arguments: &[&str]) -> Option<TestMount> {
    if let Err(why) = can_mount() {
        print_notice(&format!("SKIPPED {test}: {why}"));
        return None;
    }
    let directory = TestDirectory::new();
    std::fs::create_dir(directory.path().join("mount")).expect("a directory can be made");
    let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let mut mounted = TestMount { directory, server: None, arguments };
    mounted.start_server().expect("the server starts and mounts");
    Some(mounted)
}

impl TestMount {
    /// Starts the server again.
    ///
    /// # Errors
    /// It does not start.
    pub fn start_server(&mut self) -> anyhow::Result<()> {
        let at = self.path("");
        let mount = at.to_str().context("a path in text")?.to_owned();
        let mut arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        arguments.extend(["--mount", &mount]);
        self.server = Some(TestServer::start(&self.data_dir(), &arguments)?);
        Ok(())
    }

    /// Changes the arguments of later starts.
    pub fn set_arguments(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join("mount").join(path)
    }

    /// A path next to the mount, on an ordinary file system.
    pub fn outside_path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    pub fn data_dir(&self) -> PathBuf {
        self.outside_path("data")
    }

    /// The server.
    ///
    /// # Panics
    /// It is not running.
    pub fn server(&self) -> &TestServer {
        self.server.as_ref().expect("it runs")
    }

    /// Stops the server cleanly.
    ///
    /// # Panics
    /// It does not end.
    pub fn stop(&mut self) {
        let status = self.server.take().expect("it runs").stop().expect("it ends");
        assert!(status.success(), "{status}");
    }

    /// Kills the server.
    ///
    /// # Panics
    /// It cannot be killed.
    pub fn kill(&mut self) {
        self.server.take().expect("it runs").kill().expect("it can be killed");
    }

    /// Runs `freezeframe` with `words` and this data directory.
    ///
    /// # Panics
    /// It does not run.
    pub fn run_command(&self, words: &[&str]) -> CommandOutput {
        let data = self.data_dir();
        let mut arguments = words.to_vec();
        arguments.extend(["--data-dir", data.to_str().expect("a path in text")]);
        run(&arguments, "")
    }

    /// Unmounts and mounts again, so that the kernel's caches are empty.
    ///
    /// # Errors
    ///
    /// It is in use.
    pub fn remount(&self) -> anyhow::Result<()> {
        let at = self.path("");
        let at = at.to_str().context("a path in text")?.trim_end_matches('/');
        for verb in ["umount", "mount"] {
            let ended = self.run_command(&[verb, at]);
            ensure!(ended.code == Some(0), "{verb}: {}", ended.stderr);
        }
        Ok(())
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        let at = self.path("");
        let _ = rustix::mount::unmount(&at, UnmountFlags::DETACH);
        drop(self.server.take());
        // Removes the mount of a server that was killed before it could.
        let _ = rustix::mount::unmount(&at, UnmountFlags::DETACH);
    }
}

/// A moment after everything that was done before the call, and before everything after it.
///
/// # Panics
/// The clock is before 1970.
pub fn moment() -> String {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("a time since 1970");
    let moment = now().as_millis() + 1;
    while now().as_millis() < moment {
        std::hint::spin_loop();
    }
    format!("s{moment}")
}

/// Runs a shell script in `directory`, with `-eu`, and returns its output.
///
/// # Panics
/// It fails.
pub fn shell(directory: &Path, script: &str) -> String {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]).current_dir(directory);
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", directory).env("LC_ALL", "C");
    for who in ["GIT_AUTHOR", "GIT_COMMITTER"] {
        command.env(format!("{who}_NAME"), "a").env(format!("{who}_EMAIL"), "a@example.org");
    }
    command.env("FREEZEFRAME", freezeframe());
    let ended = command.output().expect("bash runs");
    let (stdout, stderr) =
        (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{script}\n{}\n{stdout}\n{stderr}", ended.status);
    stdout.into_owned()
}
