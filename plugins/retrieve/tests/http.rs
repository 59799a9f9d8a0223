//! The HTTP client against a server with the reference's protocol.

#![allow(clippy::unwrap_used)] // a test may fail so

mod server;

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nestor_retrieve::http::{CircuitConfig, Form, Http, HttpConfig, Urls};
use nestor_retrieve::{Passage, Retriever};
use server::{Server, Way, passage};

fn config(server: &Server) -> HttpConfig {
    HttpConfig { backoff_s: 0.001, tries: 4, timeout_s: 20.0, max_reply_mib: 1, ..HttpConfig::new(&server.url) }
}

fn expected(query: &str, topk: usize) -> Vec<Passage> {
    let text = |place, key| passage(query, place)[key].as_str().unwrap().to_owned();
    let passage = |place| Passage {
        id: text(place, "id"),
        contents: text(place, "contents"),
        score: (topk - place) as f64 / 4.0,
    };
    (0..topk).map(passage).collect()
}

fn error(http: &Http, query: &str) -> String {
    format!("{:#}", http.retrieve(query, 3).unwrap_err())
}

#[test]
fn both_forms_are_spoken_and_the_accepted_one_is_kept() {
    for (batches, refused) in [(true, 0), (false, 1)] {
        let server = Server::start(batches, |_| Way::Right);
        let http = Http::open(&config(&server)).unwrap();
        for query in ["who", "where \"ü\"\n", ""] {
            assert_eq!(http.retrieve(query, 3).unwrap(), expected(query, 3));
        }
        assert_eq!(server.log().requests.len(), 3 + refused, "the form is found once");
        assert_eq!(http.counts().requests as usize, 3 + refused);
        assert_eq!(server.connections(), 1, "the connection is used again");

        let other = if batches { Form::Query } else { Form::Queries };
        let wrong = Http::open(&HttpConfig { form: other, ..config(&server) }).unwrap();
        let error = error(&wrong, "who");
        assert!(
            error.contains("refuses query 1 (\"who\")") && error.contains("422") && error.contains("Field required"),
            "{error}"
        );
        assert_eq!(wrong.counts().requests, 1);
    }
}

#[test]
fn scores_may_be_missing() {
    let server = Server::start(true, |_| Way::Bare);
    let found = Http::open(&config(&server)).unwrap().retrieve("who", 2).unwrap();
    assert_eq!(found.iter().map(|p| (p.id.as_str(), p.score)).collect::<Vec<_>>(), [("who/0", 0.0), ("who/1", 0.0)]);
}

/// All faults that may pass are tried again, the others not; the error has server, query, cause and remedy.
#[test]
fn faults_are_tried_again_and_named() {
    let cases = [
        (Way::Status(500), "HTTP 500 with \"Internal Server Error\""),
        (Way::Status(503), "HTTP 503"),
        (Way::Reset, "reset"),
        (Way::Garbage, "the reply \"<html>"),
        (Way::Half, "the reply broke off"),
        (Way::Huge { announced: true }, "has 50000000 bytes; the limit `max_reply_mib` is 1048576 bytes"),
        (Way::Huge { announced: false }, "does not end; the limit `max_reply_mib`"),
        (Way::Short, "0 lists of passages for 1 queries"),
        (Way::Long, "2 lists of passages for 1 queries"),
        (Way::Nulls, "a passage is neither"),
        (Way::NotANumber, "expected value"),
    ];
    for (way, cause) in cases {
        let server = Server::start(true, move |_| way);
        let http = Http::open(&config(&server)).unwrap();
        let error = error(&http, "who");
        assert!(
            error.starts_with(&format!("{}: no answer to query 1 (\"who\") in 4 tries; the last: ", server.url)),
            "{error}"
        );
        // On a busy machine the client may read the end of the connection before its reset arrives.
        let is_named = error.contains(cause) || cause == "reset" && error.contains("Peer disconnected");
        assert!(is_named && error.ends_with("or correct retriever key `http`"), "{cause}: {error}");
        assert_eq!(server.log().requests.len(), 4, "{way:?}");
        let passing = Server::start(true, move |request| if request < 3 { way } else { Way::Right });
        assert_eq!(Http::open(&config(&passing)).unwrap().retrieve("who", 3).unwrap(), expected("who", 3), "{way:?}");
    }
    for status in [400, 404, 302, 501] {
        let server = Server::start(true, move |_| Way::Status(status));
        let http = Http::open(&config(&server)).unwrap();
        let error = error(&http, "who");
        assert!(error.contains("refuses query 1") && error.contains(&status.to_string()), "{error}");
        assert_eq!(server.log().requests.len(), 1);
        assert_eq!((http.counts().asked, http.counts().failed), (1, 1));
    }
}

