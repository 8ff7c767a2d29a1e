//! The only actor that changes files, so it knows their present and past contents.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use engine::files::{AttributeUpdate, FileError, FileSystem, Inode, OpenFile};
use engine::{Durability, Engine};
use hlc::{Cut, Hlc};
use testkit::rng::SeededRng;

use super::small_file_writer::DIRECTORY as HOARD;
use super::{pause, unless_node_exits};
use crate::coverage::CoveragePoint;
use crate::facts::SimFact;
use crate::model_tree::{
    ModelChange, ModelEntry, ModelInode, ModelTree, TreeSnapshot, UNKNOWN_INODE, UNKNOWN_STAMP,
    first_difference,
};
use crate::world::SimWorld;

const WHO: &str = "file_writer";
const NAMES: [&str; 8] = ["a", "b", "c", "d", "d/a", "d/b", "e", "e/a"];
const MODES: [u32; 3] = [0o600, 0o644, 0o755];
/// The longest file.
const LENGTH_MAX: u64 = 1500;
/// The most files that it has open.
const OPEN_MAX: usize = 3;

pub(crate) struct FileWriter {
    world: Rc<SimWorld>,
    rng: SeededRng,
    /// The incarnation in which it has read the files, and the number of power losses before it.
    incarnation: Option<u64>,
    power_losses: u64,
    /// Its open files, even those without a name.
    open: Vec<OpenFile>,
}

/// The known result of a change that was done.
struct ChangeResult {
    /// The number of the inode that it created.
    created_inode: Option<u64>,
    /// Its stamp, if it was returned.
    stamp: Option<Hlc>,
    is_durable: bool,
}

