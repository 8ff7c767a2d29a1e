//! The data directory: whose it is, which version, and that one process uses it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// The version of the on-disk format that this code reads and writes.
pub const FORMAT: u32 = 2;
const IDENTITY_FILE: &str = "FREEZEFRAME";
const LOCK_FILE: &str = "LOCK";

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Another process has it.
    #[error(
        "data directory is in use by another process. directory={directory}, pid={pid}; stop that process, or give this one another --data-dir"
    )]
    InUse {
        /// The directory.
        directory: PathBuf,
        /// What the lock file says of its holder.
        pid: String,
    },
    /// It was written by another version.
    #[error(
        "data directory has format {found}, and this program reads format {FORMAT}. directory={directory}; use the version that wrote it"
    )]
    Version {
        /// The directory.
        directory: PathBuf,
        /// Its format.
        found: String,
    },
    /// It is not ours.
    #[error(
        "directory is not empty and is no freezeframe data directory. directory={directory}; give an empty or a new one"
    )]
    Foreign {
        /// The directory.
        directory: PathBuf,
    },
    /// There is nothing there.
    #[error("there is no freezeframe data directory here. directory={directory}")]
    Missing {
        /// The directory.
        directory: PathBuf,
    },
    /// The disk failed.
    #[error("{doing}: {source}. directory={directory}")]
    Disk {
        /// The directory.
        directory: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What happened.
        source: io::Error,
    },
}

/// A data directory that this process holds.
#[derive(Debug)]
pub struct Home {
    directory: PathBuf,
    cluster_id: String,
    _lock: File,
}

impl Home {
    /// Takes `directory`, and makes it a data directory if it is new or empty; `cluster_id` is then
    /// its cluster's name.
    ///
    /// # Errors
    /// [`HomeError`]; nothing was changed then.
    pub fn take(directory: &Path, cluster_id: impl FnOnce() -> String) -> Result<Home, HomeError> {
        let disk = |doing| {
            move |source| HomeError::Disk { directory: directory.to_owned(), doing, source }
        };
        fs::create_dir_all(directory).map_err(disk("make directory"))?;
        let identity = directory.join(IDENTITY_FILE);
        if !identity.exists() && !is_free(directory).map_err(disk("list directory"))? {
            return Err(HomeError::Foreign { directory: directory.to_owned() });
        }
        let lock = lock(directory)?;
        if !identity.exists() {
            let text = format!("format {FORMAT}\ncluster {}\n", cluster_id());
            write_durably(directory, &identity, &text).map_err(disk("write identity"))?;
        }
        let cluster_id = read_identity(directory, &identity)?;
        Ok(Home { directory: directory.to_owned(), cluster_id, _lock: lock })
    }

    /// Takes a data directory that is there.
    ///
    /// # Errors
    /// [`HomeError`].
    pub fn take_existing(directory: &Path) -> Result<Home, HomeError> {
        if !directory.join(IDENTITY_FILE).exists() {
            return Err(HomeError::Missing { directory: directory.to_owned() });
        }
        Home::take(directory, String::new)
    }

    /// The directory of the journal.
    pub fn journal(&self) -> PathBuf {
        self.directory.join("journal")
    }

    /// The directory of the catalog.
    pub fn catalog(&self) -> PathBuf {
        self.directory.join("catalog")
    }

    /// The name of the cluster.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }
}

/// Whether a directory holds nothing of anybody's.
fn is_free(directory: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        if name != LOCK_FILE && name != "lost+found" && !name.to_string_lossy().ends_with(".new") {
            return Ok(false);
        }
    }
    Ok(true)
}

fn lock(directory: &Path) -> Result<File, HomeError> {
    let disk = |source| HomeError::Disk { directory: directory.to_owned(), doing: "lock", source };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(directory.join(LOCK_FILE))
        .map_err(disk)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            let (directory, pid) = (directory.to_owned(), pid.trim().to_owned());
            return Err(HomeError::InUse { directory, pid });
        }
        Err(fs::TryLockError::Error(source)) => return Err(disk(source)),
    }
    // The lock counts, and not what the file says: a full disk may have no room for that.
    let _ = say_pid(&mut file);
    Ok(file)
}

/// Writes over what is there before it cuts the rest off: that takes no room.
fn say_pid(file: &mut File) -> io::Result<()> {
    let pid = format!("{}\n", std::process::id());
    file.rewind()?;
    file.write_all(pid.as_bytes())?;
    file.set_len(pid.len() as u64)
}

fn write_durably(directory: &Path, path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(directory)?.sync_all()
}

fn read_identity(directory: &Path, identity: &Path) -> Result<String, HomeError> {
    let disk = |source| HomeError::Disk {
        directory: directory.to_owned(),
        doing: "read identity",
        source,
    };
    let text = fs::read_to_string(identity).map_err(disk)?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let found = field("format ").unwrap_or("unknown").trim();
    if found != FORMAT.to_string() {
        let (directory, found) = (directory.to_owned(), found.to_owned());
        return Err(HomeError::Version { directory, found });
    }
    Ok(field("cluster ").unwrap_or_default().trim().to_owned())
}
