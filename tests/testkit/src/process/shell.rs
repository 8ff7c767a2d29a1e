//! The command line beside a server: what it prints, and how it fails.

use std::ops::Deref;

use super::{CommandOutput, TestServer, run};
use crate::directory::TestDirectory;

impl TestServer {
    /// Its address for the command line.
    pub fn bootstrap(&self) -> String {
        self.kafka.to_string()
    }

    /// Runs the binary with this server, to its end.
    ///
    /// # Panics
    /// It does not end.
    pub fn run(&self, arguments: &[&str], input: &str) -> CommandOutput {
        run(&[&["--bootstrap", &self.bootstrap()], arguments].concat(), input)
    }

    /// The standard output of a command that succeeds.
    ///
    /// # Panics
    /// It fails.
    pub fn stdout_of(&self, arguments: &[&str]) -> String {
        self.run_with_input(arguments, "")
    }

    /// [`TestServer::stdout_of`] for a command that reads `input`.
    ///
    /// # Panics
    /// It fails.
    pub fn run_with_input(&self, arguments: &[&str], input: &str) -> String {
        let ended = self.run(arguments, input);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr);
        ended.stdout().to_owned()
    }

    /// Checks that a command fails as in [`CommandOutput::assert_failed`]. It may read one line.
    ///
    /// # Panics
    /// It does not.
    pub fn assert_fails(&self, arguments: &[&str], code: i32, words: &[&str]) {
        self.run(arguments, "a line\n").assert_failed(code, words);
    }

    /// The moment up to which the server can answer.
    ///
    /// # Panics
    /// It does not answer.
    pub fn now(&self) -> String {
        self.stdout_of(&["moment"]).trim_end().to_owned()
    }
}

impl CommandOutput {
    /// Checks that the command failed with `code`, printed nothing, and that its error has all of
    /// `words`.
    ///
    /// # Panics
    /// It did not.
    pub fn assert_failed(&self, code: i32, words: &[&str]) {
        assert_eq!((self.code, self.stdout()), (Some(code), ""), "{}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "it does not say {word:?}: {}", self.stderr);
        }
        let has_error = self.stderr.lines().any(|line| line.starts_with("error:"));
        assert!(has_error, "{}", self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
    }
}

/// A server on a data directory of its own.
pub struct OwnServer {
    /// The server.
    pub server: TestServer,
    /// Its directory.
    pub data: TestDirectory,
}

impl OwnServer {
    /// Starts a server on an empty directory, with more arguments.
    ///
    /// # Panics
    /// It does not start.
    pub fn start(arguments: &[&str]) -> OwnServer {
        let data = TestDirectory::new();
        let server = TestServer::start(data.path(), arguments).expect("it starts");
        OwnServer { server, data }
    }

    /// Kills the server without a chance to clean up, and starts it again.
    ///
    /// # Panics
    /// It does not end, or does not start.
    pub fn kill_and_restart(self) -> OwnServer {
        let OwnServer { server, data } = self;
        server.kill().expect("it ends");
        let server = TestServer::start(data.path(), &[]).expect("it starts again");
        OwnServer { server, data }
    }
}

impl Deref for OwnServer {
    type Target = TestServer;

    fn deref(&self) -> &TestServer {
        &self.server
    }
}
