//! A bounded number of open files, against a model that holds them all.

use std::collections::HashMap;
use std::fs;
use std::io::IoSlice;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::*;

/// A directory that is removed at the end.
struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    fn new(name: &str) -> ScratchDirectory {
        let name = format!("freezeframe-handles-{}-{name}", std::process::id());
        // In memory, if such a directory exists: these tests do not need a disk.
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let path = parent.join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        ScratchDirectory(path)
    }

    fn disk(&self, open_max: usize) -> RealDisk {
        let names = File::open(&self.0).unwrap();
        RealDisk {
            directory: self.0.clone(),
            directory_file: names,
            descriptors: DescriptorCache::with_open_max(&self.0, open_max),
        }
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn all(file: &dyn DiskFile) -> Vec<u8> {
    let mut bytes = vec![0; file.length().unwrap() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

fn descriptors_of(directory: &Path) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap();
    let targets = links.filter_map(|link| fs::read_link(link.ok()?.path()).ok());
    // The directory itself is open too, once.
    targets.filter(|target| target.starts_with(directory) && target != directory).count()
}

#[test]
fn f17_ten_thousand_files_that_are_held_take_so_many_descriptors_and_no_more() {
    let scratch = ScratchDirectory::new("bounded");
    let disk = scratch.disk(50);
    let files: Vec<_> = (0..10_000_u32)
        .map(|nth| {
            fs::write(scratch.0.join(nth.to_string()), nth.to_le_bytes()).unwrap();
            disk.open(&nth.to_string()).unwrap()
        })
        .collect();
    for (nth, file) in files.iter().enumerate().step_by(7) {
        assert_eq!(all(&**file), (nth as u32).to_le_bytes());
        let mut block = vec![0; 4096];
        assert_eq!(file.read_direct_at(&mut block, 0).unwrap(), 4);
    }
    let open = descriptors_of(&scratch.0);
    assert!(open <= 100, "{open} descriptors");
    assert!(disk.descriptors.queued() <= 50);
    // A file that is read again and again stays open.
    let before = disk.descriptors.reopened.load(Ordering::Relaxed);
    for nth in 0..2000 {
        all(&*files[nth % 20]);
    }
    let reopened = disk.descriptors.reopened.load(Ordering::Relaxed) - before;
    assert!(reopened <= 20, "{reopened} were opened again");
}

#[test]
fn a_file_that_is_held_open_stays_open_until_it_is_not_held_any_more() {
    let scratch = ScratchDirectory::new("held-open");
    let disk = scratch.disk(1);
    let file = disk.create("held").unwrap();
    file.hold_open(true).unwrap();
    let other_files: Vec<_> = (0..10).map(|nth| disk.create(&nth.to_string()).unwrap()).collect();
    assert!(other_files.iter().all(|other| all(&**other).is_empty()));
    let before = disk.descriptors.reopened.load(Ordering::Relaxed);
    file.write_at(&mut [IoSlice::new(b"x")], 0).unwrap();
    file.sync().unwrap();
    assert_eq!(disk.descriptors.reopened.load(Ordering::Relaxed), before, "it was open all along");
    file.hold_open(false).unwrap();
    assert!(other_files.iter().all(|other| all(&**other).is_empty()));
    assert_eq!(all(&*file), b"x");
    assert!(disk.descriptors.reopened.load(Ordering::Relaxed) > before, "it was closed");
}

/// A failed write is withdrawn from such a file: that must not depend on a descriptor.
#[test]
fn a_file_that_is_to_be_held_open_is_opened_at_once() {
    let scratch = ScratchDirectory::new("held-at-once");
    let disk = scratch.disk(1);
    let file = disk.create("held").unwrap();
    let other_files: Vec<_> = (0..10).map(|nth| disk.create(&nth.to_string()).unwrap()).collect();
    assert!(other_files.iter().all(|other| all(&**other).is_empty()));
    let before = disk.descriptors.reopened.load(Ordering::Relaxed);
    file.hold_open(true).unwrap();
    let opened = disk.descriptors.reopened.load(Ordering::Relaxed) - before;
    assert_eq!(opened, 1, "others have closed it");
}

/// The kernel may forget that a closed file could not be written.
#[test]
fn f16_a_file_that_was_written_and_not_synced_stays_open() {
    let scratch = ScratchDirectory::new("dirty");
    let disk = scratch.disk(2);
    let dirty = disk.create("dirty").unwrap();
    dirty.write_at(&mut [IoSlice::new(b"a")], 0).unwrap();
    let create_all = |disk: &RealDisk, names: Range<u32>| {
        names.map(|nth| disk.create(&nth.to_string()).unwrap()).collect::<Vec<_>>()
    };
    let first = create_all(&disk, 0..10);
    let is_open = || {
        let links = fs::read_dir("/proc/self/fd").unwrap();
        let mut targets = links.filter_map(|link| fs::read_link(link.ok()?.path()).ok());
        targets.any(|target| target == scratch.0.join("dirty"))
    };
    assert!(is_open());
    dirty.sync().unwrap();
    let second = create_all(&disk, 10..20);
    assert!(!is_open(), "it was synced");
    assert_eq!((all(&*dirty), first.len() + second.len()), (b"a".to_vec(), 20));
}

#[test]
fn a_file_that_was_replaced_from_outside_is_not_read_as_the_one_that_is_held() {
    let scratch = ScratchDirectory::new("outside");
    let disk = scratch.disk(1);
    let file = disk.create("a").unwrap();
    let _other = disk.create("b").unwrap();
    fs::write(scratch.0.join("c"), "other").unwrap();
    fs::rename(scratch.0.join("c"), scratch.0.join("a")).unwrap();
    let error = file.length().unwrap_err().to_string();
    assert!(error.contains("replaced from outside"), "{error}");
}

/// Readers of files come and go while others make, remove and rename files.
#[test]
fn readers_keep_what_they_hold_while_names_go_and_come() {
    let scratch = ScratchDirectory::new("threads");
    let disk = Arc::new(scratch.disk(3));
    let make = |name: &str, byte: u8| {
        let file = disk.create(name).unwrap();
        file.write_at(&mut [IoSlice::new(&[byte; 5000])], 0).unwrap();
        file.sync().unwrap();
        file
    };
    let files: Vec<_> = (0..12_u8).map(|nth| (nth, make(&nth.to_string(), nth))).collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 0..400 {
                    let (byte, file) = &files[round % 12];
                    assert!(all(&**file) == [*byte; 5000]);
                }
            });
        }
        scope.spawn(|| {
            for nth in 0..12_u8 {
                let (name, new) = (nth.to_string(), format!("{nth}.new"));
                disk.remove(&name).unwrap();
                drop(make(&new, 99));
                disk.rename(&new, &name).unwrap();
            }
        });
    });
    for (byte, file) in &files {
        assert!(all(&**file) == [*byte; 5000]);
        assert!(all(&*disk.open(&byte.to_string()).unwrap()) == [99; 5000]);
    }
}

