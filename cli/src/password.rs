//! A new password, from where it is not shown: a file, a terminal without echo, or a pipe.

use std::io::{BufRead, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, bail};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use tls::Secret;

/// Reads it from `file`; else asks for it twice on a terminal, or takes a line of standard input.
pub(crate) fn read_new_password(file: Option<&Path>, user: &str) -> anyhow::Result<Secret> {
    let password = match file {
        Some(path) => Secret::read(path)
            .with_context(|| format!("read the password in {}", path.display()))?,
        None if std::io::stdin().is_terminal() => {
            let password = ask(&format!("new password of {user}: "))?;
            if ask("the same again: ")?.expose() != password.expose() {
                bail!("the two passwords differ; nothing was changed");
            }
            password
        }
        None => read_line()?,
    };
    anyhow::ensure!(!password.is_empty(), "the password is empty; nothing was changed");
    Ok(password)
}

fn read_line() -> anyhow::Result<Secret> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).context("read the password")?;
    Ok(Secret::new(line.trim_end_matches(['\r', '\n'])))
}

/// Asks on the terminal, which shows nothing of what is typed.
fn ask(prompt: &str) -> anyhow::Result<Secret> {
    let stdin = std::io::stdin();
    let echoing = tcgetattr(stdin.as_fd()).context("ask the terminal")?;
    let mut hidden = echoing.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    eprint!("{prompt}");
    std::io::stderr().flush()?;
    tcsetattr(stdin.as_fd(), OptionalActions::Flush, &hidden).context("ask the terminal")?;
    let line = read_line();
    tcsetattr(stdin.as_fd(), OptionalActions::Flush, &echoing).context("ask the terminal")?;
    eprintln!();
    line
}
