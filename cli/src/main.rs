//! The one binary, `freezeframe`.
//!
//! It knows the command line: what can be asked for, and how an answer looks on a terminal, in a pipe
//! and to a script. It does not know how a server does anything: every command but `serve` is a client
//! of a running one.
//!
//! Exit codes: 0 done, 1 it did not work, 2 the command line does not read. A reader that closes the
//! pipe early has what it wanted: that is 0.

use std::process::ExitCode;

mod args;
mod commands;
mod completion;
mod moments;
mod output;
mod suggestion;
mod table;
mod topic_reader;
mod tree_path;
mod tree_reader;

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
