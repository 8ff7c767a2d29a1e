//! A bounded number of open files, of however many a directory has.
//!
//! A file of sealed history is read now and then, and there are thousands of them. So each is opened
//! when it is needed, and the one that was not used for longest is closed when there are too many.
//!
//! What holds true of it:
//! - Whoever holds a file reads that file, whatever became of its name: before a name is removed, or given
//!   to another file, the file is opened, and then stays open for as long as somebody holds it.
//! - A file that was written and not synced since stays open: of a file that was closed, the kernel may
//!   forget that it could not write it.
//! - The file that the journal is written to, and that of its bound, stay open: a write that fails must be taken back, and
//!   that must not depend on a descriptor.
//! - A name that belongs to another file by now is noticed, and not read.
//!
//! Locks are taken in the order *names*, *state of a file*, *queue*; and who closes files tries for the
//! state of each, and waits for none.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, MutexGuard};

use super::is_out_of_descriptors;

/// How many descriptors a file takes, once it is used around the page cache.
const DESCRIPTORS_PER_FILE: u64 = 2;
/// How many are open at the most.
const OPEN_FILES_MAX: usize = 1024;
/// No more than this part of the descriptors that the process may have.
const LIMIT_DIVISOR: u64 = 4;
/// Fewer than this would only be opened again at once.
const OPEN_FILES_MIN: usize = 32;

/// How many files are open at the most, where the process may have `limit` descriptors.
fn open_max(limit: Option<u64>) -> usize {
    let part = limit.map_or(u64::MAX, |limit| limit / LIMIT_DIVISOR / DESCRIPTORS_PER_FILE);
    usize::try_from(part).unwrap_or(usize::MAX).clamp(OPEN_FILES_MIN, OPEN_FILES_MAX)
}

/// How many descriptors the files of a journal take at the most, where the process may have `limit` (any number, if `None`).
pub fn descriptors_max(limit: Option<u64>) -> u64 {
    open_max(limit) as u64 * DESCRIPTORS_PER_FILE
}

/// An open file.
#[derive(Debug)]
pub(super) struct OpenDescriptor {
    pub(super) file: File,
    /// The same file, opened at first use to go around the page cache. Some file systems have no
    /// such thing; they get ordinary reads and writes.
    direct: OnceLock<Option<File>>,
}

impl OpenDescriptor {
    fn new(file: File) -> Arc<OpenDescriptor> {
        Arc::new(OpenDescriptor { file, direct: OnceLock::new() })
    }
}

/// What is known of a file that somebody holds.
#[derive(Debug)]
struct CachedFileState {
    name: String,
    descriptor: Option<Arc<OpenDescriptor>>,
    /// Whether it has lost its name, and so cannot be opened again.
    is_unlinked: bool,
    /// Whether it is to stay open: to open it again might fail.
    is_held_open: bool,
    /// Counts what was begun to be written and what was, and how much of that a sync began with.
    written: u64,
    synced: u64,
}

impl CachedFileState {
    fn may_close(&self) -> bool {
        !self.is_unlinked && !self.is_held_open && self.written == self.synced
    }
}

/// A file that somebody holds.
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
    /// Those that were opened, the one first that is asked first whether it may be closed.
    clock_queue: Mutex<VecDeque<Weak<CachedFileEntry>>>,
    /// How many were opened again, for tests.
    pub(super) reopened: AtomicUsize,
}

/// A file that is held: what was opened under its name stays what is read.
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
    /// As many open as the process's limit leaves room for.
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
        // No name is removed between the opening and the holding.
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

    /// Opens a file; closes others first where there are no descriptors left.
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
            let name = &state.name;
            let what = format!("a file was replaced from outside while it was in use. file={name}");
            return Err(io::Error::other(what));
        }
        self.reopened.fetch_add(1, Ordering::Relaxed);
        Ok(OpenDescriptor::new(file))
    }

    /// Takes note that a file is open; closes those that were not used for longest if there are too
    /// many.
    fn note_opened(&self, shared: &Arc<CachedFileEntry>) {
        let mut queue = self.clock_queue.lock();
        queue.push_back(Arc::downgrade(shared));
        self.close_down_to(queue, self.open_max);
    }

    /// Closes files until so many are left, if there are so many that may be closed.
    fn close_down_to(
        &self,
        mut queue: MutexGuard<'_, VecDeque<Weak<CachedFileEntry>>>,
        count: usize,
    ) {
        // Each is asked twice at most: who was used since the last time is asked again.
        for _ in 0..2 * queue.len() {
            if queue.len() <= count {
                return;
            }
            let Some(next) = queue.pop_front() else { return };
            let Some(shared) = next.upgrade() else { continue };
            // Whoever holds this is at work with it.
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

    /// Calls `act`, which takes the name of a file away, once those who hold the file cannot lose it.
    pub(super) fn remove(
        &self,
        name: &str,
        act: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut names = self.names.lock();
        let held = live_entries(names.get(name));
        let mut states = self.keep_open(&held)?;
        act(&self.path(name))?;
        states.iter_mut().for_each(|state| state.is_unlinked = true);
        names.remove(name);
        Ok(())
    }

    /// Calls `act`, which gives a file another name.
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

    /// Opens those that are not, and lets nobody close them.
    fn keep_open<'a>(
        &self,
        held: &'a [Arc<CachedFileEntry>],
    ) -> io::Result<Vec<MutexGuard<'a, CachedFileState>>> {
        let mut states = Vec::with_capacity(held.len());
        for shared in held {
            let mut state = shared.state.lock();
            if state.descriptor.is_none() {
                state.descriptor = Some(self.reopen(shared, &state)?);
            }
            states.push(state);
        }
        Ok(states)
    }

    /// How many files are open that may be closed, at most.
    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.clock_queue.lock().len()
    }
}

fn live_entries(held: Option<&Vec<Weak<CachedFileEntry>>>) -> Vec<Arc<CachedFileEntry>> {
    held.into_iter().flatten().filter_map(Weak::upgrade).collect()
}

impl CachedFile {
    /// The file, open for as long as this is held.
    pub(super) fn descriptor(&self) -> io::Result<Arc<OpenDescriptor>> {
        self.entry.was_used.store(true, Ordering::Relaxed);
        let mut state = self.entry.state.lock();
        self.ensure_open(&mut state)
    }

    /// Keeps the file open from its next use on, or not any more.
    pub(super) fn hold_open(&self, is_held: bool) {
        self.entry.state.lock().is_held_open = is_held;
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
        // A sync that began meanwhile may have missed it.
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

    /// Syncs the file with `sync`. Where that fails it stays open.
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
            // The page cache will do, until there is a descriptor.
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
        let Some(held) = names.get_mut(&name) else { return };
        held.retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(&self.entry)));
        if held.is_empty() {
            names.remove(&name);
        }
    }
}
