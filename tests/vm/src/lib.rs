//! Real Linux guests on flowstone disks.
//!
//! `framework` starts the daemon and boots stock Debian kernels under QEMU against it; the
//! cases in `tests/it` and the demo (`make demo`) are scripts on top of it. Nothing here
//! links the daemon: it is tested as the program users run, through its command line, its
//! sockets and its image files.

pub mod framework;
