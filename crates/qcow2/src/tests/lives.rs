//! Random use of an image whose host fails, and judgement of its state after a power cut or a kill
//! at any moment.

use fastrand::Rng;
use flowstone_block::{Errno, Layer, Op, Outcome, SectorCount};
use flowstone_fileio::FileIo;
use flowstone_image::Image;
use flowstone_sim::{Call, Fate, Fault, Landed, Moment, Schedule, SimDisk};

use super::super::Qcow2Image;
use super::fixture::{Guest, checked, contents, extent, new_disk, number, open, open_read_only};
use super::history_model::{HistoryModel, stamped, stamps_of};
use super::host::{Host, reboot};

/// Parameters of the guest's load.
#[derive(Clone, Debug)]
pub struct Script {
    pub seed: u64,
    pub cluster_bytes: u64,
    /// Sizes of the disk in sectors: at creation, and after resizes.
    pub sizes: [u64; 2],
    pub acts: u32,
    /// Whether there is a redo file.
    pub remembers: bool,
}

impl Script {
    pub fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let cluster_bytes = *random.choice(&[512, 512, 1024, 4096]).unwrap();
        // Small clusters: several tables and refcount blocks, and the L1 table moves.
        let sizes = match cluster_bytes {
            512 => [330, 4300],
            _ => [40 * cluster_bytes / 512, 60 * cluster_bytes / 512],
        };
        Self { seed, cluster_bytes, sizes, acts: 30, remembers: random.bool() }
    }
}

/// A failure of the host, and its duration.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    Nothing,
    /// Calls of a kind fail after `after` successful ones, for a number of times, with part of
    /// their work done.
    Fails {
        call: Call,
        errno: Errno,
        landed: Landed,
        after: u64,
        times: Times,
    },
    /// The host has this many free pages beyond the image.
    Full {
        pages: u64,
        passes: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    Once,
    AWhile,
    /// Until half of the acts are over.
    Half,
    /// Until the image has been closed.
    Always,
}

impl Trouble {
    fn begin(self, disk: &SimDisk) {
        match self {
            Self::Nothing => {}
            Self::Fails { call, errno, landed, after, times } => {
                let fault = Fault::fail(errno).landed(landed).on(call).after(after);
                match times {
                    Times::Once => disk.inject(fault),
                    Times::AWhile => (0..4).for_each(|_| disk.inject(fault.clone())),
                    Times::Half | Times::Always => disk.inject(fault.always()),
                }
            }
            Self::Full { pages, .. } => {
                disk.set_capacity(Some(disk.allocated_bytes().unwrap() + pages * 4096));
            }
        }
    }

    fn passes(self) -> bool {
        match self {
            Self::Fails { times, .. } => times != Times::Always,
            Self::Full { passes, .. } => passes,
            Self::Nothing => true,
        }
    }

    /// Returns whether flushes may fail even when the trouble is over.
    fn is_for_good(self) -> bool {
        matches!(self, Self::Fails { call: Call::Datasync, .. })
    }
}

/// A requested size of the disk.
struct Size {
    sectors: u64,
    asked: Moment,
    told: Option<Moment>,
    failed: Option<Moment>,
    /// When the resize had failed and a later flush had succeeded.
    forgotten: Option<Moment>,
}

/// A daemon killed in a commit: the moments around it, the redo file, and the completed events.
struct Kill {
    moments: [Moment; 2],
    redo: Vec<u8>,
    events: u64,
}

/// History of an image, from before it is opened until after it is closed.
pub struct Life {
    pub disk: SimDisk,
    script: Script,
    trouble: Trouble,
    host: Option<Host>,
    random: Rng,
    model: HistoryModel,
    sizes: Vec<Size>,
    kills: Vec<Kill>,
    /// The redo file after the image was closed, if it still existed.
    left: Option<Vec<u8>>,
    stamp: u32,
    begun: Moment,
    /// Number of calls that failed.
    pub struck: u64,
}

impl Life {
    /// Runs the script.
    pub fn of(script: &Script, trouble: Trouble) -> Self {
        let [sectors, other] = script.sizes;
        let disk = SimDisk::from_bytes(&new_disk(sectors, script.cluster_bytes).to_bytes());
        disk.set_schedule(Schedule::Shuffled { seed: script.seed });
        let model = HistoryModel::new(&vec![0; sectors.max(other) as usize], &disk);
        let begun = disk.now();
        let size = Size { sectors, asked: begun, told: Some(begun), failed: None, forgotten: None };
        let mut life = Self {
            script: script.clone(),
            trouble,
            host: script.remembers.then(Host::new),
            random: Rng::with_seed(script.seed),
            model,
            sizes: vec![size],
            kills: Vec::new(),
            left: None,
            stamp: 0,
            begun,
            struck: 0,
            disk,
        };
        trouble.begin(&life.disk);
        life.run();
        life.struck = life.disk.faults_struck();
        let host = life.host.as_ref().filter(|host| host.redo().exists());
        life.left = host.map(Host::remembered);
        life.end_trouble();
        life
    }

