//! A random workload against a plain `BTreeMap`: the answers of a log, at random moments. The tail
//! budget holds a handful of payloads, segments hold a handful of frames, and indexing, sorting,
//! retention, reclaiming and loss of indexes happen in between.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hlc::{Cut, Hlc, ManualClock, SysTime, UserTime, WallClock};
use proptest::prelude::*;
use storage::backup::{AsOfError, BackupPoint, CopyPlan, plan_copy};
use storage::disk::{Disk, MemoryDisk};
use storage::index::LogTip;
use storage::manifest::LogHorizon;
use storage::{
    AppendError, CompactedEntry, CompactionHorizon, Durability, EntryPayload, LogAppend, LogId,
    Offset, Options, StorageError,
};
use testkit::store::{StageVerdict, StoreFixture, append, append_with_header, manual_clock};

const LOGS: usize = 3;

#[derive(Clone, Debug)]
struct LogModelEntry {
    base: u64,
    end: u64,
    stamp: Hlc,
    user_max: i64,
    epoch: u32,
    bytes: Bytes,
    chain: u128,
}

/// The entries of each log, by base offset.
type LogModel = [BTreeMap<u64, LogModelEntry>; LOGS];

#[derive(Clone, Debug)]
struct LogAppendSpec {
    log: usize,
    count: u32,
    user: (i64, i64),
    rest: Vec<u8>,
    has_header: bool,
    refuse: bool,
}

#[derive(Clone, Debug)]
enum LogModelStep {
    Append(Vec<Vec<LogAppendSpec>>, bool),
    Advance(u64),
    SetBack(u64),
    /// Reopens, without the index files for which a bit is set.
    Reopen(u64),
    RollSegment,
    RunMaintenance,
    AdvanceLogStart(usize, u16),
    Reclaim,
    /// Replaces the beginning of a log by some of its entries, shortened: those for which a bit is
    /// set.
    ReplacePrefix(usize, u16, u64),
    /// Corrupts a byte of one of the index files.
    Corrupt(u16, u16),
    /// Begins a backup. It is copied at a later step.
    BeginBackup,
    CopyBackups,
}

#[derive(Clone, Debug)]
struct LogModelQuery {
    log: usize,
    /// As fractions of the log, so that they shrink well and mean something in any log.
    from: u16,
    until: u16,
    stamp: u16,
    nudge: i64,
    user: i64,
    bytes: usize,
}

fn append_spec() -> impl Strategy<Value = LogAppendSpec> {
    let length = prop_oneof![8 => 0usize..120, 1 => 2040usize..2100];
    let rest = length.prop_flat_map(|length| prop::collection::vec(any::<u8>(), length));
    (0..LOGS, 1u32..4, -20i64..20, 0i64..6, rest, any::<bool>(), 0u8..8).prop_map(
        |(log, count, user, spread, rest, head, luck)| LogAppendSpec {
            log,
            count,
            user: (user, user + spread),
            rest,
            has_header: head,
            refuse: luck == 0,
        },
    )
}

fn step() -> impl Strategy<Value = LogModelStep> {
    let request = prop::collection::vec(append_spec(), 1..4);
    let group = prop::collection::vec(request, 1..4);
    prop_oneof![
        8 => (group, any::<bool>()).prop_map(|(group, synced)| LogModelStep::Append(group, synced)),
        2 => (0u64..900).prop_map(LogModelStep::Advance),
        1 => (0u64..700).prop_map(LogModelStep::SetBack),
        1 => prop_oneof![Just(0u64), any::<u64>()].prop_map(LogModelStep::Reopen),
        1 => Just(LogModelStep::RollSegment),
        3 => Just(LogModelStep::RunMaintenance),
        1 => (0..LOGS, any::<u16>()).prop_map(|(log, at)| LogModelStep::AdvanceLogStart(log, at)),
        1 => Just(LogModelStep::Reclaim),
        2 => (0..LOGS, any::<u16>(), any::<u64>())
            .prop_map(|(log, at, kept)| LogModelStep::ReplacePrefix(log, at, kept)),
        1 => (any::<u16>(), any::<u16>()).prop_map(|(file, at)| LogModelStep::Corrupt(file, at)),
        1 => Just(LogModelStep::BeginBackup),
        1 => Just(LogModelStep::CopyBackups),
    ]
}

