//! Backups of a data directory while its server runs, and data directories made of backups.
//!
//! The server names a point and keeps the files that belong to it (`BackupPoint`). This process
//! copies them, and holds the connection on which it asked. So the server copies nothing, and a
//! backup that is interrupted ends with its process.
//!
//! A backup is a data directory. It gets its identity last: without one it is incomplete, and no
//! server uses it.

use std::fs::{self, DirBuilder, File, FileTimes};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use compat_kafka::{KafkaFormat, KafkaOptions};
use engine::EngineOptions;
use hlc::Hlc;
use storage::DataDirectory;
use storage::backup::{
    AsOfError, CopiedContent, CopiedFile, JournalCopy, LostLog, copy_as_of, copy_file,
    copy_of_stopped, copy_up_to, finish_copy,
};
use storage::disk::{ReadOnlyDisk, RealDisk};

use crate::broker::{open_data_directory, restrict_new_files};
use crate::control::{RemoteBackupPoint, begin_backup_if_running};

/// The directory of the journal in a data directory.
const JOURNAL: &str = "journal";
const SECRET: &str = "SECRET";
const IDENTITY: &str = "FREEZEFRAME";
/// The first bytes of a data file, which tell it from another file of its name.
const FILE_HEADER_BYTES: usize = 64;

/// The way to make a file of a backup that never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMode {
    /// A hard link if both directories are on one file system, else a copy.
    Link,
    /// A copy, which shares blocks with the source where the file system can do that.
    Copy,
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupSummary {
    /// Everything up to this stamp is in it.
    pub last: Hlc,
    /// True if a server was running on the source.
    pub was_running: bool,
    pub files: u64,
    /// Bytes that were copied.
    pub copied_bytes: u64,
    /// Bytes of files that are links to those of the source or of an earlier backup.
    pub linked_bytes: u64,
}

/// Called with the bytes that are done, and those of all.
pub type CopyProgress<'a> = dyn FnMut(u64, u64) + 'a;

/// The source of a backup, while it is copied.
struct BackupSource {
    directory: PathBuf,
    cluster_id: String,
    copy: JournalCopy,
    /// The running server, which keeps the files; or the lock that no server can take.
    _held: HeldSource,
}

enum HeldSource {
    #[expect(dead_code, reason = "its drop ends it")]
    Running(RemoteBackupPoint),
    #[expect(dead_code, reason = "its drop ends it")]
    Stopped(DataDirectory),
}

impl BackupSource {
    fn open(data_dir: &Path) -> anyhow::Result<BackupSource> {
        let running = begin_backup_if_running(data_dir)?;
        let journal = data_dir.join(JOURNAL);
        let disk = ReadOnlyDisk::new(&journal);
        let (cluster_id, copy, held) = match running {
            Some(point) => {
                let cluster_id = DataDirectory::read_cluster_id(data_dir)?;
                let (manifest, end) = (point.manifest.clone(), point.end);
                let copy = copy_up_to(&disk, manifest, end, point.moment, point.mark);
                (cluster_id, copy.context("read the journal")?, HeldSource::Running(point))
            }
            None => {
                let home = DataDirectory::open_existing(data_dir)?;
                if let Some(error) = home.identity_error() {
                    bail!("{error}");
                }
                home.require_journal()?;
                let copy = copy_of_stopped(&disk).context("read the journal")?;
                (home.cluster_id().to_owned(), copy, HeldSource::Stopped(home))
            }
        };
        Ok(BackupSource { directory: data_dir.to_owned(), cluster_id, copy, _held: held })
    }

    fn journal(&self) -> PathBuf {
        self.directory.join(JOURNAL)
    }

    /// The length of each file of the copy; soft files that are gone are left out.
    fn sized_files(&self) -> anyhow::Result<Vec<(CopiedFile, u64)>> {
        let mut files = Vec::with_capacity(self.copy.files.len());
        for file in &self.copy.files {
            let bytes = match &file.content {
                CopiedContent::Beginning(bytes) => *bytes,
                CopiedContent::Whole | CopiedContent::SortedAsOf { .. } => {
                    match fs::metadata(self.journal().join(&file.name)) {
                        Ok(metadata) => metadata.len(),
                        Err(error) if error.kind() == io::ErrorKind::NotFound && file.is_soft => {
                            continue;
                        }
                        Err(error) => {
                            return Err(error).with_context(|| format!("read {}", file.name));
                        }
                    }
                }
            };
            files.push((file.clone(), bytes));
        }
        Ok(files)
    }

