//! Times the steps of an OpenEnv environment: many instances, stepped in turn by one thread.
//!
//!     latency CONFIG INSTANCES STEPS
//!
//! CONFIG is the plugin's config as JSON. With the url `ws://echo` the program serves it itself: each connection has a thread
//! that echoes the action, so that the figure is the client's alone. Prints JSON: seconds per step as median and 99th percentile.
//! `scripts/bench/openenv.py` runs it.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use anyhow::{Context, Result};
use nestor_openenv::OpenEnv;
use nestor_plugin::{Environment, Instance, Start};
use serde_json::{Value, json};
use tungstenite::Message;

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let mut word = || words.next().context("usage: latency CONFIG INSTANCES STEPS");
    let mut config: Value = serde_json::from_str(&word()?)?;
    let (instances, steps): (usize, usize) = (word()?.parse()?, word()?.parse()?);
    if config["url"] == "ws://echo" {
        config["url"] = echo()?.into();
    }
    let world = OpenEnv::open(nestor_plugin::parse_config(&config.to_string())?)?;
    let mut plays = (0..instances).map(|_| world.spawn()).collect::<Result<Vec<_>>>()?;
    for (task, play) in plays.iter_mut().enumerate() {
        play.reset(&world, Start { split: "train", task: task as u64, seed: 0 })?;
    }
    let mut seconds = Vec::with_capacity(instances * steps);
    for _ in 0..steps {
        for play in &mut plays {
            let begin = Instant::now();
            play.step(&world, "<think></think><action>go to shelf 1</action>")?;
            seconds.push(begin.elapsed().as_secs_f64());
        }
    }
    seconds.sort_by(f64::total_cmp);
    let at = |share: f64| seconds[(share * (seconds.len() - 1) as f64) as usize];
    println!("{}", json!({ "steps": seconds.len(), "median_s": at(0.5), "p99_s": at(0.99) }));
    Ok(())
}

/// Starts the echo server and returns its address.
fn echo() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("ws://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    Ok(url)
}

fn serve(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut head = [0; 7];
    while stream.peek(&mut head)? < head.len() {}
    if head != *b"GET /ws" {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        while !lines.next().context("a blank line")??.is_empty() {}
        let body = r#"{"action":{"properties":{"text":{"type":"string"}},"required":["text"]}}"#;
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())?;
        return Ok(());
    }
    let mut socket = tungstenite::accept(stream)?;
    while let Ok(Message::Text(text)) = socket.read() {
        let mut message: Value = serde_json::from_str(&text)?;
        let data = json!({ "observation": { "text": message["data"]["text"].take() }, "reward": 0.0, "done": false });
        socket.send(Message::text(json!({ "type": "observation", "data": data }).to_string()))?;
    }
    Ok(())
}
