//! The messages between the trainer and a process that runs a plugin, as bytes. Whatever the bytes are, reading them gives a
//! value or an error: a plugin may have written them.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, ensure};
use nestor_plugin::ffi;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::call::Answer;
use crate::environment_call::EnvironmentCall;
use crate::estimator_call::EstimatorCall;
use crate::library::{Abilities, Kind};
use crate::loss_call::LossCall;
use crate::observation::{of_reset, of_step};

/// Version of these messages with that of the program, so that a `nestor-host` of another build is noticed.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "/4");
/// Longest body inside a message. A longer one is in the shared file.
pub const INLINE: usize = 16 << 10;

/// A request of the trainer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Comes first.
    Load(Load),
    /// Opens the component with this config.
    Open(String),
    /// Makes a copy of this process that serves the channel whose descriptors go along.
    Fork,
    /// Ends a copy, after a time in milliseconds that it has to end by itself.
    End {
        pid: i32,
        patience: u64,
    },
    Environment(EnvironmentCall),
    Estimator(Box<EstimatorCall>),
    Loss(Box<LossCall>),
}

/// The component to load, and the limits of its process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    pub version: String,
    pub path: PathBuf,
    pub id: String,
    pub kind: Kind,
    /// Bytes of memory that the process may have for data.
    pub memory: Option<u64>,
    /// Seconds of CPU time that one call may use.
    pub cpu: Option<u64>,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    Loaded(Abilities),
    /// The file cannot be used: the message.
    Refused(String),
    /// Process id of the copy; none if the process cannot be copied.
    Forked(Option<i32>),
    /// The end of a copy, as `waitpid` says it; none if it had to be killed.
    Ended(Option<i32>),
    Answer(Answer),
}

/// A message as it is on the socket: a byte that says what it is, and the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packet<'a> {
    /// A body.
    Body(&'a [u8]),
    /// Length of a body in the shared file.
    Shared(u64),
    /// The process is about to die by a signal, with this much data in bytes.
    Dying(u64),
}

impl<'a> Packet<'a> {
    /// The packet as bytes.
    pub fn to_bytes(self) -> Vec<u8> {
        let (kind, rest) = match self {
            Self::Body(body) => (0, body.to_vec()),
            Self::Shared(length) => (1, length.to_le_bytes().to_vec()),
            Self::Dying(data) => (2, data.to_le_bytes().to_vec()),
        };
        [vec![kind], rest].concat()
    }

    /// Reads a packet.
    pub fn read(bytes: &'a [u8]) -> Result<Self> {
        let (kind, rest) = bytes.split_first().context("a message without content")?;
        let number = || rest.try_into().map(u64::from_le_bytes).context("a message of the wrong length");
        match kind {
            0 => Ok(Self::Body(rest)),
            1 => number().map(Self::Shared),
            2 => number().map(Self::Dying),
            kind => Err(anyhow!("a message of the unknown kind {kind}")),
        }
    }
}

/// A request or a reply as bytes.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>> {
    postcard::to_stdvec(message).context("writing a message for a plugin's process")
}

/// Reads a request or a reply.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    let (message, rest) = postcard::take_from_bytes(body).context("a message that cannot be read")?;
    ensure!(rest.is_empty(), "a message with {} bytes behind its end", rest.len());
    Ok(message)
}

/// Reads all that a plugin's process may send, as the trainer does, and all that it may receive. For tests with damaged
/// bytes.
pub fn read_anything(bytes: &[u8]) {
    let Ok(Packet::Body(body)) = Packet::read(bytes) else { return };
    if let Ok(request) = decode::<Request>(body) {
        let again = encode(&request).and_then(|body| decode::<Request>(&body)).and_then(|same| encode(&same));
        assert_eq!(again.ok(), encode(&request).ok(), "a request is read as it is written");
    }
    let Ok(Reply::Answer(answer)) = decode(body) else { return };
    for is_reset in [true, false] {
        let read = answer.clone().checked().result().and_then(|(texts, out)| {
            let step = out.step()?;
            if is_reset { of_reset(texts, step) } else { of_step(texts, step) }
        });
        if let Ok(seen) = read {
            assert!(seen.reward.is_finite() && !(seen.terminated && seen.truncated));
            assert!(seen.images.len() <= ffi::MOST_IMAGES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_read_as_they_are_written() {
        for packet in [Packet::Body(b"abc"), Packet::Body(b""), Packet::Shared(7), Packet::Dying(1 << 40)] {
            assert_eq!(Packet::read(&packet.to_bytes()).unwrap(), packet);
        }
        for bytes in [&b""[..], b"\x01abc", b"\x02", b"\x09abc"] {
            assert!(Packet::read(bytes).is_err());
        }
    }

    #[test]
    fn damaged_messages_are_refused() {
        let call = EnvironmentCall::Reset { split: "train".into(), task: 3, seed: 1 << 60 };
        let body = encode(&Request::Environment(call)).unwrap();
        assert!(decode::<Request>(&body).is_ok());
        for end in 0..body.len() {
            assert!(decode::<Request>(&body[..end]).is_err(), "cut at {end}");
        }
        assert!(decode::<Request>(&[&body[..], b"x"].concat()).is_err());
        // A length far beyond the end must not be reserved.
        assert!(decode::<Reply>(b"\x04\x00\xff\xff\xff\xff\xff\x7f").is_err());
        for byte in 0..=255 {
            read_anything(&[&[0, byte][..], &body].concat());
        }
    }
}
