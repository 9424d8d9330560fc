//! Tokens, by which a layer recognises the requests that it has made or changed.
//!
//! A tag belongs to the submitter, and several requests may share one. So a layer that keeps state
//! about a request sets a token on it, saves the token that it had before, and restores that when
//! the request returns.

use std::sync::atomic::{AtomicU32, Ordering};

/// A mark set by one channel of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Token {
    /// The channel's number; 0 is no channel.
    source: u32,
    /// The index of the channel's state about the request.
    index: u32,
}

/// Makes the tokens of one channel.
#[derive(Debug)]
pub struct TokenSource(u32);

impl TokenSource {
    /// Makes the source of a new channel.
    #[expect(clippy::new_without_default, reason = "each one is another one")]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the token of a request whose state is at `index`.
    pub fn token(&self, index: usize) -> Token {
        Token { source: self.0, index: index as u32 }
    }

    /// Returns the index of a token if it is of this channel.
    pub fn index_of(&self, token: Token) -> Option<usize> {
        (token.source == self.0).then_some(token.index as usize)
    }
}
