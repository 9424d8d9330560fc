//! A small qcow2 image that has been tampered with: checked, repaired, opened, read, written.
//! Whatever is in it, nothing panics and nothing goes on for ever.
#![no_main]

use arbitrary::Arbitrary;
use flowstone_qcow2::fuzzing::{Patch, survive};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    small_clusters: bool,
    changes: Vec<Change>,
    /// Cuts the file short.
    length: Option<u32>,
}

#[derive(Arbitrary, Debug)]
struct Change {
    place: Place,
    bytes: Bytes,
}

/// The header is small, and what is in it matters most; then tables, which lie near the start.
#[derive(Arbitrary, Debug)]
enum Place {
    Header(u8),
    Tables(u16),
    Anywhere(u32),
}

/// Numbers that are likely to hurt, or anything.
#[derive(Arbitrary, Debug)]
enum Bytes {
    Word32(u32),
    Word64(u64),
    Cluster(u8),
    OwnCluster(u8),
    Ones,
    Any(Vec<u8>),
}

impl Change {
    fn patch(&self, cluster_bytes: u64) -> Patch {
        let at = match self.place {
            Place::Header(at) => u32::from(at) / 4 * 4,
            Place::Tables(at) => u32::from(at) / 8 * 8,
            Place::Anywhere(at) => at,
        };
        let bytes = match &self.bytes {
            Bytes::Word32(word) => word.to_be_bytes().to_vec(),
            Bytes::Word64(word) => word.to_be_bytes().to_vec(),
            Bytes::Cluster(number) => (u64::from(*number) * cluster_bytes).to_be_bytes().to_vec(),
            Bytes::OwnCluster(number) => {
                (1 << 63 | u64::from(*number) * cluster_bytes).to_be_bytes().to_vec()
            }
            Bytes::Ones => vec![0xff; 8],
            Bytes::Any(bytes) => bytes.clone(),
        };
        Patch { at, bytes }
    }
}

fuzz_target!(|input: Input| {
    let cluster_bits = if input.small_clusters { 9 } else { 12 };
    let changes = input.changes.iter().take(8);
    let patches: Vec<Patch> = changes.map(|change| change.patch(1 << cluster_bits)).collect();
    survive(cluster_bits, &patches, input.length.map(|bytes| bytes as usize));
});
