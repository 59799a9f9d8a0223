//! A scripted OpenEnv server on loopback.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::OpenEnv;
use nestor_plugin::{Environment, Observation, Start};
use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

/// One thing that the server does after a message.
pub enum Act {
    Send(Value),
    Text(String),
    /// The same message two times, in one write.
    Twice(Value),
    Binary(usize),
    Ping,
    /// Bytes that are no frame.
    Garbage,
    /// Ends the connection without a word.
    Drop,
    /// Answers nothing.
    Silence,
}

/// The script: number of the connection (from 0), number of the message in it (from 0), and the message. A pong is the
/// message `{"type": "pong"}` and does not count.
pub type Script = dyn Fn(usize, usize, &Value) -> Vec<Act> + Send + Sync;

/// Starts a server and returns its address. It ends with the process.
pub fn serve(script: impl Fn(usize, usize, &Value) -> Vec<Act> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script: Arc<Script> = Arc::new(script);
    let count = Arc::new(AtomicUsize::new(0));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (script, count) = (Arc::clone(&script), Arc::clone(&count));
            std::thread::spawn(move || talk(stream.unwrap(), &*script, &count));
        }
    });
    format!("ws://127.0.0.1:{port}")
}

fn talk(mut stream: TcpStream, script: &Script, count: &AtomicUsize) {
    let mut head = [0; 7];
    while stream.peek(&mut head).unwrap() < head.len() {}
    if head != *b"GET /ws" {
        return page(&mut stream);
    }
    let connection = count.fetch_add(1, Ordering::Relaxed);
    let Ok(mut socket) = tungstenite::accept(stream) else { return };
    let mut number = 0;
    loop {
        let message: Value = match socket.read() {
            Ok(Message::Text(text)) => serde_json::from_str(&text).unwrap(),
            Ok(Message::Pong(_)) => json!({ "type": "pong" }),
            _ => return,
        };
        for act in script(connection, number, &message) {
            if !play(&mut socket, act) {
                return;
            }
        }
        number += usize::from(message["type"] != "pong");
    }
}

/// Does one thing. Returns false if it ends the connection.
fn play(socket: &mut WebSocket<TcpStream>, act: Act) -> bool {
    match act {
        Act::Send(value) => socket.send(Message::text(value.to_string())).unwrap(),
        Act::Text(text) => socket.send(Message::text(text)).unwrap(),
        Act::Twice(value) => {
            let message = Message::text(value.to_string());
            socket.write(message.clone()).and_then(|()| socket.send(message)).unwrap();
        }
        Act::Binary(bytes) => socket.send(Message::binary(vec![0; bytes])).unwrap(),
        Act::Ping => socket.send(Message::Ping("hello".into())).unwrap(),
        Act::Garbage => socket.get_mut().write_all(&[0xff; 64]).unwrap(),
        Act::Silence => {}
        Act::Drop => return false,
    }
    true
}

/// Answers a plain HTTP request: health, and the schema of an action with the text field `text`.
fn page(stream: &mut TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
    let body = match first.split(' ').nth(1) {
        Some("/health") => json!({ "status": "healthy" }),
        _ => json!({ "action": { "properties": { "text": { "type": "string" } }, "required": ["text"] } }),
    }
    .to_string();
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len()).unwrap();
}

/// The answer with an observation's text.
pub fn text(text: &str, reward: f64, done: bool) -> Act {
    Act::Send(json!({
        "type": "observation",
        "data": { "observation": { "text": text, "metadata": {} }, "reward": reward, "done": done },
    }))
}

/// An error of the server.
pub fn error(code: &str, message: &str) -> Act {
    Act::Send(json!({ "type": "error", "data": { "code": code, "message": message } }))
}

/// Counts: the reset shows its seed, step N shows N and the action, and the third step wins.
pub fn count(number: usize, message: &Value) -> Vec<Act> {
    let data = &message["data"];
    match message["type"].as_str() {
        Some("reset") => vec![text(&format!("start {}", data["seed"]), 0.0, false)],
        Some("step") => {
            let said = format!("{number}: {}", data["text"].as_str().unwrap());
            vec![text(&said, f64::from(u8::from(number == 3)), number == 3)]
        }
        _ => vec![],
    }
}

/// The environment at an address, with further config keys.
pub fn open(url: &str, keys: Value) -> anyhow::Result<OpenEnv> {
    let mut config = json!({ "url": url, "raw": true });
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    OpenEnv::open(nestor_plugin::parse_config(&config.to_string())?)
}

/// Task 3 of split `train`.
pub fn start() -> Start<'static> {
    Start { split: "train", task: 3, seed: 7 }
}

/// Text, reward and end of an observation.
pub fn brief(seen: &Observation) -> (&str, f64, bool) {
    (&seen.text, seen.reward, seen.terminated)
}
