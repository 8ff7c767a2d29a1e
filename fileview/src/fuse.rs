//! The tree as a file system that any program can use (FUSE).
//!
//! [`Mounts`] are all mounts of one server. A mount is served by a few threads of its own, which ask the
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

mod asker;
mod attributes;
mod changes;
mod coherence;
mod handles;
mod mount_point;
mod mounted;
mod nodes;
mod refused;
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

use engine::files::Files;
use fuser::{Config, MountOption, SessionACL};
use parking_lot::Mutex;
use tokio::runtime::Handle as Runtime;

use crate::tree::Tree;
use coherence::{Audience, Membership, MountId};
use mount_point::{Connection, Listed};
use mounted::Mounted;
use session::Session;
use workers::Workers;

/// How many threads take requests of one mount. More than cores: some wait for the journal.
const THREADS: usize = 4;
/// How many files may have something put at their ends at a time.
const ENDS: usize = 64;
/// How long the end of a mount is waited for.
const END_MAX: Duration = Duration::from_secs(2);

/// Why something is not mounted, or goes on being.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is nothing there.
    #[error("the mount point does not exist: make the directory first. directory={}", .0.display())]
    Missing(PathBuf),
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
    NoHelp(#[source] io::Error),
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
struct Running {
    listed: Listed,
    /// Says something, or is gone, once nothing is served any more.
    ended: Receiver<()>,
}

struct State {
    running: BTreeMap<PathBuf, Running>,
    stopping: bool,
}

struct Inner {
    files: Files,
    tree: Arc<Tree>,
    data_dir: PathBuf,
    runtime: Runtime,
    audience: Arc<Audience>,
    ends: Arc<[Mutex<()>]>,
    /// Held while one is mounted or taken away.
    state: Mutex<State>,
}

/// All mounts of a server.
#[derive(Clone)]
pub struct Mounts(Arc<Inner>);

impl std::fmt::Debug for Mounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mounts").finish_non_exhaustive()
    }
}

impl Mounts {
    /// Nothing is mounted yet. `data_dir` is where the data lies: no mount may hide it, and a mount
    /// has as much room as there is.
    pub fn new(files: Files, tree: Arc<Tree>, data_dir: PathBuf, runtime: Runtime) -> Mounts {
        let (audience, ends) = (Arc::default(), (0..ENDS).map(|_| Mutex::new(())).collect());
        let state = Mutex::new(State { running: BTreeMap::new(), stopping: false });
        Mounts(Arc::new(Inner { files, tree, data_dir, runtime, audience, ends, state }))
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
        forget_ended(&mut state);
        let path = mount_point::check(directory, &inner.data_dir)?;
        let member = inner.audience.enter();
        let session = inner.session(member.id());
        let running = inner.run(member, &path, session)?;
        tracing::info!(directory = %path.display(), "mounted");
        state.running.insert(path.clone(), running);
        Ok(path)
    }

    /// Takes a mount away; `lazily`, also if something is open in it: what is open goes on until it is
    /// closed, or the server ends. Blocks.
    ///
    /// # Errors
    /// [`MountError`].
    pub fn unmount(&self, directory: &Path, lazily: bool) -> Result<PathBuf, MountError> {
        let mut state = self.0.state.lock();
        forget_ended(&mut state);
        let path = find(&state, directory)?;
        let running = &state.running[&path];
        mount_point::unmount(&path, &running.listed, lazily)?;
        let running = state.running.remove(&path).expect("it was just found");
        drop(state);
        if !lazily {
            ended(&running);
        }
        tracing::info!(directory = %path.display(), "unmounted");
        Ok(path)
    }

    /// Where something is mounted.
    pub fn list(&self) -> Vec<PathBuf> {
        let mut state = self.0.state.lock();
        forget_ended(&mut state);
        state.running.keys().cloned().collect()
    }

