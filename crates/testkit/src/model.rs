//! The reference disk: the expected content of a disk, as a flat array.

/// A disk in memory.
///
/// # Panics
/// All methods do if a range ends beyond the disk.
#[derive(Clone, Debug)]
pub struct Model(Vec<u8>);

impl Model {
    /// Makes a zeroed disk.
    pub fn new(bytes: u64) -> Self {
        Model(vec![0; bytes as usize])
    }

    /// Writes a range.
    pub fn write(&mut self, offset: u64, source: &[u8]) {
        self.0[offset as usize..][..source.len()].copy_from_slice(source);
    }

    /// Zeroes a range.
    pub fn zero(&mut self, offset: u64, bytes: u64) {
        self.0[offset as usize..][..bytes as usize].fill(0);
    }

    /// Checks data read from a disk.
    ///
    /// # Panics
    /// If it differs from the expected data.
    #[track_caller]
    pub fn check(&self, offset: u64, found: &[u8]) {
        let expected = &self.0[offset as usize..][..found.len()];
        if let Some(at) = (0..found.len()).find(|&at| found[at] != expected[at]) {
            let byte = offset + at as u64;
            panic!("byte {byte:#x}: expected {:#04x}, found {:#04x}", expected[at], found[at]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic = "byte 0x64: expected 0x07, found 0x00"]
    fn the_first_byte_that_differs_is_named() {
        let mut model = Model::new(4096);
        model.write(98, &[7; 10]);
        model.zero(98, 2);
        model.check(0, &[0; 100]);
        model.check(90, &[0; 18]);
    }
}
