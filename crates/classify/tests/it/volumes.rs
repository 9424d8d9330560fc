//! Unusual but valid volume groups.

use crate::disk::{Disk, MIB, make};
use crate::forged::{group, kinds, linear, physical_volume, put};

/// `lvchange -r none` writes `read_ahead = -1`.
#[test]
fn a_volume_without_read_ahead_hides_no_volume() {
    let text =
        group(&(linear("root", 0, 10, "read_ahead = -1\t# None\n") + &linear("home", 20, 10, "")));
    let disk = physical_volume(&text);
    let inner = Disk::new(40 * MIB);
    make("mkfs.ext4", "-q -F -b 4096", inner.file.path());
    disk.insert(MIB, &inner);
    assert_eq!(kinds(&disk.layout()), ["lvm", "ext4", "volume"]);
}

/// An unused metadata area holds an old text (`pvchange --metadataignore y`): its volumes may have
/// been replaced by others.
#[test]
fn an_ignored_metadata_area_tells_nothing() {
    let disk = physical_volume(&group(&linear("root", 0, 10, "")));
    let inner = Disk::new(40 * MIB);
    make("mkfs.ext4", "-q -F -b 4096", inner.file.path());
    disk.insert(MIB, &inner);
    assert_eq!(kinds(&disk.layout()), ["lvm", "ext4"]);
    put(&disk, 4096 + 40 + 20, &1u32.to_le_bytes());
    assert_eq!(kinds(&disk.layout()), ["lvm"]);
}

/// Of a group on two disks the pieces on this one are known, whichever comes first in the text.
#[test]
fn the_second_physical_volume_of_a_group() {
    let other = "pv_other {\nid = \"aaaaaa-W2D8-HSB9-PSiG-dNVE-mUMB-VPvJtN\"\npe_start = 4096\n}\n";
    let text = group(&linear("root", 0, 10, ""))
        .replace("physical_volumes {\n", &format!("physical_volumes {{\n{other}"));
    let disk = physical_volume(&text);
    let inner = Disk::new(40 * MIB);
    make("mkfs.ext4", "-q -F -b 4096", inner.file.path());
    disk.insert(MIB, &inner);
    assert_eq!(kinds(&disk.layout()), ["lvm", "ext4"]);
    // Segments of other kinds, and invalid areas.
    let disk = physical_volume(&text.replace("\"striped\"", "\"error\""));
    assert_eq!(kinds(&disk.layout()), ["lvm"]);
    let disk = physical_volume(&text);
    put(&disk, 4096 + 4, b"nothing");
    assert_eq!(kinds(&disk.layout()), ["lvm"]);
}
