//! VMs that share a device by their weights.
//!
//! The device is that of `--dir`. If it is too fast to be the bottleneck, run this in a cgroup that
//! throttles it (`blkio.throttle.read_iops_device`, `write_iops_device`).

use std::time::Duration;

use anyhow::Result;
use flowstone_testkit::load::{Limit, LoadReport, run};
use tempfile::tempdir_in;

use super::{Bench, HOG_DEPTH, checked};
use crate::sample::{interval, median};

/// Queue depth of each disk where the device is overloaded.
const DEPTH: u16 = 32;
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
}

impl Loaded {
    fn heavy(depth: u16, weight: u32, syncs: bool) -> Self {
        Self { name: "heavy".into(), vm: "heavy", weight, depth, syncs }
    }

    fn light(number: usize, depth: u16) -> Self {
        Self { name: format!("light{number}"), vm: "light", weight: 100, depth, syncs: false }
    }
}

impl Bench<'_> {
    /// Measures the shares of VMs of weights 4 : 1, and the effect of a light VM on a heavy one.
    pub(super) fn vms(&self) -> Result<String> {
        let mut table = "| 4 KiB, raw images, VMs of weights 4 : 1 | heavy/s | light/s | \
                         heavy : light, by rounds |\n|---|---|---|---|\n"
            .to_owned();
        for rw in ["randread", "randwrite"] {
            for disks in [1, 4] {
                let mut loads = vec![Loaded::heavy(DEPTH, 400, false)];
                loads.extend((0..disks).map(|number| Loaded::light(number, DEPTH)));
                let (mut heavy, mut light) = (Vec::new(), Vec::new());
                for _ in 0..self.args.rounds {
                    let reports = self.together(&loads, rw)?;
                    heavy.push(reports[0].iops);
                    light.push(reports[1..].iter().map(|report| report.iops).sum::<f64>());
                    eprintln!("{rw} x{disks}: {:?} : {:?}", heavy.last(), light.last());
                }
                let ratios = heavy.iter().zip(&light).map(|(heavy, light)| heavy / light);
                let ratio = interval(ratios.collect());
                let [heavy, light] = [heavy, light].map(|it| median(it).unwrap_or(f64::NAN));
                table += &format!(
                    "| {rw}, {disks} of the light one | {heavy:.0} | {light:.0} | {ratio} |\n"
                );
            }
        }
        Ok(table + "\n" + &self.protection()?)
    }

    /// Measures a VM at queue depth 1, alone and beside a greedy one.
    fn protection(&self) -> Result<String> {
        let mut table =
            "| beside a VM at QD128 | QD1 p99, us | of alone | fsync p99, us | of alone | other/s |\n\
             |---|---|---|---|---|---|\n"
                .to_owned();
        for (rw, syncs) in [("randread", false), ("randwrite", false), ("randwrite", true)] {
            let heavy = |weight| Loaded::heavy(1, weight, syncs);
            let light = || Loaded::light(0, HOG_DEPTH);
            let cases = [
                ("alone", vec![heavy(400)]),
                ("weights 4 : 1", vec![heavy(400), light()]),
                ("equal weights", vec![heavy(100), light()]),
            ];
            let mut figures = vec![[Vec::new(), Vec::new(), Vec::new()]; cases.len()];
            for _ in 0..self.args.rounds {
                for ((name, loads), [p99, sync, other]) in cases.iter().zip(&mut figures) {
                    let reports = self.together(loads, rw)?;
                    p99.push(reports[0].latency.p99_us);
                    sync.push(reports[0].flush.p99_us);
                    other.push(reports.get(1).map_or(f64::NAN, |report| report.iops));
                    eprintln!("{rw} {name}: {p99:?} {sync:?}");
                }
            }
            let middle = |values: &Vec<f64>| median(values.clone()).unwrap_or(f64::NAN);
            let alone = [middle(&figures[0][0]), middle(&figures[0][1])];
            let what = if syncs { "writes, each synced" } else { rw };
            for ((name, _), [p99, sync, other]) in cases.iter().zip(&figures) {
                let (p99, sync, other) = (middle(p99), middle(sync), middle(other));
                table += &format!(
                    "| {what}, {name} | {p99:.0} | {:.2} | {sync:.0} | {:.2} | {other:.0} |\n",
                    p99 / alone[0],
                    sync / alone[1],
                );
            }
        }
        Ok(table + "\n")
    }

    /// Runs all loads at once.
    fn together(&self, loads: &[Loaded], rw: &str) -> Result<Vec<LoadReport>> {
        let keys = |load: &Loaded| -> Result<(String, String)> {
            let image = std::path::absolute(self.image(&load.name)?)?;
            let vm = format!("name={},weight={}", load.vm, load.weight);
            Ok((load.name.clone(), format!("image = {image:?}\ndirect = \"on\"\nvm = {vm:?}")))
        };
        let disks = loads.iter().map(keys).collect::<Result<Vec<_>>>()?;
        let disks: Vec<(&str, String)> =
            disks.iter().map(|(name, keys)| (&**name, keys.clone())).collect();
        let served = self.serve(&self.program, tempdir_in(&self.args.dir)?, &disks)?;
        let options = |load: &Loaded| {
            // The others load the device with the measured operation, without syncs.
            let mut options = self.load(&served.socket(&load.name), rw, load.depth, 1);
            options.flush_every = u64::from(load.syncs);
            let runtime = Duration::from_secs_f64(self.args.runtime);
            options.limit = Limit::Time { ramp: KNOWN_AFTER, runtime };
            options
        };
        let reports = std::thread::scope(|scope| {
            let start = |load: &Loaded| {
                let options = options(load);
                scope.spawn(move || run(&options))
            };
            let running: Vec<_> = loads.iter().map(start).collect();
            let wait = |load: std::thread::ScopedJoinHandle<'_, _>| {
                load.join().expect("a load returns its errors")
            };
            running.into_iter().map(wait).collect::<Vec<_>>()
        });
        let reports: Result<Vec<_>> = reports.into_iter().map(|it| checked(it?)).collect();
        served.end()?;
        reports
    }
}
