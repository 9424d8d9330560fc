//! Protocol mutants: deliberate mistakes at the places that keep data safe, to prove that the
//! tests see them.
//!
//! A step that syncs, orders, holds or checks something for durability names its mutant where it
//! stands: `if !mutant("log.commit.skips-sync") { file.datasync()?; }`. A mutant is a branch of
//! the code and not a patch beside it, so it moves with the code that it breaks. Without the
//! feature `mutants` the function is `false` at compile time and the branch is gone; no released
//! binary has it. With the feature, `FLOWSTONE_MUTANT=NAME` breaks one step in every process of
//! a test run. `make mutants` finds the names in the sources, runs the tests against each, and
//! writes which test killed it (docs/testing.md).

/// Returns whether the step that `name` stands for is to be done wrong: `AREA.PLACE.what-is-wrong`.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
#[must_use]
pub const fn mutant(_name: &'static str) -> bool {
    false
}

/// Returns whether the step that `name` stands for is to be done wrong: `AREA.PLACE.what-is-wrong`.
#[cfg(feature = "mutants")]
#[must_use]
pub fn mutant(name: &'static str) -> bool {
    use std::sync::LazyLock;
    static CHOSEN: LazyLock<Option<String>> =
        LazyLock::new(|| std::env::var("FLOWSTONE_MUTANT").ok());
    CHOSEN.as_deref() == Some(name)
}
