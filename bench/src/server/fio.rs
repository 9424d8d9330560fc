//! fio on the file itself, one job, io_uring, bound to the client's CPU.
//!
//! Its latency is from submission to completion, as the client's is. Its CPU time is that of fio
//! itself.

use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Setting;
use crate::point::Backend;
use crate::sample::Sample;

/// The program.
pub const PROGRAM: &str = "fio";

/// Runs one job and reads its report.
pub fn measure(setting: &Setting<'_>) -> Result<Sample> {
    let answer = Command::new(PROGRAM).args(arguments(setting)?).output().context("run fio")?;
    let text = String::from_utf8_lossy(&answer.stdout);
    if !answer.status.success() {
        bail!("fio ended with {}: {}", answer.status, String::from_utf8_lossy(&answer.stderr));
    }
    // Warnings may come before the JSON.
    let json = text.find('{').map_or("", |at| &text[at..]);
    decode(&serde_json::from_str(json).context("read fio's report")?)
}

fn arguments(setting: &Setting<'_>) -> Result<Vec<String>> {
    let (args, point) = (setting.args, setting.point);
    let image = setting.image.context("fio needs an image")?.display();
    let direct = u8::from(point.backend == Backend::Disk);
    Ok([
        "--name=bench".to_owned(),
        format!("--filename={image}"),
        "--ioengine=io_uring".to_owned(),
        format!("--direct={direct}"),
        format!("--rw={}", point.rw),
        format!("--bs={}", point.block_bytes),
        format!("--iodepth={}", point.iodepth),
        "--norandommap".to_owned(),
        "--randrepeat=0".to_owned(),
        "--time_based".to_owned(),
        format!("--ramp_time={}ms", point.backend.ramp().as_millis()),
        format!("--runtime={}ms", (args.runtime * 1000.0) as u64),
        format!("--cpus_allowed={}", args.place.client_cpu),
        "--lat_percentiles=1".to_owned(),
        "--clat_percentiles=0".to_owned(),
        "--output-format=json".to_owned(),
    ]
    .to_vec())
}

fn decode(report: &Value) -> Result<Sample> {
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
    Ok(Sample {
        iops,
        p50_us: percentile("50.000000")? / 1000.0,
        p99_us: percentile("99.000000")? / 1000.0,
        server_us_per_io: cpu_share * 1e6 / iops,
        kicks_per_io: None,
        calls_per_io: None,
        others_percent: 0.0,
    })
}
