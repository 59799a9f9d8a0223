//! A client of chat completions: it asks a served model for several answers at once.

use std::error::Error;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use reqwest::header::RETRY_AFTER;
use reqwest::{RequestBuilder, StatusCode, Url};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

use crate::said::Said;

/// Tries of a request that the server is too busy for, or whose connection breaks.
const TRIES: u32 = 6;
/// Longest wait between two tries.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Longest time that a server takes to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Characters of a body that an error quotes.
const QUOTED: usize = 500;

/// The place of a server.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// The base URL, such as `http://127.0.0.1:8000/v1`. Without a path it gets `/v1`.
    pub url: String,
    /// The key that the server asks for.
    pub key: Option<String>,
    /// Requests at once.
    pub at_once: usize,
    /// Longest time that one answer may take.
    pub patience: Duration,
    /// The wait before a second try; it doubles with each further one.
    pub first_wait: Duration,
}

/// The reason that there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    WrongUrl(String),
    #[error("cannot reach {url}: {cause}")]
    Unreachable { url: String, cause: String },
    /// A status other than success, and the server's reason.
    #[error("{url} answers with status {status}: {message}")]
    Refused { url: String, status: u16, message: String },
    #[error("{url} answers with something else than a chat completion: {body}")]
    Unreadable { url: String, body: String },
}

/// A model that a server names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedModel {
    pub name: String,
    /// `nestor`, `vllm` or others.
    pub owner: String,
}

/// A client on a thread of its own. Dropped, it gives up the requests under way.
pub struct Client {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    asker: Asker,
    permits: Arc<Semaphore>,
    sender: Sender<(usize, Result<Said, Failure>)>,
    answers: Receiver<(usize, Result<Said, Failure>)>,
    under_way: usize,
}

/// One connection's settings, for many tasks.
#[derive(Debug, Clone)]
struct Asker {
    http: reqwest::Client,
    base: String,
    key: Option<String>,
    first_wait: Duration,
}