    fn end_trouble(&self) {
        self.disk.clear_faults();
        self.disk.set_capacity(None);
    }

    fn open(&self) -> flowstone_block::Result<Qcow2Image> {
        match &self.host {
            Some(host) => host.open_by(host.path(), &self.disk, None),
            None => super::fixture::try_open(&self.disk),
        }
    }

    fn run(&mut self) {
        let Ok(image) = self.open() else { return };
        let mut guest = Guest::new(&image);
        for act in 0..self.script.acts {
            if act == self.script.acts / 2 && self.trouble.passes() {
                self.end_trouble();
                if !self.trouble.is_for_good() {
                    let _tell = Tell(format!("{:?} {:?}", self.script, self.trouble));
                    assert_eq!(self.flush(&mut guest), Ok(()), "what has passed leaves nothing");
                }
            }
            match self.random.u8(..20) {
                0 => self.resize(&image),
                1 => {
                    drop(guest);
                    let _ = image.compact(&mut |_, _| {});
                    guest = Guest::new(&image);
                }
                2..6 => drop(self.flush(&mut guest)),
                _ => {
                    let op = self.any_op(image.geometry().capacity.get());
                    let durable = self.random.u8(..10) == 0;
                    self.change(&mut guest, op, durable);
                }
            }
        }
        let _ = self.flush(&mut guest);
        if self.random.bool() {
            // Leaves changes for the close, or for the next daemon.
            let op = self.any_op(image.geometry().capacity.get());
            self.change(&mut guest, op, false);
        }
        self.judge_served(&image);
    }

    /// Asserts that the guest reads what it has written, whatever has failed.
    fn judge_served(&self, image: &Qcow2Image) {
        let reads_fail = |trouble| matches!(trouble, Trouble::Fails { call: Call::Read, .. });
        if reads_fail(self.trouble) && !self.trouble.passes() {
            return;
        }
        let _tell = Tell(format!("{:?} {:?} served", self.script, self.trouble));
        let mut served = stamps_of(&contents(image));
        served.resize(self.script.sizes.into_iter().max().unwrap() as usize, 0);
        self.model.judge_since(&served, self.disk.now(), self.model.events());
    }

    fn any_op(&mut self, sectors: u64) -> Op {
        let (random, cluster) = (&mut self.random, self.script.cluster_bytes / 512);
        let start = random.u64(..sectors);
        let count = random.u64(1..=3 * cluster).min(sectors - start);
        let mut place = extent(start, count);
        if random.bool() {
            let first = start / cluster * cluster;
            place = extent(first, (cluster * random.u64(1..20)).min(sectors - first));
        }
        match random.u8(..10) {
            0..3 => Op::Discard(place),
            3 => Op::WriteZeroes { extent: place, unmap: random.bool() },
            _ => Op::Write(place),
        }
    }

    fn change(&mut self, guest: &mut Guest, op: Op, durable: bool) {
        self.stamp += 1;
        let (stamp, data) = match op {
            Op::Write(extent) => {
                (self.stamp, stamped(extent.start().get(), extent.count().get(), self.stamp))
            }
            _ => (0, Vec::new()),
        };
        let open = self.model.submit(&self.disk, op, stamp, durable);
        guest.submit_data(op, &data, durable);
        let outcome = guest.next().outcome;
        self.expect(outcome);
        if outcome.is_ok() {
            self.model.complete(&self.disk, &open);
        }
    }

    fn flush(&mut self, guest: &mut Guest) -> Outcome {
        let redo = self.host.as_ref().map(Host::remembered);
        let (before, events) = (self.disk.now(), self.model.events());
        let open = self.model.submit(&self.disk, Op::Flush, 0, false);
        let outcome = guest.run(Op::Flush, 0);
        self.expect(outcome);
        let after = self.disk.now();
        // The timer may have caused a commit of its own.
        let is_one_commit = |redo: &[u8]| commits_since(redo, &self.disk) <= 1;
        if let Some(redo) = redo.filter(|redo| is_one_commit(redo)) {
            self.kills.push(Kill { moments: [before, after], redo, events: events + 1 });
        }
        if outcome.is_ok() {
            self.model.complete(&self.disk, &open);
            let failed = self.sizes.iter_mut().filter(|size| size.told.is_none());
            failed.for_each(|size| size.forgotten = size.forgotten.or(Some(after)));
        }
        outcome
    }

