//! How a value of each schema type stands on the wire, in plain and in flexible versions.
//!
//! Invariants:
//! - flexible versions write lengths as unsigned varint of length + 1, null as 0
//! - a string that is read has 32,767 bytes at most, in flexible versions as in plain ones
//! - an array's count times its elements' least size never exceeds the bytes that remain
//!
//! Never: recurses on input; nesting is that of the Rust types.

use bytes::Bytes;

use super::{DecodeError, Decoder, EncodeError, Encoder, Sampler};

/// The version that a message is written in, as far as its values must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// The message's version.
    pub version: i16,
    /// Whether the version is flexible: compact lengths, tagged fields.
    pub flexible: bool,
}

/// A value with a form on the wire.
pub trait Wire: Sized {
    /// The fewest bytes that any value takes.
    fn min_bytes(form: Form) -> usize;

    /// Writes the value.
    ///
    /// # Errors
    /// [`EncodeError`] if the value has no form in this version.
    fn write(&self, encoder: &mut Encoder, form: Form) -> Result<(), EncodeError>;

    /// Reads a value.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are none.
    fn read(decoder: &mut Decoder, form: Form) -> Result<Self, DecodeError>;

    /// Makes up a value that has a form in this version, for tests.
    #[doc(hidden)]
    fn sample(sampler: &mut Sampler, form: Form) -> Self;

    /// Whether this is the null of a nullable type.
    #[inline]
    fn is_null(&self) -> bool {
        false
    }
}

/// A value whose absence has a form on the wire, which `Option` of it uses.
pub trait Nullable: Wire {
    /// The fewest bytes that null or any value takes.
    fn nullable_min_bytes(form: Form) -> usize;

    /// Writes a value or null.
    ///
    /// # Errors
    /// [`EncodeError`] if the value has no form in this version.
    fn write_nullable(
        value: Option<&Self>,
        encoder: &mut Encoder,
        form: Form,
    ) -> Result<(), EncodeError>;

    /// Reads a value or null.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are neither.
    fn read_nullable(decoder: &mut Decoder, form: Form) -> Result<Option<Self>, DecodeError>;
}

impl<T: Nullable> Wire for Option<T> {
    #[inline]
    fn min_bytes(form: Form) -> usize {
        T::nullable_min_bytes(form)
    }

    #[inline]
    fn write(&self, encoder: &mut Encoder, form: Form) -> Result<(), EncodeError> {
        T::write_nullable(self.as_ref(), encoder, form)
    }

    #[inline]
    fn read(decoder: &mut Decoder, form: Form) -> Result<Self, DecodeError> {
        T::read_nullable(decoder, form)
    }

    fn sample(sampler: &mut Sampler, form: Form) -> Self {
        if sampler.below(3) == 0 {
            None
        } else {
            Some(T::sample(sampler, form))
        }
    }

    #[inline]
    fn is_null(&self) -> bool {
        self.is_none()
    }
}

macro_rules! fixed {
    ($($type:ident)*) => {$(
        impl Wire for $type {
            #[inline]
            fn min_bytes(_form: Form) -> usize {
                size_of::<$type>()
            }

            #[inline]
            fn write(&self, encoder: &mut Encoder, _form: Form) -> Result<(), EncodeError> {
                encoder.$type(*self);
                Ok(())
            }

            #[inline]
            fn read(decoder: &mut Decoder, _form: Form) -> Result<Self, DecodeError> {
                decoder.$type()
            }

            fn sample(sampler: &mut Sampler, _form: Form) -> Self {
                sampler.next() as $type
            }
        }
    )*};
}

fixed! { i8 u8 i16 u16 i32 u32 i64 f64 }

impl Wire for bool {
    #[inline]
    fn min_bytes(_form: Form) -> usize {
        1
    }

    #[inline]
    fn write(&self, encoder: &mut Encoder, _form: Form) -> Result<(), EncodeError> {
        encoder.u8(u8::from(*self));
        Ok(())
    }

    #[inline]
    fn read(decoder: &mut Decoder, _form: Form) -> Result<Self, DecodeError> {
        Ok(decoder.u8()? != 0)
    }