#[derive(Clone, Debug)]
enum DiskStep {
    Create(u8),
    Open(u8),
    Write(usize, u8),
    Sync(usize),
    Remove(u8),
    Rename(u8, u8),
    Drop(usize),
}

fn steps() -> impl Strategy<Value = Vec<DiskStep>> {
    let step = prop_oneof![
        (0..6_u8).prop_map(DiskStep::Create),
        (0..6_u8).prop_map(DiskStep::Open),
        (any::<usize>(), any::<u8>()).prop_map(|(which, byte)| DiskStep::Write(which, byte)),
        any::<usize>().prop_map(DiskStep::Sync),
        (0..6_u8).prop_map(DiskStep::Remove),
        (0..6_u8, 0..6_u8).prop_map(|(from, to)| DiskStep::Rename(from, to)),
        any::<usize>().prop_map(DiskStep::Drop),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_held_file_is_readable_whatever_becomes_of_its_name(
        steps in steps(), open_max in 1_usize..4,
    ) {
        let scratch = ScratchDirectory::new("model");
        let disk = scratch.disk(open_max);
        // By name, and by holder: the number of the content.
        let mut names: HashMap<u8, usize> = HashMap::new();
        let mut contents: Vec<Vec<u8>> = Vec::new();
        let mut held: Vec<(usize, Arc<dyn DiskFile>)> = Vec::new();
        let name = |nth: u8| format!("f{nth}");
        for step in steps {
            match step {
                DiskStep::Create(nth) => {
                    let made = disk.create(&name(nth));
                    prop_assert_eq!(made.is_ok(), !names.contains_key(&nth));
                    if let Ok(file) = made {
                        names.insert(nth, contents.len());
                        held.push((contents.len(), file));
                        contents.push(Vec::new());
                    }
                }
                DiskStep::Open(nth) => {
                    let opened = disk.open(&name(nth));
                    prop_assert_eq!(opened.is_ok(), names.contains_key(&nth));
                    held.extend(opened.ok().map(|file| (names[&nth], file)));
                }
                DiskStep::Write(which, byte) if !held.is_empty() => {
                    let (content, file) = &held[which % held.len()];
                    let end = contents[*content].len() as u64;
                    file.write_at(&mut [IoSlice::new(&[byte; 3])], end).unwrap();
                    contents[*content].extend([byte; 3]);
                }
                DiskStep::Sync(which) if !held.is_empty() => {
                    held[which % held.len()].1.sync().unwrap();
                }
                DiskStep::Remove(nth) => {
                    let is_there = names.remove(&nth).is_some();
                    prop_assert_eq!(disk.remove(&name(nth)).is_ok(), is_there);
                }
                DiskStep::Rename(from, to) => {
                    let renamed = disk.rename(&name(from), &name(to));
                    prop_assert_eq!(renamed.is_ok(), names.contains_key(&from));
                    if let Some(content) = names.remove(&from) {
                        names.insert(to, content);
                    }
                }
                DiskStep::Drop(which) if !held.is_empty() => {
                    held.swap_remove(which % held.len());
                }
                _ => {}
            }
            for (content, file) in &held {
                prop_assert_eq!(&all(&**file), &contents[*content]);
            }
        }
        for (nth, content) in &names {
            prop_assert_eq!(&all(&*disk.open(&name(*nth)).unwrap()), &contents[*content]);
        }
    }
}

/// A backup may be a link to a file, in which the server reclaims space later.
#[test]
fn no_hole_is_punched_in_a_file_with_another_link() {
    let scratch = ScratchDirectory::new("linked");
    let disk = scratch.disk(8);
    let file = disk.create("segment").unwrap();
    let bytes = vec![7; 8192];
    file.write_at(&mut [IoSlice::new(&bytes)], 0).unwrap();
    let link = scratch.0.join("backup");
    fs::hard_link(scratch.0.join("segment"), &link).unwrap();
    file.punch_hole(0..4096).unwrap();
    assert!(fs::read(&link).unwrap() == bytes, "the link has what it had");
    fs::remove_file(&link).unwrap();
    file.punch_hole(0..4096).unwrap();
    assert!(all(&*file) == [vec![0; 4096], vec![7; 4096]].concat(), "the space is free");
}
