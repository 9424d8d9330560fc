//! Classification of real guests' requests: each request's class is compared with the content of
//! its block in the final image.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use flowstone_testkit::truth::{Holds, Truth};
use flowstone_vmtest::framework::daemon::Daemon;
use flowstone_vmtest::framework::lab::Lab;

/// Longest time until the daemon has recognised the guest's file system.
const SEEN_TIMEOUT: Duration = flowstone_testkit::HANG;

/// Many small commits, then many files without any, then a journal that wraps around several times.
const LOAD: &str = "
    mount /dev/vda /mnt
    fio --name=sync --directory=/mnt --size=8M --rw=randwrite --bs=4k --fsync=1 --io_size=1M >/dev/null
    for folder in $(seq 20); do
        mkdir /mnt/$folder
        for file in $(seq 30); do echo $file $(seq 200) >/mnt/$folder/$file; done
    done
    dd if=/dev/urandom of=/mnt/large bs=1M count=24 2>/dev/null
    sync
    rm -r /mnt/1 /mnt/2
    for file in $(seq 150); do dd if=/dev/zero of=/mnt/3/more$file bs=4k count=2 conv=fsync 2>/dev/null; done
    umount /mnt";

/// A read or write of the guest.
pub(super) struct Entry {
    writes: bool,
    start: u64,
    bytes: u64,
    /// Its class in the log; `data` if none is shown.
    class: String,
}

/// Returns the requests after a mark: a read of a length that no file system uses.
pub(super) fn requests_after_mark(log: &Path) -> Result<Vec<Entry>> {
    let text = fs::read_to_string(log)?;
    let (_, text) = text.split_once("read sectors 72+24 ").context("the guest's mark")?;
    let mut open: HashMap<(&str, &str), Entry> = HashMap::new();
    let mut done = Vec::new();
    for line in text.lines().skip(1) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            [_, queue, "submit", tag, op @ ("read" | "write"), "sectors", range, ..] => {
                let (start, count) = range.split_once('+').context("a range")?;
                let (start, bytes) = (start.parse::<u64>()? * 512, count.parse::<u64>()? * 512);
                let entry = Entry { writes: op == "write", start, bytes, class: "data".into() };
                open.insert((queue, tag), entry);
            }
            [_, queue, "finish", tag, "ok", ref class @ ..] => {
                let Some(mut entry) = open.remove(&(queue, tag)) else { continue };
                if let [class] = class {
                    (*class).clone_into(&mut entry.class);
                }
                done.push(entry);
            }
            _ => {}
        }
    }
    Ok(done)
}

/// Requests and bytes by content of the blocks and assigned class.
#[derive(Default)]
pub(super) struct Confusion(BTreeMap<(Option<Holds>, String), (u64, u64)>);

impl Confusion {
    pub(super) fn of_writes(requests: &[Entry], truth: &Truth) -> Self {
        let mut table = Self::default();
        for write in requests.iter().filter(|request| request.writes) {
            // A write to blocks of several kinds counts as its first block.
            let cell = table.0.entry((truth.at(write.start), write.class.clone())).or_default();
            *cell = (cell.0 + 1, cell.1 + write.bytes);
        }
        table
    }

    pub(super) fn print(&self, name: &str) {
        println!("{name}: what it holds, what we took it for, requests, bytes");
        for ((holds, class), (requests, bytes)) in &self.0 {
            let holds = holds.map_or("Data".into(), |holds| format!("{holds:?}"));
            println!("  {holds:<15}{class:<10}{requests:>7}{bytes:>11}");
        }
    }

    /// Returns requests and bytes of this content, and the part of them classed as `class`.
    pub(super) fn share(&self, holds: &[Option<Holds>], class: &str) -> [(u64, u64); 2] {
        let of = self.0.iter().filter(|((it, _), _)| holds.contains(it));
        of.fold([(0, 0); 2], |[all, named], ((_, it), (requests, bytes))| {
            let more = if it == class { (*requests, *bytes) } else { (0, 0) };
            [(all.0 + requests, all.1 + bytes), (named.0 + more.0, named.1 + more.1)]
        })
    }

