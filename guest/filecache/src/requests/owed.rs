//! A reply that is owed to the kernel: the first thread that takes it gives it.

use std::sync::Mutex;

use flowstone_memory::mutant;
use rustix::io::{Errno, Result};

use crate::files::Files;
use crate::lock::lock;

/// A way to answer the kernel.
pub trait Reply: Send + 'static {
    /// Whether what was asked has to be done although no caller waits for the answer. It may be
    /// done without the source, so its end says nothing of that.
    const GIVES_BACK: bool = false;

    /// With an error.
    fn fail(self, error: Errno);
}

/// The reply to what gives something back: the kernel has it already.
pub struct Nobody;

impl Reply for Nobody {
    const GIVES_BACK: bool = true;

    fn fail(self, _: Errno) {}
}

/// What an answer tells of.
pub trait Outcome {
    /// Returns whether the source was asked for it.
    fn is_from_source(&self) -> bool {
        true
    }

    /// The kernel was not told of it: the answer came too late.
    fn undo(self, files: &Files);
}

/// The reply to a request, until a thread takes it.
pub struct Owed<R>(Mutex<Option<R>>);

impl<R: Reply> Owed<R> {
    /// Of this reply.
    pub fn new(reply: R) -> Self {
        Self(Mutex::new(Some(reply)))
    }

    /// Uses the reply for something that is not yet the answer, and does not wait. Nothing if
    /// somebody has answered.
    pub fn with<T>(&self, work: impl FnOnce(&mut R) -> T) -> Option<T> {
        lock(&self.0).as_mut().map(work)
    }

    /// Takes it, if it is still there.
    pub fn take(&self) -> Option<R> {
        lock(&self.0).take()
    }

    /// Answers, if the reply is still there.
    pub fn give<T: Outcome>(
        &self,
        files: &Files,
        result: Result<T>,
        send: impl FnOnce(&Files, R, T),
    ) {
        match (result, self.take()) {
            (Ok(outcome), Some(reply)) => send(files, reply, outcome),
            (Ok(outcome), None) if !mutant("guest.requests.keep-what-nobody-was-told-of") => {
                outcome.undo(files);
            }
            (Err(error), Some(reply)) => reply.fail(error),
            (_, None) => {}
        }
    }
}

/// Where an answer is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// At the source.
    Source,
    /// In what is known here, which does not wait.
    Memory,
}

/// A request, whatever it asks for.
pub trait Request: Send + Sync {
    /// Answers it, if that can be done there. Returns whether it is answered.
    fn answer(&self, files: &Files, ask: Ask) -> bool;
    /// Returns whether it has to be done, whatever becomes of the source or of who asks.
    fn gives_back(&self) -> bool {
        false
    }
    /// Returns whether it is answered.
    fn is_answered(&self) -> bool;
    /// Answers it with an error, if it is not answered.
    fn fail(&self, error: Errno);
}

/// With all that is needed to answer it.
pub struct Asked<R, W, S> {
    /// The reply.
    pub owed: Owed<R>,
    /// Finds the answer.
    pub work: W,
    /// Gives it.
    pub send: S,
}

impl<R, T, W, S> Request for Asked<R, W, S>
where
    R: Reply,
    T: Outcome,
    W: Fn(&Files, &Owed<R>, Ask) -> Option<Result<T>> + Send + Sync,
    S: Fn(&Files, R, T) + Send + Sync,
{
    fn answer(&self, files: &Files, ask: Ask) -> bool {
        let Some(result) = (self.work)(files, &self.owed, ask) else { return false };
        let is_heard = result.as_ref().map_or(true, Outcome::is_from_source) && !R::GIVES_BACK;
        if ask == Ask::Source && (is_heard || mutant("guest.requests.take-a-close-for-an-answer")) {
            files.hearing.heard(&result);
        }
        self.owed.give(files, result, &self.send);
        true
    }

    fn gives_back(&self) -> bool {
        R::GIVES_BACK
    }

    fn is_answered(&self) -> bool {
        self.owed.is_answered()
    }

    fn fail(&self, error: Errno) {
        self.owed.fail(error);
    }
}

/// Without: the thread that has read it has the rest.
impl<R: Reply> Request for Owed<R> {
    fn answer(&self, _: &Files, _: Ask) -> bool {
        false
    }

    fn is_answered(&self) -> bool {
        lock(&self.0).is_none()
    }

    fn fail(&self, error: Errno) {
        if let Some(reply) = self.take() {
            reply.fail(error);
        }
    }
}
