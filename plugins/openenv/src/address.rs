//! The address of a server.

use anyhow::{Context, Result, bail, ensure};
use nestor_plugin::shown_address;
use tungstenite::http::Uri;

/// The places that a server is reached at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Host to connect to: a name, or an IP address without brackets.
    pub host: String,
    /// Port to connect to.
    pub port: u16,
    /// Start of the HTTP addresses, without a slash at its end.
    pub http: String,
    /// Address of the WebSocket.
    pub socket: String,
}

impl Address {
    /// Parses config key `url`.
    pub fn parse(url: &str) -> Result<Self> {
        let parsed = url.parse::<Uri>();
        let url = shown_address(url);
        let uri = parsed.with_context(|| {
            format!("config key `url`: `{url}` is not an address; write it like ws://127.0.0.1:8000")
        })?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            bail!("config key `url`: `{url}` must begin with ws:// or http://");
        };
        match scheme {
            "ws" | "http" => {}
            "wss" | "https" => bail!(
                "config key `url`: `{url}` needs TLS, which this client does not have; let a reverse proxy or an SSH tunnel \
                 on this machine end it, and name its ws:// address"
            ),
            _ => bail!("config key `url`: `{url}` must begin with ws:// or http://"),
        }
        let plain = uri.query().is_none() && !authority.as_str().contains('@');
        ensure!(plain, "config key `url`: `{url}` must hold only host, port and path");
        let port = match authority.as_str().strip_prefix(authority.host()).and_then(|rest| rest.strip_prefix(':')) {
            None => 80,
            Some(port) => port
                .parse()
                .ok()
                .filter(|&port| port > 0)
                .with_context(|| format!("config key `url`: `{url}`: port {port:?} is not from 1 to 65535"))?,
        };
        let path = uri.path().trim_end_matches('/');
        let place = format!("{authority}{}", path.strip_suffix("/ws").unwrap_or(path));
        Ok(Self {
            host: authority.host().trim_matches(['[', ']']).to_string(),
            port,
            http: format!("http://{place}"),
            socket: format!("ws://{place}/ws"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_an_address_name_the_same_server() {
        for url in ["ws://h:7", "ws://h:7/", "http://h:7", "ws://h:7/ws", "http://h:7/ws/"] {
            let address = Address::parse(url).unwrap();
            assert_eq!((address.http.as_str(), address.socket.as_str()), ("http://h:7", "ws://h:7/ws"), "{url}");
        }
        let address = Address::parse("http://[::1]/envs/echo").unwrap();
        assert_eq!((address.host.as_str(), address.port), ("::1", 80));
        assert_eq!(address.socket, "ws://[::1]/envs/echo/ws");
    }

    #[test]
    fn an_address_that_cannot_be_used_is_refused() {
        for (url, word) in [
            ("wss://host", "SSH tunnel"),
            ("https://host", "SSH tunnel"),
            ("127.0.0.1:8000", "begin with ws://"),
            ("ftp://host", "begin with ws://"),
            ("ws://me:secret@host", "only host"),
            ("ws://host/?a=b", "only host"),
            ("", "is not an address"),
            ("ws://h:99999", "not from 1 to 65535"),
            ("ws://[::1]:0/x", "not from 1 to 65535"),
            ("ftp://me:secret@host", "begin with ws://"),
            ("wss://me:secret@host/x?token=secret", "SSH tunnel"),
            ("ws://me:secret @host", "is not an address"),
        ] {
            let error = format!("{:#}", Address::parse(url).unwrap_err());
            assert!(error.contains(word) && !error.contains("secret"), "{url}: {error}");
        }
    }
}