    /// Checks that no data was classed as anything else.
    pub(super) fn ensure_data_is_data(&self) -> Result<()> {
        let [(all, _), (named, _)] = self.share(&[None], "data");
        ensure!(all == named, "{} of {all} writes of data are misnamed", all - named);
        ensure!(all > 100, "only {all} writes of data");
        Ok(())
    }

    pub(super) fn ensure_journal(&self, writes_min: u64, per_mille: u64) -> Result<()> {
        let [(all, _), (named, _)] = self.share(&[Some(Holds::Journal)], "journal");
        ensure!(all >= writes_min, "only {all} writes of the journal");
        ensure!(
            named * 1000 >= all * per_mille,
            "{named} of {all} writes of the journal are known"
        );
        Ok(())
    }
}

/// Serves a disk with a log of its requests.
pub(super) fn serve_with_log(lab: &Lab, size: &str) -> Result<(PathBuf, Daemon, PathBuf)> {
    let image = lab.image(size)?;
    let log = lab.folder().join("requests");
    let layer = format!("log={}", log.display());
    let daemon = lab.serve(&image, &["--layer", &layer])?;
    Ok((image, daemon, log))
}

/// Waits until the daemon has recognised a file system, or whatever `words` say.
pub(super) fn wait_for_layout(daemon: &Daemon, words: &[&str]) -> Result<()> {
    let deadline = Instant::now() + SEEN_TIMEOUT;
    loop {
        let layout = daemon.layout()?.replace(' ', "");
        if words.iter().all(|word| layout.contains(word)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("no {words:?} in {layout}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

const MARK: &str = "dd if=/dev/vda of=/dev/null iflag=direct bs=12k skip=3 count=1 2>/dev/null";

/// Returns a load that deletes no folders: the content of each written block is taken from the
/// final image, where deleted directories would count as data.
pub(super) fn load_that_keeps_folders() -> String {
    [MARK, &LOAD.replace("rm -r /mnt/1 /mnt/2", "")].join("\n")
}

const METADATA: [Option<Holds>; 2] = [Some(Holds::FixedMetadata), Some(Holds::MovingMetadata)];

impl Confusion {
    /// Prints the share of metadata requests that is classed as such, and checks that it is at
    /// least a half. Some tens of requests are metadata, and how many of them are written before
    /// the layout has been read again depends on timing: the share was .70 on a busy machine, where
    /// it is .85 to 1.0 on a quiet one.
    fn ensure_metadata(&self, name: &str) -> Result<()> {
        let [all, named] = self.share(&METADATA, "metadata");
        println!(
            "{name}: metadata is known in {} of {} requests, {} of {} bytes",
            named.0, all.0, named.1, all.1
        );
        ensure!(all.0 > 10, "only {} writes of metadata", all.0);
        ensure!(named.0 * 2 >= all.0, "{named:?} of {all:?}");
        Ok(())
    }
}

#[test]
fn an_ext4_guest_is_told_apart() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let (image, mut daemon, log) = serve_with_log(&lab, "256M")?;
    let mut guest = lab.boot(&daemon, 4)?;
    guest.run("mkfs.ext4 -q -J size=8 /dev/vda")?;
    wait_for_layout(&daemon, &["\"kind\":\"ext4\"", "\"journal_bytes\":8388608"])?;
    guest.run(&load_that_keeps_folders())?;
    let classes = daemon.stats()?.classes;
    guest.power_off()?;
    daemon.terminate()?;

    let mut truth = Truth::of_ext4(&image.to_string_lossy());
    truth.add_moving(&image.to_string_lossy());
    let table = Confusion::of_writes(&requests_after_mark(&log)?, &truth);
    table.print("ext4");
    table.ensure_journal(300, 999)?;
    table.ensure_data_is_data()?;
    table.ensure_metadata("ext4")?;
    ensure!(classes.journal.writes > 300 && classes.metadata.writes > 10, "{classes:?}");
    Ok(())
}

#[test]
fn an_xfs_guest_is_told_apart() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let (image, mut daemon, log) = serve_with_log(&lab, "320M")?;
    let mut guest = lab.boot(&daemon, 4)?;
    guest.run("modprobe xfs; mkfs.xfs -q /dev/vda")?;
    wait_for_layout(&daemon, &["\"kind\":\"xfs\""])?;
    guest.run(&load_that_keeps_folders())?;
    guest.power_off()?;
    daemon.terminate()?;

    let mut truth = Truth::of_xfs(&image.to_string_lossy());
    truth.add_moving_of_xfs(&image.to_string_lossy());
    let table = Confusion::of_writes(&requests_after_mark(&log)?, &truth);
    table.print("xfs");
    table.ensure_journal(200, 999)?;
    table.ensure_data_is_data()?;
    table.ensure_metadata("xfs")
}

#[test]
fn a_btrfs_guest_is_told_apart() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let (image, mut daemon, log) = serve_with_log(&lab, "320M")?;
    let mut guest = lab.boot(&daemon, 4)?;
    guest.run("modprobe btrfs; mkfs.btrfs -q /dev/vda")?;
    wait_for_layout(&daemon, &["\"kind\":\"btrfs\""])?;
    guest.run(&load_that_keeps_folders())?;
    guest.power_off()?;
    daemon.terminate()?;

    let truth = Truth::of_btrfs(&image.to_string_lossy());
    let table = Confusion::of_writes(&requests_after_mark(&log)?, &truth);
    table.print("btrfs");
    table.ensure_data_is_data()?;
    table.ensure_metadata("btrfs")
}

/// Folders are deleted, and files reuse their space.
fn files_in_the_space_of_folders_are_data(mkfs: &str, truth: fn(&str) -> Truth) -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let (image, mut daemon, log) = serve_with_log(&lab, "320M")?;
    let mut guest = lab.boot(&daemon, 4)?;
    guest.run(mkfs)?;
    let kind = if mkfs.contains("xfs") { "xfs" } else { "ext4" };
    wait_for_layout(&daemon, &[&format!("\"kind\":\"{kind}\"")])?;
    guest.run(
        "mount /dev/vda /mnt
         for folder in $(seq 400); do mkdir /mnt/$folder; echo >/mnt/$folder/file; done
         sync",
    )?;
    let listed = daemon.stats()?.classes.rules.journal;
    // XFS writes them back later; they are in its log.
    ensure!(listed > 0 || kind == "xfs", "no folder has been written");
    guest.run(&format!(
        "rm -r /mnt/[1-9]*
         sync
         {MARK}
         dd if=/dev/urandom of=/mnt/large bs=1M 2>/dev/null || true
         sync
         umount /mnt"
    ))?;
    guest.power_off()?;
    daemon.terminate()?;
    let truth = truth(&image.to_string_lossy());
    let table = Confusion::of_writes(&requests_after_mark(&log)?, &truth);
    table.print(&format!("{kind}, full of what was folders; {listed} requests for them before"));
    table.ensure_data_is_data()
}

