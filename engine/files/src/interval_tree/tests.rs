use std::cell::{Cell, RefCell};
use std::ops::Range;

use hlc::{Hlc, SysTime};
use storage::LogId;
use testkit::rng::SeededRng;

use super::*;

/// The log of a file, in memory.
#[derive(Default)]
struct TreeTestLog {
    entries: RefCell<Vec<TreeTestEntry>>,
    loads: Cell<usize>,
    loaded_bytes: Cell<usize>,
}

enum TreeTestEntry {
    Write { start: u64, data: Vec<u8> },
    Truncate { length: u64 },
    Punch { start: u64, end: u64 },
    Checkpoint(Vec<u8>),
}

impl NodeSource for TreeTestLog {
    fn load(&self, id: NodeId) -> Result<Arc<TreeNode>, IntervalTreeError> {
        self.loads.set(self.loads.get() + 1);
        self.loaded_bytes.set(self.loaded_bytes.get() + id.length as usize);
        let entries = self.entries.borrow();
        let Some(TreeTestEntry::Checkpoint(bytes)) = entries.get(id.entry.0 as usize) else {
            return Err(IntervalTreeError::Corrupt {
                why: "no checkpoint",
                entry: id.entry,
                at: id.at,
            });
        };
        let at = id.at as usize;
        let outside = IntervalTreeError::Corrupt {
            why: "outside of its checkpoint",
            entry: id.entry,
            at: id.at,
        };
        let bytes = bytes.get(at..at + id.length as usize).ok_or(outside)?;
        TreeNode::decode(bytes, id).map(Arc::new)
    }
}

impl TreeTestLog {
    fn push(&self, entry: TreeTestEntry) -> Offset {
        let mut entries = self.entries.borrow_mut();
        entries.push(entry);
        Offset(entries.len() as u64 - 1)
    }

    fn end(&self) -> usize {
        self.entries.borrow().len()
    }

    fn write(&self, fig: &mut FileIntervalTree, start: u64, data: Vec<u8>) {
        let length = data.len() as u32;
        let offset = self.push(TreeTestEntry::Write { start, data });
        fig.write(self, start, length, offset).unwrap();
    }

    fn truncate(&self, fig: &mut FileIntervalTree, length: u64) {
        self.push(TreeTestEntry::Truncate { length });
        fig.truncate(self, length).unwrap();
    }

    fn checkpoint(&self, fig: &mut FileIntervalTree) -> usize {
        let checkpoint = fig.checkpoint(Offset(self.end() as u64), Hlc::at(SysTime(1)));
        let bytes = checkpoint.bytes.len();
        let offset = self.push(TreeTestEntry::Checkpoint(checkpoint.bytes.clone()));
        checkpoint.mark_saved(offset);
        fig.release_saved();
        bytes
    }

    /// The file after its first `count` entries: the newest checkpoint and what follows it.
    fn open(&self, count: usize, fanout: usize) -> FileIntervalTree {
        let newest = self.entries.borrow()[..count].iter().enumerate().rev().find_map(|(at, e)| {
            let TreeTestEntry::Checkpoint(bytes) = e else { return None };
            let root = &bytes[bytes.len() - ROOT_BYTES..];
            Some(CheckpointRoot::decode(root, Offset(at as u64), bytes.len()).unwrap())
        });
        let mut fig =
            newest.as_ref().map_or_else(FileIntervalTree::new, FileIntervalTree::from_checkpoint);
        fig.fanout = fanout;
        for at in newest.map_or(0, |root| root.covers.0 as usize)..count {
            match &self.entries.borrow()[at] {
                TreeTestEntry::Write { start, data } => {
                    fig.write(self, *start, data.len() as u32, Offset(at as u64)).unwrap();
                }
                TreeTestEntry::Truncate { length } => fig.truncate(self, *length).unwrap(),
                TreeTestEntry::Punch { start, end } => fig.punch_hole(self, *start, *end).unwrap(),
                TreeTestEntry::Checkpoint(_) => {}
            }
        }
        fig
    }

