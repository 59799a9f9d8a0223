//! A retrieval server with the protocol of the reference's servers, which injects faults on demand.
//!
//! Search-R1's `retrieval_server.py` takes `queries`, verl-agent's takes `query`; each answers the other's form with 422.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// Ways to answer a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    Right,
    /// Right, without scores.
    Bare,
    /// Longer than the client's timeout.
    Slow(Duration),
    /// Close the connection while the request is unread: the client gets a reset.
    Reset,
    Status(u16),
    Garbage,
    /// Half of the announced body.
    Half,
    /// A body of 50 MB, announced or not.
    Huge {
        announced: bool,
    },
    /// A list too few.
    Short,
    /// A list too many.
    Long,
    Nulls,
    NotANumber,
}

/// One passage of the made-up corpus: it names its query, so that a mix-up shows.
pub fn passage(query: &str, place: usize) -> Value {
    json!({ "id": format!("{query}/{place}"), "contents": format!("\"{query}\"\npassage {place} ü") })
}

pub struct Server {
    pub url: String,
    state: Arc<State>,
}

struct State {
    address: SocketAddr,
    batches: bool,
    way: Box<dyn Fn(usize) -> Way + Send + Sync>,
    requests: AtomicUsize,
    connections: AtomicUsize,
    stopped: AtomicBool,
    /// A query that fails each request that has it, and the status.
    poison: Mutex<Option<(String, u16)>>,
    log: Mutex<Log>,
}

/// Requests that the server read whole.
#[derive(Default, Clone)]
pub struct Log {
    /// Queries of each request, and the way of its answer.
    pub requests: Vec<(Vec<String>, Way)>,
    pub ways: HashMap<Way, usize>,
}

impl Server {
    /// Starts a server of the form `queries` or `query`. `way` chooses the answer to each request by its number.
    pub fn start(batches: bool, way: impl Fn(usize) -> Way + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            address,
            batches,
            way: Box::new(way),
            requests: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            poison: Mutex::default(),
            log: Mutex::default(),
        });
        let server = Self { url: format!("http://{address}/retrieve"), state };
        server.listen(listener);
        server
    }

    fn listen(&self, listener: TcpListener) {
        let state = self.state.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if state.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let state = state.clone();
                state.connections.fetch_add(1, Ordering::SeqCst);
                // A broken connection is the client's to notice.
                thread::spawn(move || stream.and_then(|stream| state.serve(stream)));
            }
        });
    }

    /// Stops listening: new connections are refused, old ones end after their request.
    pub fn stop(&self) {
        self.state.stopped.store(true, Ordering::SeqCst);
        // Wakes the thread that listens, which then drops its socket.
        let _ = TcpStream::connect(self.state.address);
        while TcpStream::connect(self.state.address).is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Listens again at the same address.
    pub fn resume(&self) {
        let listener = loop {
            match TcpListener::bind(self.state.address) {
                Ok(listener) => break listener,
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        };
        self.state.stopped.store(false, Ordering::SeqCst);
        self.listen(listener);
    }

    /// Answers each request that has `query` with `status`.
    pub fn refuse(&self, query: &str, status: u16) {
        *self.state.poison.lock().unwrap() = Some((query.to_owned(), status));
    }

    pub fn log(&self) -> Log {
        self.state.log.lock().unwrap().clone()
    }

    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.state.stopped.load(Ordering::SeqCst) {
            self.stop();
        }
    }
}

