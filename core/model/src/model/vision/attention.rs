//! Attention inside segments of a packed axis, each patch to all of its segment.

use std::collections::BTreeMap;

use nestor_torch::upload;
use tch::{Device, Tensor};

/// Segments of a packed axis that attend to themselves. Segments of one length are computed at once.
#[derive(Debug)]
pub struct Segments {
    groups: Vec<Group>,
    /// The place of each row among those of the groups, where it is another: (P) int64.
    back: Option<Tensor>,
}

/// The segments of one length.
#[derive(Debug)]
struct Group {
    count: i64,
    length: i64,
    /// Their rows, (count x length) int64; none where these are all rows in their order.
    rows: Option<Tensor>,
}

impl Segments {
    /// Segments of these lengths, end to end.
    pub fn new(lengths: &[i64], device: Device) -> Self {
        let mut by_length: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        let mut start = 0;
        for &length in lengths {
            by_length.entry(length).or_default().push(start);
            start += length;
        }
        if let [(&length, starts)] = by_length.iter().collect::<Vec<_>>()[..] {
            return Self { groups: vec![Group { count: starts.len() as i64, length, rows: None }], back: None };
        }
        let (mut groups, mut order) = (Vec::new(), Vec::new());
        for (length, starts) in by_length {
            let rows: Vec<i64> = starts.iter().flat_map(|&start| start..start + length).collect();
            groups.push(Group { count: starts.len() as i64, length, rows: Some(upload(&rows, device)) });
            order.extend(rows);
        }
        let mut back = vec![0; order.len()];
        for (place, row) in order.into_iter().enumerate() {
            back[row as usize] = place as i64;
        }
        Self { groups, back: Some(upload(&back, device)) }
    }

    /// Attention of queries, keys and values (P, H, D): (P, H, D).
    pub fn attend(&self, qkv: [&Tensor; 3]) -> Tensor {
        let size = qkv[0].size();
        let attended: Vec<Tensor> = self.groups.iter().map(|group| group.attend(qkv)).collect();
        match &self.back {
            Some(back) => Tensor::cat(&attended, 0).index_select(0, back),
            None => attended.into_iter().next().unwrap_or_else(|| qkv[0].zeros_like()).view(size.as_slice()),
        }
    }
}

impl Group {
    fn attend(&self, qkv: [&Tensor; 3]) -> Tensor {
        let (heads, dim) = (qkv[0].size()[1], qkv[0].size()[2]);
        let [q, k, v] = qkv.map(|x| {
            let own = self.rows.as_ref().map_or_else(|| x.shallow_clone(), |rows| x.index_select(0, rows));
            own.reshape([self.count, self.length, heads, dim]).transpose(1, 2)
        });
        let out = Tensor::scaled_dot_product_attention(&q, &k, &v, None::<Tensor>, 0.0, false, None, false);
        out.transpose(1, 2).reshape([-1, heads, dim])
    }
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;

    #[test]
    fn each_segment_attends_to_itself() {
        tch::manual_seed(1);
        for lengths in [vec![3, 3], vec![4, 2, 4, 1], vec![5]] {
            let rows: i64 = lengths.iter().sum();
            let qkv = [(); 3].map(|()| Tensor::randn([rows, 2, 8], (Kind::Float, Device::Cpu)));
            let got = Segments::new(&lengths, Device::Cpu).attend([&qkv[0], &qkv[1], &qkv[2]]);
            let mut start = 0;
            for length in lengths {
                let [q, k, v] = [0, 1, 2].map(|i| qkv[i].narrow(0, start, length).transpose(0, 1));
                let weights = (q.matmul(&k.transpose(1, 2)) / 8f64.sqrt()).softmax(-1, Kind::Float);
                let want = weights.matmul(&v).transpose(0, 1);
                assert!(got.narrow(0, start, length).allclose(&want, 1e-5, 1e-6, false));
                start += length;
            }
        }
    }
}
