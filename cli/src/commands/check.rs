//! `freezeframe check DIR`: reads a data directory from end to end.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, bail};
use serde::Serialize;
use storage::DataDirectory;
use storage::check::{ChangedFrame, CheckReport, ProofVerdict, VerificationReport};
use storage::disk::ReadOnlyDisk;
use storage::index::latest_runs_range;
use storage::journal::segment_start;
use storage::proof::{Digest, read_public_key};
use storage::sorted_segment::{is_index_name, is_sorted_segment_name};

use super::topics::stamp_date;
use crate::output::{StandardOutput, byte_progress_bar};
use crate::table::OutputTable;

/// The remark about files that nothing references.
const LEFTOVER_REMARK: &str = "left over, and removed at the next start";
const FOREIGN_REMARK: &str = "no file of a journal, and left alone";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads every byte that the journal holds and compares it with its checksums, and
indexes with what they repeat of it. It continues behind what is corrupt, and
names every corrupt place. Nothing is changed. The server that uses the
directory must be stopped. The exit code is 0 if all is well, and 1 if not.

A problem of an index says that it is soft: nothing is lost by it, and the index
is rebuilt. It counts as a problem, because the disk did not keep what was
written.

--verify compares every frame with its proof as well, and names the first that
was changed, also if its checksums were made right again. With --public-key all
proofs must be signed by that key (or one of several). The chain's value that is
printed stands for all of history up to there: keep it elsewhere.

Examples:
  freezeframe check /var/lib/freezeframe
  freezeframe check ./freezeframe-data --json
  freezeframe check ./freezeframe-data --verify
  openssl pkey -in signing.pem -pubout -out public.pem
  freezeframe check ./freezeframe-data --verify --public-key public.pem")]
pub(crate) struct CheckArgs {
    /// The data directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Verify history against its proofs
    #[arg(long)]
    verify: bool,
    /// The Ed25519 public key, in PEM, that must have signed the proofs. May be given more than
    /// once
    #[arg(long, value_name = "FILE", requires = "verify")]
    public_key: Vec<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct CheckSummary<'a> {
    healthy: bool,
    frames: u64,
    payload_bytes: u64,
    logs: usize,
    segments: usize,
    sorted: usize,
    indexes: usize,
    first_ms: Option<u64>,
    last_ms: Option<u64>,
    clean: bool,
    torn_bytes: u64,
    /// Files that nothing references. They are not a problem.
    leftovers: &'a [String],
    problems: &'a [String],
    /// The number of problems that are not listed.
    problems_left_off: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<VerificationSummary<'a>>,
}

#[derive(Serialize)]
struct VerificationSummary<'a> {
    frames: u64,
    rewritten: u64,
    head_position: Option<u64>,
    head: Option<String>,
    first_changed: Option<ChangedFrameSummary<'a>>,
    unproved: &'a [String],
    proofs: Vec<ProofSummary<'a>>,
}

#[derive(Serialize)]
struct ProofSummary<'a> {
    file: &'a str,
    whole: bool,
    start: u64,
    end: Option<u64>,
    frames: Option<u64>,
    verified: u64,
    changed: u64,
    /// True if its leaves were removed, because nothing is left of the frames that they prove.
    cut: bool,
    chain: Option<String>,
    signed_by: Option<String>,
    first_changed: Option<ChangedFrameSummary<'a>>,
}

