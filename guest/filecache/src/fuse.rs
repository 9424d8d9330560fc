//! The FUSE requests of the kernel, and their answers.

mod asks;
mod entries;
mod outcomes;
mod replies;

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use rustix::io::Errno;

use self::entries::tell;
use self::outcomes::{Locked, OpenedFolder};
use self::replies::{created, done, entry, extended, opened, opened_folder, written};
use crate::callers::Caller;
use crate::files::Files;
use crate::files::attributes::Change;
use crate::files::locks::Range;
use crate::files::names::New;
use crate::kernel::{Backing, REQUEST_MAX};
use crate::kernel_types::{kind, open_flags, to_kernel, to_source};
use crate::library::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use crate::requests::{Ask, Owed, Reply, Requests};

/// Implements the FUSE operations.
pub struct Answers {
    /// The files of the mount.
    pub files: Arc<Files>,
    /// Runs the requests that need the source.
    pub requests: Arc<Requests>,
    /// Extended attributes are supported. If not, the kernel is told so at the first request for
    /// one, and asks no more: `ls -l` makes two requests per file.
    pub has_xattrs: bool,
}

/// Kernel features that are requested, if available.
const WANTED: [InitFlags; 5] = [
    InitFlags::FUSE_POSIX_LOCKS.union(InitFlags::FUSE_FLOCK_LOCKS),
    InitFlags::FUSE_AUTO_INVAL_DATA.union(InitFlags::FUSE_PARALLEL_DIROPS),
    InitFlags::FUSE_DO_READDIRPLUS.union(InitFlags::FUSE_READDIRPLUS_AUTO),
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
];

