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
use engine::{EngineOptions, carry_restatements};
use hlc::{Hlc, OsClock};
use storage::backup::{
    AsOfError, CopiedContent, CopiedFile, CopyPlan, LostLog, copy_file, finish_copy, plan_copy,
    plan_copy_as_of, plan_copy_of_stopped,
};
use storage::disk::{ReadOnlyDisk, RealDisk};
use storage::{DataDirectory, DataDirectoryError};
use uuid::Uuid;

use crate::broker::{open_engine, restrict_new_files};
use crate::control::{RemoteBackupPoint, begin_backup_if_running};

/// The directory of the journal in a data directory.
const JOURNAL: &str = "journal";
const SECRET: &str = "SECRET";
const IDENTITY: &str = "FREEZEFRAME";
/// The first bytes of a data file, which tell it from another file of its name.
const FILE_HEADER_BYTES: usize = 64;

/// The way in which a backup gets a file that never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMode {
    /// A hard link if both directories are on one file system, else a copy.
    Link,
    /// A copy, which shares blocks with the source where the file system can do that.
    Copy,
}

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

/// Progress: bytes done, and bytes in total.
pub type CopyProgress<'a> = dyn FnMut(u64, u64) + 'a;

/// The source of a backup, while it is copied.
struct BackupSource {
    directory: PathBuf,
    cluster_id: String,
    plan: CopyPlan,
    /// The running server, which keeps the files.
    server: Option<RemoteBackupPoint>,
    /// The lock that keeps servers out, if none runs.
    _lock: Option<DataDirectory>,
}

/// Locks a data directory that no server uses.
fn open_stopped(directory: &Path) -> anyhow::Result<DataDirectory> {
    let home = DataDirectory::open_existing(directory)?;
    if let Some(error) = home.identity_error() {
        bail!("{error}");
    }
    home.require_journal()?;
    Ok(home)
}

impl BackupSource {
    fn open(data_dir: &Path) -> anyhow::Result<BackupSource> {
        let server = begin_backup_if_running(data_dir)?;
        let disk = ReadOnlyDisk::new(&data_dir.join(JOURNAL));
        let (cluster_id, plan, lock) = match &server {
            Some(server) => {
                let cluster_id = DataDirectory::read_cluster_id(data_dir)?;
                let plan = plan_copy(&disk, &server.point).context("read the journal")?;
                (cluster_id, plan, None)
            }
            None => {
                let home = open_stopped(data_dir)?;
                let plan = plan_copy_of_stopped(&disk).context("read the journal")?;
                (home.cluster_id().to_owned(), plan, Some(home))
            }
        };
        Ok(BackupSource { directory: data_dir.to_owned(), cluster_id, plan, server, _lock: lock })
    }

    /// Checks that the files were kept to the end.
    fn require_kept(&self) -> anyhow::Result<()> {
        self.server.as_ref().map_or(Ok(()), RemoteBackupPoint::require_kept)
    }

    fn journal(&self) -> PathBuf {
        self.directory.join(JOURNAL)
    }

