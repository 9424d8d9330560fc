//! A disk that is slow, and fails on demand.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use flowstone_block::{
    BlockingDisk, Channel, Completion, Errno, Geometry, Layer, NextLook, Op, Origin, QueueContext,
    Request, Sector, SectorCount,
};
use flowstone_classify::Classify;
use flowstone_layers::Mem;

use crate::disk::{Disk, MIB, make};

/// A disk in memory. Reads and writes of the layers above can be delayed, and fail on demand.
pub struct Slow {
    base: Mem,
    control: Arc<Control>,
}

#[derive(Default)]
pub struct Control {
    /// Duration of each read, in milliseconds.
    pub read_ms: AtomicU64,
    pub reads: AtomicU64,
    pub reads_fail: AtomicBool,
    /// Writes are carried out, and reported as failed.
    pub writes_fail: AtomicBool,
    /// Completions of writes are held back.
    pub writes_held: AtomicBool,
    /// Number of channels that cannot be opened.
    pub channels_refused: AtomicU64,
}

struct SlowChannel {
    base: Box<dyn Channel>,
    control: Arc<Control>,
    held: Vec<Completion>,
}

impl Layer for Slow {
    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let left = &self.control.channels_refused;
        if left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        }
        let (base, control) = (self.base.channel(context)?, Arc::clone(&self.control));
        Ok(Box::new(SlowChannel { base, control, held: Vec::new() }))
    }
}

impl Channel for SlowChannel {
    fn submit(&mut self, request: Box<Request>) {
        if matches!(request.op, Op::Read(_)) {
            self.control.reads.fetch_add(1, Relaxed);
            std::thread::sleep(Duration::from_millis(self.control.read_ms.load(Relaxed)));
        }
        self.base.submit(request);
    }

    fn kick(&mut self) {
        self.base.kick();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        self.base.reap(&mut self.held);
        if self.control.writes_held.load(Relaxed) {
            let (writes, others) = std::mem::take(&mut self.held)
                .into_iter()
                .partition(|it: &Completion| it.request.op.modifies());
            self.held = writes;
            done.extend::<Vec<_>>(others);
        } else {
            done.append(&mut self.held);
        }
        for it in done {
            let is_read = matches!(it.request.op, Op::Read(_));
            let control = &self.control;
            if is_read && control.reads_fail.load(Relaxed)
                || !is_read && control.writes_fail.load(Relaxed)
            {
                it.outcome = Err(Errno::IO);
            }
        }
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(!self.held.is_empty()).min(self.base.next_look())
    }
}

/// Layer whose channels have the origin of a guest's queue.
pub struct OfGuest<'a>(pub &'a Classify, pub u16);

impl Layer for OfGuest<'_> {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let origin = Origin::Queue { disk: 0, queue: self.1 };
        self.0.channel(&QueueContext { origin, ..context.clone() })
    }
}

/// Makes such a disk with the first 32 MiB of this one.
pub fn slow(image: &Disk) -> (Arc<Slow>, Arc<Control>) {
    let base = Mem::new(SectorCount::from_bytes(32 * MIB).unwrap()).unwrap();
    let mut piece = vec![0; MIB as usize];
    let mut writer = BlockingDisk::new(&base).unwrap();
    for at in (0..32 * MIB).step_by(piece.len()) {
        image.file.as_file().read_exact_at(&mut piece, at).unwrap();
        writer.write(Sector::new(at / 512), &mut piece).unwrap();
    }
    let control = Arc::new(Control::default());
    (Arc::new(Slow { base, control: Arc::clone(&control) }), control)
}

pub fn ext4_of_32_mib(options: &str) -> Disk {
    let image = Disk::new(32 * MIB);
    make("mkfs.ext4", &format!("-q -F {options}"), image.file.path());
    image
}
