//! Producer, consumer and admin for Millstream's broker and for Apache Kafka.