    fn sample(sampler: &mut Sampler, _form: Form) -> Self {
        sampler.below(2) == 0
    }
}

/// The width of a length in plain versions.
#[derive(Clone, Copy)]
enum LengthField {
    /// 16 bits: strings.
    Short,
    /// 32 bits: bytes and arrays.
    Int,
}

impl LengthField {
    fn min_bytes(self, form: Form) -> usize {
        match (form.flexible, self) {
            (true, _) => 1,
            (false, Self::Short) => 2,
            (false, Self::Int) => 4,
        }
    }

    /// Kafka takes no longer one, whatever would fit into the field.
    fn longest(self) -> usize {
        match self {
            Self::Short => i16::MAX.unsigned_abs().into(),
            Self::Int => usize::MAX,
        }
    }

    fn write(
        self,
        what: &'static str,
        length: Option<usize>,
        encoder: &mut Encoder,
        form: Form,
    ) -> Result<(), EncodeError> {
        let too_long = |length| EncodeError::Length { what, length };
        match (form.flexible, length) {
            (true, None) => encoder.unsigned_varint(0),
            (true, Some(length)) => {
                let checked = i32::try_from(length).map_err(|_| too_long(length))?;
                encoder.unsigned_varint(checked.unsigned_abs() + 1);
            }
            (false, length) => match (self, length) {
                (Self::Short, None) => encoder.i16(-1),
                (Self::Int, None) => encoder.i32(-1),
                (Self::Short, Some(length)) => {
                    encoder.i16(i16::try_from(length).map_err(|_| too_long(length))?);
                }
                (Self::Int, Some(length)) => {
                    encoder.i32(i32::try_from(length).map_err(|_| too_long(length))?);
                }
            },
        }
        Ok(())
    }

    /// Reads a length; one that `size_bytes` each cannot fit into what remains is an error.
    fn read(
        self,
        what: &'static str,
        unit_bytes: usize,
        decoder: &mut Decoder,
        form: Form,
    ) -> Result<Option<usize>, DecodeError> {
        let length = match (form.flexible, self) {
            (true, _) => i64::from(decoder.unsigned_varint()?) - 1,
            (false, Self::Short) => i64::from(decoder.i16()?),
            (false, Self::Int) => i64::from(decoder.i32()?),
        };
        let remaining = decoder.remaining();
        match usize::try_from(length) {
            Ok(count) if count <= self.longest().min(remaining / unit_bytes.max(1)) => {
                Ok(Some(count))
            }
            Err(_) if length == -1 => Ok(None),
            _ => Err(DecodeError::Length {
                what,
                length,
                remaining,
            }),
        }
    }
}

/// Implements `Wire` through `Nullable`, for types where null is a length of -1.
macro_rules! by_length {
    () => {
        #[inline]
        fn min_bytes(form: Form) -> usize {
            Self::nullable_min_bytes(form)
        }

        #[inline]
        fn write(&self, encoder: &mut Encoder, form: Form) -> Result<(), EncodeError> {
            Self::write_nullable(Some(self), encoder, form)
        }

        #[inline]
        fn read(decoder: &mut Decoder, form: Form) -> Result<Self, DecodeError> {
            Self::read_nullable(decoder, form)?.ok_or(DecodeError::Null { what: Self::WHAT })
        }
    };
}

/// What the type is called in errors.
trait Named {
    const WHAT: &'static str;
}

impl Named for String {
    const WHAT: &'static str = "string";
}

impl Named for Bytes {
    const WHAT: &'static str = "bytes";
}

impl<T> Named for Vec<T> {
    const WHAT: &'static str = "array";
}

impl Wire for String {
    by_length!();

    fn sample(sampler: &mut Sampler, _form: Form) -> Self {
        (0..sampler.length())
            .map(|_| ['a', 'é', '0', '-'][sampler.below(4)])
            .collect()
    }
}

impl Nullable for String {
    #[inline]
    fn nullable_min_bytes(form: Form) -> usize {
        LengthField::Short.min_bytes(form)
    }

