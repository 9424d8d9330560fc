//! Images on block devices, which differ from files. The devices are made inside a guest, and
//! served there by a daemon in the guest: dm-crypt, which accepts discards and decrypts whatever is
//! left, so that a block that was zeroed and then discarded is no longer zero.

use std::path::PathBuf;

use anyhow::Result;
use flowstone_vmtest::framework::lab::Lab;
use flowstone_vmtest::framework::{tools, workspace};

/// Makes `/dev/mapper/crypt` of the whole disk, full of random data, and checks its properties.
const DEVICE: &str = "\
    mkdir -p /tools /tmp/on
    mount -o ro /dev/vdb /tools
    modprobe -a dm_crypt xts
    export DM_DISABLE_UDEV=1
    key=00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef
    dmsetup create crypt --table \
        \"0 $(blockdev --getsz /dev/vda) crypt aes-xts-plain64 $key 0 /dev/vda 0 1 allow_discards\"
    device=/dev/mapper/crypt
    limits=/sys/block/dm-0/queue
    [ \"$(cat $limits/discard_max_bytes)\" != 0 ]
    [ \"$(cat $limits/write_zeroes_max_bytes)\" = 0 ]
    dd if=/dev/urandom of=$device bs=1M count=24 2>/dev/null
    sync";

/// Serves the device in a format and exercises it; `$1` is the format, `$2` the content of
/// discarded blocks.
const EXERCISE: &str = "
    exercise() {
        rm -f /tmp/on/disk.sock
        /tools/flowstone serve --format $1 --socket /tmp/on/disk.sock $device >/tmp/on/log 2>&1 &
        daemon=$!
        until [ -S /tmp/on/disk.sock ]; do kill -0 $daemon || { cat /tmp/on/log; exit 1; }; sleep 0.1; done
        /tools/device-load /tmp/on/disk.sock $2 || { cat /tmp/on/log; exit 1; }
        kill $daemon
        wait $daemon || { cat /tmp/on/log; exit 1; }
    }";

const RAW: &str = "
    exercise raw anything
    ! /tools/flowstone compact --format raw $device >/tmp/on/refused 2>&1
    grep -q 'cannot give space back' /tmp/on/refused";

const LOG: &str = "
    dd if=/dev/zero of=$device bs=1M count=1 2>/dev/null
    /tools/flowstone create --format log --size 12M --segment 256K $device
    exercise log zeroes
    /tools/flowstone check --format log --data $device";

const QCOW2: &str = "
    /tools/flowstone create --size 16M /tmp/on/new.qcow2
    dd if=/tmp/on/new.qcow2 of=$device bs=64K 2>/dev/null
    exercise qcow2 zeroes
    /tools/flowstone check --format qcow2 $device";

#[test]
fn zeroes_stay_zeroes_on_dm_crypt_in_every_format() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let mut disk = lab.serve(&lab.image("24M")?, &[])?;
    let mut tools = lab.serve_as("tools", &tools_image(&lab)?, &["--readonly"])?;
    let mut guest = lab.boot_machine(&Lab::machine_of([&disk, &tools], 1))?;
    let script = [DEVICE, EXERCISE, RAW, LOG, QCOW2].join("\n");
    guest.run(&script)?;
    guest.power_off()?;
    disk.terminate()?;
    tools.terminate()
}

/// Makes a file system with the binaries that the guest runs.
pub fn tools_image(lab: &Lab) -> Result<PathBuf> {
    let files = [
        ("flowstone", workspace::flowstone()?),
        ("device-load", workspace::beside("device-load")?),
    ];
    tools::tools_image(lab.folder(), &files)
}
