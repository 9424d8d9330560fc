//! Guests on one daemon whose queues run on threads of their own or on shared ones, fused or split,
//! and move between threads; killed under load, and restarted with another setting.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use flowstone_testkit::HANG;
use flowstone_vmtest::framework::agent::Outcome;
use flowstone_vmtest::framework::daemon::flowstone;
use flowstone_vmtest::framework::fleet::{Fleet, ServedDisk};
use flowstone_vmtest::framework::guest::{Guest, UNTIL_TOLD};
use flowstone_vmtest::framework::lab::Lab;
use flowstone_vmtest::framework::qemu::Machine;
use flowstone_vmtest::framework::stats::DiskStats;

use crate::disk_errors;
use crate::load::check_sound;

const POLLERS: [&str; 4] = ["per-queue", "1", "2", "auto"];
const PIPELINES: [&str; 3] = ["fused", "split", "auto"];
/// Requests of each disk before the daemon is killed, and again before the load ends.
const REQUESTS: u64 = 100;
/// Files that a round leaves on each disk.
const SMALL_FILES: usize = 8;

/// A guest: its disks, by the extensions of their images, with the number of queues of each.
struct Plan {
    queues: u16,
    extensions: &'static [&'static str],
}

/// One, two and four queues, one disk and four, all formats.
const PLANS: [Plan; 4] = [
    Plan { queues: 1, extensions: &["raw"] },
    Plan { queues: 2, extensions: &["flow"] },
    Plan { queues: 4, extensions: &["qcow2"] },
    Plan { queues: 2, extensions: &["raw", "flow", "qcow2", "raw"] },
];

/// A setting of the daemon: its pollers, and the pipelines of disks in turn.
#[derive(Debug)]
struct Setting {
    pollers: &'static str,
    pipelines: Vec<&'static str>,
}

impl Setting {
    /// Returns all settings: all pollers, each with each fixed pipeline for all disks and with all
    /// pipelines at once, in another assignment to the formats each time.
    fn all() -> Vec<Self> {
        let with = |(turn, pollers)| {
            let mixed = Self::mixed(turn, pollers);
            [vec!["fused"], vec!["split"], mixed.pipelines]
                .map(|pipelines| Self { pollers, pipelines })
        };
        POLLERS.into_iter().enumerate().flat_map(with).collect()
    }

    /// Returns settings that have each pipeline with all pollers, and with each disk.
    fn pairs() -> Vec<Self> {
        let with = |(turn, pollers)| Self::mixed(turn, pollers);
        POLLERS.into_iter().enumerate().map(with).collect()
    }

    /// All pipelines at once; each turn assigns them to the disks in another way.
    fn mixed(turn: usize, pollers: &'static str) -> Self {
        let mut pipelines = PIPELINES.to_vec();
        pipelines.rotate_left(turn % PIPELINES.len());
        Self { pollers, pipelines }
    }

    fn head(&self) -> String {
        format!("pollers = '{}'", self.pollers)
    }

    /// Returns whether `threads` threads run the queues of all guests.
    fn has_threads(&self, threads: usize) -> Result<bool> {
        let queues = |plan: &Plan| usize::from(plan.queues) * plan.extensions.len();
        Ok(match self.pollers {
            "per-queue" => threads >= PLANS.iter().map(queues).sum(),
            "auto" => threads > 0,
            number => threads == number.parse::<usize>()?,
        })
    }

    /// Requests complete out of order, so only the in-flight log shows which are undone.
    fn of_disk(&self, index: usize) -> String {
        let pipeline = self.pipelines[index % self.pipelines.len()];
        format!("queues = 4\nlayers = ['delay=0-5ms']\npipeline = '{pipeline}'")
    }
}

#[test]
fn four_guests_lose_nothing_however_their_queues_run_when_the_daemon_is_killed() -> Result<()> {
    lose_nothing(&Setting::pairs())
}

#[test]
#[ignore = "three times as many settings"]
fn soak_four_guests_lose_nothing_in_every_setting() -> Result<()> {
    lose_nothing(&Setting::all())
}

