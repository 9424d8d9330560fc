//! The file cache on a real mount. Needs `/dev/fuse` and the right to mount; modes Copy and Source
//! need Linux 6.9.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod agent;
mod consistency;
mod control;
mod fixture;
mod folders;
mod keep;
mod kept_back;
mod kept_back_opens;
mod kept_back_trouble;
mod lifecycle;
mod locks;
mod modes;
mod random;
mod seen_by_open;
mod soak;
mod steps;
mod told;
mod trouble;
mod users;
mod write_back;
mod xattrs;
