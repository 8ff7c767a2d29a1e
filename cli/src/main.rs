//! The one binary, `freezeframe`.
//!
//! It knows the command line: the commands, and how output looks on a terminal, in a pipe and to a
//! script. It does not know how a server works: most commands are clients of a running server.
//!
//! Exit codes: 0 success, 1 failure, 2 a command line or settings that cannot be used, 75 a server that
//! went away during `import`, which can be run again. A reader that closes the pipe early has what it
//! wanted: that is 0.

#![forbid(unsafe_code)]

use std::process::ExitCode;

mod args;
mod byte_size;
mod commands;
mod completion;
mod help;
mod login_args;
mod moments;
mod name_patterns;
mod output;
mod password;
mod profile;
mod rate_limit;
mod record_args;
mod suggestion;
mod table;
mod time_order;
mod tls_args;
mod topic_reader;
mod tree_path;
mod tree_reader;
mod whole_file;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    completion::answer_shell();
    let cli = args::Cli::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::report(&error),
    }
}
