//! One session with a server: its start, its tools, calls under a time limit, and its faults in words.

use std::collections::HashMap;
use std::error::Error;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use nestor_plugin::shown_address;
use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::RoleClient;
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ErrorData, Implementation, Tool,
};
use rmcp::service::{ClientInitializeError, RunningService, ServiceError, serve_client};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::{Map, Value};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::config::{Config, Place};
use crate::stdio::Process;

/// Time in which a server may end a session that is closed.
const GRACE: Duration = Duration::from_millis(500);
/// Longest answer of a server, in bytes.
const LONGEST: usize = 4 << 20;

type Client = RunningService<RoleClient, ClientConfig>;

/// A session with a server.
pub struct Session {
    /// None while it is dropped.
    client: Option<Client>,
    /// None for a server over HTTP.
    process: Option<Mutex<Process>>,
    place: String,
    url: Option<Url>,
    failed: AtomicBool,
    runtime: Handle,
}

/// The end of a call that the server answered.
#[derive(Debug)]
pub enum Outcome {
    /// The tool's result, perhaps an error.
    Result(Box<CallToolResult>),
    /// The server refused the request.
    Refused(ErrorData),
}

impl Session {
    /// Starts a server or reaches it, and begins a session.
    ///
    /// # Errors
    /// If that fails or takes too long; the server's last output is named.
    pub fn open(config: &Config, runtime: &Handle) -> Result<Self> {
        match config.place()? {
            Place::Command(command) => Self::start(command, config, runtime),
            Place::Url(url) => Self::reach(url, config, runtime),
        }
    }

    fn start(command: &str, config: &Config, runtime: &Handle) -> Result<Self> {
        let place = format!("the server `{command}`");
        let (mut process, pipes) = Process::start(command, config, runtime)?;
        let begun = within(runtime, config.start_timeout(), serve_client(client(), pipes));
        let error = match begun {
            Some(Ok(client)) => return Ok(Self::new(client, Some(process), (place, None), runtime)),
            Some(Err(ClientInitializeError::ConnectionClosed(_) | ClientInitializeError::TransportError { .. })) => {
                process.end()
            }
            Some(Err(error)) => format!("begins no session: {}", chain(&error)),
            None => silent(config),
        };
        Err(anyhow!("{place} {error}{}", process.said.shown()))
    }

    fn reach(url: &str, config: &Config, runtime: &Handle) -> Result<Self> {
        let shown = shown_address(url);
        let (url, headers) = (address(url)?, headers(config)?);
        // One provider of cryptography for this library; a second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder();
        if is_loopback(&url) {
            http = http.no_proxy();
        }
        let http = http.build().context("starting the client of HTTP")?;
        let mut settings = StreamableHttpClientTransportConfig::with_uri(url.as_str()).custom_headers(headers);
        // A new session would not have the state of the old one.
        settings.reinit_on_expired_session = false;
        (settings.max_sse_event_size, settings.max_json_response_size) = (LONGEST, LONGEST);
        let begin = async { serve_client(client(), StreamableHttpClientTransport::with_client(http, settings)).await };
        let place = format!("the server at {shown}");
        match within(runtime, config.start_timeout(), begin) {
            Some(Ok(client)) => Ok(Self::new(client, None, (place, Some(url)), runtime)),
            Some(Err(error)) => Err(anyhow!(
                "{place} cannot be reached, or does not speak MCP: {}; start it, or correct config key `url`",
                chain(&error).replace(url.as_str(), &shown)
            )),
            None => Err(anyhow!("{place} {}", silent(config))),
        }
    }

    fn new(client: Client, process: Option<Process>, (place, url): (String, Option<Url>), runtime: &Handle) -> Self {
        let (client, process) = (Some(client), process.map(Mutex::new));
        Self { client, process, place, url, failed: AtomicBool::new(false), runtime: runtime.clone() }
    }

