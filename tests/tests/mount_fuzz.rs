//! The same random operations on the mount and on a directory of an ordinary file system (`F20`):
//! each returns the same, and both hold the same. Each remembered moment reads later as it was,
//! byte for byte, also on another server on the same data.
//!
//! `FREEZEFRAME_FUZZ_SEED` chooses a run, `FREEZEFRAME_FUZZ_OPERATIONS` makes it longer.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, RenameFlags, Timespec, Timestamps, XattrFlags, chmodat,
    fallocate, renameat_with, setxattr, utimensat,
};
use testkit::process::mount::{self, TestMount, is_installed, moment, print_notice};
use testkit::rng::SeededRng;

const OPERATIONS: usize = 1200;
const REMEMBER_EVERY: usize = 60;
const COMPARE_EVERY: usize = 20;
const OPEN_MAX: usize = 6;
const FILE_BYTES_MAX: u64 = 200 << 10;
const NAMES: [&str; 12] =
    ["a", "b", "c", "d/a", "d/b", "d/e/a", "f/x", "f", "d", "d/e", "link", "f/\u{fc}\u{1}"];

/// Random numbers from a seed.
struct FuzzRng(SeededRng);

impl Deref for FuzzRng {
    type Target = SeededRng;

    fn deref(&self) -> &SeededRng {
        &self.0
    }
}

impl DerefMut for FuzzRng {
    fn deref_mut(&mut self) -> &mut SeededRng {
        &mut self.0
    }
}

impl FuzzRng {
    fn name(&mut self) -> &'static str {
        self.pick::<&str>(&NAMES)
    }

    /// Mostly small, sometimes at the edge of a page.
    fn random_offset(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(50) * 4096,
            1 => self.below(100),
            _ => self.below(FILE_BYTES_MAX),
        }
    }

    fn length(&mut self) -> usize {
        match self.below(5) {
            0 => 4096,
            1 => self.below(70_000) as usize + 1,
            _ => self.below(3000) as usize + 1,
        }
    }

    fn file_bytes(&mut self) -> Vec<u8> {
        let length = self.length();
        let first = self.next_u64();
        (0..length as u64).map(|nth| (first.wrapping_add(nth * nth) >> 3) as u8 | 1).collect()
    }
}

/// The result on one side: something to compare, or an error number.
type OperationResult = Result<String, i32>;

fn io_result<T: std::fmt::Debug>(result: std::io::Result<T>) -> OperationResult {
    result.map(|value| format!("{value:?}")).map_err(|error| error.raw_os_error().unwrap_or(-1))
}

fn errno_result<T: std::fmt::Debug>(result: rustix::io::Result<T>) -> OperationResult {
    result.map(|value| format!("{value:?}")).map_err(rustix::io::Errno::raw_os_error)
}

/// A program that writes to files through mappings, which a safe program cannot.
struct MmapProcess {
    process: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

const MAPPER: &str = r"
import mmap, os, sys
for line in sys.stdin:
    path, at, length, byte = line.rstrip('\n').split('\t')
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            size = os.fstat(fd).st_size
            at, length = int(at), int(length)
            length = min(length, size - at)
            if length <= 0:
                said = 'short'
            else:
                with mmap.mmap(fd, size) as mapped:
                    before = sum(mapped[at:at + length])
                    mapped[at:at + length] = bytes([int(byte)]) * length
                    mapped.flush()
                said = f'mapped {before}'
        finally:
            os.close(fd)
        print(said)
    except OSError as error:
        print('error', error.errno)
    sys.stdout.flush()
";

impl MmapProcess {
    fn start() -> Option<MmapProcess> {
        if !is_installed("python3") {
            print_notice("mappings are not fuzzed: python3 is not installed");
            return None;
        }
        let mut process = Command::new("python3")
            .args(["-c", MAPPER])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let ask = process.stdin.take().expect("it is piped");
        let answers = BufReader::new(process.stdout.take().expect("it is piped"));
        Some(MmapProcess { process, ask, answers })
    }

    fn write(&mut self, path: &Path, at: u64, length: usize, byte: u8) -> OperationResult {
        writeln!(self.ask, "{}\t{at}\t{length}\t{byte}", path.display()).expect("it listens");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it answers");
        Ok(line)
    }
}

impl Drop for MmapProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The state of a path that must be the same on both sides.
#[derive(Clone, PartialEq, Eq, Debug)]
struct PathState {
    what: String,
    bytes: Vec<u8>,
}

/// The features of this machine's file system. Only those are compared.
#[derive(Clone, Copy)]
struct FileSystemFeatures {
    counts_directories: bool,
    punches: bool,
    zeroes: bool,
}

impl FileSystemFeatures {
    fn of(directory: &Path) -> FileSystemFeatures {
        fs::create_dir_all(directory.join("probe/a")).unwrap();
        let file = File::create(directory.join("probe/b")).unwrap();
        file.write_at(&[1; 8192], 0).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let ordinary = FileSystemFeatures {
            counts_directories: fs::metadata(directory.join("probe")).unwrap().nlink() == 3,
            punches: fallocate(&file, punch, 0, 4096).is_ok(),
            zeroes: fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 4096).is_ok(),
        };
        fs::remove_dir_all(directory.join("probe")).unwrap();
        ordinary
    }
}

