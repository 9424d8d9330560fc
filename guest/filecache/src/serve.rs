//! The life of a mount.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit, umask};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::budget::Budgets;
use crate::files::Files;
use crate::files::ahead::Ahead;
use crate::history_file::HistoryFile;
use crate::kernel::Kernel;
use crate::options::{Options, Place};
use crate::requests::Requests;
use crate::shelf::Shelf;
use crate::source::Source;
use crate::store::Store;
use crate::{agent, control, mount_point, session};

/// Number of malloc arenas, shared by all threads.
const HEAPS: i32 = 1;
/// Files copied at the same time.
const FILLS: usize = 2;
/// Time after which a final write-back is announced.
const WRITE_BACK_PATIENCE: Duration = Duration::from_secs(2);
/// Longest interval between two checks for dirty files.
const WRITE_BACK_LOOK: Duration = Duration::from_secs(1);
/// Pause between two tries to write back what the source has refused.
const WRITE_BACK_PAUSE: Duration = Duration::from_secs(1);
/// Interval of saving the history; a kill loses what is newer.
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// Time for the last requests to end after the unmount.
const LAST_REQUESTS: Duration = Duration::from_millis(500);

/// Returns the text of a failure: the operation, its reason, and advice.
fn failed(what: impl Display, why: impl Display, hint: &str) -> String {
    format!("{what}: {why}; {hint}")
}

enum Event {
    Signal,
    Ended(io::Result<()>),
    /// Dirty files were written back, except these.
    WrittenBack(Vec<(String, Errno)>),
}

/// Serves the source at the mount point until a signal or an unmount. `is_up` is called when it is
/// ready. An error is one line: the operation, its reason, and advice.
pub fn serve(options: &Options, is_up: impl FnOnce(&Path)) -> Result<(), String> {
    // Signals from here on are handled once the mount is up.
    let (events, ends) = channel();
    watch_signals(events.clone())
        .map_err(|error| failed("signals", error, "try again with fewer limits"))?;
    prepare_process();
    let files = Arc::new(open(options)?);
    let named = options.mount.display();
    let at = mount_point::prepare(&options.mount)
        .map_err(|error| failed(named, error, "give an empty folder that is not in use"))?;
    let requests = Requests::start(files.clone(), session::READERS, options.trouble)
        .map_err(|error| failed("threads", error, "allow this process more of them"))?;
    let session = session::mount(&files, requests, options, &at).map_err(|error| {
        let hint = "mounting needs /dev/fuse and root, or fusermount3 and a folder of yours";
        failed(format!("mount {}", at.display()), error, hint)
    })?;
    let socket = start(&files, options, &at, session, events.clone()).map_err(|error| {
        let _ = mount_point::detach(&at);
        failed(at.display(), error, "try again with more memory or threads")
    })?;
    is_up(&at);
    let ended = ends.recv();
    if let Ok(Event::Signal) = ended {
        take_down(&at, &ends)?;
    }
    if options.write_back.is_some() {
        write_back_all(&files, events, &ends)?;
    }
    files.save_history();
    // A socket that stays does no harm: the next daemon removes it.
    let _ = socket.remove();
    match ended {
        Ok(Event::Ended(Err(error))) => {
            Err(failed(at.display(), error, "look at the kernel's log"))
        }
        _ => Ok(()),
    }
}

/// Unmounts even if it is in use. Requests in flight may end; those that wait for a source that
/// does not answer are abandoned when the process ends.
fn take_down(at: &Path, ends: &Receiver<Event>) -> Result<(), String> {
    mount_point::detach(at)
        .map_err(|error| failed(format!("unmount {}", at.display()), error, "try umount -l"))?;
    // Continues even if they do not end.
    let _ = ends.recv_timeout(LAST_REQUESTS);
    Ok(())
}

