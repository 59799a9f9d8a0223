//! A connection to the server: one request, one reply, and a moment at which it is closed if its client is too slow.
//!
//! Nothing here waits, and no body is ever read: a request that claims one is answered by its head.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

/// Most bytes of a request line and its headers. Browsers send under 1 KiB.
const HEAD_BYTES: usize = 16 << 10;
/// Most headers of a request.
const HEADERS: usize = 64;
/// Time for a whole head, from the connection on.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Time in which a client must take some bytes of its reply.
const REPLY_TIME: Duration = Duration::from_secs(10);
/// Time in which a client must close its end after the reply.
const END_TIME: Duration = Duration::from_secs(1);

/// A request, without its body.
pub(crate) struct Head<'a> {
    pub method: &'a str,
    pub target: &'a str,
    /// The host that it names; none if it names no or several hosts.
    pub host: Option<&'a str>,
}

pub(crate) struct Connection {
    stream: TcpStream,
    stage: Stage,
    deadline: Instant,
}

enum Stage {
    /// The bytes of the head that have come.
    Head(Vec<u8>),
    /// A reply, and the number of its bytes that are sent.
    Reply(Vec<u8>, usize),
    /// The reply is sent. Further bytes of the client are dropped: closing a socket that holds unread bytes would take the reply back.
    End,
}

impl Connection {
    /// A client's connection.
    ///
    /// # Errors
    /// If the socket cannot be told not to block.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, stage: Stage::Head(Vec::new()), deadline: Instant::now() + HEAD_TIME })
    }

    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Bytes of the reply in memory.
    pub fn held(&self) -> usize {
        if let Stage::Reply(reply, _) = &self.stage { reply.len() } else { 0 }
    }

    /// The event to wait for.
    pub fn awaits(&self) -> PollFlags {
        if matches!(self.stage, Stage::Reply(..)) { PollFlags::POLLOUT } else { PollFlags::POLLIN }
    }

    /// Reads or writes as much as one call can, and makes the reply with `answer` when the head is whole. False if the connection
    /// is at its end.
    pub fn step(&mut self, answer: impl FnOnce(Result<Head, u16>) -> Vec<u8>) -> bool {
        let stepped = match &mut self.stage {
            Stage::Head(head) => {
                let stepped = receive(&mut self.stream, |bytes| head.extend_from_slice(bytes));
                if let (Ok(()), Some(reply)) = (&stepped, parse(head, answer)) {
                    self.enter(Stage::Reply(reply, 0), REPLY_TIME);
                }
                stepped
            }
            Stage::Reply(reply, sent) => match self.stream.write(&reply[*sent..]) {
                Ok(count) => {
                    *sent += count;
                    if *sent < reply.len() {
                        self.deadline = Instant::now() + REPLY_TIME;
                    } else {
                        let _ = self.stream.shutdown(Shutdown::Write);
                        self.enter(Stage::End, END_TIME);
                    }
                    Ok(())
                }
                Err(error) => Err(error),
            },
            Stage::End => receive(&mut self.stream, |_| {}),
        };
        let waits = |error: io::Error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
        stepped.map_or_else(waits, |()| true) && Instant::now() < self.deadline
    }

    fn enter(&mut self, stage: Stage, time: Duration) {
        self.stage = stage;
        self.deadline = Instant::now() + time;
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Reads once; the client's end of the connection is an error.
fn receive(stream: &mut TcpStream, take: impl FnOnce(&[u8])) -> io::Result<()> {
    let mut bytes = [0; 4096];
    match stream.read(&mut bytes)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => {
            take(&bytes[..count]);
            Ok(())
        }
    }
}

/// Makes the reply to a head that is whole or wrong, the latter from a status.
fn parse(bytes: &[u8], answer: impl FnOnce(Result<Head, u16>) -> Vec<u8>) -> Option<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let status = match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {
            let mut hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
            let host = hosts.next().and_then(|header| std::str::from_utf8(header.value).ok());
            let host = host.filter(|_| hosts.next().is_none());
            let (method, target) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
            return Some(answer(Ok(Head { method, target, host })));
        }
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => 431,
        Err(_) => 400,
    };
    Some(answer(Err(status)))
}