#[test]
fn files_in_the_space_of_folders_of_ext4_are_data() -> Result<()> {
    files_in_the_space_of_folders_are_data("mkfs.ext4 -q -J size=8 /dev/vda", |image| {
        let mut truth = Truth::of_ext4(image);
        truth.add_moving(image);
        truth
    })
}

#[test]
fn files_in_the_space_of_folders_of_xfs_are_data() -> Result<()> {
    files_in_the_space_of_folders_are_data("modprobe xfs; mkfs.xfs -q /dev/vda", |image| {
        let mut truth = Truth::of_xfs(image);
        truth.add_moving_of_xfs(image);
        truth
    })
}

/// dm-crypt passes no priorities on: only the pattern of writes and flushes is left.
#[test]
fn the_journal_of_an_encrypted_guest_is_known_by_its_pattern() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let (_, mut daemon, log) = serve_with_log(&lab, "96M")?;
    let plain = lab.folder().join("plain.raw");
    fs::File::create(&plain)?.set_len(96 << 20)?;
    let mut copy = lab.serve_as("copy", &plain, &[])?;
    let mut guest = lab.boot_machine(&Lab::machine_of([&daemon, &copy], 4))?;
    let load = LOAD.replace("/dev/vda", "/dev/mapper/crypt");
    let script = format!(
        "modprobe -a dm_crypt xts
         export DM_DISABLE_UDEV=1
         key=00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef
         dmsetup create crypt --table \"0 $(blockdev --getsz /dev/vda) crypt aes-xts-plain64 $key 0 /dev/vda 0\"
         mkfs.ext4 -q -J size=4 /dev/mapper/crypt
         {MARK}
         {load}
         dd if=/dev/mapper/crypt of=/dev/vdb bs=1M 2>/dev/null
         sync"
    );
    guest.run(&script)?;
    ensure!(!daemon.layout()?.contains("ext4"), "the disk is encrypted");
    guest.power_off()?;
    daemon.terminate()?;
    copy.terminate()?;

    let truth = Truth::of_ext4(&plain.to_string_lossy());
    let table = Confusion::of_writes(&requests_after_mark(&log)?, &truth);
    table.print("ext4 on dm-crypt");
    table.ensure_journal(300, 900)?;
    let others = [None, Some(Holds::FixedMetadata), Some(Holds::MovingMetadata)];
    let [(all, _), (misnamed, _)] = table.share(&others, "journal");
    ensure!(misnamed * 100 <= all, "{misnamed} of {all} other writes are taken for the journal's");
    Ok(())
}

