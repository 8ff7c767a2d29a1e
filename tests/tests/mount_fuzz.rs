//! The same random operations on the mount and on a directory of an ordinary file system (`F20`): each
//! answers the same, and both hold the same; and each remembered moment is found again as it was, byte
//! for byte, also by another server on the same data.
//!
//! `FREEZEFRAME_FUZZ_SEED` replays a run, `FREEZEFRAME_FUZZ_OPERATIONS` makes it longer.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, RenameFlags, Timespec, Timestamps, XattrFlags, chmodat,
    fallocate, renameat_with, setxattr, utimensat,
};
use tests::mount::{self, Mounted, is_installed, moment, say};

const OPERATIONS: usize = 1200;
const REMEMBER_EVERY: usize = 60;
const COMPARE_EVERY: usize = 20;
const OPEN_MAX: usize = 6;
const FILE_BYTES_MAX: u64 = 200 << 10;
const NAMES: [&str; 12] =
    ["a", "b", "c", "d/a", "d/b", "d/e/a", "f/x", "f", "d", "d/e", "link", "f/\u{fc}\u{1}"];

/// Numbers that follow from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.below(NAMES.len() as u64) as usize]
    }

    /// Mostly small, sometimes at the edge of a page.
    fn place(&mut self) -> u64 {
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

    fn bytes(&mut self) -> Vec<u8> {
        let length = self.length();
        let first = self.next();
        (0..length as u64).map(|nth| (first.wrapping_add(nth * nth) >> 3) as u8 | 1).collect()
    }
}

/// What one side answers: something to compare, or an error's number.
type Answer = Result<String, i32>;

fn answer<T: std::fmt::Debug>(result: std::io::Result<T>) -> Answer {
    result.map(|value| format!("{value:?}")).map_err(|error| error.raw_os_error().unwrap_or(-1))
}

fn number<T: std::fmt::Debug>(result: rustix::io::Result<T>) -> Answer {
    result.map(|value| format!("{value:?}")).map_err(rustix::io::Errno::raw_os_error)
}

/// A program that writes to files through mappings, which a safe program cannot.
struct Mapper {
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
                print('short'); sys.stdout.flush(); continue
            with mmap.mmap(fd, size) as mapped:
                before = sum(mapped[at:at + length])
                mapped[at:at + length] = bytes([int(byte)]) * length
                mapped.flush()
            print('mapped', before)
        finally:
            os.close(fd)
    except OSError as error:
        print('error', error.errno)
    sys.stdout.flush()
";

impl Mapper {
    fn start() -> Option<Mapper> {
        if !is_installed("python3") {
            say("mappings are not fuzzed: python3 is not installed");
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
        Some(Mapper { process, ask, answers })
    }

    fn write(&mut self, path: &Path, at: u64, length: usize, byte: u8) -> Answer {
        writeln!(self.ask, "{}\t{at}\t{length}\t{byte}", path.display()).expect("it listens");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it answers");
        Ok(line)
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What is at a path, as far as it must be the same on both sides.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    what: String,
    bytes: Vec<u8>,
}

/// What an ordinary file system of this machine can do, so that only that is compared.
#[derive(Clone, Copy)]
struct Ordinary {
    counts_directories: bool,
    punches: bool,
    zeroes: bool,
}

impl Ordinary {
    fn of(directory: &Path) -> Ordinary {
        fs::create_dir_all(directory.join("probe/a")).unwrap();
        let file = File::create(directory.join("probe/b")).unwrap();
        file.write_at(&[1; 8192], 0).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let ordinary = Ordinary {
            counts_directories: fs::metadata(directory.join("probe")).unwrap().nlink() == 3,
            punches: fallocate(&file, punch, 0, 4096).is_ok(),
            zeroes: fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 4096).is_ok(),
        };
        fs::remove_dir_all(directory.join("probe")).unwrap();
        ordinary
    }
}

fn see(path: &Path, ordinary: Ordinary, past: bool) -> Seen {
    let metadata = fs::symlink_metadata(path).unwrap();
    let kind = metadata.file_type();
    let links = if kind.is_dir() && !ordinary.counts_directories { 0 } else { metadata.nlink() };
    // What cannot be changed any more may say so by its permissions.
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
    // Times that were set come back; others are each file system's own.
    if metadata.mtime() < 1_500_000_000 {
        what += &format!(" modified={}.{:09}", metadata.mtime(), metadata.mtime_nsec());
    }
    Seen { what, bytes }
}

fn see_all(root: &Path, ordinary: Ordinary, past: bool) -> BTreeMap<PathBuf, Seen> {
    let mut seen = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                left.push(path.clone());
            }
            seen.insert(path.strip_prefix(root).unwrap().to_owned(), see(&path, ordinary, past));
        }
    }
    seen
}

