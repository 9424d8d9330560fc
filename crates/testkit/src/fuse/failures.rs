//! Injected failures of calls. A call may fail after it has been carried out, as on a host whose
//! answer is lost, or partly, as on a disk that fails half-way.

use fastrand::Rng;

use super::folder::Folder;
use super::wire::{Call, Message};

/// Decides which calls fail, and how.
pub struct Failures {
    random: Rng,
    one_in: u32,
}

/// The part of a call that is carried out before it fails.
pub enum Failure {
    Nothing,
    Half,
    All,
}

impl Failures {
    /// Makes one call in `one_in` fail.
    pub fn new(one_in: u32, seed: u64) -> Self {
        Self { random: Rng::with_seed(seed), one_in }
    }

    /// Returns the failure of the next call, if it is to fail.
    pub fn draw(&mut self, call: Call) -> Option<Failure> {
        let changes = matches!(call, Call::Write | Call::Fallocate | Call::SetAttr | Call::Fsync);
        if !changes || self.random.u32(..self.one_in) > 0 {
            return None;
        }
        Some(match self.random.u32(..3) {
            0 => Failure::Nothing,
            1 => Failure::Half,
            _ => Failure::All,
        })
    }
}

impl Failure {
    /// Carries out a part of the call, and returns the error number.
    pub fn carry_out(&self, message: &Message, folder: &mut Folder) -> i32 {
        // A real failure, for example of a full disk, is hidden by the injected one.
        let _ = match (self, message.call) {
            (Self::Nothing, _) => return libc::ENOSPC,
            (Self::Half, Call::Write) => folder.write_half(message),
            (Self::Half, _) => return libc::EIO,
            (Self::All, _) => folder.answer(message),
        };
        libc::EIO
    }
}
