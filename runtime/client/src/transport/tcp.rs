//! Frames over TCP: a four-byte length, then the frame.
//!
//! Invariants: a frame never exceeds the limit in either direction, which is a small one until the
//! connection is established; memory for an incoming frame grows with the bytes that arrived, not
//! with the length that was announced.
//! Never: reconnects; a connection that fails is closed and stays closed.

use std::io;
use std::io::IoSlice;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use millstream_protocol::Frame;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};

use super::{BrokerAddress, Ending, FrameConnection, Link, Transport};
use crate::error::ConfigError;
use crate::security::{Security, SecurityError, Tls};

/// Frames queued a direction before the sender of frames has to wait.
const QUEUED_FRAMES: usize = 64;
/// How many bytes a read asks for at least.
const READ_BYTES: usize = 64 * 1024;
/// The largest frame from a broker that has not answered the handshake yet.
const HANDSHAKE_FRAME_BYTES_MAX: usize = 1024 * 1024;
/// How a TLS record with an alert begins, which no frame does.
const TLS_ALERT: &[u8] = &[0x15, 0x03];
/// Slices handed to one vectored write.
const SLICES_PER_WRITE: usize = 64;

/// Connects to brokers over TCP.
#[derive(Clone, Debug)]
pub struct TcpTransport {
    bootstrap: Vec<BrokerAddress>,
    frame_bytes_max: usize,
    security: Security,
}

impl TcpTransport {
    /// The largest frame that is sent or accepted unless told otherwise: 128 MiB.
    pub const FRAME_BYTES_MAX: usize = 128 * 1024 * 1024;

    /// A transport that begins at `host:port[,host:port]`. Port 9092 where none is given; parts
    /// that name no host are left out, so a text without any gives no bootstrap address and every
    /// request fails with an error that says so.
    #[must_use]
    pub fn new(bootstrap: &str) -> Self {
        let bootstrap = bootstrap.split(',').filter_map(parse_address).collect();
        Self {
            bootstrap,
            frame_bytes_max: Self::FRAME_BYTES_MAX,
            security: Security::default(),
        }
    }

    /// TLS and SASL for every client that is connected with this and says nothing of security in
    /// its own settings.
    ///
    /// # Errors
    /// As [`Security::check`].
    pub fn with_security(mut self, security: Security) -> Result<Self, ConfigError> {
        security.check()?;
        self.security = security;
        Ok(self)
    }

    /// Sets the largest frame that is sent or accepted, in bytes.
    #[must_use]
    pub fn with_frame_bytes_max(mut self, bytes: usize) -> Self {
        self.frame_bytes_max = bytes;
        self
    }
}

fn parse_address(text: &str) -> Option<BrokerAddress> {
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        let port = after
            .strip_prefix(':')
            .map_or(Some(9092), |port| port.parse().ok())?;
        return Some(BrokerAddress::new(host, port));
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() => {
            Some(BrokerAddress::new(host, port.parse().ok()?))
        }
        Some(_) => None,
        None => Some(BrokerAddress::new(text, 9092)),
    }
}

#[async_trait]
impl Transport for TcpTransport {
    async fn connect(&self, address: &BrokerAddress) -> io::Result<FrameConnection> {
        let (read_half, write_half) = open(address).await?.into_split();
        Ok(self.carry(address, read_half, write_half, Box::new(|_, _| None)))
    }

    #[cfg(feature = "tls")]
    async fn connect_tls(&self, address: &BrokerAddress, tls: &Tls) -> io::Result<FrameConnection> {
        use crate::security::Phase;
        let stream = tls.connect(address, open(address).await?).await?;
        let (read_half, write_half) = tokio::io::split(stream);
        let diagnosis = tls.diagnosis();
        let diagnosis = move |peer: &BrokerAddress, error: &io::Error| {
            diagnosis(peer, error, Phase::Established)
        };
        Ok(self.carry(address, read_half, write_half, Box::new(diagnosis)))
    }

    #[cfg(not(feature = "tls"))]
    async fn connect_tls(&self, _: &BrokerAddress, tls: &Tls) -> io::Result<FrameConnection> {
        match *tls {}
    }

    fn bootstrap(&self) -> Vec<BrokerAddress> {
        self.bootstrap.clone()
    }

    fn security(&self) -> Security {
        self.security.clone()
    }
}

async fn open(address: &BrokerAddress) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// What an error of the stream means beside that the connection is lost.
type Diagnosis = Box<dyn Fn(&BrokerAddress, &io::Error) -> Option<SecurityError> + Send>;

