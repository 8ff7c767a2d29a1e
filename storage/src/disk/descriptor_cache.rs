//! A bounded number of open files, however many a directory has.
//!
//! Files of sealed history are read now and then, and there are thousands of them. So each is
//! opened when it is needed, and the least recently used one is closed when there are too many.
//!
//! Invariants:
//! - A holder of a file reads that file, whatever happens to its name. Before a name is removed, or
//!   given to another file, the file is opened, and then stays open as long as it is held.
//! - A file that was written and not synced since stays open: the kernel may forget that a closed
//!   file could not be written.
//! - The journal's current file and the bound file stay open: a failed write must be withdrawn, and
//!   that must not depend on a descriptor.
//! - If a name belongs to another file by now, that is detected, and the other file is not read.
//!
//! Locks are taken in the order *names*, *state of a file*, *queue*. Closing files only tries to
//! lock the state of each, and waits for none.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, MutexGuard};

use super::is_out_of_descriptors;

/// The number of descriptors that a file takes, if it is also used around the page cache.
const DESCRIPTORS_PER_FILE: u64 = 2;
/// The maximum number of open files.
const OPEN_FILES_MAX: usize = 1024;
/// At most this share of the descriptors that the process may have.
const LIMIT_DIVISOR: u64 = 4;
/// Fewer than this would cause constant reopening.
const OPEN_FILES_MIN: usize = 32;

/// The maximum number of open files if the process may have `limit` descriptors.
fn open_max(limit: Option<u64>) -> usize {
    let share = limit.map_or(u64::MAX, |limit| limit / LIMIT_DIVISOR / DESCRIPTORS_PER_FILE);
    usize::try_from(share).unwrap_or(usize::MAX).clamp(OPEN_FILES_MIN, OPEN_FILES_MAX)
}

/// The maximum number of descriptors that the files of a journal take if the process may have
/// `limit` (any number, if `None`).
pub fn descriptors_max(limit: Option<u64>) -> u64 {
    open_max(limit) as u64 * DESCRIPTORS_PER_FILE
}

#[derive(Debug)]
pub(super) struct OpenDescriptor {
    pub(super) file: File,
    /// The same file, opened at first use to go around the page cache. Some file systems do not
    /// support that; they get ordinary reads and writes.
    direct: OnceLock<Option<File>>,
}

impl OpenDescriptor {
    fn new(file: File) -> Arc<OpenDescriptor> {
        Arc::new(OpenDescriptor { file, direct: OnceLock::new() })
    }
}

/// The state of a file that is held.
#[derive(Debug)]
struct CachedFileState {
    name: String,
    descriptor: Option<Arc<OpenDescriptor>>,
    /// True if it has lost its name, and so cannot be opened again.
    is_unlinked: bool,
    /// True if it must stay open, because opening it again might fail.
    is_held_open: bool,
    /// Counts writes that began and that ended, and how many of them the last sync covered.
    written: u64,
    synced: u64,
}

impl CachedFileState {
    fn may_close(&self) -> bool {
        !self.is_unlinked && !self.is_held_open && self.written == self.synced
    }
}

/// A file that is held.
#[derive(Debug)]
struct CachedFileEntry {
    /// Device and inode.
    identity: (u64, u64),
    state: Mutex<CachedFileState>,
    was_used: AtomicBool,
}

/// Files of a directory, some of them open.
#[derive(Debug)]
pub(super) struct DescriptorCache {
    directory: PathBuf,
    open_max: usize,
    names: Mutex<HashMap<String, Vec<Weak<CachedFileEntry>>>>,
    /// The files that were opened; the first is the next candidate for closing.
    clock_queue: Mutex<VecDeque<Weak<CachedFileEntry>>>,
    /// The number of times that files were opened again, for tests.
    pub(super) reopened: AtomicUsize,
}

/// A held file: it stays the file that was opened, whatever happens to its name.
#[derive(Debug)]
pub(super) struct CachedFile {
    entry: Arc<CachedFileEntry>,
    cache: Arc<DescriptorCache>,
}

fn identity(file: &File) -> io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