/// Writes everything back. Dirty bytes are given up only after a second signal.
fn write_back_all(
    files: &Arc<Files>,
    events: Sender<Event>,
    ends: &Receiver<Event>,
) -> Result<(), String> {
    let (mut waits, mut is_refused) = (false, false);
    // On a thread of its own: the source may hang.
    let try_all = || {
        let (files, events) = (files.clone(), events.clone());
        let all = move || drop(events.send(Event::WrittenBack(files.write_back_all())));
        Builder::new().name("write-back".into()).spawn(all).map(drop)
    };
    let hint = "they are lost; next time, wait until the source answers";
    loop {
        try_all().map_err(|error| failed("writing back", error, "allow it a thread"))?;
        loop {
            match ends.recv_timeout(WRITE_BACK_PATIENCE) {
                Ok(Event::WrittenBack(refused)) => {
                    let Some((path, error)) = refused.first() else { return Ok(()) };
                    if !std::mem::replace(&mut is_refused, true) {
                        let others = refused.len() - 1;
                        eprintln!(
                            "{path} (and {others} others) cannot be written to the source: \
                             {error}; trying on, until another SIGTERM gives them up"
                        );
                    }
                    std::thread::sleep(WRITE_BACK_PAUSE);
                    break;
                }
                Ok(Event::Signal) => {
                    let bytes = files.report().dirty_bytes;
                    let what = format!("{bytes} bytes not written to the source");
                    return Err(failed(what, "ended by a second signal", hint));
                }
                Ok(Event::Ended(_)) => {}
                Err(RecvTimeoutError::Timeout) => {
                    if !std::mem::replace(&mut waits, true) {
                        let bytes = files.report().dirty_bytes;
                        eprintln!(
                            "{bytes} bytes are not written to the source yet; waiting, until another \
                             SIGTERM gives them up"
                        );
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }
}

fn watch_signals(events: Sender<Event>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    Builder::new().name("signals".into()).spawn(move || {
        for _ in signals.forever() {
            if events.send(Event::Signal).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

/// Clears the umask, since callers pass final modes, and raises the limit of descriptors, since
/// each open file takes one or two.
fn prepare_process() {
    // Otherwise each thread's arena would in turn keep the memory of folder lists.
    // SAFETY: it changes a number of the allocator's.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, HEAPS) };
    umask(rustix::fs::Mode::empty());
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With fewer descriptors fewer files can be open.
    let _ = setrlimit(Resource::Nofile, limit);
}

fn open(options: &Options) -> Result<Files, String> {
    let unusable = |error| failed(options.source.display(), error, "give a folder that is there");
    let source = Source::open(&options.source).map_err(unusable)?;
    let store = match &options.place {
        Place::Memory(_) => Store::memory(),
        Place::Folder(path, _) => {
            let name = source.lasting_name(&options.source);
            let shelf = Shelf::open(path, name, source.identity().device).map_err(|error| {
                let hint = "give each cache a folder of its own, on a file system with O_TMPFILE";
                failed(path.display(), error, hint)
            })?;
            Store::Shelf(Arc::new(shelf))
        }
    };
    let history = match &options.state {
        None => None,
        Some(path) => {
            Some(HistoryFile::open(path, source.lasting_name(&options.source)).map_err(
                |error| failed(path.display(), error, "give a folder that can be written"),
            )?)
        }
    };
    let files = Files::new(options, source, store, history).map_err(unusable)?;
    files.recall();
    let adopted = files.copies.adopt_all();
    if let (Place::Folder(path, _), Err(error)) = (&options.place, adopted) {
        return Err(failed(path.display(), error, "give another folder"));
    }
    Ok(files)
}

/// Starts all threads.
fn start(
    files: &Arc<Files>,
    options: &Options,
    at: &Path,
    session: session::Session,
    events: Sender<Event>,
) -> io::Result<control::Socket> {
    files.connect(Kernel(session.notifier()));
    Builder::new().name("session".into()).spawn(move || {
        // The receiver may be gone.
        let _ = events.send(Event::Ended(session.run()));
    })?;
    for _ in 0..FILLS {
        let files = files.clone();
        Builder::new().name("fill".into()).spawn(move || files.fill_forever())?;
    }
    repeat("refresh", options.window, files, |files| files.refresh_open_copies())?;
    repeat("epoch", options.epoch, files, |files| files.copies.epoch())?;
    if let Some(it) = options.write_back {
        let looks = (it.time / 4).min(WRITE_BACK_LOOK);
        repeat("write-back", looks, files, Files::write_back_old)?;
    }
    // Copies in a folder take no memory that would have to be agreed on with the host.
    if let Place::Memory(_) = options.place {
        let budgets = Budgets::new(options.place.budget());
        agent::start(files, budgets, options.agent.clone(), options.epoch)?;
    }
    repeat("history", SAVE_EVERY, files, Files::save_history)?;
    fetch_ahead(options.epoch, files)?;
    control::serve(files, at).map_err(|error| {
        io::Error::new(error.kind(), format!("its socket in /run or XDG_RUNTIME_DIR: {error}"))
    })
}

/// Prefetches files, now and after each idle epoch.
fn fetch_ahead(every: Duration, files: &Arc<Files>) -> io::Result<()> {
    let files = files.clone();
    let every = every.max(Duration::from_millis(10));
    Builder::new().name("ahead".into()).spawn(move || {
        let mut ahead = Ahead::default();
        loop {
            files.fetch_ahead(&mut ahead);
            std::thread::sleep(every);
        }
    })?;
    Ok(())
}

/// Runs `work` periodically.
fn repeat(name: &str, every: Duration, files: &Arc<Files>, work: fn(&Files)) -> io::Result<()> {
    let files = files.clone();
    let every = every.max(Duration::from_millis(10));
    Builder::new().name(name.into()).spawn(move || {
        loop {
            std::thread::sleep(every);
            work(&files);
        }
    })?;
    Ok(())
}
