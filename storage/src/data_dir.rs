//! The data directory: its owner, its format version, and the lock that lets only one process use
//! it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::timekeeper::BOUND_FILE;

mod identity;

pub use identity::{DirectoryIdentity, IdentityError};

/// The version of the on-disk format that this code reads and writes.
pub const FORMAT_VERSION: u32 = 7;
/// The version of this program, which the identity file names.
const PROGRAM_VERSION: &str = env!("CARGO_PKG_VERSION");
const IDENTITY_FILE: &str = "FREEZEFRAME";
const LOCK_FILE: &str = "LOCK";
/// The key that keyed hashes follow from.
const SECRET_FILE: &str = "SECRET";
const SECRET_BYTES: usize = 32;
/// The mode of the data directory: nobody but its owner reads it.
const DIRECTORY_MODE: u32 = 0o700;
/// The mode of the files in it.
const FILE_MODE: u32 = 0o600;
/// The bits of a mode that let anybody but the owner in.
const OTHERS: u32 = 0o077;

/// The reason a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirectoryError {
    /// Another process holds it.
    #[error(
        "the data directory {directory} is in use by process {pid}: stop that process, or use another directory"
    )]
    InUse {
        directory: PathBuf,
        /// The process id in the lock file.
        pid: String,
    },
    /// It was written by another version.
    #[error(
        "the data directory {directory} has format {found}, and this program, freezeframe {PROGRAM_VERSION}, reads format {FORMAT_VERSION}; nothing was changed. {}",
        format_remedy(found, program.as_deref())
    )]
    Version {
        directory: PathBuf,
        /// Its format.
        found: String,
        /// The version of the program that gave it this format, if it says so.
        program: Option<String>,
    },
    /// It is not a data directory of ours.
    #[error(
        "the directory {directory} is not empty and is no freezeframe data directory: give an empty or a new one"
    )]
    NotEmpty { directory: PathBuf },
    /// There is nothing there.
    #[error("{directory} is no freezeframe data directory: it would hold a file FREEZEFRAME")]
    NotFound { directory: PathBuf },
    /// Its identity file is corrupt.
    #[error(
        "the file FREEZEFRAME of the data directory {directory} is corrupt; nothing was changed. Restore it from a backup, or write two lines if you know the name of the cluster: `format {FORMAT_VERSION}`, and `cluster` and the name. The next start adds the checksum"
    )]
    Identity { directory: PathBuf },
    /// It belongs to another user, who could change what this process reads.
    #[error(
        "the data directory {directory} belongs to user {owner}, and this is user {user}: run the command as its owner, or change the owner of the directory and all in it"
    )]
    Owner {
        directory: PathBuf,
        /// The user id of its owner.
        owner: u32,
        /// The user id of this process.
        user: u32,
    },
    /// A server has served from it, and its journal is gone.
    #[error(
        "a server has used the data directory {directory}, and its journal is gone: journal/bound is missing or empty; nothing was changed. Mount the journal if it has a file system of its own, or restore the whole directory from a backup; to start empty, give another directory"
    )]
    NoJournal { directory: PathBuf },
    #[error("{doing}: {directory}")]
    Disk {
        directory: PathBuf,
        /// The operation that failed.
        doing: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// A data directory that this process holds.
#[derive(Debug)]
pub struct DataDirectory {
    directory: PathBuf,
    cluster_id: String,
    identity: IdentityState,
    _lock: Option<File>,
}

/// The state of the identity file.
#[derive(Debug)]
enum IdentityState {
    /// The first start has not committed it yet.
    Uncommitted,
    /// A program that knew no checksum has written it.
    WithoutChecksum,
    Whole,
    /// It does not read as it was written: the directory was opened for inspection.
    Corrupt(DataDirectoryError),
}

/// Returns true if anybody but the owner may open a directory.
///
/// # Errors
/// There is no such directory, or the disk fails.
pub fn is_open_to_others(directory: &Path) -> io::Result<bool> {
    Ok(fs::metadata(directory)?.mode() & OTHERS != 0)
}

impl DataDirectory {
    /// Locks `directory`, and makes it a data directory if it is new or empty; then `cluster_id`
    /// gives the name of its cluster.
    ///
    /// # Errors
    /// [`DataDirectoryError`]; then nothing has changed.
    pub fn open(
        directory: &Path,
        cluster_id: impl FnOnce() -> String,
    ) -> Result<DataDirectory, DataDirectoryError> {
        let mut home = DataDirectory::open_uncommitted(directory, cluster_id)?;
        home.commit_identity()?;
        Ok(home)
    }

    /// The same, but a new directory gets its identity only with
    /// [`DataDirectory::commit_identity`]. A directory with an identity has served or was about to;
    /// one whose first start was interrupted is as good as new.
    ///
    /// # Errors
    /// [`DataDirectoryError`]; then nothing has changed.
    pub fn open_uncommitted(
        directory: &Path,
        cluster_id: impl FnOnce() -> String,
    ) -> Result<DataDirectory, DataDirectoryError> {
        let disk = |doing| {
            move |source| DataDirectoryError::Disk {
                directory: directory.to_owned(),
                doing,
                source,
            }
        };
        let created = DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory);
        created.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                disk("make the data directory where a file is, or a link that leads nowhere")(error)
            }
            _ => disk("make the data directory")(error),
        })?;
        check_owner(directory)?;
        let identity = directory.join(IDENTITY_FILE);
        let is_there =
            |path: &Path| path.try_exists().map_err(disk("look into the data directory"));
        let is_settled = is_there(&identity)?;
        let is_free = || is_vacant(directory).map_err(disk("list the data directory"));
        if !is_settled && !is_there(&temporary(&identity))? && !is_free()? {
            return Err(DataDirectoryError::NotEmpty { directory: directory.to_owned() });
        }
        // A directory of another format stays as it is, the lock file too.
        if is_settled
            && let Err(error @ DataDirectoryError::Version { .. }) =
                read_identity(directory, &identity)
        {
            return Err(error);
        }
        let lock = Some(lock(directory)?);
        let stored = if is_settled {
            read_identity(directory, &identity)?
        } else {
            let cluster_id = cluster_id();
            write_temporary(&identity, DirectoryIdentity::encode(&cluster_id).as_bytes())
                .map_err(disk("write the identity"))?;
            DirectoryIdentity { cluster_id, has_checksum: true }
        };
        let state = if !is_settled {
            IdentityState::Uncommitted
        } else if stored.has_checksum {
            IdentityState::Whole
        } else {
            IdentityState::WithoutChecksum
        };
        Ok(DataDirectory {
            directory: directory.to_owned(),
            cluster_id: stored.cluster_id,
            identity: state,
            _lock: lock,
        })
    }

    /// Gives a new directory its identity: from now on the journal has to be there. An identity
    /// without a checksum gets one. If it cannot be written it stays as it is until the next start.
    ///
    /// # Errors
    /// A new identity cannot be written.
    pub fn commit_identity(&mut self) -> Result<(), DataDirectoryError> {
        let identity = self.directory.join(IDENTITY_FILE);
        match self.identity {
            IdentityState::Uncommitted => {
                commit_temporary(&self.directory, &identity).map_err(|source| {
                    DataDirectoryError::Disk {
                        directory: self.directory.clone(),
                        doing: "write the identity",
                        source,
                    }
                })?;
            }
            IdentityState::WithoutChecksum => {
                let written = write_temporary(
                    &identity,
                    DirectoryIdentity::encode(&self.cluster_id).as_bytes(),
                )
                .and_then(|()| commit_temporary(&self.directory, &identity));
                if let Err(error) = written {
                    tracing::warn!(
                        %error,
                        "the file FREEZEFRAME gets no checksum yet; the next start tries again"
                    );
                    return Ok(());
                }
            }
            IdentityState::Whole | IdentityState::Corrupt(_) => return Ok(()),
        }
        self.identity = IdentityState::Whole;
        Ok(())
    }

    /// Checks that a directory with an identity has a journal too. The bound is on stable storage
    /// before anything is promised to a client. Without it, everything written here is gone, and a
    /// server would begin an empty history under the old name.
    ///
    /// # Errors
    /// [`DataDirectoryError::NoJournal`].
    pub fn require_journal(&self) -> Result<(), DataDirectoryError> {
        // If anything else exists, recovery gives a better report of what is missing.
        let is_nothing = |entry: &fs::DirEntry| {
            entry.file_name() == BOUND_FILE && entry.metadata().is_ok_and(|bound| bound.len() == 0)
        };
        let is_gone = match fs::read_dir(self.journal()) {
            Ok(entries) => entries.flatten().all(|entry| is_nothing(&entry)),
            Err(error) => is_absent(&error),
        };
        let is_new = matches!(self.identity, IdentityState::Uncommitted);
        if is_gone && !is_new {
            return Err(DataDirectoryError::NoJournal { directory: self.directory.clone() });
        }
        Ok(())
    }

    /// Opens an existing data directory for inspection. Nothing in it is changed, so it may be on a
    /// read-only file system. No server can lock it meanwhile. A corrupt identity does not keep the
    /// rest from being inspected: [`DataDirectory::identity_error`].
    ///
    /// # Errors
    /// [`DataDirectoryError`].
    pub fn open_existing(directory: &Path) -> Result<DataDirectory, DataDirectoryError> {
        let disk = |doing| {
            move |source| DataDirectoryError::Disk {
                directory: directory.to_owned(),
                doing,
                source,
            }
        };
        let identity = directory.join(IDENTITY_FILE);
        match fs::metadata(&identity) {
            Ok(_) => {}
            Err(error) if is_absent(&error) => {
                return Err(DataDirectoryError::NotFound { directory: directory.to_owned() });
            }
            Err(error) => return Err(disk("look into the data directory")(error)),
        }
        let lock = match File::open(directory.join(LOCK_FILE)) {
            Ok(file) => Some(lock_file(directory, file)?),
            // A backup may lack the lock file.
            Err(error) if is_absent(&error) => None,
            Err(error) => return Err(disk("lock the data directory")(error)),
        };
        let (cluster_id, state) = match read_identity(directory, &identity) {
            Ok(identity) if identity.has_checksum => (identity.cluster_id, IdentityState::Whole),
            Ok(identity) => (identity.cluster_id, IdentityState::WithoutChecksum),
            Err(error @ DataDirectoryError::Identity { .. }) => {
                (String::new(), IdentityState::Corrupt(error))
            }
            Err(error) => return Err(error),
        };
        let directory = directory.to_owned();
        Ok(DataDirectory { directory, cluster_id, identity: state, _lock: lock })
    }

    /// The name of the cluster of a directory, without locking it.
    ///
    /// # Errors
    /// [`DataDirectoryError`].
    pub fn read_cluster_id(directory: &Path) -> Result<String, DataDirectoryError> {
        Ok(read_identity(directory, &directory.join(IDENTITY_FILE))?.cluster_id)
    }

    /// Gives a complete copy of a journal its secret and its identity, which makes its directory a
    /// data directory.
    ///
    /// # Errors
    /// The disk fails or is full.
    pub fn commit_copy(
        directory: &Path,
        cluster_id: &str,
        secret: Option<&[u8]>,
    ) -> Result<(), DataDirectoryError> {
        let text = DirectoryIdentity::encode(cluster_id);
        let secret = secret.map(|secret| (SECRET_FILE, secret));
        let files = secret.into_iter().chain([(IDENTITY_FILE, text.as_bytes())]);
        for (name, bytes) in files {
            let path = directory.join(name);
            let written =
                write_temporary(&path, bytes).and_then(|()| commit_temporary(directory, &path));
            written.map_err(|source| DataDirectoryError::Disk {
                directory: directory.to_owned(),
                doing: "make it a data directory",
                source,
            })?;
        }
        Ok(())
    }

    /// The reason the identity of a directory that was opened for inspection cannot be used.
    pub fn identity_error(&self) -> Option<&DataDirectoryError> {
        match &self.identity {
            IdentityState::Corrupt(error) => Some(error),
            IdentityState::Uncommitted | IdentityState::WithoutChecksum | IdentityState::Whole => {
                None
            }
        }
    }

    /// Returns true if anybody but the owner may open it.
    ///
    /// # Errors
    /// The disk fails.
    pub fn is_open_to_others(&self) -> io::Result<bool> {
        is_open_to_others(&self.directory)
    }

    /// The key that keyed hashes follow from; `new` gives one where there is none.
    ///
    /// # Errors
    /// The disk fails.
    pub fn secret(
        &self,
        new: impl FnOnce() -> [u8; SECRET_BYTES],
    ) -> Result<[u8; SECRET_BYTES], DataDirectoryError> {
        let path = self.directory.join(SECRET_FILE);
        let disk = |source| DataDirectoryError::Disk {
            directory: self.directory.clone(),
            doing: "read or write the file SECRET",
            source,
        };
        match fs::read(&path) {
            Ok(bytes) => {
                if let Ok(secret) = bytes.try_into() {
                    return Ok(secret);
                }
                tracing::warn!("the file SECRET is corrupt; another one is made");
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(disk(error)),
        }
        let secret = new();
        write_temporary(&path, &secret).map_err(disk)?;
        commit_temporary(&self.directory, &path).map_err(disk)?;
        Ok(secret)
    }

    pub fn journal(&self) -> PathBuf {
        self.directory.join("journal")
    }

    pub fn catalog(&self) -> PathBuf {
        self.directory.join("catalog")
    }

    /// The name of its cluster; empty if the identity is corrupt.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }
}

