//! Collects what a process writes, so that its pipe never fills up and tests can look at it.

use std::io::Read;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Everything read from a pipe so far.
#[derive(Debug)]
pub(super) struct Capture {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Capture {
    /// Reads in a thread until the pipe is closed, which the end of the process does.
    pub(super) fn start(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(n @ 1..) = pipe.read(&mut chunk) {
                lock(&sink).extend_from_slice(&chunk[..n]);
            }
        });
        Capture { bytes, reader }
    }

    /// After the end of the process: waits for its last words, which may still be in the pipe. Not
    /// for ever: a child of it may hold the pipe open.
    pub(super) fn wait_for_end(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while !self.reader.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// As text; damaged characters are replaced.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&lock(&self.bytes)).into_owned()
    }
}

fn lock(bytes: &Mutex<Vec<u8>>) -> std::sync::MutexGuard<'_, Vec<u8>> {
    bytes.lock().expect("no holder of this lock can panic")
}
