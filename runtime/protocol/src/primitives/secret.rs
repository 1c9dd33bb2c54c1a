//! Bytes that are nobody's to read in a log.
//!
//! Invariants: on the wire the same as `Bytes`.
//! Never: shows what it holds when it is printed.

use std::fmt;

use bytes::Bytes;

use super::{DecodeError, Decoder, EncodeError, Encoder, Form, Sampler, Wire};

/// Bytes that are printed as their number: passwords and what is made of them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretBytes(pub Bytes);

impl fmt::Debug for SecretBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "[{} secret bytes]", self.0.len())
    }
}

impl Wire for SecretBytes {
    fn min_bytes(form: Form) -> usize {
        Bytes::min_bytes(form)
    }

    fn write(&self, encoder: &mut Encoder, form: Form) -> Result<(), EncodeError> {
        self.0.write(encoder, form)
    }

    fn read(decoder: &mut Decoder, form: Form) -> Result<Self, DecodeError> {
        Bytes::read(decoder, form).map(Self)
    }

    fn sample(sampler: &mut Sampler, form: Form) -> Self {
        Self(Bytes::sample(sampler, form))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_secret_is_not_printed() {
        let secret = SecretBytes(Bytes::from_static(b"\0alice\0hunter2"));
        assert_eq!(format!("{secret:?}"), "[14 secret bytes]");
    }
}
