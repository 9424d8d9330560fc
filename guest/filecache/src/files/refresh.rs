//! Refreshes open copies in place while the file changes, so that readers go on and see the changes
//! (`tail -f`).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use flowstone_memory::mutated;
use rustix::fs::OFlags;
use rustix::io::Result;

use super::fill;
use crate::bindings::OpenCopy;
use crate::copy::Copy;
use crate::errno;
use crate::files::Files;
use crate::lock::lock;
use crate::nodes::Node;
use crate::source;
use crate::stamp::{Identity, Stamp};

impl Files {
    /// Handles a stamp of the source that differs from the copy's: refreshes an open copy, retires
    /// any other.
    pub(crate) fn bring_up_to_date(&self, node: &Arc<Node>, stamp: Stamp) {
        match self.bindings.open_copy(node.identity) {
            Some(open) if !open.copy.is_of(stamp) => self.refresh(&open),
            Some(_) => {}
            None => self.copies.retire(node.identity),
        }
    }

    /// Compares each open copy with the source.
    pub fn refresh_open_copies(&self) {
        for open in self.bindings.open_copies() {
            self.refresh(&open);
        }
    }

    /// Compares an open copy with the source. If the source does not answer, the copy stays.
    fn refresh(&self, open: &OpenCopy) {
        let _asking = self.hearing.asks();
        let file = self.file_behind(open);
        let seen = file.as_ref().map_err(|error| *error).and_then(|it| source::stat(&**it));
        self.hearing.heard(&seen);
        let (Ok(file), Ok(seen)) = (file, seen) else { return };
        let news = open.node.told(seen.stamp);
        if news.changed {
            self.changes.one_more();
        }
        let updating = lock(&open.copy.updating);
        if open.copy.is_of(seen.stamp) {
            return;
        }
        // Until it is complete it is a copy of no stamp.
        open.copy.becomes(None);
        let copies = mutated("guest.refresh.skips-bytes", true, false);
        if !copies || copy_over(&file, &open.copy).is_ok() {
            // A second change within the same tick would go unseen: then the next check copies
            // again.
            open.copy.becomes(Some(seen.stamp).filter(|_| news.is_settled));
            open.copy.checked(&seen, None);
        }
        drop(updating);
        self.take_back_attributes(&open.node);
    }

    fn file_behind(&self, open: &OpenCopy) -> Result<Arc<File>> {
        if let Some(file) = &open.file {
            return Ok(file.clone());
        }
        let _acting = open.caller.act();
        let anchor = self.nodes.anchor(&open.node)?;
        source::reopen(anchor, OFlags::RDONLY).map(Arc::new)
    }

    /// Applies bytes written through the daemon to an open copy: its readers must see them before
    /// the write returns. Reads nothing from the source, which may be down by now.
    pub(crate) fn write_to_open_copy(
        &self,
        identity: Identity,
        file: &File,
        offset: u64,
        bytes: &[u8],
    ) {
        self.change_open_copy(identity, |open| {
            open.copy.file.write_all_at(bytes, offset).map_err(errno)?;
            let seen = source::stat(file).ok();
            seen.map_or(Ok(()), |it| open.copy.file.set_len(it.stamp.size).map_err(errno))
        });
    }

    /// The same for a range whose bytes are only at the source.
    pub(crate) fn patch_open_copy(&self, identity: Identity, offset: u64, bytes: u64) {
        self.change_open_copy(identity, |open| {
            let file = self.file_behind(open)?;
            let size = source::stat(&*file)?.stamp.size;
            let end = offset.saturating_add(bytes).min(size);
            fill::copy_range(&file, &open.copy.file, offset, end)?;
            open.copy.file.set_len(size).map_err(errno)
        });
    }

    fn change_open_copy(&self, identity: Identity, change: impl FnOnce(&OpenCopy) -> Result<()>) {
        let Some(open) = self.bindings.open_copy(identity) else { return };
        let writes = mutated("guest.write.leaves-open-copies", true, false);
        if !writes {
            return;
        }
        let updating = lock(&open.copy.updating);
        open.copy.becomes(None);
        // A failure is repaired by the next comparison.
        let _ = open.copy.begin_change().and_then(|()| change(&open));
        if let Ok(seen) = open.copy.file.metadata() {
            open.copy.resized(seen.len());
        }
        drop(updating);
        self.take_back_attributes(&open.node);
    }
}

/// Copies the bytes first, then sets the length: a reader that sees the new length finds bytes
/// there.
fn copy_over(file: &File, copy: &Copy) -> Result<()> {
    copy.begin_change()?;
    let size = source::stat(file)?.stamp.size;
    fill::copy_range(file, &copy.file, 0, size)?;
    copy.file.set_len(size).map_err(errno)?;
    copy.resized(size);
    Ok(())
}
