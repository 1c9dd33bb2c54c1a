//! TCP: accepts connections and serves each of them.
//!
//! Invariants: at most `max.connections` sockets, and no more than half of the descriptors that the
//! process may have; without a descriptor a connection is refused, not left waiting.
//! Invariants: a bad length closes its own connection and nothing else.
//! Never: reads or writes a socket itself.

use crate::BrokerError;
use crate::connection;
use crate::node::{Node, Stage};
use crate::socket::{Socket, read_frames, write_frames};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};

/// Frames that wait between socket and connection. Small: what is read but not begun takes memory.
const QUEUED_FRAMES: usize = 4;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds the address and starts accepting.
pub(crate) async fn listen(
    node: &Arc<Node>,
    address: SocketAddr,
) -> Result<SocketAddr, BrokerError> {
    let failed = |source| BrokerError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    node.set_listener(bound);
    let draining = node.reached(Stage::Draining);
    let accepting = accept(Arc::downgrade(node), listener, connections_max(node));
    tokio::spawn(async move {
        tokio::select! {
            biased;
            () = draining => {}
            () = accepting => {}
        }
    });
    Ok(bound)
}

/// `max.connections`, or half of the descriptors that this process may have: the log needs the
/// others.
fn connections_max(node: &Node) -> usize {
    let configured = node.config.connections_max;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let Some(half) = limit.and_then(|limit| usize::try_from(limit / 2).ok()) else {
        return configured;
    };
    if half < configured {
        tracing::info!(
            half,
            configured,
            "fewer connections than max.connections: half of the open files (ulimit -n)"
        );
    }
    half.min(configured)
}

async fn accept(node: Weak<Node>, listener: TcpListener, connections_max: usize) {
    // Given back when there are no others, so that a connection can be taken and closed.
    let mut spare = spare_descriptor();
    loop {
        let accepted = listener.accept().await;
        let Some(node) = node.upgrade() else { return };
        match accepted {
            Ok((_, peer)) if node.connection_count() >= connections_max => {
                tracing::warn!(%peer, connections_max, "refused: there are enough connections");
            }
            Ok((stream, peer)) => serve_stream(&node, stream, peer),
            Err(error) => {
                drop(node);
                tracing::warn!(%error, "cannot accept a connection");
                if spare.take().is_some() {
                    // Whoever waits is told now; it may come again.
                    let refused = tokio::time::timeout(ACCEPT_PAUSE, listener.accept());
                    drop(refused.await);
                } else {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                spare = spare_descriptor();
            }
        }
    }
}

fn spare_descriptor() -> Option<std::net::UdpSocket> {
    std::net::UdpSocket::bind("127.0.0.1:0").ok()
}

fn serve_stream(node: &Arc<Node>, stream: TcpStream, peer: SocketAddr) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "TCP_NODELAY not set");
    }
    let config = &node.config;
    let idle_max = Duration::from_millis(config.connections_max_idle_ms.unsigned_abs());
    let request_bytes_max = config.socket_request_max_bytes;
    let socket = Socket::new(node.memory.clone(), peer, request_bytes_max, idle_max);
    let reached_at = stream.local_addr().ok();
    let (reader, writer) = stream.into_split();
    let (to_serve, incoming) = mpsc::channel(QUEUED_FRAMES);
    let (outgoing, to_write) = mpsc::channel(QUEUED_FRAMES);
    let counted = node.enter_connection();
    let peer = peer.to_string().into();
    let serve = connection::serve(node.clone(), incoming, outgoing, peer, reached_at);
    node.spawn(async move {
        let _counted = counted;
        let written = Notify::new();
        let reading = async {
            // Who takes no more answers asks no more questions.
            tokio::select! {
                biased;
                () = written.notified() => {}
                () = read_frames(reader, to_serve, &socket) => {}
            }
            std::future::pending::<()>().await;
        };
        let serving = async {
            // What has come, and the end, are there when the connection looks.
            tokio::select! {
                biased;
                () = reading => {}
                () = serve => {}
            }
        };
        let writing = async {
            write_frames(writer, to_write, &socket).await;
            written.notify_one();
        };
        tokio::join!(serving, writing);
    });
}
