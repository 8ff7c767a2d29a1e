//! `freezeframe acls`: who may do what, and who said so.

use super::ServerAddress;
use super::quotas::entity_text;
use super::topics::stamp_date;
use crate::completion;
use crate::moments::{MomentArg, date};
use crate::output::{StandardOutput, UsageError, counted, note_incomplete, print_list_or};
use crate::table::OutputTable;
use client::history::{
    AclDescription, MechanismAtMoment, QuotasAtMoment, SecurityChangeDescription, SecurityLogEntry,
    SecurityLogRequest,
};
use hlc::SysTime;
use kafka_acls::{
    ANY_HOST, AclFilter, AclRule, CLUSTER, Operation, PatternFilter, PatternType, Permission,
    ResourceType,
};

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
A rule allows or denies a principal (User:alice, or User:* for all) operations
on resources: topics, groups, transactional ids, or the cluster. What a rule
denies, no other allows. They count where authorizer.class.name is set;
super.users may do everything. A moment of a topic, its files and its history go
by the rules of the topic, as they are today.

Examples:
  freezeframe acls
  freezeframe acls --topic orders                  those that apply to it
  freezeframe acls --at '1 hour ago'               as they were
  freezeframe acls log                             who changed them, and when
  freezeframe acls add --allow User:alice --operation read --topic orders
  freezeframe acls add --allow User:al --operation read --group bill- --prefixed
  freezeframe acls remove --allow User:alice --operation read --topic orders"
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
  freezeframe acls add --allow User:alice --operation read --topic orders
  freezeframe acls add --deny 'User:*' --operation delete --topic orders
  freezeframe acls add --allow User:admin --operation all --cluster")]
    Add(ChangeAclsArgs),
    /// Remove these very rules, and no others.
    #[command(after_help = "\
Examples:
  freezeframe acls remove --allow User:alice --operation read --topic orders")]
    Remove(ChangeAclsArgs),
    /// Show all changes of rules, users and quotas: when, by whom, from where, and what.
    #[command(after_help = "\
Examples:
  freezeframe acls log
  freezeframe acls log --from 'yesterday 14:00' --json")]
    Log(AclLogArgs),
}

#[derive(Debug, clap::Args)]
struct AclLogArgs {
    /// Only those after this moment
    #[arg(long, value_name = "MOMENT", value_parser = MomentArg::parse_system_moment, allow_hyphen_values = true)]
    from: Option<MomentArg>,
    /// Only those up to this moment
    #[arg(long, value_name = "MOMENT", value_parser = MomentArg::parse_system_moment, allow_hyphen_values = true)]
    until: Option<MomentArg>,
    /// Print one JSON object a line for each time that something was changed
    #[arg(long)]
    json: bool,
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
    /// The rules as of a moment
    #[arg(long, value_name = "MOMENT", value_parser = MomentArg::parse_system_moment, allow_hyphen_values = true)]
    at: Option<MomentArg>,
    /// Print one JSON object a line for each rule
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct ChangeAclsArgs {
    /// A principal that the rules allow: TYPE:NAME. May be given more than once
    #[arg(long, value_name = "TYPE:NAME", value_parser = parse_principal)]
    allow: Vec<String>,
    /// A principal that the rules deny: TYPE:NAME. May be given more than once
    #[arg(long, value_name = "TYPE:NAME", value_parser = parse_principal)]
    deny: Vec<String>,
    /// Operations: read, write, create, delete, alter, describe, describe-configs, alter-configs,
    /// cluster-action, idempotent-write, or all, with commas between
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
            .map(|operation| operation.as_str().to_ascii_lowercase().replace('_', "-"))
            .collect();
        format!("give one of: {}", names.join(", "))
    })
}