    fn bytes(&self, fig: &FileIntervalTree, range: Range<u64>, pieces_max: usize) -> Vec<u8> {
        let (mut bytes, mut from) = (Vec::new(), range.start);
        let end = range.end.min(fig.length());
        while from < end {
            let pieces = fig.read(self, from, end, pieces_max).unwrap();
            assert!(!pieces.is_empty(), "a read of what is there gives something");
            for piece in pieces {
                assert_eq!(piece.start, from, "pieces have no gaps");
                let length = (piece.end - piece.start) as usize;
                match piece.source {
                    ExtentSource::Hole => bytes.resize(bytes.len() + length, 0),
                    ExtentSource::Entry { offset, skip } => {
                        let entries = self.entries.borrow();
                        let TreeTestEntry::Write { data, .. } = &entries[offset.0 as usize] else {
                            panic!("an extent names a write: {offset:?}");
                        };
                        bytes.extend_from_slice(&data[skip as usize..skip as usize + length]);
                    }
                }
                from = piece.end;
            }
        }
        bytes
    }
}

fn shape(link: &NodeLink) -> String {
    let NodeLink::InMemory(node) = link else { return "-".to_owned() };
    let extents: Vec<String> =
        node.extents.iter().map(|e| format!("{}-{}", e.start, e.end - 1)).collect();
    let below: Vec<String> = node.children.iter().map(shape).collect();
    let below = if below.is_empty() { String::new() } else { format!(" [{}]", below.join(" | ")) };
    extents.join(" ") + &below
}

/// The paper's Figure 4, in its order 2: nodes of at most four extents.
#[test]
fn g4_figure_4_number_by_number() {
    let (entries, mut fig) = (TreeTestLog::default(), FileIntervalTree::with_fanout(4));
    for nth in 0..11 {
        entries.write(&mut fig, nth * 50, vec![nth as u8; 50]);
    }
    let a = "100-149 250-299 400-449 [0-49 50-99 | 150-199 200-249 | 300-349 350-399 | 450-499 500-549]";
    assert_eq!(shape(&fig.root), a);
    let before = fig.clone();

    // (b): the root's entries that the write overlaps are replaced by one, and the subtree between
    // them goes. (c): what is left of the first of them is inserted in the leaf on the left.
    entries.write(&mut fig, 120, vec![0xc; 200]);
    let c = "120-319 400-449 [0-49 50-99 100-119 | 300-349 350-399 | 450-499 500-549]";
    assert_eq!(shape(&fig.root), c);

    // (d): the leaf is pruned to the valid interval, from 320 on, when it is written.
    entries.write(&mut fig, 340, vec![0xd; 30]);
    let d = "120-319 400-449 [0-49 50-99 100-119 | 320-339 340-369 370-399 | 450-499 500-549]";
    assert_eq!(shape(&fig.root), d);
    assert_eq!(shape(&before.root), a, "an older version is not disturbed");
    let row = |at: u64| entries.bytes(&fig, at..at + 1, 9)[0];
    assert_eq!(
        [0, 119, 120, 319, 320, 339, 340, 369, 370, 549].map(row),
        [0, 2, 0xc, 0xc, 6, 6, 0xd, 0xd, 7, 10]
    );
}

/// The paper's text has the right continuation where x < j. That makes one where the write reaches
/// beyond the last extent that it overlaps.
#[test]
fn gb_a_right_continuation_exists_only_where_the_write_ends_first() {
    let (entries, mut fig) = (TreeTestLog::default(), FileIntervalTree::with_fanout(4));
    entries.write(&mut fig, 10, vec![1; 10]);
    entries.write(&mut fig, 15, vec![2; 10]);
    assert_eq!(shape(&fig.root), "10-14 15-24", "x = 15 < j = 19, and nothing is on the right");
    entries.write(&mut fig, 17, vec![3; 2]);
    assert_eq!(shape(&fig.root), "10-14 15-16 17-18 19-24", "y = 18 < j = 24");
    let mut expected = [[0; 10], [1; 10]].concat();
    expected[15..].fill(2);
    expected.extend([2; 5]);
    expected[17..19].fill(3);
    assert_eq!(entries.bytes(&fig, 0..99, 9), expected);
}

