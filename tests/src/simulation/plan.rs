//! What a seed decides before anything runs: sizes, faults, and when they strike.
//!
//! Invariants: equal seeds, equal plans.
//! Never: looks at a clock.

use std::time::Duration;

use millstream::formats::protocol::ApiKey;
use millstream::testing::{NetworkFaults, Unsynced};

/// Something that happens to the broker or to the job while the producers write.
#[derive(Debug, Clone, Copy)]
pub enum Strike {
    /// The broker loses power, and comes back after this long.
    PowerCut {
        /// What becomes of unsynced data.
        unsynced: Unsynced,
        /// How long the broker is away.
        down: Duration,
    },
    /// The broker loses power shortly after it was asked something.
    PowerCutAfter {
        /// What it was asked.
        api: ApiKey,
        /// Which of these requests, counted from now on; after a while the power goes without it.
        nth: u32,
        /// How long after it arrived.
        then: Duration,
        /// What becomes of unsynced data.
        unsynced: Unsynced,
        /// How long the broker is away.
        down: Duration,
    },
    /// The job is cut off, another instance takes its transactional id over; later the first can be
    /// heard again.
    Takeover {
        /// How long the first instance is cut off.
        cut: Duration,
    },
    /// The job is cut off for this long, then goes on.
    CutOff {
        /// How long.
        cut: Duration,
    },
    /// A second instance joins, and the first is cut off between its offsets and the end of their
    /// transaction, for longer than the group waits for it.
    Expelled {
        /// How long after its offsets arrived it is cut off.
        then: Duration,
        /// How long the first instance is cut off.
        cut: Duration,
    },
    /// A second instance joins the group, and leaves after this long.
    SecondInstance {
        /// How long it runs.
        runs: Duration,
    },
}

/// One strike and its time, from the beginning of the run.
#[derive(Debug, Clone, Copy)]
pub struct Scheduled {
    /// When.
    pub at: Duration,
    /// What.
    pub strike: Strike,
}

/// Everything that a seed decides.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Partitions of the input topic.
    pub input_partitions: i32,
    /// Partitions of each output topic.
    pub output_partitions: i32,
    /// Different keys.
    pub keys: u32,
    /// Records of the idempotent producer.
    pub idempotent_records: u32,
    /// Transactions of the transactional producer, aborted ones included.
    pub transactions: u32,
    /// Longest pause between two sends.
    pub pause_max: Duration,
    /// One transaction in this many is aborted.
    pub abort_one_in: u32,
    /// One transaction in this many loses its producer half way; 0: none.
    pub producer_crash_one_in: u32,
    /// Time between the job's commits.
    pub commit_interval: Duration,
    /// Request timeout of every client.
    pub request_timeout: Duration,
    /// Transaction timeout of job and producer.
    pub transaction_timeout: Duration,
    /// How long a call of the transactional producer waits (`max.block.ms`): where it is short,
    /// commits are in doubt.
    pub max_block: Duration,
    /// Size at which a partition's file is closed and the next one begun.
    pub segment_bytes: u32,
    /// Whether the job's instances are static members of the group.
    pub static_members: bool,
    /// Most records that the job takes at once.
    pub max_poll_records: u32,
    /// The network while the run lasts.
    pub network: NetworkFaults,
    /// What happens, by time.
    pub strikes: Vec<Scheduled>,
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut plan = Self::drawn(seed);
        let expels = |scheduled: &Scheduled| matches!(scheduled.strike, Strike::Expelled { .. });
        if plan.strikes.iter().any(expels) {
            // Its transaction is still open when the group has gone on without it.
            plan.transaction_timeout += Duration::from_secs(10);
        }
        plan
    }

    fn drawn(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x0070_6c61_6e00);
        let network = network(&mut random);
        let mut strikes: Vec<Scheduled> = (0..random.u32(0..=6))
            .map(|_| Scheduled {
                at: ms(&mut random, 200, 5_000),
                strike: strike(&mut random),
            })
            .collect();
        strikes.sort_by_key(|scheduled| scheduled.at);
        Self {
            seed,
            input_partitions: random.i32(1..=3),
            output_partitions: random.i32(1..=3),
            keys: random.u32(2..=6),
            idempotent_records: random.u32(15..=50),
            transactions: random.u32(6..=15),
            pause_max: ms(&mut random, 20, 250),
            abort_one_in: random.u32(2..=5),
            producer_crash_one_in: if random.bool() { random.u32(4..=8) } else { 0 },
            commit_interval: ms(&mut random, 10, 150),
            request_timeout: ms(&mut random, 1_500, 4_000),
            transaction_timeout: ms(&mut random, 1_500, 10_000),
            max_block: ms(&mut random, 1_000, 12_000),
            segment_bytes: if random.bool() {
                random.u32(300..=3_000)
            } else {
                1 << 20
            },
            static_members: random.u32(..3) > 0,
            max_poll_records: random.u32(1..=40),
            network,
            strikes,
        }
    }

    /// The plan of a seed without any fault.
    #[must_use]
    pub fn calm(seed: u64) -> Self {
        let network = NetworkFaults::NONE;
        Self {
            network,
            strikes: Vec::new(),
            producer_crash_one_in: 0,
            ..Self::of(seed)
        }
    }
}