impl Client {
    /// A client; it connects with its first request.
    ///
    /// # Errors
    /// For a URL that is none.
    pub fn new(options: &ClientOptions) -> Result<Self> {
        let url = base(&options.url)?;
        // Fails where another part of the process has set one already, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder().connect_timeout(CONNECT).timeout(options.patience);
        if is_loopback(&url) {
            http = http.no_proxy();
        }
        let asker = Asker {
            http: http.build().context("making an HTTP client")?,
            base: url.as_str().trim_end_matches('/').to_string(),
            key: options.key.clone(),
            first_wait: options.first_wait,
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting an HTTP client")?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = move || drop(runtime.block_on(stopped));
        let thread =
            std::thread::Builder::new().name("requests".into()).spawn(serve).context("starting an HTTP client")?;
        let (sender, answers) = channel();
        let permits = Arc::new(Semaphore::new(options.at_once.max(1)));
        let (stop, thread) = (Some(stop), Some(thread));
        Ok(Self { handle, stop, thread, asker, permits, sender, answers, under_way: 0 })
    }

    /// The base URL.
    pub fn url(&self) -> &str {
        &self.asker.base
    }

    /// The models of the server.
    ///
    /// # Errors
    /// If the server cannot be reached, or refuses.
    pub fn models(&self) -> Result<Vec<ServedModel>, Failure> {
        let url = format!("{}/models", self.asker.base);
        let body =
            self.handle.block_on(self.asker.once(&url, |http| http.get(&url))).map_err(|(failure, _)| failure)?;
        let text = |model: &Value, key: &str| model[key].as_str().unwrap_or_default().to_string();
        let models = body["data"].as_array().ok_or_else(|| unreadable(&url, &body.to_string()))?;
        Ok(models.iter().map(|m| ServedModel { name: text(m, "id"), owner: text(m, "owned_by") }).collect())
    }

    /// Asks for the answer to a request; `number` comes back with it.
    pub fn ask(&mut self, number: usize, body: Value) {
        let (asker, permits, sender) = (self.asker.clone(), self.permits.clone(), self.sender.clone());
        self.under_way += 1;
        self.handle.spawn(async move {
            // The semaphore is never closed.
            let _permit = permits.acquire().await;
            let answer = asker.ask(&body).await;
            let _ = sender.send((number, answer));
        });
    }

    /// True if no request is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    /// The answers that arrive within `patience`; returns at once where none is under way.
    pub fn answers(&mut self, patience: Duration) -> Vec<(usize, Result<Said, Failure>)> {
        let (begin, mut all) = (Instant::now(), Vec::new());
        while self.under_way > 0 {
            // Those that wait come without a further wait.
            let left = if all.is_empty() { patience.saturating_sub(begin.elapsed()) } else { Duration::ZERO };
            match self.answers.recv_timeout(left) {
                Ok(answer) => {
                    self.under_way -= 1;
                    all.push(answer);
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        all
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Asker {
    /// Asks until there is an answer, or a reason that no further try would change.
    async fn ask(&self, body: &Value) -> Result<Said, Failure> {
        let url = format!("{}/chat/completions", self.base);
        let text = body.to_string();
        let mut wait = self.first_wait;
        for tried in 1.. {
            let post = |http: &reqwest::Client| {
                http.post(&url).header(reqwest::header::CONTENT_TYPE, "application/json").body(text.clone())
            };
            let (failure, asked) = match self.once(&url, post).await {
                Ok(body) => return Said::read(&body).ok_or_else(|| unreadable(&url, &body.to_string())),
                Err(failed) => failed,
            };
            if tried >= TRIES || !may_pass(&failure) {
                return Err(failure);
            }
            tokio::time::sleep(asked.unwrap_or(wait).min(LONGEST_WAIT)).await;
            wait *= 2;
        }
        unreachable!("the loop ends by an answer or a failure")
    }

    /// One try: the body of the answer, or the failure and the wait that the server asks for.
    async fn once(
        &self,
        url: &str,
        request: impl FnOnce(&reqwest::Client) -> RequestBuilder,
    ) -> Result<Value, (Failure, Option<Duration>)> {
        let request = request(&self.http);
        let request = match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        let broken = |error: reqwest::Error| (Failure::Unreachable { url: url.into(), cause: cause(&error) }, None);
        let response = request.send().await.map_err(broken)?;
        let status = response.status();
        let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let text = response.text().await.map_err(broken)?;
        let body: Option<Value> = serde_json::from_str(&text).ok();
        if status.is_success() {
            return body.ok_or_else(|| (unreadable(url, &text), None));
        }
        let message = body.as_ref().and_then(reason).unwrap_or_else(|| quoted(&text));
        Err((Failure::Refused { url: url.into(), status: status.as_u16(), message }, asked.map(Duration::from_secs)))
    }
}

/// The base URL of a server.
fn base(text: &str) -> Result<Url, Failure> {
    let wrong = |why: &str| Failure::WrongUrl(format!("`{text}` is no URL such as http://127.0.0.1:8000/v1: {why}"));
    let mut url = Url::parse(text).map_err(|error| wrong(&error.to_string()))?;
    if !["http", "https"].contains(&url.scheme()) || url.host_str().is_none() {
        return Err(wrong("it must begin with http:// or https://"));
    }
    if url.path() == "/" {
        url.set_path("/v1");
    }
    Ok(url)
}

fn is_loopback(url: &Url) -> bool {
    url.host_str().is_some_and(|host| host == "localhost" || host.starts_with("127.") || host == "[::1]")
}

/// True for a failure that a further try may not have.
fn may_pass(failure: &Failure) -> bool {
    match failure {
        Failure::Unreachable { .. } => true,
        Failure::Refused { status, .. } => [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::BAD_GATEWAY,
            StatusCode::SERVICE_UNAVAILABLE,
            StatusCode::GATEWAY_TIMEOUT,
        ]
        .iter()
        .any(|busy| busy.as_u16() == *status),
        Failure::WrongUrl(_) | Failure::Unreadable { .. } => false,
    }
}

/// The reason in a refusal: `{"error": {"message": …}}`, or a text in other servers' forms.
fn reason(body: &Value) -> Option<String> {
    let error = if body["error"].is_null() { body } else { &body["error"] };
    let text = error.as_str().or_else(|| error["message"].as_str()).or_else(|| error["detail"].as_str())?;
    Some(quoted(text))
}

fn quoted(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(QUOTED).collect();
    if line.trim().is_empty() { "no reason".into() } else { line.trim().to_string() }
}

fn unreadable(url: &str, body: &str) -> Failure {
    Failure::Unreadable { url: url.into(), body: quoted(body) }
}

/// The innermost cause of an error: the outer ones repeat the URL.
fn cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "it took too long".into();
    }
    let mut cause: &dyn Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use nestor_plugin::Message;
    use serde_json::json;

    use super::*;
    use crate::answer::{Answer, Choice};
    use crate::refusal::Refusal;
    use crate::server::{Asked, Server, ServerOptions};

    fn client(url: &str) -> Client {
        let (url, first_wait) = (url.to_string(), Duration::from_millis(1));
        let patience = Duration::from_secs(60);
        Client::new(&ClientOptions { url, key: Some("k".into()), at_once: 2, patience, first_wait }).expect("a client")
    }

    /// A server that refuses each model's first request with the status of its name.
    fn server() -> Server {
        let count = AtomicUsize::new(0);
        let options = ServerOptions { address: ([127, 0, 0, 1], 0).into(), longest_body: 1 << 16 };
        Server::start(&options, move |call| match call.asked {
            _ if call.token.as_deref() != Some("k") => call.reply.refuse(Refusal::new(401, "unknown key")),
            Asked::Completion(request) => match request.model.parse() {
                Ok(status) if status != 429 || count.fetch_add(1, Ordering::Relaxed) < 2 => {
                    call.reply.refuse(Refusal::new(status, "not now"));
                }
                _ => {
                    let message = Message::new("assistant", request.messages[0].content());
                    let (tokens, logprobs, pieces) = (vec![5, 6], vec![-0.5; 2], vec![]);
                    let choice = Choice { message, broken_call: false, cut: true, tokens, logprobs, pieces };
                    call.reply.done(Answer { prompt: vec![1], choices: vec![choice] });
                }
            },
            _ => call.reply.models(&["m".into()]),
        })
        .expect("a server")
    }

    fn answer(client: &mut Client, model: &str) -> Result<Said, Failure> {
        client.ask(7, json!({ "model": model, "messages": [{ "role": "user", "content": "hi" }] }));
        let mut all = client.answers(Duration::from_secs(60));
        assert!(all.len() == 1 && client.is_idle());
        assert_eq!(all[0].0, 7);
        all.remove(0).1
    }

    #[test]
    fn answers_come_and_a_busy_server_is_asked_again() {
        let server = server();
        let mut client = client(&format!("http://{}", server.address()));
        let named = ServedModel { name: "m".into(), owner: "nestor".into() };
        assert_eq!(client.models(), Ok(vec![named]));
        for model in ["m", "429"] {
            let said = answer(&mut client, model).expect("an answer");
            assert_eq!((said.text.as_str(), said.cut, said.tokens), ("hi", true, Some(2)));
        }
    }

    #[test]
    fn a_failure_says_which_server_and_why() {
        let server = server();
        let url = server.base_url();
        let failure = answer(&mut client(&url), "400").expect_err("refused").to_string();
        assert_eq!(failure, format!("{url}/chat/completions answers with status 400: not now"));
        let failure = answer(&mut client(&url), "503").expect_err("refused").to_string();
        assert!(failure.ends_with("status 503: not now"), "{failure}");
        drop(server);
        let failure = client(&url).models().expect_err("gone").to_string();
        assert!(failure.starts_with(&format!("cannot reach {url}/models: ")), "{failure}");
        for wrong in ["127.0.0.1:8000", "ftp://a/v1", "nonsense"] {
            assert!(base(wrong).is_err(), "{wrong}");
        }
    }
}
