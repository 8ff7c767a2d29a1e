//! The bound on stable storage, below which stamps and promises are given out.
//!
//! It is one small file of two slots, written in turn, so that a write that fails leaves the other.
//! The file also holds how far the wall clock was confirmed, so that a restart neither ends a doubt
//! nor loses a confirmation.

use hlc::{Hlc, SysTime, WallMark};

use crate::disk::Disk;
use crate::error::StorageError;
use crate::storage_file::StorageFile;

/// The name of the bound file, in the journal's directory.
pub const BOUND_FILE: &str = "bound";
const MAGIC: &[u8; 8] = b"FFBOUND2";
const SLOT_BYTES: usize = 64;
const SLOT_STRIDE: u64 = 4096;

/// The content of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoundRecord {
    /// The sequence number of the write; the larger of two slots is the newer.
    pub sequence: u64,
    /// No stamp and no promise at or above it was given out.
    pub bound: Hlc,
    /// Everything in the journal below this position was on stable storage.
    pub synced_to: u64,
    /// True if the store was closed after this was written.
    pub clean: bool,
    /// The sequence of the manifest that was on stable storage: an older manifest is not the right
    /// one.
    pub manifest_sequence: u64,
    /// The time up to which the wall clock was confirmed.
    pub mark: WallMark,
}

impl BoundRecord {
    /// The bytes of a slot.
    pub fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.bound.bits().to_le_bytes());
        bytes[24..32].copy_from_slice(&self.synced_to.to_le_bytes());
        bytes[32] = u8::from(self.clean);
        bytes[33..41].copy_from_slice(&self.manifest_sequence.to_le_bytes());
        bytes[41] = u8::from(self.mark.is_confirmed);
        bytes[42..50].copy_from_slice(&self.mark.wall.0.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The bytes of a file with this one record.
    pub(crate) fn encode_file(&self) -> Vec<u8> {
        let mut bytes = vec![0; SLOT_STRIDE as usize + SLOT_BYTES];
        let at = (self.sequence % 2 * SLOT_STRIDE) as usize;
        bytes[at..at + SLOT_BYTES].copy_from_slice(&self.encode());
        bytes
    }

    /// Decodes a slot; `None` if it is corrupt or was never written.
    pub fn decode(bytes: &[u8; SLOT_BYTES]) -> Option<BoundRecord> {
        let u64_at = |at: usize| {
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes of a slot"))
        };
        let crc = u32::from_le_bytes(bytes[60..].try_into().ok()?);
        (&bytes[..8] == MAGIC && crc == crc32c::crc32c(&bytes[..60])).then(|| BoundRecord {
            sequence: u64_at(8),
            bound: Hlc::from_bits(u64_at(16)),
            synced_to: u64_at(24),
            clean: bytes[32] != 0,
            manifest_sequence: u64_at(33),
            mark: WallMark { wall: SysTime(u64_at(42)), is_confirmed: bytes[41] != 0 },
        })
    }
}

pub struct BoundFile {
    file: StorageFile,
    newest: BoundRecord,
}

/// The reason the bound file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BoundError {
    /// A slot holds something that is not a bound. It lies within one sector, so a crash leaves
    /// either its old or its new content. So promises may rely on the lost content.
    #[error(
        "journal/bound is corrupt: promises about the past are not known any more; nothing was changed. If the wall clock was never set back, write {SLOT_BYTES} zeros over position {position}, and start again a minute later; else restore the whole data directory from a backup"
    )]
    Corrupt {
        /// The position of the slot in the file.
        position: u64,
    },
    /// It cannot be read.
    #[error("read journal/bound: {0}")]
    Storage(#[from] StorageError),
}

impl BoundFile {
    /// The newest record in the bound file; `None` if there is no file yet, or no record in it.
    ///
    /// # Errors
    /// [`BoundError`].
    pub fn read(disk: &dyn Disk) -> Result<Option<BoundRecord>, BoundError> {
        let Some(file) = StorageFile::open_if_exists(disk, BOUND_FILE)? else { return Ok(None) };
        let mut newest: Option<BoundRecord> = None;
        for (index, slot) in read_slots(&file)?.into_iter().enumerate() {
            match slot {
                BoundSlot::Empty => {}
                BoundSlot::Corrupt => {
                    return Err(BoundError::Corrupt { position: index as u64 * SLOT_STRIDE });
                }
                BoundSlot::Whole(bound)
                    if newest.is_none_or(|newest| newest.sequence < bound.sequence) =>
                {
                    newest = Some(bound);
                }
                BoundSlot::Whole(_) => {}
            }
        }
        Ok(newest)
    }

