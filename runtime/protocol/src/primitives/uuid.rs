//! Kafka's 16-byte identifiers of topics, directories and members.
//!
//! Invariants: text is URL-safe base64 without padding, 22 characters, as Kafka prints it.
//! Never: makes an identifier; randomness belongs to the caller.

use std::fmt;
use std::str::FromStr;

use super::{DecodeError, Decoder, EncodeError, Encoder, Form, Sampler, Wire};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A 16-byte identifier; all zero where there is none.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

/// Text that is no identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an id: expected 22 characters of URL-safe base64")]
pub struct ParseUuidError;

impl Uuid {
    /// The identifier of nothing.
    pub const ZERO: Uuid = Uuid([0; 16]);

    /// Whether this is [`Uuid::ZERO`].
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 128 bits and 4 zero bits behind them are 22 groups of 6.
        let bits = u128::from_be_bytes(self.0);
        let mut text = String::with_capacity(22);
        for group in 0..22 {
            let value = match group {
                21 => (bits << 4) & 0x3f,
                _ => (bits >> (122 - 6 * group)) & 0x3f,
            };
            text.push(char::from(ALPHABET[value as usize]));
        }
        f.pad(&text)
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uuid({self})")
    }
}

impl FromStr for Uuid {
    type Err = ParseUuidError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Kafka accepts padding when it reads.
        let text = text.trim_end_matches('=');
        if text.len() != 22 {
            return Err(ParseUuidError);
        }
        let mut bits: u128 = 0;
        for (group, byte) in text.bytes().enumerate() {
            let value = ALPHABET
                .iter()
                .position(|&c| c == byte)
                .ok_or(ParseUuidError)? as u128;
            bits = match group {
                21 => (bits << 2) | (value >> 4),
                _ => (bits << 6) | value,
            };
        }
        Ok(Uuid(bits.to_be_bytes()))
    }
}

impl Wire for Uuid {
    #[inline]
    fn min_bytes(_form: Form) -> usize {
        16
    }

    #[inline]
    fn write(&self, encoder: &mut Encoder, _form: Form) -> Result<(), EncodeError> {
        encoder.raw(&self.0);
        Ok(())
    }

    #[inline]
    fn read(decoder: &mut Decoder, _form: Form) -> Result<Self, DecodeError> {
        decoder.array().map(Uuid)
    }

    fn sample(sampler: &mut Sampler, _form: Form) -> Self {
        let (high, low) = (sampler.next(), sampler.next());
        Uuid((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_what_kafka_prints() {
        // Kafka's own constants: the zero id, the reserved id and the metadata topic's id.
        assert_eq!(Uuid::ZERO.to_string(), "AAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(
            Uuid(1_u128.to_be_bytes()).to_string(),
            "AAAAAAAAAAAAAAAAAAAAAQ"
        );
        assert_eq!(Uuid([0xff; 16]).to_string(), "_____________________w");
    }

    #[test]
    fn text_reads_back() {
        let mut seed = 7_u128;
        for _ in 0..200 {
            seed = seed
                .wrapping_mul(0x2545_F491_4F6C_DD1D_1234_5678_9ABC_DEF1)
                .wrapping_add(99);
            let id = Uuid(seed.to_be_bytes());
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "A",
            "AAAAAAAAAAAAAAAAAAAAA+",
            "AAAAAAAAAAAAAAAAAAAAAAA",
            "ääääääääääääääääääääää",
        ] {
            assert_eq!(text.parse::<Uuid>(), Err(ParseUuidError), "{text}");
        }
    }
}
