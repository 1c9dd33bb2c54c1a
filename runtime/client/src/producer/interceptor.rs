//! What an application hangs in front of `send`: it sees each record before its partition is
//! chosen, and what became of it.
//!
//! Invariants: every record passes each interceptor once, in the order in which they were added,
//! however often `send` has to wait; whoever saw a record hears of its outcome once.
//! Never: lets an interceptor's refusal go by: the call fails and nothing was sent.

use std::sync::Arc;

use super::delivery::Delivery;
use super::record::{ProducerRecord, RecordMetadata};
use crate::error::{DeliveryError, UsageError};

/// Looks at records on their way into the producer (`interceptor.classes`).
///
/// Both calls run on other people's tasks and must not block: [`on_send`](Self::on_send) on the
/// caller's, [`on_acknowledgement`](Self::on_acknowledgement) on the sender's.
pub trait ProducerInterceptor: std::fmt::Debug + Send + Sync {
    /// Sees a record, key and value as bytes, before its partition is chosen, and may change it.
    ///
    /// # Errors
    /// A refusal: `send` fails with [`UsageError::Intercepted`] and nothing was sent.
    fn on_send(&self, record: &mut ProducerRecord) -> Result<(), InterceptorError>;

    /// Hears what became of a record that was accepted.
    fn on_acknowledgement(&self, outcome: &Result<RecordMetadata, DeliveryError>) {
        let _ = outcome;
    }
}

/// Why an interceptor refuses a record.
pub type InterceptorError = Box<dyn std::error::Error + Send + Sync>;

/// The interceptors of a producer, in order.
#[derive(Clone, Debug, Default)]
pub struct Interceptors(Vec<Arc<dyn ProducerInterceptor>>);

impl Interceptors {
    pub(super) fn add(&mut self, interceptor: Arc<dyn ProducerInterceptor>) {
        self.0.push(interceptor);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes a record through all of them.
    pub(super) fn on_send(&self, record: &mut ProducerRecord) -> Result<(), UsageError> {
        for interceptor in &self.0 {
            let topic = Arc::clone(&record.topic);
            interceptor
                .on_send(record)
                .map_err(|reason| UsageError::Intercepted {
                    topic,
                    reason: reason.to_string().into(),
                })?;
        }
        Ok(())
    }

    /// Has all of them hear what becomes of a record.
    pub(super) fn watch(&self, delivery: &Delivery) {
        if self.0.is_empty() {
            return;
        }
        let interceptors = self.0.clone();
        delivery.also_on_resolved(move |outcome| {
            for interceptor in &interceptors {
                interceptor.on_acknowledgement(&outcome);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use millstream_protocol::ApiKey;

    use super::*;
    use crate::producer::partitioner;
    use crate::scripted::{ScriptedBroker, Step};
    use crate::{EnqueueError, Producer};

    /// Writes down what it sees, and puts its name behind the key.
    #[derive(Clone, Debug)]
    struct Witness {
        name: &'static str,
        seen: Arc<Mutex<Vec<String>>>,
    }

    impl ProducerInterceptor for Witness {
        fn on_send(&self, record: &mut ProducerRecord) -> Result<(), InterceptorError> {
            let key = record.key.take().unwrap_or_default();
            let key = format!("{}{}", String::from_utf8(key.to_vec())?, self.name);
            self.note(format!("{} sends {key}", self.name));
            if key.starts_with("refuse") {
                return Err("no such key here".into());
            }
            record.key = Some(key.into());
            Ok(())
        }

        fn on_acknowledgement(&self, outcome: &Result<RecordMetadata, DeliveryError>) {
            let outcome = outcome.as_ref().map(|metadata| metadata.offset);
            let text = outcome.map_or_else(|_| "failure".to_owned(), |at| at.to_string());
            self.note(format!("{} hears {text}", self.name));
        }
    }

    impl Witness {
        fn note(&self, text: String) {
            self.seen.lock().unwrap().push(text);
        }
    }

    async fn watched(broker: &ScriptedBroker) -> (Producer, Arc<Mutex<Vec<String>>>) {
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let witness = |name| Witness {
            name,
            seen: Arc::clone(&seen),
        };
        let builder = Producer::builder()
            .interceptor(witness("a"))
            .interceptor(witness("b"))
            .max_block_ms(2_000);
        let producer = builder.connect(&broker.transport()).await.unwrap();
        (producer, seen)
    }

    // Row 68: interceptors, then the partition, then the accumulator.
    #[tokio::test(start_paused = true)]
    async fn a_record_passes_each_once_before_its_partition_is_chosen_however_long_send_waits() {
        let broker = ScriptedBroker::new(&[("orders", 10)]);
        // The first metadata is slow, so `send` has to go round again.
        broker.script(ApiKey::Metadata, &[Step::Delay(Duration::from_millis(500))]);
        let (producer, seen) = watched(&broker).await;
        let record = ProducerRecord::new("orders").key("key").value("v");
        let metadata = producer.send(record).await.unwrap().await.unwrap();
        let chosen = partitioner::partition_of_key(b"keyab", 10);
        assert_eq!(
            metadata.partition, chosen,
            "by the key as the last one left it"
        );
        assert_ne!(
            chosen,
            partitioner::partition_of_key(b"key", 10),
            "the key tells them apart"
        );
        assert_eq!(
            *seen.lock().unwrap(),
            ["a sends keya", "b sends keyab", "a hears 0", "b hears 0"]
        );
    }

    // Row 81: what is wrong with the call comes from the call.
    #[tokio::test(start_paused = true)]
    async fn a_refusal_fails_the_call_and_sends_nothing() {
        let broker = ScriptedBroker::new(&[("orders", 1)]);
        let (producer, seen) = watched(&broker).await;
        let refused = ProducerRecord::new("orders").key("refuse");
        let error = producer
            .send(refused.clone())
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("orders") && error.contains("no such key"),
            "{error}"
        );
        let error = producer.try_send(&refused).unwrap_err();
        assert!(
            matches!(error, EnqueueError::Usage(UsageError::Intercepted { .. })),
            "{error}"
        );
        producer.flush().await.unwrap();
        assert!(broker.received(ApiKey::Produce).is_empty());
        assert_eq!(
            seen.lock().unwrap().len(),
            2,
            "nobody behind it, and no outcome"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_that_was_accepted_and_failed_is_heard_of() {
        let broker = ScriptedBroker::new(&[]);
        let (producer, seen) = watched(&broker).await;
        let record = ProducerRecord::new("nowhere").key("k");
        producer.send(record).await.unwrap().await.unwrap_err();
        assert_eq!(
            seen.lock().unwrap()[2..],
            ["a hears failure", "b hears failure"]
        );
    }
}