impl FileWriter {
    pub(crate) fn new(world: &Rc<SimWorld>, rng: SeededRng) -> FileWriter {
        let world = Rc::clone(world);
        FileWriter { world, rng, incarnation: None, power_losses: 0, open: Vec::new() }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            pause(&mut self.rng, 10, 120).await;
            let Some(engine) = self.world.engine() else { continue };
            if self.incarnation != Some(self.world.incarnation.get()) {
                self.begin_incarnation(&engine);
                continue;
            }
            // The next incarnation shows the result of the last change.
            if self.world.ledger.borrow().files.is_pending() {
                continue;
            }
            match self.rng.below(12) {
                0 => self.sync(&engine).await,
                1 => self.check_files(&engine),
                _ => self.change(&engine).await,
            }
        }
    }

    /// Reads the files that the last incarnation has left.
    fn begin_incarnation(&mut self, engine: &Engine) {
        self.open.clear();
        let Some(sight) = snapshot_or_fail(&self.world, WHO, engine.files(), Cut::ALL) else {
            return;
        };
        let lost_power = self.world.power_losses.get() != self.power_losses;
        self.world.note(WHO, &format!("finds {} names", sight.len()));
        self.world.report(&SimFact::FilesAtStart { lost_power, snapshot: sight.clone() });
        let frontier = engine.frontier();
        let mut ledger = self.world.ledger.borrow_mut();
        let files = &mut ledger.files;
        let alike: Vec<usize> = files
            .at_start(lost_power)
            .filter(|(_, version)| first_difference(&version.tree.snapshot(), &sight).is_none())
            .map(|(nth, _)| nth)
            .collect();
        let (Some(&nth), Some(&first)) = (alike.first(), alike.last()) else { return };
        let mut tree = files.at(nth).tree.clone();
        if nth < files.last_certain_index() {
            self.world.cover(CoveragePoint::FilesLost);
        }
        tree.fill_unknowns(&sight);
        files.restart_from(first, nth, tree, frontier);
        (self.incarnation, self.power_losses) =
            (Some(self.world.incarnation.get()), self.world.power_losses.get());
        ledger.files_incarnation = self.incarnation;
    }

    fn check_files(&self, engine: &Engine) {
        let Some(sight) = snapshot_or_fail(&self.world, WHO, engine.files(), Cut::ALL) else {
            return;
        };
        self.world.note(WHO, &format!("sees {} names", sight.len()));
        self.world.report(&SimFact::Files { at: None, snapshot: sight });
    }

    async fn sync(&mut self, engine: &Arc<Engine>) {
        let files = engine.files().clone();
        let Some(synced) =
            unless_node_exits(&self.world, self.world.incarnation.get(), files.sync()).await
        else {
            return;
        };
        self.world.note(WHO, &format!("syncs: {}", synced.is_ok()));
        if synced.is_ok() {
            self.world.ledger.borrow_mut().files.mark_synced();
        }
    }

    /// Makes a change, and records it in the ledger.
    async fn change(&mut self, engine: &Arc<Engine>) {
        let tree = self.world.ledger.borrow().files.last_certain().tree.clone();
        let Some(change) = self.random_change(&tree) else { return };
        let expected = tree.after(&change, UNKNOWN_INODE, UNKNOWN_STAMP);
        let (before, should_be) = (engine.frontier(), expected.is_some());
        if let Some(expected) = expected {
            self.world.ledger.borrow_mut().files.begin_change(expected, before);
        }
        let durability = *self.rng.pick(&[Durability::Written, Durability::Synced]);
        let (files, keeps) = (engine.files().clone(), self.rng.one_in(3));
        let mut open = std::mem::take(&mut self.open);
        let doing = apply_change(&files, &mut open, change.clone(), durability, keeps);
        // A reader does not see the change while it is in flight; and indexes are saved without it.
        let (world, looks) = (Rc::clone(&self.world), self.rng.one_in(8));
        let looking = async {
            if looks && let Some(sight) = snapshot_or_fail(&world, WHO, &files, Cut::ALL) {
                world.report(&SimFact::Files { at: None, snapshot: sight });
            }
        };
        let doing = async { tokio::join!(doing, looking).0 };
        let done = unless_node_exits(&self.world, self.world.incarnation.get(), doing).await;
        let shown = match &change {
            ModelChange::Write { inode, offset, data } => {
                format!("Write {{ inode: {inode}, offset: {offset}, {} bytes }}", data.len())
            }
            change => format!("{change:?}"),
        };
        self.world.note(WHO, &format!("{shown}, {durability:?}: {}", describe_result(&done)));
        let Some(done) = done else { return };
        open.truncate(OPEN_MAX);
        self.open = open;
        let refused = match &done {
            Err(error) if is_node_failure(error) => return self.resolve_failure(engine, error),
            Err(error) => Some(error.to_string()),
            Ok(_) => None,
        };
        self.world.report(&SimFact::FileChange { change: shown, is_allowed: should_be, refused });
        match done {
            Ok(done) if should_be && !tree.is_no_op(&change) => {
                self.record_change(engine, &tree, &change, &done);
            }
            // The change was, or is, no change at all.
            _ if should_be => self.world.ledger.borrow_mut().files.cancel_change(),
            _ => {}
        }
    }

    fn record_change(
        &self,
        engine: &Engine,
        tree: &ModelTree,
        change: &ModelChange,
        done: &ChangeResult,
    ) {
        let (made, stamp) = (done.created_inode.unwrap_or(UNKNOWN_INODE), done.stamp);
        if tree.node(made).is_some() {
            self.world.fail(WHO, &format!("inode {made} is made twice"));
        }
        let nameless = match change {
            ModelChange::Write { inode, .. } => !tree.has_name(*inode),
            _ => false,
        };
        if nameless {
            self.world.cover(CoveragePoint::UnlinkedFileWrite);
        }
        let tree = tree.after(change, made, stamp.unwrap_or(UNKNOWN_STAMP));
        let tree = tree.expect("it can be done");
        let after = stamp.map_or(Hlc::ZERO, Hlc::previous);
        let by = stamp.unwrap_or_else(|| engine.frontier());
        let files = &mut self.world.ledger.borrow_mut().files;
        files.complete_change(tree, after, by);
        if done.is_durable {
            files.mark_synced();
        }
    }

    /// Resolves a change that failed: it may have happened all the same, as the next read shows. If
    /// the store has stopped, that is in the next incarnation.
    fn resolve_failure(&self, engine: &Engine, error: &FileError) {
        let is_pending = self.world.ledger.borrow().files.is_pending();
        if !is_pending || engine.stop_reason().is_some() || !self.world.has_disk() {
            return;
        }
        let Some(sight) = snapshot_or_fail(&self.world, WHO, engine.files(), Cut::ALL) else {
            return;
        };
        let frontier = engine.frontier();
        let files = &mut self.world.ledger.borrow_mut().files;
        let is_as_before =
            first_difference(&files.last_certain().tree.snapshot(), &sight).is_none();
        // After an error for lack of space, it must not be there.
        if is_as_before || matches!(error, FileError::NoSpace(_)) {
            return files.cancel_change();
        }
        let mut newest = files.newest().tree.clone();
        newest.fill_unknowns(&sight);
        files.complete_change(newest, Hlc::ZERO, frontier);
        // If it is neither as before nor as it should be, the next read reports it.
    }

    // ---- What to do ----

    fn random_change(&mut self, tree: &ModelTree) -> Option<ModelChange> {
        let mode = *self.rng.pick(&MODES);
        let name = |rng: &mut SeededRng| (*rng.pick(&NAMES)).to_owned();
        let change = match self.rng.below(24) {
            0..10 => {
                let (inode, offset) = (self.random_file(tree)?, self.rng.below(1100));
                ModelChange::Write { inode, offset, data: self.random_bytes() }
            }
            10..12 => ModelChange::Truncate {
                inode: self.random_file(tree)?,
                length: self.rng.below(LENGTH_MAX),
            },
            12..14 => {
                let (inode, from) = (self.random_file(tree)?, self.rng.below(1100));
                ModelChange::Punch { inode, range: from..from + self.rng.between(1, 400) }
            }
            14..17 => ModelChange::Create { name: name(&mut self.rng), mode },
            17 => ModelChange::MakeDirectory {
                name: (*self.rng.pick(&["d", "e", "a"])).to_owned(),
                mode,
            },
            18..20 => {
                let from = self.random_name(tree)?;
                ModelChange::Rename { from, to: name(&mut self.rng) }
            }
            20 => ModelChange::Link { from: self.random_name(tree)?, to: name(&mut self.rng) },
            21 => ModelChange::Unlink { name: self.random_name(tree)? },
            22 => ModelChange::RemoveDirectory { name: name(&mut self.rng) },
            _ => ModelChange::SetMode { inode: tree.inode(&self.random_name(tree)?)?, mode },
        };
        Some(change)
    }

    fn random_bytes(&mut self) -> Bytes {
        let length = self.rng.between(1, 400) as usize;
        let first = self.rng.below(256) as u8;
        (0..length).map(|nth| first.wrapping_add(nth as u8)).collect()
    }

    /// A file that has a name, or one that is open, and may have none.
    fn random_file(&mut self, tree: &ModelTree) -> Option<u64> {
        let open: Vec<u64> = self.open.iter().map(|file| file.inode().0).collect();
        if !open.is_empty() && self.rng.one_in(3) {
            return Some(*self.rng.pick(&open));
        }
        let names = tree.names(false);
        let name = (!names.is_empty()).then(|| self.rng.pick(&names).clone());
        tree.inode(&name?)
    }

    fn random_name(&mut self, tree: &ModelTree) -> Option<String> {
        let is_directory = self.rng.one_in(4);
        let names = tree.names(is_directory);
        (!names.is_empty()).then(|| self.rng.pick(&names).clone())
    }
}