fn query() -> impl Strategy<Value = LogModelQuery> {
    (0..LOGS, any::<u16>(), any::<u16>(), any::<u16>(), -1i64..=1, -25i64..25, 0usize..400)
        .prop_map(|(log, from, until, stamp, nudge, user, bytes)| LogModelQuery {
            log,
            from,
            until,
            stamp,
            nudge,
            user,
            bytes,
        })
}

fn append_of(spec: &LogAppendSpec, epoch: u32) -> LogAppend<StageVerdict> {
    let log = spec.log as u64;
    let plain =
        if spec.has_header { append_with_header(log, &spec.rest) } else { append(log, &spec.rest) };
    LogAppend {
        count: spec.count,
        epoch,
        kind: epoch as u8,
        user: (UserTime(spec.user.0), UserTime(spec.user.1)),
        note: if spec.refuse { StageVerdict::Refuse } else { StageVerdict::Accept },
        ..plain
    }
}

fn record_append(
    model: &mut LogModel,
    spec: &LogAppendSpec,
    epoch: u32,
    result: &testkit::store::StageAppendResult,
) {
    let log = &mut model[spec.log];
    let end = log.last_key_value().map_or(0, |(_, last)| last.end);
    match result {
        Ok(appended) => {
            assert!(!spec.refuse);
            assert_eq!(appended.base, Offset(end), "offsets are dense");
            let mut bytes = Vec::new();
            if spec.has_header {
                bytes.extend_from_slice(&end.to_le_bytes());
                bytes.extend_from_slice(&appended.stamp.bits().to_le_bytes());
            }
            bytes.extend_from_slice(&spec.rest);
            let entry = LogModelEntry {
                base: end,
                end: end + u64::from(spec.count),
                stamp: appended.stamp,
                user_max: spec.user.1,
                epoch,
                bytes: bytes.into(),
                chain: 0,
            };
            log.insert(end, entry);
        }
        Err(AppendError::Refused(_)) => assert!(spec.refuse),
        Err(AppendError::Time(_)) => {}
        Err(other) => panic!("a healthy disk: {other}"),
    }
}

fn read(piece: &EntryPayload) -> (u64, Bytes) {
    (piece.entry.base.0, piece.read().unwrap())
}

fn expected_payload(entry: &LogModelEntry) -> (u64, Bytes) {
    (entry.base, entry.bytes.clone())
}

