//! Which ranges of a disk hold data: asked by a thread of the disk, since the host can hold the
//! answer up.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;

use flowstone_block::{Extent, Sector};
use flowstone_image::Image;

/// Answers that wait to be taken.
const WAITING_MAX: usize = 1024;
/// The thread makes a few calls.
const STACK_BYTES: usize = 128 << 10;

/// What the thread says.
enum Answer {
    Data(Extent),
    End(io::Result<()>),
}

/// The ranges, in order, as they become known.
pub struct HeldData {
    /// Nothing when all is known.
    answers: Option<Receiver<Answer>>,
    failure: Option<io::Error>,
}

impl HeldData {
    /// Begins to ask. The thread has `place` until it ends.
    pub fn of(image: Arc<dyn Image>, place: Arc<()>) -> io::Result<Self> {
        let (tell, answers) = sync_channel(WAITING_MAX);
        let ask = move || {
            let end = walk(&*image, &tell);
            // The image goes before the answer: who hears of that may let go of the disk.
            drop((image, place));
            let _ = tell.send(Answer::End(end));
        };
        Builder::new().name("held data".into()).stack_size(STACK_BYTES).spawn(ask)?;
        Ok(Self { answers: Some(answers), failure: None })
    }

    /// Of a disk without an image: nothing is known to be held.
    pub fn none() -> Self {
        Self { answers: None, failure: None }
    }

    /// The next range, if it is known already.
    pub fn next(&mut self) -> Option<Extent> {
        match self.answers.as_ref()?.try_recv().ok()? {
            Answer::Data(extent) => return Some(extent),
            Answer::End(Ok(())) => self.answers = None,
            Answer::End(Err(error)) => self.failure = Some(error),
        }
        None
    }

    /// Why not all is known, if it is not.
    pub fn missing(&self) -> Option<String> {
        match (&self.failure, &self.answers) {
            (Some(error), _) => Some(error.to_string()),
            (None, Some(_)) => Some("the host had not told yet".into()),
            (None, None) => None,
        }
    }
}

/// Tells all ranges, each as long as it is; ends early when the recording has ended.
fn walk(image: &dyn Image, tell: &SyncSender<Answer>) -> io::Result<()> {
    let send = |extent| tell.send(Answer::Data(extent)).is_ok();
    let mut run: Option<Extent> = None;
    let mut at = Sector::new(0);
    while let Some(extent) = image.next_data(at)? {
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
