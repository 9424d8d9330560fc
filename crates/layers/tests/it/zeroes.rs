//! Writes that are all zero.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use flowstone_layers::Zeroes;

use super::*;

/// Records the operations that reach it.
#[derive(Clone, Default)]
struct Spy(Arc<std::sync::Mutex<Vec<Op>>>);

struct SpyChannel(Spy, Vec<Completion>);

impl Layer for Spy {
    fn geometry(&self) -> Geometry {
        Geometry::with_capacity(SectorCount::new(2048))
    }

    fn channel(&self, _context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(SpyChannel(self.clone(), Vec::new())))
    }
}

impl Channel for SpyChannel {
    fn submit(&mut self, request: Box<Request>) {
        let carries = matches!(request.op, Op::Read(_) | Op::Write(_));
        assert_eq!(carries, !request.memory.is_empty(), "{:?}", request.op);
        self.0.0.lock().unwrap().push(request.op);
        self.1.push(Completion { request, outcome: Ok(()) });
    }

    fn kick(&mut self) {}

    fn reap(&mut self, done: &mut Vec<Completion>) {
        // Not in order of submission.
        done.extend(self.1.drain(..).rev());
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(!self.1.is_empty())
    }
}

fn what_reaches_the_disk(unmap: bool, at: u64, mut data: Vec<u8>) -> Op {
    let spy = Spy::default();
    let layer = Zeroes::new(Arc::new(spy.clone()), unmap);
    BlockingDisk::new(&layer).unwrap().write(Sector::new(at), &mut data).unwrap();
    spy.0.lock().unwrap().pop().unwrap()
}

#[test]
fn only_whole_aligned_zero_writes_become_write_zeroes() {
    for unmap in [false, true] {
        let zeroes = Op::WriteZeroes { extent: extent(8, 16), unmap };
        assert_eq!(what_reaches_the_disk(unmap, 8, vec![0; 8192]), zeroes);
    }
    let write = |start, count| Op::Write(extent(start, count));
    for place in [0, 1, 255, 256, 4095, 8191] {
        let mut data = vec![0; 8192];
        data[place] = 1;
        assert_eq!(what_reaches_the_disk(true, 8, data), write(8, 16), "one at {place}");
    }
    assert_eq!(what_reaches_the_disk(true, 1, vec![0; 4096]), write(1, 8), "an odd start");
    assert_eq!(what_reaches_the_disk(true, 0, vec![0; 512]), write(0, 1), "an odd length");
}

/// A host that has to write zeroes refuses long ranges: a guest's write of zeroes must not be
/// refused because of that.
#[test]
fn long_writes_stay_writes_where_zeroes_are_written() {
    struct Fills(Spy);
    impl Layer for Fills {
        fn geometry(&self) -> Geometry {
            let capacity = SectorCount::new(1 << 20);
            Geometry { zeroes_are_written: true, ..Geometry::with_capacity(capacity) }
        }

        fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
            self.0.channel(context)
        }
    }
    for sectors in [8192, 8200] {
        let spy = Spy::default();
        let layer = Zeroes::new(Arc::new(Fills(spy.clone())), false);
        let mut data = vec![0; sectors * 512];
        BlockingDisk::new(&layer).unwrap().write(Sector::new(0), &mut data).unwrap();
        let came = spy.0.lock().unwrap().pop().unwrap();
        assert_eq!(matches!(came, Op::WriteZeroes { .. }), sectors == 8192, "{came:?}");
    }
}