impl TcpTransport {
    /// Starts the two tasks that move frames over an open stream.
    fn carry(
        &self,
        address: &BrokerAddress,
        read_half: impl AsyncRead + Unpin + Send + 'static,
        write_half: impl AsyncWrite + Unpin + Send + 'static,
        diagnosis: Diagnosis,
    ) -> FrameConnection {
        let (outgoing, to_write) = mpsc::channel(QUEUED_FRAMES);
        let (arrived, incoming) = mpsc::channel(QUEUED_FRAMES);
        let limit = self.frame_bytes_max;
        let connection = FrameConnection::new(outgoing, incoming);
        let (peer, link) = (address.clone(), Arc::clone(&connection.link));
        // Halves of a TLS stream close nothing when they are dropped, so the reader is told.
        let broken = Arc::new(Notify::new());
        let noticed = Arc::clone(&broken);
        tokio::spawn(async move {
            if let Err(error) = write_frames(write_half, to_write, limit).await {
                tracing::debug!(peer = %peer, %error, "writing to the broker failed");
                link.end(Ending::Lost(error.to_string().into()));
                broken.notify_one();
            }
        });
        let peer = address.clone();
        let link = Arc::clone(&connection.link);
        tokio::spawn(async move {
            let closed = arrived.clone();
            tokio::select! {
                biased;
                () = closed.closed() => {}
                () = noticed.notified() => {}
                result = read_frames(read_half, arrived, &link, limit) => {
                    if let Err(error) = result {
                        tracing::debug!(peer = %peer, %error, "reading from the broker failed");
                        link.end(ending(&peer, &error, &diagnosis));
                    }
                }
            }
        });
        connection
    }
}

fn ending(peer: &BrokerAddress, error: &io::Error, diagnosis: &Diagnosis) -> Ending {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner.cloned().or_else(|| diagnosis(peer, error)) {
        Some(refused) => Ending::Refused(Arc::new(refused)),
        None if is_tls_alert(error) => Ending::Refused(Arc::new(SecurityError::TlsListener {
            broker: peer.clone(),
        })),
        None => Ending::Lost(error.to_string().into()),
    }
}

/// A stream without TLS began with an alert of TLS.
#[derive(Debug, thiserror::Error)]
#[error("the broker answers with an alert of TLS")]
struct TlsAlert;

fn is_tls_alert(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<TlsAlert>())
}

/// Writes queued frames, as many as wait in one go, until the queue closes.
async fn write_frames(
    mut stream: impl AsyncWrite + Unpin,
    mut frames: mpsc::Receiver<Frame>,
    limit: usize,
) -> io::Result<()> {
    let mut waiting = Vec::with_capacity(QUEUED_FRAMES);
    let mut parts: Vec<Bytes> = Vec::new();
    while frames.recv_many(&mut waiting, QUEUED_FRAMES).await > 0 {
        parts.clear();
        for frame in waiting.drain(..) {
            let size = frame.size_bytes();
            if size > limit {
                return Err(io::Error::other(format!(
                    "a request of {size} bytes exceeds the largest frame, {limit} bytes"
                )));
            }
            let mut length = BytesMut::with_capacity(4);
            length.put_u32(u32::try_from(size).map_err(io::Error::other)?);
            parts.push(length.freeze());
            parts.extend(
                frame
                    .segments()
                    .iter()
                    .filter(|part| !part.is_empty())
                    .cloned(),
            );
        }
        write_parts(&mut stream, &mut parts).await?;
        stream.flush().await?;
    }
    stream.shutdown().await
}

async fn write_parts(
    stream: &mut (impl AsyncWrite + Unpin),
    parts: &mut [Bytes],
) -> io::Result<()> {
    let mut first = 0;
    while let Some(pending) = parts.get_mut(first..).filter(|pending| !pending.is_empty()) {
        let slices: Vec<IoSlice<'_>> = pending
            .iter()
            .take(SLICES_PER_WRITE)
            .map(|part| IoSlice::new(part))
            .collect();
        let mut written = stream.write_vectored(&slices).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        for part in pending.iter_mut() {
            let taken = written.min(part.len());
            part.advance(taken);
            written -= taken;
            if !part.is_empty() {
                break;
            }
            first += 1;
            if written == 0 {
                break;
            }
        }
    }
    Ok(())
}

