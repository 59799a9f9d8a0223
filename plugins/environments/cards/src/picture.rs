//! The games as square pictures, drawn in code. They show what the images of gym_cards show.
//!
//! A picture below [`ROOMY`] pixels is a grid of equal square cells with one card, number or sign in each, without margin and
//! without words. If its side is a multiple of the patches of a small vision model, no patch has parts of two cells. A
//! larger picture has wider cards and a word above each part.

use anyhow::{Result, ensure};
use nestor_draw::{Area, Canvas, Glyph, MOST_PIXELS, Rgb};
use nestor_plugin::Image;

use crate::Name;
use crate::blackjack::Blackjack;
use crate::card::Card;
use crate::game::Game;
use crate::numberline::NumberLine;
use crate::points::{EZPOINTS, Points};

/// The side of gym_cards' images, in pixels.
pub const USUAL: u32 = 300;
/// From this side on, pictures have words.
const ROOMY: u32 = 224;
/// The smallest side of a cell: a glyph of 7 dots and the frame of its card.
const LEAST_CELL: u32 = 14;

const FELT: Rgb = [53, 101, 77];
const PAPER: Rgb = [255, 255, 255];
const BLACK: Rgb = [0, 0, 0];
const RED: Rgb = [215, 20, 30];
const BACK: Rgb = [40, 70, 165];
const FRAME: Rgb = [90, 90, 90];

/// The number 10 in the width of one cell.
const TEN: Glyph = Glyph(&[".#..##.", "##.#..#", ".#.#..#", ".#.#..#", ".#.#..#", ".#.#..#", ".#..##."]);

/// Checks the side of a game's pictures.
pub fn check(game: Name, size: u32) -> Result<()> {
    let least = LEAST_CELL * if game == Name::Ezpoints { 3 } else { 6 };
    let most = MOST_PIXELS.isqrt();
    ensure!(
        size >= least && u64::from(size) <= most,
        "size is {size}: the side of a picture of this game must be between {least} and {most} pixels"
    );
    Ok(())
}

/// Draws a game with sides of `size` pixels.
pub fn draw(game: &Game, size: u32) -> Result<Image> {
    let mut canvas = Canvas::new(size, size, FELT);
    match game {
        Game::Points(points) => lay(&mut canvas, &points_bands(points, size)),
        Game::Blackjack(blackjack) => lay(&mut canvas, &blackjack_bands(blackjack, size)),
        Game::NumberLine(line) => numbers(&mut canvas, line),
    }
    canvas.image()
}