pub(crate) async fn run(args: AclsArgs, server: &ServerAddress) -> anyhow::Result<()> {
    match args.command.unwrap_or(AclsCommand::List(args.list)) {
        AclsCommand::List(args) => {
            let rules = list(&args, server).await?;
            let hint = if args.is_filtered() { "" } else { NO_RULES };
            print_rules(&rules, args.json, hint)
        }
        AclsCommand::Log(args) => log(&args, server).await,
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

async fn list(args: &ListAclsArgs, server: &ServerAddress) -> anyhow::Result<Vec<AclDescription>> {
    let filter = args.filter();
    let Some(at) = &args.at else {
        let rules = server.connect().await?.acls(&filter).await?;
        return Ok(rules.iter().map(description).collect());
    };
    at.announce();
    let mut rules = server.connect().await?.acls_at(&at.moment()).await?;
    rules.retain(|described| rule(described).is_some_and(|rule| filter.finds(&rule)));
    Ok(rules)
}

impl ListAclsArgs {
    /// True if there may be other rules than those that are listed.
    fn is_filtered(&self) -> bool {
        let named_options = [&self.topic, &self.group, &self.transactional_id, &self.principal];
        self.at.is_some() || self.cluster || named_options.into_iter().any(Option::is_some)
    }

    fn filter(&self) -> AclFilter {
        let named_resources = [
            (ResourceType::Topic, &self.topic),
            (ResourceType::Group, &self.group),
            (ResourceType::TransactionalId, &self.transactional_id),
        ];
        let named_resource =
            named_resources.into_iter().find_map(|(kind, name)| Some((kind, name.clone()?)));
        let cluster = || self.cluster.then(|| (ResourceType::Cluster, CLUSTER.to_owned()));
        let (resource_type, name) = named_resource.or_else(cluster).unzip();
        let principal = self.principal.clone();
        let pattern = PatternFilter::Match;
        AclFilter { resource_type, pattern, name, principal, ..AclFilter::default() }
    }
}

impl ChangeAclsArgs {
    fn rules(&self) -> anyhow::Result<Vec<AclRule>> {
        let allowed = self.allow.iter().map(|principal| (principal, Permission::Allow));
        let principals: Vec<_> = allowed
            .chain(self.deny.iter().map(|principal| (principal, Permission::Deny)))
            .collect();
        if principals.is_empty() {
            let message =
                "say whom it is about, with --allow or --deny: User:alice, or 'User:*' for all";
            return Err(UsageError(message.to_owned()).into());
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
            let message =
                "say what it is about, with --topic, --group, --transactional-id or --cluster";
            return Err(UsageError(message.to_owned()).into());
        }
        for (kind, _) in &resources {
            let fits = |operation: &Operation| {
                *operation == Operation::All || kind.operations().contains(operation)
            };
            if let Some(operation) = self.operation.iter().find(|operation| !fits(operation)) {
                let fitting: Vec<&str> =
                    kind.operations().iter().map(|operation| operation.as_str()).collect();
                let message = format!(
                    "there is no {operation} on a {kind}; give some of {}, or ALL, in a command of its own",
                    fitting.join(", ")
                );
                return Err(UsageError(message).into());
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

/// A rule in Kafka's words.
fn description(rule: &AclRule) -> AclDescription {
    AclDescription {
        resource_type: rule.resource_type.to_string(),
        name: rule.name.clone(),
        pattern: rule.pattern.to_string(),
        principal: rule.principal.clone(),
        host: rule.host.clone(),
        operation: rule.operation.to_string(),
        permission: rule.permission.to_string(),
    }
}

/// The rule that is described, unless it has words that this program does not know.
fn rule(described: &AclDescription) -> Option<AclRule> {
    Some(AclRule {
        resource_type: ResourceType::named(&described.resource_type)?,
        pattern: PatternType::named(&described.pattern)?,
        name: described.name.clone(),
        principal: described.principal.clone(),
        host: described.host.clone(),
        operation: Operation::named(&described.operation)?,
        permission: Permission::named(&described.permission)?,
    })
}

/// The hint of an empty list of rules.
const NO_RULES: &str = "there are no rules; add one: freezeframe acls add --allow User:NAME --operation read --topic TOPIC";

fn print_rules(rules: &[AclDescription], json: bool, hint: &str) -> anyhow::Result<()> {
    let items = rules.iter().map(|rule| {
        let cells = [
            &rule.resource_type,
            &rule.name,
            &rule.pattern,
            &rule.principal,
            &rule.host,
            &rule.operation,
            &rule.permission,
        ];
        (rule, cells.map(String::clone))
    });
    let headings = &["resource", "name", "pattern", "principal", "host", "operation", "permission"];
    print_list_or(json, headings, items, hint)
}

/// Asks for one page after the other, and prints each.
async fn log(args: &AclLogArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let moment = |at: &Option<MomentArg>| {
        at.as_ref().inspect(|at| at.announce()).map(|at| at.moment().to_string())
    };
    let (from, until) = (moment(&args.from), moment(&args.until));
    let mut request = SecurityLogRequest { from, until, ..SecurityLogRequest::default() };
    let (mut client, mut is_complete) = (server.connect().await?, true);
    loop {
        let page = client.security_log(request.clone()).await?;
        print_log(&page.entries, args.json)?;
        is_complete &= page.complete;
        request.after = page.next;
        if request.after.is_none() {
            note_incomplete(is_complete);
            return Ok(());
        }
    }
}

fn print_log(entries: &[SecurityLogEntry], json: bool) -> anyhow::Result<()> {
    let mut output = StandardOutput::lock();
    let mut table = OutputTable::new(&["when", "by", "from", "change", "of", "what"]);
    for entry in entries {
        if json {
            output.json(entry)?;
            continue;
        }
        for change in &entry.changes {
            let [kind, subject, details] = change_cells(change);
            let (when, actor) = (stamp_date(entry.stamp), entry.by.clone());
            table.row([when, actor, entry.from.clone(), kind, subject, details]);
        }
    }
    if table.count() > 0 {
        output.table(&table)?;
    }
    Ok(output.flush()?)
}

/// The cells of a change: its kind, its subject, and its details.
fn change_cells(change: &SecurityChangeDescription) -> [String; 3] {
    let rule = |kind: &str, rule: &AclDescription| {
        let AclDescription { resource_type, name, pattern, principal, host, operation, permission } =
            rule;
        let beginning = if pattern == PatternType::Prefixed.as_str() { "*" } else { "" };
        let from = if host == ANY_HOST { String::new() } else { format!(" from {host}") };
        let how = format!("{permission} {operation} on {resource_type} {name}{beginning}{from}");
        [kind.to_owned(), principal.clone(), how]
    };
    match change {
        SecurityChangeDescription::AclAdded(added) => rule("rule added", added),
        SecurityChangeDescription::AclRemoved(removed) => rule("rule removed", removed),
        SecurityChangeDescription::PasswordSet { user, mechanism } => {
            let MechanismAtMoment { mechanism, iterations } = mechanism;
            let how = format!("{mechanism}, hashed {iterations} times");
            ["password set".to_owned(), format!("User:{user}"), how]
        }
        SecurityChangeDescription::PasswordRemoved { user, mechanism } => {
            ["password removed".to_owned(), format!("User:{user}"), mechanism.clone()]
        }
        SecurityChangeDescription::TokenSet { id, owner, requester, expires_ms, .. } => {
            let until = date(SysTime(*expires_ms));
            let how = format!("{id}, for {requester}, until {until}");
            ["token set".to_owned(), owner.clone(), how]
        }
        SecurityChangeDescription::TokenRemoved { id } => {
            ["token removed".to_owned(), String::new(), id.clone()]
        }
        SecurityChangeDescription::QuotasSet(QuotasAtMoment { entity, quotas }) => {
            let quota = |(name, value): (&String, &f64)| format!("{name}={value}");
            let subject = entity_text(entity);
            let how = quotas.iter().map(quota).collect::<Vec<_>>().join(", ");
            let kind = if quotas.is_empty() { "quotas removed" } else { "quotas set" };
            [kind.to_owned(), subject, how]
        }
    }
}
