//! Errors distinguished by kind, without reading their text.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use flowstone_block::{BlockingDisk, Damage, Error, ErrorKind, Sector};
use flowstone_fileio::{Access, LockPatience, OpenOptions};
use flowstone_formats::{CreateOptions, ImageOptions, create, inspect, open};
use flowstone_image::{Format, Image};
use tempfile::TempDir;

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A new image of 8 MiB.
    fn image(&self, format: Format) -> PathBuf {
        let path = self.0.path().join(format.name());
        create(&path, format, 8 << 20, &CreateOptions::default(), LockPatience::NONE).unwrap();
        path
    }
}

fn opened(path: &Path, format: Format) -> Result<Box<dyn Image>, Error> {
    open(path, format, ImageOptions::new(OpenOptions::new(Access::Write)))
}

fn refusal(path: &Path, format: Format) -> Error {
    opened(path, format).err().expect("a refusal")
}

fn put(path: &Path, at: u64, bytes: &[u8]) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

#[test]
fn an_image_in_use_is_busy() {
    let place = Place::new();
    for format in Format::ALL {
        let path = place.image(format);
        let user = opened(&path, format).unwrap();
        assert_eq!(refusal(&path, format).kind(), ErrorKind::Busy, "{format}");
        drop(user);
        assert!(opened(&path, format).is_ok(), "{format}");
    }
}

#[test]
fn a_file_that_is_no_image_is_invalid() {
    let place = Place::new();
    let path = place.0.path().join("noise");
    std::fs::write(&path, [0x5a; 1 << 20]).unwrap();
    for format in [Format::Log, Format::Qcow2] {
        assert_eq!(refusal(&path, format).kind(), ErrorKind::Invalid, "{format}");
        assert_eq!(inspect(&path, format).unwrap_err().kind(), ErrorKind::Invalid, "{format}");
    }
}

#[test]
fn what_this_version_does_not_do_is_unsupported() {
    let place = Place::new();
    let qcow2 = place.image(Format::Qcow2);
    // Encryption, snapshots, and the feature bit of extended L2 entries.
    for (at, bytes) in [(32, [0, 0, 0, 2]), (60, [0, 0, 0, 1]), (76, [0, 0, 0, 16])] {
        put(&qcow2, at, &bytes);
        let error = refusal(&qcow2, Format::Qcow2);
        assert_eq!((error.kind(), error.damage()), (ErrorKind::Unsupported, None), "{error}");
        put(&qcow2, at, &[0; 4]);
    }
    assert!(opened(&qcow2, Format::Qcow2).is_ok());
}

#[test]
fn damage_says_of_which_image_and_where() {
    let place = Place::new();
    let path = place.image(Format::Qcow2);
    let l1 = {
        let mut bytes = [0; 8];
        std::fs::File::open(&path).unwrap().read_exact_at(&mut bytes, 40).unwrap();
        u64::from_be_bytes(bytes)
    };
    put(&path, l1, &(1u64 << 63 | 512).to_be_bytes());
    let error = refusal(&path, Format::Qcow2);
    let what = "L1 entry 0 (0x8000000000000200) does not name a table".into();
    let image = path.display().to_string();
    let damage = Damage { image, what, lba: None, offset: Some(l1) };
    assert_eq!((error.kind(), error.damage()), (ErrorKind::Damaged, Some(&damage)));

    let path = place.image(Format::Log);
    drop(opened(&path, Format::Log).unwrap());
    put(&path, 100, &[0xff; 8]);
    let error = refusal(&path, Format::Log);
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert_eq!(error.damage().and_then(|damage| damage.offset), Some(0), "{error}");
}

/// A guest reads a damaged block over and over.
#[test]
fn damage_that_is_met_is_listed_once_and_counted() {
    let place = Place::new();
    let path = place.image(Format::Log);
    let image = opened(&path, Format::Log).unwrap();
    let mut disk = BlockingDisk::new(&*image).unwrap();
    let mut pattern: Vec<u8> = (0..4096u32).map(|index| (index * 7 % 251) as u8).collect();
    disk.write(Sector::new(80), &mut pattern).unwrap();
    drop(disk);
    drop(image);
    let bytes = std::fs::read(&path).unwrap();
    let offset = bytes.windows(4096).position(|window| window == pattern).unwrap() as u64;
    put(&path, offset + 17, &[0xff]);

    let image = opened(&path, Format::Log).unwrap();
    assert_eq!(image.damages(), Default::default());
    let mut disk = BlockingDisk::new(&*image).unwrap();
    for _ in 0..3 {
        assert!(disk.read(Sector::new(80), &mut vec![0; 4096]).is_err());
    }
    assert!(disk.read(Sector::new(88), &mut vec![0; 4096]).is_ok());
    drop(disk);
    let damages = image.damages();
    let places: Vec<_> = damages.recent.iter().map(|it| (it.lba, it.offset)).collect();
    assert_eq!((damages.met, places), (3, vec![(Some(Sector::new(80)), Some(offset))]));
}
