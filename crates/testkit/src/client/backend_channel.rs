//! The backend's request channel: messages that it sends on its own initiative.
//!
//! Only CONFIG_CHANGE_MSG matters to a disk; others are refused if they need a reply.
//! Messages are read in the caller's thread, so there is no thread to stop.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::event::wait_readable;
use crate::{Error, Result};

const CONFIG_CHANGE: u32 = 2;
const HEADER_BYTES: usize = 12;
const VERSION: u32 = 1;
const FLAG_REPLY: u32 = 1 << 2;
const FLAG_NEED_REPLY: u32 = 1 << 3;
const BODY_MAX: usize = 4096;

/// The front end's end of the channel.
#[derive(Debug)]
pub struct BackendChannel {
    socket: UnixStream,
}

impl BackendChannel {
    /// Makes the channel; the second socket is for the backend.
    pub(super) fn pair() -> Result<(Self, UnixStream)> {
        let (ours, theirs) = UnixStream::pair().map_err(|e| Error::io("make a socket pair", e))?;
        Ok((BackendChannel { socket: ours }, theirs))
    }

    /// Waits for a configuration change. `false` on timeout.
    pub fn wait_config_change(&mut self, timeout: Duration) -> Result<bool> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
            if !wait_readable(&mut fds, left)? {
                return Ok(false);
            }
            if self.receive()? == CONFIG_CHANGE {
                return Ok(true);
            }
        }
    }

    fn receive(&mut self) -> Result<u32> {
        let mut header = [0; HEADER_BYTES];
        self.read("a message header", &mut header)?;
        let word =
            |i: usize| u32::from_ne_bytes(header[4 * i..4 * i + 4].try_into().expect("four bytes"));
        let (request, flags, size) = (word(0), word(1), word(2) as usize);
        if size > BODY_MAX {
            return Err(Error::Protocol(format!("backend message {request} of {size} bytes")));
        }
        self.read("a message body", &mut vec![0; size])?;
        if flags & FLAG_NEED_REPLY != 0 {
            self.reply(request, u64::from(request != CONFIG_CHANGE))?;
        }
        Ok(request)
    }

    fn read(&mut self, what: &str, target: &mut [u8]) -> Result<()> {
        self.socket
            .read_exact(target)
            .map_err(|e| Error::io(format!("read {what} from the backend channel"), e))
    }

    fn reply(&mut self, request: u32, value: u64) -> Result<()> {
        let mut message = Vec::with_capacity(HEADER_BYTES + 8);
        for word in [request, VERSION | FLAG_REPLY, 8] {
            message.extend_from_slice(&word.to_ne_bytes());
        }
        message.extend_from_slice(&value.to_ne_bytes());
        self.socket.write_all(&message).map_err(|e| Error::io("reply on the backend channel", e))
    }
}