    /// The position in the file of a slot that is empty although it was written: two writes go to
    /// both slots.
    ///
    /// # Errors
    /// The disk fails.
    pub fn corrupt_slot(disk: &dyn Disk) -> Result<Option<u64>, StorageError> {
        let Some(file) = StorageFile::open_if_exists(disk, BOUND_FILE)? else { return Ok(None) };
        let slots = read_slots(&file)?;
        let is_second =
            |slot: &BoundSlot| matches!(slot, BoundSlot::Whole(bound) if bound.sequence >= 2);
        if !slots.iter().any(is_second) {
            return Ok(None);
        }
        let lost = slots.iter().position(|slot| *slot == BoundSlot::Empty);
        Ok(lost.map(|index| index as u64 * SLOT_STRIDE))
    }

    /// Opens or creates it; `newest` is the last record written.
    ///
    /// # Errors
    /// The disk fails.
    pub fn open(disk: &dyn Disk, newest: Option<BoundRecord>) -> Result<BoundFile, StorageError> {
        let file = match StorageFile::open_if_exists(disk, BOUND_FILE)? {
            Some(file) => file,
            None => {
                let file = StorageFile::create(disk, BOUND_FILE)?;
                // Then a bound takes no more space, however full the disk is.
                file.write_at(&[0; SLOT_STRIDE as usize + SLOT_BYTES], 0)?;
                disk.sync_directory()?;
                file
            }
        };
        file.hold_open(true)?;
        Ok(BoundFile { file, newest: newest.unwrap_or_default() })
    }

    /// The record that was written last.
    pub(super) fn newest(&self) -> BoundRecord {
        self.newest
    }

    /// Puts `next` on stable storage, as the write after the newest.
    pub(super) fn write(&mut self, next: BoundRecord) -> Result<(), StorageError> {
        let next = BoundRecord { sequence: self.newest.sequence + 1, ..next };
        assert!(next.bound >= self.newest.bound, "the persisted bound never falls");
        let position = (next.sequence % 2) * SLOT_STRIDE;
        let written = self.file.write_at(&next.encode(), position);
        let synced = written.and_then(|()| self.file.sync());
        synced.map_err(|error| error.during("write the bound"))?;
        self.newest = next;
        Ok(())
    }

    /// Records that the store was closed. The bound in force may lie ahead of every stamp; a clean
    /// end takes it back, so that the next start need not wait. It is the one safe fall: nothing at
    /// or above the new bound was given out, and nothing will be.
    pub(super) fn close(&mut self, last: BoundRecord) -> Result<(), StorageError> {
        self.newest.bound = self.newest.bound.min(last.bound);
        self.write(BoundRecord { clean: true, ..last })
    }
}

/// The content of a slot of a bound file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundSlot {
    /// Never written.
    Empty,
    Whole(BoundRecord),
    /// Something else.
    Corrupt,
}

