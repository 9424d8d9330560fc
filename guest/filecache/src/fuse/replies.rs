//! Replies to the kernel.

use std::sync::Arc;

use crate::files::Files;
use crate::files::names::Found;
use crate::files::open::Opened;
use crate::fuse::outcomes::OpenedFolder;
use crate::kernel_types::{how, how_names, to_kernel};
use crate::library::{
    Errno, FileHandle, FopenFlags, Generation, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr,
};
use crate::nodes::Node;
use crate::requests::Reply;
use crate::stamp::Attributes;

macro_rules! fail_with_errno {
    ($($kind:ty),* $(,)?) => {
        $(impl Reply for $kind {
            fn fail(self, error: rustix::io::Errno) {
                self.error(Errno::from_i32(error.raw_os_error()));
            }
        })*
    };
}

fail_with_errno!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyEmpty,
    ReplyEntry,
    ReplyLock,
    ReplyLseek,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr,
);

/// Replies success.
pub fn done(_: &Files, reply: ReplyEmpty, (): ()) {
    reply.ok();
}

/// Replies with the node of a name.
pub fn entry(files: &Files, reply: ReplyEntry, (node, seen): Found) {
    reply.entry(&files.window, &to_kernel(node.id, &seen), Generation(0));
}

/// Replies with the number of written bytes.
pub fn written(_: &Files, reply: ReplyWrite, bytes: usize) {
    reply.written(bytes as u32);
}

/// Replies with an open file.
pub fn opened(_: &Files, reply: ReplyOpen, opened: Opened) {
    let number = FileHandle(opened.number);
    match &opened.backing {
        Some(it) => reply.opened_passthrough(number, FopenFlags::empty(), &it.0),
        None => reply.opened(number, how(&opened)),
    }
}

/// Replies with a created and opened file.
pub fn created(
    files: &Files,
    reply: ReplyCreate,
    (node, seen, opened): (Arc<Node>, Attributes, Opened),
) {
    let (window, it) = (&files.window, to_kernel(node.id, &seen));
    let (first, number, how) = (Generation(0), FileHandle(opened.number), how(&opened));
    match &opened.backing {
        Some(to) => reply.created_passthrough(window, &it, first, number, how, &to.0),
        None => reply.created(window, &it, first, number, how),
    }
}

/// Replies with an open folder.
pub fn opened_folder(_: &Files, reply: ReplyOpen, OpenedFolder(number, keeps): OpenedFolder) {
    reply.opened(FileHandle(number), how_names(keeps));
}

/// Replies with an extended attribute, or its length if the buffer is empty.
pub fn extended(_: &Files, reply: ReplyXattr, (value, length): (Vec<u8>, usize)) {
    if value.is_empty() {
        reply.size(length as u32);
    } else {
        reply.data(&value[..length]);
    }
}
