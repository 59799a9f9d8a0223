//! The HTTP server. It reads requests, hands each to its owner as a [`Call`], and writes what the owner replies.

use std::convert::Infallible;
use std::future::IntoFuture;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::Response;
use axum::routing::{get, post};
use futures_util::stream;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::answer::{Answer, Part, Writer};
use crate::refusal::Refusal;
use crate::request::{Request, StepNote};

/// The place of a server and its limits.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Address and port; port 0 takes a free one.
    pub address: SocketAddr,
    /// Longest body of a request in bytes.
    pub longest_body: usize,
}

/// The thing that a request asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    /// A chat completion.
    Completion(Box<Request>),
    /// The names of the models.
    Models,
    /// The end of an episode, with the outcome of its last step.
    End(StepNote),
}

/// A request, and the way to answer it.
#[derive(Debug)]
pub struct Call {
    /// The token after `Bearer` in the header `Authorization`.
    pub token: Option<String>,
    pub asked: Asked,
    pub reply: Reply,
}

/// Answers one request. Dropped without an answer, the client gets status 503.
#[derive(Debug)]
pub struct Reply(UnboundedSender<Part>);

impl Reply {
    /// Sends more text of a choice; false once the client is gone.
    pub fn text(&self, choice: usize, text: String) -> bool {
        self.0.send(Part::Text { choice, text }).is_ok()
    }

    /// Completes the request; false if the client is gone.
    pub fn done(self, answer: Answer) -> bool {
        self.0.send(Part::Done(answer)).is_ok()
    }

    /// Answers with a body that is no completion.
    pub fn json(self, body: Value) {
        let _ = self.0.send(Part::Json(body));
    }

    pub fn refuse(self, refusal: Refusal) {
        let _ = self.0.send(Part::Refused(refusal));
    }

