//! A process that is out of descriptors: writes are refused, withdrawn whole, and accepted again
//! later. It is in a binary of its own, because the limit is that of the process.

use std::fs::File;
use std::io;
use std::sync::Arc;

use hlc::OsClock;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use storage::disk::RealDisk;
use storage::{AppendError, Durability, LogId, Options};
use testkit::directory::TestDirectory;
use testkit::store::{StoreFixture, append};

/// Few enough that a test can use them up.
const LIMIT: u64 = 256;

fn open(directory: &TestDirectory) -> StoreFixture {
    let disk = Arc::new(RealDisk::open(directory.path()).expect("a disk"));
    let options =
        Options { segment_bytes_max: 64 << 10, manual_maintenance: true, ..Options::default() };
    StoreFixture::open_on(disk, options, Arc::new(OsClock)).expect("it opens")
}

/// Opens files until there is no descriptor left.
fn use_up() -> Vec<File> {
    let mut hogs = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(hog) => hogs.push(hog),
            Err(error) => {
                let code = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
                assert_eq!(code, Some(rustix::io::Errno::MFILE), "{error}");
                return hogs;
            }
        }
    }
}

#[test]
fn a_process_out_of_descriptors_refuses_writes_and_takes_them_again_later() -> io::Result<()> {
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), maximum: hard })?;
    let directory = TestDirectory::new();
    let fixture = open(&directory);
    let mut acknowledged = Vec::new();
    let write = |fixture: &StoreFixture, acknowledged: &mut Vec<u8>, nth: u32| {
        let payload = vec![nth as u8; 10_000];
        let written = fixture.append(vec![append(1, &payload)], Durability::Synced).remove(0);
        acknowledged.extend(written.is_ok().then_some(nth as u8));
        written
    };
    for nth in 0..40 {
        write(&fixture, &mut acknowledged, nth).expect("there are descriptors");
    }
    let mut refused = 0;
    for round in 0..3 {
        let mut hogs = use_up();
        for nth in 0..40 {
            match write(&fixture, &mut acknowledged, 40 + round * 80 + nth) {
                Ok(_) => {}
                Err(AppendError::Storage(error)) => {
                    assert!(error.is_out_of_descriptors(), "{error}");
                    assert!(error.to_string().contains("open more files"), "{error}");
                    refused += 1;
                }
                Err(error) => panic!("the store goes on: {error}"),
            }
            // Once there is something to index, each rolled segment makes room for the next.
            if round > 0 {
                // The rolled segment cannot be opened, which does not mean that it cannot be
                // synced.
                let _ = fixture.store.run_maintenance();
            }
            assert_eq!(fixture.store.stop_reason(), None);
            // Uses up the descriptors that closed journal files released.
            hogs.extend(use_up());
        }
        drop(hogs);
        for nth in 40..80 {
            write(&fixture, &mut acknowledged, 40 + round * 80 + nth)
                .expect("there are descriptors again");
        }
    }
    assert!(refused > 0, "a segment was to begin and could not");
    // A rolled segment that is not synced yet can be synced, whatever was closed for others
    // meanwhile.
    for nth in 0..40 {
        let append = append(1, &[nth; 10_000]);
        fixture.append(vec![append], Durability::Written).remove(0).expect("there are descriptors");
        acknowledged.push(nth);
    }
    let mut hogs = use_up();
    for _ in 0..20 {
        if fixture.append(vec![append(1, &[9; 10_000])], Durability::Written).remove(0).is_ok() {
            acknowledged.push(9);
        }
        hogs.extend(use_up());
    }
    fixture.store.sync().expect("the store goes on");
    drop(hogs);
    let first_bytes = |fixture: &StoreFixture| -> Vec<u8> {
        fixture.read(LogId(1)).iter().map(|entry| entry.payload[0]).collect()
    };
    assert_eq!(first_bytes(&fixture), acknowledged);
    drop(fixture);
    assert_eq!(first_bytes(&open(&directory)), acknowledged);
    Ok(())
}