fn read_path(path: &Path, ordinary: FileSystemFeatures, past: bool) -> PathState {
    let metadata = fs::symlink_metadata(path).unwrap();
    let kind = metadata.file_type();
    let links = if kind.is_dir() && !ordinary.counts_directories { 0 } else { metadata.nlink() };
    // A file of the past may show in its permissions that it is read-only.
    let mode = if past { metadata.mode() & 0o555 } else { metadata.mode() & 0o7777 };
    let mut what = format!("{kind:?} {mode:o} {}:{}", metadata.uid(), metadata.gid());
    if !past {
        what += &format!(" links={links}");
    }
    let mut bytes = Vec::new();
    if kind.is_file() {
        what += &format!(" size={}", metadata.len());
        bytes = fs::read(path).unwrap();
        assert_eq!(bytes.len() as u64, metadata.len(), "{}", path.display());
    } else if kind.is_symlink() {
        what += &format!(" to={:?}", fs::read_link(path).unwrap());
    } else if !kind.is_dir() {
        what += &format!(" fifo={}", kind.is_fifo());
    }
    // Times that were set are compared; others are each file system's own.
    if metadata.mtime() < 1_500_000_000 {
        what += &format!(" modified={}.{:09}", metadata.mtime(), metadata.mtime_nsec());
    }
    PathState { what, bytes }
}

fn read_tree(
    root: &Path,
    ordinary: FileSystemFeatures,
    past: bool,
) -> BTreeMap<PathBuf, PathState> {
    let mut seen = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                left.push(path.clone());
            }
            seen.insert(
                path.strip_prefix(root).unwrap().to_owned(),
                read_path(&path, ordinary, past),
            );
        }
    }
    seen
}

fn assert_same(
    ours: &BTreeMap<PathBuf, PathState>,
    theirs: &BTreeMap<PathBuf, PathState>,
    when: &dyn Fn() -> String,
) {
    if ours == theirs {
        return;
    }
    let names = |seen: &BTreeMap<PathBuf, PathState>| seen.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(ours), names(theirs), "names. {}", when());
    for (path, our) in ours {
        let their = &theirs[path];
        assert_eq!(our.what, their.what, "{path:?}. {}", when());
        let differs = our.bytes.iter().zip(&their.bytes).position(|(a, b)| a != b);
        assert_eq!(differs, None, "first byte that differs in {path:?}. {}", when());
    }
}

/// Both sides, and the files that are open on both.
struct FileSystemPair {
    roots: [PathBuf; 2],
    open: Vec<([File; 2], String)>,
    mapper: Option<MmapProcess>,
    features: FileSystemFeatures,
}

impl FileSystemPair {
    fn on_both(&mut self, mut act: impl FnMut(&Path) -> OperationResult) -> [OperationResult; 2] {
        let [ours, theirs] = &self.roots;
        [act(ours), act(theirs)]
    }

    fn open_on_both(&mut self, name: &str, options: &OpenOptions) -> [OperationResult; 2] {
        let paths = self.roots.each_ref().map(|root| root.join(name));
        let opened = paths.map(|path| options.open(path));
        let answers = opened.each_ref().map(|opened| match opened {
            Ok(_) => Ok(String::new()),
            Err(error) => Err(error.raw_os_error().unwrap_or(-1)),
        });
        if let [Ok(ours), Ok(theirs)] = opened {
            self.open.push(([ours, theirs], name.to_owned()));
        }
        answers
    }

    fn on_handle(
        &self,
        nth: usize,
        act: impl Fn(&File) -> OperationResult,
    ) -> [OperationResult; 2] {
        let ([ours, theirs], _) = &self.open[nth];
        [act(ours), act(theirs)]
    }

