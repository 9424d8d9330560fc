//! A thread's reactor: dispatches completions to their owners, and sleeps.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use io_uring::opcode::{PollAdd, PollRemove};
use io_uring::types::Fd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slab::Slab;

use crate::ring::Ring;
use crate::{NextLook, Waker, mutated};

/// Kernel worker threads per user of a ring, and in total: one guest's many queues must not use up
/// a limit of processes.
const WORKERS_PER_USER: usize = 4;
const WORKERS_MAX: usize = 64;

const POLL_IN: u32 = libc::POLLIN as u32;

/// The reactor of one thread. A handle: its clones are the same reactor, and stay on its thread.
#[derive(Clone)]
pub struct Reactor(Rc<Inner>);

struct Inner {
    waker: Arc<Waker>,
    state: RefCell<State>,
}

/// The state that completions change.
#[derive(Default)]
pub(crate) struct State {
    ring: Option<Ring>,
    /// Completions taken from the ring on behalf of other users, by user.
    pub(crate) mailboxes: Slab<VecDeque<(u32, i32)>>,
    watches: Slab<Watched>,
    /// The ring polls the waker's event.
    waker_armed: bool,
    /// Users do not enter the kernel; the thread will, once for all of them.
    gathers: bool,
    /// Submissions and completions of all users so far.
    pub(crate) uses: u64,
}

/// A watched descriptor. Its slot is kept until the kernel has returned its poll, so that a late
/// completion is never attributed to a later watch.
struct Watched {
    file: Arc<File>,
    /// The ring polls it.
    armed: bool,
    /// It became readable and its owner has not checked yet: no sleep waits for it meanwhile.
    ready: bool,
    /// Its owner is gone.
    dropped: bool,
}

/// The owner of a completion, in the upper half of its user data; the lower half is the owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    User(usize),
    Watch(usize),
    Waker,
    /// No owner: the cancellation of a poll.
    Nobody,
}

const WATCH_BIT: u32 = 1 << 31;
const WAKER: u32 = u32::MAX;
const NOBODY: u32 = u32::MAX - 1;

impl Owner {
    fn mark(self, own: u32) -> u64 {
        let owner = match self {
            Self::User(slot) => slot as u32,
            Self::Watch(slot) => slot as u32 | WATCH_BIT,
            Self::Waker => WAKER,
            Self::Nobody => NOBODY,
        };
        u64::from(owner) << 32 | u64::from(own)
    }

    fn of(mark: u64) -> (Self, u32) {
        let owner = match (mark >> 32) as u32 {
            WAKER => Self::Waker,
            NOBODY => Self::Nobody,
            watch if watch & WATCH_BIT != 0 => Self::Watch((watch & !WATCH_BIT) as usize),
            user => Self::User(user as usize),
        };
        (owner, mark as u32)
    }
}

/// Returns the user data of a submission of the user at `slot`.
pub(crate) fn user_mark(slot: usize, own: u32) -> u64 {
    Owner::User(slot).mark(own)
}

impl Reactor {
    /// Makes a reactor of the calling thread.
    pub fn new() -> io::Result<Self> {
        let waker = Arc::new(Waker::new()?);
        Ok(Self(Rc::new(Inner { waker, state: RefCell::default() })))
    }

    /// Returns the waker, which ends this thread's sleep from any thread.
    pub fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.0.waker)
    }

    pub(crate) fn state(&self) -> RefMut<'_, State> {
        self.0.state.borrow_mut()
    }

    /// From here on users do not enter the kernel for their submissions and completions:
    /// [`enter`](Self::enter) does it for all of them, until [`scatter`](Self::scatter).
    pub fn gather(&self) {
        self.state().gathers = true;
    }

    /// Submits what all users have queued, and brings out what the kernel holds for them. Returns
    /// whether there was either.
    pub fn enter(&self) -> bool {
        let mut state = self.state();
        let Some(ring) = &mut state.ring else { return false };
        let needs_entering = ring.needs_entering();
        if needs_entering {
            ring.enter(0, None);
        }
        needs_entering
    }

    /// Ends [`gather`](Self::gather), and submits what has been queued since the last entrance.
    /// Returns whether there was something.
    pub fn scatter(&self) -> bool {
        let mut state = self.state();
        state.gathers = false;
        state.submit()
    }

    /// Returns the number of submissions and completions of all users so far.
    pub fn uses(&self) -> u64 {
        self.state().uses
    }

    /// Submits what is queued, and sleeps until there may be something to do: a completion, a
    /// readable descriptor, a wake-up by another thread, or the time that `last_look` returns.
    /// Spurious wake-ups are possible.
    ///
    /// `last_look` is called after other threads can see that they have to wake us. So it must
    /// check everything that they may have stored.
    pub fn sleep(&self, last_look: impl FnOnce() -> NextLook) {
        let looks_last = mutated("reactor.sleep.looks-before-it-says-so", true, false);
        if looks_last {
            self.0.waker.fall_asleep();
        }
        let look = last_look();
        if !looks_last {
            self.0.waker.fall_asleep();
        }
        match look {
            NextLook::Now => _ = self.state().submit(),
            NextLook::At(deadline) => self.wait(Some(deadline)),
            NextLook::OnWake => self.wait(None),
        }
        self.0.waker.wake_up();
    }

    fn wait(&self, deadline: Option<Instant>) {
        if self.0.waker.event().sleep_in_model(deadline.is_some()) {
            return;
        }
        let mut state = self.state();
        if state.ring.is_some() {
            state.wait_in_ring(&self.0.waker, deadline);
        } else {
            state.wait_in_poll(&self.0.waker, deadline);
        }
    }
}

