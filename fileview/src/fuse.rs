//! The tree as a file system that any program can use (FUSE).
//!
//! [`FuseMounts`] are all mounts of one server. A mount is served by a few threads of its own, which ask the
//! engine directly. What holds true of it:
//!
//! - `files/` is read and written. A change is accepted, stamped and visible when the call returns;
//!   `fsync` of any file or directory waits for stable storage, for everything before it. The kernel
//!   holds nothing back but what is written through a mapping (`mmap`), until that is flushed.
//! - Everything else is read only (`EROFS`).
//! - What the kernel keeps of a moment it may keep for good: moments do not change. A partition of which
//!   records were given up, or that was compacted, is another file then, of another number; and so is a
//!   pin that was set anew. What it keeps of
//!   files it keeps until they change, through it or through another mount. Of the present of topics and
//!   groups it keeps nothing.
//! - A request that waits for the disk keeps no other waiting (`workers.rs`), and what is under way is
//!   bounded.
//! - Permissions are checked by the kernel, by the modes and owners that files have.
//!
//! The protocol is `fuser`'s business.

mod attributes;
mod changes;
mod coherence;
mod errno;
mod handles;
mod inode_table;
mod interrupt;
mod mount_point;
mod mounted_tree;
mod session;
mod workers;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use engine::files::FileSystem;
use fuser::{Config, MountOption, SessionACL};
use parking_lot::Mutex;
use tokio::runtime::Handle as Runtime;

use crate::tree::ViewTree;
use coherence::{CacheInvalidator, MountId, MountRegistration};
use mount_point::{FuseConnection, MountEntry};
use mounted_tree::MountedTree;
use session::FuseSession;
use workers::FuseWorkers;

/// How many threads take requests of one mount. More than cores: some wait for the journal.
const THREADS: usize = 4;
/// How many files may have something put at their ends at a time.
const APPEND_LOCKS: usize = 64;
/// How long the end of a mount is waited for.
const UNMOUNT_WAIT_MAX: Duration = Duration::from_secs(2);

/// Why something is not mounted, or goes on being.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is nothing there.
    #[error("the mount point does not exist: make the directory first. directory={}", .0.display())]
    NotFound(PathBuf),
    /// It is no directory.
    #[error("the mount point is not a directory. path={}", .0.display())]
    NotDirectory(PathBuf),
    /// What is in it would be hidden.
    #[error("the mount point is not empty. directory={}", .0.display())]
    NotEmpty(PathBuf),
    /// Something is mounted there already.
    #[error("something is mounted there already: unmount it first. directory={}, type={by}", .directory.display())]
    Busy {
        /// Where.
        directory: PathBuf,
        /// What.
        by: String,
    },
    /// The data would be hidden, or the mount lie in it.
    #[error("the mount point and the data directory lie in each other: choose another. directory={}, data={}", .directory.display(), .data_dir.display())]
    DataDirectory {
        /// Where it was to be mounted.
        directory: PathBuf,
        /// Where the data lies.
        data_dir: PathBuf,
    },
    /// Something is open in it.
    #[error("the mount is in use: end what has files open there, or unmount it lazily. directory={}", .0.display())]
    InUse(PathBuf),
    /// Nothing of ours is mounted there.
    #[error("this server has nothing mounted there. directory={}", .0.display())]
    NotMounted(PathBuf),
    /// This kernel, or this container, has no FUSE.
    #[error(
        "/dev/fuse cannot be opened: load the module fuse, or give the container the device. {0}"
    )]
    NoFuse(#[source] io::Error),
    /// Only root can mount without it.
    #[error(
        "fusermount3 cannot be run, which mounts for others than root: install Debian's fuse3. {0}"
    )]
    NoFusermount(#[source] io::Error),
    /// It cannot be looked at, or the kernel refuses.
    #[error("cannot mount. directory={}: {source}", .directory.display())]
    CannotUse {
        /// Where.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The server is stopping.
    #[error("the server is stopping")]
    Stopping,
}

/// One mount, from outside.
struct ActiveMount {
    entry: MountEntry,
    /// Says something, or is gone, once nothing is served any more.
    ended: Receiver<()>,
}

struct MountTable {
    mounts: BTreeMap<PathBuf, ActiveMount>,
    stopping: bool,
}

struct FuseMountsInner {
    files: FileSystem,
    tree: Arc<ViewTree>,
    data_dir: PathBuf,
    runtime: Runtime,
    invalidator: Arc<CacheInvalidator>,
    append_locks: Arc<[Mutex<()>]>,
    /// Held while one is mounted or taken away.
    state: Mutex<MountTable>,
}

/// All mounts of a server.
#[derive(Clone)]
pub struct FuseMounts(Arc<FuseMountsInner>);

impl std::fmt::Debug for FuseMounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mounts").finish_non_exhaustive()
    }
}

