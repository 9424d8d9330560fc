//! `make demo`: an unmodified Linux guest works hard on a flowstone raw disk.
//!
//! Everything shown was done and checked in this run; the first thing that goes wrong ends
//! it with a non-zero exit status.

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

/// Relative to the source tree, so that commands shown are short and can be typed.
const FOLDER: &str = "target/demo";
const DISK_SIZE: &str = "1G";
const QUEUES: u16 = 2;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\ndemo failed: {error:#}");
            show_daemon_log();
            ExitCode::FAILURE
        }
    }
}

fn show_daemon_log() {
    let log = std::fs::read_to_string(Path::new(FOLDER).join("daemon.log")).unwrap_or_default();
    if !log.is_empty() {
        eprintln!("\nThe daemon said:\n{log}");
    }
}

fn run() -> Result<()> {
    let start = Instant::now();
    std::env::set_current_dir(workspace::root())?;
    heading("Flowstone: a raw disk for an unmodified Linux guest");
    let lab = Lab::open().context("guests cannot run here")?;
    let image = fresh_image()?;
    let mut daemon = Daemon::serve(&image, &["--queues", &QUEUES.to_string()], Path::new(FOLDER))?;
    let machine = Lab::machine(&daemon, QUEUES);
    introduce(&lab, &machine);

    heading("A guest moves in");
    let mut guest = chapters::boot(&lab, &machine)?;
    chapters::first_life(&mut guest, &daemon)?;
    heading("It reboots and finds everything");
    chapters::second_life(&mut guest)?;
    heading("What that took, seen from the daemon");
    chapters::count(&daemon)?;
    heading("The daemon is killed under load");
    chapters::survive(&mut guest, &mut daemon)?;
    heading("Everybody goes home");
    chapters::finish(guest, &mut daemon, &image)?;
    invite(&lab, &machine)?;
    println!("\nAll of this in {:.0} s.", start.elapsed().as_secs_f64());
    Ok(())
}

fn fresh_image() -> Result<PathBuf> {
    let _ = std::fs::remove_dir_all(FOLDER); // usually the last demo's, else absent
    std::fs::create_dir_all(FOLDER)?;
    let image = Path::new(FOLDER).join("disk.raw");
    flowstone(&["create", "--size", DISK_SIZE, &image.to_string_lossy()])?;
    Ok(image)
}

fn introduce(lab: &Lab, machine: &Machine) {
    let kernel = lab.artifacts().kernel.file_name().unwrap_or_default().to_string_lossy();
    let kernel = kernel.trim_start_matches("vmlinuz-");
    fact("disk", format!("{FOLDER}/disk.raw, {DISK_SIZE}, sparse"));
    let Machine { cpus, memory_mib, .. } = machine;
    fact("guest", format!("Debian's own kernel {kernel}, {cpus} CPUs, {memory_mib} MiB"));
    let speed = match lab.accel() {
        Accel::Kvm => "with KVM",
        Accel::Tcg => "emulated (TCG, no KVM): counts are right, times are long",
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
