//! The cluster against a scripted broker.

use millstream_protocol::messages::{FindCoordinatorRequest, MetadataRequest};
use millstream_protocol::{ApiKey, ErrorCode, TopicPartition};

use super::*;
use crate::scripted::{ScriptedBroker, Step};

fn cluster(broker: &ScriptedBroker) -> Cluster {
    let clock = Clock::starting_at(1_000_000);
    Cluster::new(
        broker.transport(),
        ClientConfig {
            clock,
            ..Default::default()
        },
    )
}

#[tokio::test(start_paused = true)]
async fn metadata_names_leaders_and_the_connection_is_shared() {
    let broker = ScriptedBroker::new(&[("orders", 3)]);
    let cluster = cluster(&broker);
    assert_eq!(cluster.partitions_of("orders").await.unwrap(), 3);
    assert_eq!(
        cluster.leader(&TopicPartition::new("orders", 2)),
        Some(NodeId(1))
    );
    assert_eq!(cluster.leader(&TopicPartition::new("orders", 3)), None);
    assert_eq!(cluster.cluster_id().as_deref(), Some("scripted"));
    for _ in 0..3 {
        cluster
            .coordinator(CoordinatorKind::Group, "g")
            .await
            .unwrap();
        cluster
            .coordinator(CoordinatorKind::Transaction, "t")
            .await
            .unwrap();
    }
    assert_eq!(
        broker.received(ApiKey::FindCoordinator).len(),
        2,
        "coordinators are cached"
    );
    assert!(broker.lock().connections <= 2, "bootstrap and node 1");
    cluster.forget_coordinator(CoordinatorKind::Group, "g");
    cluster
        .coordinator(CoordinatorKind::Group, "g")
        .await
        .unwrap();
    assert_eq!(broker.received(ApiKey::FindCoordinator).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn many_requests_for_metadata_are_one_on_the_wire() {
    let broker = ScriptedBroker::new(&[("orders", 3)]);
    broker.always(ApiKey::Metadata, Step::Delay(Duration::from_millis(50)));
    let cluster = cluster(&broker);
    let asked = (0..20).map(|_| cluster.partitions_of("orders"));
    for count in futures::future::join_all(asked).await {
        assert_eq!(count.unwrap(), 3);
    }
    assert!(broker.received(ApiKey::Metadata).len() <= 2);
}

#[tokio::test(start_paused = true)]
async fn a_disconnect_says_whether_the_request_was_sent() {
    let broker = ScriptedBroker::new(&[]);
    let cluster = cluster(&broker);
    let ask = || {
        let node = cluster.any_node().unwrap();
        cluster.request(node, MetadataRequest::default(), Duration::from_secs(5))
    };
    broker.script(ApiKey::Metadata, &[Step::Disconnect]);
    let error = ask().await.unwrap_err();
    assert!(
        matches!(error, RequestError::Disconnected { sent: true, .. }),
        "{error}"
    );
    ask().await.expect("the next request connects again");

    broker.lock().refuse_connections = true;
    cluster.disconnect();
    let error = ask().await.unwrap_err();
    assert!(
        matches!(error, RequestError::Disconnected { sent: false, .. }),
        "{error}"
    );
    assert!(!error.may_have_been_sent());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_answered_times_out_and_closes_its_connection() {
    let broker = ScriptedBroker::new(&[]);
    let cluster = cluster(&broker);
    broker.script(ApiKey::Metadata, &[Step::Mute]);
    let node = cluster.any_node().unwrap();
    let started = Instant::now();
    let error = cluster
        .request(node, MetadataRequest::default(), Duration::from_secs(3))
        .await
        .unwrap_err();
    assert!(
        matches!(error, RequestError::Timeout { sent: true, .. }),
        "{error}"
    );
    assert_eq!(started.elapsed(), Duration::from_secs(3));
    let connections = broker.lock().connections;
    cluster
        .request(node, MetadataRequest::default(), Duration::from_secs(3))
        .await
        .unwrap();
    assert_eq!(broker.lock().connections, connections + 1);
}

#[tokio::test(start_paused = true)]
async fn requests_beyond_the_channels_room_keep_their_order_and_their_answers() {
    let broker = ScriptedBroker::new(&[]).with_capacity(1);
    broker.script(
        ApiKey::FindCoordinator,
        &[Step::Delay(Duration::from_millis(10))],
    );
    let cluster = cluster(&broker);
    let node = cluster.any_node().unwrap();
    let timeout = Duration::from_secs(5);
    let connection = cluster
        .connection(node, ApiKey::Metadata, timeout)
        .await
        .unwrap();
    let mut pending = Vec::new();
    for n in 0..50_usize {
        let request = FindCoordinatorRequest {
            coordinator_keys: vec![n.to_string()],
            ..Default::default()
        };
        let started = connection.start_at(6, &request).unwrap();
        pending.push(tokio::spawn(async move {
            let answer = started
                .response::<FindCoordinatorRequest>(timeout)
                .await
                .unwrap();
            assert_eq!(answer.coordinators[0].key, n.to_string());
        }));
    }
    for task in pending {
        task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn connecting_again_waits_longer_each_time_and_rides_through_a_restart() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    broker.lock().refuse_connections = true;
    let cluster = cluster(&broker);
    let restart = {
        let broker = broker.clone();
        async move {
            tokio::time::sleep(Duration::from_secs(20)).await;
            broker.lock().refuse_connections = false;
        }
    };
    let started = Instant::now();
    let (known, ()) = tokio::join!(
        cluster.topic_within("orders", Duration::from_secs(60)),
        restart
    );
    assert_eq!(known.unwrap().partitions.len(), 1);
    let took = started.elapsed();
    assert!(
        took >= Duration::from_secs(20) && took < Duration::from_secs(23),
        "{took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_never_appears_is_an_error_that_names_it() {
    let broker = ScriptedBroker::new(&[]);
    let cluster = cluster(&broker);
    let error = cluster
        .topic_within("nowhere", Duration::from_secs(2))
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("nowhere") && text.contains("UNKNOWN_TOPIC_OR_PARTITION"),
        "{text}"
    );
    broker.always(
        ApiKey::Metadata,
        Step::Error(ErrorCode::TOPIC_AUTHORIZATION_FAILED),
    );
    let error = cluster
        .topic_within("secret", Duration::from_secs(2))
        .await
        .unwrap_err();
    assert!(matches!(error, ClusterError::Topic { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_is_loading_is_waited_for() {
    let broker = ScriptedBroker::new(&[]);
    let loading = Step::Error(ErrorCode::COORDINATOR_NOT_AVAILABLE);
    broker.script(ApiKey::FindCoordinator, &[loading, loading, loading]);
    let cluster = cluster(&broker);
    let node = cluster
        .coordinator(CoordinatorKind::Transaction, "t")
        .await
        .unwrap();
    assert_eq!(node, NodeId(1));
    assert_eq!(broker.received(ApiKey::FindCoordinator).len(), 4);
    broker.always(
        ApiKey::FindCoordinator,
        Step::Error(ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    );
    let error = cluster
        .coordinator(CoordinatorKind::Transaction, "u")
        .await
        .unwrap_err();
    assert!(matches!(error, ClusterError::Coordinator { .. }), "{error}");
}

/// Workers have runtimes without sockets, which closures block and which end before the client
/// does.
#[test]
fn a_connection_lives_where_its_cluster_began_whoever_asks_for_it() {
    let home = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let broker = ScriptedBroker::new(&[("orders", 3)]);
    let cluster = home.block_on(async { cluster(&broker) });
    let ask = || async {
        let node = cluster.any_node()?;
        let request = MetadataRequest::default();
        let asked = cluster.request(node, request, Duration::from_secs(5)).await;
        asked.map(drop).map_err(ClusterError::from)
    };
    let guest = std::thread::scope(|scope| {
        let guest = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .unwrap();
            runtime.block_on(ask())
        });
        guest.join().unwrap()
    });
    guest.unwrap();
    home.block_on(ask()).unwrap();
    assert_eq!(
        broker.lock().connections,
        1,
        "the guest's end took its connection with it"
    );
}
