//! The proofs of segments: for each its header, whether its claims hold, then its leaves.

use serde::Serialize;
use storage::proof::{Proof, ProofError, ProofHeader, ProofLocation};

use super::{InspectPrinter, InspectedFile, hex, stamp};
use crate::table::OutputTable;

#[derive(Serialize)]
struct ProofHeaderLine<'a> {
    file: &'a str,
    what: &'static str,
    start: u64,
    end: u64,
    frames: u64,
    first: String,
    last: String,
    chain_before: String,
    chain_after: String,
    root: String,
    signed_by: Option<String>,
    signature: Option<String>,
    chain: String,
    signature_state: String,
}

#[derive(Serialize)]
struct ProofLeafLine<'a> {
    file: &'a str,
    what: &'static str,
    position: u64,
    leaf: String,
}

#[derive(Serialize)]
struct ProofFaultLine<'a> {
    file: &'a str,
    what: &'static str,
    reason: String,
}

pub(super) fn print(
    inspected: &InspectedFile,
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    let placed = match ProofLocation::read_all(&inspected.file) {
        Ok(placed) => placed,
        Err(ProofError::Storage(error)) => return Err(error.into()),
        Err(error) => return print_fault(inspected, &error, printer),
    };
    let mut leaves_left = printer.args.frames.unwrap_or(u64::MAX);
    for placed in placed {
        match Proof::open_at(inspected.file.clone(), placed) {
            Ok(proof) => print_proof(inspected, proof, &mut leaves_left, printer)?,
            Err(ProofError::Storage(error)) => return Err(error.into()),
            Err(error) => print_fault(inspected, &error, printer)?,
        }
    }
    Ok(())
}

/// Prints a proof, and at most `leaves_left` of its leaves.
fn print_proof(
    inspected: &InspectedFile,
    mut proof: Proof,
    leaves_left: &mut u64,
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    let chain = match proof.verify_chain(None) {
        Err(fault) => fault.to_string(),
        Ok(()) if proof.is_pruned() => "ok; no leaves: nothing is kept of the segment".to_owned(),
        Ok(()) => "ok".to_owned(),
    };
    let signature = match proof.verify_signature(&[]) {
        Err(fault) => fault.to_string(),
        Ok(()) if proof.header().signature.is_some() => "ok".to_owned(),
        Ok(()) => "not signed".to_owned(),
    };
    print_header(inspected, proof.header(), [chain, signature], printer)?;
    let from = printer.args.from;
    for index in 0..u64::from(proof.header().entries) {
        // If leaves were removed, one hash stands for several.
        let Some(leaf) = proof.leaf_at(index)? else { continue };
        if leaf.position < from {
            continue;
        }
        if *leaves_left == 0 {
            if !printer.args.json {
                printer.text(&format!("more follows: --from {}\n", leaf.position))?;
            }
            break;
        }
        *leaves_left -= 1;
        if printer.args.json {
            printer.json(&ProofLeafLine {
                file: &inspected.name,
                what: "leaf",
                position: leaf.position,
                leaf: leaf.digest.to_string(),
            })?;
        } else {
            let cells = [leaf.position.to_string(), leaf.digest.to_string()];
            printer.row(&["position", "leaf"], cells)?;
        }
    }
    Ok(())
}

fn print_fault(
    inspected: &InspectedFile,
    error: &ProofError,
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    let reason = error.to_string();
    if printer.args.json {
        return printer.json(&ProofFaultLine { file: &inspected.name, what: "corruption", reason });
    }
    printer.text(&format!("{reason}\n"))
}

fn print_header(
    inspected: &InspectedFile,
    header: &ProofHeader,
    [chain, signature_state]: [String; 2],
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    let signed_by = header.signature.map(|signature| signature.key.to_string());
    if printer.args.json {
        return printer.json(&ProofHeaderLine {
            file: &inspected.name,
            what: "proof",
            start: header.start,
            end: header.end,
            frames: header.count,
            first: header.first.to_string(),
            last: header.last.to_string(),
            chain_before: header.before.to_string(),
            chain_after: header.after.to_string(),
            root: header.root.to_string(),
            signed_by,
            signature: header.signature.map(|signature| hex(&signature.bytes)),
            chain,
            signature_state,
        });
    }
    let mut table = OutputTable::new(&["what", "value"]);
    let mut row = |label: &str, value: String| table.row([label.to_owned(), value]);
    row("segment", format!("{}..{}", header.start, header.end));
    row("frames", header.count.to_string());
    row("first entry", stamp(header.first));
    row("last entry", stamp(header.last));
    row("chain before", header.before.to_string());
    row("root", header.root.to_string());
    row("chain after", header.after.to_string());
    row("chain", chain);
    row("signed by", signed_by.unwrap_or_default());
    row("signature", signature_state);
    printer.table(&table)
}
