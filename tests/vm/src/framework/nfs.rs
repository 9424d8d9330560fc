//! Two connected guests: one serves its disk over NFS 4.2, the other one mounts it.
//!
//! The server is the kernel's. The configuration that `exportfs` and `rpc.mountd` would pass to it
//! is written here: one client, one export (Linux, `net/sunrpc/cache.c`, the files called
//! `channel`). State about clients that a server needs after a restart is on the exported disk
//! (`v4recovery`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::guest::Guest;
use super::qemu::{Cable, Machine};

/// Script of a guest that boots as the server of `/dev/vda`, in the folder `/srv`. Root of the
/// client is squashed, as by default.
pub const SERVE: &str = r"
    modprobe virtio_net; modprobe nfsd
    ip link set lo up; ip addr add 10.0.0.1/24 dev eth0; ip link set eth0 up
    mkdir -p /srv /var/lib/nfs; mount /dev/vda /srv
    mkdir -p /srv/.v4recovery; ln -sfn /srv/.v4recovery /var/lib/nfs/v4recovery
    mount -t nfsd nfsd /proc/fs/nfsd
    for time in nfsv4leasetime nfsv4gracetime; do echo 10 >/proc/fs/nfsd/$time; done
    echo '-3 +4 +4.1 +4.2' >/proc/fs/nfsd/versions
    never=2147483647
    echo nfsd 10.0.0.2 $never guests >/proc/net/rpc/auth.unix.ip/channel
    # NFSEXP_INSECURE_PORT, NFSEXP_ROOTSQUASH, NFSEXP_NOSUBTREECHECK, NFSEXP_FSID
    echo guests /srv $never $((0x2406)) 65534 65534 0 >/proc/net/rpc/nfsd.export/channel
    printf '%s\n' 'guests 1 \x00000000 2147483647 /srv' >/proc/net/rpc/nfsd.fh/channel
    echo 4 >/proc/fs/nfsd/threads";

/// Returns the script of a guest that mounts the server's folder at each of `folders`, each with
/// its own page cache, attributes and counters, and with further options.
#[must_use]
pub fn client_script(folders: &[&str], options: &str) -> String {
    let folders = folders.join(" ");
    format!(
        "modprobe virtio_net; modprobe nfsv4
         ip link set lo up; ip addr add 10.0.0.2/24 dev eth0; ip link set eth0 up
         options=vers=4.2,addr=10.0.0.1,clientaddr=10.0.0.2,nosharecache,hard{options}
         for folder in {folders}; do mkdir -p $folder; mount -t nfs4 -o $options 10.0.0.1:/ $folder; done"
    )
}

/// Returns the machines of a server and a client, connected.
#[must_use]
pub fn joined(server: Machine, client: Machine, folder: &Path) -> (Machine, Machine) {
    let end = |name: &str| -> PathBuf { folder.join(name) };
    let (near, far) = (end("cable-1.sock"), end("cable-2.sock"));
    let cable =
        |here: &PathBuf, there: &PathBuf| Cable { here: here.clone(), there: there.clone() };
    (server.with_cable(cable(&near, &far)), client.with_cable(cable(&far, &near)))
}

/// Returns the calls that a mount has sent to its server so far, by operation.
pub fn calls(guest: &mut Guest, folder: &str) -> Result<BTreeMap<String, u64>> {
    let all = guest.run("cat /proc/self/mountstats")?;
    calls_of(&all, folder).with_context(|| format!("{folder} in\n{all}"))
}

/// Returns the calls of one mount in `/proc/self/mountstats`; `None` if it is not there.
fn calls_of(mountstats: &str, folder: &str) -> Option<BTreeMap<String, u64>> {
    let place = format!(" mounted on {folder} with ");
    let lines = mountstats.lines().skip_while(|line| !line.contains(&place)).skip(1);
    let operations = lines
        .take_while(|line| !line.starts_with("device "))
        .skip_while(|line| !line.contains("per-op statistics"))
        .skip(1)
        .filter_map(|line| {
            let (name, numbers) = line.trim().split_once(": ")?;
            Some((name.to_owned(), numbers.split(' ').next()?.parse().ok()?))
        });
    let operations: BTreeMap<_, _> = operations.collect();
    (!operations.is_empty()).then_some(operations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_for_each_mount() {
        let text = "device tmp mounted on /tmp with fstype tmpfs\n\
                    device 10.0.0.1:/ mounted on /srv with fstype nfs4 statvers=1.1\n\
                    \topts:\trw,vers=4.2\n\
                    \tper-op statistics\n\
                    \t        NULL: 1 1 0 44 24 8 0 8 0\n\
                    \t        READ: 512 512 0 102 34 8 9 9 0\n\
                    device 10.0.0.1:/ mounted on /direct with fstype nfs4 statvers=1.1\n\
                    \tper-op statistics\n\
                    \t        READ: 7 7 0 102 34 8 9 9 0\n";
        let calls = |folder| calls_of(text, folder).map(|calls| calls["READ"]);
        assert_eq!((calls("/srv"), calls("/direct")), (Some(512), Some(7)));
        assert_eq!((calls("/tmp"), calls("/none")), (None, None));
    }
}
