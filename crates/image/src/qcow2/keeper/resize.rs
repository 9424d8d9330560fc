//! Another size: a longer L1 table if need be, then the header, in one sector.

use flowstone_block::{Errno, Outcome, SectorCount};

use super::super::map::to_bytes;
use super::super::shape::HostCluster;
use super::Keeper;

impl Keeper {
    pub(super) fn resize(&mut self, capacity: SectorCount) -> Outcome {
        let shape = self.core.shape;
        let entries = shape.l1_entries(capacity.bytes());
        let mut left = Vec::new();
        if entries > self.header.l1_entries {
            let clusters = shape.clusters(entries * 8);
            self.grow(clusters + self.core.room_low().min(64));
            let place = {
                let mut meta = self.core.meta();
                let place = meta.space.take_run(clusters).ok_or(Errno::NOSPC)?;
                meta.tables.extend(place.clone().map(HostCluster));
                meta.map.grow_l1(entries as usize);
                place
            };
            self.pending.taken.extend(place.clone().map(HostCluster));
            // Its refcounts are durable before the header names it.
            self.commit()?;
            let mut bytes = to_bytes(self.core.meta().map.l1());
            bytes.resize((clusters * shape.cluster_bytes()) as usize, 0);
            let offset = shape.offset(HostCluster(place.start));
            self.write_at(offset, &bytes)?;
            self.sync()?;
            let before = shape.host_at(self.header.l1_offset).0;
            left.extend(before..before + shape.clusters(self.header.l1_entries * 8));
            self.header.l1_offset = offset;
            self.header.l1_entries = entries;
        }
        self.header.disk_bytes = capacity.bytes();
        self.write_header()?;
        self.pending.dropped.extend(left.into_iter().map(HostCluster));
        Ok(())
    }
}
