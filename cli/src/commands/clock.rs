//! `freezeframe clock`: shows the state of the local server's clock, or confirms the clock.

use broker::control::{ClockStatus, ControlRequest, request_clock};

use super::mount::ServerArgs;
use crate::output::StandardOutput;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The server of the data directory is asked; it must run on this machine, and root
and the user that it runs as can ask.

Where the wall clock jumped, or is behind what was given out, writes are refused
(fenced). Where it is far ahead of the last time that was confirmed when the
server starts, retention by age is suspended (unconfirmed). If the wall clock is
right, confirm it: both end, and nothing is lost. Stamps that were given out
ahead of it stay; later ones go on above them until it has caught up, and the
status says by how much they are ahead.

Examples:
  freezeframe clock status
  freezeframe clock status --data-dir /var/lib/freezeframe --json
  freezeframe clock confirm --data-dir /var/lib/freezeframe")]
pub(crate) struct ClockCliArgs {
    #[command(subcommand)]
    command: ClockCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ClockCommand {
    /// Show the state of the clock.
    #[command(after_help = "\
Examples:
  freezeframe clock status --data-dir /var/lib/freezeframe")]
    Status(ClockArgs),
    /// Confirm that the wall clock is right. Check it first.
    #[command(after_help = "\
Examples:
  date; freezeframe clock confirm --data-dir /var/lib/freezeframe")]
    Confirm(ClockArgs),
}

#[derive(Debug, clap::Args)]
struct ClockArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ClockCliArgs) -> anyhow::Result<()> {
    let (request, args) = match &args.command {
        ClockCommand::Status(args) => (ControlRequest::ClockStatus, args),
        ClockCommand::Confirm(args) => (ControlRequest::ClockConfirm, args),
    };
    let status = request_clock(&args.server.data_dir, &request)?;
    let mut output = StandardOutput::lock();
    if args.json {
        output.json(&status)?;
    } else {
        output.bytes(format!("{}\n", in_words(&status)).as_bytes())?;
    }
    Ok(output.flush()?)
}

fn in_words(status: &ClockStatus) -> String {
    let mut lines = Vec::new();
    if let Some(reason) = &status.fenced {
        lines.push(format!("writes are fenced: {reason}"));
    }
    lines.extend(status.unconfirmed.clone());
    if lines.is_empty() {
        lines.push("the time is confirmed, and writes are taken".to_owned());
    }
    let (error_ms, skew_ms) = (status.clock_error_ms, status.skew_ms);
    lines.push(if status.clock_synchronised {
        format!("the kernel says that it is synchronised, and right within {error_ms} ms")
    } else {
        format!(
            "the kernel does not say that it is synchronised; it is trusted within {skew_ms} ms"
        )
    });
    if status.ahead_ms > 0 {
        lines.push(format!("stamps are {} ms ahead of the wall clock", status.ahead_ms));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_wrong_with_the_clock_is_a_line() {
        let well = ClockStatus {
            wall_ms: 1,
            fenced: None,
            unconfirmed: None,
            ahead_ms: 0,
            clock_synchronised: true,
            clock_error_ms: 3,
            skew_ms: 500,
        };
        assert_eq!(
            in_words(&well),
            "the time is confirmed, and writes are taken\nthe kernel says that it is synchronised, and right within 3 ms"
        );
        let unwell = ClockStatus {
            fenced: Some("it jumped".to_owned()),
            unconfirmed: Some("the time is not confirmed".to_owned()),
            ahead_ms: 7,
            clock_synchronised: false,
            ..well
        };
        let text = in_words(&unwell);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["writes are fenced: it jumped", "the time is not confirmed"]);
        assert_eq!(lines[3], "stamps are 7 ms ahead of the wall clock");
    }
}
