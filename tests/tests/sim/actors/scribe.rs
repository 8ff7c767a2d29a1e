//! The only one who changes files: so it knows what they are, and later what they were.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use engine::files::{File, FileError, Files, Inode, SetAttributes};
use engine::{Durability, Engine};
use hlc::{Cut, Hlc};

use super::hoarder::DIRECTORY as HOARD;
use super::{pause, unless_it_dies};
use crate::chance::Chance;
use crate::facts::Fact;
use crate::reached::Reached;
use crate::tree::{Change, Found, Node, Sight, Tree, UNKNOWN_INODE, UNKNOWN_STAMP, difference};
use crate::world::World;

const WHO: &str = "scribe";
/// The names that there may be.
const NAMES: [&str; 8] = ["a", "b", "c", "d", "d/a", "d/b", "e", "e/a"];
const MODES: [u32; 3] = [0o600, 0o644, 0o755];
/// No file is longer.
const LENGTH_MAX: u64 = 1500;
/// How many files it has open.
const OPEN_MAX: usize = 3;

pub(crate) struct Scribe {
    world: Rc<World>,
    chance: Chance,
    /// The life in which it has seen the files, and how often the machine had lost its power by then.
    life: Option<u64>,
    power_losses: u64,
    /// Files that it has open, whatever became of their names.
    open: Vec<File>,
}

/// What is known of a change that was done.
struct Done {
    /// The number of what it made.
    made: Option<u64>,
    /// Its stamp, if that was said.
    stamp: Option<Hlc>,
    is_durable: bool,
}

