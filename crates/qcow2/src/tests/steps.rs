//! Every fallible step of maintenance fails: once, for a while, for ever, or for lack of space; and
//! power is cut, or the daemon is killed, before, during and after it.

use std::time::{Duration, Instant};

use fastrand::Rng;
use flowstone_block::Errno;
use flowstone_sim::{Call, Landed};

use super::lives::{Life, Script, Times, Trouble};

/// Calls that the image makes. It never uses [`Call::Allocate`].
const CALLS: [Call; 6] =
    [Call::Read, Call::Write, Call::Datasync, Call::Punch, Call::SetSize, Call::Zero];

/// A short history with all kinds of changes: tables and refcount blocks are added, the L1 table
/// moves, the refcount table may, clusters are freed and reused, `compact` runs.
fn script(seed: u64, remembers: bool) -> Script {
    Script { cluster_bytes: 512, sizes: [330, 4300], remembers, ..Script::new(seed) }
}

/// Repeats the same history; in each run a later call fails, until none does.
fn each_call_fails(call: Call, stride: u64, times: Times) {
    let mut random = Rng::with_seed(9);
    let mut cuts = 0;
    for (seed, remembers) in [(3, false), (4, true)] {
        for number in 0.. {
            let errno = if number % 2 == 0 { Errno::IO } else { Errno::NOSPC };
            let (landed, after) = (Landed::nth(number / 2 + seed), number * stride);
            let trouble = Trouble::Fails { call, errno, landed, after, times };
            let life = Life::of(&script(seed, remembers), trouble);
            if life.struck == 0 {
                break;
            }
            cuts += life.cut(5, &mut random) + life.kill(1, &mut random);
            life.closed();
        }
    }
    eprintln!("{call:?} {times:?}: {cuts} cuts and kills");
}

#[test]
fn each_call_may_fail_once() {
    CALLS.into_iter().for_each(|call| each_call_fails(call, 2, Times::Once));
}

#[test]
fn each_call_may_fail_for_a_while() {
    CALLS.into_iter().for_each(|call| each_call_fails(call, 5, Times::AWhile));
    CALLS.into_iter().for_each(|call| each_call_fails(call, 7, Times::Half));
}

#[test]
fn each_call_may_fail_for_ever() {
    CALLS.into_iter().for_each(|call| each_call_fails(call, 7, Times::Always));
}

#[test]
fn the_host_may_be_full_at_each_step() {
    let mut random = Rng::with_seed(10);
    for pages in 0..30 {
        for (seed, passes) in [(3, true), (4, false), (5, true)] {
            let script = script(seed, seed == 5);
            let life = Life::of(&script, Trouble::Full { pages, passes });
            life.cut(5, &mut random);
            life.kill(1, &mut random);
            life.closed();
        }
    }
}

#[test]
fn without_trouble_every_request_succeeds() {
    let mut random = Rng::with_seed(11);
    for seed in 0..12 {
        let life = Life::of(&Script::new(seed), Trouble::Nothing);
        life.cut(30, &mut random);
        life.kill(10, &mut random);
        life.closed();
    }
}

fn any_trouble(random: &mut Rng) -> Trouble {
    match random.u8(..12) {
        0 => Trouble::Nothing,
        1..=3 => Trouble::Full { pages: random.u64(..60), passes: random.bool() },
        _ => {
            let call = *random.choice(&CALLS).unwrap();
            // About as many as there are in a history.
            let most = match call {
                Call::Write => 150,
                Call::Read => 60,
                Call::Datasync => 40,
                _ => 8,
            };
            let errno = if random.bool() { Errno::IO } else { Errno::NOSPC };
            let times =
                *random.choice(&[Times::Once, Times::AWhile, Times::Half, Times::Always]).unwrap();
            let within = random.u64(1..=most);
            let landed = *random.choice(&Landed::ALL).unwrap();
            Trouble::Fails { call, errno, landed, after: random.u64(..within), times }
        }
    }
}

#[test]
#[ignore = "runs for SOAK_MINUTES: make soak"]
fn soak_failing_steps_of_qcow2() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let end = Instant::now() + Duration::from_secs(60 * number("SOAK_MINUTES").unwrap_or(10));
    let first = number("SOAK_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    eprintln!("SOAK_SEED={first}");
    let (mut lives, mut struck, mut cuts, mut kills) = (0u64, 0u64, 0u64, 0u64);
    while Instant::now() < end {
        let seed = first + lives;
        let mut random = Rng::with_seed(seed);
        let script = Script { acts: random.u32(10..60), ..Script::new(seed) };
        let life = Life::of(&script, any_trouble(&mut random));
        cuts += life.cut(60, &mut random);
        kills += life.kill(10, &mut random);
        life.closed();
        lives += 1;
        struck += u64::from(life.struck > 0);
        if lives.is_multiple_of(500) {
            eprintln!("{lives} lives, {struck} with a fault, {cuts} power cuts, {kills} kills");
        }
    }
    let crashes = cuts + kills;
    eprintln!(
        "SOAK_SEED={first}: {crashes} simulated crashes ({cuts} power cuts, {kills} kills) in \
         {lives} lives, {struck} of them struck by a fault"
    );
}
