//! Similarity of two texts: CPython's `difflib.SequenceMatcher(None, a, b).ratio()`, its "autojunk" rule included.
//!
//! ratio = 2 M / (|a| + |b|) over code points, M the length of all matching blocks: the longest common block (the first
//! of equals), then the same to its left and to its right. If |b| >= 200, characters that occur in b more than |b| /
//! 100 + 1 times start no match, they only extend one. The measure is not symmetric.
//!
//! [`Text::similar`] decides most pairs by upper bounds of M, of which the cheapest comes first:
//!
//! - the length of the shorter text;
//! - P + K + 1, where P counts the pairs of neighbours that both texts have, and K the characters that may start a match. A
//!   block of n characters has n - 1 such pairs, and one such character unless it begins both texts. P is counted in a
//!   sketch first;
//! - the characters that both texts have;
//! - the blocks found so far, and the shorter side of each window that is still open.

/// A text prepared for comparisons.
#[derive(Debug)]
pub struct Text {
    chars: Vec<char>,
    /// The characters in ascending order, each with its range of `places`.
    runs: Vec<Run>,
    /// Positions of each character, ascending.
    places: Vec<u32>,
    /// Most occurrences of a character that starts matches.
    popular: usize,
    /// Number of characters that start matches.
    starts: usize,
    pairs: Pairs,
}

#[derive(Debug, Clone, Copy)]
struct Run {
    char: char,
    start: usize,
    end: usize,
}

impl Run {
    fn len(&self) -> usize {
        self.end - self.start
    }
}

impl Text {
    /// Prepares a text.
    pub fn new(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let mut order: Vec<(char, u32)> = chars.iter().copied().zip(0..).collect();
        order.sort_unstable();
        let mut runs: Vec<Run> = Vec::new();
        for (at, &(char, _)) in order.iter().enumerate() {
            match runs.last_mut().filter(|run| run.char == char) {
                Some(run) => run.end = at + 1,
                None => runs.push(Run { char, start: at, end: at + 1 }),
            }
        }
        let popular = if chars.len() >= 200 { chars.len() / 100 + 1 } else { usize::MAX };
        let starts = runs.iter().map(Run::len).filter(|&count| count <= popular).sum();
        let pairs = Pairs::new(&chars);
        Self { places: order.into_iter().map(|(_, at)| at).collect(), chars, runs, popular, starts, pairs }
    }

    /// Returns `ratio(self, other) >= threshold`, by cheap upper bounds first.
    pub fn similar(&self, other: &Text, threshold: f64) -> bool {
        let reaches = |matches: usize| self.as_ratio(other, matches) >= threshold;
        let shorter = self.chars.len().min(other.chars.len());
        if !reaches(shorter) || !reaches(self.pairs.sketch.shared(&other.pairs.sketch) + other.starts + 1) {
            return false;
        }
        let common = Common::new(self, other);
        reaches(common.chars)
            && reaches(self.pairs.shared(&other.pairs) + common.starts + 1)
            && reaches(self.matches(other, &common, &reaches))
    }

    /// Returns the ratio, with `self` as a and `other` as b.
    pub fn ratio(&self, other: &Text) -> f64 {
        self.as_ratio(other, self.matches(other, &Common::new(self, other), &|_| true))
    }

    fn as_ratio(&self, other: &Text, matches: usize) -> f64 {
        match self.chars.len() + other.chars.len() {
            0 => 1.0,
            length => 2.0 * matches as f64 / length as f64,
        }
    }

    /// Returns M, or a smaller number if M does not reach what is asked for.
    fn matches(&self, other: &Text, common: &Common, reaches: &impl Fn(usize) -> bool) -> usize {
        let mut total = 0;
        let mut open = vec![Window { a: (0, self.chars.len()), b: (0, other.chars.len()) }];
        let mut possible = open[0].most();
        while let Some(window) = open.pop() {
            let Block { a, b, size } = self.longest(other, common, &window);
            possible -= window.most();
            if size > 0 {
                total += size;
                let sides = [
                    Window { a: (window.a.0, a), b: (window.b.0, b) },
                    Window { a: (a + size, window.a.1), b: (b + size, window.b.1) },
                ];
                for side in sides.into_iter().filter(|side| side.most() > 0) {
                    possible += side.most();
                    open.push(side);
                }
            }
            if !reaches(total + possible) {
                break;
            }
        }
        total
    }

