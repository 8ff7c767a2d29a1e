//! Files with overwrites on a whole engine: names, bytes and attributes as they are and as they were
//! (`F20`, `F35`, `G1`–`G9`, `G13`, `G16`; TIME.md 9).

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod rig;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use engine::files::{
    File, FileError, FileKind, FileOptions, FileTime, Files, Permissions, SetAttributes,
    WRITE_BYTES_MAX,
};
use engine::{Durability, EngineOptions};
use hlc::{Cut, ManualClock, SysTime};
use rig::{Rig, START};
use storage::disk::{Fault, MemoryDisk};

fn with(files: FileOptions) -> Rig {
    on_new(EngineOptions { files, ..EngineOptions::default() })
}

fn on_new(options: EngineOptions) -> Rig {
    let clock = Arc::new(ManualClock::at(SysTime(START)));
    Rig::with(MemoryDisk::new(), clock, options)
}

fn reopen(rig: Rig, options: EngineOptions) -> Rig {
    let Rig { disk, clock, engine } = rig;
    engine.close();
    drop(engine);
    Rig::with(disk, clock, options)
}

/// Now, and what comes is later.
fn moment(rig: &Rig) -> Cut {
    rig.pass(2);
    let cut = rig.now();
    rig.pass(2);
    cut
}

async fn write(file: &File, offset: u64, bytes: &[u8]) {
    let data = Bytes::copy_from_slice(bytes);
    file.write_at(offset, data, Durability::Written).await.unwrap();
}

async fn filled(files: &Files, path: &str, bytes: &[u8]) -> File {
    let file = files.create(path, 0o644).await.unwrap();
    write(&file, 0, bytes).await;
    file
}

fn text(files: &Files, path: &str, cut: Cut) -> Result<String, i32> {
    let view = if cut == Cut::ALL {
        files.open(path).and_then(|file| file.at(cut))
    } else {
        files.open_at(path, cut)
    };
    let read = view.and_then(|view| view.read(0, 1 << 20));
    read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).map_err(|e| e.errno())
}

