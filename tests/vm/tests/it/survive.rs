//! A guest under load survives the end of its daemon, however it ends.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use flowstone_vmtest::framework::daemon::Daemon;
use flowstone_vmtest::framework::lab::Lab;

use crate::disk_errors;
use crate::load::verified_load;

/// Random delays: requests complete out of order, so only the inflight record can tell a
/// restarted daemon what is still to do.
const OUT_OF_ORDER: [&str; 4] = ["--queues", "2", "--layer", "delay=0-5ms"];
/// Requests between two ends; three times this is far less than the load.
const REQUESTS_BETWEEN_ENDS: u64 = 1500;
const AWAY: Duration = Duration::from_millis(500);
const LOAD_MEGABYTES_PER_JOB: u32 = 24;

#[test]
fn guest_survives_three_kills_while_requests_complete_out_of_order() -> Result<()> {
    survives_three_ends(Daemon::kill)
}

#[test]
fn sigterm_under_load_drains_and_the_guest_continues_after_restart() -> Result<()> {
    survives_three_ends(Daemon::terminate)
}

#[test]
#[ignore = "runs for SOAK_MINUTES"]
fn soak_random_ends_under_load() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let minutes: u64 = std::env::var("SOAK_MINUTES").map_or(Ok(10), |text| text.parse())?;
    let deadline = Instant::now() + Duration::from_secs(60 * minutes);
    let mut random = seeded();
    let image = lab.image("128M")?;
    let mut daemon = lab.serve(&image, &OUT_OF_ORDER)?;
    let mut guest = lab.boot(&daemon, 2)?;
    while Instant::now() < deadline {
        guest.start(&verified_load(LOAD_MEGABYTES_PER_JOB))?;
        daemon.wait_for_requests(random.u64(1..REQUESTS_BETWEEN_ENDS))?;
        for _ in 0..random.u32(1..6) {
            sleep(Duration::from_millis(random.u64(0..1500)));
            let end = if random.bool() { Daemon::kill } else { Daemon::terminate };
            end(&mut daemon)?;
            sleep(Duration::from_millis(random.u64(0..1500)));
            daemon.restart()?;
        }
        guest.finish()?;
        disk_errors::none_logged(&mut guest)?;
    }
    guest.power_off()?;
    daemon.terminate()
}

/// Random numbers; `SOAK_SEED` repeats an earlier run's decisions, if not its timing.
fn seeded() -> fastrand::Rng {
    let given = std::env::var("SOAK_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("SOAK_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

fn survives_three_ends(end: fn(&mut Daemon) -> Result<()>) -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else {
        return Ok(());
    };
    let image = lab.image("128M")?;
    let mut daemon = lab.serve(&image, &OUT_OF_ORDER)?;
    let mut guest = lab.boot(&daemon, 2)?;

    guest.start(&verified_load(LOAD_MEGABYTES_PER_JOB))?;
    for _ in 0..3 {
        daemon.wait_for_requests(REQUESTS_BETWEEN_ENDS)?;
        end(&mut daemon)?;
        sleep(AWAY);
        daemon.restart()?;
    }
    guest.finish()?;

    disk_errors::none_logged(&mut guest)?;
    guest.power_off()?;
    daemon.terminate()
}