#[derive(Serialize)]
struct ChangedFrameSummary<'a> {
    file: &'a str,
    position: u64,
    how: String,
    log: Option<u64>,
    offset: Option<u64>,
    stamp: Option<String>,
    stamp_ms: Option<u64>,
}

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<()> {
    let keys = args.public_key.iter().map(|path| read_public_key(path));
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let home = DataDirectory::open_existing(&args.directory)?;
    home.require_journal()?;
    let disk = ReadOnlyDisk::new(&home.journal());
    let length = storage::check::bytes_to_read(&disk).context("list the journal")?;
    let bar = byte_progress_bar(length);
    let progress = &mut |bytes: u64| bar.set_position(bytes);
    let checked = if args.verify {
        storage::check::verify(&disk, &keys, progress)
    } else {
        storage::check::check(&disk, progress)
    };
    bar.finish_and_clear();
    let mut report = checked.context("read the journal")?;
    report.problems.splice(..0, home.identity_error().map(ToString::to_string));
    let printed = print(&report, args.json);
    // A closed pipe hides the output, but the exit code must still say whether all is well.
    match report.problems.len() as u64 + report.problems_omitted {
        0 => printed,
        1 => bail!("{} has a problem", args.directory.display()),
        count => bail!("{} has {count} problems", args.directory.display()),
    }
}

fn print(report: &CheckReport, json: bool) -> anyhow::Result<()> {
    let mut output = StandardOutput::lock();
    if json {
        output.json(&CheckSummary::of(report))?;
        return Ok(output.flush()?);
    }
    output.table(&table(report))?;
    if let Some(verification) = &report.verification {
        for line in remarks(verification) {
            output.bytes(line.as_bytes())?;
        }
    }
    for leftover in &report.leftovers {
        let remark = if is_own_file(leftover) { LEFTOVER_REMARK } else { FOREIGN_REMARK };
        output.bytes(format!("{remark}: {leftover}\n").as_bytes())?;
    }
    for problem in &report.problems {
        output.bytes(format!("problem: {problem}\n").as_bytes())?;
    }
    if report.problems_omitted > 0 {
        let omitted = format!("problem: and {} more\n", report.problems_omitted);
        output.bytes(omitted.as_bytes())?;
    }
    Ok(output.flush()?)
}

/// True if an unreferenced file is one that a server has left.
fn is_own_file(name: &str) -> bool {
    name.ends_with(".new")
        || is_sorted_segment_name(name)
        || is_index_name(name)
        || latest_runs_range(name).is_some()
        || segment_start(name).is_some()
}

impl CheckSummary<'_> {
    fn of(report: &CheckReport) -> CheckSummary<'_> {
        CheckSummary {
            healthy: report.problems.is_empty(),
            frames: report.frames,
            payload_bytes: report.payload_bytes,
            logs: report.logs.len(),
            segments: report.segments,
            sorted: report.sorted_segments,
            indexes: report.indexes,
            first_ms: report.stamps.map(|(first, _)| first.time().0),
            last_ms: report.stamps.map(|(_, last)| last.time().0),
            clean: was_shut_down_cleanly(report),
            torn_bytes: report.torn_bytes,
            leftovers: &report.leftovers,
            problems: &report.problems,
            problems_left_off: report.problems_omitted,
            verified: report.verification.as_ref().map(VerificationSummary::of),
        }
    }
}

impl VerificationSummary<'_> {
    fn of(verification: &VerificationReport) -> VerificationSummary<'_> {
        let head = verification.chain_head();
        VerificationSummary {
            frames: verification.verified(),
            rewritten: verification.rewritten,
            head_position: head.map(|(position, _)| position),
            head: head.map(|(_, chain)| chain.to_string()),
            first_changed: verification.first_changed().map(ChangedFrameSummary::of),
            unproved: &verification.unproved,
            proofs: verification.proofs.iter().map(ProofSummary::of).collect(),
        }
    }
}

impl ProofSummary<'_> {
    fn of(proof: &ProofVerdict) -> ProofSummary<'_> {
        ProofSummary {
            file: &proof.file,
            whole: proof.header.is_some(),
            start: proof.start,
            end: proof.header.map(|header| header.end),
            frames: proof.header.map(|header| header.count),
            verified: proof.verified,
            changed: proof.changed,
            cut: proof.is_pruned,
            chain: proof.header.map(|header| header.after.to_string()),
            signed_by: signer(proof).map(|key| key.to_string()),
            first_changed: proof.first_changed.as_ref().map(ChangedFrameSummary::of),
        }
    }
}

