//! `make demo`: an unmodified Linux guest under load on two flowstone disks, a raw image and a log
//! image.
//!
//! Everything shown was done and checked in this run; the first failure ends it with a non-zero
//! exit status.

mod chapters;
mod report;
mod scripts;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use flowstone_vmtest::framework::accel::Accel;
use flowstone_vmtest::framework::daemon::{Daemon, flowstone};
use flowstone_vmtest::framework::lab::Lab;
use flowstone_vmtest::framework::qemu::{self, Machine};
use flowstone_vmtest::framework::workspace;
use report::{fact, heading};

/// Relative to the source tree, so that the commands shown are short and can be typed.
const FOLDER: &str = "target/demo";
/// The second daemon's sockets and log.
const LOG_FOLDER: &str = "target/demo/log";
const DISK_SIZE: &str = "1G";
const QUEUES: u16 = 2;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\ndemo failed: {error:#}");
            show_daemon_logs();
            ExitCode::FAILURE
        }
    }
}

fn show_daemon_logs() {
    for folder in [FOLDER, LOG_FOLDER] {
        let log = std::fs::read_to_string(Path::new(folder).join("daemon.log")).unwrap_or_default();
        if !log.is_empty() {
            eprintln!("\nThe daemon said:\n{log}");
        }
    }
}

fn run() -> Result<()> {
    let start = Instant::now();
    std::env::set_current_dir(workspace::root())?;
    heading("Flowstone: disks for an unmodified Linux guest");
    let lab = Lab::open().context("guests cannot run here")?;
    let [image, log_image] = fresh_images()?;
    let options = ["--queues", &QUEUES.to_string()];
    let mut daemon = Daemon::serve(&image, &options, Path::new(FOLDER))?;
    let mut log_daemon = Daemon::serve(&log_image, &options, Path::new(LOG_FOLDER))?;
    let machine = Lab::machine_of([&daemon, &log_daemon], QUEUES);
    introduce(&lab, &machine);

    heading("A guest moves in");
    let mut guest = chapters::boot(&lab, &machine)?;
    chapters::first_life(&mut guest, &daemon)?;
    heading("It reboots and finds everything");
    chapters::second_life(&mut guest)?;
    heading("What that took, seen from the daemon");
    chapters::count(&daemon)?;
    heading("Beside it, the same load on a log image");
    chapters::log_image(&mut guest, &mut log_daemon, &log_image)?;
    heading("The daemons are killed under load");
    chapters::survive(&mut guest, &mut daemon, &mut log_daemon)?;
    heading("Clean up");
    chapters::finish(guest, [&mut daemon, &mut log_daemon], &image, &log_image)?;
    invite(&lab, &Lab::machine(&daemon, QUEUES))?;
    println!("\nAll of this in {:.0} s.", start.elapsed().as_secs_f64());
    Ok(())
}

fn fresh_images() -> Result<[PathBuf; 2]> {
    let _ = std::fs::remove_dir_all(FOLDER); // usually the last demo's, else absent
    std::fs::create_dir_all(LOG_FOLDER)?;
    let images = [Path::new(FOLDER).join("disk.raw"), Path::new(LOG_FOLDER).join("disk.flow")];
    for image in &images {
        flowstone(&["create", "--size", DISK_SIZE, &image.to_string_lossy()])?;
    }
    Ok(images)
}

fn introduce(lab: &Lab, machine: &Machine) {
    let kernel = lab.artifacts().kernel.file_name().unwrap_or_default().to_string_lossy();
    let kernel = kernel.trim_start_matches("vmlinuz-");
    fact("disk", format!("{FOLDER}/disk.raw, {DISK_SIZE}, sparse"));
    fact("another", format!("{LOG_FOLDER}/disk.flow, {DISK_SIZE}, a log of what is written"));
    let Machine { cpus, memory_mib, .. } = machine;
    fact("guest", format!("Debian's own kernel {kernel}, {cpus} CPUs, {memory_mib} MiB"));
    let speed = match lab.accel() {
        Accel::Kvm => "with KVM",
        Accel::Tcg | Accel::TcgOneThread => {
            "emulated (TCG, no KVM): counts are right, times are long"
        }
    };
    fact("runs", speed);
}

fn invite(lab: &Lab, machine: &Machine) -> Result<()> {
    heading("Now you: the same disk, and a shell in the same guest (poweroff -f ends it)");
    let binary = workspace::flowstone()?;
    let binary = report::relative(&binary.to_string_lossy());
    println!("  {binary} serve --socket {FOLDER}/disk.sock {FOLDER}/disk.raw &");
    let settings = [machine.user_settings(lab.accel()), Machine::shell_settings(lab.artifacts())];
    report::command(qemu::PROGRAM, &settings.concat());
    Ok(())
}