    /// One random operation: its description, and the result of each side.
    fn step(&mut self, random: &mut FuzzRng) -> (String, [OperationResult; 2]) {
        let what = random.below(if self.open.is_empty() { 17 } else { 40 });
        let name = random.name();
        match what {
            0..=5 => self.open_some(random, name),
            6 => (
                format!("mkdir {name}"),
                self.on_both(|root| io_result(fs::create_dir(root.join(name)))),
            ),
            7 => (
                format!("rmdir {name}"),
                self.on_both(|root| io_result(fs::remove_dir(root.join(name)))),
            ),
            8 => (
                format!("unlink {name}"),
                self.on_both(|root| io_result(fs::remove_file(root.join(name)))),
            ),
            9 | 10 => self.rename(random, name),
            11 => {
                let to = random.name();
                let link = |root: &Path| io_result(fs::hard_link(root.join(name), root.join(to)));
                (format!("link {name} {to}"), self.on_both(link))
            }
            12 => {
                let to = random.name();
                (
                    format!("symlink {name} {to}"),
                    self.on_both(|root| io_result(symlink(to, root.join(name)))),
                )
            }
            13 => {
                let mode = Mode::from_raw_mode(random.below(0o2000) as u32 | 0o600);
                let set = |root: &Path| {
                    errno_result(chmodat(CWD, root.join(name), mode, AtFlags::empty()))
                };
                (format!("chmod {name} {mode:?}"), self.on_both(set))
            }
            14 => self.set_times(random, name),
            15 => self.map(random, name),
            16 => {
                let value = random.file_bytes();
                let value = &value[..value.len().min(300)];
                let set = |root: &Path| {
                    errno_result(setxattr(root.join(name), "user.fuzz", value, XattrFlags::empty()))
                };
                (format!("setxattr {name}"), self.on_both(set))
            }
            _ => self.use_handle(random),
        }
    }

    fn open_some(&mut self, random: &mut FuzzRng, name: &str) -> (String, [OperationResult; 2]) {
        if self.open.len() >= OPEN_MAX {
            let (_, name) = self.open.swap_remove(random.below(OPEN_MAX as u64) as usize);
            return (format!("close {name}"), [Ok(String::new()), Ok(String::new())]);
        }
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
        let (create, append) = (!random.one_in(3), random.one_in(4));
        let (new, truncate) = (random.one_in(5), random.one_in(6) && !append);
        options.append(append).write(true).create(create).create_new(new).truncate(truncate);
        options.mode(0o640);
        let what =
            format!("open {name} create={create} new={new} append={append} truncate={truncate}");
        (what, self.open_on_both(name, &options))
    }

    fn rename(&mut self, random: &mut FuzzRng, name: &str) -> (String, [OperationResult; 2]) {
        let to = random.name();
        let flags = match random.below(4) {
            0 => RenameFlags::NOREPLACE,
            1 => RenameFlags::EXCHANGE,
            _ => RenameFlags::empty(),
        };
        let rename = |root: &Path| {
            errno_result(renameat_with(CWD, root.join(name), CWD, root.join(to), flags))
        };
        (format!("rename {name} {to} {flags:?}"), self.on_both(rename))
    }

    fn set_times(&mut self, random: &mut FuzzRng, name: &str) -> (String, [OperationResult; 2]) {
        let time = Timespec {
            tv_sec: random.below(1_400_000_000) as i64,
            tv_nsec: random.below(1_000_000_000) as i64,
        };
        let times = Timestamps { last_access: time, last_modification: time };
        let set = |root: &Path| {
            errno_result(utimensat(CWD, root.join(name), &times, AtFlags::SYMLINK_NOFOLLOW))
        };
        (format!("utimens {name} {}", time.tv_sec), self.on_both(set))
    }

    fn map(&mut self, random: &mut FuzzRng, name: &str) -> (String, [OperationResult; 2]) {
        let (at, length, byte) = (random.random_offset(), random.length(), random.below(255) as u8);
        let paths = self.roots.each_ref().map(|root| root.join(name));
        let what = format!("map {name} {at} {length}");
        match &mut self.mapper {
            // A name that a line cannot hold.
            Some(mapper) if paths[0].is_file() => {
                (what, paths.map(|path| mapper.write(&path, at, length, byte)))
            }
            _ => (what, [Ok(String::new()), Ok(String::new())]),
        }
    }

    fn use_handle(&mut self, random: &mut FuzzRng) -> (String, [OperationResult; 2]) {
        let nth = random.below(self.open.len() as u64) as usize;
        let (place, length) = (random.random_offset(), random.length());
        let name = self.open[nth].1.clone();
        match random.below(16) {
            0..=5 => {
                let bytes = random.file_bytes();
                let write = |file: &File| io_result(file.write_at(&bytes, place));
                (format!("write {name} {place} {}", bytes.len()), self.on_handle(nth, write))
            }
            6..=8 => {
                let read = |file: &File| {
                    let mut bytes = vec![0; length];
                    io_result(file.read_at(&mut bytes, place).map(|count| {
                        bytes.truncate(count);
                        bytes
                    }))
                };
                (format!("read {name} {place} {length}"), self.on_handle(nth, read))
            }
            9 | 10 => {
                let resize = |file: &File| io_result(file.set_len(place));
                (format!("truncate {name} {place}"), self.on_handle(nth, resize))
            }
            11 | 12 => self.allocate(random, nth, place, length as u64),
            13 => {
                let size = |file: &File| io_result(file.metadata().map(|metadata| metadata.len()));
                (format!("fstat {name}"), self.on_handle(nth, size))
            }
            14 => (format!("fsync {name}"), self.on_handle(nth, |file| io_result(file.sync_all()))),
            _ => {
                drop(self.open.swap_remove(nth));
                (format!("close {name}"), [Ok(String::new()), Ok(String::new())])
            }
        }
    }