    /// Returns the longest block that starts with an indexed character, the first in a and then in b among equals,
    /// extended by equal characters on both sides.
    fn longest(&self, other: &Text, common: &Common, window: &Window) -> Block {
        let mut best = Block { a: window.a.0, b: window.b.0, size: 0 };
        // The blocks that end at (i - 1, j), as pairs of j and length; only those of i - 1 are kept.
        let mut before: Vec<(usize, usize)> = Vec::new();
        let mut here = Vec::new();
        let first = common.places.partition_point(|&(i, _)| (i as usize) < window.a.0);
        let mut last = usize::MAX;
        for &(i, run) in &common.places[first..] {
            let i = i as usize;
            if i >= window.a.1 {
                break;
            }
            if last.wrapping_add(1) != i {
                before.clear();
            }
            let places = &other.places[other.runs[run].start..other.runs[run].end];
            let start = places.partition_point(|&j| (j as usize) < window.b.0);
            let mut ended = before.iter().peekable();
            for j in places[start..].iter().map(|&j| j as usize).take_while(|&j| j < window.b.1) {
                while ended.next_if(|(end, _)| end + 1 < j).is_some() {}
                let size = 1 + ended.next_if(|(end, _)| end + 1 == j).map_or(0, |(_, size)| *size);
                here.push((j, size));
                if size > best.size {
                    best = Block { a: i + 1 - size, b: j + 1 - size, size };
                }
            }
            std::mem::swap(&mut before, &mut here);
            here.clear();
            last = i;
        }
        let (a, b) = (&self.chars, &other.chars);
        while best.a > window.a.0 && best.b > window.b.0 && a[best.a - 1] == b[best.b - 1] {
            best = Block { a: best.a - 1, b: best.b - 1, size: best.size + 1 };
        }
        while best.a + best.size < window.a.1
            && best.b + best.size < window.b.1
            && a[best.a + best.size] == b[best.b + best.size]
        {
            best.size += 1;
        }
        best
    }
}

/// The characters that two texts have in common.
struct Common {
    /// Their number, each as often as the text that has it less often.
    chars: usize,
    /// The number of those that start matches.
    starts: usize,
    /// Positions in a of characters that start matches, ascending, each with the character's run in b.
    places: Vec<(u32, usize)>,
}

impl Common {
    fn new(a: &Text, b: &Text) -> Common {
        let mut common = Common { chars: 0, starts: 0, places: Vec::new() };
        let mut ours = a.runs.iter().peekable();
        for (number, run) in b.runs.iter().enumerate() {
            while ours.next_if(|it| it.char < run.char).is_some() {}
            let Some(own) = ours.next_if(|it| it.char == run.char) else { continue };
            let shared = own.len().min(run.len());
            common.chars += shared;
            if run.len() <= b.popular {
                common.starts += shared;
                common.places.extend(a.places[own.start..own.end].iter().map(|&at| (at, number)));
            }
        }
        common.places.sort_unstable();
        common
    }
}

/// The pairs of neighbours in a text.
#[derive(Debug)]
struct Pairs {
    sketch: Sketch,
    /// Each pair with its number, ascending.
    counts: Vec<((char, char), usize)>,
}

impl Pairs {
    fn new(chars: &[char]) -> Pairs {
        let mut all: Vec<(char, char)> = chars.iter().copied().zip(chars.iter().copied().skip(1)).collect();
        all.sort_unstable();
        let mut counts: Vec<((char, char), usize)> = Vec::new();
        for pair in all {
            match counts.last_mut().filter(|(last, _)| *last == pair) {
                Some((_, count)) => *count += 1,
                None => counts.push((pair, 1)),
            }
        }
        Pairs { sketch: Sketch::new(&counts), counts }
    }

    /// Number of pairs that both texts have, each as often as the text that has it less often.
    fn shared(&self, other: &Pairs) -> usize {
        let mut ours = self.counts.iter().peekable();
        let of = |&(pair, count): &((char, char), usize)| {
            while ours.next_if(|(own, _)| *own < pair).is_some() {}
            ours.next_if(|(own, _)| *own == pair).map_or(0, |(_, own)| count.min(*own))
        };
        other.counts.iter().map(of).sum()
    }
}

/// Numbers of pairs in a few classes. Two texts share at most as many pairs as their sketches.
#[derive(Debug)]
struct Sketch {
    counts: [u8; 256],
    /// Sum of the counts.
    sum: usize,
    /// Sum of what does not fit into the counts.
    beyond: usize,
}

impl Sketch {
    fn new(pairs: &[((char, char), usize)]) -> Sketch {
        let mut sums = [0; 256];
        for &((first, second), count) in pairs {
            let class =
                (u32::from(first).wrapping_mul(0x9e37_79b1) ^ u32::from(second)).wrapping_mul(0x85eb_ca6b) >> 24;
            sums[class as usize] += count;
        }
        let counts = sums.map(|sum| u8::try_from(sum).unwrap_or(u8::MAX));
        let beyond = sums.iter().map(|sum| sum.saturating_sub(u8::MAX.into())).sum();
        Sketch { counts, sum: counts.iter().map(|&count| usize::from(count)).sum(), beyond }
    }

    fn shared(&self, other: &Sketch) -> usize {
        // The sum of minima by that of differences, for which processors have an instruction of 16 bytes.
        let (ours, theirs) = (self.counts.as_chunks::<16>().0, other.counts.as_chunks::<16>().0);
        let apart = |(ours, theirs): (&[u8; 16], &[u8; 16])| -> u32 {
            ours.iter().zip(theirs).map(|(a, b)| u32::from(a.abs_diff(*b))).sum()
        };
        let apart: u32 = ours.iter().zip(theirs).map(apart).sum();
        (self.sum + other.sum - apart as usize) / 2 + self.beyond.min(other.beyond)
    }
}

/// Half-open parts of both texts.
struct Window {
    a: (usize, usize),
    b: (usize, usize),
}

impl Window {
    /// The length of the shorter part, which bounds the blocks in it.
    fn most(&self) -> usize {
        (self.a.1 - self.a.0).min(self.b.1 - self.b.0)
    }
}

/// Equal parts of both texts.
#[derive(Clone, Copy)]
struct Block {
    a: usize,
    b: usize,
    size: usize,
}
