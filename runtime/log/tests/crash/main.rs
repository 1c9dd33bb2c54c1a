//! Crash enumeration: the power goes after every single disk operation of a recorded life, with
//! unsynced data lost, kept, torn, scattered and mixed; then recovery runs, and may itself be cut
//! short anywhere.
//!
//! Invariants: a run depends on its seeds only.
//! Never: samples the moments of the first crash (every one is visited).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod check;
mod compaction;
mod workload;

use std::io;

use millstream_log::FaultyStorage;
use millstream_log::storage::{Fault, OperationKind, Unsynced};

use check::{check_image, check_next_life};
use compaction::Life;
use workload::{Workload, open};

fn fates(operations: usize) -> Vec<Unsynced> {
    let seed = operations as u64;
    vec![
        Unsynced::Lost,
        Unsynced::Kept,
        Unsynced::Torn {
            thousandths: (operations * 37 % 1000) as u16,
            sector: false,
        },
        Unsynced::Torn {
            thousandths: (operations * 61 % 1000) as u16,
            sector: true,
        },
        Unsynced::Scattered { seed },
        Unsynced::Mixed { seed },
        Unsynced::Mixed { seed: !seed },
    ]
}

/// Visits every crash point of one life; returns how many images were checked.
fn enumerate(seed: u64, steps: usize) -> usize {
    let workload = Workload::run(seed, steps);
    let mut images = 0;
    workload.storage.for_each_crash_point(0, |point| {
        for unsynced in fates(point.operations) {
            let context = format!(
                "seed {seed}, power cut after {} operations (last {:?} {:?}), {unsynced:?}",
                point.operations, point.last, point.last_path
            );
            check_image(
                &point.image(unsynced),
                &workload.ledger,
                point.operations,
                &context,
            );
            images += 1;
        }
        if point.operations % 29 == 0 {
            let context = format!(
                "seed {seed}, next life after {} operations",
                point.operations
            );
            check_next_life(&point.image(Unsynced::Lost), &context);
            check_next_life(&point.image(Unsynced::Kept), &context);
        }
    });
    images
}

/// Cuts recovery itself short, at every operation, for every `stride`-th crash of one life.
fn enumerate_recovery(seed: u64, steps: usize, stride: usize) -> usize {
    let workload = Workload::run(seed, steps);
    let mut images = 0;
    workload.storage.for_each_crash_point(0, |point| {
        if point.operations % stride != 0 {
            return;
        }
        let first = fates(point.operations)[point.operations / stride % 7];
        let storage = FaultyStorage::over(&point.image(first));
        drop(open(storage.clone()));
        storage.for_each_crash_point(0, |second| {
            let seed = second.operations as u64;
            for unsynced in [
                Unsynced::Lost,
                Unsynced::Kept,
                Unsynced::Torn {
                    thousandths: 500,
                    sector: seed.is_multiple_of(2),
                },
                Unsynced::Mixed { seed },
            ] {
                let context = format!(
                    "power cut after {} operations ({first:?}), recovery cut after {} ({:?} {:?}), \
                     {unsynced:?}",
                    point.operations, second.operations, second.last, second.last_path
                );
                let image = second.image(unsynced);
                check_image(&image, &workload.ledger, point.operations, &context);
                images += 1;
            }
        });
    });
    images
}

/// How many lives are visited: `MILLSTREAM_CRASH_SEEDS` asks for more than the ordinary test does.
fn seeds() -> std::ops::RangeInclusive<u64> {
    let more = std::env::var("MILLSTREAM_CRASH_SEEDS")
        .ok()
        .and_then(|text| text.parse().ok());
    1..=more.unwrap_or(1).max(1)
}

#[test]
fn l1_l5_t1_t2_a_power_cut_at_any_operation_loses_nothing_acknowledged_and_tears_no_transaction() {
    let images: usize = seeds().map(|seed| enumerate(seed, 130)).sum();
    println!("{images} crash images checked");
    assert!(images > 4000, "only {images} images");
}

#[test]
fn l1_a_power_cut_during_recovery_at_any_operation_changes_nothing() {
    let stride = if seeds().count() > 1 { 11 } else { 61 };
    let images: usize = seeds()
        .map(|seed| enumerate_recovery(seed + 2, 110, stride))
        .sum();
    println!("{images} images of crashes during recovery checked");
    assert!(images > 1000, "only {images} images");
}