    fn allocate(
        &mut self,
        random: &mut FuzzRng,
        nth: usize,
        place: u64,
        length: u64,
    ) -> (String, [OperationResult; 2]) {
        let flags = match random.below(4) {
            0 if self.features.punches => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            1 if self.features.zeroes => FallocateFlags::ZERO_RANGE,
            2 if self.features.zeroes => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
            3 => FallocateFlags::KEEP_SIZE,
            _ => FallocateFlags::empty(),
        };
        let allocate = |file: &File| errno_result(fallocate(file, flags, place, length));
        (format!("fallocate {place} {length} {flags:?}"), self.on_handle(nth, allocate))
    }
}

struct MountFuzzRun {
    mounted: TestMount,
    pair: FileSystemPair,
    remembered: Vec<(String, BTreeMap<PathBuf, PathState>)>,
    operations: Vec<String>,
    seed: u64,
}

impl MountFuzzRun {
    fn start(mounted: TestMount, seed: u64) -> MountFuzzRun {
        let roots = [mounted.path("files"), mounted.outside_path("ordinary")];
        fs::create_dir(&roots[1]).unwrap();
        let ordinary = FileSystemFeatures::of(&roots[1]);
        let pair = FileSystemPair {
            roots,
            open: Vec::new(),
            mapper: MmapProcess::start(),
            features: ordinary,
        };
        MountFuzzRun { mounted, pair, remembered: Vec::new(), operations: Vec::new(), seed }
    }

    fn when(&self) -> String {
        let last = self.operations.len().saturating_sub(30);
        format!(
            "FREEZEFRAME_FUZZ_SEED={} after:\n{}",
            self.seed,
            self.operations[last..].join("\n")
        )
    }

    fn step(&mut self, random: &mut FuzzRng) {
        let (what, [ours, theirs]) = self.pair.step(random);
        let shown = if ours.is_ok() { "ok".to_owned() } else { format!("{ours:?}") };
        self.operations.push(format!("{} {what}: {shown}", self.operations.len()));
        if ours != theirs {
            let short = |answer: OperationResult| {
                answer.map(|value| value.chars().take(200).collect::<String>())
            };
            let (ours, theirs) = (short(ours), short(theirs));
            panic!("ours: {ours:?}, theirs: {theirs:?}. {}", self.when());
        }
    }

    fn compare(&self) {
        let [ours, theirs] = &self.pair.roots;
        let [ours, theirs] = [
            read_tree(ours, self.pair.features, false),
            read_tree(theirs, self.pair.features, false),
        ];
        assert_same(&ours, &theirs, &|| self.when());
    }

    fn remember(&mut self) {
        let moment = moment();
        self.operations.push(format!("remember {moment}"));
        self.remembered.push((moment, read_tree(&self.pair.roots[1], self.pair.features, true)));
    }

    fn compare_past(&self) {
        for (moment, then) in &self.remembered {
            let root = self.mounted.path(&format!(".at/{moment}/files"));
            let found = read_tree(&root, self.pair.features, true);
            assert_same(&found, then, &|| format!("as of {moment}. {}", self.when()));
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn f20_random_operations_do_the_same_as_on_an_ordinary_file_system_and_stay_readable() {
    let Some(mounted) = mount::start("the fuzz of files", &[]) else { return };
    let seed = setting("FREEZEFRAME_FUZZ_SEED").unwrap_or(1);
    let operations = setting("FREEZEFRAME_FUZZ_OPERATIONS").map_or(OPERATIONS, |it| it as usize);
    println!("FREEZEFRAME_FUZZ_SEED={seed}");
    let (mut random, mut run) = (FuzzRng(SeededRng::new(seed)), MountFuzzRun::start(mounted, seed));
    for nth in 1..=operations {
        run.step(&mut random);
        if nth % COMPARE_EVERY == 0 {
            run.compare();
        }
        if nth % REMEMBER_EVERY == 0 {
            run.remember();
        }
        if random.one_in(300) {
            run.pair.open.clear();
            run.mounted.remount().unwrap();
            run.operations.push("remount".to_owned());
        }
    }
    run.compare();
    run.compare_past();
    run.pair.open.clear();
    run.mounted.stop();
    run.mounted.start_server().unwrap();
    run.compare();
    run.compare_past();
}
