//! The `message!` macro: a table of fields in, a structure with decoder and encoder out.
//!
//! ```text
//! message! {
//!     /// What it asks for.
//!     pub struct FooRequest(versions 1..=4, flexible 3..) {
//!         group_id: String, in 0..;
//!         instance: Option<String> = None, in 2.., null 2.., else dropped;
//!         rack: String, in 3.., tag 0;
//!     }
//! }
//! ```
//!
//! A row says: name, Rust type, default (else the type's own), the versions it is `in`, the
//! versions in which it may be `null`, its `tag`. A field set to another value than its default
//! in a version without it is an error, `else dropped` says that it may get lost. A structure
//! without parentheses is part of another one and has that one's versions.
//!
//! Invariants: fields stand on the wire in the order of the table; tags ascend.
//! Never: decides by anything but the version how a field is written.

use std::ops::RangeInclusive;

use bytes::Bytes;

use crate::primitives::{DecodeError, Decoder, EncodeError, Encoder, Form, Sampler, Wire};

/// A structure that is sent or stored by itself, in versions.
pub trait Message:
    Send + Sync + 'static + Default + Clone + std::fmt::Debug + PartialEq + Wire
{
    /// The versions that can be read and written.
    const VERSIONS: RangeInclusive<i16>;
    /// The first flexible version; `i16::MAX` if there is none.
    const FLEXIBLE_FROM: i16;
    /// The structure's name.
    const NAME: &'static str;

    /// Writes the message in a version.
    ///
    /// # Errors
    /// [`EncodeError`] if the message has no such version, or a value has no form in it.
    fn encode(&self, encoder: &mut Encoder, version: i16) -> Result<(), EncodeError> {
        if !Self::VERSIONS.contains(&version) {
            return Err(EncodeError::Version {
                message: Self::NAME,
                version,
            });
        }
        self.write(
            encoder,
            Form {
                version,
                flexible: version >= Self::FLEXIBLE_FROM,
            },
        )
    }

    /// Reads a message of a version. Bytes that follow it are left.
    ///
    /// # Errors
    /// [`DecodeError`] if the message has no such version, or the bytes are none.
    fn decode(decoder: &mut Decoder, version: i16) -> Result<Self, DecodeError> {
        if !Self::VERSIONS.contains(&version) {
            return Err(DecodeError::Version {
                message: Self::NAME,
                version,
            });
        }
        Self::read(
            decoder,
            Form {
                version,
                flexible: version >= Self::FLEXIBLE_FROM,
            },
        )
    }

    /// The message behind its version as 16 bits: how keys and values of internal topics and the
    /// group protocol's blobs are stored.
    ///
    /// # Errors
    /// As [`Message::encode`].
    fn to_versioned_bytes(&self, version: i16) -> Result<Bytes, EncodeError> {
        let mut encoder = Encoder::new();
        encoder.i16(version);
        self.encode(&mut encoder, version)?;
        Ok(encoder.finish().into_contiguous())
    }

    /// Reads what [`Message::to_versioned_bytes`] wrote: the version and the message.
    ///
    /// # Errors
    /// As [`Message::decode`].
    fn from_versioned_bytes(bytes: Bytes) -> Result<(i16, Self), DecodeError> {
        let mut decoder = Decoder::from_bytes(bytes);
        let version = decoder.i16()?;
        Ok((version, Self::decode(&mut decoder, version)?))
    }
}

/// Versions from one to another, both included.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Versions {
    pub first: i16,
    pub last: i16,
}

impl Versions {
    fn contains(self, version: i16) -> bool {
        self.first <= version && version <= self.last
    }
}

/// One row of a table.
///
/// What can be done with a field is compiled once a type, not once a field: the tables are long
/// and the compiler's time is what a first build waits for.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Column {
    pub message: &'static str,
    pub field: &'static str,
    pub present: Versions,
    pub nullable: Versions,
    pub dropped: bool,
    pub tag: Option<u32>,
}

impl Column {
    /// Whether the field is an untagged one of this version.
    fn is_plain(&self, form: Form) -> bool {
        self.tag.is_none() && self.present.contains(form.version)
    }

    /// The fewest bytes that the field takes; `_default` says of which type it is.
    pub fn min_bytes<T: Wire>(&self, _default: fn() -> T, form: Form) -> usize {
        if self.is_plain(form) {
            T::min_bytes(form)
        } else {
            0
        }
    }

    /// Writes the field if it is an untagged one of this version.
    pub fn write<T: Wire + PartialEq>(
        &self,
        value: &T,
        default: fn() -> T,
        encoder: &mut Encoder,
        form: Form,
    ) -> Result<(), EncodeError> {
        if !self.present.contains(form.version) {
            return if self.dropped || *value == default() {
                Ok(())
            } else {
                Err(self.unsupported(form))
            };
        }
        if value.is_null() && !self.nullable.contains(form.version) {
            return Err(self.null(form));
        }
        if self.tag.is_none() {
            value.write(encoder, form)
        } else {
            Ok(())
        }
    }