/// One random history: every operation is mirrored in a plain array, the tree is reopened in
/// between, and earlier moments are read back from roots and what follows them. Some lie at the
/// maximum length of a file.
fn fuzz(seed: u64, operations: usize) {
    let mut random = SeededRng::new(seed);
    let fanout = [2, 3, 4, 5, 8, 32][random.below(6) as usize];
    let (reach, length_max) = (1 + random.below(4000), 1 + random.below(600));
    let base = if random.below(4) == 0 { FILE_BYTES_MAX - reach - length_max } else { 0 };
    let (entries, mut fig, mut model) =
        (TreeTestLog::default(), FileIntervalTree::with_fanout(fanout), Vec::<u8>::new());
    entries.truncate(&mut fig, base);
    let mut moments: Vec<(usize, FileIntervalTree, Vec<u8>)> = Vec::new();
    for nth in 0..operations {
        match random.below(20) {
            0 => {
                let length = random.below(reach + length_max);
                entries.truncate(&mut fig, base + length);
                model.resize(length as usize, 0);
            }
            1 => {
                let start = random.below(reach);
                let end = start + random.below(length_max);
                entries.push(TreeTestEntry::Punch { start: base + start, end: base + end });
                fig.punch_hole(&entries, base + start, base + end).unwrap();
                let end = model.len().min(end as usize);
                model[(start as usize).min(end)..end].fill(0);
            }
            2 => drop(entries.checkpoint(&mut fig)),
            3 => fig = entries.open(entries.end(), fanout),
            4 => moments.push((entries.end(), fig.clone(), model.clone())),
            _ => {
                let start = random.below(reach);
                let data = vec![nth as u8 | 1; 1 + random.below(length_max) as usize];
                let end = start as usize + data.len();
                model.resize(model.len().max(end), 0);
                model[start as usize..end].copy_from_slice(&data);
                entries.write(&mut fig, base + start, data);
            }
        }
        assert_eq!(fig.length(), base + model.len() as u64);
        let from = random.below(reach + 2 * length_max);
        let to = from + random.below(2 * length_max);
        let expected = (from as usize).min(model.len())..(to as usize).min(model.len());
        let pieces_max = 1 + random.below(9) as usize;
        let read = entries.bytes(&fig, base + from..base + to, pieces_max);
        assert_eq!(read, model[expected], "operation {nth}, bytes {from}..{to} behind {base}");
    }
    for (count, version, model) in moments {
        assert_eq!(entries.bytes(&version, base..u64::MAX, 99), model, "a version that was held");
        let fig = entries.open(count, fanout);
        let reopened = entries.bytes(&fig, base..u64::MAX, 99);
        assert_eq!(reopened, model, "reopened as of entry {count}");
    }
    assert_eq!(entries.bytes(&fig, base..u64::MAX, 99), model);
    let depth = fig.depth(&entries).unwrap();
    assert!(depth <= 12, "{operations} operations make no tree of depth {depth}");
}

/// GDPFS did not mark the ancestors of changed nodes: 248 of 300 such histories read back wrong.
#[test]
fn g3_g4_g6_ga_300_histories_of_300_operations_match_a_plain_array_reopened_in_between() {
    for seed in 0..300 {
        println!("seed {seed}");
        fuzz(seed, 300);
    }
}

/// `cargo test --release -p storage million -- --ignored`
#[test]
#[ignore = "takes minutes"]
fn g3_g4_g6_ga_a_million_operations_match_a_plain_array() {
    for seed in 300..20_300 {
        fuzz(seed, 50 + seed as usize % 300);
    }
}

/// A lookup passes few nodes: by the number of entries, and, where they overlap, by the number of
/// bytes.
#[test]
fn g5_a_lookup_passes_a_logarithm_of_the_smaller_of_entries_and_bytes() {
    for (writes, reach, depth_max) in
        [(1000, 64 << 20, 3), (10_000, 64 << 20, 4), (50_000, 64 << 20, 5), (50_000, 500, 3)]
    {
        let (entries, mut fig, mut random) =
            (TreeTestLog::default(), FileIntervalTree::new(), SeededRng::new(5));
        for _ in 0..writes {
            let offset = entries.push(TreeTestEntry::Truncate { length: 0 });
            let (start, length) = (random.below(reach), 1 + random.below(100) as u32);
            fig.write(&entries, start, length, offset).unwrap();
        }
        entries.checkpoint(&mut fig);
        let depth = fig.depth(&entries).unwrap();
        assert!(depth <= depth_max, "{writes} writes to {reach} bytes: depth {depth}");
        entries.loads.set(0);
        for _ in 0..100 {
            let at = random.below(reach);
            fig.read(&entries, at, at + 1, 1).unwrap();
        }
        assert!(entries.loads.get() <= 100 * depth, "{} nodes", entries.loads.get());
    }
}