impl Scribe {
    pub(crate) fn new(world: &Rc<World>, chance: Chance) -> Scribe {
        let world = Rc::clone(world);
        Scribe { world, chance, life: None, power_losses: 0, open: Vec::new() }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            pause(&mut self.chance, 10, 120).await;
            let Some(engine) = self.world.engine() else { continue };
            if self.life != Some(self.world.deaths.get()) {
                self.begin_life(&engine);
                continue;
            }
            // What became of the last change will be seen in the next life.
            if self.world.ledger.borrow().files.is_pending() {
                continue;
            }
            match self.chance.below(12) {
                0 => self.sync(&engine).await,
                1 => self.look(&engine),
                _ => self.change(&engine).await,
            }
        }
    }

    /// Looks at what the last life has left.
    fn begin_life(&mut self, engine: &Engine) {
        self.open.clear();
        let Some(sight) = sight_or_fail(&self.world, WHO, engine.files(), Cut::ALL) else { return };
        let lost_power = self.world.power_losses.get() != self.power_losses;
        self.world.note(WHO, &format!("finds {} names", sight.len()));
        self.world.tell(&Fact::FilesFound { lost_power, sight: sight.clone() });
        let frontier = engine.frontier();
        let mut ledger = self.world.ledger.borrow_mut();
        let files = &mut ledger.files;
        let alike: Vec<usize> = files
            .at_start(lost_power)
            .filter(|(_, version)| difference(&version.tree.sight(), &sight).is_none())
            .map(|(nth, _)| nth)
            .collect();
        let (Some(&nth), Some(&first)) = (alike.first(), alike.last()) else { return };
        let mut tree = files.at(nth).tree.clone();
        if nth < files.last_place() {
            self.world.reach(Reached::FilesLost);
        }
        tree.learn(&sight);
        files.begin_with((first, nth), tree, frontier);
        (self.life, self.power_losses) =
            (Some(self.world.deaths.get()), self.world.power_losses.get());
        ledger.files_life = self.life;
    }

    fn look(&self, engine: &Engine) {
        let Some(sight) = sight_or_fail(&self.world, WHO, engine.files(), Cut::ALL) else { return };
        self.world.note(WHO, &format!("sees {} names", sight.len()));
        self.world.tell(&Fact::Files { at: None, sight });
    }

    async fn sync(&mut self, engine: &Arc<Engine>) {
        let files = engine.files().clone();
        let Some(synced) = unless_it_dies(&self.world, self.world.deaths.get(), files.sync()).await
        else {
            return;
        };
        self.world.note(WHO, &format!("syncs: {}", synced.is_ok()));
        if synced.is_ok() {
            self.world.ledger.borrow_mut().files.synced();
        }
    }

    /// Changes something, and enters it in the ledger.
    async fn change(&mut self, engine: &Arc<Engine>) {
        let tree = self.world.ledger.borrow().files.last().tree.clone();
        let Some(change) = self.choose(&tree) else { return };
        let expected = tree.after(&change, UNKNOWN_INODE, UNKNOWN_STAMP);
        let (before, should_be) = (engine.frontier(), expected.is_some());
        if let Some(expected) = expected {
            self.world.ledger.borrow_mut().files.send(expected, before);
        }
        let durability = *self.chance.pick(&[Durability::Written, Durability::Synced]);
        let (files, keeps) = (engine.files().clone(), self.chance.one_in(3));
        let mut open = std::mem::take(&mut self.open);
        let doing = act(&files, &mut open, change.clone(), durability, keeps);
        // Whoever looks while it is on its way does not see it; and indexes are saved that lack it.
        let (world, looks) = (Rc::clone(&self.world), self.chance.one_in(8));
        let looking = async {
            if looks && let Some(sight) = sight_or_fail(&world, WHO, &files, Cut::ALL) {
                world.tell(&Fact::Files { at: None, sight });
            }
        };
        let doing = async { tokio::join!(doing, looking).0 };
        let done = unless_it_dies(&self.world, self.world.deaths.get(), doing).await;
        let shown = match &change {
            Change::Write { inode, offset, data } => {
                format!("Write {{ inode: {inode}, offset: {offset}, {} bytes }}", data.len())
            }
            change => format!("{change:?}"),
        };
        self.world.note(WHO, &format!("{shown}, {durability:?}: {}", said(&done)));
        let Some(done) = done else { return };
        open.truncate(OPEN_MAX);
        self.open = open;
        let refused = match &done {
            Err(error) if fails(error) => return self.resolve(engine, error),
            Err(error) => Some(error.to_string()),
            Ok(_) => None,
        };
        self.world.tell(&Fact::FilesAnswered { change: shown, should_be, refused });
        match done {
            Ok(done) if should_be && !tree.stays_with(&change) => {
                self.enter(engine, &tree, &change, &done);
            }
            // Nothing was to be done, or is.
            _ if should_be => self.world.ledger.borrow_mut().files.failed(),
            _ => {}
        }
    }

    fn enter(&self, engine: &Engine, tree: &Tree, change: &Change, done: &Done) {
        let (made, stamp) = (done.made.unwrap_or(UNKNOWN_INODE), done.stamp);
        if tree.node(made).is_some() {
            self.world.fail(WHO, &format!("inode {made} is made twice"));
        }
        let nameless = match change {
            Change::Write { inode, .. } => !tree.has_name(*inode),
            _ => false,
        };
        if nameless {
            self.world.reach(Reached::FileWithoutName);
        }
        let tree = tree.after(change, made, stamp.unwrap_or(UNKNOWN_STAMP));
        let tree = tree.expect("it can be done");
        let after = stamp.map_or(Hlc::ZERO, Hlc::previous);
        let by = stamp.unwrap_or_else(|| engine.frontier());
        let files = &mut self.world.ledger.borrow_mut().files;
        files.happened(tree, after, by);
        if done.is_durable {
            files.synced();
        }
    }

    /// A change has failed: it may have happened all the same, as the next look shows. Where the store
    /// has stopped, that is in the next life.
    fn resolve(&self, engine: &Engine, error: &FileError) {
        let is_pending = self.world.ledger.borrow().files.is_pending();
        if !is_pending || engine.stopped().is_some() || !self.world.has_disk() {
            return;
        }
        let Some(sight) = sight_or_fail(&self.world, WHO, engine.files(), Cut::ALL) else { return };
        let frontier = engine.frontier();
        let files = &mut self.world.ledger.borrow_mut().files;
        let is_as_before = difference(&files.last().tree.sight(), &sight).is_none();
        // Told that there was no room, nobody expects it to be there.
        if is_as_before || matches!(error, FileError::NoSpace(_)) {
            return files.failed();
        }
        let mut newest = files.newest().tree.clone();
        newest.learn(&sight);
        files.happened(newest, Hlc::ZERO, frontier);
        // If it is neither as before nor as it should be, the next look says so.
    }

    // ---- What to do ----

    fn choose(&mut self, tree: &Tree) -> Option<Change> {
        let mode = *self.chance.pick(&MODES);
        let name = |chance: &mut Chance| (*chance.pick(&NAMES)).to_owned();
        let change = match self.chance.below(24) {
            0..10 => {
                let (inode, offset) = (self.some_file(tree)?, self.chance.below(1100));
                Change::Write { inode, offset, data: self.data() }
            }
            10..12 => Change::Truncate {
                inode: self.some_file(tree)?,
                length: self.chance.below(LENGTH_MAX),
            },
            12..14 => {
                let (inode, from) = (self.some_file(tree)?, self.chance.below(1100));
                Change::Punch { inode, range: from..from + self.chance.between(1, 400) }
            }
            14..17 => Change::Create { name: name(&mut self.chance), mode },
            17 => Change::MakeDirectory {
                name: (*self.chance.pick(&["d", "e", "a"])).to_owned(),
                mode,
            },
            18..20 => {
                let from = self.some_name(tree)?;
                Change::Rename { from, to: name(&mut self.chance) }
            }
            20 => Change::Link { from: self.some_name(tree)?, to: name(&mut self.chance) },
            21 => Change::Unlink { name: self.some_name(tree)? },
            22 => Change::RemoveDirectory { name: name(&mut self.chance) },
            _ => Change::SetMode { inode: tree.inode(&self.some_name(tree)?)?, mode },
        };
        Some(change)
    }

    fn data(&mut self) -> Bytes {
        let length = self.chance.between(1, 400) as usize;
        let first = self.chance.below(256) as u8;
        (0..length).map(|nth| first.wrapping_add(nth as u8)).collect()
    }

    /// A file that has a name; or one that is open, and may have none.
    fn some_file(&mut self, tree: &Tree) -> Option<u64> {
        let open: Vec<u64> = self.open.iter().map(|file| file.inode().0).collect();
        if !open.is_empty() && self.chance.one_in(3) {
            return Some(*self.chance.pick(&open));
        }
        let names = tree.names(false);
        let name = (!names.is_empty()).then(|| self.chance.pick(&names).clone());
        tree.inode(&name?)
    }

    fn some_name(&mut self, tree: &Tree) -> Option<String> {
        let is_directory = self.chance.one_in(4);
        let names = tree.names(is_directory);
        (!names.is_empty()).then(|| self.chance.pick(&names).clone())
    }
}