impl FuseMounts {
    /// Nothing is mounted yet. `data_dir` is where the data lies: no mount may hide it, and a mount
    /// has as much room as there is.
    pub fn new(
        files: FileSystem,
        tree: Arc<ViewTree>,
        data_dir: PathBuf,
        runtime: Runtime,
    ) -> FuseMounts {
        let (audience, ends) =
            (Arc::default(), (0..APPEND_LOCKS).map(|_| Mutex::new(())).collect());
        let state = Mutex::new(MountTable { mounts: BTreeMap::new(), stopping: false });
        FuseMounts(Arc::new(FuseMountsInner {
            files,
            tree,
            data_dir,
            runtime,
            invalidator: audience,
            append_locks: ends,
            state,
        }))
    }

    /// Mounts the tree at an empty directory. Returns its path without links. Blocks.
    ///
    /// # Errors
    /// [`MountError`].
    pub fn mount(&self, directory: &Path) -> Result<PathBuf, MountError> {
        let inner = &self.0;
        let mut state = inner.state.lock();
        if state.stopping {
            return Err(MountError::Stopping);
        }
        remove_ended_mounts(&mut state);
        let path = mount_point::check_mount_point(directory, &inner.data_dir)?;
        let member = inner.invalidator.register();
        let session = inner.session(member.id());
        let running = inner.run(member, &path, session)?;
        tracing::info!(directory = %path.display(), "mounted");
        state.mounts.insert(path.clone(), running);
        Ok(path)
    }

    /// Takes a mount away; `lazily`, also if something is open in it: what is open goes on until it is
    /// closed, or the server ends. Blocks.
    ///
    /// # Errors
    /// [`MountError`].
    pub fn unmount(&self, directory: &Path, lazily: bool) -> Result<PathBuf, MountError> {
        let mut state = self.0.state.lock();
        remove_ended_mounts(&mut state);
        let path = find(&state, directory)?;
        let running = &state.mounts[&path];
        mount_point::unmount(&path, &running.entry, lazily)?;
        let running = state.mounts.remove(&path).expect("it was just found");
        drop(state);
        if !lazily {
            wait_until_ended(&running);
        }
        tracing::info!(directory = %path.display(), "unmounted");
        Ok(path)
    }

    /// Where something is mounted.
    pub fn list(&self) -> Vec<PathBuf> {
        let mut state = self.0.state.lock();
        remove_ended_mounts(&mut state);
        state.mounts.keys().cloned().collect()
    }

    /// Takes everything away, also what is in use, and mounts nothing any more. Blocks.
    pub fn close(&self) {
        let mut state = self.0.state.lock();
        state.stopping = true;
        let running = std::mem::take(&mut state.mounts);
        drop(state);
        for (path, running) in &running {
            match mount_point::unmount(path, &running.entry, false) {
                Ok(()) => wait_until_ended(running),
                // Whoever uses it is told by the kernel, once this process has ended.
                Err(MountError::InUse(_)) => {
                    tracing::warn!(directory = %path.display(), "unmounted while in use");
                    log_unmount_failure(mount_point::unmount(path, &running.entry, true));
                }
                failed => log_unmount_failure(failed),
            }
        }
    }
}

/// The data directory of the server that has its tree mounted at `directory`; `None` if none has, or the
/// mount does not say. Asks no server.
pub fn data_dir_of(directory: &Path) -> Option<PathBuf> {
    mount_point::data_dir_of(directory)
}