fn names(files: &Files, path: &str, cut: Cut) -> Vec<String> {
    let listed = files.list(path, cut).unwrap();
    listed.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect()
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn errno<T: std::fmt::Debug>(result: Result<T, FileError>) -> i32 {
    result.expect_err("it is refused").errno()
}

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EAGAIN: i32 = 11;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const EFBIG: i32 = 27;
const ENOSPC: i32 = 28;
const ENAMETOOLONG: i32 = 36;
const ENOTEMPTY: i32 = 39;

#[tokio::test]
async fn f20_writes_at_any_offset_holes_and_truncations_read_as_posix_has_them() {
    let rig = Rig::new();
    let files = rig.engine.files();
    let file = filled(files, "/a", b"hello world").await;
    write(&file, 6, b"there").await;
    assert_eq!(text(files, "a", Cut::ALL).unwrap(), "hello there");
    write(&file, 15, b"!").await;
    assert_eq!(text(files, "a", Cut::ALL).unwrap(), "hello there\0\0\0\0!");
    file.truncate(3, Durability::Written).await.unwrap();
    file.truncate(8, Durability::Written).await.unwrap();
    assert_eq!(text(files, "a", Cut::ALL).unwrap(), "hel\0\0\0\0\0", "what was cut off is gone");
    let view = file.at(Cut::ALL).unwrap();
    assert_eq!(view.read(8, 10).unwrap().len(), 0);
    assert_eq!(view.read(2, 3).unwrap(), &b"l\0\0"[..]);
    let pieces = view.pieces(0..99).unwrap();
    assert_eq!(pieces.iter().map(|piece| piece.range.clone()).collect::<Vec<_>>(), [0..3, 3..8]);
    assert_eq!(pieces[1].bytes, None, "a hole takes no memory");
    write(&file, 1 << 40, b"far").await;
    assert_eq!(file.at(Cut::ALL).unwrap().length(), (1 << 40) + 3);
    assert_eq!(file.read_at(Cut::ALL, (1 << 40) - 2, 9).unwrap(), &b"\0\0far"[..]);
}

#[tokio::test]
async fn b6_a_partial_overwrite_keeps_the_rest_over_a_restart() {
    let rig = Rig::new();
    let file = filled(rig.engine.files(), "/f", &[b'0'; 3 * 4096]).await;
    write(&file, 4096 + 100, &[b'2'; 200]).await;
    drop(file);
    let mut rig = rig;
    for _ in 0..3 {
        rig = rig.restart();
        let bytes = rig.engine.files().open("/f").unwrap().read_at(Cut::ALL, 0, 1 << 20).unwrap();
        let mut expected = vec![b'0'; 3 * 4096];
        expected[4196..4396].fill(b'2');
        assert_eq!(bytes, expected);
    }
}

#[tokio::test]
async fn b12_writes_that_travel_together_each_arrive_at_their_own_place() {
    let rig = Rig::new();
    let file = rig.engine.files().create("/f", 0o644).await.unwrap();
    let mut writing = tokio::task::JoinSet::new();
    for nth in 0..200_u64 {
        let file = file.clone();
        writing.spawn(async move { write(&file, nth * 7, &[nth as u8; 7]).await });
    }
    writing.join_all().await;
    let expected: Vec<u8> = (0..1400).map(|at| (at / 7) as u8).collect();
    assert_eq!(file.read_at(Cut::ALL, 0, 9999).unwrap(), expected);
    let groups = get(&rig.engine.stats().groups);
    assert!(groups < 200, "some of them travelled together: {groups} groups");
}

#[tokio::test]
async fn b13_g16_names_are_resolved_at_the_moment_and_deleted_files_are_found_by_it() {
    let rig = Rig::new();
    let files = rig.engine.files();
    let nothing = moment(&rig);
    files.mkdir("/d", 0o755).await.unwrap();
    let first = filled(files, "/d/a", b"first").await;
    let one = moment(&rig);
    files.rename("/d/a", "/d/b").await.unwrap();
    filled(files, "/d/a", b"second").await;
    write(&first, 0, b"FIRST").await;
    let two = moment(&rig);
    files.unlink("/d/a").await.unwrap();
    files.rename("/d/b", "/c").await.unwrap();
    files.rmdir("/d").await.unwrap();
    let three = moment(&rig);
    filled(files, "/d", b"a file").await;
    let four = moment(&rig);
    let check = |files: &Files| {
        assert_eq!(names(files, "/", nothing), [""; 0]);
        assert_eq!(errno(files.stat("/d", nothing)), ENOENT);
        assert_eq!(names(files, "/d", one), ["a"]);
        assert_eq!(text(files, "/d/a", one).unwrap(), "first");
        assert_eq!(names(files, "/d", two), ["a", "b"]);
        assert_eq!(text(files, "/d/a", two).unwrap(), "second");
        assert_eq!(text(files, "/d/b", two).unwrap(), "FIRST");
        assert_eq!(names(files, "/", three), ["c"]);
        assert_eq!(text(files, "/d/b", three), Err(ENOENT));
        assert_eq!(text(files, "/c", three).unwrap(), "FIRST");
        assert_eq!(names(files, "/", four), ["c", "d"]);
        assert_eq!(text(files, "/d", four).unwrap(), "a file");
        assert_eq!(text(files, "/d/a", four), Err(ENOTDIR));
        assert_eq!(text(files, "/d", Cut::ALL).unwrap(), "a file");
    };
    check(files);
    drop(first);
    let rig = rig.restart();
    check(rig.engine.files());
    let ahead = Cut::before(SysTime(START + 60_000));
    assert_eq!(errno(rig.engine.files().open_at("/d", ahead)), EAGAIN, "it may still change");
}

#[tokio::test]
async fn a_file_goes_on_without_its_name_and_a_name_can_be_one_of_many() {
    let rig = Rig::new();
    let files = rig.engine.files();
    let file = filled(files, "/a", b"1").await;
    files.link("/a", "/b").await.unwrap();
    assert_eq!(files.stat("/b", Cut::ALL).unwrap().links, 2);
    assert_eq!(files.resolve("/a", Cut::ALL).unwrap(), files.resolve("/b", Cut::ALL).unwrap());
    // Two names of one file: nothing happens, by POSIX.
    files.rename("/a", "/b").await.unwrap();
    assert_eq!(names(files, "/", Cut::ALL), ["a", "b"]);
    files.unlink("/a").await.unwrap();
    files.unlink("/b").await.unwrap();
    assert_eq!(files.stat_inode(file.inode(), Cut::ALL).unwrap().links, 0);
    write(&file, 1, b"2").await;
    assert_eq!(file.read_at(Cut::ALL, 0, 9).unwrap(), &b"12"[..]);
    filled(files, "/x", b"x").await;
    filled(files, "/y", b"y").await;
    files.rename("/x", "/y").await.unwrap();
    assert_eq!(text(files, "/y", Cut::ALL).unwrap(), "x", "one takes the other's place");
    assert_eq!(names(files, "/", Cut::ALL), ["y"]);
    files.symlink(b"../y", "/s", 0o777).await.unwrap();
    assert_eq!(files.read_link("/s", Cut::ALL).unwrap(), b"../y");
    let link = files.stat("/s", Cut::ALL).unwrap();
    assert_eq!((link.kind, link.size), (FileKind::Symlink, 4));
}

#[tokio::test]
async fn attributes_are_as_they_were_set_and_as_writes_make_them() {
    let rig = Rig::new();
    let files = rig.engine.files();
    let file = filled(files, "/a", b"1").await;
    let (inode, old) = (file.inode(), FileTime { seconds: 5, nanoseconds: 6 });
    let before = moment(&rig);
    let set = SetAttributes { modified: Some(old), mode: Some(0o600), ..SetAttributes::default() };
    files.set_attributes(inode, set).await.unwrap();
    files.set_extended(inode, b"user.k", Some(b"v")).await.unwrap();
    let after = moment(&rig);
    write(&file, 0, b"234").await;
    let set = SetAttributes { uid: Some(7), ..SetAttributes::default() };
    files.set_attributes(inode, set).await.unwrap();
    files.set_extended(inode, b"user.k", None).await.unwrap();
    let check = |files: &Files| {
        let [first, second, third] =
            [before, after, Cut::ALL].map(|cut| files.stat_inode(inode, cut).unwrap());
        assert_eq!((first.mode, first.size, first.uid), (0o644, 1, 0));
        assert!(first.born <= first.modified && first.modified < second.changed);
        assert_eq!((second.mode, second.size, second.modified), (0o600, 1, old));
        assert_eq!((third.mode, third.size, third.uid), (0o600, 3, 7));
        assert!(third.modified > second.changed, "a write is later than what was set");
        let extended = |cut| files.extended(inode, b"user.k", cut).unwrap();
        assert_eq!([before, after, Cut::ALL].map(extended), [None, Some(b"v".to_vec()), None]);
        assert_eq!(files.list_extended(inode, after).unwrap(), [b"user.k".to_vec()]);
        let root = [before, Cut::ALL].map(|cut| files.stat("/", cut).unwrap());
        assert_eq!(root[0], root[1], "no name in it has changed");
    };
    check(files);
    let rig = rig.restart();
    check(rig.engine.files());
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_posix_numbers() {
    let rig = Rig::new();
    let files = rig.engine.files();
    let file = filled(files, "/f", b"1").await;
    files.mkdir("/d", 0o755).await.unwrap();
    files.mkdir("/d/e", 0o755).await.unwrap();
    assert_eq!(errno(files.create("/f", 0).await), EEXIST);
    assert_eq!(errno(files.mkdir("/d", 0).await), EEXIST);
    assert_eq!(errno(files.create("/no/f", 0).await), ENOENT);
    assert_eq!(errno(files.create("/f/x", 0).await), ENOTDIR);
    assert_eq!(errno(files.open("/f/")), ENOTDIR);
    assert_eq!(errno(files.open("/d")), EISDIR);
    assert_eq!(errno(files.unlink("/d").await), EISDIR);
    assert_eq!(errno(files.rmdir("/f").await), ENOTDIR);
    assert_eq!(errno(files.rmdir("/d").await), ENOTEMPTY);
    assert_eq!(errno(files.rmdir("/").await), EINVAL);
    assert_eq!(errno(files.rename("/d", "/d/e/g").await), EINVAL);
    assert_eq!(errno(files.rename("/f", "/d").await), EISDIR);
    assert_eq!(errno(files.rename("/d", "/f").await), ENOTDIR);
    files.mkdir("/x", 0o755).await.unwrap();
    assert_eq!(errno(files.rename("/x", "/d").await), ENOTEMPTY);
    files.rename("/d", "/x").await.unwrap();
    assert_eq!(
        files.resolve("/x/e/../..", Cut::ALL).unwrap(),
        files.resolve("/", Cut::ALL).unwrap()
    );
    assert_eq!(errno(files.create(&format!("/{}", "n".repeat(256)), 0).await), ENAMETOOLONG);
    assert_eq!(errno(files.open(&"/".repeat(4097))), ENAMETOOLONG);
    assert_eq!(errno(files.create("/a\0b", 0).await), EINVAL);
    assert_eq!(errno(files.create("/..", 0).await), EINVAL);
    let long = Bytes::from(vec![0; WRITE_BYTES_MAX + 1]);
    assert_eq!(errno(file.write_at(0, long, Durability::Written).await), EFBIG);
    for offset in [1 << 62, u64::MAX] {
        let one = Bytes::from_static(b"1");
        assert_eq!(errno(file.write_at(offset, one, Durability::Written).await), EFBIG);
    }
    assert_eq!(errno(file.truncate((1 << 62) + 1, Durability::Written).await), EFBIG);
    // By directory and name, as a mount has it.
    let x = files.resolve("/x", Cut::ALL).unwrap();
    let owner = Permissions { mode: 0o640, uid: 7, gid: 8 };
    let made = files.create((x, &b"in"[..]), owner).await.unwrap();
    let found = files.stat((x, &b"in"[..]), Cut::ALL).unwrap();
    assert_eq!((found.inode, found.mode, found.uid, found.gid), (made.inode(), 0o640, 7, 8));
    assert_eq!(errno(files.create((x, &b"a/b"[..]), 0).await), EINVAL);
    assert_eq!(errno(files.link("/x", "/y").await), EPERM);
    files.rename((x, &b"in"[..]), "/out").await.unwrap();
    files.unlink("/out").await.unwrap();
    assert_eq!(errno(files.link_inode(made.inode(), "/again").await), ENOENT);
    files.rmdir("/x/e").await.unwrap();
    files.rmdir("/x").await.unwrap();
    assert_eq!(errno(files.create((x, &b"in"[..]), 0).await), ENOENT, "it was removed");
    // Names are bytes, not text.
    let name = [b'/', 0xff, 0xfe, 1, 2, 0x80];
    files.create(&name, 0).await.unwrap();
    assert_eq!(files.list("/", Cut::ALL).unwrap().last().unwrap().name, &name[1..]);
    let rig = rig.restart();
    rig.engine.files().open(&name).unwrap();
}

#[tokio::test]
async fn a_full_disk_refuses_writes_whole_and_reads_go_on() {
    let rig = Rig::new();
    let files = rig.engine.files();
    let file = filled(files, "/f", b"before").await;
    rig.disk.arm(Fault::FullAt(0));
    let data = Bytes::from(vec![1; 8 << 20]);
    assert_eq!(errno(file.write_at(3, data, Durability::Written).await), ENOSPC);
    assert_eq!(text(files, "/f", Cut::ALL).unwrap(), "before");
    rig.disk.make_room();
    write(&file, 0, b"after!").await;
    assert_eq!(text(files, "/f", Cut::ALL).unwrap(), "after!");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g1_a_concurrent_reader_never_sees_a_torn_write_and_reads_its_own() {
    let rig = with(FileOptions { checkpoint_entries: 16, ..FileOptions::default() });
    let file = filled(rig.engine.files(), "/f", &[0; 10_000]).await;
    let mut reading = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let file = file.clone();
        reading.spawn(async move {
            let (mut last, mut seen) = (0, 0);
            while last < 250 {
                let bytes = file.read_at(Cut::ALL, 0, 10_000).unwrap();
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "torn: {last}");
                assert!(bytes[0] >= last, "{} after {last}", bytes[0]);
                seen += u32::from(bytes[0] != last);
                last = bytes[0];
                tokio::task::yield_now().await;
            }
            seen
        });
    }
    for value in 1..=250 {
        write(&file, 0, &[value; 10_000]).await;
        assert_eq!(file.read_at(Cut::ALL, 5000, 1).unwrap()[0], value, "its own write");
    }
    for seen in reading.join_all().await {
        assert!(seen > 1, "the readers ran beside the writer");
    }
}

/// Files come and go from memory, checkpoints pass each other, and segments are sealed and filed, while
/// some write and others read moments.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g1_g16_beside_writers_every_moment_has_what_was_written_by_then() {
    const WRITERS: usize = 6;
    const REGION: usize = 700;
    let rig = on_new(EngineOptions {
        files: FileOptions { checkpoint_entries: 3, closed_max: 0, node_bytes_max: 2 << 10 },
        ..tight()
    });
    let files = rig.engine.files();
    let inode = filled(files, "/f", &[0; WRITERS * REGION]).await.inode();
    let (mut writing, mut reading) = (tokio::task::JoinSet::new(), tokio::task::JoinSet::new());
    let left = Arc::new(AtomicU64::new(WRITERS as u64));
    for writer in 0..WRITERS {
        let (files, left) = (files.clone(), Arc::clone(&left));
        writing.spawn(async move {
            let mut written = Vec::new();
            for value in 1..=120 {
                let file = files.open_inode(inode).unwrap();
                let data = Bytes::from(vec![value; REGION]);
                let at = (writer * REGION) as u64;
                written.push(file.write_at(at, data, Durability::Written).await.unwrap());
                let now = file.read_at(Cut::ALL, at, REGION).unwrap();
                assert!(now.iter().all(|byte| *byte == value), "its own write");
            }
            left.fetch_sub(1, Ordering::Relaxed);
            (writer, written)
        });
    }
    for _ in 0..3 {
        let (files, left) = (files.clone(), Arc::clone(&left));
        let timekeeper = Arc::clone(rig.engine.timekeeper());
        reading.spawn(async move {
            let mut seen = Vec::new();
            while get(&left) > 0 {
                let cut = Cut::through(timekeeper.frontier());
                let read = files.open_inode(inode).unwrap().read_at(cut, 0, WRITERS * REGION);
                seen.push((cut, read.unwrap()));
                tokio::task::yield_now().await;
            }
            seen
        });
    }
    let written: BTreeMap<usize, Vec<hlc::Hlc>> = writing.join_all().await.into_iter().collect();
    for (cut, read) in reading.join_all().await.into_iter().flatten() {
        for (writer, written) in &written {
            let expected = written.iter().filter(|stamp| cut.admits(**stamp)).count() as u8;
            let region = &read[writer * REGION..(writer + 1) * REGION];
            assert!(region.iter().all(|byte| *byte == expected), "{writer} at {cut:?}");
        }
    }
}

