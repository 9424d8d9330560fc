//! Compressed clusters: raw deflate data without a header; other data may follow it.

use flowstone_block::Errno;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};

/// Inflates a cluster of this many bytes. Never produces more, so a decompression bomb is no larger
/// than a cluster.
pub fn inflate(deflated: &[u8], bytes: usize) -> Result<Vec<u8>, Errno> {
    let mut cluster = vec![0; bytes];
    let flags = inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let mut state = Box::new(DecompressorOxide::new());
    let (status, _, made) = decompress(&mut state, deflated, &mut cluster, 0, flags);
    let whole = made == bytes && matches!(status, TINFLStatus::Done | TINFLStatus::HasMoreOutput);
    if whole { Ok(cluster) } else { Err(Errno::IO) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_deflated_data_of_a_cluster_is_an_error() {
        let data: Vec<u8> = (0..4096u32).map(|i| (i / 7) as u8).collect();
        let mut deflated = miniz_oxide::deflate::compress_to_vec(&data, 6);
        deflated.extend_from_slice(&[0xa5; 300]);
        assert_eq!(inflate(&deflated, 4096), Ok(data));
        assert_eq!(inflate(&deflated, 8192), Err(Errno::IO));
        assert_eq!(inflate(&deflated[..9], 4096), Err(Errno::IO));
        assert_eq!(inflate(&[0xff; 64], 4096), Err(Errno::IO));
        assert_eq!(inflate(&[], 512), Err(Errno::IO));
    }
}
