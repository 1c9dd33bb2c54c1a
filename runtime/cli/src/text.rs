//! Bytes as JSON: text where they are text, `{"base64": …}` where they are not.
//!
//! Invariants: null, empty and missing stay apart; no byte is lost (what is not UTF-8 is written in
//! base64, RFC 4648 with padding).
//! Never: guesses an encoding.

use serde_json::{Value, json};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A nullable run of bytes.
pub(crate) fn bytes_to_json(bytes: Option<&[u8]>) -> Value {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => Value::Null,
        Some((_, Ok(text))) => Value::from(text),
        Some((bytes, Err(_))) => json!({ "base64": base64(bytes) }),
    }
}

/// Headers as pairs, in their order, repeated keys kept.
pub(crate) fn headers_to_json<'a>(
    headers: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
) -> Value {
    let pairs = headers.map(|(key, value)| json!([bytes_to_json(Some(key)), bytes_to_json(value)]));
    Value::Array(pairs.collect())
}

fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or_default());
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            if place > chunk.len() {
                text.push('=');
            } else {
                let index = group >> (18 - 6 * place) & 63;
                text.push(char::from(ALPHABET[index as usize]));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        let vectors = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, encoded) in vectors {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xbf]), "+/+/");
    }

    #[test]
    fn null_empty_text_and_bytes_stay_apart() {
        assert_eq!(bytes_to_json(None), Value::Null);
        assert_eq!(bytes_to_json(Some(b"")), json!(""));
        assert_eq!(
            bytes_to_json(Some("Zo\u{eb} \u{1}\"".as_bytes())),
            json!("Zo\u{eb} \u{1}\"")
        );
        assert_eq!(bytes_to_json(Some(&[0xff])), json!({"base64": "/w=="}));
    }

    #[test]
    fn headers_keep_their_order_their_repeats_and_keys_that_are_not_text() {
        let headers: [(&[u8], Option<&[u8]>); 4] = [
            (b"b", Some(b"1")),
            (b"a", None),
            (b"b", Some(b"")),
            (&[0xff], Some(&[0xfe])),
        ];
        assert_eq!(
            headers_to_json(headers.into_iter()),
            json!([["b", "1"], ["a", null], ["b", ""], [{"base64": "/w=="}, {"base64": "/g=="}]])
        );
    }
}
