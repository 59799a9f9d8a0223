//! Plans passes: requests join and leave the running batch at any token.
//!
//! A pass takes a bounded number of rows (tokens). Requests that decode have one row each and come first. The other rows go
//! to prompts, cut into chunks, in order of arrival. A prompt's beginning that is in the cache is not computed: siblings of
//! a group share their first prompt, and a conversation's next prompt continues the last. A request is admitted when all
//! pages that it may ever need can be promised to it, so that no running request is ever stopped; others wait.
//!
//! The scheduler uses no tensors, so that its tests run it under a virtual clock.

use std::collections::{HashMap, VecDeque};

use super::pages::{Content, PAGE, PageId, PageTokens, Pages};
use super::{Completion, Counters, FinishReason, NoiseKey, Request};
use crate::data::ImageKey;
use crate::model::vision::{PlacedImage, positions};
use crate::tokenizer::{End, Ends};

/// The bounds of a scheduler.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Most requests that run at once.
    pub slots: usize,
    /// Pages of the cache.
    pub pages: usize,
    /// Rows of a pass, more than `slots`.
    pub rows: usize,
    /// The ends of responses.
    pub ends: Ends,
    /// Admits waiting requests in order of (episode, step), not of arrival.
    pub ordered: bool,
    /// Admits requests in groups, where passes without prompts are much cheaper than others: of at least one for each
    /// [`GATHERED`] that run.
    pub gathers: bool,
}

/// Running requests for each that joins a group. An agent's rollout has a prompt for every response, so with one at a time
/// most passes have some. In groups one in ten has, and an eighth of the slots waits at most.
const GATHERED: usize = 8;

/// An admitted request.
#[derive(Debug)]
pub struct RunningRequest {
    /// Numbers the requests in order of admission.
    id: RequestId,
    /// The request; drawn tokens are appended to its prompt.
    pub request: Request,
    /// Tokens of the prompt alone.
    prompt: usize,
    /// The prompt's rotary positions and that of the first drawn token; none without images.
    rotary: Option<(Vec<[i64; 3]>, i64)>,
    logprobs: Vec<f32>,
    /// Tokens that planned passes draw and that are not recorded yet: at most one when a pass is planned.
    pending: usize,
    /// Tokens whose keys and values are in the cache, or will be after the planned pass.
    computed: usize,
    /// The pages that hold them.
    pages: Vec<PageId>,
    /// Full pages among them whose content is known, and the content of the last one.
    known: usize,
    content: Content,
    /// Pages promised in addition.
    promised: usize,
}

impl RunningRequest {
    /// Tokens drawn so far.
    pub fn drawn(&self) -> usize {
        self.request.prompt.len() - self.prompt
    }

    /// Number of the token that the last planned pass draws.
    pub fn planned_draw(&self) -> usize {
        self.drawn() + self.pending - 1
    }

    fn missing(&self) -> usize {
        self.request.prompt.len() + self.pending - self.computed
    }

    /// True if the planned draws reach the limit, so that no further pass has a row of it.
    fn is_complete(&self) -> bool {
        self.drawn() + self.pending >= self.request.max_new_tokens
    }

    /// Publishes the pages that are full of known tokens.
    fn publish(&mut self, pages: &mut Pages, images: &ImageNumbers) {
        for full in self.known..self.computed.min(self.request.prompt.len()) / PAGE {
            let Some(tokens) = images.page(&self.request, full * PAGE) else { return };
            self.content = pages.publish(self.pages[full], self.content, &tokens);
            self.known = full + 1;
        }
    }

    /// Rotary positions of `count` tokens from `position` on; empty where they are the tokens' places.
    fn rotary(&self, position: usize, count: usize) -> Vec<[i64; 3]> {
        let Some((prompt, next)) = &self.rotary else { return Vec::new() };
        let drawn = |place: usize| [next + (place - self.prompt) as i64; 3];
        (position..position + count).map(|place| prompt.get(place).copied().unwrap_or_else(|| drawn(place))).collect()
    }

