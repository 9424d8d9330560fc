//! Layout of a redo file: words of eight bytes, in the byte order of the host.
//!
//! ```text
//! 0      magic
//! 1, 2   number of the boot
//! 3      (version 2: the device of the image)
//! 4      inode of the image
//! 5      mark that the header has, or had before the commit that is being made
//! 6, 7   positions of the first record and behind the last one
//! 8      when the host was started, in milliseconds since 1970
//! 9      last sign of life, the same
//! 10     number of the host
//! 11     inode of this file
//! 12     number that the file in the memory of the host has, too; 0: there is none
//! 64     path of the image, for people
//! 512    the records: two words each, a cluster of the disk and its entry
//! ```
//!
//! A file beside an image on a server's file system has only the first 512 words, under a different
//! magic. The rest is in the memory of the host ([`live`](super::live)).
//!
//! Versions 1 and 2, which lie at `IMAGE.redo`, have words 0 to 7; version 1 no mark.

/// Version 1 had no sessions.
pub const MAGIC_1: u64 = u64::from_le_bytes(*b"fsredo01");
pub const MAGIC_2: u64 = u64::from_le_bytes(*b"fsredo02");
pub const MAGIC: u64 = u64::from_le_bytes(*b"fsredo03");
/// The records are in the memory of the host.
pub const MAGIC_AWAY: u64 = u64::from_le_bytes(*b"fsredo3m");

pub const BOOT_WORD: usize = 1;
pub const INODE_WORD: usize = 4;
pub const MARK_WORD: usize = 5;
pub const START_WORD: usize = 6;
pub const END_WORD: usize = 7;
pub const STARTED_WORD: usize = 8;
pub const ALIVE_WORD: usize = 9;
pub const HOST_WORD: usize = 10;
pub const OWN_INODE_WORD: usize = 11;
pub const LIVE_WORD: usize = 12;
pub const PATH_WORD: usize = 64;
/// Words before the first record.
pub const HEADER_WORDS: usize = 512;

pub const HEADER_BYTES: usize = HEADER_WORDS * 8;

/// Records in the ring.
pub const RECORDS: u64 = 1 << 18;
pub const WORDS: usize = HEADER_WORDS + 2 * RECORDS as usize;
pub const BYTES: u64 = (WORDS * 8) as u64;

/// Returns the index of the first word of the record at a position.
pub const fn slot(position: u64) -> usize {
    HEADER_WORDS + 2 * (position % RECORDS) as usize
}

/// Returns a word of a file's content; 0 beyond its end.
pub fn word_of(bytes: &[u8], index: usize) -> u64 {
    let bytes = bytes.get(index * 8..index * 8 + 8);
    bytes.map_or(0, |bytes| u64::from_ne_bytes(bytes.try_into().expect("eight bytes")))
}