fn check_query(fixture: &StoreFixture, model: &LogModel, question: &LogModelQuery) {
    let entries: Vec<&LogModelEntry> = model[question.log].values().collect();
    let log = fixture.store.log(LogId(question.log as u64)).unwrap();
    let end = entries.last().map_or(0, |last| last.end);
    let horizon = log.horizon();
    let start = horizon.start.0;
    let fraction = |share: u16, whole: u64| whole * u64::from(share) / u64::from(u16::MAX);
    let from = start + fraction(question.from, end + 1 - start);
    let until = start + fraction(question.until, end + 1 - start);

    assert_eq!(log.end().0, end);
    let entries_kept = entries.iter().filter(|entry| entry.end > start);
    assert_eq!(
        log.bytes().unwrap(),
        entries_kept.map(|entry| entry.bytes.len() as u64).sum::<u64>()
    );
    assert_eq!(log.tip().stamp, entries.last().map_or(Hlc::ZERO, |entry| entry.stamp));

    // A cut at, just before and just after some entry's stamp (F7).
    let picked = entries.get(fraction(question.stamp, entries.len() as u64) as usize);
    let stamp = picked.map_or(Hlc::MAX, |entry| entry.stamp);
    let cut = Cut::below(Hlc::from_bits(stamp.bits().saturating_add_signed(question.nudge)));
    let inside = entries.iter().rfind(|entry| entry.stamp < cut.bound());
    if cut.bound() > horizon.lost_to && cut.bound() >= horizon.compacted_to {
        let tip = log.tip_at(cut).unwrap();
        let expected = inside.map_or((0, Hlc::ZERO, 0), |e| (e.end, e.stamp, e.chain));
        assert_eq!((tip.end.0, tip.stamp, tip.chain), expected, "a cut above the horizon");
    } else if cut.bound() <= horizon.lost_to {
        assert!(log.offset_at(cut).unwrap() < horizon.start, "a cut below the horizon shows it");
    }

    let holding = entries.iter().find(|entry| entry.end > from);
    assert_eq!(
        log.entry_at(Offset(from)).unwrap().map(|entry| (entry.base.0, entry.end().0)),
        holding.map(|entry| (entry.base, entry.end))
    );

    let reaching = entries.iter().find(|entry| entry.end > from && entry.user_max >= question.user);
    assert_eq!(
        log.first_reaching(UserTime(question.user), Offset(from)).unwrap().as_ref().map(read),
        reaching.map(|entry| expected_payload(entry))
    );

    let mut latest: Option<&LogModelEntry> = None;
    for entry in entries.iter().filter(|entry| entry.base >= from && entry.end <= until) {
        if latest.is_none_or(|latest| entry.user_max > latest.user_max) {
            latest = Some(entry);
        }
    }
    assert_eq!(
        log.latest_by_user_time(Offset(from), Offset(until)).unwrap().as_ref().map(read),
        latest.map(expected_payload)
    );

    let (mut expected, mut bytes) = (Vec::new(), 0);
    let mut between = 0;
    for entry in entries.iter().filter(|entry| entry.end > from && entry.base < until) {
        if expected.is_empty()
            || (bytes < question.bytes && bytes + entry.bytes.len() <= question.bytes)
        {
            expected.push(expected_payload(entry));
        } else {
            // Nothing after the first that does not fit.
            bytes = usize::MAX / 2;
        }
        bytes += entry.bytes.len();
        between += if from < until { entry.bytes.len() as u64 } else { 0 };
    }
    let pieces = log.read(Offset(from), Offset(until), question.bytes).unwrap();
    assert_eq!(pieces.iter().map(read).collect::<Vec<_>>(), expected);
    assert_eq!(log.bytes_between(Offset(from), Offset(until)).unwrap(), between);

    let epoch = fraction(question.until, 40) as u32;
    let of_epoch = entries.iter().rfind(|entry| entry.epoch <= epoch);
    if of_epoch.is_none_or(|entry| entry.end > start) {
        let expected = of_epoch.map(|entry| (entry.epoch, Offset(entry.end)));
        if of_epoch.is_some() || start == 0 {
            assert_eq!(log.epoch_end(epoch).unwrap(), expected);
        }
    }
}

fn tips(fixture: &StoreFixture) -> Vec<LogTip> {
    (0..LOGS).map(|log| fixture.store.log(LogId(log as u64)).unwrap().tip()).collect()
}

/// Names of index files and latest-run tables, in order.
fn indexes(disk: &MemoryDisk) -> Vec<String> {
    let is_soft = |name: &String| name.ends_with(".index") || name.ends_with(".latest");
    disk.names().into_iter().filter(is_soft).collect()
}

