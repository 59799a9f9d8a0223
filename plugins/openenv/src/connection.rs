//! One WebSocket to the server, with a deadline for every wait.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use tungstenite::error::{CapacityError, ProtocolError};
use tungstenite::handshake::HandshakeError;
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Error, Message, WebSocket};

use crate::address::Address;
use crate::wire::{self, Reply};

/// Time for the farewell to a server.
const FAREWELL: Duration = Duration::from_millis(200);

/// A failure of a connection.
#[derive(Debug)]
pub enum Fault {
    /// The server went away or ended the session: another connection may fare better.
    Lost(anyhow::Error),
    /// Another connection would fail too.
    Failed(anyhow::Error),
}

/// A stream whose reads and writes end at a deadline.
struct Timed {
    tcp: TcpStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

/// Linux reports a deadline of a socket as "would block", which tungstenite takes for a stream that never blocks.
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.tcp.set_read_timeout(self.left()?)?;
        self.tcp.read(buffer).map_err(timed_out)
    }
}

impl Write for Timed {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.tcp.set_write_timeout(self.left()?)?;
        self.tcp.write(buffer).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
    }
}

/// An open connection: one session of the server. Dropping it ends the session.
pub struct Connection {
    socket: WebSocket<Timed>,
    /// The time of the last answer.
    answered: Instant,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.socket.get_mut().until = Instant::now() + FAREWELL;
        // The server may be gone, or notices the closed connection by itself.
        let _ = self.socket.send(Message::text(wire::CLOSE)).and_then(|()| self.socket.close(None));
        let _ = self.socket.flush();
    }
}

impl Connection {
    /// Connects; connection and handshake together may take this long. Messages of up to `longest` bytes are read.
    pub fn open(address: &Address, timeout: Duration, longest: usize) -> Result<Self, Fault> {
        let until = Instant::now() + timeout;
        let lost = |error: io::Error| {
            Fault::Lost(anyhow!("cannot connect to {} ({error}): is the OpenEnv server up?", address.socket))
        };
        let tcp = connect(address, until).map_err(lost)?;
        tcp.set_nodelay(true).map_err(lost)?;
        let config = WebSocketConfig::default().max_message_size(Some(longest)).max_frame_size(Some(longest));
        match tungstenite::client::client_with_config(&address.socket, Timed { tcp, until }, Some(config)) {
            Ok((socket, _)) => Ok(Self { socket, answered: Instant::now() }),
            Err(HandshakeError::Failure(Error::Http(answer))) => Err(refused(address, answer.status().as_u16())),
            Err(HandshakeError::Failure(error)) => Err(fault(error, "at the handshake")),
            Err(HandshakeError::Interrupted(_)) => {
                Err(Fault::Lost(anyhow!("the handshake with {} was cut short", address.socket)))
            }
        }
    }

    /// Sends a message and returns the answer.
    pub fn ask(&mut self, message: &str, timeout: Duration) -> Result<String, Fault> {
        self.refuse_unasked(Duration::ZERO)?;
        self.socket.get_mut().until = Instant::now() + timeout;
        let sent = self.socket.send(Message::text(message));
        // A server that closes first may have sent the reason, which is then still to be read.
        match (self.answer(timeout), sent) {
            (Ok(text), _) => {
                self.answered = Instant::now();
                Ok(text)
            }
            (Err(_), Err(error)) => Err(fault(error, "while the message was sent")),
            (Err(fault), Ok(())) => Err(fault),
        }
    }

    /// Time since the last answer.
    pub fn quiet(&self) -> Duration {
        self.answered.elapsed()
    }

