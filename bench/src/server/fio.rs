//! fio on the file itself, io_uring, bound to the client's CPU.
//!
//! Its latency is from submission to completion, as the client's is. Its CPU time is that of fio
//! itself.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use flowstone_experiment::command::succeed;
use flowstone_experiment::{CPU_US, Figures, IOPS, P50_US, P99_US};
use serde_json::Value;

use super::Setting;
use crate::point::Backend;

/// The program.
pub const PROGRAM: &str = "fio";

/// Measures one job.
pub fn measure(setting: &Setting<'_>) -> Result<Figures> {
    let (args, point) = (setting.args, setting.point);
    let mut arguments = vec![
        "--time_based".to_owned(),
        format!("--ramp_time={}ms", point.backend.ramp().as_millis()),
        format!("--runtime={}ms", (args.base.runtime * 1000.0) as u64),
    ];
    let job = Job {
        image: setting.image.context("fio needs an image")?,
        direct: point.backend == Backend::Disk,
        rw: point.rw,
        block_bytes: point.block_bytes,
        iodepth: point.iodepth,
        cpu: args.base.place.client_cpu,
    };
    arguments.extend(job.arguments());
    run(&arguments)
}

/// One job, or several at once.
pub struct Job<'a> {
    pub image: &'a Path,
    pub direct: bool,
    pub rw: &'a str,
    pub block_bytes: u64,
    pub iodepth: u16,
    pub cpu: usize,
}

impl Job<'_> {
    /// Returns the arguments of everything but its end.
    pub fn arguments(&self) -> Vec<String> {
        [
            "--name=bench".to_owned(),
            format!("--filename={}", self.image.display()),
            "--ioengine=io_uring".to_owned(),
            format!("--direct={}", u8::from(self.direct)),
            format!("--rw={}", self.rw),
            format!("--bs={}", self.block_bytes),
            format!("--iodepth={}", self.iodepth),
            "--norandommap".to_owned(),
            "--randrepeat=0".to_owned(),
            format!("--cpus_allowed={}", self.cpu),
            "--lat_percentiles=1".to_owned(),
            "--clat_percentiles=0".to_owned(),
            "--output-format=json".to_owned(),
        ]
        .to_vec()
    }
}

/// Runs fio and reads its report.
pub fn run(arguments: &[String]) -> Result<Figures> {
    let output = succeed(Command::new(PROGRAM).args(arguments))?;
    let text = String::from_utf8_lossy(&output);
    // Warnings may come before the JSON.
    let json = text.find('{').map_or("", |at| &text[at..]);
    decode(&serde_json::from_str(json).context("read fio's report")?)
}

fn decode(report: &Value) -> Result<Figures> {
    let job = &report["jobs"][0];
    let direction = ["read", "write"]
        .into_iter()
        .map(|name| &job[name])
        .find(|side| side["total_ios"].as_u64().unwrap_or(0) > 0)
        .context("fio did nothing")?;
    let number = |value: &Value| value.as_f64().context("fio's report lacks a number");
    let percentile = |at: &str| number(&direction["lat_ns"]["percentile"][at]);
    let iops = number(&direction["iops"])?;
    let cpu_share = (number(&job["usr_cpu"])? + number(&job["sys_cpu"])?) / 100.0;
    Ok(vec![
        (IOPS, iops),
        (P50_US, percentile("50.000000")? / 1000.0),
        (P99_US, percentile("99.000000")? / 1000.0),
        (CPU_US, cpu_share * 1e6 / iops),
    ])
}
