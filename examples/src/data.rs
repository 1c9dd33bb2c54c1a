//! The bundled orders and customers, and the generator that they come from.
//!
//! Invariants: the bundled data are the first records of the generator (a test compares them), so
//! loading them and loading generated ones continue each other.
//! Never: two different records under one number.

use std::io::Read as _;

use crate::model::Customer;

/// Orders in the bundle.
pub const BUNDLED_ORDERS: u64 = 20_000;
/// Customers, bundled and generated.
pub const CUSTOMERS: u64 = 1_000;
/// What the loader notes as its source.
pub const SOURCE: &str = "millstream orders workload, seed 20261129";

const SEED: u64 = 20_261_129;
const FIRST_NAMES: [&str; 16] = [
    "Amélie",
    "Björn",
    "Chiều",
    "Dewi",
    "Émile",
    "Фёдор",
    "Gül",
    "Håkon",
    "Íris",
    "José",
    "Kübra",
    "Lưu",
    "Mária",
    "Ngọc",
    "Óscar",
    "さくら",
];
const LAST_NAMES: [&str; 12] = [
    "Åkesson",
    "Nguyễn",
    "Santoso",
    "Müller",
    "Иванова",
    "García",
    "O’Neill",
    "Øster",
    "Petrović",
    "Şahin",
    "Wójcik",
    "山田",
];
const TIERS: [&str; 4] = ["bronze", "silver", "gold", "platinum"];
const COUNTRIES: [&str; 10] = ["ID", "VN", "DE", "FR", "SE", "TR", "JP", "BR", "PL", "IE"];

/// One record: key and value as bytes, either may be null.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawRecord {
    /// The key.
    pub key: Option<Vec<u8>>,
    /// The value.
    pub value: Option<Vec<u8>>,
}

/// The record with this number, counted from 0; each number has a random stream of its own.
#[must_use]
pub fn order(number: u64) -> RawRecord {
    let mut random = fastrand::Rng::with_seed(SEED ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let order_id = format!("o-{number:08}");
    // A few customers are unknown: the join finds nothing for them.
    let customer = random.u64(..CUSTOMERS * 51 / 50);
    let (quantity, price) = (random.u32(1..=12), random.u64(99..=250_000));
    let (sku, second) = (random.u32(..5_000), number % 31_536_000);
    let (day, rest) = (second / 86_400, second % 86_400);
    let value = format!(
        r#"{{"order_id":"{order_id}","customer_id":"c-{customer:05}","sku":"sku-{sku:04}","quantity":{quantity},"unit_price_cents":{price},"placed_at":"2026-{:02}-{:02}T{:02}:{:02}:{:02}Z"}}"#,
        1 + day / 28 % 12,
        1 + day % 28,
        rest / 3_600,
        rest / 60 % 60,
        rest % 60,
    );
    match number % 250 {
        // One record in 250 is malformed, in turn in each of the ways that producers find.
        113 => malformed(number / 250, order_id, &value),
        _ => RawRecord {
            key: Some(order_id.into_bytes()),
            value: Some(value.into_bytes()),
        },
    }
}

fn malformed(kind: u64, order_id: String, value: &str) -> RawRecord {
    let value = match kind % 8 {
        0 => value[..value.len() / 2].to_owned().into_bytes(),
        1 => value
            .replace("\"quantity\":", "\"quantity\":-")
            .into_bytes(),
        2 => value.replace("\"sku\":", "\"product\":").into_bytes(),
        3 => value.replace("2026-", "yesterday ").into_bytes(),
        4 => value
            .replace(
                "\"unit_price_cents\":",
                "\"unit_price_cents\":9999999999999999",
            )
            .into_bytes(),
        5 => vec![0xff, 0xfe, 0x00, 0x7b],
        6 => b"[\"an\",\"array\"]".to_vec(),
        _ => {
            return RawRecord {
                key: None,
                value: None,
            };
        }
    };
    RawRecord {
        key: Some(order_id.into_bytes()),
        value: Some(value),
    }
}

/// The customer with this number, counted from 0.
#[must_use]
pub fn customer(number: u64) -> Customer {
    let mut random = fastrand::Rng::with_seed(SEED ^ !number);
    let mut pick = |from: &[&'static str]| from[random.usize(..from.len())];
    Customer {
        customer_id: format!("c-{number:05}"),
        name: format!("{} {}", pick(&FIRST_NAMES), pick(&LAST_NAMES)),
        tier: pick(&TIERS).to_owned(),
        country: pick(&COUNTRIES).to_owned(),
    }
}

/// The bundled orders, in the order of their numbers.
///
/// # Panics
/// Where the bundle in this repository is damaged.
#[must_use]
pub fn bundled_orders() -> Vec<RawRecord> {
    unpack(include_bytes!("../data/orders.gz"))
}

/// The bundled customers, in the order of their numbers.
///
/// # Panics
/// Where the bundle in this repository is damaged.
#[must_use]
pub fn bundled_customers() -> Vec<RawRecord> {
    unpack(include_bytes!("../data/customers.gz"))
}

/// The bundle's form: each key and value as a little-endian `i32` length (-1 for null) and its
/// bytes, gzipped.
fn unpack(packed: &[u8]) -> Vec<RawRecord> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed)
        .read_to_end(&mut bytes)
        .expect("the bundle is part of this crate and compared with the generator by a test");
    let mut rest = bytes.as_slice();
    let mut records = Vec::new();
    while let Some(key) = take(&mut rest) {
        let value = take(&mut rest).expect("a bundled record is a key and a value");
        records.push(RawRecord { key, value });
    }
    records
}