/// Returns true if all of a log can be read by index.
fn is_readable(fixture: &StoreFixture, log: usize) -> bool {
    let Ok(log) = fixture.store.log(LogId(log as u64)) else { return false };
    let all = log.read(log.start(), Offset(u64::MAX), usize::MAX);
    let offsets = (0..=log.end().0).all(|offset| log.entry_at(Offset(offset)).is_ok());
    let cuts = fixture
        .store
        .sealed_segments()
        .iter()
        .all(|segment| log.tip_at(Cut::below(segment.last_stamp)).is_ok());
    all.is_ok() && offsets && cuts && log.first_reaching(UserTime(25), Offset(0)).is_ok()
}

/// Calls `act`; once more if it found corruption in an index that nothing has read since. The runs
/// of removed entries are read only to reclaim them. The index is rebuilt then.
fn retry_after_rebuild<T>(fixture: &StoreFixture, act: impl Fn() -> Result<T, StorageError>) -> T {
    act().unwrap_or_else(|error| {
        assert!(error.is_corruption(), "{error}");
        fixture.store.run_maintenance().unwrap();
        act().unwrap()
    })
}

/// Records the chain of the last append, as the log returned it.
fn record_chains(model: &mut LogModel, fixture: &StoreFixture) {
    for (log, entries) in model.iter_mut().enumerate() {
        let log = fixture.store.log(LogId(log as u64)).unwrap();
        for (_, entry) in entries.iter_mut().rev().take_while(|(_, entry)| entry.chain == 0) {
            entry.chain = log.entry_at(Offset(entry.base)).unwrap().unwrap().chain;
        }
    }
}

fn replace_prefix(fixture: &StoreFixture, model: &mut LogModel, log: usize, at: u16, mask: u64) {
    let stored = fixture.store.log(LogId(log as u64)).unwrap();
    let entries = &mut model[log];
    let nth = entries.len() * at as usize / (1 << 16);
    let stamp = entries.values().nth(nth).map_or(Hlc::ZERO, |entry| entry.stamp);
    let cut = Cut::below(stamp.next());
    let (until, stamp) =
        retry_after_rebuild(fixture, || fixture.store.replaceable_prefix(stored.id, cut));
    if until.0 == 0 {
        return;
    }
    let compacted = CompactionHorizon { compacted_to: stamp.next(), clean_to: until };
    let pieces = stored.read(stored.start(), until, usize::MAX).unwrap();
    let replaced = fixture.store.replace_prefix::<StorageError>(
        stored.id,
        until,
        &mut |emit| {
            for (nth, piece) in pieces.iter().enumerate() {
                let base = piece.entry.base.0;
                if mask >> (nth % 64) & 1 == 0 && piece.entry.end() < until {
                    entries.remove(&base);
                    continue;
                }
                let bytes = piece.read()?;
                let payload = bytes.slice(..bytes.len() / 2);
                entries.get_mut(&base).unwrap().bytes = payload.clone();
                emit(CompactedEntry { entry: piece.entry, payload })?;
            }
            Ok(compacted)
        },
        &mut |_| true,
    );
    assert!(replaced.unwrap(), "what can be replaced is");
    assert_eq!(stored.horizon().compacted_to, stamp.next());
}

/// Questions about all of a log, and about its middle.
fn plain_questions() -> Vec<LogModelQuery> {
    let question = |log, share: u16, stamp, nudge| LogModelQuery {
        log,
        from: share / 2,
        until: u16::MAX - share,
        stamp,
        nudge,
        user: 0,
        bytes: 300,
    };
    let of_log = |log| {
        [(0, u16::MAX, 1), (0, 40_000, 0), (20_000, 20_000, 1), (30_000, 0, -1)]
            .map(|(share, stamp, nudge)| question(log, share, stamp, nudge))
    };
    (0..LOGS).flat_map(of_log).collect()
}