#[tokio::test]
async fn g8_g9_reopening_reads_one_root_and_a_moment_replays_at_most_as_many_as_stand_between() {
    const EVERY: u64 = 32;
    let options = FileOptions { checkpoint_entries: EVERY, ..FileOptions::default() };
    let rig = with(options);
    let file = rig.engine.files().create("/f", 0).await.unwrap();
    let mut moments = Vec::new();
    let mut model = vec![0; 4999];
    for nth in 0..1000_u64 {
        let at = (nth * 7919) % 4900;
        write(&file, at, &[nth as u8; 100]).await;
        model[at as usize..at as usize + 100].fill(nth as u8);
        if nth % 20 == 7 {
            moments.push((moment(&rig), model.clone()));
        }
    }
    drop(file);
    let rig = reopen(rig, EngineOptions { files: options, ..EngineOptions::default() });
    let files = rig.engine.files();
    let file = files.open("/f").unwrap();
    let counts = files.counts();
    assert_eq!(file.read_at(Cut::ALL, 0, 5000).unwrap().len(), 4999);
    assert_eq!((get(&counts.roots_read), get(&counts.entries_indexed)), (1, 0));
    for (cut, model) in moments {
        let before = (get(&counts.roots_read), get(&counts.entries_indexed));
        let read = file.read_at(cut, 0, 5000).unwrap();
        assert_eq!(read, model[..read.len()]);
        assert!(model[read.len()..].iter().all(|byte| *byte == 0));
        let (roots, entries) =
            (get(&counts.roots_read) - before.0, get(&counts.entries_indexed) - before.1);
        assert!(roots <= 1 && entries <= EVERY, "{roots} roots, {entries} entries");
    }
}

