//! Collects the output of a process, so that its pipe never fills up and tests can inspect it.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Everything that has been written to a pipe.
#[derive(Debug)]
pub(super) struct Capture {
    pipe: Arc<Mutex<Pipe>>,
    reader: JoinHandle<()>,
}

impl Capture {
    /// Reads in a thread until the pipe is closed, which happens at the end of the process.
    pub(super) fn start(pipe: impl Into<OwnedFd>) -> Self {
        let pipe = File::from(pipe.into());
        // Polled without holding the lock.
        let comes = pipe.try_clone().expect("a test has descriptors left");
        let pipe = Arc::new(Mutex::new(Pipe { pipe, bytes: Vec::new() }));
        let sink = Arc::clone(&pipe);
        let reader = thread::spawn(move || {
            while lock(&sink).drain() {
                let _ = poll(&mut [PollFd::new(&comes, PollFlags::IN)], None);
            }
        });
        Capture { pipe, reader }
    }

    /// Waits, after the end of the process, for the rest of its output, which may still be in the
    /// pipe. Limited in time: a child of it may hold the pipe open.
    pub(super) fn wait_for_end(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while !self.reader.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns all output written before this call as text; invalid characters are replaced.
    pub(super) fn text(&self) -> String {
        let mut pipe = lock(&self.pipe);
        pipe.drain();
        String::from_utf8_lossy(&pipe.bytes).into_owned()
    }
}

#[derive(Debug)]
struct Pipe {
    pipe: File,
    bytes: Vec<u8>,
}

impl Pipe {
    /// Reads all that is in it, without waiting. Returns whether more may come.
    fn drain(&mut self) -> bool {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut chunk = [0; 4096];
        loop {
            // No other thread reads it meanwhile: a read of a pipe that is readable or closed does
            // not block.
            match poll(&mut [PollFd::new(&self.pipe, PollFlags::IN)], Some(&NOW)) {
                Ok(0) | Err(_) => return true,
                Ok(_) => {}
            }
            match self.pipe.read(&mut chunk) {
                Ok(bytes @ 1..) => self.bytes.extend_from_slice(&chunk[..bytes]),
                _ => return false,
            }
        }
    }
}

fn lock(pipe: &Mutex<Pipe>) -> MutexGuard<'_, Pipe> {
    pipe.lock().expect("no holder of this lock can panic")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A line written by a daemon was searched for before the thread had read it.
    #[test]
    fn what_was_written_before_the_look_is_seen() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let capture = Capture::start(reader);
        for round in 1..=1000 {
            writer.write_all(b"a line\n").unwrap();
            assert_eq!(capture.text().lines().count(), round);
        }
        drop(writer);
        capture.wait_for_end(crate::HANG);
        assert!(capture.reader.is_finished() && capture.text().len() == 7000);
    }
}
