//! Real guests on flowstone disks: one module per behaviour.
//!
//! As many guests run at a time as there are processors (the lab's places). Where guests cannot
//! run, tests are skipped with a message; with `FLOWSTONE_REQUIRE_GUESTS=1` they fail.

mod caches;
mod classes;
mod devices;
mod disk_errors;
mod f2fs;
mod file_cache;
mod filesystems;
mod full_disk;
mod gives_back;
mod hint;
mod hotplug;
mod in_order;
mod load;
mod nfs;
mod numa;
mod polled;
mod pollers;
mod power_cut;
mod readonly;
mod reattach;
mod resize;
mod soak;
mod space_returned;
mod survive;
mod trim;
mod write_through;
