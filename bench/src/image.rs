//! The measured images, each in the state that its backend requires.
//!
//! Raw files are written in full first: reads of holes would measure the host's memory, and writes
//! to them its allocator. New images are made for each measurement. The image of the steady state
//! is filled and then overwritten. All except the raw ones on disk are removed when the run ends.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flowstone_testkit::load::LoadOptions;

use crate::args::{CompareArgs, LOG_BYTES, MEMORY_BYTES};
use crate::place::{BLOCK_BYTES, TMPFS, create_qcow2, pass, stop};
use crate::point::Backend;
use crate::raw_file::{REST, fill};
use crate::server::Server;

/// Size of a new log image relative to the data written to it, so that nothing is cleaned.
const ROOM: u64 = 4;
/// Number of overwrites of the image of the steady state before it is measured.
const OVERWRITES: u64 = 4;

/// The places of the images.
#[derive(Debug)]
pub struct Images<'a> {
    args: &'a CompareArgs,
}

impl<'a> Images<'a> {
    /// Chooses places; writes nothing yet.
    pub fn new(args: &'a CompareArgs) -> Result<Self> {
        let dir = &args.base.run.dir;
        std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(Images { args })
    }

    /// Returns the image of a backend for a server, made if needed; `None` for the null backend.
    pub fn prepare(&self, backend: Backend, server: Server) -> Result<Option<PathBuf>> {
        let args = self.args;
        let image = match (backend, server) {
            (Backend::Null, _) => return Ok(None),
            (Backend::Tmpfs, _) => fill(tmpfs(), MEMORY_BYTES),
            (Backend::Disk, _) => match &args.device {
                Some(device) => Ok(device.clone()),
                None => fill(self.raw(args.base.size), args.base.size),
            },
            (Backend::Warm, _) => fill(self.raw(MEMORY_BYTES), MEMORY_BYTES),
            (_, Server::FlowstoneRaw) => fill(self.raw(LOG_BYTES), LOG_BYTES),
            (Backend::NewQcow2, _) => self.new_qcow2(),
            (Backend::NewLog, _) => self.new_log(),
            (Backend::SteadyLog, _) => self.steady_log(),
        };
        image.map(Some).with_context(|| format!("make the image of {backend:?}"))
    }

    /// Returns the directory of the disk image, or the measured device, for the report.
    pub fn disk_place(&self) -> &Path {
        self.args.device.as_deref().unwrap_or(&self.args.base.run.dir)
    }

    fn raw(&self, bytes: u64) -> PathBuf {
        raw_in(&self.args.base.run.dir, bytes)
    }

    fn made(&self) -> [PathBuf; 3] {
        ["new.qcow2", "new.flow", "steady.flow"].map(|name| self.args.base.run.dir.join(name))
    }

    fn new_qcow2(&self) -> Result<PathBuf> {
        let [image, ..] = self.made();
        remove_and_rest(&image)?;
        create_qcow2(&image, self.args.base.size)?;
        Ok(image)
    }

    fn new_log(&self) -> Result<PathBuf> {
        let [_, image, _] = self.made();
        remove_and_rest(&image)?;
        self.args.base.place.create_log(&image, LOG_BYTES * ROOM, &[])?;
        Ok(image)
    }

    fn steady_log(&self) -> Result<PathBuf> {
        let [.., image] = self.made();
        if !image.exists() {
            eprintln!("writing {} and overwriting it {OVERWRITES} times", image.display());
            self.args.base.place.create_log(&image, LOG_BYTES, &[])?;
            self.write(&image, |load| pass(load, "write", LOG_BYTES))?;
            let blocks = LOG_BYTES / BLOCK_BYTES * OVERWRITES;
            self.write(&image, |load| load.workload("randwrite").iodepth(32).ops(blocks))?;
            std::thread::sleep(REST);
        }
        Ok(image)
    }

    fn write(&self, image: &Path, shape: impl FnOnce(LoadOptions) -> LoadOptions) -> Result<()> {
        let socket = image.with_extension("sock");
        let command = self.args.base.place.command(image, &socket, 1, &[])?;
        self.args.base.place.measure(command, &[shape(LoadOptions::new(&socket))], stop).map(drop)
    }
}

impl Drop for Images<'_> {
    fn drop(&mut self) {
        for image in self.made().into_iter().chain([tmpfs()]) {
            let _ = std::fs::remove_file(image);
        }
    }
}

fn tmpfs() -> PathBuf {
    raw_in(Path::new(TMPFS), MEMORY_BYTES)
}

fn raw_in(dir: &Path, bytes: u64) -> PathBuf {
    dir.join(format!("flowstone-bench-{bytes}.raw"))
}

/// Removes an image and waits: the removal discards a lot, after which the disk becomes idle.
fn remove_and_rest(image: &Path) -> Result<()> {
    if image.exists() {
        std::fs::remove_file(image)?;
        std::thread::sleep(REST);
    }
    Ok(())
}