    /// Refuses a message that comes within `patience` although nothing was asked: taken for the next answer, it would shift all
    /// that follow.
    pub fn refuse_unasked(&mut self, patience: Duration) -> Result<(), Fault> {
        let broken = |error: io::Error| Fault::Lost(anyhow!("the connection broke ({error})"));
        // Without patience a read returns at once, whatever its deadline.
        self.socket.get_ref().tcp.set_nonblocking(patience.is_zero()).map_err(broken)?;
        self.socket.get_mut().until = Instant::now() + if patience.is_zero() { FAREWELL } else { patience };
        let unasked = loop {
            match self.socket.read() {
                Err(Error::Io(error)) if error.kind() == io::ErrorKind::TimedOut => break None,
                read => match text(read, "before a message was sent") {
                    None => {}
                    text => break text,
                },
            }
        };
        self.socket.get_ref().tcp.set_nonblocking(false).map_err(broken)?;
        let Some(text) = unasked.transpose()? else { return Ok(()) };
        Err(match wire::read(&text) {
            Ok(Reply::Refusal(refusal)) if refusal.ends_session() => Fault::Lost(refusal.error()),
            _ => Fault::Failed(anyhow!(
                "the server sent a message that no request asked for, so its answers no longer fit the requests: it must answer \
                 each message once; the message: {}",
                wire::start(&text)
            )),
        })
    }

    /// Reads up to the next text. Pings are answered on the way.
    fn answer(&mut self, timeout: Duration) -> Result<String, Fault> {
        loop {
            match self.socket.read() {
                Err(Error::Io(error)) if error.kind() == io::ErrorKind::TimedOut => {
                    return Err(Fault::Failed(anyhow!(
                        "the server did not answer within {} s (config key `timeout_s`): its environment hangs or is too slow",
                        timeout.as_secs_f64()
                    )));
                }
                read => {
                    if let Some(text) = text(read, "while its answer was awaited") {
                        return text;
                    }
                }
            }
        }
    }
}

/// The text of what was read; none of a ping.
fn text(read: Result<Message, Error>, when: &str) -> Option<Result<String, Fault>> {
    Some(match read {
        Ok(Message::Text(text)) => Ok(text.to_string()),
        Ok(Message::Binary(bytes)) => Err(Fault::Failed(anyhow!(
            "the server sent a binary message of {} bytes; OpenEnv's messages are text",
            bytes.len()
        ))),
        Ok(Message::Close(frame)) => {
            let reason = frame.map(|frame| format!(" ({} {})", frame.code, frame.reason)).unwrap_or_default();
            Err(Fault::Lost(anyhow!("the server closed the connection{reason}")))
        }
        Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => return None,
        Err(error) => Err(fault(error, when)),
    })
}

/// Connects to the first of the host's addresses that answers.
fn connect(address: &Address, until: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for place in (address.host.as_str(), address.port).to_socket_addrs()? {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&place, left) {
            Ok(tcp) => return Ok(tcp),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The fault of a server that answers the handshake with a plain HTTP status.
fn refused(address: &Address, status: u16) -> Fault {
    let place = &address.socket;
    match status {
        // A proxy in front of a server that restarts.
        500.. => Fault::Lost(anyhow!("{place} answered with HTTP {status}")),
        _ => Fault::Failed(anyhow!(
            "{place} is no WebSocket (HTTP {status}): check the path in config key `url`, and install the Python package \
             `websockets` beside the server"
        )),
    }
}

/// Tells a server that went away from one that speaks something else.
fn fault(error: Error, when: &str) -> Fault {
    match error {
        Error::ConnectionClosed
        | Error::AlreadyClosed
        | Error::Protocol(
            ProtocolError::ResetWithoutClosingHandshake
            | ProtocolError::SendAfterClosing
            | ProtocolError::ReceivedAfterClosing
            | ProtocolError::HandshakeIncomplete,
        ) => Fault::Lost(anyhow!("the server closed the connection {when}")),
        Error::Io(error) => Fault::Lost(anyhow!("the connection broke {when} ({error})")),
        Error::Capacity(CapacityError::MessageTooLong { size, max_size }) => {
            Fault::Failed(anyhow!("the server sent a message of {size} bytes or more; at most {max_size} are read"))
        }
        other => Fault::Failed(anyhow!("the server breaks the WebSocket protocol {when} ({other})")),
    }
}