impl ChangedFrameSummary<'_> {
    fn of(changed: &ChangedFrame) -> ChangedFrameSummary<'_> {
        ChangedFrameSummary {
            file: &changed.file,
            position: changed.position,
            how: changed.change.to_string(),
            log: changed.current_header.map(|(log, _, _)| log.0),
            offset: changed.current_header.map(|(_, offset, _)| offset.0),
            stamp: changed.current_header.map(|(_, _, stamp)| stamp.to_string()),
            stamp_ms: changed.current_header.map(|(_, _, stamp)| stamp.time().0),
        }
    }
}

fn signer(proof: &ProofVerdict) -> Option<Digest> {
    Some(proof.header?.signature?.key)
}

/// Remarks that are not problems but should be known.
fn remarks(verification: &VerificationReport) -> Vec<String> {
    let mut remarks = Vec::new();
    // Signatures are judged with the problems. Here they are only counted by key.
    let mut signers: BTreeMap<String, u64> = BTreeMap::new();
    for proof in verification.proofs.iter().filter(|proof| proof.header.is_some()) {
        let signature = match signer(proof) {
            Some(key) => format!("signed by {key}"),
            None => "not signed".to_owned(),
        };
        *signers.entry(signature).or_default() += 1;
    }
    for (signature, count) in signers {
        remarks.push(format!("proofs {signature}: {count}\n"));
    }
    if let Some((position, chain)) = verification.chain_head() {
        remarks.push(format!("the chain ends at position {position} with {chain}\n"));
    }
    let cut = verification.proofs.iter().filter(|proof| proof.is_pruned).count();
    if cut > 0 {
        remarks.push(format!("proofs of which nothing is kept but the chain: {cut}\n"));
    }
    if verification.rewritten > 0 {
        let count = verification.rewritten;
        remarks.push(format!("rewritten by compaction, and so not verified: {count} frames\n"));
    }
    if let [first, later @ ..] = &verification.unproved[..] {
        let suffix = match later.len() {
            0 => String::new(),
            count => format!(" and {count} after it"),
        };
        remarks.push(format!("no proof yet, and so not verified: {first}{suffix}\n"));
    }
    remarks.push("the newest segment is not proved before it is rolled\n".to_owned());
    remarks
}

/// True if the last server closed the directory cleanly.
fn was_shut_down_cleanly(report: &CheckReport) -> bool {
    report.bound.is_some_and(|bound| bound.clean)
}

fn table(report: &CheckReport) -> OutputTable {
    let mut table = OutputTable::new(&["what", "value"]);
    let mut row = |label: &str, value: String| table.row([label.to_owned(), value]);
    let date = |stamp| stamp_date(client::history::Stamp(stamp));
    row("entries", report.frames.to_string());
    row("bytes", report.payload_bytes.to_string());
    row("logs", report.logs.len().to_string());
    row("segments", report.segments.to_string());
    row("sorted", report.sorted_segments.to_string());
    row("indexes", report.indexes.to_string());
    row("first entry", report.stamps.map(|(first, _)| date(first)).unwrap_or_default());
    row("last entry", report.stamps.map(|(_, last)| date(last)).unwrap_or_default());
    row("closed", if was_shut_down_cleanly(report) { "in order" } else { "by a crash" }.to_owned());
    row("torn bytes", report.torn_bytes.to_string());
    if let Some(verification) = &report.verification {
        row("proofs", verification.proofs.len().to_string());
        row("verified", verification.verified().to_string());
    }
    let problems = report.problems.len() as u64 + report.problems_omitted;
    row("problems", problems.to_string());
    table
}

#[cfg(test)]
mod tests {
    use std::fs;

    use hlc::{Hlc, SysTime, UserTime};
    use storage::disk::RealDisk;
    use storage::journal::{FrameHeader, SegmentHeader, segment_name};
    use storage::proof::{SigningKey, chain_before, write_proof};
    use storage::timekeeper::BoundRecord;
    use storage::{LogId, Offset};

