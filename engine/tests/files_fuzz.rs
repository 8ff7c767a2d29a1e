//! Random histories of files, directories and links on a whole engine, against a plain model
//! (`F20`, `G2`, `G16`; TIME.md 9, 11.9). The test checks every answer, and every past moment
//! repeatedly, across stops, kills, crashes and rebuilds.
//!
//! To run more seeds:
//! `FILES_FUZZ_SEEDS=0..500 cargo test --release -p engine --test integration files_fuzz::`.

mod file_model;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use engine::files::{
    AttributeUpdate, FileAttributes, FileError, FileKind, FileOptions, FileSystem, FileView, Inode,
    OpenFile, RenameMode,
};
use engine::{CoreOptions, Durability, EngineOptions};
use hlc::{Cut, ManualClock, SysTime};
use storage::disk::MemoryDisk;
use testkit::directory::TestDirectory;
use testkit::engine::{EngineFixture, START};
use testkit::rng::SeededRng;

use file_model::{END, FileModel, HIGH, LOW, ModelBytes, ModelKind, ModelName, ModelNode};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const KEYS: [&[u8]; 2] = [b"user.x", b"user.y"];
const OPERATIONS: u64 = 350;

/// A moment, the model at that moment, and all attributes as first read.
struct FuzzMoment {
    cut: Cut,
    model: FileModel,
    inodes: usize,
    seen: BTreeMap<Inode, FileAttributes>,
}

struct FilesFuzz {
    random: SeededRng,
    fixture: EngineFixture,
    options: EngineOptions,
    catalog: PathBuf,
    model: FileModel,
    /// The inode of each node of the model.
    inodes: Vec<Inode>,
    /// Some open files, with or without a name.
    open: Vec<(usize, OpenFile)>,
    moments: Vec<FuzzMoment>,
    /// Views that were taken, and their expected content.
    views: Vec<(FileView, ModelBytes)>,
    _directory: TestDirectory,
}

/// Options by which a short history goes everywhere: through several checkpoints, out of all
/// caches, and into segments that are rolled, indexed and sorted meanwhile.
fn options(random: &mut SeededRng, catalog: &Path) -> EngineOptions {
    let storage = storage::Options {
        segment_bytes_max: 16 << 10 << random.below(6),
        segment_frames_max: 20 + random.below(200),
        tail_bytes_max: 1 << random.below(22),
        index_bytes_max: 64 << 10,
        ..storage::Options::default()
    };
    let files = FileOptions {
        checkpoint_entries: 1 + random.below(20),
        closed_max: random.below(4) as usize,
        node_bytes_max: random.below(3) as usize * (4 << 10),
    };
    let catalog = (!random.one_in(3)).then(|| catalog.to_owned());
    EngineOptions {
        core: CoreOptions { storage, catalog, ..CoreOptions::default() },
        files,
        ..EngineOptions::default()
    }
}

fn check_result<T>(
    result: Result<T, FileError>,
    expected: &Result<impl Sized, i32>,
    operation: &str,
) -> Option<T> {
    match (result, expected) {
        (Ok(value), Ok(_)) => Some(value),
        (Err(error), Err(expected)) => {
            assert_eq!(error.errno(), *expected, "{operation}: {error}");
            None
        }
        (Ok(_), Err(expected)) => panic!("{operation} is refused by POSIX: {expected}"),
        (Err(error), Ok(_)) => panic!("{operation}: {error}"),
    }
}

impl FilesFuzz {
    fn new(seed: u64) -> FilesFuzz {
        let mut random = SeededRng::new(seed);
        let directory = TestDirectory::new();
        let catalog = directory.path().join("catalog");
        let options = options(&mut random, &catalog);
        let clock = Arc::new(ManualClock::at(SysTime(START)));
        let fixture = EngineFixture::with(MemoryDisk::new(), clock, options.clone());
        FilesFuzz {
            random,
            fixture,
            options,
            catalog,
            model: FileModel::new(),
            inodes: vec![Inode::ROOT],
            open: Vec::new(),
            moments: Vec::new(),
            views: Vec::new(),
            _directory: directory,
        }
    }

