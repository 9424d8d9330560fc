//! A folder with the redo file of an image that lies on a simulated disk, and daemons that are
//! killed there.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use flowstone_fileio::Access;
use flowstone_sim::{Fate, SimDisk};

use super::super::{Memory, Qcow2Image};
use super::fixture::{checked_beside, contents, number};
use crate::report::CheckReport;
use crate::{DiscardMode, Image};

/// As docs/qcow2.md says: 4 KiB and two words for each of 2^18 changes.
const REDO_BYTES: u64 = (4 << 10) + (16 << 18);

/// Where an image is, and what is beside it.
pub struct Host {
    folder: tempfile::TempDir,
    path: PathBuf,
}

/// What is left of an image and beside it when its daemon has been killed.
pub struct Killed {
    pub disk: SimDisk,
    pub redo: Vec<u8>,
}

impl Host {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        std::fs::write(&path, "").unwrap();
        Self { folder, path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn redo(&self) -> PathBuf {
        self.folder.path().join("image.redo")
    }

    /// Another path to the image.
    pub fn link(&self) -> PathBuf {
        let link = self.folder.path().join("link");
        std::os::unix::fs::symlink(&self.path, &link).unwrap();
        link
    }

    pub fn open(&self, disk: &SimDisk) -> Qcow2Image {
        self.open_by(&self.path, disk, None).unwrap()
    }

    pub fn open_by(
        &self,
        path: &Path,
        disk: &SimDisk,
        backing: Option<Box<dyn Image>>,
    ) -> flowstone_block::Result<Qcow2Image> {
        let (file, mode) = (Box::new(disk.clone()), DiscardMode::Deallocate);
        Qcow2Image::open(path, file, backing, mode, Access::Write, Memory::Beside(path))
    }

    /// The one line with which the image is refused, to writers and to readers.
    pub fn refusal(&self, disk: &SimDisk) -> String {
        let opened = self.open_by(&self.path, disk, None);
        let refusal = opened.err().expect("a refusal").to_string();
        let reader = self.open_to_read(disk).err().expect("a refusal of readers, too");
        assert_eq!(reader.to_string(), refusal);
        assert!(!refusal.contains('\n'), "{refusal}");
        refusal
    }

    pub fn open_to_read(&self, disk: &SimDisk) -> flowstone_block::Result<Qcow2Image> {
        let (file, mode) = (Box::new(disk.clone()), DiscardMode::Deallocate);
        Qcow2Image::open(&self.path, file, None, mode, Access::Read, Memory::Beside(&self.path))
    }

    /// What a reader sees, before the next daemon.
    pub fn read(&self, disk: &SimDisk) -> Vec<u8> {
        contents(&self.open_to_read(disk).unwrap())
    }

    pub fn check(&self, disk: &SimDisk, repair: bool) -> flowstone_block::Result<CheckReport> {
        checked_beside(disk, Memory::Beside(&self.path), repair)
    }

    /// What the redo file has now, of a life with few changes: the rest of it is empty.
    pub fn remembered(&self) -> Vec<u8> {
        let mut bytes = vec![0; 64 << 10];
        let file = std::fs::File::open(self.redo()).unwrap();
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.ends_with(&[0; 32]), "few changes");
        bytes
    }

    /// Puts it back, as long as it was.
    pub fn remember(&self, bytes: &[u8]) {
        std::fs::write(self.redo(), bytes).unwrap();
        let file = std::fs::File::options().write(true).open(self.redo()).unwrap();
        file.set_len(REDO_BYTES).unwrap();
    }

    /// What stays behind if the daemon is killed now: first what it remembers, then the disk, which
    /// may meanwhile have become newer but not older than that.
    pub fn kill(&self, disk: &SimDisk, seed: u64) -> Killed {
        let redo = std::fs::read(self.redo()).unwrap();
        let disk = disk.kill_at(disk.now(), &mut Fate::seeded(seed));
        Killed { disk, redo }
    }

    /// The daemon is gone, and nothing that it has done since.
    pub fn bring_back(&self, killed: Killed) -> SimDisk {
        std::fs::write(self.redo(), killed.redo).unwrap();
        killed.disk
    }
}

/// As if the host had been started anew since the image was marked.
pub fn reboot(disk: &SimDisk) {
    let autoclear = number(disk, 88);
    if autoclear >> 63 == 1 {
        disk.write_at(88, &(autoclear ^ 1 << 50).to_be_bytes());
    }
}
