//! The member id that a consumer gives itself, for as long as it lives.
//!
//! Invariants: no two consumers have the same, unless both were given the same seed (other than 0),
//! client id and instance id in the same millisecond, as in a simulation that is run again.
//! Never: remembered; a consumer that is made anew is another member.

use std::hash::{BuildHasher, Hasher, RandomState};

use millstream_protocol::Uuid;

use crate::consumer::config::ConsumerConfig;

/// A new id.
pub(super) fn new_member_id(config: &ConsumerConfig) -> Uuid {
    let client = &config.client;
    if client.seed == 0 {
        // Not a simulation. The hasher's keys come from the operating system.
        let half = || u128::from(RandomState::new().build_hasher().finish());
        return Uuid((half() << 64 | half()).to_be_bytes());
    }
    let instance = config.group_instance_id.as_deref().unwrap_or_default();
    let now_ms = client.clock.now_ms().to_be_bytes();
    let (seed, between) = (client.seed.to_be_bytes(), [0xff]);
    let words: [&[u8]; 5] = [
        &seed,
        &now_ms,
        client.client_id.as_bytes(),
        &between,
        instance.as_bytes(),
    ];
    let mut hash = FNV_BASIS;
    for byte in words.concat() {
        hash = (hash ^ u128::from(byte)).wrapping_mul(FNV_PRIME);
    }
    Uuid(hash.to_be_bytes())
}

/// The 128-bit FNV-1a hash.
const FNV_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const FNV_PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[tokio::test(start_paused = true)]
    async fn ids_differ_unless_a_seed_makes_them_the_same_on_purpose() {
        let plain = ConsumerConfig::default();
        assert_ne!(new_member_id(&plain), new_member_id(&plain));
        let mut seeded = ConsumerConfig::default();
        seeded.client.clock = Clock::starting_at(1);
        seeded.client.seed = 5;
        let first = new_member_id(&seeded);
        assert_eq!(new_member_id(&seeded), first);
        seeded.client.client_id = "other".to_owned();
        assert_ne!(new_member_id(&seeded), first);
    }
}