    fn files(&self) -> FileSystem {
        self.fixture.engine.files().clone()
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.random.below(from.len() as u64) as usize].clone())
    }

    /// A name in a directory that exists, existed, or is something else.
    fn place(&mut self) -> ModelName {
        let directories: Vec<usize> =
            (0..self.model.nodes.len()).filter(|n| self.model.nodes[*n].is_directory()).collect();
        let linked: Vec<usize> =
            directories.iter().copied().filter(|n| self.model.links(*n) > 0).collect();
        let parent = match self.random.below(40) {
            0 => self.random.below(self.model.nodes.len() as u64) as usize,
            1 => self.pick(&directories).unwrap(),
            _ => self.pick(&linked).unwrap(),
        };
        (parent, NAMES[self.random.below(4) as usize].to_owned())
    }

    /// A name that exists, usually.
    fn named(&mut self) -> ModelName {
        let names: Vec<ModelName> = self.model.names.keys().cloned().collect();
        match self.pick(&names) {
            Some(name) if !self.random.one_in(8) => name,
            Some(_) | None => self.place(),
        }
    }

    fn at<'a>(&self, place: &'a ModelName) -> (Inode, &'a [u8]) {
        (self.inodes[place.0], place.1.as_bytes())
    }

    /// A path to a directory, if it has one.
    fn path(&self, directory: usize, model: &FileModel) -> Option<String> {
        if directory == 0 {
            return Some(String::new());
        }
        let (place, _) = model.names.iter().find(|(_, node)| **node == directory)?;
        Some(format!("{}/{}", self.path(place.0, model)?, place.1))
    }

    async fn make(&mut self) {
        let (place, mode) = (self.place(), self.random.below(0o1000) as u32);
        let (files, at) = (self.files(), self.at(&place));
        let inode = match self.random.below(8) {
            0..2 => {
                let kind = ModelKind::Directory { parent: place.0 };
                let expected = self.model.make(&place, kind, mode);
                check_result(files.mkdir(at, mode).await, &expected, "mkdir")
            }
            2 => {
                let target = vec![b'x'; 1 + self.random.below(30) as usize];
                let expected = self.model.make(&place, ModelKind::Link(target.clone()), mode);
                check_result(files.symlink(&target, at, mode).await, &expected, "symlink")
            }
            _ => {
                let kind = ModelKind::File(ModelBytes::default());
                let expected = self.model.make(&place, kind, mode);
                let result = match self.path(place.0, &self.model) {
                    Some(path) if self.random.one_in(2) => {
                        files.create(&format!("{path}/{}", place.1), mode).await
                    }
                    Some(_) | None => files.create(at, mode).await,
                };
                check_result(result, &expected, "create").map(|file| file.inode())
            }
        };
        self.inodes.extend(inode);
    }

    async fn change_names(&mut self) {
        let files = self.files();
        let (from, to) = (self.named(), self.place());
        match self.random.below(10) {
            0..3 => {
                let directory = self.random.one_in(2);
                let expected = self.model.remove(&from, directory);
                let removed = if directory {
                    files.rmdir(self.at(&from)).await
                } else {
                    files.unlink(self.at(&from)).await
                };
                check_result(removed, &expected, "remove");
            }
            3 | 4 => {
                let node = self.random.below(self.model.nodes.len() as u64) as usize;
                let expected = self.model.link(node, &to);
                let linked = files.link_inode(self.inodes[node], self.at(&to)).await;
                check_result(linked, &expected, "link");
            }
            mode => {
                let to = if self.random.one_in(2) { self.named() } else { to };
                let target = match mode {
                    5 => RenameMode::NoReplace,
                    6 => RenameMode::Exchange,
                    _ => RenameMode::Replace,
                };
                let (replace, exchange) =
                    (target == RenameMode::Replace, target == RenameMode::Exchange);
                let expected = self.model.rename(&from, &to, replace, exchange);
                let renamed = files.rename_to(self.at(&from), self.at(&to), target).await;
                check_result(renamed, &expected, "rename");
            }
        }
    }

    /// A file: one that is open already, or opened by inode.
    fn file(&mut self) -> Option<(usize, OpenFile)> {
        if self.random.one_in(3) && !self.open.is_empty() {
            let nth = self.random.below(self.open.len() as u64) as usize;
            if self.random.one_in(8) {
                return Some(self.open.swap_remove(nth));
            }
            return Some((self.open[nth].0, self.open[nth].1.clone()));
        }
        let is_file = |node: &ModelNode| matches!(node.kind, ModelKind::File(_));
        let all: Vec<usize> =
            (0..self.model.nodes.len()).filter(|n| is_file(&self.model.nodes[*n])).collect();
        // Two of them get most operations, so that they have a history.
        let node = match self.random.below(4) {
            0 => self.pick(&all)?,
            _ => self.pick(&all[..all.len().min(2)])?,
        };
        let file = self.files().open_inode(self.inodes[node]).unwrap();
        if self.random.one_in(10) && self.open.len() < 6 {
            self.open.push((node, file.clone()));
        }
        Some((node, file))
    }

    /// A range near the beginning, or at the very end of the largest file.
    fn range(&mut self) -> std::ops::Range<u64> {
        let reach = [600, 5000, 100 << 10][self.random.below(3) as usize];
        let length = match self.random.below(12) {
            0 => 65_000 + self.random.below(80_000),
            1..4 => 1 + self.random.below(5000),
            _ => 1 + self.random.below(300),
        };
        let start = self.random.below(reach);
        match self.random.below(10) {
            0 => END - start - length..END - start,
            _ => start..start + length,
        }
    }

    async fn change_bytes(&mut self, nth: u64) {
        const WRITTEN: Durability = Durability::Written;
        let Some((node, file)) = self.file() else { return };
        let (range, choice) = (self.range(), self.random.below(20));
        let bytes = self.model.bytes(node).unwrap();
        match choice {
            0 | 1 => {
                bytes.truncate(range.start);
                file.truncate(range.start, WRITTEN).await.unwrap();
            }
            2 | 3 => {
                // Also across the huge gap in the middle.
                let to = if nth.is_multiple_of(5) { END } else { range.end };
                bytes.zero(range.start..to);
                file.punch_hole(range.start..to, WRITTEN).await.unwrap();
            }
            4 => {
                bytes.extend(range.end);
                file.extend(range.end, WRITTEN).await.unwrap();
            }
            5 => self.views.push((file.view_at(Cut::ALL).unwrap(), bytes.clone())),
            _ => {
                let length = (range.end - range.start) as usize;
                let data: Vec<u8> = (0..length).map(|at| (nth as usize + at / 50) as u8).collect();
                bytes.write(range.start, &data);
                file.write_at(range.start, data.into(), WRITTEN).await.unwrap();
            }
        }
    }

    async fn set(&mut self) {
        let node = self.random.below(self.model.nodes.len() as u64) as usize;
        let (files, inode, key) =
            (self.files(), self.inodes[node], KEYS[self.random.below(2) as usize]);
        match self.random.below(3) {
            0 => {
                let mode = self.random.below(0o1000) as u32;
                self.model.nodes[node].mode = mode;
                let set = AttributeUpdate { mode: Some(mode), ..AttributeUpdate::default() };
                files.set_attributes(inode, set).await.unwrap();
            }
            1 => {
                self.model.nodes[node].extended.remove(key);
                files.set_xattr(inode, key, None).await.unwrap();
            }
            _ => {
                let value = vec![b'v'; self.random.below(40) as usize];
                self.model.nodes[node].extended.insert(key.to_vec(), value.clone());
                files.set_xattr(inode, key, Some(&value)).await.unwrap();
            }
        }
    }

    async fn step(&mut self, nth: u64) {
        match self.random.below(20) {
            0..3 => self.make().await,
            3..7 => self.change_names().await,
            7 => self.set().await,
            _ => self.change_bytes(nth).await,
        }
    }

    /// Ends the engine in one of several ways, and starts it again.
    async fn restart(&mut self) {
        self.open.clear();
        self.views.clear();
        let choice = self.random.below(4);
        if choice == 0 {
            self.files().sync().await.unwrap();
        }
        let disk = match choice {
            0 => self.fixture.disk.after_crash(|count| self.random.below(count as u64) as usize),
            1 => self.fixture.disk.after_kill(),
            _ => {
                self.fixture.engine.close();
                self.fixture.disk.clone()
            }
        };
        let clock = Arc::clone(&self.fixture.clock);
        // The catalog is released before another engine opens it.
        self.fixture.engine.close();
        let aside =
            EngineFixture::with(MemoryDisk::new(), Arc::clone(&clock), EngineOptions::default());
        drop(std::mem::replace(&mut self.fixture, aside));
        if self.random.one_in(3) {
            let _ = std::fs::remove_dir_all(&self.catalog);
        }
        self.options = options(&mut self.random, &self.catalog);
        self.fixture = EngineFixture::with(disk, clock, self.options.clone());
    }

    fn record_moment(&mut self) {
        if self.random.one_in(2) {
            self.fixture.advance_clock(self.random.below(3));
        }
        let cut = self.fixture.now();
        let (model, inodes) = (self.model.clone(), self.inodes.len());
        self.moments.push(FuzzMoment { cut, model, inodes, seen: BTreeMap::new() });
    }

    /// Checks that everything present and past matches the model.
    fn check(
        &mut self,
        cut: Cut,
        model: &FileModel,
        inodes: usize,
    ) -> BTreeMap<Inode, FileAttributes> {
        let files = self.files();
        let mut stats = BTreeMap::new();
        for node in 0..inodes {
            let inode = self.inodes[node];
            let attributes = files.stat_inode(inode, cut).unwrap();
            let expected = &model.nodes[node];
            let kind = match &expected.kind {
                ModelKind::File(_) => FileKind::File,
                ModelKind::Directory { .. } => FileKind::Directory,
                ModelKind::Link(_) => FileKind::Symlink,
            };
            assert_eq!((attributes.kind, attributes.mode), (kind, expected.mode));
            assert_eq!(attributes.links as usize, model.links(node), "links of {inode:?} {kind:?}");
            let extended = files.list_xattrs(inode, cut).unwrap();
            assert!(extended.iter().eq(expected.extended.keys()), "{extended:?}");
            for (key, value) in &expected.extended {
                assert_eq!(files.get_xattr(inode, key, cut).unwrap().as_ref(), Some(value));
            }
            match &expected.kind {
                ModelKind::File(bytes) => {
                    assert_eq!(attributes.size, bytes.length);
                    let file = files.open_inode(inode).unwrap();
                    self.check_bytes(&file.view_at(cut).unwrap(), bytes);
                }
                ModelKind::Directory { .. } => self.check_directory(node, cut, model),
                ModelKind::Link(target) => {
                    assert_eq!(files.read_link_inode(inode, cut).unwrap(), *target);
                }
            }
            stats.insert(inode, attributes);
        }
        for later in &self.inodes[inodes..] {
            assert_eq!(files.stat_inode(*later, cut).unwrap_err().errno(), file_model::ENOENT);
        }
        stats
    }

    fn check_directory(&self, node: usize, cut: Cut, model: &FileModel) {
        let files = self.files();
        let entries = files.list_inode(self.inodes[node], cut).unwrap();
        let entries: Vec<(&[u8], Inode)> =
            entries.iter().map(|entry| (&entry.name[..], entry.inode)).collect();
        let expected: Vec<(&[u8], Inode)> = model
            .names_in(node)
            .into_iter()
            .map(|(name, node)| (name.as_bytes(), self.inodes[node]))
            .collect();
        assert_eq!(entries, expected, "names in {:?} at {cut:?}", self.inodes[node]);
        let Some(path) = self.path(node, model) else { return };
        for name in NAMES {
            let inode = files.resolve(&format!("{path}/{name}"), cut).ok();
            let node = model.names.get(&(node, name.to_owned()));
            assert_eq!(inode, node.map(|node| self.inodes[*node]), "{path}/{name} at {cut:?}");
        }
    }

    fn check_bytes(&mut self, view: &FileView, bytes: &ModelBytes) {
        assert_eq!(view.length(), bytes.length);
        let ranges = [0..LOW, HIGH..END, self.range(), LOW - 100..LOW + 100];
        for range in ranges {
            let length = (range.end - range.start) as usize;
            let (read, expected) =
                (view.read(range.start, length).unwrap(), bytes.read(range.clone()));
            assert!(read == expected, "{range:?} of {view:?}");
            let mut at = range.start;
            for piece in view.read_extents(range.clone()).unwrap() {
                assert_eq!(piece.range.start, at);
                at = piece.range.end;
                let length = (piece.range.end - piece.range.start) as usize;
                let piece = piece.bytes.unwrap_or_else(|| Bytes::from(vec![0; length]));
                let from = (at - length as u64 - range.start) as usize;
                assert!(piece == expected[from..from + length], "{range:?} of {view:?}");
            }
            assert_eq!((at - range.start) as usize, expected.len(), "{range:?} of {view:?}");
        }
    }

    fn check_moment(&mut self, nth: usize) {
        let FuzzMoment { cut, model, inodes, .. } = &self.moments[nth];
        let (cut, model, inodes) = (*cut, model.clone(), *inodes);
        let stats = self.check(cut, &model, inodes);
        let stats_known = &mut self.moments[nth].seen;
        if stats_known.is_empty() {
            *stats_known = stats;
        } else {
            assert_eq!(*stats_known, stats, "what is past does not change: {cut:?}");
        }
    }

    fn check_now(&mut self) {
        let (model, inodes) = (self.model.clone(), self.inodes.len());
        self.check(Cut::ALL, &model, inodes);
        let views = std::mem::take(&mut self.views);
        for (view, bytes) in &views {
            self.check_bytes(view, bytes);
        }
        self.views = views.into_iter().rev().take(5).collect();
    }

    async fn run(mut self) {
        for nth in 0..OPERATIONS {
            self.step(nth).await;
            match self.random.below(60) {
                0 => self.restart().await,
                1..6 => self.record_moment(),
                6 => self.check_now(),
                7 | 8 if !self.moments.is_empty() => {
                    let nth = self.random.below(self.moments.len() as u64) as usize;
                    self.check_moment(nth);
                }
                9..20 => self.fixture.advance_clock(self.random.below(3)),
                _ => {}
            }
        }
        for _ in 0..2 {
            self.check_now();
            (0..self.moments.len()).for_each(|nth| self.check_moment(nth));
            self.restart().await;
        }
    }
}

