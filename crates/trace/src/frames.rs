//! Compression of a trace that grows for hours.

use std::io::{self, Write};
use std::mem;

use zstd::Encoder;

use crate::Totals;

/// First bytes of a zstd frame (RFC 8878, 3.1.1).
pub const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// A fast level: compression runs on the guests' host.
const LEVEL: i32 = -3;

/// A stream of zstd frames. Flushing ends a frame, so what has been flushed is readable even if the
/// stream is cut off later.
pub struct Frames<W: Write>(State<W>);

enum State<W: Write> {
    /// The next byte begins a frame.
    Between(W),
    Frame(Encoder<'static, W>),
    /// An error has consumed the target.
    Failed,
}

impl<W: Write> Frames<W> {
    /// Writes frames to `target`.
    pub fn new(target: W) -> Self {
        Self(State::Between(target))
    }
}

impl<W: Write> Write for Frames<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let State::Between(_) = self.0
            && let State::Between(target) = mem::replace(&mut self.0, State::Failed)
        {
            self.0 = State::Frame(Encoder::new(target, LEVEL)?);
        }
        let written = match &mut self.0 {
            State::Frame(encoder) => encoder.write(bytes),
            State::Between(_) | State::Failed => Err(io::ErrorKind::BrokenPipe.into()),
        };
        if written.is_err() {
            self.0 = State::Failed;
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        match mem::replace(&mut self.0, State::Failed) {
            State::Frame(encoder) => self.0 = State::Between(encoder.finish()?),
            state => self.0 = state,
        }
        Ok(())
    }
}

impl Totals {
    /// Returns the totals of a trace of which `end` is the end and which was flushed before its
    /// last line; `None` if the trace was cut.
    pub fn of_last_frame(end: &[u8]) -> Option<Self> {
        let begin = end.windows(ZSTD_MAGIC.len()).rposition(|bytes| bytes == ZSTD_MAGIC)?;
        let text = zstd::decode_all(&end[begin..]).ok()?;
        Self::of_line(std::str::from_utf8(&text).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, Kind, Writer, read_from};

    fn trace() -> Vec<u8> {
        let mut stream = Vec::new();
        let mut trace = Writer::begin(Frames::new(&mut stream), 1 << 20, "raw").unwrap();
        trace.event(&Event::new(Kind::Write, 4096, 8192)).unwrap();
        trace.flush().unwrap();
        trace.flush().unwrap();
        trace.event(&Event::new(Kind::Read, 0, 512)).unwrap();
        trace.lost(7).unwrap();
        trace.end().unwrap();
        stream
    }

    #[test]
    fn what_was_flushed_is_readable_and_the_end_has_the_totals() {
        let stream = trace();
        assert_eq!(Totals::of_last_frame(&stream), Some(Totals { requests: 2, lost: 7 }));
        let frames: Vec<_> =
            (0..stream.len()).filter(|&at| stream[at..].starts_with(&ZSTD_MAGIC)).collect();
        assert_eq!(frames.len(), 3, "two flushes and the totals");
        let cut = read_from(&stream[..frames[1] + 5]).unwrap();
        assert_eq!((cut.events.len(), cut.is_cut), (1, true));
        let whole = read_from(&stream[..]).unwrap();
        assert_eq!((whole.events.len(), whole.lost, whole.is_cut), (2, 7, false));
    }

    #[test]
    fn a_trace_that_was_cut_has_no_totals() {
        let stream = trace();
        for end in 0..stream.len() {
            assert_eq!(Totals::of_last_frame(&stream[..end]), None, "cut at {end}");
        }
    }

    #[test]
    fn an_error_of_the_target_is_an_error_for_good() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut frames = Frames::new(Full);
        frames.write_all(b"text").unwrap();
        assert_eq!(frames.flush().unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(frames.write_all(b"text").is_err());
        let mut frames = Frames::new(Full);
        let mut random = fastrand::Rng::with_seed(1);
        let noise: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(1 << 20).collect();
        assert_eq!(frames.write_all(&noise).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(frames.write_all(b"text").is_err() && frames.flush().is_ok());
    }
}
