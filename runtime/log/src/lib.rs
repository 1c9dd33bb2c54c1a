//! One partition on disk in Kafka's format, and the journal that makes a broker's appends durable.
