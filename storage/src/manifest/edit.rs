//! An edit of the manifest: what changed, and the pages in which it is appended to the file.
//!
//! A page lies within one sector, and after a crash a sector has either its old or its new content.
//! So a page that is neither zero nor intact is corrupt. An edit that lacks pages was being
//! appended when the machine stopped: nothing relied on it.

use super::{
    LOG_BYTES, LogHorizon, Manifest, ManifestSegment, SEGMENT_BYTES, decode_log, decode_segment,
    encode_log, encode_segment, u64_at,
};
use crate::entry::LogId;

pub(super) const PAGE_BYTES: usize = 512;
const PAGE_HEADER_BYTES: usize = 16;
const CONTENT_BYTES: usize = PAGE_BYTES - PAGE_HEADER_BYTES;
const IS_FIRST: u8 = 1;
const IS_LAST: u8 = 2;

/// One change of an edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ManifestChange {
    /// Everything below this position is in sealed segments.
    IndexedTo(u64),
    /// A sealed segment. It replaces the one that begins at the same position, if there is one.
    Segment(ManifestSegment),
    /// The sealed segment that begins there is not listed any more.
    SegmentRemoved(u64),
    Log(LogId, LogHorizon),
    /// The log is not listed any more.
    LogRemoved(LogId),
}

impl ManifestChange {
    fn encode(&self, bytes: &mut Vec<u8>) {
        match self {
            ManifestChange::IndexedTo(position) => {
                bytes.push(1);
                bytes.extend_from_slice(&position.to_le_bytes());
            }
            ManifestChange::Segment(segment) => {
                bytes.push(2);
                encode_segment(segment, bytes);
            }
            ManifestChange::SegmentRemoved(start) => {
                bytes.push(3);
                bytes.extend_from_slice(&start.to_le_bytes());
            }
            ManifestChange::Log(log, horizon) => {
                bytes.push(4);
                encode_log(*log, horizon, bytes);
            }
            ManifestChange::LogRemoved(log) => {
                bytes.push(5);
                bytes.extend_from_slice(&log.0.to_le_bytes());
            }
        }
    }

    fn decode(bytes: &mut &[u8]) -> Option<ManifestChange> {
        let (kind, rest) = bytes.split_first()?;
        let length = match kind {
            1 | 3 | 5 => 8,
            2 => SEGMENT_BYTES,
            4 => LOG_BYTES,
            _ => return None,
        };
        let (field, rest) = rest.split_at_checked(length)?;
        *bytes = rest;
        Some(match kind {
            1 => ManifestChange::IndexedTo(u64_at(field, 0)),
            2 => ManifestChange::Segment(decode_segment(field)?),
            3 => ManifestChange::SegmentRemoved(u64_at(field, 0)),
            4 => {
                let (log, horizon) = decode_log(field);
                ManifestChange::Log(log, horizon)
            }
            _ => ManifestChange::LogRemoved(LogId(u64_at(field, 0))),
        })
    }
}

/// The changes of one write of the manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ManifestEdit(pub(crate) Vec<ManifestChange>);

impl ManifestEdit {
    /// An edit that sets the horizons of some logs.
    pub(crate) fn of_logs<'a>(logs: impl IntoIterator<Item = (&'a LogId, &'a LogHorizon)>) -> Self {
        let changes = logs.into_iter().map(|(log, horizon)| ManifestChange::Log(*log, *horizon));
        ManifestEdit(changes.collect())
    }

    fn decode(mut bytes: &[u8]) -> Option<ManifestEdit> {
        let mut changes = Vec::new();
        while !bytes.is_empty() {
            changes.push(ManifestChange::decode(&mut bytes)?);
        }
        Some(ManifestEdit(changes))
    }

    /// The pages of the edit that is write `sequence`, from page `number` on, after the snapshot
    /// that was write `snapshot`.
    pub(super) fn encode(&self, snapshot: u64, number: u64, sequence: u64) -> Vec<u8> {
        let mut content = Vec::new();
        self.0.iter().for_each(|change| change.encode(&mut content));
        let count = content.len().div_ceil(CONTENT_BYTES).max(1);
        let mut pages = vec![0; count * PAGE_BYTES];
        let mut rest = &content[..];
        for (nth, page) in pages.chunks_exact_mut(PAGE_BYTES).enumerate() {
            let (content, behind) = rest.split_at(rest.len().min(CONTENT_BYTES));
            rest = behind;
            page[4..6].copy_from_slice(&(content.len() as u16).to_le_bytes());
            page[6] = if nth == 0 { IS_FIRST } else { 0 };
            page[6] |= if nth + 1 == count { IS_LAST } else { 0 };
            page[8..16].copy_from_slice(&sequence.to_le_bytes());
            page[PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + content.len()].copy_from_slice(content);
            let crc = page_crc(snapshot, number + nth as u64, page);
            page[..4].copy_from_slice(&crc.to_le_bytes());
        }
        pages
    }
}

