//! Short kill series: processes are killed while they work, and nothing is lost or doubled.
//! `tests/README.md` names the command of the long ones, and the parameter by which the broker is
//! an Apache Kafka.
//!
//! Invariants: each kill comes after a commit that came after the kill before.
//! Never: mocks; these are the programs that users run.

use tests::deployment::Arrangement;
use tests::series::{Report, Series, run};
use tests::under_test;

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("millstream-kill")
        .tempdir()
        .expect("a temporary directory")
}

#[expect(clippy::print_stdout, reason = "each series says what it did")]
async fn survives(series: Series) -> Report {
    let folder = folder();
    match run(&series, folder.path()).await {
        Ok(report) => {
            println!("{report}");
            report
        }
        Err(error) => {
            let kept = folder.keep();
            panic!(
                "{series:?}: {error:#}\nthe processes' output is in {}",
                kept.display()
            );
        }
    }
}

#[tokio::test]
async fn nothing_is_lost_or_doubled_when_job_and_broker_are_killed() {
    let series = Series {
        seed: 7,
        kills: 12,
        arrangement: Arrangement::under_test(),
        rate: 400,
    };
    let report = survives(series).await;
    assert_eq!((report.kills, report.of_broker), (12, 4));
    assert!(report.orders > 500 && report.dead_letters > 0, "{report}");
    assert!(
        report.aborted > 0,
        "no kill has hit an open transaction: {report}"
    );
}

#[tokio::test]
async fn nothing_is_lost_or_doubled_when_the_process_with_the_broker_inside_is_killed() {
    if under_test::left_out() {
        return;
    }
    let series = Series {
        seed: 8,
        kills: 6,
        arrangement: Arrangement::Embedded,
        rate: 400,
    };
    let report = survives(series).await;
    assert_eq!(report.kills, 6);
    assert!(report.orders > 200 && report.dead_letters > 0, "{report}");
}