    fn resize(&mut self, image: &Qcow2Image) {
        let now = image.geometry().capacity.get();
        let [one, other] = self.script.sizes;
        let sectors = if now == one { other } else { one };
        let asked = self.disk.now();
        let told = image.resize(SectorCount::new(sectors)).is_ok().then(|| self.disk.now());
        assert_eq!(image.geometry().capacity.get(), if told.is_some() { sectors } else { now });
        let failed = told.is_none().then(|| self.disk.now());
        self.sizes.push(Size { sectors, asked, told, failed, forgotten: None });
    }

    fn expect(&self, outcome: Outcome) {
        if matches!(self.trouble, Trouble::Nothing) {
            assert_eq!(outcome, Ok(()));
        }
    }

    /// Cuts power at `count` moments, and continues; returns the number of cuts.
    pub fn cut(&self, count: usize, random: &mut Rng) -> u64 {
        for (index, moment) in self.any_moments(count, random).into_iter().enumerate() {
            let fate = match random.u8(..6) {
                0 => Fate::nothing_more(),
                1 => Fate::everything(),
                _ => Fate::seeded(random.u64(..)),
            };
            let _tell =
                Tell(format!("{:?} {:?} {fate:?} at {moment:?}", self.script, self.trouble));
            let crashed = self.disk.crash_at(moment, &mut fate.clone());
            reboot(&crashed);
            let found = self.judge(&crashed, moment, None);
            if index % 4 == 0 {
                go_on(&crashed, &found);
            }
        }
        count as u64
    }

    /// Half of them are close to the trouble and the last flushes, at the end.
    fn any_moments(&self, count: usize, random: &mut Rng) -> Vec<Moment> {
        let all: Vec<Moment> =
            self.disk.crash_points().filter(|moment| *moment >= self.begun).collect();
        let mut moments: Vec<Moment> = (0..count)
            .map(|n| if n == 0 { all[all.len() - 1] } else { all[random.usize(..all.len())] })
            .collect();
        moments.sort_unstable();
        moments
    }

    /// Asserts that the image is consistent, and holds all durable changes. After a kill these are
    /// all changes completed before an event.
    fn judge(&self, found: &SimDisk, moment: Moment, killed: Option<(&Host, u64)>) -> Vec<u32> {
        let (errors, held) = match killed {
            Some((host, _)) => (host.check(found, false).unwrap().errors, host.read(found)),
            None => (checked(found, false).errors, contents(&open_read_only(found).unwrap())),
        };
        assert_eq!(errors, Vec::<String>::new());
        let held = stamps_of(&held);
        self.judge_size(held.len() as u64, moment, killed.is_some());
        let mut all = held.clone();
        all.resize(self.script.sizes.into_iter().max().unwrap() as usize, 0);
        match killed {
            Some((_, events)) => self.model.judge_since(&all, moment, events),
            None => self.model.judge(&all, moment),
        }
        held
    }

    /// A failed resize is undone at once in memory, and on the medium when a later flush succeeds.
    fn judge_size(&self, found: u64, moment: Moment, killed: bool) {
        let told = |size: &Size| size.told.is_some_and(|told| told <= moment);
        let last = self.sizes.iter().rposition(told).unwrap();
        let may_be = |size: &&Size| {
            let forgotten = if killed { size.failed } else { size.forgotten };
            size.asked <= moment && forgotten.is_none_or(|forgotten| forgotten > moment)
        };
        let mut allowed = self.sizes[last..].iter().filter(may_be);
        assert!(allowed.any(|size| size.sectors == found), "{found} sectors at {moment:?}");
    }

