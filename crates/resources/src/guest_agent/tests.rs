use std::io::{BufRead, BufReader, Write};

use flowstone_host::peer_called;
use flowstone_testkit::{HANG, wait_until};

use super::*;

/// Makes a listener, and the folder of its socket.
fn agents() -> (GuestAgents, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents.sock");
    (GuestAgents::start(&path, SocketAccess::default()).unwrap(), folder)
}

fn connect(folder: &tempfile::TempDir) -> UnixStream {
    let stream = UnixStream::connect(folder.path().join("agents.sock")).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream
}

fn report(used_bytes: u64) -> Vec<u8> {
    message::line(&ToHost::Report(Report { used_bytes, ..Report::default() }))
}

fn used(agents: &GuestAgents) -> Option<u64> {
    agents.heard().first().map(|heard| heard.report.used_bytes)
}

#[test]
fn a_guest_says_what_it_has_and_hears_what_it_may_have() {
    let (agents, folder) = agents();
    let mut guest = connect(&folder);
    assert!(agents.heard().is_empty());
    guest.write_all(&report(7)).unwrap();
    wait_until("its report", || used(&agents) == Some(7));
    let peer = peer_called(std::process::id());
    agents.grant(peer, 5, "memory is short");
    // The grant still holds.
    agents.grant(peer, 5, "memory is short");
    agents.grant(peer, 6, "there is more");
    assert_eq!(agents.heard()[0].grant, Some(6));
    let mut lines = BufReader::new(&guest).lines();
    let first = r#"{"grant":{"bytes":5,"lease_s":30,"reason":"memory is short"}}"#;
    assert_eq!(lines.next().unwrap().unwrap(), first);
    assert!(lines.next().unwrap().unwrap().contains("there is more"));
    drop(guest);
    wait_until("it to be forgotten", || agents.heard().is_empty());
}

/// QEMU reconnects when its end broke, which the host may not have noticed yet.
#[test]
fn a_guest_that_connects_again_is_one_guest() {
    let (agents, folder) = agents();
    for used_bytes in 1..50 {
        let mut guest = connect(&folder);
        guest.write_all(&report(used_bytes)).unwrap();
        wait_until("its report", || used(&agents) == Some(used_bytes));
        assert_eq!(agents.heard().len(), 1);
    }
}

/// Regression: two ports of one VM disconnected each other each second, and their caches had a
/// grant in turn.
#[test]
fn of_two_ports_of_a_vm_the_first_that_speaks_is_heard_until_it_goes() {
    let (agents, folder) = agents();
    // A port that no cache has opened does not matter.
    let _silent = connect(&folder);
    let mut first = connect(&folder);
    first.write_all(&report(1)).unwrap();
    wait_until("the first report", || used(&agents) == Some(1));
    let mut second = connect(&folder);
    let mut told = BufReader::new(second.try_clone().unwrap()).lines();
    second.write_all(&report(2)).unwrap();
    let refused = r#"{"refused":{"reason":"another port of this VM has its place"}}"#;
    assert_eq!(told.next().unwrap().unwrap(), refused);
    agents.grant(peer_called(std::process::id()), 5, "memory is short");
    let mut line = String::new();
    BufReader::new(&first).read_line(&mut line).unwrap();
    assert!(line.contains("memory is short"), "{line}");
    assert_eq!((agents.heard().len(), used(&agents)), (1, Some(1)));
    drop(first);
    second.write_all(&report(3)).unwrap();
    wait_until("the second one is heard", || used(&agents) == Some(3));
    assert_eq!(agents.heard().len(), 1);
    assert_eq!(agents.heard()[0].grant, None);
}

