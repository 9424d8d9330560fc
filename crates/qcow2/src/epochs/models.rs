//! Loom models: a cluster that the map drops while a request reads it.

use flowstone_block::model::{UnsafeCell, check, spawn};
use flowstone_block::sync::thread::yield_now;

use super::*;

/// State under the map's lock: the epoch, and whether the map names the cluster.
struct Meta {
    epoch: u64,
    named: bool,
}

/// The cluster's data.
struct Cluster(UnsafeCell<u64>);

// SAFETY: loom checks that it is not written while another thread reads it.
unsafe impl Sync for Cluster {}

fn reads(count: u64, preemptions: usize) {
    check(&format!("qcow2, {count} pins"), preemptions, move || {
        let (epochs, meta) = (Epochs::default(), Mutex::new(Meta { epoch: 1, named: true }));
        let shared = Arc::new((epochs, meta, Cluster(UnsafeCell::new(7))));
        let reader = Arc::clone(&shared);
        let mut pins = shared.0.register();
        let reader = spawn(move || {
            let (_, meta, cluster) = &*reader;
            for _ in 0..count {
                let meta = meta.lock().unwrap();
                if !meta.named {
                    return;
                }
                let epoch = pins.hold(meta.epoch, meta);
                // SAFETY: as above.
                assert_eq!(cluster.0.with(|data| unsafe { *data }), 7);
                pins.unpin(epoch);
            }
        });
        let (epochs, meta, cluster) = &*shared;
        let dropped = {
            let mut meta = meta.lock().unwrap();
            meta.named = false;
            meta.epoch += 1;
            meta.epoch - 1
        };
        while epochs.oldest() <= dropped {
            yield_now();
        }
        // Another guest's data.
        // SAFETY: as above.
        cluster.0.with_mut(|data| unsafe { *data = 8 });
        reader.join().unwrap();
    });
}

#[test]
fn a_dropped_cluster_is_used_again_when_those_who_read_it_are_done() {
    reads(1, 5);
    reads(2, 5);
}
