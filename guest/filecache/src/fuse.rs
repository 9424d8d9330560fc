//! What the kernel asks, and how it is answered.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::callers::Caller;
use crate::files::Files;
use crate::files::attributes::Change;
use crate::files::folders::Entry;
use crate::files::locks::Range;
use crate::files::names::{Found, New};
use crate::kernel::{Backing, REQUEST_MAX};
use crate::kernel_types::{how, how_names, kind, nothing, open_flags, to_kernel, to_source};
use crate::library::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

type Failure = rustix::io::Errno;

/// Answers the kernel.
pub struct Answers {
    /// From these.
    pub files: Arc<Files>,
}

/// What the kernel is asked to do, if it can.
const WANTED: [InitFlags; 5] = [
    InitFlags::FUSE_POSIX_LOCKS.union(InitFlags::FUSE_FLOCK_LOCKS),
    InitFlags::FUSE_AUTO_INVAL_DATA.union(InitFlags::FUSE_PARALLEL_DIROPS),
    InitFlags::FUSE_DO_READDIRPLUS.union(InitFlags::FUSE_READDIRPLUS_AUTO),
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
];

/// Gives the answer of a question, or its error.
macro_rules! answer {
    ($result:expr, $reply:ident, |$value:pat_param| $done:expr) => {
        match $result {
            Ok($value) => $done,
            Err(error) => $reply.error(errno(error)),
        }
    };
}

impl Answers {
    fn tell(&self, result: Result<Found, Failure>, reply: ReplyEntry) {
        answer!(result, reply, |(node, seen)| {
            let attributes = to_kernel(node.id, &seen);
            reply.entry(&self.files.window, &attributes, Generation(0));
        });
    }
}