/// The longest possible entries, at the maximum length of a file.
#[test]
fn extents_of_four_gigabytes_are_cut_where_they_should_be() {
    let (entries, mut fig) = (TreeTestLog::default(), FileIntervalTree::new());
    let (length, start) = (u32::MAX, FILE_BYTES_MAX - u64::from(u32::MAX));
    fig.write(&entries, start, length, Offset(0)).unwrap();
    entries.push(TreeTestEntry::Truncate { length: 0 });
    let hole = FILE_BYTES_MAX - 2;
    fig.punch_hole(&entries, hole, FILE_BYTES_MAX - 1).unwrap();
    fig.punch_hole(&entries, 0, start + 5).unwrap();
    entries.checkpoint(&mut fig);
    assert_eq!(fig.length(), FILE_BYTES_MAX);
    let entry = |skip| ExtentSource::Entry { offset: Offset(0), skip };
    let expected = [
        Extent { start: 0, end: start + 5, source: ExtentSource::Hole },
        Extent { start: start + 5, end: hole, source: entry(5) },
        Extent { start: hole, end: hole + 1, source: ExtentSource::Hole },
        Extent { start: hole + 1, end: FILE_BYTES_MAX, source: entry(length - 1) },
    ];
    assert_eq!(fig.read(&entries, 0, u64::MAX, 9).unwrap(), expected);
    fig.truncate(&entries, start + 6).unwrap();
    fig.truncate(&entries, FILE_BYTES_MAX).unwrap();
    let end = fig.read(&entries, start, u64::MAX, 9).unwrap();
    assert_eq!(end[1], Extent { start: start + 5, end: start + 6, source: entry(5) });
    assert_eq!(end[2].source, ExtentSource::Hole);
}

#[test]
fn g6_a_checkpoint_holds_what_changed_and_its_ancestors_and_nothing_else() {
    let (entries, mut fig) = (TreeTestLog::default(), FileIntervalTree::new());
    for nth in 0..100_000 {
        entries.write(&mut fig, nth * 200, vec![1; 100]);
    }
    let everything = entries.checkpoint(&mut fig);
    let depth = fig.depth(&entries).unwrap();
    entries.write(&mut fig, 50_000 * 200, vec![2; 10]);
    let checkpoint = fig.checkpoint(Offset(entries.end() as u64), Hlc::ZERO);
    assert_eq!(checkpoint.node_count(), depth, "one leaf, and its ancestors");
    let difference = entries.checkpoint(&mut fig);
    assert!(difference * 100 < everything, "{difference} bytes beside {everything}");
    assert_eq!(
        fig.memory_bytes(),
        FileIntervalTree::new().memory_bytes(),
        "nothing is held that was saved"
    );
    // A checkpoint without new nodes is only a root.
    assert_eq!(entries.checkpoint(&mut fig), ROOT_BYTES);
}

#[test]
fn g7_a_byte_of_a_large_file_is_found_cold_in_a_few_kilobytes() {
    let (entries, mut fig) = (TreeTestLog::default(), FileIntervalTree::new());
    // 1 GiB in writes of 64 KiB, all over the place; their content does not matter.
    let mut random = SeededRng::new(7);
    for nth in 0..32_768_u64 {
        let start = random.below(16_384) * 65_536;
        let offset = entries.push(TreeTestEntry::Truncate { length: 0 });
        fig.write(&entries, start, 65_536, offset).unwrap();
        if nth % 256 == 255 {
            entries.checkpoint(&mut fig);
        }
    }
    let fig = FileIntervalTree { fanout: FANOUT, ..fig };
    entries.loads.set(0);
    entries.loaded_bytes.set(0);
    assert_eq!(fig.read(&entries, 500 << 20, (500 << 20) + 1, 9).unwrap().len(), 1);
    let (loads, bytes) = (entries.loads.get(), entries.loaded_bytes.get());
    assert!(loads <= 4 && bytes <= 4096, "{loads} nodes, {bytes} bytes");
}