    fn summary(&self) -> BackupSummary {
        BackupSummary {
            last: self.copy.bound.bound.previous(),
            was_running: matches!(self._held, HeldSource::Running(_)),
            ..BackupSummary::default()
        }
    }
}

/// Makes a backup of `data_dir` in `target`, a directory that is new or empty. `earlier` is a
/// backup that has files already.
///
/// # Errors
/// The source or the target cannot be used, or a disk fails or is full; then what was copied is
/// removed.
pub fn back_up(
    data_dir: &Path,
    target: &Path,
    earlier: Option<&Path>,
    mode: CopyMode,
    progress: &mut CopyProgress<'_>,
) -> anyhow::Result<BackupSummary> {
    restrict_new_files();
    if let Some(earlier) = earlier {
        DataDirectory::read_cluster_id(earlier).context("read the earlier backup")?;
    }
    let source = BackupSource::open(data_dir)?;
    if let Some(earlier) = earlier {
        let cluster_id = DataDirectory::read_cluster_id(earlier)?;
        ensure!(
            cluster_id == source.cluster_id,
            "{} is a backup of another cluster",
            earlier.display()
        );
    }
    let target = TargetDirectory::create(target)?;
    let result = target.fill(&source, earlier, mode, progress);
    if result.is_err() {
        target.remove();
    }
    result
}

/// Writes a backup of `data_dir` to `output`, as a tar archive. Its last file makes it complete.
///
/// # Errors
/// The source cannot be used, a disk fails, or nobody reads the output.
pub fn back_up_to_archive(
    data_dir: &Path,
    output: &mut dyn Write,
    progress: &mut CopyProgress<'_>,
) -> anyhow::Result<BackupSummary> {
    let source = BackupSource::open(data_dir)?;
    let mut summary = source.summary();
    let files = source.sized_files()?;
    let all = files.iter().map(|(_, bytes)| bytes).sum();
    let mut archive = tar::Builder::new(output);
    let doing = "write the archive";
    let mut add = |path: &Path, bytes: u64, content: &mut dyn Read| -> anyhow::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes);
        header.set_mode(0o600);
        header.set_mtime(0);
        archive.append_data(&mut header, path, content).context(doing)?;
        Ok(())
    };
    for (file, bytes) in &files {
        let opened = File::open(source.journal().join(&file.name));
        let mut opened = opened.with_context(|| format!("read {}", file.name))?;
        add(&Path::new(JOURNAL).join(&file.name), *bytes, &mut (&mut opened).take(*bytes))?;
        summary.files += 1;
        summary.copied_bytes += bytes;
        progress(summary.copied_bytes, all);
    }
    for (name, bytes) in source.copy.own_files() {
        add(&Path::new(JOURNAL).join(name), bytes.len() as u64, &mut &bytes[..])?;
    }
    if let Some(secret) = read_secret(data_dir)? {
        add(Path::new(SECRET), secret.len() as u64, &mut &secret[..])?;
    }
    let identity = storage::DirectoryIdentity::encode(&source.cluster_id);
    add(Path::new(IDENTITY), identity.len() as u64, &mut identity.as_bytes())?;
    archive.finish().context(doing)?;
    Ok(summary)
}

