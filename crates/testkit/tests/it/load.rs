//! The generator against a peer: short runs whose verification, counts and failures are checked.

use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use flowstone_testkit::client::Shape;
use flowstone_testkit::load::{
    Aside, Completion, Limit, LoadOptions, run, run_together, run_with_map,
};
use flowstone_testkit::virtio::{F_EVENT_IDX, F_INDIRECT_DESC};
use flowstone_testkit::{Error, HANG, wait_until};

use crate::peer::Peer;

const DISK: u64 = 16 << 20;

fn options(peer: &Peer) -> LoadOptions {
    let mut options = LoadOptions::new(peer.socket());
    options.client = peer.options();
    options.server_pid = Some(peer.daemon.pid());
    options
}

#[test]
fn every_workload_does_what_it_was_asked_to() {
    let Some(peer) = Peer::start(DISK, 1) else {
        return;
    };
    for name in ["read", "write", "randread", "randwrite", "randrw", "rw", "randdiscard", "mix"] {
        let report = run(&options(&peer).workload(name).iodepth(16).ops(2000)).unwrap();
        assert_eq!((report.ops, report.errors), (2000, 0), "{name}: {:?}", report.first_error);
        assert_eq!(report.latency.count, 2000);
        assert!(report.server_us_per_io.unwrap() > 0.0);
    }
}

#[test]
fn data_is_verified_whatever_the_negotiation_and_the_completion() {
    let Some(peer) = Peer::start(DISK, 2) else {
        return;
    };
    for without in [0, F_EVENT_IDX, F_INDIRECT_DESC, F_EVENT_IDX | F_INDIRECT_DESC] {
        for completion in [Completion::Poll, Completion::Eventfd] {
            let mut options = options(&peer).workload("mix").iodepth(32).ops(5000);
            options.client.features &= !without;
            options.completion = completion;
            options.verify = true;
            options.verify_final = true;
            options.flush_every = 50;
            let report = run(&options).unwrap();
            assert_eq!(report.errors, 0, "{:?}", report.first_error);
            assert!(report.verified_blocks > 1000, "{report:?}");
            assert!(report.flush.count > 0);
            match completion {
                Completion::Eventfd => assert!(report.calls > 0),
                // A device may signal a few times before it knows the driver's setting.
                Completion::Poll => assert!(report.calls < 10, "{} calls", report.calls),
            }
        }
    }
}

#[test]
fn a_queue_that_commits_is_counted_apart() {
    let Some(peer) = Peer::start(DISK, 2) else {
        return;
    };
    let mut options = options(&peer).workload("randwrite").iodepth(8).ops(2000);
    options.aside = Some(Aside::Commits(1 << 20..(1 << 20) + 8192));
    let report = run(&options).unwrap();
    assert_eq!((report.errors, report.ops), (0, 2000), "{:?}", report.first_error);
    assert_eq!((report.commit.count, report.write.count), (1000, 2000));
    assert_eq!(report.flush.count, 1000);
    options.client.queues = 1;
    let report = run(&options).unwrap();
    assert_eq!((report.errors, report.ops), (0, 2000), "{:?}", report.first_error);
    let commits = report.commit.count;
    assert!((1..2000).contains(&commits), "{commits} beside others in the only queue");
    // The run may end between the last write of a commit and its sync.
    assert!((commits - 1..=commits).contains(&report.flush.count), "{commits}");
    assert_eq!(report.write.count, 2000);
    options.aside = Some(Aside::Commits(DISK..DISK + 4096));
    assert!(matches!(run(&options), Err(Error::Misuse(_))), "behind the end");
}

#[test]
fn large_requests_in_pieces_verify() {
    let Some(peer) = Peer::start(DISK, 1) else {
        return;
    };
    let mut options = options(&peer).workload("randrw").iodepth(4).ops(300);
    options.block_bytes = 128 << 10;
    options.client.shape = Shape { segment_bytes: 4096, ..Shape::default() };
    options.verify = true;
    let report = run(&options).unwrap();
    assert_eq!((report.ops, report.errors), (300, 0));
}

#[test]
fn damage_done_behind_the_back_is_found_by_a_later_run() {
    let Some(peer) = Peer::start(DISK, 1) else {
        return;
    };
    let mut options = options(&peer).workload("write").iodepth(8).ops(DISK / 4096);
    options.verify = true;
    let (_, map) = run_with_map(&options, None).unwrap();
    assert_eq!(map.known(), DISK / 4096);
    let image = std::fs::File::options().write(true).open(peer.image()).unwrap();
    image.write_all_at(&[0xff], 5 * 4096 + 77).unwrap();
    options = options.ops(0);
    options.verify_final = true;
    let error = run_with_map(&options, Some(map)).unwrap_err();
    assert!(matches!(&error, Error::Verify(what) if what.contains("0x5000")), "{error}");
}

#[test]
fn several_queues_share_one_thread_or_have_their_own() {
    let Some(peer) = Peer::start(DISK, 2) else {
        return;
    };
    for threads in [1, 2] {
        let mut options = options(&peer).workload("randread").iodepth(8).ops(4001);
        options.threads = threads;
        options.completion = Completion::Eventfd;
        let report = run(&options).unwrap();
        assert_eq!((report.ops, report.threads), (4001, threads));
        assert!(report.kicks > 0 && report.calls > 0);
    }
}

