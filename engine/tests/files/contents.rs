//! Bytes: written at any offset, read concurrently with writers, after stops and crashes.

use super::*;

#[tokio::test]
async fn f20_writes_at_any_offset_holes_and_truncations_read_as_posix_has_them() {
    let fixture = EngineFixture::new();
    let files = fixture.engine.files();
    let file = filled(files, "/a", b"hello world").await;
    write(&file, 6, b"there").await;
    assert_eq!(text(files, "a", Cut::ALL).unwrap(), "hello there");
    write(&file, 15, b"!").await;
    assert_eq!(text(files, "a", Cut::ALL).unwrap(), "hello there\0\0\0\0!");
    file.truncate(3, Durability::Written).await.unwrap();
    file.truncate(8, Durability::Written).await.unwrap();
    assert_eq!(text(files, "a", Cut::ALL).unwrap(), "hel\0\0\0\0\0", "what was cut off is gone");
    let view = file.view_at(Cut::ALL).unwrap();
    assert_eq!(view.read(8, 10).unwrap().len(), 0);
    assert_eq!(view.read(2, 3).unwrap(), &b"l\0\0"[..]);
    let pieces = view.read_extents(0..99).unwrap();
    assert_eq!(pieces.iter().map(|piece| piece.range.clone()).collect::<Vec<_>>(), [0..3, 3..8]);
    assert_eq!(pieces[1].bytes, None, "a hole takes no memory");
    write(&file, 1 << 40, b"far").await;
    assert_eq!(file.view_at(Cut::ALL).unwrap().length(), (1 << 40) + 3);
    assert_eq!(file.read_at(Cut::ALL, (1 << 40) - 2, 9).unwrap(), &b"\0\0far"[..]);
}

#[tokio::test]
async fn b6_a_partial_overwrite_keeps_the_rest_over_a_restart() {
    let fixture = EngineFixture::new();
    let file = filled(fixture.engine.files(), "/f", &[b'0'; 3 * 4096]).await;
    write(&file, 4096 + 100, &[b'2'; 200]).await;
    drop(file);
    let mut fixture = fixture;
    for _ in 0..3 {
        fixture = fixture.restart();
        let bytes =
            fixture.engine.files().open("/f").unwrap().read_at(Cut::ALL, 0, 1 << 20).unwrap();
        let mut expected = vec![b'0'; 3 * 4096];
        expected[4196..4396].fill(b'2');
        assert_eq!(bytes, expected);
    }
}

#[tokio::test]
async fn b12_writes_that_travel_together_each_arrive_at_their_own_place() {
    let fixture = EngineFixture::new();
    let file = fixture.engine.files().create("/f", 0o644).await.unwrap();
    let mut writing = tokio::task::JoinSet::new();
    for nth in 0..200_u64 {
        let file = file.clone();
        writing.spawn(async move { write(&file, nth * 7, &[nth as u8; 7]).await });
    }
    writing.join_all().await;
    let expected: Vec<u8> = (0..1400).map(|at| (at / 7) as u8).collect();
    assert_eq!(file.read_at(Cut::ALL, 0, 9999).unwrap(), expected);
    let groups = get(&fixture.engine.stats().groups);
    assert!(groups < 200, "some of them travelled together: {groups} groups");
}

#[tokio::test]
async fn a_full_disk_refuses_writes_whole_and_reads_go_on() {
    let fixture = EngineFixture::new();
    let files = fixture.engine.files();
    let file = filled(files, "/f", b"before").await;
    fixture.disk.arm(DiskFault::FullAt(0));
    let data = Bytes::from(vec![1; 8 << 20]);
    assert_eq!(errno(file.write_at(3, data, Durability::Written).await), ENOSPC);
    assert_eq!(text(files, "/f", Cut::ALL).unwrap(), "before");
    fixture.disk.remove_capacity_limit();
    write(&file, 0, b"after!").await;
    assert_eq!(text(files, "/f", Cut::ALL).unwrap(), "after!");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g1_a_concurrent_reader_never_sees_a_torn_write_and_reads_its_own() {
    let fixture = with(FileOptions { checkpoint_entries: 16, ..FileOptions::default() });
    let file = filled(fixture.engine.files(), "/f", &[0; 10_000]).await;
    let mut reading = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let file = file.clone();
        reading.spawn(async move {
            let (mut last, mut changes) = (0, 0);
            while last < 250 {
                let bytes = file.read_at(Cut::ALL, 0, 10_000).unwrap();
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "torn: {last}");
                assert!(bytes[0] >= last, "{} after {last}", bytes[0]);
                changes += u32::from(bytes[0] != last);
                last = bytes[0];
                tokio::task::yield_now().await;
            }
            changes
        });
    }
    for value in 1..=250 {
        write(&file, 0, &[value; 10_000]).await;
        assert_eq!(file.read_at(Cut::ALL, 5000, 1).unwrap()[0], value, "its own write");
    }
    for changes in reading.join_all().await {
        assert!(changes > 1, "the readers ran beside the writer");
    }
}