#[tokio::test]
async fn g9_a_long_file_that_is_opened_again_gets_a_checkpoint_only_when_one_is_due() {
    let options = FileOptions { checkpoint_entries: 16, ..FileOptions::default() };
    let rig = with(options);
    let file = filled(rig.engine.files(), "/f", b"0").await;
    for nth in 0..100 {
        write(&file, nth, b"1").await;
    }
    drop(file);
    let rig = reopen(rig, EngineOptions { files: options, ..EngineOptions::default() });
    let files = rig.engine.files();
    let file = files.open("/f").unwrap();
    for _ in 0..10 {
        write(&file, 0, b"2").await;
    }
    assert_eq!(get(&files.counts().checkpoints), 0);
    for _ in 0..10 {
        write(&file, 0, b"3").await;
    }
    assert_eq!(get(&files.counts().checkpoints), 1);
}

/// What a moment costs, in what is read for it: the oldest no more than the newest, and no more after
/// ten times as many writes. (`freezeframe-bench storage f34` measures the time.)
#[tokio::test]
async fn f34_g8_a_moment_costs_as_much_whether_it_is_old_or_new() {
    const EVERY: u64 = 32;
    let files = FileOptions { checkpoint_entries: EVERY, closed_max: 0, node_bytes_max: 0 };
    let rig = on_new(EngineOptions { files, ..nothing_in_memory() });
    let file = rig.engine.files().create("/f", 0).await.unwrap();
    let (mut random, mut moments) = (Random(34), Vec::new());
    for nth in 0..4000_u64 {
        write(&file, random.below(1000) * 64, &[nth as u8; 500]).await;
        if nth % 100 == 99 && nth > 400 {
            moments.push(moment(&rig));
        }
    }
    let counts = rig.engine.files().counts();
    let cost = |cut: &Cut| {
        let now = || [&counts.roots_read, &counts.entries_indexed, &counts.nodes_read].map(get);
        let before = now();
        assert_eq!(file.read_at(*cut, 500, 1).unwrap().len(), 1);
        let after = now();
        [0, 1, 2].map(|nth| after[nth] - before[nth])
    };
    for cut in &moments {
        let [roots, entries, nodes] = cost(cut);
        assert!(roots <= 1 && entries <= EVERY, "{roots} roots, {entries} entries");
        // Each entry is put under a root of which nothing is cached.
        assert!(nodes <= 4 * (EVERY + 1), "{nodes} nodes");
    }
}

/// Nothing is made for a file but its name: there is no log to be had in advance.
#[tokio::test]
async fn g12_a_file_is_made_by_one_short_entry_and_its_log_by_the_first_write() {
    const FILES: u64 = 300;
    let rig = Rig::new();
    let stats = rig.engine.stats();
    let before = [&stats.appends, &stats.bytes].map(get);
    for nth in 0..FILES {
        rig.engine.files().create(&format!("/{nth}"), 0o644).await.unwrap();
    }
    let [appends, bytes] = [get(&stats.appends) - before[0], get(&stats.bytes) - before[1]];
    assert_eq!(appends, FILES);
    assert!(bytes <= 128 * FILES, "{} bytes of journal a file", bytes / FILES);
    assert_eq!(get(&rig.engine.files().counts().checkpoints), 0, "an empty file wants no index");
}

#[tokio::test]
async fn g13_a_file_that_is_opened_again_soon_is_not_read_again() {
    for (closed_max, expected) in [(1, 1), (0, 10_000)] {
        let options = FileOptions { closed_max, ..FileOptions::default() };
        let rig = with(options);
        let file = filled(rig.engine.files(), "/f", b"1234").await;
        write(&file, 2, b"56").await;
        drop(file);
        let rig = reopen(rig, EngineOptions { files: options, ..EngineOptions::default() });
        for _ in 0..10_000 {
            let file = rig.engine.files().open("/f").unwrap();
            assert_eq!(file.at(Cut::ALL).unwrap().length(), 4);
        }
        assert_eq!(get(&rig.engine.files().counts().roots_read), expected);
    }
}

#[tokio::test]
async fn g13_closed_files_are_few_and_leave_with_a_checkpoint() {
    let options = FileOptions { closed_max: 3, ..FileOptions::default() };
    let rig = with(options);
    let files = rig.engine.files();
    for nth in 0..50 {
        let file = filled(files, &format!("/{nth}"), b"a").await;
        write(&file, 1, b"b").await;
    }
    assert_eq!(get(&files.counts().checkpoints), 47, "all but the three that are kept");
    assert!(files.index_bytes() < 20_000, "{}", files.index_bytes());
    for nth in 0..50 {
        assert_eq!(text(files, &format!("/{nth}"), Cut::ALL).unwrap(), "ab");
    }
}

/// A 100-byte write must not cost a page: neither on disk nor in memory.
#[tokio::test]
async fn f13_f35_a_small_write_costs_no_page() {
    const WRITES: u64 = 20_000;
    // What changed since the last checkpoint comes on top of the saved nodes that are kept.
    const NODES: usize = 1 << 20;
    for (order, step) in [("sequential", 1), ("scattered", 7919)] {
        let rig = with(FileOptions { node_bytes_max: NODES, ..FileOptions::default() });
        let files = rig.engine.files();
        let file = files.create("/f", 0).await.unwrap();
        let before = get(&rig.engine.stats().bytes);
        let mut held = 0;
        for nth in 0..WRITES {
            let data = Bytes::from_static(&[7; 100]);
            let at = (nth * step) % WRITES * 100;
            file.write_at(at, data, Durability::Written).await.unwrap();
            held = held.max(files.index_bytes());
        }
        let journal = (get(&rig.engine.stats().bytes) - before) as f64 / WRITES as f64;
        let index = get(&files.counts().checkpoint_bytes) as f64 / WRITES as f64;
        println!(
            "{order}: {journal:.0} bytes of journal a write of 100 bytes, {index:.0} of them index; {held} bytes of index in memory at most"
        );
        assert!(journal < 512.0, "{order}: {journal} bytes a write");
        assert!(held < 2 * NODES, "{order}: {held} bytes for {WRITES} writes");
        assert_eq!(file.at(Cut::ALL).unwrap().length(), WRITES * 100);
    }
}