// Formatted by hand: the library's functions take up to 16 arguments.
#[rustfmt::skip]
impl Filesystem for Answers {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for flags in WANTED {
            // An older kernel works without.
            let _ = config.add_capabilities(flags);
        }
        if self.files.write_back.is_on() {
            let _ = config.add_capabilities(InitFlags::FUSE_ATOMIC_O_TRUNC);
        }
        let can = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok();
        self.files.kernel_passes_through(can);
        let _ = config.set_max_write(REQUEST_MAX);
        let _ = config.set_max_readahead(REQUEST_MAX);
        Ok(())
    }

    fn lookup(&self, by: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (caller, name) = (caller(by), name.to_owned());
        let look_up = move |files: &Files, _: &Owed<_>, ask| match ask {
            Ask::Source => Some(files.look_up(parent.0, &name, &caller)),
            Ask::Memory => files.look_up_unasked(parent.0, &name),
        };
        self.requests.ask(by.pid(), reply, look_up, entry);
    }

    fn forget(&self, _: &Request, id: INodeNo, times: u64) {
        self.files.nodes.forget(id.0, times);
    }

    fn getattr(&self, by: &Request, id: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        if let Some((seen, window)) = self.files.seen_by_open(id.0) {
            return reply.attr(&window, &to_kernel(id.0, &seen));
        }
        let caller = caller(by);
        let look = move |files: &Files, _: &Owed<_>, ask| match ask {
            Ask::Source => Some(files.attributes(id.0, handle.map(|it| it.0), &caller)),
            Ask::Memory => files.attributes_unasked(id.0),
        };
        self.requests.ask(by.pid(), reply, look, move |files, reply: ReplyAttr, seen| {
            reply.attr(&files.window, &to_kernel(id.0, &seen));
        });
    }

    fn setattr(
        &self, by: &Request, id: INodeNo, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>,
        size: Option<u64>, accessed: Option<TimeOrNow>, modified: Option<TimeOrNow>, _changed:
        Option<SystemTime>, handle: Option<FileHandle>, _: Option<SystemTime>, _:
        Option<SystemTime>, _: Option<SystemTime>, _: Option<BsdFileFlags>, reply: ReplyAttr
    ) {
        let has_times = accessed.is_some() || modified.is_some();
        let times = has_times.then(|| [accessed, modified].map(to_source));
        let change = Change { mode, uid, gid, size, times };
        let (handle, caller) = (handle.map(|it| it.0), caller(by));
        let work = move |files: &Files| files.change(id.0, handle, &change, &caller);
        self.change(by, reply, work, move |files, reply: ReplyAttr, seen| {
            reply.attr(&files.window, &to_kernel(id.0, &seen));
        });
    }

    fn readlink(&self, by: &Request, id: INodeNo, reply: ReplyData) {
        use std::os::unix::ffi::OsStrExt;
        let caller = caller(by);
        let work = move |files: &Files| files.read_link(id.0, &caller);
        self.ask(by, reply, work, |_, reply, to| reply.data(to.as_bytes()));
    }

    fn mknod(
        &self, by: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, rdev: u32,
        reply: ReplyEntry
    ) {
        self.make(by, parent, name, New::Node(mode, rdev), reply);
    }

    fn mkdir(
        &self, by: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply:
        ReplyEntry
    ) {
        self.make(by, parent, name, New::Folder(mode), reply);
    }

    fn symlink(&self, by: &Request, parent: INodeNo, name: &OsStr, to: &Path, reply: ReplyEntry) {
        self.make(by, parent, name, New::Link(to.as_os_str().to_owned()), reply);
    }

    fn unlink(&self, by: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(by, parent, name, false, reply);
    }

    fn rmdir(&self, by: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(by, parent, name, true, reply);
    }

    fn rename(
        &self, by: &Request, parent: INodeNo, name: &OsStr, newparent: INodeNo, newname: &OsStr,
        flags: RenameFlags, reply: ReplyEmpty
    ) {
        let (caller, name, newname) = (caller(by), name.to_owned(), newname.to_owned());
        let work = move |files: &Files| {
            let (from, to) = ((parent.0, &*name), (newparent.0, &*newname));
            files.rename(from, to, flags.bits(), &caller)
        };
        self.change(by, reply, work, done);
    }

    fn link(&self, by: &Request, id: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (caller, name) = (caller(by), name.to_owned());
        self.change(by, reply, move |files| files.link(id.0, parent.0, &name, &caller), entry);
    }

    fn open(&self, by: &Request, id: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (caller, flags) = (caller(by), open_flags(flags.0));
        let open = move |files: &Files, owed: &Owed<ReplyOpen>, ask| {
            let register = |file: BorrowedFd<'_>| register(owed.with(|it| it.open_backing(file))).map(Backing);
            match ask {
                Ask::Source => Some(files.open(id.0, flags, caller.clone(), &register)),
                Ask::Memory => files.open_unasked(id.0, flags, &caller, &register),
            }
        };
        self.requests.ask(by.pid(), reply, open, opened);
    }

    fn create(
        &self, by: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, flags: i32,
        reply: ReplyCreate
    ) {
        let (caller, flags, name) = (caller(by), open_flags(flags), name.to_owned());
        let create = move |files: &Files, owed: &Owed<ReplyCreate>, ask| {
            let register = |file: BorrowedFd<'_>| register(owed.with(|it| it.open_backing(file))).map(Backing);
            let create = || files.create(parent.0, &name, flags, mode, caller.clone(), &register);
            (ask == Ask::Source).then(create)
        };
        self.requests.ask(by.pid(), reply, create, created);
    }

    fn read(
        &self, by: &Request, _: INodeNo, handle: FileHandle, offset: u64, size: u32, _: OpenFlags,
        _: Option<LockOwner>, reply: ReplyData
    ) {
        match self.files.read_copy(handle.0, offset, size) {
            Some(Ok(read)) => return reply.data(&read),
            Some(Err(error)) => return reply.fail(error),
            None => {}
        }
        let work = move |files: &Files| files.read(handle.0, offset, size);
        self.ask(by, reply, work, |_, reply, read| reply.data(&read));
    }

    fn write(
        &self, by: &Request, _: INodeNo, handle: FileHandle, offset: u64, data: &[u8], flags:
        WriteFlags, _: OpenFlags, _: Option<LockOwner>, reply: ReplyWrite
    ) {
        let as_caller = flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        if let Some(bytes) = self.files.write_here(handle.0, offset, data) {
            return written(&self.files, reply, bytes);
        }
        let work =
            move |files: &Files, data: &[u8]| files.write(handle.0, offset, data, as_caller);
        self.requests.ask_with(by.pid(), reply, data, work, written);
    }

    fn flush(&self, by: &Request, _: INodeNo, it: FileHandle, owner: LockOwner, to: ReplyEmpty) {
        if self.files.flushes_nothing(it.0, owner.0) {
            return to.ok();
        }
        self.ask(by, to, move |files| files.flush(it.0, owner.0), done);
    }

    fn release(
        &self, by: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, _:
        Option<LockOwner>, _: bool, reply: ReplyEmpty
    ) {
        reply.ok();
        self.give_back(by, move |files| files.release(handle.0));
    }

    fn fsync(&self, by: &Request, _: INodeNo, handle: FileHandle, data: bool, reply: ReplyEmpty) {
        self.ask(by, reply, move |files| files.sync(handle.0, data), done);
    }

    fn opendir(&self, by: &Request, id: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let caller = caller(by);
        let work = move |files: &Files| {
            files.open_folder(id.0, caller.clone()).map(|(it, keeps)| OpenedFolder(it, keeps))
        };
        self.ask(by, reply, work, opened_folder);
    }

    fn readdir(
        &self, by: &Request, _: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectory
    ) {
        let work = move |files: &Files| files.entries(handle.0, offset);
        self.ask(by, reply, work, move |_, mut reply: ReplyDirectory, entries| {
            for (next, entry) in entries.rest(offset) {
                if reply.add(INodeNo(entry.inode), next, kind(entry.kind), entry.name) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn readdirplus(
        &self, by: &Request, _: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectoryPlus
    ) {
        let work = move |files: &Files, owed: &Owed<_>, ask| {
            (ask == Ask::Source).then(|| tell(files, owed, handle.0, offset))
        };
        self.requests.ask(by.pid(), reply, work, |_, reply: ReplyDirectoryPlus, _| reply.ok());
    }

    fn releasedir(&self, by: &Request, _: INodeNo, it: FileHandle, _: OpenFlags, to: ReplyEmpty) {
        to.ok();
        self.give_back(by, move |files| files.close_folder(it.0));
    }

    fn fsyncdir(&self, by: &Request, _: INodeNo, it: FileHandle, _: bool, reply: ReplyEmpty) {
        self.ask(by, reply, move |files| files.sync_folder(it.0), done);
    }

    fn statfs(&self, by: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.ask(by, reply, |files| files.source.space(), |_, reply, it| reply.statfs(
            it.f_blocks,
            it.f_bfree,
            it.f_bavail,
            it.f_files,
            it.f_ffree,
            it.f_bsize as u32,
            it.f_namemax as u32,
            it.f_frsize as u32,
        ));
    }

    fn setxattr(
        &self, by: &Request, id: INodeNo, name: &OsStr, value: &[u8], flags: i32, _position: u32,
        reply: ReplyEmpty
    ) {
        let (caller, name, value) = (caller(by), name.to_owned(), value.to_vec());
        let work = move |files: &Files| files.set_extended(id.0, &name, &value, flags, &caller);
        self.ask_for_xattr(by, reply, work, done);
    }

    fn getxattr(&self, by: &Request, id: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        // Asked before each write, which must not wait; the source clears the attribute if it has
        // one.
        if name == "security.capability" && self.files.keeps_back(id.0) {
            return reply.fail(Errno::NODATA);
        }
        let (caller, name) = (caller(by), name.to_owned());
        let work = move |files: &Files| {
            let mut value = vec![0; size as usize];
            files.extended(id.0, &name, &mut value, &caller).map(|length| (value, length))
        };
        self.ask_for_xattr(by, reply, work, extended);
    }

    fn listxattr(&self, by: &Request, id: INodeNo, size: u32, reply: ReplyXattr) {
        let caller = caller(by);
        let work = move |files: &Files| {
            let mut names = vec![0; size as usize];
            files.extended_names(id.0, &mut names, &caller).map(|length| (names, length))
        };
        self.ask_for_xattr(by, reply, work, extended);
    }

    fn removexattr(&self, by: &Request, id: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(by), name.to_owned());
        self.ask_for_xattr(by, reply, move |files| files.remove_extended(id.0, &name, &caller), done);
    }

    fn getlk(
        &self, by: &Request, _: INodeNo, handle: FileHandle, owner: LockOwner, start: u64, end:
        u64, kind: i32, _pid: u32, reply: ReplyLock
    ) {
        let range = Range { start, end, kind };
        let work = move |files: &Files| files.test_lock(handle.0, owner.0, range);
        self.ask(by, reply, work, |_, reply, (range, pid)| {
            reply.locked(range.start, range.end, range.kind, pid);
        });
    }

    fn setlk(
        &self, by: &Request, _: INodeNo, handle: FileHandle, owner: LockOwner, start: u64, end:
        u64, kind: i32, _pid: u32, waits: bool, reply: ReplyEmpty
    ) {
        let range = Range { start, end, kind };
        let (requests, task) = (self.requests.clone(), by.pid());
        let work = move |files: &Files| match files.try_lock(handle.0, owner.0, range) {
            Err(Errno::AGAIN) if waits => Ok(Locked::Waits),
            tried => tried.map(|()| Locked::Done),
        };
        self.ask(by, reply, work, move |_, reply, tried| {
            if tried == Locked::Done {
                return reply.ok();
            }
            // Others hold it, perhaps for hours: no request thread may wait for them.
            let wait = move |files: &Files| files.wait_for_lock(handle.0, owner.0, range, task);
            requests.ask_aside(task, reply, wait, done);
        });
    }

    fn fallocate(
        &self, by: &Request, _: INodeNo, handle: FileHandle, offset: u64, length: u64, mode: i32,
        reply: ReplyEmpty
    ) {
        self.change(by, reply, move |files| files.allocate(handle.0, offset, length, mode), done);
    }

    fn lseek(
        &self, by: &Request, _: INodeNo, handle: FileHandle, offset: i64, whence: i32, reply:
        ReplyLseek
    ) {
        let to_data = whence == libc::SEEK_DATA;
        let work = move |files: &Files| {
            let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
            files.seek(handle.0, offset, to_data)
        };
        self.ask(by, reply, work, |_, reply, at| reply.offset(at.cast_signed()));
    }

    fn copy_file_range(
        &self, by: &Request, _: INodeNo, from: FileHandle, from_offset: u64, _: INodeNo, to:
        FileHandle, to_offset: u64, length: u64, _: CopyFileRangeFlags, reply: ReplyWrite
    ) {
        // The reply has 32 bits; a short copy is allowed.
        let length = length.min(1 << 30);
        let (from, to) = ((from.0, from_offset), (to.0, to_offset));
        self.change(by, reply, move |files| files.copy_bytes(from, to, length), written);
    }
}

fn caller(request: &Request) -> Caller {
    Caller::of(request.uid(), request.gid(), request.pid())
}

/// Returns the kernel's registration of a file. If the request was already answered, it fails with
/// EINTR.
fn register<T>(registered: Option<std::io::Result<T>>) -> std::io::Result<T> {
    registered.unwrap_or_else(|| Err(Errno::INTR.into()))
}
