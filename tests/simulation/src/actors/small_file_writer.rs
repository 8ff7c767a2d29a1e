//! Creates very many files, in worlds with a long history, writes most of them once, and finds them
//! again much later. Each file is a log that many segments of history know nothing of.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use engine::files::{FileError, Inode};
use engine::{Durability, Engine};
use hlc::Cut;
use testkit::rng::SeededRng;

use super::{pause, unless_node_exits};
use crate::facts::SimFact;
use crate::small_files::SmallFile;
use crate::world::SimWorld;

const WHO: &str = "small_file_writer";
/// The directory that they are in.
pub(super) const DIRECTORY: &str = "small_files";
/// The most files that it writes and checks at a time.
const WRITES_PER_ROUND_MAX: u64 = 16;
const READS_PER_ROUND: u64 = 1;
/// The number of files that it checks at the end.
const READS_AT_END: u64 = 60;

pub(crate) struct SmallFileWriter {
    world: Rc<SimWorld>,
    rng: SeededRng,
    count: u64,
}

impl SmallFileWriter {
    pub(crate) fn new(world: &Rc<SimWorld>, rng: SeededRng) -> SmallFileWriter {
        SmallFileWriter { world: Rc::clone(world), rng, count: 0 }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            pause(&mut self.rng, 20, 160).await;
            let Some(engine) = self.world.engine() else { continue };
            if !self.write_some(&engine).await {
                continue;
            }
            for _ in 0..READS_PER_ROUND {
                self.check_one(&engine);
            }
        }
    }

    /// Writes some; returns whether it was done.
    async fn write_some(&mut self, engine: &Arc<Engine>) -> bool {
        let life = self.world.incarnation.get();
        let made =
            unless_node_exits(&self.world, life, engine.files().mkdir(DIRECTORY, 0o755)).await;
        if !matches!(made, Some(Ok(_) | Err(FileError::Exists(_)))) {
            return false;
        }
        let count = self.rng.between(1, WRITES_PER_ROUND_MAX);
        for _ in 0..count {
            let known = self.world.ledger.borrow().small_files.len() as u64;
            let nth = if known > 0 && self.rng.one_in(8) {
                Some(self.rng.below(known) as usize)
            } else {
                self.create(engine, life).await
            };
            let Some(nth) = nth else { return false };
            if !self.write(engine, life, nth).await {
                return false;
            }
        }
        true
    }

    async fn create(&mut self, engine: &Engine, life: u64) -> Option<usize> {
        self.count += 1;
        let name = format!("{DIRECTORY}/{}", self.count);
        let made = unless_node_exits(&self.world, life, engine.files().create(&name, 0o600)).await;
        let inode = made?.ok()?.inode().0;
        let hoard = &mut self.world.ledger.borrow_mut().small_files;
        // The inode was lost with the machine, so its number may be reused.
        hoard.iter_mut().filter(|old| old.inode == inode).for_each(|old| old.is_uncertain = true);
        hoard.push(SmallFile { inode, ..SmallFile::default() });
        Some(hoard.len() - 1)
    }

    async fn write(&mut self, engine: &Engine, life: u64, nth: usize) -> bool {
        let (inode, is_doubtful) = {
            let small_file = &mut self.world.ledger.borrow_mut().small_files[nth];
            let before = (small_file.inode, small_file.is_uncertain);
            small_file.is_uncertain = true;
            before
        };
        if is_doubtful {
            return true;
        }
        let Ok(file) = engine.files().open_inode(Inode(inode)) else { return false };
        let bytes = Bytes::from(format!("{nth}:{:08x}", self.rng.below(1 << 32)));
        // All writes to one file have the same length, so nothing of the previous one remains.
        let doing = file.write_at(0, bytes.clone(), Durability::Synced);
        let Some(Ok(stamp)) = unless_node_exits(&self.world, life, doing).await else {
            return false;
        };
        let small_file = &mut self.world.ledger.borrow_mut().small_files[nth];
        small_file.writes.push((stamp, bytes));
        small_file.is_uncertain = false;
        true
    }

    /// Reads one file just before or just after one of its writes, or at present.
    fn check_one(&mut self, engine: &Engine) {
        let known = self.world.ledger.borrow().small_files.len() as u64;
        if known == 0 {
            return;
        }
        let nth = self.rng.below(known) as usize;
        let small_file = self.world.ledger.borrow().small_files[nth].clone();
        if small_file.is_uncertain || small_file.writes.is_empty() {
            return;
        }
        let (stamp, _) = *self.rng.pick(&small_file.writes);
        let at = *self.rng.pick(&[stamp, stamp.next(), engine.frontier().next()]);
        let file = engine.files().open_inode(Inode(small_file.inode));
        let read = file.and_then(|file| file.read_at(Cut::below(at), 0, 100));
        match read {
            Ok(bytes) => self.world.report(&SimFact::SmallFile { nth, at, bytes }),
            Err(FileError::NotYet { .. } | FileError::Loading(_)) => {}
            Err(_) if !self.world.has_disk() => {}
            Err(error) => {
                self.world.fail(WHO, &format!("file {nth} at {at} cannot be read: {error}"));
            }
        }
    }
}

/// Reads many of them, at the end of a world.
pub(super) fn check_many(world: &Rc<SimWorld>, engine: &Engine, rng: SeededRng) {
    let mut small_file_writer = SmallFileWriter::new(world, rng);
    for _ in 0..READS_AT_END {
        small_file_writer.check_one(engine);
    }
}
