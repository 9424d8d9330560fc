//! Writes chains into descriptors, direct or in indirect tables.
//!
//! The links of a chain are also stored privately, so that freeing descriptors never depends on
//! shared memory.

use super::queue::{DESCRIPTOR_BYTES, DriverQueue, Head, INDIRECT_LEN};
use super::{RawDescriptor, Segment, Slice};
use crate::virtio::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE};
use crate::{Error, Result};

impl DriverQueue {
    /// Writes a chain into free descriptors; changes nothing if it does not fit.
    pub(super) fn write_chain(&mut self, chain: &[Segment]) -> Result<Head> {
        if chain.is_empty() {
            return Err(Error::Misuse("a chain needs at least one segment".into()));
        }
        if self.options.indirect && chain.len() > 1 {
            self.write_indirect(chain)
        } else {
            self.write_direct(chain)
        }
    }

    fn write_direct(&mut self, chain: &[Segment]) -> Result<Head> {
        if chain.len() > self.free.len() {
            let (want, have) = (chain.len(), self.free.len());
            return Err(Error::Misuse(format!("chain of {want}, only {have} descriptors free")));
        }
        let indices = self.free.split_off(self.free.len() - chain.len());
        for (position, (segment, &index)) in chain.iter().zip(&indices).enumerate() {
            let next = indices.get(position + 1).copied();
            self.links[usize::from(index)] = next;
            descriptor(segment, next).store(&self.descriptors, index);
        }
        Ok(Head(indices[0]))
    }

    fn write_indirect(&mut self, chain: &[Segment]) -> Result<Head> {
        if chain.len() > INDIRECT_LEN {
            return Err(Error::Misuse(format!("indirect chain of {}", chain.len())));
        }
        let index = self.free.pop().ok_or_else(|| Error::Misuse("no descriptor free".into()))?;
        self.links[usize::from(index)] = None;
        let table = self.table(index);
        for (position, segment) in chain.iter().enumerate() {
            let next = (position + 1 < chain.len()).then_some(position as u16 + 1);
            descriptor(segment, next).store(&table, position as u16);
        }
        let (addr, len) = (table.address(), (chain.len() * DESCRIPTOR_BYTES) as u32);
        let indirect = RawDescriptor { addr, len, flags: DESC_INDIRECT, next: 0 };
        indirect.store(&self.descriptors, index);
        Ok(Head(index))
    }

    /// Returns the indirect table of descriptor `index`.
    fn table(&self, index: u16) -> Slice {
        let bytes = INDIRECT_LEN * DESCRIPTOR_BYTES;
        let tables = self.tables.as_ref().expect("indirect queues have tables");
        tables.part(usize::from(index) * bytes, bytes)
    }

    /// Frees the descriptors of a chain.
    pub(super) fn release(&mut self, head: u16) {
        let mut next = Some(head);
        while let Some(index) = next {
            self.free.push(index);
            next = self.links[usize::from(index)].take();
        }
    }
}

fn descriptor(segment: &Segment, next: Option<u16>) -> RawDescriptor {
    let write = if segment.writable { DESC_WRITE } else { 0 };
    let more = if next.is_some() { DESC_NEXT } else { 0 };
    let (flags, next) = (write | more, next.unwrap_or(0));
    RawDescriptor { addr: segment.addr, len: segment.len, flags, next }
}