// Laid out by hand: the library's functions take up to 16 arguments.
#[rustfmt::skip]
impl Filesystem for Answers {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for flags in WANTED {
            // An older kernel does without.
            let _ = config.add_capabilities(flags);
        }
        let can = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok();
        self.files.kernel_passes_through(can);
        let _ = config.set_max_write(REQUEST_MAX);
        let _ = config.set_max_readahead(REQUEST_MAX);
        Ok(())
    }

    fn lookup(&self, by: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.tell(self.files.look_up(parent.0, name, &caller(by)), reply);
    }

    fn forget(&self, _: &Request, id: INodeNo, times: u64) {
        self.files.nodes.forget(id.0, times);
    }

    fn getattr(&self, _: &Request, id: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        answer!(self.files.attributes(id.0, handle.map(|it| it.0)), reply, |seen| {
            reply.attr(&self.files.window, &to_kernel(id.0, &seen));
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
        let handle = handle.map(|it| it.0);
        answer!(self.files.change(id.0, handle, &change, &caller(by)), reply, |seen| {
            reply.attr(&self.files.window, &to_kernel(id.0, &seen));
        });
    }

    fn readlink(&self, by: &Request, id: INodeNo, reply: ReplyData) {
        use std::os::unix::ffi::OsStrExt;
        answer!(self.files.read_link(id.0, &caller(by)), reply, |to| reply.data(to.as_bytes()));
    }

    fn mknod(
        &self, by: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, rdev: u32,
        reply: ReplyEntry
    ) {
        self.tell(self.files.make(parent.0, name, &New::Node(mode, rdev), &caller(by)), reply);
    }

    fn mkdir(
        &self, by: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply:
        ReplyEntry
    ) {
        self.tell(self.files.make(parent.0, name, &New::Folder(mode), &caller(by)), reply);
    }

    fn symlink(&self, by: &Request, parent: INodeNo, name: &OsStr, to: &Path, reply: ReplyEntry) {
        let what = New::Link(to.as_os_str());
        self.tell(self.files.make(parent.0, name, &what, &caller(by)), reply);
    }

    fn unlink(&self, by: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.files.remove(parent.0, name, false, &caller(by)), reply);
    }

    fn rmdir(&self, by: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.files.remove(parent.0, name, true, &caller(by)), reply);
    }

    fn rename(
        &self, by: &Request, parent: INodeNo, name: &OsStr, newparent: INodeNo, newname: &OsStr,
        flags: RenameFlags, reply: ReplyEmpty
    ) {
        let (from, to) = ((parent.0, name), (newparent.0, newname));
        empty(self.files.rename(from, to, flags.bits(), &caller(by)), reply);
    }

    fn link(&self, by: &Request, id: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.tell(self.files.link(id.0, parent.0, name, &caller(by)), reply);
    }

    fn open(&self, by: &Request, id: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let register = |file: BorrowedFd<'_>| reply.open_backing(file).map(Backing);
        let opened = self.files.open(id.0, open_flags(flags.0), caller(by), &register);
        answer!(opened, reply, |opened| {
            let number = FileHandle(opened.number);
            match &opened.backing {
                Some(it) => reply.opened_passthrough(number, FopenFlags::empty(), &it.0),
                None => reply.opened(number, how(&opened)),
            }
        });
    }

    fn create(
        &self, by: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, flags: i32,
        reply: ReplyCreate
    ) {
        let register = |file: BorrowedFd<'_>| reply.open_backing(file).map(Backing);
        let flags = open_flags(flags);
        let created = self.files.create(parent.0, name, flags, mode, caller(by), &register);
        answer!(created, reply, |(node, seen, opened)| {
            let (window, it) = (&self.files.window, to_kernel(node.id, &seen));
            let (first, number, how) = (Generation(0), FileHandle(opened.number), how(&opened));
            match &opened.backing {
                Some(to) => reply.created_passthrough(window, &it, first, number, how, &to.0),
                None => reply.created(window, &it, first, number, how),
            }
        });
    }

    fn read(
        &self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, size: u32, _: OpenFlags,
        _: Option<LockOwner>, reply: ReplyData
    ) {
        let mut buffer = vec![0; size as usize];
        answer!(self.files.read(handle.0, offset, &mut buffer), reply, |read| {
            reply.data(&buffer[..read]);
        });
    }

    fn write(
        &self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, data: &[u8], flags:
        WriteFlags, _: OpenFlags, _: Option<LockOwner>, reply: ReplyWrite
    ) {
        let as_caller = flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        answer!(self.files.write(handle.0, offset, data, as_caller), reply, |written| {
            reply.written(written as u32);
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, handle: FileHandle, by: LockOwner, reply: ReplyEmpty) {
        empty(self.files.flush(handle.0, by.0), reply);
    }

    fn release(
        &self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, _:
        Option<LockOwner>, _: bool, reply: ReplyEmpty
    ) {
        self.files.release(handle.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, data: bool, reply: ReplyEmpty) {
        empty(self.files.sync(handle.0, data), reply);
    }

    fn opendir(&self, by: &Request, id: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        answer!(self.files.open_folder(id.0, caller(by)), reply, |(number, keeps_names)| {
            reply.opened(FileHandle(number), how_names(keeps_names));
        });
    }

    fn readdir(
        &self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory
    ) {
        answer!(self.files.entries(handle.0, offset == 0), reply, |entries| {
            for (next, entry) in rest(&entries, offset) {
                if reply.add(INodeNo(entry.inode), next, kind(entry.kind), &entry.name) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn readdirplus(
        &self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply:
        ReplyDirectoryPlus
    ) {
        answer!(self.files.entries(handle.0, offset == 0), reply, |entries| {
            for (next, entry) in rest(&entries, offset) {
                if self.add(handle.0, next, entry, &mut reply) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn releasedir(&self, _: &Request, _: INodeNo, it: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.files.close_folder(it.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, id: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        empty(self.files.sync_folder(id.0), reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        answer!(self.files.source.space(), reply, |it| reply.statfs(
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
        empty(self.files.set_extended(id.0, name, value, flags, &caller(by)), reply);
    }

    fn getxattr(&self, by: &Request, id: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let mut value = vec![0; size as usize];
        let result = self.files.extended(id.0, name, &mut value, &caller(by));
        answer!(result, reply, |length| extended(&value, length, reply));
    }

    fn listxattr(&self, by: &Request, id: INodeNo, size: u32, reply: ReplyXattr) {
        let mut names = vec![0; size as usize];
        let result = self.files.extended_names(id.0, &mut names, &caller(by));
        answer!(result, reply, |length| extended(&names, length, reply));
    }

    fn removexattr(&self, by: &Request, id: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.files.remove_extended(id.0, name, &caller(by)), reply);
    }

    fn getlk(
        &self, _: &Request, _: INodeNo, handle: FileHandle, owner: LockOwner, start: u64, end:
        u64, kind: i32, _pid: u32, reply: ReplyLock
    ) {
        let range = Range { start, end, kind };
        answer!(self.files.test_lock(handle.0, owner.0, range), reply, |(range, pid)| {
            reply.locked(range.start, range.end, range.kind, pid);
        });
    }

    fn setlk(
        &self, by: &Request, _: INodeNo, handle: FileHandle, owner: LockOwner, start: u64, end:
        u64, kind: i32, _pid: u32, waits: bool, reply: ReplyEmpty
    ) {
        let range = Range { start, end, kind };
        let tried = self.files.try_lock(handle.0, owner.0, range);
        if !waits || tried != Err(Failure::AGAIN) {
            return empty(tried, reply);
        }
        // Others hold it, perhaps for hours: no thread that answers may wait for them.
        let (files, task) = (self.files.clone(), by.pid());
        let wait = move || {
            empty(files.wait_for_lock(handle.0, owner.0, range, task), reply);
        };
        // Without a thread the reply is dropped, which answers with an error.
        let _ = std::thread::Builder::new().name("lock".into()).spawn(wait);
    }

    fn fallocate(
        &self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, length: u64, mode: i32,
        reply: ReplyEmpty
    ) {
        empty(self.files.allocate(handle.0, offset, length, mode), reply);
    }

    fn lseek(
        &self, _: &Request, _: INodeNo, handle: FileHandle, offset: i64, whence: i32, reply:
        ReplyLseek
    ) {
        let to_data = whence == libc::SEEK_DATA;
        let result = u64::try_from(offset).map_err(|_| Failure::NXIO);
        let result = result.and_then(|offset| self.files.seek(handle.0, offset, to_data));
        answer!(result, reply, |at| reply.offset(at.cast_signed()));
    }

    fn copy_file_range(
        &self, _: &Request, _: INodeNo, from: FileHandle, from_offset: u64, _: INodeNo, to:
        FileHandle, to_offset: u64, length: u64, _: CopyFileRangeFlags, reply: ReplyWrite
    ) {
        // The answer has 32 bits; a part is as good as the whole.
        let length = length.min(1 << 30);
        let (from, to) = ((from.0, from_offset), (to.0, to_offset));
        answer!(self.files.copy_bytes(from, to, length), reply, |copied| {
            reply.written(copied as u32);
        });
    }
}

impl Answers {
    /// Tells the kernel of an entry. Returns whether there was no more room.
    fn add(&self, folder: u64, next: u64, entry: &Entry, reply: &mut ReplyDirectoryPlus) -> bool {
        let found = (!entry.is_dots()).then(|| self.files.entry(folder, &entry.name)).flatten();
        let Some((node, seen)) = found else {
            // Number 0: the name alone, of which the kernel keeps nothing.
            let none = FileAttr { kind: kind(entry.kind), ..nothing(entry.inode) };
            let (zero, first) = (Duration::ZERO, Generation(0));
            return reply.add(INodeNo(0), next, &entry.name, &zero, &none, first);
        };
        let (window, attributes) = (&self.files.window, to_kernel(node.id, &seen));
        let name = &entry.name;
        let is_full = reply.add(attributes.ino, next, name, window, &attributes, Generation(0));
        if is_full {
            self.files.untell(&node);
        }
        is_full
    }
}

fn caller(request: &Request) -> Caller {
    Caller::of(request.uid(), request.gid(), request.pid())
}

fn errno(error: Failure) -> Errno {
    Errno::from_i32(error.raw_os_error())
}

fn empty(result: Result<(), Failure>, reply: ReplyEmpty) {
    answer!(result, reply, |()| reply.ok());
}

/// A length alone was asked for with no room for the value.
fn extended(value: &[u8], length: usize, reply: ReplyXattr) {
    if value.is_empty() {
        reply.size(length as u32);
    } else {
        reply.data(&value[..length]);
    }
}

/// The entries from an offset on, each with the offset of the next one.
fn rest(entries: &[Entry], offset: u64) -> impl Iterator<Item = (u64, &Entry)> {
    let entries = entries.iter().enumerate().skip(offset as usize);
    entries.map(|(at, entry)| (at as u64 + 1, entry))
}
