//! Opening the sealed part of the store: the manifest, and the segments that it names.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use hlc::Hlc;
use parking_lot::{Condvar, Mutex, RwLock};

use super::loading::open_latest_run_tables;
use super::proof_pruning::merge_pruned_proofs;
use super::rebuilding::IndexRebuilder;
use super::{HistoryStats, IndexingQueue, ReclaimState, SealedHistory};
use crate::data_file::DataFile;
use crate::disk::Disk;
use crate::entry::LogId;
use crate::error::StorageError;
use crate::index::{BlockCache, IndexRun, LatestRunTable, SegmentIndex};
use crate::journal::{JournalSegments, Segment, segment_name};
use crate::log::CompactedPrefix;
use crate::manifest::{
    LogHorizon, MANIFEST_FILE, Manifest, ManifestError, ManifestSegment, ManifestWriter,
};
use crate::proof::remove_superseded;
use crate::sealed_segment::{SealedSegment, SealedSegments, SegmentFiles, SegmentLayout};
use crate::sorted_segment::{
    SORTED_HEADER_BYTES, SortedSegmentHeader, compacted_prefix_name, index_name,
};
use crate::space_reserve::SpaceReserve;
use crate::storage_file::{StorageFile, list_files, remove_file};
use crate::store::Options;

/// The reason sealed segments cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The manifest cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A file that the manifest names is missing, or is not a file of its kind.
    #[error(
        "{file} of the journal is missing, or its header is corrupt; nothing was changed. Restore it from a backup or a replica"
    )]
    MissingFile { file: String },
    /// The last stamp in an index lies below that of the index before it.
    #[error(
        "the index {file} is older than the one before it: its last stamp lies below; nothing was changed. It is soft: remove it, and start again"
    )]
    Order {
        /// The index that is older.
        file: String,
    },
    /// Something cannot be read or written.
    #[error("open journal: {0}")]
    Storage(#[from] StorageError),
}

/// The files that were opened, for the history that is built from them.
pub(crate) struct HistoryBuilder {
    pub(crate) manifest: Manifest,
    pub(crate) segments: Vec<Arc<SealedSegment>>,
    cache: Arc<BlockCache>,
    latest_run_tables: Vec<Arc<LatestRunTable>>,
    pub(crate) compacted_prefixes: BTreeMap<LogId, Arc<CompactedPrefix>>,
    rebuilt: usize,
    manifest_writer: ManifestWriter,
}

/// The stage's last known state, and what it does not cover.
pub(crate) struct StageSnapshot {
    /// The state. Without one, nothing is covered.
    pub(crate) state: Option<Vec<u8>>,
    /// The position up to which frames are covered.
    pub(crate) covered_to: u64,
    /// The last stamp that is covered.
    pub(crate) last_stamp: Hlc,
    /// The sealed segments behind it.
    pub(crate) unseen: Vec<Arc<SealedSegment>>,
}

/// A sealed segment whose index may have to be rebuilt.
type SegmentWithoutIndex = (ManifestSegment, Arc<DataFile>, Option<Arc<SealedSegment>>);

impl HistoryBuilder {
    /// Opens the segments that the manifest names; rebuilds indexes that are lost.
    pub(crate) fn read(
        disk: &dyn Disk,
        cache: Arc<BlockCache>,
    ) -> Result<HistoryBuilder, HistoryError> {
        let manifest = Manifest::read(disk)?;
        if manifest.sequence == 0 && list_files(disk)?.iter().any(|name| name.ends_with(".sorted"))
        {
            return Err(HistoryError::MissingFile { file: MANIFEST_FILE.to_owned() });
        }
        let tables = open_latest_run_tables(disk, &manifest, &cache)?;
        let (segments, bases) = (Vec::new(), BTreeMap::new());
        let manifest_writer = ManifestWriter::default();
        let mut opened = HistoryBuilder {
            manifest,
            segments,
            cache,
            latest_run_tables: tables,
            compacted_prefixes: bases,
            rebuilt: 0,
            manifest_writer,
        };
        opened.open_segments(disk)?;
        opened.check_order()?;
        for (log, horizon) in opened.manifest.logs.clone() {
            if horizon.compacted_generation > 0 {
                let base = opened.open_compacted_prefix(disk, log, &horizon)?;
                opened.compacted_prefixes.insert(log, Arc::new(base));
            }
        }
        Ok(opened)
    }

