//! One socket: its bytes to frames, and frames to its bytes, within what it may hold of memory.
//!
//! Invariants: a length is believed only as far as bytes for it have arrived; memory follows what
//! was received.
//! Invariants: a large frame has its memory for itself, so a part of a small one never keeps it.
//! Invariants: a frame that needs room has it before its bytes are read; when memory is short, a
//! peer that does not send or take what it began for `PATIENCE` is let go.
//! Never: decodes a frame.

use crate::connection::Arrived;
use crate::memory::{LOOK_AGAIN, Memory, PATIENCE, Room, SMALL_REQUEST_BYTES};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use millstream_protocol::Frame;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// Most that is read at once, but for a large frame. The first read is of `FIRST_READ_BYTES`: most
/// connections are quiet.
const READ_CHUNK_BYTES: usize = 64 << 10;
const FIRST_READ_BYTES: usize = 4 << 10;
/// Small answers are written together up to this size.
const WRITTEN_TOGETHER_BYTES: usize = 64 << 10;
/// What a frame may take beside `PATIENCE` while others wait for its memory: time for its bytes.
const SLOW_BYTES_PER_MS: usize = 1 << 10;

/// What the two directions of one socket share.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) memory: Arc<Memory>,
    pub(crate) peer: SocketAddr,
    /// `socket.request.max.bytes`.
    pub(crate) request_bytes_max: usize,
    /// `connections.max.idle.ms`.
    pub(crate) idle_max: Duration,
    began: Instant,
    /// Milliseconds from `began` to when bytes moved last.
    moved_ms: AtomicU64,
}

impl Socket {
    pub(crate) fn new(
        memory: Arc<Memory>,
        peer: SocketAddr,
        request_bytes_max: usize,
        idle_max: Duration,
    ) -> Self {
        Self {
            memory,
            peer,
            request_bytes_max,
            idle_max,
            began: Instant::now(),
            moved_ms: AtomicU64::new(0),
        }
    }

    fn note_moved(&self) {
        let ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved_ms.store(ms, Ordering::Relaxed);
    }

    /// When it has been idle for too long, if nothing moves until then.
    fn idle_at(&self) -> Instant {
        self.began + Duration::from_millis(self.moved_ms.load(Ordering::Relaxed)) + self.idle_max
    }

    /// Whether a frame that is late is to be given up.
    fn gives_up(&self, what: &str) -> bool {
        let idle = Instant::now() >= self.idle_at();
        let short = self.memory.is_short();
        if idle || short {
            tracing::debug!(peer = %self.peer, what, idle, short, "connection closed: too slow");
        }
        idle || short
    }
}

/// When a frame with so many bytes to go must be there.
fn due(bytes: usize) -> Instant {
    Instant::now() + PATIENCE + Duration::from_millis((bytes / SLOW_BYTES_PER_MS) as u64)
}

/// Reads frames until the stream ends, a length is wrong, nobody takes them or nothing comes.
pub(crate) async fn read_frames(
    mut reader: impl AsyncRead + Unpin,
    frames: mpsc::Sender<Arrived>,
    socket: &Socket,
) {
    let mut buffer = BytesMut::new();
    // Of the large frame that is being read.
    let mut large: Option<(Room, Instant)> = None;
    let mut chunk_bytes = FIRST_READ_BYTES;
    loop {
        match take_frame(&mut buffer, socket.request_bytes_max) {
            Err(length) => {
                let peer = socket.peer;
                tracing::debug!(%peer, length, "connection closed: frame length out of range");
                return;
            }
            Ok(Some(frame)) => {
                if frame.len() > READ_CHUNK_BYTES && buffer.is_empty() {
                    buffer = BytesMut::new();
                }
                let room = match large.take() {
                    Some((room, _)) => Some(room),
                    None if frame.len() > SMALL_REQUEST_BYTES => {
                        let room = socket.memory.request_room(frame.len());
                        let Some(room) = unless_idle(room, socket).await else {
                            return;
                        };
                        room
                    }
                    None => None,
                };
                let frame = Frame::from_bytes(frame);
                let taken = unless_idle(frames.send(Arrived { frame, room }), socket);
                let Some(Ok(())) = taken.await else {
                    return;
                };
            }
            Ok(None) => {
                let missing = missing_of_large(&buffer);
                if let (Some(missing), None) = (missing, &large) {
                    let size_bytes = buffer.len() + missing;
                    let room = socket.memory.request_room(size_bytes);
                    let Some(Some(room)) = unless_idle(room, socket).await else {
                        return;
                    };
                    large = Some((room, due(missing)));
                }
                // Doubles with what has arrived, so a length alone allocates nothing.
                let room_for = missing.unwrap_or(usize::MAX);
                if buffer.capacity() - buffer.len() < room_for.min(chunk_bytes / 4) {
                    buffer.reserve(room_for.min(chunk_bytes.max(buffer.len())));
                }
                let due = large.as_mut().map(|(_, due)| due);
                let mut target = (&mut buffer).limit(room_for);
                let Some(count) = read_some(&mut reader, &mut target, due, socket).await else {
                    return;
                };
                if count >= chunk_bytes / 2 {
                    chunk_bytes = READ_CHUNK_BYTES;
                }
            }
        }
    }
}

