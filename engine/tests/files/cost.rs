//! The cost of files, counted in entries, checkpoints, nodes and bytes.

use testkit::directory::TestDirectory;
use testkit::rng::SeededRng;

use super::*;

#[tokio::test]
async fn g8_g9_reopening_reads_one_root_and_a_moment_replays_at_most_as_many_as_stand_between() {
    const EVERY: u64 = 32;
    let options = FileOptions { checkpoint_entries: EVERY, ..FileOptions::default() };
    let fixture = with(options);
    let file = fixture.engine.files().create("/f", 0).await.unwrap();
    let mut moments = Vec::new();
    let mut model = vec![0; 4999];
    for nth in 0..1000_u64 {
        let at = (nth * 7919) % 4900;
        write(&file, at, &[nth as u8; 100]).await;
        model[at as usize..at as usize + 100].fill(nth as u8);
        if nth % 20 == 7 {
            moments.push((moment(&fixture), model.clone()));
        }
    }
    drop(file);
    let fixture = reopen(fixture, EngineOptions { files: options, ..EngineOptions::default() });
    let files = fixture.engine.files();
    let file = files.open("/f").unwrap();
    let counts = files.counters();
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
    let fixture = with(options);
    let file = filled(fixture.engine.files(), "/f", b"0").await;
    for nth in 0..100 {
        write(&file, nth, b"1").await;
    }
    drop(file);
    let fixture = reopen(fixture, EngineOptions { files: options, ..EngineOptions::default() });
    let files = fixture.engine.files();
    let file = files.open("/f").unwrap();
    for _ in 0..10 {
        write(&file, 0, b"2").await;
    }
    assert_eq!(get(&files.counters().checkpoints), 0);
    for _ in 0..10 {
        write(&file, 0, b"3").await;
    }
    assert_eq!(get(&files.counters().checkpoints), 1);
}