    use super::*;

    /// A data directory that is removed when it is dropped.
    struct CheckFixture(PathBuf);

    impl Drop for CheckFixture {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    impl CheckFixture {
        /// Two sealed segments with one frame each, and an empty one. The sealed ones are proved.
        fn new(name: &str, key: Option<&SigningKey>) -> CheckFixture {
            let name = format!("freezeframe-verify-{}-{name}", std::process::id());
            let fixture = CheckFixture(std::env::temp_dir().join(name));
            let _ = fs::remove_dir_all(&fixture.0);
            drop(DataDirectory::open(&fixture.0, || "c".to_owned()).unwrap());
            fs::create_dir(fixture.0.join("journal")).unwrap();
            for start in [0, 88, 176] {
                let mut bytes = SegmentHeader { start, salt: 0 }.encode().to_vec();
                if start < 176 {
                    bytes.extend(fixture.frame(start, b"payload!"));
                }
                fixture.write(&segment_name(start), &bytes);
            }
            let bound = Hlc::at(SysTime(5000));
            let bound = BoundRecord {
                sequence: 1,
                bound,
                synced_to: 176,
                clean: true,
                ..BoundRecord::default()
            };
            fixture.write("bound", &bound.encode());
            for start in [0, 88] {
                let disk = RealDisk::open(&fixture.0.join("journal")).unwrap();
                let before = chain_before(&disk, start).unwrap().unwrap();
                let go_on = &mut |_| std::ops::ControlFlow::Continue(());
                write_proof(&disk, start..start + 88, before, key, go_on).unwrap();
            }
            fixture
        }

        fn frame(&self, position: u64, payload: &[u8; 8]) -> Vec<u8> {
            let frame = FrameHeader {
                length: 8,
                payload_crc: crc32c(payload),
                stamp: Hlc::at(SysTime(1000 + position)),
                log: LogId(1),
                base: Offset(position / 88),
                count: 1,
                epoch: 0,
                user_min: UserTime(0),
                user_max: UserTime(0),
                synced_to: position,
                kind: 16,
            };
            [&frame.encode(position)[..], payload].concat()
        }

        fn write(&self, name: &str, bytes: &[u8]) {
            fs::write(self.0.join("journal").join(name), bytes).unwrap();
        }

        fn args(&self, public_key: Vec<PathBuf>) -> CheckArgs {
            CheckArgs { directory: self.0.clone(), verify: true, public_key, json: true }
        }

        fn check_json(&self) -> serde_json::Value {
            let disk = RealDisk::open(&self.0.join("journal")).unwrap();
            let report = storage::check::verify(&disk, &[], &mut |_| {}).unwrap();
            serde_json::to_value(CheckSummary::of(&report)).unwrap()
        }
    }

