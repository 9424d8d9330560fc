//! Reads the superblock of a log image, as specified in docs/format.md (section 3).
//!
//! Only for images that are not being written: otherwise a superblock may be half written.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};

const BLOCK_BYTES: u64 = 4096;
const SLOTS: [u64; 2] = [0, 16 * BLOCK_BYTES];
const MAGIC: [u8; 8] = *b"Flowlog\n";

/// Counters since the image was made, in blocks of 4 KiB unless stated otherwise.
#[derive(Clone, Copy, Debug)]
pub struct LogCounters {
    /// Records of guest writes; each is one write to the host file.
    pub records: u64,
    /// Blocks written by guests.
    pub guest_blocks: u64,
    /// All appended blocks: data, copies, headers, maps.
    pub appended_blocks: u64,
    /// Appended copies of live blocks by cleaning, with their headers.
    pub relocated_blocks: u64,
    /// Appended blocks of the map, with their headers.
    pub map_blocks: u64,
    /// Currently live blocks.
    pub live_blocks: u64,
}

impl LogCounters {
    /// Reads the newest superblock.
    pub fn read(image: &Path) -> Result<Self> {
        let file = File::open(image)?;
        let mut newest: Option<Slot> = None;
        for offset in SLOTS {
            let mut slot = Slot([0; BLOCK_BYTES as usize]);
            file.read_exact_at(&mut slot.0, offset)?;
            let newer = newest.as_ref().is_none_or(|it| it.generation() < slot.generation());
            if slot.0.starts_with(&MAGIC) && newer {
                newest = Some(slot);
            }
        }
        let slot = newest.with_context(|| format!("no superblock in {}", image.display()))?;
        Ok(Self {
            records: slot.number(112).saturating_sub(1),
            guest_blocks: slot.number(120),
            appended_blocks: slot.number(128),
            relocated_blocks: slot.number(136),
            map_blocks: slot.number(144),
            live_blocks: slot.number(160),
        })
    }

    /// Returns the blocks appended for guests: data and headers.
    #[must_use]
    pub fn guest_records_blocks(&self) -> u64 {
        self.appended_blocks - self.relocated_blocks - self.map_blocks
    }

    /// Returns the blocks written to the host per block written by guests.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        self.appended_blocks as f64 / self.guest_blocks.max(1) as f64
    }
}

struct Slot([u8; BLOCK_BYTES as usize]);

impl Slot {
    fn number(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.0[offset..offset + 8].try_into().expect("eight bytes"))
    }

    fn generation(&self) -> u64 {
        self.number(56)
    }
}