/// Reads frames until the peer closes, nobody listens any more or a length is out of bounds.
async fn read_frames(
    mut stream: impl AsyncRead + Unpin,
    frames: mpsc::Sender<Frame>,
    link: &Link,
    limit: usize,
) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    loop {
        if !link.is_established() && buffer.starts_with(TLS_ALERT) {
            return Err(io::Error::other(TlsAlert));
        }
        while let Some(frame) = {
            let now = if link.is_established() {
                limit
            } else {
                limit.min(HANDSHAKE_FRAME_BYTES_MAX)
            };
            take_frame(&mut buffer, now)?
        } {
            if frames.send(Frame::from_bytes(frame)).await.is_err() {
                return Ok(());
            }
        }
        buffer.reserve(READ_BYTES);
        if stream.read_buf(&mut buffer).await? == 0 {
            return if buffer.is_empty() {
                Ok(())
            } else {
                Err(io::ErrorKind::UnexpectedEof.into())
            };
        }
    }
}

fn take_frame(buffer: &mut BytesMut, limit: usize) -> io::Result<Option<Bytes>> {
    let Some(length) = buffer.first_chunk::<4>() else {
        return Ok(None);
    };
    let announced = i32::from_be_bytes(*length);
    let size = usize::try_from(announced)
        .ok()
        .filter(|size| *size <= limit)
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a frame announces {announced} bytes; at most {limit} are accepted"),
            )
        })?;
    if buffer.len() < 4 + size {
        return Ok(None);
    }
    buffer.advance(4);
    Ok(Some(buffer.split_to(size).freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[test]
    fn bootstrap_text_gives_addresses() {
        let transport = TcpTransport::new("a:1, b ,[::1]:7,,:9,c:x");
        let expected = [("a", 1), ("b", 9092), ("::1", 7)].map(|(h, p)| BrokerAddress::new(h, p));
        assert_eq!(transport.bootstrap(), expected);
        assert_eq!(BrokerAddress::new("::1", 7).to_string(), "[::1]:7");
    }

    #[test]
    fn a_length_out_of_bounds_is_refused_before_memory_is_taken() {
        for bad in [[0xff, 0xff, 0xff, 0xff], [0x7f, 0xff, 0xff, 0xff]] {
            let mut buffer = BytesMut::from(&bad[..]);
            assert_eq!(
                take_frame(&mut buffer, 1024).unwrap_err().kind(),
                io::ErrorKind::InvalidData
            );
        }
        let mut partial = BytesMut::from(&[0, 0, 0, 3, 1, 2][..]);
        assert_eq!(take_frame(&mut partial, 1024).unwrap(), None);
        partial.put_u8(3);
        assert_eq!(
            take_frame(&mut partial, 1024).unwrap().unwrap(),
            Bytes::from_static(&[1, 2, 3])
        );
    }

    #[tokio::test]
    async fn a_connection_that_cannot_write_any_more_does_not_wait_for_answers() {
        let (ours, _theirs) = tokio::io::duplex(64);
        let (read_half, write_half) = tokio::io::split(ours);
        let transport = TcpTransport::new("broker:9092").with_frame_bytes_max(10);
        let address = transport.bootstrap().remove(0);
        let mut connection =
            transport.carry(&address, read_half, write_half, Box::new(|_, _| None));
        let too_large = Frame::from_bytes(Bytes::from(vec![0; 11]));
        connection.outgoing.send(too_large).await.unwrap();
        let end = connection.incoming.recv();
        let end = tokio::time::timeout(std::time::Duration::from_secs(10), end).await;
        assert!(end.unwrap().is_none());
        let Some(Ending::Lost(reason)) = connection.link.ending() else {
            panic!("{:?}", connection.link.ending())
        };
        assert!(reason.contains("exceeds the largest frame"), "{reason}");
    }

    #[tokio::test]
    async fn frames_of_many_segments_come_back_whole_and_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let echo = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            let (mut read, mut write) = socket.split();
            tokio::io::copy(&mut read, &mut write).await.unwrap();
        });
        let transport = TcpTransport::new(&format!("127.0.0.1:{port}"));
        let address = transport.bootstrap().remove(0);
        let FrameConnection {
            outgoing,
            mut incoming,
            link,
        } = transport.connect(&address).await.unwrap();
        link.establish();
        for size in [0_usize, 1, 1000, 300_000] {
            let segments = (0..100).map(|i| Bytes::from(vec![u8::try_from(i).unwrap(); size]));
            outgoing
                .send(Frame::from_segments(segments.collect()))
                .await
                .unwrap();
        }
        for size in [0_usize, 1, 1000, 300_000] {
            let frame = incoming.recv().await.unwrap().into_contiguous();
            assert_eq!(frame.len(), size * 100);
            for (i, chunk) in frame.chunks(size.max(1)).enumerate() {
                assert!(chunk.iter().all(|byte| usize::from(*byte) == i));
            }
        }
        drop(outgoing);
        assert!(incoming.recv().await.is_none(), "both sides close");
        echo.await.unwrap();
    }
}
