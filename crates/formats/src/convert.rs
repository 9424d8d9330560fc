//! Copies one image into another and keeps holes sparse.

use flowstone_block::{
    AlignedBuf, BlockingDisk, Errno, Error, Extent, Op, Result, SECTOR_BYTES, Sector,
};

use flowstone_image::{CHUNK_BYTES, Image, chunks, is_zero};

/// Runs of zeroes shorter than this are written as data: each hole costs the host an extent.
const HOLE_BYTES: usize = 4096;

/// Copies all data of `source` into `target`, a new image of the same size, and makes it durable.
/// `progress` is called with the number of bytes copied or skipped so far.
pub fn convert(
    source: &dyn Image,
    target: &dyn Image,
    mut progress: impl FnMut(u64),
) -> Result<()> {
    let mut reader = BlockingDisk::new(source).map_err(|error| failed("open source", error))?;
    let mut writer = BlockingDisk::new(target).map_err(|error| failed("open target", error))?;
    let mut buffer = AlignedBuf::zeroed(CHUNK_BYTES as usize);
    let mut at = Sector::new(0);
    while let Some(data) = source.next_data(at).map_err(|error| failed("read source map", error))? {
        for chunk in chunks(data, CHUNK_BYTES) {
            let memory = &mut buffer[..chunk.bytes() as usize];
            reader.read(chunk.start(), memory).map_err(|errno| at_extent("read", chunk, errno))?;
            write_data(&mut writer, chunk.start(), memory)
                .map_err(|errno| at_extent("write", chunk, errno))?;
            progress(chunk.start_bytes() + chunk.bytes());
        }
        at = data.end();
    }
    writer.run(Op::Flush).map_err(|errno| failed("flush target", errno))?;
    progress(source.geometry().capacity.bytes());
    Ok(())
}

/// Writes the blocks that are not all zeroes.
fn write_data(
    writer: &mut BlockingDisk,
    start: Sector,
    memory: &mut [u8],
) -> std::result::Result<(), Errno> {
    let mut from = 0;
    while from < memory.len() {
        let zero = is_zero(block_at(memory, from));
        let mut to = from;
        while to < memory.len() && is_zero(block_at(memory, to)) == zero {
            to = (to + HOLE_BYTES).min(memory.len());
        }
        if !zero {
            let sector = Sector::new(start.get() + from as u64 / SECTOR_BYTES);
            writer.write(sector, &mut memory[from..to])?;
        }
        from = to;
    }
    Ok(())
}

fn block_at(memory: &[u8], from: usize) -> &[u8] {
    &memory[from..memory.len().min(from + HOLE_BYTES)]
}

fn failed(what: &str, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::host(format!("convert: {what}"), why, "check the host's file systems and free space")
}

fn at_extent(what: &str, extent: Extent, errno: Errno) -> Error {
    failed(&format!("{what} {extent}"), errno)
}
