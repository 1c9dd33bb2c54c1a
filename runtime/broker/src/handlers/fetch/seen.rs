//! What a fetch that waits has seen of its partitions, so that it looks at each record once until
//! it answers.
//!
//! Invariants: what was counted is not read again before the answer; all looks together read what
//! was asked for at least, and a batch beyond it.
//! Never: holds records while it waits.

use super::{Targets, size};
use bytes::Bytes;
use millstream_log::{Isolation, ReadRequest};

/// Of each partition, in the order of the targets.
pub(super) struct Seen {
    places: Vec<Counted>,
    bytes: usize,
    failed: bool,
}

#[derive(Clone, Copy)]
struct Counted {
    next_offset: i64,
    bytes: usize,
}

impl Seen {
    /// Nothing yet.
    pub(super) fn new(targets: &Targets) -> Self {
        let places = targets.all.iter().map(|target| Counted {
            next_offset: target.asked.offset,
            bytes: 0,
        });
        Self {
            places: places.collect(),
            bytes: 0,
            failed: false,
        }
    }

    /// Counts what has come since, until there are `bytes_min`. Returns how many bytes were read
    /// for that.
    pub(super) fn look(
        &mut self,
        targets: &Targets,
        isolation: Isolation,
        bytes_min: usize,
    ) -> usize {
        let before = self.bytes;
        for (counted, target) in self.places.iter_mut().zip(&targets.all) {
            if self.bytes >= bytes_min {
                break;
            }
            let Ok(partition) = &target.partition else {
                self.failed = true;
                continue;
            };
            if partition.log().offsets().log_start > target.asked.offset {
                // Whether or not it was there when it was counted.
                self.failed = true;
                continue;
            }
            let budget = size(target.asked.bytes_max).saturating_sub(counted.bytes);
            if budget == 0 && counted.bytes > 0 {
                continue;
            }
            let found = partition.log().read(ReadRequest {
                offset: counted.next_offset,
                max_bytes: budget.min(bytes_min - self.bytes),
                isolation,
                at_least_one: true,
            });
            let Ok(found) = found else {
                self.failed = true;
                continue;
            };
            let bytes: usize = found.batches.iter().map(Bytes::len).sum();
            counted.next_offset = found.next_offset;
            counted.bytes += bytes;
            self.bytes += bytes;
        }
        self.bytes - before
    }

    /// Whether there is so much, or something that the client has to be told at once.
    pub(super) fn is_enough(&self, bytes_min: usize) -> bool {
        self.failed || self.bytes >= bytes_min
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::harness::{Client, batch, broker, fetch_request};

    #[tokio::test(start_paused = true)]
    async fn what_was_counted_is_not_read_again_and_a_full_partition_not_at_all() {
        let broker = broker().await;
        let mut client = Client::connect(&broker);
        client.create_topic("orders", 2).await;
        let small = batch(&["a"]);
        let mut request = fetch_request("orders", 0, 0, 1_000);
        request.topics[0].partitions[0].partition_max_bytes = 3 * small.len() as i32;
        let targets = Targets::of_request(broker.node(), false, &request.topics);
        let mut seen = Seen::new(&targets);
        let mut total = 0;
        for count in 1..=3 {
            client.produce("orders", 0, small.clone()).await;
            let read = seen.look(&targets, Isolation::LastStable, usize::MAX);
            assert_eq!(read, small.len(), "the new one");
            total += read;
            assert_eq!(seen.look(&targets, Isolation::LastStable, usize::MAX), 0);
            assert!(seen.is_enough(total));
            assert!(!seen.is_enough(total + 1), "{count}");
        }
        client.produce("orders", 0, small).await;
        let read = seen.look(&targets, Isolation::LastStable, usize::MAX);
        assert_eq!(read, 0, "it is full");
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_ends_where_there_is_enough() {
        let broker = broker().await;
        let mut client = Client::connect(&broker);
        client.create_topic("orders", 1).await;
        let small = batch(&["a"]);
        for _ in 0..100 {
            client.produce("orders", 0, small.clone()).await;
        }
        let mut request = fetch_request("orders", 0, 0, 1_000);
        request.topics[0].partitions[0].partition_max_bytes = i32::MAX;
        // The same one again and again, which nothing forbids.
        let asked = request.topics[0].partitions[0].clone();
        request.topics[0].partitions.extend(vec![asked; 50]);
        let targets = Targets::of_request(broker.node(), false, &request.topics);
        let mut seen = Seen::new(&targets);
        let bytes_min = small.len() * 5 / 2;
        let read = seen.look(&targets, Isolation::LastStable, bytes_min);
        assert!(seen.is_enough(bytes_min));
        assert_eq!(read, 3 * small.len());
        assert_eq!(seen.look(&targets, Isolation::LastStable, bytes_min), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_beginning_that_goes_is_told_at_once() {
        let broker = broker().await;
        let mut client = Client::connect(&broker);
        client.create_topic("orders", 1).await;
        for _ in 0..4 {
            client.produce("orders", 0, batch(&["a"])).await;
        }
        let request = fetch_request("orders", 0, 0, 1_000);
        let targets = Targets::of_request(broker.node(), false, &request.topics);
        let mut seen = Seen::new(&targets);
        seen.look(&targets, Isolation::LastStable, usize::MAX);
        assert!(!seen.is_enough(usize::MAX));
        let partition = broker.node().partition("orders", 0).expect("there");
        partition.log().delete_records_before(2).expect("deleted");
        seen.look(&targets, Isolation::LastStable, usize::MAX);
        assert!(seen.is_enough(usize::MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_wrong_with_a_partition_is_told_at_once() {
        let broker = broker().await;
        let mut client = Client::connect(&broker);
        client.create_topic("orders", 1).await;
        for (topic, offset) in [("orders", 7), ("nowhere", 0)] {
            let request = fetch_request(topic, 0, offset, 1_000);
            let targets = Targets::of_request(broker.node(), false, &request.topics);
            let mut seen = Seen::new(&targets);
            seen.look(&targets, Isolation::HighWatermark, usize::MAX);
            assert!(seen.is_enough(usize::MAX));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_beyond_the_limit_of_its_partition_counts_and_nothing_behind_it() {
        let broker = broker().await;
        let mut client = Client::connect(&broker);
        client.create_topic("orders", 1).await;
        let mut request = fetch_request("orders", 0, 0, 1_000);
        request.topics[0].partitions[0].partition_max_bytes = 1;
        let targets = Targets::of_request(broker.node(), false, &request.topics);
        let mut seen = Seen::new(&targets);
        for value in ["a", "b"] {
            client.produce("orders", 0, batch(&[value])).await;
        }
        let first = batch(&["a"]).len();
        assert_eq!(
            seen.look(&targets, Isolation::LastStable, usize::MAX),
            first
        );
        assert_eq!(seen.look(&targets, Isolation::LastStable, usize::MAX), 0);
    }
}
