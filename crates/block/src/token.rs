//! How a layer recognises the requests that it has made or changed.
//!
//! A tag is the submitter's, and several requests may share one. So a layer that keeps something
//! about a request marks it with a token, keeps the one that the request had before, and puts that
//! back when the request returns.

use std::sync::atomic::{AtomicU32, Ordering};

/// A mark of one channel of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Token {
    /// The number of the channel; 0 is no channel's.
    source: u32,
    /// What the channel keeps about the request.
    index: u32,
}

/// Makes the tokens of one channel.
#[derive(Debug)]
pub struct TokenSource(u32);

impl TokenSource {
    /// For a new channel.
    #[expect(clippy::new_without_default, reason = "each one is another one")]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The mark of a request about which the channel keeps something at `index`.
    pub fn token(&self, index: usize) -> Token {
        Token { source: self.0, index: index as u32 }
    }

    /// The index of a mark of this channel.
    pub fn index_of(&self, token: Token) -> Option<usize> {
        (token.source == self.0).then_some(token.index as usize)
    }
}
