//! The page over HTTP, on loopback only. Every request must name the random token in its path, so that other users of
//! the machine read nothing, and a loopback address as its host, so that no foreign name can be bound to it.
//!
//! One thread serves all connections and waits for none of them. Anybody on the machine may connect, so each connection has
//! deadlines, and where there are too many, the one nearest to its deadline is closed.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};

use crate::connection::{Connection, Head};
use crate::site::Site;
use crate::{Options, ViewError};

/// Most connections at a time. A browser opens about six.
const CONNECTIONS: usize = 64;
/// Most bytes of replies that are kept for slow clients; a single one may be larger. Only who knows the token gets large ones, and
/// a browser asks for six images at a time.
const HELD: usize = 6 * (48 << 20);
/// Milliseconds between two looks at deadlines.
const LOOK: u16 = 500;
/// Pause after a connection that the machine could not open.
const PAUSE: Duration = Duration::from_millis(50);

/// A server of one page.
pub struct Server {
    listener: TcpListener,
    port: u16,
    token: String,
    site: Site,
    connections: Vec<Connection>,
}

/// An answer: status, type and content.
type Answer = (u16, &'static str, String);

const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
/// No copy in a cache, no address to other sites, no guess of types, no frame around the page.
const HEADERS: [&str; 6] = [
    "Connection: close",
    "Cache-Control: no-store",
    "Referrer-Policy: no-referrer",
    "X-Content-Type-Options: nosniff",
    "X-Frame-Options: DENY",
    "Cross-Origin-Resource-Policy: same-origin",
];

impl Server {
    /// Listens on 127.0.0.1; port 0 means any that is free.
    pub fn bind(port: u16, runs: &[PathBuf], options: Options) -> Result<Self, ViewError> {
        let site = Site::new(runs, options)?;
        let listen = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?.port(), listener))
        };
        let failed = |error: std::io::Error| ViewError::Port { port, reason: error.to_string() };
        let (port, listener) = listen().map_err(failed)?;
        let token = format!("{:032x}", rand::random::<u128>());
        Ok(Self { listener, port, token, site, connections: Vec::new() })
    }

    /// Returns the page's address, which holds the token.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}/{}/", self.port, self.token)
    }

    /// Serves for as long as the process lives.
    pub fn run(mut self) -> ! {
        loop {
            self.wait();
            self.accept();
            let Self { port, token, site, connections, .. } = &mut self;
            connections
                .retain_mut(|connection| connection.step(|head| reply(head, &format!("/{token}/"), *port, site)));
            self.close_surplus();
        }
    }

    /// Waits until a socket is ready, or a while.
    fn wait(&self) {
        let own = PollFd::new(self.listener.as_fd(), PollFlags::POLLIN);
        let each = self.connections.iter().map(|connection| PollFd::new(connection.as_fd(), connection.awaits()));
        let mut sockets: Vec<PollFd> = [own].into_iter().chain(each).collect();
        if poll(&mut sockets, LOOK).is_err() {
            thread::sleep(PAUSE);
        }
    }

    /// Takes one connection in each round, so that those there are served between two new ones.
    fn accept(&mut self) {
        match self.listener.accept().and_then(|(stream, _)| Connection::new(stream)) {
            Ok(connection) => self.connections.push(connection),
            // None, or one that its client closed.
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::ConnectionAborted].contains(&error.kind()) => {}
            Err(_) => thread::sleep(PAUSE),
        }
    }

    /// Closes the connections nearest to their deadlines while there are too many, or while too much is kept for them.
    fn close_surplus(&mut self) {
        self.connections.sort_by_key(Connection::deadline);
        let surplus = self.connections.len().saturating_sub(CONNECTIONS);
        self.connections.drain(..surplus);
        while self.connections.iter().map(Connection::held).sum::<usize>() > HELD {
            let mut holders = self.connections.iter().enumerate().filter(|(_, connection)| connection.held() > 0);
            let (Some((first, _)), Some(_)) = (holders.next(), holders.next()) else { break };
            self.connections.remove(first);
        }
    }
}

/// Returns the bytes of the reply to a request, or to a head with this status.
fn reply(head: Result<Head, u16>, base: &str, port: u16, site: &mut Site) -> Vec<u8> {
    let has_body = head.as_ref().map_or(true, |head| head.method != "HEAD");
    let (status, kind, content) = match head {
        Ok(head) => answer(&head, base, port, site),
        Err(status) => (status, TEXT, "not a request that this server reads".into()),
    };
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        _ => "Internal Server Error",
    };
    let headers = HEADERS.join("\r\n");
    let length = content.len();
    let mut reply =
        format!("HTTP/1.1 {status} {reason}\r\n{headers}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n");
    if has_body {
        reply += &content;
    }
    reply.into_bytes()
}

fn answer(head: &Head, base: &str, port: u16, site: &mut Site) -> Answer {
    let Some(path) = permitted(head, base, port) else {
        return (403, TEXT, "forbidden: use the address that `nestor view --serve` printed".into());
    };
    if head.method != "GET" {
        return (405, TEXT, "only GET".into());
    }
    let found = match path {
        "" => site.page().map(Some),
        "version" => Ok(Some(site.version())),
        "index" => site.index().map(Some),
        _ => path.strip_prefix("block/").map_or(Ok(None), |id| site.block(id)),
    };
    match found {
        Ok(Some(content)) => (200, if path.is_empty() { HTML } else { TEXT }, content),
        Ok(None) => (404, TEXT, "not found".into()),
        Err(error) => (500, TEXT, error.to_string()),
    }
}

/// Returns the path after the base, which holds the token, if the request names both it and a loopback host.
fn permitted<'a>(head: &Head<'a>, base: &str, port: u16) -> Option<&'a str> {
    let host = head.host?;
    let is_own = ["127.0.0.1", "localhost"].iter().any(|name| host == format!("{name}:{port}"));
    head.target.split(['?', '#']).next()?.strip_prefix(base).filter(|_| is_own)
}
