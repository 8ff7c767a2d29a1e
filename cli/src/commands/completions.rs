//! `freezeframe completions SHELL`.

use clap_complete::Shell;

use crate::args::command;
use crate::output::Output;

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  freezeframe completions bash > ~/.local/share/bash-completion/completions/freezeframe
  freezeframe completions zsh > ~/.zfunc/_freezeframe
  freezeframe completions fish > ~/.config/fish/completions/freezeframe.fish")]
pub(crate) struct Args {
    /// Which shell.
    shell: Shell,
}

/// Prints the script.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "freezeframe", &mut script);
    let mut output = Output::lock();
    output.bytes(&script)?;
    Ok(output.flush()?)
}
