//! The thread of an image's maintenance worker.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use flowstone_block::{Error, Outcome, Result};

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It returned after a stop, or could not start.
    Returned,
    /// It panicked.
    Panicked,
}

/// The thread of a worker; none in an image that is only read, or whose caller steps the worker.
#[derive(Debug, Default)]
pub struct Worker(Mutex<Option<JoinHandle<Outcome>>>);

impl Worker {
    /// Waits until the worker, which was told to stop, has closed the image `name`; the first time.
    pub fn join(&self, name: &str, advice: &'static str) -> Result<()> {
        let thread = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let failed = |why| Error::host(format!("close {name}"), why, advice);
        match thread.map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(closed)) => closed.map_err(|errno| failed(io::Error::from(errno))),
            Some(Err(_)) => Err(failed(io::Error::other("the maintenance worker has panicked"))),
        }
    }
}

/// Starts the worker of the image `name`, and returns once it is running: an image without one must
/// not be served.
///
/// `make` creates it on its own thread, where its file stays, and marks the file as in use: if
/// there is no thread, nothing has been written. `run` works until the worker is told to stop, and
/// closes the image. `retire` is called however the worker ends, so that nothing waits for it any
/// more.
pub fn start<W>(
    name: &str,
    make: impl FnOnce() -> Result<W> + Send + 'static,
    run: impl FnOnce(W) -> Outcome + Send + 'static,
    retire: impl FnOnce(End) + Send + 'static,
) -> Result<Worker> {
    let (report, started) = sync_channel(1);
    let work = move || match make() {
        Ok(worker) => {
            let _ = report.send(Ok(()));
            run(worker)
        }
        Err(error) => {
            let _ = report.send(Err(error));
            Ok(())
        }
    };
    let live = move || {
        let outcome = catch_unwind(AssertUnwindSafe(work));
        retire(if outcome.is_ok() { End::Returned } else { End::Panicked });
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    };
    let refuse = |error: io::Error| Error::host(name, error, "free resources");
    let thread = Builder::new().name("maintenance".into()).stack_size(512 << 10).spawn(live);
    let thread = thread.map_err(refuse)?;
    let died = |_| refuse(io::Error::other("the maintenance worker ended while it started"));
    started.recv().map_err(died)??;
    Ok(Worker(Mutex::new(Some(thread))))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_worker_that_cannot_start_is_an_error_and_retires() {
        let (ends, ended) = channel();
        let refused = || Err::<(), _>(Error::host("image", "no descriptors", "free some"));
        let error =
            start("image", refused, |()| unreachable!(), move |end| ends.send(end).unwrap());
        assert_eq!(error.unwrap_err().to_string(), "image: no descriptors; free some");
        assert_eq!(ended.recv(), Ok(End::Returned));
    }

    #[test]
    fn a_worker_that_panics_retires_before_its_thread_is_joined() {
        let (ends, ended) = channel();
        let retire = move |end| ends.send(end).unwrap();
        let worker = start("image", || Ok(()), |()| panic!("a test"), retire);
        assert!(worker.unwrap().join("image", "see the log").is_err());
        assert_eq!(ended.try_recv(), Ok(End::Panicked));
    }
}
