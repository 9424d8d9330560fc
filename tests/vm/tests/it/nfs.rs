//! The file cache over NFS 4.2, served by another guest's kernel: its cost for the server,
//! permissions, and a crash of the server.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use flowstone_vmtest::framework::artifacts::Kernel;
use flowstone_vmtest::framework::daemon::Daemon;
use flowstone_vmtest::framework::guest::Guest;
use flowstone_vmtest::framework::lab::Lab;
use flowstone_vmtest::framework::nfs;
use flowstone_vmtest::framework::qemu::Machine;

use super::file_cache::{begin_cache_of, program_disk};

/// A server, a client, and their disks.
struct Pair {
    server: Guest,
    client: Guest,
    /// The machine of the server, to boot it again.
    machine: Machine,
    disks: [Daemon; 2],
    program_bytes: usize,
    lab: Lab,
}

impl Pair {
    /// Boots both. The server makes its files by `script`, in `/srv`, before they are exported.
    fn boot(lab: Lab, script: &str) -> Result<Self> {
        let image = lab.image("256M")?;
        let disk = lab.serve(&image, &[])?;
        let (program, program_bytes) = program_disk(&lab)?;
        let (server, client) = (Lab::machine(&disk, 2), Lab::machine(&program, 2));
        let (machine, client) = nfs::joined(server, client, lab.folder());
        let mut guests = lab.boot_machines(&[machine.clone(), client])?.into_iter();
        let (Some(mut server), Some(client)) = (guests.next(), guests.next()) else {
            unreachable!("two machines are two guests")
        };
        server.run(&format!(
            "mkfs.ext4 -q /dev/vda; mkdir /srv; mount /dev/vda /srv\n{script}\numount /srv"
        ))?;
        server.run(nfs::SERVE)?;
        Ok(Self { server, client, machine, disks: [disk, program], program_bytes, lab })
    }

    /// Mounts the server's folder at `/srv`, for the file cache, and at `/direct`, without it.
    fn mount(&mut self, options: &str, cache_options: &str) -> Result<()> {
        self.client.run(&nfs::client_script(&["/srv", "/direct"], options))?;
        self.begin_cache(cache_options)
    }

    fn begin_cache(&mut self, options: &str) -> Result<()> {
        begin_cache_of(&mut self.client, "/dev/vda", self.program_bytes, options)
    }

    fn end_cache(&mut self) -> Result<()> {
        let end = "kill $(pidof flowstone-guest); while pidof flowstone-guest; do sleep .2; done";
        self.client.run(end).map(drop)
    }

    /// Returns the calls to the server made by a script in `/mnt`, through `/srv`, and by the same
    /// script in `/direct`.
    fn calls_of(&mut self, script: &str) -> Result<(Calls, Calls)> {
        let ours = self.calls_in("/mnt/ours", "/srv", script)?;
        Ok((ours, self.calls_in("/direct/theirs", "/direct", script)?))
    }

    fn calls_in(&mut self, folder: &str, mount: &str, script: &str) -> Result<Calls> {
        let before = nfs::calls(&mut self.client, mount)?;
        self.client.run(&format!("cd {folder}\n{script}"))?;
        let mut calls = nfs::calls(&mut self.client, mount)?;
        for (name, count) in &mut calls {
            *count -= before.get(name).copied().unwrap_or(0);
        }
        calls.retain(|_, count| *count > 0);
        Ok(Calls(calls))
    }

    fn end(self) -> Result<()> {
        self.client.power_off()?;
        self.server.power_off()?;
        self.disks.into_iter().try_for_each(|mut disk| disk.terminate())
    }
}

/// Calls to a server, by operation.
#[derive(Debug)]
struct Calls(BTreeMap<String, u64>);

impl Calls {
    /// Returns the calls of one kind: NFS has some operations twice, with and without attributes.
    fn of(&self, kind: &str) -> u64 {
        self.0.iter().filter(|(name, _)| name.starts_with(kind)).map(|(_, count)| count).sum()
    }