    /// CRC-32C, bit by bit: a table is not worth a dependency.
    fn crc32c(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 }
            })
        })
    }

    #[test]
    fn a_flipped_bit_in_the_identity_is_a_problem_and_the_rest_is_checked() {
        let fixture = CheckFixture::new("identity", None);
        run(&fixture.args(Vec::new())).unwrap();
        let identity = fixture.0.join("FREEZEFRAME");
        let mut bytes = fs::read(&identity).unwrap();
        bytes[b"format 7\ncluster ".len()] ^= 1;
        fs::write(&identity, &bytes).unwrap();
        let error = run(&fixture.args(Vec::new())).unwrap_err().to_string();
        assert!(error.ends_with("has a problem"), "{error}");
        fixture.write("bound", &[1; 64]);
        let error = run(&fixture.args(Vec::new())).unwrap_err().to_string();
        assert!(error.ends_with("has 2 problems"), "{error}");
    }

    #[test]
    fn g15_a_changed_frame_is_named_to_scripts_and_fails_the_run() {
        let fixture = CheckFixture::new("changed", None);
        let healthy = fixture.check_json();
        assert_eq!(
            (&healthy["healthy"], &healthy["verified"]["frames"]),
            (&true.into(), &2.into())
        );
        assert_eq!(healthy["verified"]["head_position"], 176);
        assert_eq!(healthy["verified"]["proofs"][1]["chain"], healthy["verified"]["head"]);
        run(&fixture.args(vec![])).unwrap();
        let header = SegmentHeader { start: 88, salt: 0 }.encode();
        fixture.write(&segment_name(88), &[&header[..], &fixture.frame(88, b"pAyload!")].concat());
        let checked = fixture.check_json();
        let first = &checked["verified"]["first_changed"];
        assert_eq!((&first["position"], &first["log"]), (&88.into(), &1.into()), "{checked}");
        assert_eq!((&first["offset"], &first["stamp"]), (&1.into(), &"sh0000000004400000".into()));
        assert_eq!(first["file"], segment_name(88));
        let error = run(&fixture.args(vec![])).unwrap_err().to_string();
        assert!(error.contains("has a problem"), "{error}");
    }

    #[test]
    fn f41_a_public_key_is_compared_with_every_signature() {
        let key = SigningKey::from_bytes(&[7; 32]);
        let fixture = CheckFixture::new("signed", Some(&key));
        // The header of an Ed25519 public key, then the key, as `openssl pkey -pubout` writes them.
        let public = |name: &str, text: &str| {
            let path = fixture.0.join(name);
            let text = format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n");
            fs::write(&path, text).unwrap();
            path
        };
        let right = public("right", "MCowBQYDK2VwAyEA6kpsY+KcUgq+9VB7Ey7F+ZVHdq6+vnuSQh7qaRRG0iw=");
        let wrong = public("wrong", "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=");
        run(&fixture.args(vec![right.clone()])).unwrap();
        run(&fixture.args(vec![wrong.clone(), right])).unwrap();
        let error = run(&fixture.args(vec![wrong])).unwrap_err().to_string();
        assert!(error.contains("has 2 problems"), "{error}");
        let other_file = public("none", "hello");
        let error = run(&fixture.args(vec![other_file])).unwrap_err().to_string();
        assert!(error.contains("no Ed25519 public key"), "{error}");
        let signer = &fixture.check_json()["verified"]["proofs"][0]["signed_by"];
        assert!(signer.as_str().unwrap().starts_with("ea4a6c63e29c520a"), "{signer}");
    }

    #[test]
    fn a_check_changes_nothing_and_a_journal_that_is_gone_is_not_whole() {
        let fixture = CheckFixture::new("gone", None);
        let lock = fixture.0.join("LOCK");
        fs::write(&lock, "17\n").unwrap();
        let times = || {
            let files = fs::read_dir(fixture.0.join("journal")).unwrap().flatten();
            let mut times: Vec<_> = files
                .map(|file| (file.file_name(), file.metadata().unwrap().modified().unwrap()))
                .collect();
            times.sort();
            times
        };
        let before = times();
        run(&fixture.args(Vec::new())).unwrap();
        assert_eq!((times(), fs::read(&lock).unwrap()), (before, b"17\n".to_vec()));
        fs::remove_dir_all(fixture.0.join("journal")).unwrap();
        let error = run(&fixture.args(Vec::new())).unwrap_err().to_string();
        assert!(error.contains("its journal is gone"), "{error}");
        assert!(!fixture.0.join("journal").exists());
    }

    #[test]
    fn a_directory_that_is_none_of_ours_is_refused_and_left_as_it_is() {
        let name = format!("freezeframe-check-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        let args = CheckArgs {
            directory: directory.clone(),
            verify: false,
            public_key: Vec::new(),
            json: false,
        };
        let error = run(&args).unwrap_err().to_string();
        assert!(error.contains("no freezeframe data directory"), "{error}");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        fs::remove_dir(&directory).unwrap();
    }
}
