//! Opening what is sealed: the manifest, and the parts that it names.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use hlc::Hlc;
use parking_lot::{Condvar, Mutex, RwLock};

use super::loading::head_tables;
use super::rebuilding::Rebuilding;
use super::thinning::fold_gone;
use super::{History, HistoryStats, Reclaiming, Waiting};
use crate::data_file::DataFile;
use crate::disk::{Disk, is_full, read_exact_at};
use crate::filed::{FILED_HEADER_BYTES, FiledHeader, base_name, filed_name, index_name};
use crate::index::{BlockCache, HeadTable, Index, Run};
use crate::journal::{Segment, Segments, segment_name};
use crate::log::{Base, LogId};
use crate::manifest::{Horizon, Listed, MANIFEST_FILE, Manifest, ManifestError, ManifestWriter};
use crate::part::{Indexed, Layout, Part, Parts};
use crate::proof::remove_overtaken;
use crate::reserve::Reserve;
use crate::store::Options;

/// Why what is sealed cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The manifest cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A file that the manifest names is not there, or is no such file.
    #[error(
        "a file of the journal is missing, or damaged where it begins. file={file}; nothing was changed. Restore it from a backup or a replica"
    )]
    Lost {
        /// The file.
        file: String,
    },
    /// An index says that its stretch ends before the one in front of it does.
    #[error(
        "an index is older than the one before it: its last stamp lies below. file={file}; nothing was changed. It is soft: remove it, and start again"
    )]
    Order {
        /// The index.
        file: String,
    },
    /// The disk failed.
    #[error("open journal: {0}")]
    Disk(#[from] io::Error),
}

/// What was opened.
pub(crate) struct Opened {
    pub(crate) manifest: Manifest,
    pub(crate) parts: Vec<Arc<Part>>,
    cache: Arc<BlockCache>,
    tables: Vec<Arc<HeadTable>>,
    pub(crate) bases: BTreeMap<LogId, Arc<Base>>,
    rebuilt: usize,
    manifest_writer: ManifestWriter,
}

/// What the stage remembered, if that is known, and the parts that it had not seen.
pub(crate) type Remembered = (Option<Vec<u8>>, Vec<Arc<Part>>);

/// A part whose index may have to be made anew.
type Half = (Listed, Arc<DataFile>, Option<Arc<Part>>);

impl Opened {
    /// Opens the parts that the manifest names; makes indexes anew that are lost.
    pub(crate) fn read(disk: &dyn Disk, cache: Arc<BlockCache>) -> Result<Opened, HistoryError> {
        let manifest = Manifest::read(disk)?;
        if manifest.sequence == 0 && disk.list()?.iter().any(|name| name.ends_with(".filed")) {
            return Err(HistoryError::Lost { file: MANIFEST_FILE.to_owned() });
        }
        let tables = head_tables(disk, &manifest, &cache)?;
        let (parts, bases) = (Vec::new(), BTreeMap::new());
        let manifest_writer = ManifestWriter::default();
        let mut opened =
            Opened { manifest, parts, cache, tables, bases, rebuilt: 0, manifest_writer };
        opened.open_parts(disk)?;
        opened.check_order()?;
        for (log, horizon) in opened.manifest.logs.clone() {
            if horizon.base > 0 {
                let base = opened.open_base(disk, log, &horizon)?;
                opened.bases.insert(log, Arc::new(base));
            }
        }
        Ok(opened)
    }

    /// Parts are told apart by their stamps.
    fn check_order(&self) -> Result<(), HistoryError> {
        let is_wrong = |pair: &&[Arc<Part>]| pair[0].last_stamp > pair[1].last_stamp;
        match self.parts.windows(2).find(is_wrong) {
            Some(pair) => Err(HistoryError::Order { file: pair[1].index().name().to_owned() }),
            None => Ok(()),
        }
    }

    fn open_parts(&mut self, disk: &dyn Disk) -> Result<(), HistoryError> {
        let open = |listed: &Listed| self.open_part(disk, *listed);
        let mut halves = self.manifest.parts.iter().map(open).collect::<Result<Vec<Half>, _>>()?;
        let rebuilding = Rebuilding { disk, cache: &self.cache, manifest: &self.manifest };
        for place in 0..halves.len() {
            let (listed, data, part) = &halves[place];
            let part = match part {
                Some(part) => Arc::clone(part),
                None => {
                    self.rebuilt += rebuilding.rebuild(*listed, data, &self.parts, None)?;
                    let behind = halves[place + 1..].iter().filter_map(|(.., part)| part.as_ref());
                    let index = Arc::new(rebuilding.confirm(*listed, data, behind)?);
                    let data = Arc::clone(data);
                    Arc::new(Part::new(listed.layout, Indexed { data, index }))
                }
            };
            halves[place].2 = Some(Arc::clone(&part));
            self.parts.push(part);
        }
        Ok(())
    }

