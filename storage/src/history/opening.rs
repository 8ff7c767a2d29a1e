//! Opening what is sealed: the manifest, the parts that it names, and how far each log had come.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use hlc::Hlc;
use parking_lot::{Condvar, Mutex, RwLock};

use super::indexing::{anew, follows, promote, rebuild};
use super::{History, HistoryStats, Reclaiming, Waiting};
use crate::data_file::DataFile;
use crate::disk::{Disk, read_exact_at};
use crate::filed::{FILED_HEADER_BYTES, FiledHeader, base_name, filed_name, index_name};
use crate::index::{BlockCache, Index, Run, Tip};
use crate::journal::{Segment, Segments, segment_name};
use crate::log::{Base, Beginning, LogId};
use crate::manifest::{Horizon, Listed, MANIFEST_FILE, Manifest, ManifestError};
use crate::part::{Indexed, Layout, Part, Parts};
use crate::proof::{cut_proof, proof_start};
use crate::reserve::Reserve;

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
    tips: BTreeMap<LogId, Tip>,
    pub(crate) bases: BTreeMap<LogId, Arc<Base>>,
    /// The places of the parts whose indexes were made anew.
    rebuilt: BTreeSet<usize>,
    rebuilt_count: u64,
}

/// What the stage remembered, if that is known, and the parts that it had not seen.
pub(crate) type Remembered = (Option<Vec<u8>>, Vec<Arc<Part>>);