/// Each setting serves the second half of one load and the first half of the next one.
fn lose_nothing(settings: &[Setting]) -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let extensions: Vec<&str> = PLANS.iter().flat_map(|plan| plan.extensions).copied().collect();
    let disks = create_images(&lab, &extensions)?;
    let first = &settings[0];
    let mut fleet =
        Fleet::serve(lab.folder(), disks.clone(), &first.head(), |at| first.of_disk(at))?;
    let mut guests = lab.boot_machines(&machines(&fleet, &disks))?;
    for (guest, plan) in guests.iter_mut().zip(&PLANS) {
        guest.run(&on_each_disk(plan, "mkfs.ext4 -q $dev; mkdir -p $dir; mount $dev $dir"))?;
    }
    for (round, next) in settings.iter().cycle().skip(1).take(settings.len()).enumerate() {
        for (guest, plan) in guests.iter_mut().zip(&PLANS) {
            guest.start(&load(plan, round))?;
        }
        wait_for_load_on_all(&fleet, &mut guests)?;
        fleet.kill()?;
        fleet.restart_with(&next.head(), |at| next.of_disk(at))?;
        wait_for_load_on_all(&fleet, &mut guests)?;
        wait_for_threads(&fleet, next)?;
        guests.iter_mut().try_for_each(Guest::tell)?;
        guests.iter_mut().try_for_each(|guest| guest.finish().map(drop))?;
    }
    for (guest, plan) in guests.iter_mut().zip(&PLANS) {
        disk_errors::none_logged(guest)?;
        guest.run(&on_each_disk(plan, &in_order_after(settings.len())))?;
    }
    guests.into_iter().try_for_each(Guest::power_off)?;
    fleet.terminate()?;
    disks.iter().try_for_each(|disk| check_sound(&disk.image))
}

/// A queue that changes its form has no thread for a moment.
fn wait_for_threads(fleet: &Fleet, setting: &Setting) -> Result<()> {
    let began = Instant::now();
    loop {
        let seen = fleet.stats()?.pollers.len();
        if setting.has_threads(seen)? {
            return Ok(());
        }
        ensure!(began.elapsed() < HANG, "{seen} threads: {setting:?}");
        sleep(Duration::from_millis(50));
    }
}

/// Independent of the load: a busy queue moves at every check (`FLOWSTONE_RESTLESS_QUEUES`). When
/// queues move by themselves is tested with simulated loads (crates/runner/src/pollers).
#[test]
fn queues_move_between_pollers_under_a_guest_and_the_daemon_is_killed_after_a_move() -> Result<()> {
    const AUTO: &str = "pollers = 'auto'\npoller-cpus = '0,1,0'"; // three, whatever the machine has
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let disks = create_images(&lab, &["raw", "flow", "qcow2", "raw"])?;
    let of_disk = |_| "layers = ['verify']".to_owned();
    let mut fleet = Fleet::serve(lab.folder(), disks.clone(), "pollers = 2", of_disk)?;
    let sockets = disks.iter().map(|disk| fleet.disk(&disk.name, 1));
    let mut guest = lab.boot_machine(&Machine::with_disks(sockets.collect()))?;
    for head in ["pollers = 2", AUTO] {
        fleet.terminate()?;
        fleet.restart_with(head, of_disk)?;
        load_until_a_queue_moves(&fleet, &mut guest)?;
        fleet.kill()?;
        fleet.restart_with(head, of_disk)?;
        guest.finish()?;
        load_until_a_queue_moves(&fleet, &mut guest)?;
        guest.finish()?;
        println!("{head}: {} moves since the kill", fleet.stats()?.moves());
    }
    disk_errors::none_logged(&mut guest)?;
    guest.power_off()?;
    fleet.terminate()?;
    disks.iter().try_for_each(|disk| check_sound(&disk.image))
}