impl State {
    /// Adds a user, and makes the ring if it is the first, with room for `entries` submissions.
    pub fn add_user(&mut self, entries: u32) -> io::Result<usize> {
        if self.ring.is_none() {
            self.ring = Some(Ring::new(entries)?);
        }
        let slot = self.mailboxes.insert(VecDeque::new());
        let workers = (WORKERS_PER_USER * self.mailboxes.len()).min(WORKERS_MAX);
        let limits = mutated("reactor.ring.does-not-limit-workers", true, false);
        if limits {
            self.ring().limit_workers(workers as u32);
        }
        Ok(slot)
    }

    /// Returns the ring of a state that has users.
    pub fn ring(&mut self) -> &mut Ring {
        self.ring.as_mut().expect("made with the first user")
    }

    /// Submits what is queued. Returns whether there was something.
    pub fn submit(&mut self) -> bool {
        !self.gathers && self.ring.as_mut().is_some_and(Ring::submit)
    }

    /// Enters the kernel if it holds completions. Returns whether it did.
    pub fn bring_out(&mut self) -> bool {
        let enters = !self.gathers && self.ring().has_more_inside();
        if enters {
            self.ring().enter(0, None);
        }
        enters
    }

    /// Returns the next completion of the user at `slot`; moves those of others into their
    /// mailboxes.
    pub fn next_for(&mut self, slot: usize) -> Option<(u32, i32)> {
        if let Some(kept) = self.mailboxes[slot].pop_front() {
            return Some(kept);
        }
        while let Some((mark, result)) = self.ring().next() {
            match Owner::of(mark) {
                (Owner::User(user), own) if user == slot => return Some((own, result)),
                (owner, own) => self.deliver(owner, own, result),
            }
        }
        None
    }

    /// Moves every completion to its owner.
    pub fn deliver_all(&mut self) {
        while let Some((mark, result)) = self.ring.as_mut().and_then(Ring::next) {
            let (owner, own) = Owner::of(mark);
            self.deliver(owner, own, result);
        }
    }

    fn deliver(&mut self, owner: Owner, own: u32, result: i32) {
        match owner {
            Owner::User(slot) => self.mailboxes[slot].push_back((own, result)),
            Owner::Waker => self.waker_armed = false,
            Owner::Nobody => {}
            Owner::Watch(slot) => {
                let watched = &mut self.watches[slot];
                (watched.armed, watched.ready) = (false, true);
                if watched.dropped {
                    self.watches.remove(slot);
                }
            }
        }
    }

    fn wait_in_ring(&mut self, waker: &Waker, deadline: Option<Instant>) {
        let Some(ring) = &mut self.ring else { return };
        let mut arm = |fd, owner: Owner| {
            let poll = PollAdd::new(Fd(fd), POLL_IN).build().user_data(owner.mark(0));
            // SAFETY: a poll names no memory; the kernel holds the file until the poll is back.
            unsafe { ring.push(&poll) };
        };
        if !self.waker_armed {
            self.waker_armed = true;
            arm(waker.event().as_fd().as_raw_fd(), Owner::Waker);
        }
        for (slot, watched) in &mut self.watches {
            if !watched.armed && !watched.ready {
                watched.armed = true;
                arm(watched.file.as_raw_fd(), Owner::Watch(slot));
            }
        }
        ring.enter(1, deadline);
        self.deliver_all();
    }

    fn wait_in_poll(&mut self, waker: &Waker, deadline: Option<Instant>) {
        let mut fds = vec![PollFd::new(waker.event(), PollFlags::IN)];
        let mut slots = Vec::new();
        for (slot, watched) in self.watches.iter().filter(|(_, watched)| !watched.ready) {
            slots.push(slot);
            fds.push(PollFd::new(&*watched.file, PollFlags::IN));
        }
        let timeout = deadline.map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            let tv_sec = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
            Timespec { tv_sec, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        // An interrupted or failed poll is an early wake-up: the caller checks again.
        let _ = poll(&mut fds, timeout.as_ref());
        let readable: Vec<bool> = fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
        for (slot, readable) in slots.into_iter().zip(readable) {
            self.watches[slot].ready = readable;
        }
    }

    pub fn add_watch(&mut self, file: Arc<File>) -> usize {
        self.watches.insert(Watched { file, armed: false, ready: false, dropped: false })
    }

    /// Returns whether the descriptor has become readable since the last call, and rearms it for
    /// the next sleep.
    pub fn take_ready(&mut self, slot: usize) -> bool {
        std::mem::take(&mut self.watches[slot].ready)
    }

    pub fn remove_watch(&mut self, slot: usize) {
        let watched = &mut self.watches[slot];
        if !watched.armed {
            self.watches.remove(slot);
            return;
        }
        watched.dropped = true;
        let cancel = PollRemove::new(Owner::Watch(slot).mark(0)).build();
        // SAFETY: a cancellation names no memory.
        unsafe { self.ring().push(&cancel.user_data(Owner::Nobody.mark(0))) };
    }
}
