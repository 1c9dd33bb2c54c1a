//! The simulation's sweep: many seeds, each a small world with faults of its own, and the same
//! trace for the same seed.
//!
//! `MILLSTREAM_SEED=17 cargo test -p tests --test simulation one_seed -- --nocapture` prints what
//! happens in one of them; `MILLSTREAM_SEEDS=1000..6000` changes which ones are swept.
//!
//! Invariants: those of `tests::simulation::invariants`, after every run.
//! Never: real time.

#[path = "simulation/late_messages.rs"]
mod late_messages;

use std::collections::BTreeMap;
use std::ops::Range;

use tests::simulation::{Plan, Report, run};

/// Seeds of the sweep, shared out between the two halves.
const SEEDS: Range<u64> = 0..500;

#[test]
fn a_world_without_faults_ends_well() {
    for seed in 0..3 {
        let report = run(Plan::calm(seed), false);
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn one_seed() {
    let Ok(seed) = std::env::var("MILLSTREAM_SEED") else {
        return;
    };
    let seed = seed.parse().expect("MILLSTREAM_SEED is a number");
    let report = run(Plan::of(seed), true);
    assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
}

#[test]
fn every_seed_ends_well_even_half() {
    sweep(0);
}

#[test]
fn every_seed_ends_well_odd_half() {
    sweep(1);
}

#[test]
fn a_seed_run_twice_gives_the_same_trace() {
    let differing: Vec<u64> = (2_000..2_020)
        .filter(|&seed| {
            let (once, twice) = (run(Plan::of(seed), false), run(Plan::of(seed), false));
            assert!(
                once.trace.1 > 100,
                "seed {seed}: a trace of {} frames",
                once.trace.1
            );
            once.trace != twice.trace
        })
        .collect();
    assert_eq!(
        differing,
        Vec::<u64>::new(),
        "seeds whose second run differs"
    );
}

/// Runs every second seed, and says what they came to.
#[expect(
    clippy::print_stdout,
    reason = "figures for whoever asks with --nocapture"
)]
fn sweep(half: u64) {
    let mut totals = Totals::default();
    let mut failed = Vec::new();
    for seed in seeds().filter(|seed| seed % 2 == half) {
        let report = run(Plan::of(seed), false);
        totals.add(&report);
        if !report.violations.is_empty() {
            let first: Vec<_> = report.violations.iter().take(6).collect();
            println!(
                "seed {seed}: {} violations: {first:#?}",
                report.violations.len()
            );
            failed.push(seed);
        }
    }
    println!("{totals:#?}");
    assert_eq!(failed, Vec::<u64>::new(), "seeds that break an invariant");
}

fn seeds() -> Range<u64> {
    let Ok(asked) = std::env::var("MILLSTREAM_SEEDS") else {
        return SEEDS;
    };
    let (from, to) = asked
        .split_once("..")
        .expect("MILLSTREAM_SEEDS is FROM..TO");
    from.parse().expect("a number")..to.parse().expect("a number")
}

/// Sums over the runs of a sweep.
#[derive(Debug, Default)]
struct Totals {
    seeds: u64,
    virtual_seconds: u64,
    frames: u64,
    slow: u64,
    lost_requests: u64,
    lost_responses: u64,
    refused: u64,
    snapshots: u64,
    records: u64,
    counts: BTreeMap<&'static str, u64>,
}

impl Totals {
    fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.virtual_seconds += report.lasted.as_secs();
        self.frames += report.network.arrived;
        self.slow += report.network.slow;
        self.lost_requests += report.network.lost_requests;
        self.lost_responses += report.network.lost_responses;
        self.refused += report.network.refused;
        self.snapshots += report.history.snapshots.len() as u64;
        let read = report.history.calm.values().map(|seen| seen.len() as u64);
        self.records += read.sum::<u64>();
        for (&what, count) in &report.counts {
            *self.counts.entry(what).or_default() += count;
        }
    }
}
