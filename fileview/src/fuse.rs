//! The tree as a file system that any program can use (FUSE).
//!
//! [`FuseMounts`] holds all mounts of one server. A few threads serve each mount, and they call the
//! engine directly. These properties hold:
//!
//! - Programs read and write `files/`. A change is accepted, stamped and visible when the call
//!   returns. `fsync` of any file or directory waits until everything written before it is on
//!   stable storage. The kernel delays only writes through a mapping (`mmap`), until they are
//!   flushed.
//! - Everything else is read only (`EROFS`).
//! - The kernel may cache a moment forever, because moments do not change. When retention removes
//!   records of a partition, or compaction rewrites it, the partition becomes another file with
//!   another inode number. So does a pin that is set again. The kernel caches `files/` until they
//!   change, through this mount or another one. It caches nothing of the present of topics and
//!   groups.
//! - A request that waits for the disk does not block other requests (`workers.rs`). The number of
//!   requests in progress is bounded.
//! - The kernel checks permissions, by the modes and owners of files. A [`MountGuards`] says which
//!   topics and groups each user of the machine sees. Then the kernel caches no names.
//!
//! The crate `fuser` implements the protocol.

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

use engine::Isolation;
use engine::files::FileSystem;
use fuser::{Config, MountOption, SessionACL};
use parking_lot::Mutex;
use tokio::runtime::Handle as Runtime;

use crate::tree::{TreeGuard, ViewTree};
use coherence::{CacheInvalidator, MountId, MountRegistration};
use mount_point::{FuseConnection, MountEntry};
use mounted_tree::MountedTree;
use session::FuseSession;
use workers::FuseWorkers;

/// The number of threads that take requests of one mount. It exceeds the core count: some wait for
/// the journal.
const THREADS: usize = 4;
/// The number of locks that serialize appends. A file's inode number selects its lock.
const APPEND_LOCKS: usize = 64;
/// The longest time that an unmount waits for the mount to end.
const UNMOUNT_WAIT_MAX: Duration = Duration::from_secs(2);

/// The failure of a mount or an unmount.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The directory does not exist.
    #[error("the mount point {} does not exist: make the directory first", .0.display())]
    NotFound(PathBuf),
    #[error("the mount point {} is not a directory", .0.display())]
    NotDirectory(PathBuf),
    /// The directory has contents, and a mount would hide them.
    #[error("the mount point {} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// Something is mounted there already.
    #[error("something ({by}) is mounted at {} already: unmount it first", .directory.display())]
    Busy {
        /// The mount point.
        directory: PathBuf,
        /// The type of the mounted file system.
        by: String,
    },
    /// The mount would hide the data directory, or would lie in it.
    #[error("the mount point {} and the data directory {} lie in each other: choose another", .directory.display(), .data_dir.display())]
    DataDirectory {
        /// The mount point.
        directory: PathBuf,
        data_dir: PathBuf,
    },
    /// A file in the mount is open.
    #[error("the mount {} is in use: end what has files open there, or unmount it lazily", .0.display())]
    InUse(PathBuf),
    /// This server has no mount there.
    #[error("this server has nothing mounted at {}", .0.display())]
    NotMounted(PathBuf),
    /// This kernel, or this container, has no FUSE.
    #[error(
        "/dev/fuse cannot be opened: load the module fuse, or give the container the device. {0}"
    )]
    NoFuse(#[source] io::Error),
    /// `fusermount3` is missing. Without it only root can mount.
    #[error(
        "fusermount3 cannot be run, which mounts for others than root: install Debian's fuse3. {0}"
    )]
    NoFusermount(#[source] io::Error),
    /// The mount point cannot be inspected, or the kernel refuses the mount.
    #[error("cannot mount at {}: {source}", .directory.display())]
    CannotUse {
        /// The mount point.
        directory: PathBuf,
        source: io::Error,
    },
    #[error("the server is stopping")]
    Stopping,
}

/// The guards that decide which topics and groups each user of the machine sees.
pub trait MountGuards: Send + Sync + 'static {
    /// The guard of a user, by its number; `None` for one who sees everything.
    fn guard_of(&self, uid: u32) -> Option<Arc<dyn TreeGuard>>;
}

/// One mount, as the server sees it.
struct ActiveMount {
    entry: MountEntry,
    /// Returns a value, or is disconnected, after the mount's last request.
    ended: Receiver<()>,
}

struct MountTable {
    mounts: BTreeMap<PathBuf, ActiveMount>,
    stopping: bool,
}

struct FuseMountsInner {
    files: FileSystem,
    tree: Arc<ViewTree>,
    guards: Option<Arc<dyn MountGuards>>,
    data_dir: PathBuf,
    runtime: Runtime,
    invalidator: Arc<CacheInvalidator>,
    append_locks: Arc<[Mutex<()>]>,
    /// Held during each mount and unmount.
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
    /// Creates an empty set of mounts.
    ///
    /// No mount may hide `data_dir`. Its free space is the free space of each mount. Without
    /// `guards`, all users of the machine see all topics and groups.
    pub fn new(
        files: FileSystem,
        (tree, guards): (Arc<ViewTree>, Option<Arc<dyn MountGuards>>),
        data_dir: PathBuf,
        runtime: Runtime,
    ) -> FuseMounts {
        let (audience, ends) =
            (Arc::default(), (0..APPEND_LOCKS).map(|_| Mutex::new(())).collect());
        let state = Mutex::new(MountTable { mounts: BTreeMap::new(), stopping: false });
        FuseMounts(Arc::new(FuseMountsInner {
            files,
            tree,
            guards,
            data_dir,
            runtime,
            invalidator: audience,
            append_locks: ends,
            state,
        }))
    }