#[tokio::test]
async fn a_long_write_is_read_back_and_checked_by_its_chunks() {
    let rig = Rig::new();
    let file = rig.engine.files().create("/f", 0).await.unwrap();
    let data: Vec<u8> = (0..WRITE_BYTES_MAX).map(|at| (at / 997) as u8).collect();
    write(&file, 10, &data).await;
    write(&file, WRITE_BYTES_MAX as u64 / 2, b"in the middle").await;
    drop(file);
    let rig = rig.restart();
    let segment = "00000000000000000000.journal";
    let start = rig.disk.bytes(segment).windows(4000).position(|bytes| bytes == &data[..4000]);
    // Somewhere in its sixth chunk of twelve.
    rig.disk.rot(segment, start.unwrap() + 5 * (22 << 16) + 77, 1);
    let read = |at: usize, length| {
        rig.engine.files().open("/f").unwrap().read_at(Cut::ALL, at as u64 + 10, length)
    };
    for at in [0, 1, 65_535, 4 * (22 << 16) - 5, 6 * (22 << 16), WRITE_BYTES_MAX - 9] {
        assert_eq!(read(at, 9).unwrap(), &data[at..at + 9]);
    }
    assert_eq!(read(4 * (22 << 16), 22 << 16).unwrap(), &data[4 * (22 << 16)..5 * (22 << 16)]);
    for at in [5 * (22 << 16), 5 * (22 << 16) + 77, 6 * (22 << 16) - 1] {
        let error = read(at, 1).unwrap_err();
        assert!(matches!(error, FileError::Corrupt(_)), "{error}");
    }
}

/// Long writes and short ones of which little is left, and nothing of them in memory.
fn nothing_in_memory() -> EngineOptions {
    let storage = storage::Options { tail_bytes_max: 1, ..storage::Options::default() };
    EngineOptions { storage, ..EngineOptions::default() }
}

#[tokio::test]
async fn f13_what_is_left_of_a_long_write_between_many_short_ones_is_read_once() {
    const LONG: usize = 8 << 20;
    const SHORT: usize = 1000;
    let rig = on_new(nothing_in_memory());
    let mut model: Vec<u8> = (0..LONG).map(|at| (at / 991) as u8).collect();
    let file = filled(rig.engine.files(), "/f", &model).await;
    for nth in 0..SHORT {
        // Neither in the order of the file, nor within chunks.
        let at = (nth * 7919 % SHORT) * (LONG / SHORT) + 5;
        write(&file, at as u64, &[0xee]).await;
        model[at] = 0xee;
    }
    let view = file.at(Cut::ALL).unwrap();
    let read_before = get(&rig.engine.files().counts().data_bytes_read);
    assert!(view.read(0, LONG).unwrap() == model);
    let read = get(&rig.engine.files().counts().data_bytes_read) - read_before;
    assert!(read > LONG as u64 / 2, "it comes from the disk: {read}");
    assert!(read < 3 * LONG as u64, "{read} bytes were read for {LONG}");
    let mut from = 0;
    for piece in view.pieces(0..LONG as u64).unwrap() {
        assert_eq!(piece.range.start as usize, from);
        from = piece.range.end as usize;
        assert!(piece.bytes.unwrap() == model[piece.range.start as usize..from]);
    }
    assert_eq!(from, LONG);
}

#[tokio::test]
async fn f35_pieces_hold_no_more_than_twice_what_was_asked_for() {
    const WRITE: usize = 60_000;
    let rig = on_new(nothing_in_memory());
    let file = rig.engine.files().create("/f", 0).await.unwrap();
    // Of each write the first 100 bytes are left.
    for nth in 0..50_u64 {
        write(&file, nth * 100, &[nth as u8; WRITE]).await;
    }
    let pieces = file.at(Cut::ALL).unwrap().pieces(0..4900).unwrap();
    assert_eq!(pieces.len(), 49);
    let held = |bytes: Bytes| bytes.try_into_mut().map_or(WRITE, |alone| alone.capacity());
    let held: usize = pieces.into_iter().map(|piece| held(piece.bytes.unwrap())).sum();
    assert!(held <= 2 * 4900, "{held} bytes are held for 4900");
}

/// An index is soft: damage to it costs time, and nothing else.
#[tokio::test]
async fn a_damaged_checkpoint_is_noticed_and_the_index_made_anew_from_the_entries() {
    let options = FileOptions { checkpoint_entries: 16, ..FileOptions::default() };
    let rig = with(options);
    let file = rig.engine.files().create("/f", 0).await.unwrap();
    let (mut model, mut middle) = (vec![0; 4000], None);
    for nth in 0..120_u64 {
        let at = (nth * 331 % 3900) as usize;
        write(&file, at as u64, &[nth as u8; 100]).await;
        model[at..at + 100].fill(nth as u8);
        if nth == 70 {
            middle = Some((moment(&rig), model.clone()));
        }
    }
    let (middle, then) = middle.unwrap();
    drop(file);
    let Rig { disk, clock, engine } = rig;
    engine.close();
    drop(engine);
    let segment = "00000000000000000000.journal";
    let frames: Vec<usize> = {
        let bytes = disk.bytes(segment);
        let is_checkpoint = |at: &usize| bytes[*at..].starts_with(b"FFJ1") && bytes[at + 72] == 35;
        (0..bytes.len() - 80).filter(is_checkpoint).collect()
    };
    assert!(frames.len() >= 7, "{frames:?}");
    let mut rebuilt = 0;
    for at in frames {
        for within in [80, 100] {
            let disk = disk.after_kill();
            disk.rot(segment, at + within, 0x10);
            let all = EngineOptions { files: options, ..EngineOptions::default() };
            let rig = Rig::with(disk, Arc::clone(&clock), all);
            let files = rig.engine.files();
            let file = files.open("/f").unwrap();
            for _ in 0..2 {
                let new = file.read_at(Cut::ALL, 0, 4000).unwrap();
                assert!(new == model[..new.len()] && new.len() > 3900);
                let old = file.read_at(middle, 0, 4000).unwrap();
                assert_eq!(old, then[..old.len()]);
            }
            rebuilt += get(&files.counts().rebuilt);
            write(&file, 17, b"after").await;
            drop(file);
            let rig = rig.restart();
            let file = rig.engine.files().open("/f").unwrap();
            assert_eq!(file.read_at(Cut::ALL, 17, 5).unwrap(), &b"after"[..]);
            assert_eq!(file.read_at(Cut::ALL, 22, 3000).unwrap(), model[22..3022]);
        }
    }
    assert!(rebuilt > 0, "some of the damage was met");
}

/// What a write did to the file is not known then, whatever is read beside it: to read all of the file's
/// log again for each look would find the same.
#[tokio::test]
async fn a_damaged_write_is_an_error_from_its_moment_on_and_no_index_is_made_anew_for_it() {
    let files = FileOptions { checkpoint_entries: 16, ..FileOptions::default() };
    let rig = on_new(EngineOptions { files, ..nothing_in_memory() });
    let file = rig.engine.files().create("/f", 0).await.unwrap();
    for nth in 0..20 {
        write(&file, nth, b"0").await;
    }
    let before = moment(&rig);
    write(&file, 0, b"spoilt").await;
    write(&file, 9, b"0").await;
    let segment = "00000000000000000000.journal";
    let spoilt = rig.disk.bytes(segment).windows(6).position(|bytes| bytes == b"spoilt").unwrap();
    // Where it was to be written.
    rig.disk.rot(segment, spoilt - 16, 1);
    for _ in 0..3 {
        let error = file.read_at(Cut::ALL, 0, 9).unwrap_err();
        assert!(matches!(error, FileError::Corrupt(_)), "{error}");
        assert_eq!(file.read_at(before, 0, 9).unwrap(), &b"000000000"[..]);
    }
    write(&file, 0, b"after").await;
    assert!(file.read_at(moment(&rig), 0, 9).is_err(), "it may be anywhere");
    assert_eq!(get(&rig.engine.files().counts().rebuilt), 0);
}