fn said(done: &Option<Result<Done, FileError>>) -> String {
    match done {
        None => "never answered".to_owned(),
        Some(Ok(Done { made, stamp, .. })) => format!("done, made {made:?}, at {stamp:?}"),
        // Where its catalog lies is of no world.
        Some(Err(FileError::Loading(_))) => "to be asked again".to_owned(),
        Some(Err(error)) => error.to_string(),
    }
}

/// Whether it is the node that fails; every other error is about what was asked for.
fn fails(error: &FileError) -> bool {
    use FileError::{Corrupt, Io, Loading, NoSpace};
    matches!(error, Io(_) | NoSpace(_) | Corrupt(_) | Loading(_))
}

/// Has a change done. What it opens for that is among `open` afterwards, if it is to be kept.
async fn act(
    files: &Files,
    open: &mut Vec<File>,
    change: Change,
    durability: Durability,
    keeps: bool,
) -> Result<Done, FileError> {
    let mut file = |inode: u64| -> Result<File, FileError> {
        if let Some(held) = open.iter().find(|file| file.inode().0 == inode) {
            return Ok(held.clone());
        }
        let file = files.open_inode(Inode(inode))?;
        if keeps {
            open.insert(0, file.clone());
        }
        Ok(file)
    };
    let stamp = match change {
        Change::Write { inode, offset, data } => {
            Some(file(inode)?.write_at(offset, data, durability).await?)
        }
        Change::Truncate { inode, length } => {
            Some(file(inode)?.truncate(length, durability).await?)
        }
        Change::Punch { inode, range } => Some(file(inode)?.punch(range, durability).await?),
        Change::Create { name, mode } => {
            let file = files.create(&name, mode).await?;
            let made = Some(file.inode().0);
            if keeps {
                open.insert(0, file);
            }
            return Ok(Done { made, stamp: None, is_durable: false });
        }
        Change::MakeDirectory { name, mode } => {
            let made = Some(files.mkdir(&name, mode).await?.0);
            return Ok(Done { made, stamp: None, is_durable: false });
        }
        Change::Rename { from, to } => files.rename(&from, &to).await.map(|()| None)?,
        Change::Link { from, to } => files.link(&from, &to).await.map(|()| None)?,
        Change::Unlink { name } => files.unlink(&name).await.map(|()| None)?,
        Change::RemoveDirectory { name } => files.rmdir(&name).await.map(|()| None)?,
        Change::SetMode { inode, mode } => {
            let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
            files.set_attributes(Inode(inode), set).await.map(|()| None)?
        }
    };
    let is_durable = stamp.is_some() && durability == Durability::Synced;
    Ok(Done { made: None, stamp, is_durable })
}

