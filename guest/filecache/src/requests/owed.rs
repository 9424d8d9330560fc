//! An owed reply to the kernel: the first thread that takes it sends it.

use std::sync::Mutex;

use flowstone_memory::mutated;
use rustix::io::{Errno, Result};

use crate::files::Files;
use crate::lock::lock;

/// A reply to the kernel.
pub trait Reply: Send + 'static {
    /// The request has to be carried out although no caller waits for the reply. It may be done
    /// without the source, so its completion says nothing about that.
    const GIVES_BACK: bool = false;

    /// Replies an error.
    fn fail(self, error: Errno);
}

/// The reply to a request that releases something: none is sent.
pub struct Nobody;

impl Reply for Nobody {
    const GIVES_BACK: bool = true;

    fn fail(self, _: Errno) {}
}

/// The outcome of a request.
pub trait Outcome {
    /// Returns whether the source was asked for it.
    fn is_from_source(&self) -> bool {
        true
    }

    /// Undoes it, since the kernel was not told: the reply came too late.
    fn undo(self, files: &Files);
}

/// The reply to a request, until a thread takes it.
pub struct Owed<R>(Mutex<Option<R>>);

impl<R: Reply> Owed<R> {
    /// Holds this reply.
    pub fn new(reply: R) -> Self {
        Self(Mutex::new(Some(reply)))
    }

    /// Uses the reply for something that is not yet the answer, without blocking. `None` if it was
    /// already taken.
    pub fn with<T>(&self, work: impl FnOnce(&mut R) -> T) -> Option<T> {
        lock(&self.0).as_mut().map(work)
    }

    /// Takes the reply, if it is still there.
    pub fn take(&self) -> Option<R> {
        lock(&self.0).take()
    }

    /// Sends the answer, if the reply is still there.
    pub fn give<T: Outcome>(
        &self,
        files: &Files,
        result: Result<T>,
        send: impl FnOnce(&Files, R, T),
    ) {
        let undoes = mutated("guest.requests.keep-what-nobody-was-told-of", true, false);
        match (result, self.take()) {
            (Ok(outcome), Some(reply)) => send(files, reply, outcome),
            (Ok(outcome), None) if undoes => outcome.undo(files),
            (Err(error), Some(reply)) => reply.fail(error),
            (_, None) => {}
        }
    }
}

/// Where to look for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// At the source.
    Source,
    /// In local state, without blocking.
    Memory,
}

/// An unanswered request of any type.
pub trait Request: Send + Sync {
    /// Answers it, if that is possible there. Returns whether it is answered.
    fn answer(&self, files: &Files, ask: Ask) -> bool;
    /// Returns whether it has to be carried out even if the source is down or the caller is gone.
    fn gives_back(&self) -> bool {
        false
    }
    /// Returns whether it is answered.
    fn is_answered(&self) -> bool;
    /// Answers it with an error, unless it is answered.
    fn fail(&self, error: Errno);
}

/// A request with all that is needed to answer it.
pub struct Asked<R, W, S> {
    /// The reply.
    pub owed: Owed<R>,
    /// Computes the answer.
    pub work: W,
    /// Sends it.
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
        let is_heard = mutated("guest.requests.take-a-close-for-an-answer", is_heard, true);
        if ask == Ask::Source && is_heard {
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

/// A request without that: the thread that has read it has the rest.
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
