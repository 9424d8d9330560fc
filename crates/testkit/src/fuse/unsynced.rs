//! Writes that were not synced, which a crashing server loses.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The old bytes of each write, in the order of the writes.
#[derive(Default)]
pub struct Unsynced(Vec<Before>);

struct Before {
    node: u64,
    file: File,
    offset: u64,
    bytes: Vec<u8>,
    size: u64,
}

impl Unsynced {
    /// Saves a range of a file that is about to be written.
    pub fn before_write(
        &mut self,
        node: u64,
        file: &File,
        offset: u64,
        length: usize,
    ) -> io::Result<()> {
        let size = file.metadata()?.len();
        let there = size.saturating_sub(offset).min(length as u64);
        let mut bytes = vec![0; there as usize];
        file.read_exact_at(&mut bytes, offset)?;
        self.0.push(Before { node, file: file.try_clone()?, offset, bytes, size });
        Ok(())
    }

    /// Forgets the writes to a file that was synced.
    pub fn synced(&mut self, node: u64) {
        self.0.retain(|it| it.node != node);
    }

    /// Restores files to their last synced state.
    pub fn undo(&mut self) {
        for it in self.0.drain(..).rev() {
            // A file that cannot be written keeps its bytes, which the test will notice.
            let _ = it.file.write_all_at(&it.bytes, it.offset);
            let _ = it.file.set_len(it.size);
        }
    }
}