fn describe_result(done: &Option<Result<ChangeResult, FileError>>) -> String {
    match done {
        None => "never answered".to_owned(),
        Some(Ok(ChangeResult { created_inode: made, stamp, .. })) => {
            format!("done, made {made:?}, at {stamp:?}")
        }
        // The path of its catalog depends on the world, so it is left out.
        Some(Err(FileError::Loading(_))) => "to be asked again".to_owned(),
        Some(Err(error)) => error.to_string(),
    }
}

/// True if the node fails; every other error is about the request.
fn is_node_failure(error: &FileError) -> bool {
    use FileError::{Corrupt, Io, Loading, NoSpace};
    matches!(error, Io(_) | NoSpace(_) | Corrupt(_) | Loading(_))
}

/// Applies a change. A file that it opens is in `open` afterwards, if it is to be kept.
async fn apply_change(
    files: &FileSystem,
    open: &mut Vec<OpenFile>,
    change: ModelChange,
    durability: Durability,
    keeps: bool,
) -> Result<ChangeResult, FileError> {
    let mut file = |inode: u64| -> Result<OpenFile, FileError> {
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
        ModelChange::Write { inode, offset, data } => {
            Some(file(inode)?.write_at(offset, data, durability).await?)
        }
        ModelChange::Truncate { inode, length } => {
            Some(file(inode)?.truncate(length, durability).await?)
        }
        ModelChange::Punch { inode, range } => {
            Some(file(inode)?.punch_hole(range, durability).await?)
        }
        ModelChange::Create { name, mode } => {
            let file = files.create(&name, mode).await?;
            let made = Some(file.inode().0);
            if keeps {
                open.insert(0, file);
            }
            return Ok(ChangeResult { created_inode: made, stamp: None, is_durable: false });
        }
        ModelChange::MakeDirectory { name, mode } => {
            let made = Some(files.mkdir(&name, mode).await?.0);
            return Ok(ChangeResult { created_inode: made, stamp: None, is_durable: false });
        }
        ModelChange::Rename { from, to } => files.rename(&from, &to).await.map(|()| None)?,
        ModelChange::Link { from, to } => files.link(&from, &to).await.map(|()| None)?,
        ModelChange::Unlink { name } => files.unlink(&name).await.map(|()| None)?,
        ModelChange::RemoveDirectory { name } => files.rmdir(&name).await.map(|()| None)?,
        ModelChange::SetMode { inode, mode } => {
            let set = AttributeUpdate { mode: Some(mode), ..AttributeUpdate::default() };
            files.set_attributes(Inode(inode), set).await.map(|()| None)?
        }
    };
    let is_durable = stamp.is_some() && durability == Durability::Synced;
    Ok(ChangeResult { created_inode: None, stamp, is_durable })
}

