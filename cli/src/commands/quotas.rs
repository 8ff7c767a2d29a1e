//! `freezeframe quotas`: how much users, client ids and addresses may do, now or as of a moment.

use client::history::{QuotaEntityNames, QuotasAtMoment};

use super::ServerAddress;
use crate::byte_size::split_byte_size;
use crate::moments::MomentArg;
use crate::output::{note, print_list_or};

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
A quota is of a user, a client id, a user with a client id, or an address. The
name <default> stands for all that have none of their own. Quotas, by second:
  producer_byte_rate, consumer_byte_rate   bytes, such as 20MB or 10MiB
  request_percentage                       time of the server's threads
  controller_mutation_rate                 partitions created and deleted
  connection_creation_rate                 connections; of addresses only
A client over its quota is throttled: the server tells it to wait, and does not
read from it meanwhile.

Examples:
  freezeframe quotas
  freezeframe quotas set --user alice producer_byte_rate=10MiB
  freezeframe quotas set --user '<default>' consumer_byte_rate=1MiB
  freezeframe quotas set --ip 10.0.0.7 connection_creation_rate=5
  freezeframe quotas remove --user alice producer_byte_rate
  freezeframe quotas --at 'yesterday 14:00'"
)]
pub(crate) struct QuotasArgs {
    #[command(subcommand)]
    command: Option<QuotasCommand>,
    #[command(flatten)]
    list: ListQuotasArgs,
}

#[derive(Debug, clap::Subcommand)]
enum QuotasCommand {
    /// List quotas (also without a subcommand).
    #[command(after_help = "\
Examples:
  freezeframe quotas list --at '1 hour ago' --json")]
    List(ListQuotasArgs),
    /// Set quotas. Others of the same user, client id or address stay.
    #[command(
        override_usage = "freezeframe quotas set --user NAME NAME=VALUE...",
        after_help = "\
Examples:
  freezeframe quotas set --user alice producer_byte_rate=10MiB"
    )]
    Set(SetQuotasArgs),
    /// Remove quotas; without names, all of these.
    #[command(
        override_usage = "freezeframe quotas remove --user NAME [NAME]...",
        after_help = "\
Examples:
  freezeframe quotas remove --user alice producer_byte_rate
  freezeframe quotas remove --ip 10.0.0.7"
    )]
    Remove(RemoveQuotasArgs),
}

#[derive(Debug, clap::Args)]
struct ListQuotasArgs {
    /// The quotas as of a moment.
    #[arg(long, value_parser = MomentArg::parse_system_moment, value_name = "MOMENT", allow_hyphen_values = true)]
    at: Option<MomentArg>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

/// The entity that quotas are of.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct QuotaEntityArgs {
    /// A user.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// A client id, of all users or of --user.
    #[arg(long, value_name = "NAME")]
    client_id: Option<String>,
    /// An address.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["user", "client_id"])]
    ip: Option<String>,
}

#[derive(Debug, clap::Args)]
struct SetQuotasArgs {
    #[command(flatten)]
    entity: QuotaEntityArgs,
    /// The quotas, such as producer_byte_rate=10MiB.
    #[arg(required = true, value_name = "NAME=VALUE", value_parser = parse_quota)]
    quotas: Vec<Quota>,
}

#[derive(Debug, clap::Args)]
struct RemoveQuotasArgs {
    #[command(flatten)]
    entity: QuotaEntityArgs,
    /// The names of the quotas.
    names: Vec<String>,
}

/// A quota and its value.
#[derive(Clone, Debug, PartialEq)]
struct Quota {
    name: String,
    value: f64,
}

/// The name that Kafka's tools show for all that have no quota of their own.
const DEFAULT_NAME: &str = "<default>";

fn parse_quota(text: &str) -> Result<Quota, String> {
    let message = "a quota is NAME=VALUE, such as producer_byte_rate=10MiB";
    let (name, value) = text.split_once('=').ok_or(message)?;
    let (number, unit_bytes) = split_byte_size(value);
    match number.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => {
            Ok(Quota { name: name.to_owned(), value: number * unit_bytes as f64 })
        }
        _ => Err(format!("{value:?} is no number above 0; {message}")),
    }
}