    fn open_part(&self, disk: &dyn Disk, listed: Listed) -> Result<Half, HistoryError> {
        let data = match listed.layout {
            Layout::Journal => open_segment(disk, listed.start)?,
            Layout::Filed { generation } => {
                let (name, log) = (filed_name(listed.start, generation), None);
                let (start, end, generation) = (listed.start, listed.end, u64::from(generation));
                open_filed(disk, name, FiledHeader { start, end, generation, log })?
            }
        };
        let index = Index::open(disk, &index_name(&data.name), listed.start, &self.cache)?;
        let whole = index.filter(|index| index.header.end == listed.end);
        let part = whole.map(|index| {
            let files = Indexed { data: Arc::clone(&data), index: Arc::new(index) };
            Arc::new(Part::new(listed.layout, files))
        });
        Ok((listed, data, part))
    }

    fn open_base(
        &self,
        disk: &dyn Disk,
        log: LogId,
        horizon: &Horizon,
    ) -> Result<Base, HistoryError> {
        let name = base_name(log, horizon.base);
        let file = disk.open(&name).map_err(|error| lost(error, &name))?;
        let header = read_header(&*file)?
            .filter(|header| header.log == Some(log) && header.generation == horizon.base);
        let Some(header) = header else { return Err(HistoryError::Lost { file: name }) };
        let data = Arc::new(DataFile::new(name.clone(), file));
        let index_name = index_name(&name);
        let open = || Index::open(disk, &index_name, header.start, &self.cache);
        let index = match open()? {
            Some(index) => index,
            None => {
                super::replacing::rebuild_base(disk, log, &header, &data, horizon.freed.end)?;
                open()?.ok_or(HistoryError::Lost { file: index_name.clone() })?
            }
        };
        let (index, run) = match index.run(log) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                super::replacing::rebuild_base(disk, log, &header, &data, horizon.freed.end)?;
                let index = open()?.ok_or(HistoryError::Lost { file: index_name.clone() })?;
                let run = index.run(log)?;
                (index, run)
            }
            run => (index, run?),
        };
        // Cuts end with its last entry, which is where parts are looked into from.
        let whole = |run: &Run| run.count > 0 && run.tip.end == horizon.freed.end;
        let run = run.filter(whole).ok_or(HistoryError::Lost { file: name })?;
        Ok(Base::new(Indexed { data, index: Arc::new(index) }, run))
    }

    /// What the stage last remembered, and the parts that it had not seen; their indexes are whole.
    pub(crate) fn remembered(&mut self, disk: &dyn Disk) -> Result<Remembered, HistoryError> {
        let (state, unseen) = self.state()?;
        if unseen < self.parts.len() {
            self.mend_bases(disk)?;
        }
        let rebuilding = Rebuilding { disk, cache: &self.cache, manifest: &self.manifest };
        for place in unseen..self.parts.len() {
            if !self.parts[place].index().check(disk)?.is_empty() {
                self.rebuilt += rebuilding.mend(&self.parts, place)?;
            }
        }
        Ok((state, self.parts[unseen..].to_vec()))
    }

    /// Makes the indexes of bases anew that are damaged.
    fn mend_bases(&mut self, disk: &dyn Disk) -> Result<(), HistoryError> {
        for (log, base) in self.bases.clone() {
            if !base.files.index.check(disk)?.is_empty() {
                // It may be gone already.
                let _ = disk.remove(base.files.index.name());
                let horizon = self.manifest.horizon(log);
                let mended = self.open_base(disk, log, &horizon)?;
                self.bases.insert(log, Arc::new(mended));
            }
        }
        Ok(())
    }

    /// The last stamp in the parts.
    pub(crate) fn last_stamp(&self) -> Hlc {
        self.parts.last().map_or(Hlc::ZERO, |part| part.last_stamp)
    }

    /// What the stage last remembered, and from which part on it has seen nothing.
    fn state(&self) -> io::Result<(Option<Vec<u8>>, usize)> {
        for (place, part) in self.parts.iter().enumerate().rev() {
            match part.index().state() {
                Ok(Some(state)) => return Ok((Some(state), place + 1)),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::warn!(%error, "what the stage remembered is read back from the journal");
                }
                Err(error) => return Err(error),
            }
        }
        Ok((None, 0))
    }

    /// Puts the manifest on stable storage as it was read: the life before may have died before its last
    /// write was, and what is done from here on relies on it.
    pub(crate) fn settle_manifest(&mut self, disk: &dyn Disk, reserve: &Reserve) -> io::Result<()> {
        if self.manifest.sequence == 0 {
            return Ok(());
        }
        match reserve.with(|| self.manifest_writer.write_snapshot(disk, &self.manifest)) {
            // There is room for what is there.
            Err(error) if is_full(&error) => {
                disk.open(MANIFEST_FILE)?.sync()?;
                disk.sync_names()
            }
            settled => settled,
        }
    }

    /// Removes the files that nothing names: steps that a crash broke off, and what was about to be
    /// removed.
    pub(crate) fn remove_unnamed(&self, disk: &dyn Disk) -> io::Result<()> {
        let mut named: HashSet<String> = HashSet::new();
        let files = self.parts.iter().map(|part| &part.data().name);
        let bases = self.bases.values().map(|base| &base.files.data.name);
        for name in files.chain(bases) {
            named.insert(index_name(name));
            named.insert(name.clone());
        }
        named.extend(self.tables.iter().map(|table| table.name().to_owned()));
        let mut removed = 0;
        for name in disk.list()? {
            let segment = name.strip_suffix(".journal").and_then(|start| start.parse::<u64>().ok());
            let is_ours =
                [".index", ".heads", ".filed", ".new"].iter().any(|kind| name.ends_with(kind));
            let is_old = segment.is_some_and(|start| start < self.manifest.indexed_to);
            if (is_ours || is_old) && !named.contains(&name) {
                disk.remove(&name)?;
                removed += 1;
            }
        }
        if removed > 0 {
            disk.sync_names()?;
        }
        remove_overtaken(disk)?;
        // Where a crash came between. A full disk has no room for less, either.
        if let Err(error) = fold_gone(disk, &self.parts, self.manifest.indexed_to, &mut || Ok(())) {
            tracing::warn!(%error, "proofs of what is gone are not cut; it is tried again");
        }
        Ok(())
    }

    /// Goes on with what was opened.
    pub(crate) fn into_history(
        self,
        disk: Arc<dyn Disk>,
        reserve: Arc<Reserve>,
        segments: Arc<Segments>,
        options: &Options,
        manifest_sequence: Arc<AtomicU64>,
    ) -> History {
        let history = History {
            disk,
            reserve,
            segments,
            parts: Arc::new(Parts::new(self.parts)),
            cache: self.cache,
            stats: HistoryStats {
                rebuilt: AtomicU64::new(self.rebuilt as u64),
                ..Default::default()
            },
            logs: RwLock::default(),
            unloaded_bases: Mutex::new(self.bases.into_iter().collect()),
            dropped: AtomicU64::new(0),
            idle_logs_max: options.idle_logs_max,
            merge_bytes_min: options.merge_bytes_min,
            uncovered_parts_max: options.uncovered_parts_max,
            tables: RwLock::new(self.tables.into()),
            manifest: Mutex::new(self.manifest),
            manifest_writer: Mutex::new(self.manifest_writer),
            reclaiming: Mutex::new(Reclaiming::default()),
            unnamed: Mutex::default(),
            waiting: Mutex::new(Waiting::default()),
            changed: Condvar::new(),
            tending: Mutex::default(),
            manifest_sequence,
            proves: options.proofs,
            proved_to: AtomicU64::new(0),
            proofs_due: AtomicBool::new(true),
            unproved: Mutex::default(),
            signing_key: OnceLock::new(),
            is_in_doubt: AtomicBool::new(false),
            lost: OnceLock::new(),
            is_closing: AtomicBool::new(false),
            foreground: AtomicU64::new(0),
            foreground_seen: AtomicU64::new(0),
        };
        // What was given up in an earlier life may be freed in the first round.
        let settled =
            history.manifest.lock().logs.iter().map(|(id, h)| (*id, h.freed.end)).collect();
        history.reclaiming.lock().settled = settled;
        history
    }
}