/// All files in a cut. `None` if the disk is gone, or reading them fails although it is not, which is
/// said.
pub(super) fn sight_or_fail(world: &World, who: &str, files: &Files, cut: Cut) -> Option<Sight> {
    let mut seen = sight(files, cut);
    let is_loading = matches!(seen, Err(FileError::Loading(_)));
    if let Some(engine) = world.engine().filter(|_| is_loading) {
        engine.rebuild_by_hand();
        seen = sight(files, cut);
    }
    match seen {
        Ok(sight) => Some(sight),
        // Of a life that ended.
        Err(FileError::Loading(_)) => None,
        Err(_) if !world.has_disk() => None,
        Err(error) => {
            world.fail(who, &format!("files in {cut:?} cannot be read: {error}"));
            None
        }
    }
}

/// All files in a cut.
pub(crate) fn sight(files: &Files, cut: Cut) -> Result<Sight, FileError> {
    let mut sight = Sight::new();
    add_to(&mut sight, files, "", cut)?;
    Ok(sight)
}

fn add_to(sight: &mut Sight, files: &Files, directory: &str, cut: Cut) -> Result<(), FileError> {
    for entry in files.list(directory, cut)? {
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        if directory.is_empty() && name == HOARD {
            continue;
        }
        let name = if directory.is_empty() { name } else { format!("{directory}/{name}") };
        let known = files.stat(&name, cut)?;
        let is_directory = known.kind == engine::files::FileKind::Directory;
        let (bytes, modified) = match is_directory {
            true => (Bytes::new(), Hlc::ZERO),
            false => {
                let view = files.open_at(&name, cut)?;
                (view.read(0, view.length() as usize)?, view.modified())
            }
        };
        let links = if is_directory { 0 } else { known.links };
        let node = Node { inode: known.inode.0, is_directory, mode: known.mode, bytes, modified };
        sight.insert(name.clone(), Found { node, links });
        if is_directory {
            add_to(sight, files, &name, cut)?;
        }
    }
    Ok(())
}