    /// Mounts the tree at an empty directory and returns its path with symlinks resolved.
    /// `isolation` says which records of transactions it shows. Blocks.
    ///
    /// # Errors
    /// [`MountError`].
    pub fn mount(&self, directory: &Path, isolation: Isolation) -> Result<PathBuf, MountError> {
        let inner = &self.0;
        let mut state = inner.state.lock();
        if state.stopping {
            return Err(MountError::Stopping);
        }
        remove_ended_mounts(&mut state);
        let path = mount_point::check_mount_point(directory, &inner.data_dir)?;
        let member = inner.invalidator.register();
        let session = inner.session(member.id(), isolation);
        let running = inner.run(member, &path, session)?;
        tracing::info!(directory = %path.display(), "mounted");
        state.mounts.insert(path.clone(), running);
        Ok(path)
    }

    /// Removes a mount. Blocks.
    ///
    /// With `lazily`, this also works while files in it are open. They stay usable until they are
    /// closed or the server ends.
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

    /// The mount points.
    pub fn list(&self) -> Vec<PathBuf> {
        let mut state = self.0.state.lock();
        remove_ended_mounts(&mut state);
        state.mounts.keys().cloned().collect()
    }

    /// Removes all mounts, also those in use, and refuses new ones. Blocks.
    pub fn close(&self) {
        let mut state = self.0.state.lock();
        state.stopping = true;
        let running = std::mem::take(&mut state.mounts);
        drop(state);
        for (path, running) in &running {
            match mount_point::unmount(path, &running.entry, false) {
                Ok(()) => wait_until_ended(running),
                // The kernel reports this to the programs that use it, after this process ends.
                Err(MountError::InUse(_)) => {
                    tracing::warn!(directory = %path.display(), "unmounted while in use");
                    log_unmount_failure(mount_point::unmount(path, &running.entry, true));
                }
                failed => log_unmount_failure(failed),
            }
        }
    }
}

/// The data directory of the server that mounted its tree at `directory`.
///
/// `None` if no server did, or if the mount does not name it. Contacts no server.
pub fn data_dir_of(directory: &Path) -> Option<PathBuf> {
    mount_point::data_dir_of(directory)
}

fn log_unmount_failure(unmounted: Result<(), MountError>) {
    if let Err(error) = unmounted {
        tracing::warn!(%error, "a mount could not be unmounted");
    }
}

/// Removes the mounts that another process unmounted.
fn remove_ended_mounts(state: &mut MountTable) {
    let is_served = |running: &ActiveMount| {
        running.ended.recv_timeout(Duration::ZERO) == Err(RecvTimeoutError::Timeout)
    };
    state.mounts.retain(|_, running| is_served(running));
}

/// The path under which a mount is registered. Resolves symlinks only if the plain path is not
/// registered.
fn find(state: &MountTable, directory: &Path) -> Result<PathBuf, MountError> {
    let plain = mount_point::absolute(directory);
    if state.mounts.contains_key(&plain) {
        return Ok(plain);
    }
    let canonical = std::fs::canonicalize(directory).ok();
    let mounted = canonical.filter(|path| state.mounts.contains_key(path));
    mounted.ok_or(MountError::NotMounted(plain))
}

impl FuseMountsInner {
    fn session(&self, id: MountId, isolation: Isolation) -> FuseSession {
        let mounted = MountedTree {
            id,
            files: self.files.clone(),
            tree: Arc::new(self.tree.with_isolation(isolation)),
            runtime: self.runtime.clone(),
            invalidator: Arc::clone(&self.invalidator),
            is_guarded: self.guards.is_some(),
            nodes: Arc::default(),
            handles: Arc::default(),
            append_locks: Arc::clone(&self.append_locks),
            data_dir: self.data_dir.clone(),
        };
        let workers = FuseWorkers::new(self.runtime.clone(), THREADS);
        FuseSession { mounted: Arc::new(mounted), guards: self.guards.clone(), workers }
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
        let entry = mount_point::mounted_at(path).ok_or_else(|| {
            failed(io::Error::other("it is not in the kernel's list of mounts any more"))
        })?;
        self.invalidator.start_notifying(member.id(), session.notifier()).map_err(failed)?;
        let (end, ended) = channel();
        let serve = move || {
            // Dropped in this order, also on a panic: when a waiter sees the end, the registration
            // is gone.
            let (_end, _member) = (end, member);
            if let Err(error) = session.run() {
                tracing::warn!(%error, "a mount has ended");
            }
        };
        let thread = std::thread::Builder::new().name("mount".to_owned());
        thread.spawn(serve).map_err(failed)?;
        Ok(ActiveMount { entry, ended })
    }
}

/// Waits until an unmounted mount serves no more requests, for at most `UNMOUNT_WAIT_MAX`.
fn wait_until_ended(running: &ActiveMount) {
    let _ = running.ended.recv_timeout(UNMOUNT_WAIT_MAX);
}

/// Mounts for a user who is not root. Only that user can use the mount: `fusermount3` allows no
/// more.
fn mount_with_fusermount(
    path: &Path,
    source: &OsStr,
    session: FuseSession,
    mut config: Config,
) -> Result<fuser::Session<FuseSession>, MountError> {
    config.acl = SessionACL::Owner;
    // The name becomes part of an option list, where a comma or a backslash would split or change
    // it.
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
