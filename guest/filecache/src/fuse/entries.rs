//! Folder lists for the kernel.

use std::time::Duration;

use rustix::io::Result;

use super::outcomes::Told;
use crate::files::Files;
use crate::kernel_types::{kind, nothing, to_kernel};
use crate::library::{FileAttr, Generation, INodeNo, ReplyDirectoryPlus};
use crate::requests::Owed;

/// Adds entries of a folder with their attributes to a reply, until it is full.
pub fn tell(files: &Files, to: &Owed<ReplyDirectoryPlus>, folder: u64, from: u64) -> Result<Told> {
    let entries = files.entries(folder, from)?;
    let mut told = Told::default();
    for (next, entry) in entries.rest(from) {
        let found = (!entry.is_dots()).then(|| files.entry(folder, entry.name)).flatten();
        let (window, attributes) = match &found {
            Some((node, seen)) => (files.window, to_kernel(node.id, seen)),
            // Number 0: only the name, of which the kernel caches nothing.
            None => (Duration::ZERO, FileAttr { kind: kind(entry.kind), ..nothing(entry.inode) }),
        };
        let id = if found.is_some() { attributes.ino } else { INodeNo(0) };
        let add = |to: &mut ReplyDirectoryPlus| {
            to.add(id, next, entry.name, &window, &attributes, Generation(0))
        };
        // If the request was already answered, none of it was told.
        let is_full = to.with(add).unwrap_or(true);
        match found {
            Some((node, _)) if is_full => files.untell(&node),
            found => told.0.extend(found.map(|(node, _)| node)),
        }
        if is_full {
            break;
        }
    }
    files.told_entries(folder, from, &entries, told.0.len());
    Ok(told)
}
