//! Messages of a monitor that means harm, descriptors included: the device refuses or hangs up,
//! holds little, keeps nothing when its monitor has gone, and another device of the process works
//! on.
#![no_main]

#[path = "../counting.rs"]
mod counting;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use arbitrary::Arbitrary;
use flowstone_block::{
    FrontHalf, GuestQueue, Layer, QueueContext, QueueDepth, QueueRunner, SectorCount,
};
use flowstone_frontend::vhost_user::fuzzing::Device;
use flowstone_frontend::vhost_user::{DeviceOptions, DeviceShared, VirtQueue};
use flowstone_layers::Null;
use libfuzzer_sys::fuzz_target;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vhost::vhost_user::{BackendReqHandler, VhostUserBackendReqHandlerMut};

/// Memory that a device of four queues may hold for its monitor: slots of four rings of 32,768.
const HELD_MAX: usize = 128 << 20;
/// Runs between two looks at the descriptors of the process.
const RUNS_PER_LOOK: usize = 256;

/// A message that is mostly well-formed, so that the fuzzer gets past the first check.
#[derive(Arbitrary, Debug)]
struct Message {
    request: u8,
    need_reply: bool,
    wrong_flags: Option<u32>,
    wrong_size: Option<u32>,
    payload: Payload,
    fds: u8,
    events: bool,
}

#[derive(Arbitrary, Debug)]
enum Payload {
    Words(Vec<u64>),
    /// Index and number, as most ring messages have.
    State(u8, u16),
    Bytes(Vec<u8>),
}

/// Runs a queue for a moment on the thread that starts it.
struct Inline(Arc<Null>, HashMap<usize, VirtQueue>);

impl QueueRunner<VirtQueue> for Inline {
    fn start(&mut self, index: usize, mut queue: VirtQueue) -> io::Result<()> {
        let mut channel = self.0.channel(&QueueContext::alone(QueueDepth(queue.front().size()))?)?;
        let mut done = Vec::new();
        queue.take(usize::MAX, || true, |request| channel.submit(request));
        channel.reap(&mut done);
        while let Some(completion) = done.pop() {
            queue.complete(completion);
        }
        queue.publish();
        self.1.insert(index, queue);
        Ok(())
    }

    fn begin_stop(&mut self, _index: usize) {}

    fn stop(&mut self, index: usize) -> Option<VirtQueue> {
        self.1.remove(&index)
    }
}

fn descriptors(count: u8, events: bool) -> Vec<OwnedFd> {
    let make = |_| {
        if events {
            return eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        }
        let memory = memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a memfd");
        File::from(memory.try_clone().expect("a duplicate")).set_len(1 << 16).expect("it grows");
        memory
    };
    (0..count % 10).map(make).collect()
}

fn send(stream: &UnixStream, message: &Message) {
    let payload = match &message.payload {
        Payload::Words(words) => words.iter().flat_map(|word| word.to_ne_bytes()).collect(),
        Payload::State(index, number) => {
            [u32::from(*index).to_ne_bytes(), u32::from(*number).to_ne_bytes()].concat()
        }
        Payload::Bytes(bytes) => bytes.clone(),
    };
    let payload = &payload[..payload.len().min(4096)];
    let flags = message.wrong_flags.unwrap_or(1 | if message.need_reply { 8 } else { 0 });
    let size = message.wrong_size.unwrap_or(payload.len() as u32);
    let mut bytes = Vec::new();
    for word in [u32::from(message.request % 48), flags, size] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    let fds = descriptors(message.fds, message.events);
    let borrowed: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(10))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&borrowed));
    }
    let _ = sendmsg(stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL);
    let _ = (&mut &*stream).write_all(payload);
}

fn device() -> Device {
    let layer = Arc::new(Null::new(SectorCount::new(1 << 20)));
    let options = DeviceOptions {
        layer: layer.clone(),
        shared: Arc::new(DeviceShared::new(SectorCount::new(1 << 20))),
        queues_max: 4,
        id: "fuzz".into(),
    };
    Device::new(options, Box::new(Inline(layer, HashMap::new())))
}

/// Descriptors that no monitor's end has closed add up.
fn look_at_descriptors() {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    static FIRST: OnceLock<usize> = OnceLock::new();
    if RUNS.fetch_add(1, Ordering::Relaxed) % RUNS_PER_LOOK == 0 {
        let open = std::fs::read_dir("/proc/self/fd").expect("a process").count();
        let first = *FIRST.get_or_init(|| open);
        assert!(open <= first + 16, "{open} descriptors, {first} at first");
    }
}

fuzz_target!(|messages: Vec<Message>| {
    look_at_descriptors();
    let mut good = device();
    let features = good.get_features().expect("a device offers features");
    let held = counting::Watch::start();
    talk(&messages);
    assert!(held.peak_bytes() <= HELD_MAX, "{} bytes held", held.peak_bytes());
    assert!(held.live_bytes() <= 64 << 10, "{} bytes kept", held.live_bytes());
    assert_eq!(good.get_features().expect("still"), features);
    good.set_features(features).expect("what it offers");
});

fn talk(messages: &[Message]) {
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    // Replies that are not read must not block the device, nor our messages us.
    ours.set_nonblocking(true).expect("a socket of ours");
    let device = Arc::new(Mutex::new(device()));
    let mut handler = BackendReqHandler::from_stream(theirs, Arc::clone(&device));
    for message in messages.iter().take(64) {
        send(&ours, message);
    }
    ours.shutdown(std::net::Shutdown::Write).expect("a connected socket");
    for _ in 0..256 {
        match handler.handle_request() {
            Ok(()) | Err(vhost::vhost_user::Error::InvalidOperation(_)) => {}
            Err(_) => break,
        }
    }
    device.lock().expect("no panic got here").disconnect();
}