impl DescriptorCache {
    /// A cache with as many open files as the process's limit leaves room for.
    pub(super) fn for_directory(directory: &Path) -> Arc<DescriptorCache> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        DescriptorCache::with_open_max(directory, open_max(limit))
    }

    pub(super) fn with_open_max(directory: &Path, open_max: usize) -> Arc<DescriptorCache> {
        Arc::new(DescriptorCache {
            directory: directory.to_owned(),
            open_max: open_max.max(1),
            names: Mutex::default(),
            clock_queue: Mutex::default(),
            reopened: AtomicUsize::new(0),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Opens a file, and holds it.
    pub(super) fn open(
        self: &Arc<DescriptorCache>,
        name: &str,
        options: &OpenOptions,
    ) -> io::Result<CachedFile> {
        // No name is removed between opening and holding.
        let mut names = self.names.lock();
        let file = self.open_file(&self.path(name), options)?;
        let state = CachedFileState {
            name: name.to_owned(),
            is_unlinked: false,
            is_held_open: false,
            written: 0,
            synced: 0,
            descriptor: None,
        };
        let shared = Arc::new(CachedFileEntry {
            identity: identity(&file)?,
            state: Mutex::new(state),
            was_used: AtomicBool::new(true),
        });
        shared.state.lock().descriptor = Some(OpenDescriptor::new(file));
        names.entry(name.to_owned()).or_default().push(Arc::downgrade(&shared));
        drop(names);
        self.note_opened(&shared);
        Ok(CachedFile { entry: shared, cache: Arc::clone(self) })
    }

    /// Opens a file; closes others first if there are no descriptors left.
    fn open_file(&self, path: &Path, options: &OpenOptions) -> io::Result<File> {
        match options.open(path) {
            Err(error) if is_out_of_descriptors(&error) => {
                self.close_down_to(self.clock_queue.lock(), 0);
                options.open(path)
            }
            opened => opened,
        }
    }

    fn reopen(
        &self,
        shared: &CachedFileEntry,
        state: &CachedFileState,
    ) -> io::Result<Arc<OpenDescriptor>> {
        let options = OpenOptions::new().read(true).write(true).clone();
        let file = self.open_file(&self.path(&state.name), &options)?;
        if identity(&file)? != shared.identity {
            return Err(io::Error::other("it was replaced from outside while it was in use"));
        }
        self.reopened.fetch_add(1, Ordering::Relaxed);
        Ok(OpenDescriptor::new(file))
    }

    /// Records that a file is open; closes the least recently used ones if there are too
    /// many.
    fn note_opened(&self, shared: &Arc<CachedFileEntry>) {
        let mut queue = self.clock_queue.lock();
        queue.push_back(Arc::downgrade(shared));
        self.close_down_to(queue, self.open_max);
    }

    /// Closes files until `count` are left, if enough of them may be closed.
    fn close_down_to(
        &self,
        mut queue: MutexGuard<'_, VecDeque<Weak<CachedFileEntry>>>,
        count: usize,
    ) {
        // Each is examined twice at most: one that was used since is examined again.
        for _ in 0..2 * queue.len() {
            if queue.len() <= count {
                return;
            }
            let Some(next) = queue.pop_front() else { return };
            let Some(shared) = next.upgrade() else { continue };
            // The lock is held while the file is in use.
            let Some(mut state) = shared.state.try_lock() else {
                queue.push_back(next);
                continue;
            };
            if state.descriptor.is_none() || state.is_unlinked {
                continue;
            }
            if shared.was_used.swap(false, Ordering::Relaxed) || !state.may_close() {
                queue.push_back(next);
                continue;
            }
            state.descriptor = None;
        }
    }

    /// Calls `act`, which removes a file's name, once no holder of the file can lose it.
    pub(super) fn remove(
        &self,
        name: &str,
        act: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut names = self.names.lock();
        let entries = live_entries(names.get(name));
        let mut states = self.keep_open(&entries)?;
        act(&self.path(name))?;
        states.iter_mut().for_each(|state| state.is_unlinked = true);
        names.remove(name);
        Ok(())
    }

    /// Calls `act`, which renames a file.
    pub(super) fn rename(
        &self,
        from: &str,
        to: &str,
        act: impl FnOnce(&Path, &Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut names = self.names.lock();
        let (moved, replaced) = (live_entries(names.get(from)), live_entries(names.get(to)));
        if from == to {
            return act(&self.path(from), &self.path(to));
        }
        let mut losing = self.keep_open(&replaced)?;
        let mut moving: Vec<_> = moved.iter().map(|shared| shared.state.lock()).collect();
        act(&self.path(from), &self.path(to))?;
        losing.iter_mut().for_each(|state| state.is_unlinked = true);
        moving.iter_mut().for_each(|state| to.clone_into(&mut state.name));
        names.remove(to);
        if let Some(moved) = names.remove(from) {
            names.insert(to.to_owned(), moved);
        }
        Ok(())
    }

    /// Opens files that are not open, and prevents closing them.
    fn keep_open<'a>(
        &self,
        entries: &'a [Arc<CachedFileEntry>],
    ) -> io::Result<Vec<MutexGuard<'a, CachedFileState>>> {
        let mut states = Vec::with_capacity(entries.len());
        for shared in entries {
            let mut state = shared.state.lock();
            if state.descriptor.is_none() {
                state.descriptor = Some(self.reopen(shared, &state)?);
            }
            states.push(state);
        }
        Ok(states)
    }

    /// The maximum number of open files that may be closed.
    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.clock_queue.lock().len()
    }
}