/// Both slots of a bound file.
///
/// # Errors
/// The disk fails.
pub fn read_slots(file: &StorageFile) -> Result<[BoundSlot; 2], StorageError> {
    let mut slots = [BoundSlot::Empty; 2];
    for (index, slot) in slots.iter_mut().enumerate() {
        let mut bytes = [0; SLOT_BYTES];
        file.read_at(&mut bytes, index as u64 * SLOT_STRIDE)?;
        *slot = match BoundRecord::decode(&bytes) {
            Some(bound) => BoundSlot::Whole(bound),
            None if bytes == [0; SLOT_BYTES] => BoundSlot::Empty,
            None => BoundSlot::Corrupt,
        };
    }
    Ok(slots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{DiskFault, MemoryDisk};

    fn bound(ms: u64) -> BoundRecord {
        BoundRecord { bound: Hlc::at(SysTime(ms)), ..BoundRecord::default() }
    }

    /// A file that was written this often: the n-th write says n ms.
    fn written(times: u64) -> (MemoryDisk, BoundFile) {
        let disk = MemoryDisk::new();
        let mut file = BoundFile::open(&disk, None).unwrap();
        for ms in 1..=times {
            file.write(bound(ms)).unwrap();
        }
        (disk, file)
    }

    fn newest(disk: &MemoryDisk) -> Option<BoundRecord> {
        BoundFile::read(disk).unwrap()
    }

    #[test]
    fn a_slot_says_what_was_written_and_nothing_once_a_bit_has_flipped() {
        for (clean, is_confirmed) in [(true, false), (false, true)] {
            let bound = BoundRecord {
                sequence: u64::MAX - 1,
                bound: Hlc::from_bits(u64::MAX - 2),
                synced_to: u64::MAX - 3,
                clean,
                manifest_sequence: u64::MAX - 4,
                mark: WallMark { wall: SysTime(u64::MAX - 5), is_confirmed },
            };
            let bytes = bound.encode();
            assert_eq!(BoundRecord::decode(&bytes), Some(bound));
            for bit in 0..SLOT_BYTES * 8 {
                let mut flipped = bytes;
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(BoundRecord::decode(&flipped), None, "bit {bit}");
            }
        }
    }

    /// As a slot of another version would be.
    #[test]
    fn a_slot_of_another_kind_is_no_bound_though_its_checksum_is_right() {
        let mut bytes = bound(7).encode();
        bytes[7] += 1;
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(BoundRecord::decode(&bytes), None);
    }

    #[test]
    fn of_two_slots_the_one_that_was_written_last_counts() {
        for times in 1..=4 {
            let (disk, file) = written(times);
            let expected = BoundRecord { sequence: times, ..bound(times) };
            assert_eq!((newest(&disk), file.newest()), (Some(expected), expected));
            // The next one that opens it continues from there.
            let mut again = BoundFile::open(&disk, newest(&disk)).unwrap();
            again.write(bound(100)).unwrap();
            assert_eq!(newest(&disk), Some(BoundRecord { sequence: times + 1, ..bound(100) }));
        }
    }

    #[test]
    fn a_new_file_holds_nothing_and_has_room_for_both_slots() {
        let disk = MemoryDisk::new();
        assert_eq!(newest(&disk), None, "there is none");
        BoundFile::open(&disk, None).unwrap();
        let lost_power = disk.after_crash(|_| 0);
        assert_eq!(lost_power.names(), [BOUND_FILE]);
        assert_eq!((newest(&disk), newest(&lost_power)), (None, None));
        assert_eq!(disk.bytes(BOUND_FILE).len() as u64, SLOT_STRIDE + SLOT_BYTES as u64);
    }

    #[test]
    fn what_was_written_survives_a_loss_of_power() {
        let (disk, _) = written(2);
        let survivor = newest(&disk.after_crash(|_| 0));
        assert_eq!(survivor, Some(BoundRecord { sequence: 2, ..bound(2) }));
    }

    #[test]
    fn a_write_that_failed_is_no_newest_and_leaves_the_other_slot() {
        let (disk, mut file) = written(2);
        disk.arm(DiskFault::SyncFails(0));
        let error = file.write(bound(3)).unwrap_err();
        assert!(error.to_string().starts_with("write the bound: "), "{error}");
        assert_eq!(file.newest(), BoundRecord { sequence: 2, ..bound(2) });
        // The next goes to the same slot.
        file.write(bound(4)).unwrap();
        assert_eq!(newest(&disk), Some(BoundRecord { sequence: 3, ..bound(4) }));
        disk.corrupt(BOUND_FILE, SLOT_STRIDE as usize, 1);
        let slots = read_slots(&StorageFile::open(&disk, BOUND_FILE).unwrap()).unwrap();
        assert_eq!(
            slots,
            [BoundSlot::Whole(BoundRecord { sequence: 2, ..bound(2) }), BoundSlot::Corrupt]
        );
    }

    #[test]
    fn a_damaged_slot_is_named() {
        for position in [0, SLOT_STRIDE] {
            let (disk, _) = written(3);
            disk.corrupt(BOUND_FILE, position as usize + 20, 4);
            match BoundFile::read(&disk) {
                Err(BoundError::Corrupt { position: at }) => assert_eq!(at, position),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_disk_that_fails_is_no_file_that_is_missing() {
        let (disk, _) = written(1);
        disk.arm(DiskFault::CrashAt(disk.operations()));
        assert!(disk.sync_directory().is_err(), "the machine stops");
        assert!(matches!(BoundFile::read(&disk), Err(BoundError::Storage(_))));
        assert!(BoundFile::corrupt_slot(&disk).is_err());
        assert!(BoundFile::open(&disk, None).is_err());
    }

    #[test]
    fn a_slot_that_lost_its_bound_is_known_from_the_second_write_on() {
        let lost = |disk: &MemoryDisk| BoundFile::corrupt_slot(disk).unwrap();
        assert_eq!(lost(&MemoryDisk::new()), None, "no file, no slot");
        assert_eq!(lost(&written(0).0), None);
        assert_eq!(lost(&written(1).0), None, "the other was never written");
        for (times, position) in [(2, 0), (2, SLOT_STRIDE), (3, 0), (3, SLOT_STRIDE)] {
            let (disk, _) = written(times);
            assert_eq!(lost(&disk), None);
            let file = StorageFile::open(&disk, BOUND_FILE).unwrap();
            file.write_at(&[0; SLOT_BYTES], position).unwrap();
            let is_told = newest(&disk).unwrap().sequence >= 2;
            assert_eq!(lost(&disk), is_told.then_some(position), "{times} {position}");
        }
    }

    #[test]
    #[should_panic(expected = "the persisted bound never falls")]
    fn a_bound_that_falls_is_not_written() {
        let (_, mut file) = written(2);
        let _ = file.write(bound(1));
    }

    #[test]
    fn at_a_clean_end_the_bound_may_fall_and_is_marked_so() {
        for ms in [1, 2, 3] {
            let (disk, mut file) = written(2);
            file.close(bound(ms)).unwrap();
            assert_eq!(newest(&disk), Some(BoundRecord { sequence: 3, clean: true, ..bound(ms) }));
        }
    }
}
