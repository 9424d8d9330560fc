//! Protocol mutants: deliberate bugs at the places that keep data safe, to prove that the tests
//! detect them.
//!
//! A step that syncs, orders, holds or checks something for durability names its mutant in place,
//! in one form: a fault replaces one value, in a `let` of its own or as what a function returns.
//!
//! ```text
//! let syncs = mutated("log.commit.skips-sync", true, false);
//! if syncs {
//!     file.datasync()?;
//! }
//! ```
//!
//! The code around it reads as it does without the mutant: no condition has to be read twice. A
//! mutant is a line of the code and not a separate patch, so it moves with the code that it breaks.
//! Without the feature `mutants` the value is the right one at compile time; no released binary has
//! the other. (Both are computed: the wrong one is a constant, or cheap and without effects.) With
//! the feature, `FLOWSTONE_MUTANT=NAME` breaks one step in every process of a test run. `make
//! mutants` finds the names in the sources, runs the tests against each, and records which test
//! killed it (docs/testing.md).

/// Returns `right`, or `wrong` if the mutant `name` (`AREA.PLACE.what-is-wrong`) is chosen.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
#[must_use]
pub fn mutated<T>(_name: &'static str, right: T, _wrong: T) -> T {
    right
}

/// Returns `right`, or `wrong` if the mutant `name` (`AREA.PLACE.what-is-wrong`) is chosen.
#[cfg(feature = "mutants")]
#[must_use]
pub fn mutated<T>(name: &'static str, right: T, wrong: T) -> T {
    use std::sync::LazyLock;
    static CHOSEN: LazyLock<Option<String>> =
        LazyLock::new(|| std::env::var("FLOWSTONE_MUTANT").ok());
    if CHOSEN.as_deref() == Some(name) { wrong } else { right }
}