fn lost(error: io::Error, file: &str) -> HistoryError {
    match error.kind() {
        io::ErrorKind::NotFound => HistoryError::Lost { file: file.to_owned() },
        _ => HistoryError::Disk(error),
    }
}

fn open_segment(disk: &dyn Disk, start: u64) -> Result<Arc<DataFile>, HistoryError> {
    let name = segment_name(start);
    let segment = Segment::open(disk, &name, start).map_err(|error| lost(error, &name))?;
    Ok(segment.ok_or(HistoryError::Lost { file: name })?.data)
}

fn open_filed(
    disk: &dyn Disk,
    name: String,
    expected: FiledHeader,
) -> Result<Arc<DataFile>, HistoryError> {
    let file = disk.open(&name).map_err(|error| lost(error, &name))?;
    if read_header(&*file)? != Some(expected) {
        return Err(HistoryError::Lost { file: name });
    }
    Ok(Arc::new(DataFile::new(name, file)))
}

pub(super) fn read_header(file: &dyn crate::disk::DiskFile) -> io::Result<Option<FiledHeader>> {
    let mut bytes = [0; FILED_HEADER_BYTES as usize];
    if file.length()? < FILED_HEADER_BYTES {
        return Ok(None);
    }
    read_exact_at(file, &mut bytes, 0)?;
    Ok(FiledHeader::decode(&bytes))
}
