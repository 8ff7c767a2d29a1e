//! `journal/bound`: both of its slots.

use serde::Serialize;
use storage::timekeeper::{BoundRecord, BoundSlot, read_slots};

use super::{InspectPrinter, InspectedFile, stamp, yes_or_no};
use crate::table::OutputTable;

#[derive(Serialize)]
struct BoundSlotLine<'a> {
    file: &'a str,
    slot: usize,
    state: &'static str,
    counts: bool,
    sequence: Option<u64>,
    bound: Option<String>,
    synced_to: Option<u64>,
    closed: Option<bool>,
    wall_confirmed_ms: Option<u64>,
    is_confirmed: Option<bool>,
}

pub(super) fn print(
    inspected: &InspectedFile,
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    let slots = read_slots(&inspected.file)?;
    let newest = slots.iter().filter_map(whole).map(|bound| bound.sequence).max();
    let headings = &[
        "slot",
        "state",
        "sequence",
        "bound",
        "synced to",
        "closed",
        "time confirmed to",
        "confirmed",
        "counts",
    ];
    let mut table = OutputTable::new(headings);
    for (index, slot) in slots.iter().enumerate() {
        let state = match slot {
            BoundSlot::Empty => "never written",
            BoundSlot::Whole(_) => "whole",
            BoundSlot::Corrupt => "corrupt",
        };
        let bound = whole(slot);
        let counts = bound.is_some_and(|bound| Some(bound.sequence) == newest);
        if printer.args.json {
            printer.json(&BoundSlotLine {
                file: &inspected.name,
                slot: index,
                state,
                counts,
                sequence: bound.map(|bound| bound.sequence),
                bound: bound.map(|bound| bound.bound.to_string()),
                synced_to: bound.map(|bound| bound.synced_to),
                closed: bound.map(|bound| bound.clean),
                wall_confirmed_ms: bound.map(|bound| bound.mark.wall.0),
                is_confirmed: bound.map(|bound| bound.mark.is_confirmed),
            })?;
            continue;
        }
        let cell = |text_of: fn(&BoundRecord) -> String| bound.map(text_of).unwrap_or_default();
        table.row([
            index.to_string(),
            state.to_owned(),
            cell(|bound| bound.sequence.to_string()),
            cell(|bound| stamp(bound.bound)),
            cell(|bound| bound.synced_to.to_string()),
            cell(|bound| yes_or_no(bound.clean)),
            cell(|bound| bound.mark.wall.0.to_string()),
            cell(|bound| yes_or_no(bound.mark.is_confirmed)),
            yes_or_no(counts),
        ]);
    }
    if printer.args.json { Ok(()) } else { printer.table(&table) }
}

fn whole(slot: &BoundSlot) -> Option<&BoundRecord> {
    match slot {
        BoundSlot::Whole(bound) => Some(bound),
        BoundSlot::Empty | BoundSlot::Corrupt => None,
    }
}
