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
//!
//! A thread of the layer writes the lines. If the file is slower than the requests, lines are lost,
//! and a line says how many: `2.000000000 lost 17`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use flowstone_block::{Channel, Class, Completion, Layer, Origin, QueueContext, Request};

/// Lines that wait for the file; about 6 MB.
const LINES_MAX: usize = 1 << 16;
/// Lines that are written together.
const LINES_AT_ONCE: usize = 1 << 10;
/// Time that the end of the disk waits for the last lines.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The log layer.
pub struct Log {
    // First: the file has its last line before the image is closed.
    sink: Arc<Sink>,
    base: Arc<dyn Layer>,
}

struct Sink {
    start: Instant,
    /// To the thread that writes; taken at the end.
    lines: Option<SyncSender<String>>,
    lost: Arc<AtomicU64>,
    ended: Mutex<Receiver<()>>,
}

struct LogChannel {
    base: Box<dyn Channel>,
    sink: Arc<Sink>,
}

impl Log {
    /// Logs the requests to `base` and their completions to a new file at `path`.
    pub fn new(base: Arc<dyn Layer>, path: &Path) -> io::Result<Self> {
        let file = BufWriter::new(File::create(path)?);
        let (lines, waiting) = sync_channel(LINES_MAX);
        let (end, ended) = sync_channel(1);
        let (start, lost) = (Instant::now(), Arc::<AtomicU64>::default());
        let count = Arc::clone(&lost);
        let write = move || {
            write_lines(file, start, &waiting, &count);
            let _ = end.send(());
        };
        thread::Builder::new().name("request log".into()).spawn(write)?;
        let sink = Arc::new(Sink { start, lines: Some(lines), lost, ended: Mutex::new(ended) });
        Ok(Self { sink, base })
    }
}

impl Sink {
    fn line(&self, origin: Origin, words: std::fmt::Arguments<'_>) {
        let line = format!("{} {origin} {words}\n", since(self.start));
        let Some(lines) = &self.lines else { return };
        if lines.try_send(line).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.lines = None;
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = ended.recv_timeout(LAST_LINES);
    }
}

fn since(start: Instant) -> String {
    let time = start.elapsed();
    format!("{}.{:09}", time.as_secs(), time.subsec_nanos())
}

/// Writes lines until there are no more senders. A full disk under the log must not stop the guest:
/// the log is then truncated.
fn write_lines(
    mut file: BufWriter<File>,
    start: Instant,
    lines: &Receiver<String>,
    lost: &AtomicU64,
) {
    while let Ok(first) = lines.recv() {
        for line in std::iter::once(first).chain(lines.try_iter().take(LINES_AT_ONCE)) {
            let _ = file.write_all(line.as_bytes());
        }
        tell_of_lost(&mut file, start, lost);
    }
    tell_of_lost(&mut file, start, lost);
}

fn tell_of_lost(file: &mut BufWriter<File>, start: Instant, lost: &AtomicU64) {
    match lost.swap(0, Ordering::Relaxed) {
        0 => {}
        count => drop(writeln!(file, "{} lost {count}", since(start))),
    }
    let _ = file.flush();
}

impl Layer for Log {
    pass_to_base!(geometry);

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(LogChannel { base: self.base.channel(context)?, sink: Arc::clone(&self.sink) }))
    }
}

impl Channel for LogChannel {
    pass_to_base!(kick, next_look, retire);

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
}
