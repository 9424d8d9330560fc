//! Verified loads on a faulty host: it stops, is slow, fails calls before or after it has executed
//! them, and the daemon is killed meanwhile.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

use fastrand::Rng;
use flowstone_testkit::fuse::FuseHost;
use flowstone_testkit::load::{Limit, LoadOptions, VerifyMap, run_with_map};
use flowstone_testkit::{Daemon, HANG, Request, Status};
use rustix::process::Signal;

use crate::fixture::{Place, pattern, stop};

const FORMATS: [&str; 3] = ["raw", "qcow2", "flow"];
const FORMS: [&[&str]; 8] = [
    &[],
    &["--pollers", "per-queue", "--pipeline", "split"],
    &["--engine", "sync"],
    &["--pollers", "per-queue", "--engine", "sync", "--pipeline", "split"],
    &["--cache", "4M"],
    &["--pollers", "per-queue"],
    &["--pollers", "1"],
    &["--pipeline", "auto"],
];

struct Trouble<'form> {
    // Before the folder: it is mounted there.
    host: FuseHost,
    place: Place,
    image: String,
    form: &'form [&'form str],
    seed: u64,
    random: Rng,
}

impl<'form> Trouble<'form> {
    fn new(format: &str, form: &'form [&'form str], seed: u64) -> Option<Self> {
        Self::on(FuseHost::mount, format, form, seed)
    }

    fn on(
        mount: impl FnOnce(&Path, &Path) -> io::Result<FuseHost>,
        format: &str,
        form: &'form [&'form str],
        seed: u64,
    ) -> Option<Self> {
        let place = Place::new();
        let [at, behind] = ["at", "behind"].map(|name| place.path(name));
        fs::create_dir(&at).unwrap();
        fs::create_dir(&behind).unwrap();
        let host = FuseHost::or_skip(mount(&at, &behind))?;
        let image = format!("at/disk.{format}");
        place.succeed(&["create", "--size", "24M", &image]);
        Some(Self { host, place, image, form, seed, random: Rng::with_seed(seed) })
    }

    fn serve(&self) -> Daemon {
        self.place.serve(&[&["--queues", "2"], self.form, &[&self.image]].concat())
    }

    fn load(&self) -> LoadOptions {
        let mut options = LoadOptions::new(self.place.path("disk.sock")).workload("mix").iodepth(8);
        options.client.queues = 2;
        options.verify = true;
        options.discard_zeroes = true;
        options.flush_every = 30;
        options.seed = self.seed;
        options
    }

    /// Runs the guest for this time. Returns its knowledge of acknowledged writes.
    fn work(&mut self, time: Duration) -> VerifyMap {
        let mut load = self.load();
        load.reconnect = Some(HANG);
        load.limit = Limit::Time { ramp: Duration::ZERO, runtime: time };
        let mut daemon = self.serve();
        let map = std::thread::scope(|scope| {
            let guest = scope.spawn(move || run_with_map(&load, None));
            while !guest.is_finished() {
                self.trouble();
                std::thread::sleep(Duration::from_millis(self.random.u64(20..300)));
                if self.random.u32(..4) == 0 {
                    daemon.signal(Signal::KILL).unwrap();
                    self.host.recover();
                    daemon.wait(HANG).unwrap();
                    daemon = self.serve();
                }
                // A host that stays stopped stops the guest, too.
                self.host.recover();
            }
            guest.join().unwrap()
        });
        // It reports failed syncs by its exit status, too.
        daemon.terminate(HANG).unwrap();
        map.unwrap_or_else(|error| panic!("{self}: {error}")).1
    }

    fn trouble(&mut self) {
        match self.random.u32(..4) {
            0 => self.host.stop(),
            1 => self.host.slow(Duration::from_micros(self.random.u64(..4000))),
            _ => self.host.fail(self.random.u32(2..50), self.random.u64(..)),
        }
    }

    /// Checks the files behind the fake host: data that is right there and wrong in front of it was
    /// corrupted by the kernel, which caches pages of them.
    fn behind(&self) -> std::process::Output {
        self.place.run(&["check", "--data", &self.image.replacen("at/", "behind/", 1)])
    }

    /// Checks with a new client on a healthy host that everything the guest knows is there.
    fn check(&self, map: VerifyMap) -> u64 {
        let known = map.known();
        let mut sweep = self.load();
        sweep.verify_final = true;
        sweep.limit = Limit::Ops(1);
        let daemon = self.serve();
        let failed = match run_with_map(&sweep, Some(map)) {
            Ok((report, _)) => report.first_error,
            Err(error) => Some(error.to_string()),
        };
        if let Some(failed) = failed {
            let (said, stats) = (daemon.stderr(), self.place.stats());
            stop(daemon);
            panic!("{self}: {failed}; {said}{stats}; behind it: {:?}", self.behind());
        }
        stop(daemon);
        self.place.assert_sound(&self.image);
        known
    }
}

