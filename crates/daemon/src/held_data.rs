//! Allocated ranges of a disk, queried on a separate thread, since the host may delay the answers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{Builder, sleep};
use std::time::Duration;

use flowstone_block::{Extent, Sector};
use flowstone_image::Image;

use crate::disk::Disk;

/// Answers buffered between the threads.
const WAITING_MAX: usize = 1024;
/// Time between two attempts to send an answer.
const PAUSE: Duration = Duration::from_millis(10);
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
    /// not closed before; it ends when the disk stops. A disk without an image has no known ranges.
    pub fn of(disk: Arc<Disk>, place: Arc<()>) -> io::Result<Self> {
        let (tell, answers) = sync_channel(WAITING_MAX);
        let is_enough = Arc::<AtomicBool>::default();
        let ends = Arc::clone(&is_enough);
        let ask = move || {
            let image = disk.stack.image.as_deref();
            let recorder = &disk.stack.recorder;
            let is_enough = || ends.load(Ordering::Relaxed) || recorder.is_closed();
            let end = image.map_or(Ok(()), |image| walk(image, &tell, &is_enough));
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

/// Sends all ranges, adjacent ones merged; fails when that is enough before the end.
fn walk(
    image: &dyn Image,
    tell: &SyncSender<Answer>,
    is_enough: &dyn Fn() -> bool,
) -> io::Result<()> {
    let mut run: Option<Extent> = None;
    let mut at = Sector::new(0);
    while let Some(extent) = image.next_data(at)? {
        if is_enough() {
            return Err(stopped());
        }
        at = extent.end();
        let longer = run.map_or(Some(extent), |run| run.merge(extent));
        if let Some(run) = run.filter(|_| longer.is_none()) {
            send(tell, run, is_enough)?;
        }
        run = longer.or(Some(extent));
    }
    run.map_or(Ok(()), |run| send(tell, run, is_enough))
}

/// Sends a range. A recorder that reads nothing must not hold up the end of the disk.
fn send(tell: &SyncSender<Answer>, extent: Extent, is_enough: &dyn Fn() -> bool) -> io::Result<()> {
    while let Err(refused) = tell.try_send(Answer::Data(extent)) {
        if matches!(refused, TrySendError::Disconnected(_)) || is_enough() {
            return Err(stopped());
        }
        sleep(PAUSE);
    }
    Ok(())
}

fn stopped() -> io::Error {
    io::Error::other("the disk stopped before")
}

#[cfg(test)]
mod tests {
    use flowstone_block::SectorCount;

    use super::*;

    /// Regression: the end of the disk waited for a recorder that read nothing.
    #[test]
    fn a_range_without_a_reader_is_given_up_when_the_disk_stops() {
        let (tell, _answers) = sync_channel(1);
        let extent = Extent::new(Sector::new(0), SectorCount::new(8)).unwrap();
        send(&tell, extent, &|| unreachable!("there is room")).unwrap();
        assert!(send(&tell, extent, &|| true).is_err());
    }
}
