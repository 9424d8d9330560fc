//! Events of disks, streamed to all listeners: `GET /v1/events`.
//!
//! A thread that reports an event does not wait for listeners. Each listener has its own bounded
//! queue; events that do not fit are dropped, and a line tells how many. A listener without events
//! costs nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{SystemTime, UNIX_EPOCH};

use flowstone_block::lock;
use serde::Serialize;
use serde_json::Value;

use crate::json_line;
use crate::origin::Origin;

/// Lines queued for a listener. Adding a disk makes three.
const LINES_MAX: usize = 1024;

/// An event of a disk.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event<'a> {
    /// Its name and socket are reserved.
    Added {
        /// Its origin.
        origin: Origin,
    },
    /// Its image is being opened.
    Opening,
    /// A guest can connect.
    Serving {
        /// Path of its socket.
        socket: &'a str,
    },
    /// It cannot be served.
    Failed {
        /// The reason, in the form of an error answer.
        error: Value,
    },
    /// Nothing of it remains.
    Removed,
    /// A monitor has connected.
    Connected {
        /// Its process, if known.
        process: Option<u32>,
    },
    /// The monitor has disconnected.
    Disconnected {
        /// The reason.
        reason: &'a str,
    },
    /// It has grown.
    Resized {
        /// New size.
        capacity_bytes: u64,
    },
    /// A request has failed for lack of space on the host.
    Full {
        /// The request.
        request: &'a str,
    },
    /// Damage was found.
    Damaged {
        /// Damaged part, and its defect.
        what: &'a str,
        /// The first sector of the disk that is lost, if known.
        lba: Option<u64>,
        /// The offset in the file, if known.
        offset: Option<u64>,
    },
}

/// One line of the stream.
#[derive(Serialize)]
struct Line<'a> {
    time_s: f64,
    disk: &'a str,
    #[serde(flatten)]
    event: Event<'a>,
}

/// The line in place of dropped ones.
#[derive(Serialize)]
struct Lost {
    time_s: f64,
    event: &'static str,
    count: u64,
}

/// The queues of all listeners.
#[derive(Default)]
pub struct Events(Mutex<Vec<Weak<Queue>>>);

/// A listener; dropping it ends the subscription.
pub struct Listener(Arc<Queue>);

#[derive(Default)]
struct Queue(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    /// Lines dropped since the queue was full.
    lost: u64,
    /// Waker of the listener, if it waits.
    waker: Option<Waker>,
}

impl Events {
    /// Subscribes a listener to events from now on.
    pub fn listen(&self) -> Listener {
        let queue = Arc::<Queue>::default();
        let mut queues = lock(&self.0);
        queues.retain(|it| it.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        Listener(queue)
    }

    /// Sends an event to all listeners. Does not wait, and costs next to nothing without listeners.
    pub fn tell(&self, disk: &str, event: Event<'_>) {
        let queues = lock(&self.0);
        let all: Vec<Arc<Queue>> = queues.iter().filter_map(Weak::upgrade).collect();
        if all.is_empty() {
            return;
        }
        // Under the lock: all listeners receive events in the same order.
        let line = json_line(&Line { time_s: now(), disk, event });
        let wakers: Vec<Waker> = all.iter().filter_map(|queue| queue.push(&line)).collect();
        drop(queues);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Queue {
    /// Returns the listener's waker, if it waits.
    fn push(&self, line: &[u8]) -> Option<Waker> {
        let mut waiting = lock(&self.0);
        // After a drop nothing is queued until the listener has read the count of dropped lines.
        if waiting.lost > 0 || waiting.lines.len() == LINES_MAX {
            waiting.lost += 1;
        } else {
            waiting.lines.push_back(line.to_vec());
        }
        waiting.waker.take()
    }
}

impl Listener {
    /// Returns all queued lines.
    pub fn poll_lines(&mut self, context: &mut Context<'_>) -> Poll<Vec<u8>> {
        let mut waiting = lock(&self.0.0);
        let mut text = Vec::new();
        waiting.lines.drain(..).for_each(|line| text.extend(line));
        let count = std::mem::take(&mut waiting.lost);
        if count > 0 {
            text.extend(json_line(&Lost { time_s: now(), event: "lost", count }));
        }
        if text.is_empty() {
            waiting.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(text)
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // To the microsecond, the precision of a float.
    since.as_micros() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicU64);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the lines that a listener can read now.
    fn lines(listener: &mut Listener, woken: &Arc<Woken>) -> Vec<Value> {
        let waker = Waker::from(Arc::clone(woken));
        match listener.poll_lines(&mut Context::from_waker(&waker)) {
            Poll::Pending => Vec::new(),
            Poll::Ready(text) => {
                let text = String::from_utf8(text).unwrap();
                text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
            }
        }
    }

    #[test]
    fn who_listens_hears_what_happens_then_and_is_woken_for_nothing_else() {
        let (events, woken) = (Events::default(), Arc::<Woken>::default());
        events.tell("a", Event::Opening);
        let mut listener = events.listen();
        assert!(lines(&mut listener, &woken).is_empty());
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        events.tell("a \"b\"\n", Event::Disconnected { reason: "it hung up" });
        events.tell("a", Event::Removed);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "it has not looked yet");
        let [gone, removed] = &lines(&mut listener, &woken)[..] else { panic!("two lines") };
        assert_eq!([&gone["event"], &gone["reason"]], ["disconnected", "it hung up"]);
        assert_eq!([&gone["disk"], &removed["event"]], ["a \"b\"\n", "removed"]);
        assert!(lines(&mut listener, &woken).is_empty());
        drop(listener);
        events.tell("a", Event::Opening);
        assert!(lock(&events.listen().0.0).lines.is_empty() && lock(&events.0).len() == 1);
    }

    #[test]
    fn who_does_not_keep_up_hears_how_much_it_has_lost_and_where() {
        let (events, woken) = (Events::default(), Arc::<Woken>::default());
        let (mut slow, mut quick) = (events.listen(), events.listen());
        let many = LINES_MAX as u64 + 7;
        for capacity_bytes in 0..many {
            events.tell("a", Event::Resized { capacity_bytes });
            assert_eq!(lines(&mut quick, &woken)[0]["capacity_bytes"], capacity_bytes);
        }
        let heard = lines(&mut slow, &woken);
        assert_eq!(heard.len(), LINES_MAX + 1);
        assert_eq!(heard[LINES_MAX - 1]["capacity_bytes"], many - 8);
        assert_eq!(
            (&heard[LINES_MAX]["event"], &heard[LINES_MAX]["count"]),
            (&"lost".into(), &7.into())
        );
        events.tell("a", Event::Opening);
        assert_eq!(lines(&mut slow, &woken).len(), 1);
    }
}
