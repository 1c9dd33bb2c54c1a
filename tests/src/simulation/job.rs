//! The job: two workers that read the input and write two topics, and a supervisor that starts it
//! again.
//!
//! Invariants: a job that ends with an error is started again until it is told to stop; why it
//! ended is counted.
//! Never: helps the job along.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millstream::client::{ClientConfig, TransactionError};
use millstream::prelude::{RecordContext, Streams, StreamsBuilder, strings};
use millstream::streams::{Placement, RunningStreams, StreamsError, Topology};
use millstream::testing::SimulatedNetwork;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::history::{AUDIT, ENRICHED, GROUP, INPUT, Record};
use super::plan::Plan;

/// An instance that runs until it is stopped.
pub(super) struct Instance {
    again: Arc<AtomicBool>,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Option<StreamsError>>,
}

/// Starts instances.
#[derive(Clone)]
pub(super) struct Jobs {
    pub(super) plan: Arc<Plan>,
    pub(super) record: Record,
}

fn topology() -> Result<Topology, StreamsError> {
    let builder = StreamsBuilder::new();
    let located = builder.stream(INPUT, strings()).process_values(|| {
        |context: &RecordContext, _: &String, value: String| {
            (
                value,
                format!("{}:{}", context.partition(), context.offset()),
            )
        }
    });
    let enriched = located.clone();
    enriched
        .map_values(|_, (value, place)| format!("{value}@{place}"))
        .to(ENRICHED, strings());
    located
        .map_values(|_, (_, place)| place)
        .to(AUDIT, strings());
    Ok(builder.build()?)
}

impl Jobs {
    /// Starts an instance; `again` says whether it is started again after an error.
    pub(super) fn start(
        &self,
        name: &str,
        network: &SimulatedNetwork,
        client: ClientConfig,
        again: bool,
    ) -> Instance {
        let (stop, stopped) = oneshot::channel();
        let again = Arc::new(AtomicBool::new(again));
        let (name, network) = (name.to_owned(), network.clone());
        let supervised = self
            .clone()
            .supervise(name, network, client, Arc::clone(&again), stopped);
        Instance {
            again,
            stop,
            ended: tokio::spawn(supervised),
        }
    }

    async fn supervise(
        self,
        name: String,
        network: SimulatedNetwork,
        mut client: ClientConfig,
        again: Arc<AtomicBool>,
        mut stopped: oneshot::Receiver<()>,
    ) -> Option<StreamsError> {
        loop {
            client.seed = client.seed.wrapping_add(1);
            let ended = tokio::select! {
                biased;
                _ = &mut stopped => return None,
                started = self.streams(&name, &network, client.clone()) => match started {
                    Err(error) => error,
                    Ok(mut running) => tokio::select! {
                        biased;
                        _ = &mut stopped => return self.stop(&name, running).await,
                        ended = running.ended() => ended.err()?,
                    },
                },
            };
            self.record.say(|| format!("job {name} ended: {ended}"));
            self.record.count(reason(&ended));
            if !again.load(Ordering::Relaxed) {
                return Some(ended);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn streams(
        &self,
        name: &str,
        network: &SimulatedNetwork,
        client: ClientConfig,
    ) -> Result<RunningStreams, StreamsError> {
        let mut streams = Streams::new(GROUP, topology()?)
            .connect(network)
            .client(client)
            .placement(Placement::Runtime)
            .threads(2)
            .transactional_id(name)
            .commit_interval(self.plan.commit_interval)
            .set("max.poll.records", self.plan.max_poll_records)
            .set(
                "transaction.timeout.ms",
                self.plan.transaction_timeout.as_millis(),
            )
            .set("session.timeout.ms", 6_000)
            .set("heartbeat.interval.ms", 1_000);
        if !self.plan.static_members {
            streams = streams.group_instance_id("");
        }
        streams.start().await
    }

    async fn stop(&self, name: &str, running: RunningStreams) -> Option<StreamsError> {
        let error = running.stop().await.err()?;
        self.record
            .say(|| format!("job {name} stopped with: {error}"));
        self.record.count("job stopped with an error");
        Some(error)
    }
}

impl Instance {
    /// From now on the instance is not started again.
    pub(super) fn not_again(&self) {
        self.again.store(false, Ordering::Relaxed);
    }

    /// Tells the instance to commit and stop; its error where it had one, or where it did not stop
    /// in time.
    pub(super) async fn stop(self, within: Duration) -> Result<Option<StreamsError>, String> {
        let began = Instant::now();
        let _ = self.stop.send(());
        match tokio::time::timeout(within, self.ended).await {
            Ok(Ok(ended)) => Ok(ended),
            Ok(Err(error)) => Err(format!("the job's task ended: {error}")),
            Err(_) => Err(format!("the job did not stop within {:?}", began.elapsed())),
        }
    }

    /// Waits until it ends by itself.
    pub(super) async fn ended(self, within: Duration) -> Result<Option<StreamsError>, String> {
        // Kept until the end, so that it is not told to stop.
        let _stop = self.stop;
        match tokio::time::timeout(within, self.ended).await {
            Ok(Ok(ended)) => Ok(ended),
            Ok(Err(error)) => Err(format!("the job's task ended: {error}")),
            Err(_) => Err("the job did not end by itself".to_owned()),
        }
    }
}

fn reason(error: &StreamsError) -> &'static str {
    match error {
        StreamsError::Transaction(TransactionError::Fenced { .. }) => "job ended: fenced",
        StreamsError::Transaction(TransactionError::Abortable { .. }) => "job ended: abortable",
        StreamsError::Transaction(TransactionError::CommitInDoubt { .. }) => "job ended: in doubt",
        StreamsError::Transaction(TransactionError::Timeout { .. }) => "job ended: time-out",
        StreamsError::Transaction(_) => "job ended: transaction",
        StreamsError::Consumer(_) => "job ended: consumer",
        StreamsError::Delivery(_) => "job ended: delivery",
        StreamsError::Usage(_) => "job ended: usage",
        StreamsError::Admin(_) => "job ended: admin",
        StreamsError::Cluster(_) => "job ended: cluster",
        StreamsError::Fenced { .. } => "job ended: fenced in its group",
        StreamsError::LastCommit => "job ended: last commit",
        StreamsError::Bug { .. } => "job ended: bug",
        _ => "job ended: other",
    }
}
