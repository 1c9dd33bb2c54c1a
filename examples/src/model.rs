//! The records of the orders workload.
//!
//! Invariants: an [`Order`] that exists is sound: all fields of their types, `placed_at` in RFC
//! 3339, a total that fits.
//! Never: changes a field that it copies.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// An order as it stands in the topic `orders`. Unknown fields are dropped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawOrder")]
pub struct Order {
    /// Also the record's key.
    pub order_id: String,
    /// Key of the customer.
    pub customer_id: String,
    /// What was ordered.
    pub sku: String,
    /// How many.
    pub quantity: u32,
    /// Price of one, in cents.
    pub unit_price_cents: u64,
    /// When, in RFC 3339.
    pub placed_at: String,
    #[serde(skip)]
    total_cents: u64,
}

#[derive(Deserialize)]
struct RawOrder {
    order_id: String,
    customer_id: String,
    sku: String,
    quantity: u32,
    unit_price_cents: u64,
    placed_at: String,
}

impl TryFrom<RawOrder> for Order {
    type Error = String;

    fn try_from(raw: RawOrder) -> Result<Self, String> {
        if let Err(error) = OffsetDateTime::parse(&raw.placed_at, &Rfc3339) {
            return Err(format!(
                "placed_at {:?} is not RFC 3339: {error}",
                raw.placed_at
            ));
        }
        let total_cents = raw
            .unit_price_cents
            .checked_mul(u64::from(raw.quantity))
            .ok_or_else(|| {
                format!(
                    "{} times {} cents overflows",
                    raw.quantity, raw.unit_price_cents
                )
            })?;
        Ok(Self {
            order_id: raw.order_id,
            customer_id: raw.customer_id,
            sku: raw.sku,
            quantity: raw.quantity,
            unit_price_cents: raw.unit_price_cents,
            placed_at: raw.placed_at,
            total_cents,
        })
    }
}

/// A customer as it stands in the topic `customers`, under its `customer_id`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Customer {
    /// Also the record's key.
    pub customer_id: String,
    /// Display name.
    pub name: String,
    /// Contract.
    pub tier: String,
    /// ISO 3166 code.
    pub country: String,
}

/// An order with what is known of its customer; null where nothing is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of Order and Customer")]
pub struct Enriched {
    pub order_id: String,
    pub customer_id: String,
    pub sku: String,
    pub quantity: u32,
    pub unit_price_cents: u64,
    pub placed_at: String,
    pub customer_name: Option<String>,
    pub tier: Option<String>,
    pub country: Option<String>,
    pub total_cents: u64,
}

impl Enriched {
    /// Joins an order with its customer.
    #[must_use]
    pub fn new(order: Order, customer: Option<Customer>) -> Self {
        let (name, tier, country) = customer.map_or((None, None, None), |c| {
            (Some(c.name), Some(c.tier), Some(c.country))
        });
        Self {
            order_id: order.order_id,
            customer_id: order.customer_id,
            sku: order.sku,
            quantity: order.quantity,
            unit_price_cents: order.unit_price_cents,
            placed_at: order.placed_at,
            customer_name: name,
            tier,
            country,
            total_cents: order.total_cents,
        }
    }
}

/// Which source record an order came from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    /// The order.
    pub order_id: String,
    /// Partition of `orders`.
    pub source_partition: i32,
    /// Offset in that partition.
    pub source_offset: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(change: &str, into: &str) -> Result<Order, serde_json::Error> {
        let sound = r#"{"order_id":"o-1","customer_id":"c-1","sku":"s","quantity":2,"unit_price_cents":150,"placed_at":"2026-01-02T03:04:05Z"}"#;
        assert!(sound.contains(change));
        serde_json::from_str(&sound.replace(change, into))
    }

    #[test]
    fn a_sound_order_gets_its_total() {
        let order = read("{", r#"{"unknown":[1],"#).expect("unknown fields are dropped");
        assert_eq!(Enriched::new(order, None).total_cents, 300);
    }

    #[test]
    fn whatever_is_not_an_order_is_refused() {
        let wrong = [
            (r#""quantity":2"#, r#""quantity":-2"#),
            (r#""quantity":2"#, r#""quantity":2.0"#),
            (r#""quantity":2"#, r#""quantity":"2""#),
            (r#""quantity":2"#, r#""quantity":4294967296"#),
            (r#""quantity":2"#, r#""quantity":2,"quantity":2"#),
            (r#""quantity":2,"#, ""),
            (r#""sku":"s""#, r#""sku":null"#),
            ("150", "18446744073709551615"),
            ("2026-01-02T03:04:05Z", "2026-01-02 at noon"),
            ("2026-01-02T03:04:05Z", "2026-02-30T00:00:00Z"),
        ];
        for (change, into) in wrong {
            let error = read(change, into).expect_err(into);
            assert!(!error.to_string().is_empty());
        }
    }
}
