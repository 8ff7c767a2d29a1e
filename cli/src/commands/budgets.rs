//! `freezeframe budgets`: limits that all clients share, and who uses them.

use client::history::BudgetDescription;

use super::ServerAddress;
use crate::output;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A client that is not logged in is shown by its address. While there is room, a
client may hold more than its share; a full budget takes from the largest
holder, or refuses it. With --json, `setting` names the setting that changes the
limit; a budget without one is fixed.

Examples:
  freezeframe budgets
  freezeframe budgets --json | jq 'select(.refused > 0)'")]
pub(crate) struct BudgetsArgs {
    /// Print one JSON object a line for each budget.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: BudgetsArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let budgets = server.connect().await?.budgets().await?;
    let rows = budgets.iter().map(|budget| {
        let cells = [
            budget.name.clone(),
            budget.used.to_string(),
            budget.limit.to_string(),
            largest(budget),
            budget.refused.to_string(),
        ];
        (budget, cells)
    });
    let headings = &["budget", "used", "limit", "largest holder", "refused"];
    output::print_list(args.json, headings, rows)
}

fn largest(budget: &BudgetDescription) -> String {
    match &budget.largest {
        Some(holder) => format!("{} ({})", holder.name, holder.used),
        None => String::new(),
    }
}