#[test]
fn a_slow_reply_is_not_waited_for_and_a_server_that_is_down_is_named() {
    let server = Server::start(true, |_| Way::Slow(Duration::from_secs(30)));
    let slow = Http::open(&HttpConfig { timeout_s: 0.05, ..config(&server) }).unwrap();
    let begin = Instant::now();
    assert!(error(&slow, "who").contains("timeout"));
    assert!(begin.elapsed() < Duration::from_secs(20), "half a minute would be the server's time");
    server.stop();
    let error = error(&Http::open(&config(&server)).unwrap(), "who");
    assert!(error.contains("no answer to query 1") && error.contains("refused"), "{error}");
}

/// A request is held until 30 queries wait: they then share one.
#[test]
fn queries_that_wait_share_a_request() {
    let server =
        Server::start(true, |request| if request == 1 { Way::Slow(Duration::from_millis(300)) } else { Way::Right });
    let http = Http::open(&HttpConfig { connections: 1, ..config(&server) }).unwrap();
    http.retrieve("first", 3).unwrap();
    let barrier = Barrier::new(31);
    thread::scope(|scope| {
        for number in 0..31 {
            let (http, barrier) = (&http, &barrier);
            scope.spawn(move || {
                let query = format!("q{number}");
                barrier.wait();
                assert_eq!(http.retrieve(&query, 3).unwrap(), expected(&query, 3));
            });
        }
    });
    let log = server.log();
    assert_eq!(log.requests.iter().map(|(queries, _)| queries.len()).sum::<usize>(), 32);
    // Far fewer requests than queries, however late some threads came.
    assert!(log.requests.len() < 20, "{} requests", log.requests.len());
}

