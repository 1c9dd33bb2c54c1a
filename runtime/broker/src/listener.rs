//! TCP: accepts connections and turns byte streams into frames and back.
//!
//! Invariants: a length is believed only as far as bytes for it have arrived; memory follows what
//! was received.
//! Invariants: a large frame has its memory for itself, so a part of a small one never keeps it.
//! Invariants: a bad length closes its own connection and nothing else.
//! Never: decodes a frame.

use crate::BrokerError;
use crate::connection;
use crate::node::{Node, Stage};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use millstream_protocol::Frame;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// Frames that wait between socket and connection. Small: what is read but not begun takes memory.
const QUEUED_FRAMES: usize = 4;
const READ_CHUNK_BYTES: usize = 64 << 10;
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
    let accepting = accept(Arc::downgrade(node), listener);
    tokio::spawn(async move {
        tokio::select! {
            biased;
            () = draining => {}
            () = accepting => {}
        }
    });
    Ok(bound)
}

async fn accept(node: Weak<Node>, listener: TcpListener) {
    loop {
        let accepted = listener.accept().await;
        let Some(node) = node.upgrade() else { return };
        match accepted {
            Ok((_, peer)) if node.connection_count() >= node.config.connections_max => {
                tracing::warn!(%peer, "refused: max.connections is reached");
            }
            Ok((stream, peer)) => serve_stream(&node, stream, peer),
            Err(error) => {
                // Out of file descriptors, mostly: wait for some to come free.
                tracing::warn!(%error, "cannot accept a connection");
                drop(node);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn serve_stream(node: &Arc<Node>, stream: TcpStream, peer: SocketAddr) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "TCP_NODELAY not set");
    }
    let reached_at = stream.local_addr().ok();
    let (reader, writer) = stream.into_split();
    let (to_serve, incoming) = mpsc::channel(QUEUED_FRAMES);
    let (outgoing, to_write) = mpsc::channel(QUEUED_FRAMES);
    let read = read_frames(reader, to_serve, node.config.socket_request_max_bytes, peer);
    let serve = connection::serve(
        node.clone(),
        incoming,
        outgoing,
        peer.to_string().into(),
        reached_at,
    );
    let write = write_frames(writer, to_write, peer);
    node.spawn(async move {
        let reading_ended = async {
            read.await;
            std::future::pending::<()>().await;
        };
        let serving = async {
            tokio::select! {
                biased;
                () = serve => {}
                () = reading_ended => {}
            }
        };
        tokio::join!(serving, write);
    });
}

/// Reads frames until the stream ends, a length is wrong or nobody takes them.
async fn read_frames(
    mut reader: impl AsyncRead + Unpin,
    frames: mpsc::Sender<Frame>,
    size_bytes_max: usize,
    peer: SocketAddr,
) {
    let mut buffer = BytesMut::new();
    loop {
        match take_frame(&mut buffer, size_bytes_max) {
            Err(length) => {
                tracing::debug!(%peer, length, "connection closed: frame length out of range");
                return;
            }
            Ok(Some(frame)) => {
                if frame.len() > READ_CHUNK_BYTES && buffer.is_empty() {
                    buffer = BytesMut::new();
                }
                if frames.send(Frame::from_bytes(frame)).await.is_err() {
                    return;
                }
            }
            Ok(None) => {
                // Doubles with what has arrived, so a length alone allocates nothing.
                let grow = READ_CHUNK_BYTES.max(buffer.len());
                if buffer.capacity() - buffer.len() < READ_CHUNK_BYTES / 4 {
                    buffer.reserve(grow);
                }
                let limit = missing_of_large(&buffer).unwrap_or(usize::MAX);
                match reader.read_buf(&mut (&mut buffer).limit(limit)).await {
                    Ok(0) => return,
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%peer, %error, "connection lost");
                        return;
                    }
                }
            }
        }
    }
}

