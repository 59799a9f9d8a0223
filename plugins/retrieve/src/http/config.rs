//! The keys of the source `http`.

use anyhow::{Context, Result, ensure};
use nestor_plugin::shown_address;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use ureq::http::Uri;

pub use super::circuit::CircuitConfig;

/// The keys of the source `http`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpConfig {
    /// Address of the server, such as `http://127.0.0.1:8000/retrieve`, or a list of servers of one corpus. Requests go to them
    /// in turn. An address without a path gets `/retrieve`.
    pub url: Urls,
    /// Form of the requests.
    #[serde(default)]
    pub form: Form,
    /// Seconds that a request may take, from the connection to the end of the reply.
    #[serde(default = "timeout_s")]
    pub timeout_s: f64,
    /// The most requests for a query, the first included.
    #[serde(default = "tries")]
    pub tries: u32,
    /// Seconds before the second try; twice as many before the third, three times as many before the fourth.
    #[serde(default = "backoff_s")]
    pub backoff_s: f64,
    /// The most queries in a request of the form `queries`.
    #[serde(default = "max_batch")]
    pub max_batch: usize,
    /// The most requests that one server gets at a time. Further queries wait and share the next request.
    #[serde(default = "connections")]
    pub connections: usize,
    /// The longest reply that the client reads, in MiB.
    #[serde(default = "max_reply_mib")]
    pub max_reply_mib: u64,
    /// The rule that keeps requests from a failing server for a while.
    #[serde(default)]
    pub circuit: CircuitConfig,
}

/// Addresses of servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected an address or a list of addresses")]
pub enum Urls {
    /// One server.
    One(String),
    /// Several servers.
    Many(Vec<String>),
}

/// Forms of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Ask for the form `queries`, and for `query` if a server refuses it with 422.
    #[default]
    Auto,
    /// Search-R1's: several queries in a request.
    Queries,
    /// verl-agent's: one query in a request.
    Query,
}

impl HttpConfig {
    /// The settings for one server, all others at their defaults.
    pub fn new(url: &str) -> Self {
        Self {
            url: Urls::One(url.to_owned()),
            form: Form::Auto,
            timeout_s: timeout_s(),
            tries: tries(),
            backoff_s: backoff_s(),
            max_batch: max_batch(),
            connections: connections(),
            max_reply_mib: max_reply_mib(),
            circuit: CircuitConfig::default(),
        }
    }

    /// The addresses, complete.
    ///
    /// # Errors
    /// No address, one that is no `http://` address, or a number that makes no sense.
    pub fn check(&self) -> Result<Vec<String>> {
        let seconds =
            [("timeout_s", self.timeout_s), ("backoff_s", self.backoff_s), ("circuit.wait_s", self.circuit.wait_s)];
        for (key, value) in seconds {
            ensure!(
                (0.0..=86_400.0).contains(&value),
                "retriever key `http.{key}`: {value} is not from 0 to 86400 seconds"
            );
        }
        ensure!(self.timeout_s >= 0.001, "retriever key `http.timeout_s`: 0 seconds leave no time for a reply");
        let counts = [
            ("tries", u64::from(self.tries)),
            ("max_batch", self.max_batch as u64),
            ("connections", self.connections as u64),
            ("max_reply_mib", self.max_reply_mib),
            ("circuit.failures", u64::from(self.circuit.failures)),
        ];
        for (key, value) in counts {
            ensure!((1..1 << 20).contains(&value), "retriever key `http.{key}`: {value} is not from 1 to 1048575");
        }
        let urls = match &self.url {
            Urls::One(url) => std::slice::from_ref(url),
            Urls::Many(urls) => urls,
        };
        ensure!(!urls.is_empty(), "retriever key `http.url`: the list is empty; give the address of a server");
        urls.iter().map(|url| complete(url)).collect()
    }
}

fn complete(url: &str) -> Result<String> {
    let shown = shown_address(url);
    ensure!(
        !url.starts_with("https://"),
        "retriever key `http.url`: {shown}: this program has no TLS; give an http:// address, such as that of a proxy on this \
         machine"
    );
    let rest = url.strip_prefix("http://").filter(|rest| !rest.starts_with(['/', ':']) && !rest.is_empty());
    let uri = url.parse::<Uri>().ok().filter(|_| rest.is_some());
    let authority = uri.as_ref().and_then(Uri::authority).with_context(|| {
        format!("retriever key `http.url`: {shown:?} is no address such as http://127.0.0.1:8000/retrieve")
    })?;
    ensure!(
        !authority.as_str().contains('@'),
        "retriever key `http.url`: {shown} names a user; this program sends no password, so let a proxy on this machine add it"
    );
    let port = authority.as_str().strip_prefix(authority.host()).and_then(|rest| rest.strip_prefix(':'));
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    ensure!(is_port, "retriever key `http.url`: {shown}: the port is not from 1 to 65535");
    let bare = rest.is_some_and(|rest| !rest.trim_end_matches('/').contains(['/', '?']));
    Ok(if bare { format!("{}/retrieve", url.trim_end_matches('/')) } else { url.to_owned() })
}

fn timeout_s() -> f64 {
    60.0
}

fn tries() -> u32 {
    10
}

fn backoff_s() -> f64 {
    1.0
}

fn max_batch() -> usize {
    64
}

fn connections() -> usize {
    8
}

fn max_reply_mib() -> u64 {
    32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_completed_and_faults_named() {
        let checked = |url: &str| HttpConfig::new(url).check();
        assert_eq!(checked("http://h:8000").unwrap(), ["http://h:8000/retrieve"]);
        assert_eq!(checked("http://h:8000/").unwrap(), ["http://h:8000/retrieve"]);
        assert_eq!(checked("http://h/find").unwrap(), ["http://h/find"]);
        for (url, message) in [
            ("https://h/x", "no TLS"),
            ("h:8000", "is no address"),
            ("http://", "is no address"),
            ("http://a b", "is no address"),
            ("http://h:99999", "not from 1 to 65535"),
            ("http://h:0/x", "not from 1 to 65535"),
            ("http://h:", "not from 1 to 65535"),
            ("http://me:secret@h", "names a user"),
            ("http://me:secret @h", "is no address"),
            ("https://me:secret@h/x?key=secret", "no TLS"),
        ] {
            let error = checked(url).unwrap_err().to_string();
            assert!(error.contains(message) && error.contains("http.url"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
        type Fault = fn(&mut HttpConfig);
        let faults: [(&str, Fault); 5] = [
            ("http.timeout_s", |config| config.timeout_s = 0.0),
            ("http.backoff_s", |config| config.backoff_s = f64::NAN),
            ("http.tries", |config| config.tries = 0),
            ("http.circuit.failures", |config| config.circuit.failures = 0),
            ("http.url", |config| config.url = Urls::Many(vec![])),
        ];
        for (key, fault) in faults {
            let mut config = HttpConfig::new("http://h");
            fault(&mut config);
            assert!(config.check().unwrap_err().to_string().contains(key), "{key}");
        }
    }
}