fn read_secret(data_dir: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    match fs::read(data_dir.join(SECRET)) {
        Ok(secret) => Ok(Some(secret)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context("read the file SECRET"),
    }
}

/// A directory that becomes a data directory.
struct TargetDirectory {
    directory: PathBuf,
    /// True if it was created here.
    is_new: bool,
}

impl TargetDirectory {
    fn create(directory: &Path) -> anyhow::Result<TargetDirectory> {
        let shown = directory.display();
        let is_new = match fs::read_dir(directory) {
            Ok(mut entries) => {
                let is_empty = entries.next().is_none();
                ensure!(is_empty, "{shown} is not empty: name a new or an empty directory");
                false
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => return Err(error).with_context(|| format!("look into {shown}")),
        };
        let mut builder = DirBuilder::new();
        let created = builder.recursive(true).mode(0o700).create(directory.join(JOURNAL));
        created.with_context(|| format!("create {shown}"))?;
        Ok(TargetDirectory { directory: directory.to_owned(), is_new })
    }

    fn journal(&self) -> PathBuf {
        self.directory.join(JOURNAL)
    }

    /// Removes what was made.
    fn remove(&self) {
        let _ = fs::remove_dir_all(self.journal());
        let _ = fs::remove_file(self.directory.join(SECRET));
        if self.is_new {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }

    fn fill(
        &self,
        source: &BackupSource,
        earlier: Option<&Path>,
        mode: CopyMode,
        progress: &mut CopyProgress<'_>,
    ) -> anyhow::Result<BackupSummary> {
        let mut summary = source.summary();
        let files = source.sized_files()?;
        let all = files.iter().map(|(_, bytes)| bytes).sum();
        let from = ReadOnlyDisk::new(&source.journal());
        let to = Arc::new(RealDisk::open(&self.journal()).context("open the backup")?);
        for (file, bytes) in &files {
            let is_linked = self.copy_or_link(source, earlier, mode, file, (&from, &*to));
            let is_linked = is_linked.with_context(|| format!("copy {}", file.name))?;
            summary.files += 1;
            let counted =
                if is_linked { &mut summary.linked_bytes } else { &mut summary.copied_bytes };
            *counted += bytes;
            progress(summary.linked_bytes + summary.copied_bytes, all);
        }
        finish_copy(&*to, &source.copy).context("finish the copy")?;
        if let Some(secret) = read_secret(&source.directory)? {
            fs::write(self.directory.join(SECRET), secret).context("write the file SECRET")?;
        }
        DataDirectory::commit_copy(&self.directory, &source.cluster_id)?;
        Ok(summary)
    }

    /// Returns whether the file is a link.
    fn copy_or_link(
        &self,
        source: &BackupSource,
        earlier: Option<&Path>,
        mode: CopyMode,
        file: &CopiedFile,
        (from, to): (&ReadOnlyDisk, &RealDisk),
    ) -> anyhow::Result<bool> {
        if file.content != CopiedContent::Whole {
            copy_file(from, to, file)?;
            return Ok(false);
        }
        let (from, to) = (source.journal().join(&file.name), self.journal().join(&file.name));
        let before = earlier.map(|earlier| earlier.join(JOURNAL).join(&file.name));
        let before = before.filter(|before| is_same_file(&from, before).unwrap_or(false));
        let linkable = before.into_iter().chain((mode == CopyMode::Link).then(|| from.clone()));
        for existing in linkable {
            if fs::hard_link(existing, &to).is_ok() {
                return Ok(true);
            }
        }
        copy_whole(&from, &to)?;
        Ok(false)
    }
}

/// True if a file of an earlier backup is the same as one that never changes: both have the same
/// length, time of change, and beginning, which has a random number where a name can occur twice.
fn is_same_file(file: &Path, before: &Path) -> io::Result<bool> {
    let (file, before) = (File::open(file)?, File::open(before)?);
    let (now, then) = (file.metadata()?, before.metadata()?);
    let times = |of: &fs::Metadata| (of.len(), of.mtime(), of.mtime_nsec());
    let header = |of: &File| -> io::Result<[u8; FILE_HEADER_BYTES]> {
        let mut bytes = [0; FILE_HEADER_BYTES];
        of.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    };
    Ok(times(&now) == times(&then) && header(&file)? == header(&before)?)
}

/// Copies a file with its time of change, and syncs it. Where the file system can, both share their
/// blocks.
fn copy_whole(from: &Path, to: &Path) -> anyhow::Result<()> {
    let mut source = File::open(from)?;
    let mut target = File::create_new(to)?;
    io::copy(&mut source, &mut target)?;
    let times = FileTimes::new().set_modified(source.metadata()?.modified()?);
    target.set_times(times)?;
    target.sync_all()?;
    // A file that was cut short meanwhile would be no copy.
    let (read, written) = (source.stream_position()?, target.metadata()?.len());
    ensure!(read == written, "{read} bytes were read and {written} written");
    Ok(())
}

/// Makes a data directory of a backup: all of it, or what it was when `last` was the last stamp.
///
/// The directory is opened once, so that all that is soft is rebuilt, and a server starts at once.
///
/// # Errors
/// The backup or the target cannot be used, the moment is not in the backup, or a disk fails or is
/// full. What was made is removed then.
pub fn restore(
    backup: &Path,
    target: &Path,
    last: Option<Hlc>,
    progress: &mut CopyProgress<'_>,
) -> anyhow::Result<BackupSummary> {
    restrict_new_files();
    let home = DataDirectory::open_existing(backup).map_err(|error| explain(backup, error))?;
    if let Some(error) = home.identity_error() {
        bail!("{error}");
    }
    home.require_journal()?;
    let disk = ReadOnlyDisk::new(&home.journal());
    let copy = match last {
        None => copy_of_stopped(&disk).context("read the backup")?,
        Some(last) => copy_as_of(&disk, last).map_err(|error| explain_moment(last, error))?,
    };
    let last = last.unwrap_or_else(|| copy.bound.bound.previous());
    let lost_logs = copy.lost_logs.clone();
    let source = BackupSource {
        directory: backup.to_owned(),
        cluster_id: home.cluster_id().to_owned(),
        copy,
        _held: HeldSource::Stopped(home),
    };
    let target = TargetDirectory::create(target)?;
    let result = target.fill(&source, None, CopyMode::Copy, progress).and_then(|summary| {
        open_once(&target.directory, &lost_logs)?;
        Ok(BackupSummary { last, ..summary })
    });
    if result.is_err() {
        let _ = fs::remove_file(target.directory.join(IDENTITY));
        let _ = fs::remove_dir_all(target.directory.join("catalog"));
        let _ = fs::remove_file(target.directory.join("LOCK"));
        target.remove();
    }
    result
}

fn explain(backup: &Path, error: storage::DataDirectoryError) -> anyhow::Error {
    let is_begun = backup.join(JOURNAL).is_dir();
    match error {
        storage::DataDirectoryError::NotFound { .. } if is_begun => anyhow::anyhow!(
            "{} is no complete backup: the backup was interrupted before its last file",
            backup.display()
        ),
        error => error.into(),
    }
}

fn explain_moment(last: Hlc, error: AsOfError) -> anyhow::Error {
    let date = |stamp: Hlc| format!("s{}", stamp.time().0);
    match error {
        AsOfError::AfterEnd { last: end } => anyhow::anyhow!(
            "the backup ends before that moment, at {}: take a later backup, or leave out --at",
            date(end)
        ),
        AsOfError::BeforeBeginning => {
            anyhow::anyhow!("the backup begins after that moment: give a later one")
        }
        AsOfError::Incomplete { from } => incomplete(from),
        error => {
            anyhow::Error::from(error).context(format!("read the backup as of {}", date(last)))
        }
    }
}

fn incomplete(from: Hlc) -> anyhow::Error {
    anyhow::anyhow!(
        "what there was at that moment was partly removed or compacted before the backup was taken: \
         give s{} or a later moment, or an earlier backup",
        from.next().time().0 + 1
    )
}

/// Opens a restored directory, and closes it in order.
fn open_once(directory: &Path, lost_logs: &[LostLog]) -> anyhow::Result<()> {
    let options = KafkaOptions::default();
    let format = KafkaFormat { decompressed_bytes_max: options.decompressed_bytes_max };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("start the runtime")?;
    let _entered = runtime.enter();
    let (home, engine) = open_data_directory(directory, EngineOptions::default(), format)
        .context("open the restored directory")?;
    let used = engine.maintenance().logs_in_use(lost_logs.iter().map(|lost| lost.log));
    engine.close();
    drop(home);
    let from = lost_logs.iter().filter(|lost| used.contains(&lost.log));
    match from.map(|lost| lost.complete_from).max() {
        Some(from) => Err(incomplete(from)),
        None => Ok(()),
    }
}
