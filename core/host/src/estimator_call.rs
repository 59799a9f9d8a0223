//! The calls of an estimator as data, and the rows as the border has them.

use nestor_plugin::{Needs, ffi};
use serde::{Deserialize, Serialize};

use crate::call::{Answer, Handle, Out, call, call_for_texts};
use crate::calls::Function;
use crate::library::EstimatorTables;
use crate::rows::Rows;

/// Numbers behind the end of each array that an estimator fills. A plugin that writes there has written too far.
pub const MARGIN: usize = 64;
/// The value of a number that the estimator has not written, and of the margin: a NaN that no arithmetic makes.
pub const UNTOUCHED: u32 = 0x7fc5_a3d1;

/// A call after `open`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum EstimatorCall {
    Needs,
    Columns,
    Score(Box<Scoring>),
    Names,
    /// The number of parts goes along.
    Fill(Box<Scoring>, usize),
    Save,
    Load(Vec<u8>),
    Close,
}

/// Rows whose columns have the lengths that the border promises, and what the estimator asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scoring {
    pub rows: Rows,
    /// The flags of [`Needs`].
    pub needs: u32,
    /// Names of columns in the estimator's order. One that the rows lack is missing.
    pub asked: Vec<String>,
}

impl EstimatorCall {
    pub fn function(&self) -> Function {
        match self {
            Self::Needs => Function::Needs,
            Self::Columns => Function::Columns,
            Self::Score(_) => Function::Score,
            Self::Names => Function::Names,
            Self::Fill(..) => Function::Fill,
            Self::Save => Function::Save,
            Self::Load(_) => Function::Load,
            Self::Close => Function::Close,
        }
    }

    /// Number of tokens and of parts that the answer holds.
    pub fn numbers(&self) -> usize {
        match self {
            Self::Score(scoring) => scoring.rows.token_rewards.len() + MARGIN,
            Self::Fill(scoring, parts) => scoring.rows.len() * parts,
            _ => 0,
        }
    }

    /// Makes the call in this process.
    ///
    /// # Safety
    /// The handle is open, this thread alone uses it, and the columns of the rows were checked.
    pub unsafe fn perform(&self, tables: &EstimatorTables, handle: Handle) -> Answer {
        let handle = handle.pointer();
        // SAFETY: the caller's promises; columns and arrays have the lengths that the header gives and outlive the call.
        unsafe {
            match (self, tables.columns, tables.parts, tables.state) {
                (Self::Needs, ..) => call(0, Out::Flags, |sink, flags| (tables.functions.needs)(handle, sink, flags)),
                (Self::Columns, Some(columns), ..) => call_for_texts(|sink| (columns.names)(handle, sink)),
                (Self::Score(scoring), columns, ..) => {
                    let room = (scoring.room(), scoring.room());
                    let out = |(advantages, returns)| Out::Scores { advantages, returns };
                    call(room, out, |sink, (advantages, returns)| {
                        let extra = scoring.extra();
                        let (rows, named) = (&scoring.columns(&extra), scoring.named());
                        let (advantages, returns) = (advantages.as_mut_ptr(), returns.as_mut_ptr());
                        match columns {
                            None => (tables.functions.score)(handle, rows, sink, advantages, returns),
                            Some(table) => (table.score)(handle, rows, named.as_ptr(), sink, advantages, returns),
                        }
                    })
                }
                (Self::Names, _, Some(parts), _) => call_for_texts(|sink| (parts.names)(handle, sink)),
                (Self::Fill(scoring, count), columns, Some(parts), _) => {
                    let room = vec![f64::NAN; scoring.rows.len() * count];
                    call(room, Out::Parts, |sink, numbers| {
                        let extra = scoring.extra();
                        let (rows, named) = (&scoring.columns(&extra), scoring.named());
                        match columns.and_then(|table| table.fill) {
                            None => (parts.fill)(handle, rows, sink, numbers.as_mut_ptr()),
                            Some(fill) => fill(handle, rows, named.as_ptr(), sink, numbers.as_mut_ptr()),
                        }
                    })
                }
                (Self::Save, .., Some(state)) => call_for_texts(|sink| (state.save)(handle, sink)),
                (Self::Load(bytes), .., Some(state)) => {
                    call_for_texts(|sink| (state.load)(handle, ffi::Str::new(bytes), sink))
                }
                (Self::Close, ..) => call_for_texts(|sink| (tables.functions.close)(handle, sink)),
                _ => Answer::missing(),
            }
        }
    }
}

/// Columns of the border that [`Rows`] stores in another form.
struct Extra {
    span_length: Vec<u32>,
    anchor_data: Vec<u8>,
    anchor_offsets: Vec<u64>,
}

impl Scoring {
    fn needs(&self) -> Needs {
        Needs::from_flags(self.needs).unwrap_or_default()
    }

    /// Room for one number per token, with a margin behind it.
    fn room(&self) -> Vec<f32> {
        vec![f32::from_bits(UNTOUCHED); self.rows.token_rewards.len() + MARGIN]
    }

    fn extra(&self) -> Extra {
        let span_length = self.rows.token_offsets.windows(2).map(|w| (w[1] - w[0]) as u32).collect();
        let mut extra = Extra { span_length, anchor_data: Vec::new(), anchor_offsets: vec![0] };
        if self.needs().anchors {
            for anchor in &self.rows.anchor {
                extra.anchor_data.extend_from_slice(anchor);
                extra.anchor_offsets.push(extra.anchor_data.len() as u64);
            }
        }
        extra
    }

    /// The columns that the estimator asks for, in its order. One that is missing is null.
    fn named(&self) -> Vec<ffi::Column> {
        let missing = ffi::Column { kind: 0, count: 0, data: std::ptr::null(), offsets: std::ptr::null() };
        let column = |name: &String| self.rows.columns.get(name).map_or(missing, |column| column.view().to_ffi());
        self.asked.iter().map(column).collect()
    }

    fn columns(&self, extra: &Extra) -> ffi::Rows {
        let (rows, needs) = (&self.rows, self.needs());
        let asked = |column: &Option<Vec<f32>>, asked: bool| match column {
            Some(column) if asked => column.as_ptr(),
            _ => std::ptr::null(),
        };
        ffi::Rows {
            rows: rows.len() as u64,
            tokens: rows.token_rewards.len() as u64,
            group: rows.group.as_ptr(),
            episode: rows.episode.as_ptr(),
            step: rows.step.as_ptr(),
            sequence: rows.sequence.as_ptr(),
            span_start: rows.span_start.as_ptr(),
            span_length: extra.span_length.as_ptr(),
            reward: rows.reward.as_ptr(),
            penalty: rows.penalty.as_ptr(),
            // A bool is one byte, 0 or 1.
            valid: rows.valid.as_ptr().cast(),
            terminated: rows.terminated.as_ptr().cast(),
            truncated: rows.truncated.as_ptr().cast(),
            anchor_data: if needs.anchors { extra.anchor_data.as_ptr() } else { std::ptr::null() },
            anchor_offsets: if needs.anchors { extra.anchor_offsets.as_ptr() } else { std::ptr::null() },
            duplicate_of: rows.duplicate_of.as_ptr(),
            token_offsets: rows.token_offsets.as_ptr(),
            token_rewards: rows.token_rewards.as_ptr(),
            values: asked(&rows.values, needs.values),
            logprobs: if rows.logprobs.is_empty() { std::ptr::null() } else { rows.logprobs.as_ptr() },
            ref_logprobs: asked(&rows.ref_logprobs, needs.reference),
        }
    }
}