    fn unsupported(&self, form: Form) -> EncodeError {
        EncodeError::Unsupported {
            message: self.message,
            field: self.field,
            version: form.version,
        }
    }

    fn null(&self, form: Form) -> EncodeError {
        EncodeError::Null {
            message: self.message,
            field: self.field,
            version: form.version,
        }
    }

    /// Whether the field is a tagged one that must be written, because it is not the default.
    pub fn is_tagged<T: Wire + PartialEq>(
        &self,
        value: &T,
        default: fn() -> T,
        form: Form,
    ) -> bool {
        self.tag.is_some() && self.present.contains(form.version) && *value != default()
    }

    /// Writes the field if it is a tagged one that must be written.
    pub fn write_tagged<T: Wire + PartialEq>(
        &self,
        value: &T,
        default: fn() -> T,
        encoder: &mut Encoder,
        form: Form,
    ) -> Result<(), EncodeError> {
        match self.tag {
            Some(tag) if self.is_tagged(value, default, form) => {
                encoder.tagged(tag, |encoder| value.write(encoder, form))
            }
            _ => Ok(()),
        }
    }

    /// Reads the field if it is an untagged one of this version.
    pub fn read<T: Wire>(
        &self,
        value: &mut T,
        decoder: &mut Decoder,
        form: Form,
    ) -> Result<(), DecodeError> {
        if self.is_plain(form) {
            self.fill(value, decoder, form)
        } else {
            Ok(())
        }
    }

    /// Reads the field if `tag` is its own; says whether it was.
    pub fn read_tagged<T: Wire>(
        &self,
        tag: u32,
        size: usize,
        value: &mut T,
        decoder: &mut Decoder,
        form: Form,
    ) -> Result<bool, DecodeError> {
        if self.tag != Some(tag) || !self.present.contains(form.version) {
            return Ok(false);
        }
        let before = decoder.remaining();
        self.fill(value, decoder, form)?;
        let taken = before - decoder.remaining();
        if taken != size {
            return Err(self.here(DecodeError::TagSize { tag, size, taken }));
        }
        Ok(true)
    }

    fn fill<T: Wire>(
        &self,
        value: &mut T,
        decoder: &mut Decoder,
        form: Form,
    ) -> Result<(), DecodeError> {
        *value = match T::read(decoder, form) {
            Ok(read) if read.is_null() && !self.nullable.contains(form.version) => {
                return Err(self.here(DecodeError::Null { what: "field" }));
            }
            Ok(read) => read,
            Err(error) => return Err(self.here(error)),
        };
        Ok(())
    }

    /// The error, with the field that it happened in.
    #[cold]
    fn here(&self, error: DecodeError) -> DecodeError {
        error.in_field(self.message, self.field)
    }

    /// Makes up a value for the field if this version has it.
    pub fn sample<T: Wire>(&self, value: &mut T, sampler: &mut Sampler, form: Form) {
        if self.present.contains(form.version) {
            *value = T::sample(sampler, form);
            while value.is_null() && !self.nullable.contains(form.version) {
                *value = T::sample(sampler, form);
            }
        }
    }
}

/// What reads a tagged field, given its tag and size; says whether there is such a field.
type ReadTagged<'a> = dyn FnMut(&mut Decoder, u32, usize) -> Result<bool, DecodeError> + 'a;

/// Reads the tagged fields that follow the others in a flexible version.
#[doc(hidden)]
pub fn read_tags(
    decoder: &mut Decoder,
    form: Form,
    read: &mut ReadTagged<'_>,
) -> Result<(), DecodeError> {
    if !form.flexible {
        return Ok(());
    }
    for _ in 0..decoder.unsigned_varint()? {
        let tag = decoder.unsigned_varint()?;
        let size = decoder.unsigned_varint()? as usize;
        if !read(decoder, tag, size)? {
            decoder.skip(size)?;
        }
    }
    Ok(())
}