/// The remedy for a directory of another format.
fn format_remedy(found: &str, program: Option<&str>) -> String {
    let program = match program {
        Some(program) => format!("freezeframe {program} or later"),
        None => "the version that wrote it".to_owned(),
    };
    if found.parse::<u32>().is_ok_and(|found| found < FORMAT_VERSION) {
        return format!("Run {program}: docs/FORMAT.md says which formats are upgraded");
    }
    format!("Run {program}, or restore the backup that was made before the upgrade")
}

/// Refuses a directory of another user, also as root: its owner could put a link or another file in
/// place of any.
fn check_owner(directory: &Path) -> Result<(), DataDirectoryError> {
    let metadata = fs::metadata(directory).map_err(|source| DataDirectoryError::Disk {
        directory: directory.to_owned(),
        doing: "look at the data directory",
        source,
    })?;
    let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if owner == user {
        return Ok(());
    }
    Err(DataDirectoryError::Owner { directory: directory.to_owned(), owner, user })
}

/// Returns true if a directory has no files of any user.
fn is_vacant(directory: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        if name != LOCK_FILE && name != "lost+found" && !name.to_string_lossy().ends_with(".new") {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn lock(directory: &Path) -> Result<File, DataDirectoryError> {
    let doing = "lock the data directory";
    let disk = |source| DataDirectoryError::Disk { directory: directory.to_owned(), doing, source };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(FILE_MODE)
        .open(directory.join(LOCK_FILE))
        .map_err(disk)?;
    let mut file = lock_file(directory, file)?;
    // The lock counts, and not the file's content: a full disk may have no space for that.
    let _ = write_pid(&mut file);
    Ok(file)
}

/// Overwrites the old content before it truncates the rest: that takes no space.
fn write_pid(file: &mut File) -> io::Result<()> {
    let pid = format!("{}\n", std::process::id());
    file.rewind()?;
    file.write_all(pid.as_bytes())?;
    file.set_len(pid.len() as u64)
}

/// Holds the lock until the file is closed.
fn lock_file(directory: &Path, mut file: File) -> Result<File, DataDirectoryError> {
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            let (directory, pid) = (directory.to_owned(), pid.trim().to_owned());
            Err(DataDirectoryError::InUse { directory, pid })
        }
        Err(fs::TryLockError::Error(source)) => Err(DataDirectoryError::Disk {
            directory: directory.to_owned(),
            doing: "lock the data directory",
            source,
        }),
    }
}

/// The name of a file until it is committed.
fn temporary(path: &Path) -> PathBuf {
    path.with_extension("new")
}

fn write_temporary(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(FILE_MODE);
    let mut file = options.open(temporary(path))?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn commit_temporary(directory: &Path, path: &Path) -> io::Result<()> {
    fs::rename(temporary(path), path)?;
    File::open(directory)?.sync_all()
}

fn read_identity(
    directory: &Path,
    identity: &Path,
) -> Result<DirectoryIdentity, DataDirectoryError> {
    let directory = || directory.to_owned();
    let bytes = fs::read(identity).map_err(|source| DataDirectoryError::Disk {
        directory: directory(),
        doing: "read the identity",
        source,
    })?;
    DirectoryIdentity::decode(&bytes).map_err(|error| match error {
        IdentityError::Format { found, program } => {
            DataDirectoryError::Version { directory: directory(), found, program }
        }
        IdentityError::Corrupt => DataDirectoryError::Identity { directory: directory() },
    })
}