/// Checks that a result is right, or an error that says that it cannot be read: never anything
/// else.
fn is_right_or_refused<T: PartialEq + std::fmt::Debug>(
    result: Result<T, FileError>,
    expected: &T,
    subject: &str,
) -> bool {
    match result {
        Ok(value) => assert!(value == *expected, "{subject}: {value:?}"),
        Err(FileError::Corrupt(_) | FileError::Io(_)) => return false,
        Err(error) => panic!("{subject}: {error}"),
    }
    true
}

impl FilesFuzz {
    /// Reads the files on `fixture`, whose disk is corrupt. Returns the number of reads, and the
    /// number that were refused.
    fn check_corrupted(
        &self,
        fixture: &EngineFixture,
        cut: Cut,
        model: &FileModel,
        inodes: usize,
    ) -> [usize; 2] {
        let files = fixture.engine.files();
        let mut looks = [0, 0];
        let mut looked = |is_right: bool| {
            looks[0] += 1;
            looks[1] += usize::from(!is_right);
        };
        for node in 0..inodes {
            let inode = self.inodes[node];
            match &model.nodes[node].kind {
                ModelKind::Directory { .. } => {
                    let entries = files.list_inode(inode, cut).map(|entries| {
                        entries.into_iter().map(|entry| (entry.name, entry.inode)).collect()
                    });
                    let expected: Vec<(Vec<u8>, Inode)> = model
                        .names_in(node)
                        .into_iter()
                        .map(|(name, node)| (name.as_bytes().to_vec(), self.inodes[node]))
                        .collect();
                    looked(is_right_or_refused(entries, &expected, "names"));
                }
                ModelKind::Link(target) => {
                    looked(is_right_or_refused(
                        files.read_link_inode(inode, cut),
                        target,
                        "a link",
                    ));
                }
                ModelKind::File(bytes) => {
                    let view = files.open_inode(inode).and_then(|file| file.view_at(cut));
                    let length = view.as_ref().map(FileView::length).map_err(Clone::clone);
                    looked(is_right_or_refused(length, &bytes.length, "a length"));
                    let Ok(view) = view else { continue };
                    for range in [0..LOW, 100..300, 3000..3001, HIGH..END] {
                        let read = view.read(range.start, (range.end - range.start) as usize);
                        let read = read.map(|read| read.to_vec());
                        looked(is_right_or_refused(read, &bytes.read(range), "bytes"));
                    }
                }
            }
        }
        looks
    }