impl std::fmt::Display for Trouble<'_> {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{} {:?}, seed {}", self.image, self.form, self.seed)
    }
}

/// Returns the number of blocks checked; `None` if there is no fake host.
fn nothing_is_lost(format: &str, form: &[&str], seed: u64, time: Duration) -> Option<u64> {
    let mut trouble = Trouble::new(format, form, seed)?;
    println!("{trouble}");
    let map = trouble.work(time);
    Some(trouble.check(map))
}

#[test]
fn nothing_is_lost_on_a_host_in_trouble() {
    for (format, form) in FORMATS.into_iter().cycle().zip(FORMS) {
        let time = Duration::from_secs(2);
        if nothing_is_lost(format, form, fastrand::u64(..), time).is_none() {
            return;
        }
    }
}

/// The guest never flushes: each write must be durable when it is acknowledged, alone and in a
/// group. No sync follows the last one.
#[test]
fn what_a_guest_writes_through_survives_a_power_cut_of_the_host() {
    const BYTES: usize = 64 << 10;
    for (format, form) in ["raw", "flow"].iter().flat_map(|it| FORMS.map(|form| (it, form))) {
        let Some(trouble) = Trouble::on(FuseHost::mount_source, format, form, 0) else { return };
        let mut daemon = trouble.serve();
        let mut guest = trouble.place.client();
        guest.set_wce(false).unwrap();
        let data = pattern(16 * BYTES, 3);
        for (number, piece) in (0..).zip(data.chunks(BYTES)) {
            guest.submit(0, &Request::write(number * BYTES as u64 / 512, piece)).unwrap();
            if number >= 7 {
                guest.notify(0).unwrap();
                assert!(guest.drain(0).unwrap().iter().all(|done| done.status == Status::Ok));
            }
        }
        daemon.kill().unwrap();
        trouble.host.lose_unsynced();
        // The kernel may have cached what the host has lost.
        let image = trouble.image.replacen("at/", "behind/", 1);
        trouble.place.succeed(&["convert", &image, "back.raw"]);
        let back = fs::read(trouble.place.path("back.raw")).unwrap();
        assert!(back[..data.len()] == data, "{trouble}");
    }
}

#[test]
#[ignore = "runs for SOAK_MINUTES: make soak"]
fn soak_a_host_in_trouble() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let end = Instant::now() + Duration::from_secs(60 * number("SOAK_MINUTES").unwrap_or(10));
    let mut random = number("SOAK_SEED").map_or_else(Rng::new, Rng::with_seed);
    println!("SOAK_SEED={}", random.get_seed());
    let (mut runs, mut checked) = (0, 0);
    while Instant::now() < end {
        for (format, form) in FORMATS.iter().flat_map(|it| FORMS.map(|form| (it, form))) {
            let time = Duration::from_secs(5);
            let Some(blocks) = nothing_is_lost(format, form, random.u64(..), time) else { return };
            (runs, checked) = (runs + 1, checked + blocks);
        }
        println!("{runs} runs, {checked} blocks were what the guest had been told");
    }
}