/// The cost of a read of a moment: the oldest costs no more than the newest, and no more after ten
/// times as many writes. (`freezeframe-bench storage f34` measures the time.)
#[tokio::test]
async fn f34_g8_a_moment_costs_as_much_whether_it_is_old_or_new() {
    const EVERY: u64 = 32;
    let files = FileOptions { checkpoint_entries: EVERY, closed_max: 0, node_bytes_max: 0 };
    let fixture = on_new(EngineOptions { files, ..nothing_in_memory() });
    let file = fixture.engine.files().create("/f", 0).await.unwrap();
    let (mut random, mut moments) = (SeededRng::new(34), Vec::new());
    for nth in 0..4000_u64 {
        write(&file, random.below(1000) * 64, &[nth as u8; 500]).await;
        if nth % 100 == 99 && nth > 400 {
            moments.push(moment(&fixture));
        }
    }
    let counts = fixture.engine.files().counters();
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

/// A file of very many extents: nearby entries are read together, however old they are.
#[tokio::test]
async fn f34_a_file_of_many_small_writes_is_read_in_few_reads_at_any_moment() {
    const WRITES: u64 = 4000;
    let fixture = on_new(nothing_in_memory());
    let file = fixture.engine.files().create("/f", 0).await.unwrap();
    let (mut random, mut moments) = (SeededRng::new(21), Vec::new());
    let mut model = vec![0; 64 << 10];
    for nth in 0..WRITES {
        // First sequential, and then random.
        let at = if nth < 1600 { nth * 40 } else { random.below((64 << 10) - 40) };
        write(&file, at, &[nth as u8; 40]).await;
        model[at as usize..at as usize + 40].fill(nth as u8);
        if nth % 400 == 399 && nth > 1600 {
            moments.push((moment(&fixture), model.clone()));
        }
    }
    let counts = fixture.engine.files().counters();
    for (cut, model) in moments {
        let before = get(&counts.data_reads);
        let read = file.read_at(cut, 0, 64 << 10).unwrap();
        assert!(read == model[..read.len()]);
        // Each takes 120 bytes or more of the journal.
        let reads = get(&counts.data_reads) - before;
        assert!(reads <= WRITES * 200 / (32 << 10), "{reads} reads");
    }
}

/// A new file is only a name: its log is not created in advance.
#[tokio::test]
async fn g12_a_file_is_made_by_one_short_entry_and_its_log_by_the_first_write() {
    const FILES: u64 = 300;
    let fixture = EngineFixture::new();
    let stats = fixture.engine.stats();
    let before = [&stats.appends, &stats.bytes].map(get);
    for nth in 0..FILES {
        fixture.engine.files().create(&format!("/{nth}"), 0o644).await.unwrap();
    }
    let [appends, bytes] = [get(&stats.appends) - before[0], get(&stats.bytes) - before[1]];
    assert_eq!(appends, FILES);
    assert!(bytes <= 128 * FILES, "{} bytes of journal a file", bytes / FILES);
    assert_eq!(
        get(&fixture.engine.files().counters().checkpoints),
        0,
        "an empty file wants no index"
    );
}

#[tokio::test]
async fn g13_a_file_that_is_opened_again_soon_is_not_read_again() {
    for (closed_max, expected) in [(1, 1), (0, 10_000)] {
        let options = FileOptions { closed_max, ..FileOptions::default() };
        let fixture = with(options);
        let file = filled(fixture.engine.files(), "/f", b"1234").await;
        write(&file, 2, b"56").await;
        drop(file);
        let fixture = reopen(fixture, EngineOptions { files: options, ..EngineOptions::default() });
        for _ in 0..10_000 {
            let file = fixture.engine.files().open("/f").unwrap();
            assert_eq!(file.view_at(Cut::ALL).unwrap().length(), 4);
        }
        assert_eq!(get(&fixture.engine.files().counters().roots_read), expected);
    }
}

#[tokio::test]
async fn g13_closed_files_are_few_and_leave_with_a_checkpoint() {
    let options = FileOptions { closed_max: 3, ..FileOptions::default() };
    let fixture = with(options);
    let files = fixture.engine.files();
    for nth in 0..50 {
        let file = filled(files, &format!("/{nth}"), b"a").await;
        write(&file, 1, b"b").await;
    }
    assert_eq!(get(&files.counters().checkpoints), 47, "all but the three that are kept");
    assert!(files.index_bytes() < 20_000, "{}", files.index_bytes());
    for nth in 0..50 {
        assert_eq!(text(files, &format!("/{nth}"), Cut::ALL).unwrap(), "ab");
    }
}

/// A 100-byte write must not cost a page, neither on disk nor in memory.
#[tokio::test]
async fn f13_f35_a_small_write_costs_no_page() {
    const WRITES: u64 = 20_000;
    // The changes since the last checkpoint come on top of the cached nodes.
    const NODES: usize = 1 << 20;
    for (order, step) in [("sequential", 1), ("scattered", 7919)] {
        let fixture = with(FileOptions { node_bytes_max: NODES, ..FileOptions::default() });
        let files = fixture.engine.files();
        let file = files.create("/f", 0).await.unwrap();
        let before = get(&fixture.engine.stats().bytes);
        let mut memory = 0;
        for nth in 0..WRITES {
            let data = Bytes::from_static(&[7; 100]);
            let at = (nth * step) % WRITES * 100;
            file.write_at(at, data, Durability::Written).await.unwrap();
            memory = memory.max(files.index_bytes());
        }
        let journal = (get(&fixture.engine.stats().bytes) - before) as f64 / WRITES as f64;
        let index = get(&files.counters().checkpoint_bytes) as f64 / WRITES as f64;
        println!(
            "{order}: {journal:.0} bytes of journal a write of 100 bytes, {index:.0} of them index; {memory} bytes of index in memory at most"
        );
        assert!(journal < 512.0, "{order}: {journal} bytes a write");
        assert!(memory < 2 * NODES, "{order}: {memory} bytes for {WRITES} writes");
        assert_eq!(file.view_at(Cut::ALL).unwrap().length(), WRITES * 100);
    }
}

#[tokio::test]
async fn f13_what_is_left_of_a_long_write_between_many_short_ones_is_read_once() {
    const LONG: usize = 8 << 20;
    const SHORT: usize = 1000;
    let fixture = on_new(nothing_in_memory());
    let mut model: Vec<u8> = (0..LONG).map(|at| (at / 991) as u8).collect();
    let file = filled(fixture.engine.files(), "/f", &model).await;
    for nth in 0..SHORT {
        // Neither in the order of the file, nor within chunks.
        let at = (nth * 7919 % SHORT) * (LONG / SHORT) + 5;
        write(&file, at as u64, &[0xee]).await;
        model[at] = 0xee;
    }
    let view = file.view_at(Cut::ALL).unwrap();
    let read_before = get(&fixture.engine.files().counters().data_bytes_read);
    assert!(view.read(0, LONG).unwrap() == model);
    let read = get(&fixture.engine.files().counters().data_bytes_read) - read_before;
    assert!(read > LONG as u64 / 2, "it comes from the disk: {read}");
    assert!(read < 3 * LONG as u64, "{read} bytes were read for {LONG}");
    let mut from = 0;
    for piece in view.read_extents(0..LONG as u64).unwrap() {
        assert_eq!(piece.range.start as usize, from);
        from = piece.range.end as usize;
        assert!(piece.bytes.unwrap() == model[piece.range.start as usize..from]);
    }
    assert_eq!(from, LONG);
}

#[tokio::test]
async fn f35_extents_hold_no_more_than_twice_what_was_requested() {
    const WRITE: usize = 60_000;
    let fixture = on_new(nothing_in_memory());
    let file = fixture.engine.files().create("/f", 0).await.unwrap();
    // The first 100 bytes of each write remain.
    for nth in 0..50_u64 {
        write(&file, nth * 100, &[nth as u8; WRITE]).await;
    }
    let pieces = file.view_at(Cut::ALL).unwrap().read_extents(0..4900).unwrap();
    assert_eq!(pieces.len(), 49);
    let capacity = |bytes: Bytes| bytes.try_into_mut().map_or(WRITE, |alone| alone.capacity());
    let capacity: usize = pieces.into_iter().map(|piece| capacity(piece.bytes.unwrap())).sum();
    assert!(capacity <= 2 * 4900, "{capacity} bytes are held for 4900");
}

/// Measures the workload of `F34`, made smaller, and of `F14`.
///
/// Run: `cargo test --release -p engine --test integration measure -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints a measurement"]
#[allow(clippy::disallowed_methods, reason = "it measures")]
async fn measure() {
    use std::time::Instant;
    const WRITES: u64 = 100_000;
    const WRITE: usize = 32 << 10;
    const FILE: usize = 64 << 20;
    let directory = TestDirectory::new();
    let disk = storage::disk::RealDisk::open(directory.path()).unwrap();
    let wall = Arc::new(hlc::OsClock);
    let options = EngineOptions::default();
    let engine = engine::Engine::open(
        Arc::new(disk),
        options,
        wall,
        Arc::new(testkit::engine::TimeListFormat),
    )
    .unwrap();
    let files = engine.files();
    let (mut random, mut moments) = (SeededRng::new(1), Vec::new());
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
            let view = file.view_at(*cut).unwrap();
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
}