/// Declares messages and their parts as tables; see the module's text.
#[macro_export]
macro_rules! message {
    ($(
        $(#[$doc:meta])*
        pub struct $name:ident $((versions $versions:expr $(, flexible $flexible:literal ..)?))? {
            $(
                $(#[$field_doc:meta])*
                $field:ident: $type:ty $(= $default:expr)?,
                in $first:literal $(..)? $(..= $last:literal)?
                $(, null $null_first:literal $(..)? $(..= $null_last:literal)?)?
                $(, tag $tag:literal)? $(, else $dropped:ident)?;
            )*
        }
    )+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {$(
            $(#[$field_doc])*
            #[doc = concat!("In versions `", $first, "..", $("=", $last,)? "`.")]
            pub $field: $type,
        )*}

        /// The table's rows, by the names of their fields.
        #[allow(non_upper_case_globals)]
        impl $name {$(
            const $field: $crate::schema::Column = $crate::schema::Column {
                message: stringify!($name),
                field: stringify!($field),
                present: $crate::message!(@versions $first $($last)?),
                nullable: $crate::message!(@versions $($null_first $($null_last)?)?),
                dropped: $crate::message!(@dropped $($dropped)?),
                tag: $crate::message!(@tag $($tag)?),
            };
        )*}

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $crate::message!(@default $type $(, $default)?)(),)* }
            }
        }

        impl $crate::Wire for $name {
            fn min_bytes(form: $crate::Form) -> usize {
                let mut bytes = usize::from(form.flexible);
                $(
                    let default = $crate::message!(@default $type $(, $default)?);
                    bytes += Self::$field.min_bytes(default, form);
                )*
                bytes
            }

            fn write(
                &self,
                encoder: &mut $crate::Encoder,
                form: $crate::Form,
            ) -> Result<(), $crate::EncodeError> {
                $(
                    let default = $crate::message!(@default $type $(, $default)?);
                    Self::$field.write(&self.$field, default, encoder, form)?;
                )*
                if form.flexible {
                    encoder.unsigned_varint(0 $(+ $crate::message!(@when [$($tag)?]
                        u32::from(Self::$field.is_tagged(
                            &self.$field,
                            $crate::message!(@default $type $(, $default)?),
                            form,
                        )), 0
                    ))*);
                    $($crate::message!(@when [$($tag)?]
                        Self::$field.write_tagged(
                            &self.$field,
                            $crate::message!(@default $type $(, $default)?),
                            encoder,
                            form,
                        )?, ()
                    );)*
                }
                Ok(())
            }

            fn read(
                decoder: &mut $crate::Decoder,
                form: $crate::Form,
            ) -> Result<Self, $crate::DecodeError> {
                let mut value = Self::default();
                $(Self::$field.read(&mut value.$field, decoder, form)?;)*
                $crate::schema::read_tags(decoder, form, &mut |decoder, tag, size| {
                    let _ = (&decoder, tag, size);
                    Ok(false $(|| $crate::message!(@when [$($tag)?]
                        Self::$field.read_tagged(tag, size, &mut value.$field, decoder, form)?,
                        false
                    ))*)
                })?;
                Ok(value)
            }

            fn sample(sampler: &mut $crate::Sampler, form: $crate::Form) -> Self {
                let mut value = Self::default();
                $(Self::$field.sample(&mut value.$field, sampler, form);)*
                value
            }
        }

        $crate::message!(@message $name $([$versions] [$($flexible)?])?);
    )+};

    // How a field's default is made: one function a type, unless the table names another value.
    (@default $type:ty) => { <$type as Default>::default };
    (@default $type:ty, $default:expr) => { || -> $type { $default } };

    (@when [] $tagged:expr, $plain:expr) => { $plain };
    (@when [$tag:literal] $tagged:expr, $plain:expr) => { $tagged };
    (@versions) => { $crate::schema::Versions { first: i16::MAX, last: i16::MIN } };
    (@versions $first:literal) => {
        $crate::schema::Versions { first: $first, last: i16::MAX }
    };
    (@versions $first:literal $last:literal) => {
        $crate::schema::Versions { first: $first, last: $last }
    };
    (@dropped) => { false };
    (@dropped dropped) => { true };
    (@tag) => { None };
    (@tag $tag:literal) => { Some($tag) };

    // A part of another structure: null is one byte of -1 before it.
    (@message $name:ident) => {
        impl $crate::Nullable for $name {
            fn nullable_min_bytes(_form: $crate::Form) -> usize {
                1
            }

            fn write_nullable(
                value: Option<&Self>,
                encoder: &mut $crate::Encoder,
                form: $crate::Form,
            ) -> Result<(), $crate::EncodeError> {
                encoder.i8(if value.is_some() { 1 } else { -1 });
                value.map_or(Ok(()), |value| $crate::Wire::write(value, encoder, form))
            }

            fn read_nullable(
                decoder: &mut $crate::Decoder,
                form: $crate::Form,
            ) -> Result<Option<Self>, $crate::DecodeError> {
                if decoder.i8()? < 0 {
                    return Ok(None);
                }
                $crate::Wire::read(decoder, form).map(Some)
            }
        }
    };
    (@message $name:ident [$versions:expr] [$($flexible:literal)?]) => {
        impl $crate::Message for $name {
            const VERSIONS: std::ops::RangeInclusive<i16> = $versions;
            const FLEXIBLE_FROM: i16 = $crate::message!(@flexible $($flexible)?);
            const NAME: &'static str = stringify!($name);
        }
    };
    (@flexible) => { i16::MAX };
    (@flexible $flexible:literal) => { $flexible };
}