#[tokio::test]
async fn a_file_was_not_there_before_it_was_made() {
    let rig = Rig::new();
    let before = moment(&rig);
    let file = filled(rig.engine.files(), "/f", b"1").await;
    let after = moment(&rig);
    assert_eq!(errno(file.at(before)), ENOENT);
    assert_eq!(errno(file.read_at(before, 0, 9)), ENOENT);
    assert_eq!(file.read_at(after, 0, 9).unwrap(), &b"1"[..]);
}

/// `cargo test --release -p engine --test files measure -- --ignored --nocapture`: the workload of
/// `F34`, made smaller, and of `F14`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints a measurement"]
#[allow(clippy::disallowed_methods, reason = "it measures")]
async fn measure() {
    use std::time::Instant;
    const WRITES: u64 = 100_000;
    const WRITE: usize = 32 << 10;
    const FILE: usize = 64 << 20;
    let directory =
        std::env::temp_dir().join(format!("freezeframe-measure-{}", std::process::id()));
    let disk = storage::disk::RealDisk::open(&directory).unwrap();
    let wall = Arc::new(hlc::OsClock);
    let options = EngineOptions::default();
    let engine = engine::Engine::open(Arc::new(disk), options, wall, Arc::new(rig::Times)).unwrap();
    let files = engine.files();
    let (mut random, mut moments) = (Random(1), Vec::new());
    let file = files.create("/f", 0o644).await.unwrap();
    let (data, mut begun) = (Bytes::from(vec![7; WRITE]), Instant::now());
    for nth in 1..=WRITES {
        let at = random.below((FILE / WRITE) as u64) * WRITE as u64;
        file.write_at(at, data.clone(), Durability::Written).await.unwrap();
        if nth % (WRITES / 10) == 0 {
            let each = begun.elapsed().as_micros() / u128::from(WRITES / 10);
            println!("{nth} writes: {each} µs each, index {} KiB", files.index_bytes() >> 10);
            moments.push(Cut::through(engine.frontier()));
            begun = Instant::now();
        }
    }
    for round in ["first", "second"] {
        for (nth, cut) in moments.iter().enumerate() {
            let begun = Instant::now();
            let view = file.at(*cut).unwrap();
            let opened = begun.elapsed();
            let mut read = 0;
            while read < FILE {
                read += view.read(read as u64, 1 << 20).unwrap().len().max(1);
            }
            let rate = FILE as f64 / begun.elapsed().as_secs_f64() / 1e6;
            println!("{round} read of moment {nth}: opened in {opened:?}, {rate:.0} MB/s");
        }
    }
    let begun = Instant::now();
    for nth in 0..10_000 {
        drop(files.create(&format!("/{nth}"), 0).await.unwrap());
    }
    println!("create: {} µs each", begun.elapsed().as_micros() / 10_000);
    let begun = Instant::now();
    assert_eq!(files.list("/", Cut::ALL).unwrap().len(), 10_001);
    println!("list of 10,001 names: {:?}", begun.elapsed());
    drop(file);
    engine.close();
    let _ = std::fs::remove_dir_all(&directory);
}

/// What a model knows: names of files, and their bytes.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    names: BTreeMap<String, usize>,
    bytes: Vec<Vec<u8>>,
}

impl Model {
    fn check(&self, files: &Files, cut: Cut) {
        let mut found = BTreeMap::new();
        for directory in ["", "d/"] {
            for entry in files.list(&format!("/{directory}"), cut).unwrap() {
                let path = format!("{directory}{}", String::from_utf8(entry.name).unwrap());
                if entry.kind == FileKind::File {
                    found.insert(path, entry.inode);
                }
            }
        }
        assert!(found.keys().eq(self.names.keys()), "{:?} {:?}", found.keys(), self.names.keys());
        for (path, file) in &self.names {
            let file_bytes = &self.bytes[*file];
            let view = if cut == Cut::ALL {
                files.open(path).unwrap().at(cut).unwrap()
            } else {
                files.open_at(path, cut).unwrap()
            };
            assert_eq!(view.length(), file_bytes.len() as u64, "{path}");
            assert!(view.read(0, 1 << 20).unwrap() == *file_bytes, "bytes of {path} at {cut:?}");
            assert_eq!(files.stat(path, cut).unwrap().inode, found[path]);
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

const PATHS: [&str; 6] = ["a", "b", "c", "d/a", "d/b", "d/c"];

/// One random operation on both.
async fn step(random: &mut Random, files: &Files, model: &mut Model, nth: u64) {
    let path = PATHS[random.below(6) as usize];
    let Some(&file) = model.names.get(path) else {
        files.create(path, 0o644).await.unwrap();
        model.bytes.push(Vec::new());
        model.names.insert(path.to_owned(), model.bytes.len() - 1);
        return;
    };
    let bytes = &mut model.bytes[file];
    match random.below(16) {
        0 => {
            files.unlink(path).await.unwrap();
            model.names.remove(path);
        }
        1 | 2 => {
            let to = PATHS[random.below(6) as usize];
            files.rename(path, to).await.unwrap();
            // Two names of one file stay as they are.
            if model.names.get(to) != Some(&file) {
                model.names.remove(path);
                model.names.insert(to.to_owned(), file);
            }
        }
        3 => {
            let to = PATHS[random.below(6) as usize];
            let linked = files.link(path, to).await;
            assert_eq!(linked.is_ok(), !model.names.contains_key(to));
            model.names.entry(to.to_owned()).or_insert(file);
        }
        4 => {
            let length = random.below(3000);
            let opened = files.open(path).unwrap();
            opened.truncate(length, Durability::Written).await.unwrap();
            bytes.resize(length as usize, 0);
        }
        _ => {
            let (at, length) = (random.below(2500) as usize, 1 + random.below(400) as usize);
            write(&files.open(path).unwrap(), at as u64, &vec![nth as u8; length]).await;
            bytes.resize(bytes.len().max(at + length), 0);
            bytes[at..at + length].fill(nth as u8);
        }
    }
}

/// So that little history goes everywhere: to several checkpoints, out of all caches, and into
/// segments that are sealed, indexed and filed while it goes on.
fn tight() -> EngineOptions {
    let storage = storage::Options {
        segment_bytes_max: 16 << 10,
        segment_frames_max: 60,
        tail_bytes_max: 4 << 10,
        index_bytes_max: 64 << 10,
        ..storage::Options::default()
    };
    let files = FileOptions { checkpoint_entries: 7, closed_max: 2, node_bytes_max: 8 << 10 };
    EngineOptions { storage, files, ..EngineOptions::default() }
}

#[tokio::test]
async fn ga_g16_random_histories_match_a_model_at_every_moment_over_restarts() {
    for seed in 0..12 {
        println!("seed {seed}");
        let (mut random, mut model) = (Random(seed), Model::default());
        let mut rig = on_new(tight());
        rig.engine.files().mkdir("d", 0o755).await.unwrap();
        let mut moments: Vec<(Cut, Model)> = Vec::new();
        for nth in 0..400 {
            step(&mut random, rig.engine.files(), &mut model, nth).await;
            match random.below(40) {
                0 => rig = reopen(rig, tight()),
                1..6 => moments.push((moment(&rig), model.clone())),
                6 => model.check(rig.engine.files(), Cut::ALL),
                7 if !moments.is_empty() => {
                    let (cut, model) = &moments[random.below(moments.len() as u64) as usize];
                    model.check(rig.engine.files(), *cut);
                }
                _ => rig.pass(random.below(3)),
            }
        }
        model.check(rig.engine.files(), Cut::ALL);
        for (cut, model) in &moments {
            model.check(rig.engine.files(), *cut);
        }
        let files = rig.engine.files();
        assert!(get(&files.counts().checkpoints) > 0 || get(&files.counts().roots_read) > 0);
    }
}

#[tokio::test]
async fn a_crash_leaves_all_that_was_synced_and_a_moment_that_there_was() {
    for seed in 0..20 {
        println!("seed {seed}");
        let (mut random, mut model) = (Random(seed), Model::default());
        let mut rig = on_new(tight());
        rig.engine.files().mkdir("d", 0o755).await.unwrap();
        for life in 0..4 {
            rig.engine.files().sync().await.unwrap();
            let mut states = vec![model.clone()];
            let synced = random.below(60);
            for nth in 0..60 {
                step(&mut random, rig.engine.files(), &mut model, nth).await;
                states.push(model.clone());
                if nth == synced {
                    rig.engine.files().sync().await.unwrap();
                    states.drain(..states.len() - 1);
                }
            }
            let mut choices = Random(seed * 10 + life);
            let left = rig.disk.after_crash(|count| choices.below(count as u64) as usize);
            let clock = Arc::clone(&rig.clock);
            drop(rig);
            rig = Rig::with(left, clock, tight());
            // The newest state that it is: every one before the last sync is too old.
            let files = rig.engine.files();
            let found = states.iter().rev().find(|state| {
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    state.check(files, Cut::ALL);
                }))
                .is_ok()
            });
            model = found.expect("a crash leaves a moment that there was").clone();
        }
    }
}