#[test]
fn a_version_is_taken_while_its_checkpoint_is_on_its_way() {
    let (entries, mut fig) = (TreeTestLog::default(), FileIntervalTree::with_fanout(4));
    for nth in 0..40 {
        entries.write(&mut fig, nth * 10, vec![nth as u8; 10]);
    }
    let checkpoint = fig.checkpoint(Offset(entries.end() as u64), Hlc::ZERO);
    // Before it is saved, there is another write.
    entries.write(&mut fig, 35, vec![99; 10]);
    let offset = entries.push(TreeTestEntry::Checkpoint(checkpoint.bytes.clone()));
    checkpoint.mark_saved(offset);
    fig.release_saved();
    let mut expected: Vec<u8> = (0..400).map(|at| (at / 10) as u8).collect();
    expected[35..45].fill(99);
    assert_eq!(entries.bytes(&fig, 0..400, 99), expected);
    assert_eq!(entries.bytes(&entries.open(entries.end(), 4), 0..400, 99), expected);
    entries.checkpoint(&mut fig);
    assert_eq!(entries.bytes(&entries.open(entries.end(), 4), 0..400, 99), expected);
}

/// Reads everything that a checkpoint's root leads to.
fn walk(entries: &TreeTestLog, at: usize) -> Result<(), IntervalTreeError> {
    let root = {
        let list = entries.entries.borrow();
        let TreeTestEntry::Checkpoint(bytes) = &list[at] else { panic!("a checkpoint") };
        let root = &bytes[bytes.len().saturating_sub(ROOT_BYTES)..];
        CheckpointRoot::decode(root, Offset(at as u64), bytes.len())?
    };
    FileIntervalTree::from_checkpoint(&root).depth(entries).map(drop)
}

#[test]
fn every_flipped_byte_of_a_checkpoint_is_noticed_and_every_cut_off_one() {
    let (entries, mut fig) = (TreeTestLog::default(), FileIntervalTree::with_fanout(4));
    for nth in 0..60 {
        entries.write(&mut fig, nth * 10, vec![1; 10]);
    }
    fig.punch_hole(&entries, 100, 205).unwrap();
    entries.checkpoint(&mut fig);
    let at = entries.end() - 1;
    walk(&entries, at).unwrap();
    let original = match &entries.entries.borrow()[at] {
        TreeTestEntry::Checkpoint(bytes) => bytes.clone(),
        _ => unreachable!(),
    };
    for nth in 0..original.len() {
        for mask in [1, 0x80, 0xff] {
            let mut bytes = original.clone();
            bytes[nth] ^= mask;
            entries.entries.borrow_mut()[at] = TreeTestEntry::Checkpoint(bytes);
            assert!(walk(&entries, at).is_err(), "byte {nth} flipped by {mask:#x}");
        }
        let entry = TreeTestEntry::Checkpoint(original[..nth].to_vec());
        entries.entries.borrow_mut()[at] = entry;
        assert!(walk(&entries, at).is_err(), "cut off at {nth}");
    }
}

/// The bytes on disk, fixed: `docs/FORMAT.md`.
#[test]
fn a_checkpoint_is_encoded_as_the_format_says() {
    let mut fig = FileIntervalTree::with_fanout(2);
    let none = TreeTestLog::default();
    fig.write(&none, 5, 300, Offset(7)).unwrap();
    fig.write(&none, 10, 4, Offset(9)).unwrap();
    let bytes = fig.checkpoint(Offset(10), Hlc::from_bits(0x0102)).bytes;
    // 5..10 of entry 7; 10..14 of entry 9; 14..305 of entry 7 from its byte 9. The middle one is
    // above the others, and the links say "here", where, and how long.
    let left = [243, 165, 71, 250, 1 << 1, 5, 5, 0, 14];
    let right = [178, 210, 237, 252, 1 << 1, 14, 0xa3, 2, 9 << 1, 14];
    let above = [233, 19, 73, 224, 1 << 1 | 1, 10, 4, 0, 18, 1, 0, 9, 1, 9, 10];
    let mut expected = [&left[..], &right, &above].concat();
    for number in [10_u64, 305, 0x0102, 1] {
        expected.extend(number.to_le_bytes());
    }
    for number in [19_u32, 15, 3, 1, 0] {
        expected.extend(number.to_le_bytes());
    }
    expected.extend([126, 49, 172, 17]);
    assert_eq!(bytes, expected);
}