    /// The images among `count` tokens from `position` on.
    fn images(&self, position: usize, count: usize) -> Vec<ChunkImage> {
        let overlap = |image: &PlacedImage| {
            let (start, end) = (image.start.max(position), image.end().min(position + count));
            let part = || ChunkImage {
                row: start - position,
                first: start - image.start,
                count: end - start,
                image: image.clone(),
            };
            (start < end).then(part)
        };
        self.request.images.iter().filter_map(overlap).collect()
    }
}

/// Numbers of the images that requests show, by content. Siblings that differ in an image alone share no page of it.
#[derive(Debug, Default)]
struct ImageNumbers(HashMap<ImageKey, u64>);

/// Above every token id.
const FIRST_IMAGE: u64 = 1 << 32;

impl ImageNumbers {
    fn add(&mut self, images: &[PlacedImage]) {
        for image in images {
            let next = FIRST_IMAGE + self.0.len() as u64;
            self.0.entry(image.image.key()).or_insert(next);
        }
    }

    /// The page of a request's tokens from `start` on; none where they do not fill it.
    fn page(&self, request: &Request, start: usize) -> Option<PageTokens> {
        let ids: &[u32; PAGE] = request.prompt.get(start..start + PAGE)?.try_into().ok()?;
        let mut tokens = ids.map(u64::from);
        for image in &request.images {
            let own = image.start.clamp(start, start + PAGE) - start..image.end().clamp(start, start + PAGE) - start;
            if let Some(&number) = self.0.get(&image.image.key()) {
                tokens[own].fill(number);
            }
        }
        Some(tokens)
    }
}

/// Number of a request in order of admission.
pub type RequestId = u64;

/// Rows of one running request in a pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk {
    pub id: RequestId,
    /// One number without meaning where the chunk is `fed`.
    pub tokens: Vec<u32>,
    /// Its token is the one that the pass before draws for this request, which is not recorded yet.
    pub fed: bool,
    /// Position of the first token.
    pub position: usize,
    /// Rotary positions (time, row, column) where they differ from the places; else empty.
    pub rotary: Vec<[i64; 3]>,
    /// The images among the tokens.
    pub images: Vec<ChunkImage>,
    /// The request's pages, including those of these rows.
    pub pages: Vec<PageId>,
    /// The request's next token is drawn from the last row's logits.
    pub draws: bool,
}

/// Number of chunks of one row at the beginning, where `Scheduler::plan` puts those that decode.
pub fn decoding_rows(chunks: &[Chunk]) -> usize {
    chunks.iter().take_while(|chunk| chunk.tokens.len() == 1).count()
}

/// A part of an image in a chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkImage {
    /// Its first token's place in the chunk.
    pub row: usize,
    /// Number of that token among those of the image.
    pub first: usize,
    pub count: usize,
    pub image: PlacedImage,
}

/// Admits requests, plans passes, and records drawn tokens.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    waiting: VecDeque<Request>,
    running: Vec<RunningRequest>,
    pages: Pages,
    images: ImageNumbers,
    counters: Counters,
    /// Requests admitted so far.
    admitted: RequestId,
}

impl Scheduler {
    pub fn new(limits: Limits) -> Self {
        let pages = Pages::new(limits.pages);
        let (waiting, running, images) = (VecDeque::new(), Vec::new(), ImageNumbers::default());
        Self { limits, waiting, running, pages, images, counters: Counters::default(), admitted: 0 }
    }

    /// Queues a request. Its prompt must not be empty, and it must fit into the cache by itself.
    pub fn submit(&mut self, request: Request) {
        self.images.add(&request.images);
        self.waiting.push_back(request);
    }

    /// Returns true if no request waits or runs.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Requests in order of admission.
    #[cfg(test)]
    pub fn running(&self) -> &[RunningRequest] {
        &self.running
    }

    /// The running request of this number, unless it has left.
    pub fn request(&self, id: RequestId) -> Option<&RunningRequest> {
        self.place(id).map(|place| &self.running[place])
    }

