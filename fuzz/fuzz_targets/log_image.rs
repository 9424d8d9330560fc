//! A small log image that an attacker has changed, with right checksums: checked, repaired,
//! opened, read, written. Whatever is in it, nothing panics and nothing goes on for ever.
#![no_main]

use arbitrary::Arbitrary;
use flowstone_log::fuzzing::{Left, Patch, Target, survive};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    killed: bool,
    changes: Vec<Change>,
    /// Cuts the file short, in blocks.
    length: Option<u16>,
}

#[derive(Arbitrary, Debug)]
struct Change {
    place: Place,
    at: u16,
    bytes: Bytes,
}

#[derive(Arbitrary, Debug)]
enum Place {
    Superblock(bool),
    Root,
    Leaf(u8),
    Header(u8),
    Anywhere(u8),
}

/// Numbers that are likely to hurt, or anything.
#[derive(Arbitrary, Debug)]
enum Bytes {
    Word32(u32),
    Word64(u64),
    Low(u8),
    Ones,
    Any(Vec<u8>),
}

impl Change {
    fn patch(&self) -> Patch {
        let target = match self.place {
            Place::Superblock(second) => Target::Superblock(second.into()),
            Place::Root => Target::Root,
            Place::Leaf(index) => Target::Leaf(index),
            Place::Header(index) => Target::Header(index),
            Place::Anywhere(place) => Target::Anywhere(place.into()),
        };
        let (align, bytes) = match &self.bytes {
            Bytes::Word32(word) => (4, word.to_le_bytes().to_vec()),
            Bytes::Word64(word) => (8, word.to_le_bytes().to_vec()),
            Bytes::Low(byte) => (8, u64::from(*byte).to_le_bytes().to_vec()),
            Bytes::Ones => (4, vec![0xff; 8]),
            Bytes::Any(bytes) => (1, bytes.clone()),
        };
        Patch { target, at: self.at / align * align, bytes }
    }
}

fuzz_target!(|input: Input| {
    let patches: Vec<Patch> = input.changes.iter().take(8).map(Change::patch).collect();
    let left = if input.killed { Left::Killed } else { Left::Closed };
    survive(left, &patches, input.length.map(|blocks| usize::from(blocks) * 4096));
});
