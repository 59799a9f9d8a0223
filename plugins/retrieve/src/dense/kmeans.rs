//! The making of inverted lists: k-means on the unit sphere in float32, on a sample of the vectors.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ndarray::{Array2, ArrayView2, Axis, Slice};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use safetensors::tensor::{Dtype, TensorView};

use super::block::{BLOCK, Block, in_threads};
use super::lists::{FILE, FORMAT};
use super::top::Hit;
use super::vectors::Vectors;

/// Vectors of the sample for each list.
const SAMPLE: usize = 64;
/// Rounds of k-means.
const ROUNDS: usize = 10;

/// Makes the lists of an index and writes them into its folder.
///
/// # Errors
/// More lists than vectors, or a vector with NaN or infinite numbers.
pub fn make_lists(dir: &Path, vectors: &Vectors, lists: usize, threads: usize) -> Result<()> {
    ensure!(
        lists > 0 && lists <= vectors.len(),
        "{lists} lists for {} vectors; choose fewer, such as 4 times the root of their number",
        vectors.len()
    );
    let centroids = centroids(vectors, lists, threads)?;
    let nearest = nearest_of_all(vectors, centroids.view(), threads)?;
    let mut members = vec![Vec::new(); lists];
    for (row, &list) in nearest.iter().enumerate() {
        members[list as usize].push(row as u32);
    }
    let ends = members.iter().scan(0, |end, rows| {
        *end += rows.len() as u64;
        Some(*end)
    });
    let ends: Vec<u8> = ends.flat_map(u64::to_le_bytes).collect();
    let rows: Vec<u8> = members.iter().flatten().flat_map(|row| row.to_le_bytes()).collect();
    let points: Vec<u8> = centroids.iter().flat_map(|number| number.to_le_bytes()).collect();
    let tensors = [
        ("centroids", TensorView::new(Dtype::F32, vec![lists, vectors.dim()], &points)?),
        ("ends", TensorView::new(Dtype::U64, vec![lists], &ends)?),
        ("rows", TensorView::new(Dtype::U32, vec![vectors.len()], &rows)?),
    ];
    let notes = [("format", FORMAT.to_string()), ("vectors", vectors.header_sum())];
    let notes: HashMap<String, String> = notes.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
    let path = dir.join(FILE);
    let partial = dir.join("lists.partial");
    let context = || format!("cannot write {}", partial.display());
    // `serialize_to_file` would make a file that nobody else may read.
    let bytes = safetensors::serialize(tensors, Some(notes)).with_context(context)?;
    std::fs::write(&partial, bytes).with_context(context)?;
    std::fs::rename(&partial, &path).with_context(context)
}

/// Centroids of length 1 (lists, dim).
fn centroids(vectors: &Vectors, lists: usize, threads: usize) -> Result<Array2<f32>> {
    let dim = vectors.dim();
    let rows = sample(vectors.len(), lists * SAMPLE);
    let mut points = Array2::zeros((rows.len(), dim));
    for (mut point, &row) in points.rows_mut().into_iter().zip(&rows) {
        let to = point.as_slice_mut().context("a row of a matrix is contiguous")?;
        vectors.convert(row..row + 1, to)?;
    }
    // The sample is in random order.
    let mut centroids = points.slice_axis(Axis(0), Slice::from(..lists)).to_owned();
    for _ in 0..ROUNDS {
        let nearest = assign(points.nrows(), centroids.view(), threads, |place, block| {
            let all = points.as_slice().context("a matrix is contiguous")?;
            block.copy_from_slice(&all[place.start * dim..place.end * dim]);
            Ok(())
        })?;
        let mut sums = Array2::<f32>::zeros((lists, dim));
        for (point, hit) in points.rows().into_iter().zip(&nearest) {
            ensure!(
                hit.score.is_finite(),
                "{}: a vector has NaN or infinite numbers; run `nestor embed` again",
                vectors.path().display()
            );
            let mut sum = sums.row_mut(hit.row as usize);
            sum += &point;
        }
        // A list without points takes one of those farthest from their centroid.
        let mut far: Vec<usize> = (0..nearest.len()).collect();
        far.sort_by(|&a, &b| nearest[a].score.total_cmp(&nearest[b].score));
        let mut far = far.into_iter();
        for mut sum in sums.rows_mut() {
            let mut length = sum.dot(&sum).sqrt();
            if length == 0.0
                && let Some(place) = far.next()
            {
                sum.assign(&points.row(place));
                length = sum.dot(&sum).sqrt();
            }
            sum /= length.max(f32::MIN_POSITIVE);
        }
        centroids = sums;
    }
    Ok(centroids)
}

/// At most `most` different rows in random order, the same every time.
fn sample(rows: usize, most: usize) -> Vec<usize> {
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let mut all: Vec<usize> = (0..rows).collect();
    let count = most.min(rows);
    for place in 0..count {
        let other = place + (random.next_u64() % (rows - place) as u64) as usize;
        all.swap(place, other);
    }
    all.truncate(count);
    all
}

/// The nearest centroid of each vector.
fn nearest_of_all(vectors: &Vectors, centroids: ArrayView2<f32>, threads: usize) -> Result<Vec<u32>> {
    let hits = assign(vectors.len(), centroids, threads, |rows, block| vectors.convert(rows, block))?;
    if let Some(row) = hits.iter().position(|hit| !hit.score.is_finite()) {
        return Err(vectors.damaged(row));
    }
    Ok(hits.iter().map(|hit| hit.row).collect())
}

/// The nearest centroid of each of `count` points with its score, on some threads. `fill` copies points to a buffer.
fn assign(
    count: usize,
    centroids: ArrayView2<f32>,
    threads: usize,
    fill: impl Fn(std::ops::Range<usize>, &mut [f32]) -> Result<()> + Sync,
) -> Result<Vec<Hit>> {
    let state = || (Block::new(centroids.nrows(), centroids.ncols()), Vec::new());
    let found = in_threads(threads, count.div_ceil(BLOCK), state, |share, (block, own)| {
        let points = share * BLOCK..count.min((share + 1) * BLOCK);
        let rows = points.len();
        fill(points, block.rows(rows))?;
        let mut best = vec![Hit { row: 0, score: f32::NEG_INFINITY }; rows];
        for (list, scores) in block.scores(centroids, rows)?.enumerate() {
            for (best, &score) in best.iter_mut().zip(scores) {
                // NaN replaces what there is, so that the caller finds it.
                if score > best.score || score.is_nan() {
                    *best = Hit { row: list as u32, score };
                }
            }
        }
        own.push((share, best));
        Ok(())
    })?;
    let mut shares: Vec<_> = found.into_iter().flat_map(|(_, own)| own).collect();
    shares.sort_by_key(|(share, _)| *share);
    Ok(shares.into_iter().flat_map(|(_, hits)| hits).collect())
}
