//! A deterministic source of made-up field values, for tests of codecs.
//!
//! Invariants: the same seed gives the same values.
//! Never: used outside tests; it is no source of randomness.

/// A small xorshift generator.
#[derive(Debug, Clone)]
pub struct Sampler(u64);

impl Sampler {
    /// Starts from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Spread small seeds; xorshift must not start at 0.
        Self(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next 64 bits.
    #[expect(
        clippy::should_implement_trait,
        reason = "it never ends, so it is no iterator"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number from 0 to `bound` - 1.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound.max(1)
    }

    /// A length: mostly a few, sometimes past the one-byte varint, rarely past a page.
    pub fn length(&mut self) -> usize {
        match self.below(64) {
            0 => 1024 + self.below(400),
            1..4 => 120 + self.below(20),
            _ => self.below(9),
        }
    }
}