/// Returns in the middle of a load that made a queue move.
fn load_until_a_queue_moves(fleet: &Fleet, guest: &mut Guest) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < 5 * HANG {
        guest.start(
            "jobs=
             for letter in a b c d; do jobs=\"$jobs --name=$letter --filename=/dev/vd$letter\"; done
             fio --ioengine=libaio --iodepth=16 --direct=1 --bs=256k --rw=randwrite --size=16M \
                 --verify=crc32c --verify_fatal=1 --minimal $jobs",
        )?;
        loop {
            if fleet.stats()?.moves() > 0 {
                return Ok(());
            }
            if let Some(Outcome { output, code }) = guest.ended()? {
                ensure!(code == 0, "the load failed ({code}):\n{output}");
                break;
            }
        }
    }
    bail!("no queue moves: {:?}", fleet.stats()?)
}

/// Makes an image of each of these extensions, for disks called `disk0` and so on.
fn create_images(lab: &Lab, extensions: &[&str]) -> Result<Vec<ServedDisk>> {
    let create = |(number, extension): (usize, &&str)| {
        let name = format!("disk{number}");
        let image = lab.folder().join(format!("{name}.{extension}"));
        flowstone(&["create", "--size", "64M", &image.to_string_lossy()])?;
        Ok(ServedDisk { name, image })
    };
    extensions.iter().enumerate().map(create).collect()
}

/// Makes a guest for each plan: the disks are assigned in order.
fn machines(fleet: &Fleet, disks: &[ServedDisk]) -> Vec<Machine> {
    let mut left = disks.iter();
    let machine = |plan: &Plan| {
        let own = left.by_ref().take(plan.extensions.len());
        Machine::with_disks(own.map(|disk| fleet.disk(&disk.name, plan.queues)).collect())
    };
    PLANS.iter().map(machine).collect()
}

/// Returns a script that runs `script` for each disk: `$dev`, with its file system at `$dir`.
fn on_each_disk(plan: &Plan, script: &str) -> String {
    let letters = &["a", "b", "c", "d"][..plan.extensions.len()];
    let letters = letters.join(" ");
    format!("for letter in {letters}; do dev=/dev/vd$letter dir=/mnt/$letter\n{script}\ndone")
}

/// Random writes to a file of each file system, read back and verified, repeated until the guest is
/// told to end, together with small files that stay.
fn load(plan: &Plan, round: usize) -> String {
    let small = on_each_disk(
        plan,
        &format!(
            "for file in $(seq {SMALL_FILES}); do
                 dd if=/dev/urandom of=$dir/{round}.$file bs=16k count=1 conv=fsync 2>/dev/null
             done
             (cd $dir; xxhsum -q {round}.* >>sums)"
        ),
    );
    let fio = "fio --ioengine=libaio --iodepth=16 --direct=1 --bs=4k --rw=randwrite --size=2M \
               --verify=crc32c --verify_fatal=1 --randrepeat=0 --minimal";
    let jobs = on_each_disk(plan, "jobs=\"$jobs --name=$letter --filename=$dir/load\"");
    format!(
        "{UNTIL_TOLD}\njobs=\n{jobs}\n({small}) & small=$!\nuntil_told {fio} $jobs\nwait $small"
    )
}

/// Returns a script for each disk that checks the file system, and the small files of `rounds`
/// rounds.
fn in_order_after(rounds: usize) -> String {
    let files = SMALL_FILES * rounds;
    format!(
        "umount $dir
         e2fsck -fn $dev
         mount -o ro $dev $dir
         cd $dir
         [ $(wc -l <sums) = {files} ]
         xxhsum -q -c sums >/tmp/checked || {{ cat /tmp/checked; exit 1; }}
         cd /
         umount $dir"
    )
}

/// Waits until each disk has had another [`REQUESTS`] requests.
fn wait_for_load_on_all(fleet: &Fleet, guests: &mut [Guest]) -> Result<()> {
    let requests = || -> Result<Vec<u64>> {
        Ok(fleet.stats()?.disks.iter().map(DiskStats::all_requests).collect())
    };
    let before = requests()?;
    let has_load = |(now, before): (u64, &u64)| now >= before + REQUESTS;
    Guest::wait_for_load(guests, || Ok(requests()?.into_iter().zip(&before).all(has_load)))
}