fn log_unmount_failure(unmounted: Result<(), MountError>) {
    if let Err(error) = unmounted {
        tracing::warn!(%error, "a mount could not be unmounted");
    }
}

/// Those that somebody else took away.
fn remove_ended_mounts(state: &mut MountTable) {
    let is_served = |running: &ActiveMount| {
        running.ended.recv_timeout(Duration::ZERO) == Err(RecvTimeoutError::Timeout)
    };
    state.mounts.retain(|_, running| is_served(running));
}

/// The path by which a mount is known; looked at only if its name does not tell.
fn find(state: &MountTable, directory: &Path) -> Result<PathBuf, MountError> {
    let plain = mount_point::absolute(directory);
    if state.mounts.contains_key(&plain) {
        return Ok(plain);
    }
    let canonical = std::fs::canonicalize(directory).ok();
    let found = canonical.filter(|path| state.mounts.contains_key(path));
    found.ok_or(MountError::NotMounted(plain))
}

impl FuseMountsInner {
    fn session(&self, id: MountId) -> FuseSession {
        let mounted = MountedTree {
            id,
            files: self.files.clone(),
            tree: Arc::clone(&self.tree),
            runtime: self.runtime.clone(),
            invalidator: Arc::clone(&self.invalidator),
            nodes: inode_table::InodeTable::default(),
            handles: handles::FuseHandleTable::default(),
            append_locks: Arc::clone(&self.append_locks),
            data_dir: self.data_dir.clone(),
        };
        let workers = FuseWorkers::new(self.runtime.clone(), THREADS);
        FuseSession { mounted: Arc::new(mounted), workers }
    }

    fn run(
        &self,
        member: MountRegistration,
        path: &Path,
        session: FuseSession,
    ) -> Result<ActiveMount, MountError> {
        let failed = |source| MountError::CannotUse { directory: path.to_owned(), source };
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        config.clone_fd = true;
        config.acl = SessionACL::All;
        let source = mount_point::source(&self.data_dir);
        let session = match mount_point::mount(path, &source)? {
            FuseConnection::Mounted(device) => {
                let device = OwnedFd::from(device);
                fuser::Session::from_fd(session, device, SessionACL::All, config).map_err(
                    |error| {
                        mount_point::detach_unserved_mount(path);
                        failed(error)
                    },
                )?
            }
            FuseConnection::NotPermitted => mount_with_fusermount(path, &source, session, config)?,
        };
        let listed = mount_point::mounted_at(path).ok_or_else(|| {
            failed(io::Error::other("it is not in the kernel's list of mounts any more"))
        })?;
        self.invalidator.start_notifying(member.id(), session.notifier()).map_err(failed)?;
        let (end, ended) = channel();
        let serve = move || {
            // Dropped in this order, also if it panics: whoever hears of the end finds it gone.
            let (_end, _member) = (end, member);
            if let Err(error) = session.run() {
                tracing::warn!(%error, "a mount has ended");
            }
        };
        let thread = std::thread::Builder::new().name("mount".to_owned());
        thread.spawn(serve).map_err(failed)?;
        Ok(ActiveMount { entry: listed, ended })
    }
}

/// Waits, for a while, until a mount that was taken away is not served any more.
fn wait_until_ended(running: &ActiveMount) {
    let _ = running.ended.recv_timeout(UNMOUNT_WAIT_MAX);
}

/// Mounts for somebody who is not root, and for him alone: that is what he may do.
fn mount_with_fusermount(
    path: &Path,
    source: &OsStr,
    session: FuseSession,
    mut config: Config,
) -> Result<fuser::Session<FuseSession>, MountError> {
    config.acl = SessionACL::Owner;
    // It goes through a list of options, where such a name would be two.
    let plain = |source: &&str| !source.contains([',', '\\']);
    let source = source.to_str().filter(plain).unwrap_or("freezeframe");
    config.mount_options = vec![
        MountOption::FSName(source.to_owned()),
        MountOption::Subtype("freezeframe".to_owned()),
        MountOption::DefaultPermissions,
    ];
    fuser::Session::new(session, path, &config).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => MountError::NoFusermount(source),
        _ => MountError::CannotUse { directory: path.to_owned(), source },
    })
}
