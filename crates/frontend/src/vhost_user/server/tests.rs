use std::io::{Read, Write};

use flowstone_block::SectorCount;
use flowstone_testkit::{HANG, wait_until};
use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::vhost_user::unused_disk::Unused;

/// Stops a server, even if the test fails.
struct Ends<'server>(&'server OwnedFd);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let _ = rustix::io::write(self.0, &1u64.to_ne_bytes());
    }
}

/// Serves such a disk while `deed` connects to its socket.
fn while_served(set: impl FnOnce(&mut Server), deed: impl FnOnce(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.sock");
    let shared = Arc::new(DeviceShared::new(SectorCount::new(8)));
    let options = DeviceOptions { layer: Arc::new(Unused), shared, queues_max: 1, id: "it".into() };
    let bound = Server::bind(&path, SocketAccess::default(), options, Box::new(Unused));
    let mut server = bound.unwrap();
    set(&mut server);
    let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| server.run(&stop));
        let _ends = Ends(&stop);
        deed(&path);
    });
}

const GET_FEATURES: [u8; 12] = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

/// The monitor should have been disconnected after ten seconds and never was: the next monitor of
/// its disk waited forever.
#[test]
fn a_monitor_that_reads_no_answers_is_hung_up_on_and_the_next_one_is_served() {
    let set = |server: &mut Server| server.answer_timeout = Duration::from_millis(100);
    while_served(set, |path| {
        let mut deaf = UnixStream::connect(path).unwrap();
        deaf.set_nonblocking(true).unwrap();
        wait_until("it is hung up on", || {
            let sent = deaf.write(&GET_FEATURES).map_err(|error| error.kind());
            matches!(sent, Err(kind) if kind != io::ErrorKind::WouldBlock)
        });
        let mut next = UnixStream::connect(path).unwrap();
        next.set_read_timeout(Some(HANG)).unwrap();
        let mut answer = [0; 20];
        // More answers than a socket holds: a monitor that reads them is not disconnected.
        for _ in 0..5000 {
            next.write_all(&GET_FEATURES).unwrap();
            next.read_exact(&mut answer).unwrap();
        }
    });
}

/// A header of more than 4 KiB ends the connection before its body arrives.
#[test]
fn a_message_of_more_than_four_kib_is_refused_and_the_next_monitor_is_served() {
    let get_features = |body: u32| {
        let mut message = GET_FEATURES;
        message[8..].copy_from_slice(&body.to_ne_bytes());
        message
    };
    while_served(
        |_| (),
        |path| {
            for body in [4097, 1 << 20, u32::MAX] {
                let mut monitor = UnixStream::connect(path).unwrap();
                monitor.set_read_timeout(Some(HANG)).unwrap();
                monitor.write_all(&get_features(body)).unwrap();
                let ended = monitor.read(&mut [0; 20]).map_err(|error| error.kind());
                assert!(matches!(ended, Ok(0) | Err(io::ErrorKind::ConnectionReset)), "{ended:?}");
            }
            let mut monitor = UnixStream::connect(path).unwrap();
            monitor.set_read_timeout(Some(HANG)).unwrap();
            monitor.write_all(&GET_FEATURES).unwrap();
            monitor.read_exact(&mut [0; 20]).unwrap();
        },
    );
}
