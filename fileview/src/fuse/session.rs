//! The kernel's requests: each is decoded, served on a thread, and answered.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use engine::files::{FileKind, NAME_BYTES_MAX};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, PollEvents, PollFlags,
    PollNotifier, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::OFlags;

use super::MountGuards;
use super::changes::{MknodRequest, SetattrRequest, WriteRequest, kind_of};
use super::errno::FuseErrno;
use super::interrupt::serve_for_caller;
use super::mounted_tree::{EntryReply, FuseCaller, MountedTree};
use super::workers::FuseWorkers;

/// The longest write that the kernel sends in one request.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// The number of background requests, such as read-ahead, that the kernel may have in progress.
const BACKGROUND_MAX: u16 = 64;
/// The capabilities that the mount requests from the kernel.
const WANTED_CAPABILITIES: [InitFlags; 8] = [
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_CACHE_SYMLINKS,
    // The kernel need not check for set-id bits before each write.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    InitFlags::FUSE_ABORT_ERROR,
];
/// Inode numbers are never reused.
const GENERATION: Generation = Generation(0);
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// A mount, and its worker threads.
pub(super) struct FuseSession {
    /// As a user sees it who sees everything.
    pub(super) mounted: Arc<MountedTree>,
    /// The guards of users; `None` if everybody sees everything.
    pub(super) guards: Option<Arc<dyn MountGuards>>,
    pub(super) workers: FuseWorkers,
}

impl FuseSession {
    fn serve(&self, request: impl FnOnce(&MountedTree) + Send + 'static) {
        let mounted = Arc::clone(&self.mounted);
        self.workers.serve(move || request(&mounted));
    }

    /// The mount as the requesting user may see it.
    fn seen_by(&self, request: &Request) -> Arc<MountedTree> {
        let guard = self.guards.as_ref().and_then(|guards| guards.guard_of(request.uid()));
        match guard {
            None => Arc::clone(&self.mounted),
            Some(guard) => {
                let tree = Arc::new(self.mounted.tree.with_guard(guard));
                Arc::new(MountedTree { tree, ..MountedTree::clone(&self.mounted) })
            }
        }
    }

    /// [`FuseSession::serve`], on the mount as the requesting user may see it.
    fn serve_seen(&self, request: &Request, serve: impl FnOnce(&MountedTree) + Send + 'static) {
        let mounted = self.seen_by(request);
        self.workers.serve(move || serve(&mounted));
    }

    /// Serves a slow request, until its caller is killed, as far as that user may see it.
    fn serve_slow(&self, request: &Request, serve: impl FnOnce(&MountedTree) + Send + 'static) {
        let (mounted, asker) = (self.seen_by(request), request.pid());
        self.workers.serve_slow(move || serve_for_caller(asker, || serve(&mounted)));
    }

    /// Serves a request for a node, which may be slow.
    fn serve_by_speed(
        &self,
        request: &Request,
        node: INodeNo,
        serve: impl FnOnce(&MountedTree) + Send + 'static,
    ) {
        if self.mounted.is_slow(node.0) {
            self.serve_slow(request, serve);
        } else {
            self.serve_seen(request, serve);
        }
    }

    /// Calls `reply` once everything written before is on stable storage. Blocks no thread.
    fn sync(&self, reply: ReplyEmpty) {
        let files = self.mounted.files.clone();
        self.workers.wait(async move {
            match files.sync().await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(FuseErrno::from(error).errno()),
            }
        });
    }
}

fn caller(request: &Request) -> FuseCaller {
    FuseCaller { uid: request.uid(), gid: request.gid() }
}

fn reply_entry(reply: ReplyEntry, result: Result<EntryReply, FuseErrno>) {
    match result {
        Ok(entry) => reply.entry(&entry.ttl, &entry.attributes, GENERATION),
        Err(refused) => reply.error(refused.errno()),
    }
}

fn reply_attributes(reply: ReplyAttr, result: Result<EntryReply, FuseErrno>) {
    match result {
        Ok(entry) => reply.attr(&entry.ttl, &entry.attributes),
        Err(refused) => reply.error(refused.errno()),
    }
}

fn reply_empty(reply: ReplyEmpty, result: Result<(), FuseErrno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(refused) => reply.error(refused.errno()),
    }
}

fn reply_open(reply: ReplyOpen, opened: Result<(FileHandle, fuser::FopenFlags), FuseErrno>) {
    match opened {
        Ok((handle, flags)) => reply.opened(handle, flags),
        Err(refused) => reply.error(refused.errno()),
    }
}