/// One query that the server cannot digest fails alone.
#[test]
fn a_query_that_a_batch_fails_with_fails_alone() {
    // The second request is held, so that the others share the third.
    let held = |request| if request == 1 { Way::Slow(Duration::from_millis(200)) } else { Way::Right };
    let poison = |status| {
        let server = Server::start(true, held);
        server.refuse("poison", status);
        server
    };
    for status in [400, 500] {
        let server = poison(status);
        let http = Http::open(&HttpConfig { connections: 1, ..config(&server) }).unwrap();
        http.retrieve("first", 3).unwrap();
        let failed = AtomicUsize::new(0);
        thread::scope(|scope| {
            for number in 0..16 {
                let (http, failed) = (&http, &failed);
                scope.spawn(move || {
                    let query = if number == 5 { "poison".to_owned() } else { format!("q{number}") };
                    match http.retrieve(&query, 3) {
                        Ok(found) => assert_eq!(found, expected(&query, 3)),
                        Err(error) => {
                            assert!(error.to_string().contains("poison"), "{error}");
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(failed.into_inner(), 1, "HTTP {status}");
        let shared = |queries: &[String]| queries.len() > 1 && queries.iter().any(|query| query == "poison");
        let log = server.log();
        assert!(log.requests.iter().filter(|(queries, _)| shared(queries)).count() <= 1, "{:?}", log.requests);
    }
}

#[test]
fn servers_get_requests_in_turn_and_one_that_is_down_gets_none() {
    let servers = [(); 3].map(|()| Server::start(true, |_| Way::Right));
    let urls = Urls::Many(servers.iter().map(|server| server.url.clone()).collect());
    let circuit = CircuitConfig { failures: 2, wait_s: 3600.0 };
    let http = Http::open(&HttpConfig { url: urls, circuit, ..config(&servers[0]) }).unwrap();
    let ask = |count: usize| (0..count).for_each(|n| drop(http.retrieve(&n.to_string(), 1).unwrap()));
    let seen = || servers.each_ref().map(|server| server.log().requests.len());
    ask(6);
    assert_eq!(seen(), [2, 2, 2]);
    servers[1].stop();
    ask(30);
    let counts = http.counts();
    assert_eq!((counts.answered, counts.failed), (36, 0));
    // Two requests met a server that was down; then its circuit was open.
    assert_eq!((seen().iter().sum::<usize>(), counts.requests), (36, 38));
    assert_eq!(seen()[1], 2);
    // With all circuits open, no request is made, and the error says so.
    servers[0].stop();
    servers[2].stop();
    error(&http, "a");
    let before = http.counts().requests;
    let error = error(&http, "b");
    assert_eq!(http.counts().requests, before);
    assert!(error.contains("not asked after 2 failures in a row, the last: ") && error.contains("refused"), "{error}");
}

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// The way of each request: every kind of fault in each row of 32, in an order by `seed`.
fn ways(seed: u64, slow: Duration) -> impl Fn(usize) -> Way + Send + Sync + 'static {
    use Way::*;
    let faults = [
        Slow(slow),
        Reset,
        Status(422),
        Status(500),
        Status(503),
        Status(502),
        Garbage,
        Half,
        Huge { announced: true },
        Huge { announced: false },
        Short,
        Long,
        Nulls,
        NotANumber,
    ];
    move |request| {
        let mut row: Vec<Way> = faults.into_iter().chain([Right; 18]).collect();
        let mut dice = Dice(seed ^ (request as u64 / 32).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for at in (1..row.len()).rev() {
            row.swap(at, dice.below(at as u64 + 1) as usize);
        }
        row[request % 32]
    }
}

/// 64 threads ask servers of a form that fail in every way, and that are down at times. No query hangs, each answer is that of
/// its query, and the counts of client and servers agree. `NESTOR_FAULTS_S` makes it as long as wanted (tests/slow).
#[test]
fn no_fault_makes_a_wrong_answer() {
    let seconds = std::env::var("NESTOR_FAULTS_S").ok().map(|seconds| seconds.parse::<u64>().unwrap());
    for (seed, (batches, form)) in
        [(true, Form::Auto), (false, Form::Auto), (true, Form::Queries), (false, Form::Query)].into_iter().enumerate()
    {
        let time = seconds.map(|seconds| Duration::from_secs(seconds) / 4);
        faults(batches, form, seed as u64, time);
    }
}

fn faults(batches: bool, form: Form, seed: u64, time: Option<Duration>) {
    const THREADS: usize = 64;
    let timeout = Duration::from_millis(300);
    let servers = [seed, seed + 10].map(|seed| Server::start(batches, ways(seed, timeout * 2)));
    let http = Http::open(&HttpConfig {
        url: Urls::Many(servers.iter().map(|server| server.url.clone()).collect()),
        form,
        timeout_s: timeout.as_secs_f64(),
        tries: 10,
        backoff_s: 0.005,
        circuit: CircuitConfig { failures: 5, wait_s: 0.02 },
        ..config(&servers[0])
    })
    .unwrap();
    let begin = Instant::now();
    let (report, reports) = mpsc::channel();
    let (mut answered, mut failed) = (Vec::new(), Vec::new());
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (http, report) = (&http, report.clone());
            scope.spawn(move || {
                let mut dice = Dice(seed << 32 | thread as u64);
                for number in 0.. {
                    if time.map_or(number == 10, |time| begin.elapsed() > time) {
                        break;
                    }
                    let (query, topk) = (format!("{thread}.{number}"), 1 + dice.below(4) as usize);
                    let outcome = http.retrieve(&query, topk);
                    report.send((query, topk, outcome)).unwrap();
                    if time.is_some() {
                        // The policy writes its next turn.
                        thread::sleep(Duration::from_millis(50));
                    }
                }
            });
        }
        drop(report);
        // A server is down now and then, until the threads are through.
        let (period, down) = if time.is_some() { (2000, 500) } else { (100, 30) };
        let mut next = Instant::now() + Duration::from_millis(period);
        let mut last = Instant::now();
        for round in 0.. {
            match reports.recv_timeout(Duration::from_millis(50)) {
                Ok((query, topk, Ok(found))) => {
                    assert_eq!(found, expected(&query, topk));
                    answered.push(query);
                }
                Ok((query, _, Err(error))) => failed.push((query, format!("{error:#}"))),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) if last.elapsed() < Duration::from_secs(300) => continue,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    // A panic would wait for the threads that hang.
                    eprintln!("no query ended for 300 s");
                    std::process::exit(101);
                }
            }
            last = Instant::now();
            if Instant::now() > next {
                let server = &servers[round % 2];
                server.stop();
                thread::sleep(Duration::from_millis(down));
                server.resume();
                next = Instant::now() + Duration::from_millis(period);
            }
        }
    });
    let counts = http.counts();
    assert_eq!(
        (counts.asked, counts.answered, counts.failed),
        ((answered.len() + failed.len()) as u64, answered.len() as u64, failed.len() as u64)
    );
    let logs = servers.each_ref().map(Server::log);
    let mut ways: HashMap<&str, Vec<Way>> = HashMap::new();
    for (queries, way) in logs.iter().flat_map(|log| &log.requests) {
        queries.iter().for_each(|query| ways.entry(query).or_default().push(*way));
    }
    for query in &answered {
        // On a busy machine a client may look only after its timeout, and find the whole reply.
        let right = ways[query.as_str()].iter().any(|way| matches!(way, Way::Right | Way::Slow(_)));
        assert!(right, "{query} was answered, but the servers saw it {:?}", ways[query.as_str()]);
    }
    let read: usize = logs.iter().map(|log| log.requests.len()).sum();
    assert!(read as u64 <= counts.requests, "{read} requests came, {} were made", counts.requests);
    for (query, error) in &failed {
        let named =
            servers.iter().any(|server| error.starts_with(&server.url)) && error.contains(&format!("(\"{query}\")"));
        let cause = error.contains("in 10 tries") || error.contains("HTTP 422");
        assert!(named && cause, "{query}: {error}");
    }
    for log in &logs {
        assert!(time.is_none() || log.ways.len() == 15, "all faults came: {:?}", log.ways);
    }
    assert!(!answered.is_empty());
    println!(
        "{form:?}, batches {batches}: {} queries, {} answered, {} failed, {} requests, {read} read, {:.1} s; {:?}",
        counts.asked,
        counts.answered,
        counts.failed,
        counts.requests,
        begin.elapsed().as_secs_f64(),
        logs[0].ways
    );
}