/// Makes a copy, and opens it: it has to answer as `model` does, but for logs that it has lost.
fn check_copy(
    (disk, copy): (&MemoryDisk, &CopyPlan),
    model: &LogModel,
    (options, clock): (Options, &Arc<ManualClock>),
) {
    let target = MemoryDisk::new();
    for file in &copy.files {
        storage::backup::copy_file(disk, &target, file).unwrap();
    }
    storage::backup::finish_copy(&target, copy).unwrap();
    // The machine loses power: only synced bytes are left.
    let target = target.after_crash(|_| 0);
    let report = storage::check::verify(&target, &[], &mut |_| {}).unwrap();
    let is_serious = |problem: &String| !problem.starts_with("the index ");
    let problems: Vec<String> = report.problems.into_iter().filter(is_serious).collect();
    assert!(problems.is_empty(), "{problems:?}");
    let fixture = StoreFixture::open(&target, options, clock).unwrap();
    let lost: Vec<LogId> = copy.lost_logs.iter().map(|lost| lost.log).collect();
    for question in plain_questions() {
        if !lost.contains(&LogId(question.log as u64)) {
            check_query(&fixture, model, &question);
        }
    }
    let before = fixture.frontier();
    let appended = fixture.append(vec![append(7, b"later")], Durability::Synced).pop().unwrap();
    match appended {
        Ok(receipt) => assert!(receipt.stamp > before, "a copy goes on after what it promised"),
        Err(AppendError::Time(_)) => {}
        Err(other) => panic!("a healthy disk: {other}"),
    }
}

