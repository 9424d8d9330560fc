//! A host with simulated trouble: a FUSE file system over a folder, which can be stopped, slowed,
//! and made to fail calls. A stopped file server answers nothing; every call on its files blocks.
//!
//! It holds images of disks ([`FuseHost::mount`]), also as a device whose requests are noted in
//! their order ([`FuseHost::mount_device`]), or the files behind a guest's file cache
//! ([`FuseHost::mount_source`]): a file cache takes it for a network file system, like any of
//! unknown type.

mod failures;
mod folder;
mod holds;
mod link;
mod unsynced;
mod wire;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::{HANG, skip, wait_until};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use self::failures::Failures;
use self::folder::Folder;
use self::holds::Holds;
use self::link::Link;
pub use self::wire::Call;
use self::wire::{Answer, HEAD_BYTES, Message, WRITE_BYTES_MAX};

/// Longest stop: a process that waits for a stopped host cannot be ended, nor a test that waits for
/// the process, so a failing test could never report it.
const STOP_MAX: Duration = HANG.saturating_mul(2);
/// Interval of the check for that.
const LOOK: Duration = Duration::from_secs(1);

/// A mounted folder of the fake host. Unmounted when dropped; waiting calls then fail.
pub struct FuseHost {
    at: PathBuf,
    state: Arc<Mutex<State>>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    stopped: Option<Instant>,
    ends: bool,
    link: Link,
    failures: Option<Failures>,
    /// Calls that are refused without being carried out, and their error.
    refused: (Vec<Call>, i32),
    loses_unsynced: bool,
    counts: BTreeMap<Call, Count>,
    /// Requests held while the host is stopped.
    held: Vec<Message>,
    /// The kind of call whose next answer is kept, that answer, and answers released for delivery.
    keeps: Option<Call>,
    kept: Option<Vec<u8>>,
    given: Vec<Vec<u8>>,
    /// Reads and writes of a device, in order of arrival.
    arrivals: Vec<Arrival>,
}

/// A read or write that has arrived at a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Whether it is a read or a write.
    pub call: Call,
    /// The file, as a path in the folder.
    pub file: String,
    /// Its first byte in the file.
    pub offset: u64,
}

/// Statistics of requests so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// Number of calls.
    pub calls: u64,
    /// Bytes of files that were read or written.
    pub bytes: u64,
}

impl FuseHost {
    /// Mounts the files of `behind` at `at`. Both folders must exist. Needs `/dev/fuse` and the
    /// right to mount.
    pub fn mount(at: &Path, behind: &Path) -> io::Result<Self> {
        Self::mount_as(at, behind, Holds::Images)
    }

    /// The same for files shared by several users: each may use it, subject to file modes; created
    /// files belong to their creator; each open reads again what others may have written.
    pub fn mount_source(at: &Path, behind: &Path) -> io::Result<Self> {
        Self::mount_as(at, behind, Holds::Source)
    }

    /// The same for images whose reads and writes arrive one by one, past the kernel's page cache,
    /// and are [noted](Self::arrivals).
    pub fn mount_device(at: &Path, behind: &Path) -> io::Result<Self> {
        Self::mount_as(at, behind, Holds::Device)
    }

    fn mount_as(at: &Path, behind: &Path, holds: Holds) -> io::Result<Self> {
        let mut device = File::options();
        let device = device.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let device = device.open("/dev/fuse")?;
        let is_shared = holds == Holds::Source;
        let shared = if is_shared { ",allow_other,default_permissions" } else { "" };
        let descriptor = device.as_raw_fd();
        let options = format!("fd={descriptor},rootmode=40000,user_id=0,group_id=0{shared}");
        let options = std::ffi::CString::new(options)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("fake-host", at, "fuse.fake-host", flags, options.as_c_str())?;
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let state = Arc::<Mutex<State>>::default();
        let server = Server {
            device,
            folder: Folder::new(behind.to_owned(), holds),
            notes_order: holds == Holds::Device,
            state: Arc::clone(&state),
            bell: Arc::clone(&bell),
            sent: Vec::new(),
        };
        let thread = Builder::new().name("fake-host".into()).spawn(move || server.run())?;
        Ok(Self { at: at.to_owned(), state, bell, thread: Some(thread) })
    }

