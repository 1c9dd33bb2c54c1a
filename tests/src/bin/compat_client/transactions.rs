//! Transactions: committed, aborted, and one whose producer another takes the place of.
//!
//! Invariants: "fenced" is said of `TransactionError::Fenced` alone.

use std::sync::Arc;

use anyhow::bail;
use millstream::client::{Producer, ProducerRecord, TransactionError};

use crate::say;

async fn producer(bootstrap: &str, id: &str) -> anyhow::Result<Producer> {
    let producer = Producer::transactional(id).connect(bootstrap).await?;
    producer.init_transactions().await?;
    Ok(producer)
}

/// Five records committed, five aborted, five committed.
pub(crate) async fn run(bootstrap: &str, topic: &str, id: &str) -> anyhow::Result<()> {
    let producer = producer(bootstrap, id).await?;
    let topic: Arc<str> = Arc::from(topic);
    for name in ["first", "aborted", "second"] {
        producer.begin_transaction()?;
        for n in 0..5 {
            let record = ProducerRecord::new(Arc::clone(&topic)).partition(0);
            let _counted = producer.send(record.value(format!("{name}{n}"))).await?;
        }
        if name == "aborted" {
            producer.flush().await?;
            producer.abort().await?;
        } else {
            producer.commit().await?;
        }
    }
    say("done");
    Ok(())
}

/// A second producer with the same id commits; the first must not.
pub(crate) async fn fence(bootstrap: &str, topic: &str, id: &str) -> anyhow::Result<()> {
    let topic: Arc<str> = Arc::from(topic);
    let record = || ProducerRecord::new(Arc::clone(&topic)).partition(0);
    let first = producer(bootstrap, id).await?;
    first.begin_transaction()?;
    first.send(record().value("lost")).await?.await?;
    let second = producer(bootstrap, id).await?;
    second.begin_transaction()?;
    let _counted = second.send(record().value("kept")).await?;
    second.commit().await?;
    match first.commit().await {
        Err(TransactionError::Fenced { .. }) => say("fenced"),
        other => bail!("not fenced: {other:?}"),
    }
    Ok(())
}
