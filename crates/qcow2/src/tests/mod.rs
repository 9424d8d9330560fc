//! Tests of the guarantees of a qcow2 image on a simulated disk: docs/qcow2.md is the argument,
//! these are the attempts to refute it.

mod backing;
mod basic;
mod boots;
mod commits;
mod compact;
mod crash;
mod damage;
mod device;
mod ends;
mod failures;
mod faults;
mod fixture;
mod history_model;
mod host;
mod host_memory;
mod instants;
mod kill;
mod killed;
mod lives;
mod locks;
mod neighbours;
mod races;
mod sectors;
mod steps;
mod upgrades;
