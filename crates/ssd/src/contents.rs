//! Contents of the drive, without trailing zeroes of blocks: a load of stamped blocks takes 16
//! bytes for each, so drives of many gigabytes fit into memory.

use std::collections::HashMap;

/// Size of a block.
pub const BLOCK_BYTES: usize = 4096;
/// Longest content stored in `short`.
const SHORT_BYTES: usize = 16;
/// Marks a block whose content is in `long`.
const IS_LONG: [u8; SHORT_BYTES] = [0xff; SHORT_BYTES];
/// Bytes compared with zero at a time.
const LOOK_BYTES: usize = 64;

/// Contents of a drive, by block.
pub struct Contents {
    short: Vec<[u8; SHORT_BYTES]>,
    long: HashMap<u32, Box<[u8]>>,
}

impl Contents {
    /// Makes blocks of zeroes.
    pub fn new(blocks: u32) -> Self {
        Self { short: vec![[0; SHORT_BYTES]; blocks as usize], long: HashMap::new() }
    }

    /// Writes a whole block.
    pub fn write(&mut self, block: u32, content: &[u8]) {
        let content = without_zeroes_at_the_end(content);
        let mut short = [0; SHORT_BYTES];
        if content.len() <= SHORT_BYTES {
            short[..content.len()].copy_from_slice(content);
        }
        let is_long = content.len() > SHORT_BYTES || short == IS_LONG;
        let before = &mut self.short[block as usize];
        if is_long {
            self.long.insert(block, content.into());
        } else if *before == IS_LONG {
            self.long.remove(&block);
        }
        *before = if is_long { IS_LONG } else { short };
    }

    /// Reads a block into `target`, which has the size of a block.
    pub fn read(&self, block: u32, target: &mut [u8]) {
        let short = &self.short[block as usize];
        let content = if *short == IS_LONG { &self.long[&block][..] } else { short };
        target[..content.len()].copy_from_slice(content);
        target[content.len()..].fill(0);
    }
}

fn without_zeroes_at_the_end(content: &[u8]) -> &[u8] {
    let mut looks = content.rchunks(LOOK_BYTES);
    let zeroes = looks.by_ref().take_while(|look| **look == [0; LOOK_BYTES][..look.len()]).count();
    let content = &content[..content.len().saturating_sub(zeroes * LOOK_BYTES)];
    let end = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &content[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_reads_as_it_was_written_last() {
        let mut contents = Contents::new(2);
        let read = |contents: &Contents| {
            let mut block = [1; BLOCK_BYTES];
            contents.read(1, &mut block);
            block
        };
        assert_eq!(read(&contents), [0; BLOCK_BYTES]);
        for length in [1, 15, 16, 17, 63, 64, 65, 100, 4095, 4096, 3, 0] {
            for byte in [1, 0xff] {
                let mut block = [0; BLOCK_BYTES];
                block[..length].fill(byte);
                contents.write(1, &block);
                assert_eq!(read(&contents), block, "{length} bytes of {byte}");
            }
        }
        contents.write(1, &[0; BLOCK_BYTES]);
        assert_eq!(read(&contents), [0; BLOCK_BYTES]);
        assert!(contents.long.is_empty(), "what is gone takes memory");
    }
}
