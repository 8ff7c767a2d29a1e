//! Makes very many files, in worlds that have a long history, writes most of them once, and finds them again
//! much later: each is a log of which a long stretch of history knows nothing.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use engine::files::{FileError, Inode};
use engine::{Durability, Engine};
use hlc::Cut;

use super::{pause, unless_it_dies};
use crate::chance::Chance;
use crate::facts::Fact;
use crate::hoard::Hoarded;
use crate::world::World;

const WHO: &str = "hoarder";
/// The directory that they are in.
pub(super) const DIRECTORY: &str = "hoard";
/// How many it writes at a time, and looks at.
const WRITTEN_AT_ONCE: u64 = 16;
const SEEN_AT_ONCE: u64 = 1;
/// And how many at the end.
const SEEN_AT_END: u64 = 60;

pub(crate) struct Hoarder {
    world: Rc<World>,
    chance: Chance,
    count: u64,
}

impl Hoarder {
    pub(crate) fn new(world: &Rc<World>, chance: Chance) -> Hoarder {
        Hoarder { world: Rc::clone(world), chance, count: 0 }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            pause(&mut self.chance, 20, 160).await;
            let Some(engine) = self.world.engine() else { continue };
            if !self.write_some(&engine).await {
                continue;
            }
            for _ in 0..SEEN_AT_ONCE {
                self.look(&engine);
            }
        }
    }

    /// Writes some; whether it was done.
    async fn write_some(&mut self, engine: &Arc<Engine>) -> bool {
        let life = self.world.deaths.get();
        let made = unless_it_dies(&self.world, life, engine.files().mkdir(DIRECTORY, 0o755)).await;
        if !matches!(made, Some(Ok(_) | Err(FileError::Exists(_)))) {
            return false;
        }
        let count = self.chance.between(1, WRITTEN_AT_ONCE);
        for _ in 0..count {
            let known = self.world.ledger.borrow().hoard.len() as u64;
            let nth = match known > 0 && self.chance.one_in(8) {
                true => Some(self.chance.below(known) as usize),
                false => self.make(engine, life).await,
            };
            let Some(nth) = nth else { return false };
            if !self.write(engine, life, nth).await {
                return false;
            }
        }
        true
    }

    async fn make(&mut self, engine: &Engine, life: u64) -> Option<usize> {
        self.count += 1;
        let name = format!("{DIRECTORY}/{}", self.count);
        let made = unless_it_dies(&self.world, life, engine.files().create(&name, 0o600)).await;
        let inode = made?.ok()?.inode().0;
        let hoard = &mut self.world.ledger.borrow_mut().hoard;
        // What an inode was that went with the machine, its number may be another's.
        hoard.iter_mut().filter(|old| old.inode == inode).for_each(|old| old.is_doubtful = true);
        hoard.push(Hoarded { inode, ..Hoarded::default() });
        Some(hoard.len() - 1)
    }

    async fn write(&mut self, engine: &Engine, life: u64, nth: usize) -> bool {
        let (inode, is_doubtful) = {
            let hoarded = &mut self.world.ledger.borrow_mut().hoard[nth];
            let before = (hoarded.inode, hoarded.is_doubtful);
            hoarded.is_doubtful = true;
            before
        };
        if is_doubtful {
            return true;
        }
        let Ok(file) = engine.files().open_inode(Inode(inode)) else { return false };
        let bytes = Bytes::from(format!("{nth}:{:08x}", self.chance.below(1 << 32)));
        // All that are written to one file have one length: nothing of the last one stays.
        let doing = file.write_at(0, bytes.clone(), Durability::Synced);
        let Some(Ok(stamp)) = unless_it_dies(&self.world, life, doing).await else {
            return false;
        };
        let hoarded = &mut self.world.ledger.borrow_mut().hoard[nth];
        hoarded.writes.push((stamp, bytes));
        hoarded.is_doubtful = false;
        true
    }

    /// Looks at one as it was just in front of one of its writes, or just behind it, or as it is.
    fn look(&mut self, engine: &Engine) {
        let known = self.world.ledger.borrow().hoard.len() as u64;
        if known == 0 {
            return;
        }
        let nth = self.chance.below(known) as usize;
        let hoarded = self.world.ledger.borrow().hoard[nth].clone();
        if hoarded.is_doubtful || hoarded.writes.is_empty() {
            return;
        }
        let (stamp, _) = *self.chance.pick(&hoarded.writes);
        let at = *self.chance.pick(&[stamp, stamp.next(), engine.frontier().next()]);
        let file = engine.files().open_inode(Inode(hoarded.inode));
        let read = file.and_then(|file| file.read_at(Cut::below(at), 0, 100));
        match read {
            Ok(bytes) => self.world.tell(&Fact::Hoarded { nth, at, bytes }),
            Err(FileError::NotYet { .. } | FileError::Loading(_)) => {}
            Err(_) if !self.world.has_disk() => {}
            Err(error) => {
                self.world.fail(WHO, &format!("file {nth} at {at} cannot be read: {error}"));
            }
        }
    }
}

/// Looks at many of them, for the end of a world.
pub(super) fn look_at_many(world: &Rc<World>, engine: &Engine, chance: Chance) {
    let mut hoarder = Hoarder::new(world, chance);
    for _ in 0..SEEN_AT_END {
        hoarder.look(engine);
    }
}