    /// Flips a few bits of a stopped store, or of its catalog, which is soft.
    fn corrupt(&mut self, disk: &MemoryDisk, catalog: &Path) {
        let of_catalog = self.random.one_in(4);
        let names: Vec<String> =
            disk.names().into_iter().filter(|name| !disk.bytes(name).is_empty()).collect();
        for _ in 0..1 + self.random.below(3) {
            let bit = 1 << self.random.below(8);
            if of_catalog {
                let file = catalog.join("1/db");
                let mut bytes = std::fs::read(&file).unwrap();
                // The rest of the file was never written.
                let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
                bytes[self.random.below(used as u64) as usize] ^= bit;
                std::fs::write(&file, bytes).unwrap();
            } else {
                let name = self.pick(&names).unwrap();
                let at = self.random.below(disk.bytes(&name).len() as u64) as usize;
                disk.corrupt(&name, at, bit);
            }
        }
    }

    /// Returns the number of corrupt stores that were opened, the number of reads, and the number
    /// that were refused.
    async fn run_corrupted(mut self) -> [usize; 3] {
        let (catalog, copy) =
            (self.catalog.with_extension("whole"), self.catalog.with_extension("corrupt"));
        self.options.core.catalog = Some(catalog.clone());
        let clock = Arc::clone(&self.fixture.clock);
        self.fixture =
            EngineFixture::with(MemoryDisk::new(), Arc::clone(&clock), self.options.clone());
        for nth in 0..200 {
            self.step(nth).await;
            if self.random.one_in(20) {
                self.record_moment();
            }
        }
        self.record_moment();
        self.open.clear();
        self.views.clear();
        self.fixture.engine.close();
        let (whole, mut sum) = (self.fixture.disk.clone(), [0, 0, 0]);
        for _ in 0..12 {
            let disk = whole.after_kill();
            copy_files(&catalog, &copy);
            self.corrupt(&disk, &copy);
            let options = EngineOptions {
                core: CoreOptions { catalog: Some(copy.clone()), ..self.options.clone().core },
                ..self.options.clone()
            };
            let wall = Arc::clone(&clock) as Arc<dyn hlc::WallClock>;
            let disks = Arc::new(disk.clone());
            let opened = engine::Engine::open(
                disks,
                options,
                wall,
                Arc::new(testkit::engine::TimeListFormat),
            );
            let Ok(engine) = opened else { continue };
            let fixture = EngineFixture { disk, clock: Arc::clone(&clock), engine };
            fixture.advance_clock(2000);
            sum[0] += 1;
            for FuzzMoment { cut, model, inodes, .. } in &self.moments {
                let [looks, refused] = self.check_corrupted(&fixture, *cut, model, *inodes);
                sum[1] += looks;
                sum[2] += refused;
            }
        }
        sum
    }
}

