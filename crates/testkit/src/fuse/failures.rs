//! Calls that fail. One that fails after it has been carried out is what a host gives whose answer
//! is lost, or whose disk fails half-way.

use fastrand::Rng;

use super::folder::Folder;
use super::wire::{Call, Message};

/// Which calls fail, and how.
pub struct Failures {
    random: Rng,
    one_in: u32,
}

/// How much of a call is carried out before it fails.
pub enum Failure {
    Nothing,
    Half,
    All,
}

impl Failures {
    /// One call in so many fails.
    pub fn new(one_in: u32, seed: u64) -> Self {
        Self { random: Rng::with_seed(seed), one_in }
    }

    /// Returns whether the next call fails, and how.
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
    /// Returns the error number.
    pub fn carry_out(&self, message: &Message, folder: &mut Folder) -> i32 {
        // A failure of its own, of a full disk for example, stays hidden behind this one.
        let _ = match (self, message.call) {
            (Self::Nothing, _) => return libc::ENOSPC,
            (Self::Half, Call::Write) => folder.write_half(message),
            (Self::Half, _) => return libc::EIO,
            (Self::All, _) => folder.answer(message),
        };
        libc::EIO
    }
}