impl QuotaEntityArgs {
    fn names(&self) -> QuotaEntityNames {
        let names = [("user", &self.user), ("client-id", &self.client_id), ("ip", &self.ip)];
        let names = names.into_iter().filter_map(|(kind, name)| Some((kind, name.as_ref()?)));
        let name = |name: &String| (name != DEFAULT_NAME).then(|| name.clone());
        names.map(|(kind, name_text)| (kind.to_owned(), name(name_text))).collect()
    }
}

pub(crate) async fn run(args: QuotasArgs, server: &ServerAddress) -> anyhow::Result<()> {
    match args.command.unwrap_or(QuotasCommand::List(args.list)) {
        QuotasCommand::List(args) => list(&args, server).await,
        QuotasCommand::Set(SetQuotasArgs { entity, quotas }) => {
            let changes: Vec<(String, Option<f64>)> =
                quotas.into_iter().map(|quota| (quota.name, Some(quota.value))).collect();
            server.connect().await?.set_quotas(&entity.names(), &changes).await?;
            for (name, value) in changes {
                let value = value.unwrap_or_default();
                note(&format!("set {name} of {} to {value}", entity_text(&entity.names())));
            }
            Ok(())
        }
        QuotasCommand::Remove(args) => remove(&args, server).await,
    }
}

async fn list(args: &ListQuotasArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let mut client = server.connect().await?;
    let quotas = match &args.at {
        Some(at) => {
            at.announce();
            client.quotas_at(&at.moment()).await?
        }
        None => client.quotas().await?,
    };
    let items = quotas.into_iter().flat_map(|QuotasAtMoment { entity, quotas }| {
        let subject = entity_text(&entity);
        quotas.into_iter().map(move |(name, value)| {
            let cells = [subject.clone(), name.clone(), value.to_string()];
            let quotas = [(name, value)].into_iter().collect();
            (QuotasAtMoment { entity: entity.clone(), quotas }, cells)
        })
    });
    let hint = match &args.at {
        None => {
            "there are no quotas; set one: freezeframe quotas set --user NAME producer_byte_rate=10MiB"
        }
        Some(_) => "",
    };
    print_list_or(args.json, &["of", "quota", "value"], items, hint)
}

/// The entity that quotas are of, in words.
pub(super) fn entity_text(entity: &QuotaEntityNames) -> String {
    let component = |(kind, name): (&String, &Option<String>)| {
        format!("{kind} {}", name.as_deref().unwrap_or(DEFAULT_NAME))
    };
    entity.iter().map(component).collect::<Vec<_>>().join(", ")
}

async fn remove(args: &RemoveQuotasArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let mut client = server.connect().await?;
    let entity = args.entity.names();
    let current = client.quotas().await?.into_iter().find(|quotas| quotas.entity == entity);
    let current = current.map(|quotas| quotas.quotas).unwrap_or_default();
    let names: Vec<String> =
        if args.names.is_empty() { current.keys().cloned().collect() } else { args.names.clone() };
    if let Some(missing) = names.iter().find(|name| !current.contains_key(*name)) {
        anyhow::bail!("{} has no quota {missing}", entity_text(&entity));
    }
    anyhow::ensure!(!names.is_empty(), "{} has no quotas", entity_text(&entity));
    let changes: Vec<_> = names.into_iter().map(|name| (name, None)).collect();
    client.set_quotas(&entity, &changes).await?;
    for (name, _) in &changes {
        note(&format!("removed {name} of {}", entity_text(&entity)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_a_name_and_a_number_with_or_without_a_unit() {
        let value = |text: &str| parse_quota(text).map(|quota| quota.value);
        assert_eq!(value("producer_byte_rate=10MiB"), Ok(10_485_760.0));
        assert_eq!(value("producer_byte_rate=20MB"), Ok(20_000_000.0));
        assert_eq!(value("request_percentage=12.5"), Ok(12.5));
        for text in ["a", "a=", "a=x", "a=-1", "a=0", "a=inf", "a=1TB"] {
            assert!(value(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_default_has_no_name() {
        let args = QuotaEntityArgs {
            user: Some(DEFAULT_NAME.to_owned()),
            client_id: Some("report".to_owned()),
            ip: None,
        };
        assert_eq!(entity_text(&args.names()), "client-id report, user <default>");
        assert_eq!(args.names()["user"], None);
    }
}
