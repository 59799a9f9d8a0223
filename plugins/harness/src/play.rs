//! One instance: its worker, and the episode that it plays.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nestor_chat::{Answer, Asked, Call, Choice, Refusal, Reply, Request, StepNote};
use nestor_plugin::{Instance, Message, Observation, Respond, Response, Start};
use serde_json::json;

use crate::Harness;
use crate::config::Config;
use crate::outcome::{digest, of_end, of_line, of_request};
use crate::worker::{Event, Worker};

/// Refused requests of one step after which a worker counts as flooding.
const MOST_REFUSED: u32 = 32;

/// Time in which a worker that is kept says that it has ended an episode which was cut.
const GRACE: Duration = Duration::from_secs(5);

/// One instance.
#[derive(Default)]
pub struct Play {
    worker: Option<Worker>,
    episode: Option<Episode>,
}

/// An episode under way.
struct Episode {
    token: String,
    /// The request that waits for the policy.
    asked: Option<(Request, Reply)>,
    /// The last outcome that a worker which leaves has printed.
    printed: Option<StepNote>,
    refused: u32,
}

/// The next thing that matters to an episode.
enum Next {
    Request(Box<Request>),
    End(StepNote),
}

impl Instance for Play {
    type World = Harness;

    fn reset(&mut self, world: &Harness, start: Start<'_>) -> Result<Observation> {
        let task = world.split(start.split)?.task(start.task)?;
        self.leave(world);
        let token = format!("{:032x}", rand::random::<u128>());
        let line = json!({
            "task": task, "number": start.task, "split": start.split, "seed": start.seed,
            "base_url": world.desk.base_url(), "api_key": token,
        });
        let kept = world.config.reuse && self.runs();
        let first = match self.begin(world, &token, &line, start) {
            // A worker that is kept may have left with the episode before, whose last request was refused.
            Err(_) if kept && !self.runs() => self.begin(world, &token, &line, start)?,
            first => first?,
        };
        match first {
            Next::End(_) => bail!("the worker ended the episode before its first request{}", self.shown()),
            Next::Request(request) => {
                let alike = world.desk.starts_alike((start.split.into(), start.task, start.seed), digest(&request));
                let mut seen = of_request(&request, None);
                seen.metrics.insert("unequal_starts".into(), f64::from(u8::from(!alike)));
                Ok(seen)
            }
        }
    }

    /// A response of which only the text is known, as when a person plays.
    fn step(&mut self, world: &Harness, response: &str) -> Result<Observation> {
        let message = Message::new("assistant", response);
        let none = (Vec::new(), Vec::new(), Vec::new());
        let (prompt, tokens, logprobs) = none;
        let response =
            Response { text: response.into(), message, broken_call: false, cut: false, prompt, tokens, logprobs };
        self.respond(world, &response)
    }
}

impl Respond for Play {
    fn respond(&mut self, world: &Harness, response: &Response) -> Result<Observation> {
        self.answer(response)?;
        let deadline = Instant::now() + world.config.timeout();
        let silence = || {
            format!(
                "made no further request and did not end the episode within {} s (config key `timeout_s`)",
                world.config.timeout_s
            )
        };
        Ok(match self.next(&world.config, deadline, silence)? {
            Next::Request(request) => of_request(&request, Some(response)),
            Next::End(note) => {
                self.leave(world);
                of_end(&note, Some(response))
            }
        })
    }
}

impl Play {
    /// Has a worker begin an episode: the one that is there, if it is kept and runs, or a new one. Waits for its first request.
    fn begin(&mut self, world: &Harness, token: &str, line: &serde_json::Value, start: Start<'_>) -> Result<Next> {
        let reuse = world.config.reuse;
        let kept = self.worker.take().filter(|_| reuse).and_then(|mut kept| kept.runs().then_some(kept));
        let mut worker = match kept {
            Some(kept) => kept,
            None => Worker::start(
                &world.config,
                &[
                    ("OPENAI_BASE_URL", world.desk.base_url()),
                    ("OPENAI_API_KEY", token.to_string()),
                    ("NESTOR_TASK", line["task"].to_string()),
                    ("NESTOR_SEED", start.seed.to_string()),
                ],
            )?,
        };
        world.desk.admit(token, worker.sender());
        self.episode = Some(Episode { token: token.into(), asked: None, printed: None, refused: 0 });
        let told = worker.tell(line, !reuse);
        self.worker = Some(worker);
        told?;
        let deadline = Instant::now() + world.config.start_timeout();
        let silence =
            || format!("made no request within {} s (config key `start_timeout_s`)", world.config.start_timeout_s);
        self.next(&world.config, deadline, silence)
    }

    fn runs(&mut self) -> bool {
        self.worker.as_mut().is_some_and(Worker::runs)
    }

