//! Recording of file uses: a line `r|w,FILE,BYTES` for each open, in the simulator's format. FILE
//! is a stable number; names are not disclosed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use flowstone_policy::{FileId, Use};

use crate::lock::lock;

/// Lines queued for a reader. A slow reader loses lines beyond that.
const WAITING_MAX: usize = 1 << 16;

/// All recorders of a mount.
#[derive(Default)]
pub struct Recorders {
    count: AtomicUsize,
    to: Mutex<Vec<SyncSender<String>>>,
}

impl Recorders {
    /// Adds a recorder.
    pub fn add(&self) -> Receiver<String> {
        let (to, lines) = sync_channel(WAITING_MAX);
        let mut all = lock(&self.to);
        all.push(to);
        self.count.store(all.len(), Ordering::Relaxed);
        lines
    }

    /// Records a use of a file.
    pub fn used(&self, file: FileId, usage: Use, bytes: u64) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let letter = if usage == Use::Read { 'r' } else { 'w' };
        let line = format!("{letter},{},{bytes}\n", file.0);
        let mut all = lock(&self.to);
        all.retain(|to| {
            !matches!(
                to.try_send(line.clone()),
                Err(std::sync::mpsc::TrySendError::Disconnected(_))
            )
        });
        self.count.store(all.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_what_the_simulator_reads() {
        let recorders = Recorders::default();
        let lines = recorders.add();
        recorders.used(FileId(7), Use::Read, 4096);
        recorders.used(FileId(u64::MAX), Use::Write, 0);
        let text: String = lines.try_iter().collect();
        assert_eq!(text, "r,7,4096\nw,18446744073709551615,0\n");
        assert_eq!(flowstone_policy::simulator::parse(&text).unwrap().len(), 2);
        drop(lines);
        recorders.used(FileId(7), Use::Read, 1);
        assert_eq!(recorders.count.load(Ordering::Relaxed), 0, "the reader is gone");
    }
}
