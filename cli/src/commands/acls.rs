//! `freezeframe acls`: who may do what.

use kafka_acls::{
    ANY_HOST, AclFilter, AclRule, CLUSTER, Operation, PatternFilter, PatternType, Permission,
    ResourceType,
};
use serde::Serialize;

use super::ServerAddress;
use crate::completion;
use crate::output::{UsageError, counted, print_list};

/// Arguments of `acls`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
A rule allows or denies a principal (User:alice, or User:* for all) operations on
resources: topics, groups, transactional ids, or the cluster. What a rule denies,
no other allows. They count where authorizer.class.name is set; super.users may do
everything. A moment of a topic, its files and its history go by the rules of the
topic, as they are today.

Examples:
  freezeframe acls
  freezeframe acls --topic orders                  those that apply to it
  freezeframe acls add --allow User:alice --operation read,describe --topic orders
  freezeframe acls add --allow User:alice --operation read --group billing- --prefixed
  freezeframe acls remove --allow User:alice --operation read,describe --topic orders"
)]
pub(crate) struct AclsArgs {
    #[command(subcommand)]
    command: Option<AclsCommand>,
    #[command(flatten)]
    list: ListAclsArgs,
}

#[derive(Debug, clap::Subcommand)]
enum AclsCommand {
    /// List rules (also without a subcommand).
    #[command(after_help = "\
Examples:
  freezeframe acls list --principal User:alice --json")]
    List(ListAclsArgs),
    /// Add rules: one for each principal, operation and resource.
    #[command(after_help = "\
Examples:
  freezeframe acls add --allow User:alice --operation read --topic orders --group billing
  freezeframe acls add --deny 'User:*' --operation delete --topic orders
  freezeframe acls add --allow User:admin --operation all --cluster")]
    Add(ChangeAclsArgs),
    /// Remove these very rules, and no others.
    #[command(after_help = "\
Examples:
  freezeframe acls remove --allow User:alice --operation read --topic orders")]
    Remove(ChangeAclsArgs),
}