    fn write_nullable(
        value: Option<&Self>,
        encoder: &mut Encoder,
        form: Form,
    ) -> Result<(), EncodeError> {
        LengthField::Short.write(Self::WHAT, value.map(String::len), encoder, form)?;
        encoder.raw(value.map_or(&[], |text| text.as_bytes()));
        Ok(())
    }

    fn read_nullable(decoder: &mut Decoder, form: Form) -> Result<Option<Self>, DecodeError> {
        match LengthField::Short.read(Self::WHAT, 1, decoder, form)? {
            Some(length) => decoder.text(length).map(Some),
            None => Ok(None),
        }
    }
}

impl Wire for Bytes {
    by_length!();

    fn sample(sampler: &mut Sampler, _form: Form) -> Self {
        (0..sampler.length())
            .map(|_| sampler.next() as u8)
            .collect()
    }
}

impl Nullable for Bytes {
    #[inline]
    fn nullable_min_bytes(form: Form) -> usize {
        LengthField::Int.min_bytes(form)
    }

    fn write_nullable(
        value: Option<&Self>,
        encoder: &mut Encoder,
        form: Form,
    ) -> Result<(), EncodeError> {
        LengthField::Int.write(Self::WHAT, value.map(Bytes::len), encoder, form)?;
        if let Some(bytes) = value {
            encoder.shared(bytes);
        }
        Ok(())
    }

    fn read_nullable(decoder: &mut Decoder, form: Form) -> Result<Option<Self>, DecodeError> {
        match LengthField::Int.read(Self::WHAT, 1, decoder, form)? {
            Some(length) => decoder.take(length).map(Some),
            None => Ok(None),
        }
    }
}

impl<T: Wire> Wire for Vec<T> {
    by_length!();

    fn sample(sampler: &mut Sampler, form: Form) -> Self {
        let mut elements = Self::new();
        for _ in 0..sampler.below(3) {
            elements.push(T::sample(sampler, form));
        }
        elements
    }
}

impl<T: Wire> Nullable for Vec<T> {
    #[inline]
    fn nullable_min_bytes(form: Form) -> usize {
        LengthField::Int.min_bytes(form)
    }

    fn write_nullable(
        value: Option<&Self>,
        encoder: &mut Encoder,
        form: Form,
    ) -> Result<(), EncodeError> {
        let Some(elements) = value else {
            return LengthField::Int.write(Self::WHAT, None, encoder, form);
        };
        LengthField::Int.write(Self::WHAT, Some(elements.len()), encoder, form)?;
        for element in elements {
            element.write(encoder, form)?;
        }
        Ok(())
    }

    fn read_nullable(decoder: &mut Decoder, form: Form) -> Result<Option<Self>, DecodeError> {
        let unit_bytes = T::min_bytes(form);
        let Some(count) = LengthField::Int.read(Self::WHAT, unit_bytes, decoder, form)? else {
            return Ok(None);
        };
        // The count is only believed as far as the bytes that remain; beyond that the array
        // grows with what was really read.
        let room = decoder.remaining() / size_of::<T>().max(1);
        let mut elements = Vec::with_capacity(count.min(room));
        for _ in 0..count {
            elements.push(T::read(decoder, form)?);
        }
        decoder.note_reserved(elements.capacity() * size_of::<T>());
        Ok(Some(elements))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_back<T: Wire>(value: &T) -> Result<T, DecodeError> {
        let form = Form {
            version: 1,
            flexible: true,
        };
        let mut encoder = Encoder::new();
        value.write(&mut encoder, form).expect("it has a form");
        T::read(&mut Decoder::new(encoder.finish()), form)
    }

    #[test]
    fn strings_that_kafka_would_not_read_are_refused_in_flexible_versions_too() {
        for (length, is_read) in [(32_767, true), (32_768, false), (1 << 20, false)] {
            let text = "a".repeat(length);
            assert_eq!(read_back(&text).is_ok(), is_read, "{length}");
            assert_eq!(read_back(&Some(text)).is_ok(), is_read, "{length}");
        }
        let bytes = Bytes::from(vec![1; 1 << 20]);
        assert!(read_back(&bytes).is_ok(), "only strings are limited");
    }
}
