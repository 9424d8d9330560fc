//! A folder with the redo file of an image on a simulated disk, and daemons that are killed there.

use std::borrow::Cow;
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use flowstone_block::Op;
use flowstone_fileio::{Access, FileIo};
use flowstone_image::{CheckReport, Image};
use flowstone_sim::{Fate, SimDisk};

use super::super::{Opening, Place, Qcow2Image};
use super::fixture::{Guest, checked_beside, contents, extent, new_disk, number};

/// Sectors of the disk of the tests.
pub const SECTORS: u64 = 1500;
/// As specified in docs/qcow2.md: 4 KiB and two words for each of 2^18 changes.
const REDO_BYTES: u64 = (4 << 10) + (16 << 18);

/// Folder of an image, with the files beside it.
pub struct Host {
    folder: tempfile::TempDir,
    path: PathBuf,
    /// The last seen redo file.
    last: Mutex<PathBuf>,
    /// The memory of the host, and the folders that a session uses.
    _memory: Option<tempfile::TempDir>,
    folders: Vec<Cow<'static, str>>,
    asks_server: fn(&File) -> bool,
}

/// An image and the files beside it after its daemon has been killed.
pub struct Killed {
    pub disk: SimDisk,
    pub redo: Vec<u8>,
    live: Option<(PathBuf, Vec<u8>)>,
}

impl Host {
    /// A host whose memory cannot be written.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        std::fs::write(&path, "").unwrap();
        let last = Mutex::new(folder.path().join("none"));
        let asks_server = |_: &File| false;
        Self { folder, path, last, _memory: None, folders: vec![], asks_server }
    }

    pub fn with_memory() -> Self {
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let folders = vec![memory.path().join("sessions").to_str().unwrap().to_owned().into()];
        Self { _memory: Some(memory), folders, ..Self::new() }
    }

    /// A host where a mapping of a file beside the image may wait for a server.
    pub fn of_a_server() -> Self {
        Self { asks_server: |_| true, ..Self::with_memory() }
    }

    pub fn leaving_in(self, folders: &[Cow<'static, str>]) -> Self {
        Self { folders: folders.to_vec(), ..self }
    }

    fn beside<'a>(&'a self, image: &'a Path) -> Option<Place<'a>> {
        let Self { folders, asks_server, .. } = self;
        Some(Place { image, folders, asks_server: *asks_server })
    }

    /// Returns the files that sessions have left in its memory.
    pub fn lives(&self) -> Vec<PathBuf> {
        let folders = self.folders.iter().filter_map(|it| std::fs::read_dir(&**it).ok());
        folders.flatten().map(|it| it.unwrap().path()).collect()
    }

    /// Clears its memory, like a power cut or a restarted container with another tmpfs.
    pub fn forget(&self) {
        self.lives().into_iter().for_each(|it| std::fs::remove_file(it).unwrap());
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the only redo file, or the last one if there is none now.
    pub fn redo(&self) -> PathBuf {
        let mut last = self.last.lock().unwrap();
        let found = self.redos();
        assert!(found.len() < 2, "which of {found:?}");
        if let Some(found) = found.into_iter().next() {
            *last = found;
        }
        last.clone()
    }

    /// All redo files.
    pub fn redos(&self) -> Vec<PathBuf> {
        let all = std::fs::read_dir(self.folder.path()).unwrap().map(|it| it.unwrap());
        let is_redo = |name: &str| name.starts_with("flowstone-") && name.ends_with(".redo");
        all.filter(|it| is_redo(it.file_name().to_str().unwrap())).map(|it| it.path()).collect()
    }

    /// Returns the redo file name of versions 1 and 2.
    pub fn old_redo(&self) -> PathBuf {
        self.folder.path().join("image.redo")
    }

    /// Creates another path to the image.
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
        let opening = Opening { backing, memory: self.beside(path), ..Opening::to(Access::Write) };
        Qcow2Image::open(path, Box::new(disk.clone()), opening)
    }

    /// Opens a file on a simulated disk.
    pub fn open_file(&self, file: Box<dyn FileIo>) -> flowstone_block::Result<Qcow2Image> {
        let opening = Opening { memory: self.beside(&self.path), ..Opening::to(Access::Write) };
        Qcow2Image::open(&self.path, file, opening)
    }

    /// Returns the one-line refusal of the image, the same for writers and readers.
    pub fn refusal(&self, disk: &SimDisk) -> String {
        let opened = self.open_by(&self.path, disk, None);
        let refusal = opened.err().expect("a refusal").to_string();
        let reader = self.open_to_read(disk).err().expect("a refusal of readers, too");
        assert_eq!(reader.to_string(), refusal);
        assert!(!refusal.contains('\n'), "{refusal}");
        refusal
    }

    pub fn open_to_read(&self, disk: &SimDisk) -> flowstone_block::Result<Qcow2Image> {
        let opening = Opening { memory: self.beside(&self.path), ..Opening::to(Access::Read) };
        Qcow2Image::open(&self.path, Box::new(disk.clone()), opening)
    }

    /// Returns the content that a reader sees, before the next daemon.
    pub fn read(&self, disk: &SimDisk) -> Vec<u8> {
        contents(&self.open_to_read(disk).unwrap())
    }

    pub fn check(&self, disk: &SimDisk, repair: bool) -> flowstone_block::Result<CheckReport> {
        checked_beside(disk, self.beside(&self.path), repair)
    }

    /// Returns the present redo file of a session with few changes: the rest of it is empty.
    pub fn remembered(&self) -> Vec<u8> {
        let mut bytes = vec![0; 64 << 10];
        let file = File::open(self.redo()).unwrap();
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.ends_with(&[0; 32]), "few changes");
        bytes
    }

    /// Restores a redo file, at its full length, where its session looks for it, with its inode
    /// number adjusted: the host may give it another one.
    pub fn remember(&self, bytes: &[u8]) {
        let session = word(bytes, 5) >> 24;
        let path = self.folder.path().join(format!("flowstone-{session:010x}.redo"));
        std::fs::write(&path, bytes).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        if bytes[..8] != *b"fsredo3m" {
            file.set_len(REDO_BYTES).unwrap();
        }
        file.write_all_at(&file.metadata().unwrap().ino().to_ne_bytes(), 11 * 8).unwrap();
        file.set_permissions(Permissions::from_mode(0o600)).unwrap();
    }

    /// Captures the state left by a kill: first the redo file, then the disk, which may meanwhile
    /// have become newer but not older.
    pub fn kill(&self, disk: &SimDisk, seed: u64) -> Killed {
        let redo = std::fs::read(self.redo()).unwrap();
        let live = self.lives().pop().map(|path| (path.clone(), std::fs::read(path).unwrap()));
        let disk = disk.kill_at(disk.now(), &mut Fate::seeded(seed));
        Killed { disk, redo, live }
    }

    /// Restores the captured state, without anything that the daemon has done since.
    pub fn bring_back(&self, killed: Killed) -> SimDisk {
        self.remember(&killed.redo);
        if let Some((path, bytes)) = killed.live {
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        }
        killed.disk
    }
}

