//! Use of an image that has been tampered with, for the fuzz targets of its format.

use flowstone_block::{BlockingDisk, Extent, Op, Sector, SectorCount};

use crate::Image;

/// Maximum number of bytes read from an image that claims to be large.
const READ_MAX: u64 = 4 << 20;

/// Reads, writes and discards, the latter up to `discarded` sectors; errors are valid answers.
pub fn use_it(image: &dyn Image, discarded: u64) {
    let mut guest = BlockingDisk::new(image).expect("a channel");
    let mut buffer = vec![0; 64 << 10];
    let (mut at, mut read) = (Sector::new(0), 0);
    while let Ok(Some(data)) = image.next_data(at) {
        let bytes = data.bytes().min(buffer.len() as u64);
        let _ = guest.read(data.start(), &mut buffer[..bytes as usize]);
        read += bytes;
        at = Sector::new(data.start().get() + bytes / 512);
        if read > READ_MAX {
            break;
        }
    }
    let end = image.geometry().capacity.get();
    for sector in (0..end.min(2000)).step_by(61) {
        let sectors = (end - sector).min(9) as usize;
        let _ = guest.write(Sector::new(sector), &mut buffer[..sectors * 512]);
    }
    let range = Extent::new(Sector::new(0), SectorCount::new(end.min(discarded)));
    let _ = guest.run(Op::Discard(range.expect("no disk is empty")));
    let _ = guest.run(Op::Flush);
}