fn copy_files(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            copy_files(&entry.path(), &to.join(entry.file_name()));
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

fn seeds() -> std::ops::Range<u64> {
    let seeds = std::env::var("FILES_FUZZ_SEEDS").unwrap_or_else(|_| "0..3".to_owned());
    let (from, to) = seeds.split_once("..").expect("FILES_FUZZ_SEEDS=from..to");
    from.parse().unwrap()..to.parse().unwrap()
}

#[tokio::test]
async fn bits_that_flip_in_any_file_make_errors_and_never_other_bytes_or_names() {
    let mut sum = [0, 0, 0];
    for seed in seeds() {
        println!("FILES_FUZZ_SEEDS={seed}..{}", seed + 1);
        let counts = FilesFuzz::new(seed).run_corrupted().await;
        sum = [0, 1, 2].map(|nth| sum[nth] + counts[nth]);
    }
    let [opened, looks, refused] = sum;
    println!("{opened} stores were opened; of {looks} looks {refused} were refused");
    assert!(opened > 0 && looks > refused, "something can be read still");
}

#[tokio::test]
async fn f20_g2_g16_random_histories_match_a_plain_model_at_every_moment() {
    for seed in seeds() {
        println!("FILES_FUZZ_SEEDS={seed}..{}", seed + 1);
        FilesFuzz::new(seed).run().await;
    }
}
