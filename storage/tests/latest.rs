//! The entry with the largest user time, in a log with more entries in memory than one lock covers.

use hlc::UserTime;
use storage::disk::MemoryDisk;
use storage::{Durability, LogAppend, LogId, Offset, Options};
use testkit::store::{StoreFixture, append, manual_clock};

const LOG: LogId = LogId(5);
const ENTRIES: u64 = 1000;

/// Each time occurs about ten times.
fn time(nth: u64) -> UserTime {
    UserTime((nth * 7919 % 97) as i64)
}

#[test]
fn the_latest_of_many_entries_is_found_wherever_it_is_and_of_equals_the_first() {
    let fixture = StoreFixture::open(&MemoryDisk::new(), Options::default(), &manual_clock());
    let fixture = fixture.expect("it opens");
    let entry = |nth| LogAppend { user: (time(nth), time(nth)), ..append(LOG.0, b"x") };
    for result in fixture.append((0..ENTRIES).map(entry).collect(), Durability::Written) {
        result.expect("it is appended");
    }
    let log = fixture.store.log(LOG).expect("an index");
    let edges = [0, 1, 7, 255, 256, 257, 300, 511, 512, 513, 999, ENTRIES];
    for from in edges {
        for until in edges {
            let latest = log.latest_by_user_time(Offset(from), Offset(until));
            let base = latest.expect("the disk is whole").map(|piece| piece.entry.base.0);
            let expected = (from..until).rev().max_by_key(|nth| time(*nth));
            assert_eq!(base, expected, "from {from} until {until}");
        }
    }
}