#[derive(Debug, clap::Args)]
struct ListAclsArgs {
    /// Only those that apply to this topic
    #[arg(long, value_name = "TOPIC", add = completion::topics(), conflicts_with_all = ["group", "transactional_id", "cluster"])]
    topic: Option<String>,
    /// Only those that apply to this group
    #[arg(long, value_name = "GROUP", add = completion::groups(), conflicts_with_all = ["transactional_id", "cluster"])]
    group: Option<String>,
    /// Only those that apply to this transactional id
    #[arg(long, value_name = "ID", conflicts_with = "cluster")]
    transactional_id: Option<String>,
    /// Only those of the cluster
    #[arg(long)]
    cluster: bool,
    /// Only those of this principal
    #[arg(long, value_name = "TYPE:NAME", value_parser = parse_principal)]
    principal: Option<String>,
    /// Print one JSON object a line for each rule
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct ChangeAclsArgs {
    /// Whom the rules allow it: TYPE:NAME. May be given more than once
    #[arg(long, value_name = "TYPE:NAME", value_parser = parse_principal)]
    allow: Vec<String>,
    /// Whom the rules deny it: TYPE:NAME. May be given more than once
    #[arg(long, value_name = "TYPE:NAME", value_parser = parse_principal)]
    deny: Vec<String>,
    /// What: read, write, create, delete, alter, describe, describe-configs, alter-configs,
    /// cluster-action, idempotent-write, or all. Several with commas between
    #[arg(long, value_name = "OPERATION", required = true, value_delimiter = ',', value_parser = parse_operation)]
    operation: Vec<Operation>,
    /// A topic, or * for all. May be given more than once
    #[arg(long, value_name = "TOPIC", add = completion::topics())]
    topic: Vec<String>,
    /// A group, or * for all. May be given more than once
    #[arg(long, value_name = "GROUP", add = completion::groups())]
    group: Vec<String>,
    /// A transactional id, or * for all. May be given more than once
    #[arg(long, value_name = "ID")]
    transactional_id: Vec<String>,
    /// The cluster
    #[arg(long)]
    cluster: bool,
    /// Names are beginnings of names
    #[arg(long, conflicts_with = "cluster")]
    prefixed: bool,
    /// Only from this address
    #[arg(long, value_name = "ADDRESS", default_value = ANY_HOST)]
    host: String,
}

fn parse_principal(text: &str) -> Result<String, String> {
    match text.split_once(':') {
        Some((kind, name)) if !kind.is_empty() && !name.is_empty() => Ok(text.to_owned()),
        _ => Err("give TYPE:NAME, such as User:alice".to_owned()),
    }
}

fn parse_operation(text: &str) -> Result<Operation, String> {
    Operation::named(&text.replace('-', "_")).ok_or_else(|| {
        let names: Vec<String> = Operation::ALL
            .iter()
            .map(|known| known.as_str().to_ascii_lowercase().replace('_', "-"))
            .collect();
        format!("give one of: {}", names.join(", "))
    })
}

/// Runs `acls`.
pub(crate) async fn run(args: AclsArgs, server: &ServerAddress) -> anyhow::Result<()> {
    match args.command.unwrap_or(AclsCommand::List(args.list)) {
        AclsCommand::List(args) => {
            let rules = server.connect().await?.acls(&args.filter()).await?;
            print_rules(&rules, args.json)
        }
        AclsCommand::Add(args) => {
            let rules = args.rules()?;
            server.connect().await?.add_acls(&rules).await?;
            eprintln!("added {}", counted(rules.len(), "rule"));
            Ok(())
        }
        AclsCommand::Remove(args) => {
            let removed = server.connect().await?.remove_acls(&args.rules()?).await?;
            anyhow::ensure!(!removed.is_empty(), "there are no such rules");
            eprintln!("removed {}", counted(removed.len(), "rule"));
            Ok(())
        }
    }
}

impl ListAclsArgs {
    fn filter(&self) -> AclFilter {
        let named = [
            (ResourceType::Topic, &self.topic),
            (ResourceType::Group, &self.group),
            (ResourceType::TransactionalId, &self.transactional_id),
        ];
        let named = named.into_iter().find_map(|(kind, name)| Some((kind, name.clone()?)));
        let cluster = || self.cluster.then(|| (ResourceType::Cluster, CLUSTER.to_owned()));
        let (resource_type, name) = named.or_else(cluster).unzip();
        let principal = self.principal.clone();
        let pattern = PatternFilter::Match;
        AclFilter { resource_type, pattern, name, principal, ..AclFilter::default() }
    }
}

impl ChangeAclsArgs {
    fn rules(&self) -> anyhow::Result<Vec<AclRule>> {
        let allowed = self.allow.iter().map(|who| (who, Permission::Allow));
        let principals: Vec<_> =
            allowed.chain(self.deny.iter().map(|who| (who, Permission::Deny))).collect();
        if principals.is_empty() {
            let what =
                "say whom it is about, with --allow or --deny: User:alice, or 'User:*' for all";
            return Err(UsageError(what.to_owned()).into());
        }
        let kinds = [
            (ResourceType::Topic, &self.topic),
            (ResourceType::Group, &self.group),
            (ResourceType::TransactionalId, &self.transactional_id),
        ];
        let mut resources: Vec<(ResourceType, String)> = Vec::new();
        for (kind, names) in kinds {
            resources.extend(names.iter().map(|name| (kind, name.clone())));
        }
        if self.cluster {
            resources.push((ResourceType::Cluster, CLUSTER.to_owned()));
        }
        if resources.is_empty() {
            let what =
                "say what it is about, with --topic, --group, --transactional-id or --cluster";
            return Err(UsageError(what.to_owned()).into());
        }
        for (kind, _) in &resources {
            let fits = |operation: &Operation| {
                *operation == Operation::All || kind.operations().contains(operation)
            };
            if let Some(operation) = self.operation.iter().find(|operation| !fits(operation)) {
                let fitting: Vec<&str> =
                    kind.operations().iter().map(|operation| operation.as_str()).collect();
                let what = format!(
                    "there is no {operation} on a {kind}; give some of {}, or ALL, in a command of its own",
                    fitting.join(", ")
                );
                return Err(UsageError(what).into());
            }
        }
        let pattern = if self.prefixed { PatternType::Prefixed } else { PatternType::Literal };
        let mut rules = Vec::new();
        for (principal, permission) in principals {
            for (resource_type, name) in &resources {
                rules.extend(self.operation.iter().map(|operation| AclRule {
                    resource_type: *resource_type,
                    pattern,
                    name: name.clone(),
                    principal: principal.clone(),
                    host: self.host.clone(),
                    operation: *operation,
                    permission,
                }));
            }
        }
        Ok(rules)
    }
}

/// A rule, as JSON has it: in Kafka's words.
#[derive(Serialize)]
pub(super) struct AclDocument<'a> {
    resource_type: &'static str,
    name: &'a str,
    pattern: &'static str,
    principal: &'a str,
    host: &'a str,
    operation: &'static str,
    permission: &'static str,
}

fn print_rules(rules: &[AclRule], json: bool) -> anyhow::Result<()> {
    let items = rules.iter().map(|rule| {
        let document = AclDocument {
            resource_type: rule.resource_type.as_str(),
            name: &rule.name,
            pattern: rule.pattern.as_str(),
            principal: &rule.principal,
            host: &rule.host,
            operation: rule.operation.as_str(),
            permission: rule.permission.as_str(),
        };
        let cells = [
            document.resource_type.to_owned(),
            document.name.to_owned(),
            document.pattern.to_owned(),
            document.principal.to_owned(),
            document.host.to_owned(),
            document.operation.to_owned(),
            document.permission.to_owned(),
        ];
        (document, cells)
    });
    let headings = &["resource", "name", "pattern", "principal", "host", "operation", "permission"];
    print_list(json, headings, items)
}
