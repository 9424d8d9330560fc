//! Blocking calls on the client, for readable tests.
//!
//! Each sends one request on queue 0 and returns its status unchecked.

use super::{Client, Request, Status};
use crate::{Error, Result};

impl Client {
    /// Submits any request on queue 0 and waits for its completion.
    pub fn request(&mut self, request: &Request<'_>) -> Result<super::Completion> {
        self.request_on(0, request)
    }

    /// Reads into `target`; it is filled only if the status is OK.
    pub fn read(&mut self, sector: u64, target: &mut [u8]) -> Result<Status> {
        let answer = self.request(&Request::read(sector, target.len()))?;
        if answer.status == Status::Ok {
            expect_written(answer.written_bytes, target.len())?;
            target.copy_from_slice(&answer.data);
        }
        Ok(answer.status)
    }

    /// Writes `data`.
    pub fn write(&mut self, sector: u64, data: &[u8]) -> Result<Status> {
        self.status_of(&Request::write(sector, data))
    }

    /// Makes completed writes durable.
    pub fn flush(&mut self) -> Result<Status> {
        self.status_of(&Request::flush())
    }

    /// Discards ranges of (sector, sectors).
    pub fn discard(&mut self, ranges: &[(u64, u32)]) -> Result<Status> {
        self.status_of(&Request::discard(ranges))
    }

    /// Zeroes ranges of (sector, sectors).
    pub fn write_zeroes(&mut self, ranges: &[(u64, u32)], unmap: bool) -> Result<Status> {
        self.status_of(&Request::write_zeroes(ranges, unmap))
    }

    /// Returns the status, and the identity text up to its first zero byte.
    pub fn get_id(&mut self) -> Result<(Status, String)> {
        let answer = self.request(&Request::get_id())?;
        let text = answer.data.split(|&byte| byte == 0).next().unwrap_or_default();
        Ok((answer.status, String::from_utf8_lossy(text).into_owned()))
    }

    fn status_of(&mut self, request: &Request<'_>) -> Result<Status> {
        Ok(self.request(request)?.status)
    }
}

/// Checks the used length of a successful read: the data and the status byte.
fn expect_written(written_bytes: u32, data_bytes: usize) -> Result<()> {
    if written_bytes as usize == data_bytes + 1 {
        return Ok(());
    }
    Err(Error::Protocol(format!("read of {data_bytes} bytes says {written_bytes} were written")))
}