    fn place(&self, id: RequestId) -> Option<usize> {
        self.running.binary_search_by_key(&id, |run| run.id).ok()
    }

    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Work since the counters were last taken.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Work planned since the last call.
    pub fn take_counters(&mut self) -> Counters {
        std::mem::take(&mut self.counters)
    }

    /// Counts rows of a pass that attend to the cache's pages where they are.
    pub fn count_paged(&mut self, rows: usize) {
        self.counters.paged += rows as u64;
    }

    /// Drops all requests and the contents of the cache.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.running.clear();
        self.pages = Pages::new(self.limits.pages);
        self.images = ImageNumbers::default();
    }

    /// Drops a request, whether it waits or runs. Draws of a pass under way are dropped too.
    pub fn cancel(&mut self, key: NoiseKey) {
        self.waiting.retain(|request| request.key != key);
        if let Some(place) = self.running.iter().position(|run| run.request.key == key) {
            let run = self.running.remove(place);
            self.pages.release(&run.pages);
            self.pages.forgo(run.promised);
        }
    }

    /// Tokens drawn so far for a running request and their log-probs; none for one that waits or has left.
    pub fn drawn(&self, key: NoiseKey) -> Option<(&[u32], &[f32])> {
        let run = self.running.iter().find(|run| run.request.key == key)?;
        Some((&run.request.prompt[run.prompt..], &run.logprobs))
    }

    /// Plans the next pass: its chunks, those that decode first. Empty when no request runs or waits, or when all that run
    /// have drawn their last token in passes that are not recorded yet. At most one planned pass may be unrecorded.
    pub fn plan(&mut self) -> Vec<Chunk> {
        if self.limits.ordered {
            self.waiting.make_contiguous().sort_by_key(|r| (r.key.episode, r.key.step));
        }
        let mut chunks = Vec::new();
        let mut left = self.limits.rows;
        let (decoding, filling): (Vec<usize>, Vec<usize>) =
            (0..self.running.len()).partition(|&i| self.running[i].missing() == 1);
        let fills = !filling.is_empty();
        for i in decoding.into_iter().chain(filling) {
            self.extend(i, &mut left, &mut chunks);
        }
        let joins = fills || self.joins();
        while joins && left > 0 && self.admit() {
            self.extend(self.running.len() - 1, &mut left, &mut chunks);
        }
        self.counters.passes += u64::from(!chunks.is_empty());
        chunks
    }

    /// Changes the most rows of the passes that follow, and whether requests join them in groups.
    pub fn set_passes(&mut self, rows: usize, gathers: bool) {
        (self.limits.rows, self.limits.gathers) = (rows, gathers);
    }

    /// True if waiting requests shall join now.
    fn joins(&self) -> bool {
        let fit = self.waiting.len().min(self.limits.slots - self.running.len());
        !self.limits.gathers || fit * GATHERED >= self.running.len()
    }

    /// Admits the first waiting request, if there is a slot, and room for all pages that it may need.
    fn admit(&mut self) -> bool {
        let Some(request) = self.waiting.front().filter(|_| self.running.len() < self.limits.slots) else {
            return false;
        };
        let prompt = request.prompt.len();
        // The last drawn token never enters the cache.
        let whole = (prompt + request.max_new_tokens - 1).div_ceil(PAGE);
        let (mut found, mut held, mut content) = (Vec::new(), 0, 0);
        while let Some((page, next)) = shareable(&self.pages, &self.images, request, (found.len() * PAGE, content)) {
            held += usize::from(self.pages.is_held(page));
            content = next;
            found.push(page);
        }
        if whole - held > self.pages.room() {
            return false;
        }
        found.iter().for_each(|&page| self.pages.hold(page));
        let (computed, promised) = (found.len() * PAGE, whole - found.len());
        self.pages.promise(promised);
        self.counters.shared += computed as u64;
        if let Some(request) = self.waiting.pop_front() {
            let (id, known, pages) = (self.admitted, found.len(), found);
            let rotary = (!request.images.is_empty()).then(|| positions(prompt, &request.images));
            let run = RunningRequest {
                id,
                rotary,
                request,
                prompt,
                logprobs: Vec::new(),
                pending: 0,
                computed,
                pages,
                known,
                content,
                promised,
            };
            self.running.push(run);
            self.admitted += 1;
        }
        true
    }

    /// Plans as many of a request's missing tokens as there are rows left.
    fn extend(&mut self, index: usize, left: &mut usize, chunks: &mut Vec<Chunk>) {
        let run = &mut self.running[index];
        // Another request may have computed the next pages since this one was admitted.
        while run.computed == run.pages.len() * PAGE
            && let Some((page, content)) =
                shareable(&self.pages, &self.images, &run.request, (run.computed, run.content))
        {
            self.pages.hold(page);
            self.pages.forgo(1);
            run.promised -= 1;
            run.pages.push(page);
            (run.known, run.content) = (run.known + 1, content);
            run.computed += PAGE;
            self.counters.shared += PAGE as u64;
        }
        let count = run.missing().min(*left);
        if count == 0 || run.is_complete() {
            return;
        }
        let position = run.computed;
        run.computed += count;
        *left -= count;
        while run.pages.len() * PAGE < run.computed {
            run.pages.push(self.pages.take());
            run.promised -= 1;
        }
        // Every pass writes keys and values before it reads them, so that requests of one pass can share pages.
        run.publish(&mut self.pages, &self.images);
        let of_prompt = run.prompt.saturating_sub(position).min(count);
        self.counters.prefilled += of_prompt as u64;
        self.counters.decoded += (count - of_prompt) as u64;
        self.counters.alone += u64::from(count == 1);
        let fed = run.pending > 0;
        let draws = run.missing() == 0;
        run.pending += usize::from(draws);
        let tokens = if fed { vec![0] } else { run.request.prompt[position..run.computed].to_vec() };
        let (rotary, images) = (run.rotary(position, count), run.images(position, count));
        chunks.push(Chunk { id: run.id, tokens, fed, position, rotary, images, pages: run.pages.clone(), draws });
    }

    /// Records the tokens drawn for the chunks that draw, in their order. Returns the completed requests, in order of
    /// admission. Draws of requests that have left are dropped: a later pass may have been planned before their end was known.
    pub fn record(&mut self, chunks: &[Chunk], drawn: impl IntoIterator<Item = (u32, f32)>) -> Vec<Completion> {
        let mut finished = vec![None; self.running.len()];
        for (chunk, (token, logprob)) in chunks.iter().filter(|chunk| chunk.draws).zip(drawn) {
            let Some(place) = self.place(chunk.id) else { continue };
            let run = &mut self.running[place];
            run.request.prompt.push(token);
            run.logprobs.push(logprob);
            run.pending -= 1;
            self.counters.generated += 1;
            finished[place] = match self.limits.ends.end(&run.request.prompt[run.prompt..]) {
                Some(End::Token) => Some(FinishReason::Eos),
                Some(End::Text) => Some(FinishReason::Stop),
                None => (run.drawn() >= run.request.max_new_tokens).then_some(FinishReason::Length),
            };
            if finished[place].is_none() {
                // A page that a planned pass fills with the token that was unknown until now.
                run.publish(&mut self.pages, &self.images);
            }
        }
        let mut done = Vec::new();
        let running = std::mem::take(&mut self.running);
        for (mut run, finished) in running.into_iter().zip(finished) {
            let Some(finished) = finished else {
                self.running.push(run);
                continue;
            };
            self.pages.release(&run.pages);
            self.pages.forgo(run.promised);
            let tokens = run.request.prompt.split_off(run.prompt);
            done.push(Completion { key: run.request.key, tokens, logprobs: run.logprobs, finished });
        }
        done
    }
}

/// The published page of the tokens from `start` on, if any. The last token is always computed, for its logits.
fn shareable(
    pages: &Pages,
    images: &ImageNumbers,
    request: &Request,
    (start, before): (usize, Content),
) -> Option<(PageId, Content)> {
    let page = images.page(request, start).filter(|_| start + PAGE < request.prompt.len())?;
    pages.find(before, &page)
}

#[cfg(test)]
mod tests;
