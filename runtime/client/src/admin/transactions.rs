//! Transactions and producers as coordinators and leaders know them.
//!
//! Invariants: a transactional id is asked about at its coordinator, a producer at the leader.
//! Never: ends a transaction.

use futures::future::BoxFuture;
use std::collections::BTreeMap;

use millstream_protocol::messages::{
    DescribeProducersRequest, DescribeTransactionsRequest, ListTransactionsRequest,
    describe_producers, describe_transactions, list_transactions,
};
use millstream_protocol::{ApiKey, ErrorCode, TopicPartition};

use super::offsets::by_topic;
use super::{Admin, AdminError, check, passing};
use crate::cluster::CoordinatorKind;

/// How often a coordinator that is loading or moving is asked.
const ATTEMPTS_MAX: u32 = 100;

impl Admin {
    /// What its coordinator knows of a transactional id: state, producer id and epoch, partitions.
    ///
    /// # Errors
    /// Where the coordinator does not answer in time, or does not know the id
    /// (`TRANSACTIONAL_ID_NOT_FOUND`).
    pub fn describe_transaction<'a>(
        &'a self,
        transactional_id: &'a str,
    ) -> BoxFuture<'a, Result<describe_transactions::TransactionState, AdminError>> {
        Box::pin(async move {
            let kind = CoordinatorKind::Transaction;
            let patience = self.cluster.config().request_timeout;
            let mut attempt = 0;
            loop {
                let ids = vec![transactional_id.to_owned()];
                let request = DescribeTransactionsRequest {
                    transactional_ids: ids,
                };
                let answer = self
                    .ask(|| {
                        let request = request.clone();
                        self.cluster.ask_coordinator(
                            kind,
                            transactional_id,
                            patience,
                            i16::MAX,
                            |_| request,
                        )
                    })
                    .await?;
                let mut states = answer.transaction_states.into_iter();
                let found = states.find(|state| state.transactional_id == transactional_id);
                let code = found
                    .as_ref()
                    .map_or(ErrorCode::TRANSACTIONAL_ID_NOT_FOUND, |state| {
                        state.error_code
                    });
                if passing(ApiKey::DescribeTransactions, code) && attempt < ATTEMPTS_MAX {
                    self.cluster.forget_coordinator(kind, transactional_id);
                    tokio::time::sleep(self.cluster.retry_pause(attempt)).await;
                    attempt += 1;
                    continue;
                }
                check("describe the transaction of", transactional_id, code, None)?;
                return Ok(found.unwrap_or_default());
            }
        })
    }

    /// The transactional ids that the brokers coordinate, by id.
    ///
    /// # Errors
    /// Where a broker does not answer or refuses.
    pub fn list_transactions(
        &self,
    ) -> BoxFuture<'_, Result<Vec<list_transactions::TransactionState>, AdminError>> {
        Box::pin(async move {
            self.ask(|| self.cluster.refresh_metadata(&[])).await?;
            let timeout = self.cluster.config().request_timeout;
            let mut states = Vec::new();
            for node in self.cluster.nodes() {
                let answer = self
                    .ask(|| async {
                        let request = ListTransactionsRequest::default();
                        Ok(self.cluster.request(node, request, timeout).await?)
                    })
                    .await?;
                let subject = format!("broker {node}");
                check(
                    "list the transactions of",
                    &subject,
                    answer.error_code,
                    None,
                )?;
                states.extend(answer.transaction_states);
            }
            states.sort_by(|a, b| a.transactional_id.cmp(&b.transactional_id));
            Ok(states)
        })
    }

    /// The producers that wrote to these partitions lately, as their leaders remember them.
    ///
    /// # Errors
    /// Where a partition has no leader, or its leader does not answer or refuses.
    pub fn describe_producers<'a>(
        &'a self,
        partitions: &'a [TopicPartition],
    ) -> BoxFuture<
        'a,
        Result<BTreeMap<TopicPartition, Vec<describe_producers::ProducerState>>, AdminError>,
    > {
        Box::pin(async move {
            let mut producers = BTreeMap::new();
            for (node, partitions) in self
                .by_leader("describe the producers of", partitions)
                .await?
            {
                let topics = by_topic(&partitions)
                    .into_iter()
                    .map(
                        |(name, partition_indexes)| describe_producers::TopicRequest {
                            name: name.to_string(),
                            partition_indexes,
                        },
                    );
                let request = DescribeProducersRequest {
                    topics: topics.collect(),
                };
                let answer = self.ask_node(node, &request).await?;
                for topic in answer.topics {
                    for found in topic.partitions {
                        let partition =
                            TopicPartition::new(topic.name.as_str(), found.partition_index);
                        let subject = partition.to_string();
                        let (code, message) = (found.error_code, found.error_message);
                        check("describe the producers of", &subject, code, message)?;
                        producers.insert(partition, found.active_producers);
                    }
                }
            }
            Ok(producers)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::{ScriptedBroker, Step};

    #[tokio::test(start_paused = true)]
    async fn a_transaction_is_described_or_the_refusal_named() {
        let broker = ScriptedBroker::new(&[]);
        broker.lock().epochs.insert("t".into(), (7, 3));
        let admin = Admin::connect(&broker.transport()).await.unwrap();
        let loading = Step::Error(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS);
        broker.script(ApiKey::DescribeTransactions, &[Step::Disconnect, loading]);
        let state = admin.describe_transaction("t").await.unwrap();
        assert_eq!((state.producer_id, state.producer_epoch), (7, 3));
        let refused = Step::Error(ErrorCode::TRANSACTIONAL_ID_NOT_FOUND);
        broker.script(ApiKey::DescribeTransactions, &[refused]);
        let text = admin
            .describe_transaction("u")
            .await
            .unwrap_err()
            .to_string();
        assert!(text.contains("of u: TRANSACTIONAL_ID_NOT_FOUND"), "{text}");
    }
}
