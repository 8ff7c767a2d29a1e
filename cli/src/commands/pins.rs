//! `freezeframe pins`: moments that retention keeps readable.

use std::time::Duration;

use anyhow::Context;
use client::Client;
use client::history::PinDescription;
use hlc::SysTime;

use super::ServerAddress;
use super::topics::parse_topic;
use crate::moments::{MomentArg, date, moment_or_now, parse_length};
use crate::{completion, output};

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
While a pin stands, nothing that its moment shows is removed: not by retention,
not by compaction, and not by an order to delete records. What was written
since waits behind it, for the oldest goes first: a pin without --topic ends
retention of every topic that it shows, until it expires or is removed.

A pin is a name of its moment: orders@audit, --at pin:audit.

Examples:
  freezeframe pins
  freezeframe pins set before-deploy            now, for 30 days
  freezeframe pins set audit --at 'yesterday 14:00' --for 90d
  freezeframe pins set rebuild --for 12h --topic orders --topic payments
  freezeframe cat orders@audit
  freezeframe pins remove audit"
)]
pub(crate) struct PinsArgs {
    #[command(subcommand)]
    command: Option<PinsCommand>,
    #[command(flatten)]
    list: ListPinsArgs,
}

#[derive(Debug, clap::Subcommand)]
enum PinsCommand {
    /// List the pins (also without a subcommand).
    #[command(after_help = "\
Examples:
  freezeframe pins list --json")]
    List(ListPinsArgs),
    /// Keep a moment readable: now, and for 30 days, if nothing else is said. Setting the same pin
    /// again keeps the later expiry.
    #[command(after_help = "\
Examples:
  freezeframe pins set audit --at s1795252948259 --for 7d
  freezeframe pins set rebuild --at '1 hour ago' --for 12h --topic orders")]
    Set(SetPinArgs),
    /// Remove pins before they expire.
    #[command(after_help = "\
Examples:
  freezeframe pins remove audit rebuild")]
    Remove(RemovePinArgs),
}

#[derive(Debug, clap::Args)]
struct ListPinsArgs {
    /// Print one JSON object a line for each pin.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct SetPinArgs {
    /// The name of the pin.
    name: String,
    /// The moment, by system time. The default is now, with all that was acknowledged before.
    #[arg(long, value_parser = MomentArg::parse_system_moment, value_name = "MOMENT", allow_hyphen_values = true)]
    at: Option<MomentArg>,
    /// How long from now: a number and a unit: ms, s, m, h, d or w.
    #[arg(long = "for", default_value = "30d", value_parser = parse_length, value_name = "TIME")]
    kept_for: Duration,
    /// Only this topic. May be given more than once.
    #[arg(long, value_name = "TOPIC", value_parser = parse_topic, add = completion::topics())]
    topic: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct RemovePinArgs {
    /// The pins.
    #[arg(required = true)]
    names: Vec<String>,
}

pub(crate) async fn run(args: PinsArgs, server: &ServerAddress) -> anyhow::Result<()> {
    match args.command.unwrap_or(PinsCommand::List(args.list)) {
        PinsCommand::List(args) => list(&mut server.connect().await?, &args).await,
        PinsCommand::Set(args) => {
            if let Some(at) = &args.at {
                at.announce();
            }
            set(&mut server.connect().await?, &args).await
        }
        PinsCommand::Remove(args) => remove(&mut server.connect().await?, &args).await,
    }
}

async fn list(client: &mut Client, args: &ListPinsArgs) -> anyhow::Result<()> {
    let pins = client.pins().await?;
    let items = pins.iter().map(|pin| {
        let (name, at) = (pin.name.clone(), pin.at.clone());
        (pin, [name, at, expiry(pin), topics(pin)])
    });
    let hint = "no moment is pinned; pin this one: freezeframe pins set NAME";
    output::print_list_or(args.json, &["pin", "moment", "expires", "topics"], items, hint)
}

fn expiry(pin: &PinDescription) -> String {
    date(SysTime(pin.expires_ms))
}

/// The topics of a pin. No topic can have the name `*`.
fn topics(pin: &PinDescription) -> String {
    pin.topics.as_ref().map_or_else(|| "*".to_owned(), |topics| topics.join(","))
}

async fn set(client: &mut Client, args: &SetPinArgs) -> anyhow::Result<()> {
    let topics = (!args.topic.is_empty()).then_some(&args.topic[..]);
    let moment = moment_or_now(client, args.at.as_ref()).await?;
    let pin = client
        .pin(&args.name, &moment, args.kept_for, topics)
        .await
        .with_context(|| format!("pin {moment}"))?;
    eprintln!("pinned {} as {} until {}", pin.at, pin.name, expiry(&pin));
    Ok(())
}

async fn remove(client: &mut Client, args: &RemovePinArgs) -> anyhow::Result<()> {
    for name in &args.names {
        client.unpin(name).await?;
        eprintln!("removed {name}");
    }
    Ok(())
}