    fn are_no_more_than(&self, others: &Self, but_for: impl Fn(&str) -> u64) -> Result<()> {
        for call in ["OPEN", "CLOSE", "READ", "WRITE", "COMMIT", "LOOKUP", "GETATTR", "ACCESS"] {
            let allowed = others.of(call) + but_for(call) + SLACK;
            ensure!(self.of(call) <= allowed, "{call}: {self:?}, without us {others:?}");
        }
        Ok(())
    }
}

/// In each of two folders a file that gets a copy, and one that does not fit.
const FILES: &str = "
    for folder in ours theirs; do
        mkdir -m 777 /srv/$folder; cd /srv/$folder
        head -c 4096 /dev/urandom >small; head -c 16777216 /dev/zero >large
    done; cd /";
const ALL_MODES: &str = "copy,source,plain";
const OPENS: u64 = 20;
/// Calls that may happen once in between, as for a delegation that is granted or a late close.
const SLACK: u64 = 2;

/// The calls for each open of a cached file, of an uncached one and of a new one must not exceed
/// those of NFS alone. Attributes are valid for ten minutes, so that a slow machine asks for them
/// no more often than a fast one.
fn opens_cost_no_more(kernel: Kernel, all_modes: &[&str], delegations: bool) -> Result<()> {
    let Some(lab) = Lab::open_with_or_skip(kernel) else { return Ok(()) };
    let leases = i32::from(delegations);
    let mut pair = Pair::boot(lab, &format!("echo {leases} >/proc/sys/fs/leases-enable\n{FILES}"))?;
    pair.client.run(&nfs::client_script(&["/srv", "/direct"], ",actimeo=600"))?;
    for modes in all_modes {
        pair.begin_cache(&format!("--memory 8M --policy multicache --modes {modes}"))?;
        println!("{kernel:?}, modes {modes}, delegations {delegations}");
        compare_opens(&mut pair, delegations)?;
        pair.end_cache()?;
        // Each in its mount, whose attributes are valid for ten minutes.
        pair.client.run("rm /srv/ours/new* /direct/theirs/new*")?;
    }
    pair.end()
}

