//! VMs that share a device by their weights.
//!
//! The device is that of `--dir`. If it is too fast to be the bottleneck, run this in a cgroup that
//! throttles it (`blkio.throttle.read_iops_device`, `write_iops_device`).

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use flowstone_experiment::command::number;
use flowstone_experiment::{Experiment, IOPS, P99_US, median, table};
use flowstone_testkit::load::{LoadOptions, LoadReport};
use serde_json::Value;
use tempfile::tempdir_in;

use super::{Bench, HOG_DEPTH, Served, together};
use crate::place::seconds;

/// Queue depth of each disk where the device is overloaded.
const DEPTH: u16 = 32;
const SYNC_P99_US: &str = "sync_p99_us";
const OTHER_IOPS: &str = "other_iops";
/// End, and beginning, of the points' names.
const SHARES: &str = " of the light one";
const BESIDE: &str = "beside a VM at QD128, ";
const SYNCED: &str = "writes, each synced";
const IN_FLIGHT: &str = "in_flight";
const DEPTH_LIMIT: &str = "depth";
/// Looks at the requests in flight during a run.
const SAMPLES: u32 = 9;
/// The daemon recognises VMs after half a second.
const KNOWN_AFTER: Duration = Duration::from_millis(750);

/// A disk: its name, the weight of its VM, and its load.
#[derive(Clone)]
struct Loaded {
    name: String,
    vm: &'static str,
    weight: u32,
    depth: u16,
    /// Each write is followed by a sync.
    syncs: bool,
    /// Its image is in the host's cache: a device that is faster than the guests.
    is_cached: bool,
}

impl Loaded {
    fn heavy(depth: u16, weight: u32, syncs: bool) -> Self {
        Self { name: "heavy".into(), vm: "heavy", weight, depth, syncs, is_cached: false }
    }

    fn light(number: usize, depth: u16) -> Self {
        let (name, syncs, is_cached) = (format!("light{number}"), false, false);
        Self { name, vm: "light", weight: 100, depth, syncs, is_cached }
    }
}

/// Requests in flight at a moment.
struct InFlight {
    heavy: f64,
    light: f64,
    /// The scheduler's limit for both.
    depth: f64,
}

impl InFlight {
    /// Reads the statistics of a daemon whose first disk is the heavy VM's.
    fn of(stats: &Value) -> Result<Self> {
        let disks = stats["disks"].as_array().context("a list of disks")?;
        let of_disks = |key| disks.iter().map(move |disk| number(&disk["device_share"], key));
        let in_flight: Vec<f64> = of_disks("in_flight").collect::<Result<_>>()?;
        let depth = of_disks("depth").next().context("a disk")??;
        Ok(Self { heavy: in_flight[0], light: in_flight[1..].iter().sum(), depth })
    }
}