/// Splits one frame off the front; `Err` with a length that no frame may have.
fn take_frame(buffer: &mut BytesMut, size_bytes_max: usize) -> Result<Option<Bytes>, i32> {
    let Some(prefix) = buffer.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = i32::from_be_bytes(*prefix);
    let size_bytes = usize::try_from(length).map_err(|_| length)?;
    if size_bytes > size_bytes_max {
        return Err(length);
    }
    if buffer.len() < 4 + size_bytes {
        return Ok(None);
    }
    buffer.advance(4);
    Ok(Some(buffer.split_to(size_bytes).freeze()))
}

/// How much is missing of the frame that has begun, where that is a large one.
fn missing_of_large(buffer: &BytesMut) -> Option<usize> {
    let length = i32::from_be_bytes(*buffer.first_chunk::<4>()?);
    let size_bytes = usize::try_from(length).ok()?;
    (size_bytes > READ_CHUNK_BYTES).then(|| (4 + size_bytes).saturating_sub(buffer.len()))
}

/// Writes frames until there are no more or the stream breaks.
async fn write_frames(
    mut writer: OwnedWriteHalf,
    mut frames: mpsc::Receiver<Frame>,
    peer: SocketAddr,
) {
    let mut segments = Segments::default();
    while let Some(frame) = frames.recv().await {
        segments.push(&frame);
        while let Ok(frame) = frames.try_recv() {
            segments.push(&frame);
        }
        if let Err(error) = writer.write_all_buf(&mut segments).await {
            tracing::debug!(%peer, %error, "connection lost");
            return;
        }
    }
    let _ = writer.shutdown().await;
}

/// Bytes on their way to the socket, in pieces, so that record data is not copied.
#[derive(Debug, Default)]
struct Segments {
    pieces: VecDeque<Bytes>,
    remaining: usize,
}

impl Segments {
    fn push(&mut self, frame: &Frame) {
        // The connection encodes nothing near 2 GiB: a fetch is capped far below.
        let length = i32::try_from(frame.size_bytes()).unwrap_or(i32::MAX);
        self.push_piece(Bytes::copy_from_slice(&length.to_be_bytes()));
        for segment in frame.segments() {
            self.push_piece(segment.clone());
        }
    }

    fn push_piece(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.remaining += piece.len();
            self.pieces.push_back(piece);
        }
    }
}

impl Buf for Segments {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(piece);
            filled += 1;
        }
        filled
    }

    fn advance(&mut self, mut count: usize) {
        self.remaining -= count;
        while let Some(front) = self.pieces.front_mut() {
            if count < front.len() {
                front.advance(count);
                return;
            }
            count -= front.len();
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_large_frame_shares_its_memory_with_no_other() {
        let sizes = [10, 1_000_000, 5_000, 6_000, 200_000, 7];
        let mut stream = Vec::new();
        for (size, tag) in sizes.into_iter().zip(0..) {
            stream.extend_from_slice(&(size as i32).to_be_bytes());
            stream.resize(stream.len() + size, tag);
        }
        let (sender, mut receiver) = mpsc::channel(sizes.len());
        let peer = SocketAddr::from(([127, 0, 0, 1], 9));
        read_frames(&stream[..], sender, 1 << 20, peer).await;
        let mut frames = Vec::new();
        while let Some(frame) = receiver.recv().await {
            frames.push(frame.into_contiguous());
        }
        for ((frame, size), tag) in frames.iter().zip(sizes).zip(0..) {
            assert_eq!(frame.len(), size);
            assert!(frame.iter().all(|byte| *byte == tag));
        }
        for pair in frames.windows(2) {
            if pair.iter().any(|frame| frame.len() > READ_CHUNK_BYTES) {
                let behind = pair[0].as_ptr() as usize + pair[0].len() + 4;
                assert_ne!(pair[1].as_ptr() as usize, behind, "not one run of memory");
            }
        }
    }
}
