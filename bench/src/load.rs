//! A single workload: command line in, JSON out.

use std::time::Duration;

use anyhow::{Result, anyhow};
use flowstone_testkit::client::ProtocolFeatures;
use flowstone_testkit::load::{Completion, Limit, LoadOptions, run};
use flowstone_testkit::virtio::{F_CONFIG_WCE, F_EVENT_IDX, F_FLUSH, F_INDIRECT_DESC};

use crate::args::LoadArgs;

/// Runs the workload and prints its report.
pub fn load(args: &LoadArgs) -> Result<()> {
    let report = run(&options(args)?)?;
    println!("{}", serde_json::to_string_pretty(&report)?);
    match report.errors {
        0 => Ok(()),
        errors => Err(anyhow!("{errors} requests failed")),
    }
}

fn options(args: &LoadArgs) -> Result<LoadOptions> {
    let mut options = LoadOptions::new(&args.socket).iodepth(args.iodepth);
    options.client = options.client.queues(args.queues);
    options.client.queue_size = args.queue_size;
    let refused = [
        (args.no_event_idx, F_EVENT_IDX),
        (args.no_indirect, F_INDIRECT_DESC),
        (args.write_through, F_FLUSH | F_CONFIG_WCE),
    ];
    for (_, feature) in refused.into_iter().filter(|&(no, _)| no) {
        options.client.features &= !feature;
    }
    if args.no_inflight {
        options.client = options.client.without_protocol(ProtocolFeatures::INFLIGHT_SHMFD);
    }
    options.workload = args.rw.parse().map_err(|e: String| anyhow!(e))?;
    options.block_bytes = args.bs;
    options.rate = args.rate;
    options.threads = args.threads;
    options.cpus.clone_from(&args.cpus);
    options.completion = if args.eventfd { Completion::Eventfd } else { Completion::Poll };
    options.limit = match args.ops {
        Some(ops) => Limit::Ops(ops),
        None => Limit::Time {
            ramp: Duration::from_secs_f64(args.ramp),
            runtime: Duration::from_secs_f64(args.runtime),
        },
    };
    options.flush_every = args.flush_every;
    options.span_bytes = args.size;
    options.verify = args.verify;
    options.verify_final = args.verify;
    options.server_pid = args.server_pid;
    options.reconnect = args.reconnect.map(Duration::from_secs_f64);
    options.seed = args.seed;
    Ok(options)
}