    /// Kills the daemon in its commits, at `count` moments; returns the number of kills.
    pub fn kill(&self, count: usize, random: &mut Rng) -> u64 {
        let Some(host) = self.host.as_ref().filter(|_| !self.kills.is_empty()) else { return 0 };
        for _ in 0..count {
            let kill = random.choice(&self.kills).unwrap();
            let [first, last] = kill.moments;
            let inside: Vec<Moment> =
                self.disk.crash_points().filter(|it| (first..=last).contains(it)).collect();
            let moment = *random.choice(&inside).unwrap();
            let seed = random.u64(..);
            let _tell =
                Tell(format!("{:?} {:?} kill {seed} at {moment:?}", self.script, self.trouble));
            let killed = self.disk.kill_at(moment, &mut Fate::seeded(seed));
            host.remember(&kill.redo);
            let found = self.judge(&killed, moment, Some((host, kill.events)));
            if random.bool() {
                let report = host.check(&killed, true).unwrap();
                assert_eq!((report.errors, report.leaked_bytes), (vec![], 0), "after a repair");
                assert!(stamps_of(&host.read(&killed)) == found, "after a repair");
                self.cut_after_kill(&killed, moment, random);
            }
            self.restart(host, &killed, &found);
            self.cut_after_kill(&killed, moment, random);
        }
        count as u64
    }

    /// Cuts power while the image is repaired, or used by the next daemon: changes that were
    /// durable before the kill are there.
    fn cut_after_kill(&self, disk: &SimDisk, killed: Moment, random: &mut Rng) {
        if self.trouble.is_for_good() {
            return;
        }
        let moments: Vec<Moment> = disk.crash_points().collect();
        for _ in 0..3 {
            let moment = *random.choice(&moments).unwrap();
            let fate = Fate::seeded(random.u64(..));
            let _tell = Tell(format!("cut at {moment:?} after the kill, {fate:?}"));
            let crashed = disk.crash_at(moment, &mut fate.clone());
            reboot(&crashed);
            self.judge(&crashed, killed, None);
        }
    }

    /// Asserts that the next daemon finds the same content, makes it durable, and leaves a
    /// consistent image.
    fn restart(&self, host: &Host, disk: &SimDisk, found: &[u32]) {
        let image = host.open(disk);
        assert!(stamps_of(&contents(&image)) == found, "after the restart");
        let mut guest = Guest::new(&image);
        guest.run(Op::Flush, 0).unwrap();
        // Data lost by a failed sync stays lost, whatever later syncs report.
        if !self.trouble.is_for_good() {
            let crashed = disk.crash_at(disk.now(), &mut Fate::nothing_more());
            reboot(&crashed);
            assert_eq!(checked(&crashed, false).errors, Vec::<String>::new());
            let held = stamps_of(&contents(&open_read_only(&crashed).unwrap()));
            assert!(held == found, "flushed again");
        }
        drop((guest, image));
        assert_eq!(checked(disk, false).errors, Vec::<String>::new());
    }

    /// Asserts that the closed image is consistent and has the right content.
    pub fn closed(&self) {
        let _tell = Tell(format!("{:?} {:?} closed", self.script, self.trouble));
        let now = self.disk.now();
        let disk = self.disk.kill_at(now, &mut Fate::everything());
        let Some(host) = &self.host else {
            return go_on(&disk, &self.judge(&disk, now, None));
        };
        match &self.left {
            Some(redo) => host.remember(redo),
            None => std::fs::remove_file(host.redo()).unwrap_or_default(),
        }
        let found = self.judge(&disk, now, Some((host, self.model.events())));
        self.restart(host, &disk, &found);
    }
}

/// Returns the number of commits that have begun to write entries since this state of the redo
/// file.
fn commits_since(redo: &[u8], disk: &SimDisk) -> u64 {
    let known = u64::from_ne_bytes(redo[40..48].try_into().unwrap());
    (number(disk, 88) >> 8).wrapping_sub(known >> 8) & 0xffff
}

/// Asserts that it can be written again, holds the same content, and is consistent when closed and
/// repaired.
fn go_on(disk: &SimDisk, found: &[u32]) {
    let image = open(disk);
    assert!(stamps_of(&contents(&image)) == found, "opened for writing");
    let sectors = image.geometry().capacity.get();
    let place = extent(sectors / 2, 9.min(sectors / 2));
    let mut guest = Guest::new(&image);
    let data = stamped(place.start().get(), place.count().get(), 1 << 20);
    guest.submit_data(Op::Write(place), &data, false);
    guest.next().outcome.unwrap();
    guest.run(Op::Flush, 0).unwrap();
    drop((guest, image));
    let report = checked(disk, true);
    assert_eq!((report.errors, report.leaked_bytes), (vec![], 0));
    let mut expected = found.to_vec();
    expected[sectors as usize / 2..][..place.count().get() as usize].fill(1 << 20);
    assert!(stamps_of(&contents(&open_read_only(disk).unwrap())) == expected);
}

/// Prints the test's position when it fails.
pub struct Tell(pub String);

impl Drop for Tell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed: {}", self.0);
        }
    }
}