    /// Lookups tell segments apart by their stamps.
    fn check_order(&self) -> Result<(), HistoryError> {
        let is_wrong = |pair: &&[Arc<SealedSegment>]| pair[0].last_stamp > pair[1].last_stamp;
        match self.segments.windows(2).find(is_wrong) {
            Some(pair) => Err(HistoryError::Order { file: pair[1].index().name().to_owned() }),
            None => Ok(()),
        }
    }

    fn open_segments(&mut self, disk: &dyn Disk) -> Result<(), HistoryError> {
        let open = |listed: &ManifestSegment| self.open_segment_files(disk, *listed);
        let mut halves = self
            .manifest
            .segments
            .iter()
            .map(open)
            .collect::<Result<Vec<SegmentWithoutIndex>, _>>()?;
        let rebuilding = IndexRebuilder { disk, cache: &self.cache, manifest: &self.manifest };
        for place in 0..halves.len() {
            let (listed, data, segment) = &halves[place];
            let segment = match segment {
                Some(segment) => Arc::clone(segment),
                None => {
                    self.rebuilt += rebuilding.rebuild(*listed, data, &self.segments, None)?;
                    let behind =
                        halves[place + 1..].iter().filter_map(|(.., segment)| segment.as_ref());
                    let index = Arc::new(rebuilding.confirm(*listed, data, behind)?);
                    let data = Arc::clone(data);
                    Arc::new(SealedSegment::new(listed.layout, SegmentFiles { data, index }))
                }
            };
            halves[place].2 = Some(Arc::clone(&segment));
            self.segments.push(segment);
        }
        Ok(())
    }

    fn open_segment_files(
        &self,
        disk: &dyn Disk,
        listed: ManifestSegment,
    ) -> Result<SegmentWithoutIndex, HistoryError> {
        let data = match listed.layout {
            SegmentLayout::Journal => open_journal_segment(disk, listed.start)?,
            SegmentLayout::Sorted { generation } => {
                let (name, log) = (listed.data_name(), None);
                let (start, end, generation) = (listed.start, listed.end, u64::from(generation));
                open_sorted_segment(
                    disk,
                    name,
                    SortedSegmentHeader { start, end, generation, log },
                )?
            }
        };
        let index = SegmentIndex::open(disk, &index_name(data.name()), listed.start, &self.cache)?;
        let whole = index.filter(|index| index.header.end == listed.end);
        let segment = whole.map(|index| {
            let files = SegmentFiles { data: Arc::clone(&data), index: Arc::new(index) };
            Arc::new(SealedSegment::new(listed.layout, files))
        });
        Ok((listed, data, segment))
    }

    fn open_compacted_prefix(
        &self,
        disk: &dyn Disk,
        log: LogId,
        horizon: &LogHorizon,
    ) -> Result<CompactedPrefix, HistoryError> {
        let name = compacted_prefix_name(log, horizon.compacted_generation);
        let file = StorageFile::open(disk, &name).map_err(missing_file)?;
        let header = read_header(&file)?.filter(|header| {
            header.log == Some(log) && header.generation == horizon.compacted_generation
        });
        let Some(header) = header else { return Err(HistoryError::MissingFile { file: name }) };
        let data = Arc::new(DataFile::new(file));
        let index_name = index_name(&name);
        let open = || SegmentIndex::open(disk, &index_name, header.start, &self.cache);
        let index = match open()? {
            Some(index) => index,
            None => {
                super::prefix_replacement::rebuild_compacted_prefix_index(
                    disk,
                    log,
                    &header,
                    &data,
                    horizon.released_tip.end,
                )?;
                open()?.ok_or(HistoryError::MissingFile { file: index_name.clone() })?
            }
        };
        let (index, run) = match index.run(log) {
            Err(error) if error.is_data_loss() => {
                super::prefix_replacement::rebuild_compacted_prefix_index(
                    disk,
                    log,
                    &header,
                    &data,
                    horizon.released_tip.end,
                )?;
                let index =
                    open()?.ok_or(HistoryError::MissingFile { file: index_name.clone() })?;
                let run = index.run(log)?;
                (index, run)
            }
            run => (index, run?),
        };
        // Cuts end with its last entry, where lookups in sealed segments begin.
        let whole = |run: &IndexRun| run.count > 0 && run.tip.end == horizon.released_tip.end;
        let run = run.filter(whole).ok_or(HistoryError::MissingFile { file: name })?;
        Ok(CompactedPrefix::new(SegmentFiles { data, index: Arc::new(index) }, run))
    }