/// Files enter and leave memory, checkpoints overtake each other, and segments are rolled and
/// sorted, while some threads write and others read moments.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g1_g16_beside_writers_every_moment_has_what_was_written_by_then() {
    const WRITERS: usize = 6;
    const REGION: usize = 700;
    let fixture = on_new(EngineOptions {
        files: FileOptions { checkpoint_entries: 3, closed_max: 0, node_bytes_max: 2 << 10 },
        ..tight()
    });
    let files = fixture.engine.files();
    let inode = filled(files, "/f", &[0; WRITERS * REGION]).await.inode();
    let (mut writing, mut reading) = (tokio::task::JoinSet::new(), tokio::task::JoinSet::new());
    let writers_left = Arc::new(AtomicU64::new(WRITERS as u64));
    for writer in 0..WRITERS {
        let (files, writers_left) = (files.clone(), Arc::clone(&writers_left));
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
            writers_left.fetch_sub(1, Ordering::Relaxed);
            (writer, written)
        });
    }
    for _ in 0..3 {
        let (files, writers_left) = (files.clone(), Arc::clone(&writers_left));
        let timekeeper = Arc::clone(fixture.engine.timekeeper());
        reading.spawn(async move {
            let mut reads = Vec::new();
            while get(&writers_left) > 0 {
                let cut = Cut::through(timekeeper.frontier());
                let read = files.open_inode(inode).unwrap().read_at(cut, 0, WRITERS * REGION);
                reads.push((cut, read.unwrap()));
                tokio::task::yield_now().await;
            }
            reads
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
async fn a_file_was_not_there_before_it_was_made() {
    let fixture = EngineFixture::new();
    let before = moment(&fixture);
    let file = filled(fixture.engine.files(), "/f", b"1").await;
    let after = moment(&fixture);
    assert_eq!(errno(file.view_at(before)), ENOENT);
    assert_eq!(errno(file.read_at(before, 0, 9)), ENOENT);
    assert_eq!(file.read_at(after, 0, 9).unwrap(), &b"1"[..]);
}

#[tokio::test]
async fn a_hole_is_zero_and_its_past_is_not() {
    let fixture = with(FileOptions { checkpoint_entries: 2, ..FileOptions::default() });
    let file = filled(fixture.engine.files(), "/a", b"0123456789").await;
    let before = moment(&fixture);
    file.punch_hole(2..5, Durability::Written).await.unwrap();
    file.punch_hole(8..100, Durability::Written).await.unwrap();
    assert_eq!(file.read_at(Cut::ALL, 0, 99).unwrap(), &b"01\0\0\x00567\0\0"[..]);
    assert_eq!(file.read_at(before, 0, 99).unwrap(), &b"0123456789"[..]);
    let view = file.view_at(Cut::ALL).unwrap();
    assert_eq!(
        (view.seek_data_or_hole(0, true).unwrap(), view.seek_data_or_hole(0, false).unwrap()),
        (Some(0), Some(2))
    );
    assert_eq!(
        (view.seek_data_or_hole(3, true).unwrap(), view.seek_data_or_hole(6, false).unwrap()),
        (Some(5), Some(8))
    );
    assert_eq!(
        (view.seek_data_or_hole(9, true).unwrap(), view.seek_data_or_hole(10, false).unwrap()),
        (None, None)
    );
    assert_eq!(errno(file.punch_hole(5..5, Durability::Written).await), 22);
    assert_eq!(errno(file.punch_hole(5..u64::MAX, Durability::Written).await), 27);
}

#[tokio::test]
async fn a_hole_that_reaches_as_far_as_a_file_can_leaves_it_readable_also_after_a_restart() {
    let fixture = EngineFixture::new();
    let file = filled(fixture.engine.files(), "/a", b"0123").await;
    for start in [(1_u64 << 62) - 4, (1 << 62) - 1] {
        file.punch_hole(start..1 << 62, Durability::Written).await.unwrap();
        assert_eq!(file.read_at(Cut::ALL, 0, 99).unwrap(), &b"0123"[..]);
    }
    drop(file);
    let fixture = fixture.restart();
    assert_eq!(text(fixture.engine.files(), "/a", Cut::ALL).unwrap(), "0123");
}

#[tokio::test]
async fn what_was_synced_outlives_a_crash_also_where_appends_are_not_synced() {
    let options = || {
        let mut options = EngineOptions::default();
        options.core.storage.durability = Durability::Written;
        options
    };
    let fixture = on_new(options());
    for (path, synced) in [("/synced", true), ("/lost", false)] {
        filled(fixture.engine.files(), path, b"a").await;
        if synced {
            fixture.engine.files().sync().await.unwrap();
        }
    }
    let disk = fixture.disk.after_crash(|_| 0);
    let clock = Arc::clone(&fixture.clock);
    drop(fixture);
    let fixture = EngineFixture::with(disk, clock, options());
    assert_eq!(text(fixture.engine.files(), "/synced", Cut::ALL).unwrap(), "a");
    assert_eq!(text(fixture.engine.files(), "/lost", Cut::ALL), Err(ENOENT), "nobody asked for it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn making_a_file_longer_cuts_off_nothing_that_is_written_meanwhile() {
    let fixture = EngineFixture::new();
    let files = fixture.engine.files();
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
        let bytes = file.read_at(Cut::ALL, at, 99).unwrap();
        assert_eq!(bytes, &b"0123456789"[..], "round {round}");
    }
}