impl Opened {
    /// Opens the parts that the manifest names; makes indexes anew that are lost.
    pub(crate) fn read(disk: &dyn Disk, cache: Arc<BlockCache>) -> Result<Opened, HistoryError> {
        let manifest = Manifest::read(disk)?;
        if manifest.sequence == 0 && disk.list()?.iter().any(|name| name.ends_with(".filed")) {
            return Err(HistoryError::Lost { file: MANIFEST_FILE.to_owned() });
        }
        let (parts, tips, bases) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let mut opened = Opened {
            manifest,
            parts,
            cache,
            tips,
            bases,
            rebuilt: BTreeSet::new(),
            rebuilt_count: 0,
        };
        for listed in opened.manifest.parts.clone() {
            let part = opened.open_part(disk, listed)?;
            opened.parts.push(Arc::new(part));
        }
        opened.check_order()?;
        opened.read_tips(disk)?;
        opened.settle_rebuilt(disk)?;
        for (log, horizon) in opened.manifest.logs.clone() {
            if horizon.base > 0 {
                let base = opened.open_base(disk, log, &horizon)?;
                opened.bases.insert(log, Arc::new(base));
            }
            let tip = opened.tips.entry(log).or_insert(Tip::NONE);
            if horizon.freed.end > tip.end {
                *tip = horizon.freed;
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

    fn open_part(&mut self, disk: &dyn Disk, listed: Listed) -> Result<Part, HistoryError> {
        let data = match listed.layout {
            Layout::Journal => open_segment(disk, listed.start)?,
            Layout::Filed { generation } => {
                let (name, log) = (filed_name(listed.start, generation), None);
                let (start, end, generation) = (listed.start, listed.end, u64::from(generation));
                open_filed(disk, name, FiledHeader { start, end, generation, log })?
            }
        };
        let name = index_name(&data.name);
        let whole = |index: &Index| index.header.end == listed.end;
        let index = match Index::open(disk, &name, listed.start, &self.cache)?.filter(whole) {
            Some(index) => index,
            None => {
                let place = self.parts.len();
                self.mend_before(disk, place)?;
                let before = self.parts.last().map(|part| part.index());
                rebuild(disk, &self.manifest, listed, &data, before.as_deref(), None)?;
                self.rebuilt.insert(place);
                let index = Index::open(disk, &anew(&name), listed.start, &self.cache)?;
                index.filter(whole).ok_or(HistoryError::Lost { file: name })?
            }
        };
        Ok(Part::new(listed.layout, Indexed { data, index: Arc::new(index) }))
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

    /// How far each log had come where the parts end: the last directory has them all.
    fn read_tips(&mut self, disk: &dyn Disk) -> Result<(), HistoryError> {
        let Some(last) = self.parts.len().checked_sub(1) else { return Ok(()) };
        self.tips = match tips_of(&self.parts[last].index()) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.mend(disk, last)?;
                tips_of(&self.parts[last].index())?
            }
            tips => tips?,
        };
        Ok(())
    }

    /// Makes the index in front of a place anew, if it is damaged: the one that follows is made from it.
    fn mend_before(&mut self, disk: &dyn Disk, place: usize) -> Result<(), HistoryError> {
        match place.checked_sub(1) {
            Some(before) if !self.parts[before].index().check(disk)?.is_empty() => {
                self.mend(disk, before)
            }
            _ => Ok(()),
        }
    }

    /// Whether the parts go on where those end whose indexes were made anew; these take the place of
    /// the damaged ones then.
    fn settle_rebuilt(&mut self, disk: &dyn Disk) -> Result<(), HistoryError> {
        for place in &self.rebuilt {
            let Some(next) = self.parts.get(place + 1) else { continue };
            let (part, next) = (&self.parts[*place], next.index());
            // A damaged one is no witness, and is compared with this one when it is made anew.
            if next.check(disk)?.is_empty() {
                follows(&part.index(), &next, &self.manifest, part.data())?;
            }
        }
        self.rebuilt_count += self.rebuilt.len() as u64;
        for place in std::mem::take(&mut self.rebuilt) {
            let part = &self.parts[place];
            let name = index_name(&part.data().name);
            promote(disk, &name)?;
            let index = Index::open(disk, &name, part.start, &self.cache)?;
            part.set_index(index.map(Arc::new).ok_or(HistoryError::Lost { file: name })?);
        }
        Ok(())
    }

    /// Makes the index of a part anew.
    fn mend(&mut self, disk: &dyn Disk, place: usize) -> Result<(), HistoryError> {
        self.mend_before(disk, place)?;
        let part = Arc::clone(&self.parts[place]);
        let before = place.checked_sub(1).map(|before| self.parts[before].index());
        let listed = Listed { start: part.start, end: part.end, layout: part.layout };
        rebuild(disk, &self.manifest, listed, part.data(), before.as_deref(), None)?;
        self.rebuilt.insert(place);
        let name = anew(&index_name(&part.data().name));
        let index = Index::open(disk, &name, part.start, &self.cache)?;
        part.set_index(index.map(Arc::new).ok_or(HistoryError::Lost { file: name })?);
        Ok(())
    }

    /// What the stage last remembered, and the parts that it had not seen; their indexes are whole.
    pub(crate) fn remembered(&mut self, disk: &dyn Disk) -> Result<Remembered, HistoryError> {
        let (state, unseen) = self.state()?;
        if unseen < self.parts.len() {
            self.mend_bases(disk)?;
        }
        for place in unseen..self.parts.len() {
            if !self.parts[place].index().check(disk)?.is_empty() {
                self.mend(disk, place)?;
            }
        }
        self.settle_rebuilt(disk)?;
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
        let mut removed = 0;
        for name in disk.list()? {
            let segment = name.strip_suffix(".journal").and_then(|start| start.parse::<u64>().ok());
            let is_ours = [".index", ".filed", ".new"].iter().any(|kind| name.ends_with(kind));
            let is_old = segment.is_some_and(|start| start < self.manifest.indexed_to);
            if (is_ours || is_old) && !named.contains(&name) {
                disk.remove(&name)?;
                removed += 1;
            }
        }
        if removed > 0 {
            disk.sync_names()?;
        }
        self.cut_unnamed_proofs(disk)
    }

    /// Cuts the leaves off the proofs of stretches of which nothing is kept, where a crash came between.
    fn cut_unnamed_proofs(&self, disk: &dyn Disk) -> io::Result<()> {
        let named: HashSet<u64> = self.parts.iter().map(|part| part.start).collect();
        let starts = disk.list()?.into_iter().filter_map(|name| proof_start(&name));
        for start in starts.filter(|start| *start < self.manifest.indexed_to) {
            if !named.contains(&start) {
                cut_proof(disk, start)?;
            }
        }
        Ok(())
    }

    /// Goes on with what was opened.
    pub(crate) fn into_history(
        self,
        disk: Arc<dyn Disk>,
        reserve: Arc<Reserve>,
        segments: Arc<Segments>,
        proves: bool,
        manifest_sequence: Arc<AtomicU64>,
    ) -> History {
        let mut bases = self.bases;
        let history = History {
            disk,
            reserve,
            segments,
            parts: Arc::new(Parts::new(self.parts)),
            cache: self.cache,
            stats: HistoryStats {
                rebuilt: AtomicU64::new(self.rebuilt_count),
                ..Default::default()
            },
            logs: RwLock::default(),
            manifest: Mutex::new(self.manifest),
            reclaiming: Mutex::new(Reclaiming::default()),
            unnamed: Mutex::default(),
            waiting: Mutex::new(Waiting::default()),
            changed: Condvar::new(),
            manifest_sequence,
            proves,
            proved_to: AtomicU64::new(0),
            signing_key: OnceLock::new(),
            is_in_doubt: AtomicBool::new(false),
            lost: OnceLock::new(),
            is_closing: AtomicBool::new(false),
            foreground: AtomicU64::new(0),
            foreground_seen: AtomicU64::new(0),
        };
        let indexed_to = history.manifest.lock().indexed_to;
        let mut logs = std::collections::HashMap::new();
        for (id, tip) in self.tips {
            let horizon = history.manifest.lock().horizon(id);
            let log = history.new_log(id, tip, Beginning { horizon, base: bases.remove(&id) });
            log.set_indexed(indexed_to, tip);
            logs.insert(id, log);
        }
        *history.logs.write() = logs;
        // What was given up in an earlier life may be freed in the first round.
        let settled =
            history.manifest.lock().logs.iter().map(|(id, h)| (*id, h.freed.end)).collect();
        history.reclaiming.lock().settled = settled;
        history
    }
}

fn tips_of(index: &Index) -> io::Result<BTreeMap<LogId, Tip>> {
    let tip = |run: Run| (run.log, run.tip);
    (0..index.header.runs).map(|number| index.run_at(number).map(tip)).collect()
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