    /// [Mounts](Self::mount) it; `None`, with a message, if that is not possible.
    pub fn mount_or_skip(at: &Path, behind: &Path) -> Option<Self> {
        Self::or_skip(Self::mount(at, behind))
    }

    /// Returns what was mounted; `None`, with a message, if that was not possible.
    pub fn or_skip(mounted: io::Result<Self>) -> Option<Self> {
        let say = |why| {
            skip(format_args!("no FUSE file system to be had (/dev/fuse, mount): {why}"));
        };
        mounted.map_err(say).ok()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        // The counter cannot overflow.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Answers nothing from now on, for four minutes at most.
    pub fn stop(&self) {
        self.change(|state| state.stopped = Some(Instant::now()));
    }

    /// Answers held requests, and continues.
    pub fn release(&self) {
        self.change(|state| state.stopped = None);
    }

    /// Delays each answer by this time; delays do not add up.
    pub fn slow(&self, delay: Duration) {
        self.link(delay, 0);
    }

    /// Simulates a link of this round trip and bandwidth (0: unlimited).
    pub fn link(&self, round_trip: Duration, bytes_per_second: u64) {
        self.change(|state| state.link = Link::new(round_trip, bytes_per_second));
    }

    /// Refuses these calls with this error, without carrying them out.
    pub fn refuse(&self, calls: &[Call], errno: i32) {
        self.change(|state| state.refused = (calls.to_vec(), errno));
    }

    /// Loses writes to a source that were not synced, as a crashing server does. Returns when they
    /// are lost.
    pub fn lose_unsynced(&self) {
        self.change(|state| state.loses_unsynced = true);
        wait_until("unsynced writes are lost", || !self.state().loses_unsynced);
    }

    /// Returns the statistics of a kind of call, including held and failed ones; bytes are of
    /// answered calls.
    pub fn count(&self, call: Call) -> Count {
        self.state().counts.get(&call).copied().unwrap_or_default()
    }

    /// Returns the reads and writes of a [device](Self::mount_device), without the first ones.
    pub fn arrivals(&self, from: usize) -> Vec<Arrival> {
        self.state().arrivals[from..].to_vec()
    }

    /// Returns the number of all calls.
    pub fn calls(&self) -> u64 {
        self.state().counts.values().map(|it| it.calls).sum()
    }

    /// Makes one in `one_in` calls that change a file fail, some of them after carrying them out
    /// wholly or in part.
    pub fn fail(&self, one_in: u32, seed: u64) {
        self.change(|state| state.failures = Some(Failures::new(one_in, seed)));
    }

    /// Ends all simulated trouble.
    pub fn recover(&self) {
        self.change(|state| {
            (state.stopped, state.link, state.failures) = (None, Link::default(), None);
            state.refused = (Vec::new(), 0);
            state.given.extend(state.kept.take());
            state.keeps = None;
        });
    }

    /// Carries out the next call of this kind, and keeps its answer until the next `keep` or
    /// `recover`. Other calls are answered meanwhile.
    pub fn keep(&self, call: Call) {
        self.change(|state| {
            state.given.extend(state.kept.take());
            state.keeps = Some(call);
        });
    }

    /// Waits until an answer is kept.
    pub fn wait_until_kept(&self) {
        wait_until("an answer is kept", || self.state().kept.is_some());
    }

    /// Returns the held requests.
    pub fn held(&self) -> Vec<Call> {
        self.state().held.iter().map(|message| message.call).collect()
    }

    /// Returns the number of held requests of this kind that this process has made. (A child of
    /// another test closes the descriptors that it has inherited, when it executes its program.)
    pub fn holds(&self, call: Call) -> usize {
        let is_ours = |thread: u32| Path::new(&format!("/proc/self/task/{thread}")).exists();
        let state = self.state();
        state.held.iter().filter(|held| held.call == call && is_ours(held.thread)).count()
    }
}

impl Drop for FuseHost {
    fn drop(&mut self) {
        let _ = unmount(&self.at, UnmountFlags::DETACH);
        // The thread closes the device, which ends all waiting calls.
        self.change(|state| state.ends = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Server {
    device: File,
    folder: Folder,
    notes_order: bool,
    state: Arc<Mutex<State>>,
    bell: Arc<OwnedFd>,
    /// Answers in flight, with their arrival times.
    sent: Vec<(Instant, Vec<u8>)>,
}

impl Server {
    fn run(mut self) {
        let mut buffer = vec![0; HEAD_BYTES + 4096 + WRITE_BYTES_MAX as usize];
        loop {
            let fds = &mut [
                PollFd::from_borrowed_fd(self.device.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN),
            ];
            let _ = poll(fds, Some(&self.next_look()));
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            loop {
                match self.device.read(&mut buffer) {
                    Ok(bytes) => self.take(Message::parse(&buffer[..bytes])),
                    // The request was interrupted meanwhile.
                    Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // Unmounted.
                    Err(_) => return,
                }
            }
            if !self.goes_on() {
                return;
            }
            self.deliver();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&mut self, message: Message) {
        if message.call.is_silent() {
            return;
        }
        let mut state = self.lock();
        state.counts.entry(message.call).or_default().calls += 1;
        if self.notes_order && matches!(message.call, Call::Read | Call::Write) {
            let (call, file) = (message.call, self.folder.name(message.node));
            state.arrivals.push(Arrival { call, file, offset: message.u64(8) });
        }
        // The kernel sends nothing before the answer to INIT.
        if state.stopped.is_some() && message.call != Call::Init {
            return state.held.push(message);
        }
        drop(state);
        self.answer(&message);
    }

    /// Answers held requests, unless it is stopped. Returns whether to continue.
    fn goes_on(&mut self) -> bool {
        let mut state = self.lock();
        if state.ends {
            return false;
        }
        state.stopped = state.stopped.filter(|since| since.elapsed() < STOP_MAX);
        let is_stopped = state.stopped.is_some();
        let held = if is_stopped { Vec::new() } else { std::mem::take(&mut state.held) };
        let loses = std::mem::take(&mut state.loses_unsynced);
        drop(state);
        if loses {
            self.folder.lose_unsynced();
        }
        held.iter().for_each(|message| self.answer(message));
        true
    }

    fn answer(&mut self, message: &Message) {
        let mut state = self.lock();
        let (calls, errno) = &state.refused;
        let refused = calls.contains(&message.call).then_some(*errno);
        let failure = state.failures.as_mut().and_then(|it| it.draw(message.call));
        drop(state);
        let outcome = match (refused, failure) {
            (Some(errno), _) => Err(errno),
            (None, None) => self.folder.answer(message),
            (None, Some(failure)) => Err(failure.carry_out(message, &mut self.folder)),
        };
        let bytes = match (&outcome, message.call) {
            (Ok(answer), Call::Read) => answer.0.len() as u64,
            (Ok(_), Call::Write) => message.u32(16).into(),
            _ => 0,
        };
        let answer = Answer::message(outcome, message.unique);
        let mut state = self.lock();
        state.counts.entry(message.call).or_default().bytes += bytes;
        if state.keeps == Some(message.call) {
            (state.keeps, state.kept) = (None, Some(answer));
            return;
        }
        let arrives = state.link.arrival(Instant::now(), bytes);
        drop(state);
        if message.call == Call::Init {
            // INIT is answered even while the host is stopped.
            let _ = self.device.write(&answer);
        } else {
            self.sent.push((arrives, answer));
        }
    }

    /// Delivers answers that have arrived to the kernel, unless the host is stopped.
    fn deliver(&mut self) {
        let mut state = self.lock();
        if state.stopped.is_some() {
            return;
        }
        let given = std::mem::take(&mut state.given);
        drop(state);
        let now = Instant::now();
        let arrived = self.sent.extract_if(.., |(arrives, _)| *arrives <= now);
        for answer in arrived.map(|(_, answer)| answer).chain(given) {
            // The caller may be gone.
            let _ = self.device.write(&answer);
        }
    }

    /// Returns the time until the next event, if there is no request before.
    fn next_look(&self) -> Timespec {
        let is_stopped = self.lock().stopped.is_some();
        let sent = self.sent.iter().filter(|_| !is_stopped);
        let next = sent.map(|(arrives, _)| *arrives).min();
        let wait = next.map_or(LOOK, |at| at.saturating_duration_since(Instant::now()));
        let wait = wait.min(LOOK);
        Timespec { tv_sec: wait.as_secs().cast_signed(), tv_nsec: wait.subsec_nanos().into() }
    }
}

#[cfg(test)]
mod tests;