/// Replies with the value of an attribute, or with its length.
fn reply_xattr(reply: ReplyXattr, room: u32, value: Result<Vec<u8>, FuseErrno>) {
    match value {
        Ok(value) if room == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() <= room as usize => reply.data(&value),
        Ok(_) => reply.error(FuseErrno::OUT_OF_RANGE.errno()),
        Err(refused) => reply.error(refused.errno()),
    }
}

fn open_flags(flags: i32) -> OFlags {
    OFlags::from_bits_retain(flags as u32)
}

impl Filesystem for FuseSession {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wanted in WANTED_CAPABILITIES {
            if config.add_capabilities(wanted).is_err() {
                tracing::debug!(?wanted, "this kernel cannot do that with a mount");
            }
        }
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        if let Err(less) = config.set_max_readahead(WRITE_BYTES_MAX) {
            let _ = config.set_max_readahead(less);
        }
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let is_long = self.mounted.is_slow_lookup(parent.0, name);
        let name = name.to_owned();
        let look_up =
            move |mounted: &MountedTree| reply_entry(reply, mounted.look_up(parent.0, &name));
        if is_long {
            self.serve_slow(request, look_up);
        } else {
            self.serve_seen(request, look_up);
        }
    }

    fn forget(&self, _: &Request, node: INodeNo, times: u64) {
        self.mounted.nodes.forget(node.0, times);
    }

    fn getattr(
        &self,
        request: &Request,
        node: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let handle = handle.map(|handle| handle.0);
        let know = move |mounted: &MountedTree| {
            reply_attributes(reply, mounted.attributes(node.0, handle));
        };
        self.serve_by_speed(request, node, know);
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _changed_mac: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let setting = SetattrRequest { mode, uid, gid, size, accessed, modified };
        let (caller, handle) = (caller(request), handle.map(|handle| handle.0));
        self.serve(move |mounted| {
            reply_attributes(reply, mounted.set_attributes(node.0, setting, handle, caller));
        });
    }

    fn readlink(&self, request: &Request, node: INodeNo, reply: ReplyData) {
        self.serve_seen(request, move |mounted| match mounted.read_link(node.0) {
            Ok(target) => reply.data(&target),
            Err(refused) => reply.error(refused.errno()),
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let (name, caller) = (name.to_owned(), caller(request));
        self.serve(move |mounted| {
            let created = kind_of(mode).and_then(|kind| {
                let making = MknodRequest { kind, mode, device: u64::from(device) };
                mounted.make_node(parent.0, &name, making, caller)
            });
            reply_entry(reply, created);
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let (name, caller) = (name.to_owned(), caller(request));
        let making = MknodRequest { kind: FileKind::Directory, mode, device: 0 };
        self.serve(move |mounted| {
            reply_entry(reply, mounted.make_node(parent.0, &name, making, caller));
        });
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.serve(move |mounted| reply_empty(reply, mounted.remove(parent.0, &name, false)));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.serve(move |mounted| reply_empty(reply, mounted.remove(parent.0, &name, true)));
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (name, caller, target) = (name.to_owned(), caller(request), target.to_owned());
        self.serve(move |mounted| {
            let target = target.as_os_str().as_bytes();
            reply_entry(reply, mounted.symlink(parent.0, &name, target, caller));
        });
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        self.serve(move |mounted| {
            let renamed = mounted.rename(parent.0, &name, new_parent.0, &new_name, flags);
            reply_empty(reply, renamed);
        });
    }

    fn link(&self, _: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        self.serve(move |mounted| reply_entry(reply, mounted.link(node.0, parent.0, &name)));
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let to_write = flags.acc_mode() != OpenAccMode::O_RDONLY;
        let open = move |mounted: &MountedTree| reply_open(reply, mounted.open(node.0, to_write));
        self.serve_by_speed(request, node, open);
    }

    fn read(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.serve(move |mounted| match mounted.read(handle.0, offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(refused) => reply.error(refused.errno()),
        });
    }

    fn write(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let length = data.len() as u32;
        let is_cached = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let write = WriteRequest {
            offset,
            data: Bytes::copy_from_slice(data),
            // A write from a mapping has its own offset.
            at_end: !is_cached && open_flags(flags.0).contains(OFlags::APPEND),
            clears_set_id: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        self.serve(move |mounted| match mounted.write(handle.0, write) {
            Ok(()) => reply.written(length),
            Err(refused) => reply.error(refused.errno()),
        });
    }

    fn flush(
        &self,
        _: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // All writes have arrived already. With ENOSYS the kernel does not send this request again.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.serve(move |mounted| {
            // Programs do not wait for a close.
            reply.ok();
            drop(mounted.handles.close(handle.0));
        });
    }

    fn fsync(
        &self,
        _: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.sync(reply);
    }

    fn opendir(&self, request: &Request, node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.serve_seen(request, move |mounted| reply_open(reply, mounted.open_directory(node.0)));
    }

    fn readdir(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let list = move |mounted: &MountedTree| match mounted.names(handle.0, offset) {
            Ok(names) => {
                for entry in names {
                    let (number, name) = (entry.node.number(), OsStr::from_bytes(&entry.name));
                    if reply.add(INodeNo(number), entry.next, entry.kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(refused) => reply.error(refused.errno()),
        };
        self.serve_by_speed(request, node, list);
    }

    fn readdirplus(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let list = move |mounted: &MountedTree| match mounted.names(handle.0, offset) {
            Ok(names) => {
                for child in names {
                    let Some(entry) = mounted.name_reply(&child) else { continue };
                    let (number, name) = (entry.attributes.ino, OsStr::from_bytes(&child.name));
                    let (ttl, file) = (&entry.ttl, &entry.attributes);
                    if reply.add(number, child.next, name, ttl, file, GENERATION) {
                        mounted.undo_lookup(&entry);
                        break;
                    }
                    // The kernel does not count lookups of these two.
                    if matches!(&*child.name, b"." | b"..") {
                        mounted.undo_lookup(&entry);
                    }
                }
                reply.ok();
            }
            Err(refused) => reply.error(refused.errno()),
        };
        self.serve_by_speed(request, node, list);
    }

    fn releasedir(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.mounted.handles.close(handle.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.sync(reply);
    }

    fn statfs(&self, _: &Request, _node: INodeNo, reply: ReplyStatfs) {
        self.serve(move |mounted| match rustix::fs::statvfs(&mounted.data_dir) {
            Ok(disk) => reply.statfs(
                disk.f_blocks,
                disk.f_bfree,
                disk.f_bavail,
                u64::from(u32::MAX),
                u64::from(u32::MAX),
                disk.f_bsize as u32,
                NAME_BYTES_MAX as u32,
                disk.f_frsize as u32,
            ),
            Err(error) => reply.error(Errno::from_i32(error.raw_os_error())),
        });
    }

    fn setxattr(
        &self,
        _: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value) = (name.to_owned(), value.to_vec());
        self.serve(move |mounted| {
            reply_empty(reply, mounted.set_extended_attribute(node.0, &name, Some(&value), flags));
        });
    }

    fn getxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let name = name.to_owned();
        self.serve_seen(request, move |mounted| {
            reply_xattr(reply, size, mounted.extended_attribute(node.0, &name))
        });
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        self.serve_seen(request, move |mounted| {
            reply_xattr(reply, size, mounted.extended_attribute_names(node.0))
        });
    }

    fn removexattr(&self, _: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.serve(move |mounted| {
            reply_empty(reply, mounted.set_extended_attribute(node.0, &name, None, 0))
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (name, caller) = (name.to_owned(), caller(request));
        self.serve(move |mounted| {
            match mounted.create(parent.0, &name, mode, open_flags(flags), caller) {
                Ok((entry, handle, flags)) => {
                    reply.created(&entry.ttl, &entry.attributes, GENERATION, handle, flags);
                }
                Err(refused) => reply.error(refused.errno()),
            }
        });
    }

    fn fallocate(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.serve(move |mounted| {
            reply_empty(reply, mounted.allocate(handle.0, offset, length, mode))
        });
    }

    fn lseek(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let data = match whence {
            SEEK_DATA => true,
            SEEK_HOLE => false,
            _ => return reply.error(Errno::EINVAL),
        };
        self.serve(move |mounted| match mounted.seek(handle.0, offset, data) {
            Ok(place) => reply.offset(place),
            Err(refused) => reply.error(refused.errno()),
        });
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _from: INodeNo,
        _from_handle: FileHandle,
        _from_offset: u64,
        _to: INodeNo,
        _to_handle: FileHandle,
        _to_offset: u64,
        _length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        // The kernel reads and writes instead, and does not send this request again.
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _room: u32,
        reply: ReplyIoctl,
    ) {
        // Programs send this for every file, to see whether it is a terminal.
        reply.error(Errno::ENOTTY);
    }

    fn poll(
        &self,
        _: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        // The kernel treats all files as ready, and does not send this request again.
        reply.error(Errno::ENOSYS);
    }
}