/// The checksum of a page. It covers the page's place, so a page at another place is not valid.
fn page_crc(snapshot: u64, number: u64, page: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&snapshot.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &number.to_le_bytes());
    crc32c::crc32c_append(crc, &page[4..])
}

struct EditPage<'a> {
    sequence: u64,
    is_first: bool,
    is_last: bool,
    content: &'a [u8],
}

fn decode_page(snapshot: u64, number: u64, page: &[u8]) -> Option<EditPage<'_>> {
    let crc = u32::from_le_bytes(page[..4].try_into().ok()?);
    let length = usize::from(u16::from_le_bytes(page[4..6].try_into().ok()?));
    let is_whole = crc == page_crc(snapshot, number, page) && page[6] <= 3 && page[7] == 0;
    if !is_whole {
        return None;
    }
    let content = page[PAGE_HEADER_BYTES..].get(..length)?;
    let (is_first, is_last) = (page[6] & IS_FIRST != 0, page[6] & IS_LAST != 0);
    Some(EditPage { sequence: u64_at(page, 8), is_first, is_last, content })
}

/// The state of reading the edits after a snapshot.
enum ManifestEditScan {
    /// The previous edit is complete.
    Between,
    /// Some pages of an edit were read.
    Within(u64, Vec<u8>),
    /// A page is missing; of which write, if that is known. Only other pages of that write may
    /// follow.
    Torn(Option<u64>),
}

/// Applies the edits in `pages` to the snapshot before them. `None` if anything there is corrupt;
/// the edits applied by then were intact.
pub(super) fn apply_edits(manifest: &mut Manifest, pages: &[u8]) -> Option<()> {
    let snapshot = manifest.sequence;
    let mut reading = ManifestEditScan::Between;
    for (number, page) in pages.chunks_exact(PAGE_BYTES).enumerate() {
        if page.iter().all(|byte| *byte == 0) {
            reading = match reading {
                ManifestEditScan::Between => ManifestEditScan::Torn(None),
                ManifestEditScan::Within(sequence, _) => ManifestEditScan::Torn(Some(sequence)),
                torn @ ManifestEditScan::Torn(_) => torn,
            };
            continue;
        }
        let page = decode_page(snapshot, number as u64, page)?;
        reading = match reading {
            ManifestEditScan::Between if page.is_first && page.sequence > manifest.sequence => {
                take(manifest, page.sequence, page.content.to_vec(), page.is_last)?
            }
            ManifestEditScan::Within(sequence, mut content)
                if !page.is_first && page.sequence == sequence =>
            {
                content.extend_from_slice(page.content);
                take(manifest, sequence, content, page.is_last)?
            }
            // A later edit is appended only once this one is on stable storage.
            ManifestEditScan::Torn(sequence)
                if !page.is_first
                    && page.sequence > manifest.sequence
                    && sequence.is_none_or(|sequence| sequence == page.sequence) =>
            {
                ManifestEditScan::Torn(Some(page.sequence))
            }
            _ => return None,
        };
    }
    Some(())
}

