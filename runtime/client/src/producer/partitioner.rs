//! Which partition a record goes to: by key as every Kafka client does it, else sticky.
//!
//! Invariants: equal keys and equal partition counts give equal partitions, the same as the Java
//! client's; without a key a partition is kept until `batch.size` bytes went there.
//! Never: looks at the value.

/// Kafka's murmur2 hash.
#[must_use]
pub fn murmur2(data: &[u8]) -> i32 {
    const M: u32 = 0x5bd1_e995;
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut hash = 0x9747_b28c_u32 ^ length;
    let mut chunks = data.chunks_exact(4);
    for chunk in chunks.by_ref() {
        let mut k = u32::from_le_bytes(chunk.try_into().unwrap_or_default());
        k = k.wrapping_mul(M);
        k ^= k >> 24;
        k = k.wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    let tail = chunks.remainder();
    if !tail.is_empty() {
        for (shift, byte) in [0, 8, 16].into_iter().zip(tail) {
            hash ^= u32::from(*byte) << shift;
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^= hash >> 15;
    i32::from_ne_bytes(hash.to_ne_bytes())
}

/// The partition of a key among `partitions` (at least 1).
#[must_use]
pub fn partition_of_key(key: &[u8], partitions: i32) -> i32 {
    (murmur2(key) & i32::MAX) % partitions.max(1)
}

/// Where records without a key go.
#[derive(Debug)]
pub(super) struct Sticky {
    partition: Option<i32>,
    bytes: usize,
    random: fastrand::Rng,
}

impl Sticky {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            partition: None,
            bytes: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// The partition to use now.
    pub(super) fn partition(&mut self, partitions: i32) -> i32 {
        match self.partition.filter(|partition| *partition < partitions) {
            Some(partition) => partition,
            None => {
                let chosen = self.random.i32(0..partitions.max(1));
                self.partition = Some(chosen);
                chosen
            }
        }
    }

    /// Counts a record; after `batch_size` bytes another partition gets its turn.
    pub(super) fn count(&mut self, size_bytes: usize, batch_size: usize, partitions: i32) {
        self.bytes += size_bytes;
        if self.bytes < batch_size || partitions <= 1 {
            return;
        }
        self.bytes = 0;
        let current = self.partition.unwrap_or(0);
        let step = self.random.i32(1..partitions);
        self.partition = Some((current + step) % partitions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Row 69: the vectors are those that every client checks itself against.
    #[test]
    fn keys_hash_as_the_java_client_hashes_them() {
        let vectors: [(&[u8], i32); 6] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (
                b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            (b"abc", 479_470_107),
        ];
        for (key, hash) in vectors {
            assert_eq!(murmur2(key), hash, "{}", String::from_utf8_lossy(key));
        }
        assert_eq!(partition_of_key(b"21", 4), (-973_932_308 & i32::MAX) % 4);
    }

    // Row 70.
    #[test]
    fn records_without_a_key_stay_until_a_batch_is_full_then_move() {
        let mut sticky = Sticky::new(7);
        let mut last = None;
        for _ in 0..100 {
            let partition = sticky.partition(4);
            assert_ne!(Some(partition), last, "another partition follows");
            for _ in 0..9 {
                sticky.count(100, 1000, 4);
                assert_eq!(sticky.partition(4), partition);
            }
            sticky.count(100, 1000, 4);
            last = Some(partition);
        }
        assert_eq!(Sticky::new(1).partition(1), 0);
    }
}
