//! The connection of two processes: a socket for messages, and a file in memory for bodies that are too long for one.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::cmsg_space;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg, setsockopt,
    socketpair, sockopt,
};
use nix::sys::time::TimeVal;

use super::frame::{INLINE, Packet};

/// From this length on the shared file gives its memory back after use.
const LARGE: u64 = 1 << 20;

/// One end of the connection.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    shared: File,
}

/// A message that arrived.
pub enum Received {
    Body(Vec<u8>),
    /// The process is about to die by a signal, with this much data in bytes.
    Dying(u64),
    /// The other end is closed.
    Closed,
    /// Nothing came in the time that [`Channel::wait_at_most`] set.
    Nothing,
}

impl Channel {
    /// Both ends.
    pub fn pair() -> Result<(Self, Self)> {
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
            .context("cannot make a socket for a plugin's process")?;
        let shared = memfd_create(c"nestor", MFdFlags::MFD_CLOEXEC).context("cannot make a file in memory")?;
        let shared = File::from(shared);
        let other = shared.try_clone().context("cannot share a file in memory")?;
        Ok((Self { socket: ours, shared }, Self { socket: theirs, shared: other }))
    }

    /// The end of a process that got it from the trainer.
    pub fn of(socket: OwnedFd, shared: OwnedFd) -> Self {
        Self { socket, shared: shared.into() }
    }

    pub fn into_parts(self) -> (OwnedFd, OwnedFd) {
        (self.socket, self.shared.into())
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub fn shared(&self) -> BorrowedFd<'_> {
        self.shared.as_fd()
    }

    /// Has [`Channel::receive`] return after this time at the latest.
    pub fn wait_at_most(&self, time: Duration) -> Result<()> {
        let time = TimeVal::new(time.as_secs() as i64, i64::from(time.subsec_micros()));
        setsockopt(&self.socket, sockopt::ReceiveTimeout, &time).context("cannot set up a socket")
    }

    /// Sends a body, and descriptors with it.
    pub fn send(&self, body: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
        let packet = if body.len() <= INLINE {
            Packet::Body(body)
        } else {
            self.shared.write_all_at(body, 0)?;
            Packet::Shared(body.len() as u64)
        };
        let bytes = packet.to_bytes();
        let rights = [ControlMessage::ScmRights(descriptors)];
        let rights = if descriptors.is_empty() { &rights[..0] } else { &rights[..] };
        let sent =
            sendmsg::<()>(self.socket.as_raw_fd(), &[IoSlice::new(&bytes)], rights, MsgFlags::MSG_NOSIGNAL, None);
        sent.map(|_| ()).map_err(Into::into)
    }

    /// Waits for a message. `most` is the longest body that can be right.
    pub fn receive(&self, most: u64) -> Result<Received> {
        let mut buffer = vec![0; INLINE + 1];
        let length = match receive(self.socket(), &mut buffer) {
            Ok((0, _)) => return Ok(Received::Closed),
            Ok((length, _)) => length,
            Err(error) => return kind_of(error),
        };
        self.body(&buffer[..length], most)
    }

    /// As [`Channel::receive`], for a message that may bring descriptors.
    pub fn receive_with_descriptors(&self) -> Result<(Received, Vec<OwnedFd>)> {
        let mut buffer = vec![0; INLINE + 1];
        match receive(self.socket(), &mut buffer) {
            Ok((0, _)) => Ok((Received::Closed, Vec::new())),
            Ok((length, descriptors)) => Ok((self.body(&buffer[..length], u64::MAX)?, descriptors)),
            Err(error) => Ok((kind_of(error)?, Vec::new())),
        }
    }

    fn body(&self, bytes: &[u8], most: u64) -> Result<Received> {
        match Packet::read(bytes)? {
            Packet::Body(body) => Ok(Received::Body(body.to_vec())),
            Packet::Dying(data) => Ok(Received::Dying(data)),
            Packet::Shared(length) => {
                ensure!(length <= most, "a message of {length} bytes, where {most} are the most");
                let mut body = vec![0; usize::try_from(length)?];
                self.shared.read_exact_at(&mut body, 0).context("a message that is shorter than it says")?;
                if length >= LARGE {
                    self.shared.set_len(0).context("cannot empty a file in memory")?;
                }
                Ok(Received::Body(body))
            }
        }
    }
}

fn kind_of(error: io::Error) -> Result<Received> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(Received::Nothing),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Ok(Received::Closed),
        _ => Err(error.into()),
    }
}

/// Receives one message and the descriptors that came with it.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = cmsg_space!([RawFd; 2]);
    let mut slices = [IoSliceMut::new(buffer)];
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = control {
            // SAFETY: the kernel has just made these descriptors for this process; nobody else owns them.
            descriptors.extend(numbers.iter().map(|&number| unsafe { OwnedFd::from_raw_fd(number) }));
        }
    }
    Ok((message.bytes, descriptors))
}