impl Bench<'_> {
    /// Measures the shares of VMs of weights 4 : 1, and the effect of a light VM on a heavy one.
    pub(super) fn vms(&self, experiment: &mut Experiment) -> Result<()> {
        let of_device = ["randread", "randwrite"].map(|rw| [(rw, false, 1), (rw, false, 4)]);
        let cases = of_device.into_iter().flatten().chain([("randread", true, 1)]);
        for (rw, is_cached, disks) in cases {
            let place = if is_cached { "from the host's cache, " } else { "" };
            let point = format!("{rw}, {place}{disks}{SHARES}");
            let mut loads = vec![Loaded::heavy(DEPTH, 400, false)];
            loads.extend((0..disks).map(|number| Loaded::light(number, DEPTH)));
            loads.iter_mut().for_each(|load| load.is_cached = is_cached);
            for _ in 0..self.args.base.run.rounds {
                let (reports, seen) = self.watched(&loads, rw)?;
                let light = reports[1..].iter().map(|report| report.iops).sum::<f64>();
                let middle = |of: fn(&InFlight) -> f64| {
                    median(seen.iter().map(of).collect()).unwrap_or(f64::NAN)
                };
                let of_heavy = [(IOPS, reports[0].iops), (IN_FLIGHT, middle(|it| it.heavy))];
                experiment.add(&point, "heavy", &of_heavy);
                let of_light = [(IOPS, light), (IN_FLIGHT, middle(|it| it.light))];
                experiment.add(&point, "light", &of_light);
                let of_both = [
                    (IN_FLIGHT, middle(|it| it.heavy + it.light)),
                    (DEPTH_LIMIT, middle(|it| it.depth)),
                ];
                experiment.add(&point, "both", &of_both);
            }
        }
        self.protection(experiment)
    }

    /// Measures a VM at queue depth 1, alone and beside a greedy one.
    fn protection(&self, experiment: &mut Experiment) -> Result<()> {
        for (rw, syncs) in [("randread", false), ("randwrite", false), ("randwrite", true)] {
            let heavy = |weight| Loaded::heavy(1, weight, syncs);
            let light = || Loaded::light(0, HOG_DEPTH);
            let cases = [
                ("alone", vec![heavy(400)]),
                ("weights 4 : 1", vec![heavy(400), light()]),
                ("equal weights", vec![heavy(100), light()]),
            ];
            let what = if syncs { SYNCED } else { rw };
            let point = format!("{BESIDE}{what}");
            experiment.run(self.args.base.run.rounds, &[(&point, ())], &cases, |(), loads| {
                let reports = self.loaded(loads, rw)?;
                Ok(vec![
                    (P99_US, reports[0].latency.p99_us),
                    (SYNC_P99_US, reports[0].flush.p99_us),
                    (OTHER_IOPS, reports.get(1).map_or(f64::NAN, |report| report.iops)),
                ])
            })?;
        }
        Ok(())
    }

    /// Runs all loads at once.
    fn loaded(&self, loads: &[Loaded], rw: &str) -> Result<Vec<LoadReport>> {
        self.beside_loads(loads, rw, |_| Ok(())).map(|(reports, ())| reports)
    }

    /// Runs all loads at once, of which the first is the heavy VM's. Returns samples of what the
    /// VMs have in flight meanwhile.
    fn watched(&self, loads: &[Loaded], rw: &str) -> Result<(Vec<LoadReport>, Vec<InFlight>)> {
        self.beside_loads(loads, rw, |served| {
            thread::sleep(KNOWN_AFTER);
            // None of them after the end of the loads.
            let pause = Duration::from_secs_f64(self.args.base.runtime) / (SAMPLES + 1);
            let look = |_| {
                thread::sleep(pause);
                InFlight::of(&served.stats(&self.program)?)
            };
            (0..SAMPLES).map(look).collect()
        })
    }

    /// Runs all loads at once, and `watch` beside them.
    fn beside_loads<T: Send>(
        &self,
        loads: &[Loaded],
        rw: &str,
        watch: impl FnOnce(&Served) -> Result<T> + Send,
    ) -> Result<(Vec<LoadReport>, T)> {
        let keys = |load: &Loaded| -> Result<(String, String)> {
            let image = std::path::absolute(self.image(&load.name)?)?;
            let vm = format!("name={},weight={}", load.vm, load.weight);
            let direct = if load.is_cached { "off" } else { "on" };
            let keys = format!("image = {image:?}\ndirect = {direct:?}\nvm = {vm:?}");
            Ok((load.name.clone(), keys))
        };
        let disks = loads.iter().map(keys).collect::<Result<Vec<_>>>()?;
        let served = self.serve(&self.program, tempdir_in(&self.args.base.run.dir)?, &disks)?;
        // The others load the device with the measured operation, without syncs.
        let options = |load: &Loaded| LoadOptions {
            flush_every: u64::from(load.syncs),
            limit: seconds(KNOWN_AFTER, self.args.base.runtime),
            ..self.load(&served.socket(&load.name), rw, load.depth, 1)
        };
        let options: Vec<_> = loads.iter().map(options).collect();
        let (reports, seen) = thread::scope(|scope| {
            let watch = scope.spawn(|| watch(&served));
            let reports = together(&options);
            (reports, watch.join().expect("it returns its errors"))
        });
        served.end()?;
        Ok((reports?, seen?))
    }
}

/// Renders the tables.
pub fn render(experiment: &Experiment) -> String {
    let points = || experiment.points().into_iter();
    let shares = points().filter_map(|point| {
        point.strip_suffix(SHARES)?;
        let [heavy, light, both] = ["heavy", "light", "both"].map(|vm| experiment.at(point, vm));
        let rates = [heavy.count(IOPS), light.count(IOPS), heavy.ratio(light, IOPS)];
        let there = [heavy, light, both].map(|it| it.cell(IN_FLIGHT, 1));
        let limit = [both.cell(DEPTH_LIMIT, 0)];
        Some([&[point.to_owned()][..], &rates, &there, &limit].concat())
    });
    let beside = points().filter_map(|point| Some((point.strip_prefix(BESIDE)?, point)));
    let beside = beside.flat_map(|(what, point)| {
        let alone = experiment.at(point, "alone");
        experiment.contenders(point).into_iter().map(move |name| {
            let own = experiment.at(point, name);
            let [sync, to_alone] = if what == SYNCED {
                [own.cell(SYNC_P99_US, 0), own.ratio(alone, SYNC_P99_US)]
            } else {
                ["-".to_owned(), "-".to_owned()]
            };
            vec![
                format!("{what}, {name}"),
                own.spread(P99_US, 0),
                own.ratio(alone, P99_US),
                sync,
                to_alone,
                own.cell(OTHER_IOPS, 0),
            ]
        })
    });
    let titles = "4 KiB, raw images, VMs of weights 4 : 1 | heavy, requests/s | light, requests/s | \
                  heavy : light, by rounds | heavy: in flight | light | both | D";
    let titles_beside = "beside a VM at QD128 | p99 at QD1, us | of alone | p99 of the sync, us | \
                         of alone | the other's requests/s";
    table(titles, shares) + "\n" + &table(titles_beside, beside)
}
