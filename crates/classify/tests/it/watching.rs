//! When a layout is read again, and what becomes of it if it cannot be.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flowstone_block::{
    BlockingDisk, Channel, Completion, Errno, Geometry, Layer, NextLook, Op, QueueContext, Request,
    Sector, SectorCount,
};
use flowstone_classify::Classify;
use flowstone_layers::Mem;

use crate::disk::{Disk, MIB, make};

/// A disk in memory whose reads fail on demand.
struct Flaky {
    base: Mem,
    fails: Arc<AtomicBool>,
}

struct FlakyChannel {
    base: Box<dyn Channel>,
    fails: Arc<AtomicBool>,
    failed: Vec<Completion>,
}

impl Layer for Flaky {
    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let (base, fails) = (self.base.channel(context)?, Arc::clone(&self.fails));
        Ok(Box::new(FlakyChannel { base, fails, failed: Vec::new() }))
    }
}

impl Channel for FlakyChannel {
    fn submit(&mut self, request: Box<Request>) {
        if matches!(request.op, Op::Read(_)) && self.fails.load(Ordering::Relaxed) {
            self.failed.push(Completion { request, outcome: Err(Errno::IO) });
        } else {
            self.base.submit(request);
        }
    }

    fn kick(&mut self) {
        self.base.kick();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.failed);
        self.base.reap(done);
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(!self.failed.is_empty()).min(self.base.next_look())
    }
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A reading met an error, and everything that had been known was forgotten, until the boot record was
/// written again.
#[test]
fn a_passing_error_does_not_cost_the_layout() {
    let image = Disk::new(32 * MIB);
    make("mkfs.ext4", "-q -F", image.file.path());
    let base = Mem::new(SectorCount::from_bytes(32 * MIB).unwrap()).unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let disk = Arc::new(Flaky { base, fails: Arc::clone(&fails) });
    let mut piece = vec![0; MIB as usize];
    let mut writer = BlockingDisk::new(&*disk).unwrap();
    for at in (0..32 * MIB).step_by(piece.len()) {
        image.file.as_file().read_exact_at(&mut piece, at).unwrap();
        writer.write(Sector::new(at / 512), &mut piece).unwrap();
    }

    let classify = Classify::new(disk, 3);
    let classes = classify.classes();
    let is_known = || classes.layout().found().iter().any(|it| it.kind == "ext4");
    wait_for("the layout", is_known);
    let mut guest = BlockingDisk::new(&classify).unwrap();
    let mut superblock = vec![0; 1024];
    guest.read(Sector::new(2), &mut superblock).unwrap();
    fails.store(true, Ordering::Relaxed);
    let before = classes.readings();
    guest.write(Sector::new(2), &mut superblock).unwrap();
    wait_for("a reading that fails", || classes.readings() > before);
    assert!(is_known(), "it is as it was");
    fails.store(false, Ordering::Relaxed);
    let before = classes.readings();
    wait_for("a reading without another write", || classes.readings() > before);
    assert!(is_known());
}