    /// Sends the policy's response as the answer to the request that waits.
    fn answer(&mut self, response: &Response) -> Result<()> {
        let (worker, episode) = parts(&mut self.worker, &mut self.episode)?;
        let (mut request, mut reply) = episode.asked.take().context("no request of the worker waits for a response")?;
        for call in worker.waiting_calls() {
            let Call { token, asked, reply: other } = call;
            match asked {
                Asked::Completion(again) if token.as_deref() == Some(&episode.token) => {
                    // A client that gave up waiting asks once more.
                    if reply.is_closed() && again.messages == request.messages {
                        (request, reply) = (*again, other);
                        continue;
                    }
                    let why =
                        "an episode's requests come one after the other; this one came before the last was answered";
                    other.refuse(Refusal::new(409, why));
                    reply.refuse(Refusal::new(409, why));
                    bail!("the worker made a second request before the first was answered{}", worker.shown());
                }
                _ => other.refuse(Refusal::new(409, "the last request of this episode is not answered yet")),
            }
        }
        let choice = Choice {
            message: response.message.clone(),
            broken_call: response.broken_call,
            cut: response.cut,
            tokens: response.tokens.clone(),
            logprobs: response.logprobs.clone(),
            pieces: Vec::new(),
        };
        episode.refused = 0;
        ensure!(
            reply.done(Answer { prompt: response.prompt.clone(), choices: vec![choice] }),
            "the worker closed its request before the answer came{}",
            worker.shown()
        );
        Ok(())
    }

    /// Waits for the next request, or for the end.
    fn next(&mut self, config: &Config, deadline: Instant, silence: impl Fn() -> String) -> Result<Next> {
        let (worker, episode) = parts(&mut self.worker, &mut self.episode)?;
        loop {
            let Some(event) = worker.next(deadline) else { bail!("the worker {}{}", silence(), worker.shown()) };
            match event {
                Event::Call(call) => {
                    let Call { token, asked, reply } = *call;
                    if token.as_deref() != Some(&episode.token) {
                        reply.refuse(Refusal::new(401, "the episode of this token is over"));
                        continue;
                    }
                    match asked {
                        Asked::End(note) => {
                            reply.json(json!({ "ended": true }));
                            return Ok(Next::End(note));
                        }
                        Asked::Completion(request) => match refusal(&request, config) {
                            None => {
                                episode.asked = Some(((*request).clone(), reply));
                                return Ok(Next::Request(request));
                            }
                            Some(refusal) => {
                                episode.refused += 1;
                                let why = refusal.message.clone();
                                reply.refuse(refusal);
                                ensure!(
                                    episode.refused < MOST_REFUSED,
                                    "the worker made {MOST_REFUSED} requests that were refused, the last because {why}{}",
                                    worker.shown()
                                );
                                worker.note(format!("(a request was refused: {why})"));
                            }
                        },
                        Asked::Models => reply.models(std::slice::from_ref(&config.model)),
                    }
                }
                Event::Line(line) => match of_line(&line) {
                    Err(why) => bail!("the worker ended the episode by a line whose {why}: {line}"),
                    Ok(None) => worker.note(line),
                    Ok(Some(note)) if !config.reuse => episode.printed = Some(note),
                    Ok(Some(note)) => return Ok(Next::End(note)),
                },
                Event::Closed => match episode.printed.take() {
                    Some(note) if worker.succeeded() => return Ok(Next::End(note)),
                    Some(_) => {
                        let end = worker.end();
                        bail!("the worker printed a reward, and then {end}{}", worker.shown())
                    }
                    None => {
                        let end = worker.end();
                        bail!(
                            "the worker {end} without ending the episode: its last line must be a JSON object with `reward`{}",
                            worker.shown()
                        )
                    }
                },
                Event::Complaint(line) => worker.note(line),
            }
        }
    }

    /// Ends an episode: its token is refused from now on, and so is a request that waits, where a limit of the run cut it.
    ///
    /// A worker that is kept then says that it has ended the episode, or leaves. Its line must not be taken for the end of the next one, so
    /// the next one waits for it. A worker that does neither is killed.
    fn leave(&mut self, world: &Harness) {
        let Some(Episode { token, asked, .. }) = self.episode.take() else { return };
        world.desk.dismiss(&token);
        let Some((_, reply)) = asked else { return };
        reply.refuse(Refusal::new(410, "the episode is over: it reached a limit of the run"));
        let Some(mut worker) = self.worker.take().filter(|_| world.config.reuse) else { return };
        let deadline = Instant::now() + GRACE;
        while let Some(event) = worker.next(deadline) {
            match event {
                Event::Line(line) if matches!(of_line(&line), Ok(Some(_))) => {
                    self.worker = Some(worker);
                    return;
                }
                Event::Closed => return,
                _ => {}
            }
        }
    }

    fn shown(&self) -> String {
        self.worker.as_ref().map(Worker::shown).unwrap_or_default()
    }
}

/// The worker and its episode.
fn parts<'a>(
    worker: &'a mut Option<Worker>,
    episode: &'a mut Option<Episode>,
) -> Result<(&'a mut Worker, &'a mut Episode)> {
    match (worker, episode) {
        (Some(worker), Some(episode)) => Ok((worker, episode)),
        _ => bail!("the episode is over"),
    }
}

/// Refuses settings of a request that the recipe decides.
fn refusal(request: &Request, config: &Config) -> Option<Refusal> {
    if request.n != 1 {
        return Some(Refusal::of_key("n", format!("`n` is {}; in training a request has one choice", request.n)));
    }
    let named = request.sampling.named();
    let name = named.into_iter().find(|name| !config.ignored.iter().any(|ignored| ignored == name))?;
    Some(Refusal::of_key(
        name,
        format!(
            "the request sets `{name}`, which the recipe decides in training; leave it out, or add it to config key `ignored`"
        ),
    ))
}
