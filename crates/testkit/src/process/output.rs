//! Collects what a process writes, so that its pipe never fills up and tests can look at it.

use std::io::Read;
use std::sync::{Arc, Mutex};
use std::thread;

/// Everything read from a pipe so far.
#[derive(Debug)]
pub(super) struct Capture {
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Capture {
    /// Reads in a thread until the pipe is closed, which the end of the process does.
    pub(super) fn start(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&bytes);
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(n @ 1..) = pipe.read(&mut chunk) {
                lock(&sink).extend_from_slice(&chunk[..n]);
            }
        });
        Capture { bytes }
    }

    /// As text; damaged characters are replaced.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&lock(&self.bytes)).into_owned()
    }
}

fn lock(bytes: &Mutex<Vec<u8>>) -> std::sync::MutexGuard<'_, Vec<u8>> {
    bytes.lock().expect("no holder of this lock can panic")
}