fn take(rest: &mut &[u8]) -> Option<Option<Vec<u8>>> {
    let (length, behind) = rest.split_first_chunk::<4>()?;
    *rest = behind;
    let Ok(length) = usize::try_from(i32::from_le_bytes(*length)) else {
        return Some(None);
    };
    let (field, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(Some(field.to_vec()))
}

/// Packs records into the bundle's form.
#[must_use]
pub fn pack(records: &[RawRecord]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    for field in records
        .iter()
        .flat_map(|record| [&record.key, &record.value])
    {
        let length = field.as_ref().map_or(-1, |field| field.len() as i32);
        let field = field.as_deref().unwrap_or_default();
        encoder
            .write_all(&length.to_le_bytes())
            .and_then(|()| encoder.write_all(field))
            .expect("a vector takes every write");
    }
    encoder.finish().expect("a vector takes every write")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Order;

    fn generated_customers() -> Vec<RawRecord> {
        let record = |number| {
            let customer = customer(number);
            let value = serde_json::to_vec(&customer).expect("a customer is JSON");
            RawRecord {
                key: Some(customer.customer_id.into_bytes()),
                value: Some(value),
            }
        };
        (0..CUSTOMERS).map(record).collect()
    }

    /// `MILLSTREAM_WRITE_BUNDLE=1 cargo test -p examples` writes the bundle anew.
    #[test]
    fn the_bundle_is_the_generators_beginning() {
        let orders: Vec<RawRecord> = (0..BUNDLED_ORDERS).map(order).collect();
        if std::env::var_os("MILLSTREAM_WRITE_BUNDLE").is_some() {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/data");
            std::fs::write(format!("{folder}/orders.gz"), pack(&orders)).expect("writable");
            std::fs::write(
                format!("{folder}/customers.gz"),
                pack(&generated_customers()),
            )
            .expect("writable");
            return;
        }
        assert!(
            bundled_orders() == orders,
            "orders.gz differs from the generator"
        );
        assert!(
            bundled_customers() == generated_customers(),
            "customers.gz differs"
        );
    }

    #[test]
    fn one_record_in_250_is_malformed_and_some_customers_are_unknown() {
        let orders: Vec<RawRecord> = (0..BUNDLED_ORDERS).map(order).collect();
        let sound: Vec<Order> = orders
            .iter()
            .filter_map(|record| record.value.as_deref())
            .filter(|value| value.first() == Some(&b'{'))
            .filter_map(|value| serde_json::from_slice(value).ok())
            .collect();
        assert_eq!(sound.len() as u64, BUNDLED_ORDERS - BUNDLED_ORDERS / 250);
        let known = |order: &&Order| order.customer_id.as_str() < "c-01000";
        let unknown = sound.len() - sound.iter().filter(known).count();
        assert!((200..800).contains(&unknown), "{unknown}");
    }
}