/// The disk fails once, at the n-th operation of a kind, for every n; then the process is killed or
/// the power goes.
#[test]
fn l2_x1_a_disk_that_fails_at_any_operation_loses_nothing_acknowledged() {
    let mut failures = 0;
    for (kind, error) in [
        (OperationKind::Write, io::ErrorKind::Other),
        (OperationKind::Write, io::ErrorKind::StorageFull),
        (OperationKind::SyncFile, io::ErrorKind::Other),
        (OperationKind::SyncDirectory, io::ErrorKind::Other),
        (OperationKind::CreateFile, io::ErrorKind::StorageFull),
        (OperationKind::Rename, io::ErrorKind::Other),
        (OperationKind::RemoveFile, io::ErrorKind::Other),
        (OperationKind::SetLength, io::ErrorKind::Other),
    ] {
        for after in (0..).step_by(3) {
            let path_contains = String::new();
            let fault = Fault {
                kind,
                path_contains,
                after,
                error,
            };
            let Some((workload, failure)) = Workload::run_into(4, 90, fault) else {
                // Few operations of this kind are left, and those that fail now are not needed.
                if after > operations_of(kind) {
                    break;
                }
                continue;
            };
            failures += 1;
            let operations = workload.storage.operation_count();
            let images = [
                workload.storage.fork(),
                workload.storage.crash_with(Unsynced::Lost),
                workload
                    .storage
                    .crash_with(Unsynced::Mixed { seed: after as u64 }),
            ];
            for (image, name) in images.iter().zip(["killed", "power cut", "half kept"]) {
                let context = format!("{kind:?} {after} failed ({failure}), then {name}");
                check_image(image, &workload.ledger, operations, &context);
            }
        }
    }
    println!("{failures} failing operations checked");
    assert!(failures > 200, "only {failures} operations failed");
}

fn operations_of(kind: OperationKind) -> usize {
    Workload::run(4, 90).storage.count_of(kind)
}

/// A life with compaction, cut after every operation; every `stride`-th of these recoveries is cut
/// after every operation as well.
fn enumerate_compaction(seed: u64, steps: usize, stride: usize) -> usize {
    let mut life = Life::begin(seed);
    life.live(steps).unwrap();
    assert!(
        life.swaps >= 8,
        "seed {seed}: only {} logs compacted",
        life.swaps
    );
    let mut images = 0;
    life.storage.for_each_crash_point(0, |point| {
        let operations = point.operations;
        let all = fates(operations);
        for unsynced in [all[0], all[1 + operations % 6]] {
            let context = format!(
                "compaction, seed {seed}, power cut after {operations} operations (last {:?} \
                 {:?}), {unsynced:?}",
                point.last, point.last_path
            );
            life.check(&point.image(unsynced), operations, &context);
            images += 1;
        }
        if operations % stride != 0 {
            return;
        }
        let first = fates(operations)[operations / stride % 7];
        let storage = FaultyStorage::over(&point.image(first));
        drop(compaction::open(storage.clone()).unwrap());
        storage.for_each_crash_point(0, |second| {
            let seed = second.operations as u64;
            for unsynced in [Unsynced::Lost, Unsynced::Kept, Unsynced::Mixed { seed }] {
                let context = format!(
                    "compaction, power cut after {operations} operations ({first:?}), recovery cut \
                     after {seed} ({:?} {:?}), {unsynced:?}",
                    second.last, second.last_path
                );
                life.check(&second.image(unsynced), operations, &context);
                images += 1;
            }
        });
    });
    images
}

#[test]
fn l6_a_power_cut_at_any_operation_of_a_compaction_leaves_the_log_before_or_after_it() {
    let images: usize = seeds()
        .map(|seed| enumerate_compaction(seed + 20, 50, 149))
        .sum();
    println!("{images} images of crashes around compactions checked");
    assert!(images > 2000, "only {images} images");
}

#[test]
fn l2_l6_a_disk_that_fails_at_any_operation_of_a_compaction_loses_nothing_acknowledged() {
    let mut failures = 0;
    for (kind, error) in [
        (OperationKind::Write, io::ErrorKind::StorageFull),
        (OperationKind::SyncFile, io::ErrorKind::Other),
        (OperationKind::SyncDirectory, io::ErrorKind::Other),
        (OperationKind::CreateFile, io::ErrorKind::StorageFull),
        (OperationKind::Rename, io::ErrorKind::Other),
        (OperationKind::RemoveFile, io::ErrorKind::Other),
        (OperationKind::SetLength, io::ErrorKind::Other),
    ] {
        for after in (0..).step_by(3) {
            let mut life = Life::begin(31);
            life.storage.inject(Fault {
                kind,
                path_contains: "table-".to_owned(),
                after,
                error,
            });
            let Err(failure) = life.live(60) else { break };
            failures += 1;
            let operations = life.storage.operation_count();
            let lost = life.storage.crash_with(Unsynced::Lost);
            let mixed = life
                .storage
                .crash_with(Unsynced::Mixed { seed: after as u64 });
            for (image, name) in [
                (life.storage.fork(), "killed"),
                (lost, "power cut"),
                (mixed, "half kept"),
            ] {
                let context = format!("compaction, {kind:?} {after} failed ({failure}), {name}");
                life.check(&image, operations, &context);
            }
        }
    }
    println!("{failures} failing operations around compactions checked");
    assert!(failures > 50, "only {failures} operations failed");
}