impl State {
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        // Few bytes at a time, so that the body is unread when a reset is wanted: the system then sends one.
        let mut reader = BufReader::with_capacity(16, stream.try_clone()?);
        let mut out = stream;
        loop {
            let mut length = 0;
            let mut line = String::new();
            loop {
                line.clear();
                if reader.read_line(&mut line)? == 0 || self.stopped.load(Ordering::SeqCst) {
                    return Ok(());
                }
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line == "\r\n" {
                    break;
                }
            }
            let way = (self.way)(self.requests.fetch_add(1, Ordering::SeqCst));
            if way == Way::Reset {
                self.note(Vec::new(), way);
                return Ok(());
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let request: Value = serde_json::from_slice(&body).unwrap();
            let (queries, mut way) = self.read(&request, way);
            if let Some((_, status)) =
                self.poison.lock().unwrap().as_ref().filter(|(poison, _)| queries.contains(poison))
            {
                way = Way::Status(*status);
            }
            self.note(queries.clone(), way);
            if !self.answer(&mut out, way, &queries, &request)? {
                return Ok(());
            }
        }
    }

    fn note(&self, queries: Vec<String>, way: Way) {
        let mut log = self.log.lock().unwrap();
        log.requests.push((queries, way));
        *log.ways.entry(way).or_default() += 1;
    }

    /// The queries of a request; a request of the other form is refused.
    fn read(&self, request: &Value, way: Way) -> (Vec<String>, Way) {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        match (self.batches, &request["queries"], &request["query"]) {
            (true, Value::Array(queries), _) => (queries.iter().map(text).collect(), way),
            (false, _, Value::String(query)) => (vec![query.clone()], way),
            (_, Value::Array(queries), _) => (queries.iter().map(text).collect(), Way::Status(422)),
            (_, _, query) => (vec![text(query)], Way::Status(422)),
        }
    }

    /// Returns true if the connection can serve another request.
    fn answer(&self, out: &mut TcpStream, way: Way, queries: &[String], request: &Value) -> std::io::Result<bool> {
        let topk = request["topk"].as_u64().unwrap() as usize;
        assert_eq!(request["return_scores"], true);
        let scored =
            |query: &String, place| json!({ "document": passage(query, place), "score": (topk - place) as f64 / 4.0 });
        let list = |query: &String| (0..topk).map(|place| scored(query, place)).collect::<Vec<_>>();
        let mut lists: Vec<Vec<Value>> = queries.iter().map(list).collect();
        match way {
            Way::Slow(time) => thread::sleep(time),
            Way::Short => drop(lists.pop()),
            Way::Long => lists.push(lists[0].clone()),
            Way::Bare => {
                lists = lists
                    .into_iter()
                    .map(|list| list.into_iter().map(|mut item| item["document"].take()).collect())
                    .collect()
            }
            Way::Nulls => lists[0][0]["document"] = Value::Null,
            _ => {}
        }
        let mut body = json!({ "result": lists }).to_string();
        match way {
            Way::Status(422) => {
                body = json!({"detail": [{"type": "missing", "loc": ["body", "queries"], "msg": "Field required"}]})
                    .to_string()
            }
            Way::Status(_) => body = "Internal Server Error".into(),
            Way::Garbage => body = "<html>\u{0}busy".into(),
            Way::NotANumber => body = body.replacen("\"score\":", "\"score\":NaN,\"was\":", 1),
            _ => {}
        }
        let status = if let Way::Status(status) = way { status } else { 200 };
        let head = |rest: &str| format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{rest}\r\n\r\n");
        match way {
            Way::Half => {
                out.write_all(head(&format!("Content-Length: {}", body.len())).as_bytes())?;
                out.write_all(&body.as_bytes()[..body.len() / 2])?;
                return Ok(false);
            }
            Way::Huge { announced } => {
                let rest = if announced { "Content-Length: 50000000" } else { "Transfer-Encoding: chunked" };
                out.write_all(head(rest).as_bytes())?;
                let chunk = "x".repeat(0x8000);
                for _ in 0..1526 {
                    let chunk = if announced { chunk.clone() } else { format!("8000\r\n{chunk}\r\n") };
                    out.write_all(chunk.as_bytes())?;
                }
                return Ok(false);
            }
            _ => {
                out.write_all(head(&format!("Content-Length: {}", body.len())).as_bytes())?;
                out.write_all(body.as_bytes())?;
            }
        }
        Ok(true)
    }
}