    /// Takes everything away, also what is in use, and mounts nothing any more. Blocks.
    pub fn close(&self) {
        let mut state = self.0.state.lock();
        state.stopping = true;
        let running = std::mem::take(&mut state.running);
        drop(state);
        for (path, running) in &running {
            match mount_point::unmount(path, &running.listed, false) {
                Ok(()) => ended(running),
                // Whoever uses it is told by the kernel, once this process has ended.
                Err(MountError::InUse(_)) => {
                    tracing::warn!(directory = %path.display(), "unmounted while in use");
                    tell(mount_point::unmount(path, &running.listed, true));
                }
                failed => tell(failed),
            }
        }
    }
}

/// The data directory of the server that has its tree mounted at `directory`; `None` if none has, or the
/// mount does not say. Asks no server.
pub fn data_dir_of(directory: &Path) -> Option<PathBuf> {
    mount_point::data_dir_of(directory)
}

fn tell(unmounted: Result<(), MountError>) {
    if let Err(error) = unmounted {
        tracing::warn!(%error, "a mount is left behind");
    }
}

/// Those that somebody else took away.
fn forget_ended(state: &mut State) {
    let is_served = |running: &Running| {
        running.ended.recv_timeout(Duration::ZERO) == Err(RecvTimeoutError::Timeout)
    };
    state.running.retain(|_, running| is_served(running));
}

/// The path by which a mount is known; looked at only if its name does not tell.
fn find(state: &State, directory: &Path) -> Result<PathBuf, MountError> {
    let plain = mount_point::absolute(directory);
    if state.running.contains_key(&plain) {
        return Ok(plain);
    }
    let canonical = std::fs::canonicalize(directory).ok();
    let found = canonical.filter(|path| state.running.contains_key(path));
    found.ok_or(MountError::NotMounted(plain))
}

impl Inner {
    fn session(&self, id: MountId) -> Session {
        let mounted = Mounted {
            id,
            files: self.files.clone(),
            tree: Arc::clone(&self.tree),
            runtime: self.runtime.clone(),
            audience: Arc::clone(&self.audience),
            nodes: nodes::Nodes::default(),
            handles: handles::Handles::default(),
            ends: Arc::clone(&self.ends),
            data_dir: self.data_dir.clone(),
        };
        let workers = Workers::new(self.runtime.clone(), THREADS);
        Session { mounted: Arc::new(mounted), workers }
    }

    fn run(
        &self,
        member: Membership,
        path: &Path,
        session: Session,
    ) -> Result<Running, MountError> {
        let failed = |source| MountError::CannotUse { directory: path.to_owned(), source };
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        config.clone_fd = true;
        config.acl = SessionACL::All;
        let source = mount_point::source(&self.data_dir);
        let session = match mount_point::mount(path, &source)? {
            Connection::Mounted(device) => {
                let device = OwnedFd::from(device);
                fuser::Session::from_fd(session, device, SessionACL::All, config).map_err(
                    |error| {
                        mount_point::abandon(path);
                        failed(error)
                    },
                )?
            }
            Connection::NotPermitted => with_help(path, &source, session, config)?,
        };
        let listed = mount_point::mounted_at(path).ok_or_else(|| {
            failed(io::Error::other("it is not in the kernel's list of mounts any more"))
        })?;
        self.audience.listen(member.id(), session.notifier()).map_err(failed)?;
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
        Ok(Running { listed, ended })
    }
}

/// Waits, for a while, until a mount that was taken away is not served any more.
fn ended(running: &Running) {
    let _ = running.ended.recv_timeout(END_MAX);
}

/// Mounts for somebody who is not root, and for him alone: that is what he may do.
fn with_help(
    path: &Path,
    source: &OsStr,
    session: Session,
    mut config: Config,
) -> Result<fuser::Session<Session>, MountError> {
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
        io::ErrorKind::NotFound => MountError::NoHelp(source),
        _ => MountError::CannotUse { directory: path.to_owned(), source },
    })
}
