use std::os::unix::ffi::OsStrExt as _;
use std::process::{Child, Command};

use flowstone_host::peer_called;
use flowstone_testkit::wait_for;

use super::*;

fn disk(number: u32, pid: Option<u32>, spec: &str) -> Attached {
    let spec = spec.parse().unwrap();
    let peer = pid.map(|pid| Peer { pid, start: Some(5) });
    Attached { number, name: format!("disk{number}"), spec, peer, memory_bytes: 1 << 30 }
}

fn process(Peer { pid, .. }: Peer) -> Option<VmProcess> {
    let name = (pid == 7).then(|| "web".to_owned());
    (pid < 100).then_some(VmProcess { cpus: Some(pid), name })
}

fn seen(attached: &[Attached]) -> Vec<(String, u32, u64, Vec<u32>)> {
    let mut vms = group(attached, process);
    vms.sort_by_key(|vm| vm.disks[0]);
    vms.into_iter().map(|vm| (vm.name, vm.cpus, vm.memory_bytes >> 30, vm.disks)).collect()
}

#[test]
fn disks_of_one_process_are_one_vm() {
    let disks = [disk(0, Some(7), ""), disk(1, Some(8), ""), disk(2, Some(7), "")];
    let expected = [("web".into(), 7, 1, vec![0, 2]), ("disk1".into(), 8, 1, vec![1])];
    assert_eq!(seen(&disks), expected);
}

#[test]
fn a_process_that_is_hidden_or_gone_is_as_many_vms_as_it_has_disks() {
    let disks = [disk(0, None, ""), disk(1, None, ""), disk(2, Some(100), "cpus=3")];
    let expected = [(0, 1), (1, 1), (2, 3)]
        .map(|(number, cpus)| (format!("disk{number}"), cpus, 1, vec![number]));
    assert_eq!(seen(&disks), expected);
}

/// A connection may outlive its process, if a child holds it.
#[test]
fn processes_that_had_one_number_after_each_other_are_two_vms() {
    let earlier = Some(Peer { pid: 7, start: Some(4) });
    let disks = [disk(0, Some(7), ""), Attached { peer: earlier, ..disk(1, None, "") }];
    assert_eq!(seen(&disks).len(), 2);
    assert_eq!(guest_bytes(&disks), 2 << 30);
}

#[test]
fn the_configuration_has_the_last_word() {
    let disks = [
        disk(0, Some(7), "name=db,cpus=16,memory=64G"),
        disk(1, Some(8), "name=db"),
        disk(2, Some(7), "memory=512M"),
    ];
    let expected = [("db".into(), 16, 64, vec![0, 1]), ("web".into(), 7, 0, vec![2])];
    assert_eq!(seen(&disks), expected);
}

/// docs/operating.md: unconfigured properties are detected. The memory configured for one disk of a
/// VM wins over a larger amount shared for another one.
#[test]
fn memory_that_is_configured_of_one_disk_is_that_of_the_vm() {
    let process = |_| Some(VmProcess { cpus: Some(2), name: None });
    let disks = [disk(0, Some(7), "cpus=1,memory=512M"), disk(1, Some(7), "")];
    let vms = group(&disks, process);
    assert_eq!((vms.len(), vms[0].cpus, vms[0].memory_bytes), (1, 1, 512 << 20));
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Regression: `stats` with 200 disks of one process took 7.4 s.
#[test]
fn a_process_is_looked_at_once_for_all_of_its_disks() {
    let looks = std::cell::Cell::new(0);
    let attached: Vec<_> = (0..200).map(|number| disk(number, Some(7 + number % 2), "")).collect();
    let look = |pid| {
        looks.set(looks.get() + 1);
        process(pid)
    };
    assert_eq!((group(&attached, look).len(), looks.get()), (2, 2));
    assert_eq!(guest_bytes(&attached), 2 << 30, "each has handed over the same for all");
    assert_eq!(guest_bytes(&[disk(1, None, ""), disk(2, None, "")]), 2 << 30);
}

/// Regression: the kernel cuts a process's name after 15 bytes, which may split a character; then
/// the process was not found, and each of its disks counted as a VM of one vCPU with all of its
/// memory.
#[test]
fn a_process_whose_name_is_no_utf8_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let name = std::ffi::OsStr::from_bytes(b"qemu-Gesch\xc3\xa4ft\xc3\xa4");
    let path = folder.path().join(name);
    std::fs::copy("/bin/sleep", &path).unwrap();
    let child = Killed(Command::new(&path).arg("30").spawn().unwrap());
    // Until then it has this process's name.
    wait_for("its name", || {
        let comm = std::fs::read(format!("/proc/{}/comm", child.0.id())).unwrap();
        if std::str::from_utf8(&comm).is_err() { Ok(()) } else { Err(comm) }
    });
    assert!(VmProcess::look(peer_called(child.0.id())).is_some());
}

/// docs/operating.md bounds what a monitor can make the daemon store and write; a name has any
/// length, is stored, and is logged at each change of any VM.
#[test]
fn a_name_is_not_longer_than_that_of_a_disk() {
    let name = "x".repeat(100_000);
    let mut command = Command::new("sh");
    command.args(["-c", "read line", "-name", &name]).stdin(std::process::Stdio::piped());
    let child = Killed(command.spawn().unwrap());
    // Until then it has this process's name.
    let vms = wait_for("its name", || {
        let peer = Some(peer_called(child.0.id()));
        let vms = look(&[Attached { peer, ..disk(0, None, "") }]);
        if vms[0].name.starts_with('x') { Ok(vms) } else { Err(vms[0].name.clone()) }
    });
    assert!(vms[0].name.len() <= 128, "{} bytes", vms[0].name.len());
}

/// A vCPU with 1 GiB has weight 100; a weight configured for any of its disks wins.
#[test]
fn a_vm_weighs_its_vcpus_times_its_memory_at_a_device() {
    let weights = |disks: &[Attached]| {
        let mut vms = group(disks, process);
        vms.sort_by_key(|vm| vm.disks[0]);
        vms.iter().map(Vm::device_weight).collect::<Vec<_>>()
    };
    let two = |spec| [disk(0, Some(7), ""), disk(1, Some(1), spec), disk(2, Some(7), "")];
    assert_eq!(weights(&two("")), [700, 100]);
    assert_eq!(weights(&two("cpus=4,memory=512M")), [700, 200]);
    assert_eq!(weights(&two("memory=64")), [700, 1]);
    assert_eq!(weights(&two("cpus=4294967295,memory=1T,weight=5")), [700, 5]);
    assert_eq!(weights(&two("cpus=4294967295,memory=1T")), [700, u32::MAX]);
}