#[test]
fn bytes_from_outside_make_no_node_and_no_panic() {
    let mut random = SeededRng::new(3);
    for _ in 0..20_000 {
        let mut bytes: Vec<u8> = (0..random.below(40)).map(|_| random.next_u64() as u8).collect();
        let id = NodeId { entry: Offset(5), at: 0, length: bytes.len() as u32 };
        // With the right checksum, so that the rest is decoded.
        if bytes.len() >= 4 {
            let crc = crc32c::crc32c_append(crc32c::crc32c(&0u32.to_le_bytes()), &bytes[4..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
        }
        if let Ok(node) = TreeNode::decode(&bytes, id) {
            let sorted = node.extents.is_sorted_by(|a, b| a.end <= b.start);
            assert!(sorted && node.extents.iter().all(|extent| extent.start < extent.end));
            assert!(node.children.is_empty() || node.children.len() == node.extents.len() + 1);
        }
    }
}

#[test]
fn the_cache_keeps_to_its_budget_and_a_node_that_is_asked_for_stays() {
    let cache = NodeCache::new(10_000);
    let id = |at| NodeId { entry: Offset(1), at, length: 9 };
    let node = || {
        let extent = Extent { start: 0, end: 9, source: ExtentSource::Hole };
        Arc::new(TreeNode::new(vec![extent; 32], Vec::new()))
    };
    cache.put(LogId(1), id(0), node());
    for at in 1..1000 {
        cache.put(LogId(1), id(at), node());
        assert!(cache.get(LogId(1), id(0)).is_some(), "asked for each time, it stays");
        assert!(cache.bytes() <= 10_000, "{}", cache.bytes());
    }
    assert!(cache.get(LogId(1), id(1)).is_none());
    assert!(cache.get(LogId(2), id(0)).is_none(), "another file's");
}

/// The measurement that [`FANOUT`] was chosen by: `cargo test --release -p storage fanout --
/// --ignored --nocapture`.
#[test]
#[ignore = "prints a measurement"]
#[allow(clippy::disallowed_methods, reason = "it measures")]
fn fanout() {
    for fanout in [4, 8, 16, 32, 64, 128] {
        let (entries, mut fig, mut random) =
            (TreeTestLog::default(), FileIntervalTree::with_fanout(fanout), SeededRng::new(11));
        let (mut saved, mut spent) = (0, std::time::Duration::ZERO);
        let cache = NodeCache::new(64 << 20);
        let source = CachedNodeSource { entries: &entries, cache: &cache };
        for nth in 1..=100_000 {
            let start = random.below((64 << 20) - 100);
            let offset = entries.push(TreeTestEntry::Truncate { length: 0 });
            let begun = std::time::Instant::now();
            fig.write(&source, start, 100, offset).unwrap();
            spent += begun.elapsed();
            if nth % 256 == 0 {
                saved += entries.checkpoint(&mut fig);
            }
        }
        entries.checkpoint(&mut fig);
        entries.loads.set(0);
        entries.loaded_bytes.set(0);
        for _ in 0..10_000 {
            let start = random.below(64 << 20);
            fig.read(&entries, start, start + 1, 1).unwrap();
        }
        println!(
            "| {fanout} | {:.2} | {} | {:.1} | {} |",
            spent.as_secs_f64() * 10.0,
            saved / 100_000,
            entries.loads.get() as f64 / 10_000.0,
            entries.loaded_bytes.get() / 10_000,
        );
    }
}

struct CachedNodeSource<'a> {
    entries: &'a TreeTestLog,
    cache: &'a NodeCache,
}

impl NodeSource for CachedNodeSource<'_> {
    fn load(&self, id: NodeId) -> Result<Arc<TreeNode>, IntervalTreeError> {
        if let Some(node) = self.cache.get(LogId(0), id) {
            return Ok(node);
        }
        let node = self.entries.load(id)?;
        self.cache.put(LogId(0), id, Arc::clone(&node));
        Ok(node)
    }
}