    /// The length of each file of the copy; soft files that are gone are left out.
    fn sized_files(&self) -> anyhow::Result<Vec<(CopiedFile, u64)>> {
        let mut files = Vec::with_capacity(self.plan.files.len());
        for file in &self.plan.files {
            let bytes = match &file.content {
                CopiedContent::Beginning(bytes) => *bytes,
                CopiedContent::Whole | CopiedContent::SortedAsOf { .. } => {
                    match fs::metadata(self.journal().join(&file.name)) {
                        Ok(metadata) => metadata.len(),
                        Err(error) if is_missing(&error) && file.is_soft => {
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
            last: self.plan.last,
            was_running: self.server.is_some(),
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
    let earlier_id = earlier.map(DataDirectory::read_cluster_id).transpose();
    let earlier_id = earlier_id.context("read the earlier backup")?;
    let source = BackupSource::open(data_dir)?;
    if let Some(earlier) = earlier {
        ensure!(
            earlier_id.as_ref() == Some(&source.cluster_id),
            "the earlier backup {} is of another cluster: leave out --since, or name a backup of this one",
            earlier.display()
        );
    }
    let target = TargetDirectory::create(target)?;
    let result = target
        .fill(&source, earlier, mode, progress)
        .and_then(|summary| target.commit(&source).map(|()| summary));
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
    restrict_new_files();
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
    for (file, _) in &files {
        let name = &file.name;
        let mut opened = match File::open(source.journal().join(name)) {
            Err(error) if is_missing(&error) && file.is_soft => continue,
            opened => opened.with_context(|| format!("read {name}"))?,
        };
        let length = opened.metadata().with_context(|| format!("read {name}"))?.len();
        let bytes = match file.content {
            CopiedContent::Beginning(bytes) => bytes,
            CopiedContent::Whole | CopiedContent::SortedAsOf { .. } => length,
        };
        add(&Path::new(JOURNAL).join(name), bytes, &mut (&mut opened).take(bytes))?;
        let read = opened.stream_position().with_context(|| format!("read {name}"))?;
        ensure!(read == bytes, "{name} is shorter than it was: make the backup again");
        summary.files += 1;
        summary.copied_bytes += bytes;
        progress(summary.copied_bytes, all);
    }
    for (name, bytes) in source.plan.own_files() {
        add(&Path::new(JOURNAL).join(name), bytes.len() as u64, &mut &bytes[..])?;
    }
    if let Some(secret) = read_secret(data_dir)? {
        add(Path::new(SECRET), secret.len() as u64, &mut &secret[..])?;
    }
    source.require_kept()?;
    let identity = storage::DirectoryIdentity::encode(&source.cluster_id);
    add(Path::new(IDENTITY), identity.len() as u64, &mut identity.as_bytes())?;
    archive.finish().context(doing)?;
    Ok(summary)
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

fn read_secret(data_dir: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    match fs::read(data_dir.join(SECRET)) {
        Ok(secret) => Ok(Some(secret)),
        Err(error) if is_missing(&error) => Ok(None),
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
            Err(error) if is_missing(&error) => true,
            Err(error) => {
                let doing = format!("use {shown}: name a new or an empty directory");
                return Err(error).context(doing);
            }
        };
        let mut builder = DirBuilder::new();
        let created = builder.recursive(true).mode(0o700).create(directory);
        // Whoever creates the journal first makes the directory.
        let created =
            created.and_then(|()| DirBuilder::new().mode(0o700).create(directory.join(JOURNAL)));
        created.with_context(|| format!("create {shown}"))?;
        Ok(TargetDirectory { directory: directory.to_owned(), is_new })
    }

    fn journal(&self) -> PathBuf {
        self.directory.join(JOURNAL)
    }

    /// Removes all that was made: the directory was new or empty. The identity goes first.
    fn remove(&self) {
        let _ = fs::remove_file(self.directory.join(IDENTITY));
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
        }
        if self.is_new {
            let _ = fs::remove_dir(&self.directory);
        }
    }

    /// Makes it a data directory, on stable storage.
    fn commit(&self, source: &BackupSource) -> anyhow::Result<()> {
        let secret = read_secret(&source.directory)?;
        source.require_kept()?;
        DataDirectory::commit_copy(&self.directory, &source.cluster_id, secret.as_deref())?;
        let absolute = self.directory.canonicalize().context("look at the new directory")?;
        let parent = absolute.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all());
        parent.context("sync the directory above the new one")
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
        let to = RealDisk::open(&self.journal()).context("open the new directory")?;
        for (file, bytes) in &files {
            let is_linked = self.copy_or_link(source, earlier, mode, file, &to);
            let is_linked = is_linked.with_context(|| format!("copy {}", file.name))?;
            summary.files += 1;
            let counted =
                if is_linked { &mut summary.linked_bytes } else { &mut summary.copied_bytes };
            *counted += bytes;
            progress(summary.linked_bytes + summary.copied_bytes, all);
        }
        finish_copy(&to, &source.plan).context("finish the copy")?;
        Ok(summary)
    }

    /// Returns whether the file is a link.
    fn copy_or_link(
        &self,
        source: &BackupSource,
        earlier: Option<&Path>,
        mode: CopyMode,
        file: &CopiedFile,
        to: &RealDisk,
    ) -> anyhow::Result<bool> {
        if file.content != CopiedContent::Whole {
            copy_file(&ReadOnlyDisk::new(&source.journal()), to, file)?;
            return Ok(false);
        }
        let (from, to) = (source.journal().join(&file.name), self.journal().join(&file.name));
        let before = earlier.map(|earlier| earlier.join(JOURNAL).join(&file.name));
        let before = before.filter(|before| is_same_file(&from, before, mode).unwrap_or(false));
        let linkable = before.into_iter().chain((mode == CopyMode::Link).then(|| from.clone()));
        for existing in linkable {
            if fs::hard_link(existing, &to).is_ok() {
                return Ok(true);
            }
        }
        match copy_whole(&from, &to) {
            Err(error) if is_missing(&error) && file.is_soft => {}
            copied => copied?,
        }
        Ok(false)
    }
}

/// True if an earlier backup has the same file: the same length, time of change to the nanosecond
/// and header. A segment's header has a salt. A link to the source itself is no copy.
fn is_same_file(file: &Path, before: &Path, mode: CopyMode) -> io::Result<bool> {
    let (file, before) = (File::open(file)?, File::open(before)?);
    let (now, then) = (file.metadata()?, before.metadata()?);
    if mode == CopyMode::Copy && (now.dev(), now.ino()) == (then.dev(), then.ino()) {
        return Ok(false);
    }
    let times = |metadata: &fs::Metadata| (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
    let header = |file: &File| -> io::Result<[u8; FILE_HEADER_BYTES]> {
        let mut bytes = [0; FILE_HEADER_BYTES];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    };
    Ok(times(&now) == times(&then) && header(&file)? == header(&before)?)
}

/// Copies a file with its time of change, and syncs it. Where the file system can, both share their
/// blocks.
fn copy_whole(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = File::open(from)?;
    let mut target = File::create_new(to)?;
    io::copy(&mut source, &mut target)?;
    target.set_times(FileTimes::new().set_modified(source.metadata()?.modified()?))?;
    target.sync_all()
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
    let home = open_stopped(backup).map_err(|error| explain_open(backup, error))?;
    let disk = ReadOnlyDisk::new(&home.journal());
    let plan = match last {
        None => plan_copy_of_stopped(&disk).context("read the backup")?,
        Some(last) => plan_copy_as_of(&disk, last).map_err(|error| explain_moment(last, error))?,
    };
    let lost_logs = plan.lost_logs.clone();
    let source = BackupSource {
        directory: backup.to_owned(),
        cluster_id: home.cluster_id().to_owned(),
        plan,
        server: None,
        _lock: Some(home),
    };
    let target = TargetDirectory::create(target)?;
    let result = target.fill(&source, None, CopyMode::Copy, progress).and_then(|summary| {
        if last.is_some() {
            let journal = RealDisk::open(&target.journal()).context("open the new journal")?;
            let (clock, salt) = (Arc::new(OsClock), Uuid::new_v4().as_u64_pair().0);
            carry_restatements(&disk, Arc::new(journal), &source.plan, clock, salt)?;
        }
        open_once(&target.directory, &lost_logs).with_context(|| {
            if last.is_some() { NOT_ENOUGH } else { "open the restored directory" }
        })?;
        target.commit(&source)?;
        Ok(summary)
    });
    if result.is_err() {
        target.remove();
    }
    result
}

/// Why a directory as of a moment may not open.
const NOT_ENOUGH: &str = "what is left of that moment is not enough to start from: give a later moment, or an earlier backup";

fn explain_open(backup: &Path, error: anyhow::Error) -> anyhow::Error {
    let is_begun = backup.join(JOURNAL).is_dir();
    match error.downcast_ref() {
        Some(DataDirectoryError::NotFound { .. }) if is_begun => anyhow::anyhow!(
            "the backup {} is incomplete, because it was interrupted: make it again",
            backup.display()
        ),
        _ => error,
    }
}

fn explain_moment(last: Hlc, error: AsOfError) -> anyhow::Error {
    let moment = |stamp: Hlc| format!("s{}", stamp.time().0);
    match error {
        AsOfError::AfterEnd { last: end } => anyhow::anyhow!(
            "the backup ends before that moment, at {}: take a later backup, or leave out --at",
            moment(end)
        ),
        AsOfError::BeforeBeginning => {
            anyhow::anyhow!("the backup begins after that moment: give a later one")
        }
        AsOfError::Incomplete { from } => incomplete(from),
        error => {
            anyhow::Error::from(error).context(format!("read the backup as of {}", moment(last)))
        }
    }
}

fn incomplete(from: Hlc) -> anyhow::Error {
    anyhow::anyhow!(
        "part of what existed at that moment was removed or compacted before the backup: try s{} or \
         later, or an earlier backup",
        from.next().time().0 + 1
    )
}

/// Opens the journal of a restored directory, and closes it in order.
fn open_once(directory: &Path, lost_logs: &[LostLog]) -> anyhow::Result<()> {
    let kafka = KafkaOptions::default();
    let format = KafkaFormat { decompressed_bytes_max: kafka.decompressed_bytes_max };
    let mut options = EngineOptions::default();
    options.core.catalog = Some(directory.join("catalog"));
    // Maintenance would write with default settings, and not with the server's.
    options.core.storage.manual_maintenance = true;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("start the runtime")?;
    let _entered = runtime.enter();
    let engine = open_engine(&directory.join(JOURNAL), options, format)?;
    let used = engine.maintenance().logs_in_use(lost_logs.iter().map(|lost| lost.log));
    engine.close();
    let from = lost_logs.iter().filter(|lost| used.contains(&lost.log));
    match from.map(|lost| lost.complete_from).max() {
        Some(from) => Err(incomplete(from)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use testkit::directory::TestDirectory;

    use super::*;

    /// Writes a file with a header, changed so long after 1970.
    fn write(directory: &TestDirectory, name: &str, header: u8, changed: Duration) -> PathBuf {
        let path = directory.path().join(name);
        fs::write(&path, [&[header; FILE_HEADER_BYTES][..], b"and more"].concat()).unwrap();
        let times = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + changed);
        File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
        path
    }

    #[test]
    fn a_file_is_the_same_by_its_length_time_and_header() {
        let directory = TestDirectory::new();
        let changed = Duration::new(1_800_000_000, 7);
        let file = write(&directory, "file", 1, changed);
        let is_same = |before: &Path| is_same_file(&file, before, CopyMode::Copy).unwrap();
        let twin = write(&directory, "twin", 1, changed);
        assert!(is_same(&twin));
        // A nanosecond later, another salt, and more bytes.
        assert!(!is_same(&write(&directory, "later", 1, changed + Duration::from_nanos(1))));
        assert!(!is_same(&write(&directory, "header", 2, changed)));
        fs::write(&twin, [1; FILE_HEADER_BYTES]).unwrap();
        let times = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + changed);
        File::options().write(true).open(&twin).unwrap().set_times(times).unwrap();
        assert!(!is_same(&twin));
        assert!(is_same_file(&file, &directory.path().join("none"), CopyMode::Copy).is_err());
    }

    #[test]
    fn a_link_to_the_source_is_no_copy_of_it() {
        let directory = TestDirectory::new();
        let file = write(&directory, "file", 1, Duration::from_secs(1_800_000_000));
        let link = directory.path().join("link");
        fs::hard_link(&file, &link).unwrap();
        assert!(!is_same_file(&file, &link, CopyMode::Copy).unwrap());
        assert!(is_same_file(&file, &link, CopyMode::Link).unwrap());
    }
}