    /// True once the client is gone.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

type Owner = dyn Fn(Call) + Send + Sync;

#[derive(Clone)]
struct Shared {
    owner: Arc<Owner>,
    number: Arc<AtomicU64>,
}

/// A server on a thread of its own. Dropped, it closes all connections.
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens, and gives each request to `owner`, which must return at once.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub fn start(options: &ServerOptions, owner: impl Fn(Call) + Send + Sync + 'static) -> Result<Self> {
        let shared = Shared { owner: Arc::new(owner), number: Arc::default() };
        let router = Router::new()
            .route("/v1/chat/completions", post(completions))
            .route("/v1/models", get(models))
            .route("/v1/episode/end", post(end))
            .route("/health", get(|| async { StatusCode::OK }))
            .fallback(unknown)
            .layer(DefaultBodyLimit::max(options.longest_body))
            .with_state(shared);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting a server")?;
        let listen = TcpListener::bind(options.address);
        let listener =
            runtime.block_on(listen).map_err(|error| anyhow!("cannot listen on {}: {error}", options.address))?;
        let address = listener.local_addr().context("the server's address")?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = move || {
            runtime.block_on(async {
                tokio::spawn(axum::serve(listener, router).into_future());
                let _ = stopped.await;
            });
        };
        let thread = std::thread::Builder::new().name("endpoint".into()).spawn(serve).context("starting a server")?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The base URL for clients.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Gives a request to the owner; the parts of its answer.
    fn ask(&self, headers: &HeaderMap, asked: Asked) -> UnboundedReceiver<Part> {
        let (sender, parts) = unbounded_channel();
        (self.owner)(Call { token: bearer(headers), asked, reply: Reply(sender) });
        parts
    }
}

fn bearer(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    value.strip_prefix("Bearer ").map(|token| token.trim().to_string())
}

fn plain(status: u16, body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

fn refused(refusal: &Refusal) -> Response {
    plain(refusal.status, &refusal.body())
}

fn no_answer() -> Refusal {
    Refusal::new(503, "there is no answer: the run has ended, or has given up the episode of this request")
}

async fn unknown(uri: Uri) -> Response {
    refused(&Refusal::new(
        404,
        format!("{} is unknown; known: /v1/chat/completions, /v1/models, /v1/episode/end", uri.path()),
    ))
}

fn body(read: Result<Bytes, BytesRejection>) -> Result<Bytes, Refusal> {
    read.map_err(|error| Refusal::new(error.status().as_u16(), error.body_text().to_lowercase()))
}

async fn models(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    one(shared.ask(&headers, Asked::Models)).await
}

async fn end(State(shared): State<Shared>, headers: HeaderMap, read: Result<Bytes, BytesRejection>) -> Response {
    let note = body(read).and_then(|body| {
        let object: Map<String, Value> = serde_json::from_slice(&body)
            .map_err(|error| Refusal::new(400, format!("the body is no JSON object: {error}")))?;
        StepNote::read(&object)
    });
    match note {
        Ok(note) => one(shared.ask(&headers, Asked::End(note))).await,
        Err(refusal) => refused(&refusal),
    }
}

/// The answer to a request that is no completion.
async fn one(mut parts: UnboundedReceiver<Part>) -> Response {
    match parts.recv().await {
        Some(Part::Json(body)) => plain(200, &body),
        Some(Part::Refused(refusal)) => refused(&refusal),
        _ => refused(&no_answer()),
    }
}

async fn completions(
    State(shared): State<Shared>,
    headers: HeaderMap,
    read: Result<Bytes, BytesRejection>,
) -> Response {
    let request = body(read).and_then(|body| Request::read(&body));
    let mut request = match request {
        Ok(request) => request,
        Err(refusal) => return refused(&refusal),
    };
    if let Some(anchor) = headers.get("x-nestor-anchor").and_then(|value| value.to_str().ok()) {
        request.note.anchor = Some(anchor.to_string());
    }
    let writer = Writer::new(request.clone(), shared.number.fetch_add(1, Ordering::Relaxed));
    let mut parts = shared.ask(&headers, Asked::Completion(Box::new(request)));
    if writer.streams() {
        // The status is sent before the answer, so a refusal must come first.
        return match parts.recv().await {
            Some(Part::Refused(refusal)) => refused(&refusal),
            Some(first) => events(writer, first, parts),
            None => refused(&no_answer()),
        };
    }
    loop {
        match parts.recv().await {
            Some(Part::Done(answer)) => return plain(200, &writer.whole(&answer)),
            Some(Part::Text { .. }) => {}
            Some(Part::Json(body)) => return plain(200, &body),
            Some(Part::Refused(refusal)) => return refused(&refusal),
            None => return refused(&no_answer()),
        }
    }
}

/// An answer as server-sent events.
fn events(writer: Writer, first: Part, parts: UnboundedReceiver<Part>) -> Response {
    let lines = stream::unfold(Some((writer, Some(first), parts)), |state| async move {
        let (mut writer, first, mut parts) = state?;
        let part = match first {
            Some(part) => Some(part),
            None => parts.recv().await,
        };
        let (events, more) = match part {
            Some(Part::Text { choice, text }) => (vec![writer.text(choice, &text)], true),
            Some(Part::Done(answer)) => (writer.last(&answer), false),
            Some(Part::Json(body)) => (vec![body], false),
            Some(Part::Refused(refusal)) => (vec![refusal.body()], false),
            None => (vec![no_answer().body()], false),
        };
        let mut text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
        if !more {
            text.push_str("data: [DONE]\n\n");
        }
        Some((Ok::<_, Infallible>(text), more.then_some((writer, None, parts))))
    });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/event-stream"));
    response
}

/// The body of `/v1/models`.
pub(crate) fn model_list(names: &[String]) -> Value {
    let model = |name: &String| json!({ "id": name, "object": "model", "created": 0, "owned_by": "nestor" });
    json!({ "object": "list", "data": names.iter().map(model).collect::<Vec<_>>() })
}

impl Reply {
    /// Answers a request for the names of the models.
    pub fn models(self, names: &[String]) {
        self.json(model_list(names));
    }
}

#[cfg(test)]
mod tests {
    use nestor_plugin::Message;
    use ureq::http::Response;

    use super::*;
    use crate::answer::Choice;

    /// A server that answers `TEXT` in two parts, and refuses the token `no`.
    fn server(longest_body: usize) -> Server {
        let options = ServerOptions { address: ([127, 0, 0, 1], 0).into(), longest_body };
        Server::start(&options, |call| match call.asked {
            _ if call.token.as_deref() == Some("no") => call.reply.refuse(Refusal::new(401, "unknown token")),
            Asked::Completion(request) if request.model == "silent" => {}
            Asked::Completion(request) => {
                call.reply.text(0, "say ".into());
                let logprobs = vec![-0.5, -0.25];
                let message = Message::new("assistant", format!("say {}", request.messages[0].content()));
                let choice =
                    Choice { message, broken_call: false, cut: false, tokens: vec![5, 6], logprobs, pieces: vec![] };
                call.reply.done(Answer { prompt: vec![1, 2, 3], choices: vec![choice] });
            }
            Asked::Models => call.reply.models(&["m".into()]),
            Asked::End(note) => call.reply.json(json!({ "reward": note.reward })),
        })
        .expect("a server")
    }

    fn post(server: &Server, path: &str, token: &str, body: Value) -> (u16, String) {
        let agent = ureq::Agent::config_builder().proxy(None).http_status_as_error(false).build().new_agent();
        let address = format!("{}{path}", server.base_url());
        let sent = agent.post(address).header("Authorization", format!("Bearer {token}")).send(body.to_string());
        read(sent.expect("an answer"))
    }

    fn read(mut response: Response<ureq::Body>) -> (u16, String) {
        (response.status().as_u16(), response.body_mut().read_to_string().expect("a text"))
    }

    #[test]
    fn answers_are_those_of_the_owner() {
        let server = server(1 << 16);
        let chat = |more: Value| {
            let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "a" }] });
            body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            body
        };
        let (status, text) =
            post(&server, "/chat/completions", "yes", chat(json!({ "return_token_ids": true, "logprobs": true })));
        let body: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((status, &body["choices"][0]["message"]["content"]), (200, &json!("say a")));
        assert_eq!((&body["prompt_token_ids"], &body["choices"][0]["token_ids"]), (&json!([1, 2, 3]), &json!([5, 6])));
        assert_eq!(body["choices"][0]["logprobs"]["content"][1]["logprob"], -0.25);
        assert_eq!(body["usage"]["total_tokens"], 5);

        let (_, text) = post(&server, "/chat/completions", "yes", chat(json!({ "stream": true })));
        let events: Vec<&str> = text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
        assert_eq!((events.len(), events[2]), (3, "[DONE]"));
        let deltas: Vec<Value> = events[..2].iter().map(|event| serde_json::from_str(event).expect("JSON")).collect();
        let said = |event: &Value| event["choices"][0]["delta"]["content"].as_str().map(str::to_string);
        assert_eq!((said(&deltas[0]), said(&deltas[1])), (Some("say ".into()), Some("a".into())));
        assert_eq!(deltas[1]["choices"][0]["finish_reason"], "stop");

        assert_eq!(post(&server, "/episode/end", "yes", json!({ "reward": 2 })), (200, "{\"reward\":2.0}".into()));
        assert_eq!(post(&server, "/chat/completions", "no", chat(json!({}))).0, 401);
        assert_eq!(post(&server, "/chat/completions", "no", chat(json!({ "stream": true }))).0, 401);
        assert_eq!(post(&server, "/chat/completions", "yes", chat(json!({ "model": "silent" }))).0, 503);
        assert_eq!(post(&server, "/chat", "yes", json!({})).0, 404);
        assert_eq!(post(&server, "/chat/completions", "yes", json!({ "x": "a".repeat(1 << 17) })).0, 413);
    }
}