/// All files in a cut. `None` if the disk is gone. A read that fails otherwise is reported.
pub(super) fn snapshot_or_fail(
    world: &SimWorld,
    who: &str,
    files: &FileSystem,
    cut: Cut,
) -> Option<TreeSnapshot> {
    let mut seen = read_snapshot(files, cut);
    let is_loading = matches!(seen, Err(FileError::Loading(_)));
    if is_loading && let Some(engine) = world.engine() {
        engine.step_catalog_rebuild();
        seen = read_snapshot(files, cut);
    }
    match seen {
        Ok(sight) => Some(sight),
        // Of an incarnation that ended.
        Err(FileError::Loading(_)) => None,
        Err(_) if !world.has_disk() => None,
        Err(error) => {
            world.fail(who, &format!("files in {cut:?} cannot be read: {error}"));
            None
        }
    }
}

/// All files in a cut.
pub(crate) fn read_snapshot(files: &FileSystem, cut: Cut) -> Result<TreeSnapshot, FileError> {
    let mut sight = TreeSnapshot::new();
    add_directory(&mut sight, files, "", cut)?;
    Ok(sight)
}

fn add_directory(
    sight: &mut TreeSnapshot,
    files: &FileSystem,
    directory: &str,
    cut: Cut,
) -> Result<(), FileError> {
    for entry in files.list(directory, cut)? {
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        if directory.is_empty() && name == HOARD {
            continue;
        }
        let name = if directory.is_empty() { name } else { format!("{directory}/{name}") };
        let known = files.stat(&name, cut)?;
        let is_directory = known.kind == engine::files::FileKind::Directory;
        let (bytes, modified) = if is_directory {
            (Bytes::new(), Hlc::ZERO)
        } else {
            let view = files.open_at(&name, cut)?;
            (view.read(0, view.length() as usize)?, view.modified())
        };
        let links = if is_directory { 0 } else { known.links };
        let node =
            ModelInode { inode: known.inode.0, is_directory, mode: known.mode, bytes, modified };
        sight.insert(name.clone(), ModelEntry { node, links });
        if is_directory {
            add_directory(sight, files, &name, cut)?;
        }
    }
    Ok(())
}
