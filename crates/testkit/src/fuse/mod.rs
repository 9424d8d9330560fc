//! A host in as much trouble as a test likes: a FUSE file system over a folder, which can be
//! stopped, slowed, and made to fail calls. A file server that is stopped answers nothing; every
//! call about its files waits.

mod failures;
mod folder;
mod wire;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::{HANG, skip};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use self::failures::Failures;
use self::folder::Folder;
pub use self::wire::Call;
use self::wire::{Answer, HEAD_BYTES, Message, WRITE_BYTES_MAX};

/// No process ends that waits for a host which has stopped, and no test that waits for the process:
/// a test that fails meanwhile would never say so.
const STOP_MAX: Duration = HANG.saturating_mul(2);
/// How often the host looks whether it has stopped for that long.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A folder on the fake host. Unmounted when dropped; what waits there then fails.
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
    /// Time that each answer takes.
    delay: Duration,
    failures: Option<Failures>,
    /// Requests that wait for it to go on.
    held: Vec<Message>,
}

impl FuseHost {
    /// Shows the files of `behind` at `at`. Both folders must be there. Needs `/dev/fuse` and the
    /// right to mount.
    pub fn mount(at: &Path, behind: &Path) -> io::Result<Self> {
        let mut device = File::options();
        let device = device.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let device = device.open("/dev/fuse")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = std::ffi::CString::new(options)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("fake-host", at, "fuse.fake-host", flags, options.as_c_str())?;
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let state = Arc::<Mutex<State>>::default();
        let server = Server {
            device,
            folder: Folder::new(behind.to_owned()),
            state: Arc::clone(&state),
            bell: Arc::clone(&bell),
        };
        let thread = Builder::new().name("fake-host".into()).spawn(move || server.run())?;
        Ok(Self { at: at.to_owned(), state, bell, thread: Some(thread) })
    }

    /// Mounts it; `None`, and says why, where that cannot be.
    pub fn mount_or_skip(at: &Path, behind: &Path) -> Option<Self> {
        match Self::mount(at, behind) {
            Ok(host) => Some(host),
            Err(why) => {
                skip(format_args!("no FUSE file system to be had (/dev/fuse, mount): {why}"));
                None
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        // The counter cannot be full.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Answers nothing from now on, for four minutes at most.
    pub fn stop(&self) {
        self.change(|state| state.stopped = Some(Instant::now()));
    }

    /// Answers what has waited, and goes on.
    pub fn release(&self) {
        self.change(|state| state.stopped = None);
    }

    /// Takes this time for each answer from now on.
    pub fn slow(&self, delay: Duration) {
        self.change(|state| state.delay = delay);
    }

    /// Fails one call in so many from now on that would change a file, a part of them after doing
    /// what they ask for, wholly or in part.
    pub fn fail(&self, one_in: u32, seed: u64) {
        self.change(|state| state.failures = Some(Failures::new(one_in, seed)));
    }

    /// Has no trouble from now on.
    pub fn recover(&self) {
        self.change(|state| {
            (state.stopped, state.delay, state.failures) = (None, Duration::ZERO, None);
        });
    }

    /// What waits for it to go on.
    pub fn held(&self) -> Vec<Call> {
        self.state().held.iter().map(|message| message.call).collect()
    }

    /// How many requests of this kind wait for it to go on.
    pub fn holds(&self, call: Call) -> usize {
        self.held().into_iter().filter(|held| *held == call).count()
    }
}

impl Drop for FuseHost {
    fn drop(&mut self) {
        let _ = unmount(&self.at, UnmountFlags::DETACH);
        // The thread closes the device, which ends all that waits.
        self.change(|state| state.ends = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Server {
    device: File,
    folder: Folder,
    state: Arc<Mutex<State>>,
    bell: Arc<OwnedFd>,
}

impl Server {
    fn run(mut self) {
        let mut buffer = vec![0; HEAD_BYTES + 4096 + WRITE_BYTES_MAX as usize];
        loop {
            let fds = &mut [
                PollFd::from_borrowed_fd(self.device.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN),
            ];
            let _ = poll(fds, Some(&LOOK));
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            loop {
                match self.device.read(&mut buffer) {
                    Ok(bytes) => self.take(Message::parse(&buffer[..bytes])),
                    // One that was interrupted meanwhile.
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
        // Nothing is asked before the first answer.
        if state.stopped.is_some() && message.call != Call::Init {
            return state.held.push(message);
        }
        drop(state);
        self.answer(&message);
    }

    /// Answers what has waited, unless it is stopped. Returns whether there is more to come.
    fn goes_on(&mut self) -> bool {
        let mut state = self.lock();
        if state.ends {
            return false;
        }
        state.stopped = state.stopped.filter(|since| since.elapsed() < STOP_MAX);
        let is_stopped = state.stopped.is_some();
        let held = if is_stopped { Vec::new() } else { std::mem::take(&mut state.held) };
        drop(state);
        held.iter().for_each(|message| self.answer(message));
        true
    }

    fn answer(&mut self, message: &Message) {
        let mut state = self.lock();
        let failure = state.failures.as_mut().and_then(|it| it.draw(message.call));
        let delay = state.delay;
        drop(state);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        let outcome = match failure {
            None => self.folder.answer(message),
            Some(failure) => Err(failure.carry_out(message, &mut self.folder)),
        };
        let answer = Answer::message(outcome, message.unique);
        // Who has asked may be gone.
        let _ = self.device.write(&answer);
    }
}

#[cfg(test)]
mod tests;
