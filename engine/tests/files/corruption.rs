//! Corrupt entries and checkpoints: wrong data is never served.

use super::*;

#[tokio::test]
async fn a_long_write_is_read_back_and_checked_by_its_chunks() {
    let fixture = EngineFixture::new();
    let file = fixture.engine.files().create("/f", 0).await.unwrap();
    let data: Vec<u8> = (0..WRITE_BYTES_MAX).map(|at| (at / 997) as u8).collect();
    write(&file, 10, &data).await;
    write(&file, WRITE_BYTES_MAX as u64 / 2, b"in the middle").await;
    drop(file);
    let fixture = fixture.restart();
    let segment = "00000000000000000000.journal";
    let start = fixture.disk.bytes(segment).windows(4000).position(|bytes| bytes == &data[..4000]);
    // Somewhere in its sixth chunk of twelve.
    fixture.disk.corrupt(segment, start.unwrap() + 5 * (22 << 16) + 77, 1);
    let read = |at: usize, length| {
        fixture.engine.files().open("/f").unwrap().read_at(Cut::ALL, at as u64 + 10, length)
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

/// An index is soft: its corruption costs time, and nothing else.
#[tokio::test]
async fn a_corrupt_checkpoint_is_noticed_and_the_index_rebuilt_from_the_entries() {
    let options = FileOptions { checkpoint_entries: 16, ..FileOptions::default() };
    let fixture = with(options);
    let file = fixture.engine.files().create("/f", 0).await.unwrap();
    let (mut model, mut middle) = (vec![0; 4000], None);
    for nth in 0..120_u64 {
        let at = (nth * 331 % 3900) as usize;
        write(&file, at as u64, &[nth as u8; 100]).await;
        model[at..at + 100].fill(nth as u8);
        if nth == 70 {
            middle = Some((moment(&fixture), model.clone()));
        }
    }
    let (middle, earlier) = middle.unwrap();
    drop(file);
    let EngineFixture { disk, clock, engine } = fixture;
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
            disk.corrupt(segment, at + within, 0x10);
            let all = EngineOptions { files: options, ..EngineOptions::default() };
            let fixture = EngineFixture::with(disk, Arc::clone(&clock), all);
            let files = fixture.engine.files();
            let file = files.open("/f").unwrap();
            for _ in 0..2 {
                let new = file.read_at(Cut::ALL, 0, 4000).unwrap();
                assert!(new == model[..new.len()] && new.len() > 3900);
                let old = file.read_at(middle, 0, 4000).unwrap();
                assert_eq!(old, earlier[..old.len()]);
            }
            rebuilt += get(&files.counters().indexes_rebuilt);
            write(&file, 17, b"after").await;
            drop(file);
            let fixture = fixture.restart();
            let file = fixture.engine.files().open("/f").unwrap();
            assert_eq!(file.read_at(Cut::ALL, 17, 5).unwrap(), &b"after"[..]);
            assert_eq!(file.read_at(Cut::ALL, 22, 3000).unwrap(), model[22..3022]);
        }
    }
    assert!(rebuilt > 0, "some of the corruption was met");
}

/// The effect of a corrupt write on the file is unknown, whatever else is read: replaying the whole
/// log of the file for each read would find the same.
#[tokio::test]
async fn a_corrupt_write_is_an_error_from_its_moment_on_and_no_index_is_rebuilt_for_it() {
    let files = FileOptions { checkpoint_entries: 16, ..FileOptions::default() };
    let fixture = on_new(EngineOptions { files, ..nothing_in_memory() });
    let file = fixture.engine.files().create("/f", 0).await.unwrap();
    for nth in 0..20 {
        write(&file, nth, b"0").await;
    }
    let before = moment(&fixture);
    write(&file, 0, b"spoilt").await;
    write(&file, 9, b"0").await;
    let segment = "00000000000000000000.journal";
    let spoilt =
        fixture.disk.bytes(segment).windows(6).position(|bytes| bytes == b"spoilt").unwrap();
    // The offset of the write.
    fixture.disk.corrupt(segment, spoilt - 16, 1);
    for _ in 0..3 {
        let error = file.read_at(Cut::ALL, 0, 9).unwrap_err();
        assert!(matches!(error, FileError::Corrupt(_)), "{error}");
        assert_eq!(file.read_at(before, 0, 9).unwrap(), &b"000000000"[..]);
    }
    write(&file, 0, b"after").await;
    assert!(file.read_at(moment(&fixture), 0, 9).is_err(), "it may be anywhere");
    assert_eq!(get(&fixture.engine.files().counters().indexes_rebuilt), 0);
}
