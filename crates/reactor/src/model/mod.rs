//! Support for running the real synchronisation code under loom: a stand-in for the kernel, and the
//! entry point of models.
//!
//! Only with the feature `model`, which no release enables.

pub mod channel;
mod event;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

pub use loom::cell::UnsafeCell;
pub use loom::thread::JoinHandle;

pub use self::event::Event;

/// Stack size in words. Loom's default stacks are too small for unoptimised code.
const STACK_WORDS: usize = 1 << 15;
/// Steps of all threads in one execution. A model that takes more does not terminate.
const STEPS_MAX: usize = 20_000;

/// Runs `model` in each interleaving of its threads with at most `preemptions` preemptions, and
/// with each value that a load may return then. Panics if it panics in one, or if all of its
/// threads wait forever.
pub fn check(name: &str, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let (count, start) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let counted = Arc::clone(&count);
    let model = Arc::new(model);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.max_branches = STEPS_MAX;
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let model = Arc::clone(&model);
        // On a large enough stack.
        let main = spawn(move || model());
        main.join().expect("a panic ends the model where it is");
    });
    let count = count.load(Ordering::Relaxed);
    println!("{name}: {count} executions in {:.1} s", start.elapsed().as_secs_f64());
}

/// Starts another thread of a model.
pub fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    let run = Sent(run);
    let builder = loom::thread::Builder::new().stack_size(STACK_WORDS);
    // Captures all of `run`, not only its field.
    let started = builder.spawn(move || { run }.0());
    started.expect("loom starts what it is told to")
}

/// A value that is moved to another thread of a model.
struct Sent<T>(T);

// SAFETY: all threads of a model are coroutines of one thread, on which a reactor stays, too.
unsafe impl<T> Send for Sent<T> {}