#[test]
fn a_layout_is_followed_through_mkfs_resize_and_logical_volumes() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let image = lab.image("320M")?;
    let mut daemon = lab.serve(&image, &[])?;
    let mut guest = lab.boot(&daemon, 2)?;
    guest.run("mkfs.ext4 -q -L first /dev/vda")?;
    wait_for_layout(&daemon, &["\"kind\":\"ext4\"", "\"label\":\"first\""])?;
    guest.run("modprobe xfs; mkfs.xfs -q -f -L second /dev/vda")?;
    wait_for_layout(&daemon, &["\"kind\":\"xfs\"", "\"label\":\"second\""])?;

    guest.run("mkfs.ext4 -q -F -L third /dev/vda 64M; mount /dev/vda /mnt")?;
    wait_for_layout(&daemon, &["\"label\":\"third\"", "\"bytes\":67108864"])?;
    guest.run("resize2fs /dev/vda 320M && umount /mnt")?;
    wait_for_layout(&daemon, &["\"label\":\"third\"", "\"bytes\":335544320"])?;

    // Without the old file system, which LVM would ask about.
    guest.run(&format!(
        "dd if=/dev/zero of=/dev/vda bs=1M count=8 oflag=direct 2>/dev/null; {VOLUMES}"
    ))?;
    wait_for_layout(&daemon, &["\"kind\":\"lvm\"", "\"kind\":\"ext4\"", "\"label\":\"fourth\""])?;
    let journal_writes = daemon.stats()?.classes.journal.writes;
    guest.run(
        "mount /dev/vg/root /mnt
         for file in $(seq 20); do dd if=/dev/zero of=/mnt/$file bs=4k count=2 conv=fsync 2>/dev/null; done
         umount /mnt",
    )?;
    let more = daemon.stats()?.classes.journal.writes - journal_writes;
    ensure!(more >= 40, "{more} writes of the journal on a logical volume");
    guest.power_off()?;
    daemon.terminate()
}

/// A volume in two pieces, with another one between them.
const VOLUMES: &str = "
    modprobe dm_mod
    export DM_DISABLE_UDEV=1
    lvm() {
        command lvm \"$@\" --config \
            'global { locking_dir=\"/tmp\" } activation { udev_sync=0 udev_rules=0 } devices { obtain_device_list_from_udev=0 use_devicesfile=0 }'
    }
    lvm pvcreate -q /dev/vda
    lvm vgcreate -q vg /dev/vda
    lvm lvcreate -q -Zn -L 64M -n root vg
    lvm lvcreate -q -Zn -L 32M -n other vg
    lvm lvextend -q -L 160M vg/root
    mkfs.ext4 -q -L fourth /dev/vg/root";