fn compare_opens(pair: &mut Pair, delegations: bool) -> Result<()> {
    pair.client.run(
        "until flowstone-guest stats /mnt | grep -q '^cached *1 files'; do
             cat /direct/theirs/* /mnt/ours/* >/dev/null; sleep .5
         done
         cat /direct/theirs/* /mnt/ours/* >/dev/null",
    )?;
    let each = |what: &str| format!("for i in $(seq {OPENS}); do {what}; done");
    for (kind, script) in [("cached", "cat small"), ("not cached", "head -c 4096 large")] {
        let (ours, theirs) = pair.calls_of(&each(&format!("{script} >/dev/null")))?;
        println!("{kind}: {ours:?}, without us {theirs:?}");
        let expected = if delegations { 0 } else { OPENS };
        ensure!(theirs.of("OPEN").abs_diff(expected) <= SLACK, "{kind}: {theirs:?}");
        ours.are_no_more_than(&theirs, |_| 0)?;
    }
    let (ours, theirs) = pair.calls_of(&each("echo new >new$i"))?;
    println!("new: {ours:?}, without us {theirs:?}");
    // FUSE looks a name up before it opens a file of that name, and the folder has changed.
    let asks_first = |call: &str| matches!(call, "LOOKUP" | "GETATTR");
    ours.are_no_more_than(&theirs, |call| if asks_first(call) { OPENS } else { 0 })
}

#[test]
fn opens_cost_a_server_no_more_calls_on_linux_6_1() -> Result<()> {
    opens_cost_no_more(Kernel::Cloud, &[ALL_MODES], true)
}

#[test]
fn opens_cost_a_server_no_more_calls_on_linux_6_12() -> Result<()> {
    opens_cost_no_more(Kernel::Newer, &[ALL_MODES], true)
}

/// In mode `plain` all of them go through the daemon.
#[test]
fn opens_cost_a_server_without_delegations_no_more_calls() -> Result<()> {
    opens_cost_no_more(Kernel::Newer, &[ALL_MODES, "plain"], false)
}

/// The server decides who may read a cached file: not root, which it squashes.
#[test]
fn a_server_that_squashes_root_lets_in_whom_it_lets_in_without_us() -> Result<()> {
    let Some(lab) = Lab::open_with_or_skip(Kernel::Newer) else { return Ok(()) };
    let files = "mkdir -m 777 /srv/all
                 echo of one user >/srv/private; chmod 600 /srv/private; chown 1000:1000 /srv/private";
    let mut pair = Pair::boot(lab, files)?;
    pair.mount("", "")?;
    let printed = pair.client.run(
        r#"as() { /usr/bin/setpriv --reuid $1 --regid $1 --clear-groups sh -c "$2" 2>&1; }
           until flowstone-guest stats /mnt | grep -q '^cached *1 files'; do
               as 1000 'cat /mnt/private' | sed /one/d; sleep .5
           done
           for user in 0 1000 2000; do
               as $user "cat /mnt/private" || echo $user may not read
               as $user "echo new >/mnt/all/$user" || echo $user may not write
           done
           ls -ln /mnt/all | awk 'NF > 2 { print $9 " is of " $3 }'
           echo new 2>/dev/null >/mnt/root || echo root may not write there"#,
    )?;
    let refusal = |user: &str| {
        format!("cat: can't open '/mnt/private': Permission denied\n{user} may not read\n")
    };
    let expected = format!(
        "{}of one user\n{}0 is of 65534\n1000 is of 1000\n2000 is of 2000\nroot may not write there\n",
        refusal("0"),
        refusal("2000"),
    );
    ensure!(printed == expected, "{printed}\nfor\n{expected}");
    pair.end()
}

/// A server crashes and is restarted: copies are read meanwhile, writes wait, and acknowledged
/// writes are there.
#[test]
fn a_server_dies_and_comes_back_under_load() -> Result<()> {
    let Some(lab) = Lab::open_with_or_skip(Kernel::Newer) else { return Ok(()) };
    let mut pair = Pair::boot(lab, "mkdir -m 777 /srv/all; echo of the server >/srv/cached")?;
    pair.mount("", "--source-timeout 2s")?;
    pair.client.start(
        r#"until flowstone-guest stats /mnt | grep -q '^cached *1 files'; do cat /mnt/cached >/dev/null; sleep .5; done
           : >/tmp/sums
           count() { wc -l </tmp/sums; }
           (number=0
            until [ -e /tmp/enough ]; do
                number=$((number + 1))
                head -c 65536 /dev/urandom >/tmp/file
                cp /tmp/file /mnt/all/$number
                echo "$(md5sum </tmp/file | cut -c -32)  $number" >>/tmp/sums
            done) &
           until [ $(count) -ge 5 ]; do sleep .2; done
           echo under load
           until flowstone-guest stats --json /mnt | grep -q '"source":"down"'; do sleep .2; done
           [ "$(cat /mnt/cached)" = "of the server" ]
           echo read while it is down
           seen=$(count)
           until [ $(count) -ge $((seen + 5)) ]; do sleep .2; done
           : >/tmp/enough; wait
           for folder in /mnt /direct; do
               cd $folder/all
               md5sum -c /tmp/sums >/tmp/checked || { cat /tmp/checked; exit 1; }
           done
           flowstone-guest stats --json /mnt"#,
    )?;
    pair.client.wait_for_output(|said| said.contains("under load"))?;
    pair.server.kill()?;
    pair.client.wait_for_output(|said| said.contains("read while it is down"))?;
    pair.server = pair.lab.boot_machine(&pair.machine)?;
    pair.server.run(nfs::SERVE)?;
    let printed = pair.client.finish()?;
    let stats = printed.lines().last().unwrap_or_default();
    let stats: serde_json::Value = serde_json::from_str(stats).context("stats")?;
    ensure!(stats["source"] == "up", "{stats}");
    ensure!(stats["unchecked_opens"].as_u64() > Some(0), "{stats}");
    pair.end()
}