fn ms(random: &mut fastrand::Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(random.u64(from..=to))
}

fn network(random: &mut fastrand::Rng) -> NetworkFaults {
    if random.u32(..8) == 0 {
        return NetworkFaults {
            delay_max: ms(random, 0, 5),
            ..NetworkFaults::NONE
        };
    }
    NetworkFaults {
        delay_max: ms(random, 0, 15),
        slow_one_in: random.u32(10..=150),
        // Beyond the request timeout: the client has given the connection up when the frame
        // arrives.
        slow_max: ms(random, 20, 6_000),
        lost_one_in: random.u32(15..=300),
        refused_one_in: random.u32(3..=30),
    }
}

fn strike(random: &mut fastrand::Rng) -> Strike {
    match random.u32(..10) {
        0 => Strike::PowerCut {
            unsynced: unsynced(random),
            down: ms(random, 0, 5_000),
        },
        1..=5 => Strike::PowerCutAfter {
            api: asked(random),
            nth: random.u32(1..=4),
            then: ms(random, 0, 4),
            unsynced: unsynced(random),
            down: ms(random, 0, 1_500),
        },
        6 | 7 => Strike::Takeover {
            cut: ms(random, 100, 12_000),
        },
        8 if random.u32(..3) > 0 => Strike::Expelled {
            then: ms(random, 2, 30),
            cut: ms(random, 6_200, 9_500),
        },
        8 => Strike::CutOff {
            cut: ms(random, 100, 9_000),
        },
        _ => Strike::SecondInstance {
            runs: ms(random, 500, 6_000),
        },
    }
}

/// Something that changes what the broker holds.
fn asked(random: &mut fastrand::Rng) -> ApiKey {
    const APIS: [ApiKey; 9] = [
        ApiKey::EndTxn,
        ApiKey::EndTxn,
        ApiKey::EndTxn,
        ApiKey::TxnOffsetCommit,
        ApiKey::Produce,
        ApiKey::Produce,
        ApiKey::InitProducerId,
        ApiKey::JoinGroup,
        ApiKey::SyncGroup,
    ];
    APIS[random.usize(..APIS.len())]
}

fn unsynced(random: &mut fastrand::Rng) -> Unsynced {
    match random.u32(..8) {
        0..=3 => Unsynced::Lost,
        4 => Unsynced::Kept,
        5 => Unsynced::Torn {
            thousandths: random.u16(0..=1_000),
            sector: random.bool(),
        },
        6 => Unsynced::Scattered {
            seed: random.u64(..),
        },
        _ => Unsynced::Mixed {
            seed: random.u64(..),
        },
    }
}