/// The model when `last` was the last stamp.
fn model_as_of(model: &LogModel, last: Hlc) -> LogModel {
    let mut model = model.clone();
    model.iter_mut().for_each(|log| log.retain(|_, entry| entry.stamp <= last));
    model
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// F7, F9, F12, B3; and copies made during the run, and as of every eighth part of its stamps.
    #[test]
    fn a_log_answers_as_a_plain_map_does(
        steps in prop::collection::vec((step(), prop::collection::vec(query(), 0..6)), 1..30),
    ) {
        let options = Options {
            segment_bytes_max: 2048,
            tail_bytes_max: 1500,
            idle_logs_max: 0,
            uncovered_segments_max: 1,
            merge_bytes_min: 32 << 10,
            manual_maintenance: true,
            ..Options::default()
        };
        let (disk, clock) = (MemoryDisk::new(), manual_clock());
        let mut fixture = StoreFixture::open(&disk, options, &clock).unwrap();
        let mut model = LogModel::default();
        let mut corrupt = BTreeSet::new();
        let mut backups: Vec<(BackupPoint, LogModel)> = Vec::new();
        let copy_all = |backups: &mut Vec<(BackupPoint, LogModel)>| {
            for (point, model) in backups.drain(..) {
                let copy = plan_copy(&disk, &point.point).unwrap();
                check_copy((&disk, &copy), &model, (options, &clock));
            }
        };
        for (epoch, (step, questions)) in (0u32..).zip(steps) {
            // The files are kept by the incarnation that began it.
            if matches!(step, LogModelStep::Reopen(_) | LogModelStep::Corrupt(..)) {
                copy_all(&mut backups);
            }
            match step {
                LogModelStep::BeginBackup => {
                    backups.push((fixture.store.begin_backup().unwrap(), model.clone()));
                }
                LogModelStep::CopyBackups => copy_all(&mut backups),
                LogModelStep::Append(group, synced) => {
                    let how = if synced { Durability::Synced } else { Durability::Written };
                    let appends = |request: &Vec<LogAppendSpec>| {
                        (request.iter().map(|wanted| append_of(wanted, epoch)).collect(), how)
                    };
                    let results = fixture.append_as_one_group(group.iter().map(appends).collect());
                    for (wanted, result) in group.iter().flatten().zip(results.iter().flatten()) {
                        record_append(&mut model, wanted, epoch, result);
                    }
                    record_chains(&mut model, &fixture);
                }
                LogModelStep::Advance(ms) => clock.advance(Duration::from_millis(ms)),
                LogModelStep::SetBack(ms) => clock.step_to(SysTime(clock.read().wall.0 - ms)),
                LogModelStep::Reopen(lost) => {
                    let before = tips(&fixture);
                    let frontier = fixture.frontier();
                    drop(fixture);
                    for (nth, name) in indexes(&disk).into_iter().enumerate() {
                        if lost >> (nth % 64) & 1 == 1 {
                            disk.remove(&name).unwrap();
                        }
                    }
                    fixture = StoreFixture::open(&disk, options, &clock).unwrap();
                    prop_assert_eq!(tips(&fixture), before, "the same history has the same chain");
                    prop_assert!(fixture.frontier() >= frontier);
                }
                LogModelStep::RollSegment => fixture.store.roll_segment(),
                LogModelStep::RunMaintenance => fixture.store.run_maintenance().unwrap(),
                LogModelStep::AdvanceLogStart(log, at) => {
                    let log = fixture.store.log(LogId(log as u64)).unwrap();
                    let start = log.end().0 * u64::from(at) / u64::from(u16::MAX);
                    retry_after_rebuild(&fixture, || fixture.store.advance_log_start(&[(log.id, Offset(start))]));
                    prop_assert!(log.start() >= Offset(start));
                }
                LogModelStep::Reclaim => drop(retry_after_rebuild(&fixture, || fixture.store.reclaim())),
                LogModelStep::ReplacePrefix(log, at, kept) => replace_prefix(&fixture, &mut model, log, at, kept),
                LogModelStep::Corrupt(file, at) => {
                    let names = indexes(&disk);
                    if let Some(name) = names.get(file as usize % names.len().max(1)) {
                        drop(fixture);
                        corrupt.insert(name.clone());
                        let length = disk.bytes(name).len();
                        disk.corrupt(name, length * at as usize / (1 << 16), 0x20);
                        fixture = StoreFixture::open(&disk, options, &clock).unwrap();
                        // A reader finds corruption, and the index is rebuilt before the next read.
                        for _ in 0..64 {
                            if (0..LOGS).all(|log| is_readable(&fixture, log)) {
                                break;
                            }
                            fixture.store.run_maintenance().unwrap();
                        }
                    }
                }
            }
            for question in &questions {
                check_query(&fixture, &model, question);
            }
        }
        copy_all(&mut backups);
        let horizon = |log| fixture.store.log(LogId(log as u64)).map(|log| log.horizon());
        let horizons: Vec<LogHorizon> = (0..LOGS).map(horizon).collect::<Result<_, _>>().unwrap();
        drop(fixture);
        let mut stamps: Vec<Hlc> = model.iter().flat_map(|log| log.values()).map(|entry| entry.stamp).collect();
        stamps.sort_unstable();
        for last in stamps.iter().step_by(1 + stamps.len() / 8) {
            match storage::backup::plan_copy_as_of(&disk, *last) {
                Ok(copy) => check_copy((&disk, &copy), &model_as_of(&model, *last), (options, &clock)),
                Err(AsOfError::Incomplete { .. }) => {
                    let horizons = horizons.iter();
                    let mut lost = horizons.filter(|horizon| {
                        horizon.lost_to.max(horizon.released_tip().stamp) > *last
                            || horizon.compacted_to > last.next()
                    });
                    prop_assert!(lost.next().is_some(), "no log lost anything after {last}");
                }
                Err(error) => prop_assert!(false, "as of {last}: {error}"),
            }
        }
        let report = storage::check::check(&disk, &mut |_| {}).unwrap();
        // An index that nothing read is not rebuilt, and the check reports it.
        let is_known = |problem: &String| {
            let of = |name| format!("the index {name} is corrupt in blocks ");
            corrupt.iter().any(|name| problem.starts_with(&of(name)))
        };
        let problems: Vec<_> = report.problems.into_iter().filter(|found| !is_known(found)).collect();
        prop_assert_eq!((problems, report.torn_bytes), (vec![], 0));
    }
}
