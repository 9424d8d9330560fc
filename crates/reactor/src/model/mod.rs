//! To run the real code of what threads share under loom: the stand-in for the kernel, and how a
//! model is checked.
//!
//! Only with the feature `model`, which nothing that is released enables.

pub mod channel;
mod event;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

pub use loom::cell::UnsafeCell;
pub use loom::thread::JoinHandle;

pub use self::event::Event;

/// Words. Loom's own stacks are too small for code that is not optimised.
const STACK_WORDS: usize = 1 << 15;
/// Steps of all threads in one order. A model that takes more does not come to its end.
const STEPS_MAX: usize = 20_000;

/// Runs `model` in each order of its threads in which no more than `preemptions` times a thread
/// stops before it has to, and with each value that a load may have then. Panics if it panics in
/// one, or if all of its threads wait for ever.
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
        // On a stack that is large enough.
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
    // All of `run`, not only what is in it.
    let started = builder.spawn(move || { run }.0());
    started.expect("loom starts what it is told to")
}

/// What goes to another thread of a model.
struct Sent<T>(T);

// SAFETY: all threads of a model are coroutines of one thread, on which a reactor stays, too.
unsafe impl<T> Send for Sent<T> {}
