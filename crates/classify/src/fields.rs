//! Integers in bytes written by a guest. A field beyond the end is a bug here: structures are read
//! whole.

pub fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of that length")
}

pub fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

pub fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

pub fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

pub fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

pub fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}