/// Applies the edits in `pages` that can be read, whatever their checksums say.
pub(super) fn apply_readable(manifest: &mut Manifest, pages: &[u8]) {
    let mut content = Vec::new();
    for page in pages.chunks_exact(PAGE_BYTES) {
        let length = usize::from(u16::from_le_bytes([page[4], page[5]])).min(CONTENT_BYTES);
        if page[6] & IS_FIRST != 0 {
            content.clear();
        }
        content.extend_from_slice(&page[PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + length]);
        if page[6] & IS_LAST != 0
            && let Some(edit) = ManifestEdit::decode(&content)
        {
            manifest.apply(&edit);
            manifest.sequence = u64_at(page, 8);
        }
    }
}

fn take(
    manifest: &mut Manifest,
    sequence: u64,
    content: Vec<u8>,
    is_last: bool,
) -> Option<ManifestEditScan> {
    if !is_last {
        return Some(ManifestEditScan::Within(sequence, content));
    }
    manifest.apply(&ManifestEdit::decode(&content)?);
    manifest.sequence = sequence;
    Some(ManifestEditScan::Between)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::tests::manifest;
    use crate::sealed_segment::SegmentLayout;

    fn edits() -> Vec<(u64, ManifestEdit)> {
        let segment = |start, end| {
            let layout = SegmentLayout::Sorted { generation: 3 };
            ManifestChange::Segment(ManifestSegment { start, end, layout })
        };
        let logs = (0..20).map(|log| ManifestChange::Log(LogId(log), LogHorizon::default()));
        vec![
            (14, ManifestEdit(vec![ManifestChange::IndexedTo(56), segment(40, 56)])),
            (15, ManifestEdit(logs.collect())),
            (17, ManifestEdit(vec![ManifestChange::SegmentRemoved(24), segment(0, 40)])),
            (18, ManifestEdit(vec![ManifestChange::LogRemoved(LogId(13))])),
        ]
    }

    /// The bytes of a file, the manifest after each edit, and where each edit ends.
    fn written() -> (Vec<u8>, Vec<(usize, Manifest)>) {
        let mut manifest = manifest();
        let mut bytes = manifest.encode();
        let (snapshot, from) = (manifest.sequence, bytes.len());
        let mut states = vec![(from, manifest.clone())];
        for (sequence, edit) in edits() {
            let number = (bytes.len() - from) / PAGE_BYTES;
            bytes.extend(edit.encode(snapshot, number as u64, sequence));
            manifest.apply(&edit);
            manifest.sequence = sequence;
            states.push((bytes.len(), manifest.clone()));
        }
        (bytes, states)
    }

    #[test]
    fn edits_change_what_the_snapshot_says() {
        let (bytes, states) = written();
        for (end, expected) in states {
            assert_eq!(Manifest::decode(&bytes[..end]).as_ref(), Some(&expected), "{end}");
        }
    }

    /// Of an edit that was being appended, any sectors may exist: then it counts as not made.
    #[test]
    fn an_edit_that_was_torn_was_not_made() {
        let (bytes, states) = written();
        for pair in states.windows(2) {
            let [(from, before), (to, after)] = pair else { unreachable!("windows of two") };
            let count = (to - from) / PAGE_BYTES;
            for pages in 0..1_u32 << count {
                let mut torn = bytes[..*to].to_vec();
                for nth in (0..count).filter(|nth| pages & 1 << nth == 0) {
                    torn[from + nth * PAGE_BYTES..][..PAGE_BYTES].fill(0);
                }
                let expected = if pages + 1 == 1 << count { after } else { before };
                assert_eq!(Manifest::decode(&torn).as_ref(), Some(expected), "{pages:b}");
            }
        }
    }

    #[test]
    fn every_flipped_byte_and_every_page_that_is_missing_before_another_edit_is_noticed() {
        let (bytes, states) = written();
        let last = states[states.len() - 2].0;
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            assert_eq!(Manifest::decode(&bad), None, "byte {at}");
            // For a person, the last edit is read, unless the corruption is before all edits or in
            // it.
            let read = Manifest::decode_corrupt(&bad);
            if (64..last).contains(&at) {
                let read = read.expect("it begins as one");
                assert!(read.sequence == 18 && !read.logs.contains_key(&LogId(13)), "byte {at}");
            }
        }
        for from in (states[0].0..last).step_by(PAGE_BYTES) {
            let mut bad = bytes.clone();
            bad[from..from + PAGE_BYTES].fill(0);
            assert_eq!(Manifest::decode(&bad), None, "page at {from}");
            bad.drain(from..from + PAGE_BYTES);
            assert_eq!(Manifest::decode(&bad), None, "page at {from}");
        }
    }

    /// Pages of a file after the snapshot, each of some edit: of which sequence, and which of its
    /// pages.
    fn with_pages(pages: &[(u64, usize)]) -> Option<Manifest> {
        let manifest = manifest();
        let logs = (0..20).map(|log| ManifestChange::Log(LogId(log), LogHorizon::default()));
        let edit = ManifestEdit(logs.collect());
        let mut bytes = manifest.encode();
        for (number, (sequence, nth)) in pages.iter().enumerate() {
            // As if the edit had begun such that its page is here.
            let begins = (number - nth) as u64;
            let encoded = edit.encode(manifest.sequence, begins, *sequence);
            bytes.extend_from_slice(&encoded[nth * PAGE_BYTES..][..PAGE_BYTES]);
        }
        Manifest::decode(&bytes)
    }

    #[test]
    fn pages_of_edits_that_do_not_follow_one_another_are_corruption() {
        let last = manifest().sequence;
        let count = {
            let logs = (0..20).map(|log| ManifestChange::Log(LogId(log), LogHorizon::default()));
            ManifestEdit(logs.collect()).encode(last, 0, last + 1).len() / PAGE_BYTES
        };
        assert!(count >= 3, "{count}");
        let edit = |sequence| (0..count).map(move |nth| (sequence, nth)).collect::<Vec<_>>();
        let sequence = |pages: &[(u64, usize)]| with_pages(pages).map(|manifest| manifest.sequence);
        assert_eq!(sequence(&edit(last + 1)), Some(last + 1));
        let both = [edit(last + 1), edit(last + 3)].concat();
        assert_eq!(sequence(&both), Some(last + 3));
        // A torn edit, with nothing after it.
        assert_eq!(sequence(&both[..count + 1]), Some(last + 1));
        for (damage, pages) in [
            ("the snapshot's own", edit(last)),
            ("one before it", edit(last - 1)),
            ("the same again", [edit(last + 1), edit(last + 1)].concat()),
            ("one before the last", [edit(last + 2), edit(last + 1)].concat()),
            ("no first page", [&edit(last + 1)[..], &edit(last + 2)[1..]].concat()),
            ("another's page within", vec![(last + 1, 0), (last + 2, 1), (last + 1, 2)]),
            ("a first page within", vec![(last + 1, 0), (last + 1, 0), (last + 1, 2)]),
            ("another edit behind a torn one", [&edit(last + 1)[..1], &edit(last + 2)].concat()),
        ] {
            assert_eq!(sequence(&pages), None, "{damage}");
        }
    }

    #[test]
    fn behind_a_page_that_is_missing_only_others_of_its_edit_may_stand() {
        let manifest = manifest();
        let logs = (0..20).map(|log| ManifestChange::Log(LogId(log), LogHorizon::default()));
        let edit = ManifestEdit(logs.collect());
        let with = |sequence: u64| {
            let mut torn = edit.encode(manifest.sequence, 0, sequence);
            torn[..PAGE_BYTES].fill(0);
            Manifest::decode(&[manifest.encode(), torn].concat())
        };
        assert_eq!(
            with(manifest.sequence + 1).as_ref(),
            Some(&manifest),
            "its first page was lost"
        );
        assert_eq!(with(manifest.sequence), None, "that one was made long ago");
    }

    #[test]
    fn for_a_person_edits_of_many_pages_are_read_too() {
        let (mut bytes, states) = written();
        bytes[70] ^= 1;
        assert_eq!(Manifest::decode(&bytes), None);
        let read = Manifest::decode_corrupt(&bytes).expect("it begins as one");
        let (_, last) = states.last().expect("some edits");
        assert_eq!((read.sequence, &read.logs), (last.sequence, &last.logs));
    }
}
