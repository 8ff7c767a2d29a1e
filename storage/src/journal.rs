//! The journal: one append-only sequence of checksummed frames, in stamp order, over a row of
//! segment files.
//!
//! What holds true of it:
//! - A *position* counts payload-carrying bytes from the journal's birth; a segment knows the
//!   position at which it begins, so a position names one byte for ever.
//! - A frame's checksum covers its own position: a frame that stands elsewhere (in a recycled or
//!   damaged file) is not a frame.
//! - Each frame says up to which position everything was on stable storage when it was written
//!   (`synced_to`). That is how recovery tells a torn tail, which is lawful, from damage: a bad frame
//!   *below* what a later one knew to be synced is damage, and the store refuses to start.

mod blocks;
#[cfg(test)]
mod fixture;
mod frame;
mod reader;
mod recover;
mod segment;
mod writer;

pub(crate) use blocks::Blocks as StagedBlocks;
pub use frame::{FRAME_BYTES, Frame, FrameError, PAYLOAD_ALIGN, PAYLOAD_BYTES_MAX, padded};
pub(crate) use reader::FrameChunks;
pub use reader::{Found, FoundFrame, FrameReader, Progress, SHOWN_BYTES_MAX};
pub(crate) use recover::scan_sealed;
pub use recover::{Damage, RecoverError, Recovered, Visit, Walked, settle, walk};
pub use segment::{
    SEGMENT_HEADER_BYTES, Segment, SegmentHeader, Segments, segment_name, segment_start,
};
pub(crate) use writer::{Journal, Limits, SegmentEnd, WriteError};
