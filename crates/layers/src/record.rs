//! Passes a guest's requests to recordings. Without recordings its cost is one check per batch and
//! per reap.
//!
//! A batch has one timestamp, that of its first request. A request is recorded before the layer
//! below gets it, so requests that the guest makes in response to its completion are recorded
//! later.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use flowstone_block::{
    Channel, Completion, Layer, NextLook, Origin, QueueContext, ReaderWaker, Request, Seen, mutated,
};

use crate::recorder::{Recorder, Tape, Track};

/// The recording layer.
pub struct Record {
    base: Arc<dyn Layer>,
    recorder: Arc<Recorder>,
}

struct RecordChannel {
    base: Box<dyn Channel>,
    recorder: Arc<Recorder>,
    tapes: Seen<Vec<Arc<Tape>>>,
    /// Ends the sleep of its thread when a recording begins or ends.
    _waker: Arc<ReaderWaker>,
    /// One track for each recording.
    tracks: Vec<Track>,
    /// The current batch has its timestamp.
    is_fresh: bool,
}

impl Record {
    /// Records requests to `base`.
    pub fn new(base: Arc<dyn Layer>) -> Self {
        Self { base, recorder: Arc::default() }
    }

    /// Returns the recorder, which begins recordings.
    pub fn recorder(&self) -> Arc<Recorder> {
        Arc::clone(&self.recorder)
    }
}

impl Layer for Record {
    pass_to_base!(geometry);

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let base = self.base.channel(context)?;
        if context.origin == Origin::Own {
            // Not a guest's queue.
            return Ok(base);
        }
        let recorder = Arc::clone(&self.recorder);
        let mut channel = RecordChannel {
            base,
            // Registered before the first check, so that no later recording is missed.
            _waker: recorder.tapes.wakes(&context.reactor),
            tapes: Seen::of(&recorder.tapes),
            recorder,
            tracks: Vec::new(),
            is_fresh: false,
        };
        channel.change_tracks();
        Ok(Box::new(channel))
    }
}

impl RecordChannel {
    fn look(&mut self) {
        if self.tapes.newer(&self.recorder.tapes).is_some() {
            self.change_tracks();
        }
    }

    #[cold]
    fn change_tracks(&mut self) {
        let tapes = self.tapes.last();
        self.tracks.retain(|track| tapes.iter().any(|tape| track.is_of(tape)));
        for tape in tapes {
            if !self.tracks.iter().any(|track| track.is_of(tape)) {
                self.tracks.push(Tape::join(tape));
            }
        }
    }

    fn begin_batch(&mut self) {
        self.is_fresh = true;
        self.look();
        if !self.tracks.is_empty() {
            let now = Instant::now();
            self.tracks.iter_mut().for_each(|track| track.begin_batch(now));
        }
    }
}

impl Channel for RecordChannel {
    pass_to_base!(retire);

    fn submit(&mut self, request: Box<Request>) {
        if !self.is_fresh {
            self.begin_batch();
        }
        self.tracks.iter_mut().for_each(|track| track.record(&request));
        self.base.submit(request);
    }

    fn kick(&mut self) {
        self.is_fresh = false;
        self.base.kick();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        self.base.reap(done);
        // An idle queue must also drop a recording that has ended.
        let looks = mutated("layers.record.keeps-what-has-ended", true, false);
        if looks {
            self.look();
        }
    }

    fn next_look(&mut self) -> NextLook {
        // A recording that began or ended before this thread slept has not woken it.
        NextLook::now_if(self.tapes.is_old(&self.recorder.tapes)).min(self.base.next_look())
    }
}

#[cfg(test)]
mod tests;
