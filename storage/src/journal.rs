//! The journal: one append-only sequence of checksummed frames, in stamp order, over a sequence of
//! segment files.
//!
//! Invariants:
//! - A *position* counts payload-carrying bytes from the beginning of the journal. A segment stores
//!   the position at which it begins, so a position names one byte for ever.
//! - A frame's checksum covers its own position: a frame at another place (in a recycled or corrupt
//!   file) is not a frame.
//! - Each frame says up to which position everything was on stable storage when it was written
//!   (`synced_to`). That is how recovery tells a torn tail, which is legal, from corruption: a bad
//!   frame *below* what a later frame says was synced is corruption, and the store refuses to
//!   start.

mod direct_writer;
#[cfg(test)]
mod fixture;
mod frame;
mod group;
mod reader;
mod recover;
mod segment;
mod writer;

pub(crate) use direct_writer::DirectWriter as StagedBlocks;
pub use frame::{FRAME_BYTES, FrameError, FrameHeader, PAYLOAD_ALIGN, PAYLOAD_BYTES_MAX, padded};
pub(crate) use group::FrameGroup;
pub(crate) use reader::FrameChunkReader;
pub use reader::{
    FrameReader, JournalScanItem, PAYLOAD_PREVIEW_BYTES_MAX, ScanProgress, ScannedFrame,
};
pub use recover::{
    FrameVisitor, JournalCorruption, JournalWalk, KnownSynced, RecoverError, RecoveredJournal,
    finish_recovery, walk,
};
pub(crate) use recover::{check_synced, scan_sealed};
pub use segment::{
    JournalSegments, SEGMENT_HEADER_BYTES, Segment, SegmentHeader, segment_name, segment_start,
};
pub(crate) use writer::{
    JournalTail, JournalWriteError, JournalWriter, JournalWriterOptions, OpenSegment, RolledSegment,
};
