//! Allocated ranges of a disk, queried on a separate thread, since the host may delay the answers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;

use flowstone_block::{Extent, Sector};
use flowstone_image::Image;

use crate::disk::Disk;

/// Answers buffered between the threads.
const WAITING_MAX: usize = 1024;
/// The thread makes only a few calls.
const STACK_BYTES: usize = 128 << 10;

/// A message of the thread.
enum Answer {
    Data(Extent),
    End(io::Result<()>),
}

/// The allocated ranges in ascending order, as they become known.
pub struct HeldData {
    /// `None` when all ranges are known.
    answers: Option<Receiver<Answer>>,
    failure: Option<io::Error>,
    /// Ends the query.
    is_enough: Arc<AtomicBool>,
}

impl HeldData {
    /// Starts the query. The thread holds `place` and the disk until it ends, so that its image is
    /// not closed before. A disk without an image has no known ranges.
    pub fn of(disk: Arc<Disk>, place: Arc<()>) -> io::Result<Self> {
        let (tell, answers) = sync_channel(WAITING_MAX);
        let is_enough = Arc::<AtomicBool>::default();
        let ends = Arc::clone(&is_enough);
        let ask = move || {
            let image = disk.stack.image.as_deref();
            let end = image.map_or(Ok(()), |image| walk(image, &tell, &ends));
            // Dropped before the answer is sent: the receiver may then release the disk.
            drop((disk, place));
            let _ = tell.send(Answer::End(end));
        };
        Builder::new().name("held data".into()).stack_size(STACK_BYTES).spawn(ask)?;
        Ok(Self { answers: Some(answers), failure: None, is_enough })
    }

    /// Returns the next range if it is known already.
    pub fn next(&mut self) -> Option<Extent> {
        match self.answers.as_ref()?.try_recv().ok()? {
            Answer::Data(extent) => return Some(extent),
            Answer::End(Ok(())) => self.answers = None,
            Answer::End(Err(error)) => self.failure = Some(error),
        }
        None
    }

    /// Returns why ranges are missing, if any are.
    pub fn missing(&self) -> Option<String> {
        match (&self.failure, &self.answers) {
            (Some(error), _) => Some(error.to_string()),
            (None, Some(_)) => Some("the host had not told yet".into()),
            (None, None) => None,
        }
    }
}

impl Drop for HeldData {
    fn drop(&mut self) {
        self.is_enough.store(true, Ordering::Relaxed);
    }
}

/// Sends all ranges, adjacent ones merged; ends early when that is enough.
fn walk(image: &dyn Image, tell: &SyncSender<Answer>, is_enough: &AtomicBool) -> io::Result<()> {
    let send = |extent| tell.send(Answer::Data(extent)).is_ok();
    let mut run: Option<Extent> = None;
    let mut at = Sector::new(0);
    while let Some(extent) = image.next_data(at)? {
        if is_enough.load(Ordering::Relaxed) {
            return Ok(());
        }
        at = extent.end();
        let longer = run.map_or(Some(extent), |run| run.merge(extent));
        if longer.is_none() && !run.is_none_or(send) {
            return Ok(());
        }
        run = longer.or(Some(extent));
    }
    run.map(send);
    Ok(())
}