fn live_entries(entries: Option<&Vec<Weak<CachedFileEntry>>>) -> Vec<Arc<CachedFileEntry>> {
    entries.into_iter().flatten().filter_map(Weak::upgrade).collect()
}

impl CachedFile {
    /// The file, open as long as the result is held.
    pub(super) fn descriptor(&self) -> io::Result<Arc<OpenDescriptor>> {
        self.entry.was_used.store(true, Ordering::Relaxed);
        let mut state = self.entry.state.lock();
        self.ensure_open(&mut state)
    }

    /// Opens the file and keeps it open, or stops doing so.
    pub(super) fn hold_open(&self, is_held: bool) -> io::Result<()> {
        let mut state = self.entry.state.lock();
        if is_held {
            self.ensure_open(&mut state)?;
        }
        state.is_held_open = is_held;
        Ok(())
    }

    /// Writes to the file with `write`. It stays open until all of that was synced.
    pub(super) fn write(
        &self,
        write: impl FnOnce(&OpenDescriptor) -> io::Result<()>,
    ) -> io::Result<()> {
        self.entry.was_used.store(true, Ordering::Relaxed);
        let mut state = self.entry.state.lock();
        let handle = self.ensure_open(&mut state)?;
        state.written += 1;
        drop(state);
        let written = write(&handle);
        // A sync that began meanwhile may have missed the write.
        self.entry.state.lock().written += 1;
        written
    }

    fn ensure_open(&self, state: &mut CachedFileState) -> io::Result<Arc<OpenDescriptor>> {
        if let Some(handle) = &state.descriptor {
            return Ok(Arc::clone(handle));
        }
        let handle = self.cache.reopen(&self.entry, state)?;
        state.descriptor = Some(Arc::clone(&handle));
        self.cache.note_opened(&self.entry);
        Ok(handle)
    }

    /// Syncs the file with `sync`. If that fails the file stays open.
    pub(super) fn sync(&self, sync: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        let mut state = self.entry.state.lock();
        let handle = self.ensure_open(&mut state)?;
        let written = state.written;
        drop(state);
        sync(&handle.file)?;
        let mut state = self.entry.state.lock();
        state.synced = state.synced.max(written);
        Ok(())
    }

    /// The file, opened to go around the page cache.
    pub(super) fn direct<'a>(&self, handle: &'a OpenDescriptor) -> Option<&'a File> {
        if let Some(direct) = handle.direct.get() {
            return direct.as_ref();
        }
        let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
        let options = OpenOptions::new().read(true).write(true).custom_flags(flags).clone();
        let path = self.cache.path(&self.entry.state.lock().name);
        let direct = match options.open(path) {
            // The page cache serves until there is a descriptor.
            Err(error) if is_out_of_descriptors(&error) => return None,
            opened => opened.ok(),
        };
        // The name may belong to another file by now.
        let is_same = |file: &File| identity(file).is_ok_and(|id| id == self.entry.identity);
        handle.direct.get_or_init(|| direct.filter(is_same)).as_ref()
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        let mut names = self.cache.names.lock();
        let name = self.entry.state.lock().name.clone();
        let Some(entries) = names.get_mut(&name) else { return };
        entries.retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(&self.entry)));
        if entries.is_empty() {
            names.remove(&name);
        }
    }
}