/// A daemon has written a cluster and was killed; `change` modifies the redo file.
pub fn killed(host: &Host, change: impl FnOnce(&mut [u8])) -> SimDisk {
    let disk = new_disk(SECTORS, 4096);
    let image = host.open(&disk);
    let mut guest = Guest::new(&image);
    guest.run(Op::Write(extent(0, 8)), 7).unwrap();
    let mut killed = host.kill(&disk, 1);
    drop((guest, image));
    change(&mut killed.redo);
    host.bring_back(killed)
}

/// Returns a word of a redo file.
pub fn word(redo: &[u8], index: usize) -> u64 {
    u64::from_ne_bytes(redo[index * 8..][..8].try_into().unwrap())
}

pub fn set_word(redo: &mut [u8], index: usize, value: u64) {
    redo[index * 8..][..8].copy_from_slice(&value.to_ne_bytes());
}

/// Changes a redo file as if it had been written before a restart of the host, an hour earlier.
pub fn before_a_restart(redo: &mut [u8]) {
    const HOUR_MS: u64 = 3_600_000;
    let [number, started] = [1, 8].map(|index| word(redo, index));
    set_word(redo, 1, number ^ 1);
    set_word(redo, 8, started - 2 * HOUR_MS);
    set_word(redo, 9, started - HOUR_MS);
}

/// Makes the redo file and the mark void, as if a power cut had ended the session.
pub fn reboot(disk: &SimDisk) {
    let autoclear = number(disk, 88);
    disk.write_at(88, &(autoclear & !(1 << 63)).to_be_bytes());
}