    /// The server's tools.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn tools(&self, at_most: Duration) -> Result<Vec<Tool>> {
        match within(&self.runtime, at_most, self.client()?.list_all_tools()) {
            Some(Ok(tools)) => Ok(tools),
            Some(Err(ServiceError::McpError(error))) => {
                Err(anyhow!("{} lists no tools: {}", self.place, error.message))
            }
            Some(Err(error)) => Err(self.fault(&error, "the list of tools")),
            None => Err(self.hangs("the list of tools", at_most, "start_timeout_s")),
        }
    }

    /// Calls a tool.
    ///
    /// # Errors
    /// If the server gives no answer in time, ends, or answers something else. The session is of no use then.
    pub fn call(&self, name: &str, arguments: Map<String, Value>, at_most: Duration) -> Result<Outcome> {
        let request = CallToolRequestParams::new(name.to_string()).with_arguments(arguments);
        let asked = format!("the call of `{name}`");
        match within(&self.runtime, at_most, self.client()?.call_tool(request)) {
            Some(Ok(result)) => Ok(Outcome::Result(Box::new(result))),
            Some(Err(ServiceError::McpError(error))) => Ok(Outcome::Refused(error)),
            Some(Err(error)) => Err(self.fault(&error, &asked)),
            None => Err(self.hangs(&asked, at_most, "timeout_s")),
        }
    }

    /// False once a call has failed or the server has ended.
    pub fn works(&self) -> bool {
        let runs = |process: &Mutex<Process>| process.lock().unwrap_or_else(PoisonError::into_inner).runs();
        !self.failed.load(Ordering::Relaxed)
            && self.client.as_ref().is_some_and(|client| !client.is_transport_closed())
            && self.process.as_ref().is_none_or(runs)
    }

    fn client(&self) -> Result<&Client> {
        ensure!(!self.failed.load(Ordering::Relaxed), "{} has failed in another episode", self.place);
        self.client.as_ref().context("the session is closed")
    }

    fn hangs(&self, asked: &str, at_most: Duration, key: &str) -> anyhow::Error {
        self.failed.store(true, Ordering::Relaxed);
        let (place, seconds) = (&self.place, at_most.as_secs_f64());
        anyhow!("{place} did not answer {asked} within {seconds} s (config key `{key}`){}", self.shown())
    }

    fn fault(&self, error: &ServiceError, asked: &str) -> anyhow::Error {
        self.failed.store(true, Ordering::Relaxed);
        let place = &self.place;
        if matches!(error, ServiceError::UnexpectedResponse) {
            return anyhow!("{place} answered {asked} with something else than its result{}", self.shown());
        }
        match &self.process {
            Some(process) => {
                let end = process.lock().unwrap_or_else(PoisonError::into_inner).end();
                anyhow!("{place} {end} before it answered {asked}{}", self.shown())
            }
            None => anyhow!("{place} broke the connection before it answered {asked}: {}", self.without_secrets(error)),
        }
    }

    fn without_secrets(&self, error: &ServiceError) -> String {
        let text = chain(error);
        self.url.as_ref().map_or(text.clone(), |url| text.replace(url.as_str(), &shown_address(url.as_str())))
    }

    fn shown(&self) -> String {
        let shown = |process: &Mutex<Process>| process.lock().unwrap_or_else(PoisonError::into_inner).said.shown();
        self.process.as_ref().map(shown).unwrap_or_default()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(mut client) = self.client.take() else { return };
        // One that hangs is not waited for.
        if self.failed.load(Ordering::Relaxed) {
            return;
        }
        let _ = self.runtime.block_on(async { client.close_with_timeout(GRACE).await });
        if let Some(process) = &self.process {
            process.lock().unwrap_or_else(PoisonError::into_inner).leave(GRACE);
        }
    }
}

/// Waits for a future on the sessions' thread. None if it takes too long.
fn within<F: Future>(runtime: &Handle, at_most: Duration, future: F) -> Option<F::Output> {
    // The timer belongs to the runtime, so it must begin inside.
    runtime.block_on(async { timeout(at_most, future).await.ok() })
}

fn client() -> ClientConfig {
    ClientConfig::new(ClientCapabilities::default(), Implementation::new("nestor", env!("CARGO_PKG_VERSION")))
}

fn silent(config: &Config) -> String {
    format!("began no session within {} s (config key `start_timeout_s`)", config.start_timeout_s)
}

/// An error with its causes, each once.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

fn address(url: &str) -> Result<Url> {
    let shown = shown_address(url);
    let parsed = Url::parse(url).map_err(|error| {
        anyhow!("config key `url`: `{shown}` is no address ({error}); write it like http://127.0.0.1:8000/mcp")
    })?;
    ensure!(
        matches!(parsed.scheme(), "http" | "https"),
        "config key `url`: `{shown}` must begin with http:// or https://"
    );
    Ok(parsed)
}

/// True for this machine, which no proxy reaches.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    host == "localhost" || host.trim_matches(['[', ']']).parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

fn headers(config: &Config) -> Result<HashMap<HeaderName, HeaderValue>> {
    let read = |(name, value): (&String, &String)| {
        let known = HeaderName::try_from(name).with_context(|| format!("config key `headers`: no name: `{name}`"))?;
        let mut value = HeaderValue::try_from(value)
            .with_context(|| format!("config key `headers.{name}`: no value of a header"))?;
        value.set_sensitive(true);
        Ok((known, value))
    };
    config.headers.iter().map(read).collect()
}