#[test]
fn a_write_comes_back_as_the_write_it_was() {
    let layer = Zeroes::new(Arc::new(Spy::default()), true);
    let mut channel = layer.channel(&QueueContext::alone(QueueDepth(8)).unwrap()).unwrap();
    let mut buffers: Vec<Vec<u8>> = (0..4).map(|n| vec![n % 2; 4096]).collect();
    let addresses: Vec<*mut u8> = buffers.iter_mut().map(|buffer| buffer.as_mut_ptr()).collect();
    for (n, buffer) in buffers.iter_mut().enumerate() {
        // The same tag for all: tags belong to the submitter.
        let mut request = Request::new(Op::Write(extent(n as u64 * 8, 8)), 7);
        // SAFETY: the buffer outlives the request, which completes below.
        request.memory.push(unsafe { IoVec::of(buffer) });
        request.durable = n == 2;
        channel.submit(request);
    }
    // A guest's own write-zeroes is passed on unchanged.
    let zeroes = Op::WriteZeroes { extent: extent(64, 8), unmap: false };
    channel.submit(Request::new(zeroes, 7));
    channel.kick();
    let mut done: Vec<Completion> = Vec::new();
    channel.reap(&mut done);
    assert_eq!(done[0].request.op, zeroes);
    done.reverse();
    for (n, completion) in done[..4].iter().enumerate() {
        assert_eq!(completion.request.op, Op::Write(extent(n as u64 * 8, 8)));
        assert_eq!(completion.request.memory[0].address(), addresses[n]);
        assert_eq!(completion.request.durable, n == 2);
    }
    let counted = layer.counters();
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!((read(&counted.requests), read(&counted.bytes)), (2, 8192));
}

/// A guest changes its buffer during the write: each byte on the disk is one that it held.
#[test]
fn a_buffer_that_changes_meanwhile_is_written_as_something_it_was() {
    let mem = mem();
    let layer = Zeroes::new(mem.clone(), true);
    let buffer: Vec<AtomicU8> = (0..4096).map(|_| AtomicU8::new(0)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                let value = if round % 3 == 0 { 0x5a } else { 0 };
                buffer.iter().for_each(|byte| byte.store(value, Ordering::Relaxed));
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut channel = layer.channel(&QueueContext::alone(QueueDepth(1)).unwrap()).unwrap();
        let mut disk = BlockingDisk::new(&*mem).unwrap();
        for _ in 0..2000 {
            disk.write(Sector::new(0), &mut [0xff; 4096]).unwrap();
            let mut request = Request::new(Op::Write(extent(0, 8)), 0);
            let address = buffer.as_ptr().cast_mut().cast::<u8>();
            // SAFETY: the buffer outlives the request; atomics may change behind our back.
            request.memory.push(unsafe { IoVec::new(address, 4096) });
            channel.submit(request);
            channel.kick();
            let mut done = Vec::new();
            channel.reap(&mut done);
            assert_eq!(done.len(), 1);
            let mut back = [0; 4096];
            disk.read(Sector::new(0), &mut back).unwrap();
            assert!(back.iter().all(|byte| [0, 0x5a].contains(byte)), "a byte that never was");
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// Layers above use tokens, too.
#[test]
fn a_request_comes_back_with_the_mark_it_had() {
    use flowstone_block::TokenSource;
    let mem: Arc<dyn Layer> = Arc::new(Mem::new(SectorCount::new(2048)).unwrap());
    let layers: [Box<dyn Layer>; 2] =
        [Box::new(Zeroes::new(Arc::clone(&mem), true)), Box::new(Verify::new(Arc::clone(&mem)))];
    let mark = TokenSource::new().token(5);
    for layer in layers {
        let mut channel = layer.channel(&QueueContext::alone(QueueDepth(8)).unwrap()).unwrap();
        let mut zeroes = vec![0; 4096];
        let mut request = Request::new(Op::Write(extent(8, 8)), 7);
        // SAFETY: the buffer outlives the request, which completes below.
        request.memory.push(unsafe { IoVec::of(&mut zeroes) });
        request.token = mark;
        channel.submit(request);
        channel.kick();
        let mut done = Vec::new();
        while done.is_empty() {
            channel.reap(&mut done);
        }
        assert_eq!(done[0].request.token, mark);
    }
}