    /// The stage's last known state, and the segments that it does not cover; their indexes are
    /// intact.
    pub(crate) fn stage_snapshot(
        &mut self,
        disk: &dyn Disk,
    ) -> Result<StageSnapshot, HistoryError> {
        let (state, unseen) = self.latest_stage_state()?;
        if unseen < self.segments.len() {
            self.rebuild_prefix_indexes(disk)?;
        }
        let rebuilding = IndexRebuilder { disk, cache: &self.cache, manifest: &self.manifest };
        for place in unseen..self.segments.len() {
            if !self.segments[place].index().check(disk)?.is_empty() {
                self.rebuilt += rebuilding.rebuild_in_place(&self.segments, place)?;
            }
        }
        let covered = unseen.checked_sub(1).map(|last| &self.segments[last]);
        Ok(StageSnapshot {
            state,
            covered_to: covered.map_or(0, |last| last.end),
            last_stamp: covered.map_or(Hlc::ZERO, |last| last.last_stamp),
            unseen: self.segments[unseen..].to_vec(),
        })
    }

    /// Rebuilds the corrupt indexes of compacted prefixes.
    fn rebuild_prefix_indexes(&mut self, disk: &dyn Disk) -> Result<(), HistoryError> {
        for (log, base) in self.compacted_prefixes.clone() {
            if !base.files.index.check(disk)?.is_empty() {
                // The file may be gone already.
                let _ = remove_file(disk, base.files.index.name());
                let horizon = self.manifest.horizon(log);
                let mended = self.open_compacted_prefix(disk, log, &horizon)?;
                self.compacted_prefixes.insert(log, Arc::new(mended));
            }
        }
        Ok(())
    }

    /// The last stamp in the sealed segments.
    pub(crate) fn last_stamp(&self) -> Hlc {
        self.segments.last().map_or(Hlc::ZERO, |segment| segment.last_stamp)
    }

    /// The stage's last known state, and the first segment that it does not cover.
    fn latest_stage_state(&self) -> Result<(Option<Vec<u8>>, usize), StorageError> {
        for (place, segment) in self.segments.iter().enumerate().rev() {
            match segment.index().state() {
                Ok(Some(state)) => return Ok((Some(state), place + 1)),
                Ok(None) => {}
                Err(error) if error.is_data_loss() => {
                    tracing::warn!(%error, "the state of producers is read back from the journal");
                }
                Err(error) => return Err(error),
            }
        }
        Ok((None, 0))
    }

    /// Puts the manifest on stable storage as it was read. The previous incarnation may have died
    /// before its last write was synced, and everything from here on relies on it.
    pub(crate) fn persist_manifest(
        &mut self,
        disk: &dyn Disk,
        reserve: &SpaceReserve,
    ) -> Result<(), StorageError> {
        if self.manifest.sequence == 0 {
            return Ok(());
        }
        match reserve
            .retry_with_reserve(|| self.manifest_writer.write_snapshot(disk, &self.manifest))
        {
            // The file that exists needs no more space.
            Err(error) if error.is_full() => {
                StorageFile::open(disk, MANIFEST_FILE)?.sync()?;
                Ok(disk.sync_directory()?)
            }
            settled => settled,
        }
    }

    /// Removes the files that nothing names: those of steps that a crash interrupted, and those
    /// that were about to be removed.
    pub(crate) fn remove_unreferenced_files(&self, disk: &dyn Disk) -> Result<(), StorageError> {
        let mut referenced: HashSet<String> = HashSet::new();
        let files = self.segments.iter().map(|segment| segment.data().name());
        let bases = self.compacted_prefixes.values().map(|base| base.files.data.name());
        for name in files.chain(bases) {
            referenced.insert(index_name(name));
            referenced.insert(name.to_owned());
        }
        referenced.extend(self.latest_run_tables.iter().map(|table| table.name().to_owned()));
        let mut removed = 0;
        for name in disk.list()? {
            let segment = name.strip_suffix(".journal").and_then(|start| start.parse::<u64>().ok());
            let is_ours =
                [".index", ".latest", ".sorted", ".new"].iter().any(|kind| name.ends_with(kind));
            let is_old = segment.is_some_and(|start| start < self.manifest.indexed_to);
            if (is_ours || is_old) && !referenced.contains(&name) {
                remove_file(disk, &name)?;
                removed += 1;
            }
        }
        if removed > 0 {
            disk.sync_directory()?;
        }
        remove_superseded(disk)?;
        // Finishes what a crash interrupted. A full disk has no space even for a shorter file.
        if let Err(error) =
            merge_pruned_proofs(disk, &self.segments, self.manifest.indexed_to, &mut || Ok(()))
        {
            tracing::warn!(%error, "proofs of removed segments are not pruned; it is retried");
        }
        Ok(())
    }

