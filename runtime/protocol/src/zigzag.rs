//! Zigzag varints of the record format: the lengths, deltas and counts inside a record batch.
//!
//! Invariants: a read either advances past one whole varint or reports `None` and stays put.
//! Never: reads past the slice, accepts more bits than the type holds, allocates.

/// Longest encoding of an `i32`.
pub(crate) const MAX_BYTES_I32: usize = 5;
/// Longest encoding of an `i64`.
pub(crate) const MAX_BYTES_I64: usize = 10;

/// Reads one zigzag `i32` at `*at` and moves `*at` past it.
#[inline]
pub(crate) fn read_i32(bytes: &[u8], at: &mut usize) -> Option<i32> {
    let first = *bytes.get(*at)?;
    let raw = if first < 0x80 {
        *at += 1;
        u32::from(first)
    } else {
        let (raw, length) = read_long(bytes.get(*at..)?, MAX_BYTES_I32)?;
        let raw = u32::try_from(raw).ok()?;
        *at += length;
        raw
    };
    Some(((raw >> 1) as i32) ^ -((raw & 1) as i32))
}

/// Reads one zigzag `i64` at `*at` and moves `*at` past it.
#[inline]
pub(crate) fn read_i64(bytes: &[u8], at: &mut usize) -> Option<i64> {
    let first = *bytes.get(*at)?;
    let raw = if first < 0x80 {
        *at += 1;
        u64::from(first)
    } else {
        let (raw, length) = read_long(bytes.get(*at..)?, MAX_BYTES_I64)?;
        *at += length;
        raw
    };
    Some(((raw >> 1) as i64) ^ -((raw & 1) as i64))
}

fn read_long(bytes: &[u8], max_bytes: usize) -> Option<(u64, usize)> {
    let mut raw = 0_u64;
    for (position, byte) in bytes.iter().take(max_bytes).enumerate() {
        let bits = u64::from(byte & 0x7f);
        let shift = 7 * position as u32;
        if shift == 63 && bits > 1 {
            return None;
        }
        raw |= bits << shift;
        if byte & 0x80 == 0 {
            return Some((raw, position + 1));
        }
    }
    None
}

/// Bytes that [`put_i32`] takes for this value.
#[inline]
pub(crate) fn size_i32(value: i32) -> usize {
    size_i64(i64::from(value))
}

/// Bytes that [`put_i64`] takes for this value.
#[inline]
pub(crate) fn size_i64(value: i64) -> usize {
    let raw = ((value << 1) ^ (value >> 63)) as u64;
    if raw < 0x80 {
        return 1;
    }
    let bits = 64 - raw.leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Writes a zigzag `i64` at the start of `buffer` and returns the bytes taken.
#[inline]
pub(crate) fn put_i64(buffer: &mut [u8; MAX_BYTES_I64], value: i64) -> usize {
    let mut raw = ((value << 1) ^ (value >> 63)) as u64;
    let mut length = 0;
    for slot in buffer.iter_mut() {
        length += 1;
        if raw < 0x80 {
            *slot = raw as u8;
            break;
        }
        *slot = (raw as u8 & 0x7f) | 0x80;
        raw >>= 7;
    }
    length
}

/// Writes a zigzag `i64` to the start of `target`, which has room, and returns what is left of it.
#[inline]
pub(crate) fn write(mut target: &mut [u8], value: i64) -> &mut [u8] {
    let mut raw = ((value << 1) ^ (value >> 63)) as u64;
    loop {
        let Some((slot, rest)) = target.split_first_mut() else {
            return &mut [];
        };
        target = rest;
        if raw < 0x80 {
            *slot = raw as u8;
            return target;
        }
        *slot = raw as u8 | 0x80;
        raw >>= 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(value: i64) -> Vec<u8> {
        let mut buffer = [0; MAX_BYTES_I64];
        let length = put_i64(&mut buffer, value);
        buffer[..length].to_vec()
    }

    #[test]
    fn known_values_have_known_bytes() {
        for (value, bytes) in [
            (0, vec![0x00]),
            (-1, vec![0x01]),
            (1, vec![0x02]),
            (63, vec![0x7e]),
            (-64, vec![0x7f]),
            (64, vec![0x80, 0x01]),
            (i64::from(i32::MAX), vec![0xfe, 0xff, 0xff, 0xff, 0x0f]),
            (i64::from(i32::MIN), vec![0xff, 0xff, 0xff, 0xff, 0x0f]),
        ] {
            assert_eq!(encoded(value), bytes, "{value}");
            let mut at = 0;
            assert_eq!(read_i32(&bytes, &mut at), Some(value as i32));
            assert_eq!(at, bytes.len());
        }
    }

    #[test]
    fn truncated_and_overlong_varints_are_refused() {
        for bytes in [&[][..], &[0x80][..], &[0xff, 0xff, 0xff, 0xff][..]] {
            assert_eq!(read_i32(bytes, &mut 0), None);
            assert_eq!(read_i64(bytes, &mut 0), None);
        }
        assert_eq!(
            read_i32(&[0xff, 0xff, 0xff, 0xff, 0x1f], &mut 0),
            None,
            "33 bits"
        );
        assert_eq!(
            read_i32(&[0xff, 0xff, 0xff, 0xff, 0xff, 0x00], &mut 0),
            None
        );
        assert_eq!(read_i64(&[0xff; 11], &mut 0), None);
        let mut bits_65 = [0xff; 10];
        bits_65[9] = 0x02;
        assert_eq!(read_i64(&bits_65, &mut 0), None);
    }

    proptest! {
        #[test]
        fn every_value_survives_a_round_trip(wide: i64, narrow: i32) {
            let bytes = encoded(wide);
            prop_assert_eq!(bytes.len(), size_i64(wide));
            prop_assert_eq!(read_i64(&bytes, &mut 0), Some(wide));
            let bytes = encoded(i64::from(narrow));
            prop_assert_eq!(bytes.len(), size_i32(narrow));
            prop_assert_eq!(read_i32(&bytes, &mut 0), Some(narrow));
        }
    }
}
