//! A client of the broker that counts as little as can be: requests over TCP, one at a time.
//!
//! Never: more than what every test that counts memory needs.

use bytes::Bytes;
use millstream_protocol::messages::create_topics::CreatableTopic;
use millstream_protocol::{Frame, Request, decode_response, encode_request};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.expect("connects")
}

pub(crate) fn framed<R: Request>(version: i16, request: &R) -> Vec<u8> {
    let frame = encode_request(version, 1, Some("counted"), request).expect("encodes");
    let bytes = frame.into_contiguous();
    [&(bytes.len() as i32).to_be_bytes(), &bytes[..]].concat()
}

pub(crate) async fn ask<R: Request>(
    stream: &mut TcpStream,
    version: i16,
    request: &R,
) -> R::Response {
    let asked = async {
        stream.write_all(&framed(version, request)).await?;
        let mut body = vec![0; stream.read_i32().await? as usize];
        stream.read_exact(&mut body).await?;
        Ok::<_, std::io::Error>(Frame::from_bytes(Bytes::from(body)))
    };
    let answer = tokio::time::timeout(PATIENCE, asked).await;
    let frame = answer.expect("served in time").expect("not closed");
    decode_response::<R>(frame, version).expect("decodes").1
}

pub(crate) fn new_topic(name: String, num_partitions: i32) -> CreatableTopic {
    CreatableTopic {
        name,
        num_partitions,
        replication_factor: -1,
        ..Default::default()
    }
}

/// Both ends of many connections, or the files of many partitions, are in this process.
pub(crate) fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).expect("up to the hard limit");
}