    /// Makes the history of what was opened.
    pub(crate) fn into_history(
        self,
        disk: Arc<dyn Disk>,
        reserve: Arc<SpaceReserve>,
        segments: Arc<JournalSegments>,
        options: &Options,
        manifest_sequence: Arc<AtomicU64>,
    ) -> SealedHistory {
        let history = SealedHistory {
            disk,
            reserve,
            segments,
            sealed_segments: Arc::new(SealedSegments::new(self.segments)),
            cache: self.cache,
            stats: HistoryStats {
                rebuilt: AtomicU64::new(self.rebuilt as u64),
                ..Default::default()
            },
            logs: RwLock::default(),
            unloaded_prefixes: Mutex::new(self.compacted_prefixes.into_iter().collect()),
            evictions: AtomicU64::new(0),
            idle_logs_max: options.idle_logs_max,
            merge_bytes_min: options.merge_bytes_min,
            uncovered_segments_max: options.uncovered_segments_max,
            latest_run_tables: RwLock::new(self.latest_run_tables.into()),
            manifest: Mutex::new(self.manifest),
            manifest_writer: Mutex::new(self.manifest_writer),
            reclaim_state: Mutex::new(ReclaimState::default()),
            unreferenced_files: Mutex::default(),
            indexing_queue: Mutex::new(IndexingQueue::default()),
            changed: Condvar::new(),
            holds: Mutex::default(),
            maintenance_lock: Mutex::default(),
            manifest_sequence,
            proves: options.proofs,
            proved_to: AtomicU64::new(0),
            proof_pruning_due: AtomicBool::new(true),
            unproved: Mutex::default(),
            signing_key: OnceLock::new(),
            is_manifest_in_doubt: AtomicBool::new(false),
            journal_loss: OnceLock::new(),
            on_stop: OnceLock::new(),
            is_closing: AtomicBool::new(false),
            foreground_bytes: AtomicU64::new(0),
            throttled_to: AtomicU64::new(0),
        };
        // Space that an earlier incarnation released may be reclaimed in the first round.
        let settled =
            history.manifest.lock().logs.iter().map(|(id, h)| (*id, h.released_tip.end)).collect();
        history.reclaim_state.lock().reclaimable = settled;
        history
    }
}

fn missing_file(error: StorageError) -> HistoryError {
    match error {
        StorageError::Missing { file } => HistoryError::MissingFile { file: file.to_string() },
        error @ (StorageError::Io { .. }
        | StorageError::NoSpace { .. }
        | StorageError::Corrupt { .. }
        | StorageError::Stopped { .. }
        | StorageError::Interrupted) => HistoryError::Storage(error),
    }
}

fn open_journal_segment(disk: &dyn Disk, start: u64) -> Result<Arc<DataFile>, HistoryError> {
    let name = segment_name(start);
    let segment = Segment::open(disk, &name, start).map_err(missing_file)?;
    Ok(segment.ok_or(HistoryError::MissingFile { file: name })?.data)
}

fn open_sorted_segment(
    disk: &dyn Disk,
    name: String,
    expected: SortedSegmentHeader,
) -> Result<Arc<DataFile>, HistoryError> {
    let file = StorageFile::open(disk, &name).map_err(missing_file)?;
    if read_header(&file)? != Some(expected) {
        return Err(HistoryError::MissingFile { file: name });
    }
    Ok(Arc::new(DataFile::new(file)))
}

pub(super) fn read_header(file: &StorageFile) -> Result<Option<SortedSegmentHeader>, StorageError> {
    let mut bytes = [0; SORTED_HEADER_BYTES as usize];
    if file.length()? < SORTED_HEADER_BYTES {
        return Ok(None);
    }
    file.read_exact_at(&mut bytes, 0)?;
    Ok(SortedSegmentHeader::decode(&bytes))
}