/// What comes before the connection has been idle for too long.
async fn unless_idle<T>(waits: impl Future<Output = T>, socket: &Socket) -> Option<T> {
    let mut waits = pin!(waits);
    loop {
        match timeout_at(socket.idle_at(), waits.as_mut()).await {
            Ok(done) => return Some(done),
            // An answer may have gone out since.
            Err(_) if Instant::now() < socket.idle_at() => {}
            Err(_) => {
                tracing::debug!(peer = %socket.peer, "connection closed: idle");
                return None;
            }
        }
    }
}

/// Reads what is there; `None` when the stream has ended or is given up. Of a large frame that is
/// late, `due` moves on for as long as nobody waits for its memory.
async fn read_some(
    reader: &mut (impl AsyncRead + Unpin),
    target: &mut (impl BufMut + Send),
    mut due: Option<&mut Instant>,
    socket: &Socket,
) -> Option<usize> {
    loop {
        let idle_at = socket.idle_at();
        let until = due.as_ref().map_or(idle_at, |due| idle_at.min(**due));
        match timeout_at(until, reader.read_buf(target)).await {
            Ok(Ok(0)) => return None,
            Ok(Ok(count)) => {
                socket.note_moved();
                return Some(count);
            }
            Ok(Err(error)) => {
                tracing::debug!(peer = %socket.peer, %error, "connection lost");
                return None;
            }
            // An answer may have gone out since.
            Err(_) if Instant::now() < socket.idle_at() && due.is_none() => {}
            Err(_) if socket.gives_up("request") => return None,
            Err(_) => {
                if let Some(due) = &mut due {
                    **due = Instant::now() + LOOK_AGAIN;
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

/// Writes frames until there are no more, the stream breaks or nothing is taken.
pub(crate) async fn write_frames(
    mut writer: impl AsyncWrite + Unpin,
    mut frames: mpsc::Receiver<Frame>,
    socket: &Socket,
) {
    let mut segments = Segments::default();
    while let Some(frame) = frames.recv().await {
        segments.push(&frame);
        drop(frame);
        while segments.remaining < WRITTEN_TOGETHER_BYTES
            && let Ok(frame) = frames.try_recv()
        {
            segments.push(&frame);
        }
        let mut due = due(segments.remaining);
        while segments.has_remaining() {
            match timeout_at(due, writer.write_buf(&mut segments)).await {
                Ok(Ok(count)) if count > 0 => socket.note_moved(),
                Ok(Ok(_)) => return,
                Ok(Err(error)) => {
                    tracing::debug!(peer = %socket.peer, %error, "connection lost");
                    return;
                }
                Err(_) if socket.gives_up("answer") => return,
                Err(_) => due = Instant::now() + LOOK_AGAIN,
            }
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
    use tokio::io::{duplex, sink};

    const IDLE: Duration = Duration::from_secs(600);

    fn socket(memory_bytes: usize) -> Socket {
        let memory = Arc::new(Memory::new(memory_bytes, memory_bytes));
        let peer = SocketAddr::from(([127, 0, 0, 1], 9));
        Socket::new(memory, peer, 100 << 20, IDLE)
    }

    #[tokio::test]
    async fn a_large_frame_shares_its_memory_with_no_other() {
        let sizes = [10, 1_000_000, 5_000, 6_000, 200_000, 7];
        let mut stream = Vec::new();
        for (size, tag) in sizes.into_iter().zip(0..) {
            stream.extend_from_slice(&(size as i32).to_be_bytes());
            stream.resize(stream.len() + size, tag);
        }
        let (sender, mut receiver) = mpsc::channel(sizes.len());
        let socket = socket(1 << 30);
        read_frames(&stream[..], sender, &socket).await;
        let mut frames = Vec::new();
        while let Some(arrived) = receiver.recv().await {
            assert_eq!(
                arrived.room.is_some(),
                arrived.frame.size_bytes() > SMALL_REQUEST_BYTES
            );
            frames.push(arrived.frame.into_contiguous());
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

    /// How long it takes until the reader gives up a frame of 1 MiB of which a part has come.
    async fn reads_for(socket: &Socket, sent: &[u8]) -> Duration {
        let (mut there, here) = duplex(4 << 20);
        there.write_all(sent).await.expect("written");
        let (sender, _receiver) = mpsc::channel(1);
        let began = Instant::now();
        read_frames(here, sender, socket).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_that_does_not_come_is_given_up_when_others_wait_for_its_memory() {
        let mut part = (1_i32 << 20).to_be_bytes().to_vec();
        part.resize(100_000, 0);
        // Nobody waits: it may take as long as any connection may be idle.
        let socket_alone = socket(8 << 20);
        assert_eq!(reads_for(&socket_alone, &part).await.as_secs(), 600);
        // Somebody waits for more than is left.
        let socket = socket(1 << 20);
        let mut other = Box::pin(socket.memory.request_room(1 << 20));
        let (reading, ()) = tokio::join!(reads_for(&socket, &part), async {
            tokio::task::yield_now().await;
            assert!(futures::poll!(&mut other).is_pending());
        });
        assert!((30..40).contains(&reading.as_secs()), "{reading:?}");
        assert!(other.await.is_some(), "and now it has it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_frame_waits_for_room_before_its_bytes_are_read() {
        let socket = socket(1 << 20);
        let room = socket.memory.request_room(512 << 10).await;
        let (mut there, here) = duplex(64 << 10);
        let (sender, mut receiver) = mpsc::channel(1);
        let reading = read_frames(here, sender, &socket);
        let writing = async move {
            let mut frame = (1_000_000_i32).to_be_bytes().to_vec();
            frame.resize(1_000_004, 7);
            let all = there.write_all(&frame);
            tokio::pin!(all);
            let waited = tokio::time::timeout(Duration::from_secs(20), &mut all).await;
            assert!(waited.is_err(), "nothing beyond the buffers is read");
            drop(room);
            all.await.expect("read at last");
            receiver.recv().await.expect("a frame")
        };
        let (arrived, ()) = tokio::join!(writing, reading);
        assert_eq!(arrived.frame.size_bytes(), 1_000_000);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_nobody_takes_are_given_up_when_memory_is_short_else_when_idle() {
        let frame = Frame::from_bytes(Bytes::from(vec![0; 1 << 20]));
        for (short, seconds) in [(false, 600..=601), (true, 30..=33)] {
            let socket = socket(1 << 20);
            let _room = short.then(|| socket.memory.answer_room_now(1 << 20));
            let (here, _there) = duplex(1000);
            let (sender, receiver) = mpsc::channel(1);
            sender.send(frame.clone()).await.expect("queued");
            let began = Instant::now();
            write_frames(here, receiver, &socket).await;
            let seconds_taken = began.elapsed().as_secs();
            assert!(seconds.contains(&seconds_taken), "{seconds_taken}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_frames_nobody_takes_or_has_room_for_is_idle_at_last() {
        let small = [&1_i32.to_be_bytes()[..], b"x"].concat();
        let large = [&(1_i32 << 20).to_be_bytes()[..], b"x"].concat();
        for sent in [small.repeat(3), large] {
            let socket = socket(1 << 20);
            let _room = socket.memory.request_room(512 << 10).await;
            assert_eq!(reads_for(&socket, &sent).await, IDLE);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_on_which_answers_go_out_is_not_idle() {
        let socket = socket(1 << 20);
        let (_there, here) = duplex(1000);
        let (to_serve, _frames) = mpsc::channel(1);
        let (sender, receiver) = mpsc::channel(1);
        let began = Instant::now();
        let answers = async {
            for _ in 0..3 {
                tokio::time::sleep(IDLE / 2).await;
                let frame = Frame::from_bytes(Bytes::from_static(b"answer"));
                sender.send(frame).await.expect("taken");
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = read_frames(here, to_serve, &socket) => {}
            () = write_frames(sink(), receiver, &socket) => {}
            () = answers => {}
        }
        assert_eq!(began.elapsed(), IDLE / 2 * 3 + IDLE);
    }
}