#[test]
fn timed_runs_leave_the_ramp_out() {
    let Some(peer) = Peer::start(DISK, 1) else {
        return;
    };
    let mut options = options(&peer);
    let (ramp, runtime) = (Duration::from_millis(100), Duration::from_millis(300));
    options.limit = Limit::Time { ramp, runtime };
    let began = Instant::now();
    let report = run(&options).unwrap();
    let all = began.elapsed().as_secs_f64();
    assert!(report.seconds + ramp.as_secs_f64() <= all, "{} of {all} s", report.seconds);
    assert_eq!(report.ops, report.latency.count);
}

#[test]
fn a_backend_that_dies_ends_the_run() {
    let Some(mut peer) = Peer::start(DISK, 1) else {
        return;
    };
    let mut options = options(&peer);
    options.limit = Limit::Time { ramp: Duration::ZERO, runtime: Duration::from_secs(20) };
    thread::scope(|scope| {
        let running = scope.spawn(|| run(&options));
        thread::sleep(Duration::from_millis(200));
        peer.daemon.kill().unwrap();
        assert!(matches!(running.join().unwrap(), Err(Error::Disconnected(_))));
    });
}

#[test]
fn a_backend_that_is_replaced_goes_on_where_the_first_one_died() {
    let Some(mut peer) = Peer::start(DISK, 1) else { return };
    let mut options = options(&peer).workload("randrw");
    let runtime = Duration::from_millis(1500);
    options.limit = Limit::Time { ramp: Duration::ZERO, runtime };
    // One request at a time and a kick at the start: this peer has no inflight region.
    options.client.kick_on_start = true;
    (options.verify, options.verify_final) = (true, true);
    options.reconnect = Some(HANG);
    // On a busy machine the run may end before the second backend does.
    let mut both_end_within_the_run = || {
        thread::scope(|scope| {
            let running = scope.spawn(|| run(&options));
            for _ in 0..2 {
                thread::sleep(Duration::from_millis(400));
                peer.daemon.kill().unwrap();
                peer.restart();
            }
            let report = running.join().unwrap().unwrap();
            assert_eq!(report.errors, 0, "{report:?}");
            assert!(report.verified_blocks > 0);
            report.reconnects == 2
        })
    };
    wait_until("both end within the run", &mut both_end_within_the_run);
}

#[test]
fn requests_the_device_cannot_do_are_refused_before_the_run() {
    let Some(peer) = Peer::start(DISK, 1) else {
        return;
    };
    let mut too_deep = options(&peer).iodepth(1025);
    too_deep.block_bytes = 512;
    assert!(matches!(run(&too_deep), Err(Error::Misuse(_))));
    let mut too_long = options(&peer);
    too_long.span_bytes = 2 * DISK;
    assert!(matches!(run(&too_long), Err(Error::Misuse(_))));
}

#[test]
fn one_thread_drives_several_disks() {
    let (Some(one), Some(other)) = (Peer::start(DISK, 1), Peer::start(DISK, 2)) else {
        return;
    };
    for completion in [Completion::Poll, Completion::Eventfd] {
        let load = |peer: &Peer, ops| {
            let mut load = options(peer).workload("randrw").iodepth(8).ops(ops);
            (load.threads, load.completion, load.verify) = (1, completion, true);
            load
        };
        let (all, each) = run_together(&[load(&one, 3000), load(&other, 2001)]).unwrap();
        assert_eq!((all.ops, all.queues, all.threads, all.errors), (5001, 3, 1, 0));
        assert_eq!(each.iter().map(|disk| disk.ops).collect::<Vec<_>>(), [3000, 2001]);
        assert_eq!(each.iter().map(|disk| disk.queues).collect::<Vec<_>>(), [1, 2]);
        assert!(all.server_us_per_io.is_some() && each[0].server_us_per_io.is_none());
        assert!(all.verified_blocks > 0 && all.latency.count == 5001);
    }
}

#[test]
fn disks_of_one_run_end_in_the_same_way() {
    let Some(peer) = Peer::start(DISK, 1) else {
        return;
    };
    let refused = run_together(&[options(&peer), options(&peer).ops(1)]).unwrap_err();
    assert!(matches!(refused, Error::Misuse(_)), "{refused}");
    assert!(matches!(run_together(&[]), Err(Error::Misuse(_))));
}

#[test]
fn paced_queues_keep_their_rate_in_both_ways_to_complete() {
    let (Some(one), Some(other)) = (Peer::start(DISK, 1), Peer::start(DISK, 1)) else {
        return;
    };
    for completion in [Completion::Poll, Completion::Eventfd] {
        let load = |peer: &Peer, rate| {
            let mut load = options(peer).workload("randrw").rate(rate);
            (load.threads, load.completion, load.verify) = (1, completion, true);
            load.ops(400)
        };
        let (_, each) = run_together(&[load(&one, 500.0), load(&other, 2000.0)]).unwrap();
        for (disk, rate) in each.iter().zip([500.0, 2000.0]) {
            // Less on a busy machine; never more.
            assert!(disk.iops < 1.05 * rate, "{completion:?}: {} of {rate}", disk.iops);
            assert_eq!(disk.errors, 0);
        }
    }
}

#[test]
fn a_paced_run_of_few_requests_waits_for_all_of_them() {
    let Some(peer) = Peer::start(DISK, 1) else {
        return;
    };
    let report = run(&options(&peer).rate(200.0).ops(20)).unwrap();
    assert_eq!(report.ops, 20);
    assert!(report.seconds >= 0.07, "{}", report.seconds);
    assert!(matches!(run(&options(&peer).rate(0.0)), Err(Error::Misuse(_))));
}
