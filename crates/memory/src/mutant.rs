//! Protocol mutants of this crate and of the guest's half, as explained in
//! `crates/reactor/src/mutant.rs`. (The guest shares no other code with the daemon of the host.)

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