fn assert_same(
    ours: &BTreeMap<PathBuf, Seen>,
    theirs: &BTreeMap<PathBuf, Seen>,
    when: &dyn Fn() -> String,
) {
    if ours == theirs {
        return;
    }
    let names = |seen: &BTreeMap<PathBuf, Seen>| seen.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(ours), names(theirs), "names. {}", when());
    for (path, our) in ours {
        let their = &theirs[path];
        assert_eq!(our.what, their.what, "{path:?}. {}", when());
        let differs = our.bytes.iter().zip(&their.bytes).position(|(a, b)| a != b);
        assert_eq!(differs, None, "first byte that differs in {path:?}. {}", when());
    }
}

/// Both sides, and what is open on both.
struct Pair {
    roots: [PathBuf; 2],
    open: Vec<([File; 2], String)>,
    mapper: Option<Mapper>,
    ordinary: Ordinary,
}

impl Pair {
    fn both(&mut self, mut act: impl FnMut(&Path) -> Answer) -> [Answer; 2] {
        let [ours, theirs] = &self.roots;
        [act(ours), act(theirs)]
    }

    fn open_both(&mut self, name: &str, options: &OpenOptions) -> [Answer; 2] {
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

    fn at_handle(&self, nth: usize, act: impl Fn(&File) -> Answer) -> [Answer; 2] {
        let ([ours, theirs], _) = &self.open[nth];
        [act(ours), act(theirs)]
    }

    /// One random operation: what it was, and what each side said.
    fn step(&mut self, random: &mut Random) -> (String, [Answer; 2]) {
        let what = random.below(if self.open.is_empty() { 17 } else { 40 });
        let name = random.name();
        match what {
            0..=5 => self.open_some(random, name),
            6 => {
                (format!("mkdir {name}"), self.both(|root| answer(fs::create_dir(root.join(name)))))
            }
            7 => {
                (format!("rmdir {name}"), self.both(|root| answer(fs::remove_dir(root.join(name)))))
            }
            8 => (
                format!("unlink {name}"),
                self.both(|root| answer(fs::remove_file(root.join(name)))),
            ),
            9 | 10 => self.rename(random, name),
            11 => {
                let to = random.name();
                let link = |root: &Path| answer(fs::hard_link(root.join(name), root.join(to)));
                (format!("link {name} {to}"), self.both(link))
            }
            12 => {
                let to = random.name();
                (
                    format!("symlink {name} {to}"),
                    self.both(|root| answer(symlink(to, root.join(name)))),
                )
            }
            13 => {
                let mode = Mode::from_raw_mode(random.below(0o2000) as u32 | 0o600);
                let set =
                    |root: &Path| number(chmodat(CWD, root.join(name), mode, AtFlags::empty()));
                (format!("chmod {name} {mode:?}"), self.both(set))
            }
            14 => self.set_times(random, name),
            15 => self.map(random, name),
            16 => {
                let value = random.bytes();
                let value = &value[..value.len().min(300)];
                let set = |root: &Path| {
                    number(setxattr(root.join(name), "user.fuzz", value, XattrFlags::empty()))
                };
                (format!("setxattr {name}"), self.both(set))
            }
            _ => self.use_handle(random),
        }
    }

    fn open_some(&mut self, random: &mut Random, name: &str) -> (String, [Answer; 2]) {
        if self.open.len() >= OPEN_MAX {
            let (_, name) = self.open.swap_remove(random.below(OPEN_MAX as u64) as usize);
            return (format!("close {name}"), [Ok(String::new()), Ok(String::new())]);
        }
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
        let (create, append) = (!random.chance(3), random.chance(4));
        let (new, truncate) = (random.chance(5), random.chance(6) && !append);
        options.append(append).write(true).create(create).create_new(new).truncate(truncate);
        options.mode(0o640);
        let what =
            format!("open {name} create={create} new={new} append={append} truncate={truncate}");
        (what, self.open_both(name, &options))
    }

    fn rename(&mut self, random: &mut Random, name: &str) -> (String, [Answer; 2]) {
        let to = random.name();
        let flags = match random.below(4) {
            0 => RenameFlags::NOREPLACE,
            1 => RenameFlags::EXCHANGE,
            _ => RenameFlags::empty(),
        };
        let rename =
            |root: &Path| number(renameat_with(CWD, root.join(name), CWD, root.join(to), flags));
        (format!("rename {name} {to} {flags:?}"), self.both(rename))
    }

    fn set_times(&mut self, random: &mut Random, name: &str) -> (String, [Answer; 2]) {
        let time = Timespec {
            tv_sec: random.below(1_400_000_000) as i64,
            tv_nsec: random.below(1_000_000_000) as i64,
        };
        let times = Timestamps { last_access: time, last_modification: time };
        let set = |root: &Path| {
            number(utimensat(CWD, root.join(name), &times, AtFlags::SYMLINK_NOFOLLOW))
        };
        (format!("utimens {name} {}", time.tv_sec), self.both(set))
    }

    fn map(&mut self, random: &mut Random, name: &str) -> (String, [Answer; 2]) {
        let (at, length, byte) = (random.place(), random.length(), random.below(255) as u8);
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

    fn use_handle(&mut self, random: &mut Random) -> (String, [Answer; 2]) {
        let nth = random.below(self.open.len() as u64) as usize;
        let (place, length) = (random.place(), random.length());
        let name = self.open[nth].1.clone();
        match random.below(16) {
            0..=5 => {
                let bytes = random.bytes();
                let write = |file: &File| answer(file.write_at(&bytes, place));
                (format!("write {name} {place} {}", bytes.len()), self.at_handle(nth, write))
            }
            6..=8 => {
                let read = |file: &File| {
                    let mut bytes = vec![0; length];
                    answer(file.read_at(&mut bytes, place).map(|count| {
                        bytes.truncate(count);
                        bytes
                    }))
                };
                (format!("read {name} {place} {length}"), self.at_handle(nth, read))
            }
            9 | 10 => {
                let resize = |file: &File| answer(file.set_len(place));
                (format!("truncate {name} {place}"), self.at_handle(nth, resize))
            }
            11 | 12 => self.allocate(random, nth, place, length as u64),
            13 => {
                let size = |file: &File| answer(file.metadata().map(|metadata| metadata.len()));
                (format!("fstat {name}"), self.at_handle(nth, size))
            }
            14 => (format!("fsync {name}"), self.at_handle(nth, |file| answer(file.sync_all()))),
            _ => {
                drop(self.open.swap_remove(nth));
                (format!("close {name}"), [Ok(String::new()), Ok(String::new())])
            }
        }
    }

    fn allocate(
        &mut self,
        random: &mut Random,
        nth: usize,
        place: u64,
        length: u64,
    ) -> (String, [Answer; 2]) {
        let flags = match random.below(4) {
            0 if self.ordinary.punches => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            1 if self.ordinary.zeroes => FallocateFlags::ZERO_RANGE,
            2 if self.ordinary.zeroes => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
            3 => FallocateFlags::KEEP_SIZE,
            _ => FallocateFlags::empty(),
        };
        let allocate = |file: &File| number(fallocate(file, flags, place, length));
        (format!("fallocate {place} {length} {flags:?}"), self.at_handle(nth, allocate))
    }
}

struct Run {
    mounted: Mounted,
    pair: Pair,
    remembered: Vec<(String, BTreeMap<PathBuf, Seen>)>,
    done: Vec<String>,
    seed: u64,
}

impl Run {
    fn begin(mounted: Mounted, seed: u64) -> Run {
        let roots = [mounted.at("files"), mounted.beside("ordinary")];
        fs::create_dir(&roots[1]).unwrap();
        let ordinary = Ordinary::of(&roots[1]);
        let pair = Pair { roots, open: Vec::new(), mapper: Mapper::start(), ordinary };
        Run { mounted, pair, remembered: Vec::new(), done: Vec::new(), seed }
    }

    fn when(&self) -> String {
        let last = self.done.len().saturating_sub(30);
        format!("FREEZEFRAME_FUZZ_SEED={} after:\n{}", self.seed, self.done[last..].join("\n"))
    }

    fn step(&mut self, random: &mut Random) {
        let (what, [ours, theirs]) = self.pair.step(random);
        let shown = if ours.is_ok() { "ok".to_owned() } else { format!("{ours:?}") };
        self.done.push(format!("{} {what}: {shown}", self.done.len()));
        if ours != theirs {
            let short =
                |answer: Answer| answer.map(|value| value.chars().take(200).collect::<String>());
            let (ours, theirs) = (short(ours), short(theirs));
            panic!("ours: {ours:?}, theirs: {theirs:?}. {}", self.when());
        }
    }

    fn compare(&self) {
        let [ours, theirs] = &self.pair.roots;
        let [ours, theirs] =
            [see_all(ours, self.pair.ordinary, false), see_all(theirs, self.pair.ordinary, false)];
        assert_same(&ours, &theirs, &|| self.when());
    }

    fn remember(&mut self) {
        let moment = moment();
        self.done.push(format!("remember {moment}"));
        self.remembered.push((moment, see_all(&self.pair.roots[1], self.pair.ordinary, true)));
    }

    fn compare_past(&self) {
        for (moment, then) in &self.remembered {
            let root = self.mounted.at(&format!(".at/{moment}/files"));
            let found = see_all(&root, self.pair.ordinary, true);
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
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let seed = setting("FREEZEFRAME_FUZZ_SEED").unwrap_or(clock.as_nanos() as u64);
    let operations = setting("FREEZEFRAME_FUZZ_OPERATIONS").map_or(OPERATIONS, |it| it as usize);
    println!("FREEZEFRAME_FUZZ_SEED={seed}");
    let (mut random, mut run) = (Random(seed), Run::begin(mounted, seed));
    for nth in 1..=operations {
        run.step(&mut random);
        if nth % COMPARE_EVERY == 0 {
            run.compare();
        }
        if nth % REMEMBER_EVERY == 0 {
            run.remember();
        }
        if random.chance(300) {
            run.pair.open.clear();
            run.mounted.remount().unwrap();
            run.done.push("remount".to_owned());
        }
    }
    run.compare();
    run.compare_past();
    run.pair.open.clear();
    run.mounted.stop();
    run.mounted.begin().unwrap();
    run.compare();
    run.compare_past();
}