/// A thing in a cell.
#[derive(Debug, Clone, Copy)]
enum Item {
    Card(Card),
    FaceDown,
    Entry(&'static str),
}

/// A part of the picture, over its whole width.
struct Band {
    label: &'static str,
    items: Vec<Item>,
    columns: u32,
    rows: u32,
    /// The share of the height.
    share: u32,
}

impl Band {
    fn new(label: &'static str, items: Vec<Item>, [columns, rows, share]: [u32; 3]) -> Band {
        Band { label, items, columns, rows, share }
    }
}

/// The hand, and the formula below. The last entry of the longest formula needs a cell too.
fn points_bands(points: &Points, size: u32) -> Vec<Band> {
    let [hand, formula] = match (*points.rules == EZPOINTS, size >= ROOMY) {
        (true, false) => [[3, 1, 1], [3, 2, 2]],
        (true, true) => [[2, 1, 2], [6, 1, 1]],
        (false, false) => [[6, 1, 1], [6, 5, 5]],
        (false, true) => [[4, 1, 2], [8, 3, 3]],
    };
    let cards = points.cards.iter().copied().map(Item::Card).collect();
    let entries = points.formula.iter().copied().map(Item::Entry).collect();
    vec![Band::new("CARDS", cards, hand), Band::new("FORMULA", entries, formula)]
}

/// The dealer's first card and one face down, and the player's cards below, five in a row as in gym_cards where there is room.
/// More cards than usual are drawn smaller: an endless deck has up to 22 for a hand.
fn blackjack_bands(game: &Blackjack, size: u32) -> Vec<Band> {
    let count = game.player.len() as u32;
    let [dealer, player] = if size >= ROOMY {
        let (columns, rows) = if count <= 10 { (5, 2) } else { (8, 3) };
        [[columns, 1, 1], [columns, rows, rows]]
    } else {
        let side = (3..6).find(|side| count <= side * (side - 1)).unwrap_or(6);
        [[side, 1, 1], [side, side - 1, side - 1]]
    };
    let shown = vec![Item::Card(game.dealer[0]), Item::FaceDown];
    let hand = game.player.iter().copied().map(Item::Card).collect();
    vec![Band::new("DEALER", shown, dealer), Band::new("PLAYER", hand, player)]
}

fn lay(canvas: &mut Canvas, bands: &[Band]) {
    let size = canvas.area().width;
    let shares: u32 = bands.iter().map(|band| band.share).sum();
    let scale = size / 150;
    let (label, share, mut left) = if size >= ROOMY {
        let label = (Glyph::TALL + 5) * scale;
        (label, (size - label * bands.len() as u32) / shares, canvas.area())
    } else {
        let cell = size / shares;
        (0, cell, canvas.area().middle(shares * cell, shares * cell))
    };
    for band in bands {
        let (strip, rest) = left.split(label);
        let (area, below) = rest.split(share * band.share);
        if label > 0 {
            let words = Area { x: strip.x + 3 * scale, width: Glyph::line(band.label) * scale, ..strip };
            canvas.text(words, band.label, scale, PAPER);
        }
        let (width, height) = (area.width / band.columns, area.height / band.rows);
        for (place, &item) in (0..).zip(&band.items) {
            let (column, row) = (place % band.columns, place / band.columns);
            let cell = Area { x: area.x + column * width, y: area.y + row * height, width, height };
            draw_item(canvas, cell, item);
        }
        left = below;
    }
}

fn draw_item(canvas: &mut Canvas, cell: Area, item: Item) {
    match item {
        Item::Card(card) => draw_card(canvas, cell, card),
        Item::FaceDown => draw_back(canvas, cell),
        Item::Entry(entry) => canvas.glyph(cell, symbol(entry), entry_scale(cell), PAPER),
    }
}

/// The glyph of a rank, a number or a sign; all have at most 7 columns.
fn symbol(text: &str) -> Glyph {
    let one = text.chars().next().filter(|_| text.len() == 1);
    one.and_then(Glyph::of).unwrap_or(TEN)
}

fn entry_scale(cell: Area) -> u32 {
    Glyph::scale(TEN.width(), TEN.height(), cell.width * 5 / 6, cell.height * 5 / 6)
}

/// The face of a card with sides as 5 to 7, with its frame drawn; the inner area is returned.
fn blank(canvas: &mut Canvas, cell: Area) -> Area {
    let space = cell.inside(cell.width.min(cell.height) / 30);
    let width = space.width.min(space.height * 5 / 7);
    let card = space.middle(width, space.height.min(width * 7 / 5));
    let line = (width / 60).max(1);
    canvas.fill(card, FRAME);
    let face = card.inside(line);
    canvas.fill(face, PAPER);
    face
}

/// The rank above, the suit below.
fn draw_card(canvas: &mut Canvas, cell: Area, card: Card) {
    let face = blank(canvas, cell);
    let color = if card.is_red() { RED } else { BLACK };
    let rank = if card.rank() == 'T' { TEN } else { Glyph::of(card.rank()).unwrap_or(TEN) };
    let rank_scale = Glyph::scale(TEN.width(), TEN.height(), face.width * 9 / 10, face.height * 11 / 20).max(1);
    let [large, small] = suit(card.suit());
    let (suit, suit_scale) = match Glyph::scale(large.width(), large.height(), face.width, face.height * 7 / 20) {
        0 => (small, 1),
        scale => (large, scale),
    };
    let [above, below] = [rank.height() * rank_scale, suit.height() * suit_scale];
    let free = face.height.saturating_sub(above + below) / 3;
    canvas.glyph(Area { y: face.y + free, height: above, ..face }, rank, rank_scale, color);
    let place = Area { y: face.y + face.height.saturating_sub(below + free), height: below, ..face };
    canvas.glyph(place, suit, suit_scale, color);
}

/// A blue lattice.
fn draw_back(canvas: &mut Canvas, cell: Area) {
    let face = blank(canvas, cell);
    let period = (face.width / 5).max(3);
    let line = (period / 3).max(1);
    let on_line = |sum: u32| sum % period < line;
    canvas.paint(face.inside(line), |x, y| {
        let crossed = on_line(x + y) || on_line(x + face.height * period - y);
        Some(if crossed { PAPER } else { BACK })
    });
}

/// The two lines of NumberLine, black on white as in gym_cards: a grid of three rows and columns, with a word over two cells and
/// a digit in the third.
fn numbers(canvas: &mut Canvas, line: &NumberLine) {
    const WORDS: [&str; 2] = ["TARGET:", "CURRENT:"];
    canvas.fill(canvas.area(), PAPER);
    let cell = canvas.area().width / 3;
    let grid = canvas.area().middle(3 * cell, 3 * cell);
    let scale = WORDS.map(|word| Glyph::scale(Glyph::line(word), Glyph::TALL, 2 * cell * 9 / 10, cell));
    let scale = scale[0].min(scale[1]);
    for (row, (word, number)) in WORDS.into_iter().zip([line.target, line.current]).enumerate() {
        let y = grid.y + 2 * row as u32 * cell;
        canvas.text(Area { x: grid.x, y, width: 2 * cell, height: cell }, word, scale, BLACK);
        let place = Area { x: grid.x + 2 * cell, y, width: cell, height: cell };
        canvas.glyph(place, symbol(&number.to_string()), entry_scale(place), BLACK);
    }
}

/// The sign of a suit in 7 rows, and a smaller one.
fn suit(letter: char) -> [Glyph; 2] {
    match letter {
        'H' => HEART,
        'S' => SPADE,
        'D' => DIAMOND,
        _ => CLUB,
    }
}

const HEART: [Glyph; 2] = [
    Glyph(&[".##.##.", "#######", "#######", "#######", ".#####.", "..###..", "...#..."]),
    Glyph(&["##.##", "#####", ".###.", "..#.."]),
];
const SPADE: [Glyph; 2] = [
    Glyph(&["...#...", "..###..", ".#####.", "#######", "###.###", "...#...", "..###.."]),
    Glyph(&["..#..", ".###.", "#####", "..#.."]),
];
const DIAMOND: [Glyph; 2] = [
    Glyph(&["...#...", "..###..", ".#####.", "#######", ".#####.", "..###..", "...#..."]),
    Glyph(&["..#..", ".###.", ".###.", "..#.."]),
];
const CLUB: [Glyph; 2] = [
    Glyph(&["..###..", "..###..", "##.#.##", "#######", "##.#.##", "...#...", "..###.."]),
    Glyph(&[".###.", "##.##", "##.##", "..#.."]),
];

#[cfg(test)]
#[path = "picture_tests.rs"]
mod tests;