#[tokio::test]
async fn names_are_read_on_from_where_the_catalog_stopped_and_anew_where_it_knows_too_much() {
    let directory = std::env::temp_dir().join(format!("freezeframe-files-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let options = || EngineOptions { catalog: Some(directory.clone()), ..EngineOptions::default() };
    let clock = Arc::new(ManualClock::at(SysTime(START)));
    let rig = Rig::with(MemoryDisk::new(), Arc::clone(&clock), options());
    filled(rig.engine.files(), "/a", b"1").await;
    let Rig { disk, engine, .. } = rig;
    engine.close();
    drop(engine);
    let early = disk.after_kill();
    for name in ["/b", "/c"] {
        let rig = Rig::with(disk.clone(), Arc::clone(&clock), options());
        filled(rig.engine.files(), name, b"2").await;
    }
    let rig = Rig::with(disk, Arc::clone(&clock), options());
    assert_eq!(names(rig.engine.files(), "/", Cut::ALL), ["a", "b", "c"]);
    assert_eq!(rig.engine.files().stat("/b", Cut::ALL).unwrap().links, 1, "applied once");
    drop(rig);
    // A journal that was restored from a backup is older than the catalog.
    let rig = Rig::with(early, clock, options());
    assert_eq!(names(rig.engine.files(), "/", Cut::ALL), ["a"]);
    assert_eq!(text(rig.engine.files(), "/a", Cut::ALL).unwrap(), "1");
    drop(rig);
    let _ = std::fs::remove_dir_all(&directory);
}

/// The place is forgotten first, then the keys: a crash in between leaves keys of nobody.
#[tokio::test]
async fn a_rebuild_of_the_names_that_was_broken_off_leaves_none_that_the_journal_has_not() {
    let directory = std::env::temp_dir().join(format!("freezeframe-anew-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let options = || EngineOptions { catalog: Some(directory.clone()), ..EngineOptions::default() };
    let clock = Arc::new(ManualClock::at(SysTime(START)));
    let rig = Rig::with(MemoryDisk::new(), Arc::clone(&clock), options());
    filled(rig.engine.files(), "/a", b"1").await;
    let Rig { disk, engine, .. } = rig;
    engine.close();
    drop(engine);
    let early = disk.after_kill();
    let rig = Rig::with(disk, Arc::clone(&clock), options());
    filled(rig.engine.files(), "/lost", b"2").await;
    let lost = moment(&rig);
    rig.engine.close();
    drop(rig);
    let catalog = storage::catalog::Catalog::open(&directory).unwrap();
    catalog.forget(b"no key begins with this", storage::LogId(u64::MAX)).unwrap();
    drop(catalog);
    // The journal is a backup's.
    let rig = Rig::with(early, clock, options());
    rig.pass(10_000);
    assert_eq!(names(rig.engine.files(), "/", Cut::ALL), ["a"]);
    assert_eq!(names(rig.engine.files(), "/", lost), ["a"]);
    drop(rig);
    let _ = std::fs::remove_dir_all(&directory);
}

#[tokio::test]
async fn topics_and_files_share_a_journal_and_nothing_else() {
    let rig = Rig::new();
    let topic = rig.topic("t", 3).await;
    filled(rig.engine.files(), "/f", b"1").await;
    rig.append(&topic, 2, &[1, 2]).await.unwrap();
    let more = rig.topic("u", 3).await;
    rig.append(&more, 2, &[3]).await.unwrap();
    let rig = rig.restart();
    assert_eq!(text(rig.engine.files(), "/f", Cut::ALL).unwrap(), "1");
    let ends = ["t", "u"].map(|name| rig.engine.topic(name).unwrap().partitions[2].end().0);
    assert_eq!(ends, [2, 1]);
}

#[tokio::test]
async fn a_rename_can_refuse_to_replace_or_exchange_two_names() {
    use engine::files::Target::{Absent, Exchanged};
    let rig = with(FileOptions::default());
    let files = rig.engine.files();
    filled(files, "/a", b"a").await;
    filled(files, "/b", b"b").await;
    files.mkdir("/d", 0o755).await.unwrap();
    files.mkdir("/d/e", 0o755).await.unwrap();
    assert_eq!(errno(files.rename_to("/a", "/b", Absent).await), EEXIST);
    assert_eq!(errno(files.rename_to("/a", "/c", Exchanged).await), ENOENT);
    assert_eq!(errno(files.rename_to("/a", "/d/e/a", Exchanged).await), ENOENT);
    assert_eq!(errno(files.rename_to("/d", "/d/e", Exchanged).await), 22);
    let before = moment(&rig);
    files.rename_to("/a", "/d/e", Exchanged).await.unwrap();
    assert_eq!(text(files, "/d/e", Cut::ALL), Ok("a".into()));
    assert_eq!(names(files, "/a", Cut::ALL), Vec::<String>::new());
    assert_eq!(text(files, "/a", before), Ok("a".into()));
    let links = |path, cut| files.stat(path, cut).unwrap().links;
    assert_eq!((links("/d", Cut::ALL), links("/d", before)), (2, 3));
    assert_eq!((links("/", Cut::ALL), links("/", before), links("/a", Cut::ALL)), (4, 3, 2));
    files.rename_to("/b", "/c", Absent).await.unwrap();
    assert_eq!(text(files, "/c", Cut::ALL), Ok("b".into()));
}

#[tokio::test]
async fn a_directory_has_as_many_links_as_posix_says_also_after_a_restart() {
    let options = EngineOptions::default();
    let rig = on_new(options.clone());
    let files = rig.engine.files();
    for path in ["/d", "/d/a", "/d/b", "/x"] {
        files.mkdir(path, 0o755).await.unwrap();
    }
    files.create("/d/file", 0o644).await.unwrap();
    files.rmdir("/d/a").await.unwrap();
    files.rename("/x", "/d/x").await.unwrap();
    files.mkdir("/y", 0o755).await.unwrap();
    files.rename("/y", "/d/b").await.unwrap();
    let gone = files.mkdir("/gone", 0o755).await.unwrap();
    files.rmdir("/gone").await.unwrap();
    let rig = reopen(rig, options);
    let files = rig.engine.files();
    let links = |path| files.stat(path, Cut::ALL).unwrap().links;
    assert_eq!((links("/"), links("/d"), links("/d/b"), links("/d/x")), (3, 4, 2, 2));
    assert_eq!(files.stat_inode(gone, Cut::ALL).unwrap().links, 0);
}

#[tokio::test]
async fn a_hole_is_zero_and_its_past_is_not() {
    let rig = with(FileOptions { checkpoint_entries: 2, ..FileOptions::default() });
    let file = filled(rig.engine.files(), "/a", b"0123456789").await;
    let before = moment(&rig);
    file.punch(2..5, Durability::Written).await.unwrap();
    file.punch(8..100, Durability::Written).await.unwrap();
    assert_eq!(file.read_at(Cut::ALL, 0, 99).unwrap(), &b"01\0\0\x00567\0\0"[..]);
    assert_eq!(file.read_at(before, 0, 99).unwrap(), &b"0123456789"[..]);
    let view = file.at(Cut::ALL).unwrap();
    assert_eq!((view.next(0, true).unwrap(), view.next(0, false).unwrap()), (Some(0), Some(2)));
    assert_eq!((view.next(3, true).unwrap(), view.next(6, false).unwrap()), (Some(5), Some(8)));
    assert_eq!((view.next(9, true).unwrap(), view.next(10, false).unwrap()), (None, None));
    assert_eq!(errno(file.punch(5..5, Durability::Written).await), 22);
    assert_eq!(errno(file.punch(5..u64::MAX, Durability::Written).await), 27);
}

#[tokio::test]
async fn a_hole_that_reaches_as_far_as_a_file_can_leaves_it_readable_also_after_a_restart() {
    let rig = Rig::new();
    let file = filled(rig.engine.files(), "/a", b"0123").await;
    for start in [(1_u64 << 62) - 4, (1 << 62) - 1] {
        file.punch(start..1 << 62, Durability::Written).await.unwrap();
        assert_eq!(file.read_at(Cut::ALL, 0, 99).unwrap(), &b"0123"[..]);
    }
    drop(file);
    let rig = rig.restart();
    assert_eq!(text(rig.engine.files(), "/a", Cut::ALL).unwrap(), "0123");
}

#[tokio::test]
async fn what_was_synced_outlives_a_crash_also_where_appends_are_not_synced() {
    let options = || {
        let mut options = EngineOptions::default();
        options.storage.durability = Durability::Written;
        options
    };
    let rig = on_new(options());
    for (path, synced) in [("/synced", true), ("/lost", false)] {
        filled(rig.engine.files(), path, b"a").await;
        if synced {
            rig.engine.files().sync().await.unwrap();
        }
    }
    let left = rig.disk.after_crash(|_| 0);
    let clock = Arc::clone(&rig.clock);
    drop(rig);
    let rig = Rig::with(left, clock, options());
    assert_eq!(text(rig.engine.files(), "/synced", Cut::ALL).unwrap(), "a");
    assert_eq!(text(rig.engine.files(), "/lost", Cut::ALL), Err(ENOENT), "nobody asked for it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn making_a_file_longer_cuts_off_nothing_that_is_written_meanwhile() {
    let rig = Rig::new();
    let files = rig.engine.files();
    let file = filled(files, "/a", b"0").await;
    assert_eq!(file.extend(1, Durability::Written).await.unwrap(), None, "it was as long");
    assert!(file.extend(3, Durability::Written).await.unwrap().is_some());
    assert_eq!(text(files, "/a", Cut::ALL).unwrap(), "0\0\0");
    assert_eq!(errno(file.extend((1 << 62) + 1, Durability::Written).await), EFBIG);
    for round in 1..200_u64 {
        let (writer, at) = (file.clone(), round * 100);
        let writing = tokio::spawn(async move { write(&writer, at, b"0123456789").await });
        file.extend(at + 5, Durability::Written).await.unwrap();
        writing.await.unwrap();
        let found = file.read_at(Cut::ALL, at, 99).unwrap();
        assert_eq!(found, &b"0123456789"[..], "round {round}");
    }
}

#[tokio::test]
async fn what_is_touched_now_is_younger_than_all_that_was_written() {
    let rig = with(FileOptions::default());
    let files = rig.engine.files();
    let old = filled(files, "/old", b"a").await;
    let written = filled(files, "/written", b"a").await;
    let now = engine::files::Now { modified: true, accessed: false };
    files
        .set(old.inode(), SetAttributes { mode: Some(0o600), ..Default::default() }, now)
        .await
        .unwrap();
    let [touched, other] =
        [&old, &written].map(|file| files.stat_inode(file.inode(), Cut::ALL).unwrap());
    assert!(touched.modified > other.modified, "{touched:?} {other:?}");
    assert_eq!((touched.mode, touched.modified), (0o600, touched.changed));
}
