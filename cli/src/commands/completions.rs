//! `freezeframe completions SHELL`: prints a completion script.

use clap_complete::Shell;
use clap_complete::env::Shells;

use crate::completion::VARIABLE;
use crate::output::StandardOutput;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The script asks freezeframe itself, which must be on the PATH: options, and the
names of topics, groups and files of the server that the line means.

Examples:
  freezeframe completions bash > /etc/bash_completion.d/freezeframe
  freezeframe completions zsh > ~/.zfunc/_freezeframe
  freezeframe completions fish > ~/.config/fish/completions/freezeframe.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Prints the completion script of a shell.
pub(crate) fn run(args: &CompletionsArgs) -> anyhow::Result<()> {
    const PROGRAM: &str = "freezeframe";
    let shells = Shells::builtins();
    let shell = shells.completer(&args.shell.to_string());
    let shell = shell.expect("each shell has a script of its own");
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)?;
    let mut output = StandardOutput::lock();
    output.bytes(&script)?;
    Ok(output.flush()?)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn each_shell_has_a_script() {
        for shell in Shell::value_variants() {
            assert!(Shells::builtins().completer(&shell.to_string()).is_some(), "{shell}");
        }
    }
}
