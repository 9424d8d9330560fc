//! Logs one line per request and per completion to a file.
//!
//! ```text
//! 0.001234567 q1 submit 17 write sectors 2048+8 priority 0x4003
//! 0.001345678 q1 finish 17 ok
//! 0.001400000 q0 submit 4 write sectors 90112+24 priority 0x4003
//! 0.001600000 q0 finish 4 ok journal
//! ```
//! Times are seconds since the layer was made, `q1` is queue 1 of the disk, `own` means that the
//! request is not from a guest, and the number is the request's tag. The class is shown unless it
//! is data.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use flowstone_block::{
    Channel, Class, Completion, Geometry, Layer, NextLook, Origin, QueueContext, Request,
};

/// The log layer.
pub struct Log {
    base: Arc<dyn Layer>,
    sink: Arc<Sink>,
}

struct Sink {
    start: Instant,
    file: Mutex<BufWriter<File>>,
}

struct LogChannel {
    base: Box<dyn Channel>,
    sink: Arc<Sink>,
}

impl Log {
    /// Logs the requests to `base` and their completions to a new file at `path`.
    pub fn new(base: Arc<dyn Layer>, path: &Path) -> io::Result<Self> {
        let file = Mutex::new(BufWriter::new(File::create(path)?));
        let sink = Arc::new(Sink { start: Instant::now(), file });
        Ok(Self { base, sink })
    }
}

impl Sink {
    fn line(&self, origin: Origin, words: std::fmt::Arguments<'_>) {
        let time = self.start.elapsed();
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // A full disk under the log must not stop the guest: the log is then truncated.
        let _ = writeln!(file, "{}.{:09} {origin} {words}", time.as_secs(), time.subsec_nanos());
    }

    fn flush(&self) {
        let _ = self.file.lock().unwrap_or_else(PoisonError::into_inner).flush();
    }
}

impl Layer for Log {
    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(LogChannel { base: self.base.channel(context)?, sink: Arc::clone(&self.sink) }))
    }
}

impl Channel for LogChannel {
    fn submit(&mut self, request: Box<Request>) {
        let (tag, name, priority) = (request.tag, request.op.kind().name(), request.priority.0);
        let origin = request.origin;
        match request.op.extent() {
            Some(extent) => self
                .sink
                .line(origin, format_args!("submit {tag} {name} {extent} priority {priority:#x}")),
            None => self.sink.line(origin, format_args!("submit {tag} {name}")),
        }
        self.base.submit(request);
    }

    fn kick(&mut self) {
        self.base.kick();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        let before = done.len();
        self.base.reap(done);
        for completion in &done[before..] {
            let Request { tag, origin, class, .. } = *completion.request;
            match completion.outcome {
                Ok(()) if class == Class::Data => {
                    self.sink.line(origin, format_args!("finish {tag} ok"));
                }
                Ok(()) => {
                    self.sink.line(origin, format_args!("finish {tag} ok {}", class.name()));
                }
                Err(errno) => self.sink.line(origin, format_args!("finish {tag} {errno}")),
            }
        }
    }

    fn next_look(&mut self) -> NextLook {
        self.sink.flush();
        self.base.next_look()
    }

    fn retire(&mut self) -> bool {
        self.base.retire()
    }
}

impl Drop for LogChannel {
    fn drop(&mut self) {
        self.sink.flush();
    }
}
