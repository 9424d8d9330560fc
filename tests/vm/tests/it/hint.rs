//! The module of `guest/kmod` in stock kernels: it marks metadata, never data, and can be loaded
//! and unloaded under load.

use std::fs;

use anyhow::{Result, ensure};
use flowstone_testkit::truth::{Holds, Truth};
use flowstone_vmtest::framework::artifacts::{Kernel, hint_module};
use flowstone_vmtest::framework::daemon::Daemon;
use flowstone_vmtest::framework::guest::Guest;
use flowstone_vmtest::framework::lab::Lab;

use super::classes::{
    Confusion, load_that_keeps_folders, requests_after_mark, serve_with_log, wait_for_layout,
};

const STATS: &str = "cat /sys/module/flowstone_hint/parameters/stats";

/// Boots a guest with the module on its second disk, loaded.
fn boot_with_module(lab: &Lab, kernel: Kernel, daemon: &Daemon) -> Result<(Guest, Daemon)> {
    let module = fs::read(hint_module(kernel)?)?;
    let bytes = module.len();
    let image = lab.folder().join("module.raw");
    let mut padded = module;
    padded.resize(bytes.next_multiple_of(4096), 0);
    fs::write(&image, padded)?;
    let carrier = lab.serve_as("module", &image, &["--readonly"])?;
    let mut machine = Lab::machine_of([daemon, &carrier], 4);
    // The kernel patches its code when a tracepoint gets its first user. An emulator with several
    // CPUs may run one of its breakpoints on another CPU after the kernel has removed it, which
    // then is an Oops (`int3`), seen once.
    machine.cpus = 1;
    let mut guest = lab.boot_machine(&machine)?;
    guest.run(&format!(
        "head -c {bytes} /dev/vdb >/tmp/flowstone_hint.ko; insmod /tmp/flowstone_hint.ko"
    ))?;
    Ok((guest, carrier))
}

/// Checks that the kernel has logged no complaint.
fn ensure_calm(guest: &mut Guest) -> Result<()> {
    // A guest without CPU time for a while detects stalls of its own.
    let complaints =
        guest.run("dmesg | grep -E 'BUG|WARNING|Oops' | grep -v 'soft lockup' || true")?;
    ensure!(complaints.is_empty(), "{complaints}");
    Ok(())
}

/// All metadata: also directories and extent blocks, which are not in the layout.
fn all_metadata_of_ext4_is_known(kernel: Kernel) -> Result<()> {
    let Some(lab) = Lab::open_with_or_skip(kernel) else { return Ok(()) };
    let (image, mut daemon, log) = serve_with_log(&lab, "256M")?;
    let (mut guest, mut carrier) = boot_with_module(&lab, kernel, &daemon)?;
    guest.run("mkfs.ext4 -q -J size=8 /dev/vda")?;
    wait_for_layout(&daemon, &["\"kind\":\"ext4\"", "\"journal_bytes\":8388608"])?;
    guest.run(&load_that_keeps_folders())?;
    println!("{kernel:?}: {}", guest.run(STATS)?.trim());
    ensure_calm(&mut guest)?;
    let hints = daemon.stats()?.classes;
    guest.power_off()?;
    daemon.terminate()?;
    carrier.terminate()?;

    let mut truth = Truth::of_ext4(&image.to_string_lossy());
    truth.add_moving(&image.to_string_lossy());
    let table = Confusion::of_writes(&requests_after_mark(&log)?, &truth);
    table.print(&format!("ext4, {kernel:?}, with the module"));
    table.ensure_journal(300, 999)?;
    table.ensure_data_is_data()?;
    let [all, named] =
        table.share(&[Some(Holds::FixedMetadata), Some(Holds::MovingMetadata)], "metadata");
    ensure!(all == named && all.0 > 10, "{named:?} of {all:?}: {hints:?}");
    Ok(())
}

#[test]
fn the_module_marks_all_metadata_of_ext4() -> Result<()> {
    all_metadata_of_ext4_is_known(Kernel::Cloud)
}

#[test]
fn the_module_marks_all_metadata_of_ext4_on_a_newer_kernel() -> Result<()> {
    all_metadata_of_ext4_is_known(Kernel::Newer)
}

/// Without the module the host recognises only nodes of btrfs that are written whole; with it,
/// split ones, too.
#[test]
fn the_module_marks_the_metadata_of_btrfs_and_goes_and_comes_back_under_load() -> Result<()> {
    let kernel = Kernel::Newer;
    let Some(lab) = Lab::open_with_or_skip(kernel) else { return Ok(()) };
    let image = lab.image("320M")?;
    let mut daemon = lab.serve(&image, &[])?;
    let (mut guest, mut carrier) = boot_with_module(&lab, kernel, &daemon)?;
    guest
        .run("rmmod flowstone_hint; modprobe btrfs; mkfs.btrfs -q /dev/vda; mount /dev/vda /mnt")?;
    wait_for_layout(&daemon, &["\"kind\":\"btrfs\""])?;
    let files = "for file in $(seq 100); do dd if=/dev/zero of=/mnt/$file bs=4k count=2 conv=fsync 2>/dev/null; done";
    guest.run(files)?;
    let without = daemon.stats()?.classes;
    guest.run(&format!("insmod /tmp/flowstone_hint.ko\n{files}"))?;
    let with = daemon.stats()?.classes;
    println!(
        "btrfs: {} writes of metadata are known without the module, {} with it",
        without.metadata.writes,
        with.metadata.writes - without.metadata.writes
    );
    ensure!(without.rules.hint == 0 && without.rules.header > 0, "without the module: {without:?}");
    ensure!(with.rules.hint >= 100, "with the module: {with:?}");

    guest.run(&format!(
        "({files}; sync) &
         load=$!
         turns=0
         while kill -0 $load 2>/dev/null; do
             rmmod flowstone_hint
             insmod /tmp/flowstone_hint.ko
             turns=$((turns + 1))
         done
         echo it went and came back $turns times under load
         [ $turns -gt 2 ]"
    ))?;
    guest.run("umount /mnt; rmmod flowstone_hint; btrfs check /dev/vda >/dev/null 2>&1")?;
    ensure_calm(&mut guest)?;
    guest.power_off()?;
    carrier.terminate()?;
    daemon.terminate()
}
