//! A caller's thread makes an index anew while the tender gathers heads from it: the head table lacks a log
//! that is alive, and the offsets of that log are given out again.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod harness;

use std::io::{self, IoSlice};
use std::ops::Range;
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    /// Whether sectors of head tables cannot be read, by this test.
    static UNREADABLE: Cell<bool> = const { Cell::new(false) };
}

use harness::{Rig, append, manual_clock};
use parking_lot::Mutex;
use storage::disk::{Disk, DiskFile, MemoryDisk};
use storage::{Durability, LogId, Offset, Options};

type Hook = Arc<Mutex<Option<(String, u64, Box<dyn FnOnce() + Send>)>>>;

/// A disk that does something else before it reads a place of a file, once.
struct Hooked(MemoryDisk, Hook);

struct HookedFile(Arc<dyn DiskFile>, String, Hook);

impl Disk for Hooked {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.0.create(name)
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(HookedFile(self.0.open(name)?, name.to_owned(), Arc::clone(&self.1))))
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn sync_names(&self) -> io::Result<()> {
        self.0.sync_names()
    }
}

impl DiskFile for HookedFile {
    fn length(&self) -> io::Result<u64> {
        self.0.length()
    }
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let is_it = |(name, at, _): &mut (String, u64, _)| *name == self.1 && *at == position;
        let hook = self.2.lock().take_if(is_it);
        if let Some((_, _, act)) = hook {
            act();
        }
        if position > 0 && self.1.ends_with(".heads") && UNREADABLE.get() {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.0.read_at(buffer, position)
    }
    fn write_at(&self, slices: &mut [IoSlice<'_>], position: u64) -> io::Result<()> {
        self.0.write_at(slices, position)
    }
    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.truncate(length)
    }
    fn allocate(&self, length: u64) -> io::Result<()> {
        self.0.allocate(length)
    }
    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        self.0.punch(range)
    }
    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

#[test]
fn no_offset_is_given_out_twice_because_an_index_was_made_anew_while_heads_were_gathered() {
    const LOGS: u64 = 130;
    const ASKED: u64 = 100;
    let options = Options {
        tail_bytes_max: 0,
        index_bytes_max: 0,
        idle_logs_max: 0,
        uncovered_parts_max: 1,
        tended_by_hand: true,
        driven_by_hand: true,
        proofs: false,
        ..Options::default()
    };
    let (memory, clock, hook) = (MemoryDisk::new(), manual_clock(), Hook::default());
    let open = || {
        let disk = Arc::new(Hooked(memory.clone(), Arc::clone(&hook)));
        Arc::new(Rig::open_on(disk, options, clock.clone()).unwrap())
    };
    let seal = |rig: &Rig| {
        rig.store.seal();
        rig.append(Vec::new(), Durability::Written);
        rig.store.tend().unwrap();
    };
    let rig = open();
    for log in 1..=LOGS {
        rig.append(vec![append(log, b"first")], Durability::Synced);
    }
    seal(&rig);
    rig.store.give_up(&[(LogId(1), Offset(1))]).unwrap();
    clock.advance(std::time::Duration::from_secs(2));
    rig.frontier();
    rig.store.close();
    drop(rig);
    clock.advance(std::time::Duration::from_secs(60));
    let rig = open();
    rig.append(vec![append(1000, b"another part")], Durability::Synced);
    // Runs stand in blocks 5 to 9, 30 each. Block 8 rots. While heads of block 6 are read, somebody asks
    // for a log in block 8, and comes upon that.
    let name = format!("{:020}.index", 0);
    memory.rot(&name, 8 * 4096 + 100, 1);
    let asking = Arc::clone(&rig);
    let ask = move || {
        let ask = move || asking.store.log(LogId(ASKED)).map(|log| log.end());
        assert_eq!(std::thread::spawn(ask).join().unwrap().unwrap(), Offset(1));
    };
    *hook.lock() = Some((name, 6 * 4096, Box::new(ask)));
    seal(&rig);
    assert!(hook.lock().is_none(), "heads were gathered");
    let ends = |rig: &Rig| -> Vec<u64> {
        let is_lost = |log: &u64| rig.store.log(LogId(*log)).unwrap().end() != Offset(1);
        (1..=LOGS).filter(is_lost).collect()
    };
    let lost = ends(&rig);
    let Some(log) = lost.first() else { return };
    let appended = rig.append(vec![append(*log, b"second")], Durability::Synced);
    let again = appended[0].as_ref().unwrap().base;
    assert!(lost.is_empty(), "{lost:?} lost their entries; offset {again:?} was given out twice");
}

/// A head table is soft: where a sector of it cannot be read, the indexes still say where logs are.
#[test]
fn a_bad_sector_in_a_head_table_makes_no_log_unreadable() {
    let options = Options {
        tail_bytes_max: 0,
        index_bytes_max: 0,
        idle_logs_max: 0,
        uncovered_parts_max: 0,
        tended_by_hand: true,
        driven_by_hand: true,
        proofs: false,
        ..Options::default()
    };
    let disk = Arc::new(Hooked(MemoryDisk::new(), Hook::default()));
    let rig = Rig::open_on(disk, options, manual_clock()).unwrap();
    rig.append(vec![append(1, b"first")], Durability::Synced);
    rig.store.seal();
    rig.append(Vec::new(), Durability::Written);
    rig.store.tend().unwrap();
    rig.store.tend().unwrap();
    UNREADABLE.set(true);
    let first = rig.store.log(LogId(1)).map(|log| log.end());
    let tended = rig.store.tend();
    let then = rig.store.log(LogId(1)).map(|log| log.end());
    UNREADABLE.set(false);
    assert!(then.is_ok(), "{first:?}, {tended:?}, {then:?}");
}