/// A file cache that has ended leaves its port open.
#[test]
fn a_port_that_is_silent_for_a_lease_leaves_its_place_to_another_one() {
    let (agents, folder) = agents();
    let (mut first, mut second) = (connect(&folder), connect(&folder));
    first.write_all(&report(1)).unwrap();
    wait_until("the first report", || used(&agents) == Some(1));
    let place = |guest: &mut Guest| guest.heard.as_mut().map(|(at, _)| *at -= LEASE);
    assert_eq!(agents.guests.lock().iter_mut().filter_map(place).count(), 1);
    second.write_all(&report(2)).unwrap();
    wait_until("the second report", || used(&agents) == Some(2));
    assert_eq!(agents.heard().len(), 1);
}

#[test]
fn a_process_has_as_many_connections_as_a_vm_may_have_ports() {
    let (agents, folder) = agents();
    let ports: Vec<_> = (0..PORTS_MAX).map(|_| connect(&folder)).collect();
    let mut more = connect(&folder);
    assert_eq!(more.read(&mut [0; 1]).unwrap(), 0, "it is hung up on");
    assert_eq!(agents.guests.lock().len(), PORTS_MAX);
    drop(ports);
    let mut again = connect(&folder);
    again.write_all(&report(7)).unwrap();
    wait_until("its report", || used(&agents) == Some(7));
}

#[test]
fn a_guest_that_sends_what_none_of_ours_would_is_hung_up_on() {
    let long = vec![b'x'; LINE_BYTES_MAX + 1];
    for sent in [&b"no JSON\n"[..], b"{\"grant\":{}}\n", &long] {
        let (agents, folder) = agents();
        let mut guest = connect(&folder);
        guest.write_all(sent).unwrap();
        // Its last message may not have been read to its end.
        assert!(!matches!(guest.read(&mut [0; 1]), Ok(1..)), "it was answered");
        wait_until("it to be forgotten", || agents.guests.lock().is_empty());
    }
}

#[test]
fn a_guest_that_floods_is_heard_twenty_times_a_second() {
    let start = Instant::now();
    let mut budget = LineBudget { paid: start };
    assert_eq!(budget.spend(20, start), Duration::ZERO, "a second's at once");
    assert_eq!(budget.spend(20, start), Duration::from_secs(1));
    let later = start + Duration::from_secs(3600);
    assert_eq!(budget.spend(20, later), Duration::ZERO, "nothing is saved up");
    assert_eq!(budget.spend(4096, later), LINE_EVERY * 4096);
}

#[test]
fn a_guest_that_reads_nothing_is_not_waited_for_and_reads_whole_lines_later() {
    let (agents, folder) = agents();
    let mut guest = connect(&folder);
    guest.write_all(&report(1)).unwrap();
    wait_until("its report", || used(&agents) == Some(1));
    let peer = peer_called(std::process::id());
    let mut granted = 0;
    while agents.heard()[0].grant == Some(granted) || granted == 0 {
        granted += 1;
        agents.grant(peer, granted, "there is room");
    }
    assert!(agents.guests.lock()[0].unsent.len() < 100);
    drop(agents);
    let mut last = 0;
    for line in BufReader::new(&guest).lines().take(granted as usize - 1) {
        let ToGuest::Grant(grant) = serde_json::from_str(&line.unwrap()).unwrap() else {
            panic!("it was refused");
        };
        assert_eq!(grant.bytes, last + 1, "a grant is missing");
        last = grant.bytes;
    }
}

/// Regression: a process that floods and reconnects had a thread and a descriptor for each
/// connection, until all its lines were processed.
#[test]
fn a_guest_that_floods_and_goes_is_forgotten_at_once() {
    let (agents, folder) = agents();
    let threads = || Arc::strong_count(&agents.guests) - 2;
    for _ in 0..50 {
        let mut guest = connect(&folder);
        let flood = b"{\"report\":{}}\n".repeat(LINE_BYTES_MAX);
        guest.set_nonblocking(true).unwrap();
        // As much as there is room for.
        let _ = guest.write_all(&flood);
        wait_until("it is heard", || used(&agents) == Some(0));
        // At most the connection that this one has replaced is left, about to end.
        wait_until("the earlier ones are gone", || threads() <= 1);
    }
    wait_until("the last one to be forgotten", || agents.heard().is_empty() && threads() == 0);
}
