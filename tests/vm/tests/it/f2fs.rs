//! A host with F2FS, which few kernels have: the guest is the host, and runs flowstone itself. The
//! log image is on a log-structured file system, too.

use anyhow::{Result, ensure};
use flowstone_vmtest::framework::artifacts::Kernel;
use flowstone_vmtest::framework::lab::Lab;

use crate::devices::tools_image;
use crate::disk_errors;

const MAKE: &str = "
    modprobe -a ext4 f2fs
    mkdir -p /tools /tmp/on
    mount -o ro /dev/vdb /tools
    mkfs.f2fs -q -f /dev/vda
    mount -t f2fs /dev/vda /mnt
    grep ' /mnt f2fs ' /proc/mounts
    /tools/flowstone create --format log --size 48M --segment 1M /mnt/disk.flow";

/// `serve` starts a daemon and waits until it listens, `stop` ends it in an orderly way.
const DAEMON: &str = "
    serve() {
        rm -f /tmp/on/disk.sock
        /tools/flowstone serve --direct on --socket /tmp/on/disk.sock /mnt/disk.flow >/tmp/on/log 2>&1 &
        daemon=$!
        until grep -q '^listening on' /tmp/on/log; do kill -0 $daemon || { cat /tmp/on/log; exit 1; }; sleep 0.1; done
    }
    stop() { kill $daemon; wait $daemon || { cat /tmp/on/log; exit 1; }; }";

const LOAD: &str = "
    serve
    /tools/device-load /tmp/on/disk.sock zeroes || { cat /tmp/on/log; exit 1; }
    stop
    /tools/flowstone check --data /mnt/disk.flow";

/// Kills the daemon repeatedly until the load has ended.
const KILLED: &str = "
    serve
    /tools/device-load /tmp/on/disk.sock killed >/tmp/on/load 2>&1 &
    load=$!
    kills=0
    while sleep 1.5 && kill -0 $load 2>/dev/null; do
        [ $kills = 5 ] && continue
        kill -9 $daemon
        wait $daemon || true
        kills=$((kills + 1))
        serve
    done
    wait $load || { cat /tmp/on/load /tmp/on/log; exit 1; }
    cat /tmp/on/load
    kill -9 $daemon
    wait $daemon || true
    /tools/flowstone check --data /mnt/disk.flow || [ $? = 3 ]
    serve
    stop
    /tools/flowstone check --data /mnt/disk.flow";

/// Data converted into the image is durable, and later writes to it may be lost.
const BEFORE_POWER_FAILS: &str = "
    head -c $((12 << 20)) /dev/urandom >/mnt/source.raw
    /tools/flowstone convert /mnt/source.raw /mnt/copy.flow
    xxhsum -q /mnt/source.raw | cut -d' ' -f1 >/mnt/sum
    sync
    serve
    /tools/device-load /tmp/on/disk.sock anything >/tmp/on/load 2>&1 &
    sleep 1
    echo cut here
    sleep 300";

const AFTER_POWER_FAILED: &str = "
    modprobe -a ext4 f2fs
    mkdir -p /tools /tmp/on
    mount -o ro /dev/vdb /tools
    mount -t f2fs /dev/vda /mnt
    serve
    stop
    /tools/flowstone check --data /mnt/disk.flow
    /tools/flowstone check --data /mnt/copy.flow
    /tools/flowstone convert /mnt/copy.flow /mnt/copy.raw
    [ \"$(xxhsum -q /mnt/copy.raw | cut -d' ' -f1)\" = \"$(cat /mnt/sum)\" ]
    umount /mnt
    fsck.f2fs --dry-run /dev/vda";

#[test]
fn a_log_image_on_f2fs_survives_kills_of_the_daemon_and_of_its_host() -> Result<()> {
    let Some(lab) = Lab::open_with_or_skip(Kernel::Generic) else { return Ok(()) };
    let mut disk = lab.serve(&lab.image("320M")?, &[])?;
    let mut tools = lab.serve_as("tools", &tools_image(&lab)?, &["--readonly"])?;
    let machine = Lab::machine_of([&disk, &tools], 1);
    let mut guest = lab.boot_machine(&machine)?;
    let script = [MAKE, DAEMON, LOAD, KILLED].join("\n");
    println!("{}", guest.run(&script)?);
    guest.start(&[DAEMON, BEFORE_POWER_FAILS].join("\n"))?;
    guest.wait_for_output(|said| said.contains("cut here"))?;
    guest.kill()?;
    let mut guest = lab.boot_machine(&machine)?;
    let said = guest.run(&[DAEMON, AFTER_POWER_FAILED].join("\n"))?;
    ensure!(!said.contains("[FIX]"), "{said}");
    disk_errors::none_logged(&mut guest)?;
    guest.power_off()?;
    disk.terminate()?;
    tools.terminate()
}
